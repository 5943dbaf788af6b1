"""Reopening: a store and all its executables on a new device, with the params and what was saved of the states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pumice.backends.base import Device, Resident, Session
from pumice.core.records import dataclass
from pumice.errors import DeviceLost
from pumice.plan.needs import check_device, needed_caps
from pumice.run.convert import Array
from pumice.run.entry import Entry

if TYPE_CHECKING:
    from pumice.run.executable import Executable
    from pumice.run.store import Store


@dataclass(frozen=True)
class Reopened:
    """What came along: `kept` params and states have their values, `reset` ones are back at their first value."""

    device: str
    kept: tuple[str, ...]
    reset: tuple[str, ...]

    @staticmethod
    def of(device: Device, entries: Sequence[Entry], reset: set[Entry]) -> Reopened:
        kept = tuple(e.name for e in entries if e.ready and e not in reset)
        return Reopened(device.name, kept, tuple(e.name for e in entries if e in reset))


def reopen(store: Store, device: Device, restored: Mapping[Entry, Array]) -> set[Entry]:
    """Move a root store; the caller has the turn. Gives the entries that could only be reset.

    If it fails on a device that works nothing has changed; a store whose device was lost can be reopened again.
    """
    exes, entries = list(store._executables), list(store._all_entries())
    for exe in exes:
        check_device(exe.plan, needed_caps(exe.plan), device.caps, device.name)
    if store.device.lost:
        # Its memory may be needed for what comes now.
        for exe in exes:
            exe._replace_session(None)
        for e in entries:
            e._take(None)
    residents: dict[Entry, Resident] = {}
    sessions: list[tuple[Executable, Session, dict[int, Resident]]] = []
    reset: set[Entry] = set()
    moves = store.device.lost or not device.joins(store.device)
    try:
        for e in entries:
            if e not in residents and (moves or e._resident is None):
                residents.update(zip(e._pack, device.allocate([x._spec for x in e._pack]), strict=True))
        if moves:
            updated = {e for exe in exes for e in exe._updated}
            reset = {e for e, r in residents.items() if not _fill(e, r, restored) and (e.kind == "state" or e in updated)}
        for exe in exes:
            held = {node: residents[e] if e in residents else e._memory() for node, e in exe._nodes.items()}
            sessions.append((exe, exe._open(device, held), held))
    except BaseException:
        for _, session, _ in sessions:
            session.close()
        for resident in residents.values():
            resident.release()
        raise
    for exe, session, held in sessions:
        exe._replace_session(session, held)
    for e, resident in residents.items():
        e._take(resident)
    store._device = device
    if not moves:
        store._write(restored)
    for e in [*restored, *reset]:
        e._ready, e._writes = True, e._writes + 1
    return reset


def _fill(entry: Entry, resident: Resident, restored: Mapping[Entry, Array]) -> bool:
    """Bring an entry's value to its new memory; False if it could only be set to what it was once set to."""
    if entry in restored:
        resident.write(restored[entry])
        return True
    if not entry.ready:
        return True
    if entry._resident is not None:
        try:
            resident.write(entry._resident.read())
            return True
        except DeviceLost:
            pass  # that the old device was lost came out only now; if it was the new one, the next write says so
    resident.write(entry.writable(entry._source) if entry.kind == "param" else entry._spec.initial())
    return False
