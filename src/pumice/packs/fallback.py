"""A kernel with its fallbacks: the first that does its work wins, and each failure is counted.

A kernel that cannot be loaded is not tried again, nor is one that fails three times in a row; a deadline counts as three, since
waiting for the next would take seconds each time.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pumice.core.expressions import parse
from pumice.packs import degraded
from pumice.packs.errors import EpochDeadline, InvalidParameters, PackKernelError, PackKernelFailed
from pumice.packs.wasm.budget import SERVER, Budget
from pumice.packs.wasm.kernel import WasmKernel
from pumice.packs.wasm.signature import Kinds, Params

if TYPE_CHECKING:
    import numpy as np

    from pumice.packs.manifest import KernelEntry
    from pumice.packs.trust import VerifiedPack

    Arrays = Sequence[np.ndarray[Any, Any]]

_STRIKES = 3


class ChainLink:
    """One kernel of a chain, compiled on first need. `error` is why it is off, None while it is tried."""

    def __init__(self, pack: VerifiedPack, entry: KernelEntry, budget: Budget) -> None:
        self.pack, self.entry, self._budget = pack.manifest.name, entry, budget
        self._module = pack.files[entry.path]
        self._lock = threading.Lock()
        self._kernel: WasmKernel | None = None
        self._strikes = 0
        self.error: PackKernelError | None = None

    def kernel(self) -> WasmKernel:
        """The compiled kernel; the same error again if it could not be compiled."""
        with self._lock:
            if self.error is not None:
                raise self.error
            if self._kernel is None:
                try:
                    self._kernel = WasmKernel(self.entry, self._module, budget=self._budget)
                except PackKernelError as e:
                    self.error = e
                    raise
            return self._kernel

    def failed(self, error: PackKernelError) -> None:
        """Counts a failure."""
        degraded.note(self.pack, self.entry.id, error.code, error.message)
        with self._lock:
            self._strikes += _STRIKES if isinstance(error, EpochDeadline) else 1
            if self._strikes >= _STRIKES and self.error is None:
                self.error = error

    def succeeded(self) -> None:
        """The kernel did its work."""
        if self._strikes and self.error is None:
            self._strikes = 0

    def close(self) -> None:
        """Frees the kernel; it is compiled again if it is needed."""
        with self._lock:
            kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.close()


class KernelChain:
    """A kernel of a verified pack and the fallbacks that its manifest declares for it."""

    def __init__(self, pack: VerifiedPack, kernel_id: str, *, budget: Budget = SERVER) -> None:
        manifest = pack.manifest
        entry: KernelEntry | None = manifest.get_kernel(kernel_id)
        self.id, self.pack = kernel_id, manifest.name
        self.links: list[ChainLink] = []
        while entry is not None:  # the manifest's check rules out cycles
            self.links.append(ChainLink(pack, entry, budget))
            entry = manifest.get_fallback(entry.id)

    def prepare(self, inputs: Kinds, params: Params, outputs: Kinds) -> PreparedChain:
        """A call for arrays of these types; what cannot be prepared fails when it is its turn."""
        return PreparedChain(self, inputs, params, outputs)

    def __call__(self, inputs: Arrays, params: Params, outputs: Arrays) -> None:
        """Fills the outputs with the first kernel that can; PackKernelFailed, with outputs untouched, if none can."""
        self.prepare(inputs, params, outputs)(inputs, outputs)

    def close(self) -> None:
        """Frees the kernels."""
        for link in self.links:
            link.close()


class PreparedChain:
    """A call of a chain for certain types and params. Several threads may use it at once."""

    def __init__(self, chain: KernelChain, inputs: Kinds, params: Params, outputs: Kinds) -> None:
        self._chain, self._inputs, self._params, self._outputs = chain, inputs, dict(params), outputs
        self._calls: dict[int, Any] = {}

    def __call__(self, inputs: Arrays, outputs: Arrays) -> None:
        failures: list[PackKernelError] = []
        for at, link in enumerate(self._chain.links):
            if link.error is not None:
                degraded.note(link.pack, link.entry.id, link.error.code, link.error.message)
                failures.append(link.error)
                continue
            try:
                call = self._calls.get(at)
                if call is None:
                    call = self._calls[at] = self._prepare(link)
                call(inputs, outputs)
            except PackKernelError as e:
                link.failed(e)
                failures.append(e)
            else:
                link.succeeded()
                return
        chain = self._chain
        raise PackKernelFailed(
            f"{chain.pack}/{chain.id} failed" + (f", and its {len(failures) - 1} fallbacks too" if failures[1:] else ""),
            hint="; ".join(e.message for e in failures)[:1000],
            pack=chain.pack,
            kernel=chain.id,
            codes=tuple(e.code for e in failures),
        ) from failures[-1]

    def _prepare(self, link: ChainLink) -> Any:
        """A fallback gets those params that it has; one whose value needs the op's attributes must be among them."""
        entry = link.entry
        given = {name: value for name, value in self._params.items() if name in entry.params or link is self._chain.links[0]}
        for name, text in entry.pumice.params.items():
            if name not in given and any(n.startswith("attr.") for n in parse(text).names):
                raise InvalidParameters(
                    f"the fallback {entry.id} has the parameter {name} = {text}, which {self._chain.id} has not",
                    kernel=entry.id,
                    param=name,
                )
        return link.kernel().prepare(self._inputs, given, self._outputs)
