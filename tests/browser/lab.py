"""The lab: a page with the runtime in it, built from web/src, that runs plans for Python and hands back arrays."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Browser, Page

import web_packages
from pumice.core import dtypes
from pumice.plan.plan import Plan
from pumice.web.server import WebServer

Array = np.ndarray[Any, Any]

SOURCES = Path(__file__).parent / "lab"
# The scripts of the pages, and of their workers.
ENTRIES = ("lab", "loading", "loading_worker")
# A call of the page takes so many bytes, as Playwright passes text, a second for each 8 MB; and so many jobs, as it may wait.
CALL_BYTES, CALL_JOBS = 4 << 20, 16
# A call may compile dozens of kernels on a busy machine.
PATIENCE_S = 600
_CALL = """async ([name, given, seconds]) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`lab.${name} says nothing for ${seconds} s`)), seconds * 1000);
  });
  return Promise.race([window.lab[name](...given), late]).finally(() => clearTimeout(timer));
}"""
BUILDS = web_packages.WEB.parent / ".pytest_cache" / "lab"


def built() -> Path:
    """The folder of the lab page, made from web/src; built once for each state of the sources, by one process."""
    key = hashlib.sha256()
    for folder in (SOURCES, web_packages.WEB / "src"):
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            key.update(f"{path.relative_to(folder.parent)} {path.stat().st_size}\n".encode() + path.read_bytes())
    key.update((web_packages.WEB / "package-lock.json").read_bytes())
    folder = BUILDS / key.hexdigest()[:16]
    esbuild = web_packages.command("esbuild")
    with web_packages.alone("lab"):
        if not folder.exists():
            BUILDS.mkdir(parents=True, exist_ok=True)
            for old in sorted(BUILDS.iterdir(), key=os.path.getmtime)[:-4]:
                shutil.rmtree(old, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=BUILDS) as scratch:
                made = Path(scratch) / "made"
                shutil.copytree(SOURCES, made)
                entries = [str(SOURCES / f"{name}.ts") for name in ENTRIES]
                build = [*esbuild, *entries, "--bundle", "--format=esm", "--target=es2022", "--sourcemap=inline"]
                # The packages are found from web/, wherever a source stands.
                nodes = {**os.environ, "NODE_PATH": str(web_packages.modules())}
                done = subprocess.run([*build, f"--outdir={made}"], capture_output=True, text=True, env=nodes)
                assert done.returncode == 0, f"the lab does not build:\n{done.stderr}"
                made.rename(folder)
    return folder


class LabError(Exception):
    """What stopped a job in the page: the runtime's error by its name, code, message and hint."""

    def __init__(self, name: str, code: str, message: str, hint: str) -> None:
        super().__init__(f"{name} ({code}): {message}" + (f"; hint: {hint}" if hint else ""))
        self.name, self.code, self.message, self.hint = name, code, message, hint


@dataclass(frozen=True)
class Job:
    """A plan with its params, and the inputs of its runs, which follow each other on one executable.

    `plan` may be the bytes of a file. Arenas are filled with NaN first; `arenas` asks for what the runs leave in them.
    """

    plan: Plan | bytes
    runs: Sequence[Mapping[str, Array]]
    params: Mapping[str, Array] = field(default_factory=dict)
    arenas: bool = False

    def sent(self) -> dict[str, Any]:
        return {
            "plan": _text(self.plan if isinstance(self.plan, bytes) else self.plan.to_bytes()),
            "params": {name: _text(np.ascontiguousarray(a).tobytes()) for name, a in self.params.items()},
            "runs": [{name: _sent(a) for name, a in inputs.items()} for inputs in self.runs],
            "arenas": self.arenas,
        }


@dataclass(frozen=True)
class Done:
    """What a job gave: the outputs of each run by name, and the bytes of states, params and arenas after the last."""

    outputs: list[dict[str, Array]]
    states: dict[str, bytes]
    params: dict[str, bytes]
    arenas: dict[int, bytes]

    @staticmethod
    def of(found: dict[str, Any]) -> Done:
        states, params, arenas = (
            {name: base64.b64decode(text) for name, text in found[kind].items()} for kind in ("states", "params", "arenas")
        )
        outputs = [{name: _received(a) for name, a in run.items()} for run in found["outputs"]]
        return Done(outputs, states, params, {int(k): data for k, data in arenas.items()})


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _sent(a: Array) -> dict[str, Any]:
    return {"dtype": dtypes.dtype(a.dtype).name, "shape": list(a.shape), "data": _text(np.ascontiguousarray(a).tobytes())}


def _received(found: dict[str, Any]) -> Array:
    return np.frombuffer(base64.b64decode(found["data"]), dtypes.dtype(found["dtype"]).np).reshape(found["shape"])


def _calls(sent: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The jobs in lists of at most CALL_JOBS and CALL_BYTES, or of one job."""
    call: list[dict[str, Any]] = []
    size = 0
    for job in sent:
        arrays = [a["data"] for run in job["runs"] for a in run.values()]
        mine = sum(map(len, (job["plan"], *job["params"].values(), *arrays)))
        if len(call) == CALL_JOBS or (call and size + mine > CALL_BYTES):
            yield call
            call, size = [], 0
        call.append(job)
        size += mine
    if call:
        yield call


class Lab:
    """The lab page of a browser. It is opened when first needed, and again if a test has lost it."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._server: WebServer | None = None
        self._page: Page | None = None
        self.complaints: list[str] = []

    def open(self) -> None:
        if self._server is None:
            self._server = WebServer(built(), port=0, page=False)
        if self._page is None or self._page.is_closed():
            from browser.webgpu import PATIENCE_MS, watch

            context = self._browser.new_context()
            context.set_default_timeout(PATIENCE_MS)
            watch(context, self.complaints)
            self._page = context.new_page()
            self._page.on("crash", lambda page: page.close())
            self._page.goto(self._server.url + "lab.html")
            self._page.wait_for_function("window.lab !== undefined")

    def server_close(self) -> None:
        if self._server is not None:
            self._server.close()

    def call(self, function: str, *given: Any) -> Any:
        """What a function of `window.lab` gives for these arguments; a page that says nothing for PATIENCE_S fails the test."""
        assert self._page is not None
        return self._page.evaluate(_CALL, [function, list(given), PATIENCE_S])

    def run(self, jobs: Sequence[Job]) -> list[Done | LabError]:
        """What each job gave, or why it failed; kernels of one compile while others run."""
        found = [result for call in _calls([job.sent() for job in jobs]) for result in self.call("runPlans", call)]
        return [LabError(**r["error"]) if "error" in r else Done.of(r) for r in found]

    def run_one(self, job: Job) -> Done:
        """What one job gave; raises what stopped it."""
        (found,) = self.run([job])
        if isinstance(found, LabError):
            raise found
        return found
