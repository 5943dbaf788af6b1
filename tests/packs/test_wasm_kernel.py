"""Kernels in WASM: what they compute, what they may not touch, and the error of everything that goes wrong."""

# ruff: noqa: E501  one kernel a line

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pumice.packs import errors
from pumice.packs.wasm.budget import EMBEDDED, SERVER
from pumice.packs.wasm.kernel import WasmKernel
from wasm_making import A_SIZE, B_SIZE, COPY, INT_RESULT, OUT, OUT_SIZE, PARAMS, SCRATCH, A, B, entry, store_result, wat, word

pytest.importorskip("wasmtime")

X = np.arange(16, dtype=np.float32)


def run(module: bytes, x: np.ndarray[Any, Any] = X, **fields: Any) -> np.ndarray[Any, Any]:
    """The output of a kernel with one float input and as many outputs; the kernel's memory is gone afterwards."""
    kernel = WasmKernel(entry(**fields), module)
    out = np.full_like(x, -1)
    try:
        kernel([x], {}, [out])
    except errors.PackKernelError:
        assert (out == -1).all(), "a failing kernel changed its output"
        raise
    finally:
        kernel.close()
    return out


def test_a_kernel_computes() -> None:
    double = f"""(loop $next
      (f32.store (i32.add {word(OUT)} (local.get $i)) (f32.mul (f32.const 2) (f32.load (i32.add {word(A)} (local.get $i)))))
      (br_if $next (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 4))) {word(A_SIZE)})))
      (i32.const 0)"""
    assert run(wat(double)).tolist() == (2 * X).tolist()


