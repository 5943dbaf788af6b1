"""Engine: a causal model's plans, weights and cache on a device, and the loop that turns prompts into tokens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import pumice as pm
from pumice.backends.base import Device
from pumice.core.special import threefry2x32
from pumice.errors import ClosedError, InputError
from pumice.llm.graphs import RING, Layout, Sampling, all_logits, step
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.registry import CausalArchitecture
from pumice.run.executable import Executable
from pumice.sources import Progress, ProgressCallback

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class SamplingParams:
    """How tokens are drawn. `temperature` 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 switch those rules off.

    >>> SamplingParams(temperature=0).greedy
    True
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    seed: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        limits = {
            "temperature": (0.0, 100.0),
            "top_k": (0, 1 << 30),
            "top_p": (0.0, 1.0),
            "min_p": (0.0, 1.0),
            "repeat_penalty": (0.01, 100.0),
            "seed": (0, (1 << 64) - 1),
        }
        for name, (low, high) in limits.items():
            value = number(name, getattr(self, name), whole=isinstance(low, int))
            if not low <= value <= high:  # false for NaN too
                raise InputError(f"{name} is {value}", hint=f"it must lie in {low}…{high}", name=name, value=value)
        if self.logprobs is not None and not 0 <= number("logprobs", self.logprobs, whole=True) <= 20:
            raise InputError(f"logprobs is {self.logprobs}", hint="0…20 alternatives can be had", name="logprobs")

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    def uniform(self, index: int) -> float:
        """The number in [0, 1) that draws token `index`: a function of the seed alone, the same on every device."""
        key = np.uint32(self.seed & 0xFFFFFFFF), np.uint32(self.seed >> 32)
        word, _ = threefry2x32(*key, np.uint32(index), np.uint32(0x70756D69))
        return int(word >> np.uint32(8)) * 2.0**-24


