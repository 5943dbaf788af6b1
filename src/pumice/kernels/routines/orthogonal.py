"""qr by Householder reflections, svd by one-sided and eigh by two-sided Jacobi rotations; a workgroup a matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pumice.core.dims import Shape
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines.matrices import MatrixKernel, odd_pitch

Element = Callable[[str, str], str]
# Rotations converge quadratically: in f32, matrices of up to 256 columns are done after about ten rounds of all pairs.
_SWEEPS = 12
# A sweep that finds no cosine between columns above this leaves none above its square, which f32 cannot tell from 0.
_SETTLED = 1e-5
_Q, _R = 0, 1
_U, _S, _VH = 0, 1, 2
_W, _V = 0, 1


def _shape(ctx: LowerContext, group: Group) -> tuple[Shape, int, int]:
    assert group.anchor is not None
    *lead, rows, columns = ctx.type(ctx.graph.nodes[group.anchor].operands["a"]).shape
    assert isinstance(rows, int) and isinstance(columns, int)
    return tuple(lead), rows, columns


def lower_qr(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Column by column: the reflection that clears it, applied to the columns after it; then all of them, last first, to q."""
    lead, m, n = _shape(ctx, group)
    rank = min(m, n)
    k = MatrixKernel(ctx, group, m * (n + rank), lead)
    k.require_rounds(
        2 * k.rounds(m * n)
        + 2 * k.rounds(m * rank)
        + sum(2 + k.threads.bit_length() + 2 * k.rounds(m - c - 1) for c in range(rank))
        + sum(_reflect_rounds(k, m - c - 1, n - c - 1, n) + _reflect_rounds(k, m - c - 1, rank - c, rank) for c in range(rank))
    )
    kb = k.kb
    a, q = k.matrix("a", m, n), k.matrix("q", m, rank)
    kb.shared("scratch", "f32", k.threads)
    kb.shared("taus", "f32", max(1, rank))
    with k.elements(f"{m}u", f"{n}u") as (i, j):
        kb.emit(f"{a(i, j)} = {k.load('a', i, j)};")
    with k.elements(f"{m}u", f"{rank}u") as (i, j):
        kb.emit(f"{q(i, j)} = select(0.0, 1.0, {i} == {j});")
    k.barrier()
    with k.steps(f"{rank}u") as c:
        kb.emit("var part = 0.0;")
        with k.each(f"{m}u", f"({c} + 1u)") as i:
            kb.emit(f"part += {a(i, c)} * {a(i, c)};")
        below = k.total("scratch", "part")
        alpha = kb.let(a(c, c), "alpha")
        k.barrier()
        # As LAPACK: a column that is clear already is not reflected, whatever its sign.
        kb.emit(f"let beta = select(-pm_copysign(sqrt({alpha} * {alpha} + {below}), {alpha}), {alpha}, {below} == 0.0);")
        kb.emit(f"let tau = select((beta - {alpha}) / beta, 0.0, {below} == 0.0);")
        kb.emit(f"let factor = select(1.0 / ({alpha} - beta), 0.0, {below} == 0.0);")
        with k.each(f"{m}u", f"({c} + 1u)") as i:
            kb.emit(f"{a(i, c)} *= factor;")
        kb.emit(f"if (lid == 0u) {{ {a(c, c)} = beta; taus[{c}] = tau; }}")
        k.barrier()
        _reflect(k, a, a, c, m, f"({c} + 1u)", n)
    with k.steps(f"{rank}u", "back") as back:
        c = kb.let(f"{rank - 1}u - {back}", "c")
        _reflect(k, a, q, c, m, c, rank)
    with k.elements(f"{m}u", f"{rank}u") as (i, j):
        k.store(_Q, (i, j), q(i, j))
    with k.elements(f"{rank}u", f"{n}u") as (i, j):
        k.store(_R, (i, j), f"select(0.0, {a(i, j)}, {j} >= {i})")
    return [k.finish()]


