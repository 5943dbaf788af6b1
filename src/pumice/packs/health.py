"""The health check of a pack: every kernel loads, and those with a reference give its answers on samples and random inputs.

Kernels in WASM run here, in their sandbox. Those in WGSL are held to the bounds of plan/wgsl_check.py; they are compared on an
adapter before they are first used there (run/qualify.py), as a pack may be installed where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pumice.core.caps import Caps
from pumice.errors import PumiceError
from pumice.packs.errors import PackError
from pumice.packs.extra import MissingExtra

if TYPE_CHECKING:
    from pumice.ir.pack_kernels import PackKernel
    from pumice.packs.cases import KernelCase
    from pumice.packs.manifest import KernelEntry
    from pumice.packs.trust import VerifiedPack
    from pumice.packs.wasm.kernel import WasmKernel


@dataclass(frozen=True)
class Finding:
    """What a check found about a kernel: what was done with it, and what is wrong ("" if nothing)."""

    kernel: str
    checked: str
    problem: str = ""


def check_pack(pack: VerifiedPack) -> Sequence[Finding]:
    """A finding for each kernel of a verified pack; PackError if its kernels and ops cannot be what they say."""
    from pumice.packs.kernels import pack_kernels

    known = {kernel.id: kernel for kernel in pack_kernels(pack)}  # which reads all WGSL
    return [_check_kernel(pack, entry, known.get(entry.id)) for entry in pack.manifest.kernels]


def _check_kernel(pack: VerifiedPack, entry: KernelEntry, kernel: PackKernel | None) -> Finding:
    from pumice.packs.wasm.kernel import WasmKernel

    if entry.in_wgsl:
        return Finding(entry.id, "within the bounds of WGSL")
    try:
        wasm = WasmKernel(entry, pack.files[entry.path])
    except MissingExtra:
        raise  # nothing is wrong with the pack
    except PumiceError as e:
        return Finding(entry.id, "loaded", f"{e.code}: {e.message}")
    try:
        return Finding(entry.id, "loaded") if kernel is None else _compare(wasm, kernel)
    finally:
        wasm.close()


def _compare(wasm: WasmKernel, kernel: PackKernel) -> Finding:
    """Runs a kernel on all cases that can be made for it."""
    from pumice.packs.cases import cases_for

    cases = cases_for(kernel, Caps.preset("host"))
    for case in cases:
        try:
            problem = _wrong(wasm, kernel, case)
        except PumiceError as e:
            problem = f"{e.code}: {e.message}"
        if problem:
            return Finding(kernel.id, "compared with the reference", f"{case.label} ({case.signature}): {problem}")
    # Its conditions may leave out this machine; then it is not used here either.
    return Finding(kernel.id, "compared with the reference" if cases else "loaded, as no call fits its conditions here")


def _wrong(wasm: WasmKernel, kernel: PackKernel, case: KernelCase) -> str:
    """What is wrong with a kernel's results for a case, by the reference; "" if nothing."""
    from pumice.ir.registry import get_op
    from pumice.packs.cases import case_graph, wrong_results

    graph, spec, caps = case_graph(kernel.op, case), get_op(kernel.op), Caps.preset("host")
    operands = {n.name: n.type for n in graph.sources("input")}
    results = [(name, graph.nodes[i].type) for name, i in graph.outputs]
    call = kernel.match(kernel.op, operands, results, spec.complete_attrs(case.attrs), caps)
    if call is None:
        raise PackError(f"{kernel.label} is not for {case.signature}")
    params = {p.name: value for p, value in zip(kernel.params, call.params, strict=True)}
    outputs = [np.zeros(t.static_shape, t.dtype.np) for _, t in results]
    # NumPy's own way to a contiguous array would make one dim of none.
    wasm([case.operands[p.name].copy() for p in kernel.inputs], params, outputs)
    return wrong_results(graph, case.operands, outputs, spec)
