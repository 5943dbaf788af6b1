"""API keys: a file of their hashes with limits for each, found in constant time, and the rates at which they are used."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pumice.core.whole_file import write_whole
from pumice.errors import FormatError, InputError
from pumice.serve.api_errors import ApiError, overloaded

_LINE = re.compile(r"(?P<name>[\w.@-]{1,64})\s+(?P<hash>[0-9a-f]{64})(?P<limits>(\s+\w+=\d+)*)\s*")
_LIMITS = ("per_minute", "concurrent", "tokens_per_minute")
_HINT = "lines are NAME SHA256 [per_minute=N] [concurrent=N] [tokens_per_minute=N]; pumice serve --new-key NAME writes one"


@dataclass(frozen=True)
class ApiKey:
    """A key by its hash; 0 is no limit."""

    name: str
    hash: str
    per_minute: int = 0
    concurrent: int = 0
    tokens_per_minute: int = 0


def hash_key(key: str) -> str:
    """What is kept of a key. Keys are 32 random bytes, so a plain hash cannot be searched.

    >>> hash_key("pk-x")[:8]
    '2fbf9fa6'
    """
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(path: Path) -> list[ApiKey]:
    """The keys of a file; lines that begin with # are comments."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise InputError(f"the file of keys {path} cannot be read: {type(e).__name__}", hint=_HINT) from None
    found: list[ApiKey] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        limits = dict(part.split("=") for part in match["limits"].split()) if match else {}
        if match is None or not set(limits) <= set(_LIMITS):
            # What it says stays unsaid: it may be a key.
            raise FormatError(f"line {number} of {path} is no key", hint=_HINT, line=number)
        found.append(ApiKey(match["name"], match["hash"], **{k: int(v) for k, v in limits.items()}))
    if not found:
        raise InputError(f"{path} holds no key", hint=_HINT)
    return found


def new_key(path: Path, name: str) -> str:
    """A new key, whose hash is appended to a file that its owner alone can read; it is shown once and kept nowhere."""
    if not re.fullmatch(r"[\w.@-]{1,64}", name):
        raise InputError(f"{name!r:.80} is no name of a key", hint="use letters, digits, and . _ @ -")
    if path.exists() and any(k.name == name for k in read_keys(path)):
        raise InputError(f"{path} has a key {name!r} already", hint="choose another name, or delete its line")
    key = f"pk-{secrets.token_urlsafe(32)}"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_whole(path, f"{before}{name} {hash_key(key)}\n", durable=True, mode=0o600)
    return key


class _Use:
    """How a key is being used: buckets that fill with time, and requests that are open."""

    def __init__(self, key: ApiKey) -> None:
        self.key, self.open = key, 0
        self.requests, self.tokens = float(key.per_minute), float(key.tokens_per_minute)
        self.seen = time.monotonic()

    def fill(self, now: float) -> None:
        minutes = (now - self.seen) / 60
        self.seen = now
        self.requests = min(self.key.per_minute, self.requests + minutes * self.key.per_minute)
        self.tokens = min(self.key.tokens_per_minute, self.tokens + minutes * self.key.tokens_per_minute)


class KeyRing:
    """The keys of a server and how they are used.

    >>> ring = KeyRing([ApiKey("me", hash_key("secret"), per_minute=1)])
    >>> ring.find("secret").name, ring.find("guess")
    ('me', None)
    """

    def __init__(self, keys: list[ApiKey]) -> None:
        self._uses = {key.name: _Use(key) for key in keys}
        self._keys = keys

    def find(self, given: str) -> ApiKey | None:
        """The key that was given; how long the search takes says nothing about how near a guess was."""
        hashed, found = hash_key(given), None
        for key in self._keys:
            if hmac.compare_digest(hashed, key.hash):
                found = key
        return found

    @contextmanager
    def used(self, key: ApiKey) -> Iterator[None]:
        """A request of a key, while it lasts; a 429 where that would be beyond its limits."""
        use = self._uses[key.name]
        use.fill(time.monotonic())
        if key.concurrent and use.open >= key.concurrent:
            raise overloaded(f"{use.open} requests with this key are open, {key.concurrent} may be", 1.0)
        if key.per_minute and use.requests < 1:
            raise overloaded(f"this key may send {key.per_minute} requests a minute", (1 - use.requests) * 60 / key.per_minute)
        if key.tokens_per_minute and use.tokens < 0:
            raise overloaded(
                f"this key may use {key.tokens_per_minute} tokens a minute", -use.tokens * 60 / key.tokens_per_minute
            )
        use.requests -= 1
        use.open += 1
        try:
            yield
        finally:
            use.open -= 1

    def spend(self, key: ApiKey, tokens: int) -> None:
        """Count the tokens that a request of a key took."""
        self._uses[key.name].tokens -= tokens


def key_of(headers: dict[str, str]) -> str:
    """The key in a request's headers, as OpenAI's or Anthropic's client sends it; a 401 without.

    >>> key_of({"authorization": "Bearer pk-1"}), key_of({"x-api-key": "pk-2"})
    ('pk-1', 'pk-2')
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and given.strip():
        return given.strip()
    if headers.get("x-api-key"):
        return headers["x-api-key"]
    raise ApiError(
        401, "this server wants an API key", code="missing_api_key", hint="send Authorization: Bearer KEY, or x-api-key"
    )
