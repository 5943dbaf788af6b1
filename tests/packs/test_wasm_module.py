"""Modules that are refused before any of their code runs, each by a named error."""

# ruff: noqa: E501  one kernel a line

from __future__ import annotations

import numpy as np
import pytest
import wasmtime

from pumice.packs import errors
from pumice.packs.wasm.binary import leb, read_sections, rewrite
from pumice.packs.wasm.kernel import WasmKernel
from wasm_making import COPY, entry, wat

X = np.arange(16, dtype=np.float32)


def module(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(f"(module {text})"))


def abi(**replaced: str) -> bytes:
    """A whole ABI with some of its parts replaced by other text."""
    parts = {
        "before": "",
        "memory": '(memory (export "memory") 1)',
        "kernel_init": '(func (export "kernel_init") (param i32 i32) (result i32) (i32.const 0))',
        "kernel_info": '(func (export "kernel_info") (param i32) (result i32) (i32.const 0))',
        "kernel_cleanup": '(func (export "kernel_cleanup") (result i32) (i32.const 0))',
        "kernel_forward": '(func (export "kernel_forward") (param i32) (result i32) (i32.const 0))',
        "more": "",
    }
    return module(" ".join((parts | replaced).values()))


REFUSED = {
    "function imported": (abi(before='(import "env" "log" (func (param i32)))'), "imports env.log"),
    "memory imported": (abi(memory='(import "env" "memory" (memory 1)) (export "memory" (memory 0))'), "imports env.memory"),
    "wasi": (abi(before='(import "wasi_snapshot_preview1" "proc_exit" (func (param i32)))'), "imports wasi_snapshot_preview1.proc_exit"),
    "memory missing": (abi(memory=""), "exports no memory"),
    "memory not exported": (abi(memory="(memory 1)"), "exports no memory"),
    "memory that is a function": (abi(memory='(func (export "memory"))'), "that is none"),
    **{
        f"{name} missing": (abi(**{name: ""}), f"does not export '{name}'")
        for name in ("kernel_init", "kernel_info", "kernel_cleanup", "kernel_forward")
    },
    "forward that is a global": (
        abi(kernel_forward='(global (export "kernel_forward") i32 (i32.const 0))'), "something that is no function",
    ),
    "forward without a result": (
        abi(kernel_forward='(func (export "kernel_forward") (param i32))'), r"as \(i32\) -> nothing; it must be \(i32\) -> i32",
    ),
    "forward of i64": (
        abi(kernel_forward='(func (export "kernel_forward") (param i64) (result i32) (i32.const 0))'), r"as \(i64\) -> i32",
    ),
    "init with one param": (abi(kernel_init='(func (export "kernel_init") (param i32) (result i32) (i32.const 0))'), "kernel_init as"),
    "cleanup with a param": (abi(kernel_cleanup='(func (export "kernel_cleanup") (param i32) (result i32) (i32.const 0))'), "kernel_cleanup as"),
    "backward of the wrong type": (abi(more='(func (export "kernel_backward") (result i32) (i32.const 0))'), "kernel_backward as"),
    "start function": (abi(more="(func $s) (start $s)"), "has a start function"),
    "name of the runtime's own": (abi(more='(func (export "pumice:call"))'), "name of the runtime's own"),
    "two memories": (abi(more="(memory 1)"), "2 memories"),
    "64-bit memory": (abi(memory='(memory (export "memory") i64 1)'), "64-bit"),
    "shared memory": (abi(memory='(memory (export "memory") 1 2 shared)'), "shared"),
    "table of references": (abi(more="(table 1 externref)"), "other elements than functions"),
    "atomics": (abi(more="(func (drop (i32.atomic.load (i32.const 0))))"), "not valid here.*threads"),
    "relaxed simd": (
        abi(more="(func (param v128) (drop (i8x16.relaxed_swizzle (local.get 0) (local.get 0))))"), "not valid here.*relaxed",
    ),
    "tail call": (abi(more="(func (result i32) (return_call 0 (i32.const 0) (i32.const 0)))"), "not valid here.*tail"),
    "exceptions": (abi(more="(tag $e) (func (throw $e))"), "cannot be read|not valid here"),
    "reference types": (abi(more="(table 1 funcref) (func (drop (table.get 0 (i32.const 0))))"), "not valid here.*reference"),
    "gc": (abi(more="(type (struct))"), "cannot be read|not valid"),
    "component": (bytes(wasmtime.wat2wasm("(component)")), "no WASM module"),
    "nothing": (b"", "no WASM module"),
    "text": (b"(module)", "no WASM module"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_bad_module_is_refused(what: str) -> None:
    code, message = REFUSED[what]
    with pytest.raises(errors.InvalidModule, match=message):
        WasmKernel(entry(), code)


@pytest.mark.parametrize("name", ["memory", "kernel_init", "kernel_cleanup"])
def test_an_entry_point_has_no_other_part(name: str) -> None:
    with pytest.raises(errors.InvalidModule, match="entry point"):
        WasmKernel(entry(entry_point=name), abi())


def test_the_whole_abi_is_taken() -> None:
    backward = '(func (export "kernel_backward") (param i32) (result i32) (i32.const 5))'
    WasmKernel(entry(), abi(more=backward)).close()


def test_what_is_on() -> None:
    """SIMD, bulk memory, several results, sign extension, saturating conversion, mutable and constant globals."""
    more = """(global (mut i32) (i32.const 1)) (global i32 (i32.add (i32.const 1) (i32.const 2)))
      (func (param f32 i32) (result i32 i32) (i32.trunc_sat_f32_s (local.get 0)) (i32.extend8_s (local.get 1)))
      (func (param v128) (result v128) (f32x4.add (local.get 0) (local.get 0)))
      (func (memory.copy (i32.const 0) (i32.const 8) (i32.const 8)))"""
    WasmKernel(entry(), abi(more=more)).close()


LIMITED = {
    "memory": (abi(memory='(memory (export "memory") 9)'), {"max_memory_pages": 8}, "9 memory pages; it may have 8"),
    "memory beyond the budget": (abi(memory='(memory (export "memory") 1025)'), {"max_memory_pages": 65536}, "it may have 1024"),
    "table": (abi(more="(table 11 funcref)"), {"max_table_elements": 10}, "11 table elements; it may have 10"),
    "huge table": (abi(more="(table 4000000000 funcref)"), {"max_table_elements": 10_000_000}, "it may have 10000"),
    "globals": (abi(more="(global i32 (i32.const 1)) (global (mut f64) (f64.const 1))"), {"max_globals": 1}, "2 globals; it may have 1"),
    "long function": (wat("(nop)" * 70_000 + COPY), {}, "bytes of code in one function; it may have 65536"),
    "long code": (abi(more=f"(func {'(nop)' * 60_000})" * 20), {}, "bytes of code; it may have 1048576"),
    "globals beyond the budget": (abi(more="(global v128 (v128.const i32x4 0 0 0 0))" * 1001), {"max_globals": 100_000}, "it may have 1000"),
}  # fmt: skip


@pytest.mark.parametrize("what", LIMITED)
def test_a_module_beyond_its_limits_is_refused(what: str) -> None:
    code, limits, message = LIMITED[what]
    with pytest.raises(errors.ResourceLimit, match=message):
        WasmKernel(entry(resource_limits=limits), code)


def test_a_large_module_is_refused_unread() -> None:
    with pytest.raises(errors.ResourceLimit, match="bytes, more than"):
        WasmKernel(entry(), b"\0asm" + bytes(9 << 20))


def test_initialisers_outside_their_memory_and_table() -> None:
    for more, kind in (
        ('(data (i32.const 65535) "ab")', errors.MemoryAccessViolation),
        ("(table 1 funcref) (elem (i32.const 1) 0)", errors.PackKernelError),
    ):
        kernel = WasmKernel(entry(), abi(more=more))
        with pytest.raises(kind):
            kernel([X], {}, [X.copy()])
        assert kernel._instances == 0


def test_every_changed_byte_is_refused_or_contained() -> None:
    """Each byte of a small module changed in turn: a typed error, or a kernel that runs within its sandbox."""
    good = wat(COPY)
    rng = np.random.default_rng(0)
    outcomes = set()
    for at in range(len(good)):
        changed = bytearray(good)
        changed[at] ^= int(rng.integers(1, 256))
        try:
            kernel = WasmKernel(entry(resource_limits={"max_epoch_ticks": 2, "max_memory_pages": 16}), bytes(changed))
            kernel([X], {}, [np.zeros_like(X)])
            kernel.close()
            outcomes.add("ran")
        except errors.PackKernelError as e:
            outcomes.add(type(e).__name__)
    assert "InvalidModule" in outcomes


@pytest.mark.parametrize("size", range(0, 120, 7))
def test_a_cut_module_is_refused(size: int) -> None:
    good = wat(COPY)
    assert size < len(good)
    with pytest.raises(errors.InvalidModule):
        WasmKernel(entry(), good[:size])


def test_hostile_counts_take_no_memory() -> None:
    """A section that declares four thousand million entries in a few bytes."""
    for section in (1, 2, 3, 4, 5, 6, 7, 9, 11):
        payload = leb((1 << 32) - 1) + b"\0\0"
        with pytest.raises(errors.InvalidModule, match=r"entries|early|no function|other elements"):
            read_sections(b"\0asm\x01\0\0\0" + bytes([section]) + leb(len(payload)) + payload)
    with pytest.raises(errors.InvalidModule, match="too long"):
        read_sections(b"\0asm\x01\0\0\0\x01\xff\xff\xff\xff\xff\xff\x01")
    with pytest.raises(errors.InvalidModule, match="wrong place"):
        read_sections(b"\0asm\x01\0\0\0\x03\x01\0\x01\x01\0")


def test_rewriting_keeps_the_rest() -> None:
    sections = read_sections(wat(COPY))
    again = read_sections(rewrite(sections, {}))
    assert again == sections
