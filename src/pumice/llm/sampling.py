"""From logits to the next token, on the device: logit bias, penalties, masks, the cuts, the draw; and the inputs of all that.

Every row of a batch is drawn by its own parameters, and no row's result depends on the others. docs/sampling.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np

import pumice as pm
from pumice.core.records import dataclass
from pumice.errors import InputError, NotFinite
from pumice.ir.graph import Graph, static_dim
from pumice.llm.requests import SamplingParams
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]

# A top_k of up to this many sorts only that many candidates; anything else sorts the vocabulary.
CANDIDATES = 256
TOP_LOGPROBS = 20
# What a token step gives instead of a token: where the best logit is NaN or infinite, and where no token is allowed.
NOT_FINITE, NOTHING_ALLOWED = -1, -2
# The columns of the input `numbers`, f32 [B, 10]: one array, as each input of a token step costs time of its own.
COLUMNS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "u",
    "typical_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "biased",
)
_U = COLUMNS.index("u")
# A token's entry in the state `counts`: 1 if the prompt has it, plus this for each time it was generated.
_GENERATED = 2


@dataclass(frozen=True)
class Sampling:
    """Which parts of sampling a plan holds; the numbers themselves are inputs.

    `whole` draws from the whole vocabulary for rows whose top_k does not bound the candidates.

    >>> Sampling.of([SamplingParams(temperature=0), SamplingParams(presence_penalty=0.5)], vocab=50_000)
    Sampling(greedy=False, penalty=True, logprobs=False, whole=False, typical=False, bias=False, mask=False)
    """

    greedy: bool = True
    penalty: bool = False
    logprobs: bool = False
    whole: bool = False
    typical: bool = False
    bias: bool = False
    mask: bool = False

    @staticmethod
    def of(params: Sequence[SamplingParams], vocab: int, *, mask: bool = False) -> Sampling:
        """The parts that requests with these parameters need together; `mask` if one of them has a grammar."""
        # Asked for before every token step, so the answer is kept.
        return _parts(frozenset([p.parts for p in params]), vocab > CANDIDATES, CANDIDATES, mask)

    def covers(self, other: Sampling) -> bool:
        """Whether a plan with these parts can draw what `other` needs; rows are drawn alike by both.

        >>> Sampling(greedy=False).covers(Sampling()), Sampling().covers(Sampling(mask=True))
        (True, False)
        """
        held = {f.name for f in fields(self) if f.name != "greedy" and getattr(self, f.name)}
        needed = {f.name for f in fields(self) if f.name != "greedy" and getattr(other, f.name)}
        return needed <= held and (other.greedy or not self.greedy)

    @cached_property
    def numbers(self) -> bool:
        """Whether there is an input `numbers`."""
        return not self.greedy or self.penalty or self.bias

    @cached_property
    def slot_states(self) -> tuple[str, ...]:
        """The states with a row of the vocabulary for each slot, which `slot_rows` fills before a request's first token."""
        return (*(("counts",) if self.penalty else ()), *(("bias",) if self.bias else ()))


@lru_cache(maxsize=1024)
def _parts(rows: frozenset[tuple[Any, ...]], large: bool, candidates: int, mask: bool) -> Sampling:
    """By the `parts` of requests; of a vocabulary that is not `large` the candidates are all.

    >>> [Sampling.of([SamplingParams(top_k=k)], 50_000).whole for k in (0, 1, 256, 257)]
    [True, False, False, True]
    """
    greedy, top_k, penalty, logprobs, typical, bias = zip(*rows, strict=True)
    unbounded = any(not g and not 1 <= k <= candidates for g, k in zip(greedy, top_k, strict=True))
    return Sampling(all(greedy), any(penalty), any(logprobs), large and unbounded, any(typical), any(bias), mask)


# --- inputs of a token step ---


