"""Groups that differ only in which values they read and write are lowered once: the layers of a model repeat.

So are most groups at other sizes: a regime lowers those alone of which something is chosen otherwise.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter

from pumice.core.domain import Domain, Limit
from pumice.ir.types import TensorType
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Asked, Group, LowerContext
from pumice.kernels.lower import lower_group
from pumice.plan.plan import Access, Binding, DeviceCount

_fields_of = attrgetter(*[f.name for f in fields(Group)])
# Where a context notes the borders of a pattern, and why.
_Notes = list[tuple[dict[int, str], str]]


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
        self._patterns: dict[int, list[_Pattern]] = {}
        # For a context, which is kept so that its id stays its own: the pattern that fits a kind of groups there.
        self._fitting: dict[int, tuple[LowerContext, dict[int, tuple[_Pattern, _Notes]]]] = {}
        # The kinds of groups by number, and that of each group, as long as it lives: regimes share most of them.
        self._kinds: dict[Hashable, int] = {}
        self._groups: dict[int, tuple[Group, tuple[int, ...], int]] = {}
        # Numbers of all that lowering may see of a value but its operands: layers share those, and numbers are compared fast.
        self._numbers: dict[Hashable, int] = {}
        self._computed: dict[int, int] = {}
        self._loaded: dict[int, int] = {}
        # The kernels of a group by its pattern and temporaries, which are the same objects in all contexts.
        self._renamed: dict[tuple[int, int, tuple[int, ...]], list[Lowered]] = {}
        self._bindings: dict[tuple[int, int, Access], Binding] = {}

    def lower(self, ctx: LowerContext, group: Group) -> list[Lowered]:
        """The kernels of a group, in order; the same objects in every context where they are the same."""
        known = self._groups.get(id(group))
        if known is None:
            values = _values(ctx, group)
            key = self._key(ctx, group, {v: k for k, v in enumerate(values)})
            known = self._groups[id(group)] = group, values, self._kinds.setdefault(key, len(self._kinds))
        _, values, kind = known
        _, fitting = self._fitting.setdefault(id(ctx), (ctx, {}))
        fit = fitting.get(kind)
        temps: tuple[int, ...] | None = None
        if fit is None:
            found = next((p for p in self._patterns.get(kind, ()) if p.fits(ctx.domain)), None)
            if found is None:
                found = self._lower_first(ctx, group, values)
                self._patterns.setdefault(kind, []).append(found)
                temps = tuple([t for t, _ in found.temps])
                self._renamed[id(group), id(found), temps] = found.kernels
            fit = fitting[kind] = found, [(ctx.borders.setdefault(border, {}), why) for border, why in found.borders]
        found, notes = fit
        for nodes, why in notes:
            nodes.setdefault(group.root, why)
        if temps is None:
            temps = tuple([ctx.temp(type) for _, type in found.temps])
        place = id(group), id(found), temps
        kernels = self._renamed.get(place)
        if kernels is None:
            names = dict(zip(found.values, values, strict=True))
            names.update(zip([t for t, _ in found.temps], temps, strict=True))
            kernels = self._renamed[place] = [self._rename(kernel, names) for kernel in found.kernels]
        return kernels

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
        """What groups that are lowered alike have in common: their fields, with the values numbered, and what these are."""
        shape = [tuple([numbers[v] for v in f]) if isinstance(f, tuple) else numbers.get(f) for f in _fields_of(group)]
        computed = set(group.nodes)
        return tuple(shape), tuple([self._value_key(ctx, v, numbers, v in computed) for v in numbers])

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

    def _lower_first(self, ctx: LowerContext, group: Group, values: tuple[int, ...]) -> _Pattern:
        before, others = len(ctx.temps), ctx.borders
        ctx.asked, ctx.borders = [], {}
        kernels = lower_group(ctx, group)
        noted = tuple((border, why) for border, nodes in ctx.borders.items() for why in nodes.values())
        ctx.borders = others
        temps = tuple(ctx.temps.items())[before:]
        return _Pattern(values, temps, kernels, tuple(ctx.asked), noted)


def _values(ctx: LowerContext, group: Group) -> tuple[int, ...]:
    """All ids that lowering may see, in ascending order, so that it orders them equally in all such groups."""
    near: set[int | None] = set()
    for ids in _fields_of(group):
        near.update(ids if isinstance(ids, tuple) else (ids,))
    for v in group.nodes:
        near.update(ctx.graph.nodes[v].args)
    return tuple(sorted(v for v in near if v is not None))
