"""`pumice bench`: our speed on this machine, for a few operations or for a model."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.cli.generate import device_line
from pumice.cli.pull import progress_bar
from pumice.cli.receipt_option import ReceiptFile
from pumice.core.precisions import Precision
from pumice.errors import InputError
from pumice.run.device import Device

if TYPE_CHECKING:
    from pumice.llm.answers import Generation
    from pumice.receipts.receipt import Receipt

_TEXTS = ["a sentence of a few words, repeated until it is long enough to measure"] * 32
_PAIRS = [("a question of a few words", text) for text in _TEXTS]


def measured(run: Callable[[], object], *, repeats: int = 7) -> list[float]:
    """Seconds of each call, in rising order, after one that is not counted."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return sorted(times)


def result_row(work: str, times: Sequence[float], amount: float, unit: str) -> dict[str, Any]:
    """A result: the median time and rate, and the spread of the rate from the slowest to the fastest run.

    >>> row = result_row("decode", [0.5, 1.0, 2.0], 10, "tokens/s")
    >>> row["rate"], row["rate_min"], row["rate_max"], row["repeats"]
    (10.0, 5.0, 20.0, 3)
    """
    seconds = statistics.median(times)
    low, high = amount / max(times), amount / min(times)
    spread = {"rate_min": low, "rate_max": high, "repeats": len(times)}
    return {"work": work, "seconds": seconds, "rate": amount / seconds, "unit": unit, **spread}


def result_line(row: Mapping[str, Any]) -> str:
    """A result as it is printed.

    >>> result_line(result_row("decode 64 tokens", [0.5, 1.0, 2.0], 10, "tokens/s"))
    '  decode 64 tokens                 10.0 tokens/s  5.0…20.0 in 3 runs (1000.00 ms)'
    """
    spread = f"{row['rate_min']:.1f}…{row['rate_max']:.1f} in {row['repeats']} runs"
    return f"  {row['work']:<26} {row['rate']:>10.1f} {row['unit']:<9} {spread} ({row['seconds'] * 1e3:.2f} ms)"


def bench_ops(device: Device) -> list[dict[str, Any]]:
    """Matmuls, a quantised matvec, a softmax and an elementwise chain."""
    import pumice as pm
    from pumice.core.blocks import quantize_rows
    from pumice.core.dtypes import q8_0

    rng = np.random.default_rng(0)
    big = 512 if device.caps.dispatches and not device.caps.is_gpu else 1024
    rows: list[dict[str, Any]] = []

    def measure(name: str, fn: Callable[..., Any], amount: float, unit: str, params: Any = None, **arrays: Any) -> None:
        specs: dict[str, Any] = {k: pm.spec(*v.shape, dtype=v.dtype) for k, v in arrays.items()}
        if params is not None:
            specs["params"] = {k: pm.spec(*t[0], dtype=t[1]) for k, t in params.items()}
        with pm.compile(fn, device=device, **specs) as exe:
            if params is not None:
                exe.set_params({k: t[2] for k, t in params.items()})
            rows.append(result_row(name, measured(lambda: exe.run(arrays)), amount, unit))

    a, b = rng.normal(size=(big, big)).astype("f4"), rng.normal(size=(big, big)).astype("f4")
    measure(f"matmul {big}³ f32", lambda a, b: (a @ b).sum(), 2 * big**3 / 1e9, "GFLOP/s", a=a, b=b)
    packed = quantize_rows(q8_0, rng.normal(size=(4096, 2048)).astype("f4"))
    measure(
        "matvec 4096×2048 q8_0",
        lambda params, x: pm.qmatmul(x, params["w"]),
        packed.nbytes / 1e9,
        "GB/s",
        params={"w": ((4096, 2048), "q8_0", packed)},
        x=rng.normal(size=(1, 2048)).astype("f4"),
    )
    x = rng.normal(size=(256, 4096)).astype("f4")
    measure("softmax 256×4096", lambda x: pm.softmax(x, axis=-1).sum(), 2 * x.nbytes / 1e9, "GB/s", x=x)
    measure("gelu(x·2+1) 256×4096", lambda x: pm.gelu(x * 2.0 + 1.0).sum(), x.nbytes / 1e9, "GB/s", x=x)
    return rows


