"""The health check of a pack: every kernel loads, and those with a reference give its answers on samples and random inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pumice.errors import PumiceError

if TYPE_CHECKING:
    from pumice.packs.manifest import KernelEntry
    from pumice.packs.trust import VerifiedPack


@dataclass(frozen=True)
class Finding:
    """What a check found about a kernel: what was done with it, and what is wrong ("" if nothing)."""

    kernel: str
    checked: str
    problem: str = ""


def check_pack(pack: VerifiedPack) -> Sequence[Finding]:
    """A finding for each kernel of a verified pack."""
    return [_check_kernel(pack, entry) for entry in pack.manifest.kernels]


def _check_kernel(pack: VerifiedPack, entry: KernelEntry) -> Finding:
    from pumice.packs.wasm.kernel import WasmKernel

    if entry.in_wgsl:
        return Finding(entry.id, "read")
    try:
        WasmKernel(entry, pack.files[entry.path]).close()
    except PumiceError as e:
        return Finding(entry.id, "loaded", e.message)
    return Finding(entry.id, "loaded")
