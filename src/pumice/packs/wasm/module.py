"""Checks a kernel's module against the ABI and its limits, and adds the one function that the runtime calls.

That function does init, forward and cleanup in one entry from Python, and wipes what the call leaves: it saves the
module's mutable globals in its locals and sets them back, and clears all memory before the output's guard. So a call costs one
crossing, and hidden globals need not be reachable from outside. A trap skips the wiping; the instance is dropped then.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pumice.packs.errors import InvalidModule, ResourceLimit
from pumice.packs.wasm import binary
from pumice.packs.wasm.abi import GUARD_BYTES
from pumice.packs.wasm.binary import FuncType, Sections, leb
from pumice.packs.wasm.budget import Budget, KernelLimits

# Stages of a call, in the order of their numbers; 0 is a call that went well.
STAGES = ("", "kernel_init", "forward", "kernel_cleanup", "guard")
# What output and guards hold before the call: a float that the kernel did not write is NaN.
FILL = 0xFF
# The words before the descriptor: offset and size of the output, and padding.
HEAD_BYTES = 16
CALL = "pumice:call"
# Clearing more memory than this, or saving more globals, takes longer than a new instance.
_MAX_WIPED_PAGES, _MAX_SAVED_GLOBALS = 16, 64

_I32, _I64 = b"\x7f", b"\x7e"
_ABI = {
    "kernel_init": FuncType(_I32 * 2, _I32),
    "kernel_info": FuncType(_I32, _I32),
    "kernel_cleanup": FuncType(b"", _I32),
    "kernel_backward": FuncType(_I32, _I32),
}
_FORWARD = FuncType(_I32, _I32)
_OPTIONAL = ("kernel_backward",)


@dataclass(frozen=True)
class KernelModule:
    """A module that was checked: its code with the added function, the size of its own memory, and what it may grow to.

    `reusable`: the added function wipes all that a call can leave. It does not for modules whose tables can change
    (any element segments), with passive data (which can be dropped) or with much memory: each call gets a new instance.
    """

    code: bytes
    own_pages: int
    max_pages: int
    reusable: bool

    @property
    def digest(self) -> str:
        """SHA-256 of the code that is compiled."""
        return hashlib.sha256(self.code).hexdigest()


def check_module(module: bytes, entry_point: str, limits: KernelLimits, budget: Budget) -> KernelModule:
    """A module with the ABI's exports and no imports, within its limits; else InvalidModule or ResourceLimit.

    >>> from pumice.packs.wasm.budget import SERVER, KernelLimits
    >>> check_module(b"\\0asm\\1\\0\\0\\0", "kernel_forward", KernelLimits(256, 100, 1024, 65536, 10, 4), SERVER)
    Traceback (most recent call last):
    pumice.packs.errors.InvalidModule: [invalid-module] the module exports no memory called "memory"
      hint: a wasm32 linker does so by default, or with --export-memory
    """
    if len(module) > budget.max_module_bytes:
        raise ResourceLimit(
            f"the module has {len(module)} bytes, more than {budget.max_module_bytes}", limit="module_bytes", size=len(module)
        )
    sections = binary.read_sections(module)
    if sections.imports:
        raise InvalidModule(
            f"the module imports {sections.imports[0]}; a kernel gets nothing from outside",
            hint="build it freestanding: no libc, no WASI, no undefined symbols",
            imported=sections.imports[0],
        )
    if sections.has_start:
        raise InvalidModule("the module has a start function", hint="do that work in kernel_init")
    _check_exports(sections, entry_point)
    _check_limits(sections, limits, budget)
    saved = [(index, kind) for index, (kind, mutable) in enumerate(sections.globals) if mutable]
    memory = sections.memories[0]
    own_pages = memory.minimum
    max_pages = limits.pages if memory.maximum is None else min(limits.pages, memory.maximum)
    reusable = not (sections.elements or sections.passive_data or len(saved) > _MAX_SAVED_GLOBALS or own_pages > _MAX_WIPED_PAGES)
    return KernelModule(_with_call(sections, entry_point, saved, reusable), own_pages, max_pages, reusable)


def _check_exports(sections: Sections, entry_point: str) -> None:
    kind, index = sections.exports.get("memory", (None, 0))
    if kind != binary.MEM:
        what = 'no memory called "memory"' if kind is None else 'something called "memory" that is none'
        raise InvalidModule(
            f"the module exports {what}", hint="a wasm32 linker does so by default, or with --export-memory", export="memory"
        )
    if len(sections.memories) != 1 or index != 0:
        raise InvalidModule(f"the module has {len(sections.memories)} memories of its own, and must have one", export="memory")
    if CALL in sections.exports:
        raise InvalidModule(f"the module exports {CALL!r}, a name of the runtime's own", export=CALL)
    if entry_point in ("memory", "kernel_init", "kernel_cleanup"):
        raise InvalidModule(f"the entry point cannot be {entry_point}, which has a part of its own", export=entry_point)
    for name, wanted in {**_ABI, entry_point: _FORWARD}.items():
        kind, index = sections.exports.get(name, (None, 0))
        if kind is None and name in _OPTIONAL:
            continue
        if kind != binary.FUNC or index >= len(sections.functions):
            what = "does not export" if kind is None else "exports something that is no function of its own as"
            raise InvalidModule(f"the module {what} {name!r}", hint=f"docs/packs.md has the ABI: {name}{wanted}", export=name)
        if (found := sections.type_of(index)) != wanted:
            raise InvalidModule(
                f"the module exports {name} as {found}; it must be {wanted}", hint="docs/packs.md has the ABI", export=name
            )


def _check_limits(sections: Sections, limits: KernelLimits, budget: Budget) -> None:
    checks = {
        "memory pages": (sections.memories[0].minimum, limits.pages),
        "table elements": (sum(table.minimum for table in sections.tables), limits.table_elements),
        "globals": (len(sections.globals), limits.globals),
        "bytes of code": (sum(sections.bodies), budget.max_code_bytes),
        "bytes of code in one function": (max(sections.bodies, default=0), budget.max_function_bytes),
    }
    for what, (declared, allowed) in checks.items():
        if declared > allowed:
            raise ResourceLimit(
                f"the module declares {declared} {what}; it may have {allowed}",
                hint="raise the kernel's resource_limits as far as the runtime's budget allows, or make it smaller",
                limit=what,
                declared=declared,
                allowed=allowed,
            )


def _with_call(sections: Sections, entry_point: str, globals_: list[tuple[int, int]], wipes: bool) -> bytes:
    """The module with `CALL(head: i32) -> i64`: pages and stage in the upper word, the code in the lower one."""
    saved = globals_ if wipes else []
    index = {name: leb(sections.exports[name][1]) for name in ("kernel_init", "kernel_cleanup", entry_point)}
    head, code, stage, output = b"\x00", b"\x01", b"\x02", b"\x03"
    get, put, tee, call, then, otherwise, end = b"\x20", b"\x21", b"\x22", b"\x10", b"\x04\x40", b"\x05", b"\x0b"

    def load(offset: int) -> bytes:
        return get + head + b"\x28\x02" + leb(offset)

    def step(function: bytes, number: int) -> bytes:
        """Calls a function, and the rest only if it returns 0."""
        return call + function + tee + code + then + _const(number) + put + stage + otherwise

    keep = b"".join(b"\x23" + leb(g) + put + leb(4 + i) for i, (g, _) in enumerate(saved))
    restore = b"".join(get + leb(4 + i) + b"\x24" + leb(g) for i, (g, _) in enumerate(saved))
    fill = load(0) + tee + output + _const(FILL) + load(4) + _MEMORY_FILL
    run = (
        load(HEAD_BYTES + 32) + load(HEAD_BYTES + 36) + step(index["kernel_init"], 1)
        + get + head + _const(HEAD_BYTES) + _ADD + step(index[entry_point], 2)
        + step(index["kernel_cleanup"], 3) + end * 3
    )  # fmt: skip
    guard = get + output + _const(GUARD_BYTES) + _SUBTRACT
    loads = [guard + b"\xfd\x00\x04" + leb(at) for at in range(0, GUARD_BYTES, 16)]  # v128.load
    # All bits of the guard are still set: and, not, any_true.
    check = loads[0] + b"".join(more + b"\xfd\x4e" for more in loads[1:]) + b"\xfd\x4d\xfd\x53"
    check += then + _const(STAGES.index("guard")) + put + stage + end
    wipe = _const(0) + _const(0) + guard + _MEMORY_FILL if wipes else b""
    # (pages << 3 | stage) << 32 | code
    answer = b"\x3f\x00" + _const(3) + b"\x74" + get + stage + b"\x72\xad" + b"\x42\x20\x86" + get + code + b"\xad\x84"
    locals_ = leb(1 + len(saved)) + leb(3) + _I32 + b"".join(b"\x01" + bytes([kind]) for _, kind in saved)
    body = locals_ + keep + fill + run + check + restore + wipe + answer + end
    name = CALL.encode()
    return binary.rewrite(
        sections,
        {
            binary.TYPE: b"\x60" + leb(1) + _I32 + leb(1) + _I64,
            binary.FUNCTION: leb(len(sections.types)),
            binary.EXPORT: leb(len(name)) + name + bytes([binary.FUNC]) + leb(len(sections.functions)),
            binary.CODE: leb(len(body)) + body,
        },
    )


def _const(value: int) -> bytes:
    """i32.const: signed LEB128."""
    out = bytearray(b"\x41")
    while True:
        byte = value & 0x7F
        value >>= 7
        if value == 0 and byte < 0x40:
            out.append(byte)
            return bytes(out)
        out.append(byte | 0x80)


_MEMORY_FILL, _ADD, _SUBTRACT = b"\xfc\x0b\x00", b"\x6a", b"\x6b"
