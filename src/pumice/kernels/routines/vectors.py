"""The vectors of a matvec: read from memory, or computed by every workgroup as it reads them."""

from __future__ import annotations

from functools import partial

from pumice.core.dims import Dim, Shape
from pumice.core.dtypes import f32
from pumice.ir.graph import Node
from pumice.ir.registry import Row, get_op
from pumice.kernels.pull import Index, Puller, float_literal, plus
from pumice.kernels.routines.common import Side, load_pair, vector_width
from pumice.kernels.rows.layout import reduce_workgroup

# Norms that a workgroup can work out for itself.
NORMS = ("rms_norm", "layer_norm")
# Rounds of a loop over the vectors that are written out.
_WRITTEN_OUT = 16


class Vectors:
    """Elements of the vectors of a matvec. Created in uniform control flow, before the loop over K.

    `side` says where the vectors are stored; None when `node` is computed here, where its leading axes `lead` number them.
    With `defer`, a kernel that sums over all of K promises to pass its sums through `finished`: the scale of an rms norm
    is then applied to them, and nothing has to be known before the loop. `squares` are sums to add up like its own.
    """

    def __init__(
        self,
        p: Puller,
        node: int,
        side: Side | None,
        lead: Shape,
        batch: Index,
        count: Dim,
        k: Dim,
        *,
        defer: bool = False,
    ) -> None:
        self.p, self.node, self.side, self.k = p, node, side, k
        kb = p.kb
        # A symbolic number of vectors may be less than its maximum, then the last one repeats.
        self.names = [
            f"{v}u" if isinstance(count, int) else kb.let(f"min({v}u, {kb.dim(count - 1)})", "v")
            for v in range(max(1, p.ctx.max(count)))
        ]
        self.squares: list[str] = []
        self._current = 0
        self._deferred: Node | None = None
        if side is not None:
            base = side.base(p, batch)
            self.starts = [side.row(p, base, name) for name in self.names]
            return
        self.places = [p.split(name, lead) for name in self.names]
        for i in p.group.nodes:
            n = p.ctx.graph.nodes[i]
            if n.op in NORMS and i != p.group.anchor:
                self._defer(n) if defer and n.op == "rms_norm" else self._prepare(n)

    def __len__(self) -> int:
        return len(self.names)

    def one(self, v: int, k: str) -> str:
        """WGSL for element `k`, a name, of vector v."""
        if self.side is not None:
            return self.p.operand(self.side.leaf).load(self.side.step(self.p.kb, self.starts[v], k))
        self._current = v
        return self.p.value(self.node, (*self.places[v], k))

    def two(self, v: int, k: str) -> str:
        """Name of the vec2<f32> of the elements k and k + 1, both of which exist."""
        kb = self.p.kb
        if self.side is not None:
            return self.side.two(self.p, self.k, self.starts[v], k)
        return kb.let(f"vec2<f32>({self.one(v, k)}, {self.one(v, kb.let(plus(k, '1u'), 'k'))})", "x")

    def four(self, v: int, k: str) -> str:
        """WGSL for the vec4<f32> of the elements k…k + 3, all of which exist; k is a multiple of four."""
        kb = self.p.kb
        if self.side is not None and self.side.pairs(self.p, self.k):
            at = f"{self.starts[v]} + {k}"
            return f"vec4<f32>({load_pair(self.p, self.side.leaf, at)}, {load_pair(self.p, self.side.leaf, f'{at} + 2u')})"
        places = [plus(k, f"{i}u") for i in range(4)]
        if self.side is None:
            places = [kb.let(place, "k") for place in places]
        return f"vec4<f32>({', '.join(self.one(v, place) for place in places)})"

    def fours(self, v: int, k: str, number: str, count: int) -> list[str]:
        """Names of `count` vec4<f32>s, of which the first begins at k, a multiple of four, the `number`-th such place."""
        kb, p, side = self.p.kb, self.p, self.side
        if side is not None and self._widens:
            operand = kb.read(side.leaf, f32, p.ctx.part_elements(side.leaf), wide=True)
            return [kb.let(operand.four(f"({self.starts[v]} + {plus(k, f'{4 * j}u')}) / 4u"), "x") for j in range(count)]
        return [kb.let(self.four(v, plus(k, f"{4 * j}u")), "x") for j in range(count)]

    @property
    def _widens(self) -> bool:
        """Whether stored vectors can be loaded four at a time."""
        p, side = self.p, self.side
        return side is not None and p.ctx.type(side.leaf).dtype == f32 and vector_width(p, side, self.k) > 0

    @property
    def deferred(self) -> bool:
        """Whether `finished` needs the sums of squares."""
        return self._deferred is not None

    def finished(self, total: str, squares: str) -> str:
        """A sum over K as it should be, given the sum of the squares of its vector."""
        if self._deferred is None:
            return total
        kb, n = self.p.kb, self._deferred
        mean = f"{squares} / f32({kb.dim(n.type.shape[-1])})"
        return kb.let(f"{total} * inverseSqrt({mean} + {float_literal(kb, n.attr['eps'])})", "scaled")

    def _defer(self, n: Node) -> None:
        """The scale of an rms norm is a factor of the whole sum: elements come without it, their squares are added up."""
        p, kb = self.p, self.p.kb
        self._deferred = n
        self.squares = [f"squares{v}" for v in range(len(self.names))]
        for name in self.squares:
            kb.emit(f"var {name} = 0.0;")
        places = [p.split(name, n.type.shape[:-1]) for name in self.names]

        def weighted(at: Index) -> str:
            x = p.value(n.operands["x"], (*places[self._current], at[-1]))
            kb.emit(f"{self.squares[self._current]} += {x} * {x};")
            return f"{x} * {p.value(n.operands['weight'], (at[-1],))}" if "weight" in n.operands else x

        p.rules[n.id] = weighted

    def _prepare(self, n: Node) -> None:
        """Computes mean and scale of every vector, and gives the Puller a rule that normalises an element by them."""
        kb, p = self.p.kb, self.p
        x = n.operands["x"]
        length = n.type.shape[-1]
        scratch = kb.shared(kb.fresh("norm"), "f32", kb.workgroup)
        places = [p.split(name, n.type.shape[:-1]) for name in self.names]

        def mean_of(place: Index, less: str, *, squared: bool) -> str:
            total, j = kb.fresh("total"), kb.fresh("j")
            kb.emit(f"var {total} = 0.0;")
            kb.open(f"for (var {j} = lid; {j} < {kb.dim(length)}; {j} += {kb.workgroup}u)")
            p.push()
            value = p.value(x, (*place, j))
            value = kb.let(f"{value} - {less}", "d") if less else value
            kb.emit(f"{total} += {value} * {value};" if squared else f"{total} += {value};")
            p.pop()
            kb.close()
            return f"{reduce_workgroup(kb, scratch, 'sum', 'f32', total)} / f32({kb.dim(length)})"

        means = ["" if n.op == "rms_norm" else kb.let(mean_of(place, "", squared=False), "mean") for place in places]
        scales = []
        for place, mean in zip(places, means, strict=True):
            variance = mean_of(place, mean, squared=True)
            scales.append(kb.let(f"inverseSqrt({variance} + {float_literal(kb, n.attr['eps'])})", "scale"))

        def normalised(at: Index) -> str:
            v = self._current
            value = p.value(x, (*places[v], at[-1]))
            result = f"({value} - {means[v]}) * {scales[v]}" if means[v] else f"{value} * {scales[v]}"
            for operand, sign in (("weight", "*"), ("bias", "+")):
                if operand in n.operands:
                    result = f"{result} {sign} {p.value(n.operands[operand], (at[-1],))}"
            return result

        p.rules[n.id] = normalised


