"""Finds a wheel in package indexes (PEP 503 pages, PEP 691 JSON) and folders of wheels, as pip would."""

from __future__ import annotations

import html
import json
import re
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from pumice.sources.errors import SourceError
from pumice.sources.http import Http
from pumice.sources.pip_client import PipSettings

_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1"
_HASH = re.compile(r"sha256=([0-9a-f]{64})")
_WHEEL = re.compile(r"[A-Za-z0-9._+!-]+\.whl")
# An HTML parser takes time with the square of a page that is made for it. No tag of an index is as long as this.
_ANCHOR = re.compile(r"<a\s[^<>]{1,8192}", re.IGNORECASE)
_HREF = re.compile(r"""\bhref\s*=\s*("[^"]*"|'[^']*'|[^\s"'>]+)""", re.IGNORECASE)
_LOCAL = {"localhost", "127.0.0.1", "::1"}


@dataclass(frozen=True, slots=True)
class Link:
    """A wheel and where it is; `sha256` is what the index says of it, if anything."""

    url: str
    filename: str
    sha256: str

    @property
    def local(self) -> Path | None:
        """Its path, when it is on this machine."""
        parts = urllib.parse.urlsplit(self.url)
        return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None


def find_wheels(package: str, version: str, pip: PipSettings, http: Http) -> tuple[list[Link], list[SourceError]]:
    """Wheels for any platform in the places that need no credentials, best first; and what went wrong meanwhile.

    Nothing found is no proof: pip also knows wheels for this platform, logins, and more spellings of versions.
    """
    links: list[Link] = []
    problems: list[SourceError] = []
    pages = [(p, "") for p in pip.find_links] + [(i, package) for i in pip.indexes]
    for place, below in pages:
        try:
            links += _links(place, below, pip, http)
        except SourceError as e:
            problems.append(e)
    fitting = [link for link in links if is_wheel_of(link.filename, package, version)]
    # One on this machine is quickest, one with a known hash safest.
    fitting.sort(key=lambda link: (link.local is None, not link.sha256))
    return fitting, problems


def is_wheel_of(filename: str, package: str, version: str) -> bool:
    """Whether a file is a wheel of that version that runs anywhere.

    >>> is_wheel_of("Some_Model-1.0-py3-none-any.whl", "some-model", "1.0")
    True
    """
    parts = filename.removesuffix(".whl").split("-")
    if not _WHEEL.fullmatch(filename) or len(parts) not in (5, 6) or parts[-2:] != ["none", "any"]:
        return False
    return re.sub(r"[-_.]+", "-", parts[0]).lower() == package and parts[1].lower() == version.lower()


def _links(place: str, below: str, pip: PipSettings, http: Http) -> list[Link]:
    folder = _folder(place)
    if folder is not None:
        return _folder_links(folder / below if below else folder)
    url = place.rstrip("/") + f"/{below}/" if below else place
    if not _open_to_all(url, pip):
        return []
    final, kind, text = http.page(url, _ACCEPT)
    found = _json_links(text, final) if kind.endswith("json") else _html_links(text, final)
    return [link for link in found if link.url.startswith(("https:", "http:")) and _open_to_all(link.url, pip)]


def _folder(place: str) -> Path | None:
    parts = urllib.parse.urlsplit(place)
    if parts.scheme == "file":
        return Path(urllib.request.url2pathname(parts.path))
    # One letter is a drive of Windows.
    return None if len(parts.scheme) > 1 else Path(place).expanduser()


def _open_to_all(url: str, pip: PipSettings) -> bool:
    """Whether a plain request may be made: no password in the address, and encrypted unless pip trusts the host."""
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        return False
    if parts.scheme == "https":
        return True
    trusted = {parts.hostname, parts.netloc} & pip.trusted_hosts
    return parts.scheme == "http" and bool(parts.hostname in _LOCAL or trusted)


def _folder_links(folder: Path) -> list[Link]:
    page = folder if folder.is_file() else folder / "index.html"
    try:
        if page.is_file():
            return [link for link in _html_links(page.read_text("utf-8", "replace"), page.as_uri()) if link.local]
        return [Link(p.resolve().as_uri(), p.name, "") for p in sorted(folder.glob("*.whl"))]
    except OSError:
        return []


def _json_links(text: str, base: str) -> list[Link]:
    try:
        return [
            Link(urllib.parse.urljoin(base, f["url"]), str(f["filename"]), _hash((f.get("hashes") or {}).get("sha256")))
            for f in json.loads(text)["files"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SourceError(f"{base} is no page of a package index", hint="check the index that pip is configured for") from None


def _hash(value: object) -> str:
    """A sha256 as an index gives it; what is none counts as not given."""
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else ""


def _html_links(text: str, base: str) -> list[Link]:
    found = []
    for anchor in _ANCHOR.finditer(text):
        href = _HREF.search(anchor[0])
        try:
            parts = urllib.parse.urlsplit(urllib.parse.urljoin(base, html.unescape(href[1].strip("\"'")) if href else ""))
        except ValueError:
            continue
        match = _HASH.search(parts.fragment)
        name = urllib.parse.unquote(parts.path.rsplit("/", 1)[-1])
        found.append(Link(parts._replace(fragment="").geturl(), name, match[1] if match else ""))
    return found
