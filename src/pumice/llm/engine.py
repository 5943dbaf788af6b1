"""Engine: a causal model that generates for many callers at once; a caller that waits for a token runs the next batch."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np

from pumice.core.interrupts import Monitor
from pumice.errors import ClosedError, DeadlineError, DeviceLost, InputError, PumiceError
from pumice.llm.adapters import Adapters
from pumice.llm.answers import Run
from pumice.llm.batches import BatchLimits, Job
from pumice.llm.fits import pool_pages
from pumice.llm.handles import Handle
from pumice.llm.live import EventQueue, LiveSequence, Logprobs
from pumice.llm.logits import SequenceLogits
from pumice.llm.memory import CacheLayout, page_groups
from pumice.llm.pages import PagePool
from pumice.llm.prepare import in_background, prepare_kernels
from pumice.llm.requests import (
    Request,
    Timings,
    TokenEvent,
    check_cache_dtype,
    check_order,
    check_prompt,
    check_request,
    check_sizes,
)
from pumice.llm.runner import USUAL, Burst, Runner
from pumice.llm.sampling import Sampling, check_token
from pumice.llm.scheduler import Scheduler
from pumice.llm.speculate import check_speculation, draft_for
from pumice.llm.weights import ModelWeights
from pumice.models.memory import pages_suffice
from pumice.models.rope import rotary_regime
from pumice.plan.plan import Plan
from pumice.run.device import Device
from pumice.run.executable import Executable
from pumice.sources import ProgressCallback

if TYPE_CHECKING:
    from pumice.llm.model import LanguageModel
    from pumice.llm.prompts import Prompt
    from pumice.run.profile import Profile

Array = np.ndarray[Any, Any]

# Sequences that run at once where nobody says.
DEFAULT_SLOTS = 16
# Token steps in a burst at first and at most, and how long one may take to have more than that.
_TOKEN_STEPS_PER_BURST, _MOST_TOKEN_STEPS, _BURST_SECONDS = 4, 16, 0.016
# How often a thread that waits for another one's batch looks whether its call is cancelled.
_POLL_SECONDS = 0.05
# Events that may wait for the reader of a stream before its sequences pause.
_UNREAD = 64


class _Turn:
    """A thread's claim to run batches, which lasts until it `ended`."""

    __slots__ = ("ended",)

    def __init__(self, *, ended: bool = False) -> None:
        self.ended = ended


