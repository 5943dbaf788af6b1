"""Packs as folder and zip: read once, one form only, the same bytes for the same files."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from pack_making import SmallPack
from pumice.packs.archive import PackFiles, parse_zip, read_pack, write_zip
from pumice.packs.errors import InvalidManifest, KernelNotFound, UnsafePack


def test_folder_and_zip_give_the_same_files(small_pack: SmallPack, tmp_path: Path) -> None:
    from_folder = read_pack(small_pack.write_folder(tmp_path / "pack"))
    from_zip = read_pack(small_pack.write_zip(tmp_path / "pack.zip"))
    assert from_folder == from_zip == small_pack.pack_files
    assert from_zip.entries == small_pack.files
    assert write_zip(from_folder.entries) == (tmp_path / "pack.zip").read_bytes()


def test_the_digest_is_that_of_the_manifest(small_pack: SmallPack) -> None:
    pack = small_pack.pack_files
    assert pack.digest != PackFiles(pack.manifest + b" ", pack.signature, pack.files).digest
    assert pack.digest == PackFiles(pack.manifest, None, {}).digest


def test_other_programs_can_read_the_zip(small_pack: SmallPack) -> None:
    with zipfile.ZipFile(io.BytesIO(small_pack.zip_bytes())) as found:
        assert found.testzip() is None
        assert {name: found.read(name) for name in found.namelist()} == small_pack.files
        assert found.namelist() == sorted(small_pack.files)
        assert {info.date_time for info in found.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {info.external_attr >> 16 for info in found.infolist()} == {0o100644}


def test_a_zip_of_another_program_is_refused_with_what_to_do(small_pack: SmallPack) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in small_pack.files.items():
            made.writestr(name, content)
    with pytest.raises(UnsafePack, match="is compressed") as error:
        parse_zip(data.getvalue())
    assert "pumice pack build" in error.value.hint


def test_nothing_at_the_path(tmp_path: Path) -> None:
    with pytest.raises(KernelNotFound, match="there is no pack at"):
        read_pack(tmp_path / "nothing.zip")
    with pytest.raises(KernelNotFound):
        read_pack(tmp_path / "a\0b")


def test_a_folder_without_manifest(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_bytes(b"")
    with pytest.raises(InvalidManifest, match=r"has no kernels\.json"):
        read_pack(tmp_path)


def test_only_safe_names_are_written() -> None:
    for name in ("../a", "/a", "a\\b", "C:a", "a//b", "a/", ".a", "a/./b", "ä", "nul.txt", "a.", "a" * 201, ""):
        with pytest.raises(UnsafePack):
            write_zip({name: b""})
    with pytest.raises(UnsafePack, match="a and A"):
        write_zip({"a": b"", "A": b""})
