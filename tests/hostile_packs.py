"""Packs that must be refused, each with the error that says why. A case writes its pack below a folder and gives its path."""

from __future__ import annotations

import io
import json
import os
import socket
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pack_making import SmallPack, new_key, sha256, small_pack
from pumice.packs import errors as e
from zip_making import Entry, changed, entries, raw_zip

KEY = new_key()
PACK = small_pack(key=KEY)
FILES = PACK.files

Make = Callable[[Path], Path]
Edit = Callable[[dict[str, Any]], object]
CASES: dict[str, tuple[Make, type[e.PackError]]] = {}


def case(label: str, error: type[e.PackError], make: Make) -> None:
    assert label not in CASES, label
    CASES[label] = make, error


def zipped(label: str, data: bytes | Callable[[], bytes], error: type[e.PackError] = e.UnsafePack) -> None:
    """A file with these bytes."""

    def make(folder: Path) -> Path:
        (folder / "pack.zip").write_bytes(data if isinstance(data, bytes) else data())
        return folder / "pack.zip"

    case(f"zip: {label}", error, make)


def in_folder(label: str, damage: Callable[[Path], object], error: type[e.PackError] = e.UnsafePack) -> None:
    """The whole pack in a folder, to which something is then done."""

    def make(folder: Path) -> Path:
        PACK.write_folder(folder / "pack")
        damage(folder / "pack")
        return folder / "pack"

    case(f"folder: {label}", error, make)


def manifest(label: str, text: bytes | Callable[[], bytes], error: type[e.PackError] = e.InvalidManifest) -> None:
    """A manifest of these bytes, which the trusted key has signed."""

    def make(folder: Path) -> Path:
        return PACK.with_manifest(text if isinstance(text, bytes) else text()).write_folder(folder / "pack")

    case(f"manifest: {label}", error, make)


def edited(label: str, edit: Edit, error: type[e.PackError] = e.InvalidManifest) -> None:
    """The manifest with a change, which the trusted key has signed."""

    def text() -> bytes:
        found = PACK.manifest
        edit(found)
        return json.dumps(found).encode()

    manifest(label, text, error)


def with_files(label: str, files: Mapping[str, bytes | None], error: type[e.PackError]) -> None:
    """Other files, or none, under these names; the manifest stays."""
    left = {name: content for name, content in {**FILES, **files}.items() if content is not None}
    case(f"files: {label}", error, lambda folder: SmallPack(left).write_folder(folder / "pack"))


# --- zips ---

for label, name in {
    "slip": b"../evil",
    "slip further down": b"a/../../evil",
    "absolute name": b"/etc/passwd",
    "backslash": b"..\\evil",
    "drive letter": b"C:evil",
    "NUL in a name": b"evil\0.wasm",
    "terminal escapes in a name": b"\x1b[2J",
    "hidden file": b".bashrc",
    "name of a device": b"NUL.wasm",
    "name that ends with a dot": b"evil.",
    "directory entry": b"evil/",
    "empty name": b"",
    "name that is not UTF-8": b"\xff\xfe",
    "name of 300 characters": b"e" * 300,
    "name 20 folders deep": b"d/" * 20 + b"evil",
    "names equal but for case": b"license",
    "names equal but for normalisation": "LICENSÉ".encode(),
    "file and folder of one name": b"LICENSE/evil",
    "duplicate entry": b"LICENSE",
    "file that the manifest does not list": b"evil",
}.items():
    zipped(label, raw_zip(sorted([*entries(FILES), Entry(name, b"evil")], key=lambda entry: entry.name)))


