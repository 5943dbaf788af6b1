"""Files of Gaussian splats: PLY as 3DGS writes it, and .splat, read by code that trusts no number in them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pumice.core.whole_file import replacing
from pumice.errors import InputError
from pumice.formats.weights import malformed

Array = np.ndarray[Any, Any]
MOST_SPLATS = 1 << 27
_MOST_HEADER, _MOST_PROPERTIES, _MOST_ELEMENTS = 1 << 16, 512, 64
_TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2",
    "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
}  # fmt: skip
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">"}
# Numbers of `f_rest` properties by the coefficients that they and `f_dc` make.
_RESTS = {0: 1, 9: 4, 24: 9, 45: 16}
_CORE = (*"xyz", "f_dc_0", "f_dc_1", "f_dc_2", "opacity", *(f"scale_{k}" for k in range(3)), *(f"rot_{k}" for k in range(4)))
_SPLAT = np.dtype([("means", "<f4", 3), ("scales", "<f4", 3), ("rgba", "u1", 4), ("turn", "u1", 4)])
_C0 = 0.28209479177387814
_DAMAGED = "the file is damaged or hostile: download it again from a source you trust"
_NOT_OURS = "export it as a binary PLY of 3D Gaussian splatting, or as .splat"


@dataclass(frozen=True, eq=False)
class SplatArrays:
    """Splats as 3DGS stores them: float32, logarithms of scales, logits of opacities, rotations w first, sh [N, K, 3]."""

    means: Array
    log_scales: Array
    quaternions: Array
    opacity_logits: Array
    sh: Array


def read_splats(path: Path | str) -> SplatArrays:
    """The splats of a .ply or .splat file, by its content: a PLY says that it is one.

    >>> import tempfile
    >>> one = SplatArrays(*(np.ones((1, *shape), np.float32) for shape in ((3,), (3,), (4,), (), (4, 3))))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_splats(Path(folder, "one.ply"), one)
    ...     read_splats(Path(folder, "one.ply")).sh.shape
    (1, 4, 3)
    """
    path = Path(path)
    if not os.path.exists(path):
        raise malformed(path, "there is no such file", hint="check the path; a dangling link counts as missing")
    # A named pipe would block, and has no length.
    if not path.is_file():
        raise malformed(path, "is no plain file", hint="name a .ply or .splat file")
    try:
        with path.open("rb") as file:
            is_ply = file.read(4) in (b"ply\n", b"ply\r")
        if not is_ply and path.suffix.lower() == ".ply":
            raise malformed(path, "does not begin with the word ply", offset=0, hint=_DAMAGED)
        return _read_ply(path) if is_ply else _read_splat(path)
    except OSError as e:
        raise malformed(path, f"cannot be read: {e.strerror}", hint="check the rights of the file") from None


def write_splats(path: Path | str, splats: SplatArrays) -> None:
    """Write splats as the ending of the path says, .ply or .splat; of .splat only the colours of band 0 are kept, in 8 bits."""
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in (".ply", ".splat"):
        raise InputError(f"{path.name} is neither .ply nor .splat", hint="end the name with .ply or .splat", path=str(path))
    head, rows = _ply_rows(splats) if kind == ".ply" else (b"", _splat_rows(splats))
    try:
        with replacing(path) as file:
            file.write(head)
            file.write(np.ascontiguousarray(rows).view(np.uint8).data)
    except OSError as e:
        message = f"the splats cannot be written to {path}: {e.strerror or e}"
        raise InputError(message, hint="check the folder and its space", path=str(path)) from None


# --- PLY ---


@dataclass(frozen=True, slots=True)
class _Element:
    name: str
    count: int
    properties: list[tuple[str, str]]


def _read_ply(path: Path) -> SplatArrays:
    size = path.stat().st_size
    elements, order, begin = _ply_header(path)
    at, found = begin, None
    for element in elements:
        if element.name == "vertex":
            found = element
            break
        at += element.count * _row_bytes(path, element)
    if found is None:
        raise malformed(path, f"has no element vertex, only {_listed([e.name for e in elements])}", hint=_NOT_OURS)
    names = [name for name, _ in found.properties]
    missing = [name for name in _CORE if name not in names]
    if missing:
        why = " It is compressed." if "packed_position" in names else ""
        raise malformed(path, f"its vertices have no {_listed(missing)}.{why}", hint=_NOT_OURS, missing=missing)
    if any(kind == "list" for _, kind in found.properties):
        raise malformed(path, "its vertices have lists, whose sizes are not known", hint=_NOT_OURS)
    row = np.dtype([(name, order + kind) for name, kind in found.properties])
    rest = at + found.count * row.itemsize + sum(e.count * _row_bytes(path, e) for e in elements[elements.index(found) + 1 :])
    if rest != size:
        what = "is cut off" if size < rest else "has more than it declares"
        raise malformed(path, f"{what}: {found.count} splats end at byte {rest}, the file at {size}", offset=at, hint=_DAMAGED)
    for name, kind in found.properties:
        if (name in _CORE or name.startswith("f_rest_")) and kind[0] != "f":
            raise malformed(path, f"the property {name} is no float", hint=_NOT_OURS, property=name)
    rows = np.fromfile(path, row, found.count, offset=at)
    others = sum(name.startswith("f_rest_") for name in names)
    columns = _RESTS.get(others)
    if columns is None or any(f"f_rest_{k}" not in names for k in range(others)):
        raise malformed(path, f"has {others} properties f_rest, not the first 0, 9, 24 or 45", hint=_NOT_OURS)

    def stack(*wanted: str) -> Array:
        with np.errstate(over="ignore"):
            return np.stack([rows[name].astype(np.float32) for name in wanted], 1)

    sh = stack("f_dc_0", "f_dc_1", "f_dc_2")[:, None]
    if columns > 1:
        by_channel = stack(*(f"f_rest_{k}" for k in range(others))).reshape(len(rows), 3, columns - 1)
        sh = np.concatenate([sh, by_channel.swapaxes(1, 2)], 1)
    made = SplatArrays(
        stack("x", "y", "z"),
        stack("scale_0", "scale_1", "scale_2"),
        stack("rot_0", "rot_1", "rot_2", "rot_3"),
        stack("opacity")[:, 0],
        np.ascontiguousarray(sh),
    )
    return _checked(path, made)


def _ply_header(path: Path) -> tuple[list[_Element], str, int]:
    """The elements of a PLY, the order of its bytes, and where its data begins."""
    with path.open("rb") as file:
        head = file.read(_MOST_HEADER)
    end = head.find(b"end_header\n")
    end = end + len(b"end_header\n") if end >= 0 else head.find(b"end_header\r\n") + len(b"end_header\r\n")
    if b"end_header" not in head or end < len(b"end_header\r\n"):
        raise malformed(path, f"the header has no end within {_MOST_HEADER} bytes", offset=0, hint=_DAMAGED)
    elements: list[_Element] = []
    order: str | None = None
    for line in head[:end].splitlines()[1:]:
        words = _words(path, line)
        match words:
            case ["format", "ascii", *_]:
                raise malformed(path, "is an ASCII PLY; only binary ones are read", hint=_NOT_OURS)
            case ["format", kind, "1.0"] if kind in _ORDERS and order is None:
                order = _ORDERS[kind]
            case ["comment" | "obj_info", *_] | ["end_header"] | []:
                continue
            case ["element", name, count]:
                elements.append(_Element(name, _count(path, name, count), []))
                if len(elements) > _MOST_ELEMENTS:
                    raise malformed(path, f"declares more than {_MOST_ELEMENTS} elements", hint=_DAMAGED)
                if name in [e.name for e in elements[:-1]]:
                    raise malformed(path, f"declares the element {name} twice", hint=_DAMAGED)
            case ["property", "list", _, _, name] if elements:
                elements[-1].properties.append((name, "list"))
            case ["property", kind, name] if elements and kind in _TYPES:
                if name in [n for n, _ in elements[-1].properties]:
                    raise malformed(path, f"declares the property {name} twice", hint=_DAMAGED, property=name)
                elements[-1].properties.append((name, _TYPES[kind]))
                if len(elements[-1].properties) > _MOST_PROPERTIES:
                    raise malformed(path, f"declares more than {_MOST_PROPERTIES} properties", hint=_DAMAGED)
            case _:
                raise malformed(path, f"the header has a line that is none of PLY's: {' '.join(words)[:60]!r}", hint=_DAMAGED)
    if order is None:
        raise malformed(path, "the header does not say its format", hint=_DAMAGED)
    return elements, order, end


def _words(path: Path, line: bytes) -> list[str]:
    try:
        return line.decode("ascii").split()
    except UnicodeDecodeError:
        if line.startswith((b"comment", b"obj_info")):
            return ["comment"]
        raise malformed(path, "the header is no ASCII text", hint=_DAMAGED) from None


def _count(path: Path, name: str, text: str) -> int:
    # A sign, an underscore or a digit of another script is no number in a PLY.
    if not (text.isascii() and text.isdigit() and len(text) < 19) or int(text) > MOST_SPLATS:
        raise malformed(path, f"declares {text[:40]!r} of the element {name}; up to {MOST_SPLATS} are read", hint=_DAMAGED)
    return int(text)


def _row_bytes(path: Path, element: _Element) -> int:
    if any(kind == "list" for _, kind in element.properties):
        if element.count == 0:
            return 0
        raise malformed(path, f"the element {element.name} has lists, whose sizes are not known", hint=_NOT_OURS)
    return sum(np.dtype(kind).itemsize for _, kind in element.properties)


def _ply_rows(splats: SplatArrays) -> tuple[bytes, Array]:
    count, columns = splats.sh.shape[:2]
    rest = 3 * (columns - 1)
    values: Mapping[str, Array] = {
        **{name: splats.means[:, k] for k, name in enumerate("xyz")},
        # Normals, which 3DGS writes and nobody reads.
        **{name: np.zeros(count, np.float32) for name in ("nx", "ny", "nz")},
        **{f"f_dc_{k}": splats.sh[:, 0, k] for k in range(3)},
        **{f"f_rest_{k}": splats.sh[:, 1 + k % (columns - 1), k // (columns - 1)] for k in range(rest)},
        "opacity": splats.opacity_logits,
        **{f"scale_{k}": splats.log_scales[:, k] for k in range(3)},
        **{f"rot_{k}": splats.quaternions[:, k] for k in range(4)},
    }
    rows = np.empty((count, len(values)), "<f4")
    for k, column in enumerate(values.values()):
        rows[:, k] = column
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {count}", *(f"property float {name}" for name in values)]
    return ("\n".join([*lines, "end_header"]) + "\n").encode(), rows


# --- .splat ---


def _read_splat(path: Path) -> SplatArrays:
    size = path.stat().st_size
    if path.suffix.lower() != ".splat":
        raise malformed(path, "is neither a PLY nor named .splat", hint="name a .ply or .splat file")
    if size % _SPLAT.itemsize or size > MOST_SPLATS * _SPLAT.itemsize:
        raise malformed(
            path, f"has {size} bytes, no whole number of splats of {_SPLAT.itemsize} up to {MOST_SPLATS}", offset=0, hint=_DAMAGED
        )
    rows = np.fromfile(path, _SPLAT)
    if (rows["scales"] < 0).any():
        raise malformed(path, f"splat {int(np.argmax((rows['scales'] < 0).any(1)))} has a scale below 0", hint=_DAMAGED)
    # Half a step inside of 0 and 1, where logits are finite; rounding gives the same bytes back.
    alpha = np.clip(rows["rgba"][:, 3] / 255.0, 0.25 / 255, 1 - 0.25 / 255)
    with np.errstate(divide="ignore"):
        logs = np.log(rows["scales"].astype(np.float64))
    sh = (rows["rgba"][:, :3] / 255.0 - 0.5) / _C0
    turn = (rows["turn"].astype(np.float32) - 128) / 128
    listed = (rows["means"], logs, turn, np.log(alpha / (1 - alpha)), sh[:, None])
    return _checked(path, SplatArrays(*(np.ascontiguousarray(a, np.float32) for a in listed)))


def _splat_rows(splats: SplatArrays) -> Array:
    rows = np.zeros(len(splats.means), _SPLAT)
    with np.errstate(over="ignore"):
        alpha = 1 / (1 + np.exp(-splats.opacity_logits.astype(np.float64)))
        rows["scales"] = np.exp(splats.log_scales.astype(np.float64))
    rows["means"] = splats.means
    shades = np.concatenate([0.5 + _C0 * splats.sh[:, 0].astype(np.float64), alpha[:, None]], 1)
    rows["rgba"] = np.rint(np.clip(np.nan_to_num(shades), 0, 1) * 255)
    length = np.linalg.norm(splats.quaternions.astype(np.float64), axis=1, keepdims=True)
    turn = splats.quaternions / np.where(length > 0, length, 1)
    rows["turn"] = np.clip(np.rint(np.nan_to_num(turn) * 128 + 128), 0, 255)
    return rows


def _checked(path: Path, splats: SplatArrays) -> SplatArrays:
    """Refuses numbers that mean nothing. A scale of 0, whose logarithm is -inf, is a point; opacities may be 0 or 1."""
    for name in ("means", "log_scales", "quaternions", "opacity_logits", "sh"):
        array = getattr(splats, name)
        wrong = np.isnan(array) if name == "opacity_logits" else ~np.isfinite(array)
        if name == "log_scales":
            wrong &= ~np.isneginf(array)
        if wrong.any():
            which = int(np.argmax(wrong.reshape(len(array), -1).any(1)))
            what = f"splat {which} has a number of {name.replace('_', ' ')} that is NaN or infinite"
            raise malformed(path, what, hint=_DAMAGED, splat=which)
    return splats


def _listed(names: list[str]) -> str:
    shown = [n[:40] for n in names[:6]]
    return ", ".join(shown) + (f" and {len(names) - 6} more" if len(names) > 6 else "") if names else "none"
