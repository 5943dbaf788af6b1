"""Engine: a causal model's plans, weights and cache on a device, and the loop that turns prompts into tokens."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import pumice as pm
from pumice import config
from pumice.core.interrupts import Monitor
from pumice.errors import ClosedError, DeviceLost, InputError
from pumice.llm.graphs import RING, trace_token_step
from pumice.llm.live import Burst, CacheSlot, LiveSequence, logprobs_in
from pumice.llm.logits import rows_at_once, sequence_logits, trace_logits
from pumice.llm.memory import CacheLayout, group_input, page_groups
from pumice.llm.plans import keep_plan, plan_path, read_plan
from pumice.llm.prepare import in_background, prepare_kernels
from pumice.llm.requests import Request, SamplingParams, Timings, TokenEvent, check_cache_dtype, check_sizes, number
from pumice.llm.sampling import Sampling, SamplingRow, check_token, sampling_inputs, slot_rows, trace_slot_row
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.lora import Adapter, attach
from pumice.models.memory import pages_suffice
from pumice.models.registry import CausalArchitecture
from pumice.models.rope import rotary_regime
from pumice.run.device import Device
from pumice.run.executable import Executable
from pumice.sources import Progress, ProgressCallback

if TYPE_CHECKING:
    from pumice.run.profile import Profile

Array = np.ndarray[Any, Any]


@dataclass
class _Turn:
    """A stream's claim on the engine, which lasts until `ended`; `thread` is the one that read from the stream last."""

    thread: int = 0
    ended: bool = False


