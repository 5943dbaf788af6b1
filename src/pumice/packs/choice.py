"""Which kernel computes an op here: the user's word decides, else times that were measured on this machine.

A pack's kernel is chosen where its median time is at least `MARGIN` below that of the built-in kernel, with both measured in
turns on the same device and shapes. Times are kept in `choices.json` beside the installed packs, until a version changes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from pumice.core.json_file import parse_json
from pumice.core.private import make_private, open_private
from pumice.errors import FormatError, InputError, PumiceWarning
from pumice.packs.lifecycle import Use
from pumice.sources.lock import exclusive

FILE, _LOCK = "choices.json", "choices.lock"
MARGIN = 0.03
RUNS = 7
MAX_RECORDS = 4096
_MAX_BYTES = 8 << 20
_MAX_TEXT = 512

_S = TypeVar("_S")
_Key = tuple[str, str, str, str, str, str]


class ChosenKernel(Protocol):
    """What a choice needs to know of a kernel (see ir/pack_kernels.py); two packs may have the same id."""

    @property
    def pack(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def op(self) -> str: ...
    @property
    def pack_digest(self) -> str: ...


_K = TypeVar("_K", bound=ChosenKernel)


@dataclass(frozen=True)
class MeasuredTime:
    """The median seconds of a pack's kernel and of the built-in one, for one op, shape and device.

    >>> MeasuredTime("cpu", "core", "softmax", "0" * 64, "softmax", "f32[8,64]", 0.97, 1.0).is_faster
    True
    >>> MeasuredTime("cpu", "core", "softmax", "0" * 64, "softmax", "f32[8,64]", 0.98, 1.0).is_faster
    False
    """

    device: str
    pack: str
    kernel: str
    digest: str
    op: str
    signature: str
    seconds: float
    built_in_seconds: float
    measured_at: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_faster(self) -> bool:
        """Whether the pack's kernel wins by the margin."""
        return self.seconds <= (1 - MARGIN) * self.built_in_seconds

    @property
    def key(self) -> _Key:
        """What there is one record of."""
        return self.device, self.pack, self.kernel, self.digest, self.op, self.signature


