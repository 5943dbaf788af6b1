"""The keys that the user trusts, those that are revoked, and the allowlist: files in PUMICE_HOME/packs/trust.

Each file is read anew for each question and replaced as a whole under a lock, so threads and processes see whole states.
A damaged file is an error, never an empty store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pumice import config
from pumice.core.private import Folder, make_private, open_private
from pumice.packs.allowlist import Allowlist
from pumice.packs.errors import InvalidKey, InvalidTrustStore, KeyRevoked, NoTrustedKey, PackError
from pumice.packs.json_text import MAX_BYTES, parse_object
from pumice.packs.keys import PublicKey
from pumice.packs.statements import Statement
from pumice.sources.files import disk_errors
from pumice.sources.lock import exclusive

KEYS, ALLOWLIST = "keys.json", "allowlist.json"
# Each signature is tried with each key, in a tenth of a millisecond.
MAX_KEYS = 500
MAX_REVOKED = 3000
MAX_LABEL = 64
_VERSION = 1
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_LIST = "pumice pack keys list shows them"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A key that may sign packs; one that was replaced only those made until `retired`."""

    key: PublicKey
    label: str
    added: datetime
    retired: datetime | None = None
    successor: str = ""
    adopted_from: str = ""

    def to_json(self) -> dict[str, Any]:
        """The entry of the file; fingerprints protect keys from damage."""
        retired = None if self.retired is None else self.retired.isoformat()
        return {"key": self.key.text, "fingerprint": self.key.fingerprint, "label": self.label, "added": self.added.isoformat(),
                "retired": retired, "successor": self.successor, "adopted_from": self.adopted_from}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Revocation:
    """A key that must not be trusted; `key` is None where only its fingerprint is known."""

    fingerprint: str
    key: PublicKey | None
    date: datetime
    by_owner: bool

    def to_json(self) -> dict[str, Any]:
        """The entry of the file."""
        key = None if self.key is None else self.key.text
        return {"fingerprint": self.fingerprint, "key": key, "date": self.date.isoformat(), "by_owner": self.by_owner}


@dataclass(frozen=True, slots=True)
class TrustState:
    """What the store held at one moment."""

    keys: tuple[TrustedKey, ...] = ()
    revoked: tuple[Revocation, ...] = ()

    def revocation(self, key: PublicKey | str) -> Revocation | None:
        """How a key, or the key of a fingerprint, was revoked; None if it was not."""
        wanted = key if isinstance(key, str) else key.fingerprint
        return next((entry for entry in self.revoked if entry.fingerprint == wanted), None)

    def refuse_revoked(self, key: PublicKey) -> None:
        """Raises KeyRevoked where a key was revoked."""
        if (entry := self.revocation(key)) is not None:
            raise revoked_error(entry)

    def get(self, key: PublicKey | str) -> TrustedKey | None:
        """The entry of a key or of its fingerprint, revoked or not."""
        wanted = key if isinstance(key, str) else key.fingerprint
        return next((entry for entry in self.keys if entry.key.fingerprint == wanted), None)

    def find(self, what: str) -> TrustedKey:
        """The trusted key that a user names by label, fingerprint, the start of one, or the key itself."""
        named = [entry for entry in self.keys if what and what == entry.label]
        found = [entry for entry in named if entry.retired is None] or named
        if not found:
            start = what if what.startswith("SHA256:") else f"SHA256:{what}"
            found = [e for e in self.keys if what == e.key.text or (len(start) >= 13 and e.key.fingerprint.startswith(start))]
        if not found:
            try:
                found = [entry for entry in self.keys if entry.key == PublicKey.parse(what)]
            except InvalidKey:
                found = []
        if len(found) > 1:
            prints = ", ".join(entry.key.fingerprint for entry in found)
            raise InvalidKey(f"{what!r} is the name of {len(found)} trusted keys", hint=f"say which: {prints}", key=what)
        if not found:
            raise InvalidKey(f"no trusted key is called {what!r}", hint=_LIST, key=what)
        return found[0]


