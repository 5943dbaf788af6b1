"""The versions and features that a pack needs: ranges in PEP 440 and semver forms, and what this runtime offers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import total_ordering
from importlib import metadata
from typing import TYPE_CHECKING

from pumice.packs.errors import MissingFeature, RuntimeTooNew, RuntimeTooOld, VersionIncompatible
from pumice.packs.wasm.engine import PROPOSALS

if TYPE_CHECKING:
    from pumice.packs.manifest import KernelEntry

MAX_LENGTH = 64
# What each runtime can have. Features of WebGPU depend on the device: they are conditions of use.
FEATURES: Mapping[str, frozenset[str]] = {
    "wasmtime": frozenset(name.replace("_", "-") for name in PROPOSALS),
    "webgpu": frozenset({"f16", "subgroups"}),
}
# The runtime of each target.
_RUNTIMES = {"host": "wasmtime", "webgpu": "webgpu"}
_WEBGPU_VERSION = "1"
_NUMBER = r"(?:0|[1-9][0-9]*)"
# https://semver.org, from its hyphen on; without one its forms are also forms of PEP 440.
_SEMVER = re.compile(
    rf"v?(?P<release>{_NUMBER}\.{_NUMBER}\.{_NUMBER})-(?P<pre>[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)(?:\+[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?"
)
# https://peps.python.org/pep-0440, without the spellings that only hyphens make: those are semver's.
_PEP440 = re.compile(
    r"v?(?:(?P<epoch>[0-9]+)!)?(?P<release>[0-9]+(?:\.[0-9]+)*)"
    r"(?:[._]?(?P<stage>alpha|a|beta|b|preview|pre|c|rc)[._]?(?P<stage_number>[0-9]*))?"
    r"(?P<post>[._]?(?:post|rev|r)[._]?(?P<post_number>[0-9]*))?"
    r"(?P<dev>[._]?dev[._]?(?P<dev_number>[0-9]*))?"
    r"(?:\+[a-z0-9]+(?:[-_.][a-z0-9]+)*)?",
    re.IGNORECASE,
)
_STAGES = {"a": "alpha", "b": "beta", "c": "rc", "pre": "rc", "preview": "rc"}
# Sorts before any stage, and after all of them.
_DEVELOPMENT, _FINAL = (0,), (2,)


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A version in the form of PEP 440 or of semver, ordered as those say; local versions and build metadata do not count.

    >>> Version.parse("1.0.0-alpha.1") == Version.parse("1.0a1") < Version.parse("1.0.0-rc.1") < Version.parse("1.0.0+build")
    True
    """

    text: str
    key: tuple[object, ...]

    @staticmethod
    def parse(text: str) -> Version:
        """The version that a text names; one that starts with three numbers and a hyphen is semver."""
        if len(text) > MAX_LENGTH:
            raise VersionIncompatible(f"a version of {len(text)} characters", hint=f"{MAX_LENGTH} are enough")
        if (semver := _SEMVER.fullmatch(text)) is not None:
            names = semver["pre"].split(".")
            if any(re.fullmatch(r"0[0-9]+", name) for name in names):
                raise _unreadable(text)
            return Version(text, (0, _release(semver["release"]), _semver_stage(names), -1, _FINAL))
        if (pep := _PEP440.fullmatch(text)) is None:
            raise _unreadable(text)
        post = -1 if pep["post"] is None else int(pep["post_number"] or 0)
        number = None if pep["dev"] is None else int(pep["dev_number"] or 0)
        if pep["stage"] is not None:
            stage: tuple[object, ...] = (1, *_identifiers([pep["stage"].lower(), pep["stage_number"] or "0"]))
        elif number is not None and post < 0:
            return Version(text, (int(pep["epoch"] or 0), _release(pep["release"]), (*_DEVELOPMENT, *_identifiers([str(number)])),
                                  -1, _FINAL))  # fmt: skip
        else:
            stage = _FINAL
        development = _FINAL if number is None else (0, number)
        return Version(text, (int(pep["epoch"] or 0), _release(pep["release"]), stage, post, development))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key


