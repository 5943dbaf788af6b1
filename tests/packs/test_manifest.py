"""The manifest: what is read is what is written, and every field has its rule."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pack_making import SmallPack
from pack_making import small_pack as make
from pumice.packs.errors import InvalidManifest, KernelNotFound
from pumice.packs.manifest import Manifest


def test_a_manifest_reads_back_as_it_was(small_pack: SmallPack) -> None:
    manifest = Manifest.from_json(small_pack.files["kernels.json"])
    assert json.loads(manifest.to_json()) == small_pack.manifest
    assert Manifest.from_json(manifest.to_json(pretty=True).encode()) == manifest


def test_unknown_keys_are_kept_at_every_level() -> None:
    def edit(m: dict[str, Any]) -> None:
        for part in (m, m["author"], m["kernels"][0], m["kernels"][0]["inputs"][0], m["kernels"][0]["resource_limits"]):
            part["x-note"] = {"nested": [1, 2.5, None, "text"]}

    pack = make(edit=edit)
    assert json.loads(Manifest.from_json(pack.files["kernels.json"]).to_json()) == pack.manifest


def test_kernels_are_found_by_id_and_category(small_pack: SmallPack) -> None:
    manifest = Manifest.from_json(small_pack.files["kernels.json"])
    assert manifest.kernel_ids == ("relu_wasm", "relu_wgsl")
    assert manifest.get_kernel("relu_wgsl").in_wgsl
    assert [k.id for k in manifest.kernels_by_category("activation")] == ["relu_wasm", "relu_wgsl"]
    assert manifest.kernels_by_category("adapter") == ()
    assert manifest.get_fallback("relu_wasm") is None
    assert set(manifest.listed_files) == {"relu.wasm", "relu.wgsl", "LICENSE"}
    with pytest.raises(KernelNotFound, match="no kernel 'rope'"):
        manifest.get_kernel("rope")


def test_every_error_is_listed_with_its_field() -> None:
    def edit(m: dict[str, Any]) -> None:
        m["name"] = "No!"
        del m["version"]
        m["kernels"][1]["inputs"][0]["dtype"] = "f23"
        m["kernels"][0]["resource_limits"]["max_memory_pages"] = True

    with pytest.raises(InvalidManifest) as error:
        Manifest.from_json(make(edit=edit).files["kernels.json"])
    fields = [field for field, _ in error.value.fields["problems"]]
    assert fields == ["name", "version", "kernels[0].resource_limits.max_memory_pages", "kernels[1].inputs[0].dtype"]
    assert all(field in error.value.message for field in fields)
