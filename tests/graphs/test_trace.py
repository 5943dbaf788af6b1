"""Tracing: specs, arguments, params, nested outputs, state, captures, call sites, and a light import."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.dims import sym
from pumice.errors import DTypeError, FormatError, GraphError, InputError, MissingName, ShapeError, SymbolError, UnknownName
from pumice.ir.registry import Packed
from pumice.reference.interpreter import evaluate_graph
from pumice.tracing import spec_of, unflatten_outputs

# --- spec ---


def test_spec_takes_ints_symbols_and_expressions() -> None:
    s = pm.spec(2, "T+1", sym("B") * 2, dtype=np.float16, max={"T": 7, "B": 3})
    assert str(s.type) == "f16[2,T+1,2*B]" and s.maxima == {"T": 7, "B": 3}
    assert str(pm.spec().type) == "f32[]"
    assert pm.spec("T", max=4).maxima == {"T": 4}


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: pm.spec(-1), ShapeError, "negative"),
        (lambda: pm.spec((2, 3)), ShapeError, "no dim"),
        (lambda: pm.spec(2.5), ShapeError, "no dim"),
        (lambda: pm.spec("T*"), FormatError, "no dim expression"),
        (lambda: pm.spec(2, dtype="f12"), DTypeError, "f12"),
        (lambda: pm.spec("T", 40, dtype="q4_0"), ShapeError, "multiple of 32"),
        (lambda: pm.spec("T", max={"S": 3}), UnknownName, "'S'"),
        (lambda: pm.spec("T", "S", max=3), SymbolError, "2 symbols"),
        (lambda: pm.spec("T", max=0), SymbolError, "at least 1"),
    ],
)
def test_bad_specs_are_refused(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_specs_of_examples() -> None:
    assert str(spec_of(np.zeros((2, 3), np.int64)).type) == "i32[2,3]"
    assert str(spec_of(1.5).type) == "f32[]"
    assert str(spec_of([1, 2]).type) == "i32[2]"
    assert str(spec_of(Packed(pm.spec(dtype="f32").type.dtype, (4,), np.zeros(4))).type) == "f32[4]"
    with pytest.raises(DTypeError, match="'x' is neither"):
        pm.trace(lambda x: x, x="text")
    with pytest.raises(DTypeError, match="neither a spec nor an array"):
        pm.trace(lambda x: x, x=[pm.spec(2), pm.spec(2)])


# --- arguments ---


def test_missing_and_unknown_arguments_are_named() -> None:
    def f(params: Any, hidden: Any, scale: float = 2.0) -> Any:
        return hidden * scale

    with pytest.raises(MissingName, match="f needs the argument 'params'"):
        pm.trace(f, hidden=pm.spec(2))
    with pytest.raises(MissingName, match="'hidden'"):
        pm.trace(f, params={})
    with pytest.raises(UnknownName, match="f has no argument 'hiden'") as caught:
        pm.trace(f, params={}, hiden=pm.spec(2))
    assert caught.value.hint == "did you mean 'hidden'?" and "test_trace.py" in caught.value.where
    with pytest.raises(UnknownName, match="'params'"):
        pm.trace(lambda x: x, params={"w": pm.spec(2)}, x=pm.spec(2))


def test_every_kind_of_parameter_can_be_traced() -> None:
    def f(a: Any, /, b: Any, *, c: Any, d: int = 1, **rest: Any) -> Any:
        return a + b + c + d + rest["e"]

    graph = pm.trace(f, a=pm.spec(2), b=pm.spec(2), c=np.zeros(2), e=1.0)
    assert [n.name for n in graph.sources("input")] == ["a", "b", "c", "e"]
    assert str(graph.sources("input")[3].type) == "f32[]"


def test_params_keep_their_nesting_and_are_named_by_path() -> None:
    Pair = namedtuple("Pair", "w b")
    layers = [Pair(np.zeros((3, 3)), None), Pair(pm.spec(3, 3), np.zeros(3, np.float16))]

    def f(params: Any, x: Any) -> Any:
        for layer in params["layers"]:
            assert isinstance(layer, Pair)
            x = x @ layer.w if layer.b is None else x @ layer.w + layer.b
        return x * params["out"][0]

    graph = pm.trace(f, params={"layers": layers, "out": (np.float32(2),)}, x=pm.spec("B", 3))
    found = {n.name: str(n.type) for n in graph.sources("param")}
    assert found == {"layers.0.0": "f32[3,3]", "layers.1.0": "f32[3,3]", "layers.1.1": "f16[3]", "out.0": "f32[]"}
    with pytest.raises(InputError, match="params must be"):
        pm.trace(lambda params: params, params=np.zeros(3))
    with pytest.raises(GraphError, match="'x'"):
        pm.trace(lambda params, x: x, params={"x": pm.spec(2)}, x=pm.spec(2))


def test_maxima_reach_the_graph_and_contradictions_are_named() -> None:
    graph = pm.trace(lambda x, y: x + y, x=pm.spec("B", max=8), y=pm.spec("B"))
    assert graph.symbols == (("B", 8),)
    with pytest.raises(SymbolError, match="maxima 8 and 9"):
        pm.trace(lambda x, y: x + y, x=pm.spec("B", max=8), y=pm.spec("B", max=9))


# --- outputs ---


@pytest.mark.parametrize(
    ("fn", "tree", "names"),
    [
        (lambda x: x, 0, ["out"]),
        (lambda x: (x, [x + 1]), [0, [1]], ["0", "1.0"]),
        (lambda x: {"a": x, "b": (x, 2.5, None)}, {"a": 0, "b": [1, 2, None]}, ["a", "b.0", "b.1"]),
        (lambda x: [], None, None),
        (lambda x: x.shape[0], 0, ["out"]),
    ],
)
def test_outputs_may_be_nested(fn: Any, tree: Any, names: Any) -> None:
    if names is None:
        with pytest.raises(GraphError, match="returned no tensor"):
            pm.trace(fn, x=pm.spec("B"))
        return
    graph = pm.trace(fn, x=pm.spec("B"))
    assert json.loads(graph.tree) == tree and [name for name, _ in graph.outputs] == names


def test_outputs_come_back_nested() -> None:
    graph = pm.trace(lambda x: {"a": x, "b": (x * 2, 7, None)}, x=pm.spec("B"))
    found = evaluate_graph(graph, {"x": np.ones(3)}).outputs
    nested = unflatten_outputs(graph.tree, found)
    assert nested["b"][1] == 7 and nested["b"][2] is None and nested["a"].shape == (3,)
    assert unflatten_outputs("", [1, 2]) == (1, 2)


def test_bad_output_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"two outputs have the name 'a\.0'"):
        pm.trace(lambda x: {"a": [x], "a.0": x}, x=pm.spec(2))
    with pytest.raises(InputError, match="no strings"):
        pm.trace(lambda x: {1: x}, x=pm.spec(2))


def test_the_value_of_a_dim_can_be_computed_with() -> None:
    graph = pm.trace(lambda x: x.sum() / x.shape[0] + (x.shape[0] * 2 + 1), x=pm.spec("B"))
    assert evaluate_graph(graph, {"x": np.array([1.0, 2, 3, 6])}).outputs[0] == 12


def test_equal_functions_make_equal_graphs() -> None:
    def make() -> pm.Graph:
        return pm.trace(lambda x: (x.T @ x + np.eye(3)).sum(axis=0), x=pm.spec("B", 3))

    assert make() == make() and make().hash == make().hash


# --- state and captures ---


def test_state_reads_the_old_value_and_is_set_once() -> None:
    def f(x: Any) -> Any:
        total = pm.state("total", (2,), init=1.0)
        pm.set_state("total", total + x)
        assert pm.state("total", (2,)).id == total.id
        return total

    graph = pm.trace(f, x=pm.spec(2))
    node = graph.sources("state")[0]
    assert node.attr["init"].array(np.dtype("f4"), (2,)).tolist() == [1, 1]
    result = evaluate_graph(graph, {"x": np.ones(2)}, state={"total": np.array([3.0, 4.0])})
    assert result.outputs[0].tolist() == [3, 4] and result.state["total"].tolist() == [4, 5]


def test_state_takes_python_numbers_and_may_be_all_a_graph_does() -> None:
    graph = pm.trace(lambda: pm.set_state(pm.state("n", (), "i32"), 3))
    assert graph.outputs == () and evaluate_graph(graph, {}).state["n"] == 3
    assert graph.sources("state")[0].attrs == ()


@pytest.mark.parametrize(
    ("fn", "error", "text"),
    [
        (lambda x: pm.set_state("nothing", x), UnknownName, "'nothing'"),
        (lambda x: pm.set_state(x, x), GraphError, "is no state"),
        (lambda x: [pm.set_state(pm.state("s", (2,)), x), pm.set_state("s", x)], GraphError, "set twice"),
        (lambda x: pm.set_state(pm.state("s", (2,), "f16"), x), DTypeError, "new value"),
        (lambda x: pm.set_state(pm.state("s", (3,)), x), ShapeError, "new value"),
        (lambda x: [pm.state("s", (2,)), pm.state("s", (3,))], GraphError, "declared twice"),
        (lambda x: pm.state("s", (sym("T"),)), ShapeError, "static shape"),
        (lambda x: pm.state("s", (2,), init=[1, 2, 3]), ShapeError, "initial value"),
        (lambda x: pm.state("x", (2,)), GraphError, "'x'"),
        (lambda x: [pm.capture("a", x), pm.capture("a", x)], GraphError, "two captures"),
    ],
)
def test_misuse_of_state_and_captures_is_named(fn: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        pm.trace(fn, x=pm.spec(2))
    assert "graphs/test_trace.py:" in caught.value.where  # type: ignore[attr-defined]


def test_captures_are_remembered() -> None:
    graph = pm.trace(lambda x: pm.capture("twice", x * 2) + 1, x=pm.spec("B"))
    result = evaluate_graph(graph, {"x": np.ones(2)})
    assert result.captures["twice"].tolist() == [2, 2] and result.outputs[0].tolist() == [3, 3]


# --- traces and their tensors ---


def test_tensors_belong_to_one_open_trace() -> None:
    kept: list[Any] = []
    pm.trace(lambda x: kept.append(x) or x + 1, x=pm.spec(2))
    with pytest.raises(GraphError, match="after its trace ended"):
        kept[0] + 1
    with pytest.raises(GraphError, match="two traces"):
        pm.trace(lambda x: x + kept[0], x=pm.spec(2))
    with pytest.raises(GraphError, match="no trace in progress"):
        pm.arange(3)

    def outer(x: Any) -> Any:
        inner = pm.trace(lambda y: y + 1, y=pm.spec(2))
        assert len(inner) == 3
        return x + pm.arange(2)

    assert [n.op for n in pm.trace(outer, x=pm.spec(2))] == ["input", "arange", "cast", "add"]


def test_a_trace_that_fails_leaves_none_in_progress() -> None:
    def f(x: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        pm.trace(f, x=pm.spec(2))
    with pytest.raises(GraphError, match="no trace in progress"):
        pm.zeros(3)


def test_threads_trace_apart() -> None:
    graphs: dict[int, pm.Graph] = {}

    def work(n: int) -> None:
        for _ in range(20):
            graphs[n] = pm.trace(lambda x: x + pm.arange(n), x=pm.spec(n, dtype="i32"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert [str(graphs[n].nodes[-1].type) for n in range(1, 5)] == ["i32[1]", "i32[2]", "i32[3]", "i32[4]"]


def test_nodes_and_errors_know_the_users_line() -> None:
    def model(x: Any) -> Any:
        return pm.softmax(x + 1)  # this line

    graph = pm.trace(model, x=pm.spec(2))
    line = model.__code__.co_firstlineno + 1
    wheres = {n.where for n in graph if n.op != "input"}
    assert wheres == {f"graphs/test_trace.py:{line} in model"}
    with pytest.raises(ShapeError) as caught:
        pm.trace(lambda x: x @ x, x=pm.spec(2, 3))
    assert caught.value.where.startswith("graphs/test_trace.py:") and caught.value.fields["op"] == "matmul"


def test_repr_shows_the_type() -> None:
    seen: list[str] = []
    pm.trace(lambda x: seen.append(repr(x)) or x, x=pm.spec("B", 2))
    assert seen == ["Tensor(%0: f32[B,2])"]


# --- the package ---


def test_importing_is_light_and_names_load_on_use() -> None:
    script = (
        "import sys, pumice as pm\n"
        "heavy = {'numpy', 'wgpu', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert {'add', 'trace', 'compile', 'random', 'ops'} <= set(dir(pm))\n"
        "pm.trace(lambda x: pm.random.normal(pm.random.key(0), x.shape), x=pm.spec('B'))\n"
        "import pumice.tracing\n"
        "assert callable(pm.trace) and len(pm.ops.all()) >= 65 and pm.ops.get('add').name == 'add'\n"
        "heavy = {'wgpu', 'numba'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    source = str(Path(pm.__file__).parents[1])
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env={**os.environ, "PYTHONPATH": source})


def test_every_public_name_exists() -> None:
    for name in pm.__all__:
        assert getattr(pm, name) is not None or name == "newaxis"  # which is None, as NumPy's
    with pytest.raises(AttributeError, match="nothing_such"):
        _ = pm.nothing_such


def test_a_graph_pickled_here_is_the_same_under_another_hash_seed(tmp_path: Path) -> None:
    def f(x: Any) -> Any:
        return pm.softmax(pm.relu(x.reshape(-1)[: x.shape[0] * 2] + 1.0))

    graph = pm.trace(f, x=pm.spec("B", 4))
    known = {n.type: n.attr for n in graph}  # what is worked out on demand is there
    (tmp_path / "graph").write_bytes(pickle.dumps(graph))
    code = (
        "import pickle, sys; from pathlib import Path; from pumice.ir.text import parse_graph\n"
        "graph = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
        "again = parse_graph(str(graph))\n"
        "assert graph == again and {n.type for n in graph} == {n.type for n in again}\n"
        "assert {d for n in graph for d in n.type.shape} == {d for n in again for d in n.type.shape}\n"
        "print(graph.hash, len({n.type for n in graph}))\n"
    )
    for seed in ("1", "2"):
        command = [sys.executable, "-c", code, str(tmp_path / "graph")]
        found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": seed})
        assert found.returncode == 0, found.stderr
        assert found.stdout.split() == [graph.hash, str(len(known))]
