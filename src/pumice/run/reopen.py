"""Reopening: an executable on a new device, from the same plan, with its params and what was saved of its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pumice.backends.base import Device, Donor, Session
from pumice.errors import DeviceLost
from pumice.ir.graph import Node
from pumice.plan.needs import check_device, needed_caps
from pumice.run.convert import Array, convert_stored
from pumice.run.state import changing_nodes, convert_saved, sharing

if TYPE_CHECKING:
    from pumice.run.executable import Executable


@dataclass(frozen=True)
class Reopened:
    """What came along: `kept` params and states have their values, `reset` ones are back at their first value."""

    device: str
    kept: tuple[str, ...]
    reset: tuple[str, ...]


def reopen(exe: Executable, device: Device, saved: Mapping[str, Any] | None) -> Reopened:
    """Give an executable a new session; the caller holds its turn. If that fails, the executable can be reopened again."""
    check_device(exe.plan, needed_caps(exe.plan), device.caps, device.name)
    restored = {} if saved is None else convert_saved(exe, saved)
    old = exe._session
    if old is not None and exe.device.lost:
        # Its memory may be needed for what comes now.
        _replace(exe, exe.device, None)
        old = None
    nodes = [*exe.graph.sources("param"), *exe.graph.sources("state")]
    with sharing:
        donors = _donors(exe, device, nodes)
        lent = {own for _, pairs in donors for own in pairs}
        rest = [n for n in nodes if n.id not in lent]
        if old is not None and device.joins(exe.device):
            donors.append((old, {n.id: n.id for n in rest}))
            rest = []
        session = exe._open(device, donors)
    try:
        reset = _fill(exe, session, old, rest, restored)
    except BaseException:
        session.close()
        raise
    _replace(exe, device, session)
    known = [n.name for n in nodes if n.name not in reset and (n.op == "state" or exe._cells[n.name].ready)]
    return Reopened(device.name, tuple(known), tuple(reset))


def _replace(exe: Executable, device: Device, session: Session | None) -> None:
    """Replaces the old session, which is closed; nothing borrows from it meanwhile."""
    with sharing:
        old, exe._session, exe.device = exe._session, session, device
        if old is not None:
            old.close()


def _donors(exe: Executable, device: Device, nodes: list[Node]) -> list[Donor]:
    """Executables that shared values with this one and live on the new device already: they share them again."""
    found: dict[int, tuple[Session, dict[int, int]]] = {}
    for n in nodes:
        for other in exe._cells[n.name].users:
            if other is not exe and other._session is not None and not other.device.lost and device.joins(other.device):
                theirs = next(t for t in other.graph.sources(n.op) if t.name == n.name)
                found.setdefault(id(other), (other._session, {}))[1][n.id] = theirs.id
                break
    return list(found.values())


def _fill(exe: Executable, session: Session, old: Session | None, rest: list[Node], restored: Mapping[int, Array]) -> list[str]:
    """Bring values into a new session; the names of those that could only be reset."""
    changing = changing_nodes(exe)
    reset = []
    for node, array in restored.items():
        session.write(node, array)
        exe._cells[exe.graph.nodes[node].name].ready = True
    for n in rest:
        cell = exe._cells[n.name]
        if n.id in restored:
            continue
        if n.op == "param" and not cell.ready:
            continue
        if old is not None:
            try:
                session.write(n.id, old.read(n.id))
                continue
            except DeviceLost:
                old = None
        if n.op == "param":
            session.write(n.id, convert_stored(cell.source, n.type, f"param {n.name!r}"))
        if n.name in changing:
            reset.append(n.name)
    return reset
