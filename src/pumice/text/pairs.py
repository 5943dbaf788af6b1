"""Token ids and token types of pairs of texts, cut to a length as Hugging Face's tokenisers cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumice.text.vocabulary import Parts

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as Backend


@dataclass(frozen=True, slots=True)
class TypedTokens:
    """The ids of a text or a pair with the special tokens around them, and which of the two texts each belongs to."""

    ids: list[int]
    types: list[int]


def encode_pairs(parts: Parts, texts: Sequence[tuple[str, ...]], longest: int, side: str) -> list[TypedTokens]:
    """`Tokenizer.encode_pairs`."""
    # Not by the backend's own truncation: it is a setting of the tokeniser, which other calls use at the same time.
    encodings = iter(parts.backend.encode_batch([text for pair in texts for text in pair], add_special_tokens=False))
    return [_joined(parts, [next(encodings) for _ in pair], longest, side) for pair in texts]


def _joined(parts: Parts, pair: list[Encoding], longest: int, side: str) -> TypedTokens:
    around = None if parts.prefix is None else ((*parts.prefix,), (*(parts.suffix or ()),))
    if around is None:
        special = parts.backend.num_special_tokens_to_add(len(pair) == 2)
    else:
        special = len(pair) * sum(map(len, around))
    for encoding, keep in zip(pair, cut_lengths([len(e.ids) for e in pair], max(0, longest - special)), strict=True):
        encoding.truncate(keep, direction=side)
    if around is not None:
        each = [[*around[0], *encoding.ids, *around[1]] for encoding in pair]
        return TypedTokens([i for ids in each for i in ids], [k for k, ids in enumerate(each) for _ in ids])
    whole = parts.backend.post_process(pair[0], pair[1] if len(pair) == 2 else None)
    return TypedTokens(whole.ids, whole.type_ids if _sets_types(parts.backend) else [k or 0 for k in whole.sequence_ids])


def _sets_types(backend: Backend) -> bool:
    """Whether the post-processor decides on types; without one they tell the first text from the second."""
    from tokenizers import processors

    return backend.post_processor is not None and not isinstance(backend.post_processor, processors.ByteLevel)


def cut_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """How many tokens of each text stay: the longer of two is cut first, and both to half of the room if that is not enough.

    >>> cut_lengths([3, 9], 10), cut_lengths([8, 9], 11), cut_lengths([9, 9], 11), cut_lengths([7], 5)
    ([3, 7], [5, 6], [5, 6], [5])
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    shorter = min(min(lengths), room // 2)
    return [shorter, room - shorter] if lengths[0] <= lengths[1] else [room - shorter, shorter]
