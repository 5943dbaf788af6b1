"""Index rules of the ops that only move or look up elements: how an output element follows from input elements."""

from __future__ import annotations

from collections.abc import Callable

from pumice.core.dims import Dim
from pumice.ir.graph import Node
from pumice.kernels.pull import ZERO, Index, Puller, clamp_index, float_literal, minus, plus, times
from pumice.kernels.quant import dequantized_element
from pumice.kernels.resize import upsample

Rule = Callable[[Puller, Node, Index], str]


def _reshape(p: Puller, n: Node, idx: Index) -> str:
    source = p.ctx.type(n.operands["x"]).shape
    wide_out = [(d, i) for d, i in zip(n.type.shape, idx, strict=True) if d != 1]
    wide_in = [d for d in source if d != 1]
    if [d for d, _ in wide_out] == wide_in:  # only dims of size 1 come or go: no arithmetic
        taken = iter(i for _, i in wide_out)
        return p.value(n.operands["x"], tuple("0u" if d == 1 else next(taken) for d in source))
    return p.value(n.operands["x"], p.split(p.linear(n.type.shape, idx), source))


def _identity(p: Puller, n: Node, idx: Index) -> str:
    return p.value(n.operands["x"], idx)


def _transpose(p: Puller, n: Node, idx: Index) -> str:
    source = ["0u"] * len(idx)
    for out_axis, in_axis in enumerate(n.attr["perm"]):
        source[in_axis] = idx[out_axis]
    return p.value(n.operands["x"], tuple(source))


def _slice(p: Puller, n: Node, idx: Index) -> str:
    source = []
    for i, start, step in zip(idx, n.attr["starts"], n.attr["steps"], strict=True):
        first = p.kb.dim(start)
        source.append(plus(first, times(i, f"{step}u")) if step > 0 else minus(first, times(i, f"{-step}u")))
    return p.value(n.operands["x"], tuple(source))


def _unfold(p: Puller, n: Node, idx: Index) -> str:
    *batch, frame, i = idx
    return p.value(n.operands["x"], (*batch, plus(times(frame, f"{n.attr['hop']}u"), i)))


def _expand(p: Puller, n: Node, idx: Index) -> str:
    return p.value(n.operands["x"], p.operand_index(n, 0, idx))


def _flip(p: Puller, n: Node, idx: Index) -> str:
    axes = set(n.attr["axes"])
    return p.value(
        n.operands["x"],
        tuple(minus(p.kb.dim(d - 1), i) if a in axes else i for a, (d, i) in enumerate(zip(n.type.shape, idx, strict=True))),
    )


def _concat(p: Puller, n: Node, idx: Index) -> str:
    axis, kb = n.attr["axis"], p.kb
    compute = n.type.dtype.compute
    target = kb.fresh("c")
    kb.emit(f"var {target}: {compute} = {ZERO[compute]};")
    along = idx[axis]
    start = p.ctx.type(n.operands["x"]).shape[axis] * 0
    for arg in n.args:
        size = p.ctx.type(arg).shape[axis]
        if size == 0:
            continue
        local = minus(along, kb.dim(start))
        # Unsigned wrap-around turns "start ≤ along < start + size" into one comparison.
        p.branch(f"{local} < {kb.dim(size)}", arg, (*idx[:axis], local, *idx[axis + 1 :]), target)
        start = start + size
    return target


def _pad(p: Puller, n: Node, idx: Index) -> str:
    kb, compute = p.kb, n.type.dtype.compute
    value = n.attr["value"]
    fill = {"f32": lambda: float_literal(kb, float(value)), "i32": lambda: f"{int(value)}i", "u32": lambda: f"{int(value)}u"}
    target = kb.fresh("c")
    kb.emit(f"var {target}: {compute} = {str(bool(value)).lower() if compute == 'bool' else fill[compute]()};")
    tests, source = [], []
    for i, lo, hi, d in zip(idx, n.attr["lo"], n.attr["hi"], p.ctx.type(n.operands["x"]).shape, strict=True):
        local = minus(i, kb.dim(lo))
        source.append(local)
        if lo != 0 or hi != 0:
            tests.append(f"{local} < {kb.dim(d)}")
    p.branch(" && ".join(tests) or "true", n.operands["x"], tuple(source), target)
    return target


def index_value(p: Puller, node: int, idx: Index) -> str:
    """An element of an integer tensor as i32; a u32 beyond that range stays out of range of any axis."""
    v = p.value(node, idx)
    return v if p.ctx.type(node).dtype.compute == "i32" else f"bitcast<i32>(min({v}, 2147483647u))"


