"""Trials: kernels from a file are compiled in a child process first, so that a compiler that crashes or hangs costs an error.

What the WGSL bounds of `pumice.plan.wgsl_check` let through may still be too much for a driver's compiler, which is native code
and cannot be stopped in a thread. The child opens the same adapter and compiles the same kernels; only if it ends well does this
process compile them. A plain compile error is left to this process, which reports it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.core.kept import keep, kept_folder, read_kept
from pumice.errors import ShaderError
from pumice.plan.plan import Kernel

if TYPE_CHECKING:
    from pumice.backends.gpu.adapter import Adapter

# How long a trial may take in all; starting a process and a device takes one or two seconds.
_SECONDS = 60.0
_MEMORY = 4 << 30
_LOOK_SECONDS = 0.02
# The child's exit code where it could not try.
_NO_TRIAL = 3
_SURVIVED = b"survived"


def try_kernels(kernels: Sequence[Kernel], adapter: Adapter, backend: str) -> None:
    """Raise a ShaderError if a compiler does not survive these kernels; `backend` is how a device is asked for."""
    if not kernels or not sys.executable or getattr(sys, "frozen", False):
        return  # a program that is no interpreter would start itself
    wanted = {"device": f"{backend}:{adapter.index}", "kernels": [asdict(k) for k in kernels]}
    before = _record(kernels, adapter, backend)
    if before is not None and read_kept(before) == _SURVIVED:
        return
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(json.dumps(wanted).encode())
        given.seek(0)
        with _child(given.fileno(), said.fileno()) as child:
            problem = _watch(child)
        if problem is None and child.returncode in (0, _NO_TRIAL):
            if before is not None and child.returncode == 0:
                keep(before, _SURVIVED)
            return
        said.seek(0)
        last = said.read(1 << 16).decode(errors="replace").strip().splitlines()[-1:] or [""]
    names = ", ".join(sorted({k.name for k in kernels})[:3])
    reason = problem or f"the process that tried it ended with {child.returncode}"
    raise ShaderError(
        f"the kernels of this plan ({names}) cannot be compiled: {reason}",
        hint="do not use plan files from people you do not trust; if you made this one, save it again from its graph",
        kernel=kernels[0].name,
        detail=last[0][:500],
    )


def _record(kernels: Sequence[Kernel], adapter: Adapter, backend: str) -> Path | None:
    """The file that records that these kernels passed a trial on this adapter and driver."""
    folder = kept_folder("trials")
    if folder is None:
        return None
    about = repr((backend, sorted(adapter.describe().items(), key=str), sorted({k.wgsl for k in kernels})))
    return folder / hashlib.sha256(about.encode()).hexdigest()[:32]


@contextlib.contextmanager
def _child(given: int, said: int) -> Iterator[subprocess.Popen[bytes]]:
    folders = os.pathsep.join(p for p in sys.path if p)
    env = {**os.environ, "PYTHONPATH": folders}
    # -P: nothing is imported from the working directory.
    command = [sys.executable, "-P", "-m", "pumice.backends.gpu.trial"]
    child = subprocess.Popen(command, stdin=given, stdout=said, stderr=said, env=env)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def _watch(child: subprocess.Popen[bytes]) -> str | None:
    """Wait for the child; what it exceeded, if it did."""
    end = time.monotonic() + _SECONDS
    while child.poll() is None:
        if time.monotonic() > end:
            return f"the compiler was not done after {_SECONDS:g} s"
        if _resident(child.pid) > _MEMORY:
            return f"the compiler took more than {_MEMORY >> 30} GiB"
        time.sleep(_LOOK_SECONDS)
    return None


def _resident(pid: int) -> int:
    """Bytes that a process has in memory; 0 where the system does not report it."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _main() -> int:
    wanted = json.load(sys.stdin)
    from pumice.backends.select import open_device

    rows: Any = [{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()} for row in wanted["kernels"]]
    kernels = [Kernel(**row) for row in rows]
    try:
        device: Any = open_device(wanted["device"])
        gpu = device.gpu
    except Exception:
        return _NO_TRIAL  # the bounds alone must do where a second process cannot have the device
    for kernel in kernels:
        with contextlib.suppress(Exception):
            gpu.pipelines.compile([kernel])
    return 0


if __name__ == "__main__":
    code = _main()
    sys.stdout.flush()
    os._exit(code)  # no clean-up: drivers have crashed in it
