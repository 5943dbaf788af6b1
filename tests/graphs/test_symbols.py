"""Symbol inference: values follow from shapes, and what does not fit is refused by name and number."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.dims import Dim, sym
from pumice.errors import InputError, MissingName, ShapeError, SymbolError, UnknownName
from pumice.ir.graph import Graph, GraphBuilder
from pumice.ir.requirements import Requirement, check_requirements, requirements
from pumice.ir.symbols import infer_env
from pumice.ir.types import TensorType

T, P, B = sym("T"), sym("P"), sym("B")


def graph(maxima: dict[str, int] | None = None, **shapes: tuple[Dim, ...]) -> Graph:
    b = GraphBuilder()
    for name, shape in shapes.items():
        b.source("input", name, TensorType(dtypes.f32, shape))
    return b.build([], maxima=maxima)


@pytest.mark.parametrize(
    ("shapes", "given", "expected"),
    [
        ({"x": (3,)}, {"x": (3,)}, {}),
        ({"x": (T, 4), "y": (T,)}, {"x": (5, 4), "y": (5,)}, {"T": 5}),
        ({"x": (T,)}, {"x": (0,)}, {"T": 0}),
        ({"x": (2 * T + 1,)}, {"x": (7,)}, {"T": 3}),
        ({"x": (10 - T,)}, {"x": (7,)}, {"T": 3}),
        ({"x": (P + T,), "y": (T,)}, {"x": (9,), "y": (4,)}, {"P": 5, "T": 4}),
        ({"x": (B * T,), "y": (B,)}, {"x": (12,), "y": (3,)}, {"B": 3, "T": 4}),
        ({"x": (T // 2,), "y": (T,)}, {"x": (3,), "y": (7,)}, {"T": 7}),
        ({"x": (T * T,), "y": (T,)}, {"x": (49,), "y": (7,)}, {"T": 7}),
        ({"a": (P + T + B,), "b": (P + T,), "c": (T,)}, {"a": (6,), "b": (3,), "c": (1,)}, {"B": 3, "P": 2, "T": 1}),
    ],
)
def test_values(shapes: dict[str, tuple[Dim, ...]], given: dict[str, tuple[int, ...]], expected: dict[str, int]) -> None:
    assert infer_env(graph(**shapes), given) == expected


@pytest.mark.parametrize(
    ("shapes", "given", "error", "why"),
    [
        (
            {"x": (T,), "y": (T, 2)},
            {"x": (3,), "y": (4, 2)},
            SymbolError,
            "'y' axis 0 is 4, but T must be 3: T is 3 by input 'x' axis 0",
        ),
        (
            {"x": (T + 1,), "y": (T,)},
            {"x": (3,), "y": (4,)},
            SymbolError,
            r"'x' axis 0 is 3, but T\+1 must be 5: T is 4 by input 'y'",
        ),
        ({"x": (2 * T,)}, {"x": (3,)}, SymbolError, r"no T ≥ 0 makes 2\*T equal 3"),
        ({"x": (T + 4,)}, {"x": (3,)}, SymbolError, r"no T ≥ 0 makes T\+4 equal 3"),
        ({"x": (T // 2,)}, {"x": (3,)}, SymbolError, "T does not follow"),
        ({"x": (T + P,)}, {"x": (3,)}, SymbolError, "P does not follow"),
        ({"x": (T * B,), "y": (B,)}, {"x": (0,), "y": (0,)}, SymbolError, "T does not follow"),
        ({"x": (T, 4)}, {"x": (3,)}, ShapeError, r"'x' must have shape \(T, 4\), got \(3,\): rank 1, not 2"),
        ({"x": (T, 4)}, {"x": (3, 5)}, ShapeError, r"got \(3, 5\): axis 1 is 5, not 4"),
        ({"x": (2,)}, {"y": (2,)}, UnknownName, "no input 'y'"),
        ({"x": (2,), "y": (2,)}, {"x": (2,)}, MissingName, "'y' was not given"),
    ],
)
def test_refusals(
    shapes: dict[str, tuple[Dim, ...]], given: dict[str, tuple[int, ...]], error: type[InputError], why: str
) -> None:
    with pytest.raises(error, match=why):
        infer_env(graph(**shapes), given)


def test_maxima() -> None:
    g = graph({"T": 8}, x=(T,))
    assert infer_env(g, {"x": (8,)}) == {"T": 8}
    with pytest.raises(SymbolError, match=r"T is 9 by input 'x' axis 0 .*over its maximum 8") as caught:
        infer_env(g, {"x": (9,)})
    assert caught.value.fields == {"symbol": "T", "value": 9, "max": 8}
    assert 'max={"T": 9}' in caught.value.hint
    assert infer_env(g, {"x": (9,)}, maxima={"T": 16}) == {"T": 9}


# --- quotients that a state or a param keeps ---


def kept(update: Callable[[pm.Tensor, pm.Tensor], pm.Tensor]) -> tuple[Requirement, ...]:
    """The requirements of a graph whose state becomes what `update` makes of x [B, 3] and the state's value."""

    def run(x: pm.Tensor) -> None:
        old = pm.state("spread", (3,))
        pm.set_state(old, update(x, old))

    return requirements(pm.trace(run, x=pm.spec("B", 3)))


def test_a_state_that_keeps_a_quotient_by_zero_is_refused() -> None:
    (needed,) = kept(lambda x, old: 0.9 * old + 0.1 * pm.var(x, 0, ddof=1))
    check_requirements((needed,), {"B": 2})
    with pytest.raises(SymbolError, match=r"with B = 1: the next value of 'spread' is divided by max\(B-1,0\), which is 0"):
        check_requirements((needed,), {"B": 1})
    with pytest.raises(SymbolError, match="is divided by B-1"):
        check_requirements(kept(lambda x, old: pm.sum(x, 0) / (x.shape[0] - 1)), {"B": 1})


def test_quotients_that_no_state_keeps_or_that_are_guarded_are_allowed() -> None:
    assert requirements(pm.trace(lambda x: pm.var(x, 0, ddof=1), x=pm.spec("B", 3))) == ()
    # NumPy gives NaN for the variance of one value; who looks at the size first may keep it.
    guarded = kept(lambda x, old: pm.where(pm.full((), x.shape[0]) > 1, pm.var(x, 0, ddof=1), old))
    assert guarded == ()
    # A condition on data guards nothing.
    assert len(kept(lambda x, old: pm.where(pm.sum(x, 0) > 1, pm.var(x, 0, ddof=1), old))) == 1
