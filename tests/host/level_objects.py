"""A program: compiles kernels for a level that this machine need not have, and prints what is in the code as JSON.

python level_objects.py LEVEL FOLDER [KERNEL …]    all kernels where none is named; objects are written into the folder
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import llvmlite.binding as llvm

from pumice.backends.host.native import levels

GROUPED = ("u4z_g128_f16",)


def main(name: str, folder: Path, wanted: list[str]) -> None:
    level = levels.by_name(name)
    levels.compile_for(level)
    from objects import undefined_symbols  # beside this program

    from pumice.backends.host.native import compiled

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple(f"{level.machine}-linux-gnu")
    # Position-independent, so that a linker takes them into any program.
    machine = target.create_target_machine(level.cpu, level.flags, opt=3, reloc="pic", codemodel="small")
    kernels = wanted or [*compiled.names(), *(f"{kind}_{g}" for kind in ("matmul", "matmul_fast") for g in GROUPED)]
    found = {}
    for kernel in kernels:
        print(kernel, file=sys.stderr, flush=True)  # LLVM ends the process where it cannot compile
        # numba writes down the machine that it runs on.
        text = re.sub(r"^target (triple|datalayout) = .*$", "", compiled.llvm_text(kernel, f"pumice_{kernel}"), flags=re.M)
        module = llvm.parse_assembly(text)
        module.triple, module.data_layout = target.triple, str(machine.target_data)
        module.verify()
        code, assembly = machine.emit_object(module), machine.emit_assembly(module)
        (folder / f"{kernel}.o").write_bytes(code)
        # Encodings that LLVM names for the reader stand before some: {vex}.
        instructions = sorted(set(re.findall(r"^\t(?:\{\w+\}\t)?([a-z][\w.]*)", assembly, flags=re.M)))
        found[kernel] = {"calls": sorted(undefined_symbols(code)), "instructions": instructions}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
