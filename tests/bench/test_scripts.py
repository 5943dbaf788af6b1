"""The benchmarks can be started: whoever changes what they call finds out here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parents[2] / "bench"
# These are run by a Python that has torch or matplotlib, which the tests do without.
ELSEWHERE = {"gpu_peers.py", "ops_peers.py", "plot.py", "splats_peer.py"}
# These have no command line.
PARTS = {
    "batch_sides.py",
    "cpu_sides.py",
    "gpu_batch.py",
    "gpu_bench.py",
    "gpu_math.py",
    "gpu_nets.py",
    "gpu_text.py",
    "measure.py",
    "ops_works.py",
    "precision_sides.py",
    "random_models.py",
    "shapes.py",
    "train_models.py",
    "warm.py",
}


@pytest.mark.parametrize("script", sorted(p.name for p in BENCH.glob("*.py") if p.name not in ELSEWHERE | PARTS))
def test_help(script: str) -> None:
    done = subprocess.run([sys.executable, str(BENCH / script), "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--help" in done.stdout


@pytest.mark.parametrize(
    ("script", "args", "said"),
    [
        ("cpu.py", ["--only", "smollm2,nothing"], "nothing is not among start,smollm2"),
        ("gpu.py", ["--only", "nothing"], "nothing is not among matmul"),
        ("gpu.py", ["--precision", "exact,f8"], "f8 is not among exact,f16,bf16"),
        ("batch.py", ["--device", "cuda"], "--device is host, webgpu or vulkan, not cuda"),
        ("train_step.py", ["--model", "mlp", "--precision", "f16"], "--precision is for transformers: mlp is measured in f32"),
        ("ops.py", ["--only", "nothing"], "nothing is not among fft"),
        ("scaling.py", ["--only", "nothing"], "nothing is not among layers"),
        ("batch.py", ["--sequences", "1,0"], "'1,0' is no list of numbers from 1 on"),
        ("batch.py", ["--device", "webgpu", "--lengths", "64"], "caches must hold more than the 64 new tokens"),
        ("pairs.py", ["nowhere"], "nowhere is no checkout"),
        ("before_after.py", ["nowhere", "--table", "cpu"], "nowhere is no checkout"),
        ("report.py", ["nowhere.json"], "nowhere.json is no results file"),
    ],
)
def test_what_is_not_there_is_named(script: str, args: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, str(BENCH / script), *args], capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr


def test_random_models_run() -> None:
    code = (
        "from random_models import generate, random_engine, step_graph; from shapes import decoder_shape;"
        "from pumice.backends.select import open_device; device = open_device('host');"
        "engine, size = random_engine(decoder_shape(64, 2), device, dtype='f32', context=32);"
        "print(size, generate(engine, 4, 3, seed=1).decode_tokens, len(step_graph(decoder_shape(64, 2), device.caps, None)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=BENCH)
    assert done.returncode == 0, done.stderr
    size, tokens, nodes = map(int, done.stdout.split())
    assert size > 0 and tokens == 2 and nodes > 50


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("device", ["host", "webgpu"])
def test_every_op_of_the_table_runs(device: str, tmp_path: Path) -> None:
    """At tiny sizes and without a peer; operands, functions and closed forms are those of the real table."""
    out = tmp_path / "found.json"
    command = [sys.executable, str(BENCH / "ops.py"), "--small", "--device", device, "--rounds", "1", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [rows] = json.loads(out.read_text())["tables"].values()
    assert len(rows) > 30 and all(row["ours"] > 0 for row in rows)
    assert all(row["peer"] > 0 for row in rows if row["peer_name"] == "closed form")


GPU_APIS = ["webgpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]


def run_gpu_table(folder: Path, device: str, *args: str) -> dict[str, dict[str, Any]]:
    """The rows of bench/gpu.py at tiny sizes and without peers, by key."""
    out = folder / "found.json"
    options = ["--small", "--alone", "--rounds", "1", "--devices", device, "--json", str(out)]
    done = subprocess.run([sys.executable, str(BENCH / "gpu.py"), *options, *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [rows] = json.loads(out.read_text())["tables"].values()
    assert all(row["device"] == device and row["goal"] is None for row in rows)
    return {row["key"].removesuffix(f" {device}"): row for row in rows}


@pytest.mark.gpu
@pytest.mark.parametrize("device", GPU_APIS)
def test_groups_of_the_gpu_table(device: str, tmp_path: Path) -> None:
    rows = run_gpu_table(tmp_path, device, "--only", "matmul,train,vit", "--precision", "exact")
    assert list(rows) == ["matmul f32", "matmul f16", "matmul f16 torch", "matmul bf16 torch", "train", "vit"]
    assert all(row["ours"] > 0 for row in rows.values())


@pytest.mark.gpu
def test_a_train_step_of_the_gpu_table_in_half_precision_learns_as_in_f32(tmp_path: Path) -> None:
    rows = run_gpu_table(tmp_path, "webgpu", "--only", "train", "--precision", "f16")
    assert list(rows) == ["train f16", "train losses f16"]
    losses = rows["train losses f16"]["data"]
    assert len(losses["losses"]) == len(losses["f32"]) > 1 and losses["losses"] != losses["f32"]
    assert rows["train losses f16"]["ours"] < 1


def test_the_gpu_table_names_a_precision_that_a_row_cannot_have() -> None:
    code = "from gpu_bench import precision_option; print(precision_option(lambda graph: None, 'f16'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=BENCH)
    assert done.returncode == 1 and "takes no precision: only exact can be measured, not f16" in done.stderr


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("device", GPU_APIS)
def test_every_row_of_the_gpu_table(device: str, tmp_path: Path) -> None:
    rows = run_gpu_table(tmp_path, device)
    begins = ["matmul", "matvec", "dispatches", "minilm", "minilm f16", "vit", "train", "smollm2", "llama1b", "tiny", "qwen1.5b"]
    assert not [name for name in begins if not any(key.startswith(name) for key in rows)]
    assert {f"matvec {kind}" for kind in ("f16", "q8_0", "q6_k", "q4_k", "q5_k")} <= set(rows)
    # What is measured may be 0 only where 0 is best.
    assert all(row["ours"] > 0 or row["unit"] == "%" for row in rows.values())


@pytest.mark.gpu
@pytest.mark.parametrize("device", ["host", "webgpu"])
def test_work_beside_a_foreground_gives_the_same_bits_scheduled_or_not(device: str, tmp_path: Path) -> None:
    works = ["generate", "train", "matmul"] if device == "host" else ["matmul"]
    args = ["--device", device, "--works", ",".join(works), "--model", "tiny", "--small", "--seconds", "0.2", "--rounds", "1"]
    out = tmp_path / "found.json"
    command = [sys.executable, str(BENCH / "foreground.py"), *args, "--largest-step", "1", "--json", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["settings"]["seconds"] == 0.2 and list(found["works"]) == works
    for name, work in found["works"].items():
        assert work["bit_equal"] and work["compared"] > 1, name
        assert [mode for mode, f in work["modes"].items() if f["units"]] == ["cooperative", "disabled"]
        assert all(f["verification"] for mode, f in work["modes"].items() if mode != "idle")
    assert device != "host" or "random weights" in found["works"]["generate"]["note"]
    assert ("in pieces: matmul" in found["works"]["matmul"]["note"]) == (device == "webgpu")


def run_batch(folder: Path, *args: str) -> list[dict[str, Any]]:
    """The rows of bench/batch.py with a tiny model of random weights, from an empty home."""
    done = subprocess.run(
        [sys.executable, str(BENCH / "batch.py"), "--model", "random:tiny", "--results", str(folder / "results"), *args],
        capture_output=True,
        text=True,
        env={**os.environ, "PUMICE_HOME": str(folder / "home")},
    )
    assert done.returncode == 0, done.stderr
    (made,) = (path for path in (folder / "results").glob("*-cores.json") if not path.name.startswith("arrivals"))
    (rows,) = json.loads(made.read_text())["tables"].values()
    assert rows[0]["work"] in (folder / "RESULTS.md").read_text()
    found: list[dict[str, Any]] = rows
    return found


def test_batches_of_sequences(tmp_path: Path) -> None:
    rows = run_batch(tmp_path, "--sequences", "1,3", "--lengths", "8", "--rounds", "1")
    assert [r["key"] for r in rows] == ["batch 1 x 8", "decode 1 x 8", "batch 3 x 8", "decode 3 x 8"]
    assert all(r["ours"] > 0 and r["peer"] is None for r in rows)


def test_arrivals(tmp_path: Path) -> None:
    rows = run_batch(tmp_path, "--sequences", "2", "--lengths", "4,6", "--arrivals", "6", "--loads", "0.9,5")
    # Random tokens are often part of a character: they come with the next piece of text, with no time between them.
    assert len(rows) == 4 and all(0 <= r["ours"] <= r["data"]["p99"] and r["data"]["p99"] > 0 for r in rows)
    (kept,) = (tmp_path / "results").glob("arrivals-*.json")
    found = json.loads(kept.read_text())["arrivals"]
    assert list(found["loads"]) == ["0.9", "5"]
    for lines in found["loads"].values():
        assert all(len(values) == len(found["percentiles"]) and values == sorted(values) for values in lines.values())


def test_the_processor_is_not_measured_without_its_kernels() -> None:
    """A Python without numba would measure NumPy, and say nothing of it."""
    code = (
        "import sys; sys.modules['numba'] = None; import importlib.util as u; find = u.find_spec;"
        "u.find_spec = lambda name, *rest: None if name == 'numba' else find(name, *rest);"
        "import batch_sides; batch_sides.pumice('random:tiny', 'host', 1, 32, 'f32')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=BENCH)
    assert done.returncode == 1 and "has no numba" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_every_row_of_the_cpu_table_from_an_empty_home(tmp_path: Path) -> None:
    """With the peers where their environment is there (bench/peers.sh makes it); without them our own sides."""
    folder = tmp_path / "results"
    done = subprocess.run(
        [sys.executable, str(BENCH / "cpu.py"), "--rounds", "1", "--results", str(folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PUMICE_HOME": str(tmp_path / "home")},
    )
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.json")
    (rows,) = json.loads(made.read_text())["tables"].values()
    keys = ["start", "memory", "decode", "prefill", "embed", "train", "train-memory", "plan", "compile", "roof"]
    found = {r["key"].replace("train memory", "train-memory").split()[0] for r in rows}
    assert found == set(keys) and all(r["ours"] > 0 for r in rows)
    peers = Path(os.environ.get("PUMICE_BENCH_PYTHON") or BENCH.parent / ".bench-venv" / "bin" / "python")
    if peers.exists():
        assert not [r["key"] for r in rows if r["peer"] is None and not r["key"].startswith(("roof", "plan", "compile"))]
