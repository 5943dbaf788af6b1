"""Plan files that were damaged or made to do harm: each a typed error that names the file, none with a cost out of proportion."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from formats.guard import bounded_memory
from gpu.plans import counted_plan
from plan.plan_bytes import hashed, last, opened, sealed, sealed_text
from plan.plan_cases import CASES
from pumice.core.caps import Caps
from pumice.errors import FormatError
from pumice.plan.build import build_plan
from pumice.plan.file import VERSION, plan_from_bytes, read_plan
from pumice.plan.plan import Plan

Header = dict[str, Any]


@cache
def small() -> bytes:
    """A whole plan in some three kilobytes: a symbol, a constant, a state with a first value, a copy."""

    def f(x: Any) -> Any:
        old = pm.state("n", (), init=2.0)
        pm.set_state("n", old + 1.0)
        return x * old, old

    return build_plan(pm.trace(f, x=pm.spec("N")), Caps.preset("browser-baseline")).to_bytes()


@cache
def rich() -> bytes:
    return CASES["several_results"]().plan().to_bytes()


@cache
def host() -> bytes:
    return CASES["several_results"]().plan("host").to_bytes()


@cache
def counted() -> bytes:
    return counted_plan().to_bytes()


def refused(data: bytes, match: str | None = None) -> FormatError:
    with pytest.raises(FormatError, match=match) as caught:
        plan_from_bytes(data, Path("some.plan"))
    error = caught.value
    assert error.fields["path"] == "some.plan" and "some.plan" in error.message
    assert error.hint
    assert len(str(error)) < 1500
    assert str(error).replace("\n", "").isprintable()
    return error


# -- damage -----------------------------------------------------------------------------------------------------------
def is_refused(data: bytes) -> bool:
    try:
        plan_from_bytes(data)
    except FormatError:
        return True
    return False


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80, 0xFF])
def test_every_single_byte_change_is_refused(flip: int) -> None:
    data = bytearray(small())
    for i in range(len(data)):
        data[i] ^= flip
        assert is_refused(bytes(data)), f"byte {i} xor {flip}"
        data[i] ^= flip
    assert not is_refused(bytes(data))


def test_every_single_byte_change_of_a_golden_file_is_refused() -> None:
    data = bytearray(rich())
    for i in range(len(data)):
        data[i] = (data[i] + 1 + i % 255) % 256
        assert is_refused(bytes(data)), f"byte {i}"
        data[i] = (data[i] - 1 - i % 255) % 256


def test_every_truncation_is_refused() -> None:
    data = small()
    assert all(is_refused(data[:n]) for n in range(len(data)))


@pytest.mark.parametrize("extra", [b"\0", b"\0" * 8, b"\n", small()[-32:], small()])
def test_every_extension_is_refused(extra: bytes) -> None:
    refused(small() + extra)
    refused(extra + small())


def test_what_is_no_plan_is_named_so(tmp_path: Path) -> None:
    for data in (b"", b"GGUF" + bytes(100), b"{}", small()[8:]):
        refused(data, "no plan file")
    with pytest.raises(FormatError, match=r"absent\.plan: cannot be read"):
        Plan.load(tmp_path / "absent.plan")
    with pytest.raises(FormatError, match="cannot be read"):
        pm.load_plan(tmp_path, "host")


def test_a_later_version_is_named_so() -> None:
    header, blobs = opened(small())
    error = refused(sealed({**header, "new": 1}, blobs, version=VERSION + 1), "made by a newer Pumice")
    assert error.fields["version"] == VERSION + 1 and "upgrade" in error.hint
    refused(sealed(header, blobs, version=0), "no version 0")


# -- the frame, with a right hash ---------------------------------------------------------------------------------------
def test_lengths_are_not_trusted() -> None:
    body = small()[:-32]
    for size in (0, 1, len(body), (1 << 32) - 1, 1 << 31):
        refused(hashed(body[:12] + struct.pack("<I", size) + body[16:]))
    refused(hashed(body + bytes(8)), "follow the last blob")
    refused(hashed(body[:-8]))
    header, blobs = opened(small())
    for sizes in ([1 << 62], [-1], [1.0], {}, None, [len(b) + 8 for b in blobs], [10**30], [True]):
        refused(sealed({**header, "blobs": sizes}, blobs))
    refused(sealed(header, [b + b"x" for b in blobs]))
    refused(sealed(header, blobs[::-1]))


def test_padding_is_zero() -> None:
    header, blobs = opened(small())
    size = len(json.dumps(header, sort_keys=True, separators=(",", ":")))
    header["buffers"]["name"][0] += "" if size % 8 else "x"
    body = bytearray(sealed(header, blobs)[:-32])
    (size,) = struct.unpack_from("<I", body, 12)
    assert size % 8
    body[16 + size] = 1
    refused(hashed(bytes(body)), "padding")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b'{"blobs":[],"blobs":[]}',
        b'{"blobs":[]} ',
        b'{"blobs":[NaN]}',
        b'{"blobs":[1e999]}',
        b'{"blobs":[' + b"9" * 5000 + b"]}",
        b'{"blobs":[],"x":"\\ud800"}',
        b'{"blobs":[],"x":[' + b"[]," * 800_000 + b"[]]}",
    ],
    ids=lambda t: t[:20].decode("latin1"),
)
def test_headers_that_are_no_canonical_json(text: bytes) -> None:
    with bounded_memory():
        refused(sealed_text(text, []))


def test_a_header_that_could_be_written_otherwise_is_refused() -> None:
    header, blobs = opened(small())
    refused(sealed_text(json.dumps(header, sort_keys=True).encode(), blobs), "canonical")
    backwards = dict(reversed(header.items()))
    refused(sealed_text(json.dumps(backwards, separators=(",", ":")).encode(), blobs), "canonical")


# -- the plan, with a right hash ------------------------------------------------------------------------------------------
def deep(levels: int) -> Any:
    row: Any = "T"
    for _ in range(levels):
        row = ["//", ["+", row, 1], 2]
    return row


def set_in(*path: Any) -> Callable[[Header], None]:
    """Put the last of `path` where the others lead."""

    def change(header: Header) -> None:
        at: Any = header
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


def drop(*path: Any) -> Callable[[Header], None]:
    def change(header: Header) -> None:
        at: Any = header
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return change


def add_row(table: dict[str, list[Any]], **row: Any) -> None:
    for key, value in row.items():
        table[key].append(value)


def repeat_row(table: dict[str, list[Any]]) -> None:
    for column in table.values():
        column.append(copy.deepcopy(column[0]))


def many_nodes(header: Header) -> None:
    header["graph"]["nodes"] = {"op": [0] * 4_000, "in": [[]] * 4_000}
    header["inputs"] = {"name": [f"x{i}" for i in range(4_000)], "value": list(range(4_000))}


def exploding_shapes(header: Header) -> None:
    """A rank that is allowed, of dims that are allowed, whose product has more terms than there are atoms."""
    names = [f"s{i}" for i in range(100)]
    for name in names:
        add_row(header["symbols"], name=name, max=3)
    header["exprs"] = [["+", *names], *header["exprs"]]
    header["types"]["shape"][0] = [{"e": 0}] * 32


def cyclic(header: Header) -> None:
    operands = header["graph"]["nodes"]["in"]
    operands[-1] = [len(operands) - 1]


def ladder(header: Header) -> None:
    """A symbol to a power that no integer holds."""
    header["exprs"][0] = ["*", *["T"] * 500]


ATTACKS: dict[str, Callable[[Header], None]] = {
    "unknown key": set_in("surprise", 1),
    "missing table": drop("regimes", -1, "steps"),
    "wrong kind of table": set_in("regimes", -1, "steps", {}),
    "steps of null": set_in("regimes", -1, "steps", "nodes", 0, None),
    "columns of two lengths": lambda h: last(h)["steps"]["label"].append("more"),
    "column left out": drop("regimes", -1, "steps", "label"),
    "column too many": set_in("regimes", -1, "steps", "surprise", []),
    "another format": set_in("format", "pumice-plan-2"),
    "another target": set_in("target", "cuda"),
    "host steps with kernels": set_in("target", "host"),
    "negative offset": set_in("values", "parts", 0, 1, -4),
    "huge offset": set_in("values", "parts", 0, 1, 1 << 60),
    "part beyond its buffer": set_in("values", "parts", 0, 2, 1 << 40),
    "part too small": set_in("values", "parts", 0, 2, 4),
    "empty part": set_in("values", "parts", 0, 2, 0),
    "no parts": set_in("values", "parts", 0, []),
    "value in two parts": lambda h: h["values"]["parts"][0].extend(h["values"]["parts"][0]),
    "two inputs in one buffer": lambda h: h["values"]["parts"].__setitem__(1, h["values"]["parts"][0]),
    "buffer of nobody": lambda h: (
        last(h)["values"]["parts"].__setitem__(-1, [len(h["buffers"]["kind"]), 0, 4096])
        or add_row(h["buffers"], kind="state", nbytes=4096, name="?")
    ),
    "no such buffer": set_in("values", "parts", 0, 0, 999),
    "negative buffer": set_in("values", "parts", 0, 0, -1),
    "float buffer": set_in("values", "parts", 0, 0, 0.0),
    "true for a number": set_in("values", "parts", 0, 0, False),
    "huge buffer": set_in("buffers", "nbytes", 0, 1 << 62),
    "buffer over the needs": set_in("buffers", "nbytes", 0, 1 << 50),
    "negative buffer size": set_in("buffers", "nbytes", 0, -16),
    "unknown buffer kind": set_in("buffers", "kind", 0, "stolen"),
    "input in an arena": set_in("buffers", "kind", 0, "arena"),
    "value without a node": set_in("values", "id", 0, 1 << 30),
    "huge id": set_in("values", "id", 0, 1 << 62),
    "value twice": lambda h: repeat_row(h["values"]),
    "value of another type": set_in("values", "type", 0, 1),
    "value of no type": set_in("values", "type", 0, 9999),
    "another dtype": set_in("types", "dtype", 0, "i32"),
    "unknown dtype": set_in("types", "dtype", 0, "f128"),
    "dtype by another name": set_in("types", "dtype", 0, "float32"),
    "types twice": lambda h: repeat_row(h["types"]),
    "types in reverse": lambda h: [column.reverse() for column in h["types"].values()],
    "input elsewhere": set_in("inputs", "value", 0, 1),
    "input with the name of another": lambda h: h["inputs"]["name"].__setitem__(0, h["inputs"]["name"][1]),
    "output of nothing": set_in("outputs", "value", 0, 1 << 20),
    "output twice": lambda h: repeat_row(h["outputs"]),
    "tree of nothing": set_in("tree", "[99]"),
    "tree of words": set_in("tree", '["x"]'),
    "tree of floats": set_in("tree", "0.5"),
    "tree that is no JSON": set_in("tree", "["),
    "deep tree": set_in("tree", "[" * 500 + "0" + "]" * 500),
    "no such kernel": set_in("regimes", -1, "steps", "kernel", 0, 99),
    "negative kernel": set_in("regimes", -1, "steps", "kernel", 0, -1),
    "host step in a webgpu plan": set_in("regimes", -1, "steps", "kernel", 0, None),
    "kernel of no text": set_in("kernels", "wgsl", 0, 9999),
    "kernel of other access": set_in("kernels", "access", 0, "r"),
    "unknown access": set_in("kernels", "access", 0, "x"),
    "too many words": set_in("kernels", "words", 0, 1 << 40),
    "binding of no value": set_in("regimes", -1, "steps", "bindings", 0, 0, 1 << 20),
    "binding of no part": set_in("regimes", -1, "steps", "bindings", 0, 1, 7),
    "half a binding": lambda h: last(h)["steps"]["bindings"][0].pop(),
    "binding without access": lambda h: last(h)["steps"]["bindings"][0].extend([0, 0]),
    "access to nothing": set_in("regimes", -1, "steps", "access", 0, "rrrrrrrrrr"),
    "bindings by the thousand": lambda h: (
        last(h)["steps"]["bindings"].__setitem__(0, [0, 0] * 5000) or last(h)["steps"]["access"].__setitem__(0, "r" * 5000)
    ),
    "steps swapped": lambda h: [column.reverse() for column in last(h)["steps"].values()],
    "step left out": lambda h: [column.pop(0) for column in last(h)["steps"].values()],
    "step of no node": set_in("regimes", -1, "steps", "nodes", 0, [1 << 20]),
    "step of a source": set_in("regimes", -1, "steps", "nodes", 0, [0]),
    "root of nothing": set_in("regimes", -1, "steps", "root", 0, 1 << 20),
    "anchor elsewhere": set_in("regimes", -1, "steps", "anchor", 0, 0),
    "groups of no expression": set_in("regimes", -1, "steps", "groups", 0, {"e": 9999}),
    "groups without end": set_in("regimes", -1, "steps", "groups", 0, 1 << 62),
    "groups as text": set_in("regimes", -1, "steps", "groups", 0, "T"),
    "negative expression": set_in("regimes", -1, "steps", "groups", 0, {"e": -1}),
    "expression and more": set_in("regimes", -1, "steps", "groups", 0, {"e": 0, "f": 1}),
    "no such uniforms": set_in("regimes", -1, "steps", "uniforms", 0, 9999),
    "copy to an input": set_in("regimes", -1, "copies", {"to": [0], "value": [0]}),
    "copy from nowhere": set_in("regimes", -1, "copies", {"to": [1 << 20], "value": [0]}),
    "copy to nowhere": set_in("regimes", -1, "copies", {"to": [], "value": [0]}),
    "cyclic node": cyclic,
    "operand after the node": set_in("graph", "nodes", "in", -1, [1 << 20]),
    "negative operand": set_in("graph", "nodes", "in", -1, [-1]),
    "node of no op": set_in("graph", "nodes", "op", -1, 9999),
    "ops twice": lambda h: repeat_row(h["graph"]["ops"]),
    "op of no type": set_in("graph", "ops", "type", -1, 9999),
    "op of another type": set_in("graph", "ops", "type", -1, 0),
    "name of a source again": lambda h: add_row(h["graph"]["names"], name="x", value=0),
    "name of nothing": lambda h: add_row(h["graph"]["names"], name="x", value=1 << 20),
    "unknown op": set_in("graph", "ops", "op", -1, "format_disk"),
    "attribute of the wrong type": set_in("graph", "ops", "attrs", -1, {"axis": "x"}),
    "attribute with a strange name": set_in("graph", "ops", "attrs", -1, {"a b": 1}),
    "deep attribute": set_in("graph", "ops", "attrs", -1, {"axis": json.loads("[" * 60 + "]" * 60)}),
    "attribute over 64 bits": set_in("graph", "ops", "attrs", -1, {"axis": 1 << 70}),
    "attribute of a strange object": set_in("graph", "ops", "attrs", -1, {"axis": {"g": 1}}),
    "attribute of a strange float": set_in("graph", "ops", "attrs", -1, {"axis": {"f": "fast"}}),
    "rank without end": set_in("types", "shape", 0, [1] * 100),
    "huge dim": set_in("types", "shape", 0, [1 << 62]),
    "negative dim": set_in("types", "shape", 0, [-1]),
    "update of nothing": set_in("graph", "updates", {"to": [0], "value": [1 << 20]}),
    "many nodes": many_nodes,
    "exploding shapes": exploding_shapes,
    "constant of no blob": set_in("constants", "blob", 0, 9999),
    "constant of another size": lambda h: h["constants"]["blob"].__setitem__(0, h["kernels"]["wgsl"][0]),
    "constant of no node": set_in("constants", "value", 0, 1 << 30),
    "state without its first value": set_in("states", "init", 0, None),
    "state of another blob": set_in("states", "init", 0, 1),
    "symbol twice": lambda h: repeat_row(h["symbols"]),
    "symbol with a strange name": set_in("symbols", "name", 0, "__import__('os')"),
    "symbol without end": set_in("symbols", "max", 0, 1 << 62),
    "symbol beyond its memory": set_in("symbols", "max", 0, 1 << 40),
    "symbol that is not there": lambda h: [column.pop(0) for column in h["symbols"].values()],
    "deep expression": set_in("exprs", 0, deep(300)),
    "wide expression": set_in("exprs", 0, ["+", *range(100_000)]),
    "power without end": ladder,
    "expression of nothing": set_in("exprs", 0, []),
    "expression of numbers": set_in("exprs", 0, ["+", 1, 2]),
    "expression that is not normal": set_in("exprs", 0, ["+", 1, "T"]),
    "expression in reverse": lambda h: h["exprs"].reverse(),
    "expression of an unknown symbol": set_in("exprs", 0, "Q"),
    "expression of an unknown function": set_in("exprs", 0, ["exec", "T", "T"]),
    "expression with a product of sums": set_in("exprs", 0, ["*", ["+", "T", 1], ["+", "T", 2]]),
    "division by zero": set_in("exprs", 0, ["//", "T", 0]),
    "needs that are too small": set_in("needs", "max_storage_buffers", 1),
    "needs that are no number": set_in("needs", "max_buffer_bytes", "all"),
    "needs left out": set_in("needs", {}),
    "alignment that is none": set_in("needs", "storage_alignment", 48),
    "feature that is none": set_in("kernels", "features", 0, "magic"),
    "features out of order": set_in("kernels", "features", 0, "subgroups f16"),
    "workgroup of nothing": set_in("kernels", "workgroup", 0, 0),
    "inference from nowhere": set_in("infer", "input", 0, "nobody"),
    "inference of no symbol": set_in("infer", "symbol", 0, "Q"),
    "requirement of no text": set_in("requirements", "text", 0, 7),
    "requirement of no expression": set_in("requirements", "small", 0, {"e": 12345}),
    "index into nothing": set_in("index_inputs", "input", 0, "nobody"),
    "name with half a character": set_in("buffers", "name", 0, "\ud800"),
    "name without end": set_in("buffers", "name", 0, "x" * 100_000),
    "terminal escapes": set_in("tree", ["\x1b[2J"]),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_structure_attacks_are_refused(name: str) -> None:
    header, blobs = opened(rich())
    ATTACKS[name](header)
    with bounded_memory():
        refused(sealed(header, blobs))


def counted_by(**changes: Any) -> Callable[[Header], None]:
    """The count of the step whose grid comes from the device, changed; None takes a key out."""

    def attack(header: Header) -> None:
        count = last(header)["steps"]["groups"][1]
        for key, value in changes.items():
            if value is None:
                del count[key]
            else:
                count[key] = value

    return attack


COUNT_ATTACKS: dict[str, Callable[[Header], None]] = {
    "word outside": counted_by(word=3),
    "word far outside": counted_by(word=1 << 52),
    "negative word": counted_by(word=-1),
    "fractional word": counted_by(word=0.5),
    "word as text": counted_by(word="0"),
    "no word": counted_by(word=None),
    "a key too many": counted_by(least=0),
    "no bound": counted_by(most=None),
    "bound too large": counted_by(most=1 << 32),
    "bound without end": counted_by(most=1 << 62),
    "negative bound": counted_by(most=-1),
    "bound of no expression": counted_by(most={"e": 9999}),
    "bound that is a count": counted_by(most={"value": 0, "word": 0, "most": 1}),
    "no value": counted_by(value=1 << 20),
    "negative value": counted_by(value=-1),
    "value of floats": counted_by(value=1),
    "value that the step writes": counted_by(value=2),
    "value that the step does not read": lambda h: (
        last(h)["steps"]["groups"].__setitem__(0, {"value": 0, "word": 0, "most": 1})
        or last(h)["steps"]["groups"].__setitem__(1, 1)
    ),
}


@pytest.mark.parametrize("name", COUNT_ATTACKS)
def test_attacks_on_grids_from_the_device_are_refused(name: str) -> None:
    header, blobs = opened(counted())
    assert set(last(header)["steps"]["groups"][1]) == {"value", "word", "most"}
    COUNT_ATTACKS[name](header)
    refused(sealed(header, blobs))


HOST_ATTACKS: dict[str, Callable[[Header], None]] = {
    "nodes in reverse": lambda h: [nodes.reverse() for nodes in last(h)["steps"]["nodes"] if len(nodes) > 1],
    "node twice": lambda h: [nodes.append(nodes[-1]) for nodes in last(h)["steps"]["nodes"]],
    "step without nodes": set_in("regimes", -1, "steps", "nodes", 0, []),
    "step with a kernel": set_in("regimes", -1, "steps", "kernel", 0, 0),
    "operand not bound": lambda h: (
        last(h)["steps"]["bindings"].__setitem__(-1, []) or last(h)["steps"]["access"].__setitem__(-1, "")
    ),
    "root elsewhere": set_in("regimes", -1, "steps", "root", 0, 0),
    "unaligned value": lambda h: [w.__setitem__(1, w[1] + 4) for w in last(h)["values"]["parts"]],
    "step that writes an input": set_in("regimes", -1, "values", "parts", -1, [0, 0, 64]),
    "step that writes more than its root": lambda h: (
        last(h)["steps"]["bindings"][0].extend([last(h)["values"]["id"][-1], 0])
        or last(h)["steps"]["access"].__setitem__(0, last(h)["steps"]["access"][0] + "w")
    ),
    "step that binds what it does not read": lambda h: (
        last(h)["steps"]["bindings"][0].extend([2, 0])
        or last(h)["steps"]["access"].__setitem__(0, last(h)["steps"]["access"][0] + "r")
    ),
    "constants over each other": lambda h: [
        w.__setitem__(1, 0) for w in h["values"]["parts"] if h["buffers"]["kind"][w[0]] == "constant"
    ],
    "needs of a host plan": set_in("needs", {"f16": True}),
    "as a webgpu plan": set_in("target", "webgpu"),
}


@pytest.mark.parametrize("name", HOST_ATTACKS)
def test_structure_attacks_on_host_plans_are_refused(name: str) -> None:
    header, blobs = opened(host())
    HOST_ATTACKS[name](header)
    refused(sealed(header, blobs))


VALUES: list[Any] = [
    0,
    1,
    -1,
    2,
    7,
    1 << 20,
    1 << 31,
    1 << 53,
    1 << 63,
    -(1 << 63),
    0.5,
    None,
    True,
    "",
    "T",
    "read",
    [],
    {},
    [0],
    {"e": 0},
]


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        found += places(child, (*path, key))
    return found


def harmed(header: Header, choose: random.Random) -> Header:
    """One or two changes anywhere: another value, something left out, something twice, two things swapped."""
    found = copy.deepcopy(header)
    for _ in range(choose.randint(1, 2)):
        path = choose.choice(places(found))
        at: Any = found
        for key in path[:-1]:
            at = at[key]
        kind = choose.choice(["value", "value", "value", "delete", "repeat", "swap"])
        if kind == "delete":
            del at[path[-1]]
        elif kind == "repeat" and isinstance(at, list):
            at.insert(path[-1], copy.deepcopy(at[path[-1]]))
        elif kind == "swap" and isinstance(at, list):
            choose.shuffle(at)
        else:
            at[path[-1]] = choose.choice(VALUES)
    return found


@pytest.mark.parametrize("source", [small, rich, host, counted], ids=lambda f: f.__name__)
def test_random_harm_to_the_header_is_refused_or_harmless(source: Callable[[], bytes]) -> None:
    header, blobs = opened(source())
    choose, accepted = random.Random(5), 0
    for _ in range(200):
        data = sealed(harmed(header, choose), blobs)
        try:
            plan = plan_from_bytes(data)
        except FormatError:
            continue
        # What was accepted (a label, a limit that is larger than needed) is a whole plan: it can be written and read again.
        accepted += 1
        Plan.load_bytes(plan.to_bytes())
    assert accepted < 50


def test_random_bytes_under_a_right_hash_are_refused_or_harmless() -> None:
    choose = random.Random(7)
    for _ in range(800):
        body = bytearray(small()[:-32])
        for _ in range(choose.randint(1, 3)):
            body[choose.randrange(8, len(body))] = choose.randrange(256)
        try:
            Plan.load_bytes(hashed(bytes(body))).to_bytes()
        except FormatError:
            continue


def test_a_node_twice_in_a_host_step() -> None:
    header, blobs = opened(host())
    nodes = last(header)["steps"]["nodes"]
    nodes[0] = [*nodes[0], nodes[0][-1]]
    refused(sealed(header, blobs), match=f"computes node {nodes[0][-1]} twice")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device without an end")
def test_a_device_without_an_end_is_no_plan() -> None:
    with pytest.raises(FormatError, match="zero: is no plain file"):
        read_plan("/dev/zero")