def deflated(files: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as made:
        for name, content in files.items():
            made.writestr(name, content)
    return data.getvalue()


zipped("bomb by ratio", lambda: deflated({**FILES, "zeros": bytes(20 << 20)}))
zipped("bzip2", deflated(FILES, zipfile.ZIP_BZIP2))
zipped("bomb by count", lambda: raw_zip(Entry(b"%05d" % i) for i in range(5000)))
zipped("bomb of overlapping entries", raw_zip([Entry(b"%03d" % i, b"x" * 60_000) for i in range(500)], only_body_of=499))
zipped("entry of 4 GiB", raw_zip(changed(FILES, "LICENSE", both={"packed": 0xFFFFFFFF, "size": 0xFFFFFFFF})))
zipped("entry longer than the zip", raw_zip(changed(FILES, "LICENSE", both={"packed": 1 << 20, "size": 1 << 20})))
zipped("two sizes in one header", raw_zip(changed(FILES, "LICENSE", central={"packed": 3})))
zipped("headers that disagree on the size", raw_zip(changed(FILES, "LICENSE", local={"size": 3, "packed": 3})))
zipped("headers that disagree on the checksum", raw_zip(changed(FILES, "LICENSE", local={"crc": 0})))
zipped("wrong checksum", raw_zip(changed(FILES, "LICENSE", both={"crc": 0})))
zipped("offset outside", raw_zip(changed(FILES, "LICENSE", central={"offset": 0xFFFFFFF0})))
zipped("offset of another entry", raw_zip(changed(FILES, "LICENSE", central={"offset": 7})))
zipped("symbolic link", raw_zip(changed(FILES, "LICENSE", central={"mode": 0o120777})))
zipped("device", raw_zip(changed(FILES, "LICENSE", central={"mode": 0o020666})))
zipped("executable", raw_zip(changed(FILES, "LICENSE", central={"mode": 0o100755})))
zipped("encrypted", raw_zip(changed(FILES, "LICENSE", both={"flags": 1})))
zipped("data descriptor", raw_zip(changed(FILES, "LICENSE", both={"flags": 8})))
zipped("unknown method", raw_zip(changed(FILES, "LICENSE", both={"method": 99})))
zipped("another date", raw_zip(changed(FILES, "LICENSE", both={"date": 34})))
zipped("extra field", raw_zip(changed(FILES, "LICENSE", extra=b"\x75\x70\x04\x00evil")))
zipped("comment of an entry", raw_zip(changed(FILES, "LICENSE", comment=b"evil")))
zipped("comment of the zip", raw_zip(entries(FILES), end_comment=b"evil"))
zipped("data before", raw_zip(entries(FILES), before=b"#!/bin/sh\n"))
zipped("data between", raw_zip(entries(FILES), between=b"evil"))
zipped("data after", raw_zip(entries(FILES), after=b"evil"))
zipped("two zips", raw_zip(entries(FILES)) + raw_zip(entries(FILES)))
zipped("unsorted", raw_zip(reversed(entries(FILES))))
zipped("several disks", raw_zip(entries(FILES), end={"disk": 1}))
zipped("fewer entries than it has", raw_zip(entries(FILES), end={"here": 1, "count": 1}))
zipped("more entries than it has", raw_zip(entries(FILES), end={"here": 99, "count": 99}))
zipped("directory elsewhere", raw_zip(entries(FILES), end={"start": 0}))
zipped("cut off", PACK.zip_bytes()[:-30])
zipped("nothing", b"")
zipped("text", b"This is no zip, but it is long enough to be one.")
zipped("no manifest", raw_zip(entries({"LICENSE": b""})), e.InvalidManifest)
zipped("no entries", raw_zip([]), e.InvalidManifest)
zipped("manifest of 2 MiB", lambda: raw_zip(entries({**FILES, "kernels.json": b" " * (2 << 20)})))
zipped("signature of 1 MiB", lambda: raw_zip(entries({**FILES, "kernels.json.sig": bytes(1 << 20)})))


# --- folders ---


def link(path: Path, target: str) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def deep(folder: Path) -> None:
    inner = folder.joinpath(*["d"] * 12)
    inner.mkdir(parents=True)
    (inner / "evil").write_bytes(b"")


def listen(folder: Path) -> None:
    here = os.getcwd()
    os.chdir(folder)  # names of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("evil")
    finally:
        os.chdir(here)


in_folder("link to a file outside", lambda folder: link(folder / "LICENSE", "/etc/passwd"))
in_folder("link to a file inside", lambda folder: link(folder / "copy", "LICENSE"))
in_folder("link to a folder", lambda folder: link(folder / "more", "/etc"))
in_folder("link to itself", lambda folder: link(folder / "more", "more"))
in_folder("link to nothing", lambda folder: link(folder / "LICENSE", "nothing"))
in_folder("link for the manifest", lambda folder: link(folder / "kernels.json", "/dev/zero"))
in_folder("FIFO", lambda folder: os.mkfifo(folder / "evil"))
in_folder("FIFO for the manifest", lambda folder: ((folder / "kernels.json").unlink(), os.mkfifo(folder / "kernels.json")))
in_folder("socket", listen)
in_folder("hidden file", lambda folder: (folder / ".evil").write_bytes(b""))
in_folder("name with a backslash", lambda folder: (folder / "a\\b").write_bytes(b""))
in_folder("name that is not UTF-8", lambda folder: (Path(os.fsdecode(bytes(folder) + b"/\xff"))).write_bytes(b""))
in_folder("names equal but for case", lambda folder: (folder / "license").write_bytes(b""))
in_folder("12 folders deep", deep)
in_folder("empty folder", lambda folder: (folder / "empty").mkdir())
in_folder("1,000 files", lambda folder: [(folder / f"f{i}").write_bytes(b"") for i in range(1000)])
in_folder("sparse file of 1 TiB", lambda folder: os.truncate(folder / "LICENSE", 1 << 40))
in_folder("manifest of 2 MiB", lambda folder: (folder / "kernels.json").write_bytes(b" " * (2 << 20)))
in_folder("manifest that is a folder", lambda folder: ((folder / "kernels.json").unlink(), (folder / "kernels.json").mkdir()))
in_folder("no manifest", lambda folder: (folder / "kernels.json").unlink(), e.InvalidManifest)
case("folder: not there", e.KernelNotFound, lambda folder: folder / "nothing")
case("folder: device for the pack", e.UnsafePack, lambda folder: Path("/dev/zero"))

# --- files ---

with_files("missing", {"relu.wasm": None}, e.KernelNotFound)
with_files("not listed", {"evil": b""}, e.UnsafePack)
with_files("wrong hash of a module", {"relu.wasm": FILES["relu.wasm"] + b"\0"}, e.HashMismatch)
with_files("wrong hash of a shader", {"relu.wgsl": FILES["relu.wgsl"].replace(b"64u", b"65u")}, e.HashMismatch)
with_files("wrong hash of a licence", {"LICENSE": b""}, e.HashMismatch)

# --- signatures ---

with_files("no signature", {"kernels.json.sig": None}, e.InvalidSignature)
with_files("empty signature", {"kernels.json.sig": b""}, e.InvalidSignature)
with_files("signature in hex", {"kernels.json.sig": FILES["kernels.json.sig"].hex().encode()}, e.InvalidSignature)
with_files("signature of zeros", {"kernels.json.sig": bytes(64)}, e.NoTrustedKey)
with_files("signature of ones", {"kernels.json.sig": b"\xff" * 64}, e.InvalidSignature)
with_files("signature of another manifest", {"kernels.json": FILES["kernels.json"] + b" "}, e.NoTrustedKey)
with_files("signature of another key", {"kernels.json.sig": new_key().sign(FILES["kernels.json"])}, e.NoTrustedKey)
case("files: signed by a stranger", e.NoTrustedKey, lambda folder: small_pack().write_folder(folder / "pack"))

# --- texts of manifests ---

GOOD = FILES["kernels.json"]
manifest("empty", b"")
manifest("not JSON", b"\x00asm")
manifest("a list", b"[]")
manifest("byte order mark", b"\xef\xbb\xbf" + GOOD)
manifest("UTF-16", GOOD.decode().encode("utf-16"))
manifest("bad UTF-8", GOOD.replace(b"ReLU, for tests.", b"\xc3\x28"))
manifest("half a surrogate pair", GOOD.replace(b"ReLU, for tests.", b"\\ud800"))
manifest("text after the object", GOOD + b"{}")
manifest("comment", b"/* */" + GOOD)
manifest("duplicate key", GOOD.replace(b'"version"', b'"name":"evil","version"', 1))
manifest("duplicate key by an escape", GOOD.replace(b'"version"', b'"n\\u0061me":"evil","version"', 1))
manifest("duplicate key in a kernel", GOOD.replace(b'"entry_point"', b'"path":"evil.wasm","entry_point"', 1))
manifest("deep JSON", b"[" * 500_000)
manifest("deep JSON in an unknown key", GOOD.replace(b'"version"', b'"x":' + b'{"x":' * 17 + b"0" + b"}" * 17 + b',"version"', 1))
manifest("many values", GOOD.replace(b'"version"', b'"x":[' + b"0," * 60_000 + b'0],"version"', 1))
manifest("number of 500,000 digits", GOOD.replace(b'"version"', b'"x":' + b"9" * 500_000 + b',"version"', 1))
for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"1" * 30):
    manifest(f"limit of {word.decode()}", GOOD.replace(b'"max_memory_pages":16', b'"max_memory_pages":' + word))
    manifest(f"default of {word.decode()}", GOOD.replace(b'"default":0', b'"default":' + word))


