"""nearest, for GPUs: a workgroup's points against blocks of others, distances in registers, and lists in workgroup memory.

Distances of a block are computed as a tiled product is: a thread has a few points and four others, whose coordinates come from
workgroup memory. The distances go there too. Several threads share the list of a point: they look for distances below its last
entry and, where there are some, count for every entry and every such distance how many come before it, which is its new place.
"""

from __future__ import annotations

from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim, ceildiv
from pumice.core.dtypes import f32, u32
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.map import map_workgroup
from pumice.kernels.pull import Puller
from pumice.kernels.routines.nearest_results import store_nearest

# Others in a block, in fours that a thread has each.
_OTHERS, _FOURS = 64, 16
# Workgroup memory, of which a core has several times this, and the most workgroups that share the others of a point.
_MEMORY, _PARTS = 40 << 10, 16
# Orders behind every distance: the bits of floats that are not negative order as these do.
_NONE = "0xffffffffu"


@dataclass(frozen=True, slots=True)
class PointBlocks:
    """A workgroup has `points` points, and looks through blocks of others in one of `parts` parts of all."""

    threads: int
    points: int
    parts: int

    @property
    def name(self) -> str:
        return f"blocks of {self.points} by {_OTHERS} points, {self.parts} parts {self.threads}"

    @property
    def fours(self) -> int:
        """Fours of coordinates that fit the memory of the distances at a time, eight at most."""
        return self.points * _FOURS // (self.points + _OTHERS)