class TrustStore:
    """The user's trust; `TrustStore()` is the one in PUMICE_HOME.

    >>> import tempfile
    >>> from pumice.packs.keys import SigningKey
    >>> with tempfile.TemporaryDirectory() as d:
    ...     store = TrustStore(Path(d))
    ...     _ = store.add(SigningKey.generate().public, "a friend")
    ...     store.state().find("a friend").label
    'a friend'
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = config.home / "packs" / "trust" if path is None else path

    def state(self) -> TrustState:
        """The keys, trusted and revoked, as they are now."""
        return self._read(KEYS, _parse_state, TrustState())

    def allowlist(self) -> Allowlist:
        """The allowlist as it is now."""
        return self._read(ALLOWLIST, lambda data: Allowlist.from_json(data, ALLOWLIST), Allowlist())

    # -- keys -----------------------------------------------------------------------------------------------------------
    def add(self, key: PublicKey, label: str = "") -> TrustedKey:
        """Trusts a key. One that is there already gets the new label; one that was replaced counts fully again."""
        _check_label(label)

        def change(state: TrustState) -> tuple[TrustState, TrustedKey]:
            state.refuse_revoked(key)
            old = state.get(key)
            entry = TrustedKey(key, label or (old.label if old else ""), old.added if old else _now())
            return _with_key(state, entry), entry

        return self._change(change)

    def remove(self, what: str) -> TrustedKey:
        """Trusts a key no longer; packs that it signed are refused from now on."""

        def change(state: TrustState) -> tuple[TrustState, TrustedKey]:
            entry = state.find(what)
            return replace(state, keys=tuple(e for e in state.keys if e != entry)), entry

        return self._change(change)

    def revoke(self, what: str) -> Revocation:
        """Refuses a key from now on, trusted or not: by its label, fingerprint or the key itself."""

        def change(state: TrustState) -> tuple[TrustState, Revocation]:
            key, fingerprint = _named(state, what)
            return _with_revocation(state, Revocation(fingerprint, key, _now(), by_owner=False))

        return self._change(change)

    def unrevoke(self, what: str) -> Revocation:
        """Takes back a revocation of the user's own; what the key itself has signed stands for ever."""

        def change(state: TrustState) -> tuple[TrustState, Revocation]:
            _, fingerprint = _named(state, what)
            entry = state.revocation(fingerprint)
            if entry is None:
                raise InvalidKey(f"the key {fingerprint} is not revoked", hint=_LIST, key=fingerprint)
            if entry.by_owner:
                raise revoked_error(entry)
            return replace(state, revoked=tuple(e for e in state.revoked if e != entry)), entry

        return self._change(change)

    def honour(self, statement: Statement) -> Revocation:
        """Refuses the key that has signed its own revocation, whether it is trusted or not."""
        if statement.says != "revocation":
            raise InvalidKey("this statement names a successor and revokes nothing", hint="pumice pack keys adopt FILE")

        def change(state: TrustState) -> tuple[TrustState, Revocation]:
            key = statement.key
            return _with_revocation(state, Revocation(key.fingerprint, key, statement.date, by_owner=True))

        return self._change(change)

    def adopt(self, statement: Statement) -> TrustedKey:
        """Trusts the successor that a trusted key has signed; the old key counts only for packs made until that date."""
        if statement.successor is None:
            raise InvalidKey("this statement revokes a key and names no successor", hint="pumice pack keys revoke FILE")
        return self.replace_key(statement.key, statement.successor, statement.date)

    def replace_key(self, old: PublicKey, new: PublicKey, date: datetime) -> TrustedKey:
        """What `adopt` does, on a word of the old key's that the caller has verified."""

        def change(state: TrustState) -> tuple[TrustState, TrustedKey]:
            before, known = state.get(old), state.get(new)
            if before is None:
                raise NoTrustedKey(
                    f"the key {old.fingerprint}, which names a successor, is not trusted",
                    hint="trust the successor itself: pumice pack keys trust KEY",
                    key=old.fingerprint,
                )
            state.refuse_revoked(old)
            state.refuse_revoked(new)
            if before.retired is not None and before.successor != new.fingerprint:
                raise InvalidKey(f"the key {old.fingerprint} already has the successor {before.successor}", hint=_LIST)
            if new == old or (known is not None and known.retired is not None):
                raise InvalidKey(f"the key {new.fingerprint} was replaced, and cannot be a successor", hint=_LIST)
            if before.retired is not None:
                return state, known or before
            entry = known or TrustedKey(new, before.label, _now(), adopted_from=old.fingerprint)
            state = _with_key(state, replace(before, retired=date, successor=new.fingerprint))
            return _with_key(state, entry), entry

        return self._change(change)

    # -- the allowlist --------------------------------------------------------------------------------------------------
    def change_allowlist(self, change: Callable[[Allowlist], Allowlist]) -> Allowlist:
        """Replaces the allowlist by what `change` makes of it."""
        with self._locked() as folder:
            changed = change(self.allowlist())
            folder.write(ALLOWLIST, changed.to_json().encode(), durable=True)
        return changed

    # -- files ----------------------------------------------------------------------------------------------------------
    def _change(self, change: Callable[[TrustState], tuple[TrustState, _T]]) -> _T:
        with self._locked() as folder:
            before = self.state()
            after, result = change(before)
            if after != before:
                folder.write(KEYS, _written(after), durable=True)
        return result

    @contextmanager
    def _locked(self) -> Iterator[Folder]:
        """The folder, with no other writer in it."""
        with disk_errors(self.path):
            make_private(self.path)
            with exclusive(self.path / ".lock"), open_private(self.path) as folder:
                yield folder

    def _read(self, name: str, parse: Callable[[bytes], _T], empty: _T) -> _T:
        path = self.path / name
        try:
            with open_private(self.path) as folder:
                data = folder.read(name, MAX_BYTES)
        except FileNotFoundError:
            return empty
        except OSError as e:
            raise _damaged(path, e.strerror or str(e)) from None
        try:
            return parse(data)
        except PackError as e:
            raise _damaged(path, e.message) from None