# --- fields of manifests ---


def at(found: Any, path: str) -> tuple[Any, str | int]:
    """The container and key of a path such as kernels.0.id."""
    *above, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in above:
        found = found[part]
    return found, last


def put(path: str, value: Any) -> Edit:
    def edit(found: dict[str, Any]) -> None:
        container, key = at(found, path)
        container[key] = value

    return edit


SPEC = {"name": "y", "dtype": "f32", "shape": ["dims..."]}
# Values that break the rule of one field; the published schema refuses them too.
ALONE: dict[str, list[Any]] = {
    "$schema": ["https://example.org/kernel-pack-v2.json"],
    "name": ["", "Small", "../small", "s" * 65, "small\n"],
    "version": ["", "one", "1.0\n", "1" * 70],
    "description": ["d" * 2001],
    "min_runtime_version": [">=1"],
    "created_at": ["yesterday", "2026-11-16T00:00:00", "16.11.2026"],
    "author.name": [""],
    "author.email": ["nobody", "a b@example.org"],
    "author.signing_key": ["ed25519:", "ed25519:00", "rsa:" + "0" * 64],
    "kernels": [[]],
    "kernels.0.id": ["", "a/b", "i" * 65],
    "kernels.0.category": ["evil"],
    "kernels.0.path": ["/relu.wasm", "../relu.wasm", "a\\b.wasm"],
    "kernels.0.hash": ["SHA256:" + "0" * 64, "sha256:" + "0" * 63, "sha256:" + "g" * 64, "0" * 64, "md5:" + "0" * 32],
    "kernels.0.entry_point": ["", "a b", "main\0"],
    "kernels.0.inputs": [[{**SPEC, "name": f"x{i}"} for i in range(17)]],
    "kernels.0.inputs.0.dtype": ["f31", "F32"],
    "kernels.0.inputs.0.shape": [["a b"], [0], [-1], [2**31], [True], [1.5], [1] * 9],
    "kernels.0.outputs": [[]],
    "kernels.0.resource_limits": [{"max_memory_pages": 0}, {"max_memory_pages": -1}, {"max_memory_pages": 65_537},
                                  {"max_memory_pages": 2**32 + 16}, {"max_memory_pages": 16.5}, {"max_memory_pages": True},
                                  {"max_epoch_ticks": 0}, {"max_epoch_ticks": 2**63}, {"max_table_elements": -1},
                                  {"max_stack_size": -1}, {"max_globals": -1}],
    "kernels.0.platforms": [{"wasmtime": {}}, {"": {"min_version": "1", "features": [], "aot_available": False}}],
    "kernels.0.benchmarks": [{"a": {"latency_us": -1, "throughput_gflops": 1}}, {"a": {"latency_us": 1}}],
    "kernels.0.params": [{"1x": {"type": "u32", "default": 0}}, {"x": {"type": "u32"}}, {"x": {"type": "u31", "default": 0}}],
    "kernels.0.pumice": [{"targets": "host"}, {"target": "cuda"}, {"when": ["dims" + " + 1" * 100]}],
    "kernels.1.pumice.wgsl": [{}, {"workgroup": 0, "groups": "1"}, {"workgroup": 64, "groups": "1", "time_limit_ms": 10**9},
                              {"workgroup": 64, "groups": ""}, {"workgroup": 64, "groups": "1", "shared_bytes": 2**40}],
    "pumice": [{"file": {}}, {"files": {"../evil": sha256(b"")}}, {"files": {"LICENSE": "none"}}, {"next_key": "evil"}],
}  # fmt: skip
# Values that are wrong beside others, or in a way that no schema can say.
BEYOND_SCHEMA: dict[str, list[Any]] = {
    "description": ["\x1b[2J"],
    "created_at": ["2026-13-01", "2026-02-30T00:00:00Z", "2026-11-16T25:00:00Z"],
    "author.name": ["\0", "A\n  signature  verified: SHA256:evil"],
    "author.signing_key": ["ed25519:" + "00" * 32, "ed25519:" + "ff" * 32],
    "kernels.0.id": ["relu_wgsl"],
    "kernels.0.path": ["kernels.json", "Kernels.JSON.sig", "relu.wgsl", "relu.exe", "nul.wasm"],
    "kernels.1.entry_point": ["kernel_forward"],
    "kernels.0.inputs": [[SPEC] * 2, [{**SPEC, "name": "result"}]],
    "kernels.0.inputs.0.shape": [["a...", "b..."], ["dims", "dims..."], ["min"], [1.0]],
    "kernels.0.params": [{"x": {"type": "u32", "default": -1}}, {"x": {"type": "u32", "default": 2**32}},
                         {"x": {"type": "u32", "default": 1.0}}, {"x": {"type": "u32", "default": True}},
                         {"x": {"type": "bool", "default": 1}}, {"x": {"type": "bool", "default": True, "max": True}},
                         {"x": {"type": "f32", "default": 1e39}}, {"x": {"type": "f32", "default": 2, "max": 1}},
                         {"x": {"type": "f32", "default": 0, "min": 1}}, {"x": {"type": "i32", "default": 0, "max": 0.5}},
                         {"x": {"type": "i32", "default": 0, "min": 1, "max": -1}}],
    "kernels.1.params": [{"n": {"type": "u64", "default": 0}}],
    "kernels.0.resource_limits": [{"max_memory_pages": 16.0}],
    "kernels.0.pumice": [{"target": "webgpu"}, {"when": ["dims %"]}, {"when": ["__import__('os').system('true')"]},
                         {"when": ["evil > 1"]}, {"when": ["caps.evil"]}, {"when": ["not " * 30 + "True"]},
                         {"when": ["9**9**9 > 1"]},
                         {"when": ["dims == '\\d'"]}, {"when": ["1or dims"]}, {"when": ["dims[0]"]}, {"when": ["lambda: 1"]},
                         {"params": {"x": "1"}}, {"wgsl": {"workgroup": 64, "groups": "1"}}],
    "kernels.1.pumice.wgsl": [None],
    "fallbacks": [{"relu_wasm": "relu_wasm"}, {"relu_wasm": "nothing"}, {"nothing": "relu_wasm"}, {"relu_wasm": "relu_wgsl"}],
    "pumice": [{"files": {"relu.wasm": sha256(b"")}}, {"files": {"LICENSE": sha256(b""), "license": sha256(b"")}},
               {"files": {"LICENSE": sha256(b""), "LICENSE/evil": sha256(b"")}}],
}  # fmt: skip
for table in (ALONE, BEYOND_SCHEMA):
    for path, values in table.items():
        for value in values:
            shown = ascii(value)
            more = f"… ({len(CASES)})" if len(shown) > 60 else ""
            edited(f"{path} is {shown[:60]}{more}", put(path, value))


