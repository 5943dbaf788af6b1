"""The header and the blobs of a plan file as a plan, every number checked before it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, get_args

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Expr, sym
from pumice.core.dtypes import dtype
from pumice.errors import DTypeError, FormatError, PumiceError
from pumice.ir.graph import ConstData, Graph, Node
from pumice.ir.types import TensorType
from pumice.plan.file_check import MAX_RANK, check_structure
from pumice.plan.file_exprs import decode_dim
from pumice.plan.file_json import Item
from pumice.plan.file_write import DERIVED, canonical, encode
from pumice.plan.needs import AT_LEAST
from pumice.plan.plan import Access, Binding, Buffer, BufferKind, Kernel, Part, Plan, Step, Value

MAX_ROWS = 1 << 20
MAX_SYMBOLS = 256
MAX_OPERANDS = 1 << 12
_MAX_NESTING = 16
_MAX_ID = 1 << 31
_INT64 = 1 << 63
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_KEYS = (
    "format target planned_for symbols inputs params states constants outputs captures tree buffers values kernels uniforms "
    "steps copies graph blobs needs infer requirements index_inputs exprs"
)
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def decode(header: Any, blobs: Sequence[bytes]) -> Plan:
    """The plan of a header; a FormatError says what is wrong and where."""
    plan = _Reader(header, blobs).plan()
    try:
        check_structure(plan)
        again = encode(plan)
    except PumiceError as e:
        raise FormatError(f"it holds no sound plan: {e.message}", reason=e.code) from e
    _compare(header, again.header, again.plain_exprs)
    if tuple(blobs) != again.blobs:
        raise FormatError("its blobs are not those of its plan, each once and in the order of their use")
    return plan


def _compare(header: dict[str, Any], again: dict[str, Any], plain: int) -> None:
    """Tables that say the same thing must agree: what a plan comes to must be what the file says."""
    for key in header.keys() - set(DERIVED):
        if canonical(header[key]) != canonical(again[key]):
            raise FormatError(f"the table {key} contradicts the rest of the plan", place=key)
    if canonical(header["exprs"][:plain]) != canonical(again["exprs"][:plain]):
        raise FormatError("the table exprs is not in the order of its use", place="exprs")


class _Reader:
    def __init__(self, header: Any, blobs: Sequence[bytes]) -> None:
        self.top = Item(header).object(_KEYS)
        self.blobs = blobs
        self.top["format"].choice(["pumice-plan"])
        self.maxima: dict[str, int] = {}
        for row in self.top["symbols"].array(MAX_SYMBOLS):
            at = row.object("name max")
            name = at["name"].text(200)
            try:
                sym(name)
            except PumiceError as e:
                raise at["name"].fail(e.message) from None
            if name in self.maxima:
                raise at["name"].fail(f"the symbol {name} stands twice")
            self.maxima[name] = at["max"].integer()
        self.exprs: list[Expr] = []
        for row in self.top["exprs"].array(MAX_ROWS):
            self.exprs.append(self.expr(row))

    def plan(self) -> Plan:
        top = self.top
        graph = self.graph()
        uniforms = [self.dims(row, MAX_OPERANDS) for row in top["uniforms"].array(MAX_ROWS)]
        kernels = tuple(self.kernel(row) for row in top["kernels"].array(MAX_ROWS))
        buffers = tuple(self.buffer(row) for row in top["buffers"].array(MAX_ROWS))
        values: dict[int, Value] = {}
        for row in top["values"].array(MAX_ROWS):
            v = self.value(row, len(buffers))
            values[v.id] = v
        steps = tuple(self.step(row, len(kernels), uniforms) for row in top["steps"].array(MAX_ROWS))
        copies = tuple(row.pair(len(graph) - 1) for row in top["copies"].array(MAX_ROWS))
        caps = self.caps()
        self.check_derived()
        return Plan(graph, caps, buffers, values, kernels, steps, copies, self.maxima)

    # -- pieces -----------------------------------------------------------------------------------------------------
    def expr(self, row: Item) -> Expr:
        try:
            found = decode_dim(row.value, self.maxima)
        except FormatError as e:
            raise row.fail(e.message) from None
        if not isinstance(found, Expr):
            raise row.fail("an expression without symbols")
        return found

    def dim(self, at: Item, least: int = -_INT64) -> Dim:
        if type(at.value) is int:
            return at.integer(least, _INT64 - 1)
        return self.exprs[at.object("e")["e"].index(len(self.exprs), "expression")]

    def dims(self, at: Item, most: int, least: int = -_INT64) -> tuple[Dim, ...]:
        return tuple(self.dim(d, least) for d in at.array(most))

    def type(self, at: dict[str, Item]) -> TensorType:
        name = at["dtype"].text(40)
        try:
            found = dtype(name)
        except DTypeError as e:
            raise at["dtype"].fail(e.message) from None
        if found.name != name:
            raise at["dtype"].fail(f"the dtype {name} is written {found.name}")
        return TensorType(found, self.dims(at["shape"], MAX_RANK, 0))

    def blob(self, at: Item) -> bytes:
        return self.blobs[at.index(len(self.blobs), "blob")]

    def caps(self) -> Caps:
        target, name = self.top["target"].choice(["webgpu", "host"]), self.top["planned_for"].text(1000)
        if target == "host":
            self.top["needs"].object("")
            return Caps.preset("host").with_(name=name)
        needs = self.top["needs"].object(" ".join(AT_LEAST) + " storage_alignment f16 subgroups workgroups dialect")
        limits: dict[str, Any] = {key: needs[key].integer() for key in AT_LEAST}
        alignment = needs["storage_alignment"].integer(1, 256)
        if alignment & (alignment - 1):
            raise needs["storage_alignment"].fail(f"{alignment} is no power of two")
        needs["workgroups"].integer()
        limits |= {key: needs[key].flag() for key in ("f16", "subgroups")}
        return Caps(name, "webgpu", storage_alignment=alignment, **limits).with_(
            dialect=needs["dialect"].choice(["naga", "tint"])
        )

    def buffer(self, row: Item) -> Buffer:
        at = row.object("kind nbytes name")
        kinds = get_args(BufferKind)
        kind: Any = at["kind"].choice(kinds)
        return Buffer(kind, at["nbytes"].integer(), at["name"].text())

    def value(self, row: Item, buffers: int) -> Value:
        at = row.object("id dtype shape parts")
        parts = []
        for part in at["parts"].array(MAX_OPERANDS, 1):
            buffer, offset, nbytes = part.array(3, 3)
            parts.append(Part(buffer.index(buffers, "buffer"), offset.integer(), nbytes.integer()))
        return Value(at["id"].integer(0, _MAX_ID), self.type(at), tuple(parts))

    def kernel(self, row: Item) -> Kernel:
        at = row.object("name wgsl access words")
        try:
            wgsl = self.blob(at["wgsl"]).decode()
        except UnicodeDecodeError:
            raise at["wgsl"].fail("the kernel is no UTF-8 text") from None
        return Kernel(at["name"].text(), wgsl, self.access(at["access"]), at["words"].integer(0, MAX_OPERANDS))

    def access(self, at: Item) -> tuple[Access, ...]:
        return tuple(_access(a) for a in at.array(MAX_OPERANDS))

    def step(self, row: Item, kernels: int, uniforms: Sequence[tuple[Dim, ...]]) -> Step:
        at = row.object("label variant kernel bindings uniforms groups nodes root anchor")
        bindings = []
        for b in at["bindings"].array(MAX_OPERANDS):
            value, part, access = b.array(3, 3)
            bindings.append(Binding(value.integer(0, _MAX_ID), part.integer(0, MAX_OPERANDS), _access(access)))
        return Step(
            at["label"].text(),
            tuple(n.integer(0, _MAX_ID) for n in at["nodes"].array(MAX_ROWS)),
            at["root"].integer(0, _MAX_ID),
            tuple(bindings),
            -1 if at["kernel"].value is None else at["kernel"].index(kernels, "kernel"),
            () if at["uniforms"].value is None else uniforms[at["uniforms"].index(len(uniforms), "row of uniforms")],
            self.dim(at["groups"]),
            None if at["anchor"].value is None else at["anchor"].integer(0, _MAX_ID),
            at["variant"].text(),
        )

    # -- the graph --------------------------------------------------------------------------------------------------
    def graph(self) -> Graph:
        at = self.top["graph"].object("nodes updates")
        contents = self.contents()
        rows = at["nodes"].array(MAX_ROWS)
        nodes = tuple(self.node(i, row, contents) for i, row in enumerate(rows))
        if contents.keys() - range(len(nodes)):
            raise self.top["constants"].fail(f"value {max(contents)} is no node of the graph")
        last = len(nodes) - 1
        return Graph(
            nodes,
            self.named("outputs", last),
            tuple(pair.pair(last) for pair in at["updates"].array(MAX_ROWS)),
            self.named("captures", last),
            tuple(self.maxima.items()),
            self.top["tree"].text(1 << 20),
        )

    def named(self, key: str, last: int) -> tuple[tuple[str, int], ...]:
        rows = [row.object("name value dtype shape") for row in self.top[key].array(MAX_ROWS)]
        return tuple((at["name"].text(), at["value"].integer(0, last)) for at in rows)

    def contents(self) -> dict[int, ConstData]:
        """The bytes of constants and of states' first values, by node."""
        found: dict[int, ConstData] = {}
        for row in self.top["constants"].array(MAX_ROWS):
            at = row.object("value blob")
            found[at["value"].integer(0, _MAX_ID)] = ConstData(self.blob(at["blob"]))
        for row in self.top["states"].array(MAX_ROWS):
            at = row.object("name value dtype shape init")
            if at["init"].value is not None:
                found[at["value"].integer(0, _MAX_ID)] = ConstData(self.blob(at["init"]))
        return found

    def node(self, i: int, row: Item, contents: dict[int, ConstData]) -> Node:
        at = row.object("op dtype shape", "name in attrs")
        inputs = at["in"].array(MAX_OPERANDS) if "in" in at else []
        attrs: list[tuple[str, Any]] = []
        for name, value in at["attrs"].members(64) if "attrs" in at else ():
            if not _NAME.fullmatch(name):
                raise value.fail("no name of an attribute")
            attrs.append((name, self.attr(value, 0)))
        op = at["op"].text(100)
        if i in contents:
            attrs.append(("data" if op == "constant" else "init", contents[i]))
        name = at["name"].text() if "name" in at else ""
        operands = tuple(None if a.value is None else a.integer(0, _MAX_ID) for a in inputs)
        return Node(i, op, operands, tuple(sorted(attrs, key=lambda a: a[0])), self.type(at), name)

    def attr(self, at: Item, depth: int) -> Any:
        value = at.value
        if value is None or type(value) is bool:
            return value
        if type(value) is int:
            return at.integer(-_INT64, _INT64 - 1)
        if type(value) is str:
            return at.text()
        if type(value) is list:
            if depth == _MAX_NESTING:
                raise at.fail(f"arrays nest deeper than {_MAX_NESTING}")
            return tuple(self.attr(item, depth + 1) for item in at.array(1 << 16))
        if type(value) is dict and "f" in value:
            number = at.object("f")["f"]
            return number.value if type(number.value) is float else _SPECIAL_FLOATS[number.choice(_SPECIAL_FLOATS)]
        return self.dim(at)

    # -- what is derived --------------------------------------------------------------------------------------------
    def check_derived(self) -> None:
        """The form of the tables that this reader works out anew from the graph."""
        inputs = {row.object("name value dtype shape")["name"].text() for row in self.top["inputs"].array(MAX_ROWS)}
        for row in self.top["infer"].array(MAX_SYMBOLS):
            at = row.object("symbol input axis slope rest")
            at["symbol"].choice(self.maxima)
            at["input"].choice(inputs)
            at["axis"].integer(0, MAX_RANK)
            self.dim(at["slope"])
            self.dim(at["rest"])
        for row in self.top["requirements"].array(MAX_ROWS):
            at = row.object("small large unless_empty text")
            at["text"].text()
            for key in ("small", "large", "unless_empty"):
                self.dim(at[key])
        for row in self.top["index_inputs"].array(MAX_ROWS):
            at = row.object("input size op")
            at["input"].choice(inputs)
            at["op"].text(100)
            self.dim(at["size"])


def _access(at: Item) -> Access:
    found: Any = at.choice(get_args(Access))
    return found  # type: ignore[no-any-return]
