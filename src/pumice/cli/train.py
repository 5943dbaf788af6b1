"""`pumice train`: a run from a configuration, with live progress on stderr and a summary on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pumice.cli import INTERRUPTED, TERMINATED
from pumice.cli.cooperative_option import NOT_SHARED, SharingOptions
from pumice.cli.receipt_option import ReceiptFile


def run(
    path: str,
    *,
    changes: Sequence[str],
    resume: bool,
    device: str | None,
    out: Path | None,
    as_json: bool,
    receipts: ReceiptFile | None = None,
    sharing: SharingOptions = NOT_SHARED,
) -> int:
    """Train, and print what came out; the exit code."""
    from pumice.train.config import load_config
    from pumice.train.launch import launch

    changes = [*changes]
    changes += [f"run.device={json.dumps(device)}"] if device is not None else []
    changes += [f"run.out={json.dumps(str(out))}"] if out is not None else []
    config = load_config(path, changes)
    settings: dict[str, Any] = {"receipt": receipts is not None, "cooperative": sharing.cooperative}
    with sharing.watched(f"training of {config.run.name}"):
        outcome = launch(config, resume="auto" if resume else False, progress=not as_json, **settings)
    result, proof = outcome.result, outcome.receipt
    kept = {} if receipts is None or proof is None else receipts.as_json(proof)
    if as_json:
        print(json.dumps(outcome.as_json() | kept | sharing.as_json()))
    else:
        for line in summary(outcome.as_json()):
            print(line)
        if line := sharing.line():
            print(line)
        if kept:
            print(f"receipt: {kept['receipt']['file']}", file=sys.stderr)
    if result.stopped in ("interrupted", "terminated"):
        saved = "saved; --resume goes on from there" if result.checkpoint else "nothing is saved yet"
        print(f"pumice: stopped at step {result.steps}, {saved}", file=sys.stderr)
    return {"interrupted": INTERRUPTED, "terminated": TERMINATED}.get(result.stopped, 0)


def summary(found: dict[str, Any]) -> list[str]:
    """A finished run in a few lines.

    >>> found = {"steps": 10, "epochs": 2.0, "seconds": 3.21, "device": "host", "stopped": "done", "loss": 0.5}
    >>> found |= {"validation": {"loss": 0.6}, "measured": {"test_accuracy": 0.975}, "best": None, "report": "r.html"}
    >>> print(*summary(found), sep="\\n")
    10 steps, 2.0 epochs in 3.2 s on host: done
    loss 0.5000, validation loss 0.6000
    test_accuracy: 0.975
    report: r.html
    """
    loss = "" if found["loss"] is None else f"loss {found['loss']:.4f}"
    numbers = [loss, *(f"validation {name} {value:.4f}" for name, value in found["validation"].items() if value is not None)]
    length = f"{found['steps']} steps, {found['epochs']:.1f} epochs in {found['seconds']:.1f} s"
    lines = [f"{length} on {found['device']}: {found['stopped']}", ", ".join(n for n in numbers if n)]
    lines += [
        f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}" for name, value in found["measured"].items()
    ]
    if found["best"] is not None:
        lines.append(f"best: {found['best']}")
    return [*lines, f"report: {found['report']}"]