def cycle(found: dict[str, Any]) -> None:
    first = found["kernels"][0]
    found["kernels"] += [{**first, "id": name} for name in ("b", "c")]
    found["fallbacks"] = {"relu_wasm": "b", "b": "c", "c": "relu_wasm"}


def other_inputs(found: dict[str, Any]) -> None:
    first = found["kernels"][0]
    found["kernels"].append({**first, "id": "b", "inputs": [{"name": "x", "dtype": "f16", "shape": ["dims..."]}]})
    found["fallbacks"] = {"relu_wasm": "b"}


edited("fallbacks in a circle", cycle)
edited("fallback with other inputs", other_inputs)
edited("300 kernels", lambda m: m["kernels"].extend({**m["kernels"][0], "id": f"k{i}"} for i in range(300)))
edited("expired range", lambda m: m.update(min_runtime_version="0.0.1", max_runtime_version="0.0.9"), e.RuntimeTooNew)
edited("range of the future", put("min_runtime_version", "0.9.0"), e.RuntimeTooOld)
edited("range that holds nothing", put("min_runtime_version", "2.0.0"), e.VersionIncompatible)
edited("version that cannot be read", put("max_runtime_version", "1.0.x"), e.VersionIncompatible)
edited("feature of nobody", put("kernels.1.pumice.wgsl.features", ["telepathy"]), e.MissingFeature)
