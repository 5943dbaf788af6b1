"""Text in and out of models: tokenisers, chat templates and the stream that turns token ids into text."""

from __future__ import annotations

from pumice.text.metering import Limits
from pumice.text.stream import TextStream
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Limits", "TextStream", "Tokenizer"]
