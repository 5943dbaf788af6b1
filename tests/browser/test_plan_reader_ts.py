"""The browser's reader of plan files and its sizes, in Node: what Python's reader takes and refuses, and the same words."""

from __future__ import annotations

import base64
import copy
import json
import random
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pumice as pm
from browser.node_runtime import NodeRuntime
from plan.plan_bytes import opened, sealed, sealed_text
from plan.plan_cases import GOLDEN
from plan.test_golden_plans import NAMES
from plan.test_plan_malformed import ATTACKS, COUNT_ATTACKS, counted, host, rich, small
from pumice.core.caps import Caps
from pumice.core.dims import Dim, dim_max, dim_min, evaluate, sym
from pumice.core.json_file import canonical
from pumice.errors import InputError
from pumice.plan.build import build_plan
from pumice.plan.file import VERSION
from pumice.plan.file_exprs import encode_dim
from pumice.plan.plan import Plan, fold_grid

# Attacks that only the graph contradicts, which the browser does not read; `needs`, memory and data flow hold without it.
ABOUT_THE_GRAPH = {
    *("value of another type", "another dtype", "types twice", "step of no node", "step of a source", "root of nothing"),
    *("anchor elsewhere", "cyclic node", "operand after the node", "negative operand", "node of no op", "ops twice"),
    *("op of no type", "op of another type", "name of a source again", "name of nothing", "unknown op"),
    *("attribute of the wrong type", "attribute with a strange name", "deep attribute", "attribute over 64 bits"),
    *("attribute of a strange object", "attribute of a strange float", "constant of no node", "state without its first value"),
}
# Other ways to write the same expression, which evaluate just as well.
ABOUT_FORM = {
    *("expression that is not normal", "expression in reverse", "expression with a product of sums", "division by zero"),
}
# Values that outgrow their memory at some sizes: refused when a run has those sizes.
ABOUT_SIZES = {"part too small", "symbol beyond its memory"}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> NodeRuntime:
    """The runtime in Node; skips where Node or the packages of web/ are missing."""
    return NodeRuntime(tmp_path_factory.mktemp("node"))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def header_text(data: bytes) -> str:
    (size,) = struct.unpack_from("<I", data, 12)
    return data[16 : 16 + size].decode()


def is_refused(answer: dict[str, Any]) -> bool:
    """Whether a file was refused by a typed error with a hint; an error of any other kind fails the test."""
    assert "untyped" not in answer, answer["untyped"]
    if "value" in answer:
        return False
    assert answer["code"] == "format" and answer["hint"], answer
    assert len(answer["message"]) < 1000 and answer["message"].isprintable(), answer
    return True


# -- files that are good ------------------------------------------------------------------------------------------------
def test_headers_are_read_as_python_reads_them(runtime: NodeRuntime) -> None:
    files = [(GOLDEN / f"{name}.plan").read_bytes() for name in NAMES] + [counted(), host()]
    assert runtime.call("header", [b64(data) for data in files]) == [header_text(data) for data in files]


@pytest.mark.parametrize("name", NAMES)
def test_plans_are_what_python_reads(runtime: NodeRuntime, name: str) -> None:
    data = (GOLDEN / f"{name}.plan").read_bytes()
    plan = Plan.load(GOLDEN / f"{name}.plan")
    (found,) = runtime.call("plan", [b64(data)])
    assert found["sha256"] == plan.sha256
    assert [k["text"] for k in found["kernels"]] == [k.wgsl for k in plan.kernels]
    assert [(b["kind"], b["nbytes"], b["name"]) for b in found["buffers"]] == [(b.kind, b.nbytes, b.name) for b in plan.buffers]
    for regime, made in zip(plan.regimes, found["regimes"], strict=True):
        places = {v["id"]: [tuple(p.values()) for p in v["parts"]] for v in made["values"]}
        assert places == {v.id: [(p.buffer, p.offset, p.nbytes) for p in v.parts] for v in regime.values.values()}
        assert [s["label"] for s in made["steps"]] == [s.label for s in regime.steps]
        assert [[tuple(b.values()) for b in s["bindings"]] for s in made["steps"]] == [
            [(b.value, b.part) for b in s.bindings] for s in regime.steps
        ]


# -- files that are not -------------------------------------------------------------------------------------------------
def test_truncated_and_flipped_files_are_refused(runtime: NodeRuntime) -> None:
    data = small()
    damaged = [data[:n] for n in range(0, len(data), 23)]
    for i in range(0, len(data), 11):
        damaged.append(data[:i] + bytes([data[i] ^ 0x21]) + data[i + 1 :])
    damaged += [b"", b"GGUF" + bytes(100), data + b"\0", data + bytes(8), b"\0" + data]
    assert len(damaged) > 300
    answers = runtime.call("read", [b64(d) for d in damaged])
    assert all(is_refused(a) for a in answers)


