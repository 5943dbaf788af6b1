"""`pumice splat`: pictures and turntables, fits of pictures with cameras, the page, and what is refused."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import chromium
from cli_harness import pumice, refused
from pumice.cli import splat_run
from pumice.cli.splat_view import OrbitPictures
from pumice.errors import FormatError, InputError
from pumice.formats.png import read_png
from pumice.splat import Renderer, read, render, turntable, write
from pumice.splat.views import read_views
from pumice.train.recipes.png import png_bytes, write_png
from pumice.web import SPLAT_PAGE
from pumice.web.server import WebServer
from splat.plain import random_splats

ROOT = Path(__file__).parents[2]
SIZE = {"width": 24, "height": 16}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scene") / "scene.ply"
    write(random_splats(30), path)
    return path


def test_a_picture_and_a_turntable(scene: Path, tmp_path: Path) -> None:
    size = ("--width", 24, "--height", 16, "--device", "host")
    done = pumice("splat", "render", scene, "--out", tmp_path / "a.png", "--turntable", 3, *size, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["splats"] == 30 and said["band"] == 3 and len(said["pairs"]) == 3 and said["device"]["backend"] == "host"
    assert [Path(f).name for f in said["files"]] == ["a-000.png", "a-001.png", "a-002.png"]
    splats = read(scene)
    for name, camera in zip(said["files"], turntable(splats, 3, **SIZE), strict=True):
        image = np.clip(render(splats, camera, device="host").colour, 0, 1)
        assert np.abs(read_png(name)[..., :3] - image).max() <= 0.51 / 255


def test_one_picture_from_a_given_place(scene: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    view = {"eye": "0,0,-3", "target": "0,0,0", "distance": 2.5, "up": "0,-1,0"}
    code = splat_run.render(scene, tmp_path / "a.png", None, view, SIZE, background="1,0.5,0", device="host", as_json=False)
    assert code == 0 and "30 splats, 24x16 pixels" in capsys.readouterr().out
    np.testing.assert_allclose(read_png(tmp_path / "a.png")[0, 0, :3], [1, 0.5, 0], atol=0.1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"up": "0,1"}, "--up takes three numbers"),
        ({"up": "0,nan,0"}, "finite"),
        ({"eye": "1;2;3"}, "--eye takes three"),
        ({"target": "0,0,0"}, "--target needs --eye"),
        ({"eye": "0,0,-3", "count": 3}, "--turntable goes around"),
        ({"background": "0,0,2"}, "from 0 to 1"),
        ({"out": "a.jpg"}, "does not end with .png"),
        ({"out": "none/a.png"}, "no folder"),
    ],
)
def test_options_that_are_refused(scene: Path, tmp_path: Path, change: dict[str, Any], why: str) -> None:
    view = {"eye": None, "target": None, "distance": 2.5, "up": "0,-1,0"} | {
        k: v for k, v in change.items() if k in ("eye", "target", "up")
    }
    out, background = tmp_path / change.get("out", "a.png"), change.get("background", "0,0,0")
    with pytest.raises(InputError, match=why):
        splat_run.render(scene, out, change.get("count"), view, SIZE, background=background, device="host", as_json=True)
    assert not out.exists()


def test_a_hostile_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.ply").write_bytes(b"ply\nformat ascii 1.0\nend_header\n")
    refused(pumice("splat", "render", tmp_path / "a.ply", "--out", tmp_path / "a.png"), "ASCII")


# --- pictures with cameras ---


def data_set(folder: Path, count: int = 3, **more: Any) -> Path:
    """Pictures of a scene with their cameras, as synthetic scenes of NeRF have them."""
    splats = random_splats(20, seed=5, band=0)
    frames = []
    for k, camera in enumerate(turntable(splats, count, **SIZE)):
        write_png(folder / f"r_{k}.png", render(splats, camera, device="host").colour)
        place = np.linalg.inv(camera.view) @ np.diag([1, -1, -1, 1])
        frames.append({"file_path": f"./r_{k}", "transform_matrix": place.tolist()})
    angle = 2 * np.arctan(SIZE["width"] / 2 / camera.focal[0])
    (folder / "transforms.json").write_text(json.dumps({"camera_angle_x": float(angle), "frames": frames, **more}))
    return folder


def test_cameras_come_back(tmp_path: Path) -> None:
    cameras, images = read_views(data_set(tmp_path))
    for camera, image, wanted in zip(cameras, images, turntable(random_splats(20, seed=5, band=0), 3, **SIZE), strict=True):
        np.testing.assert_allclose(camera.view, wanted.view, atol=1e-4)
        np.testing.assert_allclose(camera.focal, wanted.focal, rtol=1e-5)
        assert image.shape == (16, 24, 3)


def test_a_fit_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = {"splats": 40, "start": None, "band": 0}
    settings = {"steps": 20, "lr": 1.0, "seed": 0, "device": "host"}
    assert splat_run.fit(data_set(tmp_path), tmp_path / "a.ply", first, settings, background="0,0,0", as_json=True) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["views"] == 3 and said["steps"] == 20 and len(said["psnrs"]) == 3 and said["psnr"] > 8
    assert len(read(tmp_path / "a.ply")) == 40
    first["start"] = tmp_path / "a.ply"
    assert splat_run.fit(tmp_path, tmp_path / "b.splat", first, settings, background="0,0,0", as_json=False) == 0
    assert "PSNR" in capsys.readouterr().out


WRONG_VIEWS: dict[str, tuple[Any, str]] = {
    "no JSON": (b"{", "no JSON"),
    "deep JSON": (b"[" * 100000, "no JSON"),
    "a list": (b"[]", "no object"),
    "no frames": ({"frames": None}, "frames is no list"),
    "frames of nothing": ({"frames": []}, "frames is no list"),
    "frames that are none": ({"frames": [3]}, "no object"),
    "no path": ({"frames": [{}]}, "file_path"),
    "a path outside": ({"frames": [{"file_path": "../../etc/passwd"}]}, "outside"),
    "no such picture": ({"frames": [{"file_path": "none"}]}, "no file"),
    "a bent lens": ({"k1": 0.1}, "bends lines"),
    "no angle": ({"camera_angle_x": None}, "camera_angle_x"),
    "an angle of text": ({"camera_angle_x": "1"}, "camera_angle_x"),
    "a negative angle": ({"camera_angle_x": -1}, "no angle"),
    "another width": ({"w": 25}, "says w = 25"),
    "no focal length": ({"fl_x": 0}, "focal"),
    "an infinite centre": ({"cx": float("inf")}, "cx"),
}


@pytest.mark.parametrize("name", WRONG_VIEWS)
def test_wrong_views_are_refused(name: str, tmp_path: Path) -> None:
    given, why = WRONG_VIEWS[name]
    file = data_set(tmp_path, 1) / "transforms.json"
    file.write_bytes(given if isinstance(given, bytes) else json.dumps(json.loads(file.read_text()) | given).encode())
    with pytest.raises(FormatError, match=why):
        read_views(tmp_path)


@pytest.mark.parametrize("matrix", [None, [[1, 2], [3, 4]], [[0.0] * 4] * 4, [[float("nan")] * 4] * 4, "eye"])
def test_wrong_places_are_refused(matrix: Any, tmp_path: Path) -> None:
    file = data_set(tmp_path, 1) / "transforms.json"
    said = json.loads(file.read_text())
    said["frames"][0]["transform_matrix"] = matrix
    file.write_text(json.dumps(said))
    with pytest.raises(FormatError, match="transform_matrix"):
        read_views(tmp_path)


# --- PNG ---


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(rows: bytes, width: int = 2, height: int = 2, *, depth: int = 8, colour: int = 2, laced: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, laced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("colour", [0, 2, 4, 6])
def test_all_filters_of_png(colour: int, tmp_path: Path) -> None:
    """Encoded by the rules of each filter, decoded to the same pixels."""
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    image = np.random.default_rng(0).integers(0, 256, (10, 7, channels))
    rows = b""
    for y, row in enumerate(image):
        left, up = np.pad(row, ((1, 0), (0, 0)))[:-1], image[y - 1] if y else np.zeros_like(row)
        corner = np.pad(up, ((1, 0), (0, 0)))[:-1]
        guess = left + up - corner
        away = np.abs(np.stack([guess - left, guess - up, guess - corner]))
        paeth = np.choose(np.argmin(away, 0), [left, up, corner])
        kind = y % 5
        off = (np.zeros_like(row), left, up, (left + up) // 2, paeth)[kind]
        rows += bytes([kind]) + ((row - off) % 256).astype(np.uint8).tobytes()
    (tmp_path / "a.png").write_bytes(png(rows, 7, 10, colour=colour))
    found = np.rint(read_png(tmp_path / "a.png") * 255).astype(int)
    colours = image[..., :1].repeat(3, 2) if channels < 3 else image[..., :3]
    np.testing.assert_array_equal(found[..., :3], colours)
    np.testing.assert_array_equal(found[..., 3], image[..., -1] if channels in (2, 4) else 255)


ROWS = bytes(14)
WRONG_PNG = {
    "no PNG": b"GIF89a",
    "empty": b"",
    "cut off": png(ROWS)[:-15],
    "damaged": png(ROWS).replace(b"IDAT", b"IDAX"),
    "sixteen bits": png(ROWS, depth=16),
    "a palette": png(ROWS, colour=3),
    "interlaced": png(ROWS, laced=1),
    "no pixels": png(ROWS, width=0),
    "huge": png(ROWS, width=1 << 31, height=1 << 31),
    "too few bytes": png(ROWS[:-1]),
    "too many bytes": png(ROWS + b"x"),
    "a bomb": png(bytes(50_000_000)),
    "an unknown filter": png(b"\x05" + ROWS[1:]),
    "a chunk that must be known": png(ROWS)[:33] + chunk(b"ABCD", b"") + png(ROWS)[33:],
    "no data": png(ROWS)[:33] + chunk(b"IEND", b""),
}


@pytest.mark.parametrize("name", WRONG_PNG)
def test_wrong_pictures_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(WRONG_PNG[name])
    with pytest.raises(FormatError):
        read_png(tmp_path / "a.png")


# --- the page ---


@pytest.fixture(scope="module")
def server(scene: Path) -> Any:
    pytest.importorskip("uvicorn", reason="the server needs pip install 'pumice[serve]'")
    splats = read(scene)
    with Renderer(splats, 24, 16, device="host") as renderer:
        frames = OrbitPictures(splats, renderer, SIZE, (0, -1, 0))
        with WebServer(SPLAT_PAGE, port=0, page=False, makers={"/frame.png": frames.answer}) as running:
            yield running


def test_frames_follow_the_camera(server: WebServer, tmp_path: Path) -> None:
    pictures = []
    for yaw in (0, 90):
        with urllib.request.urlopen(f"{server.url}frame.png?yaw={yaw}&pitch=20&distance=3") as answer:
            assert answer.headers["Content-Type"] == "image/png" and "30 splats" in answer.headers["X-Scene"]
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            (tmp_path / "a.png").write_bytes(answer.read())
            pictures.append(read_png(tmp_path / "a.png"))
    assert pictures[0].shape == (16, 24, 4) and np.abs(pictures[0] - pictures[1]).max() > 0.1


@pytest.mark.parametrize("query", ["yaw=nan", "pitch=90", "distance=0", "distance=x", "yaw=1e999"])
def test_wrong_queries_are_refused(server: WebServer, query: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.url}frame.png?{query}")
    assert caught.value.code == 400 and json.loads(caught.value.read())["code"] == "input"


@pytest.mark.slow
def test_the_page_shows_the_scene(server: WebServer) -> None:
    opened = chromium.opened(server.url)
    assert "30 splats" in opened.text and not opened.console, opened.console


def test_bytes_of_a_picture_are_those_of_a_file(tmp_path: Path) -> None:
    image = np.random.default_rng(0).random((3, 5, 3))
    write_png(tmp_path / "a.png", image)
    assert (tmp_path / "a.png").read_bytes() == png_bytes(image)
