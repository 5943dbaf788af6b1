"""Every switch of Pumice in one table: its environment variable, type, default and meaning."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pumice.errors import InputError, UnknownName

# Declared for type checkers and readers; the values come from `__getattr__` below, at each access.
debug: int
nofuse: bool
noarena: bool
validate: bool
device: str
home: Path
default_max: int
threads: int
cpu: str
nohash: bool
packs: str
timeout: int
passphrase_file: Path


@dataclass(frozen=True, slots=True)
class Switch:
    """One row of the table. `low` and `high` bound ints.

    >>> next(s for s in table() if s.name == "debug").env
    'PUMICE_DEBUG'
    """

    name: str
    kind: Literal["int", "bool", "str", "path"]
    default: Any
    meaning: str
    low: int = 0
    high: int = 2**31 - 1

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return f"PUMICE_{self.name.upper()}"

    @property
    def expects(self) -> str:
        """What values it takes, in words."""
        if self.kind == "int":
            return f"an integer from {self.low} to {self.high}"
        return {"bool": "0 or 1", "str": "a name", "path": "a path"}[self.kind]

    def check(self, value: Any, origin: str) -> Any:
        """`value` (text from the environment, or a Python value) as the switch's type; `origin` names it in errors."""
        try:
            return _CONVERT[self.kind](self, value)
        except (ValueError, TypeError):
            raise InputError(
                f"{origin} is {value!r}", hint=f"it takes {self.expects}: {self.meaning}", switch=self.name, got=value
            ) from None


_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def _to_int(switch: Switch, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    number = int(value)
    if not switch.low <= number <= switch.high:
        raise ValueError
    return number


def _to_bool(switch: Switch, value: Any) -> bool:
    text = str(value).strip().lower()
    if text not in _TRUE + _FALSE:
        raise ValueError
    return text in _TRUE


def _to_str(switch: Switch, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    return value.strip()


def _to_path(switch: Switch, value: Any) -> Path:
    if not str(value).strip():
        raise ValueError
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise InputError(
            f"{value} leads nowhere, as this user has no home folder",
            hint=f"set {switch.env} to a folder that can be written",
            switch=switch.name,
        ) from None


_CONVERT = {"int": _to_int, "bool": _to_bool, "str": _to_str, "path": _to_path}

_TABLE = (
    Switch("debug", "int", 0, "what is printed: 1 devices, 2 kernels and times, 3 plans, 4 WGSL, 5 graphs", high=5),
    Switch("nofuse", "bool", False, "gives each op its own kernel, to find out whether fusion is at fault"),
    Switch("noarena", "bool", False, "gives each value its own buffer, to find out whether memory planning is at fault"),
    Switch("validate", "bool", False, "verifies graphs and plans at every stage and compares each run with the reference"),
    Switch(
        "device",
        "str",
        "auto",
        "where device='auto' runs: auto, host, webgpu[:N|:NAME] or vulkan[:N|:NAME]",
    ),
    Switch("home", "path", Path("~/.cache/pumice"), "the folder of downloaded models and caches"),
    Switch("default_max", "int", 1024, "the maximum of a symbolic dim that was given none", low=1),
    Switch("threads", "int", 0, "threads of the host backend, BLAS included; 0 means one per core"),
    Switch(
        "cpu",
        "str",
        "auto",
        "what the host's kernels are compiled for: auto is the machine's best of avx512-vnni, avx512, avx2-vnni, avx2, "
        "neon-i8mm, neon-dotprod, neon and plain",
    ),
    Switch("nohash", "bool", False, "uploads every input of every run, also those whose content has not changed"),
    Switch("packs", "str", "enabled", "kernel packs in use: enabled, none, or names of installed ones with commas"),
    Switch("timeout", "int", 300, "seconds to wait for a device's answer before it counts as lost", low=1),
    Switch("passphrase_file", "path", Path("-"), "the file with the passphrase of private keys; - asks at the terminal"),
)
_BY_NAME = {s.name: s for s in _TABLE}
_overrides: ContextVar[Mapping[str, Any]] = ContextVar("pumice_config", default={})  # noqa: B039  never mutated


def table() -> tuple[Switch, ...]:
    """Every switch, in the order that the docs list them.

    >>> [s.name for s in table()][:3]
    ['debug', 'nofuse', 'noarena']
    """
    return _TABLE


def get(name: str) -> Any:
    """The value of a switch now: an override, else the environment, else the default.

    >>> with override(debug=3):
    ...     get("debug")
    3
    """
    switch = _find(name)
    overrides = _overrides.get()
    if name in overrides:
        return overrides[name]
    text = os.environ.get(switch.env, "")
    # An empty variable counts as unset, as shells make it easy to leave one behind.
    return switch.check(text, f"the environment variable {switch.env}") if text else switch.check(switch.default, name)


@contextmanager
def override(**values: Any) -> Iterator[None]:
    """Sets switches for the enclosed code, in this thread or task only; nests.

    >>> with override(default_max=64):
    ...     default_max = get("default_max")
    >>> default_max
    64
    """
    checked = {name: _find(name).check(value, f"override({name}=…)") for name, value in values.items()}
    token = _overrides.set({**_overrides.get(), **checked})
    try:
        yield
    finally:
        _overrides.reset(token)


def _find(name: str) -> Switch:
    if name not in _BY_NAME:
        raise UnknownName(f"there is no switch {name!r}", hint="one of " + " ".join(_BY_NAME))
    return _BY_NAME[name]


def __getattr__(name: str) -> Any:
    if name in _BY_NAME:
        return get(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
