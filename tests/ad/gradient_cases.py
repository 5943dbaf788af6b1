"""Gradient graphs of single ops over the registry's samples, and the difference quotients that they are compared with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pumice.ad import backward
from pumice.core import dtypes
from pumice.ir.graph import Graph, GraphBuilder, bind_attrs
from pumice.ir.registry import OpSpec, Packed, Sample, all_ops
from pumice.ir.types import TensorType
from pumice.reference.interpreter import evaluate_graph

from harness import Array, Case, operands

DIFFERENTIABLE = [s for s in all_ops() if s.gradient is not None]
_LARGEST = 6000  # elements; larger samples test kernels, not gradients
_ON_A_JUMP = {("mod", "bf16")}  # samples with an exact multiple in so few bits
_STEPS = (1e-5, 1e-6, 1e-7, 1e-8)


def float_operands(sample: Sample) -> list[int]:
    """Positions of the operands that have gradients."""
    return [k for k, a in enumerate(sample.inputs) if isinstance(a, np.ndarray) and dtypes.dtype(a.dtype).is_float]


def output_types(spec: OpSpec, sample: Sample) -> tuple[TensorType, ...]:
    types = [
        None if a is None else TensorType(a.dtype if isinstance(a, Packed) else dtypes.dtype(a.dtype), a.shape)
        for a in spec.complete_operands(sample.inputs)
    ]
    return spec.result_types(types, spec.complete_attrs(sample.attrs))


def usable_samples(spec: OpSpec) -> Iterator[Sample]:
    """Samples with a gradient to check: floats in and out, all finite, not too large."""
    for s in spec.samples():
        arrays = [a for a in s.inputs if isinstance(a, np.ndarray)]
        if not float_operands(s) or sum(a.size for a in arrays) > _LARGEST:
            continue
        finite = all(np.isfinite(a.astype(np.float64)).all() for a in arrays)
        out = output_types(spec, s)[0].dtype
        # Rounding is a staircase: its difference quotient says nothing.
        rounds = (spec.name == "cast" and out != dtypes.f32) or (spec.name, s.label) in _ON_A_JUMP
        rounds = rounds or s.attrs.get("precision") == "fast"
        # Where equal elements are sorted, another one is taken as soon as one moves.
        ties = spec.family == "sort" and any(np.unique(a.astype(np.float64)).size < a.size for a in arrays)
        # Factors of singular matrices jump, and signs of vectors do; of points that are as near, another is taken as one moves.
        ties = ties or (spec.family in ("linalg", "select") and any(word in s.label for word in ("singular", "jump", "ties")))
        if finite and out.is_float and not rounds and not ties and all(np.isfinite(r).all() for r in references(spec, s)):
            yield s


def references(spec: OpSpec, sample: Sample) -> tuple[Array, ...]:
    """The op's results in float64."""
    floats = float_operands(sample)
    wide = [a.astype(np.float64) if k in floats else a for k, a in enumerate(spec.complete_operands(sample.inputs))]
    with np.errstate(all="ignore"):
        return spec.evaluate(wide, bind_attrs(spec.complete_attrs(sample.attrs), {}), output_types(spec, sample))


def gradient_case(spec: OpSpec, sample: Sample) -> Case:
    """The graph of the gradients of sum(result * r) over all float results with respect to every float operand."""
    b = GraphBuilder()
    ids, inputs, params = operands(b, sample)
    loss: int | None = None
    for i, y in enumerate(b.add_all(spec.name, ids, sample.attrs)):
        if not b.type(y).dtype.is_float:
            continue
        name = f"r{i or ''}"
        r = b.source("input", name, TensorType(dtypes.f32, b.type(y).shape))
        inputs[name] = weights(b.type(y).static_shape, i)
        wide = y if b.type(y).dtype == dtypes.f32 else b.add("cast", [y], {"dtype": "f32"})
        term = b.add("reduce_sum", [b.add("mul", [wide, r])], {"axes": tuple(range(b.type(y).rank))})
        loss = term if loss is None else b.add("add", [loss, term])
    assert loss is not None
    wrt = float_operands(sample)
    found = backward(b, loss, [i for k in wrt if (i := ids[k]) is not None])
    return Case(b.build([(f"d{k}", i) for k, i in zip(wrt, found, strict=True)]), inputs, params)


def weights(shape: tuple[int, ...], result: int = 0) -> Array:
    return np.asarray(np.random.default_rng(5 + result).standard_normal(shape).astype(np.float32))


