"""Puller: emits WGSL that computes one element of a fused group's value at an index, pulling its operands recursively."""

from __future__ import annotations

import functools
import re
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pumice.core.dims import Dim, Shape
from pumice.core.dtypes import DType
from pumice.errors import PlanError
from pumice.ir.graph import Node
from pumice.ir.registry import Pull, Scalar
from pumice.ir.tables import table_node
from pumice.ir.views import View, contiguous_strides
from pumice.kernels.builder import KernelBuilder, Operand
from pumice.kernels.context import Group, LowerContext

Index = tuple[str, ...]
_LITERAL = re.compile(r"^\d+u$")
_KIND = {"f32": "f", "i32": "i", "u32": "u", "bool": "b"}
ZERO = {"f32": "0.0", "i32": "0i", "u32": "0u", "bool": "false"}


def is_literal(x: str) -> bool:
    return bool(_LITERAL.match(x))


def plus(a: str, b: str) -> str:
    """a + b on u32 index expressions, folding literals.

    >>> plus("0u", "i"), plus("2u", "3u"), plus("i", "4u")
    ('i', '5u', '(i + 4u)')
    """
    if a == "0u":
        return b
    if b == "0u":
        return a
    if is_literal(a) and is_literal(b):
        return f"{(int(a[:-1]) + int(b[:-1])) % (1 << 32)}u"
    return f"({a} + {b})"


def minus(a: str, b: str) -> str:
    """a - b on u32 index expressions, folding literals."""
    if b == "0u":
        return a
    if is_literal(a) and is_literal(b):
        return f"{(int(a[:-1]) - int(b[:-1])) % (1 << 32)}u"
    return f"({a} - {b})"


def times(a: str, b: str) -> str:
    """a * b on u32 index expressions, folding literals.

    >>> times("1u", "i"), times("0u", "i"), times("i", "8u")
    ('i', '0u', '(i * 8u)')
    """
    if a == "0u" or b == "0u":
        return "0u"
    if a == "1u":
        return b
    if b == "1u":
        return a
    if is_literal(a) and is_literal(b):
        return f"{int(a[:-1]) * int(b[:-1]) % (1 << 32)}u"
    return f"({a} * {b})"


def clamp_index(kb: KernelBuilder, index: str, size: Dim) -> str:
    """WGSL for an i32 index into an axis that is not empty: counted from the end when negative, then clamped.

    >>> from pumice.core.caps import Caps
    >>> clamp_index(KernelBuilder(Caps.preset("lavapipe"), workgroup=1), "i", 8)
    'clamp_index(i, 8u)'
    """
    kb.function(
        "fn clamp_index(i: i32, n: u32) -> u32 {\n"
        "  let k = select(i, i + i32(n), i < 0i);\n"
        "  return u32(clamp(k, 0i, i32(n) - 1i));\n}"
    )
    return f"clamp_index({index}, {kb.dim(size)})"


