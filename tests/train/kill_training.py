"""Run as a script: a small training run in forked children that are killed, some by the clock, some at a change of the disk.

Arguments: a scratch folder, how many kills, a seed. After every kill all checkpoints that can be seen must be whole; every run
that gets to its end must equal one that was never disturbed. Prints one JSON object.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import pumice as pm
from pumice import functions as F
from pumice import nn, optim
from pumice.train.checkpoint import load_checkpoint
from pumice.train.data import Arrays, Batches
from pumice.train.log import read_log
from pumice.train.step import compile_step
from pumice.train.trainer import Trainer

STEPS, EVERY = 120, 4
# What changes the disk, as Python reports it; `open` covers the start of every write.
EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


class Net(nn.Module):
    """Dropout needs the random key of its step, batch norm has buffers: both must go on where they were."""

    def __init__(self) -> None:
        self.first, self.norm, self.dropout, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 2)

    def forward(self, x: pm.Tensor) -> pm.Tensor:
        y: pm.Tensor = self.last(self.dropout(F.relu(self.norm(self.first(x)))))
        return y


def train(folder: Path, ready: Callable[[], None] = lambda: None) -> None:
    """The run, from wherever it is; its end is left in end.json."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(46, 4)).astype("f4")
    data = Batches(Arrays(x=x, y=(x.sum(1) > 0).astype("i4")), 8, seed=1)
    adam = optim.AdamW(optim.schedules.warmup(10, optim.schedules.cosine(0.05, 100)), ema=0.9)
    specs = {"x": pm.spec("B", 4), "y": pm.spec("B", dtype="i32")}
    with compile_step(Net(), lambda m, x, y: nn.cross_entropy(m(x), y), adam, specs, device="host", max=8, seed=7) as step:
        ready()
        trainer = Trainer(
            step, data, steps=STEPS, every=EVERY, validate=data, checkpoints=folder / "checkpoints", keep=2,
            log=folder / "log.jsonl", report=folder / "report.html", progress=False,
        )  # fmt: skip
        result = trainer.run()
        arrays = step.state_dict()
        content = hashlib.sha256(b"".join(a.tobytes() for part in ("params", "optim") for a in arrays[part].values()))
        losses = [[r["step"], r["loss"]] for r in read_log(folder / "log.jsonl") if "loss" in r]
        held = [[r["step"], r["validation"]["loss"]] for r in read_log(folder / "log.jsonl") if "validation" in r]
        end = {"loss": result.loss, "content": content.hexdigest(), "losses": losses, "validation": held}
        (folder / "end.json").write_text(json.dumps(end))


def child(work: Callable[[], None]) -> int:
    """Runs `work` in a fork; its process id."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def undisturbed(folder: Path) -> int:
    """A run that gets to its end; the status it ended with."""
    return os.waitpid(child(lambda: train(folder)), 0)[1]


def killed_by_clock(folder: Path, delay: float, *, from_start: bool) -> int:
    """A run that dies after some time, counted from its start or from the first batch; the status it ended with."""
    reading, writing = os.pipe()
    pid = child(lambda: train(folder, lambda: os.close(writing)))
    os.close(writing)
    if not from_start:
        os.read(reading, 1)  # returns at the end of the pipe
    os.close(reading)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def killed_at_event(folder: Path, number: int) -> int:
    """A run that dies at its n-th change of the disk."""
    left = number

    def hook(event: str, args: object) -> None:
        nonlocal left
        if event in EVENTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return os.waitpid(child(lambda: train(folder, lambda: sys.addaudithook(hook))), 0)[1]


def check_whole(folder: Path) -> int:
    """Loads every checkpoint that can be seen; how many there are."""
    found = sorted((folder / "checkpoints").glob("step-*"))
    for path in found:
        load_checkpoint(path)
    return len(found)


def main(scratch: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    calm = scratch / "calm"
    calm.mkdir()
    assert undisturbed(calm) == 0
    wanted = json.loads((calm / "end.json").read_text())
    assert len(wanted["losses"]) == STEPS
    done = runs = seen = 0
    folder = scratch / "run-0"
    folder.mkdir()
    while True:
        if done == kills:
            status = undisturbed(folder)
        elif rng.random() < 0.5:
            early = rng.random() < 0.2
            status = killed_by_clock(folder, rng.uniform(0, 0.5 if early else 0.15), from_start=early)
        else:
            status = killed_at_event(folder, rng.randint(1, 150))
        seen += check_whole(folder)
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            done += 1
            continue
        assert status == 0, status
        assert json.loads((folder / "end.json").read_text()) == wanted
        runs += 1
        if done == kills:
            break
        folder = scratch / f"run-{runs}"
        folder.mkdir()
    print(json.dumps({"kills": done, "runs": runs, "checkpoints": seen, "loss": wanted["loss"]}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
