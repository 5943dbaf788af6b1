"""Pictures with their cameras: transforms.json as NeRF's synthetic scenes and the tools that follow them write it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pumice.errors import FormatError, InputError
from pumice.formats.png import read_png
from pumice.splat.scene import Camera

Array = np.ndarray[Any, Any]
_NAME = "transforms.json"
_MOST_BYTES, _MOST_VIEWS = 1 << 26, 100_000
# Cameras of these files look along -z with y up; ours along z with y down.
_FLIP = np.diag([1.0, -1.0, -1.0, 1.0])


def read_views(
    path: str | os.PathLike[str],
    *,
    background: Any = (0.0, 0.0, 0.0),
    on_view: Callable[[int, int], None] | None = None,
) -> tuple[list[Camera], list[Array]]:
    """The cameras of a transforms.json, or of the folder with it, and their pictures [height, width, 3] in front of a background.

    Frames have `file_path`, a PNG below the folder, and `transform_matrix`, the camera's place in the world. Focal lengths are
    `fl_x` and `fl_y` in pixels, or follow from `camera_angle_x`; `cx` and `cy` may be given. Lenses that bend lines are refused.
    `on_view` gets how many pictures are read, and of how many.
    """
    file = Path(path)
    file = file / _NAME if file.is_dir() else file
    found = _fields(file)
    frames = found.get("frames")
    if not isinstance(frames, list) or not 0 < len(frames) <= _MOST_VIEWS:
        raise _wrong(file, f"frames is no list of 1 to {_MOST_VIEWS}")
    bent = [k for k in ("k1", "k2", "k3", "k4", "p1", "p2") if found.get(k)]
    if bent:
        raise _wrong(file, f"the lens bends lines ({', '.join(bent)})", "undistort the pictures first")
    cameras, images = [], []
    for k, frame in enumerate(frames):
        if not isinstance(frame, dict):
            raise _wrong(file, f"frame {k} is no object")
        image = read_png(_picture(file, k, frame))
        height, width = image.shape[:2]
        cameras.append(_camera(file, k, {**found, **frame}, width, height))
        images.append(image[..., :3] * image[..., 3:] + (1 - image[..., 3:]) * np.asarray(background, np.float32))
        if on_view is not None:
            on_view(k + 1, len(frames))
    return cameras, images


def _wrong(file: Path, what: str, hint: str = "see docs/splats.md for what a transforms.json holds") -> FormatError:
    return FormatError(f"{file.name}: {what}", hint=hint, path=str(file))


def _fields(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise _wrong(file, f"has more than {_MOST_BYTES} bytes")
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise InputError(f"there is no {file}", hint=f"name a folder with {_NAME}, or such a file") from None
    except (ValueError, RecursionError):
        raise _wrong(file, "is no JSON") from None
    if not isinstance(found, dict):
        raise _wrong(file, "is no object")
    return found


def _picture(file: Path, k: int, frame: dict[str, Any]) -> Path:
    name = frame.get("file_path")
    if not isinstance(name, str) or not name or "\0" in name:
        raise _wrong(file, f"frame {k} has no file_path")
    folder = file.parent.resolve()
    # Synthetic scenes leave the ending out.
    found = (folder / (name if Path(name).suffix else f"{name}.png")).resolve()
    if not found.is_relative_to(folder):
        raise _wrong(file, f"frame {k} names a file outside of its folder", "put the pictures beside the file")
    return found


def _camera(file: Path, k: int, of: dict[str, Any], width: int, height: int) -> Camera:
    try:
        place = np.array(of.get("transform_matrix"), np.float64)
    except (TypeError, ValueError):
        place = np.zeros(0)
    if place.shape != (4, 4) or not np.isfinite(place).all() or abs(np.linalg.det(place[:3, :3])) < 1e-9:
        raise _wrong(file, f"the transform_matrix of frame {k} is no 4x4 matrix of a place")
    for name, size in (("w", width), ("h", height)):
        if name in of and of[name] != size:
            raise _wrong(file, f"frame {k} says {name} = {of[name]}, its picture has {size} pixels")
    focal_x = of.get("fl_x")
    if focal_x is None:
        angle = _number(file, k, of, "camera_angle_x")
        if not 0 < angle < math.pi:
            raise _wrong(file, f"camera_angle_x of frame {k} is {angle}, no angle between 0 and π")
        focal_x = width / 2 / math.tan(angle / 2)
    else:
        focal_x = _number(file, k, of, "fl_x")
    focal_y = _number(file, k, of, "fl_y") if "fl_y" in of else focal_x
    centre = tuple(_number(file, k, of, name) if name in of else size / 2 for name, size in (("cx", width), ("cy", height)))
    view = _FLIP @ np.linalg.inv(place)
    # A scale of the whole scene, which some tools leave in, is no part of a rotation.
    view[:3, :3] /= np.cbrt(np.linalg.det(view[:3, :3]))
    view[:3, 3] = -view[:3, :3] @ place[:3, 3]
    view[3] = 0, 0, 0, 1
    try:
        return Camera(view, (focal_x, focal_y), width, height, (centre[0], centre[1]))
    except InputError as e:
        raise _wrong(file, f"frame {k}: {e.message}") from None


def _number(file: Path, k: int, of: dict[str, Any], name: str) -> float:
    value = of.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(file, f"{name} of frame {k} is no number")
    return float(value)
