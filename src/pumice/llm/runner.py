"""Runner: the executables of a model's token steps on a device; it runs the batches of a scheduler, and gives their tokens."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import pumice as pm
from pumice import config
from pumice.core.threads import thread_count
from pumice.llm.adapters import AdapterLayout, Adapters
from pumice.llm.batches import Batch, Chunk, DecodeRow, PageCopy, StateSnapshot
from pumice.llm.bursts import Burst, Results, begin
from pumice.llm.graphs import RING, can_be_ragged, trace_feed, trace_token_step
from pumice.llm.live import EventQueue, LiveSequence
from pumice.llm.memory import CacheLayout, CacheStates, group_input
from pumice.llm.plans import keep_plan, plan_path, read_plan
from pumice.llm.requests import Request, SamplingParams, Timings
from pumice.llm.sampling import Sampling, SamplingRow, sampling_inputs, slot_rows, trace_slot_row
from pumice.llm.scheduler import Scheduler
from pumice.llm.sequences import Table
from pumice.llm.speculate import MOST_DRAFTS
from pumice.models.rope import rotary_regime
from pumice.run.executable import Executable
from pumice.run.store import Store

if TYPE_CHECKING:
    from pumice.llm.weights import ModelWeights
    from pumice.run.profile import Profile

Array = np.ndarray[Any, Any]

# The default sampling of requests; its plans are prepared at load.
USUAL = Sampling(greedy=False)
# Tokens of a prompt as chats begin with; the kernels for so many are made ready at load.
_SHORT_PROMPT = 32
# How long it takes to read the plan of the token step and to bind its kernels.
_PREPARE_SECONDS = 0.05
# Cores from which on the token step is made ready beside the weights for a prompt that waits.
_SPARE_CORES = 3
# Tokens up to which a chunk shares its run with others, on GPUs and on processors: longer ones keep the device busy alone.
_SHORT_CHUNK, _SHORT_ON_HOST = 128, 256
# A chunk that attends to more tokens than this shares its run only if it is so short: each token reads all keys for itself there.
_LONG_SEQUENCE, _FEW_TOKENS = 512, 16
# Of each kind. A server meets ever new combinations of its clients' options, and each executable has memory of its own.
MOST_EXECUTABLES = 16
_LOGPROB_OUTPUTS = ("logprob", "top_logprobs", "top_ids")


class Runner:
    """Executables for prefill chunks and decode rows over the pages of a store, made when they are first needed."""

    def __init__(self, weights: ModelWeights, store: Store, layout: CacheLayout, chunk: int, adapters: Adapters) -> None:
        self.weights, self.store, self.layout, self.chunk, self.adapters = weights, store, layout, chunk, adapters
        # Executables by whether some sequence of the batch has an adapter, and by what is special about their tokens.
        self._made: dict[tuple[bool, str], OrderedDict[tuple[bool, int, Sampling], Executable]] = {
            (adapted, kind): OrderedDict() for adapted in (False, True) for kind in ("", "verify", "ragged")
        }
        self.exes = self._made[False, ""]
        # Tokens of chunks that may share a run.
        self._short = _SHORT_CHUNK if store.device.caps.overlaps_host else _SHORT_ON_HOST
        if not can_be_ragged(weights.arch, weights.cfg):
            self._short = 0
        self._most_together = chunk + layout.slots
        self._slot_writers: dict[str, Executable] = {}
        self._feeder: Executable | None = None
        self._states: CacheStates | None = None
        # Captured now, for executables that are made later or in another thread.
        self._switches = {name: config.get(name) for name in ("nofuse", "noarena", "default_max", "validate", "debug")}

    # -- executables ------------------------------------------------------------------------------------------------
    def prefill_executable(self, sampling: Sampling, *, adapted: bool = False) -> Executable:
        """For prefill chunks; `adapted` if the sequence has an adapter."""
        return self._executable(False, self.chunk, sampling, adapted)

    def decode_executable(self, rows: int, sampling: Sampling, *, adapted: bool = False) -> Executable:
        """For the tokens that so many sequences sampled last; one alone has a plan of its own."""
        return self._executable(True, 1 if rows == 1 else self.layout.slots, sampling, adapted)

    def verify_executable(self, sampling: Sampling, *, adapted: bool = False) -> Executable:
        """For a sequence's last token and the drafts after it."""
        return self._executable(False, MOST_DRAFTS + 1, sampling, adapted, "verify")

    def ragged_executable(self, sampling: Sampling) -> Executable:
        """For chunks of several sequences together, as many tokens as a batch has."""
        return self._executable(False, self._most_together, sampling, False, "ragged")

    def _executable(self, decode: bool, size: int, sampling: Sampling, adapted: bool, kind: str = "") -> Executable:
        key, made = (decode, size, sampling), self._made[adapted, kind]
        if key in made:
            made.move_to_end(key)
            return made[key]
        while len(made) >= MOST_EXECUTABLES:
            # The one that was not used for longest. It is not closed, as a run of it may be under way: it goes with its results.
            made.popitem(last=False)
        with config.override(**self._switches):
            exe = made[key] = self._make(decode, size, sampling, self.adapters.layout if adapted else None, kind)
        # After an interrupt everything is prefilled again.
        exe.split_updates()
        return exe

    def forget_adapted(self) -> None:
        """Executables for another layout of the adapters come in place of the present ones."""
        for made in [made for (adapted, _), made in self._made.items() if adapted]:
            for exe in made.values():
                exe.close()
            made.clear()

    def _make(self, decode: bool, size: int, sampling: Sampling, adapters: AdapterLayout | None, kind: str) -> Executable:
        path = self._plan_path(decode, size, sampling, adapters, kind)
        plan = read_plan(path)
        if plan is not None:
            return Executable(plan, self.store, validate=config.validate)
        w = self.weights
        sizes: dict[str, Any] = {"chunk": None, "rows": size} if decode else {"chunk": size}
        special: dict[str, Any] = {"verify": kind == "verify", "ragged": kind == "ragged"}
        special |= {"adapters": adapters, "precision": w.precision}
        graph = trace_token_step(w.arch, w.cfg, w.params.specs, self.layout, sampling, **sizes, **special)
        made = pm.compile(graph, store=self.store)
        keep_plan(path, made.plan)
        return made

    def _plan_path(
        self, decode: bool, size: int, sampling: Sampling, adapters: AdapterLayout | None = None, kind: str = ""
    ) -> Path | None:
        """Where the plan is kept; an adapter's scale is a constant of the graph, which specs do not contain."""
        w = self.weights
        inputs = (w.cfg, w.params.specs, w.precision, self.layout, sampling, decode, size, adapters, kind)
        planned = (self.store.pack_kernels, self.store.largest_step)
        return None if w.adapted else plan_path(self.store.device.caps, *inputs, *planned)

    def prepare(self, sampling: Sampling, length: Callable[[], int] | None, time_left: Callable[[], float]) -> None:
        """Binds the kernels that the first tokens would wait for: those of a prompt, and of the token step.

        `length` says how many tokens the first prompt has, once that is known. A plan of the token step that is not cached yet
        is left to the second token: planning would slow down the load. So is one that is cached, where the first prompt is known
        and waits: `time_left` are the seconds until all else is ready for it, and without a core to spare it would take them from
        those that pack weights.
        """
        live, tables = self._example(SamplingParams()), self._empty_tables()
        prefill = self.prefill_executable(sampling)
        if length is not None or len(prefill.plan.regimes) > 1:
            tokens = [0] * min(_SHORT_PROMPT if length is None else max(1, length()), self.chunk)
            prefill.prepare(self._prefill_inputs(live, 0, 0, tokens, len(tokens), sampling, tables), outputs=["ring"])
        if length is not None and (thread_count() < _SPARE_CORES or time_left() < _PREPARE_SECONDS):
            return
        with config.override(**self._switches):
            path = self._plan_path(True, 1, sampling)
        if path is not None and path.exists():
            steps = _DecodeSteps(self, [(live, DecodeRow(0, 0, 1, 1))], sampling, tables)
            self.decode_executable(1, sampling).prepare(steps.inputs(0), outputs=["ring"])

    def profile(self, tokens: int, *, repeats: int) -> Profile:
        """Where the time of one token step goes after so many tokens; nothing is changed by it."""
        pools = [np.arange(1, self.layout.pool(group), dtype=np.int32) for group in range(len(self.layout.windows))]
        tables = [np.resize(pool, t.shape) for pool, t in zip(pools, self._empty_tables())]
        sampling = Sampling()
        rows = [(self._example(SamplingParams(temperature=0)), DecodeRow(0, 0, tokens, 1))]
        inputs = _DecodeSteps(self, rows, sampling, tables).inputs(0)
        for group in range(len(self.layout.windows)):
            inputs[group_input("row", group)] = np.array([self.layout.rows(group)], np.int32)
        inputs["at"] = np.array([RING * self.layout.slots], np.int32)
        return self.decode_executable(1, sampling).profile(inputs, outputs=["ring"], repeats=repeats)

    @staticmethod
    def _example(sampling: SamplingParams) -> LiveSequence:
        return EventQueue([Request([0], sampling, 1)], Timings(), patient=False).sequences[0]

    def _empty_tables(self) -> list[Table]:
        return [np.zeros((1, self.layout.table), np.int32) for _ in self.layout.windows]

    # -- saved keys and values ----------------------------------------------------------------------------------------
    def save_cache(self, scheduler: Scheduler, tokens: Sequence[int], key: Hashable) -> tuple[int, dict[str, Array]]:
        """How many leading tokens are cached, and their keys, values and states."""
        (known, places), saved = scheduler.lookup(tokens, key), dict[str, Array]()
        self.make_snapshots(scheduler.take_snapshots())
        for group, pages in enumerate(places):
            saved |= self.pages.save(group, [page for page in pages if page])
        return known, saved

    def restore_cache(self, scheduler: Scheduler, tokens: Sequence[int], key: Hashable, saved: Mapping[str, Array]) -> bool:
        """Put back what `save_cache` gave for these tokens; False if this cache is another, or has no room."""
        if not all(self.pages.accepts(group, count, saved) for group, count in enumerate(scheduler.insertion(tokens))):
            return False
        inserted = scheduler.insert(tokens, key)
        # One of them may be where the state is written to now.
        self.make_snapshots(scheduler.take_snapshots())
        for group, pages in enumerate(inserted or ()):
            self.pages.restore(group, [page for page in pages if page], saved)
        return inserted is not None

    # -- batches ----------------------------------------------------------------------------------------------------
    def start(self, batch: Batch, live: Mapping[Any, LiveSequence], tables: Sequence[Table], *, wait: bool) -> Burst:
        """Starts a batch: its copies, its prefill chunks, then its decode rows. With `wait` it ends before this returns."""
        rows = [(live[r.id], r) for r in batch.decode]
        plain = [(s, r) for s, r in rows if not s.drafts or r.steps == 1]
        burst = Burst(batch.steps if plain else 0)
        if batch.snapshots:
            self.make_snapshots([s for s in batch.snapshots if not s.after])
        if batch.copies:
            self._copy(batch.copies)
        runs: list[Callable[..., Results | None]] = []
        for chunks in self._together(batch.prefill, live):
            if len(chunks) == 1:
                made = [s for s in batch.snapshots if s.after and s.source == chunks[0].slot]
                runs.append(partial(self._run_chunk, burst, chunks[0], live[chunks[0].id], tables, made))
            else:
                runs.append(partial(self._run_ragged, burst, [(live[c.id], c) for c in chunks], tables))
        if len(plain) < len(rows):
            runs += [partial(self._run_drafts, burst, s, r, tables) for s, r in rows if s.drafts and r.steps > 1]
        if plain:
            decoding = {r.slot for _, r in plain} if batch.snapshots else ()
            made = [s for s in batch.snapshots if s.after and s.source in decoding]
            runs.append(partial(self._run_rows, burst, plain, batch.steps, tables, made))
        for k, run in enumerate(runs):
            # The last run brings the ring, which has the tokens of all.
            burst.ring = run(wait=wait, final=k == len(runs) - 1)
        return burst

    def sampling_of(self, live: Sequence[LiveSequence]) -> Sampling:
        """The parts of sampling that these sequences need together."""
        masked = any(s.request.grammar is not None for s in live)
        return Sampling.of([s.request.sampling for s in live], self.weights.cfg.vocab, mask=masked)

    @property
    def pages(self) -> CacheStates:
        """What sequences remember, to copy, save and restore it."""
        if self._states is None:
            self._states = CacheStates(self.store, self.layout, self.weights.cfg.windows)
        return self._states

    def _copy(self, copies: Sequence[PageCopy]) -> None:
        for group in sorted({c.group for c in copies}):
            mine = [c for c in copies if c.group == group]
            self.pages.copy(group, [c.source for c in mine], [c.target for c in mine])

    def make_snapshots(self, snapshots: Sequence[StateSnapshot]) -> None:
        """Copies states of slots as they are now."""
        if snapshots:
            self.pages.copy(len(self.layout.windows), [s.source for s in snapshots], [s.target for s in snapshots])

    def _run_chunk(
        self,
        burst: Burst,
        chunk: Chunk,
        live: LiveSequence,
        tables: Sequence[Table],
        snapshots: Sequence[StateSnapshot],
        *,
        wait: bool,
        final: bool,
    ) -> Results | None:
        cfg, sampling = self.weights.cfg, self.sampling_of([live])
        self._enter(chunk, live)
        end = chunk.start + len(chunk.tokens)
        pieces = [(chunk.start, end)]
        if end > live.turned_by and rotary_regime(cfg, end) != rotary_regime(cfg, live.turned_by):
            # Each token that was decoded turned by its own length.
            first = max(chunk.start, live.turned_by)
            pieces = [(chunk.start, first)] * (first > chunk.start) + [(k, k + 1) for k in range(first, end)]
        exe, results = self.prefill_executable(sampling, adapted=live.adapter is not None), None
        for k, (a, b) in enumerate(pieces):
            tokens = chunk.tokens[a - chunk.start : b - chunk.start]
            inputs = self._prefill_inputs(live, chunk.slot, a, tokens, max(live.turned_by, b), sampling, tables)
            wanted: list[str] = []
            if k == len(pieces) - 1:
                wanted += ("ring",) if final and (chunk.last or burst.places) else ()
                wanted += _LOGPROB_OUTPUTS if chunk.last and sampling.logprobs else ()
            results = begin(exe, inputs, wanted, wait=wait)
        self.make_snapshots(snapshots)
        live.record.ran("prefill", exe.plan)
        if chunk.last:
            at = self._note_logprobs(burst, results) if sampling.logprobs else None
            burst.places.append((live, self._place(len(live.tokens), chunk.slot), None if at is None else (at, 0)))
        return results if final and burst.places else None

    def _enter(self, chunk: Chunk, live: LiveSequence) -> None:
        """A chunk of a sequence runs now, maybe its first one in this slot."""
        if (live.slot, live.following) != (chunk.slot, chunk.start):
            if live.record.started:
                live.record.recomputed += live.group is None
            else:
                live.record.started = time.perf_counter()
            border = self.weights.cfg.recompute_beyond
            beyond = border is not None and chunk.total > border
            live.turned_by = chunk.total if beyond else len(live.request.prompt)
            self._fill_slot(live, chunk.slot, self.sampling_of([live]))
            if not live.tokens:
                live.record.reused = chunk.start
        live.slot, live.following = chunk.slot, -1 if chunk.last else chunk.start + len(chunk.tokens)
        live.queue.timings.prompt_tokens += len(chunk.tokens)

    def _together(self, chunks: Sequence[Chunk], live: Mapping[Any, LiveSequence]) -> Iterator[Sequence[Chunk]]:
        """Chunks by the run that they are in: short ones share one, the others are alone."""
        short: list[Chunk] = []
        for chunk in chunks:
            most = self._short if chunk.total <= _LONG_SEQUENCE else min(self._short, _FEW_TOKENS)
            if len(chunk.tokens) > most or live[chunk.id].adapter is not None:
                yield [chunk]
                continue
            if sum(len(c.tokens) for c in short) + len(chunk.tokens) > self._most_together:
                yield short
                short = []
            short.append(chunk)
        if short:
            yield short

    def _run_ragged(
        self, burst: Burst, chunks: Sequence[tuple[LiveSequence, Chunk]], tables: Sequence[Table], *, wait: bool, final: bool
    ) -> Results | None:
        """Runs chunks of several sequences at once, and samples after those that end a prompt."""
        sampling, page, vocab = self.sampling_of([live for live, _ in chunks]), self.layout.page, self.weights.cfg.vocab
        for live, chunk in chunks:
            self._enter(chunk, live)
        lengths = [len(chunk.tokens) for _, chunk in chunks]
        slots = [chunk.slot for _, chunk in chunks]
        # Beyond the ring what is drawn is dropped.
        nowhere = RING * self.layout.slots
        places = [self._place(len(live.tokens), chunk.slot) if chunk.last else nowhere for live, chunk in chunks]
        of = np.repeat(np.arange(len(chunks), dtype=np.int32), lengths)
        positions = np.concatenate([np.arange(c.start, c.start + len(c.tokens), dtype=np.int32) for _, c in chunks])
        inputs: dict[str, Array] = {
            "slot": np.array(slots, np.int32),
            "at": np.array(places, np.int32),
            "last": np.cumsum(lengths, dtype=np.int32) - 1,
            "start": positions,
            "of": of,
            "tokens": np.concatenate([np.array(c.tokens, np.int32) for _, c in chunks])[None],
        }
        for group, table in enumerate(tables):
            inputs[group_input("pages", group)] = mine = table[slots]
            inputs[group_input("row", group)] = mine[of, positions // page] * page + positions % page
        draws = [SamplingRow(live.request.sampling, len(live.tokens), live.allowed(vocab)) for live, _ in chunks]
        inputs |= sampling_inputs(draws, sampling, vocab)
        brings = final and (bool(burst.places) or any(chunk.last for _, chunk in chunks))
        wanted = [*(("ring",) if brings else ()), *(_LOGPROB_OUTPUTS if sampling.logprobs else ())]
        exe = self.ragged_executable(sampling)
        results = begin(exe, inputs, wanted, wait=wait)
        for live, _ in chunks:
            live.record.ran("prefill-batch", exe.plan, len(chunks))
        at = self._note_logprobs(burst, results) if sampling.logprobs else None
        for k, ((live, chunk), place) in enumerate(zip(chunks, places)):
            if chunk.last:
                burst.places.append((live, place, None if at is None else (at, k)))
        return results if brings else None

    @staticmethod
    def _note_logprobs(burst: Burst, results: Results | None) -> int:
        assert results is not None
        burst.logprobs.append(results)
        return len(burst.logprobs) - 1

    def _run_rows(
        self,
        burst: Burst,
        rows: Sequence[tuple[LiveSequence, DecodeRow]],
        steps: int,
        tables: Sequence[Table],
        snapshots: Sequence[StateSnapshot],
        *,
        wait: bool,
        final: bool,
    ) -> Results | None:
        sampling = self.sampling_of([live for live, _ in rows])
        adapted = any(live.adapter is not None for live, _ in rows)
        if adapted:
            # Those that use the same adapter are beside each other, those without one at the end.
            rows = sorted(rows, key=lambda r: math.inf if r[0].adapter is None else r[0].adapter.place)
        exe, made = self.decode_executable(len(rows), sampling, adapted=adapted), _DecodeSteps(self, rows, sampling, tables)
        for live, _ in rows:
            live.record.ran("decode" if len(rows) == 1 else "decode-batch", exe.plan, len(rows))
        for k in range(steps - 1):
            exe.begin(made.inputs(k), outputs=[], more=True)
            if snapshots:
                self.make_snapshots([s for s in snapshots if s.after == k + 1])
        wanted = ["ring", *(_LOGPROB_OUTPUTS if sampling.logprobs else ())]
        results = begin(exe, made.inputs(steps - 1), wanted, wait=wait)
        if snapshots:
            self.make_snapshots([s for s in snapshots if s.after == steps])
        at = self._note_logprobs(burst, results) if sampling.logprobs else None
        for k in range(steps):
            for i, (live, row) in enumerate(rows):
                if k < row.steps:
                    place = self._place(row.start + k + 1 - len(live.request.prompt), row.slot)
                    burst.places.append((live, place, None if at is None else (at, i)))
        return results

    def _run_drafts(
        self, burst: Burst, live: LiveSequence, row: DecodeRow, tables: Sequence[Table], *, wait: bool, final: bool
    ) -> Results | None:
        """Runs a sequence's last token and its drafts, and samples after each of them."""
        sampling, drafts = self.sampling_of([live]), live.drafts[: row.steps - 1]
        tokens, first = [live.tokens[-1], *drafts], row.start + 1 - len(live.request.prompt)
        places = [self._place(first + k, row.slot) for k in range(row.steps)]
        total = max(live.turned_by, row.start + row.steps)
        inputs = self._prefill_inputs(live, row.slot, row.start, tokens, total, sampling, tables)
        inputs["at"] = np.array(places, np.int32)
        masks = live.masks_of_drafts(len(drafts))
        draws = [SamplingRow(live.request.sampling, first + k, mask) for k, mask in enumerate(masks)]
        inputs |= sampling_inputs(draws, sampling, self.weights.cfg.vocab)
        exe = self.verify_executable(sampling, adapted=live.adapter is not None)
        wanted = [*(("ring",) if final else ()), *(_LOGPROB_OUTPUTS if sampling.logprobs else ())]
        results = begin(exe, inputs, wanted, wait=wait)
        live.record.ran("verify", exe.plan)
        burst.verified.append((live, drafts, places, self._note_logprobs(burst, results) if sampling.logprobs else None))
        return results if final else None

    def feed(self, tokens: Sequence[tuple[LiveSequence, int]]) -> None:
        """Puts the last tokens of sequences in place of those that were sampled, for the next token step to run."""
        placed = [(self._place(len(live.tokens) - 1, live.slot), token) for live, token in tokens if live.slot >= 0]
        if not placed:
            return
        if self._feeder is None:
            self._feeder = pm.compile(trace_feed(self.layout.slots), store=self.store)
        at, values = np.array(placed, np.int32).T.copy()
        self._feeder.run({"at": at, "token": values}, outputs=[])

    def _fill_slot(self, live: LiveSequence, slot: int, sampling: Sampling) -> None:
        """Writes what sampling keeps for each slot: token counts and biases."""
        vocab = self.weights.cfg.vocab
        for name, row in slot_rows(live.request.sampling, live.request.prompt, live.tokens, sampling, vocab).items():
            if name not in self._slot_writers:
                self._slot_writers[name] = pm.compile(trace_slot_row(name, self.layout.slots, vocab), store=self.store)
            self._slot_writers[name].run({"slot": np.array([slot], np.int32), "row": row[None]}, outputs=[])
            live.record.ran(name, self._slot_writers[name].plan)

    def _place(self, number: int, slot: int) -> int:
        """The ring position of the token with that number in the answer of the sequence in a slot."""
        return number % RING * self.layout.slots + slot

    def _prefill_inputs(
        self,
        live: LiveSequence,
        slot: int,
        start: int,
        tokens: Sequence[int],
        total: int,
        sampling: Sampling,
        tables: Sequence[Table],
    ) -> dict[str, Array]:
        length, page, count = len(tokens), self.layout.page, len(live.tokens)
        # One array for all, as each costs time of its own.
        numbers = np.array([slot, start, total, self._place(count, slot), length], np.int32)
        out = {name: numbers[k : k + 1] for k, name in enumerate(("slot", "start", "total", "at", "length"))}
        out["tokens"] = np.array(tokens, np.int32)[None]
        positions = np.arange(start, start + length, dtype=np.int32)
        which, within = np.divmod(positions, page)
        for group, table in enumerate(tables):
            out[group_input("pages", group)] = mine = table[slot : slot + 1].copy()
            out[group_input("row", group)] = mine[0, which] * page + within
        if live.adapter is not None:
            out["adapters"] = self.adapters.rows([(live.adapter, length)])
        vocab = self.weights.cfg.vocab
        return out | sampling_inputs([SamplingRow(live.request.sampling, count, live.allowed(vocab))], sampling, vocab)

    def close(self) -> None:
        for made in self._made.values():
            made.clear()
        self.adapters.close()
        self._slot_writers.clear()
        self._feeder = self._states = None


class _DecodeSteps:
    """The inputs of token steps that start together, each one position after the one before."""

    def __init__(
        self, runner: Runner, rows: Sequence[tuple[LiveSequence, DecodeRow]], sampling: Sampling, tables: Sequence[Table]
    ) -> None:
        self._runner, self._sampling, self._rows = runner, sampling, rows
        self._tables = [table[[row.slot for _, row in rows]] for table in tables]
        # How many rows use each adapter, if one does.
        self._adapters: dict[str, Array] = {}
        if any(live.adapter is not None for live, _ in rows):
            self._adapters["adapters"] = runner.adapters.rows([(live.adapter, 1) for live, _ in rows])

    def inputs(self, step: int) -> dict[str, Array]:
        layout, vocab = self._runner.layout, self._runner.weights.cfg.vocab
        slots, page = layout.slots, layout.page
        numbers, drawn = [], []
        for k, (live, row) in enumerate(self._rows):
            start, slot = row.start + step, row.slot
            number = start + 1 - len(live.request.prompt)  # of the token that is sampled
            places = [int(table[k, start // page]) * page + start % page for table in self._tables]
            at, fed = number % RING * slots + slot, (number - 1) % RING * slots + slot
            numbers.append((slot, start, max(live.turned_by, start + 1), at, fed, *places))
            drawn.append(SamplingRow(live.request.sampling, number, live.allowed(vocab)))
        # One array for all, as each costs time of its own: its rows are the inputs.
        columns = np.array(numbers, np.int32).T.copy()
        out: dict[str, Array] = dict(zip(("slot", "start", "total", "at", "fed"), columns, strict=False))
        for group, table in enumerate(self._tables):
            out[group_input("pages", group)] = table
            out[group_input("row", group)] = columns[5 + group]
        return out | self._adapters | sampling_inputs(drawn, self._sampling, vocab)