def decide_blocks(caps: Caps, n: int, k: int) -> PointBlocks | None:
    """As many points as fit with their lists; None where they are too few, or threads gain nothing from sharing.

    >>> h200, browser = Caps.preset("h200"), Caps.preset("browser-baseline")
    >>> decide_blocks(h200, 16384, 15).name, decide_blocks(browser, 16384, 15).name
    ('blocks of 64 by 64 points, 2 parts 256', 'blocks of 32 by 64 points, 1 parts 256')
    >>> decide_blocks(browser, 16384, 100), decide_blocks(Caps.preset("lavapipe"), 16384, 15)
    (None, None)
    """
    threads = map_workgroup(caps)
    if caps.serial_threads or threads < 256:
        return None
    for points in (64, 32, 16):
        # Distances, two lists of keys and numbers, and a flag.
        if points * (16 * _FOURS + 16 * k + 4) + 48 <= min(caps.workgroup_memory, _MEMORY):
            groups = -(-max(1, n) // points)
            parts = min(_PARTS, -(-4 * caps.busy_groups // groups), n // (2 * _OTHERS))
            return PointBlocks(threads, points, max(1, parts))
    return None


def search_blocks(
    ctx: LowerContext, group: Group, choice: PointBlocks, n: Dim, d: int, k: int, into: tuple[int, int] | None
) -> Lowered:
    """The nearest of each point among a part of all points, as results or into temporaries."""
    return _BlockSearch(ctx, group, choice, n, d, k).lower(into)


class _BlockSearch:
    def __init__(self, ctx: LowerContext, group: Group, choice: PointBlocks, n: Dim, d: int, k: int) -> None:
        assert group.anchor is not None
        self.ctx, self.group, self.choice, self.n, self.d, self.k = ctx, group, choice, n, d, k
        self.node = ctx.graph.nodes[group.anchor]
        self.kb = KernelBuilder(ctx.caps, workgroup=choice.threads)
        self.p = Puller(ctx, group, self.kb)
        self.size = self.kb.dim(n)
        # Threads of a list, and points of a thread in the product.
        self.sharing, self.own = choice.threads // choice.points, choice.points * _FOURS // choice.threads

    def lower(self, into: tuple[int, int] | None) -> Lowered:
        kb, points, parts, k = self.kb, self.choice.points, self.choice.parts, self.k
        kb.shared("memory", "vec4<u32>", points * _FOURS)
        for name in ("keys", "numbers"):
            kb.shared(name, "u32", 2 * points * k)
        kb.shared("changes", "atomic<u32>", points)
        kb.emit(f"let first = wg / {parts}u * {points}u;\nlet part = wg % {parts}u;")
        kb.emit(f"let span = ({self.size} + {parts - 1}u) / {parts}u;\nlet end = min({self.size}, (part + 1u) * span);")
        kb.emit(f"let across = lid % {_FOURS}u;\nlet down = lid / {_FOURS}u * {self.own}u;")
        kb.emit(f"let row = lid / {self.sharing}u;\nlet turn = lid % {self.sharing}u;\nvar side = 0u;")
        kb.open(f"for (var e = lid; e < {2 * points * k}u; e += {kb.workgroup}u)")
        kb.emit(f"keys[e] = {_NONE};\nnumbers[e] = {self.size};")
        kb.close()
        kb.open(f"for (var base = part * span; base < end; base += {_OTHERS}u)")
        self._distances()
        self._select()
        kb.close()
        kb.emit("workgroupBarrier();\nlet point = first + row;")
        kb.open(f"if (point < {self.size})")
        kb.open(f"for (var t = turn; t < {k}u; t += {self.sharing}u)")
        kb.emit(
            f"let key = keys[(side * {points}u + row) * {k}u + t];\nlet number = numbers[(side * {points}u + row) * {k}u + t];"
        )
        kb.emit(f"let squares = select(bitcast<f32>(min(key, 0x7f800000u)), pm_inf(), key == {_NONE});")
        if into is None:
            store_nearest(self.p, "squares", "number")
        else:
            place = f"(point * {parts}u + part) * {k}u + t"
            kb.emit(kb.write(into[0], f32).store(place, "squares"))
            kb.emit(kb.write(into[1], u32).store(place, "number"))
        kb.close()
        kb.close()
        groups = ceildiv(self.n, points) * parts
        return kb.finish(groups=groups, label=self.ctx.label(self.group), variant=self.choice.name)

    def _distances(self) -> None:
        """The bits of the squared distances of the block in `memory`, four to a vector; none of those that do not count."""
        kb, own, all_points = self.kb, range(self.own), self.choice.points + _OTHERS
        for r in own:
            kb.emit(" ".join(f"var s{r}{c} = 0.0;" for c in "xyzw"))
        fours = -(-self.d // 4)
        chunk = max(1, min(self.choice.fours, fours))
        kb.open(f"for (var from_four = 0u; from_four < {fours}u; from_four += {chunk}u)")
        kb.emit("workgroupBarrier();")
        self._load_fours(chunk, all_points)
        kb.emit("workgroupBarrier();")
        count = f"min({chunk}u, {fours}u - from_four)" if fours % chunk else f"{chunk}u"
        kb.open(f"for (var v = 0u; v < {count}; v++)")
        slots = {f"a{r}": f"(down + {r}u)" for r in own}
        slots |= {f"b{name}": f"({self.choice.points + c * _FOURS}u + across)" for c, name in enumerate("xyzw")}
        for name, slot in slots.items():
            kb.emit(f"let {name} = bitcast<vec4<f32>>(memory[v * {all_points}u + ({slot} ^ v)]);")
        for r in own:
            for c in "xyzw":
                kb.emit(f"let d{r}{c} = a{r} - b{c};")
                kb.emit(" ".join(f"s{r}{c} = fma(d{r}{c}.{i}, d{r}{c}.{i}, s{r}{c});" for i in "xyzw"))
        kb.close()
        kb.close()
        kb.emit("workgroupBarrier();")
        kb.function(
            "fn distance_key(squares: f32, number: u32, end: u32, point: u32) -> u32 {\n"
            "  let bits = select(bitcast<u32>(squares), 0x7f800000u, pm_isnan(squares));\n"
            f"  return select(bits, {_NONE}, number >= end || number == point);\n}}"
        )
        for r in own:
            point = _NONE if self.node.attr["include_self"] else f"first + down + {r}u"
            keys = [f"distance_key(s{r}{c}, base + 4u * across + {i}u, end, {point})" for i, c in enumerate("xyzw")]
            kb.emit(f"memory[(down + {r}u) * {_FOURS}u + across] = vec4<u32>({', '.join(keys)});")
        kb.emit(f"if (lid < {self.choice.points}u) {{ atomicStore(&changes[lid], 0u); }}\nworkgroupBarrier();")

    def _load_fours(self, chunk: int, all_points: int) -> None:
        """Fours of coordinates of the points, then of the others; those that threads read together are neighbours.

        Threads write neighbouring fours of one point together: in places of which the low bits, and so the banks, differ.
        """
        kb, p, points = self.kb, self.p, self.choice.points
        x = self.ctx.view(self.node.operands["x"], self.group.leaves)
        kb.open(f"for (var e = lid; e < {all_points * chunk}u; e += {kb.workgroup}u)")
        p.push()
        kb.emit(f"let v = e % {chunk}u;\nlet which = e / {chunk}u;\nlet other = which - {points}u;")
        # Beyond the last point, any: the distance does not count.
        kb.emit(f"let point = min(select(base + other, first + which, which < {points}u), {self.size} - 1u);")
        kb.emit("var four = vec4<f32>();")
        for i, name in enumerate("xyzw"):
            kb.emit(f"let column{name} = 4u * (from_four + v) + {i}u;")
            kb.open("" if self.d % (4 * chunk) == 0 else f"if (column{name} < {self.d}u)")
            p.push()
            kb.emit(f"four.{name} = {p.load_view(x, ('point', f'column{name}'))};")
            p.pop()
            kb.close()
        slot = f"select({points}u + (other % 4u) * {_FOURS}u + other / 4u, which, which < {points}u)"
        kb.emit(f"memory[v * {all_points}u + ({slot} ^ v)] = bitcast<vec4<u32>>(four);")
        p.pop()
        kb.close()

    def _select(self) -> None:
        """Distances below the last of a list go into it; equal ones behind those that were there, in the order of numbers."""
        kb, points, sharing, k = self.kb, self.choice.points, self.sharing, self.k
        kb.emit(f"let here = (side * {points}u + row) * {k}u;\nlet there = ((1u - side) * {points}u + row) * {k}u;")
        kb.emit(f"let last = keys[here + {k - 1}u];\nvar found = 0u;")
        kb.open(f"for (var u = 0u; u < {_FOURS // sharing}u; u++)")
        kb.emit(f"let below = memory[row * {_FOURS}u + u * {sharing}u + turn] < vec4<u32>(last);")
        kb.emit("let bits = select(vec4<u32>(), vec4<u32>(1u, 2u, 4u, 8u), below);")
        kb.emit("found |= (bits.x | bits.y | bits.z | bits.w) << (4u * u);")
        kb.close()
        kb.emit("if (found != 0u) { atomicStore(&changes[row], 1u); }\nworkgroupBarrier();")
        kb.open("if (atomicLoad(&changes[row]) != 0u)")
        kb.open(f"for (var e = turn; e < {k}u; e += {sharing}u)")
        kb.emit("let key = keys[here + e];\nvar at = e;")
        self._count_below("vec4<u32>(key)")
        kb.emit(f"if (at < {k}u) {{ keys[there + at] = key; numbers[there + at] = numbers[here + e]; }}")
        kb.close()
        kb.open("while (found != 0u)")
        kb.emit("let bit = countTrailingZeros(found);\nfound &= found - 1u;")
        kb.emit(f"let place = 4u * ((bit / 4u) * {sharing}u + turn) + bit % 4u;")
        kb.emit(f"let key = memory[row * {_FOURS}u + place / 4u][place % 4u];\nvar at = 0u;")
        kb.emit(f"for (var e = 0u; e < {k}u; e++) {{ at += select(0u, 1u, keys[here + e] <= key); }}")
        earlier = "vec4<u32>(4u * v, 4u * v + 1u, 4u * v + 2u, 4u * v + 3u) < vec4<u32>(place)"
        self._count_below(f"vec4<u32>(key) + select(vec4<u32>(), vec4<u32>(1u), {earlier})")
        kb.emit(f"if (at < {k}u) {{ keys[there + at] = key; numbers[there + at] = base + place; }}")
        kb.close()
        kb.emit("side = 1u - side;")
        kb.close()

    def _count_below(self, limits: str) -> None:
        """Adds to `at` how many of the row's distances are below limits."""
        kb = self.kb
        kb.open(f"for (var v = 0u; v < {_FOURS}u; v++)")
        kb.emit(f"let less = select(vec4<u32>(), vec4<u32>(1u), memory[row * {_FOURS}u + v] < {limits});")
        kb.emit("at += less.x + less.y + less.z + less.w;")
        kb.close()