class Puller:
    """Computes values of a group inside one kernel.

    `value(node, idx)` gives a WGSL name holding the node's element at `idx` (u32 expressions, one per axis).
    The anchor is not pulled: a row or routine kernel computes it and hands its element to `root_value`.
    """

    def __init__(self, ctx: LowerContext, group: Group, kb: KernelBuilder) -> None:
        self.ctx, self.group, self.kb = ctx, group, kb
        self.inside = set(group.nodes)
        kb.inplace = group.inplace
        kb.table_of = functools.partial(table_node, ctx.graph)
        self._memo: list[dict[tuple[int, Index], str]] = [{}]
        self._linear: list[dict[tuple[Shape, Index], str]] = [{}]
        self._anchor: tuple[Index, str] | None = None
        # Nodes that the kernel computes itself, such as a norm whose statistics it has computed.
        self.rules: dict[int, Callable[[Index], str]] = {}

    # -- indices ----------------------------------------------------------------------------------------------------
    def split(self, linear: str, shape: Shape) -> Index:
        """Row-major linear index → one index per axis; remembered, so that addressing the same shape reuses it."""
        if not is_literal(linear) and not linear.isidentifier():
            linear = self.kb.let_lazy(linear)
        out: list[str] = []
        rest = linear
        wide = [d for d, size in enumerate(shape) if size != 1]
        for d in range(len(shape) - 1, -1, -1):
            if shape[d] == 1:
                out.append("0u")
            elif d == wide[0]:
                out.append(rest)
            else:
                size = self.divisor(shape[d])
                out.append(self.kb.let_lazy(f"{rest} % {size}"))
                rest = self.kb.let_lazy(f"{rest} / {size}")
        idx = tuple(reversed(out))
        self._linear[-1][shape, idx] = linear
        return idx

    def remember(self, shape: Shape, idx: Index, linear: str) -> None:
        """Records the linear index of an index, where the caller knows it already."""
        self._linear[-1][shape, idx] = linear

    def divisor(self, d: Dim) -> str:
        """A dim to divide by; WGSL refuses a literal zero even where nothing runs."""
        return self.kb.dim(1 if d == 0 else d)

    def linear(self, shape: Shape, idx: Index) -> str:
        """Row-major linear index of `idx` in `shape`."""
        for scope in reversed(self._linear):
            if (shape, idx) in scope:
                return scope[shape, idx]
        return self.address(contiguous_strides(shape), 0, idx)

    def address(self, strides: Sequence[Dim], offset: Dim, idx: Index) -> str:
        """offset + Σ idx·strides as a u32 expression."""
        out = self.kb.dim(offset)
        for i, stride in zip(idx, strides, strict=True):
            out = plus(out, times(i, self.kb.dim(stride)))
        return out

    # -- values -----------------------------------------------------------------------------------------------------
    def operand(self, leaf: int) -> Operand:
        """The binding of a stored value."""
        return self.kb.read(leaf, self.ctx.type(leaf).dtype, self.ctx.part_elements(leaf))

    def load_view(self, view: View, idx: Index) -> str:
        """WGSL expression of a strided view's element."""
        leaf = self.ctx.type(view.leaf)
        operand = self.operand(view.leaf)
        if leaf.dtype.is_quant:
            raise PlanError("quantised values are read through kernels.quant")
        if view.strides == contiguous_strides(leaf.shape) and view.offset == 0 and view.shape == leaf.shape:
            return operand.load(self.linear(leaf.shape, idx))
        return operand.load(self.address(view.strides, view.offset, idx))

    def value(self, node: int, idx: Index) -> str:
        """A WGSL name (or literal) with the node's element at `idx`, in its compute type."""
        for scope in reversed(self._memo):
            if (node, idx) in scope:
                return scope[node, idx]
        text = self._compute(self.ctx.graph.nodes[node], idx)
        plain = text.isidentifier() or (self.ctx.graph.nodes[node].op == "constant" and node not in self.inside)
        name = text if plain else self.kb.let(text, "v")
        self._memo[-1][node, idx] = name
        return name

    def _compute(self, n: Node, idx: Index) -> str:
        if n.id == self.group.anchor or (n.op == "result" and n.id in self.inside):
            if self._anchor is None or self._anchor[0] != idx:
                raise PlanError(f"%{n.id} {n.op} is read at another index than it is computed at")
            return self._anchor[1]
        if n.op == "constant" and n.type.numel == 1 and not n.type.dtype.is_quant:
            return self.constant(n)
        if n.id in self.rules:
            return self.rules[n.id](idx)
        if n.id not in self.inside:
            return self.load_view(View(n.id, n.type.shape, contiguous_strides(n.type.shape)), idx)
        lowering = n.spec.lowering
        if isinstance(lowering, Scalar):
            return self._scalar(n, lowering, idx)
        if isinstance(lowering, Pull):
            from pumice.kernels.pull_rules import PULL_RULES

            return PULL_RULES[lowering.rule](self, n, idx)
        raise PlanError(f"%{n.id} {n.op} cannot be computed element by element")

    def operand_index(self, n: Node, which: int, idx: Index) -> Index:
        """The index at which operand `which` is read under NumPy broadcasting."""
        arg = n.inputs[which]
        assert arg is not None
        return self.broadcast_index(self.ctx.type(arg).shape, n.type.shape, idx)

    def broadcast_index(self, shape: Shape, out: Shape, idx: Index) -> Index:
        """`idx` in the broadcast shape `out` as an index into `shape`."""
        if shape == out:
            return idx
        tail = idx[len(idx) - len(shape) :]
        return tuple("0u" if d == 1 else i for d, i in zip(shape, tail, strict=True))

    def _scalar(self, n: Node, lowering: Scalar, idx: Index) -> str:
        args = [self.value(a, self.operand_index(n, k, idx)) for k, a in enumerate(n.args)]
        kind = _KIND[self.ctx.type(n.args[0]).dtype.compute]
        template = lowering.wgsl.get(kind) or lowering.wgsl.get("*")
        if template is None:
            raise PlanError(f"{n.op} has no WGSL for {self.ctx.type(n.args[0]).dtype}")
        dtype = self.ctx.type(n.args[0]).dtype
        attrs = {k: self.attr_literal(k, v, dtype) for k, v in n.attrs}
        return self.wrap(n, template.format(*args, **attrs))

    def wrap(self, n: Node, text: str) -> str:
        """8-bit integers compute in 32 bits: bring a result back into range."""
        if n.type.dtype.name in ("i8", "u8"):
            return f"pm_wrap_{n.type.dtype.name}({text})"
        return text

    def constant(self, n: Node) -> str:
        """A scalar constant as WGSL text."""
        v = n.attr["data"].array(n.type.dtype.np, ()).item()
        compute = n.type.dtype.compute
        if compute == "f32":
            return float_literal(self.kb, float(v))
        if compute == "bool":
            return str(v).lower()
        return int_literal(v, compute)

    def attr_literal(self, name: str, v: Any, dtype: DType) -> str:
        """A number attribute as WGSL text in the op's compute type; None is no bound: the least for `lo`, else the greatest."""
        if dtype.compute == "f32":
            unbounded = float("-inf") if name == "lo" else float("inf")
            return float_literal(self.kb, unbounded if v is None else float(v))
        info = np.iinfo(dtype.np)
        unbounded = info.min if name == "lo" else info.max
        bounded = unbounded if v is None else min(max(v, info.min), info.max)
        return int_literal(int(bounded), dtype.compute)

    def branch(self, condition: str, node: int, idx: Index, target: str) -> None:
        """`if (condition) { target = node[idx]; }` with everything it needs computed inside the branch."""
        self.kb.open(f"if ({condition})")
        self.push()
        self.kb.emit(f"{target} = {self.value(node, idx)};")
        self.pop()
        self.kb.close()

    def push(self) -> None:
        """Enter a block: names made from here on are forgotten at `pop`."""
        self._memo.append({})
        self._linear.append({})

    def pop(self) -> None:
        self._memo.pop()
        self._linear.pop()

    # -- results ----------------------------------------------------------------------------------------------------
    def root_value(self, idx: Index, anchor: str) -> str:
        """The root's element at `idx`, given the anchor's element there: runs the epilogue."""
        self._anchor = (idx, anchor)
        self.push()
        out = self.value(self.group.root, idx)
        self.pop()
        self._anchor = None
        return out

    def out(self) -> Operand:
        """The binding that the root is written through."""
        if self.group.inplace is not None:
            return self.kb.update(self.group.inplace, self.ctx.type(self.group.root).dtype)
        return self._write(self.group.root)

    def _write(self, value: int) -> Operand:
        target = self.group.target(value)
        return self.kb.write(target, self.ctx.type(target).dtype)

    def store(self, idx: Index, value: str) -> None:
        """Store the root's element at `idx`, one element a word."""
        self._store(self.out(), self.group.root, idx, value)

    def store_result(self, index: int, idx: Index, value: str) -> None:
        """Store an element of one of the anchor's results, with the epilogue if there is one, unless nothing wants the result."""
        target = self.ctx.wanted(self.group).get(index)
        if target == self.group.root:
            self.store(idx, self.root_value(idx, value))
        elif target is not None:
            self._store(self._write(target), target, idx, value)

    def _store(self, out: Operand, stored: int, idx: Index, value: str) -> None:
        t = self.ctx.type(stored)
        if t.dtype.kind == "bool":
            value = f"select(0u, 1u, {value})"
        self.kb.emit(out.store(self.linear(t.shape, idx), value))


