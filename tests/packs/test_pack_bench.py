"""`pumice pack bench`: what it measures, what it writes into a manifest, and what it refuses. No time is judged here."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import pumice as pm
from pumice.cli.main import app
from pumice.cli.pack_bench import count_flops
from pumice.errors import InputError
from pumice.packs.build import build_pack
from pumice.packs.errors import BuildFailed, InvalidManifest
from pumice.packs.new_pack import new_pack


@pytest.fixture
def folder(tmp_path):
    new_pack(tmp_path / "mine")
    build_pack(tmp_path / "mine")
    return tmp_path / "mine"


def said(*args: object) -> str:
    done = CliRunner().invoke(app, ["pack", "bench", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def test_times_of_a_kernel_and_the_built_in_one_are_measured(folder):
    found = json.loads(said(folder, "--json"))
    assert (found["pack"], found["device"]) == ("mine", "host")
    (kernel,) = found["kernels"]  # the one in WGSL is for another device
    assert kernel["kernel"] == "squared_relu_f32"
    assert all(kernel[k] > 0 for k in ("latency_us", "throughput_gflops", "built_in_us", "ratio"))
    assert json.loads((folder / "kernels.json").read_text())["kernels"][0]["benchmarks"] == {}


def test_times_are_written_into_the_manifest_for_the_shapes_asked_for(folder):
    shapes = {"squared_relu": [{"x": [2, 3, 8]}, {"x": [16], "attrs": {"scale": 2.0}}]}
    (folder / "src" / "bench.json").write_text(json.dumps(shapes))
    build_pack(folder)
    text = said(folder, "--write")
    assert "squared_relu_f32" in text
    first, second = build_pack(folder).manifest.kernels
    assert list(first.benchmarks) == ["rows_6_dim_8", "rows_1_dim_16"]
    assert all(b.latency_us > 0 and b.throughput_gflops > 0 for b in first.benchmarks.values())
    assert second.benchmarks == {}


def test_what_was_not_built_or_cannot_be_called_is_refused(folder):
    (folder / "src" / "squared_relu.wat").write_text("(module)")
    with pytest.raises(BuildFailed, match="has changed since it was built"):
        said(folder)
    new_pack(folder.parent / "other")
    (folder.parent / "other" / "src" / "bench.json").write_text('{"squared_relu": [{"y": [2]}]}')
    build_pack(folder.parent / "other")
    with pytest.raises(InvalidManifest, match=r"bench\.json: other\.squared_relu takes x, not y"):
        said(folder.parent / "other")
    for wrong, why in (("{}", "should have a list"), ('[{"x": [-2]}]', "is no shape of x"), ('[{"x": "8"}]', "is no shape of x")):
        (folder.parent / "other" / "src" / "bench.json").write_text(f'{{"squared_relu": {wrong}}}')
        build_pack(folder.parent / "other")
        with pytest.raises(InvalidManifest, match=why):
            said(folder.parent / "other")
    with pytest.raises(InputError, match="no folder of a pack's sources"):
        said(folder.parent / "other" / "dist" / "other.zip", "--write")


def test_operations_are_counted_by_the_graph():
    graph = pm.trace(lambda x, w: pm.rms_norm((x @ w).reshape(4, 2), None) * 2.0, x=pm.spec(2, 8), w=pm.spec(8, 4))
    assert count_flops(graph) == 2 * 2 * 8 * 4 + 4 * 8 + 8