class SamplingRow(NamedTuple):
    """What draws one row's token: its parameters, the token's number in the answer, and the bit mask of allowed tokens if any."""

    params: SamplingParams
    position: int
    allowed: Array | None = None


def sampling_specs(rows: Callable[..., pm.Spec], sampling: Sampling, vocab: int) -> dict[str, pm.Spec]:
    """The specs of the inputs that `sampling_inputs` makes; `rows(dtype, *shape)` is the spec of an array with one entry per row.

    >>> specs = sampling_specs(lambda dtype, *shape: pm.spec(1, *shape, dtype=dtype), Sampling(mask=True), vocab=100)
    >>> specs["allowed"].type.shape
    (1, 4)
    """
    specs = {"numbers": rows("f32", len(COLUMNS))} if sampling.numbers else {}
    return specs | ({"allowed": rows("u32", words_of(vocab))} if sampling.mask else {})


def sampling_inputs(rows: Sequence[SamplingRow], sampling: Sampling, vocab: int) -> dict[str, Array]:
    """The inputs of `next_token` for the rows of a batch.

    >>> made = sampling_inputs([SamplingRow(SamplingParams(seed=7, logit_bias={3: 1.0}), 0)], Sampling(greedy=False), vocab=100)
    >>> dict(zip(COLUMNS, made["numbers"][0].tolist()))["top_k"], list(made)
    (40.0, ['numbers'])
    """
    out: dict[str, Array] = {}
    if sampling.numbers:
        numbers = out["numbers"] = np.array([row.params.numbers for row in rows], np.float32)
        if not sampling.greedy:
            numbers[:, _U] = [row.params.uniform(row.position) for row in rows]
    if sampling.mask:
        allowed = out["allowed"] = np.full((len(rows), words_of(vocab)), 0xFFFFFFFF, np.uint32)
        for k, row in enumerate(rows):
            if row.allowed is not None:
                allowed[k] = checked_mask(row.allowed, vocab)
    return out


