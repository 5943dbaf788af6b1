"""The scratch arena: slots of memory that one use at a time has, until the device is done with it. It only keeps accounts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_amount, is_integer, is_text

_SCHEMA = "kaminos.webgpu-scratch-arena"


class ScratchError(RouteError):
    """An arena that was asked for what contradicts its accounts; nothing changed."""

    code = "scratch-arena"


def _require(held: bool, rule: str) -> None:
    if not held:
        raise ScratchError(rule, hint="complete or abandon the use before the next one begins")


@dataclass(frozen=True)
class ScratchSlot:
    """A piece of scratch memory, by name and declared size."""

    slot_id: str
    declared_bytes: int
    metadata: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        return {"slotId": self.slot_id, "declaredBytes": self.declared_bytes, "metadata": plain(self.metadata)}


class ScratchArena:
    """Slots that are reused only after something proved that the use before is done. `clock` gives milliseconds.

    >>> arena = ScratchArena("decode", [ScratchSlot("scores", 64)], clock=lambda: 0.0)
    >>> arena.begin_use("step 1")["useSequence"], arena.mark_submitted("step 1", {"kind": "queue-work-done"})
    (1, 'submitted')
    >>> arena.begin_use("step 2")
    Traceback (most recent call last):
    pumice.routes.scratch.ScratchError: [scratch-arena] scratch arena use step 1 is already active
      hint: complete or abandon the use before the next one begins
    >>> arena.complete("step 1")["status"], arena.begin_use("step 2")["useSequence"]
    ('completed', 2)
    """

    def __init__(self, arena_id: str, slots: Iterable[ScratchSlot], *, clock: Callable[[], float]) -> None:
        _require(is_text(arena_id), "scratch arenaId must be a non-empty string")
        self.arena_id, self.slots, self.clock = arena_id, tuple(slots), clock
        _require(bool(self.slots), "scratch arena slots must be a non-empty array")
        seen: set[str] = set()
        for i, slot in enumerate(self.slots):
            _require(is_text(slot.slot_id), f"scratch arena slots[{i}].slotId must be a non-empty string")
            _require(slot.slot_id not in seen, f"duplicate scratch slot {slot.slot_id}")
            sized = is_integer(slot.declared_bytes) and is_amount(slot.declared_bytes)
            _require(sized, f"scratch slot {slot.slot_id} declaredBytes must be a non-negative safe integer")
            seen.add(slot.slot_id)
        self._uses: list[dict[str, Any]] = []
        self._active: dict[str, Any] | None = None
        self._status: str | None = None  # "closed" or "invalidated" at the end
        self._ended: float | None = None
        self._reason: str | None = None

    @property
    def status(self) -> str:
        """available, active, submitted, closed or invalidated."""
        return self._status or (self._active["status"] if self._active else "available")

    def begin_use(self, use_id: str) -> dict[str, Any]:
        """Gives all slots to a use."""
        _require(self._status is None, f"scratch arena is {self._status}")
        _require(is_text(use_id), "scratch arena useId must be a non-empty string")
        if self._active is not None:
            _require(False, f"scratch arena use {self._active['useId']} is already active")
        _require(all(use["useId"] != use_id for use in self._uses), f"scratch arena useId {use_id} was already used")
        self._active = {
            "schema": f"{_SCHEMA}-use.v0",
            "arenaId": self.arena_id,
            "useId": use_id,
            "useSequence": len(self._uses) + 1,
            "status": "active",
            "startedAtMs": self.clock(),
            "submittedAtMs": None,
            "completedAtMs": None,
            "authority": None,
            "reason": None,
            "failure": None,
        }
        self._uses.append(self._active)
        return {name: self._active[name] for name in ("schema", "arenaId", "useId", "useSequence")}

    def mark_submitted(self, use_id: str, authority: Mapping[str, Any]) -> str:
        """The device works with the slots now; `authority` names what will prove that it is done."""
        use = self._own(use_id, "active")
        named = isinstance(authority, Mapping) and is_text(authority.get("kind"))
        _require(named, "scratch arena completion authority must be an object with a non-empty kind")
        use |= {"status": "submitted", "submittedAtMs": self.clock(), "authority": plain(authority)}
        return self.status

    def complete(self, use_id: str) -> dict[str, Any]:
        """The authority says that the device is done: the slots are free."""
        return self._end(self._own(use_id, "submitted"), "completed")

    def abandon(self, use_id: str, reason: str | None = None) -> dict[str, Any]:
        """Gives back slots that the device never saw."""
        if self._active is not None and self._active["useId"] == use_id:
            _require(self._active["status"] == "active", f"scratch arena use {use_id} is already submitted")
        return self._end(self._own(use_id, "active"), "abandoned", reason=reason)

    def fail(self, use_id: str, error: BaseException) -> dict[str, Any]:
        """Nothing proved that the device is done: no slot is reused, the arena is invalid."""
        failure = {"name": type(error).__name__, "message": str(error)}
        found = self._end(self._own(use_id, "submitted"), "failed", failure=failure)
        self._status, self._reason, self._ended = "invalidated", str(error), self.clock()
        return found

    def close(self) -> dict[str, Any]:
        """Ends the arena, and says which slots the caller frees: the last one first. Submitted work is waited for before."""
        if self._status is not None:
            schema = f"{_SCHEMA}.v0"
            return {"schema": schema, "arenaId": self.arena_id, "status": f"already-{self._status}", "disposedSlotIds": []}
        if self._active is not None:
            _require(self._active["status"] == "active", f"scratch arena submitted use is pending: {self._active['useId']}")
            self.abandon(self._active["useId"], "arena-closed-before-submit")
        self._status, self._ended = "closed", self.clock()
        freed = [slot.slot_id for slot in reversed(self.slots)]
        cleanup = {"reason": "arena-close", "status": "disposed", "disposedSlotIds": freed, "failures": []}
        return {**self.snapshot(), "disposedSlotIds": freed, "cleanup": cleanup}

    def _own(self, use_id: str, status: str) -> dict[str, Any]:
        use = self._active
        if use is None or use["useId"] != use_id or use["status"] != status:
            raise ScratchError(f"scratch arena use {use_id} is no longer active", hint="snapshot() has the uses")
        return use

    def _end(self, use: dict[str, Any], status: str, **more: Any) -> dict[str, Any]:
        use |= {"status": status, "completedAtMs": self.clock(), **more}
        self._active = None
        return dict(use)

    def snapshot(self) -> dict[str, Any]:
        """The accounts as a record."""
        size = sum(slot.declared_bytes for slot in self.slots)
        names = ("useId", "useSequence", "status", "startedAtMs", "submittedAtMs", "authority")
        return {
            "schema": f"{_SCHEMA}.v0",
            "arenaId": self.arena_id,
            "status": self.status,
            "metadata": None,
            "slotIds": [slot.slot_id for slot in self.slots],
            "slots": [slot.to_json() for slot in self.slots],
            "declaredBytes": size,
            "allocatedBytes": size,
            "activeBytes": 0 if self._status else size,
            "allocationCount": len(self.slots),
            "useCount": len(self._uses),
            "activeUse": {name: self._active[name] for name in names} if self._active else None,
            "history": [dict(use) for use in self._uses if use is not self._active],
            "closedAtMs": self._ended,
            "terminalReason": self._reason,
        }
