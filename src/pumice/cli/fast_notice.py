"""Says once that --fast exists, to people whom it would help."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pumice.llm.model import LanguageModel

_TEXT = (
    "note: --fast rounds activations to 8 bits, as llama.cpp does, and is faster on this processor; "
    "answers may differ in a word now and then (this is said once)"
)


def fast_notice(model: LanguageModel, *, at_terminal: bool) -> str:
    """What to say of --fast after an answer of a model; nothing where it would not help, was used, or was said before.

    It is for people at a terminal: what a program reads stays as it is.
    """
    from pumice.core.kept import keep, kept_folder, read_kept
    from pumice.llm.precision import is_quantized

    engine = model.engine
    helps = engine.device.multiplies_bytes and is_quantized(engine.weights.params)
    if not helps or model.precision == "fast" or not at_terminal:
        return ""
    folder = kept_folder("notices")
    if folder is None or read_kept(folder / "fast") is not None:
        return ""
    # Without a place to note it down it would be said every time.
    return _TEXT if keep(folder / "fast", b"said") else ""