def words_of(vocab: int) -> int:
    """How many words of 32 bits a mask of allowed tokens has.

    >>> words_of(49_152), words_of(33)
    (1536, 2)
    """
    return -(-vocab // 32)


def checked_mask(words: Any, vocab: int) -> Array:
    """A mask of allowed tokens as u32 words: bit t % 32 of word t // 32 allows the token t.

    >>> checked_mask(np.zeros(3, np.int32), vocab=64)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] the mask of allowed tokens is int32 [3]
      hint: a vocabulary of 64 takes u32 or i32 words, [2]
    """
    found = np.asarray(words)
    if found.dtype not in (np.uint32, np.int32) or found.shape != (words_of(vocab),):
        raise InputError(
            f"the mask of allowed tokens is {found.dtype} {list(found.shape)}",
            hint=f"a vocabulary of {vocab} takes u32 or i32 words, [{words_of(vocab)}]",
            name="grammar",
        )
    if not found.any():
        raise InputError("the mask of allowed tokens allows none", hint=_DEAD_END, name="grammar")
    return found.view(np.uint32)


def check_token(token: int, model: str, position: int) -> int:
    """A sampled token, unless it is the mark of a failed draw: that is an error.

    >>> check_token(NOT_FINITE, "my-model", 13)
    Traceback (most recent call last):
    pumice.errors.NotFinite: [not-finite] my-model computes NaN or infinite logits after 13 tokens, so there is no next token
      hint: ...
    """
    if token == NOT_FINITE:
        message = f"{model} computes NaN or infinite logits after {position} tokens, so there is no next token"
        raise NotFinite(message, hint=NotFinite.HINT, model=model, position=position)
    if token == NOTHING_ALLOWED:
        raise InputError(f"no token is allowed after {position} tokens", hint=_DEAD_END, position=position)
    return token


_DEAD_END = "a grammar must always allow a token, the end of the answer at least, that logit_bias does not forbid"


# --- what a slot holds from a request's start on ---


def slot_rows(
    params: SamplingParams, prompt: Sequence[int], completion: Sequence[int], sampling: Sampling, vocab: int
) -> dict[str, Array]:
    """The rows of `sampling.slot_states` for a sequence, before the token after `completion` is drawn.

    Token steps count what they feed, so this is needed only where a sequence enters a slot: at its start, after a preemption, in
    a fork.

    >>> rows = slot_rows(SamplingParams(presence_penalty=1), [4, 5, 5], [5, 6, 6], Sampling(penalty=True), vocab=8)
    >>> rows["counts"].tolist()
    [0, 0, 0, 0, 1, 3, 4, 0]
    """
    out: dict[str, Array] = {}
    if sampling.penalty:
        counts = out["counts"] = np.bincount(np.asarray(completion, np.int64), minlength=vocab).astype(np.int32) * _GENERATED
        counts[np.unique(np.asarray(prompt, np.int64))] += 1
    if sampling.bias and params.logit_bias:
        bias = out["bias"] = np.zeros(vocab, np.float32)
        ids, values = zip(*params.biases, strict=True)
        bias[list(ids)] = values
    return out


def trace_slot_row(name: str, slots: int, vocab: int) -> Graph:
    """A graph that writes the `row` of one slot in the state `name`, with the token steps in flight in order."""
    dtype = _STATE_DTYPES[name]

    def write(slot: Tensor, row: Tensor) -> None:
        held = pm.state(name, (slots, vocab), dtype)
        pm.set_state(held, pm.scatter_set(held, slot, row))

    return pm.trace(write, slot=pm.spec(1, dtype="i32"), row=pm.spec(1, vocab, dtype=dtype))


_STATE_DTYPES = {"counts": "i32", "bias": "f32"}


# --- the graph ---


def next_token(
    logits: Tensor,
    sampling: Sampling,
    inputs: Mapping[str, Tensor],
    *,
    slots: int,
    slot: Tensor,
    fed: Tensor | None = None,
    drafted: bool = False,
) -> dict[str, Tensor]:
    """One `token` per row of `logits` [B, vocab], or the mark of a failed draw; with `logprobs` those, too.

    `slot` [B] are the rows' slots of `slots`; `fed` [B] are the generated tokens that this token step runs, None in prefill. With
    `drafted` the rows are one sequence: its last token, and drafts that follow it. Only those count that the draws confirm.
    """
    picked = logits
    column = _columns(inputs["numbers"]) if sampling.numbers else {}
    if sampling.bias:
        picked = pm.where(column["biased"] > 0, picked + pm.take(_slot_state("bias", slots, picked), slot, axis=0), picked)
    if sampling.penalty:
        counted = _counted_drafts if drafted else _counted
        picked = _penalise(picked, counted(slots, slot, picked, fed), column)
    if sampling.mask:
        picked = pm.where(_bits(inputs["allowed"], picked.shape[-1]), picked, float("-inf"))
    token, best = _greatest(picked) if sampling.greedy else sample(picked, column, whole=sampling.whole, typical=sampling.typical)
    marked = pm.where(pm.isnan(best) | pm.isinf(best), NOT_FINITE, token)
    if sampling.mask or sampling.bias:
        marked = pm.where(best == float("-inf"), NOTHING_ALLOWED, marked)
    if sampling.penalty and drafted and fed is not None:
        _count_confirmed(slots, slot, logits, fed, marked)
    return {"token": marked, **(logprobs_of(logits, marked) if sampling.logprobs else {})}


def _columns(numbers: Tensor) -> dict[str, Tensor]:
    """The sampling numbers by name, [B, 1] each."""
    return {name: numbers[:, k : k + 1] for k, name in enumerate(COLUMNS)}


def _slot_state(name: str, slots: int, logits: Tensor) -> Tensor:
    return pm.state(name, (slots, static_dim(logits.shape[-1], "the vocabulary")), _STATE_DTYPES[name])


def _counted(slots: int, slot: Tensor, logits: Tensor, fed: Tensor | None) -> Tensor:
    """The rows' counts [B, vocab], with the tokens that are fed now."""
    counts = _slot_state("counts", slots, logits)
    if fed is not None:
        vocab = static_dim(logits.shape[-1], "the vocabulary")
        flat, at = counts.reshape(slots * vocab), slot * vocab + fed
        # Rows have different slots, so no two of them count in the same place.
        updated = pm.scatter_set(flat, at, pm.take(flat, at) + _GENERATED).reshape(slots, vocab)
        pm.set_state(counts, updated)
        counts = updated
    return pm.take(counts, slot, axis=0)


def _counted_drafts(slots: int, slot: Tensor, logits: Tensor, fed: Tensor | None) -> Tensor:
    """The counts [T, vocab] after each token of one sequence, if all of them are confirmed; the state stays as it is."""
    assert fed is not None
    vocab = static_dim(logits.shape[-1], "the vocabulary")
    so_far = pm.cumsum(pm.one_hot(fed, vocab, dtype="i32"), axis=0)
    return pm.take(_slot_state("counts", slots, logits), slot, axis=0) + so_far * _GENERATED


def _count_confirmed(slots: int, slot: Tensor, logits: Tensor, fed: Tensor, token: Tensor) -> None:
    """Counts the tokens of one sequence up to the first draft that is not what was drawn in its place."""
    counts = _slot_state("counts", slots, logits)
    vocab, width = static_dim(logits.shape[-1], "the vocabulary"), fed.shape[0]
    following = pm.take(fed, pm.minimum(pm.arange(width, dtype="i32") + 1, width - 1))
    wrong = pm.cumsum((token != following).astype("i32"), axis=0, exclusive=True)
    at = pm.where(wrong == 0, slot * vocab + fed, slots * vocab)
    added = pm.scatter_add(counts.reshape(slots * vocab), at, pm.full((width,), _GENERATED, "i32"))
    pm.set_state(counts, added.reshape(slots, vocab))


def _penalise(logits: Tensor, counts: Tensor, column: Mapping[str, Tensor]) -> Tensor:
    """The repeat penalty for all tokens that the sequence holds; the others for those that were generated."""
    factor = column["repeat_penalty"]
    logits = pm.where(counts > 0, pm.where(logits > 0, logits / factor, logits * factor), logits)
    generated = (counts >> 1).astype("f32")
    return logits - (generated * column["frequency_penalty"] + pm.minimum(generated, 1.0) * column["presence_penalty"])


def _bits(words: Tensor, vocab: Any) -> Tensor:
    """The bits of u32 words [B, W] as bool [B, vocab]."""
    batch, width = words.shape
    bits = (pm.expand_dims(words, 2) >> pm.arange(32, dtype="u32")) & 1
    return bits.reshape(batch, width * 32)[:, :vocab] != 0


def _greatest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The token of the greatest logit and that logit; NaN counts as greatest, so it shows whether all of them are numbers."""
    token = pm.argmax(logits, axis=-1)
    return token, pm.take_along_axis(logits, pm.expand_dims(token, 1), axis=1).reshape(token.shape[0])


def sample(logits: Tensor, column: Mapping[str, Tensor], *, whole: bool = False, typical: bool = False) -> tuple[Tensor, Tensor]:
    """One token per row, by the row's temperature, top_k, top_p, min_p, typical_p and the uniform number `u` that the host drew.

    The rules in order, each on the renormalised rest: top_k (0: all), top_p, min_p, typical_p. A temperature of 0 takes the most
    likely token. Without `whole` every row must have a temperature of 0 or a top_k of 1…CANDIDATES (or the vocabulary be that
    small). With it, rows that could do without are drawn as they are without it: what else is in a batch changes nothing.
    Beside the tokens the rows' greatest logits are given.
    """
    vocab = static_dim(logits.shape[-1], "the vocabulary")
    few = min(CANDIDATES, vocab)
    whole = whole and vocab > few
    best, ids = pm.top_k(logits, vocab if whole else few)
    rank = _draw(best[:, :few] if whole else best, column, typical)
    if whole:
        top_k = column["top_k"].reshape(logits.shape[0])
        rank = pm.where((top_k > 0) & (top_k <= few), rank, _draw(best, column, typical))
    token = pm.take_along_axis(ids, pm.expand_dims(rank, 1), axis=1).reshape(logits.shape[0])
    return token, best[:, 0]


def _draw(best: Tensor, column: Mapping[str, Tensor], typical: bool) -> Tensor:
    """The rank that each row draws from logits in falling order: the first whose share of the sum so far exceeds u."""
    rank = pm.expand_dims(pm.arange(best.shape[1], dtype="i32"), 0)
    top_k, top_p = column["top_k"], column["top_p"]
    scaled = best / pm.maximum(column["temperature"], 1e-6)
    p = pm.softmax(pm.where((rank.astype("f32") < top_k) | (top_k == 0.0), scaled, float("-inf")), axis=-1)
    upto = pm.cumsum(p, axis=-1)
    # Rounding may bring the sum to 1 before the last token, which a top_p of 1 must not cut off.
    within = (upto - p < top_p) | (top_p >= 1.0)
    kept = (within & (p >= column["min_p"] * p[:, :1]) & (p > 0.0)) | (rank == 0)
    if typical:
        kept = _typical(p, kept, column["typical_p"])
        upto = pm.cumsum(pm.where(kept, p, 0.0), axis=-1)
        last = pm.where(kept, rank, 0).max(axis=-1)
    else:
        # Probabilities fall, so all rules keep the first few: `upto` of the last of them is the sum.
        last = kept.astype("i32").sum(axis=-1) - 1
    total = pm.where(kept, upto, 0.0).max(axis=-1, keepdims=True)
    drawn = (upto <= column["u"] * total).astype("i32").sum(axis=-1)
    # Rounding may leave u times the sum at the very end: the last one that is kept is then the answer.
    return pm.where(column["temperature"].reshape(best.shape[0]) > 0, pm.minimum(drawn, last), 0)


def _typical(p: Tensor, kept: Tensor, mass: Tensor) -> Tensor:
    """Of the kept tokens those whose surprise is nearest to the expected one, until they reach the probability `mass`.

    Tokens as near as the last one of them stay. A mass of 1 changes nothing.
    """
    q = pm.where(kept, p, 0.0)
    q = q / q.sum(axis=-1, keepdims=True)
    surprise = -pm.log(pm.where(kept, q, 1.0))
    off = pm.where(kept, pm.abs(surprise - (q * surprise).sum(axis=-1, keepdims=True)), float("inf"))
    order = pm.argsort(off, axis=-1)
    sums = pm.cumsum(pm.take_along_axis(q, order, axis=1), axis=-1)
    reached = pm.minimum((sums < mass).astype("i32").sum(axis=-1, keepdims=True), p.shape[1] - 1)
    border = pm.take_along_axis(off, pm.take_along_axis(order, reached, axis=1), axis=1)
    return kept & ((off <= border) | (mass >= 1.0))


def logprobs_of(logits: Tensor, token: Tensor) -> dict[str, Tensor]:
    """The log-probability of the chosen token and of the most likely ones, as the model has them: before all other rules."""
    logp = pm.log_softmax(logits, axis=-1)
    values, ids = pm.top_k(logp, min(TOP_LOGPROBS, static_dim(logits.shape[-1], "the vocabulary")))
    chosen = pm.take_along_axis(logp, pm.expand_dims(token, 1), axis=1)
    return {"logprob": chosen.reshape(token.shape[0]), "top_logprobs": values, "top_ids": ids}
