"""Downloads that go on where they stopped: ranges, retries, and errors that tell network, server and disk apart."""

from __future__ import annotations

import errno
import http.client
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pumice.sources.errors import NoAccess, NoNetwork, NotFound, SourceError
from pumice.sources.files import CHUNK, need_space
from pumice.sources.progress import Meter

_AGENT = "pumice"
_TRIES = 5
_RETRY_STATUS = {408, 416, 425, 429, 500, 502, 503, 504}
_UNREACHABLE = {errno.ENETDOWN, errno.ENETUNREACH, errno.ENETRESET, errno.EHOSTUNREACH}
# No index page comes near this; a larger answer is not one.
_MAX_PAGE = 64 << 20


@dataclass(frozen=True)
class Http:
    """How to talk to servers: a certificate file and a proxy where pip is told to use one, and a timeout."""

    cert: str = ""
    proxy: str = ""
    timeout: float = 20.0

    def open(self, url: str, headers: dict[str, str]) -> Any:
        """Start a GET; the response is a context manager."""
        handlers: list[Any] = [urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=self.cert or None))]
        if self.proxy:
            handlers.append(urllib.request.ProxyHandler({"http": self.proxy, "https": self.proxy}))
        opener = urllib.request.build_opener(*handlers)
        request = urllib.request.Request(url, headers={"User-Agent": _AGENT, "Accept-Encoding": "identity", **headers})
        return opener.open(request, timeout=self.timeout)

    def page(self, url: str, accept: str) -> tuple[str, str, str]:
        """A small text: its final address, its content type, itself."""
        try:
            with self.open(url, {"Accept": accept}) as answer:
                text = answer.read(_MAX_PAGE).decode("utf-8", "replace")
                return answer.url, answer.headers.get_content_type(), text
        except (OSError, http.client.HTTPException, ValueError) as e:
            raise explain(url, e) from e

    def download(self, url: str, part: Path, meter: Meter) -> None:
        """Fetch `url` into `part`, going on after what `part` already holds; a broken transfer is taken up again."""
        failures = 0
        while True:
            before = part.stat().st_size if part.exists() else 0
            try:
                if self._transfer(url, part, before, meter):
                    return
                error: Exception = ConnectionError("the connection ended early")
            except (OSError, http.client.HTTPException) as e:
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
            # As long as bytes keep coming it is worth going on; only a standstill counts.
            failures = 0 if part.exists() and part.stat().st_size > before else failures + 1
            if failures >= _TRIES:
                raise explain(url, error) from error
            time.sleep(min(0.2 * 2**failures, 4.0))

    def _transfer(self, url: str, part: Path, have: int, meter: Meter) -> bool:
        """One request; True when `part` is complete now."""
        with self.open(url, {"Range": f"bytes={have}-"} if have else {}) as answer:
            if have and (answer.status != 206 or not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")):
                have = 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length and length.isdecimal() else None
            meter.expect(total)
            if total is not None:
                need_space(part.parent, total - have)
            with part.open("r+b" if have else "wb") as out:
                out.seek(have)
                out.truncate()
                meter.reached(have)
                while chunk := answer.read(CHUNK):
                    out.write(chunk)
                    have += len(chunk)
                    meter.reached(have)
        return total is None or have == total


def copy_local(path: Path, target: Path, meter: Meter) -> None:
    """The same for a file that is on this machine already."""
    size = path.stat().st_size
    meter.expect(size)
    need_space(target.parent, size)
    shutil.copyfile(path, target)
    meter.finish()


def _is_network(error: Exception) -> bool:
    """Whether the far side failed, and not this machine's disk."""
    kinds = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
    return isinstance(error, kinds) or (isinstance(error, OSError) and error.errno in _UNREACHABLE)


def _may_pass(error: Exception) -> bool:
    """Whether the same request could succeed a moment later."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in _RETRY_STATUS
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return not isinstance(reason, ssl.SSLCertVerificationError | ValueError)


def explain(url: str, error: Exception) -> SourceError:
    """What an error of urllib means to someone who wanted a model.

    >>> explain("https://example.org/x", urllib.error.HTTPError("", 404, "Not Found", {}, None)).code
    'not-found'
    """
    host = urllib.parse.urlsplit(url).hostname or url
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        code = error.code
        fields: dict[str, Any] = {"host": host, "status": code}
        if code in (404, 410):
            return NotFound(f"{host} does not have {urllib.parse.urlsplit(url).path}", **fields)
        if code in (401, 403, 407):
            return NoAccess(f"{host} refuses access (status {code})", hint="log in, or check the credentials", **fields)
        return NoNetwork(f"{host} answers with status {code}", hint="try again later; what has arrived is kept", **fields)
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    return NoNetwork(
        f"cannot reach {host}: {reason or type(reason).__name__}",
        hint="check the network and proxy settings, then run the same command again: what has arrived is kept",
        host=host,
    )
