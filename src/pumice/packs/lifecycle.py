"""What is installed, as data: one immutable `StoreState`, and the one each step of a pack's life makes of it.

Nothing here touches the disk; packs/store.py writes a state as a whole, so that a step happens or does not.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pumice.core.json_file import parse_json
from pumice.errors import FormatError
from pumice.packs.errors import KernelNotFound, PackStateError

FORMAT = 1
MAX_PACKS = 256
# How a kernel is chosen: where it is measured to be faster, wherever it fits, or nowhere.
Use = Literal["measured", "always", "never"]
_USES: tuple[Use, ...] = get_args(Use)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredPack:
    """One version of a pack that is stored: `blob` is the SHA-256 of its zip, `digest` that of its manifest."""

    version: str
    digest: str
    blob: str
    signer: str  # fingerprint of the key, "" where insecure
    insecure: bool
    installed_at: float  # seconds since 1970


@dataclass(frozen=True)
class InstalledPack:
    """A pack by its name: the version in use, the one before it, and the user's word about its kernels.

    `use` holds for all kernels but those that `kernels` names.

    >>> pack = InstalledPack("core", StoredPack("1.0.0", "d" * 64, "b" * 64, "", True, 0.0), kernels={"rope": "never"})
    >>> pack.use_of("rope"), pack.use_of("softmax"), pack.version
    ('never', 'measured', '1.0.0')
    """

    name: str
    current: StoredPack
    previous: StoredPack | None = None
    enabled: bool = True
    use: Use = "measured"
    kernels: Mapping[str, Use] = field(default_factory=dict)

    @property
    def version(self) -> str:
        """The version in use."""
        return self.current.version

    @property
    def digest(self) -> str:
        """The digest of the version in use."""
        return self.current.digest

    @property
    def signer(self) -> str:
        """The fingerprint of the key that signed it, "" where nobody's signature was asked for."""
        return self.current.signer

    @property
    def insecure(self) -> bool:
        """Whether it was installed without a check of its signature."""
        return self.current.insecure

    def use_of(self, kernel: str) -> Use:
        """How a kernel of it is chosen; "never" for all kernels of a pack that is disabled."""
        return self.kernels.get(kernel, self.use) if self.enabled else "never"


@dataclass(frozen=True)
class StoreState:
    """All installed packs; `retired` has the blobs that no pack refers to any more, and until when they are kept.

    >>> one, two = (StoredPack(v, v[0] * 64, v[0] * 64, "key", False, 0.0) for v in ("1.0.0", "2.0.0"))
    >>> state = StoreState().with_version("core", one, now=0, grace=300).with_version("core", two, now=10, grace=300)
    >>> state.pack("core").version, state.rolled_back("core").pack("core").version
    ('2.0.0', '1.0.0')
    >>> state.without("core", now=20, grace=300).retired == {"1" * 64: 320, "2" * 64: 320}
    True
    """

    packs: Mapping[str, InstalledPack] = field(default_factory=dict)
    retired: Mapping[str, float] = field(default_factory=dict)

    @property
    def blobs(self) -> frozenset[str]:
        """The blobs of this state; all others are leftovers."""
        stored = (s for p in self.packs.values() for s in (p.current, p.previous) if s)
        return frozenset(s.blob for s in stored) | self.retired.keys()

    def pack(self, name: str) -> InstalledPack:
        """An installed pack by its name."""
        if name not in self.packs:
            names = ", ".join(sorted(self.packs))
            raise KernelNotFound(
                f"no pack named {name!r} is installed" + (f"; there are {names}" if names else ""),
                hint="see `pumice pack list`; `pumice pack install FILE` installs one",
                id=f"pack:{name}",
            )
        return self.packs[name]

    def with_version(self, name: str, stored: StoredPack, *, now: float, grace: float) -> StoreState:
        """With another version of a pack in use; the one before stays for `rolled_back`, the one before that retires."""
        found = self.packs.get(name)
        if found is None and len(self.packs) >= MAX_PACKS:
            raise PackStateError(f"{MAX_PACKS} packs are installed, the most there can be", hint="remove some of them", name=name)
        if found is None:
            pack = InstalledPack(name, stored)
        elif found.digest == stored.digest:  # the same pack, signed by another key or now checked
            pack = replace(found, current=stored)
        else:
            pack = replace(found, current=stored, previous=found.current)
        return self._put(pack, now, grace)

    def rolled_back(self, name: str) -> StoreState:
        """With the version before in use; the one that was in use is the one before, so that this undoes itself."""
        pack = self.pack(name)
        if pack.previous is None:
            raise PackStateError(
                f"there is no version of {name} before {pack.version} to go back to",
                hint=f"`pumice pack disable {name}` stops its use, `pumice pack remove {name}` deletes it",
                name=name,
            )
        return self._put(replace(pack, current=pack.previous, previous=pack.current), 0, 0)

    def without(self, name: str, *, now: float, grace: float) -> StoreState:
        """Without a pack; its versions retire."""
        self.pack(name)
        left = StoreState({k: v for k, v in self.packs.items() if k != name}, self.retired)
        return left._retiring(self, now, grace)

    def with_use(
        self, name: str, *, kernel: str | None = None, use: Use | None = None, enabled: bool | None = None
    ) -> StoreState:
        """With the user's word about a pack, or about a kernel of it. A word about the pack replaces those about its kernels."""
        pack = self.pack(name)
        if kernel is not None and use is not None:
            pack = replace(pack, kernels={**pack.kernels, kernel: use})
        elif use is not None:
            pack = replace(pack, use=use, kernels={})
        if enabled is not None:
            pack = replace(pack, enabled=enabled)
        return self._put(pack, 0, 0)

    def pruned(self, now: float) -> StoreState:
        """Without retired blobs whose time is over. A clock that was set back does not keep them for ever."""
        return replace(self, retired={blob: until for blob, until in self.retired.items() if now < until < now + _LONGEST_GRACE})

    def _put(self, pack: InstalledPack, now: float, grace: float) -> StoreState:
        return replace(self, packs={**self.packs, pack.name: pack})._retiring(self, now, grace)

    def _retiring(self, before: StoreState, now: float, grace: float) -> StoreState:
        """`self`, with what `before` needed and it does not as retired, and nothing as retired that it needs."""
        needed = replace(self, retired={}).blobs
        gone = replace(before, retired={}).blobs - needed
        kept = {blob: until for blob, until in before.retired.items() if blob not in needed}
        return replace(self, retired=kept | dict.fromkeys(gone, now + min(grace, _LONGEST_GRACE)))