class Choices:
    """The choices of this machine: `uses` gives the user's word about a kernel by pack name and kernel id.

    >>> import tempfile
    >>> from types import SimpleNamespace
    >>> kernel = SimpleNamespace(pack="core", id="softmax_f32", op="softmax", pack_digest="0" * 64)
    >>> with tempfile.TemporaryDirectory() as d:
    ...     choices = Choices(Path(d), lambda pack, kernel: "measured", versions={"pumice": "1"})
    ...     before = choices.prefers("cpu", kernel, "f32[8,64]")
    ...     choices.decide("cpu", kernel, "f32[8,64]", lambda kernel, sample: (0.5, 1.0), None), before
    (True, None)
    """

    def __init__(
        self,
        folder: Path,
        uses: Callable[[str, str], Use],
        *,
        versions: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self._uses, self._clock = folder, uses, clock
        self.versions = dict(installed_versions() if versions is None else versions)
        self._lock = threading.Lock()
        self._times: dict[_Key, MeasuredTime] | None = None

    def prefers(self, device: str, kernel: ChosenKernel, signature: str | None = None) -> bool | None:
        """Whether a pack's kernel is to be used; None if that is not measured yet. Without signature the latest time counts."""
        match self._uses(kernel.pack, kernel.id):
            case "always":
                return True
            case "never":
                return False
        found = self.time_of(device, kernel, signature)
        return None if found is None else found.is_faster

    def time_of(self, device: str, kernel: ChosenKernel, signature: str | None = None) -> MeasuredTime | None:
        """What was measured with these versions, if anything; without signature the latest of all shapes."""
        with self._lock:
            if signature is not None:
                return self._current().get(_key(device, kernel, signature))
            wanted = _key(device, kernel, "")[:-1]
            return max((t for t in self._current().values() if t.key[:-1] == wanted), key=lambda t: t.measured_at, default=None)

    def ranked(self, device: str, kernels: Iterable[_K], signature: str | None = None) -> list[_K]:
        """The kernels to use rather than built-in ones: those that the user ordered, then those with the largest gain.

        Kernels that are not measured yet are left out.
        """

        def rank(kernel: _K) -> tuple[bool, float]:
            found = self.time_of(device, kernel, signature)
            # A ratio, as the seconds of two records may be from different days.
            return self._uses(kernel.pack, kernel.id) != "always", found.seconds / found.built_in_seconds if found else 1.0

        return sorted((k for k in kernels if self.prefers(device, k, signature)), key=rank)

    def decide(
        self,
        device: str,
        kernel: _K,
        signature: str,
        measure: Callable[[_K, _S], tuple[float, float]],
        sample: _S,
        *,
        runs: int = RUNS,
    ) -> bool:
        """`prefers`, measured now if need be: `measure` gives the seconds of one run of the kernel and of the built-in one."""
        known = self.prefers(device, kernel, signature)
        if known is not None:
            return known
        measure(kernel, sample)  # the first run of each compiles and fills caches
        ours, built_in = zip(*(measure(kernel, sample) for _ in range(runs)), strict=True)
        return self.record(device, kernel, signature, median(ours), median(built_in)).is_faster

    def record(self, device: str, kernel: ChosenKernel, signature: str, seconds: float, built_in_seconds: float) -> MeasuredTime:
        """Keeps a measured pair of times."""
        new = MeasuredTime(*_key(device, kernel, signature), seconds, built_in_seconds, self._clock(), self.versions)
        if not _is_sane(new):
            raise InputError(
                f"{kernel.pack}/{kernel.id} was measured as {seconds} s, the built-in kernel as {built_in_seconds} s"
            )
        with self._lock:
            self._current()[new.key] = new
            self._save([new])
        return new

    def measured(self) -> list[MeasuredTime]:
        """All times that were measured with these versions, the oldest first."""
        with self._lock:
            return sorted(self._current().values(), key=lambda t: t.measured_at)

    def forget(self, packs: Collection[str]) -> None:
        """Deletes what was measured of packs, so that it is measured again."""
        with self._lock:
            self._save((), without=packs)
            self._times = None

    def _current(self) -> dict[_Key, MeasuredTime]:
        if self._times is None:
            self._times = {t.key: t for t in self._read() if t.versions == self.versions}
        return self._times

    def _read(self) -> list[MeasuredTime]:
        path = self.folder / FILE
        try:
            with open_private(self.folder) as folder:
                content = parse_json(folder.read(FILE, _MAX_BYTES), path, dict)
            return [_read_time(t) for t in content["times"]]
        except FileNotFoundError:
            return []
        except (OSError, InputError, KeyError, TypeError, ValueError) as e:
            why = e.message if isinstance(e, FormatError) else f"{path}: {e}"
            warnings.warn(f"{why}. What was measured of packs is measured again", PumiceWarning, stacklevel=2)
            return []

    def _save(self, new: Iterable[MeasuredTime], without: Collection[str] = ()) -> None:
        """Adds to what is in the file by now, without what another version measured, and without the oldest beyond the bound."""
        try:
            make_private(self.folder)
            with exclusive(self.folder / _LOCK), open_private(self.folder) as folder:
                kept = {t.key: t for t in self._read() if t.versions == self.versions and t.pack not in without}
                kept |= {t.key: t for t in new}
                times = sorted(kept.values(), key=lambda t: t.measured_at)[-MAX_RECORDS:]
                folder.write(FILE, (json.dumps({"format": 1, "times": [asdict(t) for t in times]}, indent=1) + "\n").encode())
        except (OSError, InputError) as e:
            warnings.warn(
                f"{self.folder / FILE} cannot be written: {e}. What was measured of packs is not kept;"
                " set PUMICE_HOME to a folder that can be",
                PumiceWarning,
                stacklevel=3,
            )


@functools.cache
def installed_versions() -> dict[str, str]:
    """The versions that measured times depend on, beside the device's key.

    >>> sorted(installed_versions())
    ['numpy', 'pumice', 'wasmtime', 'wgpu']
    """
    from importlib import metadata

    found = {}
    for name in ("pumice", "numpy", "wgpu", "wasmtime"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def _key(device: str, kernel: ChosenKernel, signature: str) -> _Key:
    return _short(device), kernel.pack, kernel.id, kernel.pack_digest, kernel.op, _short(signature)


def _short(text: str) -> str:
    """A text, or its digest where it is long, as the file is bounded."""
    return text if len(text) <= _MAX_TEXT else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _is_sane(t: MeasuredTime) -> bool:
    return all(math.isfinite(n) and n > 0 for n in (t.seconds, t.built_in_seconds)) and math.isfinite(t.measured_at)


def _read_time(given: Any) -> MeasuredTime:
    values = {f.name: given[f.name] for f in fields(MeasuredTime)}
    for name, value in values.items():
        wanted: Any = {"seconds": float, "built_in_seconds": float, "measured_at": int | float, "versions": dict}.get(name, str)
        if not isinstance(value, wanted):
            raise ValueError(f"{name} is {value!r}")
    found = MeasuredTime(**values)
    if not _is_sane(found):
        raise ValueError(f"a time of {found.pack}/{found.kernel} is {found.seconds} or {found.built_in_seconds}")
    return found