def _reflect(k: MatrixKernel, a: Element, target: Element, c: str, rows: int, first: str, columns: int) -> None:
    """The reflection kept in column c of a, applied to the columns of `target` from `first` on."""
    kb, lanes = k.kb, k.lanes(columns)
    kb.open(f"for (var base = 0u; base < {columns}u; base += {k.threads // lanes}u)")
    kb.emit(f"let column = {first} + base + lid / {lanes}u;\nlet lane = lid % {lanes}u;\nlet exists = column < {columns}u;")
    kb.emit("var part = 0.0;")
    kb.open("if (exists)")
    rest = f"for (var i = {c} + 1u + lane; i < {rows}u; i += {lanes}u)"
    kb.emit(f"{rest} {{ part += {a('i', c)} * {target('i', 'column')}; }}")
    kb.close()
    kb.emit("scratch[lid] = part;\nworkgroupBarrier();")
    kb.emit("var along = 0.0;")
    kb.open("if (exists)")
    kb.emit(f"along = {target(c, 'column')};")
    kb.emit(f"for (var t = 0u; t < {lanes}u; t++) {{ along += scratch[lid / {lanes}u * {lanes}u + t]; }}")
    kb.emit(f"along *= taus[{c}];")
    kb.close()
    k.barrier()
    kb.open("if (exists)")
    kb.emit(f"{rest} {{ {target('i', 'column')} -= {a('i', c)} * along; }}")
    kb.emit(f"if (lane == 0u) {{ {target(c, 'column')} -= along; }}")
    kb.close()
    k.barrier()
    kb.close()


