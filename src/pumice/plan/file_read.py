"""The header and the blobs of a plan file as a plan, every number checked before it is used."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, get_args

from pumice.core.caps import Caps
from pumice.core.dims import Dim, Expr, sym
from pumice.core.dtypes import DType, dtype
from pumice.errors import DTypeError, FormatError, PumiceError, UnknownName
from pumice.ir.graph import ConstData, Graph, Node
from pumice.ir.types import TensorType
from pumice.plan.file_check import MAX_RANK, check_structure
from pumice.plan.file_exprs import EXACT, decode_dim
from pumice.plan.file_json import MAX_ROWS, Item, Table
from pumice.plan.file_write import ACCESS, OPTIONS, STEP_COLUMNS, encode
from pumice.plan.needs import AT_LEAST
from pumice.plan.plan import (
    FEATURES,
    MATRIX_FEATURES,
    Access,
    Binding,
    BufferKind,
    DeviceCount,
    Grid,
    Kernel,
    Part,
    Plan,
    PlanBuffer,
    PlanOptions,
    Regime,
    Step,
    Value,
)
from pumice.plan.verify import MAX_REGIMES

MAX_SYMBOLS = 256
MAX_OPERANDS = 1 << 12
_MAX_NESTING = 16
_MAX_ID = 1 << 31
_INT64 = 1 << 63
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_KEYS = (
    "format target options symbols types inputs params states constants outputs captures tree buffers values kernels "
    "uniforms regimes graph blobs needs infer requirements index_inputs exprs"
)
_SOURCES = {"inputs": "name value", "params": "name value stored", "states": "name value init"}
_ACCESS = {letter: access for access, letter in ACCESS.items()}
_SPECIAL_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}

Attrs = tuple[tuple[str, Any], ...]


def decode(header: Any, blobs: Sequence[bytes]) -> Plan:
    """The plan of a header; a FormatError says what is wrong and where."""
    plan = _PlanReader(header, blobs).plan()
    try:
        check_structure(plan)
        again = encode(plan, derived=False)
    except PumiceError as e:
        # An op of a pack that is not loaded is no fault of the file: its hint says what to do.
        hint = next((c.hint for c in (e, e.__cause__, e.__context__) if isinstance(c, UnknownName)), "")
        raise FormatError(f"it holds no sound plan: {e.message}", hint=hint, reason=e.code) from e
    # There is one way to write a plan: tables have each row once, in the order of use, and do not contradict each other.
    for key, table in again.header.items():
        found = header[key][: len(table)] if key == "exprs" else header[key]
        if found != table:
            raise FormatError(f"the table {key} contradicts the rest of the plan, or is not in the order of its use", place=key)
    if tuple(blobs) != again.blobs:
        raise FormatError("its blobs are not those of its plan, each once and in the order of their use")
    return plan


class _PlanReader:
    def __init__(self, header: Any, blobs: Sequence[bytes]) -> None:
        self.top = Item(header).object(_KEYS)
        self.blobs = blobs
        self.top["format"].choice(["pumice-plan"])
        self.maxima = self.symbols()
        self.exprs = [self.expr(row) for row in self.top["exprs"].array(MAX_ROWS)]
        self.types = self.read_types()
        # Steps of several regimes compute the same nodes from the same values: what is equal is one object, and checked once.
        self.bindings: dict[tuple[Any, ...], tuple[Binding, ...]] = {}
        self.nodes: dict[tuple[int, ...], tuple[int, ...]] = {}

    def plan(self) -> Plan:
        graph = self.graph()
        kernels, buffers = self.kernels(), self.buffers()
        sources = self.values(self.top["values"], len(buffers))
        uniforms = [self.dims(row, MAX_OPERANDS) for row in self.top["uniforms"].array(MAX_ROWS)]
        regimes = []
        for at in self.top["regimes"].array(MAX_REGIMES, 1):
            found = at.object("bounds reason values steps copies")
            values = {**sources, **self.values(found["values"], len(buffers))}
            copies = self.pairs(Table(found["copies"], "to value"), len(graph) - 1)
            steps = self.steps(found["steps"], uniforms, len(kernels))
            regimes.append(Regime(steps, values, copies, self.bounds(found["bounds"]), found["reason"].text()))
        caps = self.caps()
        self.check_derived()
        return Plan(graph, caps, buffers, kernels, tuple(regimes), self.maxima, self.options())

    # -- pieces -----------------------------------------------------------------------------------------------------
    def symbols(self) -> dict[str, int]:
        table = Table(self.top["symbols"], "name max")
        if len(table) > MAX_SYMBOLS:
            raise self.top["symbols"].fail(f"{len(table)} symbols, more than {MAX_SYMBOLS}")
        found: dict[str, int] = {}
        for name, item, maximum in zip(table.texts("name", 200), table.items("name"), table.integers("max", 0, EXACT - 1)):
            try:
                sym(name)
            except PumiceError as e:
                raise item.fail(e.message) from None
            if name in found:
                raise item.fail(f"the symbol {name} stands twice")
            found[name] = maximum
        return found

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

    def known_dim(self, value: Any, least: int = -_INT64) -> Dim | None:
        """The dim that a value stands for, None where `dim` has to say what is wrong with it."""
        if type(value) is int:
            return value if least <= value < _INT64 else None
        e = value.get("e") if type(value) is dict and len(value) == 1 else None
        return self.exprs[e] if type(e) is int and 0 <= e < len(self.exprs) else None

    def dims(self, at: Item, most: int, least: int = -_INT64) -> tuple[Dim, ...]:
        found = [self.known_dim(value, least) for value in at.values(most)]
        if None in found:
            return tuple(self.dim(d, least) for d in at.array(most))
        return tuple(found)  # type: ignore[arg-type]

    def read_types(self) -> list[TensorType]:
        table = Table(self.top["types"], "dtype shape")
        shapes = (self.dims(row, MAX_RANK, 0) for row in table.items("shape"))
        return [TensorType(self.dtype(name), shape) for name, shape in zip(table.items("dtype"), shapes)]

    def dtype(self, at: Item) -> DType:
        name = at.text(40)
        try:
            found = dtype(name)
        except DTypeError as e:
            raise at.fail(e.message) from None
        if found.name != name:
            raise at.fail(f"the dtype {name} is written {found.name}")
        return found

    def blob(self, at: Item) -> bytes:
        return self.blobs[at.index(len(self.blobs), "blob")]

    def caps(self) -> Caps:
        if self.top["target"].choice(["webgpu", "host"]) == "host":
            self.top["needs"].object("")
            return Caps.preset("host")
        optional = " ".join(("subgroup_size", *MATRIX_FEATURES))
        needs = self.top["needs"].object(" ".join((*AT_LEAST, *FEATURES, "storage_alignment workgroups")), optional)
        limits: dict[str, Any] = {key: needs[key].integer() for key in AT_LEAST}
        alignment = needs["storage_alignment"].integer(1, 256)
        if alignment & (alignment - 1):
            raise needs["storage_alignment"].fail(f"{alignment} is no power of two")
        needs["workgroups"].integer()
        limits |= {key: needs[key].flag() for key in FEATURES}
        if "subgroup_size" in needs:
            limits |= {"subgroup_size": needs["subgroup_size"].integer(4, 128), "subgroup_fixed": True}
        return Caps("webgpu", "webgpu", storage_alignment=alignment, **limits)

    def options(self) -> PlanOptions:
        found = self.top["options"].object(" ".join(OPTIONS))
        fuse, arena, regimes = (found[name].flag() for name in ("fuse", "arena", "regimes"))
        return PlanOptions(fuse, arena, regimes, found["guard"].integer(), found["default_max"].integer(1))

    def buffers(self) -> tuple[PlanBuffer, ...]:
        table = Table(self.top["buffers"], "kind nbytes name")
        kinds: Any = table.choices("kind", get_args(BufferKind))
        return tuple(map(PlanBuffer, kinds, table.integers("nbytes", 0, EXACT - 1), table.texts("name")))

    def bounds(self, at: Item) -> tuple[tuple[Expr, int], ...]:
        table = Table(at, "dim most")
        dims = [self.exprs[item.object("e")["e"].index(len(self.exprs), "expression")] for item in table.items("dim")]
        return tuple(zip(dims, table.integers("most", 0, EXACT - 1)))

    def values(self, at: Item, buffers: int) -> dict[int, Value]:
        table = Table(at, "id type parts")
        ids, types = table.integers("id", 0, _MAX_ID), table.indices("type", self.types)
        found: dict[int, Value] = {}
        rows = table.integer_rows("parts", 0, EXACT - 1, most_items=3 * MAX_OPERANDS)
        for i, type, words in zip(ids, types, rows):
            if len(words) == 3 and words[0] < buffers:  # all but the largest params
                found[i] = Value(i, type, (Part(*words),))
                continue
            if not words or len(words) % 3 or max(words[::3]) >= buffers:
                raise table.columns["parts"].fail(f"those of value {i} are no buffers, offsets and sizes")
            found[i] = Value(i, type, tuple(map(Part, words[::3], words[1::3], words[2::3])))
        return found

    def kernels(self) -> tuple[Kernel, ...]:
        table = Table(self.top["kernels"], "name wgsl access words workgroup shared features")
        texts = [self.text(item) for item in table.items("wgsl")]
        sizes = (
            table.integers("words", 0, MAX_OPERANDS),
            table.integers("workgroup", 1, EXACT),
            table.integers("shared", 0, EXACT),
        )
        features = [self.features(item) for item in table.items("features")]
        return tuple(map(Kernel, table.texts("name"), texts, self.access(table), *sizes, features))

    def features(self, at: Item) -> tuple[str, ...]:
        found = tuple(at.text(100).split())
        if set(found) & set(MATRIX_FEATURES):
            # What a kernel reads into a matrix cannot be bounded, so that only kernels generated here may.
            raise at.fail("kernels for matrix units run in the process that planned them: compile the graph again")
        if list(found) != [f for f in FEATURES if f in found]:
            raise at.fail(f"features are some of {', '.join(FEATURES)}, in this order")
        return found

    def text(self, at: Item) -> str:
        try:
            return self.blob(at).decode()
        except UnicodeDecodeError:
            raise at.fail("the kernel is no UTF-8 text") from None

    def access(self, table: Table) -> list[tuple[Access, ...]]:
        found = []
        known: dict[str, tuple[Access, ...]] = {}
        for i, word in enumerate(table.texts("access", MAX_OPERANDS)):
            if word not in known:
                if set(word) - _ACCESS.keys():
                    raise table.items("access")[i].fail("letters other than r, w and u")
                known[word] = tuple(_ACCESS[letter] for letter in word)
            found.append(known[word])
        return found

    def steps(self, at: Item, uniforms: Sequence[tuple[Dim, ...]], kernels: int) -> tuple[Step, ...]:
        table = Table(at, STEP_COLUMNS)
        rows = table.integer_rows("bindings", 0, _MAX_ID, most_items=2 * MAX_OPERANDS)
        bindings = []
        for i, (words, access) in enumerate(zip(rows, self.access(table))):
            if len(words) != 2 * len(access):
                raise table.items("bindings")[i].fail(f"{len(words)} numbers for {len(access)} bindings")
            key = (*words, access)
            found = self.bindings.get(key)
            if found is None:
                found = self.bindings[key] = tuple(map(Binding, words[::2], words[1::2], access))
            bindings.append(found)
        nodes = map(tuple, table.integer_rows("nodes", 0, _MAX_ID, most_items=MAX_ROWS))
        return tuple(
            map(
                Step,
                table.texts("label"),
                [self.nodes.setdefault(row, row) for row in nodes],
                table.integers("root", 0, _MAX_ID),
                bindings,
                [-1 if k is None else k for k in table.optional_integers("kernel", 0, kernels - 1)],
                [() if u is None else uniforms[u] for u in table.optional_integers("uniforms", 0, len(uniforms) - 1)],
                self.grids(table.columns["groups"]),
                table.optional_integers("anchor", 0, _MAX_ID),
                table.texts("variant"),
            )
        )

    def grids(self, at: Item) -> list[Grid]:
        found: list[Grid] = []
        for i, value in enumerate(at.values(MAX_ROWS)):
            known = self.known_dim(value)
            found.append(self.grid(Item(value, at, i)) if known is None else known)
        return found

    def grid(self, at: Item) -> Grid:
        if type(at.value) is not dict or "value" not in at.value:
            return self.dim(at)
        count = at.object("value word most")
        return DeviceCount(count["value"].integer(0, _MAX_ID), count["word"].integer(), self.dim(count["most"]))

    def pairs(self, table: Table, last: int, first: str = "to") -> tuple[tuple[int, int], ...]:
        return tuple(zip(table.integers(first, 0, last), table.integers("value", 0, last)))

    # -- the graph --------------------------------------------------------------------------------------------------
    def graph(self) -> Graph:
        at = self.top["graph"].object("nodes names updates ops")
        table = Table(at["nodes"], "op in")
        ops = self.ops(Table(at["ops"], "op type further attrs"))
        names, contents = self.names(Table(at["names"], "name value")), self.contents()
        last = len(table) - 1
        for found, place in ((names, "names"), (contents, "constants")):
            if max(found, default=0) > last:
                raise Item(None, key=place).fail(f"value {max(found)} is no node of the graph")
        rows = table.integer_rows("in", 0, _MAX_ID, most_items=MAX_OPERANDS, null=True)
        nodes = []
        for i, ((op, type, further, attrs), operands) in enumerate(zip(table.indices("op", ops), map(tuple, rows))):
            if i in contents:
                attrs = (*attrs, ("data" if op == "constant" else "init", contents[i]))
            nodes.append(Node(i, op, operands, attrs, type, names.get(i, ""), further=further))
        return Graph(
            tuple(nodes),
            self.named("outputs", last),
            self.pairs(Table(at["updates"], "to value"), last),
            self.named("captures", last),
            tuple(self.maxima.items()),
            self.top["tree"].text(1 << 20),
        )

    def named(self, key: str, last: int) -> tuple[tuple[str, int], ...]:
        table = Table(self.top[key], "name value")
        return tuple(zip(table.texts("name"), table.integers("value", 0, last)))

    def names(self, others: Table) -> dict[int, str]:
        """The names of sources, and of those other nodes that have one."""
        tables = [others, *(Table(self.top[key], _SOURCES[key]) for key in _SOURCES)]
        return {i: name for t in tables for i, name in zip(t.integers("value", 0, _MAX_ID), t.texts("name"))}

    def contents(self) -> dict[int, ConstData]:
        """The bytes of constants and of states' first values, by node."""
        found: dict[int, ConstData] = {}
        table = Table(self.top["constants"], "value blob")
        for i, blob in zip(table.integers("value", 0, _MAX_ID), table.items("blob")):
            found[i] = ConstData(self.blob(blob))
        table = Table(self.top["states"], _SOURCES["states"])
        for i, blob in zip(table.integers("value", 0, _MAX_ID), table.items("init")):
            if blob.value is not None:
                found[i] = ConstData(self.blob(blob))
        return found

    def ops(self, table: Table) -> list[tuple[str, TensorType, tuple[TensorType, ...], Attrs]]:
        """What the nodes compute: the op, the types of its first result and of the others, and the attributes."""
        attrs = [self.attrs(item) for item in table.items("attrs")]
        rows = table.integer_rows("further", 0, len(self.types) - 1, most_items=MAX_OPERANDS)
        further = [tuple(self.types[t] for t in row) for row in rows]
        return list(zip(table.texts("op", 100), table.indices("type", self.types), further, attrs))

    def attrs(self, at: Item) -> Attrs:
        found = []
        for name, value in at.members(64):
            if not _NAME.fullmatch(name):
                raise value.fail("no name of an attribute")
            found.append((name, self.attr(value, 0)))
        return tuple(sorted(found, key=lambda a: a[0]))

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
        """Checks the form of the tables that this reader derives from the graph itself."""
        inputs = set(Table(self.top["inputs"], _SOURCES["inputs"]).texts("name"))
        table = Table(self.top["infer"], "symbol input axis slope rest")
        table.choices("symbol", self.maxima)
        table.choices("input", inputs)
        table.integers("axis", 0, MAX_RANK)
        self.check_dims(table, "slope", "rest")
        table = Table(self.top["requirements"], "small large unless_empty text")
        table.texts("text")
        self.check_dims(table, "small", "large", "unless_empty")
        table = Table(self.top["index_inputs"], "input size op")
        table.choices("input", inputs)
        table.texts("op", 100)
        self.check_dims(table, "size")

    def check_dims(self, table: Table, *names: str) -> None:
        for name in names:
            for item in table.items(name):
                self.dim(item)
