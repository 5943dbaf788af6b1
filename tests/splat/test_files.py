"""Files of splats: round trips, other layouts that are read, and a hundred ways to be hostile."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pumice.errors import FormatError, InputError
from pumice.formats import splats as formats
from pumice.splat import Splats, read, write
from splat.plain import random_splats

NAMES = [*"xyz", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", *(f"scale_{k}" for k in range(3))]
NAMES += [f"rot_{k}" for k in range(4)]


def ply(
    count: int | str = 2, names: list[str] | None = None, *, kind: str = "float", rows: bytes | None = None, **more: str
) -> bytes:
    """A PLY file; `more` may replace the first line, the format, what comes before the element, and the end."""
    names = NAMES if names is None else names
    lines = [more.get("magic", "ply"), more.get("format", "format binary_little_endian 1.0")]
    lines += [*more.get("before", "comment made by hand").splitlines(), f"element vertex {count}"]
    lines += [f"property {kind} {name}" for name in names]
    lines += [*more.get("after", "").splitlines(), more.get("end", "end_header")]
    data = np.ones((int(count) if str(count).isdigit() else 2, len(names)), "<f4").tobytes() if rows is None else rows
    return ("\n".join(lines) + "\n").encode() + data


def numbers(value: float, name: str, count: int = 2) -> bytes:
    """A PLY whose second splat has that number."""
    rows = np.ones((count, len(NAMES)), "<f4")
    rows[1, NAMES.index(name)] = value
    return ply(count, rows=rows.tobytes())


def splat(position: float = 0.0, scale: float = 1.0) -> bytes:
    return struct.pack("<6f8B", position, 0, 0, scale, 1, 1, 200, 100, 50, 255, 255, 128, 128, 128)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty ply": (b"", "does not begin"),
    "other magic": (ply(magic="plx"), "does not begin"),
    "magic alone": (b"ply\n", "no end"),
    "no end of the header": (ply(end="end"), "no end"),
    "an endless header": (b"ply\n" + b"comment x\n" * 20000, "no end"),
    "ascii": (ply(format="format ascii 1.0"), "ASCII"),
    "no format": (ply(format="comment"), "format"),
    "another version": (ply(format="format binary_little_endian 2.0"), "none of PLY's"),
    "an unknown format": (ply(format="format binary_middle_endian 1.0"), "none of PLY's"),
    "two formats": (ply(before="format binary_big_endian 1.0"), "none of PLY's"),
    "cut off": (ply()[:-1], "cut off"),
    "cut off in the middle": (ply(100)[:-1000], "cut off"),
    "no rows at all": (ply(rows=b""), "cut off"),
    "bytes left over": (ply() + b"\0", "more than it declares"),
    "a huge count": (ply(10**9, rows=b""), "of the element vertex"),
    "a count beyond 64 bits": (ply("9" * 30, rows=b""), "of the element vertex"),
    "a count of the most": (ply(formats.MOST_SPLATS, rows=b""), "cut off"),
    "a negative count": (ply("-2"), "of the element vertex"),
    "a count that is no number": (ply("two"), "of the element vertex"),
    "a count with underscores": (ply("1_0"), "of the element vertex"),
    "a count in other digits": (ply("٢"), "no ASCII"),
    "no vertices": (ply().replace(b"element vertex", b"element points"), "no element vertex"),
    "no elements": (b"ply\nformat binary_little_endian 1.0\nend_header\n", "no element vertex"),
    "two elements of vertices": (ply(after="element vertex 2"), "twice"),
    "a property twice": (ply(names=[*NAMES, "x"]), "twice"),
    "no positions": (ply(names=NAMES[1:]), "no x"),
    "no colours": (ply(names=[n for n in NAMES if n != "f_dc_1"]), "no f_dc_1"),
    "no opacity": (ply(names=[n for n in NAMES if n != "opacity"]), "no opacity"),
    "no rotation": (ply(names=NAMES[:-4]), "no rot_0"),
    "points alone": (ply(names=["x", "y", "z"]), "and 5 more"),
    "compressed": (ply(names=["packed_position", "packed_rotation"]), "compressed"),
    "some of band 1": (ply(names=[*NAMES, *(f"f_rest_{k}" for k in range(8))]), "8 properties f_rest"),
    "gaps in band 1": (ply(names=[*NAMES, *(f"f_rest_{k}" for k in range(1, 10))]), "f_rest"),
    "integers for floats": (ply(kind="int"), "is no float"),
    "an unknown type": (ply(kind="quad"), "none of PLY's"),
    "a list": (ply(after="property list uchar int vertex_indices"), "none of PLY's|lists"),
    "a list before": (ply(before="element face 3\nproperty list uchar int vertex_indices"), "lists"),
    "a property of nothing": (ply(before="property float x"), "none of PLY's"),
    "too many properties": (ply(names=[*NAMES, *(f"p{k}" for k in range(600))]), "512 properties"),
    "too many elements": (ply(before="\n".join(f"element e{k} 0" for k in range(70))), "64 elements"),
    "a header of other bytes": (ply(before="\x00\x01"), "none of PLY's"),
    "NaN position": (numbers(np.nan, "y"), "splat 1 .* means"),
    "infinite position": (numbers(-np.inf, "z"), "splat 1 .* means"),
    "NaN scale": (numbers(np.nan, "scale_2"), "log scales"),
    "infinite scale": (numbers(np.inf, "scale_0"), "log scales"),
    "NaN rotation": (numbers(np.nan, "rot_3"), "quaternions"),
    "NaN opacity": (numbers(np.nan, "opacity"), "opacity logits"),
    "infinite colour": (numbers(np.inf, "f_dc_2"), "sh"),
}
HOSTILE_SPLAT: dict[str, tuple[bytes, str]] = {
    "cut off": (splat()[:-1], "no whole number"),
    "one byte": (b"x", "no whole number"),
    "NaN position": (splat(np.nan), "means"),
    "infinite position": (splat(np.inf), "means"),
    "negative scale": (splat(scale=-1), "below 0"),
    "NaN scale": (splat(scale=np.nan), "log scales"),
    "infinite scale": (splat(scale=np.inf), "log scales"),
}


def test_there_are_enough_hostile_files() -> None:
    assert len(HOSTILE) + len(HOSTILE_SPLAT) >= 30


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_ply_is_refused(name: str, tmp_path: Path) -> None:
    data, why = HOSTILE[name]
    (tmp_path / "a.ply").write_bytes(data)
    with pytest.raises(FormatError, match=why) as caught:
        read(tmp_path / "a.ply")
    assert caught.value.hint


@pytest.mark.parametrize("name", HOSTILE_SPLAT)
def test_hostile_splat_is_refused(name: str, tmp_path: Path) -> None:
    data, why = HOSTILE_SPLAT[name]
    (tmp_path / "a.splat").write_bytes(data)
    with pytest.raises(FormatError, match=why) as caught:
        read(tmp_path / "a.splat")
    assert caught.value.hint


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        read(tmp_path / "none.ply")
    with pytest.raises(FormatError, match="no plain file"):
        read(tmp_path)
    (tmp_path / "a.txt").write_bytes(splat())
    with pytest.raises(FormatError, match="neither a PLY"):
        read(tmp_path / "a.txt")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.ply")
        with pytest.raises(FormatError, match="no plain file"):
            read(tmp_path / "pipe.ply")
    with pytest.raises(InputError, match=r"neither \.ply nor \.splat"):
        write(random_splats(2), tmp_path / "a.obj")
    assert not (tmp_path / "a.obj").exists()


@pytest.mark.parametrize("band", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 37])
def test_ply_gives_back_every_bit(band: int, count: int, tmp_path: Path) -> None:
    splats = random_splats(count, band=band)
    if count:
        splats.log_scales[0, 1], splats.opacity_logits[0] = -np.inf, np.inf
    write(splats, tmp_path / "a.ply")
    again = read(tmp_path / "a.ply")
    for name, array in splats.params.items():
        np.testing.assert_array_equal(getattr(again, name), array, err_msg=name)


def test_splat_gives_back_its_own_bytes(tmp_path: Path) -> None:
    rows = np.frombuffer(np.random.default_rng(0).bytes(32 * 50), np.uint8).reshape(50, 32).copy()
    rows[:, :24] = np.random.default_rng(1).uniform(0.1, 2, (50, 6)).astype("<f4").view(np.uint8).reshape(50, 24)
    # Rotations of length 1, as writers have them.
    turn = np.random.default_rng(2).standard_normal((50, 4))
    rows[:, 28:] = np.clip(np.rint(turn / np.linalg.norm(turn, axis=1, keepdims=True) * 128 + 128), 0, 255)
    (tmp_path / "a.splat").write_bytes(rows.tobytes())
    write(read(tmp_path / "a.splat"), tmp_path / "b.splat")
    again = np.frombuffer((tmp_path / "b.splat").read_bytes(), np.uint8).reshape(50, 32)
    np.testing.assert_allclose(again[:, :24].copy().view("<f4"), rows[:, :24].copy().view("<f4"), rtol=1e-6)
    np.testing.assert_array_equal(again[:, 24:28], rows[:, 24:28])
    assert np.abs(again[:, 28:].astype(int) - rows[:, 28:]).max() <= 1


def big_endian(data: bytes) -> bytes:
    head, _, rows = data.partition(b"end_header\n")
    return head.replace(b"little", b"big") + b"end_header\n" + np.frombuffer(rows, "<f4").astype(">f4").tobytes()


OTHERS: dict[str, Callable[[], bytes]] = {
    "big endian": lambda: big_endian(ply()),
    "lines that end as on Windows": lambda: ply(rows=b"").replace(b"\n", b"\r\n") + np.ones((2, len(NAMES)), "<f4").tobytes(),
    "doubles": lambda: ply(kind="double", rows=np.ones((2, len(NAMES)), "<f8").tobytes()),
    "other properties": lambda: ply(names=[*NAMES, "segment"]),
    "elements before and after": lambda: ply(
        before="element chunk 1\nproperty uchar a", after="element face 0", rows=b"\7" + ply()[-136:]
    ),
    "comments of other bytes": lambda: ply().replace(b"made by hand", b"m\xc3\xa4de"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_layouts_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(OTHERS[name]())
    found = read(tmp_path / "a.ply")
    assert len(found) == 2
    assert all((array == 1).all() for array in found.params.values())


def test_layout_is_that_of_3dgs(tmp_path: Path) -> None:
    """Names and order of the properties, and of the coefficients: all of red, then green, then blue."""
    splats = random_splats(2, band=1)
    write(splats, tmp_path / "a.ply")
    head, _, rows = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    names = [line.split()[2].decode() for line in head.splitlines() if line.startswith(b"property")]
    assert names == [*NAMES[:9], *(f"f_rest_{k}" for k in range(9)), *NAMES[9:]]
    data = np.frombuffer(rows, "<f4").reshape(2, -1)
    np.testing.assert_array_equal(data[:, 9:18], splats.sh[:, 1:].swapaxes(1, 2).reshape(2, 9))


def test_no_part_of_a_header_makes_it_crash(tmp_path: Path) -> None:
    """Every file that is one byte off is read or refused."""
    data, rng = ply(), np.random.default_rng(3)
    path = tmp_path / "a.ply"
    read_ones = 0
    for _ in range(400):
        wrong = bytearray(data)
        wrong[rng.integers(4, len(data) - 136)] = rng.integers(256)
        path.write_bytes(wrong)
        try:
            assert isinstance(read(path), Splats)
            read_ones += 1
        except FormatError:
            pass
    assert read_ones < 200


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.ply").mkdir()
    for name in ("gone/a.ply", "gone/a.splat", "folder.ply"):
        with pytest.raises(InputError, match=r"the splats cannot be written to .*: (No such file|Is a directory)"):
            write(random_splats(2), tmp_path / name)
    assert os.listdir(tmp_path) == ["folder.ply"]
