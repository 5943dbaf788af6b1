"""Makes a little pack in memory, whole and valid, for tests to use or to damage: relu in WASM and in WGSL."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pumice.packs.archive import PackFiles, write_zip

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

# The descriptor has ten u32: input A at bytes 0 and 4 (offset, size), input B, the output at 16 and 20, scratch, params.
RELU_WAT = """
(module
  (memory (export "memory") 1 16)
  (func (export "kernel_init") (param i32 i32) (result i32) i32.const 0)
  (func (export "kernel_info") (param i32) (result i32) i32.const 0)
  (func (export "kernel_cleanup") (result i32) i32.const 0)
  (func (export "kernel_forward") (param $desc i32) (result i32) (local $from i32) (local $to i32) (local $end i32)
    (local.set $from (i32.load (local.get $desc)))
    (local.set $end (i32.add (local.get $from) (i32.load offset=4 (local.get $desc))))
    (local.set $to (i32.load offset=16 (local.get $desc)))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $from) (local.get $end)))
        (f32.store (local.get $to) (f32.max (f32.load (local.get $from)) (f32.const 0)))
        (local.set $from (i32.add (local.get $from) (i32.const 4)))
        (local.set $to (i32.add (local.get $to) (i32.const 4)))
        (br $next)))
    i32.const 0))
"""
RELU_WGSL = """struct Params { n: u32 }
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> result: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) wid: vec3u, @builtin(num_workgroups) nwg: vec3u, @builtin(local_invocation_index) lane: u32) {
  let i = (wid.x + wid.y * nwg.x) * 64u + lane;
  if (i < params.n) { result[i] = max(x[i], 0.0); }
}
"""

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("ziglang") is None, reason="compiling C needs ziglang: pip install 'pumice[packs-build]'"
)

Edit = Callable[[dict[str, Any]], object]


@functools.cache
def wasm(text: str) -> bytes:
    """The module of a WAT text."""
    from wasmtime import wat2wasm

    return bytes(wat2wasm(text))


def new_key() -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


def public_text(key: Ed25519PrivateKey) -> str:
    """The public key as manifests write it."""
    return "ed25519:" + key.public_key().public_bytes_raw().hex()


def sha256(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


@dataclass
class SmallPack:
    """A pack's files by name, with manifest and signature, and the key that signed it (None: unsigned)."""

    files: dict[str, bytes]
    key: Ed25519PrivateKey | None = field(default=None, repr=False)

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files["kernels.json"])
        return found

    @property
    def pack_files(self) -> PackFiles:
        others = {name: content for name, content in self.files.items() if not name.startswith("kernels.json")}
        return PackFiles(self.files["kernels.json"], self.files.get("kernels.json.sig"), others)

    def zip_bytes(self) -> bytes:
        return write_zip(self.files)

    def write_zip(self, path: Path) -> Path:
        path.write_bytes(self.zip_bytes())
        return path

    def write_folder(self, folder: Path) -> Path:
        for name, content in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return folder

    def with_manifest(self, manifest: bytes) -> SmallPack:
        """The same pack with these manifest bytes, signed again if it was signed."""
        signed = {} if self.key is None else {"kernels.json.sig": self.key.sign(manifest)}
        return SmallPack({**self.files, "kernels.json": manifest, **signed}, self.key)


def relu_kernel(path: str, content: bytes) -> dict[str, Any]:
    """The manifest's entry of the kernel in a file, WASM or WGSL by its suffix."""
    in_wasm = path.endswith(".wasm")
    spec = {"dtype": "f32", "shape": ["dims..."]}
    entry: dict[str, Any] = {
        "id": "relu_wasm" if in_wasm else "relu_wgsl",
        "name": "ReLU",
        "category": "activation",
        "path": path,
        "hash": sha256(content),
        "entry_point": "kernel_forward" if in_wasm else "main",
        "inputs": [{"name": "x", **spec}],
        "outputs": [{"name": "result", **spec}],
        "params": {} if in_wasm else {"n": {"type": "u32", "default": 0}},
        "resource_limits": {"max_memory_pages": 16, "max_epoch_ticks": 100},
        "pumice": {"target": "host" if in_wasm else "webgpu", "implements": "relu"},
    }
    if not in_wasm:
        entry["pumice"] |= {"params": {"n": "dims"}, "wgsl": {"workgroup": 64, "groups": "ceildiv(dims, 64)"}}
    return entry


def small_pack(
    *,
    name: str = "small",
    version: str = "1.0.0",
    edit: Edit | None = None,
    files: Mapping[str, bytes] | None = None,
    key: Ed25519PrivateKey | None = None,
    sign: bool = True,
) -> SmallPack:
    """A valid pack with relu in WASM and WGSL and a licence, signed with `key` or a fresh one.

    `files`: further files, or other bytes for those that it has; all are listed with their hashes. `edit`: changes the manifest
    before it is signed. The result of the same arguments with the same key has the same bytes.
    """
    key = key or new_key() if sign else None
    content = {"relu.wasm": wasm(RELU_WAT), "relu.wgsl": RELU_WGSL.encode(), "LICENSE": b"Public domain.\n", **(files or {})}
    kernels = [relu_kernel(path, content[path]) for path in ("relu.wasm", "relu.wgsl")]
    manifest: dict[str, Any] = {
        "$schema": "https://ruvllm.dev/schemas/kernel-pack-v1.json",
        "name": name,
        "version": version,
        "description": "ReLU, for tests.",
        "min_runtime_version": "0.1.0",
        "max_runtime_version": "1.0.0",
        "created_at": "2026-11-16T00:00:00Z",
        "author": {"name": "Tests", "email": "tests@example.org", "signing_key": public_text(key) if key else ""},
        "kernels": kernels,
        "pumice": {"files": {path: sha256(data) for path, data in content.items() if not path.startswith("relu.w")}},
    }
    if edit is not None:
        edit(manifest)
    return SmallPack(content, key).with_manifest(json.dumps(manifest, separators=(",", ":")).encode())
