"""ResponseCache: answers of deterministic requests, kept in memory and, if wanted, on disk, within limits in bytes."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pumice.core.byte_counts import bytes_of
from pumice.core.kept import forget_beyond, keep, kept_folder, read_kept
from pumice.errors import InputError
from pumice.llm.records import SequenceRecord
from pumice.llm.requests import Request, TokenEvent

DEFAULT_MEMORY, DEFAULT_DISK = 64 << 20, 256 << 20
_BYTES = 'give a number of bytes, or a text such as "64MiB"'
# What Python takes for an entry beside its content: the key, two objects, a place in the table.
_ENTRY_BYTES = 256
# The folder is looked through after each such part of its limit that was written; no answer may be larger than that.
_SHARES = 8
# Before the content of each file.
_DIGEST_BYTES = 32
# The folder below PUMICE_HOME.
_FOLDER = "responses"


class ResponseKey(NamedTuple):
    """What an answer follows from, as a digest. One that is not `durable` means something in this process alone."""

    digest: str
    durable: bool


class ResponseCacheStatistics(NamedTuple):
    """How often answers were found since the start, those on disk among them, and what is in memory now."""

    hits: int
    misses: int
    disk_hits: int
    evictions: int
    entries: int
    bytes: int


class ResponseCache:
    """Answers to requests that would be answered in the same way again. Thread-safe; several models may share one.

    `memory` bounds what it takes in memory, `disk` what it takes in the folder `responses` of PUMICE_HOME, where other processes
    find it; True is 256 MiB there. Where an answer finds no room, those go that were not asked for the longest.

    >>> cache = ResponseCache("1KiB")
    >>> cache.put(ResponseKey("a", False), b"first")
    >>> cache.get(ResponseKey("a", False)), cache.get(ResponseKey("b", False))
    (b'first', None)
    >>> cache.statistics.hits, cache.statistics.misses, cache.statistics.entries
    (1, 1, 1)
    """

    def __init__(self, memory: int | str = DEFAULT_MEMORY, *, disk: bool | int | str | None = None) -> None:
        self._most = _byte_count("memory", memory)
        given = DEFAULT_DISK if disk is True else disk
        self._most_on_disk = None if given is None or given is False else _byte_count("disk", given)
        # Now, as the switch may be another one in the thread that asks.
        self._folder: Path | None = None if self._most_on_disk is None else kept_folder(_FOLDER)
        self._lock = threading.Lock()
        self._held: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = self._hits = self._misses = self._disk_hits = self._evictions = 0
        # Bytes that were written to the folder since it was looked through; at first that is due.
        self._written = self._most_on_disk or 0

    def __repr__(self) -> str:
        where = "" if self._folder is None else f", up to {self._most_on_disk} on disk"
        return f"<ResponseCache of {len(self._held)} answers, {self._bytes} of {self._most} bytes{where}>"

    @property
    def durable(self) -> bool:
        """Whether it keeps answers on disk, for later processes."""
        return self._folder is not None

    @property
    def statistics(self) -> ResponseCacheStatistics:
        """Counts since it was made, and what is in memory now."""
        with self._lock:
            counts = (self._hits, self._misses, self._disk_hits, self._evictions)
            return ResponseCacheStatistics(*counts, len(self._held), self._bytes)

    def get(self, key: ResponseKey) -> bytes | None:
        """What was put under a key, None if it is not there, or no longer as it was written."""
        with self._lock:
            found = self._held.get(key.digest)
            if found is not None:
                self._held.move_to_end(key.digest)
                self._hits += 1
                return found
        found = self._read(key)
        with self._lock:
            self._hits, self._misses = self._hits + (found is not None), self._misses + (found is None)
            self._disk_hits += found is not None
            if found is not None:
                self._hold(key.digest, found)
        return found

    def put(self, key: ResponseKey, content: bytes) -> None:
        """Keep something under a key; what is larger than the whole cache is not kept."""
        with self._lock:
            self._hold(key.digest, content)
        self._write(key, content)

    def clear(self) -> None:
        """Forget all answers, those on disk too, whichever process wrote them."""
        with self._lock:
            self._held.clear()
            self._bytes = 0
        if self._folder is not None:
            forget_beyond(self._folder, 0)

    def _hold(self, digest: str, content: bytes) -> None:
        """Puts an entry into memory, and makes room; the caller has the lock."""
        old = self._held.pop(digest, None)
        self._bytes -= 0 if old is None else len(old) + _ENTRY_BYTES
        size = len(content) + _ENTRY_BYTES
        if size > self._most:
            return
        self._held[digest] = content
        self._bytes += size
        while self._bytes > self._most:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= len(oldest) + _ENTRY_BYTES
            self._evictions += 1

    # -- disk -------------------------------------------------------------------------------------------------------
    def _read(self, key: ResponseKey) -> bytes | None:
        if self._folder is None or not key.durable:
            return None
        path = self._folder / key.digest
        found = read_kept(path)
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(path, follow_symlinks=False)  # it is the youngest now
        return found

    def _write(self, key: ResponseKey, content: bytes) -> None:
        folder, most = self._folder, self._most_on_disk
        if folder is None or most is None or not key.durable:
            return
        size, share = len(content) + _DIGEST_BYTES, most // _SHARES
        if size > share or not keep(folder / key.digest, content):
            return
        with self._lock:
            self._written += size
            full = self._written > share
            self._written = 0 if full else self._written
        if full:
            forget_beyond(folder, most - 2 * share)


def _byte_count(name: str, given: Any) -> int:
    found = bytes_of(given, name, _BYTES) if isinstance(given, str) else given
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise InputError(f"{name} is {given!r:.60}", hint=_BYTES, name=name, value=given)
    return found


def cache_of(given: Any) -> ResponseCache | None:
    """What `cache=` stands for where a model is loaded: True, a number of bytes in memory, or a cache; None or False: no cache.

    >>> cache_of(True), cache_of("1MiB"), cache_of(None)
    (<ResponseCache of 0 answers, 0 of 67108864 bytes>, <ResponseCache of 0 answers, 0 of 1048576 bytes>, None)
    >>> cache_of(3.5)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] cache is 3.5
      hint: give True, a number of bytes as "64MiB", or a pm.ResponseCache
    """
    if given is None or isinstance(given, ResponseCache):
        return given
    if isinstance(given, bool):
        return ResponseCache() if given else None
    if isinstance(given, int | str):
        return ResponseCache(given)
    hint = 'give True, a number of bytes as "64MiB", or a pm.ResponseCache'
    raise InputError(f"cache is {given!r:.60}", hint=hint, name="cache")


class KeptAnswers:
    """The answers of one call: those that a cache has, and those that it shall keep when they are complete.

    `keys` has one for each request, `adapter` is the digest that the call's adapter has in them.
    """

    def __init__(self, cache: ResponseCache, keys: Sequence[ResponseKey], adapter: str | None) -> None:
        self._cache, self._keys, self._adapter = cache, keys, adapter
        self._noted: dict[int, list[TokenEvent]] = {}

    def find(self, requests: Sequence[Request]) -> dict[int, list[TokenEvent]]:
        """The tokens of answers that the cache has, by the number of the request; all of a beam search, or none."""
        found: dict[int, list[TokenEvent]] = {}
        starts = [k for k, r in enumerate(requests) if not r.choice]
        for start, end in zip(starts, [*starts[1:], len(requests)]):
            events = [self._events(k) for k in range(start, end)]
            if all(events):
                found |= {start + k: e for k, e in enumerate(events) if e}
        return found

    def _events(self, number: int) -> list[TokenEvent] | None:
        content = self._cache.get(self._keys[number])
        return None if content is None else unpack_events(content)

    def note(self, number: int, event: TokenEvent) -> None:
        """An answer has another token."""
        self._noted.setdefault(number, []).append(event)

    def keep(self, number: int, record: SequenceRecord | None) -> None:
        """An answer is complete."""
        events = self._noted.pop(number, None)
        used = None if record is None or record.adapter is None else record.adapter.sha256
        # Another adapter may have come under the name before the call began: the answer is not the key's then.
        if events and used == self._adapter:
            self._cache.put(self._keys[number], pack_events(events))


# -- answers as bytes -----------------------------------------------------------------------------------------------------
def pack_events(events: Sequence[TokenEvent]) -> bytes:
    """The tokens of one answer, as a cache keeps them.

    >>> pack_events([TokenEvent(0, 5), TokenEvent(0, 2, "stop")])
    b'{"tokens":[5,2],"finish":"stop"}'
    """
    found: dict[str, Any] = {"tokens": [int(e.token) for e in events], "finish": events[-1].finish}
    if any(e.logprob is not None for e in events):
        found["logprobs"] = [[e.logprob, e.top] for e in events]
    return json.dumps(found, separators=(",", ":")).encode()


def unpack_events(content: bytes) -> list[TokenEvent] | None:
    """The same again; None for what `pack_events` did not write.

    >>> unpack_events(b'{"tokens":[5,2],"finish":"stop"}')
    [TokenEvent(request=0, token=5, finish=None, logprob=None, top=()), TokenEvent(request=0, token=2, finish='stop', ...)]
    >>> unpack_events(b'{"tokens":"5"}')
    """
    try:
        found = json.loads(content)
        tokens, finish = found["tokens"], found["finish"]
        logprobs = found.get("logprobs") or [(None, ())] * len(tokens)
        if not tokens or not all(type(t) is int for t in tokens) or finish not in (None, "stop", "length"):
            return None
        events = [
            TokenEvent(0, token, None, logprob, tuple((int(i), float(p)) for i, p in top))
            for token, (logprob, top) in zip(tokens, logprobs, strict=True)
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    last = events[-1]
    return [*events[:-1], TokenEvent(0, last.token, finish, last.logprob, last.top)]
