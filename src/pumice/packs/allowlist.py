"""Allowlists: the kernels that may run on this machine, by id and hash, no matter who signed them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pumice.packs.errors import InvalidTrustStore, NotInAllowlist
from pumice.packs.json_text import parse_object

MAX_HASHES = 10_000
_HASH = re.compile(r"sha256:[0-9a-fA-F]{64}")
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_VERSIONS = (1, "1", "1.0", "1.0.0")


@dataclass(frozen=True, slots=True)
class Allowlist:
    """Hashes of kernels: a kernel whose id has a list of its own must be on that one, any other in `hashes`.

    >>> digest = "sha256:" + "0a" * 32
    >>> allowed = Allowlist(enforce=True).add(digest, "rope")
    >>> allowed.allows("rope", digest.replace("a", "A")), allowed.allows("other", digest)
    (True, False)
    """

    kernels: Mapping[str, frozenset[str]] = field(default_factory=dict)
    hashes: frozenset[str] = frozenset()
    enforce: bool = False

    def allows(self, kernel_id: str, hash: str) -> bool:
        """Whether the list names a kernel with this hash, enforced or not."""
        return hash.lower() in self.kernels.get(kernel_id, self.hashes)

    def check(self, kernel_id: str, hash: str) -> None:
        """Refuses a kernel that an enforced list does not name."""
        if self.enforce and not self.allows(kernel_id, hash):
            raise NotInAllowlist(
                f"the kernel {kernel_id} with the hash {hash} is not in the allowlist",
                hint=f"pumice pack allow add {hash} --kernel {kernel_id}, or pumice pack allow enforce off",
                kernel_id=kernel_id,
                hash=hash,
            )

    def add(self, hash: str, kernel_id: str | None = None) -> Allowlist:
        """With one hash more, for one kernel or for all that have no list of their own."""
        if kernel_id is None:
            return _bounded(replace(self, hashes=self.hashes | {plain_hash(hash)}))
        own = self.kernels.get(_checked_id(kernel_id), frozenset()) | {plain_hash(hash)}
        return _bounded(replace(self, kernels={**self.kernels, kernel_id: own}))

    def remove(self, hash: str | None = None, kernel_id: str | None = None) -> Allowlist:
        """Without a hash, or without the whole list of a kernel, which then falls under `hashes` again.

        A list from which the last hash is removed stays, and allows nothing.
        """
        where = self.hashes if kernel_id is None else self.kernels.get(kernel_id)
        if where is None or (hash is None and kernel_id is None) or (hash is not None and plain_hash(hash) not in where):
            whose = "kernels without a list of their own" if kernel_id is None else f"the kernel {kernel_id}"
            raise NotInAllowlist(
                f"the allowlist has no {'list' if hash is None else hash} for {whose}",
                hint="pumice pack allow list shows what it has",
                kernel_id=kernel_id or "",
            )
        if kernel_id is None:
            return replace(self, hashes=where - {plain_hash(hash or "")})
        others = {name: found for name, found in self.kernels.items() if name != kernel_id}
        return replace(self, kernels=others if hash is None else {**others, kernel_id: where - {plain_hash(hash)}})

    def merge(self, other: Allowlist) -> Allowlist:
        """All hashes of both; whether it is enforced stays as it is here."""
        names = {*self.kernels, *other.kernels}
        kernels = {name: self.kernels.get(name, frozenset()) | other.kernels.get(name, frozenset()) for name in names}
        return _bounded(replace(self, kernels=kernels, hashes=self.hashes | other.hashes))

    def to_json(self) -> str:
        """The list as its file has it; `from_json` reads it."""
        kernels = {name: sorted(found) for name, found in sorted(self.kernels.items())}
        return json.dumps({"version": 1, "enforce": self.enforce, "kernels": kernels, "hashes": sorted(self.hashes)}, indent=1)

    @staticmethod
    def from_json(data: bytes, name: str = "the allowlist") -> Allowlist:
        """The list in a file: `kernels` maps ids to lists of hashes; `hashes` and `enforce` may be missing.

        >>> Allowlist.from_json(b'{"version": 1, "kernels": {"rope": []}}').kernels
        {'rope': frozenset()}
        """
        found = parse_object(data, name, error=InvalidTrustStore)
        kernels, enforce = found.get("kernels"), found.get("enforce", False)
        if found.get("version") not in _VERSIONS or isinstance(found["version"], bool):
            raise InvalidTrustStore(f"{name} has the version {found.get('version')!r}; this Pumice reads 1", file=name)
        if unknown := found.keys() - {"version", "kernels", "hashes", "enforce"}:
            raise InvalidTrustStore(f"{name} has the unknown key {min(unknown)!r}", file=name)
        if not isinstance(kernels, dict) or not isinstance(enforce, bool):
            raise InvalidTrustStore(f"{name}: kernels must be an object and enforce true or false", file=name)
        lists = {_checked_id(kernel): _hashes(hashes, name) for kernel, hashes in kernels.items()}
        return _bounded(Allowlist(lists, _hashes(found.get("hashes", []), name), enforce))


def plain_hash(text: str) -> str:
    """A hash in lower case; its prefix must be so already.

    >>> plain_hash("sha256:" + "AB" * 32) == "sha256:" + "ab" * 32
    True
    """
    if not _HASH.fullmatch(text):
        raise InvalidTrustStore(f"{text[:80]!r} is no hash", hint="write sha256: and 64 hexadecimal digits")
    return text.lower()


def _hashes(given: Any, name: str) -> frozenset[str]:
    if not isinstance(given, list) or not all(isinstance(hash, str) for hash in given):
        raise InvalidTrustStore(f"{name}: hashes must be lists of strings", file=name)
    return frozenset(map(plain_hash, given))


def _checked_id(kernel_id: str) -> str:
    if not _ID.fullmatch(kernel_id):
        raise InvalidTrustStore(f"{kernel_id[:80]!r} is no id of a kernel", hint="letters, digits, _ . and -, at most 64")
    return kernel_id


def _bounded(allowed: Allowlist) -> Allowlist:
    if (count := _count([allowed.hashes, *allowed.kernels.values()])) > MAX_HASHES:
        raise InvalidTrustStore(f"an allowlist of {count} hashes", hint=f"{MAX_HASHES} are the most")
    return allowed


def _count(lists: Iterable[frozenset[str]]) -> int:
    return sum(map(len, lists))