def _reflect_rounds(k: MatrixKernel, rows: int, active: int, columns: int) -> int:
    """Rounds of `_reflect`: those of columns that exist have two loops over the rows and one over lanes."""
    lanes = k.lanes(columns)
    at_once = k.threads // lanes
    every, busy = -(-columns // at_once), -(-active // at_once)
    return 1 + every * 4 + busy * (2 * -(-rows // lanes) + lanes)


def _pair(kb_let: Callable[[str, str], str], turn: str, item: str, n: int) -> tuple[str, str]:
    """The pair of columns that `item` has in a turn of a tournament of all n; the greater is n where there is none."""
    players = n + n % 2
    around = players - 1
    one = kb_let(f"({turn} + {item}) % {around}u", "one")
    other = kb_let(f"select(({turn} + {around}u - {item}) % {around}u, {around}u, {item} == 0u)", "other")
    return kb_let(f"min({one}, {other})", "p"), kb_let(f"max({one}, {other})", "q")


def _rotation(k: MatrixKernel, pp: str, qq: str, pq: str, small: str) -> None:
    """`cosine` and `sine` of the rotation by less than 45° that clears pq."""
    kb = k.kb
    kb.emit("var cosine = 1.0;\nvar sine = 0.0;")
    kb.open(f"if (!({small}))")
    kb.emit(f"let zeta = ({qq} - {pp}) / (2.0 * {pq});")
    kb.emit("let tangent = select(-1.0, 1.0, zeta >= 0.0) / (abs(zeta) + sqrt(1.0 + zeta * zeta));")
    kb.emit("cosine = 1.0 / sqrt(1.0 + tangent * tangent);\nsine = cosine * tangent;")
    kb.close()


@contextmanager
def _sweeps(k: MatrixKernel, n: int) -> Iterator[str]:
    """A block for each turn of the sweeps over all pairs of n columns; they end after one in which nobody called `_unsettled`."""
    kb = k.kb
    kb.shared("unsettled", "atomic<u32>", 1)
    kb.shared("again", "u32", 1)
    with k.steps(f"{_SWEEPS}u", "sweep"):
        with k.steps(f"{_turns(n)}u", "turn") as turn:
            yield turn
        kb.emit("if (lid == 0u) { again[0] = atomicExchange(&unsettled[0], 0u); }")
        kb.emit("if (workgroupUniformLoad(&again[0]) == 0u) { break; }")


def _turns(n: int) -> int:
    """Turns of a tournament of n columns."""
    return n + n % 2 - 1


def _unsettled(k: MatrixKernel, pq: str, scale: str) -> None:
    """Asks for one more sweep where pq is not small beside the scale; NaN never is."""
    k.kb.emit(f"if (!(abs({pq}) <= {_SETTLED} * ({scale}))) {{ atomicStore(&unsettled[0], 1u); }}")


def lower_svd(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Pairs of columns are turned until all are orthogonal: then their lengths are the singular values."""
    lead, m, n = _shape(ctx, group)
    k = MatrixKernel(ctx, group, (m + n) * odd_pitch(n), lead)
    kb = k.kb
    a, v = k.matrix("a", m, n, by_columns=True), k.matrix("v", n, n, by_columns=True)
    for name in ("scratch_p", "scratch_q", "scratch_pq"):
        kb.shared(name, "f32", k.threads)
    kb.shared("lengths", "f32", max(1, n))
    with k.elements(f"{m}u", f"{n}u") as (i, j):
        kb.emit(f"{a(i, j)} = {k.load('a', i, j)};")
    with k.elements(f"{n}u", f"{n}u") as (i, j):
        kb.emit(f"{v(i, j)} = select(0.0, 1.0, {i} == {j});")
    k.barrier()
    pairs, lanes = (n + 1) // 2, k.lanes((n + 1) // 2)
    if n > 1:
        each = 5 + 2 * -(-m // lanes) + lanes + -(-n // lanes)
        turns = _SWEEPS * (2 + _turns(n) * (2 + -(-pairs // (k.threads // lanes)) * each))
        k.require_rounds(turns + k.rounds(m * n) + k.rounds(n * n) + k.rounds(n) * (2 * m + 3 * n + 6))
        with _sweeps(k, n) as turn:
            kb.open(f"for (var base = 0u; base < {pairs}u; base += {k.threads // lanes}u)")
            kb.emit(f"let item = base + lid / {lanes}u;\nlet lane = lid % {lanes}u;")
            p, q = _pair(kb.let, turn, "item", n)
            kb.emit(f"let exists = item < {pairs}u && {q} < {n}u;")
            kb.emit("var pp = 0.0;\nvar qq = 0.0;\nvar pq = 0.0;")
            kb.open("if (exists)")
            kb.open(f"for (var i = lane; i < {m}u; i += {lanes}u)")
            kb.emit(f"let x = {a('i', p)};\nlet y = {a('i', q)};\npp += x * x;\nqq += y * y;\npq += x * y;")
            kb.close()
            kb.close()
            kb.emit("scratch_p[lid] = pp;\nscratch_q[lid] = qq;\nscratch_pq[lid] = pq;\nworkgroupBarrier();")
            kb.emit("pp = 0.0;\nqq = 0.0;\npq = 0.0;")
            kb.open(f"for (var t = 0u; t < {lanes}u; t++)")
            kb.emit(f"let s = lid / {lanes}u * {lanes}u + t;\npp += scratch_p[s];\nqq += scratch_q[s];\npq += scratch_pq[s];")
            kb.close()
            kb.emit("workgroupBarrier();")
            kb.open("if (exists)")
            _unsettled(k, "pq", "sqrt(pp) * sqrt(qq)")
            _rotation(k, "pp", "qq", "pq", "abs(pq) <= 3e-8 * sqrt(pp) * sqrt(qq)")
            for matrix, rows in ((a, m), (v, n)):
                kb.open(f"for (var i = lane; i < {rows}u; i += {lanes}u)")
                kb.emit(f"let x = {matrix('i', p)};\nlet y = {matrix('i', q)};")
                kb.emit(f"{matrix('i', p)} = cosine * x - sine * y;\n{matrix('i', q)} = sine * x + cosine * y;")
                kb.close()
            kb.close()
            k.barrier()
            kb.close()
    with k.each(f"{n}u") as j:
        kb.emit(f"var total = 0.0;\nfor (var i = 0u; i < {m}u; i++) {{ total += {a('i', j)} * {a('i', j)}; }}")
        kb.emit(f"lengths[{j}] = sqrt(total);")
    k.barrier()
    with k.each(f"{n}u") as j:
        _place(k, "lengths", j, n, v, descending=True)
        k.store(_S, ("place",), f"lengths[{j}]")
        kb.open(f"for (var i = 0u; i < {n}u; i++)")
        k.store(_VH, ("place", "i"), f"turned * {v('i', j)}")
        kb.close()
        # A length of 0 has no direction.
        kb.emit(f"let shrink = select(turned / lengths[{j}], 0.0, lengths[{j}] == 0.0);")
        kb.open(f"for (var i = 0u; i < {m}u; i++)")
        k.store(_U, ("i", "place"), f"shrink * {a('i', j)}")
        kb.close()
    return [k.finish()]


def _place(k: MatrixKernel, values: str, j: str, n: int, vectors: Element, *, descending: bool) -> None:
    """`place`: where value j is in order; `turned`: the sign that makes the greatest entry of its vector positive."""
    kb, sign = k.kb, ">" if descending else "<"
    kb.emit("var place = 0u;\nvar ordered = true;")
    kb.open(f"for (var i = 0u; i < {n}u; i++)")
    kb.emit(f"ordered = ordered && !pm_isnan({values}[i]);")
    kb.emit(f"if ({values}[i] {sign} {values}[{j}] || ({values}[i] == {values}[{j}] && i < {j})) {{ place++; }}")
    kb.close()
    # NaN has no order: each value keeps its place, so that each place is written.
    kb.emit(f"place = select({j}, place, ordered);")
    kb.emit("var greatest = 0.0;\nvar turned = 1.0;")
    kb.open(f"for (var i = 0u; i < {n}u; i++)")
    kb.emit(f"let x = {vectors('i', j)};")
    kb.emit("if (abs(x) > greatest) { greatest = abs(x); turned = select(1.0, -1.0, x < 0.0); }")
    kb.close()


def lower_eigh(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Rotations of pairs of rows and columns, as many at a time as are disjoint, until nothing is left off the diagonal."""
    lead, n, _ = _shape(ctx, group)
    k = MatrixKernel(ctx, group, 2 * n * odd_pitch(n), lead)
    kb = k.kb
    a, v = k.matrix("a", n, n, by_columns=True), k.matrix("v", n, n, by_columns=True)
    pairs = (n + 1) // 2
    for name in ("cosines", "sines"):
        kb.shared(name, "f32", max(1, pairs))
    kb.shared("values", "f32", max(1, n))
    with k.elements(f"{n}u", f"{n}u") as (i, j):
        kb.emit(f"{a(i, j)} = {k.load('a', f'max({i}, {j})', f'min({i}, {j})')};")
        kb.emit(f"{v(i, j)} = select(0.0, 1.0, {i} == {j});")
    k.barrier()
    if n > 1:
        turns = _SWEEPS * (2 + _turns(n) * (1 + k.rounds(pairs) + 2 * k.rounds(pairs * n)))
        k.require_rounds(turns + k.rounds(n * n) + k.rounds(n) * (3 * n + 5))
        with _sweeps(k, n) as turn:
            with k.each(f"{pairs}u") as item:
                p, q = _pair(kb.let, turn, item, n)
                kb.open(f"if ({q} < {n}u)")
                _unsettled(k, a(p, q), f"abs({a(p, p)}) + abs({a(q, q)})")
                _rotation(k, a(p, p), a(q, q), a(p, q), f"{a(p, q)} == 0.0")
                kb.emit(f"cosines[{item}] = cosine;\nsines[{item}] = sine;")
                kb.close()
            k.barrier()
            for targets, by_rows in (((a,), True), ((a, v), False)):
                with k.elements(f"{pairs}u", f"{n}u") as (item, other):
                    p, q = _pair(kb.let, turn, item, n)
                    kb.open(f"if ({q} < {n}u)")
                    kb.emit(f"let cosine = cosines[{item}];\nlet sine = sines[{item}];")
                    for target in targets:
                        first, second = (target(p, other), target(q, other)) if by_rows else (target(other, p), target(other, q))
                        kb.open("")
                        kb.emit(f"let x = {first};\nlet y = {second};")
                        kb.emit(f"{first} = cosine * x - sine * y;\n{second} = sine * x + cosine * y;")
                        kb.close()
                    kb.close()
                k.barrier()
    with k.each(f"{n}u") as j:
        kb.emit(f"values[{j}] = {a(j, j)};")
    k.barrier()
    with k.each(f"{n}u") as j:
        _place(k, "values", j, n, v, descending=False)
        k.store(_W, ("place",), f"values[{j}]")
        kb.open(f"for (var i = 0u; i < {n}u; i++)")
        k.store(_V, ("i", "place"), f"turned * {v('i', j)}")
        kb.close()
    return [k.finish()]