def test_the_entry_point_names_the_export() -> None:
    assert run(wat(name="fast_copy"), entry_point="fast_copy").tolist() == X.tolist()


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 0, 2), (5, 7), (2, 3, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    kinds = [{"name": name, "dtype": "f32", "shape": ["rows...", "dim"]} for name in ("x", "result")]
    assert np.array_equal(run(wat(), x, inputs=kinds[:1], outputs=kinds[1:]), x)


def test_strided_arrays() -> None:
    kernel = WasmKernel(
        entry(
            inputs=[{"name": "x", "dtype": "f32", "shape": ["n", "m"]}],
            outputs=[{"name": "result", "dtype": "f32", "shape": ["n", "m"]}],
        ),
        wat(),
    )
    x = np.arange(24, dtype=np.float32).reshape(6, 4).T[:, ::2]
    out = np.zeros((6, 4), np.float32).T[:, ::2]
    kernel([x], {}, [out])
    assert np.array_equal(out, x)


@pytest.mark.parametrize("size", [1 << 14, (1 << 14) + 1, 1 << 20])
def test_large_inputs(size: int) -> None:
    x = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    assert np.array_equal(run(wat(), x), x)


def test_inputs_after_the_first_share_region_b() -> None:
    """Each starts at the next multiple of 16; outputs do so in their region."""
    body = f"""(memory.copy {word(OUT)} {word(B)} {word(B_SIZE)})
      (i32.store offset=64 {word(OUT)} {word(B_SIZE)}) (i32.const 0)"""
    spec = {"dtype": "u8", "shape": ["n"]}
    kernel = WasmKernel(
        entry(
            inputs=[{"name": "a", **spec}, {"name": "b", **spec}, {"name": "c", "dtype": "i32", "shape": ["m"]}],
            outputs=[{"name": "r", "dtype": "u8", "shape": [64]}, {"name": "s", "dtype": "i32", "shape": [1]}],
        ),
        wat(body),
    )
    out = np.zeros(64, np.uint8), np.zeros(1, np.int32)
    kernel([np.zeros(5, np.uint8), np.full(5, 7, np.uint8), np.array([9, 10], np.int32)], {}, out)
    assert out[1][0] == 24  # 5 bytes, 11 of padding, 8 bytes
    assert out[0][:5].tolist() == [7] * 5
    assert out[0][16:24].view(np.int32).tolist() == [9, 10]


def test_output_that_was_not_written_is_nan() -> None:
    assert np.isnan(run(wat("(i32.const 0)"))).all()


def test_scratch() -> None:
    body = f"(memory.fill {word(SCRATCH)} (i32.const 3) (i32.load offset=28 (local.get $d))) {COPY}"
    assert run(wat(body), pumice={"scratch": "n * 4 + 100"}).tolist() == X.tolist()


def test_floats_keep_their_bits() -> None:
    x = np.array([0x7FC00001, 0xFFC12345, 0x00000001, 0x80000000], np.uint32).view(np.float32)
    assert run(wat(), x).view(np.uint32).tolist() == x.view(np.uint32).tolist()


# What a kernel may not do, and the error of it.
BAD_CODE = {
    "endless loop": ("(loop $again (br $again)) (i32.const 0)", errors.EpochDeadline),
    "recursion": ("(call $forward (local.get $d))", errors.StackOverflow),
    "unreachable": ("(unreachable)", errors.Unreachable),
    "division by zero": ("(i32.div_u (i32.const 1) (local.get $i))", errors.IntegerOverflow),
    "integer overflow": ("(i32.div_s (i32.const 0x80000000) (i32.sub (local.get $i) (i32.const 1)))", errors.IntegerOverflow),
    "read outside": ("(i32.load (i32.const -4))", errors.MemoryAccessViolation),
    "write outside": ("(i32.store (i32.const -4) (i32.const 1)) (i32.const 0)", errors.MemoryAccessViolation),
    "fill outside": ("(memory.fill (i32.const 0) (i32.const 1) (i32.const -1)) (i32.const 0)", errors.MemoryAccessViolation),
    "conversion": ("(i32.trunc_f32_s (f32.const nan))", errors.KernelTrap),
    "indirect call of another type": ("(call_indirect (result i32) (i32.const 0))", errors.IndirectCallTypeMismatch),
    "indirect call of nothing": ("(call_indirect (result i32) (i32.const 1))", errors.IndirectCallTypeMismatch),
    "indirect call beyond the table": ("(call_indirect (result i32) (i32.const 9))", errors.KernelTrap),
    "write to input a": (f"(i32.store {word(A)} (i32.const 77)) {COPY}", errors.MemoryAccessViolation),
    "write to the end of input a": (
        f"(i32.store8 (i32.add {word(A)} (i32.sub {word(A_SIZE)} (i32.const 1))) (i32.const 77)) {COPY}",
        errors.MemoryAccessViolation,
    ),
    "write before input a": (f"(i32.store (i32.sub {word(A)} (i32.const 4)) (i32.const 77)) {COPY}", errors.MemoryAccessViolation),
    "write to the descriptor": ("(i32.store (local.get $d) (i32.const 1)) (i32.const 0)", errors.MemoryAccessViolation),
    "write before the descriptor": ("(i32.store (i32.sub (local.get $d) (i32.const 16)) (i32.const 1)) (i32.const 0)", errors.MemoryAccessViolation),
    "write before the output": (f"{COPY} (i32.store (i32.sub {word(OUT)} (i32.const 4)) (i32.const 77))", errors.MemoryAccessViolation),
    "write after the output": (
        f"{COPY} (i32.store8 (i32.add {word(OUT)} {word(OUT_SIZE)}) (i32.const 77))",
        errors.MemoryAccessViolation,
    ),
    "write far after the output": (f"(i32.store8 offset=4096 {word(OUT)} (i32.const 77)) {COPY}", errors.MemoryAccessViolation),
    "write to the last byte": (
        f"(i32.store8 (i32.sub (i32.shl (memory.size) (i32.const 16)) (i32.const 1)) (i32.const 77)) {COPY}",
        errors.MemoryAccessViolation,
    ),
}  # fmt: skip
TABLE = "(table 2 funcref) (elem (i32.const 0) $forward)"


@pytest.mark.parametrize("what", BAD_CODE)
def test_bad_code_is_a_named_error(what: str) -> None:
    body, kind = BAD_CODE[what]
    module = wat(body, extra=TABLE if "indirect" in what else "")
    with pytest.raises(kind) as caught:
        run(module, resource_limits={"max_epoch_ticks": 3})
    assert type(caught.value) is kind
    assert "little" in caught.value.message
    assert run(wat()).tolist() == X.tolist(), "the process goes on"


@pytest.mark.parametrize("region", ["input_b", "params", "scratch", "the guard after scratch"])
def test_writes_into_other_regions(region: str) -> None:
    targets = {
        "input_b": word(B),
        "params": word(PARAMS),
        "scratch": word(SCRATCH),
        "the guard after scratch": f"(i32.add {word(SCRATCH)} (i32.const 32))",
    }
    kernel = WasmKernel(
        entry(
            inputs=[{"name": name, "dtype": "f32", "shape": ["n"]} for name in ("x", "y")],
            params={"p": {"type": "u32", "default": 5}},
            pumice={"scratch": "32"},
        ),
        wat(f"(i32.store {targets[region]} (i32.const 77)) {COPY}"),
    )
    out = np.zeros_like(X)
    if region == "scratch":
        kernel([X, X], {}, [out])
        assert out.tolist() == X.tolist()
        return
    with pytest.raises(errors.MemoryAccessViolation) as caught:
        kernel([X, X], {}, [out])
    assert not out.any()
    assert ("memory before its output" if "guard" in region else region) in caught.value.message


def test_writes_into_a_large_input() -> None:
    body = f"(i32.store (i32.add {word(A)} (i32.const 400000)) (i32.const 77)) {COPY}"
    with pytest.raises(errors.MemoryAccessViolation, match="wrote to input_a"):
        run(wat(body), np.zeros(200_000, np.float32))


@pytest.mark.parametrize("code", range(1, 9))
def test_codes(code: int) -> None:
    with pytest.raises(errors.KernelCode) as caught:
        run(wat(f"(i32.const {code})"))
    assert caught.value.fields["kernel_code"] == min(code, 6)
    assert caught.value.fields["returned"] == code


def test_negative_code_is_internal() -> None:
    with pytest.raises(errors.KernelCode) as caught:
        run(wat("(i32.const -1)"))
    assert caught.value.fields["kernel_code"] == 6


def test_init_and_cleanup_fail() -> None:
    with pytest.raises(errors.InitializationFailed, match="kernel_init of little returned 3: invalid parameters"):
        run(wat(init="(i32.const 3)"))
    with pytest.raises(errors.KernelCode, match="kernel_cleanup of little returned 2"):
        run(wat(cleanup="(i32.const 2)"))


def test_init_gets_the_params() -> None:
    """In the manifest's order, each aligned to its size, the whole padded to 4 bytes."""
    kernel = WasmKernel(
        entry(
            outputs=[{"name": "result", "dtype": "u8", "shape": [40]}],
            params={
                "flag": {"type": "bool", "default": True},
                "wide": {"type": "i64", "default": -2},
                "small": {"type": "f32", "default": 0.5},
                "count": {"type": "u32", "default": 0},
                "exact": {"type": "f64", "default": 0.1},
            },
            pumice={"params": {"count": "n + 1"}},
        ),
        wat(
            f"(memory.copy {word(OUT)} (i32.const 64) (i32.const 40)) (i32.const 0)",
            init="(memory.copy (i32.const 64) (local.get $params) (local.get $size)) (i32.const 0)",
        ),
    )
    out = np.zeros(40, np.uint8)
    kernel([X], {"small": np.float32(2.5)}, [out])
    assert out[:4].view(np.uint32)[0] == 1
    assert out[8:16].view(np.int64)[0] == -2
    assert out[16:20].view(np.float32)[0] == 2.5
    assert out[20:24].view(np.uint32)[0] == 17  # the manifest's expression over dims
    assert out[24:32].view(np.float64)[0] == 0.1


@pytest.mark.parametrize(
    ("params", "named"),
    [({"eps": 2.0}, "eps"), ({"eps": -1.0}, "eps"), ({"eps": float("nan")}, "eps"), ({"eps": "1"}, "eps"), ({"count": 1.5}, "count"),
     ({"count": -1}, "count"), ({"count": 1 << 32}, "count"), ({"count": True}, "count"), ({"on": 1}, "on"), ({"other": 1}, "other")],
)  # fmt: skip
def test_bad_params(params: dict[str, Any], named: str) -> None:
    declared = {
        "eps": {"type": "f32", "default": 1e-5, "min": 0, "max": 1},
        "count": {"type": "u32", "default": 0},
        "on": {"type": "bool", "default": False},
    }
    kernel = WasmKernel(entry(params=declared), wat())
    with pytest.raises(errors.InvalidParameters) as caught:
        kernel([X], params, [np.zeros_like(X)])
    assert caught.value.fields["param"] == named


def test_shapes_and_dtypes_are_checked() -> None:
    specs = [{"name": "x", "dtype": "f32", "shape": ["rows...", "dim"]}, {"name": "w", "dtype": "f32", "shape": ["dim"]}]
    outs = [{"name": "result", "dtype": "f32", "shape": ["rows...", "dim"]}]
    kernel = WasmKernel(entry(inputs=specs, outputs=outs), wat())
    x, w = np.zeros((2, 3, 4), np.float32), np.zeros(4, np.float32)
    kernel([x, w], {}, [np.zeros_like(x)])
    cases: list[tuple[list[Any], Any, type[Exception], str]] = [
        ([x, np.zeros(5, np.float32)], x, errors.ShapeMismatch, "dim is 4 elsewhere"),
        ([x, w], np.zeros((3, 2, 4), np.float32), errors.ShapeMismatch, r"rows... is \(2, 3\) elsewhere"),
        ([x, np.zeros((4, 4), np.float32)], x, errors.ShapeMismatch, "it has 2 dims"),
        ([x], x, errors.ShapeMismatch, "has 2 inputs"),
        ([x.astype(np.float64), w], x, errors.DTypeMismatch, "x of little is f32, not float64"),
        ([x, w], x.astype(np.float16), errors.DTypeMismatch, "result of little is f32"),
    ]
    prepared = kernel.prepare([x, w], {}, [x])
    for inputs, out, kind, message in cases:
        with pytest.raises(kind, match=message):
            kernel(inputs, {}, [out])
        with pytest.raises(kind, match=message):
            prepared(inputs, [out])
    with pytest.raises(errors.ShapeMismatch, match="prepared for other arrays"):
        prepared([x[:1], w], [x[:1]])


def test_types_of_the_ir_prepare_too() -> None:
    from pumice.core import dtypes

    class Kind:
        shape, dtype = (16,), dtypes.f32

    kernel = WasmKernel(entry(), wat())
    call = kernel.prepare([Kind()], {}, [Kind()])
    assert call is kernel.prepare([X], {}, [X])
    out = np.zeros_like(X)
    call([X], [out])
    assert out.tolist() == X.tolist()


def test_memory_may_grow_within_the_limit_only() -> None:
    grow = store_result("(memory.grow (i32.const 2))") + ""
    kernel = WasmKernel(entry(outputs=INT_RESULT, resource_limits={"max_memory_pages": 4}), wat(grow))
    out = np.zeros(2, np.int32)
    for _ in range(3):
        kernel([X], {}, [out])
        assert out[0] == 2, "each call starts with one page of its own and one of the host's"
    until_refused = "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1)))) (i32.const 4)"
    with pytest.raises(errors.KernelCode, match="out of memory"):
        run(wat(until_refused), resource_limits={"max_memory_pages": 8})
    for_ever = "(loop $more (drop (memory.grow (i32.const 1))) (br $more)) (i32.const 0)"
    with pytest.raises(errors.EpochDeadline):
        run(wat(for_ever), resource_limits={"max_memory_pages": 8, "max_epoch_ticks": 2})


def test_regions_beyond_the_limit() -> None:
    with pytest.raises(errors.AllocationFailed) as caught:
        run(wat(), np.zeros(1 << 16, np.float32), resource_limits={"max_memory_pages": 8})
    assert caught.value.fields["requested_bytes"] > 2 * 4 << 16
    with pytest.raises(errors.AllocationFailed):
        run(wat(), X, pumice={"scratch": "n * 1000000000"})


def test_regions_beyond_the_module_s_own_maximum() -> None:
    with pytest.raises(errors.AllocationFailed, match="its limits leave"):
        run(wat(memory='(memory (export "memory") 1 1)'))
    assert run(wat(memory='(memory (export "memory") 1 2)')).tolist() == X.tolist()
    assert run(wat(memory='(memory (export "memory") 0)')).tolist() == X.tolist(), "a module without memory of its own"


def test_limits_are_clamped_by_the_budget() -> None:
    asked = entry(
        resource_limits={
            "max_memory_pages": 65536,
            "max_epoch_ticks": 100_000,
            "max_table_elements": 10_000_000,
            "max_stack_size": 1 << 30,
            "max_globals": 100_000,
        }
    ).resource_limits
    server, embedded = SERVER.clamp(asked), EMBEDDED.clamp(asked)
    assert (server.pages, server.ticks, embedded.pages, embedded.ticks) == (1024, 6000, 64, 1000)
    for budget, limits in ((SERVER, server), (EMBEDDED, embedded)):
        assert (limits.table_elements, limits.stack, limits.globals) == (
            budget.max_table_elements,
            budget.max_stack,
            budget.max_globals,
        )
    unsaid = entry().resource_limits
    assert (SERVER.clamp(unsaid).ticks, EMBEDDED.clamp(unsaid).ticks) == (1000, 100)
    small = entry(
        resource_limits={"max_memory_pages": 3, "max_epoch_ticks": 7, "max_stack_size": 65536, "max_globals": 2}
    ).resource_limits
    assert (SERVER.clamp(small).pages, SERVER.clamp(small).ticks, SERVER.clamp(small).stack, SERVER.clamp(small).globals) == (
        3,
        7,
        65536,
        2,
    )


def test_the_stack_is_limited() -> None:
    """A recursion of so many frames fits the larger stack and not the smaller one."""
    body = """(if (result i32) (i32.eqz (local.get 0)) (then (i32.const 0)) (else (call $deep (i32.sub (local.get 0) (i32.const 1)))))"""
    module = wat(
        store_result("(call $deep (i32.const 2000))"),
        extra=f"(func $deep (param i32) (result i32) (i32.add (i32.const 1) {body}))",
    )
    x = np.zeros(1, np.int32)
    kinds = {"inputs": [{"name": "x", "dtype": "i32", "shape": ["m"]}], "outputs": INT_RESULT}
    assert run(module, x, resource_limits={"max_stack_size": 512 << 10}, **kinds)[0] == 2001
    with pytest.raises(errors.StackOverflow):
        run(module, x, resource_limits={"max_stack_size": 16 << 10}, **kinds)


def test_calls_from_several_threads() -> None:
    """Each has an instance of its own: kernels that wait long inside see nothing of each other."""
    slow = f"""{COPY.removesuffix("(i32.const 0)")}
      (loop $wait (br_if $wait (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 200000))))
      (i32.const 0)"""
    kernel = WasmKernel(entry(), wat(slow))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(256).astype(np.float32)
        out = np.zeros_like(x)
        try:
            for _ in range(50):
                kernel([x], {}, [out])
                if not np.array_equal(x, out):
                    wrong.append(seed)
        except Exception as e:
            wrong.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]  # more than instances
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert kernel._instances <= SERVER.pool
    kernel.close()
    assert kernel._instances == 0


def test_a_closed_kernel_says_so() -> None:
    kernel = WasmKernel(entry(), wat())
    call = kernel.prepare([X], {}, [X])
    call([X], [np.zeros_like(X)])
    kernel.close()
    with pytest.raises(errors.PackKernelError, match="is closed"):
        call([X], [np.zeros_like(X)])


def test_many_shapes_share_the_instances() -> None:
    kernel = WasmKernel(entry(), wat())
    for n in (*range(1, 40), *range(1, 40)):
        x = np.full(n, n, np.float32)
        out = np.zeros_like(x)
        kernel([x], {}, [out])
        assert np.array_equal(x, out)
    assert kernel._instances <= SERVER.pool