class Engine:
    """Runs a causal model for many callers, who share its batches. Thread-safe; `close()` it.

    `slots` is how many sequences run at once, `context` how many tokens each may have, `memory` of how many tokens the keys and
    values are kept for all of them together, those for prompts that begin alike included.
    """

    def __init__(
        self,
        model: LanguageModel | ModelWeights,
        *,
        slots: int = DEFAULT_SLOTS,
        context: int = 2048,
        memory: int | None = None,
        chunk: int = 512,
        cache_dtype: str = "f32",
        progress: ProgressCallback | None = None,
    ) -> None:
        check_sizes(slots=slots, context=context, chunk=chunk)
        check_cache_dtype(cache_dtype)
        weights: ModelWeights = model if isinstance(model, ModelWeights) else model.engine.weights
        # What turns texts into tokens and back.
        self.model: LanguageModel | None = None if isinstance(model, ModelWeights) else model
        self.weights: ModelWeights = weights
        self.arch, self.cfg, self.name = weights.arch, weights.cfg, weights.name
        self.context = min(context, self.cfg.max_positions)
        self.chunk = min(chunk, self.context)
        caps = weights.store.device.caps
        windows = page_groups(self.cfg.windows, self.context)
        # One page more: the first is never allocated, unused entries of page tables refer to it.
        pages = pool_pages(caps, self.cfg, self.context, slots, memory) + 1
        self.layout = CacheLayout(slots, self.context, cache_dtype, caps.joined_cache, pages=pages, windows=windows)
        self._limits = BatchLimits(slots, self.context, self.chunk, self.chunk + slots, self.layout.page)
        # The first engine of a model has its states beside the weights, others have a child store.
        first = not len(weights.store)
        self._store = weights.store if first else weights.store.child()
        self._step_lock = threading.RLock()
        # LoRA adapters that requests choose by name; `adapters.load(name, folder)` and `adapters.drop(name)` at any time.
        self.adapters = Adapters(self._store, self.cfg, self._step_lock)
        self._runner = Runner(weights, self._store, self.layout, self.chunk, self.adapters)
        self.adapters.on_new_layout = self._forget_adapted
        # Engines of models that draft for this one.
        self.draft_engines: WeakSet[Engine] = WeakSet()
        self._logits: SequenceLogits | None = None
        self._live: dict[Any, LiveSequence] = {}
        self._in_flight: deque[Burst] = deque()
        self._new_scheduler()
        # What callers want, for the thread that has the turn: only that one touches the scheduler and the sequences.
        self._opened: deque[EventQueue] = deque()
        # Whether a call, or a sequence of one, ended that still has a slot and pages.
        self._left = False
        # Calls of handles, which a thread of the engine answers while nobody waits for them.
        self._submitted: list[EventQueue] = []
        self._driver: threading.Thread | None = None
        self._turn = _Turn(ended=True)
        self._turns = Monitor()
        self._closed = False
        self._longest = 0  # of the sequences that ended, for `profile`
        # Without overlap running ahead gains nothing, and single token steps deliver tokens sooner.
        self._ahead, self._bursts = (_TOKEN_STEPS_PER_BURST, 2) if caps.overlaps_host else (1, 1)
        self._arrived = 0.0  # when the last burst did
        exe = self._runner.prefill_executable(USUAL)
        prepare_kernels(self.device, exe.plan, progress)
        with in_background(self._runner.prepare):
            if first:
                weights.upload(exe, progress)
        weights.engines.add(self)

    @property
    def device(self) -> Device:
        return self._store.device

    @property
    def plans(self) -> list[Plan]:
        """The plans of the token steps that were made so far."""
        return [exe.plan for exe in self._runner.exes.values()]

    @property
    def _exes(self) -> dict[tuple[bool, int, Sampling], Executable]:
        return self._runner.exes

    def _new_scheduler(self) -> None:
        """A scheduler and pools that know nothing; sequences that are live wait to be prefilled again."""
        pools = [PagePool(self.layout.pool, self.layout.page, window) for window in self.layout.windows]
        # What recurrent layers keep of a beginning is not in its pages.
        self._shared = pages_suffice(self.arch.memories(self.cfg))
        self._scheduler = Scheduler(self._limits, pools, reuse=self._shared)
        self._in_flight.clear()
        for id, s in list(self._live.items()):
            s.slot, s.paused = -1, False
            if s.complete:  # an interrupt came between its last token and its end
                self._drop(s)
            else:
                self._scheduler.add(self._job(id, s))

    def _job(self, id: int, s: LiveSequence) -> Job:
        r, border = s.request, self.cfg.recompute_beyond
        prompt = len(r.prompt)
        crosses = border is not None and prompt <= border
        # Keys and values of other adapters are others.
        adapter = None if s.adapter is None else s.adapter.serial
        return Job(
            id,
            [*r.prompt, *s.tokens],
            r.max_tokens - len(s.tokens),
            key=self._key(prompt, adapter),
            priority=s.queue.priority,
            client=s.queue.client,
            deadline=s.queue.deadline,
            restart_beyond=border if crosses else None,
            beyond_key=self._key((border or 0) + 1, adapter),
        )

    def _key(self, tokens: int, adapter: Any = None) -> tuple[Any, ...]:
        """Sequences with the same key can share pages, `tokens` being how long they are when they start."""
        return rotary_regime(self.cfg, tokens), adapter

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
                    s.adapter = self.adapters.acquire(s.request.adapter)
        except BaseException:
            for s in queue.sequences:
                self._release_adapter(s)
            raise
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
        with an error.

        >>> import pumice as pm  # doctest: +SKIP
        >>> with pm.load("smollm2") as model, pm.Engine(model, slots=4) as engine:  # doctest: +SKIP
        ...     handles = [engine.submit(f"What is {k} + {k}?") for k in range(8)]
        ...     texts = [handle.result().text for handle in handles]
        """
        if self.model is None:
            raise InputError("this engine has no tokenizer", hint="make it from a model: pm.Engine(model)")
        if options.get("cancelled") is not None:
            raise InputError("submit takes no option 'cancelled'", hint="call the handle's cancel()", name="cancelled")
        check_order(priority, client, deadline)
        if isinstance(prompt, Request):
            run, batch = Run(self.model, self, [prompt], n=1, stop=(), cancelled=None), False
        else:
            run, batch = self.model.start(prompt, n, options, engine=self)
        until = None if deadline is None else time.monotonic() + deadline
        handle = Handle(self, run, batch=batch, priority=priority, client=client, deadline=until)
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

    def _wake(self) -> None:
        """Lets threads that wait look again."""
        with self._turns.lock:
            self._turns.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again")

    # -- batches: what follows is done by the thread that has the turn ---------------------------------------------------
    def _step(self) -> None:
        """Starts batches up to the number that may be in flight, and takes the tokens of the oldest."""
        with self._step_lock:
            try:
                self._require_open()
                self._settle()
                self._resume_read()
                self._start_batches()
                if self._in_flight:
                    self._take_tokens(self._in_flight.popleft())
                self._settle()
            except Exception as e:
                self._fail(e)  # those whom it concerns find it in their queues
            except BaseException as e:
                self._fail(e)
                raise
        self._wake()

    def _take_tokens(self, burst: Burst) -> None:
        for s, token, logprobs in burst.tokens(self._scheduler.reject):
            self._accept(s, token, logprobs)
        self._pace(burst)

    def _forget_adapted(self) -> None:
        """Before the adapters get another layout, in flight are no batches with the present one."""
        try:
            while self._in_flight:
                self._take_tokens(self._in_flight.popleft())
        except BaseException as e:
            self._fail(e)
            raise
        self._runner.forget_adapted()

    def _settle_safely(self) -> None:
        """Settles outside of a batch."""
        try:
            with self._step_lock:
                self._settle()
        except BaseException as e:
            self._fail(e)
            raise

    def _settle(self) -> None:
        """Adds and removes sequences as callers want."""
        self._left = False
        while self._opened:
            for s in self._opened[0].sequences:
                if not s.done and s.id not in self._live:
                    self._live[s.id] = s
                    self._scheduler.add(self._job(s.id, s))
            self._opened.popleft()
        for s in [s for s in self._live.values() if s.unwanted or s.queue.closed]:
            self._drop(s)

    def _drop(self, s: LiveSequence) -> None:
        """A sequence ends."""
        s.done = True
        self._release_adapter(s)
        if self._live.pop(s.id, None) is not None:
            self._scheduler.finish(s.id)
        s.queue.changed()

    def _release_adapter(self, s: LiveSequence) -> None:
        held, s.adapter = s.adapter, None
        if held is not None:
            self.adapters.release(held)

    def _resume_read(self) -> None:
        """Lets paused sequences go on whose reader has read all, and waits: it may never get the turn itself."""
        for s in self._live.values():
            if s.paused and s.queue.waiting:
                s.paused = False
                self._scheduler.resume(s.id)

    def _start_batches(self) -> None:
        masked = any(s.request.grammar is not None for s in self._live.values())
        single = masked or any(s.request.sampling.logprobs is not None for s in self._live.values())
        speculating = any(s.speculator is not None for s in self._live.values())
        ahead = 1 if single else min(self._ahead, _TOKEN_STEPS_PER_BURST) if speculating else self._ahead
        # A mask, and drafts, need the token before them.
        while len(self._in_flight) < (1 if masked or speculating else self._bursts):
            drafts = self._draft() if speculating else {}
            batch = self._scheduler.next_batch(time.monotonic(), ahead, drafts)
            if batch.expired:
                late = DeadlineError("the deadline of this call has passed", hint=DeadlineError.HINT)
                self._end_all(late, [self._live[id] for id in batch.expired])
            for id in batch.preempted:
                # Others have its slot, even if it comes back to it.
                self._live[id].slot = -1
            if not batch:
                return
            self._in_flight.append(self._runner.start(batch, self._live, self._scheduler.tables, wait=self._bursts == 1))
            self._scheduler.offer_pages()
            if not batch.decode:
                return  # the first token does not wait until a plan for the second is made

    def _draft(self) -> dict[Any, int]:
        """Lets sequences that speculate have drafts; how many tokens the steps that verify them run."""
        for s in [s for s in self._live.values() if s.speculator is not None]:
            try:
                s.drafts = draft_for(s, self.cfg) if self._scheduler.decodes(s.id) else []
            except PumiceError as e:
                self._end_all(e, [s])
        return {id: 1 + len(s.drafts) for id, s in self._live.items() if s.drafts}

    def _accept(self, s: LiveSequence, token: int, logprobs: Logprobs | None) -> None:
        """Takes a sampled token for a sequence; its call ends if the draw failed."""
        if s.done:
            return
        queue = s.queue
        try:
            check_token(token, self.name, len(s.request.prompt) + len(s.tokens))
            self._scheduler.took(s.id, token)
            event = s.accept(token, logprobs)
            if event.finish is None:
                s.allowed(self.cfg.vocab)
        except PumiceError as e:
            self._end_all(e, [s])
        else:
            if event.finish is not None:
                self._longest = max(self._longest, len(s.request.prompt) + len(s.tokens) - 1)
                self._drop(s)
            elif queue.patient and not queue.waiting and len(queue.events) >= _UNREAD:
                s.paused = True
                self._scheduler.pause(s.id)
            queue.changed()

    def _pace(self, burst: Burst) -> None:
        """More token steps per burst where they are short, so that the gaps between bursts weigh less."""
        now, before = time.perf_counter(), self._arrived
        self._arrived = now
        if self._bursts > 1 and burst.steps > 1 and before:
            each = (now - before) / burst.steps
            self._ahead = min(max(int(_BURST_SECONDS / max(each, 1e-6)), _TOKEN_STEPS_PER_BURST), _MOST_TOKEN_STEPS)

    def _fail(self, error: BaseException) -> None:
        """A batch failed: the calls that it concerns end with the error, sequences of others are prefilled again."""
        with self._step_lock:
            if isinstance(error, DeviceLost | ClosedError):
                self._settle()
                self._end_all(error, list(self._live.values()))
            elif isinstance(error, Exception):
                running = self._scheduler.running
                # Where none runs, one of those that wait is the cause; without an end it would come again.
                self._end_all(error, [s for id, s in self._live.items() if id in running] or list(self._live.values()))
            self._new_scheduler()
        self._wake()

    def _end_all(self, error: Exception, sequences: Sequence[LiveSequence]) -> None:
        """Ends the calls of some sequences with an error."""
        for s in sequences:
            s.queue.error = s.queue.error or error
            for each in s.queue.sequences:
                self._drop(each)

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
                return self._shared and self._runner.restore_cache(self._scheduler, tokens, self._key(len(tokens)), saved)
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

    def close(self) -> None:
        """Free the device memory, after the batch that runs now; open streams end with a ClosedError."""
        self._closed = True
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
