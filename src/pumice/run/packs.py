"""Packs in use: which kernels of which packs a device's plans may take, after each was compared with the reference there."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice import config
from pumice.backends.base import Device
from pumice.core.kept import kept_folder
from pumice.core.records import dataclass
from pumice.errors import InputError, PumiceError, PumiceWarning
from pumice.ir.pack_kernels import PackKernel, read_variant
from pumice.ir.registry import get_op
from pumice.packs.compared import ComparedKernels
from pumice.packs.extra import MissingExtra

if TYPE_CHECKING:
    from pumice.packs.trust import VerifiedPack
    from pumice.plan.plan import Plan
    from pumice.tensor import Tensor

# What the switch `packs` holds besides names.
ENABLED, NONE = "enabled", "none"


@dataclass(frozen=True)
class Pack:
    """A verified pack whose kernels and ops this process can use; `pm.load_pack` gives one.

    `digest` names its exact bytes, `signer` the key that signed it. `insecure` packs were loaded without asking for a signature.
    """

    verified: VerifiedPack
    kernels: tuple[PackKernel, ...]

    @property
    def name(self) -> str:
        return self.verified.manifest.name

    @property
    def version(self) -> str:
        return self.verified.manifest.version

    @property
    def digest(self) -> str:
        return self.verified.digest

    @property
    def signer(self) -> str:
        return self.verified.signer

    @property
    def insecure(self) -> bool:
        return self.verified.insecure

    @property
    def ops(self) -> PackOps:
        """The ops that the pack brings, as functions for traced code: `pack.ops.swiglu(x, gate)`."""
        own = ((self.verified.manifest.get_kernel(k.id).pumice.op, k.op) for k in self.kernels)
        return PackOps(self.name, {op.name: full for op, full in own if op is not None})

    def __repr__(self) -> str:
        return f"<Pack {self.name} {self.version} {self.digest[:12]}{' INSECURE' if self.insecure else ''}>"


GivenPacks = Sequence[str | Path | Pack] | None


class PackOps:
    """Functions of the ops of a pack by name."""

    def __init__(self, pack: str, names: Mapping[str, str]) -> None:
        self._pack, self._names = pack, names

    def __dir__(self) -> Iterable[str]:
        return self._names

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in self._names:
            raise AttributeError(f"the pack {self._pack} has no op {name!r}; it has {', '.join(self._names) or 'none'}")
        return partial(_apply, self._names[name])


def _apply(op: str, *operands: Any, **attrs: Any) -> Tensor | tuple[Tensor, ...]:
    from pumice.functions.build import as_tensor, emit, further_result

    spec = get_op(op)
    first = emit(op, [as_tensor(o) for o in operands], **attrs)
    further = [further_result(first, k) for k in range(1, len(spec.results))]
    return (first, *further) if further else first


def load_pack(which: str | Path | Pack, *, insecure: bool = False) -> Pack:
    """A pack by the name of an installed one, or from a folder or zip; it is verified, and its ops can be traced from now on.

    A plain word is an installed pack, if there is one of that name, rather than a folder here: `./NAME` is the folder.
    `insecure` takes a file without asking who signed it, warns of it and marks everything that it computes.
    """
    from pumice.packs.archive import read_pack
    from pumice.packs.kernels import pack_kernels
    from pumice.packs.trust import TrustStore, verify_pack

    if isinstance(which, Pack):
        return which
    if not isinstance(which, str | Path):
        raise InputError(f"a pack is a name, a path or a pm.load_pack, not {type(which).__name__}")
    path = Path(which)
    if isinstance(which, str) and not any(c in which for c in "/\\.") and (not path.exists() or _is_installed(which)):
        from pumice.packs.store import PackStore

        verified = PackStore().active(which)
    else:
        verified = verify_pack(read_pack(path), TrustStore(), insecure=insecure)
    return Pack(verified, pack_kernels(verified))


def _is_installed(name: str) -> bool:
    from pumice.packs.store import PackStore

    return any(pack.name == name for pack in PackStore().installed())


def packs_given(packs: GivenPacks) -> tuple[list[Pack], bool]:
    """The packs to use, and whether the user named them: those are used wherever they fit, others where they are faster.

    None stands for the switch `packs`: those that are enabled, none, or names with commas.
    """
    if packs is not None:
        if isinstance(packs, str | Path | Pack):
            raise InputError("packs is a list of names, paths or packs", hint=f"packs=[{packs!r}]")
        return [load_pack(p) for p in packs], True
    wanted: str = config.packs
    if wanted == NONE or (wanted == ENABLED and not _any_installed()):
        return [], False
    if wanted != ENABLED:
        return [load_pack(name.strip()) for name in wanted.split(",") if name.strip()], True
    return _enabled_packs(), False


def _enabled_packs() -> list[Pack]:
    """The packs that are enabled and can be used. What nobody named must not end a run: built-in kernels do the work."""
    from pumice.packs.kernels import pack_kernels
    from pumice.packs.store import PackStore

    try:
        verified = PackStore().enabled()
    except PumiceError as e:
        _report_unused("kernel packs are", e)
        return []
    found = []
    for pack in verified:
        try:
            found.append(Pack(pack, pack_kernels(pack)))
        except PumiceError as e:
            _report_unused(f"the pack {pack.manifest.name} is", e)
    return found


def _report_unused(what: str, error: PumiceError) -> None:
    hint = f"; {error.hint}" if error.hint else ""
    warnings.warn(f"{what} not used: {error.message}{hint} (PUMICE_PACKS=none asks for none)", PumiceWarning, stacklevel=5)


def _any_installed() -> bool:
    folder = kept_folder("packs")
    return folder is not None and (folder / "state.json").exists()


def kernels_in_use(device: Device, packs: GivenPacks) -> tuple[PackKernel, ...]:
    """The kernels that plans for a device may take, in the order in which they are tried.

    Each was compared with the reference on this device; those that failed are left out, with a warning that says why.
    """
    given, named = packs_given(packs)
    with _lock:
        _vouched.update({p.digest: p.signer for p in given})
    found: list[PackKernel] = []
    for pack in given:
        candidates = [k for k in pack.kernels if k.target == device.caps.target and not _lacks(device, k)]
        if not candidates:
            continue
        try:
            offer_kernels(pack, device)
        except MissingExtra as e:
            if named:
                raise
            _report_unused(f"the pack {pack.name} is", e)
            continue
        wrong = wrong_on(device, pack, candidates)
        for kernel in candidates:
            if wrong[kernel.id]:
                _report_disabled(kernel, wrong[kernel.id])
            else:
                found.append(kernel)
    return tuple(found if named else _chosen(device, found))


def _lacks(device: Device, kernel: PackKernel) -> bool:
    """Whether a device lacks a feature that a kernel needs: a condition like any other, and no failure of the kernel."""
    reason = kernel.lacking(device.caps)
    if reason and config.debug >= 1:
        print(f"pumice: the kernel {kernel.label} is skipped: {reason}", file=sys.stderr)
    return bool(reason)


def offer_kernels(pack: Pack, device: Device) -> None:
    """Lets steps of plans for a device run the pack's kernels; only the host looks them up."""
    from pumice.packs.active import offer
    from pumice.packs.fallback import KernelChain
    from pumice.packs.wasm.engine import library

    if device.caps.dispatches:
        return
    library()  # a missing package says nothing of the kernels, which must not be remembered as wrong
    for kernel in pack.kernels:
        if kernel.target == device.caps.target:
            offer(kernel, KernelChain(pack.verified, kernel.id))