def test_attacks_with_a_right_hash_are_refused(runtime: NodeRuntime) -> None:
    files: dict[str, bytes] = {}
    for source, attacks in ((rich, ATTACKS), (counted, COUNT_ATTACKS)):
        for name, attack in attacks.items():
            header, blobs = opened(source())
            attack(header)
            files[name] = sealed(header, blobs)
    # A plan for the host is none for a browser: the error for that is another one.
    files.pop("host steps with kernels")
    answers = dict(zip(files, runtime.call("read", [b64(data) for data in files.values()]), strict=True))
    taken = {name for name, answer in answers.items() if not is_refused(answer)}
    assert taken == ABOUT_THE_GRAPH | ABOUT_FORM | ABOUT_SIZES


def test_random_changes_with_a_right_hash_never_surprise(runtime: NodeRuntime) -> None:
    rng = random.Random(17)
    files = []
    for source in (rich, counted, small):
        header, blobs = opened(source())
        header.pop("graph")
        graph = opened(source())[0]["graph"]
        for _ in range(150):
            changed = copy.deepcopy(header)
            for _ in range(rng.randint(1, 3)):
                mutate(changed, rng)
            files.append(sealed({**changed, "graph": graph}, blobs))
    answers = runtime.call("read", [b64(data) for data in files])
    refused = sum(is_refused(a) for a in answers if a.get("code") != "plan")
    assert refused > 300


