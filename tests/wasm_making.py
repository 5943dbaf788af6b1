"""Little kernels in WAT for the tests of the WASM runtime."""

from __future__ import annotations

from typing import Any

import wasmtime

from pumice.packs.manifest import KernelEntry

# Words of the descriptor that $d points to.
A, A_SIZE, B, B_SIZE, OUT, OUT_SIZE, SCRATCH, SCRATCH_SIZE, PARAMS, PARAMS_SIZE = range(0, 40, 4)


def word(at: int) -> str:
    """The word of the descriptor at this offset."""
    return f"(i32.load offset={at} (local.get $d))"


COPY = f"(memory.copy {word(OUT)} {word(A)} {word(A_SIZE)}) (i32.const 0)"


def store_result(value: str, at: int = 0) -> str:
    """Writes an i32 to the output and returns 0."""
    return f"(i32.store offset={at} {word(OUT)} {value}) (i32.const 0)"


def wat(
    forward: str = COPY,
    *,
    extra: str = "",
    memory: str = '(memory (export "memory") 1)',
    init: str = "(i32.const 0)",
    cleanup: str = "(i32.const 0)",
    info: str = '(func (export "kernel_info") (param i32) (result i32) (i32.const 0))',
    name: str = "kernel_forward",
    locals_: str = "(local $i i32)",
) -> bytes:
    """A module with the whole ABI around a body of kernel_forward; `extra` stands before the functions."""
    text = f"""(module {memory} {extra}
      (func (export "kernel_init") (param $params i32) (param $size i32) (result i32) {init})
      {info}
      (func (export "kernel_cleanup") (result i32) {cleanup})
      (func $forward (export "{name}") (param $d i32) (result i32) {locals_} {forward}))"""
    return bytes(wasmtime.wat2wasm(text))


def entry(**fields: Any) -> KernelEntry:
    """An entry of the manifest: x of n floats to result of n floats, unless the fields say otherwise."""
    values: dict[str, Any] = {
        "id": "little",
        "name": "Little",
        "path": "kernels/little.wasm",
        "hash": "sha256:" + "0" * 64,
        "entry_point": "kernel_forward",
        "inputs": [{"name": "x", "dtype": "f32", "shape": ["n"]}],
        "outputs": [{"name": "result", "dtype": "f32", "shape": ["n"]}],
        "resource_limits": {},
    }
    return KernelEntry.model_validate(values | fields)


INT_RESULT = [{"name": "result", "dtype": "i32", "shape": ["m"]}]