def number(name: str, value: Any, *, whole: bool) -> Any:
    """The value of the option `name`, if it is a number, and an integer where it must be `whole`.

    >>> number("seed", 3, whole=True)
    3
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer if whole else int | float | np.number):
        raise InputError(f"{name} is {value!r}", hint=f"it takes {'an integer' if whole else 'a number'}", name=name, value=value)
    return value


@dataclass
class Request:
    """One sequence to continue."""

    prompt: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    stop_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class TokenEvent:
    """A token that request number `request` got, or its end (`finish` is "stop" or "length", with the token that ended it)."""

    request: int
    token: int
    finish: str | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class _Slot:
    """One sequence of the cache: the tokens whose keys and values it holds."""

    index: int
    tokens: list[int] = field(default_factory=list)
    busy: bool = False


@dataclass
class Timings:
    """What a call cost: tokens that ran through the model as prompt and as answer, seconds for each."""

    prompt_tokens: int = 0
    reused_tokens: int = 0
    prefill_s: float = 0.0
    decode_tokens: int = 0
    decode_s: float = 0.0


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
        progress: ProgressCallback | None = None,
    ) -> None:
        for name, value in (("slots", slots), ("context", context), ("chunk", chunk)):
            if number(name, value, whole=True) < 1:
                raise InputError(f"{name} is {value}", hint="it must be at least 1", name=name, value=value)
        if cache_dtype not in CACHE_DTYPES:
            raise InputError(f"cache_dtype is {cache_dtype!r}", hint=f"use {' or '.join(CACHE_DTYPES)}", value=cache_dtype)
        self.arch, self.cfg, self.device = arch, cfg, device
        self.context = min(context, cfg.max_positions)
        self.layout = Layout(slots, self.context, cache_dtype)
        self.chunk = min(chunk, self.context)
        self._params = params
        self._slots = [_Slot(i) for i in range(slots)]
        self._exes: dict[Any, Executable] = {}
        # A stream holds the turn while its consumer has it, and the device only during a step: `close` need not wait for
        # a consumer. Any thread may finish or close a stream, which a lock that belongs to a thread would not allow.
        self._turn = threading.Lock()
        self._streaming: int | None = None
        self._stepping = threading.RLock()
        self._closed = False
        # A software device gains nothing from running ahead, and its tokens arrive sooner one by one.
        self._ahead = 1 if device.caps.software else 4
        self._upload(self._executable(False, Sampling()), params, progress)

    @staticmethod
    def _upload(exe: Executable, params: LoadedParams, progress: ProgressCallback | None) -> None:
        done = 0
        for name, array in params.arrays.items():
            exe.set_params({name: array}, partial=True)
            done += array.nbytes
            if progress is not None:
                progress(Progress(params.nbytes, done, "upload"))

    def _executable(self, feed: bool, sampling: Sampling) -> Executable:
        """The plan for prefill (tokens given) or decode (tokens fed back); weights and cache are shared by all of them."""
        key = (feed, sampling)
        if key not in self._exes:
            batch: int | str = ("B" if len(self._slots) > 1 else 1) if feed else 1
            specs: dict[str, Any] = {n: pm.spec(batch, dtype="i32") for n in ("slot", "start", "length", "total", "at")}
            if not feed:
                specs["tokens"] = pm.spec(1, "T", dtype="i32", max=self.chunk)
            if not sampling.greedy:
                specs |= {n: pm.spec(batch) for n in ("temperature", "top_p", "min_p", "u")}
                specs["top_k"] = pm.spec(batch, dtype="i32")
            if sampling.penalty:
                specs["repeat_penalty"] = pm.spec(batch)
            graph = pm.trace(step(self.arch, self.cfg, self.layout, sampling, feed=feed), params=self._params.specs, **specs)
            sizes = {"B": len(self._slots)} if batch == "B" else None
            first = next(iter(self._exes.values()), None)
            self._exes[key] = pm.compile(
                graph, device=self.device, max=sizes, params_from=first, state_from=list(self._exes.values())
            )
        return self._exes[key]

    # -- generation -------------------------------------------------------------------------------------------------
    def stream(
        self, requests: Sequence[Request], *, cancelled: Callable[[], bool] = lambda: False, timings: Timings | None = None
    ) -> Generator[TokenEvent, None, None]:
        """Tokens of all requests as they come; closing the iterator, or `cancelled`, stops between steps."""
        if len(requests) > len(self._slots):
            raise InputError(
                f"{len(requests)} sequences at once, the engine has {len(self._slots)} slots",
                hint="load the model with more slots",
            )
        for r in requests:
            self._check(r)
        with self._own_turn(), closing(self._run(requests, cancelled, timings or Timings())) as events:
            for event in events:
                yield event
                self._streaming = threading.get_ident()

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """Waits until no other stream runs; a thread that would wait for itself is told so."""
        while not self._turn.acquire(timeout=_POLL_SECONDS):
            self._require_open()
            if self._streaming == threading.get_ident():
                raise InputError("another stream of this model is still open", hint="read it to its end, or close() it, first")
        self._streaming = threading.get_ident()
        try:
            yield
        finally:
            self._streaming = None
            self._turn.release()

    @contextmanager
    def _step(self) -> Iterator[None]:
        with self._stepping:
            self._require_open()
            yield

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again")

    def _check(self, r: Request) -> None:
        self._check_tokens(r.prompt)
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
        live: list[_Live] = []
        try:
            for i, r in enumerate(requests):
                started = time.perf_counter()
                slot = self._claim(r)
                seq = _Live(i, r, slot)
                live.append(seq)
                timings.reused_tokens += len(slot.tokens)
                timings.prompt_tokens += len(r.prompt) - len(slot.tokens)
                with self._step():
                    ready = self._prefill(seq, cancelled)
                if not ready:
                    return
                timings.prefill_s += time.perf_counter() - started
                yield from self._finished(seq, live)
            while live and not cancelled():
                started = time.perf_counter()
                with self._step():
                    events = self._decode(live)
                timings.decode_s += time.perf_counter() - started
                timings.decode_tokens += len(events)
                yield from events
        finally:
            for slot in self._slots:
                slot.busy = False

    def _claim(self, r: Request) -> _Slot:
        """The free slot whose tokens the prompt continues furthest; the rest of what it held is forgotten."""

        def common(slot: _Slot) -> int:
            # At least one token must run, or there would be no logits to sample from.
            limit = min(len(slot.tokens), len(r.prompt) - 1)
            return next((k for k in range(limit) if slot.tokens[k] != r.prompt[k]), limit)

        slot = max((s for s in self._slots if not s.busy), key=common)
        slot.tokens = slot.tokens[: common(slot)]
        slot.busy = True
        return slot

    def _variant(self, live: Sequence[_Live]) -> Sampling:
        return Sampling(
            greedy=all(s.request.sampling.greedy for s in live),
            penalty=any(s.request.sampling.repeat_penalty != 1 for s in live),
            logprobs=any(s.request.sampling.logprobs is not None for s in live),
        )

    def _prefill(self, seq: _Live, cancelled: Callable[[], bool]) -> bool:
        variant = self._variant([seq])
        exe = self._executable(False, variant)
        if variant.penalty:
            self._mark_seen(exe, seq)
        prompt, slot = seq.request.prompt, seq.slot
        while len(slot.tokens) < len(prompt):
            if cancelled():
                return False
            part = list(prompt[len(slot.tokens) : len(slot.tokens) + self.chunk])
            inputs = self._inputs([seq], variant, len(part))
            inputs["tokens"] = np.array([part], np.int32)
            last = len(slot.tokens) + len(part) == len(prompt)
            wanted = ["token", *(_LOGPROB_OUTPUTS if variant.logprobs else ())] if last else []
            results = exe.run(inputs, outputs=wanted)
            slot.tokens += part
        seq.take(int(results[0][0]), _logprobs_of(results[1:], 0))
        return True

    def _mark_seen(self, exe: Executable, seq: _Live) -> None:
        """The repeat penalty counts tokens that are already in the cache too."""
        seen = exe.state["seen"].read().reshape(len(self._slots), self.cfg.vocab)
        seen[seq.slot.index] = 0
        seen[seq.slot.index, seq.slot.tokens] = 1
        exe.state["seen"].write(seen.reshape(-1))

    def _inputs(self, live: Sequence[_Live], variant: Sampling, length: int) -> dict[str, Array]:
        out: dict[str, Array] = {
            "slot": np.array([s.slot.index for s in live], np.int32),
            "start": np.array([len(s.slot.tokens) for s in live], np.int32),
            "length": np.full(len(live), length, np.int32),
            "total": np.array([max(len(s.request.prompt), len(s.slot.tokens) + length) for s in live], np.int32),
            "at": np.array([s.ahead % RING for s in live], np.int32),
        }
        params = [s.request.sampling for s in live]
        if not variant.greedy:
            for name in ("temperature", "top_p", "min_p"):
                out[name] = np.array([getattr(p, name) for p in params], np.float32)
            out["top_k"] = np.array([p.top_k for p in params], np.int32)
            out["u"] = np.array([p.uniform(s.count + s.ahead) for s, p in zip(live, params, strict=True)], np.float32)
        if variant.penalty:
            out["repeat_penalty"] = np.array([p.repeat_penalty for p in params], np.float32)
        return out

    def _decode(self, live: list[_Live]) -> list[TokenEvent]:
        """A few steps on the device, then their tokens: several in flight, one readback."""
        variant = self._variant(live)
        exe = self._executable(True, variant)
        room = min(s.request.max_tokens - s.count for s in live)
        steps = 1 if variant.logprobs else max(1, min(self._ahead, room))
        for k in range(steps):
            inputs = self._inputs(live, variant, 1)
            wanted = [] if k < steps - 1 else ["token", *_LOGPROB_OUTPUTS] if variant.logprobs else ["ring"]
            results = exe.run(inputs, outputs=wanted)
            for s in live:
                # The token that ran now is in the cache; which one it was is known for the first step only.
                s.slot.tokens.append(s.last if k == 0 else -1)
                s.ahead += 1
        events: list[TokenEvent] = []
        for row, s in enumerate(list(live)):
            ran = steps
            for k in range(steps):
                token = int(results[0][row]) if variant.logprobs else int(results[0][k * len(self._slots) + s.slot.index])
                if k + 1 < steps:
                    s.slot.tokens[len(s.slot.tokens) - steps + k + 1] = token
                s.take(token, _logprobs_of(results[1:], row) if variant.logprobs else None)
                events += self._finished(s, live)
                if s.done:
                    ran = k + 1
                    break
            # What ran past the end is cut off again: those rows of the cache are overwritten by whoever comes next.
            if ran < steps:
                del s.slot.tokens[len(s.slot.tokens) - (steps - ran) :]
            s.ahead = 0
        return events

    def _finished(self, s: _Live, live: list[_Live]) -> list[TokenEvent]:
        """The event of the token that a sequence just got; ended sequences leave."""
        finish = "stop" if s.last in s.request.stop_ids else "length" if s.count >= s.request.max_tokens else None
        if finish is not None:
            s.done = True
            s.slot.busy = False
            live.remove(s)
        logprob, top = s.logprobs or (None, ())
        wanted = s.request.sampling.logprobs
        return [TokenEvent(s.index, s.last, finish, logprob, top[: wanted or 0])]

    # -- whole sequences --------------------------------------------------------------------------------------------
    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every position, float32 [T, vocab]; the cache is not touched."""
        self._check_tokens(tokens)
        if len(tokens) > self.context:
            raise InputError(
                f"{len(tokens)} tokens, the context holds {self.context}",
                hint="shorten the sequence, or load with a larger context",
                prompt_tokens=len(tokens),
                context=self.context,
            )
        with self._step():
            if "logits" not in self._exes:
                graph = pm.trace(
                    all_logits(self.arch, self.cfg),
                    params=self._params.specs,
                    tokens=pm.spec(1, "T", dtype="i32", max=self.context),
                )
                self._exes["logits"] = pm.compile(graph, device=self.device, params_from=next(iter(self._exes.values())))
            result: Array = self._exes["logits"].run(tokens=np.array([tokens], np.int32))[0]
            return result

    def report(self) -> Mapping[str, Any]:
        """Steps and memory of each plan in use, as data."""
        return {str(k): {"steps": len(e.plan.steps), "memory": e.plan.memory} for k, e in self._exes.items()}

    def close(self) -> None:
        """Free the device memory, after the step that runs now; open streams end with a ClosedError."""
        self._closed = True
        with self._stepping:
            for exe in self._exes.values():
                exe.close()
            self._exes.clear()


CACHE_DTYPES = ("f32", "f16", "q8")
_POLL_SECONDS = 0.05
_LOGPROB_OUTPUTS = ("logprob", "top_logprobs", "top_ids")


@dataclass
class _Live:
    """A request while it runs. `count` tokens were handed out; `ahead` steps were started beyond them."""

    index: int
    request: Request
    slot: _Slot
    last: int = -1
    count: int = 0
    ahead: int = 0
    done: bool = False
    logprobs: tuple[float, tuple[tuple[int, float], ...]] | None = None

    def take(self, token: int, logprobs: tuple[float, tuple[tuple[int, float], ...]] | None) -> None:
        self.last, self.logprobs = token, logprobs
        self.count += 1


def _logprobs_of(results: Sequence[Array], row: int) -> tuple[float, tuple[tuple[int, float], ...]] | None:
    if not results:
        return None
    chosen, values, ids = results
    return float(chosen[row]), tuple((int(i), float(v)) for i, v in zip(ids[row], values[row], strict=True))
