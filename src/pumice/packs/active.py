"""Kernels of packs that this process may run on the host, by the variant of the steps that name them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from pumice.ir.pack_kernels import PackKernel, read_variant
from pumice.packs.errors import KernelNotFound

Array = np.ndarray[Any, Any]
Shapes = Sequence[tuple[tuple[int, ...], Any]]


class PreparedKernel(Protocol):
    """A kernel for fixed shapes and parameters: fills the outputs, or raises PackKernelFailed and leaves them as they are."""

    def __call__(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None: ...


class HostKernel(Protocol):
    """A kernel with its fallbacks."""

    def prepare(self, inputs: Shapes, params: Mapping[str, Any], outputs: Shapes) -> PreparedKernel:
        """For these shapes and dtypes, in the order of the manifest."""
        ...


_lock = threading.Lock()
_kernels: dict[str, tuple[PackKernel, HostKernel]] = {}


def offer(kernel: PackKernel, runner: HostKernel) -> None:
    """Lets steps that name this kernel run it."""
    with _lock:
        _kernels[kernel.variant] = kernel, runner


def withdraw(kernel: PackKernel) -> None:
    """Takes an offer back; executables that were opened before keep what they have."""
    with _lock:
        _kernels.pop(kernel.variant, None)


def host_kernel(variant: str) -> tuple[PackKernel, HostKernel]:
    """The kernel that a step names; KernelNotFound if no pack in use has it.

    >>> try:
    ...     host_kernel("pack core@1.0.0/rope_f32 " + "0" * 64)
    ... except KernelNotFound as e:
    ...     print(e.message)
    the plan runs the kernel rope_f32 of the pack core (000000000000…), which is not in use here
    """
    with _lock:
        found = _kernels.get(variant)
    if found is None:
        named = read_variant(variant)
        text = f"{named[1]} of the pack {named[0]} ({named[2][:12]}…)" if named else repr(variant)
        raise KernelNotFound(
            f"the plan runs the kernel {text}, which is not in use here",
            hint="install and enable that version of the pack, or compile again without it",
            variant=variant,
        )
    return found