class Engine:
    """Runs a causal model. Calls take turns: a stream has its turn until it ends or is closed.

    Slots keep their tokens: what a prompt shares with one is not run again.
    """

    def __init__(
        self,
        arch: CausalArchitecture,
        cfg: ModelArchConfig,
        params: LoadedParams,
        device: Device,
        *,
        slots: int = 1,
        context: int = 2048,
        chunk: int = 512,
        cache_dtype: str = "f32",
        adapter: Adapter | None = None,
        progress: ProgressCallback | None = None,
        name: str = "",
    ) -> None:
        check_sizes(slots=slots, context=context, chunk=chunk)
        check_cache_dtype(cache_dtype)
        self.name = name or f"the {cfg.model_type} model"  # for errors
        self._adapted = adapter is not None
        if adapter is not None:
            params = attach(cfg, params, adapter)
        self.arch, self.cfg, self.device = arch, cfg, device
        self.context = min(context, cfg.max_positions)
        windows = page_groups(cfg.windows, self.context)
        self.layout = CacheLayout(slots, self.context, cache_dtype, joined=device.caps.joined_cache, windows=windows)
        self._tables = np.arange(self.layout.pool, dtype=np.int32).reshape(slots, self.layout.table)
        self.chunk = min(chunk, self.context)
        self._params = params
        self._slots = [CacheSlot(i) for i in range(slots)]
        self._pages_suffice = pages_suffice(arch.memories(cfg))
        # Weights and caches; all executables work on it.
        self._store = pm.Store(device)
        self._exes: dict[Any, Executable] = {}
        self._slot_writers: dict[str, Executable] = {}
        # A stream holds the turn while its consumer has it, and the device only during a token step: `close` need not wait for
        # a consumer. Any thread may finish or close a stream, which a lock that belongs to a thread would not allow.
        self._turn = _Turn(ended=True)
        self._turns = Monitor()
        # The state of the stream that has the turn, or had it last.
        self._live: list[LiveSequence] = []
        self._step_lock = threading.RLock()
        self._closed = False
        # Counts reopenings: a stream from before one has lost its cache.
        self._life = 0
        # Without overlap running ahead gains nothing, and single token steps deliver tokens sooner.
        self._ahead, self._bursts = (_TOKEN_STEPS_PER_BURST, 2) if device.caps.overlaps_host else (1, 1)
        self._arrived = 0.0  # when the last burst did
        # Captured now, for executables that are made later or in another thread.
        self._switches = {name: config.get(name) for name in ("nofuse", "noarena", "default_max", "validate", "debug")}
        exe = self._executable(self.chunk, _USUAL)
        prepare_kernels(device, exe.plan, progress)
        with in_background(self._prepare_steps):
            self._upload(exe, params, progress)

    @staticmethod
    def _upload(exe: Executable, params: LoadedParams, progress: ProgressCallback | None) -> None:
        done = 0
        if progress is not None:
            progress(Progress(params.nbytes, 0, "upload"))
        group: dict[str, Array] = {}
        waiting, left = 0, len(params.arrays)
        for name, array in params.arrays.items():
            group[name] = array
            waiting, left = waiting + array.nbytes, left - 1
            if waiting < _UPLOAD_BYTES and left:
                continue
            exe.set_params(group, partial=True)
            done, waiting, group = done + waiting, 0, {}
            if progress is not None:
                progress(Progress(params.nbytes, done, "upload"))

    def _executable(self, chunk: int | None, sampling: Sampling) -> Executable:
        """The plan for prefill chunks of up to `chunk` tokens, or with None for the token sampled last.

        Weights and cache are shared by all of them.
        """
        key = (chunk is None, chunk, sampling)
        if key not in self._exes:
            with config.override(**self._switches):
                self._exes[key] = self._make_executable(chunk, sampling)
        return self._exes[key]

    def _make_executable(self, chunk: int | None, sampling: Sampling) -> Executable:
        path = self._plan_path(chunk, sampling)
        plan = read_plan(path)
        if plan is not None:
            return Executable(plan, self._store, validate=config.validate)
        graph = trace_token_step(self.arch, self.cfg, self._params.specs, self.layout, sampling, chunk=chunk)
        made = pm.compile(graph, store=self._store)
        keep_plan(path, made.plan)
        return made

    def _plan_path(self, chunk: int | None, sampling: Sampling) -> Path | None:
        """Where the plan is kept; an adapter's scale is a constant of the graph, which specs do not contain."""
        return None if self._adapted else plan_path(self.device.caps, self.cfg, self._params.specs, self.layout, sampling, chunk)

    def _prepare_steps(self) -> None:
        """Binds the kernels that the first tokens would wait for: those of a short prompt, and of the usual token step.

        A plan of the token step that is not cached yet is left to the second token: planning would slow down the load.
        """
        live = LiveSequence(0, Request([0], SamplingParams(), 1), CacheSlot(0, [0]), last=0, count=1)
        prefill = self._executable(self.chunk, _USUAL)
        if len(prefill.plan.regimes) > 1:
            prefill.prepare(self._inputs([live], _USUAL, [0] * min(_SHORT_PROMPT, self.chunk)), outputs=["token"])
        with config.override(**self._switches):
            path = self._plan_path(None, _USUAL)
        if path is not None and path.exists():
            self._executable(None, _USUAL).prepare(self._inputs([live], _USUAL), outputs=["ring"])

    # -- generation -------------------------------------------------------------------------------------------------
    def stream(
        self, requests: Sequence[Request], *, cancelled: Callable[[], bool] = lambda: False, timings: Timings | None = None
    ) -> Generator[TokenEvent, None, None]:
        """Tokens of all requests as they come; closing the iterator, or `cancelled`, stops between token steps."""
        if len(requests) > len(self._slots):
            raise InputError(
                f"{len(requests)} sequences at once, the engine has {len(self._slots)} slots",
                hint="load the model with more slots",
            )
        for r in requests:
            self._check(r)
        turn = _Turn(threading.get_ident())
        events = self._run(requests, cancelled, timings or Timings())
        try:
            self._take_turn(turn)
            for event in events:
                yield event
                turn.thread = threading.get_ident()
        finally:
            try:
                events.close()
            finally:
                # One step of the interpreter: an interrupt comes before it, into this block, or after it.
                turn.ended = True
            with self._turns.lock:
                self._turns.notify_all()

    def _take_turn(self, turn: _Turn) -> None:
        """Waits until no other stream runs; a thread that would wait for itself gets an error."""

        def taken() -> bool:
            self._require_open()
            if self._turn.ended:
                self._turn = turn
                return True
            if self._turn.thread == turn.thread:
                raise InputError("another stream of this model is still open", hint="read it to its end, or close() it, first")
            return False

        self._turns.wait_for(taken)

    def _check_open(self, life: int | None = None) -> None:
        """Refuses a token step on a closed or reopened engine; call under `_step_lock`."""
        self._require_open()
        if life is not None and life != self._life:
            raise DeviceLost("the model was reopened while this stream was open", hint="start the answer again")

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again")

    def _check(self, r: Request) -> None:
        self._check_tokens(r.prompt)
        r.sampling.check_tokens(self.cfg.vocab)
        counts: dict[str, Any] = {"prompt_tokens": len(r.prompt), "max_tokens": r.max_tokens, "context": self.context}
        if number("max_tokens", r.max_tokens, whole=True) < 1:
            raise InputError(f"max_tokens is {r.max_tokens}", hint="ask for at least 1 token", **counts)
        room = self.context - len(r.prompt)
        if r.max_tokens > room:
            fewer = f"ask for at most {room} tokens, " if room > 0 else ""
            needed = len(r.prompt) + r.max_tokens
            raise InputError(
                f"{len(r.prompt)} prompt tokens and {r.max_tokens} new ones make {needed}, the context holds {self.context}",
                hint=f"{fewer}shorten the prompt, or use a larger context (this model: up to {self.cfg.max_positions})",
                **counts,
            )

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise InputError("the prompt has no tokens", hint="give it at least one")
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self.cfg.vocab:
            raise InputError(f"the token {low if low < 0 else high} is not in the vocabulary of {self.cfg.vocab}")

    def _run(
        self, requests: Sequence[Request], cancelled: Callable[[], bool], timings: Timings
    ) -> Generator[TokenEvent, None, None]:
        # An interrupted stream may not have released its slots.
        self._leave_slots(self._live)
        live: list[LiveSequence] = []
        self._live = live
        bursts: deque[Burst] = deque()
        life = self._life
        try:
            for i, r in enumerate(requests):
                started = time.perf_counter()
                slot = self._claim(r)
                seq = LiveSequence(i, r, slot, restart=self._restart_length(r))
                live.append(seq)
                timings.reused.append(len(slot.tokens))
                timings.prompt_tokens += len(r.prompt) - len(slot.tokens)
                with self._step_lock:
                    self._check_open(life)
                    ready = self._prefill(seq, r.prompt, cancelled)
                if not ready:
                    return
                timings.prefill_s += time.perf_counter() - started
                yield from self._finished(seq, live)
            while live and not cancelled():
                started = time.perf_counter()
                with self._step_lock:
                    self._check_open(life)
                    events = self._decode(live, bursts, cancelled)
                timings.decode_s += time.perf_counter() - started
                timings.decode_tokens += len(events)
                yield from events
        finally:
            self._leave_slots(live)

    def _leave_slots(self, live: Sequence[LiveSequence]) -> None:
        for seq in live:
            # Token steps in flight, or failed ones, may have written past this; the cache before it is intact.
            seq.forget_ahead()
        for slot in self._slots:
            slot.busy = False

    def _claim(self, r: Request) -> CacheSlot:
        """The free slot with the longest common prefix with the prompt; tokens after that are dropped."""

        needed = rotary_regime(self.cfg, len(r.prompt))

        def common(slot: CacheSlot) -> int:
            # Keys rotated under another rotary regime cannot be reused. Regimes only grow with the length, so where the slot's
            # prompt agrees, so do the decoded tokens within the new prompt.
            if rotary_regime(self.cfg, slot.length) != needed or not self._pages_suffice:
                return 0
            # At least one token must run, or there would be no logits to sample from.
            limit = min(len(slot.tokens), len(r.prompt) - 1)
            return next((k for k in range(limit) if slot.tokens[k] != r.prompt[k]), limit)

        slot = max((s for s in self._slots if not s.busy), key=common)
        slot.tokens = slot.tokens[: common(slot)]
        slot.length, slot.busy = len(r.prompt), True
        return slot

    def _variant(self, live: Sequence[LiveSequence]) -> Sampling:
        masked = any(s.request.grammar is not None for s in live)
        return Sampling.of([s.request.sampling for s in live], self.cfg.vocab, mask=masked)

    def _accept(self, s: LiveSequence, token: int, logprobs: tuple[float, tuple[tuple[int, float], ...]] | None) -> None:
        """Takes a sampled token for a sequence; raises if the draw failed."""
        s.take(check_token(token, self.name, len(s.request.prompt) + s.count), logprobs)

    def _prefill(self, seq: LiveSequence, prompt: Sequence[int], cancelled: Callable[[], bool]) -> bool:
        """Prefill: runs the tokens of a prompt that the slot lacks, and samples the next one; False if cancelled."""
        variant, slot = self._variant([seq]), seq.slot
        self._fill_slot(seq, prompt[len(seq.request.prompt) :], variant)
        while len(slot.tokens) < len(prompt):
            if cancelled():
                return False
            part = list(prompt[len(slot.tokens) : len(slot.tokens) + self.chunk])
            inputs = self._inputs([seq], variant, part)
            last = len(slot.tokens) + len(part) == len(prompt)
            wanted = ["token", *(_LOGPROB_OUTPUTS if variant.logprobs else ())] if last else []
            results = self._executable(self.chunk, variant).run(inputs, outputs=wanted)
            slot.tokens += part
        self._accept(seq, int(results[0][0]), logprobs_in(results[1:], 0))
        return True

    def _fill_slot(self, seq: LiveSequence, completion: Sequence[int], variant: Sampling) -> None:
        """Writes what sampling keeps for each slot: token counts and biases."""
        request, vocab = seq.request, self.cfg.vocab
        for name, row in slot_rows(request.sampling, request.prompt, completion, variant, vocab).items():
            if name not in self._slot_writers:
                self._slot_writers[name] = pm.compile(trace_slot_row(name, len(self._slots), vocab), store=self._store)
            self._slot_writers[name].run({"slot": np.array([seq.slot.index], np.int32), "row": row[None]}, outputs=[])

    def _place(self, s: LiveSequence, number: int) -> int:
        """The ring position of a sequence's token with that number."""
        return number % RING * len(self._slots) + s.slot.index

    def _inputs(self, live: Sequence[LiveSequence], variant: Sampling, part: Sequence[int] | None = None) -> dict[str, Array]:
        """The inputs of a token step: for a prefill chunk, or for the token that each sequence sampled last."""
        length = 1 if part is None else len(part)
        out: dict[str, Array] = {
            "slot": np.array([s.slot.index for s in live], np.int32),
            "start": np.array([len(s.slot.tokens) for s in live], np.int32),
            "total": np.array([max(s.slot.length, len(s.slot.tokens) + length) for s in live], np.int32),
            "at": np.array([self._place(s, s.count + s.ahead) for s in live], np.int32),
        }
        if part is None:
            out["fed"] = np.array([self._place(s, s.count + s.ahead - 1) for s in live], np.int32)
            row = out["slot"] * np.int32(self.layout.table * self.layout.page) + out["start"]
        else:
            out |= {"length": np.array([length], np.int32), "tokens": np.array([part], np.int32)}
            row = out["slot"] * self.layout.table * self.layout.page + np.arange(length, dtype=np.int32) + out["start"]
        for group in range(len(self.layout.windows)):
            out |= {group_input("pages", group): self._tables[out["slot"]], group_input("row", group): row}
        rows = [SamplingRow(s.request.sampling, s.count + s.ahead, s.allowed()) for s in live]
        return out | sampling_inputs(rows, variant, self.cfg.vocab)

    def _restart_length(self, r: Request) -> int | None:
        """The length beyond which the cache of a sequence is recomputed; None where no token step crosses one."""
        border = self.cfg.recompute_beyond
        return None if border is None or len(r.prompt) > border else border

    def _restart(self, s: LiveSequence, live: list[LiveSequence], cancelled: Callable[[], bool]) -> list[TokenEvent]:
        """Recomputes the cache of a sequence from its first token, and samples its next token."""
        whole = [*s.slot.tokens, s.last]
        s.slot.tokens, s.slot.length, s.restart = [], len(whole), None
        if self._prefill(s, whole, cancelled):
            return self._finished(s, live)
        live.remove(s)  # cancelled: it has no token to continue from
        return []

    def _decode(self, live: list[LiveSequence], bursts: deque[Burst], cancelled: Callable[[], bool]) -> list[TokenEvent]:
        """The tokens of the oldest burst of token steps; the next one is started before it is waited for."""
        due = [s for s in live if s.restarts_now]
        if due:
            return [event for s in due for event in self._restart(s, live, cancelled)]
        # A mask needs the token before it.
        most = 1 if any(s.request.grammar for s in live) else self._bursts
        while len(bursts) < most and all(s.room > 0 for s in live):
            bursts.append(self._burst(live))
        burst = bursts.popleft()
        results = burst.results()
        self._pace(burst)
        events: list[TokenEvent] = []
        for _ in range(burst.token_steps):
            for row, s in enumerate(burst.live):
                if s.done:
                    continue
                if burst.logprobs:
                    self._accept(s, int(results[0][row]), logprobs_in(results[1:], row))
                else:
                    self._accept(s, int(results[0][self._place(s, s.count)]), None)
                events += self._finished(s, live)
        return events

    def _pace(self, burst: Burst) -> None:
        """More token steps per burst where they are short, so that the gaps between bursts weigh less."""
        now, before = time.perf_counter(), self._arrived
        self._arrived = now
        if self._bursts > 1 and burst.token_steps > 1 and before:
            each = (now - before) / burst.token_steps
            self._ahead = min(max(int(_BURST_SECONDS / max(each, 1e-6)), _TOKEN_STEPS_PER_BURST), _MOST_TOKEN_STEPS)

    def _burst(self, live: Sequence[LiveSequence]) -> Burst:
        """Starts a few token steps on the device; the last one brings the tokens of all."""
        variant = self._variant(live)
        exe = self._executable(None, variant)
        token_steps = 1 if variant.logprobs or variant.mask else min(self._ahead, *(s.room for s in live))
        for _ in range(token_steps - 1):
            exe.run(self._inputs(live, variant), outputs=[])
            self._advance(live)
        wanted = ["token", *_LOGPROB_OUTPUTS] if variant.logprobs else ["ring"]
        inputs = self._inputs(live, variant)
        results: Callable[[], Sequence[Array]]
        if self._bursts == 1:
            results = partial(tuple, exe.run(inputs, outputs=wanted))
        else:
            results = exe.submit(inputs, outputs=wanted).result
        self._advance(live)
        return Burst(tuple(live), token_steps, variant.logprobs, results)

    @staticmethod
    def _advance(live: Sequence[LiveSequence]) -> None:
        """Records a token step that was started; which token ran is known only if no other token step is in flight."""
        for s in live:
            s.slot.tokens.append(-1 if s.ahead else s.last)
            s.ahead += 1

    def _finished(self, s: LiveSequence, live: list[LiveSequence]) -> list[TokenEvent]:
        """The event of the token that a sequence just got; ended sequences leave."""
        finish = "stop" if s.last in s.request.stop_ids else "length" if s.count >= s.request.max_tokens else None
        if finish is not None:
            # Tokens computed past the end are cut off again: the next request overwrites those rows of the cache.
            s.forget_ahead()
            s.done = True
            s.slot.busy = False
            live.remove(s)
        logprob, top = s.logprobs or (None, ())
        wanted = s.request.sampling.logprobs
        return [TokenEvent(s.index, s.last, finish, logprob, top[: wanted or 0])]

    # -- whole sequences --------------------------------------------------------------------------------------------
    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every position, float32 [T, vocab]; the cache is not touched: a second one of its size is allocated once."""
        self._check_tokens(tokens)
        if len(tokens) > self.context:
            raise InputError(
                f"{len(tokens)} tokens, the context holds {self.context}",
                hint="shorten the sequence, or load with a larger context",
                prompt_tokens=len(tokens),
                context=self.context,
            )
        rows = rows_at_once(self.cfg.vocab, self.chunk, self.device.caps)
        with self._step_lock:
            self._check_open()
            if "logits" not in self._exes:
                sizes: dict[str, Any] = {"context": self.context, "rows": rows, "joined": self.layout.joined}
                graph = trace_logits(self.arch, self.cfg, self._params.specs, **sizes)
                self._exes["logits"] = pm.compile(graph, store=self._store.child())
            return sequence_logits(self._exes["logits"], tokens, rows, self.cfg.vocab)

    def profile(self, *, repeats: int = 5) -> Profile:
        """Where the time of one token step goes, after the longest sequence that the cache holds; nothing is changed by it."""
        slot = max(self._slots, key=lambda s: len(s.tokens))
        if not slot.tokens:
            raise InputError("there is no sequence to continue", hint="generate something first")
        held = slot.tokens[: self.context - 1]
        live = LiveSequence(0, Request(held, SamplingParams(temperature=0), 1), CacheSlot(slot.index, held), last=held[-1])
        variant = self._variant([live])
        with self._step_lock:
            self._check_open()
            return self._executable(None, variant).profile(self._inputs([live], variant), outputs=["ring"], repeats=repeats)

    def reopen(self, device: Device | None = None) -> None:
        """Reopen on a new device after this one was lost: the same plans and weights, an empty cache."""
        with self._step_lock:
            self._check_open()
            self._store.reopen(device)
            self.device = self._store.device
            self._life += 1
            for slot in self._slots:
                slot.tokens = []

    def report(self) -> Mapping[str, Any]:
        """Steps and memory of each plan in use, as data."""
        return {str(k): {"steps": [len(r.steps) for r in e.plan.regimes], "memory": e.plan.memory} for k, e in self._exes.items()}

    def close(self) -> None:
        """Free the device memory, after the token step that runs now; open streams end with a ClosedError."""
        self._closed = True
        with self._step_lock:
            self._store.close()
            self._exes.clear()
            self._slot_writers.clear()


# The default sampling of requests; its plans are prepared at load.
_USUAL = Sampling(greedy=False)
# Tokens of a prompt as chats begin with; the kernels for so many are made ready at load.
_SHORT_PROMPT = 32
# Weights that are uploaded together.
_UPLOAD_BYTES = 1 << 23
# Steps in a burst at first and at most, and how long one may take to have more than that.
_TOKEN_STEPS_PER_BURST, _MOST_TOKEN_STEPS, _BURST_SECONDS = 4, 16, 0.016
_LOGPROB_OUTPUTS = ("logprob", "top_logprobs", "top_ids")
