"""`pumice rerank` and `pumice classify`: texts with the scores of a cross-encoder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pumice.cli.generate import device_line
from pumice.cli.pull import progress_bar
from pumice.cli.receipt_option import ReceiptFile
from pumice.cli.text_input import shortened, text_items

if TYPE_CHECKING:
    from pumice.receipts.receipt import Receipt

# What a command prints with --json, its lines without it, and the receipt.
Scored: TypeAlias = "tuple[dict[str, Any], list[str], Receipt | None]"


def rerank(model: str, query: str, texts: Sequence[str], file: Path | None, *, top: int | None, **options: Any) -> int:
    """Print the texts (arguments, then lines of the file) by how well they answer the query, best first; the exit code."""
    items = text_items(texts, file, "rank")

    def ranking(loaded: Any, report: Any) -> Scored:
        found, proof = _with_receipt(partial(loaded.rank, query, items, top, progress=report), options)
        rows = [{"index": r.index, "score": r.score, "text": r.text} for r in found]
        lines = [f"{r.score:.4f}\t{r.index}\t{shortened(r.text)}" for r in found]
        return {"query": query, "results": rows}, lines, proof

    return _run(model, "rerank", len(items), ranking, **options)


def classify(model: str, texts: Sequence[str], file: Path | None, **options: Any) -> int:
    """Print the likeliest label of each text and its score; the exit code."""
    items = text_items(texts, file, "classify")

    def labels(loaded: Any, report: Any) -> Scored:
        found, proof = _with_receipt(partial(loaded.classify, items, progress=report), options)
        rows = [{"label": c.label, "score": c.score, "scores": c.scores, "text": t} for c, t in zip(found, items, strict=True)]
        lines = [f"{c.score:.4f}\t{c.label}\t{shortened(t)}" for c, t in zip(found, items, strict=True)]
        return {"labels": list(loaded.labels), "results": rows}, lines, proof

    return _run(model, "classify", len(items), labels, **options)


def _with_receipt(call: Callable[..., Any], options: Mapping[str, Any]) -> tuple[Any, Receipt | None]:
    """What a call gives, and its receipt where one is wanted."""
    if options.get("receipts") is None:
        return call(), None
    found: tuple[Any, Receipt] = call(receipt=True)
    return found


def _run(
    model: str,
    task: str,
    count: int,
    scored: Callable[[Any, Any], Scored],
    *,
    load_options: Mapping[str, Any],
    as_json: bool,
    receipts: ReceiptFile | None = None,
) -> int:
    """Load a model for a task, and print what `scored` makes of it: an object, or lines; the receipt goes to its file."""
    from pumice.llm.load import load

    with progress_bar(quiet=as_json) as report, load(model, task, **load_options, progress=report) as loaded:
        started = time.perf_counter()
        out, lines, proof = scored(loaded, report)
        seconds = time.perf_counter() - started
        info = loaded.describe_device()
    kept = {} if receipts is None or proof is None else receipts.as_json(proof)
    if as_json:
        out |= kept | {"count": count, "timings": {"score_s": round(seconds, 6)}, "device": info, "model": loaded.info}
        print(json.dumps(out))
        return 0
    for line in lines:
        print(line)
    print(f"{count} texts in {seconds:.2f} s on {device_line(info, loaded.precision)}", file=sys.stderr)
    if kept:
        print(f"receipt: {kept['receipt']['file']}", file=sys.stderr)
    return 0
