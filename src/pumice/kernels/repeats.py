"""Groups that differ only in which values they read and write are lowered once: the layers of a model are alike."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from pumice.ir.graph import Node
from pumice.ir.types import TensorType
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.lower import lower_group
from pumice.plan.plan import DeviceCount


@dataclass(frozen=True)
class _Pattern:
    """The kernels of the first group of a kind; `values` are the ids it was lowered with, `temps` those it asked for."""

    values: tuple[int, ...]
    temps: tuple[tuple[int, TensorType], ...]
    kernels: list[Lowered]


class Repeats:
    """Lowers the groups of one graph.

    >>> import pumice as pm
    >>> from pumice.core.caps import Caps
    >>> g = pm.trace(lambda x, y: (pm.exp(x), pm.exp(y)), x=pm.spec(8), y=pm.spec(8))
    >>> ctx = LowerContext(g, Caps.preset("browser-baseline"), {})
    >>> again = Repeats(ctx)
    >>> one, two = (again.lower(Group(root, None, (root,), (leaf,)))[0] for root, leaf in ((2, 0), (3, 1)))
    >>> one.wgsl is two.wgsl, [b.value for b in two.bindings]
    (True, [1, 3])
    """

    def __init__(self, ctx: LowerContext) -> None:
        self.ctx = ctx
        self._seen: dict[Hashable, _Pattern] = {}

    def lower(self, group: Group) -> list[Lowered]:
        """The kernels of a group, in order."""
        values = self._values(group)
        key = self._key(group, {v: k for k, v in enumerate(values)})
        found = self._seen.get(key)
        if found is None:
            before = len(self.ctx.temps)
            kernels = lower_group(self.ctx, group)
            self._seen[key] = _Pattern(values, tuple(self.ctx.temps.items())[before:], kernels)
            return kernels
        names = dict(zip(found.values, values, strict=True)) | {t: self.ctx.temp(type) for t, type in found.temps}
        return [_rename(kernel, names) for kernel in found.kernels]

    def _values(self, group: Group) -> tuple[int, ...]:
        """All ids that lowering may meet, in ascending order: where it goes by their order, it does so in all groups alike."""
        near = {v for _, v in _ids(group)}
        near |= {i for v in near for i in self._node(v).args if v in group.nodes}
        return tuple(sorted(near))

    def _key(self, group: Group, numbers: Mapping[int, int]) -> Hashable:
        shape = tuple((name, numbers[v]) for name, v in _ids(group))
        return shape, tuple(self._value_key(v, numbers, v in group.nodes) for v in numbers)

    def _value_key(self, value: int, numbers: Mapping[int, int], computed: bool) -> Hashable:
        n = self._node(value)
        if computed:
            return n.op, tuple(None if i is None else numbers[i] for i in n.inputs), n.exact_attrs, n.type
        return n.op, n.exact_attrs if n.op == "constant" else "", n.type, self.ctx.part_elements(value)

    def _node(self, value: int) -> Node:
        return self.ctx.graph.nodes[value]


def _ids(group: Group) -> Iterator[tuple[str, int]]:
    """Every id in a group's fields, with the field it stands in."""
    for f in fields(group):
        value = getattr(group, f.name)
        for v in value if isinstance(value, tuple) else () if value is None else (value,):
            yield f.name, v


def _rename(kernel: Lowered, names: Mapping[int, int]) -> Lowered:
    groups = kernel.groups
    if isinstance(groups, DeviceCount):
        groups = replace(groups, value=names[groups.value])
    return replace(kernel, bindings=tuple(replace(b, value=names[b.value]) for b in kernel.bindings), groups=groups)