def _parse_state(data: bytes) -> TrustState:
    found = _fields(parse_object(data, KEYS, error=InvalidTrustStore), {"version": int, "keys": list, "revoked": list})
    if found["version"] != _VERSION:
        raise InvalidTrustStore(f"it has the version {found['version']}, this Pumice reads {_VERSION}")
    state = TrustState(tuple(map(_parse_key, found["keys"])), tuple(map(_parse_revocation, found["revoked"])))
    for prints in ([e.key.fingerprint for e in state.keys], [e.fingerprint for e in state.revoked]):
        if len(set(prints)) != len(prints):
            raise InvalidTrustStore("it has a key twice")
    return state


def _parse_key(given: Any) -> TrustedKey:
    text, maybe = str, (str, type(None))
    fields = _fields(given, {"key": text, "fingerprint": text, "label": text, "added": text, "retired": maybe, "successor": text,
                             "adopted_from": text})  # fmt: skip
    key = _parse_matching(fields["key"], fields["fingerprint"])
    _check_label(fields["label"])
    for name in ("successor", "adopted_from"):
        if fields[name] and not _FINGERPRINT.fullmatch(fields[name]):
            raise InvalidTrustStore(f"{name} is no fingerprint")
    if (fields["retired"] is None) is not (fields["successor"] == ""):
        raise InvalidTrustStore("a key was replaced by none, or never")
    retired = None if fields["retired"] is None else parse_date(fields["retired"])
    return TrustedKey(key, fields["label"], parse_date(fields["added"]), retired, fields["successor"], fields["adopted_from"])


def _parse_revocation(given: Any) -> Revocation:
    fields = _fields(given, {"fingerprint": str, "key": (str, type(None)), "date": str, "by_owner": bool})
    if not _FINGERPRINT.fullmatch(fields["fingerprint"]):
        raise InvalidTrustStore("a revocation without a fingerprint")
    key = None if fields["key"] is None else _parse_matching(fields["key"], fields["fingerprint"])
    return Revocation(fields["fingerprint"], key, parse_date(fields["date"]), fields["by_owner"])


