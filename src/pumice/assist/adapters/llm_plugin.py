"""simonw's `llm`: models of Pumice as `pumice/NAME`, found through this package's entry point. Needs `pumice[llm-plugin]`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import llm
from llm.models import EmbeddingModel as LlmEmbeddingModel
from pydantic import Field

from pumice.assist.adapters.shared import LazyModel
from pumice.sources import catalogue


class PumiceLlmModel(llm.Model):
    """A language model for `llm -m pumice/NAME`; the name may also be a path or hf:owner/repo."""

    can_stream = True

    class Options(llm.Options):
        """What `llm -o NAME VALUE` takes."""

        temperature: float | None = Field(default=None, ge=0, description="0 is greedy")
        max_tokens: int | None = Field(default=None, ge=1, description="the most tokens of the answer")
        top_k: int | None = Field(default=None, ge=0, description="only the K most likely tokens")
        top_p: float | None = Field(default=None, gt=0, le=1, description="only the most likely tokens that together reach P")
        seed: int | None = Field(default=None, ge=0, description="the same seed gives the same answer")

    def __init__(self, name: str) -> None:
        self.model_id, self._lazy = f"pumice/{name}", LazyModel(name, "generate")

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any = None) -> Iterator[str]:
        """The answer in pieces, after what was said before in the conversation."""
        messages: list[dict[str, str]] = []
        if prompt.system:
            messages.append({"role": "system", "content": prompt.system})
        for earlier in conversation.responses if conversation is not None else ():
            messages += [{"role": "user", "content": earlier.prompt.prompt}, {"role": "assistant", "content": earlier.text()}]
        messages.append({"role": "user", "content": prompt.prompt})
        options = {k: v for k, v in prompt.options.model_dump().items() if v is not None}
        for piece in self._lazy.get().stream(messages, **options):
            if piece:
                yield str(piece)
            if piece.usage is not None:
                response.set_usage(input=piece.usage["prompt_tokens"], output=piece.usage["completion_tokens"])


class PumiceLlmEmbedding(LlmEmbeddingModel):
    """An encoder for `llm embed -m pumice/NAME`."""

    def __init__(self, name: str) -> None:
        self.model_id, self._lazy = f"pumice/{name}", LazyModel(name, "embed")

    def embed_batch(self, items: Iterable[Any], *, key: str | None = None) -> Iterator[list[float]]:
        """A vector for each text."""
        texts = list(items)
        return iter(self._lazy.get().embed(texts).tolist() if texts else [])


def _names(task: str) -> list[str]:
    """The models of the catalogue that do a task; encoders are those that embed."""
    return [entry.name for entry in catalogue() if (entry.name == "minilm") == (task == "embed")]


@llm.hookimpl
def register_models(register: Any) -> None:
    """Called by llm: the catalogue's language models."""
    for name in _names("generate"):
        register(PumiceLlmModel(name))


@llm.hookimpl
def register_embedding_models(register: Any) -> None:
    """Called by llm: the catalogue's encoders."""
    for name in _names("embed"):
        register(PumiceLlmEmbedding(name))
