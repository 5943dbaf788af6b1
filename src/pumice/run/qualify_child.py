"""WGSL kernels of packs are compared with the reference in a process of their own: an endless one is stopped with it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from pumice.backends.base import Device
from pumice.ir.pack_kernels import PackKernel

if TYPE_CHECKING:
    from pumice.packs.trust import VerifiedPack

# What a process may take to start and to open the device, and a kernel to be compiled and compared beyond its own time limit.
_START_SECONDS = 60.0
_CASES_SECONDS = 60.0
# A verdict that may be the machine's fault, and is not remembered.
UNDECIDED = "its process ended before it could be compared with the reference"


def qualify_apart(pack: VerifiedPack, kernels: Sequence[PackKernel], device: Device) -> dict[str, str]:
    """By kernel id what is wrong with it on a device, as `qualify` says; a kernel that does not end is wrong too."""
    found: dict[str, str] = {}
    left = list(kernels)
    while left:
        found |= _one_process(pack, left, device)
        if left[0].id not in found:  # it took the process with it before it could be judged
            found[left[0].id] = UNDECIDED
        left = [k for k in left if k.id not in found]
    return found


def _one_process(pack: VerifiedPack, kernels: Sequence[PackKernel], device: Device) -> dict[str, str]:
    """The verdicts that a process gave before it ended or had to be stopped."""
    from pumice.packs.archive import write_zip
    from pumice.packs.paths import MANIFEST

    content = write_zip({MANIFEST: pack.manifest_bytes, **pack.files})
    head = {
        "device": f"webgpu:{device.describe()['index']}",
        "digest": pack.digest,
        "kernels": [k.id for k in kernels],
        "size": len(content),
    }
    child = subprocess.Popen(
        [sys.executable, "-c", "from pumice.run.qualify_child import main; main()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert child.stdin is not None and child.stdout is not None
    verdicts: dict[str, str] = {}
    try:
        child.stdin.write(json.dumps(head).encode() + b"\n" + content)
        child.stdin.close()
        limit = _START_SECONDS
        for kernel in kernels:
            line = _read_line(child.stdout, limit + _CASES_SECONDS + kernel.time_limit_ms / 1e3)
            limit = 0.0
            if line is None:
                verdicts[kernel.id] = f"it did not end within its time limit of {kernel.time_limit_ms} ms"
                break
            if not line:
                break
            answer = json.loads(line)
            verdicts[answer["id"]] = answer["wrong"]
            if answer["last"]:
                break
    except (BrokenPipeError, ValueError):
        pass  # it is gone: what it said stands
    finally:
        child.kill()
        child.stdout.close()
        child.wait()
    return verdicts


def _read_line(stream: Any, seconds: float) -> bytes | None:
    """A line, b"" at the end, None if there was none in time."""
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(seconds)
    return found[0] if found else None


def main() -> None:
    """The other process: reads a pack from stdin, prints a line of JSON for each kernel and ends at once."""
    _answer(sys.stdin.buffer)
    sys.stdout.flush()
    os._exit(0)  # a driver whose kernel does not end would wait for it


def _answer(stream: BinaryIO) -> None:
    from pumice import config
    from pumice.backends.select import open_device
    from pumice.packs.archive import parse_zip
    from pumice.packs.kernels import pack_kernels
    from pumice.packs.trust import VerifiedPack, check_content
    from pumice.run.qualify import qualify

    head = json.loads(stream.readline())
    files = parse_zip(stream.read(head["size"]))
    if files.digest != head["digest"]:
        raise ValueError("the pack is not the one that was verified")
    manifest, content = check_content(files)
    kernels = {k.id: k for k in pack_kernels(VerifiedPack(manifest, content, files.digest, "", True))}
    device = open_device(head["device"])
    for kernel in _wanted(kernels, head["kernels"]):
        with config.override(timeout=max(1, math.ceil(kernel.time_limit_ms / 1e3))):
            wrong = qualify(kernel, device)
        print(json.dumps({"id": kernel.id, "wrong": wrong, "last": device.lost}), flush=True)
        if device.lost:
            return


def _wanted(kernels: dict[str, PackKernel], ids: Iterable[str]) -> Iterable[PackKernel]:
    return (kernels[i] for i in ids)