def _parse_matching(text: str, fingerprint: str) -> PublicKey:
    key = PublicKey.parse(text)
    if key.fingerprint != fingerprint:
        raise InvalidTrustStore(f"the key {key.fingerprint} does not match the fingerprint beside it")
    return key


def _fields(given: Any, types: Mapping[str, type | tuple[type, ...]]) -> dict[str, Any]:
    if not isinstance(given, dict) or given.keys() != types.keys():
        raise InvalidTrustStore(f"an entry has not the fields {', '.join(types)}")
    for name, kind in types.items():
        if not isinstance(given[name], kind) or (kind is int and isinstance(given[name], bool)):
            raise InvalidTrustStore(f"{name} is of the wrong type")
    return given


def parse_date(text: str) -> datetime:
    """A date in ISO 8601; one that names no time zone is in UTC.

    >>> parse_date("2026-11-16") == parse_date("2026-11-16T01:00:00+01:00")
    True
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidTrustStore(f"{text[:40]!r} is no date") from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _written(state: TrustState) -> bytes:
    entries = {"keys": [e.to_json() for e in state.keys], "revoked": [e.to_json() for e in state.revoked]}
    return json.dumps({"version": _VERSION, **entries}, indent=1).encode()


def _with_key(state: TrustState, entry: TrustedKey) -> TrustState:
    keys = (*(e for e in state.keys if e.key != entry.key), entry)
    if len(keys) > MAX_KEYS:
        raise InvalidTrustStore(f"more than {MAX_KEYS} trusted keys", hint="pumice pack keys untrust those you do not need")
    return replace(state, keys=keys)


def _with_revocation(state: TrustState, entry: Revocation) -> tuple[TrustState, Revocation]:
    old = state.revocation(entry.fingerprint)
    if old is not None:
        # What the owner has signed stands above the user's own word; the first date stays.
        entry = replace(old, key=old.key or entry.key, by_owner=old.by_owner or entry.by_owner)
    revoked = (*(e for e in state.revoked if e.fingerprint != entry.fingerprint), entry)
    if len(revoked) > MAX_REVOKED:
        raise InvalidTrustStore(f"more than {MAX_REVOKED} revoked keys", hint="pumice pack keys untrust is enough for most")
    return replace(state, revoked=revoked), entry


def _named(state: TrustState, what: str) -> tuple[PublicKey | None, str]:
    """The key that a user names, or only its fingerprint."""
    try:
        key = state.find(what).key
    except InvalidKey:
        if _FINGERPRINT.fullmatch(what):
            known = state.revocation(what)
            return (None if known is None else known.key), what
        key = PublicKey.parse(what)
    return key, key.fingerprint


def revoked_error(entry: Revocation) -> KeyRevoked:
    by = "its owner" if entry.by_owner else "you"
    undo = (
        "ask its owner for a successor" if entry.by_owner else f"pumice pack keys revoke {entry.fingerprint} --undo takes it back"
    )
    return KeyRevoked(
        f"the key {entry.fingerprint} was revoked by {by} on {entry.date:%Y-%m-%d}", hint=undo, key=entry.fingerprint
    )


def is_label(text: str) -> bool:
    """Whether a key can be called so: printable, and not to be taken for a key or its fingerprint.

    >>> is_label("a friend"), is_label("SHA256:abc")
    (True, False)
    """
    looks_like_key = text.lower().startswith(("sha256:", "ed25519:"))
    return len(text) <= MAX_LABEL and text.isprintable() and text == text.strip() and not looks_like_key


def _check_label(label: str) -> None:
    if not is_label(label):
        raise InvalidTrustStore(f"{label[:80]!r} is no label", hint=f"at most {MAX_LABEL} printable characters, and no key")


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def _damaged(path: Path, why: str) -> InvalidTrustStore:
    return InvalidTrustStore(
        f"{path} is damaged: {why}", hint="restore it from a copy, or delete it and trust keys anew", path=str(path)
    )
