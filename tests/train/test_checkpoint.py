"""Checkpoints: exact, never half there, recognised when damaged, and safe from a full disk."""

from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pumice.errors import CheckpointMismatch, DiskFull, FormatError, InputError
from pumice.train.checkpoint import (
    MANIFEST,
    OPTIM,
    PARAMS,
    STATE,
    Checkpoint,
    Checkpoints,
    check_same,
    load_checkpoint,
    load_params,
)

RNG = np.random.default_rng(5)


def state(step: int = 1) -> dict:
    params = {
        "layers.0.weight": RNG.normal(size=(3, 4)).astype("f4"),
        "layers.0.bias": np.float32([np.pi, -0.0, 1e-42]),
        "half": RNG.normal(size=5).astype("f2"),
        "brain": np.ones((2, 2), ml_dtypes.bfloat16),
        "empty": np.zeros((0, 3), "f4"),
        "scalar": np.float32(2.5).reshape(()),
        "flags": np.array([True, False]),
    }
    optim = {"optim.m.layers.0.weight": RNG.normal(size=(3, 4)).astype("f4"), "amp.skipped": np.int32(7).reshape(())}
    return {"params": params, "optim": optim, "meta": {"count": step, "micro": 0, "seed": 0}}


def same(a: dict, b: dict) -> bool:
    return list(a) == list(b) and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and a[n].tobytes() == b[n].tobytes() for n in a
    )


def test_what_is_saved_comes_back_bit_by_bit(tmp_path):
    saved = state()
    with Checkpoints(tmp_path / "new" / "folder") as kept:
        assert kept.latest() is None and not kept.has_any()
        path = kept.save(1, saved, {"loss": 0.1 + 0.2, "none": None}, metric=0.5)
        found = kept.latest()
    assert path.name == "step-00000001" and sorted(p.name for p in path.iterdir()) == sorted([PARAMS, OPTIM, STATE, MANIFEST])
    assert found is not None and found.path == path and found.step == 1
    assert same(saved["params"], dict(found.params)) and same(saved["optim"], dict(found.optim))
    assert found.meta == saved["meta"] and found.run == {"loss": 0.1 + 0.2, "none": None}
    assert same(load_params(path), saved["params"]) and same(load_params(path / PARAMS), saved["params"])


def test_other_libraries_read_the_params(tmp_path):
    from safetensors import safe_open
    from safetensors.numpy import load_file

    saved = state()
    del saved["params"]["brain"]  # NumPy has no such type without ml_dtypes
    with Checkpoints(tmp_path) as kept:
        path = kept.save(1, saved, {})
    assert same(dict(sorted(load_file(path / PARAMS).items())), dict(sorted(saved["params"].items())))
    with safe_open(path / PARAMS, "np") as file:
        assert file.metadata() == {"format": "pt"}


def test_the_latest_and_the_best_are_kept(tmp_path):
    metrics = {10: 3.0, 20: 1.0, 30: 2.0, 40: float("nan"), 50: None, 60: 1.0}
    with Checkpoints(tmp_path, keep=2) as kept:
        for step, metric in metrics.items():
            kept.save(step, state(step), {}, metric)
        assert [e.step for e in kept.entries()] == [20, 50, 60]
        assert kept.best().step == 20
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


