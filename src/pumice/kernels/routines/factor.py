"""cholesky, lu and triangular_solve: elimination by columns, all threads of a workgroup updating what remains together."""

from __future__ import annotations

from pumice.core.dims import ceildiv
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines.matrices import MatrixKernel

# Columns of the right side that one workgroup solves for.
_COLUMNS = 64
_FACTORS, _ORDER, _SIGN = 0, 1, 2


def lower_cholesky(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Right-looking: each column is divided by the root of its pivot, then leaves its product out of what remains."""
    assert group.anchor is not None
    shape = ctx.graph.nodes[group.anchor].type.shape
    n = shape[-1]
    k = MatrixKernel(ctx, group, n * n, shape[:-2])
    if isinstance(n, int):
        k.require_rounds(2 * k.rounds(n * n) + sum(2 + k.rounds(n - c) + k.rounds((n - c - 1) ** 2) for c in range(n)))
    kb, size = k.kb, k.kb.dim(n)
    a = k.matrix("a", n, n)
    with k.elements(size, size) as (i, j):
        kb.emit(f"{a(i, j)} = {k.load('a', i, j)};")
    k.barrier()
    with k.steps(size) as c:
        pivot = kb.let(f"{a(c, c)}", "pivot")
        k.barrier()
        # Without a positive pivot there is no factor: NaN from here on.
        root = kb.let(f"select(pm_nan(), sqrt({pivot}), {pivot} > 0.0)", "root")
        with k.each(size, c) as i:
            kb.emit(f"{a(i, c)} = select({a(i, c)} / {root}, {root}, {i} == {c});")
        k.barrier()
        rest = kb.let(f"{size} - {c} - 1u", "rest")
        with k.elements(rest, rest) as (i, j):
            row, column = f"({c} + 1u + {i})", f"({c} + 1u + {j})"
            kb.open(f"if ({j} <= {i})")
            kb.emit(f"{a(row, column)} -= {a(row, c)} * {a(column, c)};")
            kb.close()
        k.barrier()
    with k.elements(size, size) as (i, j):
        k.store(0, (i, j), f"select(0.0, {a(i, j)}, {j} <= {i})")
    return [k.finish()]


def lower_lu(ctx: LowerContext, group: Group) -> list[Lowered]:
    """By columns with the greatest pivot: threads search it together, exchange two rows, divide, and update what remains."""
    assert group.anchor is not None
    shape = ctx.graph.nodes[group.anchor].type.shape
    n = shape[-1]
    k = MatrixKernel(ctx, group, n * n, shape[:-2])
    if isinstance(n, int):
        search = k.threads.bit_length()
        steps = sum(1 + search + 2 * k.rounds(n - c) + k.rounds(n) + k.rounds((n - c - 1) ** 2) for c in range(n))
        k.require_rounds(2 * (k.rounds(n * n) + k.rounds(n)) + steps)
    kb, size, threads = k.kb, k.kb.dim(n), k.threads
    a = k.matrix("a", n, n)
    order = k.matrix("order", 1, n)
    kb.shared("best", "f32", threads)
    kb.shared("place", "u32", threads)
    with k.elements(size, size) as (i, j):
        kb.emit(f"{a(i, j)} = {k.load('a', i, j)};")
    with k.each(size) as i:
        kb.emit(f"{order('0u', i)} = f32({i});")
    kb.emit("var sign = 1.0;")
    k.barrier()
    with k.steps(size) as c:
        kb.emit(f"var greatest = -1.0;\nvar found = {c};")
        with k.each(size, c) as i:
            kb.emit(f"let v = abs({a(i, c)});")
            kb.emit(f"if (v > greatest) {{ greatest = v; found = {i}; }}")
        kb.emit("best[lid] = greatest;\nplace[lid] = found;\nworkgroupBarrier();")
        kb.open(f"for (var d = {threads // 2}u; d > 0u; d >>= 1u)")
        kb.open("if (lid < d)")
        # Of equal ones the upper row, whichever thread saw it.
        kb.emit("let theirs = best[lid + d];\nlet row = place[lid + d];")
        kb.emit("if (theirs > best[lid] || (theirs == best[lid] && row < place[lid])) { best[lid] = theirs; place[lid] = row; }")
        kb.close()
        kb.emit("workgroupBarrier();")
        kb.close()
        kb.emit("let chosen = place[0];\nworkgroupBarrier();")
        kb.emit(f"sign = select(sign, -sign, chosen != {c});")
        with k.each(size) as j:
            kb.emit(f"let kept = {a(c, j)};\n{a(c, j)} = {a('chosen', j)};\n{a('chosen', j)} = kept;")
        kb.open("if (lid == 0u)")
        kb.emit(f"let number = {order('0u', c)};\n{order('0u', c)} = {order('0u', 'chosen')};\n{order('0u', 'chosen')} = number;")
        kb.close()
        k.barrier()
        pivot = kb.let(a(c, c), "pivot")
        with k.each(size, f"({c} + 1u)") as i:
            # A pivot of 0 has nothing but zeros below it.
            kb.emit(f"if ({pivot} != 0.0) {{ {a(i, c)} = {a(i, c)} / {pivot}; }}")
        k.barrier()
        rest = kb.let(f"{size} - {c} - 1u", "rest")
        with k.elements(rest, rest) as (i, j):
            row, column = f"({c} + 1u + {i})", f"({c} + 1u + {j})"
            kb.emit(f"{a(row, column)} -= {a(row, c)} * {a(c, column)};")
        k.barrier()
    with k.elements(size, size) as (i, j):
        k.store(_FACTORS, (i, j), a(i, j))
    with k.each(size) as i:
        k.store(_ORDER, (i,), f"i32({order('0u', i)})")
    kb.open("if (lid == 0u)")
    k.store(_SIGN, (), "sign")
    kb.close()
    return [k.finish()]


def lower_triangular_solve(ctx: LowerContext, group: Group) -> list[Lowered]:
    """Substitution: a workgroup has some columns of the right side, of which it finds one row of the solution at a time."""
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    *lead, n, m = node.type.shape
    parts = ceildiv(m, _COLUMNS)
    k = MatrixKernel(ctx, group, n * _COLUMNS, tuple(lead), parts)
    width = min(m, _COLUMNS) if isinstance(m, int) else _COLUMNS
    if isinstance(n, int):
        k.require_rounds(2 * k.rounds(n * width) + sum(1 + k.rounds(width) + k.rounds(i * width) for i in range(n)))
    kb, size = k.kb, k.kb.dim(n)
    x = k.matrix("x", n, _COLUMNS)
    kb.emit(f"let first = (wg % {k.p.divisor(parts)}) * {_COLUMNS}u;")
    kb.emit(f"let width = min({_COLUMNS}u, {kb.dim(m)} - first);")
    transposed, lower, unit = node.attr["transpose"], node.attr["lower"], node.attr["unit"]
    with k.elements(size, "width") as (i, j):
        kb.emit(f"{x(i, j)} = {k.load('b', i, f'(first + {j})')};")
    k.barrier()

    def entry(row: str, column: str) -> str:
        return k.load("a", column, row) if transposed else k.load("a", row, column)

    downwards = lower != transposed
    with k.steps(size) as step:
        row = step if downwards else kb.let(f"{size} - 1u - {step}", "row")
        if not unit:
            with k.each("width") as j:
                kb.emit(f"{x(row, j)} = {x(row, j)} / {entry(row, row)};")
            k.barrier()
        rest = kb.let(f"{size} - 1u - {step}", "rest")
        with k.elements(rest, "width") as (i, j):
            other = kb.let(f"{row} + 1u + {i}" if downwards else i, "other")
            kb.emit(f"{x(other, j)} -= {entry(other, row)} * {x(row, j)};")
        k.barrier()
    with k.elements(size, "width") as (i, j):
        k.store(0, (i, f"(first + {j})"), x(i, j))
    return [k.finish()]
