"""Levels of processors: what the kernels may count on, from AVX-512 with dot products of bytes down to what every processor has.

A process compiles all its kernels for one level, with the instructions of the level and not those of the machine: code at a level
below the machine's own is what a lesser machine runs.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
from typing import Literal

from pumice import config
from pumice.core.records import dataclass
from pumice.errors import InputError, UnknownName

ByteDots = Literal["vpdpbusd", "maddubs", "sdot", "none"]
_X86, _ARM = "x86_64", "aarch64"
_SAME_MACHINES = {"amd64": _X86, "arm64": _ARM}
# What makes the switch take the machine's best level.
_BEST = "auto"


@dataclass(frozen=True, slots=True)
class Level:
    """What kernels are compiled for. `cpu` and `features` are LLVM's names; a machine needs all of the features.

    >>> level = Level("avx2", "x86_64", "x86-64-v3", ("avx2", "fma"), 256, 16, "maddubs")
    >>> level.flags, level.has("fma"), level.has("avx512f")
    ('+avx2,+fma', True, False)
    """

    name: str
    machine: str  # as platform.machine() has it on Linux
    cpu: str
    features: tuple[str, ...]
    register_bits: int  # of a vector register
    registers: int  # vectors that stay in registers
    byte_dots: ByteDots  # the instruction for dot products of bytes, as wide as a register

    def has(self, feature: str) -> bool:
        """Whether code may use this, by LLVM's name for it."""
        return feature in self.features

    @property
    def flags(self) -> str:
        """The features as LLVM's options have them."""
        return ",".join(f"+{f}" for f in self.features)

    @property
    def widens_f16(self) -> bool:
        """Whether an instruction turns f16 into f32; elsewhere LLVM would call a function that is not there."""
        return self.machine == _ARM or self.has("f16c")

    @property
    def rounds(self) -> bool:
        """Whether an instruction rounds floats to whole numbers; elsewhere LLVM would call the C library for each lane."""
        return self.machine == _ARM or self.has("avx2")

    @property
    def is_wide(self) -> bool:
        """Whether there is room for the sums of 14 rows of 32 results: kernels with many of them need 32 wide registers."""
        return self.register_bits * self.registers >= 32 * 512


# All that LLVM's name for the processor stands for, as far as code may use it.
_V3 = ("popcnt", "sse4.2", "avx", "avx2", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
# The best first.
_LEVELS = (
    Level("avx512-vnni", _X86, "x86-64-v4", (*_V4, "avx512vnni"), 512, 32, "vpdpbusd"),
    Level("avx512", _X86, "x86-64-v4", _V4, 512, 32, "maddubs"),
    Level("avx2-vnni", _X86, "x86-64-v3", (*_V3, "avxvnni"), 256, 16, "vpdpbusd"),
    Level("avx2", _X86, "x86-64-v3", _V3, 256, 16, "maddubs"),
    Level("neon-i8mm", _ARM, "generic", ("dotprod", "i8mm"), 128, 32, "sdot"),
    Level("neon-dotprod", _ARM, "generic", ("dotprod",), 128, 32, "sdot"),
    Level("neon", _ARM, "generic", (), 128, 32, "none"),
)
# Linux's names for x86-64 features that LLVM calls something else.
_LINUX_NAMES = {"sse4_2": "sse4.2", "bmi1": "bmi", "abm": "lzcnt", "avx512_vnni": "avx512vnni", "avx_vnni": "avxvnni"}
_NAMES = (*(level.name for level in _LEVELS), "plain")


def _machine() -> str:
    found = platform.machine().lower()
    return _SAME_MACHINES.get(found, found)


def _plain(machine: str) -> Level:
    """What every processor of a kind has."""
    registers = 32 if machine == _ARM else 16
    return Level("plain", machine, "x86-64" if machine == _X86 else "generic", (), 128, registers, "none")


def by_name(name: str) -> Level:
    """A level, also one of other machines; plain is this machine's.

    >>> by_name("neon-dotprod").byte_dots
    'sdot'
    """
    if name == "plain":
        return _plain(_machine())
    for level in _LEVELS:
        if level.name == name:
            return level
    raise UnknownName(f"there is no level {name!r} of processors", hint="one of " + " ".join(_NAMES), name=name)


def _features() -> frozenset[str]:
    """What this machine has, by LLVM's names, less what numba's own switches leave out: their user means all compiled code."""
    allowed = os.environ.get("NUMBA_CPU_FEATURES")
    if allowed is None and os.environ.get("NUMBA_CPU_NAME") == "generic":
        allowed = ""
    found = _of_linux() or _of_llvm()
    return frozenset(found if allowed is None else found & {f.strip().removeprefix("+") for f in allowed.split(",")})


def _of_linux() -> set[str]:
    """What the system says of the first processor, as far as levels ask for it; nothing where it says so in other words.

    LLVM's library would be loaded for this alone, where the kernels are in the cache.
    """
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return set()
    named = {_LINUX_NAMES.get(flag, flag) for flag in flags.partition(":")[2].split()}
    return named & {feature for level in _LEVELS for feature in level.features}


def _of_llvm() -> set[str]:
    import llvmlite.binding as llvm

    try:
        return {name for name, there in llvm.get_host_cpu_features().items() if there}
    except RuntimeError:  # LLVM does not know this processor
        return set()


@functools.cache
def available() -> tuple[Level, ...]:
    """The levels that this machine can do, the best first; needs llvmlite where the system does not say.

    >>> available()[-1].name
    'plain'
    """
    machine, features = _machine(), _features()
    return (*(x for x in _LEVELS if x.machine == machine and features.issuperset(x.features)), _plain(machine))


_chosen: list[Level] = []


def compile_for(level: Level) -> None:
    """Makes this the level of the process, which need not be able to run it: for what only looks at the code.

    Nothing must have asked for `current()` before.
    """
    assert not current.cache_info().currsize
    _chosen.append(level)


@functools.cache
def current() -> Level:
    """The level of this process: the machine's best, or the one that PUMICE_CPU names when the kernels are first asked for.

    >>> current() in available()
    True
    """
    if _chosen:
        return _chosen[0]
    check_name()
    for level in available():
        if config.cpu in (_BEST, level.name):
            return level
    raise InputError(f"PUMICE_CPU is {config.cpu!r}, which this machine cannot do", hint=_choice(available()), name=config.cpu)


def check_name() -> None:
    """Raises if PUMICE_CPU names no level at all; also for runs without kernels.

    >>> check_name()
    """
    if config.cpu not in (_BEST, *_NAMES):
        hint = _choice(available()) if importlib.util.find_spec("llvmlite") else "one of " + " ".join((_BEST, *_NAMES))
        raise UnknownName(f"PUMICE_CPU is {config.cpu!r}, which is no level of processors", hint=hint, name=config.cpu)


def _choice(levels: tuple[Level, ...]) -> str:
    return f"this machine can do {' '.join(level.name for level in levels)}; {_BEST} takes the first"
