"""From logits to the next token, on the device: the repeat penalty, the cuts, the draw, and a mark for logits that are NaN."""

from __future__ import annotations

from dataclasses import dataclass

import pumice as pm
from pumice.ir.graph import static_dim
from pumice.tensor import Tensor

# A top_k of up to this many sorts only that many candidates; anything else sorts the vocabulary.
CANDIDATES = 256
TOP_LOGPROBS = 20
# What a token step gives instead of a token where the best logit is NaN or infinite.
NOT_FINITE = -1


@dataclass(frozen=True)
class Sampling:
    """Which parts of sampling a plan holds; the numbers themselves are inputs.

    `whole` draws from the whole vocabulary for rows whose top_k does not bound the candidates.
    """

    greedy: bool = True
    penalty: bool = False
    logprobs: bool = False
    whole: bool = False


def next_token(logits: Tensor, sampling: Sampling, numbers: dict[str, Tensor]) -> Tensor:
    """One token per row of `logits` [B, vocab], `NOT_FINITE` for rows whose best logit is NaN or infinite."""
    if sampling.greedy:
        token = pm.argmax(logits, axis=-1)
        best = pm.take_along_axis(logits, pm.expand_dims(token, 1), axis=1).reshape(token.shape[0])
        return _marked(token, best)
    return sample(logits, numbers, whole=sampling.whole)


def _marked(token: Tensor, best: Tensor) -> Tensor:
    """NaN counts as greatest, so the best logit alone says whether all of them are numbers."""
    return pm.where(pm.isnan(best) | pm.isinf(best), NOT_FINITE, token)


def sample(logits: Tensor, numbers: dict[str, Tensor], *, whole: bool = False) -> Tensor:
    """One token per row, by the row's temperature, top_k, top_p, min_p and the uniform number `u` that the host drew.

    The rules in order, each on the renormalised rest: top_k (0: all), top_p, min_p. A temperature of 0 takes the most
    likely token. Without `whole` every row must have a temperature of 0 or a top_k of 1…CANDIDATES (or the vocabulary be that
    small). With it, rows that could do without are drawn as they are without it: what else is in a batch changes nothing.
    """
    vocab = static_dim(logits.shape[-1], "the vocabulary")
    few = min(CANDIDATES, vocab)
    whole = whole and vocab > few
    best, ids = pm.top_k(logits, vocab if whole else few)
    rank = _draw(best[:, :few] if whole else best, numbers)
    if whole:
        bounded = (numbers["top_k"] > 0) & (numbers["top_k"] <= few)
        rank = pm.where(bounded, rank, _draw(best, numbers))
    token = pm.take_along_axis(ids, pm.expand_dims(rank, 1), axis=1).reshape(logits.shape[0])
    return _marked(token, best[:, 0])


def _draw(best: Tensor, numbers: dict[str, Tensor]) -> Tensor:
    """The rank that each row draws from logits in falling order: the first whose share of the sum so far exceeds u."""

    def column(name: str) -> Tensor:
        return pm.expand_dims(numbers[name], 1)

    rank = pm.expand_dims(pm.arange(best.shape[1], dtype="i32"), 0)
    top_k, top_p = column("top_k"), column("top_p")
    scaled = best / pm.maximum(column("temperature"), 1e-6)
    p = pm.softmax(pm.where((rank < top_k) | (top_k == 0), scaled, float("-inf")), axis=-1)
    upto = pm.cumsum(p, axis=-1)
    # Rounding may bring the sum to 1 before the last token, which a top_p of 1 must not cut off.
    within = (upto - p < top_p) | (top_p >= 1.0)
    kept = (within & (p >= column("min_p") * p[:, :1]) & (p > 0.0)) | (rank == 0)
    # Probabilities fall, so all rules keep the first few: `upto` of the last of them is the sum.
    count = kept.astype("i32").sum(axis=-1)
    total = pm.where(kept, upto, 0.0).max(axis=-1, keepdims=True)
    drawn = (upto <= column("u") * total).astype("i32").sum(axis=-1)
    # Rounding may leave u times the sum at the very end: the last one that is kept is then the answer.
    return pm.where(numbers["temperature"] > 0, pm.minimum(drawn, count - 1), 0)


def penalise(logits: Tensor, slots: int, slot: Tensor, tokens: Tensor, used: Tensor | None, penalty: Tensor) -> Tensor:
    """Logits of tokens that the sequence already holds, made less likely by the factor `penalty` (1 changes nothing).

    Of the new `tokens` only those count that are `used`, if that is said.
    """
    vocab = static_dim(logits.shape[-1], "the vocabulary")
    seen = pm.state("seen", (slots * vocab,), "f32")
    at = pm.expand_dims(slot, 1) * vocab + tokens
    if used is not None:
        at = pm.where(used, at, slots * vocab)
    count = tokens.shape[0] * tokens.shape[1]
    updated = pm.scatter_set(seen, at.reshape(count), pm.ones((count,)))
    pm.set_state(seen, updated)
    mine = pm.take(updated.reshape(slots, vocab), slot, axis=0) > 0
    factor = pm.expand_dims(penalty, 1)
    return pm.where(mine, pm.where(logits > 0, logits / factor, logits * factor), logits)


def logprobs_of(logits: Tensor, token: Tensor) -> dict[str, Tensor]:
    """The log-probability of the chosen token and of the most likely ones, before temperature and penalties."""
    logp = pm.log_softmax(logits, axis=-1)
    values, ids = pm.top_k(logp, min(TOP_LOGPROBS, static_dim(logits.shape[-1], "the vocabulary")))
    chosen = pm.take_along_axis(logp, pm.expand_dims(token, 1), axis=1)
    return {"logprob": chosen.reshape(token.shape[0]), "top_logprobs": values, "top_ids": ids}
