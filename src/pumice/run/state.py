"""Resident values: the states of an executable by name, and what is known of each param and state that executables share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.errors import MissingName, UnknownName
from pumice.ir.graph import Node
from pumice.run.convert import Array, convert_stored
from pumice.run.turns import join

if TYPE_CHECKING:
    from pumice.run.executable import Executable

# Arrays up to this size are copied when they are kept, so that the caller may reuse them; larger ones are kept as they are.
_COPIED_BYTES = 64 << 10

# Held while a session opens with what others lend it, while one closes (nobody lends what is being freed), and while it
# changes who uses a cell.
sharing = threading.RLock()


class Cell:
    """A param or a state, one for all executables that share it: whether it was set, from what, and who uses it."""

    __slots__ = ("__weakref__", "ready", "source", "users")

    def __init__(self) -> None:
        self.ready = False
        self.source: Any = None
        self.users: weakref.WeakSet[Executable] = weakref.WeakSet()

    def keep(self, value: Any) -> None:
        """Remember what the param was set to: views of files and large arrays by reference, small ones by value."""
        small = getattr(value, "nbytes", 0) <= _COPIED_BYTES
        self.source = np.array(value) if isinstance(value, np.ndarray) and small and value.flags.writeable else value


class StateHandle:
    """One resident state: `read()` it, `write()` it, or `reset()` it to its initial value."""

    def __init__(self, exe: Executable, node: Node) -> None:
        self._exe, self._node = exe, node
        self.name = node.name

    def read(self) -> Array:
        """The state's current value on the host."""
        return self._exe._in_turn(lambda session: session.read(self._node.id))

    def write(self, value: Any) -> None:
        """Replace the state's value."""
        array = self.convert(value)
        self._exe._in_turn(lambda session: session.write(self._node.id, array))

    def convert(self, value: Any) -> Array:
        """`value` as the state stores it, or a typed error."""
        return convert_stored(value, self._node.type, f"state {self.name!r}")

    def reset(self) -> None:
        """Back to the initial value: what the traced function gave, else zeros."""
        t = self._node.type
        init = self._node.attr.get("init")
        initial = np.zeros(t.static_shape, t.dtype.np) if init is None else init.array(t.dtype.np, t.static_shape)
        self.write(initial)

    def __repr__(self) -> str:
        return f"<state {self.name} {self._node.type}>"


class StateTable(Mapping[str, StateHandle]):
    """The states of an executable by name."""

    def __init__(self, exe: Executable) -> None:
        self._handles = {n.name: StateHandle(exe, n) for n in exe.plan.graph.sources("state")}

    def __getitem__(self, name: str) -> StateHandle:
        if name not in self._handles:
            raise UnknownName(f"there is no state {name!r}", hint="there are: " + (" ".join(self._handles) or "none"))
        return self._handles[name]

    def __contains__(self, name: object) -> bool:
        return name in self._handles

    def __iter__(self) -> Iterator[str]:
        return iter(self._handles)

    def __len__(self) -> int:
        return len(self._handles)

    def reset(self) -> None:
        """Reset every state."""
        for handle in self._handles.values():
            handle.reset()


def join_turns(exe: Executable, other: Executable, op: str) -> None:
    """Let executables that share values of a kind, or are about to, take turns wherever one sees what another changes.

    They share a state, or a param that one of them updates: a run must find what the last one left, all of it.
    """
    with sharing:
        common = [n.name for n in other.graph.sources(op) if n.name in exe._cells]
        users = {name: {exe, other, *exe._cells[name].users, *other._cells[name].users} for name in common}
    group = set().union(*(us for name, us in users.items() if any(name in u._changes for u in us)))
    join(e._turns for e in group)


def changing_nodes(exe: Executable) -> dict[str, Node]:
    """What runs leave behind: every state, and the params that the graph updates."""
    updated = {target for target, _ in exe.graph.updates}
    params = [n for n in exe.graph.sources("param") if n.id in updated]
    return {n.name: n for n in [*exe.graph.sources("state"), *params]}


def convert_saved(exe: Executable, saved: Mapping[str, Any]) -> dict[int, Array]:
    """A saved state as arrays by node id, complete and of the right types."""
    nodes = changing_nodes(exe)
    unknown = [name for name in saved if name not in nodes]
    if unknown:
        raise UnknownName(f"the executable has no state {unknown[0]!r}", hint="there are: " + (" ".join(nodes) or "none"))
    missing = [name for name in nodes if name not in saved]
    if missing:
        raise MissingName(
            f"the saved state lacks {missing[0]!r}", hint="take what save_state() of the same graph gave", names=missing
        )
    return {n.id: convert_stored(saved[name], n.type, f"{n.op} {name!r}") for name, n in nodes.items()}
