"""The text form of a graph: one readable line per node, the same bytes in every process, parsed back to an equal graph."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from typing import Any, NoReturn

from pumice.core.dims import Dim, Expr, parse_dim
from pumice.core.dtypes import DType, dtype
from pumice.errors import DTypeError, FormatError, GraphError, PumiceError
from pumice.ir.graph import ConstData, Graph, Node
from pumice.ir.registry import SOURCE_OPS
from pumice.ir.types import TensorType

VERSION = 1
# Limits for text that may come from strangers; far above what tracing makes.
MAX_CHARS = 1 << 30
MAX_NODES = 1 << 20
MAX_RANK = 32
MAX_RESULTS = 32
MAX_ITEMS = 1 << 16
MAX_NESTING = 16
INT_LIMIT = 1 << 63


def print_graph(graph: Graph) -> str:
    """The graph as text. Source lines (`where`) are left out: they are no part of a graph's identity.

    >>> from pumice.core import dims, dtypes
    >>> from pumice.ir.graph import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.source("input", "x", TensorType(dtypes.f32, (dims.sym("T"), 4)))
    >>> y = b.add("clamp", [x], {"lo": 0.0})
    >>> print(print_graph(b.build([("y", y)], maxima={"T": 8})), end="")
    pumice graph 1
    symbols T<=8
    %0 : f32[T,4] = input "x"
    %1 : f32[T,4] = clamp(%0) {hi=None, lo=0.0}
    outputs "y"=%1
    """
    lines = [f"pumice graph {VERSION}"]
    if graph.symbols:
        lines.append("symbols " + ", ".join(name if m is None else f"{name}<={m}" for name, m in graph.symbols))
    lines += [_print_node(n) for n in graph.nodes]
    lines.append(_print_named("outputs", graph.outputs))
    if graph.updates:
        lines.append("updates " + ", ".join(f"%{state}=%{value}" for state, value in graph.updates))
    if graph.captures:
        lines.append(_print_named("captures", graph.captures))
    if graph.tree:
        lines.append(f"tree {json.dumps(graph.tree)}")
    return "\n".join(lines) + "\n"


def _print_named(label: str, pairs: tuple[tuple[str, int], ...]) -> str:
    return f"{label} {', '.join(f'{json.dumps(name)}=%{i}' for name, i in pairs)}".rstrip()


def _print_node(n: Node) -> str:
    text = f"%{n.id} : {', '.join(map(str, n.results))} = {n.op}"
    if n.inputs or n.op not in SOURCE_OPS:
        text += "(" + ", ".join("_" if i is None else f"%{i}" for i in n.inputs) + ")"
    if n.name:
        text += f" {json.dumps(n.name)}"
    if n.attrs:
        text += " {" + ", ".join(f"{name}={print_value(value)}" for name, value in n.attrs) + "}"
    return text


def print_value(value: Any) -> str:
    """An attribute value as text that says its type: True, 1, 1.0, "1", T+1, None, (1,), +nan.

    >>> print_value((True, 1, 1.0, "1", None, math.inf))
    '(True,1,1.0,"1",None,+inf)'
    """
    if value is None or isinstance(value, bool | Expr):
        return str(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        # A sign marks these, as `inf` and `nan` alone are names that a symbol may have.
        if math.isnan(value):
            return "+nan"
        return float.__repr__(value) if math.isfinite(value) else ("+inf" if value > 0 else "-inf")
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, tuple):
        return "(" + ",".join(print_value(v) for v in value) + (",)" if len(value) == 1 else ")")
    if isinstance(value, ConstData):
        return f'base64"{base64.b64encode(value.data).decode()}"'
    raise GraphError(
        f"an attribute cannot hold {value!r} ({type(value).__name__})",
        hint="use int, float, bool, str, None, dims, or tuples of those",
    )


def parse_graph(text: str) -> Graph:
    """The graph that `print_graph` printed; anything else is a FormatError that names the line.

    Only the form is checked here; `pumice.ir.verify.verify` checks the graph.

    >>> g = parse_graph('pumice graph 1\\n%0 : f32[2] = input "x"\\n%1 : f32[2] = relu(%0)\\noutputs "y"=%1\\n')
    >>> g.nodes[1].op, parse_graph(print_graph(g)) == g
    ('relu', True)
    """
    if len(text) > MAX_CHARS:
        raise FormatError(f"a graph text of {len(text)} characters is over the limit of {MAX_CHARS}")
    lines = text.split("\n")
    if lines[0].rstrip("\r") != f"pumice graph {VERSION}":
        raise FormatError(f"line 1 is not 'pumice graph {VERSION}'", hint="is this a graph text of another version?", line=1)
    nodes: list[Node] = []
    sections: dict[str, Any] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        cursor = _Cursor(line, number)
        if cursor.peek("%"):
            if sections.keys() - {"symbols"}:
                cursor.fail("a node after the outputs")
            if len(nodes) >= MAX_NODES:
                cursor.fail(f"more than {MAX_NODES} nodes")
            nodes.append(_parse_node(cursor, len(nodes)))
        else:
            label = cursor.match(_WORD, "a node or a section")
            if label not in _SECTIONS or label in sections or (label == "symbols" and nodes):
                cursor.fail(f"{label!r} is no section, stands twice or stands in the wrong place")
            sections[label] = _SECTIONS[label](cursor, len(nodes))
        cursor.end()
    if "outputs" not in sections:
        raise FormatError("the line 'outputs' is missing", hint="the text may be cut off", line=len(lines))
    return Graph(tuple(nodes), **sections)


class _Cursor:
    """A position in one line."""

    def __init__(self, line: str, number: int) -> None:
        self.line, self.number, self.at = line.rstrip("\r"), number, 0

    def fail(self, why: str) -> NoReturn:
        near = self.line[self.at : self.at + 40]
        raise FormatError(
            f"line {self.number}, column {self.at + 1}: {why}", hint=f"near {near!r}", line=self.number, column=self.at + 1
        )

    def peek(self, token: str) -> bool:
        return self.line.startswith(token, self.at)

    def skip_spaces(self) -> None:
        while self.peek(" "):
            self.at += 1

    def take(self, token: str) -> bool:
        """Whether `token` comes next, after spaces; if so it is consumed."""
        self.skip_spaces()
        found = self.peek(token)
        self.at += len(token) if found else 0
        return found

    def expect(self, token: str) -> None:
        if not self.take(token):
            self.fail(f"{token!r} expected")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        self.skip_spaces()
        found = pattern.match(self.line, self.at)
        if not found:
            self.fail(f"{what} expected")
        self.at = found.end()
        return found.group()

    def string(self) -> str:
        token = self.match(_STRING, "a quoted string")
        try:
            return str(json.loads(token))
        except ValueError:
            self.fail("a string with a wrong escape")

    def integer(self) -> int:
        # The length is checked before int() sees it: its cost grows with the square of the digits.
        token = self.match(_INT, "an integer")
        if len(token) > 20 or not -INT_LIMIT <= int(token) < INT_LIMIT:
            self.fail("an integer over 64 bits")
        return int(token)

    def node(self, count: int) -> int:
        """A reference to one of the `count` nodes above."""
        self.expect("%")
        i = self.integer()
        if not 0 <= i < count:
            self.fail(f"%{i} is not defined above")
        return i

    def dim(self) -> Dim:
        self.skip_spaces()
        start, depth = self.at, 0
        while token := _DIM_TOKEN.match(self.line, self.at):
            if depth == 0 and token.group() in ",)":
                break
            # Only function calls have parentheses in a printed dim; products of sums would cost exponential work.
            if token.group() == "(":
                self.fail("a parenthesis that belongs to no function")
            depth += token.group().endswith("(") - (token.group() == ")")
            self.at = token.end()
        text = self.line[start : self.at]
        if re.search(r"\d{20}", text):
            self.fail("an integer over 64 bits")
        try:
            return parse_dim(text)
        except PumiceError as e:
            self.at = start
            self.fail(e.message)

    def end(self) -> None:
        self.skip_spaces()
        if self.at != len(self.line):
            self.fail("the line should end here")


_WORD = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# Ops of packs have the pack's name before theirs.
_OP = re.compile(r"[A-Za-z_](?:\w|-(?=[\w.-]*\.))*(?:\.[A-Za-z_]\w*)?", re.ASCII)
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_INT = re.compile(r"-?\d+(?!\w)", re.ASCII)
_DIM_TOKEN = re.compile(r"(?:floordiv|mod|max|min)\(|[A-Za-z_]\w*|\d+(?!\w)|[-+*,()]", re.ASCII)
_FLOAT = re.compile(r"[-+](?:inf|nan)(?!\w)|-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)(?!\w)", re.ASCII)
_BASE64 = re.compile(r'base64"([A-Za-z0-9+/=]*)"')
_CONSTANTS = {"True": True, "False": False, "None": None}
_CONSTANT = re.compile(r"(?:True|False|None)(?!\w)", re.ASCII)


def _parse_node(c: _Cursor, count: int) -> Node:
    c.expect("%")
    if (i := c.integer()) != count:
        c.fail(f"node %{i} stands where %{count} should")
    c.expect(":")
    types = [_parse_type(c)]
    while c.take(","):
        if len(types) >= MAX_RESULTS:
            c.fail(f"more than {MAX_RESULTS} results")
        types.append(_parse_type(c))
    c.expect("=")
    op = c.match(_OP, "an op")
    inputs: list[int | None] = []
    if c.take("("):
        while not c.take(")"):
            if inputs:
                c.expect(",")
            inputs.append(None if c.take("_") else c.node(count))
    elif op not in SOURCE_OPS:
        c.fail("'(' expected")
    c.skip_spaces()
    name = c.string() if c.peek('"') else ""
    attrs: list[tuple[str, Any]] = []
    if c.take("{"):
        while not c.take("}"):
            if attrs:
                c.expect(",")
            key = c.match(_WORD, "an attribute")
            c.expect("=")
            attrs.append((key, _parse_value(c, 0)))
    return Node(count, op, tuple(inputs), tuple(attrs), types[0], name, further=tuple(types[1:]))


def _parse_type(c: _Cursor) -> TensorType:
    word = c.match(_WORD, "a dtype")
    try:
        found: DType = dtype(word)
    except DTypeError as e:
        c.fail(e.message)
    if found.name != word:
        c.fail(f"the dtype {word} is written {found.name}")
    c.expect("[")
    dims: list[Dim] = []
    while not c.take("]"):
        if dims:
            c.expect(",")
        if len(dims) >= MAX_RANK:
            c.fail(f"more than {MAX_RANK} dims")
        dims.append(c.dim())
    return TensorType(found, tuple(dims))


def _parse_value(c: _Cursor, depth: int) -> Any:
    c.skip_spaces()
    if c.peek('"'):
        return c.string()
    if c.peek('base64"'):
        return _parse_bytes(c)
    if c.take("("):
        return _parse_tuple(c, depth + 1)
    if _CONSTANT.match(c.line, c.at):
        return _CONSTANTS[c.match(_CONSTANT, "a constant")]
    if _FLOAT.match(c.line, c.at):
        word = c.match(_FLOAT, "a float")
        # One NaN object for all: Python compares tuples by identity first, so graphs with math.nan compare equal.
        return math.nan if word.endswith("nan") else float(word)
    return c.dim()


def _parse_tuple(c: _Cursor, depth: int) -> tuple[Any, ...]:
    if depth > MAX_NESTING:
        c.fail(f"tuples nested over {MAX_NESTING} deep")
    items: list[Any] = []
    while not c.take(")"):
        if len(items) >= MAX_ITEMS:
            c.fail(f"a tuple of over {MAX_ITEMS} items")
        items.append(_parse_value(c, depth))
        if not c.take(","):
            c.expect(")")
            if len(items) == 1:
                c.fail("a tuple of one item is written (x,)")
            break
    return tuple(items)


def _parse_bytes(c: _Cursor) -> ConstData:
    token = c.match(_BASE64, "base64")
    try:
        return ConstData(base64.b64decode(token[7:-1], validate=True))
    except binascii.Error:
        c.fail("bytes that are not base64")


def _parse_symbols(c: _Cursor, count: int) -> tuple[tuple[str, int | None], ...]:
    found: list[tuple[str, int | None]] = []
    while True:
        name = c.match(_WORD, "a symbol")
        found.append((name, c.integer() if c.take("<=") else None))
        if not c.take(","):
            return tuple(found)


def _parse_named(c: _Cursor, count: int) -> tuple[tuple[str, int], ...]:
    found: list[tuple[str, int]] = []
    c.skip_spaces()
    while c.at < len(c.line):
        if found:
            c.expect(",")
        c.skip_spaces()
        name = c.string()
        c.expect("=")
        found.append((name, c.node(count)))
        c.skip_spaces()
    return tuple(found)


def _parse_updates(c: _Cursor, count: int) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    while True:
        state = c.node(count)
        c.expect("=")
        found.append((state, c.node(count)))
        if not c.take(","):
            return tuple(found)


_SECTIONS: dict[str, Any] = {
    "symbols": _parse_symbols,
    "outputs": _parse_named,
    "updates": _parse_updates,
    "captures": _parse_named,
    "tree": lambda c, count: c.string(),
}