def check_range(low: str, high: str, runtime: str) -> None:
    """Whether a runtime's version is within a pack's range; both ends belong to it.

    >>> check_range("0.1.0", "1.0.0", "1.0.0")
    >>> check_range("0.1.0", "1.0.0", "1.0.1")
    Traceback (most recent call last):
    pumice.packs.errors.RuntimeTooNew: [runtime-too-new] the pack is for Pumice 0.1.0 to 1.0.0, this is 1.0.1
      hint: look for a newer version of the pack
    """
    first, last, here = Version.parse(low), Version.parse(high), Version.parse(runtime)
    fields = {"min_runtime_version": low, "max_runtime_version": high, "runtime_version": runtime}
    message = f"the pack is for Pumice {low} to {high}"
    if last < first:
        raise VersionIncompatible(f"{message}, which is no version at all", hint="its author must mend the range", **fields)
    if here < first:
        raise RuntimeTooOld(f"{message}, this is {runtime}", hint="upgrade Pumice: pip install -U pumice", **fields)
    if last < here:
        raise RuntimeTooNew(f"{message}, this is {runtime}", hint="look for a newer version of the pack", **fields)


def check_features(kernel: KernelEntry) -> None:
    """Refuses a kernel that needs a runtime, a version or a feature that this machine never has."""
    runtime = _RUNTIMES[kernel.pumice.target]
    if unknown := sorted(needed_features(kernel) - FEATURES[runtime]):
        raise _missing(kernel, unknown[0], f"{runtime} has no {unknown[0]} here, only {', '.join(sorted(FEATURES[runtime]))}")
    if not kernel.platforms:
        return
    if runtime not in kernel.platforms:
        raise _missing(kernel, min(kernel.platforms), f"it is for {', '.join(sorted(kernel.platforms))}, not for {runtime}")
    least, here = kernel.platforms[runtime].min_version, _runtime_version(runtime)
    if Version.parse(here) < Version.parse(least):
        raise _missing(kernel, runtime, f"it needs {runtime} {least}, this is {here}", "pip install -U 'pumice[packs]'")


def needed_features(kernel: KernelEntry) -> set[str]:
    """The features of its runtime that a kernel declares; devices without one of them skip it (`PackKernel.lacking`)."""
    platform = kernel.platforms.get(_RUNTIMES[kernel.pumice.target])
    own = () if kernel.pumice.wgsl is None else kernel.pumice.wgsl.features
    return {*own, *(() if platform is None else platform.features)}


def _runtime_version(runtime: str) -> str:
    if runtime == "webgpu":
        return _WEBGPU_VERSION
    try:
        return metadata.version(runtime)
    except metadata.PackageNotFoundError:
        return "0"


def _missing(kernel: KernelEntry, feature: str, why: str, hint: str = "use another pack for this kernel") -> MissingFeature:
    return MissingFeature(f"the kernel {kernel.id} cannot run here: {why}", hint=hint, kernel=kernel.id, feature=feature)


def _release(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _semver_stage(names: list[str]) -> tuple[object, ...]:
    # PEP 440 has a stage of that name before all others; semver would sort it by its letters.
    if names[0].lower() == "dev":
        return (*_DEVELOPMENT, *_identifiers(names[1:] or ["0"]))
    return (1, *_identifiers(names))


def _identifiers(names: list[str]) -> list[tuple[int, int, str]]:
    """Keys of semver's order: numbers by value and before words, words by their letters."""
    plain = [_STAGES.get(names[0].lower(), names[0]), *names[1:]]
    return [(0, int(name), "") if name.isdecimal() else (1, 0, name) for name in plain]


def _unreadable(text: str) -> VersionIncompatible:
    return VersionIncompatible(f"{text!r} is no version", hint="write it as 1.2.3, 1.2.3rc1 (PEP 440) or 1.2.3-rc.1 (semver)")
