"""Engine: a causal model that generates for many callers at once; a caller that waits for a token runs the next batch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from pumice.errors import ClosedError, DeviceLost, InputError, QueueFull
from pumice.hooks import ReportErrors
from pumice.llm.answers import Run
from pumice.llm.batch_loop import BatchLoop
from pumice.llm.batches import BatchLimits, Job, Statistics
from pumice.llm.beams import check_beams
from pumice.llm.fits import CacheSizes, pool_pages, snapshot_count, usual_chunk
from pumice.llm.handles import Handle
from pumice.llm.live import EventQueue
from pumice.llm.logits import SequenceLogits
from pumice.llm.memory import CacheLayout, page_groups
from pumice.llm.prepare import TimeLeft, in_background, prepare_kernels
from pumice.llm.requests import (
    Request,
    Timings,
    TokenEvent,
    check_cache_dtype,
    check_order,
    check_prompt,
    check_queue,
    check_request,
    check_sizes,
)
from pumice.llm.runner import USUAL
from pumice.llm.sampling import Sampling
from pumice.llm.speculate import check_speculation
from pumice.llm.weights import ModelWeights
from pumice.plan.plan import Plan
from pumice.run.device import Device
from pumice.run.executable import Executable
from pumice.sources import ProgressCallback

if TYPE_CHECKING:
    from pumice.llm.model import LanguageModel
    from pumice.llm.prompts import Prompt
    from pumice.run.cooperative import Cooperative
    from pumice.run.profile import Profile

Array = np.ndarray[Any, Any]

# Sequences that run at once where nobody says.
DEFAULT_SLOTS = 16
# How often a thread that waits for another one's batch looks whether its call is cancelled.
_POLL_SECONDS = 0.05


class _Turn:
    """A thread's claim to run batches, which lasts until it `ended`."""

    __slots__ = ("ended",)

    def __init__(self, *, ended: bool = False) -> None:
        self.ended = ended


