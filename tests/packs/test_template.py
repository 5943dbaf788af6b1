"""`pumice pack new` as a new user takes it: the template builds, passes its test, and survives an edit."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import pumice as pm
from cli_harness import environment
from pack_making import needs_compiler
from pumice import config
from pumice.cli.main import app
from pumice.errors import InputError, NoDevice
from pumice.ir.registry import get_op
from pumice.packs.archive import read_pack
from pumice.packs.build import build_pack, read_built
from pumice.packs.errors import BuildFailed
from pumice.packs.kernels import pack_kernels
from pumice.packs.new_pack import new_pack
from pumice.plan.build import build_plan
from pumice.plan.plan import PlanOptions
from pumice.run.device import open_device

from harness import check, device, one_op


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


def said(*args: object) -> str:
    done = CliRunner().invoke(app, ["pack", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return str(done.stdout)


def answer(*args: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(*args, "--json"))
    return found


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv(next(s.env for s in config.table() if s.name == "home"), str(tmp_path / "home"))


def squared(text: str) -> str:
    """The template's sources with the cube in place of the square."""
    for old, new in (
        ("(f32.mul (local.get $v) (local.get $v))", "(f32.mul (local.get $v) (f32.mul (local.get $v) (local.get $v)))"),
        ("u.scale * (v * v)", "u.scale * (v * v * v)"),
        ("%4 : f32[rows,dim] = mul(%3, %1)", "%4 : f32[rows,dim] = mul(%3, %2)\n%5 : f32[rows,dim] = mul(%4, %1)"),
        ('"result"=%4', '"result"=%5'),
    ):
        text = text.replace(old, new)
    return text


def power_of(folder: Path, which: str | Path, insecure: bool = False) -> float:
    """The power of x that the op of a pack is, by running it through a plan."""
    pack = pm.load_pack(which, insecure=insecure)
    run = pm.compile(lambda x: pack.ops.squared_relu(x, scale=3.0), x=pm.spec("T", 3), device="host", packs=[pack])
    assert [s.variant for s in run.plan.steps if "/squared_relu_f32 " in s.variant]
    (found,) = run(x=np.float32([[-2.0, 0.0, 2.0]]))
    assert found[0] == found[1] == 0
    return float(np.log2(found[2] / 3))


def test_a_new_users_way_from_a_template_to_an_upgrade(tmp_path, home, monkeypatch):
    """new, build, keys, sign, install, run; then an edit, and the same again. A name is the installed pack, not the folder."""
    monkeypatch.chdir(tmp_path)
    folder = Path("mine")
    assert "pumice pack build" in said("new", folder)
    built = answer("build", folder, "--check", "host")
    assert built["compared"]["squared_relu_f32"] == "agrees with the reference on host"
    said("keys", "new", "me", "--trust")
    said("sign", built["path"], "--key", "me")
    assert "mine 0.1.0 is verified" in said("verify", built["path"])
    said("install", built["path"])
    assert answer("run", "mine", "squared_relu_f32", "--input", "x=random:2x8")
    assert power_of(folder, "mine") == 2

    kernel = folder / "src" / "squared_relu.wat"
    kernel.write_text(squared(kernel.read_text()))
    # Only one of three was edited: kernel and reference disagree.
    before = Path(built["path"]).read_bytes()
    with pytest.raises(BuildFailed, match=r"squared_relu_f32 does not agree with the reference of mine\.squared_relu on host"):
        said("build", folder, "--check", "host")
    assert Path(built["path"]).read_bytes() == before
    for other in (folder / "src" / "squared_relu.graph", folder / "kernels" / "squared_relu.wgsl"):
        other.write_text(squared(other.read_text()))
    manifest = (folder / "kernels.json").read_text()
    (folder / "kernels.json").write_text(manifest.replace('"version": "0.1.0"', '"version": "0.2.0"'))
    # This time build signs as well.
    assert answer("build", folder, "--key", "me", "--check", "host")["version"] == "0.2.0"
    said("upgrade", built["path"])
    assert power_of(folder, "mine") == 3
    said("rollback", "mine")
    assert power_of(folder, "mine") == 2


def test_a_kernel_that_fails_ends_the_build_though_another_would_stand_in(tmp_path, home):
    new_pack(tmp_path / "mine")
    kernel = tmp_path / "mine" / "src" / "squared_relu.wat"
    # It takes the params for another size than they have.
    kernel.write_text(
        kernel.read_text().replace("offset=36 (local.get $d)) (i32.const 8)", "offset=36 (local.get $d)) (i32.const 9)")
    )
    with pytest.raises(BuildFailed, match=r"the kernel squared_relu_f32 .* invalid param"):
        said("build", tmp_path / "mine", "--check", "host")
    assert not (tmp_path / "mine" / "dist").exists()


def test_without_a_gpu_kernels_in_wgsl_are_not_compared_and_the_build_says_so(tmp_path, home, monkeypatch):
    def no_gpu(spec: str) -> Any:
        if spec == "webgpu":
            raise NoDevice("no adapter", hint="none")
        return open_device(spec)

    monkeypatch.setattr("pumice.run.device.open_device", no_gpu)
    new_pack(tmp_path / "mine")
    compared = answer("build", tmp_path / "mine")["compared"]
    assert compared["squared_relu_f32"] == "agrees with the reference on host"
    assert compared["squared_relu_f32_wgsl"] == "not compared: no adapter"


@pytest.mark.gpu
def test_the_templates_wgsl_agrees_with_the_reference(tmp_path):
    new_pack(tmp_path / "mine")
    build_pack(tmp_path / "mine")
    kernels = tuple(k for k in pack_kernels(read_built(tmp_path / "mine")) if k.wgsl)
    spec = get_op("mine.squared_relu")
    for sample in spec.samples():
        case = one_op(spec, replace(sample, attrs={"scale": 2.5}))
        assert check(case, "webgpu", pack_kernels=kernels) == ""
        plan = build_plan(case.graph, device("webgpu").caps, PlanOptions(pack_kernels=kernels))
        assert all(s.variant.startswith("pack mine@") for s in plan.steps)


def test_the_templates_own_test_passes(tmp_path, home):
    folder = tmp_path / "mine"
    said("new", folder)
    said("build", folder, "--check", "none")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
