"""`pumice pack run`, as users call it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from cli_harness import Done, pumice, refused
from pack_making import small_pack
from pumice.errors import InputError, PumiceError, PumiceWarning


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return small_pack().write_zip(tmp_path / "small.zip")


def run(home: Path, *args: object) -> Done:
    return pumice("pack", "run", *args, PUMICE_HOME=str(home))


def test_a_kernel_runs_with_a_file_and_saves_its_output(pack: Path, tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    np.save(tmp_path / "x.npy", x)
    done = run(
        tmp_path,
        pack,
        "relu_wasm",
        "--insecure",
        "--input",
        f"x={tmp_path}/x.npy",
        "--out",
        tmp_path / "y.npy",
        "--json",
        "--check",
    )
    assert done.returncode == 0, done.stderr
    assert "INSECURE" in done.stderr
    report = json.loads(done.stdout)
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.maximum(x, 0))
    assert report["insecure"] is True and report["signer"] == ""
    assert report["outputs"]["result"]["shape"] == [2, 3, 4]
    assert report["outputs"]["result"]["min"] == 0 and report["outputs"]["result"]["max"] == 1
    assert report["median_us"] > 0
    assert report["problem"] == ""


def test_random_inputs_and_text(pack: Path, tmp_path: Path) -> None:
    done = run(tmp_path, pack, "relu_wasm", "--insecure", "--input", "x=random:2x8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "small 1.0.0, relu_wasm (INSECURE: nobody vouches for it)"
    assert lines[1].startswith("  input  x float32[2, 8]  0.12573, -0.132105")
    assert lines[2].startswith("  output result float32[2, 8]  0.12573, 0, 0.640423")
    assert "µs first" in lines[3]


def test_inputs_that_are_not_given_have_the_usual_sizes() -> None:
    from pumice.cli.pack_run import _inputs, _outputs
    from wasm_making import entry

    specs = [{"name": "x", "dtype": "f32", "shape": ["rows...", "dim"]}, {"name": "w", "dtype": "q8", "shape": ["dim"]}]
    declared = entry(inputs=specs, outputs=[{"name": "result", "dtype": "bf16", "shape": ["rows...", "dim"]}])
    found = _inputs(declared, ["x=random:2x3x5"], 0)
    assert [a.shape for a in found.values()] == [(2, 3, 5), (5,)]
    assert [a.shape for a in _inputs(declared, [], 0).values()] == [(4, 64), (64,)]
    assert _outputs(declared, found)["result"].dtype.name == "bfloat16"


def test_a_signed_pack_needs_a_trusted_key(pack: Path, tmp_path: Path) -> None:
    refused(run(tmp_path, pack, "relu_wasm"), "keys trust", code=4)


@pytest.mark.parametrize(
    ("kernel", "inputs", "params", "said"),
    [
        ("nothing", [], [], "relu_wasm"),
        ("relu_wgsl", [], [], "WASM kernels run"),
        ("relu_wasm", ["y=random:2"], [], "it has x"),
        ("relu_wasm", ["x"], [], "random:2x8"),
        ("relu_wasm", ["x=random:2x-8"], [], "random:2x8"),
        ("relu_wasm", ["x=random:99999999x99999999"], [], "random:2x8"),
        ("relu_wasm", ["x=absent.npy"], [], "FILE.npy"),
        ("relu_wasm", ["x={folder}/doubles.npy"], [], "x of relu_wasm is f32, not float64"),
        ("relu_wasm", ["x={folder}/text.npy"], [], "numpy.save writes one"),
        ("relu_wasm", [], ["eps=1"], "it has none"),
    ],
)
def test_refused(pack: Path, tmp_path: Path, kernel: str, inputs: list[str], params: list[str], said: str) -> None:
    from pumice.cli.pack_run import run_kernel

    np.save(tmp_path / "doubles.npy", np.zeros(3))
    (tmp_path / "text.npy").write_text("no array")
    named = [text.format(folder=tmp_path) for text in inputs]
    with pytest.warns(PumiceWarning, match="INSECURE"), pytest.raises(PumiceError) as caught:
        run_kernel(str(pack), kernel, inputs=named, params=params, insecure=True)
    assert said in f"{caught.value.message} {caught.value.hint}"


def test_params_of_the_command_line() -> None:
    from pumice.cli.pack_run import _value
    from wasm_making import entry

    declared = entry(
        params={
            "eps": {"type": "f32", "default": 1},
            "n": {"type": "u32", "default": 1},
            "on": {"type": "bool", "default": True},
        }
    )
    assert _value(declared, "eps", "1e-5") == 1e-5
    assert _value(declared, "n", "7") == 7
    assert _value(declared, "on", "False") is False
    for name, text in (("n", "1.5"), ("on", "maybe"), ("eps", "small")):
        with pytest.raises(InputError, match="is no value"):
            _value(declared, name, text)


def test_a_wrong_kernel_is_found_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    from pack_making import RELU_WAT, wasm
    from pumice.cli.pack_run import run_kernel

    wrong = wasm(RELU_WAT.replace("f32.max", "f32.min"))
    pack = small_pack(name="wrong", files={"relu.wasm": wrong}).write_zip(tmp_path / "wrong.zip")
    with pytest.warns(PumiceWarning, match="INSECURE"), pytest.raises(typer.Exit) as caught:
        run_kernel(str(pack), "relu_wasm", insecure=True, check=True)
    assert caught.value.exit_code == 1
    assert "check  WRONG: " in capsys.readouterr().out