class Engine(BatchLoop):
    """Runs a causal model for many callers, who share its batches. Thread-safe; `close()` it.

    `slots` is how many sequences run at once, `context` how many tokens each may have, `memory` of how many tokens the keys and
    values are kept for all of them together, those for prompts that begin alike included; or how much they take: "2GiB".
    `chunk` is how many tokens of a prompt are run at once, by default 512, or up to 2,048 where matrix units work on them.
    `queue` is how many sequences may wait for a slot: a call beyond that is refused with `QueueFull`; None takes any number.
    """

    def __init__(
        self,
        model: LanguageModel | ModelWeights,
        *,
        slots: int = DEFAULT_SLOTS,
        context: int = 2048,
        memory: int | str | None = None,
        chunk: int | None = None,
        cache_dtype: str = "f32",
        queue: int | None = None,
        greedy: bool = False,
        first_length: Callable[[], int] | None = None,
        progress: ProgressCallback | None = None,
    ) -> None:
        weights: ModelWeights = model if isinstance(model, ModelWeights) else model.engine.weights
        cfg, caps = weights.cfg, weights.store.device.caps
        chunk = usual_chunk(cfg, caps, weights.precision) if chunk is None else chunk
        check_sizes(slots=slots, context=context, chunk=chunk)
        check_cache_dtype(cache_dtype)
        check_queue(queue)
        self.context = min(context, cfg.max_positions)
        self.chunk = min(chunk, self.context)
        windows = page_groups(cfg.windows, self.context)
        sizes = CacheSizes(self.context, slots, self.chunk, cache_dtype)
        # One page more: the first is never allocated, unused entries of page tables refer to it.
        pages = tuple(n + 1 for n in pool_pages(caps, cfg, sizes, memory))
        layout = CacheLayout(slots, self.context, cache_dtype, caps.joined_cache, pages=pages, windows=windows)
        layout = replace(layout, snapshots=snapshot_count(cfg, slots))
        super().__init__(weights, layout, BatchLimits(slots, self.context, self.chunk, self.chunk + slots, layout.page))
        # What turns texts into tokens and back.
        self.model: LanguageModel | None = None if isinstance(model, ModelWeights) else model
        # Engines of models that draft for this one.
        self.draft_engines: WeakSet[Engine] = WeakSet()
        self._logits: SequenceLogits | None = None
        # The most sequences that may wait; where there is a limit, the calls that are open.
        self.queue = queue
        self._calls: list[EventQueue] = []
        # Calls of handles, which a thread of the engine answers while nobody waits for them.
        self._submitted: list[EventQueue] = []
        self._driver: threading.Thread | None = None
        self._turn = _Turn(ended=True)
        first = Sampling() if greedy else USUAL
        exe = self._runner.prefill_executable(first)
        prepare_kernels(self.device, exe.plan, progress)
        left = TimeLeft(progress)
        with in_background(partial(self._runner.prepare, first, first_length, left)):
            if self._first:
                weights.upload(exe, left.report)
        weights.engines.add(self)

    @property
    def sizes(self) -> dict[str, Any]:
        """With what another engine runs the same plans, as `Engine` and its store take it; `memory` counts tokens."""
        pages = max(self.layout.pool(group) for group in range(len(self.layout.windows))) - 1
        return {
            "context": self.context,
            "slots": self.layout.slots,
            "chunk": self.chunk,
            "memory": pages * self.layout.page,
            "cache_dtype": self.layout.dtype,
            "precision": self.weights.precision,
            "largest_step": self._store.largest_step,
        }

    @property
    def plans(self) -> list[Plan]:
        """The plans of the token steps that were made so far."""
        return [exe.plan for exe in list(self._runner.exes.values())]

    @property
    def statistics(self) -> Statistics:
        """Counts for a server: sequences that run and wait, pages, tokens that were found in the cache; up to a batch old."""
        return self._scheduler.statistics

    # -- calls --------------------------------------------------------------------------------------------------------
    def stream(
        self, requests: Sequence[Request], *, cancelled: Callable[[], bool] | None = None, timings: Timings | None = None
    ) -> Generator[TokenEvent, None, None]:
        """Tokens of all requests as they come; closing the iterator, or `cancelled`, stops between token steps."""
        queue = EventQueue(requests, timings or Timings(), patient=True)
        try:
            self.open(queue)
            yield from self.events(queue, cancelled)
        finally:
            queue.closed = True
            self.end(queue)

    def open(self, queue: EventQueue) -> None:
        """Let the sequences of a call wait for their turn; bad requests are refused."""
        check_beams([s.request for s in queue.sequences], self.cfg.vocab)
        for s in queue.sequences:
            check_request(s.request, vocab=self.cfg.vocab, context=self.context, longest=self.cfg.max_positions)
            self._scheduler.check(Job(-1, s.request.prompt, s.request.max_tokens))
            s.allowed(self.cfg.vocab)
            if s.speculator is not None:
                check_speculation(self, s.request)
        self._require_open()
        try:
            for s in queue.sequences:
                if s.request.adapter is not None:
                    s.adapter = s.record.adapter = self.adapters.acquire(s.request.adapter)
            self._enqueue(queue)
        except BaseException:
            for s in queue.sequences:
                self._release_adapter(s)
            raise

    def _enqueue(self, queue: EventQueue) -> None:
        """Appends a call to those that want slots, unless too many wait for one already."""
        if self.queue is None:
            self._opened.append(queue)
            return
        with self._turns.lock:
            self._calls = [q for q in self._calls if not q.over]
            taken = sum(s.rows for q in self._calls for s in q.sequences if not s.done)
            wanted = sum(s.rows for s in queue.sequences)
            waiting = max(taken - self.layout.slots, 0)
            if taken + wanted > self.layout.slots + self.queue:
                message = f"the queue of {self.name} has no room for {wanted} more: {waiting} of {self.queue} places are taken"
                raise QueueFull(message, hint=QueueFull.HINT, waiting=waiting, wanted=wanted, queue=self.queue)
            self._calls.append(queue)
            self._opened.append(queue)

    def events(self, queue: EventQueue, cancelled: Callable[[], bool] | None = None) -> Generator[TokenEvent, None, None]:
        """The events of a call as they come."""
        while True:
            event, over = queue.take()
            if event is not None:
                yield event
            elif not over:
                self.wait(queue, cancelled)
            elif queue.error is not None:
                raise queue.error
            else:
                return

    def submit(
        self,
        prompt: Prompt | Sequence[Prompt] | Request,
        *,
        n: int = 1,
        priority: int = 0,
        client: str = "",
        deadline: float | None = None,
        **options: Any,
    ) -> Handle:
        """Answer a prompt while the caller does something else; options are those of `model.generate`.

        Calls of higher `priority` go first, and those of each `client` get an equal share; after `deadline` seconds the call ends
        with an error. Hooks are called where the answer is read.

        >>> import pumice as pm  # doctest: +SKIP
        >>> with pm.load("smollm2") as model, pm.Engine(model, slots=4) as engine:  # doctest: +SKIP
        ...     handles = [engine.submit(f"What is {k} + {k}?") for k in range(8)]
        ...     texts = [handle.result().text for handle in handles]
        """
        if self.model is None:
            raise InputError("this engine has no tokenizer", hint="make it from a model: pm.Engine(model)")
        with ReportErrors("generate", self.model.name):
            return self._submit(self.model, prompt, n, priority, client, deadline, options)

    def _submit(
        self,
        model: LanguageModel,
        prompt: Any,
        n: int,
        priority: int,
        client: str,
        deadline: float | None,
        options: Mapping[str, Any],
    ) -> Handle:
        if options.get("cancelled") is not None:
            raise InputError("submit takes no option 'cancelled'", hint="call the handle's cancel()", name="cancelled")
        check_order(priority, client, deadline)
        if isinstance(prompt, Request):
            run, batch = Run(model, self, [prompt], n=1, stop=(), cancelled=None), False
            given = {"raw": True, "ignore_eos": True, "adapter": prompt.adapter, "grammar": prompt.grammar}
            run.keep_facts(given, prompt.draft, [prompt.prompt])
        else:
            run, batch = model.start(prompt, n, options, engine=self)
        until = None if deadline is None else time.monotonic() + deadline
        handle = Handle(self, run, batch=batch, priority=priority, client=client, deadline=until)
        if not run.asked:  # the cache has all answers
            return handle
        try:
            with self._turns.lock:
                self._submitted.append(handle._queue)
                if self._driver is None:
                    driver = threading.Thread(target=self._drive, name="pumice-engine", daemon=True)
                    driver.start()  # it first needs the lock
                    self._driver = driver
                self._turns.notify_all()
        except BaseException:
            handle.cancel()  # the caller never gets it
            raise
        return handle

    def _drive(self) -> None:
        """Runs batches while there are handles that nobody waits for; ends with the last handle."""

        def due(turn: _Turn) -> bool:
            self._submitted = [q for q in self._submitted if not q.over]
            return not self._submitted or (any(not q.waiting for q in self._submitted) and self._take_turn(turn))

        while True:
            turn = _Turn()
            try:
                self._turns.wait_for(partial(due, turn))
                if self._turn is turn:
                    self._step()
                    turn.ended = True
                    self._settle_left()
            except Exception as e:  # not even the errors of batches can be handled: nobody else would see it
                for queue in self._submitted:
                    queue.error = e
                    queue.changed()
            finally:
                turn.ended = True
                self._wake()
            with self._turns.lock:
                if not self._submitted:
                    self._driver = None
                    return

    def end(self, queue: EventQueue, index: int | None = None) -> None:
        """End a call, or one sequence of it: slots and pages are free for others."""
        if index is None:
            queue.closed = True
        else:
            queue.sequences[index].unwanted = True
        self._left = True
        self._settle_left()

    def _settle_left(self) -> None:
        """Settles what calls left that ended, unless another thread has the turn: that one does it when its turn ends."""
        while self._left:
            turn = _Turn()
            try:
                if not self._turns.wait_for(partial(self._take_turn, turn), timeout=0):
                    return
                self._settle_safely()
            finally:
                turn.ended = True
                self._wake()

    def wait(self, queue: EventQueue, cancelled: Callable[[], bool] | None = None) -> None:
        """Waits until a call has events, or ended: runs batches, or lets another thread do so."""
        timings, starting, started = queue.timings, queue.starting, time.perf_counter()
        turn, patience = _Turn(), None if cancelled is None else _POLL_SECONDS
        try:
            queue.waiting.add(turn)
            while not queue.ready:
                mine = self._turn is turn
                if mine or not self._turns.wait_for(lambda: queue.ready or self._take_turn(turn), patience):
                    if cancelled is not None and cancelled():
                        queue.closed = True
                    elif mine:
                        self._step()
        finally:
            # One step of the interpreter: an interrupt comes before it, into this block, or after it.
            turn.ended = True
            queue.waiting.discard(turn)
            self._wake()
        self._settle_left()
        taken = time.perf_counter() - started
        if starting:
            timings.prefill_s += taken
        else:
            timings.decode_s += taken
            timings.decode_tokens += len(queue.events)

    def _take_turn(self, turn: _Turn) -> bool:
        """Whether this thread runs the next batches; the caller has the lock of `_turns`."""
        if self._turn.ended:
            self._turn = turn
        return self._turn is turn

    # -- whole sequences ------------------------------------------------------------------------------------------------
    def logits(self, tokens: Sequence[int]) -> Array:
        """Logits of every position, float32 [T, vocab]; the cache is not touched: a second one of its size is allocated once."""
        check_prompt(tokens, self.cfg.vocab)
        with self._step_lock:
            self._require_open()
            if self._logits is None:
                self._logits = SequenceLogits(self.weights, self._store, self.layout, self.chunk)
            return self._logits.run(tokens)

    def profile(self, *, repeats: int = 5) -> Profile:
        """Where the time of one token step goes, after as many tokens as the longest answer had; nothing is changed by it."""
        if not self._longest:
            raise InputError("there is no sequence to continue", hint="generate something first")
        with self._step_lock:
            self._require_open()
            return self._runner.profile(min(self._longest, self.context - 1), repeats=repeats)

    # -- saved keys and values ------------------------------------------------------------------------------------------
    def save_cache(self, tokens: Sequence[int]) -> tuple[int, dict[str, Array]]:
        """How many leading tokens are cached, and their keys and values by state, for `restore_cache`."""
        with self._step_lock:
            self._require_open()
            return self._runner.save_cache(self._scheduler, tokens, self._key(len(tokens)))

    def restore_cache(self, tokens: Sequence[int], saved: Mapping[str, Array]) -> bool:
        """Put back what `save_cache` gave for these tokens; False if this engine's cache is another, or has no room."""
        with self._step_lock:
            self._require_open()
            try:
                return self._runner.restore_cache(self._scheduler, tokens, self._key(len(tokens)), saved)
            except BaseException as e:
                self._fail(e)  # pages may be without the content that was promised
                raise

    # -- life -----------------------------------------------------------------------------------------------------------
    def reopen(self, device: Device | None = None) -> None:
        """Reopen on a new device after this one was lost: the same plans and weights, an empty cache."""
        with self._step_lock:
            self._require_open()
        self._reopen(device, sorted(self.weights.engines, key=id))

    def _reopen(self, device: Device | None, engines: Sequence[Engine]) -> None:
        """Reopens with the locks of some engines: no batch of theirs runs on a cache that was just emptied."""
        if engines:
            with engines[0]._step_lock:
                self._reopen(device, engines[1:])
                error = DeviceLost("the model was reopened while this stream was open", hint="start the answer again")
                engines[0]._fail(error)
                engines[0].adapters.restore()
        else:
            self._store.reopen(device)

    def report(self) -> Mapping[str, Any]:
        """Steps and memory of each plan in use, as data."""
        exes: dict[Any, Executable] = {**self._exes, **({} if self._logits is None else {"logits": self._logits.exe})}
        return {str(k): {"steps": [len(r.steps) for r in e.plan.regimes], "memory": e.plan.memory} for k, e in exes.items()}

    def cooperate(self, cooperative: Cooperative | None) -> None:
        """Let all token steps share the device as it says (see `pm.Cooperative`), those of other engines of the model too."""
        self._store.cooperate(cooperative)

    def close(self) -> None:
        """Free the device memory, after the batch that runs now; open streams end with a ClosedError."""
        self._closed = True
        self._store.end_pauses()
        with self._step_lock:
            self._settle()
            self._end_all(ClosedError("the model is closed", hint="load it again"), list(self._live.values()))
            if self._logits is not None:
                self._logits.exe.close()
                self._logits = None
            self._store.close()
            self._runner.close()
            self.weights.engines.discard(self)
        self._wake()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