def disagreement(spec: OpSpec, sample: Sample) -> str:
    """ "" or how the gradients along random directions differ from difference quotients of the float64 reference."""
    case = gradient_case(spec, sample)
    gradients = evaluate_graph(case.graph, case.inputs, case.params).outputs
    wrt, outs = float_operands(sample), output_types(spec, sample)
    attrs = bind_attrs(spec.complete_attrs(sample.attrs), {})
    arrays = [
        a.astype(np.float64) if k in wrt and isinstance(a, np.ndarray) else a
        for k, a in enumerate(spec.complete_operands(sample.inputs))
    ]
    factors = {i: weights(t.static_shape, i).astype(np.float64) for i, t in enumerate(outs) if t.dtype.is_float}

    def loss(moved: dict[int, Array]) -> float:
        with np.errstate(all="ignore"):
            results = spec.evaluate([moved.get(k, a) for k, a in enumerate(arrays)], attrs, outs)
        return sum(float(np.sum(results[i] * r)) for i, r in factors.items())

    half = outs[0].dtype != dtypes.f32 or any(
        dtypes.dtype(a.dtype) != dtypes.f32 for k in wrt if (a := sample.inputs[k]) is not None
    )
    tolerance = 0.03 if half else 1e-5
    rng = np.random.default_rng(7)
    for k, gradient in zip(wrt, gradients, strict=True):
        direction = rng.standard_normal(gradient.shape)
        expected = float(np.sum(direction * gradient))
        size = float(np.sqrt(np.sum((direction * gradient) ** 2))) + 1e-3
        errors = []
        for h in _STEPS:
            up, down = loss({k: arrays[k] + h * direction}), loss({k: arrays[k] - h * direction})
            errors.append(abs((up - down) / (2 * h) - expected) / size)
        if not min(errors, default=0.0) <= tolerance:
            return f"operand {k}: {min(errors):.3g} off, gradient along the direction is {expected:.6g}"
    return ""


def second_order_disagreement(spec: OpSpec) -> str:
    """As `disagreement`, for the gradient of sum((the op's gradient) * s) over the op's first usable f32 sample."""
    for sample in usable_samples(spec):
        floats = [sample.inputs[k] for k in float_operands(sample)]
        if all(a.dtype == np.float32 for a in floats) and np.prod(output_types(spec, sample)[0].static_shape) > 1:
            break
    else:
        raise AssertionError("no f32 sample")
    first = gradient_case(spec, sample)
    b = GraphBuilder.of(first.graph)
    sources = {n.name: n.id for n in first.graph.sources("input")}
    wrt = [sources[f"x{k}"] for k in float_operands(sample)]
    terms = []
    inputs = dict(first.inputs)
    for name, i in first.graph.outputs:
        t = b.type(i)
        inputs[f"s_{name}"] = weights(t.static_shape)
        s = b.source("input", f"s_{name}", t)
        terms.append(b.add("reduce_sum", [b.add("mul", [i, s])], {"axes": tuple(range(t.rank))}))
    loss = terms[0]
    for t in terms[1:]:
        loss = b.add("add", [loss, t])
    value = b.build([("loss", loss)])
    gradients = evaluate_graph(gradients_of(b, loss, wrt), inputs, first.params).outputs
    rng = np.random.default_rng(11)
    for k, gradient in zip(float_operands(sample), gradients, strict=True):
        direction = rng.standard_normal(gradient.shape)
        expected = float(np.sum(direction * gradient))
        size = float(np.sqrt(np.sum((direction * gradient) ** 2))) + 1e-2
        errors = []
        for h in (2e-2, 4e-3, 1e-3):
            # The oracle rounds its inputs to f32, so the step is what really changed.
            up, down = ((inputs[f"x{k}"] + np.float32(sign * h) * direction).astype(np.float32) for sign in (1, -1))
            values = [float(evaluate_graph(value, {**inputs, f"x{k}": a}, first.params).outputs[0]) for a in (up, down)]
            errors.append(abs((values[0] - values[1]) / (2 * h) - expected) / size)
        if not min(errors) <= 2e-2:
            return f"operand {k}: {min(errors):.3g} off, {expected:.6g} expected"
    return ""


def gradients_of(b: GraphBuilder, loss: int, wrt: list[int]) -> Graph:
    """The graph of the gradients of `loss`."""
    return b.build([(f"g{k}", i) for k, i in enumerate(backward(b, loss, wrt))])
