"""Plan: what a graph becomes for a Caps; pure data that a runtime executes step by step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.ir.graph import Graph
from pumice.ir.types import TensorType

Access = Literal["read", "write", "update"]
BufferKind = Literal["input", "param", "constant", "state", "arena"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """One device allocation, sized for the symbols' maxima."""

    kind: BufferKind
    nbytes: int
    name: str


@dataclass(frozen=True, slots=True)
class Part:
    """A byte range of a buffer that holds a value or one row shard of it."""

    buffer: int
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Value:
    """Where a value lives. Ids below len(graph) are graph nodes, ids above are temporaries of a lowering.

    Dense row-major in its dtype; more than one part only for params larger than a binding, split at whole rows.
    """

    id: int
    type: TensorType
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """One storage binding of a step: which part of which value, and what the kernel does to it."""

    value: int
    part: int
    access: Access


@dataclass(frozen=True, slots=True)
class Kernel:
    """WGSL with entry point `main`: storage bindings 0…n-1 in the steps' order, then the uniform block if any."""

    name: str
    wgsl: str
    access: tuple[Access, ...]
    uniform_words: int


@dataclass(frozen=True, slots=True)
class Step:
    """One dispatch, or one host call.

    `nodes` are the graph nodes it computes, `root` the value it writes (a node or temporary). `kernel` indexes
    `Plan.kernels`, -1 on the host backend, which runs `nodes` itself. `groups` is the number of workgroups; kernels
    number them 0…groups-1 from a folded grid, so it may exceed the device's limit per dimension. 0 skips the step.
    """

    label: str
    nodes: tuple[int, ...]
    root: int
    bindings: tuple[Binding, ...]
    kernel: int = -1
    uniforms: tuple[Dim, ...] = ()
    groups: Dim = 1
    anchor: int | None = None
    variant: str = ""


@dataclass(frozen=True)
class Plan:
    """A graph planned for a target.

    `copies` are (state, value) pairs copied after the steps; states updated in place need none.
    """

    graph: Graph
    caps: Caps
    buffers: tuple[Buffer, ...]
    values: Mapping[int, Value]
    kernels: tuple[Kernel, ...]
    steps: tuple[Step, ...]
    copies: tuple[tuple[int, int], ...] = ()
    maxima: Mapping[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by buffer kind."""
        out: dict[str, int] = {}
        for b in self.buffers:
            out[b.kind] = out.get(b.kind, 0) + b.nbytes
        return out


def fold_grid(groups: int, limit: int) -> tuple[int, int, int]:
    """Workgroups as a grid within `limit` per dimension; kernels undo it by x + y*X + z*X*Y.

    >>> fold_grid(10, 65535), fold_grid(65536, 65535), fold_grid(0, 65535)
    ((10, 1, 1), (32768, 2, 1), (0, 1, 1))
    """
    if groups <= limit:
        return groups, 1, 1
    y = -(-groups // limit)
    if y <= limit:
        return -(-groups // y), y, 1
    z = -(-y // limit)
    return limit, -(-y // z), z
