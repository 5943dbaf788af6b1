"""Inference of image networks at batch 1, in turns: Pumice on the host against onnxruntime, in f32.

python bench/inference.py [--model mobilenetv2] [--rounds 7] [--threads 2] [--processor-time] [--peer-python PATH]
Ours runs in the precisions exact and fast; ratios are the peer's time over each. The peer needs onnxruntime and torch, from
whose network the ONNX file is made. On a machine that others use as well, one thread's processor time says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import ROOT, Worker, has_modules, in_turns, serve, thread_settings
from train_models import INFERENCE, Network, ours, torchs

Run = Callable[[Any], Any]


def pumice_run(network: Network, threads: int, precision: str = "exact") -> Run:
    """A run of ours."""
    import pumice as pm
    from pumice import nn

    model = network.make(ours())
    options: dict[str, Any] = {"x": pm.spec(*network.shape), "device": "host", "precision": precision}
    run = pm.compile(lambda params, x: nn.apply(model, params, x), params=model.init(), **options)
    return lambda x: run(x=x)


def onnx_run(network: Network, threads: int) -> Run:
    """The same in onnxruntime."""
    import onnxruntime
    import torch

    model = network.make(torchs()).eval()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        torch.onnx.export(model, (torch.zeros(network.shape),), str(path), input_names=["x"], dynamo=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x})[0]


SIDES: dict[str, Callable[[Network, int], Run]] = {
    "pumice": pumice_run,
    "pumice fast": partial(pumice_run, precision="fast"),
    "onnxruntime": onnx_run,
}


def works(side: str, model: str, threads: int) -> dict[str, Callable[..., Any]]:
    """What the process of a side answers to."""
    network = INFERENCE[model]
    run = SIDES[side](network, threads)
    x, _ = network.batch()

    def measure(times: int, processor: bool) -> list[float]:
        clock = time.process_time if processor else time.perf_counter
        found = []
        for _ in range(times):
            begin = clock()
            np.asarray(run(x))
            found.append(clock() - begin)
        return found

    return {"measure": measure}


def measure_inference(
    model: str, python: str | None, threads: int, rounds: int, times: int = 5, processor: bool = False
) -> dict[str, float]:
    """Seconds of a run of each side, by the clock or of the processor's time."""
    pythons = {"pumice": sys.executable, "pumice fast": sys.executable, **({"onnxruntime": python} if python else {})}
    with ExitStack() as stack:
        workers = {
            side: stack.enter_context(
                Worker(where, Path(__file__), "--serve", side, "--model", model, "--threads", str(threads),
                       environment=thread_settings(threads))
            )
            for side, where in pythons.items()
        }  # fmt: skip
        for worker in workers.values():
            worker.ask("measure", times=3, processor=False)

        def side(worker: Worker) -> Callable[[int], list[float]]:
            return lambda i: list(worker.ask("measure", times=times, processor=processor))

        found = in_turns({name: side(w) for name, w in workers.items()}, rounds, warm=0)
    return {name: statistics.median(t for answer in answers for t in answer) for name, answers in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=tuple(INFERENCE), action="append")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--processor-time", action="store_true", help="of all threads together, in place of the clock's")
    peers = os.environ.get("PUMICE_BENCH_PYTHON") or str(ROOT / ".bench-venv" / "bin" / "python")
    parser.add_argument("--peer-python", default=peers if Path(peers).exists() else sys.executable)
    parser.add_argument("--serve", choices=tuple(SIDES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(works(args.serve, args.model[0], args.threads))
        return
    python: str | None = args.peer_python
    if not has_modules(python, "onnxruntime", "torch"):
        print(f"{python} has no onnxruntime and torch, only Pumice is measured: --peer-python names another Python")
        python = None
    for model in args.model or INFERENCE:
        found = measure_inference(model, python, args.threads, args.rounds, processor=args.processor_time)
        text = ", ".join(f"{side} {1e3 * seconds:.1f} ms" for side, seconds in found.items())
        ratios = [found["onnxruntime"] / found[side] for side in ("pumice", "pumice fast")] if "onnxruntime" in found else []
        print(f"{model}: {text}" + "".join(f", {ratio:.2f} ×" for ratio in ratios))


if __name__ == "__main__":
    main()
