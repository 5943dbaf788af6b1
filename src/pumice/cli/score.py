"""`pumice rerank` and `pumice classify`: texts with the scores of a cross-encoder."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pumice.cli.generate import device_line
from pumice.cli.pull import progress_bar
from pumice.cli.text_input import shortened, text_items


def rerank(model: str, query: str, texts: Sequence[str], file: Path | None, *, top: int | None, **options: Any) -> int:
    """Print the texts (arguments, then lines of the file) by how well they answer the query, best first; the exit code."""
    items = text_items(texts, file, "rank")

    def ranking(loaded: Any, report: Any) -> tuple[dict[str, Any], list[str]]:
        found = loaded.rank(query, items, top, progress=report)
        rows = [{"index": r.index, "score": r.score, "text": r.text} for r in found]
        return {"query": query, "results": rows}, [f"{r.score:.4f}\t{r.index}\t{shortened(r.text)}" for r in found]

    return _run(model, "rerank", len(items), ranking, **options)


def classify(model: str, texts: Sequence[str], file: Path | None, **options: Any) -> int:
    """Print the likeliest label of each text and its score; the exit code."""
    items = text_items(texts, file, "classify")

    def labels(loaded: Any, report: Any) -> tuple[dict[str, Any], list[str]]:
        found = loaded.classify(items, progress=report)
        rows = [{"label": c.label, "score": c.score, "scores": c.scores, "text": t} for c, t in zip(found, items, strict=True)]
        lines = [f"{c.score:.4f}\t{c.label}\t{shortened(t)}" for c, t in zip(found, items, strict=True)]
        return {"labels": list(loaded.labels), "results": rows}, lines

    return _run(model, "classify", len(items), labels, **options)


def _run(
    model: str,
    task: str,
    count: int,
    scored: Callable[[Any, Any], tuple[dict[str, Any], list[str]]],
    *,
    device: str,
    as_json: bool,
) -> int:
    """Load a model for a task, and print what `scored` makes of it: an object, or lines."""
    from pumice.llm.load import load

    with progress_bar(quiet=as_json) as report, load(model, task, device=device, progress=report) as loaded:
        started = time.perf_counter()
        out, lines = scored(loaded, report)
        seconds = time.perf_counter() - started
        info = loaded.describe_device()
    if as_json:
        out |= {"count": count, "timings": {"score_s": round(seconds, 6)}, "device": info, "model": loaded.info}
        print(json.dumps(out))
        return 0
    for line in lines:
        print(line)
    print(f"{count} texts in {seconds:.2f} s on {device_line(info)}", file=sys.stderr)
    return 0