_lock = threading.Lock()
_reported: set[tuple[str, str]] = set()
# By digest who signed the packs that are in use, "" where nobody was asked.
_vouched: dict[str, str] = {}


def _report_disabled(kernel: PackKernel, reason: str) -> None:
    from pumice.packs.degraded import note

    with _lock:
        if (kernel.variant, reason) in _reported:
            return
        _reported.add((kernel.variant, reason))
    note(kernel.pack, kernel.id, "kernel-disabled", reason)
    warnings.warn(
        f"the kernel {kernel.label} is disabled on this device, the built-in one runs instead: {reason}",
        PumiceWarning,
        stacklevel=4,
    )


def device_key(device: Device) -> str:
    """What comparing and timing hold for: processor or adapter with its driver, and the version that compiles for it."""
    from pumice import __version__

    about = device.describe()
    parts = [about.get(k, "") for k in ("backend", "name", "cpu", "cores", "api", "vendor", "driver", "caps")]
    return " | ".join(str(p) for p in (*parts, f"pumice {__version__}") if p != "")


def wrong_on(device: Device, pack: Pack, kernels: Sequence[PackKernel]) -> dict[str, str]:
    """By kernel id what is wrong with it on a device, "" for those that agree with the reference; remembered by device.

    Kernels in WASM run within their limits in this process. Those in WGSL are tried in another process first: one that never
    ends would take the device with it.
    """
    folder = kept_folder("packs")
    compared = None if folder is None else ComparedKernels(folder, pack.digest, device_key(device))
    known = {} if compared is None else compared.read()
    missing = [k for k in kernels if k.id not in known]
    if missing:
        if device.caps.dispatches:
            from pumice.run.qualify_child import UNDECIDED, qualify_apart

            known |= qualify_apart(pack.verified, missing, device)
            decided = {k: v for k, v in known.items() if v != UNDECIDED}
        else:
            from pumice.run.qualify import qualify

            known |= {k.id: qualify(k, device) for k in missing}
            decided = known
        if compared is not None:
            compared.keep(decided)
    return {k.id: known[k.id] for k in kernels}


def used_kernels(plans: Iterable[Plan]) -> list[dict[str, Any]]:
    """The kernels of packs that plans run, as data for reports: pack, version, digest, signer, kernel, ops, how many steps."""
    found: dict[str, dict[str, Any]] = {}
    for plan in plans:
        for step in plan.pack_steps:
            named = read_variant(step.variant)
            if named is None:
                continue
            version = step.variant.partition("@")[2].partition("/")[0]
            entry = found.setdefault(
                step.variant,
                {"pack": named[0], "version": version, "kernel": named[1], "digest": named[2], "ops": [], "steps": 0}
                | {"signer": (signer := _vouched.get(named[2], "")), "insecure": not signer},
            )
            entry["steps"] += 1
            op = plan.graph.nodes[step.anchor].op if step.anchor is not None else step.label
            if op not in entry["ops"]:
                entry["ops"].append(op)
    return [found[v] for v in sorted(found)]


def _chosen(device: Device, kernels: Sequence[PackKernel]) -> list[PackKernel]:
    """Of the kernels of enabled packs those to use, the best first: by the user's word, else by the times they take here."""
    if not kernels:
        return []
    from pumice.packs.cases import largest_case
    from pumice.packs.choice import Choices
    from pumice.packs.store import PackStore
    from pumice.run.qualify import CaseTimer

    store, key = PackStore(), device_key(device)
    choices = Choices(store.folder, store.use_of)
    for kernel in kernels:
        if choices.prefers(key, kernel) is not None:
            continue
        case = largest_case(kernel, device.caps)
        if case is not None:
            with CaseTimer(kernel, case, device) as timer:
                choices.decide(key, kernel, case.signature, timer.measure, case)
    return choices.ranked(key, kernels)
