"""The text form: every graph parses back to an equal one, the bytes are stable, and bad text is refused by line."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumice.core import dtypes
from pumice.core.dims import sym
from pumice.errors import FormatError, GraphError
from pumice.ir.graph import ConstData, Graph, GraphBuilder, Node
from pumice.ir.text import MAX_NESTING, parse_graph, print_graph, print_value
from pumice.ir.types import TensorType

T, B = sym("T"), sym("B")
dims = st.integers(0, 1 << 40) | st.sampled_from(
    [T, B, T + 1, 2 * T - B, (T + 63) // 64, T * T * B, T % 5 - 3, sym("inf"), sym("nan")]
)
types = st.builds(TensorType, st.sampled_from(dtypes.PLAIN + dtypes.QUANT), st.lists(dims, max_size=4).map(tuple))
words = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.just(math.nan)
    | st.text()
    | st.binary(max_size=9).map(ConstData)
    | dims
)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3).map(tuple), max_leaves=6)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    nodes: list[Node] = []
    for i in range(draw(st.integers(1, 5))):
        operands = st.none() | st.integers(0, i - 1) if i else st.none()
        nodes.append(
            Node(
                i,
                draw(words | st.sampled_from(["input", "state"])),
                tuple(draw(st.lists(operands, max_size=3))),
                tuple(sorted(draw(st.dictionaries(words, values, max_size=3)).items())),
                draw(types),
                draw(st.text(max_size=6)),
                where="left out",
            )
        )
    ids = st.integers(0, len(nodes) - 1)
    named = st.lists(st.tuples(st.text(max_size=6), ids), max_size=3).map(tuple)
    return Graph(
        tuple(nodes),
        outputs=draw(named),
        updates=draw(st.lists(st.tuples(ids, ids), max_size=2).map(tuple)),
        captures=draw(named),
        symbols=draw(st.sampled_from([(), (("T", 8),), (("B", None), ("T", 1 << 40))])),
        tree=draw(st.sampled_from(["", "0", '{"a":[0,1]}'])),
    )


@given(graphs())
def test_round_trip(g: Graph) -> None:
    text = print_graph(g)
    back = parse_graph(text)
    assert back == g
    assert back.hash == g.hash
    # The text tells 1 from True, 1.0 and "1", and 0.0 from -0.0, which == does not.
    assert print_graph(back) == text
    assert text.isascii()


@given(graphs(), st.data())
def test_damaged_text_is_refused_or_parsed(g: Graph, data: st.DataObject) -> None:
    text = print_graph(g)
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 4))
    damaged = text[:at] + data.draw(st.text('%:=()[]{},"\\_ \n0123456789TAinf+-*.eé', max_size=4)) + text[at + cut :]
    try:
        parsed = parse_graph(damaged)
    except FormatError as e:
        assert e.fields["line"] >= 1
    else:
        assert parse_graph(print_graph(parsed)) == parsed


def example() -> Graph:
    b = GraphBuilder()
    x = b.source("input", 'the "x"\n', TensorType(dtypes.f32, (T, 64)), where="a.py:3")
    w = b.source("param", "w", TensorType(dtypes.q4_0, (8, 64)))
    s = b.source("state", "s", TensorType(dtypes.f32, (T, 64)))
    c = b.constant(np.float32([[1.5]]), dtypes.f32)
    y = b.add("add", [x, c], where="a.py:4")
    z = b.add("layer_norm", [y, None, None], {"axes": 1, "eps": 1e-5})
    q = b.add("qmatmul", [z, w])
    r = b.add("reshape", [q], {"shape": (T * 8,)})
    return b.build([("r", r)], updates=[(s, y)], captures=[("mid", z)], maxima={"T": 512}, tree="0")


TEXT = r"""pumice graph 1
symbols T<=512
%0 : f32[T,64] = input "the \"x\"\n"
%1 : q4_0[8,64] = param "w"
%2 : f32[T,64] = state "s"
%3 : f32[1,1] = constant {data=base64"AADAPw=="}
%4 : f32[T,64] = add(%0, %3)
%5 : f32[T,64] = layer_norm(%4, _, _) {axes=1, eps=1e-05}
%6 : f32[T,8] = qmatmul(%5, %1)
%7 : f32[8*T] = reshape(%6) {shape=(8*T,)}
outputs "r"=%7
updates %2=%4
captures "mid"=%5
tree "0"
"""


def test_the_form_itself() -> None:
    assert print_graph(example()) == TEXT
    assert parse_graph(TEXT) == example()
    assert parse_graph(TEXT.replace("\n", "\r\n")) == example()
    assert str(example()) == TEXT


def test_the_same_bytes_in_every_process() -> None:
    code = "import sys; from pumice.ir.text import parse_graph; print(parse_graph(sys.stdin.read()).hash)"
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], input=TEXT, capture_output=True, text=True, env=env, check=True)
        assert run.stdout.strip() == example().hash


def test_source_lines_do_not_count() -> None:
    moved = Graph(tuple(Node(n.id, n.op, n.inputs, n.attrs, n.type, n.name, "b.py:1") for n in example()), example().outputs)
    here = Graph(example().nodes, example().outputs)
    assert moved == here
    assert moved.hash == here.hash


@pytest.mark.parametrize("value", [np.int64(1), [1], {"a": 1}, b"x", object()])
def test_values_without_a_text(value: object) -> None:
    with pytest.raises(GraphError, match="cannot hold"):
        print_value(value)


HEAD = "pumice graph 1\n"
X = HEAD + '%0 : f32[2] = input "x"\n'


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("", 1, "pumice graph 1"),
        ("pumice graph 2\noutputs\n", 1, "pumice graph 1"),
        (HEAD, 2, "outputs' is missing"),
        (X, 3, "outputs' is missing"),
        (HEAD + "hello\n", 2, "no section"),
        (X + "outputs\noutputs\n", 4, "stands twice"),
        (X + "symbols T\noutputs\n", 3, "wrong place"),
        (X + 'outputs "y"=%1\n', 3, "%1 is not defined above"),
        (X + 'outputs "y"=%0 x\n', 3, "',' expected"),
        (X + "outputs y=%0\n", 3, "a quoted string expected"),
        (X + 'outputs "y\\q"=%0\n', 3, "wrong escape"),
        (X + "%2 : f32[2] = relu(%0)\n", 3, "%2 stands where %1 should"),
        (X + "%1 : f32[2] = relu(%1)\n", 3, "%1 is not defined above"),
        (X + "%1 : f32[2] = relu(%-1)\n", 3, "%-1 is not defined above"),
        (X + "%1 : f32[2] = relu\n", 3, "'(' expected"),
        (X + "%1 : f32[2] = relu(%0\n", 3, "',' expected"),
        (X + "%1 : f99[2] = relu(%0)\n", 3, "no dtype"),
        (X + "%1 : float32[2] = relu(%0)\n", 3, "is written f32"),
        (X + "%1 : f32[2 = relu(%0)\n", 3, "',' expected"),
        (X + "%1 : f32[(T+1)*2] = relu(%0)\n", 3, "belongs to no function"),
        (X + "%1 : f32[T+] = relu(%0)\n", 3, "no dim expression"),
        (X + "%1 : f32[1or2] = relu(%0)\n", 3, "no dim expression"),
        (X + f"%1 : f32[{'9' * 30}] = relu(%0)\n", 3, "over 64 bits"),
        (X + f"%1 : f32[{'1,' * 40}1] = relu(%0)\n", 3, "more than 32 dims"),
        (X + "%1 : f32[2] = relu(%0) {a=}\n", 3, "no dim expression"),
        (X + "%1 : f32[2] = relu(%0) {a=1.}\n", 3, "',' expected"),
        (X + "%1 : f32[2] = relu(%0) {a=(1)}\n", 3, "written (x,)"),
        (X + "%1 : f32[2] = relu(%0) {a=__import__(os)}\n", 3, "belongs to no function"),
        (X + f"%1 : f32[2] = relu(%0) {{a={'(' * (MAX_NESTING + 1)}}}\n", 3, "nested over"),
        (X + '%1 : f32[2] = relu(%0) {a=base64"abc"}\n', 3, "not base64"),
        (X + "%99999999999999999999999 : f32[2] = relu(%0)\n", 3, "over 64 bits"),
        (X + 'outputs "y"=%0\nupdates %0\n', 4, "'=' expected"),
        (X + 'outputs "y"=%0\n%1 : f32[2] = relu(%0)\n', 4, "after the outputs"),
        (HEAD + "symbols T<=x\n", 2, "an integer expected"),
    ],
)
def test_bad_text(text: str, line: int, why: str) -> None:
    with pytest.raises(FormatError, match=re.escape(why)) as caught:
        parse_graph(text)
    assert caught.value.fields["line"] == line
    assert f"line {line}" in str(caught.value) or "missing" in why