def mutate(value: Any, rng: random.Random) -> None:
    """Changes something somewhere below."""
    strange = [None, True, -1, 0, 1 << 31, 1 << 53, 1 << 60, 0.5, "", "x", [], {}, [[]], {"e": 0}, {"e": 99}]
    while True:
        key = rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
        inner = value[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.9:
            value = inner
            continue
        if rng.random() < 0.2 and isinstance(value, list):
            value.pop(key)
        elif rng.random() < 0.2 and isinstance(value, list):
            value.append(copy.deepcopy(inner))
        else:
            value[key] = rng.choice(strange)
        return


STRANGE_JSON = [
    *('{"blobs":[]} ', ' {"blobs":[]}', '{"blobs": []}', '{"b":1,"a":2}', '{"a":1,"a":2}', '{"a"}', "nul", "[1]2", "'a'", ""),
    *("[1.0e5]", "[1E5]", "[01]", "[-0]", "[.5]", "[1.]", "[1e5]", "[NaN]", "[1e999]", "[0.10]", "[1,]", "[", "[" * 3000),
    *('["\\u0041"]', '["\\u00E9"]', '["\\/"]', '["é"]', '["\x7f"]', '["a', '["\\ud8"]', '{"a":' * 3000),
]


def test_json_that_could_be_written_otherwise_is_refused(runtime: NodeRuntime) -> None:
    answers = runtime.call("parse", STRANGE_JSON)
    assert [text for text, answer in zip(STRANGE_JSON, answers, strict=True) if answer.get("code") != "format"] == []
    answers = runtime.call("read", [b64(sealed_text(text.encode(), [])) for text in STRANGE_JSON])
    assert all(is_refused(a) for a in answers)


def test_canonical_json_is_python_s(runtime: NodeRuntime) -> None:
    rng = random.Random(5)
    floats = [struct.unpack("<d", struct.pack("<Q", rng.getrandbits(64)))[0] for _ in range(500)]
    floats = [x for x in floats if np.isfinite(x)]
    floats += [0.0, -0.0, 1.0, 1e15, 1e16, 123456789012345680.0, 1e-4, 1e-5, 0.1, 1.5e300, 5e-324, 2.0**53, 1e21, 1e22, -2.5e-7]
    texts = ["", "é", '\x7f\x00\n\t"\\/', "日本", "🙂", "ﬀ🙂"]
    value = {"floats": floats, "ints": [0, -1, 2**53 - 1, -(2**53) + 1], **{t: [None, True, {}, []] for t in texts}}
    text = canonical(value)
    assert runtime.call("parse", [text]) == [{"value": text}]
    assert runtime.call("float", [b64(struct.pack("<d", x)) for x in floats]) == [repr(x) for x in floats]


def test_a_plan_of_a_newer_version_or_another_target_is_named_so(runtime: NodeRuntime) -> None:
    header, blobs = opened(small())
    newer, older, other = runtime.call("read", [b64(sealed(header, blobs, version=v)) for v in (VERSION + 1, 0)] + [b64(host())])
    assert newer["code"] == "format" and "made by a newer Pumice" in newer["message"] and "upgrade" in newer["hint"]
    assert newer["fields"]["version"] == VERSION + 1
    assert "no version 0" in older["message"]
    assert other["code"] == "plan" and "the target host" in other["message"]


# -- devices ------------------------------------------------------------------------------------------------------------
LIMITS = {
    "maxStorageBuffersPerShaderStage": 8,
    "maxStorageBufferBindingSize": 1 << 27,
    "maxBufferSize": 1 << 28,
    "maxUniformBufferBindingSize": 1 << 16,
    "maxComputeInvocationsPerWorkgroup": 256,
    "maxComputeWorkgroupSizeX": 256,
    "maxComputeWorkgroupStorageSize": 1 << 14,
    "maxComputeWorkgroupsPerDimension": 65535,
    "minStorageBufferOffsetAlignment": 256,
}


@pytest.mark.parametrize(
    ("limit", "available", "said"),
    [
        ("", 0, ""),
        ("maxStorageBuffersPerShaderStage", 2, "max_storage_buffers 6, an adapter has 2"),
        ("maxStorageBufferBindingSize", 1000, "max_binding_bytes 3072, an adapter has 1000"),
        ("maxBufferSize", 2000, "max_buffer_bytes 3072, an adapter has 2000"),
        ("maxUniformBufferBindingSize", 16, "max_uniform_bytes 32, an adapter has 16"),
        ("maxComputeInvocationsPerWorkgroup", 128, "max_invocations 256, an adapter has 128"),
        ("maxComputeWorkgroupSizeX", 64, "max_workgroup_x 256, an adapter has 64"),
        ("maxComputeWorkgroupStorageSize", 4096, "workgroup_memory 11264, an adapter has 4096"),
        ("maxComputeWorkgroupsPerDimension", 2, "max_groups 16, an adapter has 2"),
        ("minStorageBufferOffsetAlignment", 512, "storage_alignment 256, an adapter has 512"),
    ],
)
def test_a_device_that_is_too_small_is_told_both_numbers(runtime: NodeRuntime, limit: str, available: int, said: str) -> None:
    limits = {**LIMITS, **({limit: available} if limit else {})}
    facts = {"description": "an adapter", "features": [], "limits": limits, "subgroupSizes": None}
    (answer,) = runtime.call("unmet", [[b64((GOLDEN / "decoder_step.plan").read_bytes()), facts]])
    if not limit:
        assert answer == {"value": "runs"}
        return
    assert answer["code"] == "limit" and answer["message"] == f"the plan needs {said}" and answer["hint"]


def test_features_are_needed_as_kernels_use_them(runtime: NodeRuntime) -> None:
    header, blobs = opened((GOLDEN / "quantised.plan").read_bytes())
    assert header["needs"].pop("subgroup_size") == 8
    plan = b64(sealed(header, blobs))
    header["needs"]["subgroup_size"] = 32
    fixed = b64(sealed(header, blobs))
    big = {"description": "an adapter", "limits": {**LIMITS, "maxComputeWorkgroupStorageSize": 1 << 16}}
    big["limits"] |= {"maxComputeInvocationsPerWorkgroup": 1024, "maxComputeWorkgroupSizeX": 1024}
    cases = [
        (plan, [], None, "the plan needs subgroups true, an adapter has false"),
        (plan, ["subgroups"], [2, 64], "the plan needs subgroups true, an adapter has false"),
        (plan, ["subgroups"], [4, 64], None),
        (fixed, ["subgroups"], [4, 64], "the plan needs subgroup_size 32, an adapter has subgroups of several sizes"),
        (fixed, ["subgroups"], [16, 16], "the plan needs subgroup_size 32, an adapter has 16"),
        (fixed, ["subgroups"], [32, 32], None),
    ]
    answers = runtime.call("unmet", [[file, {**big, "features": f, "subgroupSizes": s}] for file, f, s, _ in cases])
    assert [a.get("message") for a in answers] == [said for *_, said in cases]


# -- sizes --------------------------------------------------------------------------------------------------------------
def random_dim(rng: random.Random, depth: int) -> Dim:
    if depth == 0 or rng.random() < 0.2:
        return sym(rng.choice("STB")) if rng.random() < 0.6 else rng.randint(-9, 9)
    a, b = random_dim(rng, depth - 1), random_dim(rng, depth - 1)
    op = rng.choice(["+", "-", "*", "//", "%", "max", "min"])
    if op in ("//", "%") and (b == 0 or (isinstance(b, int) and rng.random() < 0.5)):
        b = rng.choice([-7, -2, 2, 3, 64])
    return {
        "+": lambda: a + b,
        "-": lambda: a - b,
        "*": lambda: a * b,
        "//": lambda: a // b,
        "%": lambda: a % b,
        "max": lambda: dim_max(a, b),
        "min": lambda: dim_min(a, b),
    }[op]()


def test_dims_have_the_values_and_the_text_of_python_s(runtime: NodeRuntime) -> None:
    rng = random.Random(3)
    cases, expected = [], []
    for _ in range(2000):
        d = random_dim(rng, rng.randint(1, 4))
        env = {name: rng.choice([0, 1, 2, 7, 63, 64, 1000]) for name in "STB"}
        row = encode_dim(d)
        value = with_zero(row, env)
        if abs(value) < 2**40 and len(json.dumps(row)) < 4000:
            cases.append([row, env])
            expected.append([value, str(d)])
            if not any(isinstance(part, list) and part[0] in ("//", "%") for part in walk(row)):
                assert value == evaluate(d, env)
    assert len(cases) > 1500
    assert runtime.call("evaluate", cases) == expected


def walk(row: Any) -> list[Any]:
    return [row, *(x for part in row[1:] for x in walk(part))] if isinstance(row, list) else [row]


def with_zero(row: Any, env: dict[str, int]) -> int:
    """The value as plan-format.md defines it, in Python's own whole numbers."""
    if isinstance(row, int):
        return row
    if isinstance(row, str):
        return env[row]
    op, args = row[0], [with_zero(part, env) for part in row[1:]]
    if op == "+":
        return sum(args)
    if op == "*":
        return int(np.prod(np.array(args, dtype=object)))
    a, b = args
    if op in ("//", "%"):
        return 0 if b == 0 else a // b if op == "//" else a % b
    return max(a, b) if op == "max" else min(a, b)


def test_floor_division_is_exact_up_to_53_bits(runtime: NodeRuntime) -> None:
    rng = random.Random(4)
    numbers = [rng.randint(-(2**53) + 1, 2**53 - 1) for _ in range(500)]
    pairs = [(a, rng.choice([-1, 1]) * rng.randint(1, 2 ** rng.randint(1, 52))) for a in numbers]
    pairs += [(2**53 - 1, 2), (-(2**53) + 1, 2), (2**53 - 1, 2**53 - 1), (6, -3), (-6, 3), (0, -5)]
    for op, want in (("//", lambda a, b: a // b), ("%", lambda a, b: a % b)):
        found = runtime.call("evaluate", [[[op, "A", "B"], {"A": a, "B": b}] for a, b in pairs])
        assert [v for v, _ in found] == [want(a, b) for a, b in pairs]


def test_grids_are_folded_as_python_folds_them(runtime: NodeRuntime) -> None:
    rng = random.Random(6)
    cases = [[rng.randint(0, 2**33), limit] for limit in (65535, 4096, 7) for _ in range(100)]
    assert runtime.call("fold", cases) == [list(fold_grid(n, limit)) for n, limit in cases]


# -- inputs -------------------------------------------------------------------------------------------------------------
SPECS = {"x": pm.spec("T", 4), "y": pm.spec("2*T+S", 4), "ids": pm.spec("S", dtype="i32"), "scale": pm.spec(dtype="f32")}
MAXIMA = {"T": 8, "S": 6}


def guarded(x: Any, y: Any, ids: Any, scale: Any) -> Any:
    """Symbols that follow from each other, an index input, and rows that must exist."""
    return pm.embedding(pm.concat([x, y[4].reshape(1, 4)], axis=0), ids) * scale


@pytest.fixture(scope="module")
def guarded_plan() -> str:
    return b64(build_plan(pm.trace(guarded, **SPECS), Caps.preset("browser-baseline"), max=MAXIMA).to_bytes())


@pytest.fixture(scope="module")
def guarded_exe() -> Iterator[pm.Executable]:
    with pm.compile(guarded, **SPECS, max=MAXIMA, device="host") as exe:
        yield exe


NUMPY = {"f32": "float32", "i32": "int32", "u32": "uint32", "bool": "bool"}
Given = tuple[Any, ...]
GOOD: dict[str, Given] = {"x": ("f32", 3, 4), "y": ("f32", 8, 4), "ids": ("i32", 2), "scale": ("f32",)}


@pytest.mark.parametrize(
    "changes",
    [
        {"z": ("f32", 1)},
        {"scal": ("f32",), "scale": None},
        {"ids": None},
        {"ids": None, "x": None},
        {"x": ("f32", 3)},
        {"x": ("f32", 3, 5)},
        {"scale": ("f32", 1)},
        {"y": ("f32", 5, 4)},
        {"y": ("f32", 9, 4)},
        {"x": ("f32", 9, 4), "y": ("f32", 20, 4)},
        {"x": ("f32", 1, 4), "y": ("f32", 4, 4)},
        {"ids": ("f32", 2)},
        {"x": ("i32", 3, 4)},
        {"scale": ("bool",)},
    ],
    ids=str,
)
def test_wrong_inputs_are_refused_in_python_s_words(
    runtime: NodeRuntime, guarded_plan: str, guarded_exe: pm.Executable, changes: dict[str, Given | None]
) -> None:
    given = {name: row for name, row in {**GOOD, **changes}.items() if row is not None}
    arrays = {name: np.zeros(shape, NUMPY[dtype]) for name, (dtype, *shape) in given.items()}
    with pytest.raises(InputError) as caught:
        guarded_exe.run(arrays)
    (answer,) = check_inputs(runtime, guarded_plan, [arrays])
    assert answer.get("code") == caught.value.code, answer
    words = caught.value.message
    for short, long in NUMPY.items():
        words = words.replace(f"got {long}", f"got {short}")
    assert answer["message"] == words


@pytest.mark.parametrize("index", [4, -5])
def test_indices_are_refused_in_python_s_words(
    runtime: NodeRuntime, guarded_plan: str, guarded_exe: pm.Executable, index: int
) -> None:
    arrays = {name: np.zeros(shape, NUMPY[dtype]) for name, (dtype, *shape) in GOOD.items()}
    good = {**arrays, "ids": np.int32([3, -4])}
    arrays["ids"][1] = index
    with pytest.raises(InputError) as caught:
        guarded_exe.run(arrays)
    right, wrong = check_inputs(runtime, guarded_plan, [good, arrays])
    assert right == {"value": {"T": 3, "S": 2}}
    assert (wrong["code"], wrong["message"], wrong["hint"]) == ("index-range", caught.value.message, caught.value.hint)


def check_inputs(runtime: NodeRuntime, plan: str, runs: list[dict[str, Any]]) -> list[Any]:
    short = {long: name for name, long in NUMPY.items()}

    def sent(a: Any) -> dict[str, Any]:
        return {"dtype": short[a.dtype.name], "shape": list(a.shape), "data": a.ravel().astype(float).tolist()}

    return runtime.call("inputs", [{"file": plan, "given": {name: sent(a) for name, a in run.items()}} for run in runs])


# -- arrays -------------------------------------------------------------------------------------------------------------
def test_halves_are_rounded_as_numpy_rounds_them(runtime: NodeRuntime) -> None:
    import ml_dtypes

    rng = np.random.default_rng(8)
    some = rng.integers(0, 2**32, 3000, dtype=np.uint32).view(np.float32)
    near = rng.integers(0, 2**16, 1000).astype(np.uint16).view(np.float16).astype(np.float32)
    near = near[np.isfinite(near)]
    ties = np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf)), (near + np.roll(near, 1)) / 2
    numbers = np.concatenate([some, near, *ties, np.float32([65504, 65519.99, 65520, 6e-8, 2.9e-8, 3e-8, 0, 1e-45])])
    numbers = numbers[np.isfinite(numbers)]
    for name, dtype in (("F16", np.float16), ("Bf16", ml_dtypes.bfloat16)):
        with np.errstate(over="ignore"):
            bits = numbers.astype(dtype).view(np.uint16)
        assert runtime.call(f"to{name}", [float(x) for x in numbers]) == bits.tolist()
        finite = [int(b) for b in bits if np.isfinite(np.uint16(b).view(dtype).astype(np.float32))]
        assert [float(x) for x in runtime.call(f"from{name}", finite)] == [float(np.uint16(b).view(dtype)) for b in finite]


def test_arrays_convert_where_python_converts_them(runtime: NodeRuntime) -> None:
    def case(dtype: str, to: str, *data: float) -> dict[str, Any]:
        return {"dtype": dtype, "shape": [len(data)], "data": list(data), "to": to}

    answers = runtime.call(
        "convert",
        [
            case("i32", "u8", 0, 255),
            case("u32", "i32", 2**31),
            case("i32", "u8", -1),
            case("f32", "f16", 1.0, 65520.0),
            case("f32", "i32", 1.0),
            case("bool", "i32", 1.0),
        ],
    )
    assert answers[0] == {"value": [0, 255]} and answers[3] == {"value": [0x3C00, 0x7C00]}
    assert [answers[i]["code"] for i in (1, 2, 4, 5)] == ["dtype"] * 4