def _select_row(p: Puller, n: Node, indices: int, at: Index, size: Dim, pull: Callable[[str], str]) -> str:
    """`pull` the element at the index that `indices` holds at `at`: counted from the end when negative, then clamped.

    For an axis that is empty at run time the element is 0.
    """
    kb = p.kb
    index = clamp_index(kb, index_value(p, indices, at), size)
    if isinstance(size, int):
        return pull(kb.let(index, "j"))
    compute = n.type.dtype.compute
    target = kb.fresh("c")
    kb.emit(f"var {target}: {compute} = {ZERO[compute]};")
    kb.open(f"if ({kb.dim(size)} > 0u)")
    p.push()
    kb.emit(f"{target} = {pull(kb.let(index, 'j'))};")
    p.pop()
    kb.close()
    return target


def _gather(p: Puller, n: Node, idx: Index) -> str:
    x, indices = n.operands["x"], n.operands["indices"]
    axis, rank = n.attr["axis"], p.ctx.type(indices).rank
    size = p.ctx.type(x).shape[axis]
    return _select_row(p, n, indices, idx[axis : axis + rank], size, lambda j: p.value(x, (*idx[:axis], j, *idx[axis + rank :])))


def _take_along_axis(p: Puller, n: Node, idx: Index) -> str:
    x, indices = n.operands["x"], n.operands["indices"]
    axis = n.attr["axis"]
    size = p.ctx.type(x).shape[axis]
    return _select_row(p, n, indices, idx, size, lambda j: p.value(x, (*idx[:axis], j, *idx[axis + 1 :])))


def _embedding(p: Puller, n: Node, idx: Index) -> str:
    table, ids = n.operands["table"], n.operands["ids"]
    t = p.ctx.type(table)

    def pull(row: str) -> str:
        return dequantized_element(p, table, row, idx[-1]) if t.dtype.is_quant else p.value(table, (row, idx[-1]))

    return _select_row(p, n, ids, idx[:-1], t.shape[0], pull)


def _dequantize(p: Puller, n: Node, idx: Index) -> str:
    t = p.ctx.type(n.operands["w"])
    row = p.linear(t.shape[:-1], idx[:-1]) if t.rank > 1 else "0u"
    return dequantized_element(p, n.operands["w"], row, idx[-1])


def _one_hot(p: Puller, n: Node, idx: Index) -> str:
    ids = n.operands["ids"]
    p.kb.function("fn one_hot_hit(i: i32, n: u32, k: u32) -> bool { return u32(select(i, i + i32(n), i < 0i)) == k; }")
    hit = f"one_hot_hit({index_value(p, ids, idx[:-1])}, {p.kb.dim(n.attr['depth'])}, {idx[-1]})"
    one = {"f32": "1.0", "i32": "1i", "u32": "1u", "bool": "true"}[n.type.dtype.compute]
    return f"select({ZERO[n.type.dtype.compute]}, {one}, {hit})"


def _arange(p: Puller, n: Node, idx: Index) -> str:
    start, step = n.attr["start"], n.attr["step"]
    if n.type.dtype.compute == "f32":
        first = float_literal(p.kb, float(start)) if isinstance(start, (int, float)) else f"f32(i32({p.kb.dim(start)}))"
        return f"({first} + f32({idx[0]}) * {float_literal(p.kb, float(step))})"
    at = plus(p.kb.dim(start), times(idx[0], p.kb.dim(step)))
    if n.type.dtype.compute == "i32":
        return p.wrap(n, f"bitcast<i32>({at})")
    return p.wrap(n, at)


def _threefry(p: Puller, n: Node, idx: Index, stream: int) -> str:
    key = n.operands["key"]
    k0, k1 = p.value(key, ("0u",)), p.value(key, ("1u",))
    return p.kb.let(f"pm_threefry({k0}, {k1}, {p.linear(n.type.shape, idx)}, {stream}u)", "r")


def _random_bits(p: Puller, n: Node, idx: Index) -> str:
    return f"{_threefry(p, n, idx, 0)}.x"


def _random_uniform(p: Puller, n: Node, idx: Index) -> str:
    return f"(f32({_threefry(p, n, idx, 0)}.x >> 8u) * 5.9604644775390625e-8)"


def _random_bernoulli(p: Puller, n: Node, idx: Index) -> str:
    return f"({_random_uniform(p, n, idx)} < {float_literal(p.kb, float(n.attr['p']))})"


