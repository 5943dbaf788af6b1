"""Groups that differ only in which values they read and write are lowered once: the layers of a model repeat.

So are most groups at other sizes: a regime lowers those alone of which something is chosen otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, fields, replace

from pumice.core.domain import Domain, Limit
from pumice.ir.types import TensorType
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Asked, Group, LowerContext
from pumice.kernels.lower import lower_group
from pumice.plan.plan import Access, Binding, DeviceCount

_FIELDS = tuple(f.name for f in fields(Group))


@dataclass(frozen=True)
class _Pattern:
    """The kernels of the first group of a kind; `values` are the ids it was lowered with, `temps` those it asked for.

    They fit wherever all that was `asked` about sizes has the same answers; `borders` are what was noted on the way.
    """

    values: tuple[int, ...]
    temps: tuple[tuple[int, TensorType], ...]
    kernels: list[Lowered]
    asked: tuple[Asked, ...]
    borders: tuple[tuple[Limit, str], ...]

    def fits(self, domain: Domain) -> bool:
        return all(question.answer_in(domain) == question.answer for question in self.asked)


class Repeats:
    """Lowers the groups of one graph, in one or several contexts.

    >>> import pumice as pm
    >>> from pumice.core.caps import Caps
    >>> g = pm.trace(lambda x, y: (pm.exp(x), pm.exp(y)), x=pm.spec(8), y=pm.spec(8))
    >>> ctx = LowerContext(g, Caps.preset("browser-baseline"), {})
    >>> again = Repeats()
    >>> one, two = (again.lower(ctx, Group(root, None, (root,), (leaf,)))[0] for root, leaf in ((2, 0), (3, 1)))
    >>> one.wgsl is two.wgsl, [b.value for b in two.bindings]
    (True, [1, 3])
    """

    def __init__(self) -> None:
        self._patterns: dict[Hashable, list[_Pattern]] = {}
        # The pattern that fits in a context, which is kept so that its id stays its own.
        self._fitting: dict[tuple[int, Hashable], _Pattern] = {}
        self._contexts: dict[int, LowerContext] = {}
        # What groups are by, as long as they live: regimes share most of them.
        self._kinds: dict[int, tuple[Group, tuple[int, ...], Hashable]] = {}
        # Numbers of all that lowering may see of a value but its operands: layers share those, and numbers are compared fast.
        self._numbers: dict[Hashable, int] = {}
        self._computed: dict[int, int] = {}
        self._loaded: dict[int, int] = {}
        # The kernels of a group by its pattern and temporaries, which are the same objects in all contexts.
        self._renamed: dict[tuple[int, int, tuple[int, ...]], list[Lowered]] = {}
        self._bindings: dict[tuple[int, int, Access], Binding] = {}

    def lower(self, ctx: LowerContext, group: Group) -> list[Lowered]:
        """The kernels of a group, in order; the same objects in every context where they are the same."""
        self._contexts.setdefault(id(ctx), ctx)
        kind = self._kinds.get(id(group))
        if kind is None:
            values = _values(ctx, group)
            kind = self._kinds[id(group)] = group, values, self._key(ctx, group, {v: k for k, v in enumerate(values)})
        _, values, key = kind
        found = self._fitting.get((id(ctx), key))
        if found is None:
            found = next((p for p in self._patterns.get(key, ()) if p.fits(ctx.domain)), None)
            if found is None:
                return self._lower_first(ctx, group, values, key)
            self._fitting[id(ctx), key] = found
        for border, why in found.borders:
            ctx.note(border, group.root, why)
        temps = tuple([ctx.temp(type) for _, type in found.temps])
        place = id(group), id(found), temps
        if place not in self._renamed:
            names = dict(zip(found.values, values, strict=True)) | {
                t: new for (t, _), new in zip(found.temps, temps, strict=True)
            }
            self._renamed[place] = [self._rename(kernel, names) for kernel in found.kernels]
        return self._renamed[place]

    def _rename(self, kernel: Lowered, names: Mapping[int, int]) -> Lowered:
        known, bindings = self._bindings, []
        for b in kernel.bindings:
            key = names[b.value], b.part, b.access
            if key not in known:
                known[key] = Binding(*key)
            bindings.append(known[key])
        groups = kernel.groups
        if isinstance(groups, DeviceCount):
            groups = replace(groups, value=names[groups.value])
        return kernel.bound_to(tuple(bindings), groups)

    def _key(self, ctx: LowerContext, group: Group, numbers: Mapping[int, int]) -> Hashable:
        shape = tuple([(name, numbers[v]) for name, v in _ids(group)])
        return shape, tuple([self._value_key(ctx, v, numbers, v in group.nodes) for v in numbers])

    def _value_key(self, ctx: LowerContext, value: int, numbers: Mapping[int, int], computed: bool) -> Hashable:
        n = ctx.graph.nodes[value]
        known = self._computed if computed else self._loaded
        number = known.get(value)
        if number is None:
            # How many elements there are is asked in other ways; in which parts a value comes is not.
            parts = () if computed else ctx.part_elements(value)
            attrs = n.exact_attrs if computed or n.op == "constant" else ""
            number = known[value] = self._numbers.setdefault(
                (n.op, attrs, n.type, parts if len(parts) > 1 else (), computed), len(self._numbers)
            )
        return (number, *[None if i is None else numbers[i] for i in n.inputs]) if computed else number

    def _lower_first(self, ctx: LowerContext, group: Group, values: tuple[int, ...], key: Hashable) -> list[Lowered]:
        before, others = len(ctx.temps), ctx.borders
        ctx.asked, ctx.borders = [], {}
        kernels = lower_group(ctx, group)
        noted = tuple((border, why) for border, nodes in ctx.borders.items() for why in nodes.values())
        ctx.borders = others
        for border, why in noted:
            ctx.note(border, group.root, why)
        temps = tuple(ctx.temps.items())[before:]
        made = self._fitting[id(ctx), key] = _Pattern(values, temps, kernels, tuple(ctx.asked), noted)
        self._patterns.setdefault(key, []).append(made)
        self._renamed[id(group), id(made), tuple([t for t, _ in temps])] = kernels
        return kernels


def _values(ctx: LowerContext, group: Group) -> tuple[int, ...]:
    """All ids that lowering may see, in ascending order, so that it orders them equally in all such groups."""
    near = {v for _, v in _ids(group)}
    near |= {i for v in near for i in ctx.graph.nodes[v].args if v in group.nodes}
    return tuple(sorted(near))


def _ids(group: Group) -> Iterator[tuple[str, int]]:
    """Every id in a group's fields, with the name of the field."""
    for name in _FIELDS:
        value = getattr(group, name)
        for v in value if isinstance(value, tuple) else () if value is None else (value,):
            yield name, v
