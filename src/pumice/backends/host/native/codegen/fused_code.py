"""LLVM text of the kernels that compute fused regions: vectors of elements, all operations on them, one store."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from pumice.backends.host.native.codegen.vectors import Vector, emit_op
from pumice.backends.host.native.region_kernel import Operation, RegionKernel

_LANES = 16
_LONG, _INT, _BYTE, _BIT, _FLOAT = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(1), ir.FloatType()
_ELEMENT = {"float32": _FLOAT, "int32": _INT, "bool": _BYTE}
_SIZE = {"float32": 4, "int32": 4, "bool": 1}


def text_of(kernel: RegionKernel, symbol: str) -> str:
    """The module of one kernel, `symbol(job, first, last)` for rows first…last-1.

    The words at `job` are: number of elements, columns, result, leaves.

    >>> add = RegionKernel((("float32", "each"), ("float32", "one")), (Operation("add", (0, 1), "float32"),))
    >>> "define void @\\"example\\"" in text_of(add, "example")
    True
    """
    return str(_Kernel(kernel, symbol).module)


class _Kernel:
    def __init__(self, kernel: RegionKernel, symbol: str) -> None:
        self.kernel = kernel
        self.module = ir.Module(name=symbol)
        function = ir.Function(self.module, ir.FunctionType(ir.VoidType(), [_LONG] * 3), symbol)
        entry, rows, row, done = (function.append_basic_block(n) for n in ("entry", "rows", "row", "done"))
        job, first, last = function.args
        self.b = b = ir.IRBuilder(entry)
        total, columns, out, *leaves = (self._word(job, i) for i in range(3 + len(kernel.leaves)))
        ones = {i: self._spread(leaves[i], kind, _LONG(0)) for i, (kind, spread) in enumerate(kernel.leaves) if spread == "one"}
        b.branch(rows)
        b.position_at_end(rows)
        r = b.phi(_LONG)
        r.add_incoming(first, entry)
        b.cbranch(b.icmp_signed("<", r, last), row, done)
        b.position_at_end(row)
        start = b.mul(r, columns)
        rest = b.sub(total, start)
        length = b.select(b.icmp_signed("<", rest, columns), rest, columns)
        fixed = dict(ones)
        for i, (kind, spread) in enumerate(kernel.leaves):
            if spread == "rows":
                fixed[i] = self._spread(leaves[i], kind, r)
        vectors, vector, tail, end, after = (
            function.append_basic_block(n) for n in ("vectors", "vector", "tail", "end", "after")
        )
        whole = b.and_(length, _LONG(-_LANES))
        b.branch(vectors)
        b.position_at_end(vectors)
        at = b.phi(_LONG)
        at.add_incoming(_LONG(0), row)
        b.cbranch(b.icmp_signed("<", at, whole), vector, tail)
        b.position_at_end(vector)
        self._body(fixed, leaves, out, start, at, None)
        at.add_incoming(b.add(at, _LONG(_LANES)), b.block)
        b.branch(vectors)
        b.position_at_end(tail)
        b.cbranch(b.icmp_signed("<", whole, length), end, after)
        b.position_at_end(end)
        left = self._splat(b.trunc(b.sub(length, whole), _INT))
        mask = b.icmp_signed("<", ir.Constant(ir.VectorType(_INT, _LANES), list(range(_LANES))), left)
        self._body(fixed, leaves, out, start, whole, mask)
        b.branch(after)
        b.position_at_end(after)
        r.add_incoming(b.add(r, _LONG(1)), after)
        b.branch(rows)
        b.position_at_end(done)
        b.ret_void()

    # --- memory ---

    def _word(self, job: Any, index: int) -> Any:
        return self.b.load(self.b.inttoptr(self.b.add(job, _LONG(8 * index)), _LONG.as_pointer()))

    def _place(self, base: Any, kind: str, index: Any) -> Any:
        return self.b.add(base, self.b.mul(index, _LONG(_SIZE[kind])))

    def _splat(self, scalar: Any) -> Any:
        vector = ir.VectorType(scalar.type, _LANES)
        one = self.b.insert_element(ir.Constant(vector, ir.Undefined), scalar, _INT(0))
        lanes = ir.Constant(ir.VectorType(_INT, _LANES), [0] * _LANES)
        return self.b.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)

    def _as_value(self, loaded: Any, kind: str) -> Any:
        """What is computed with: bools are bits."""
        return self.b.icmp_unsigned("!=", loaded, ir.Constant(loaded.type, None)) if kind == "bool" else loaded

    def _spread(self, base: Any, kind: str, index: Any) -> Any:
        """One element in all lanes."""
        loaded = self.b.load(self.b.inttoptr(self._place(base, kind, index), _ELEMENT[kind].as_pointer()))
        return self._as_value(self._splat(loaded), kind)

    def _intrinsic(self, name: str, result: Any, operands: list[Any]) -> Any:
        found = self.module.globals.get(name)
        if found is None:
            found = ir.Function(self.module, ir.FunctionType(result, [o.type for o in operands]), name)
        return self.b.call(found, operands)

    def _load(self, base: Any, kind: str, index: Any, mask: Any | None) -> Any:
        vector = ir.VectorType(_ELEMENT[kind], _LANES)
        place = self.b.inttoptr(self._place(base, kind, index), vector.as_pointer())
        if mask is None:
            loaded = self.b.load(place)
            loaded.align = _SIZE[kind]
        else:
            name = f"llvm.masked.load.v{_LANES}{'f32' if kind == 'float32' else f'i{8 * _SIZE[kind]}'}.p0"
            loaded = self._intrinsic(name, vector, [place, _INT(_SIZE[kind]), mask, ir.Constant(vector, None)])
        return self._as_value(loaded, kind)

    def _store(self, base: Any, kind: str, index: Any, value: Any, mask: Any | None) -> None:
        if kind == "bool":
            value = self.b.zext(value, ir.VectorType(_BYTE, _LANES))
        place = self.b.inttoptr(self._place(base, kind, index), value.type.as_pointer())
        if mask is None:
            self.b.store(value, place).align = _SIZE[kind]
        else:
            name = f"llvm.masked.store.v{_LANES}{'f32' if kind == 'float32' else f'i{8 * _SIZE[kind]}'}.p0"
            self._intrinsic(name, ir.VoidType(), [value, place, _INT(_SIZE[kind]), mask])

    # --- arithmetic ---

    def _body(self, fixed: dict[int, Any], leaves: list[Any], out: Any, start: Any, at: Any, mask: Any | None) -> None:
        index = self.b.add(start, at)
        values: list[Any] = []
        for i, (kind, spread) in enumerate(self.kernel.leaves):
            values.append(fixed[i] if i in fixed else self._load(leaves[i], kind, index if spread == "each" else at, mask))
        kinds = [kind for kind, _ in self.kernel.leaves]
        for o in self.kernel.operations:
            values.append(self._apply(o, [values[i] for i in o.operands], [kinds[i] for i in o.operands]))
            kinds.append(o.dtype)
        self._store(out, kinds[-1], index, values[-1], mask)

    def _apply(self, o: Operation, x: list[Any], kinds: list[str]) -> Any:
        if o.op == "cast":
            return self._cast(x[0], kinds[0], o.dtype)
        if o.op != "clamp":
            return emit_op(o.op)(self.b, *x)
        value: Any = Vector(self.b, x[0])
        value = value if o.low is None else np.maximum(value, o.low)
        return (value if o.high is None else np.minimum(value, o.high)).value

    def _cast(self, x: Any, kind: str, to: str) -> Any:
        if kind == to:
            return x
        floats = ir.VectorType(_FLOAT, _LANES)
        return self.b.uitofp(x, floats) if kind == "bool" else self.b.sitofp(x, floats)