class Staged:
    """The vectors of a matvec in workgroup memory, where all subgroups of the workgroup read them; each is computed once.

    Created in uniform control flow, for a static K. Their vec4s are stored in `planes`, the first of every `planes` neighbours
    in the first plane and so on, so that neighbouring threads read neighbouring words; with none, single numbers are in order.
    """

    def __init__(self, vectors: Vectors, planes: int, subgroup: int) -> None:
        assert isinstance(vectors.k, int)
        self._vectors, self._planes, self._length = vectors, planes, vectors.k
        kb = vectors.p.kb
        size = self._length
        kb.shared("shared_x", *(("vec4<f32>", len(vectors) * size // 4) if planes else ("f32", len(vectors) * size)))
        whole, rest = divmod(size, kb.workgroup)
        if whole <= _WRITTEN_OUT and kb.caps.unrolls:
            # One after the other, rounds of a loop would each wait for memory.
            rounds = [kb.let(f"lid + {i * kb.workgroup}u", "e") for i in range(whole)]
            for stores in kb.in_turn([partial(self._round, e) for e in rounds]):
                kb.emit(stores)
            if rest:
                kb.open(f"if (lid < {rest}u)")
                kb.emit(self._round(kb.let(f"lid + {whole * kb.workgroup}u", "e")))
                kb.close()
        else:
            kb.open(f"for (var e = lid; e < {size}u; e += {kb.workgroup}u)")
            kb.emit(self._round("e"))
            kb.close()
        self._subgroups = kb.workgroup // subgroup
        if vectors.deferred:
            kb.shared("squares", "f32", len(vectors) * self._subgroups)
            for v, name in enumerate(vectors.squares):
                total = kb.let(kb.subgroup("Add", name), "t")
                place = plus(f"lid / {subgroup}u", f"{v * self._subgroups}u")
                kb.emit(f"if (lid % {subgroup}u == 0u) {{ squares[{place}] = {total}; }}")
        kb.emit("workgroupBarrier();")

    def _round(self, e: str) -> str:
        """Computes element e of every vector, threads side by side; gives the statements that store them."""
        vectors, planes, length = self._vectors, self._planes, self._length
        p, kb = vectors.p, vectors.p.kb
        p.push()
        values = [kb.let(vectors.one(v, e), "x") for v in range(len(vectors))]
        p.pop()
        if not planes:
            return "\n".join(f"shared_x[{plus(e, f'{v * length}u')}] = {x};" for v, x in enumerate(values))
        place = f"{e} / {4 * planes}u" + (f" + ({e} / 4u) % {planes}u * {length // 4 // planes}u" if planes > 1 else "")
        return "\n".join(f"shared_x[{plus(place, f'{v * length // 4}u')}][{e} % 4u] = {x};" for v, x in enumerate(values))

    def __len__(self) -> int:
        return len(self._vectors)

    def one(self, v: int, k: str) -> str:
        """As `Vectors.one`."""
        return f"shared_x[{plus(k, f'{v * self._length}u')}]"

    def two(self, v: int, k: str) -> str:
        """As `Vectors.two`."""
        return self._vectors.p.kb.let(f"vec2<f32>({self.one(v, k)}, {self.one(v, plus(k, '1u'))})", "x")

    def fours(self, v: int, k: str, number: str, count: int) -> list[str]:
        """As `Vectors.fours`, where `count` is the number of planes."""
        assert count == self._planes
        kb, size = self._vectors.p.kb, self._length // 4
        return [kb.let(f"shared_x[{plus(number, f'{v * size + j * size // count}u')}]", "x") for j in range(count)]

    def square(self, vector: str) -> str:
        """The sum of the squares of a vector, for `finished`."""
        if not self._vectors.deferred:
            return ""
        parts = [f"squares[{vector} * {self._subgroups}u + {i}u]" for i in range(self._subgroups)]
        return self._vectors.p.kb.let(" + ".join(parts), "square")

    def finished(self, total: str, square: str) -> str:
        """As `Vectors.finished`."""
        return self._vectors.finished(total, square)


def is_norm_of_rows(n: Node) -> bool:
    """Whether a node is a norm along the last axis alone, which `Vectors` can compute.

    >>> import pumice as pm
    >>> g = pm.trace(lambda x: pm.rms_norm(x), x=pm.spec(2, 64))
    >>> is_norm_of_rows(g.nodes[-1])
    True
    """
    return isinstance(get_op(n.op).lowering, Row) and n.op in NORMS and bool(n.attr["axes"] == 1)
