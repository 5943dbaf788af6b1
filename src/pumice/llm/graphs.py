"""The token step of a causal model: tokens in, the cache updated in place, the next token sampled on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pumice as pm
from pumice.core.precisions import Precision
from pumice.errors import InputError
from pumice.ir.graph import Graph
from pumice.llm.adapters import AdapterLayout
from pumice.llm.memory import CacheLayout, PagedMemory, RaggedMemory, group_input
from pumice.llm.sampling import Sampling, next_token, sampling_specs
from pumice.models.config import ModelArchConfig
from pumice.models.memory import pages_suffice
from pumice.models.registry import CausalArchitecture
from pumice.models.rope import rotary_regime
from pumice.tensor import Tensor

# Sampled tokens that the device keeps, so that the host may read them several token steps late.
RING = 64


def token_step(
    arch: CausalArchitecture,
    cfg: ModelArchConfig,
    layout: CacheLayout,
    sampling: Sampling,
    *,
    feed: bool,
    verify: bool = False,
    ragged: bool = False,
    adapters: AdapterLayout | None = None,
) -> Callable[..., Any]:
    """One token step for a batch of sequences: run the new tokens, append to the cache, sample each row's next token.

    Inputs, all by batch row: `slot` (its row in the states that are not paged), `start` (tokens in the cache so far), `total`
    (length of the sequence that this token step belongs to: some rotary scalings depend on it), `at` (where in the ring the
    sampled token goes), for each page group `pages` (the page table) and `row` (the row of the pool for each token), and what
    `sampling_inputs` makes. Prompts come with `tokens` and `length` (how many they are; the rest of the row is padding).
    With `feed` each row runs the token in the ring at `fed` instead, which never left the device. To `verify` drafts, the
    `tokens` of one sequence are its last one and the drafts: a token is sampled after every one of them, so `at` and the inputs
    of sampling have a row for each. With `adapters` the input of that name says how many tokens use each of them: rows are
    sorted by it. `ragged` runs whole prompts of several sequences side by side, as the `tokens` of one row: `start` is then the
    position of each of them, `of` the number of its sequence, and `last` the place of each sequence's last token.
    """

    def run(params: Any, slot: Tensor, start: Tensor, at: Tensor, total: Tensor | None = None, **rest: Tensor) -> Any:
        ring = pm.state("ring", (RING * layout.slots,), "i32")
        tokens = pm.expand_dims(pm.take(ring, rest["fed"]), 1) if feed else rest["tokens"]
        batch, width = tokens.shape
        tables, rows = ([rest[group_input(n, g)] for g in range(len(layout.windows))] for n in ("pages", "row"))
        memory: PagedMemory
        if ragged:
            positions = pm.expand_dims(start, 0)
            memory = RaggedMemory(layout, [pm.take(t, rest["of"], axis=0) for t in tables], rows, start, None, slot=slot)
        else:
            positions = pm.expand_dims(start, 1) + pm.expand_dims(pm.arange(width, dtype="i32"), 0)
            end, new_tokens = (None, None) if feed else (start + rest["length"], rest["length"])
            memory = PagedMemory(layout, tables, rows, start, end, slot=slot, new_tokens=new_tokens)
        if adapters is not None:
            params = {**params, **adapters.updates(cfg, rest["adapters"], one_end=not (feed or verify))}
        hidden = arch.hidden(cfg, params, tokens, positions, memory, length=total)
        if verify:
            hidden, slot = hidden.reshape(width, cfg.hidden), pm.broadcast_to(slot, (width,))
        elif ragged:
            hidden = pm.take(hidden.reshape(width, cfg.hidden), rest["last"], axis=0)
        elif not feed:
            # Only each row's last token has a successor to predict.
            ends = pm.arange(batch, dtype="i32") * width + rest["length"] - 1
            hidden = pm.take(hidden.reshape(batch * width, cfg.hidden), ends, axis=0)
        logits = arch.logits(cfg, params, hidden).reshape(at.shape[0], cfg.vocab)
        fed = tokens.reshape(at.shape[0]) if feed or verify else None
        chosen = next_token(logits, sampling, rest, slots=layout.slots, slot=slot, fed=fed, drafted=verify)
        new_ring = pm.scatter_set(ring, at, chosen["token"])
        pm.set_state(ring, new_ring)
        return {**chosen, "ring": new_ring}

    return run


def trace_feed(slots: int) -> Graph:
    """A graph that puts tokens into the ring, with the token steps in flight in order."""

    def write(at: Tensor, token: Tensor) -> None:
        ring = pm.state("ring", (RING * slots,), "i32")
        pm.set_state(ring, pm.scatter_set(ring, at, token))

    some = pm.spec("N", dtype="i32", max=slots)
    return pm.trace(write, at=some, token=some)


def check_verifiable(arch: CausalArchitecture, cfg: ModelArchConfig) -> None:
    """Refuses to verify drafts with a model whose memory is more than pages."""
    if not pages_suffice(arch.memories(cfg)):
        raise InputError(
            f"{cfg.model_type} keeps states that drafts cannot be taken back from", hint="run it without drafts", name="draft"
        )


def can_be_ragged(arch: CausalArchitecture, cfg: ModelArchConfig) -> bool:
    """Whether tokens of several sequences can run side by side: not where a layer keeps states, or rotates by the length."""
    return pages_suffice(arch.memories(cfg)) and rotary_regime(cfg, 1) == rotary_regime(cfg, cfg.max_positions)


def trace_token_step(
    arch: CausalArchitecture,
    cfg: ModelArchConfig,
    params: Any,
    layout: CacheLayout,
    sampling: Sampling,
    *,
    chunk: int | None,
    rows: int | None = None,
    verify: bool = False,
    ragged: bool = False,
    adapters: AdapterLayout | None = None,
    precision: Precision = "exact",
) -> Graph:
    """The graph of a token step: for prefill chunks of up to `chunk` tokens or, with None, for the token sampled last.

    `rows` is how many sequences take part in the latter at most, by default all slots. With `verify` a chunk is a token and the
    drafts after it; if `ragged` it has the prompts of up to `rows` sequences. `params` are specs, nested as the model has them.
    """
    if verify:
        check_verifiable(arch, cfg)
    feed = chunk is None
    most = layout.slots if rows is None else rows
    batch: tuple[int | str, ...] = ("B",) if (feed or ragged) and most > 1 else (1,)
    new = pm.spec("T", dtype="i32", max=chunk)

    def each(dtype: str = "f32", *shape: int) -> pm.Spec:
        return pm.spec(*batch, *shape, dtype=dtype, max=most if batch != (1,) else None)

    if ragged:
        specs: dict[str, Any] = {"slot": each("i32"), "start": new, "of": new, "last": each("i32")}
    else:
        specs = {n: each("i32") for n in ("slot", "start", "total", "at", "fed" if feed else "length")}
    for group in range(len(layout.windows)):
        specs[group_input("pages", group)] = each("i32", layout.table)
        specs[group_input("row", group)] = each("i32") if feed else new
    if not feed:
        specs["tokens"] = pm.spec(1, "T", dtype="i32", max=chunk)

    def drawn(dtype: str, *shape: int) -> pm.Spec:
        return pm.spec("T", *shape, dtype=dtype, max=chunk) if verify else each(dtype, *shape)

    specs |= {"at": drawn("i32"), **sampling_specs(drawn, sampling, cfg.vocab)}
    if adapters is not None:
        specs["adapters"] = pm.spec(adapters.places, dtype="i32")
    step = token_step(arch, cfg, layout, sampling, feed=feed, verify=verify, ragged=ragged, adapters=adapters)
    from pumice.passes.precision import with_precision  # a kept plan needs no passes

    return with_precision(pm.trace(step, params=params, **specs), precision)
