"""Downloads that go on where they stopped: ranges, retries, and separate errors for network, server and disk."""

from __future__ import annotations

import errno
import http.client
import shutil
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pumice.sources.errors import NoAccess, NoNetwork, NotFound, SourceError, TooLarge, plain
from pumice.sources.files import CHUNK, need_space, size_text
from pumice.sources.progress import FetchMeter

_AGENT = "pumice"
_TRIES = 5
_WAIT_SECONDS = 0.2
_RETRY_STATUS = {408, 416, 425, 429, 500, 502, 503, 504}
_UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTUNREACH}
# No index page comes near this; a larger answer is not one.
_MAX_PAGE = 16 << 20
# How long a page, or the head of an answer, may take in all, however steadily its bytes drip.
_PAGE_SECONDS = 60.0
# A transfer that brings less than this in that time stands still; requests that bring less than that are few.
_PACE_SECONDS, _PACE_BYTES = 30.0, 64 << 10
_MAX_SLOW = 20
# The largest file, and the largest whose length the server does not give.
_MAX_FILE, _MAX_UNSIZED = 1 << 40, 4 << 30


@dataclass(frozen=True)
class Http:
    """Connection settings: a certificate file and a proxy where pip is configured with one, and a timeout."""

    cert: str = ""
    proxy: str = ""
    timeout: float = 20.0

    def open(self, url: str, headers: dict[str, str]) -> Any:
        """Start a GET; the response is a context manager. Its head has come within `_PAGE_SECONDS`."""
        handlers: list[Any] = [
            urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.cert or None)),
            *(urllib.request.HTTPHandler(), urllib.request.HTTPDefaultErrorHandler(), urllib.request.HTTPErrorProcessor()),
            *(_Redirects(), urllib.request.UnknownHandler()),
            urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy} if self.proxy else None),
        ]
        # Not `build_opener`, which adds handlers for ftp:, file: and data: addresses.
        opener = urllib.request.OpenerDirector()
        for handler in handlers:
            opener.add_handler(handler)
        request = urllib.request.Request(url, headers={"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers})
        return _within(_PAGE_SECONDS, lambda: opener.open(request, timeout=self.timeout))

    def page(self, url: str, accept: str) -> tuple[str, str, str]:
        """A small text: its final address, its content type, itself."""
        try:
            with self.open(url, {"Accept": accept}) as answer:
                text = _small(url, answer).decode("utf-8", "replace")
                return answer.url, answer.headers.get_content_type(), text
        except (OSError, http.client.HTTPException, ValueError) as e:
            if isinstance(e, SourceError):
                raise
            raise explain(url, e) from e

    def download(self, url: str, part: Path, meter: FetchMeter) -> None:
        """Fetch `url` into `part`, going on after what `part` already holds; a broken transfer is taken up again."""
        failures = slow = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                if self._transfer(url, part, before, meter):
                    return
                error: Exception = ConnectionError("the connection ended early")
            except (OSError, http.client.HTTPException, ValueError) as e:
                if not _is_network(e):
                    raise
                if isinstance(e, urllib.error.HTTPError):
                    e.close()
                    if e.code == 416:
                        # What `part` holds is not the start of this file; the first byte is asked for next.
                        part.unlink(missing_ok=True)
                if not _may_pass(e):
                    raise explain(url, e) from e
                error = e
            # As long as bytes keep coming it is worth going on; only a standstill counts, and a trickle.
            gained = (part.stat().st_size if part.exists() else 0) - before
            failures = 0 if gained > 0 else failures + 1
            slow += gained < _PACE_BYTES
            if failures >= _TRIES or slow >= _MAX_SLOW:
                raise explain(url, error) from error
            time.sleep(min(_WAIT_SECONDS * 2**failures, 4.0))

    def _transfer(self, url: str, part: Path, have: int, meter: FetchMeter) -> bool:
        """One request; True when `part` is complete now."""
        with self.open(url, {"Range": f"bytes={have}-"} if have else {}) as answer:
            if have and (answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")):
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length[:20]) if length and length.isdecimal() else None
            limit = _MAX_UNSIZED if total is None else _MAX_FILE
            if total is not None and total > limit:
                raise _too_large(url, limit)
            meter.expect(total)
            if total is not None:
                need_space(part.parent, total - have)
            with part.open("r+b" if have else "wb") as out:
                out.seek(have)
                out.truncate()
                meter.reached(have)
                pace = _Pace()
                while chunk := answer.read1(CHUNK):
                    have += len(chunk)
                    if have > limit:
                        raise _too_large(url, limit)
                    out.write(chunk)
                    meter.reached(have)
                    pace.step(len(chunk))
        return total is None or have == total


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows an answer to another place on the web, and never from an encrypted one to one that is not."""

    max_redirections = 5

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        try:
            return super().http_error_302(req, fp, code, msg, headers)
        except ValueError:  # an address that is none
            fp.close()
            raise

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        fp.close()  # or its body would be read to the end, however long
        new, old = urllib.parse.urlsplit(newurl).scheme, urllib.parse.urlsplit(req.full_url).scheme
        if new not in ("http", "https") or (old == "https" and new != "https"):
            raise urllib.error.HTTPError(req.full_url, code, f"{msg} (to a {new[:20]!r} address)", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Pace:
    """Counts bytes against the clock: a timeout of the socket counts only the wait for the next one."""

    def __init__(self) -> None:
        self._since, self._bytes = time.monotonic(), 0

    def step(self, nbytes: int) -> None:
        self._bytes += nbytes
        now = time.monotonic()
        if now - self._since > _PACE_SECONDS:
            if self._bytes < _PACE_BYTES:
                raise TimeoutError(f"{self._bytes} bytes in {now - self._since:.0f} s")
            self._since, self._bytes = now, 0


def _within(seconds: float, work: Callable[[], Any]) -> Any:
    """What a call gives, which a thread of its own waits for: the head of an answer can drip for ever."""
    came: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
    given_up = threading.Lock()  # taken by the one of the two that is first

    def call() -> None:
        answer, error = None, None
        try:
            answer = work()
        except BaseException as e:
            error = e
        if given_up.acquire(blocking=False):
            came.put((answer, error))
            return
        unwanted: Any = error if answer is None else answer
        if hasattr(unwanted, "close"):
            unwanted.close()

    threading.Thread(target=call, name="pumice-http", daemon=True).start()
    try:
        answer, error = came.get(timeout=seconds)
    except Empty:
        if given_up.acquire(blocking=False):
            raise TimeoutError(f"no answer within {seconds:g} s") from None
        answer, error = came.get()
    if error is not None:
        raise error
    return answer


def _small(url: str, answer: Any) -> bytes:
    """The whole body of a page, bounded in size and time."""
    end = time.monotonic() + _PAGE_SECONDS
    body = bytearray()
    while chunk := answer.read1(CHUNK):
        body += chunk
        if len(body) > _MAX_PAGE:
            raise _too_large(url, _MAX_PAGE)
        if time.monotonic() > end:
            raise TimeoutError(f"the page was not there after {_PAGE_SECONDS:g} s")
    if answer.length:  # what `read` would have noticed
        raise http.client.IncompleteRead(bytes(body[:0]), answer.length)
    return bytes(body)


def _too_large(url: str, limit: int) -> TooLarge:
    host = urllib.parse.urlsplit(url).hostname or url
    return TooLarge(
        f"the answer of {host} is larger than {size_text(limit)}",
        hint="check the address; this is no file that is asked for",
        limit=limit,
    )


def copy_local(path: Path, target: Path, meter: FetchMeter) -> None:
    """The same for a file that is on this machine already."""
    size = path.stat().st_size
    meter.expect(size)
    need_space(target.parent, size)
    shutil.copyfile(path, target)
    meter.finish()


def _is_network(error: Exception) -> bool:
    """Whether the far side failed, and not this machine's disk."""
    kinds = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError, ValueError)
    return isinstance(error, kinds) or (isinstance(error, OSError) and error.errno in _UNREACHABLE)


def _may_pass(error: Exception) -> bool:
    """Whether the same request could succeed a moment later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in _RETRY_STATUS
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return not isinstance(reason, ssl.SSLCertVerificationError | ValueError | UnicodeError)


def explain(url: str, error: Exception) -> SourceError:
    """An error of urllib as an error about the model.

    >>> explain("https://example.org/x", urllib.error.HTTPError("", 404, "Not Found", {}, None)).code
    'not-found'
    """
    try:
        host = urllib.parse.urlsplit(url).hostname or url
    except ValueError:
        host = url
    host = plain(host)
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        code = error.code
        fields: dict[str, Any] = {"host": host, "status": code}
        if code in (404, 410):
            return NotFound(f"{host} does not have {plain(urllib.parse.urlsplit(url).path)}", **fields)
        if code in (401, 403, 407):
            return NoAccess(f"{host} refuses access (status {code})", hint="log in, or check the credentials", **fields)
        return NoNetwork(f"{host} answers with status {code}", hint="try again later; what has arrived is kept", **fields)
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return NoNetwork(
        f"cannot reach {host}: {plain(str(reason) or type(reason).__name__)}",
        hint="check the network and proxy settings, then run the same command again: what has arrived is kept",
        host=host,
    )
