"""Building packs: compiled sources, filled-in hashes, the same bytes every time, and errors that name the file."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pack_making import RELU_WAT, needs_compiler, sha256, small_pack, wasm
from pumice.packs import compilers
from pumice.packs.archive import read_pack
from pumice.packs.build import build_pack, format_manifest
from pumice.packs.errors import BuildFailed, InvalidManifest
from pumice.packs.extra import MissingExtra
from pumice.packs.keys import SigningKey

CORE = Path(__file__).parents[2] / "packs" / "core"


@pytest.fixture
def folder(tmp_path):
    """A pack in sources: a kernel in WAT, another in WGSL, no hashes."""
    pack = small_pack()
    manifest = pack.manifest
    (tmp_path / "src").mkdir()
    (tmp_path / "kernels").mkdir()
    for kernel in manifest["kernels"]:
        content = pack.files[kernel["path"]]
        kernel["path"] = f"kernels/relu{Path(kernel['path']).suffix}"
        del kernel["hash"]
        if kernel["path"].endswith(".wgsl"):
            (tmp_path / kernel["path"]).write_bytes(content)
    manifest["author"]["signing_key"] = ""
    manifest["pumice"] = {}
    (tmp_path / "src" / "relu.wat").write_text(RELU_WAT)
    (tmp_path / "kernels.json").write_text(json.dumps(manifest))
    return tmp_path


def test_sources_are_compiled_and_hashed(folder):
    built = build_pack(folder)
    assert built.path == folder / "dist" / f"{built.manifest.name}.zip"
    assert built.compiled == ("kernels/relu.wasm",)
    assert built.kept == ()
    found = read_pack(built.path)
    assert found.files["kernels/relu.wasm"] == wasm(RELU_WAT)
    assert found.signature is None
    assert {name: sha256(content) for name, content in found.files.items()} == built.manifest.listed_files
    assert "src/relu.wat" in found.files
    # The folder's own manifest is the one in the zip.
    assert (folder / "kernels.json").read_bytes() == found.manifest


def test_the_same_sources_give_the_same_bytes_anywhere(folder, tmp_path_factory):
    first = build_pack(folder).path.read_bytes()
    assert build_pack(folder).path.read_bytes() == first
    other = tmp_path_factory.mktemp("elsewhere") / "x"
    shutil.copytree(folder, other, ignore=shutil.ignore_patterns("dist", "*.wasm"))
    for file in other.rglob("*"):
        os.utime(file, (1, 1))
    assert build_pack(other).path.read_bytes() == first


def test_changes_are_seen_and_sources_that_are_gone_leave_the_list(folder):
    (folder / "src" / "notes.txt").write_text("old")
    before = build_pack(folder)
    (folder / "src" / "notes.txt").unlink()
    (folder / "src" / "relu.wat").write_text(RELU_WAT.replace("f32.const 0", "f32.const 1"))
    after = build_pack(folder)
    assert "src/notes.txt" in before.files.files
    assert "src/notes.txt" not in after.files.files
    assert before.files.files["kernels/relu.wasm"] != after.files.files["kernels/relu.wasm"]


def test_references_come_from_graph_files(folder):
    graph = 'pumice graph 1\nsymbols dims\n%0 : f32[dims] = input "x"\n%1 : f32[dims] = relu(%0)\noutputs "result"=%1\n'
    manifest = json.loads((folder / "kernels.json").read_text())
    for kernel in manifest["kernels"]:
        kernel["pumice"].pop("implements", None)
        op = {"name": "my_relu", "operands": ["x"], "reference": "", "samples": [{"x": [4]}], "tolerance": 0.0}
        kernel["pumice"]["op"] = op
    (folder / "kernels.json").write_text(json.dumps(manifest))
    (folder / "src" / "my_relu.graph").write_text(graph)
    built = build_pack(folder)
    assert [k.pumice.op.reference for k in built.manifest.kernels] == [graph] * len(manifest["kernels"])


def test_the_signature_is_of_the_bytes_in_the_zip(folder):
    signer = SigningKey.generate()
    built = build_pack(folder, signer)
    found = read_pack(built.path)
    assert signer.public.verifies(found.signature, found.manifest)
    assert built.manifest.author.signing_key == signer.public.text


def test_what_does_not_compile_is_named(folder):
    (folder / "src" / "relu.wat").write_text("(module (func (i32.const)))")
    with pytest.raises(BuildFailed, match=r"relu\.wat does not compile:\n.*expected"):
        build_pack(folder)


def test_files_that_are_missing_or_double_are_named(folder):
    (folder / "src" / "relu.c").write_text("")
    with pytest.raises(BuildFailed, match=r"kernels/relu\.wasm has two sources, relu\.wat and relu\.c"):
        build_pack(folder)
    for file in (folder / "src").iterdir():
        file.unlink()
    with pytest.raises(BuildFailed, match=r"has no kernels/relu\.wasm"):
        build_pack(folder)
    (folder / "kernels.json").unlink()
    with pytest.raises(InvalidManifest, match=r"has no kernels\.json"):
        build_pack(folder)


def test_a_wrong_manifest_is_refused_and_stays_as_it_was(folder):
    manifest = json.loads((folder / "kernels.json").read_text())
    manifest["version"] = 7
    text = json.dumps(manifest)
    (folder / "kernels.json").write_text(text)
    with pytest.raises(InvalidManifest, match="version"):
        build_pack(folder)
    assert (folder / "kernels.json").read_text() == text
    assert not (folder / "dist").exists()


def test_without_a_compiler_modules_stay_while_their_sources_are_the_same(tmp_path, monkeypatch):
    folder = tmp_path / "core"
    shutil.copytree(CORE, folder, ignore=shutil.ignore_patterns("dist"))
    find = importlib.util.find_spec
    monkeypatch.setattr(compilers.importlib.util, "find_spec", lambda name: None if name == "ziglang" else find(name))
    built = build_pack(folder)
    assert built.compiled == ()
    assert len(built.kept) == 10
    assert built.files.manifest == (CORE / "kernels.json").read_bytes()
    with (folder / "src" / "kernel.h").open("a") as header:
        header.write("// a change\n")
    with pytest.raises(MissingExtra, match="needs the package ziglang") as caught:
        build_pack(folder)
    assert "pumice[packs-build]" in caught.value.hint


def test_a_manifest_is_written_for_readers():
    value = {"name": "x", "kernels": [{"id": "a" * 100, "shape": ["rows...", 4]}], "empty": {}}
    text = format_manifest(value)
    assert json.loads(text) == value
    assert '"shape": ["rows...", 4]' in text
    assert text.endswith("}\n")


@needs_compiler
def test_c_errors_say_what_the_compiler_says(folder):
    (folder / "src" / "relu.wat").unlink()
    (folder / "src" / "relu.c").write_text("int f(void) { return missing; }\n")
    with pytest.raises(BuildFailed, match=r"relu\.c does not compile:(.|\n)*missing"):
        build_pack(folder)


@needs_compiler
def test_the_first_pack_builds_to_the_bytes_in_the_repository(tmp_path):
    """In another folder, as another user at another place and time, by another process."""
    folder = tmp_path / "some where" / "core"
    shutil.copytree(CORE, folder, ignore=shutil.ignore_patterns("dist", "*.wasm"))
    code = "import sys; from pathlib import Path; from pumice.packs.build import build_pack; build_pack(Path(sys.argv[1]))"
    strange = {"HOME": str(tmp_path), "USER": "someone", "TZ": "Asia/Tokyo", "LANG": "C", "SOURCE_DATE_EPOCH": "1"}
    subprocess.run([sys.executable, "-c", code, str(folder)], check=True, env={**os.environ, **strange}, cwd=tmp_path)
    assert (folder / "kernels.json").read_bytes() == (CORE / "kernels.json").read_bytes()
    for module in CORE.glob("kernels/*.wasm"):
        assert (folder / "kernels" / module.name).read_bytes() == module.read_bytes(), module.name
