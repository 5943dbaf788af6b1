"""`pumice pack new` as a new user takes it: the template builds, passes its test, and survives an edit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pack_making import needs_compiler
from pumice.errors import InputError
from pumice.packs.archive import read_pack
from pumice.packs.build import build_pack
from pumice.packs.new_pack import new_pack


def test_the_template_builds_at_once(tmp_path):
    folder = tmp_path / "My Fast_Kernels"
    assert new_pack(folder) == "my-fast_kernels"
    built = build_pack(folder)
    assert built.path == folder / "dist" / "my-fast_kernels.zip"
    assert built.compiled == ("kernels/squared_relu.wasm",)
    assert {k.pumice.target for k in built.manifest.kernels} == {"host", "webgpu"}
    assert all(k.pumice.op.reference.startswith("pumice graph 1\n") for k in built.manifest.kernels)
    assert "src/squared_relu.wat" in read_pack(built.path).files
    # Nothing of the template is left to fill in.
    assert not [f for f in folder.rglob("*") if f.is_file() and b"@NAME@" in f.read_bytes()]


@needs_compiler
def test_the_template_in_c_builds_to_the_same_kernel(tmp_path):
    new_pack(tmp_path / "in-c", language="c")
    built = build_pack(tmp_path / "in-c")
    assert built.compiled == ("kernels/squared_relu.wasm",)
    assert not (tmp_path / "in-c" / "src" / "squared_relu.wat").exists()


def test_names_and_folders_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(InputError, match="is no name for a pack"):
        new_pack(tmp_path / "1st")
    with pytest.raises(InputError, match="no template in 'rust'"):
        new_pack(tmp_path / "x", language="rust")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kernels.json").write_text("{}")
    with pytest.raises(InputError, match="is there already"):
        new_pack(tmp_path / "full")
    assert json.loads((tmp_path / "full" / "kernels.json").read_text()) == {}
    assert not Path(tmp_path / "x").exists()