DAMAGES = {
    "flip params": lambda p: flip(p / PARAMS),
    "flip optim": lambda p: flip(p / OPTIM),
    "flip state": lambda p: flip(p / STATE),
    "cut params": lambda p: os.truncate(p / PARAMS, 40),
    "no optim": lambda p: (p / OPTIM).unlink(),
    "no manifest": lambda p: (p / MANIFEST).unlink(),
    "empty manifest": lambda p: (p / MANIFEST).write_text(""),
    "list manifest": lambda p: (p / MANIFEST).write_text("[]"),
    "other manifest": lambda p: (p / MANIFEST).write_text('{"files": {"x": {}}, "metric": null, "step": 2}'),
    "empty folder": lambda p: (shutil.rmtree(p), p.mkdir()),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_ones_are_passed_over_and_named(tmp_path, how):
    with Checkpoints(tmp_path, keep=1) as kept:
        kept.keep = 3
        first, second = kept.save(1, state(), {}, 5.0), kept.save(2, state(), {}, 1.0)
        DAMAGES[how](second)
        found = kept.latest()
        assert found is not None and found.path == first
        ((name, why),) = kept.skipped
        assert name == second.name and why
        with pytest.raises(FormatError):
            load_checkpoint(second)
        # What is damaged counts neither as one of the latest nor as the best, and is replaced when the run gets there again.
        kept.keep = 1
        assert kept.best().path == first
        third = kept.save(3, state(), {}, 7.0)
        assert [e.path for e in kept.entries()] == [first, third]
        kept.save(2, state(), {}, 0.5)
        assert kept.best().step == 2 and load_checkpoint(second)


def test_if_all_are_damaged_nothing_starts_anew(tmp_path):
    with Checkpoints(tmp_path) as kept:
        flip(kept.save(1, state(), {}) / PARAMS)
        (kept.save(2, state(), {}) / STATE).unlink()
        with pytest.raises(FormatError, match=r"all 2 checkpoints .* are damaged: step-00000002") as error:
            kept.latest()
        assert len(error.value.fields["skipped"]) == 2


def test_what_a_killed_writer_left_is_removed(tmp_path):
    with Checkpoints(tmp_path) as kept:
        path = kept.save(1, state(), {})
    shutil.copytree(path, tmp_path / ".step-00000002.0a1b2c3d.part")
    with Checkpoints(tmp_path) as kept:
        assert kept.latest().step == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "step-00000001"]


def test_two_runs_cannot_share_a_folder(tmp_path):
    with Checkpoints(tmp_path), pytest.raises(InputError, match="another run is training"), Checkpoints(tmp_path):
        pass
    with Checkpoints(tmp_path) as kept:
        assert kept.latest() is None


def good(folder: Path, step: int) -> None:
    """The folder has this one whole checkpoint and nothing else."""
    assert sorted(p.name for p in folder.iterdir()) == [".lock", f"step-{step:08d}"]
    assert load_checkpoint(folder / f"step-{step:08d}").step == step


def test_a_disk_that_fills_up(tmp_path):
    large = state() | {"optim": {"m": np.ones(1 << 18, "f4")}}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(tmp_path, keep=1) as kept:
        kept.save(1, state(), {})
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        try:
            with pytest.raises(DiskFull, match=r"the disk is full, .*step-00000002 \(1 MiB\) was not written") as error:
                kept.save(2, large, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert error.value.fields["needed"] > 1 << 20 and "free some space" in error.value.hint
        good(tmp_path, 1)
        assert kept.save(2, large, {}).name == "step-00000002"
    good(tmp_path, 2)


def test_a_disk_that_is_full_already_is_not_tried(tmp_path, monkeypatch):
    with Checkpoints(tmp_path) as kept:
        kept.save(1, state(), {})
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
        with pytest.raises(DiskFull, match="10 B are free"):
            kept.save(2, state(), {})
    good(tmp_path, 1)


def test_a_place_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write to"), Checkpoints(tmp_path / "file" / "inside"):
        pass


def changed(part: str, **arrays: np.ndarray | None) -> Checkpoint:
    found = {kind: dict(values) for kind, values in state().items()}
    for name, array in arrays.items():
        if array is None:
            del found[part][name]
        else:
            found[part][name] = array
    return Checkpoint(Path("step-00000009"), 9, found["params"], found["optim"], {})


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (changed("params", half=np.zeros(6, "f2")), "another model: param 'half' is float16 [6] there, float16 [5] here"),
        (changed("params", half=np.zeros(5, "f4")), "another model: param 'half' is float32 [5] there, float16 [5] here"),
        (changed("params", half=None), "another model: it has no param 'half'"),
        (changed("params", more=np.zeros(5)), "another model: it has the param 'more', which is not here"),
        (changed("optim", more=np.zeros(5)), "another optimizer: it has the state 'more', which is not here"),
    ],
)
def test_the_first_difference_is_named(found, text):
    with pytest.raises(CheckpointMismatch) as error:
        check_same(state(), found)
    assert text in error.value.message and "nothing was changed" in error.value.hint


def test_manifests_name_the_hash_of_every_file(tmp_path):
    import hashlib

    with Checkpoints(tmp_path) as kept:
        path = kept.save(1, state(), {}, metric=0.25)
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["metric"] == 0.25
    for name, wanted in manifest["files"].items():
        data = (path / name).read_bytes()
        assert wanted == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
