"""What OpSpecs say about their ops beyond the meaning agrees with the meaning: names, views, neutral operands, identities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pumice.core import dtypes
from pumice.ir.registry import OpSpec, Packed, Sample, all_ops, get_op
from pumice.ir.types import TensorType
from pumice.ir.views import View, contiguous_strides

SPECS = all_ops()
Array = np.ndarray[Any, Any]


def _named(spec: OpSpec) -> set[str]:
    t = spec.traits
    found = {*t.pulls, *t.neutral, t.divisor, t.condition}
    if t.in_place is not None:
        found |= {t.in_place.operand, t.in_place.updates}
    if t.selects is not None:
        found |= {t.selects.operand, t.selects.indices}
    return found - {""}


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_traits_name_operands_that_there_are(spec: OpSpec) -> None:
    assert _named(spec) <= set(spec.operand_names)
    if spec.traits.selects is not None and spec.traits.selects.axis is None:
        assert "axis" in spec.attrs
    assert not spec.traits.pulls_again or spec.traits.pulls


def _types(sample: Sample) -> list[TensorType | None]:
    def of(a: Any) -> TensorType | None:
        if a is None:
            return None
        return TensorType(a.dtype, a.shape) if isinstance(a, Packed) else TensorType(dtypes.dtype(a.dtype), a.shape)

    return [of(a) for a in sample.inputs]


def _shown(view: View, flat: Array) -> Array:
    """The elements of a view, by its strides."""
    shape, strides = [int(d) for d in view.shape], [int(s) for s in view.strides]
    places = int(view.offset) + sum(
        (np.arange(d).reshape(-1, *(1,) * (len(shape) - 1 - k)) * s for k, (d, s) in enumerate(zip(shape, strides, strict=True))),
        start=np.zeros(shape, np.int64),
    )
    return flat[places]


VIEWS = [(spec, sample) for spec in SPECS if spec.traits.view is not None for sample in spec.samples()]


@pytest.mark.parametrize(("spec", "sample"), VIEWS, ids=lambda v: v.name if isinstance(v, OpSpec) else v.label)
def test_views_show_what_the_reference_gives(spec: OpSpec, sample: Sample) -> None:
    (x,) = sample.inputs
    assert isinstance(x, np.ndarray) and spec.traits.view is not None
    attrs = spec.complete_attrs(sample.attrs)
    (out,) = spec.result_types(_types(sample), attrs)
    view = spec.traits.view(View(0, x.shape, contiguous_strides(x.shape)), attrs, out.shape)
    assert spec.name == "reshape" or view is not None  # axes that are cut anew may need a copy
    if view is not None and out.numel:
        assert view.shape == out.shape
        np.testing.assert_array_equal(
            _shown(view, np.arange(x.size)), spec.evaluate([np.arange(x.size).reshape(x.shape)], attrs, (out,))[0]
        )


def test_a_view_of_a_view_may_need_a_copy() -> None:
    view = get_op("reshape").traits.view
    turned = View(0, (3, 2), (1, 3))
    assert view is not None and view(turned, {"shape": (6,)}, (6,)) is None
    assert view(turned, {"shape": (3, 1, 2)}, (3, 1, 2)) is not None


@pytest.mark.parametrize("spec", [s for s in SPECS if s.traits.neutral], ids=lambda s: s.name)
def test_neutral_operands_change_nothing(spec: OpSpec) -> None:
    x = np.array([-2.5, 0.0, 1.0, 3.0])
    for name, value in spec.traits.neutral.items():
        arrays = [np.full_like(x, value) if operand == name else x for operand in spec.operand_names]
        (found,) = spec.evaluate(arrays, {}, (TensorType(dtypes.f32, x.shape),))
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("spec", [s for s in SPECS if s.traits.unchanged is not None], ids=lambda s: s.name)
def test_unchanged_results_are_the_operand(spec: OpSpec) -> None:
    """Over the samples that keep the type: what the trait calls unchanged is, and something else is not always called so."""
    for sample in spec.samples():
        (x,), attrs = sample.inputs, spec.complete_attrs(sample.attrs)
        (out,) = spec.result_types(_types(sample), attrs)
        assert isinstance(x, np.ndarray) and spec.traits.unchanged is not None
        if _types(sample) == [out] and spec.traits.unchanged(attrs):
            np.testing.assert_array_equal(spec.evaluate([x], attrs, (out,))[0], x)


def test_merged_transposes_do_both() -> None:
    merged = get_op("transpose").traits.merged
    assert merged is not None
    x = np.arange(24).reshape(2, 3, 4)
    attrs = merged({"perm": (2, 0, 1)}, {"perm": (1, 0, 2)})
    np.testing.assert_array_equal(x.transpose(attrs["perm"]), x.transpose(2, 0, 1).transpose(1, 0, 2))


def test_arithmetic_counts_what_a_plain_loop_would() -> None:
    def flops(op: str, sizes: dict[str, tuple[int, ...]], out: tuple[int, ...], **attrs: Any) -> int:
        found = get_op(op).traits.flops
        assert found is not None
        return found(sizes, attrs, out)

    assert flops("matmul", {"a": (3, 5), "b": (5, 7)}, (3, 7)) == 2 * 3 * 5 * 7
    assert flops("conv", {"x": (1, 4, 9, 9), "w": (8, 4, 3, 3)}, (1, 8, 7, 7)) == 2 * 8 * 7 * 7 * 4 * 9
    heads = {"q": (1, 2, 5, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 16)}
    seen = sum(1 + i for i in range(5))
    assert flops("attention", heads, (1, 2, 5, 16), layout="bhsd", causal=True) == 2 * 2 * seen * (8 + 16)
