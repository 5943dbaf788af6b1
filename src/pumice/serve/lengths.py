"""How long a text may be before it is tokenised: one that cannot fit would take a worker seconds, and memory that it keeps."""

from __future__ import annotations

from pumice.errors import InputError

# More than any vocabulary gives for a token on average, over a text of any length.
_CHARACTERS_A_TOKEN = 64
# What may be tokenised for its own sake, whatever the context: about a book.
MOST_CHARACTERS = 1 << 20


def check_prompt(text: str, context: int, name: str) -> str:
    """The text, unless it is longer than any that fits into the context.

    >>> check_prompt("a" * 100, 2, "prompt") == "a" * 100
    True
    >>> check_prompt("a" * 129, 2, "prompt")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the prompt has 129 characters, the context holds 2 tokens
      hint: shorten it, or start the server with a larger --context
    """
    if len(text) > _CHARACTERS_A_TOKEN * context:
        message = f"the prompt has {len(text)} characters, the context holds {context} tokens"
        raise InputError(message, hint="shorten it, or start the server with a larger --context", context=context, name=name)
    return text


def check_text(text: str, context: int, name: str) -> str:
    """The text, unless it is too long to be tokenised for its own sake.

    >>> check_text("a" * 129, 2, "content") == "a" * 129
    True
    """
    most = max(MOST_CHARACTERS, _CHARACTERS_A_TOKEN * context)
    if len(text) > most:
        message = f"the text has {len(text)} characters, {most} can be tokenised at once"
        raise InputError(message, hint="send it in parts", name=name)
    return text
