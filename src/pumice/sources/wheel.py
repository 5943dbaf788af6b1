"""Fetches one wheel and proves its hash: by resumable plain download where that is possible, else through pip."""

from __future__ import annotations

import os
import secrets
import shutil
from pathlib import Path

from pumice.core.whole_file import sync
from pumice.sources import pip_client
from pumice.sources.errors import NoAccess, NoNetwork, NoSpace, NotFound, SourceError, TooLarge, WrongHash
from pumice.sources.files import file_sha256
from pumice.sources.http import Http, copy_local
from pumice.sources.index import Link, find_wheels
from pumice.sources.progress import FetchMeter
from pumice.sources.spec import PypiSpec


def fetch_wheel(spec: PypiSpec, folder: Path, pinned: str, meter: FetchMeter) -> tuple[Path, str]:
    """The wheel of a spec as a file below `folder`, and its sha256, which is `pinned` if that is given.

    What an earlier try left in `folder` is used when its hash fits.
    """
    whole = folder / f"{spec.package}-{spec.version}.whl"
    if whole.exists() and pinned and file_sha256(whole) == pinned:
        return whole, pinned
    pip = pip_client.settings()
    http = Http(cert=pip.cert, proxy=pip.proxy)
    links, problems = ([], []) if pip.needs_pip else find_wheels(spec.package, spec.version, pip, http)
    fitting = [link for link in links if not pinned or link.sha256 in ("", pinned)]
    if links and not fitting:
        raise _wrong(spec, links[0].sha256, pinned)
    if fitting:
        link = fitting[0]
        expected = pinned or link.sha256
        if whole.exists() and expected and file_sha256(whole) == expected:
            return whole, expected
        try:
            return whole, _take(spec, link, whole, expected, http, meter)
        except (NoSpace, TooLarge, WrongHash):
            raise
        except SourceError as e:
            # A transfer that had begun is worth resuming; one that could not begin may need what only pip knows.
            if any(p.stat().st_size for p in folder.glob("*.part")):
                raise
            problems.append(e)
    for problem in problems:
        if isinstance(problem, TooLarge):  # pip would read the same answer, without a bound
            raise problem
    return whole, _take_with_pip(spec, folder, whole, pinned, problems, meter)


def _take(spec: PypiSpec, link: Link, whole: Path, expected: str, http: Http, meter: FetchMeter) -> str:
    # Named by the hash, so that parts of different files never meet; without one there is nothing to trust a part by.
    part = whole.with_name(f"{expected or 'unpinned'}.part")
    if not expected:
        part.unlink(missing_ok=True)
    resumed = part.exists()
    local = link.local
    if local is not None:
        copy_local(local, part, meter)
    else:
        http.download(link.url, part, meter)
    meter.phase("check")
    got = file_sha256(part)
    if expected and got != expected:
        part.unlink()
        if resumed:
            return _take(spec, link, whole, expected, http, meter)
        raise _wrong(spec, got, expected)
    _keep(part, whole)
    return got


def _take_with_pip(spec: PypiSpec, folder: Path, whole: Path, pinned: str, problems: list[SourceError], meter: FetchMeter) -> str:
    asked = next((p for p in problems if isinstance(p, NoNetwork | NoAccess)), None)
    # Renamed first: a pip whose parent was killed must not go on writing into a folder that is in use again.
    for old in folder.glob("pip-*"):
        gone = folder / f"gone-{secrets.token_hex(4)}"
        os.rename(old, gone)
        shutil.rmtree(gone, ignore_errors=True)
    target = folder / f"pip-{secrets.token_hex(4)}"
    target.mkdir(mode=0o700)
    try:
        wheel = pip_client.download(spec.package, spec.version, target, meter, retries=0 if isinstance(asked, NoNetwork) else 2)
        meter.phase("check")
        got = file_sha256(wheel)
        if pinned and got != pinned:
            raise _wrong(spec, got, pinned)
        _keep(wheel, whole)
    except NotFound:
        # pip calls a package unknown, too, when it could not ask or got no answer.
        if asked is not None:
            raise asked from None
        raise
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return got


def _keep(part: Path, whole: Path) -> None:
    sync(part)
    os.replace(part, whole)


def _wrong(spec: PypiSpec, got: str, expected: str) -> WrongHash:
    return WrongHash(
        f"the wheel of {spec.package} {spec.version} has the sha256 {got}, expected is {expected}",
        hint="it was deleted; try again, and if it stays so, do not trust the package index that pip is configured for",
        got=got,
        expected=expected,
    )