def _random_normal(p: Puller, n: Node, idx: Index) -> str:
    r = _threefry(p, n, idx, 1)
    radius = f"sqrt(-2.0 * pm_log(f32(({r}.x >> 8u) + 1u) * 5.9604644775390625e-8))"
    return f"({radius} * pm_cos(6.283185307179586 * f32({r}.y >> 8u) * 5.9604644775390625e-8))"


def _cast(p: Puller, n: Node, idx: Index) -> str:
    v = p.value(n.operands["x"], idx)
    source, target = p.ctx.type(n.operands["x"]).dtype, n.type.dtype
    if source == target:
        return v
    if target.kind == "bool":
        return f"pm_f32_to_bool({v})" if source.compute == "f32" else f"({v} != {ZERO[source.compute]})"
    if target.kind == "float":
        if source.compute == "bool":
            return f"select(0.0, 1.0, {v})"
        wide = v if source.compute == "f32" else f"f32({v})"
        # Every f16 and bf16 is an f32; the other way round rounds here, not only when the value is stored.
        return wide if target.name == "f32" or (source == target) else f"pm_round_{target.name}({wide})"
    if source.compute == "f32":
        return f"pm_f32_to_{target.name}({v})"
    if source.compute == "bool":
        return f"select({ZERO[target.compute]}, {'1i' if target.compute == 'i32' else '1u'}, {v})"
    return p.wrap(n, v if source.compute == target.compute else f"bitcast<{target.compute}>({v})")


def _cross_entropy_gradient(p: Puller, n: Node, idx: Index) -> str:
    x, targets, picked, loss, dy = (n.operands[name] for name in ("logits", "targets", "picked", "loss", "dy"))
    row = idx[:-1]
    # A negative target becomes one beyond every class.
    target = p.kb.let(f"u32({p.value(targets, row)})", "t")
    p.kb.function(
        "fn cross_entropy_slope(x: f32, picked: f32, loss: f32, dy: f32, class_: u32, t: u32, n: u32) -> f32 {\n"
        "  if (t >= n) { return 0.0; }\n"
        "  return dy * (pm_exp((x - picked) - loss) - select(0.0, 1.0, class_ == t));\n}"
    )
    operands = f"{p.value(x, idx)}, {p.value(picked, row)}, {p.value(loss, row)}, {p.value(dy, row)}, {idx[-1]}, {target}"
    return f"cross_entropy_slope({operands}, {p.kb.dim(n.type.shape[-1])})"


def _rope(p: Puller, n: Node, idx: Index) -> str:
    x, cos, sin = (n.operands[name] for name in ("x", "cos", "sin"))
    kb, rotary, d = p.kb, n.attr["rotary_dim"], idx[-1]
    half = rotary // 2
    out = kb.fresh("c")
    kb.emit(f"var {out}: f32 = {p.value(x, idx)};")
    kb.open(f"if ({d} < {rotary}u)")
    p.push()
    if n.attr["interleaved"]:
        pair, second = kb.let(f"{d} / 2u", "i"), f"({d} & 1u) == 1u"
        other = kb.let(f"{d} ^ 1u", "i")
    else:
        second = f"{d} >= {half}u"
        pair = kb.let(f"select({d}, {d} - {half}u, {second})", "i")
        other = kb.let(f"select({d} + {half}u, {d} - {half}u, {second})", "i")
    at = (*idx[:-1], pair)
    angle_shape = (*n.type.shape[:-1], half)
    c = p.value(cos, p.broadcast_index(p.ctx.type(cos).shape, angle_shape, at))
    s = p.value(sin, p.broadcast_index(p.ctx.type(sin).shape, angle_shape, at))
    partner = p.value(x, (*idx[:-1], other))
    kb.emit(f"{out} = {out} * {c} + select(-1.0, 1.0, {second}) * {partner} * {s};")
    p.pop()
    kb.close()
    return out


PULL_RULES: dict[str, Rule] = {
    "identity": _identity,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "expand": _expand,
    "unfold": _unfold,
    "flip": _flip,
    "concat": _concat,
    "pad": _pad,
    "gather": _gather,
    "take_along_axis": _take_along_axis,
    "embedding": _embedding,
    "dequantize": _dequantize,
    "one_hot": _one_hot,
    "arange": _arange,
    "random_bits": _random_bits,
    "random_uniform": _random_uniform,
    "random_normal": _random_normal,
    "random_bernoulli": _random_bernoulli,
    "cast": _cast,
    "rope": _rope,
    "cross_entropy_gradient": _cross_entropy_gradient,
    "upsample": upsample,
}