_LONGEST_GRACE = 30 * 86400.0


def state_to_json(state: StoreState) -> bytes:
    """A state as a file: JSON with a digest of its own, so that damage is noticed.

    >>> state_from_json(state_to_json(StoreState())) == StoreState()
    True
    """
    content = {
        "format": FORMAT,
        "packs": {name: asdict(pack) for name, pack in sorted(state.packs.items())},
        "retired": dict(sorted(state.retired.items())),
    }
    return (json.dumps({"sha256": _digest(content), "state": content}, indent=1) + "\n").encode()


class Damaged(FormatError):
    """A state file that is not as it was written; another copy may be whole."""

    code = "damaged-state"


def state_from_json(data: bytes, path: Path = Path("state.json")) -> StoreState:
    """The state in a file; `Damaged` if a byte of it is not as it was written.

    >>> state_from_json(state_to_json(StoreState()).replace(b"{}", b"[]"))
    Traceback (most recent call last):
    pumice.packs.lifecycle.Damaged: [damaged-state] state.json is damaged: its content is not that of its digest
    """
    try:
        whole = parse_json(data, path, dict)
    except FormatError as e:
        raise Damaged(f"{path} is damaged: {e.message}", path=str(path)) from None
    content = whole.get("state")
    if not isinstance(content, dict) or whole.get("sha256") != _digest(content):
        raise Damaged(f"{path} is damaged: its content is not that of its digest", path=str(path))
    if content.get("format") != FORMAT:
        raise PackStateError(
            f"{path} has format {content.get('format')!r}; this version of Pumice reads {FORMAT}",
            hint="use the version of Pumice that wrote it, or set PUMICE_HOME to another folder",
            path=str(path),
        )
    try:
        packs = {name: _read_installed(name, pack) for name, pack in content["packs"].items()}
        retired = {_sha256(blob): _number(until) for blob, until in content["retired"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise Damaged(f"{path} is damaged: {type(e).__name__}: {e}", path=str(path)) from None
    return StoreState(packs, retired)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_installed(name: str, pack: dict[str, Any]) -> InstalledPack:
    if pack["name"] != name:
        raise ValueError(f"{name} is called {pack['name']}")
    previous = pack["previous"]
    return InstalledPack(
        name=name,
        current=_read_stored(pack["current"]),
        previous=None if previous is None else _read_stored(previous),
        enabled=_bool(pack["enabled"]),
        use=_use(pack["use"]),
        kernels={str(kernel): _use(use) for kernel, use in pack["kernels"].items()},
    )


def _read_stored(stored: dict[str, Any]) -> StoredPack:
    values = {f.name: stored[f.name] for f in fields(StoredPack)}
    _sha256(values["digest"]), _sha256(values["blob"]), _bool(values["insecure"]), _number(values["installed_at"])
    return StoredPack(**values)


def _sha256(value: Any) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{value!r} is no SHA-256")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _use(value: Any) -> Use:
    for use in _USES:
        if value == use:
            return use
    raise ValueError(f"{value!r} is none of {', '.join(_USES)}")
