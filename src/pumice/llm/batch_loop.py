"""BatchLoop: runs the batches of a scheduler on a model, and hands their tokens to the calls that wait for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from pumice.core.interrupts import Monitor
from pumice.errors import ClosedError, DeadlineError, DeviceLost, PumiceError
from pumice.llm.adapters import Adapters
from pumice.llm.batches import BatchLimits, Job
from pumice.llm.beams import BeamGroup
from pumice.llm.bursts import Burst
from pumice.llm.live import EventQueue, LiveSequence, Logprobs
from pumice.llm.memory import CacheLayout
from pumice.llm.pages import PagePool, SnapshotPool
from pumice.llm.runner import Runner
from pumice.llm.sampling import Sampling, check_token
from pumice.llm.scheduler import Scheduler
from pumice.llm.speculate import draft_for
from pumice.llm.weights import ModelWeights
from pumice.models.rope import rotary_regime
from pumice.run.device import Device
from pumice.run.executable import Executable

# Token steps in a burst at first and at most, and how long one may take to have more than that.
_TOKEN_STEPS_PER_BURST, _MOST_TOKEN_STEPS, _BURST_SECONDS = 4, 16, 0.016
# Events that may wait for the reader of a stream before its sequences pause.
_UNREAD = 64


class BatchLoop:
    """The live sequences of an engine, and the batches that run for them.

    Callers leave what they want in `_opened` and in their queues. Only the thread that has the turn starts batches, takes
    their tokens, and touches the scheduler and the sequences.
    """

    def __init__(self, weights: ModelWeights, layout: CacheLayout, limits: BatchLimits) -> None:
        self.weights, self.layout, self._limits = weights, layout, limits
        self.arch, self.cfg, self.name = weights.arch, weights.cfg, weights.name
        # The first engine of a model has its states beside the weights, others have a child store.
        self._first = not len(weights.store)
        self._store = weights.store if self._first else weights.store.child()
        self._step_lock = threading.RLock()
        # LoRA adapters that requests choose by name; `adapters.load(name, folder)` and `adapters.drop(name)` at any time.
        self.adapters = Adapters(self._store, self.cfg, self._step_lock)
        self._runner = Runner(weights, self._store, layout, limits.chunk, self.adapters)
        self.adapters.on_new_layout = self._forget_adapted
        self._live: dict[Any, LiveSequence] = {}
        self._in_flight: deque[Burst] = deque()
        # Beam searches some rows of which ran in the batch whose tokens are taken now.
        self._searches: dict[BeamGroup, None] = {}
        self._new_scheduler()
        self._opened: deque[EventQueue] = deque()
        # Whether a call, or a sequence of one, ended that still has a slot and pages.
        self._left = False
        self._turns = Monitor()
        self._closed = False
        self._longest = 0  # of the sequences that ended, for `profile`
        # Without overlap running ahead gains nothing, and single token steps deliver tokens sooner.
        overlaps = self.device.caps.overlaps_host
        self._ahead, self._bursts = (_TOKEN_STEPS_PER_BURST, 2) if overlaps else (1, 1)
        self._arrived = 0.0  # when the last burst did

    @property
    def device(self) -> Device:
        return self._store.device

    @property
    def _exes(self) -> dict[tuple[bool, int, Sampling], Executable]:
        return self._runner.exes

    def _new_scheduler(self) -> None:
        """A scheduler and pools that know nothing; sequences that are live wait to be prefilled again."""
        layout = self.layout
        pools = [PagePool(layout.pool(group), layout.page, window) for group, window in enumerate(layout.windows)]
        snapshots = SnapshotPool(layout.snapshots, layout.page) if layout.snapshots else None
        self._scheduler = Scheduler(self._limits, pools, snapshots=snapshots)
        self._in_flight.clear()
        self._searches.clear()
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

    def _wake(self) -> None:
        """Lets threads that wait look again."""
        with self._turns.lock:
            self._turns.notify_all()

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again")

    # -- for the thread that has the turn --------------------------------------------------------------------------------
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
        while self._searches:
            self._search(self._searches.popitem()[0])
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
                for row in s.start():
                    if not s.done and row.id not in self._live:
                        self._live[row.id] = row
                        self._scheduler.add(self._job(row.id, row))
            self._opened.popleft()
        for s in [s for s in self._live.values() if s.unwanted or s.queue.closed or (s.group is not None and s.group.unwanted)]:
            self._drop(s)

    def _drop(self, s: LiveSequence) -> None:
        """A sequence ends, with the beam search that it is in."""
        for row in [s] if s.group is None else s.group.rows:
            self._remove(row)
        for each in [s] if s.group is None else s.group.leads:
            each.done = True
            self._release_adapter(each)
        s.queue.changed()

    def _remove(self, s: LiveSequence) -> None:
        """Slot and pages of a sequence are free for others."""
        s.done = True
        if self._live.pop(s.id, None) is not None:
            self._scheduler.finish(s.id)

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
        masked = single = speculating = False
        for s in self._live.values():
            masked = masked or s.request.grammar is not None or s.group is not None
            single = single or s.request.sampling.logprobs is not None
            speculating = speculating or s.speculator is not None
        ahead = 1 if single or masked else min(self._ahead, _TOKEN_STEPS_PER_BURST) if speculating else self._ahead
        # A mask, drafts and beams need the token before them; paced runs come back when they are done.
        bursts = 1 if masked or speculating or self._store.paces else self._bursts
        ahead = 1 if self._store.paces else ahead
        while len(self._in_flight) < bursts:
            drafts = self._draft() if speculating else {}
            batch = self._scheduler.next_batch(time.monotonic(), ahead, drafts)
            if batch.expired:
                late = DeadlineError("the deadline of this call has passed", hint=DeadlineError.HINT)
                self._end_all(late, [self._live[id] for id in batch.expired])
            for id in batch.preempted:
                # Others have its slot, even if it comes back to it.
                self._live[id].slot = -1
                self._live[id].record.preempted += 1
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
                s.allow_drafts(draft_for(s, self.cfg) if self._scheduler.decodes(s.id) else [], self.cfg.vocab)
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
            if s.group is not None:
                assert logprobs is not None
                s.group.note(s, logprobs)
                self._searches[s.group] = None
                return
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

    def _search(self, group: BeamGroup) -> None:
        """A step of a beam search, if all its rows ran. Otherwise those that did make room: the others may wait for it."""
        if group.leads[0].done:  # another of its rows failed
            return
        if len(group.noted) < len(group.rows):
            for row in group.noted:
                self._scheduler.pause(row.id)
                row.slot = -1
            return
        before = group.rows
        try:
            self._continue(before, list(group.advance()))
            if group.search.over:
                self._answer(group)
        except BaseException:
            # Nobody can say how far it came: it starts over, with the same answer in the end.
            for row in (*before, *group.rows):
                self._live.pop(row.id, None)
            if not group.leads[0].done:
                for row in group.restart():
                    self._live[row.id] = row
            raise

    def _continue(self, before: Sequence[LiveSequence], found: Sequence[tuple[LiveSequence, int, LiveSequence]]) -> None:
        """Lets rows of a beam search go on with new tokens, as `BeamGroup.advance` gives them; the others end."""
        # Forks share what their parent has now: before it takes a token of its own.
        for row, token, parent in found:
            if row is not parent:
                row.tokens.append(token)
                self._live[row.id] = row
                left = row.request.max_tokens - len(row.tokens)
                self._scheduler.fork(parent.id, row.id, prompt=[*row.request.prompt, *row.tokens], max_tokens=left)
        going = [(row, token) for row, token, parent in found if row is parent]
        for row, token in going:
            row.tokens.append(token)
            self._scheduler.took(row.id, token)
            self._scheduler.resume(row.id)
        self._runner.feed(going)
        for row in before:
            if all(row is not other for other, _ in going):
                self._remove(row)

    def _answer(self, group: BeamGroup) -> None:
        """A beam search is over: its best answers go to those who asked for them."""
        for lead, beam in zip(group.leads, group.search.results):
            for token, logprob in zip(beam.tokens, beam.logprobs):
                lead.accept(token, (logprob, ()))
            self._longest = max(self._longest, len(lead.request.prompt) + len(lead.tokens) - 1)
        self._drop(group.leads[0])

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