def int_literal(v: int, compute: str) -> str:
    """A Python int as WGSL text.

    >>> int_literal(3, "u32"), int_literal(-3, "i32")
    ('3u', '(-3i)')
    """
    if compute == "u32":
        return f"{v}u"
    # The least i32 has no literal of its own: WGSL reads it as the negation of a number too large.
    return f"{v}i" if v >= 0 else f"({v}i)" if v > -(1 << 31) else "(-2147483647i - 1i)"


def float_literal(kb: KernelBuilder, v: float) -> str:
    """A Python float as f32 WGSL text; infinities and NaN come from the library.

    >>> from pumice.core.caps import Caps
    >>> float_literal(KernelBuilder(Caps.preset("lavapipe"), workgroup=1), 0.5)
    '0.5f'
    """
    if v != v:
        return "pm_nan()"
    try:
        (v32,) = struct.unpack("f", struct.pack("f", v))
    except OverflowError:
        v32 = float("inf") if v > 0 else float("-inf")
    if v32 in (float("inf"), float("-inf")):
        return kb.inf() if v32 > 0 else f"(-{kb.inf()})"
    text = f"{v32:.9g}"
    text += "" if any(c in text for c in ".e") else ".0"
    return f"({text}f)" if text.startswith("-") else f"{text}f"