def bench_model(model: Any, prompt: int, answer: int) -> list[dict[str, Any]]:
    """Prefill and decode speed of a language model, or texts per second of an encoder."""
    from pumice.llm.cross_encoder import CrossEncoder
    from pumice.llm.embed import EmbeddingModel
    from pumice.llm.requests import Request, SamplingParams, Timings

    if isinstance(model, EmbeddingModel):
        return [result_row("embed 32 texts", measured(lambda: model.embed(_TEXTS), repeats=5), len(_TEXTS), "texts/s")]
    if isinstance(model, CrossEncoder):
        return [result_row("score 32 pairs", measured(lambda: model.scores(_PAIRS), repeats=5), len(_PAIRS), "pairs/s")]
    engine = model.engine
    rng = np.random.default_rng(0)
    times: dict[str, list[float]] = {"prefill": [], "decode": []}
    for repeat in range(6):
        timings = Timings()
        # Random prompts: nothing of the last one may be reused.
        tokens = rng.integers(0, engine.cfg.vocab, prompt).tolist()
        for _event in engine.stream([Request(tokens, SamplingParams(temperature=0), answer)], timings=timings):
            pass
        if repeat:  # the first run prepares what the others use
            times["prefill"].append(timings.prefill_s)
            times["decode"].append(timings.decode_s)
    # The first token of an answer comes from the prefill.
    amounts = {"prefill": (prompt, prompt), "decode": (answer, answer - 1)}
    return [result_row(f"{name} {count} tokens", times[name], ran, "tokens/s") for name, (count, ran) in amounts.items()]


def model_receipt(model: Any, prompt: int, answer: int) -> Receipt:
    """The receipt of one more run like those that were measured; its stages have times of their own."""
    from pumice.llm.cross_encoder import CrossEncoder
    from pumice.llm.embed import EmbeddingModel

    if isinstance(model, EmbeddingModel):
        return model.embed(_TEXTS, receipt=True)[1]
    if isinstance(model, CrossEncoder):
        return model.scores(_PAIRS, receipt=True)[1]
    tokens = np.random.default_rng(1).integers(0, model.engine.cfg.vocab, prompt).tolist()
    found: Generation = model.generate(tokens, max_tokens=answer, temperature=0, ignore_eos=True)
    return found.receipt


def run(
    what: str,
    *,
    load_options: Mapping[str, Any],
    as_json: bool,
    prompt: int,
    answer: int,
    receipts: ReceiptFile | None = None,
) -> int:
    """Measure and print; the exit code."""
    from pumice.llm.load import load
    from pumice.run.device import open_device

    kept: dict[str, Any] = {}
    if what == "ops" and receipts is not None:
        raise InputError("bench ops runs no model, of which a receipt could be", hint="name a model, or leave --receipt out")
    if what == "ops" and load_options.get("precision") is not None:
        raise InputError("bench ops runs no model, which would have a precision", hint="name a model, or leave it out")
    precision: Precision = "exact"
    if what == "ops":
        opened = open_device(load_options["device"])
        info = {"name": opened.name, "target": opened.caps.target, "software": opened.caps.software}
        rows = bench_ops(opened)
    else:
        print(f"loading {what}", file=sys.stderr)
        with progress_bar(quiet=as_json) as report:
            loaded = load(what, **load_options, context=prompt + answer, progress=report)
        with loaded as model:
            info, precision = model.describe_device(), model.precision
            rows = bench_model(model, prompt, answer)
            if receipts is not None:
                kept = receipts.as_json(model_receipt(model, prompt, answer))
    if as_json:
        print(json.dumps({"device": info, "precision": precision, "results": rows} | kept))
        return 0
    print(f"on {device_line(info, precision)}")
    for row in rows:
        print(result_line(row))
    if kept:
        print(f"receipt: {kept['receipt']['file']}", file=sys.stderr)
    return 0
