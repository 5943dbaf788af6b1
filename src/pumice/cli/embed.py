"""`pumice embed`: vectors of texts, as a table of numbers, JSON, or a NumPy file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pumice.cli.generate import device_line
from pumice.cli.pull import progress_bar
from pumice.cli.text_input import read_text
from pumice.errors import InputError


def run(model: str, texts: Sequence[str], file: Path | None, *, device: str, as_json: bool, npy: Path | None) -> int:
    """Embed the texts (arguments, then lines of the file) and write the vectors; the exit code."""
    from pumice.llm.load import load, require_embedding_model

    items = [*texts, *_lines(file)]
    if not items:
        raise InputError("there is no text to embed", hint="pass texts, or -f FILE with one a line")
    with progress_bar(quiet=as_json) as report:
        loaded = require_embedding_model(load(model, device=device, progress=report), model)
        with loaded:
            started = time.perf_counter()
            vectors = loaded.embed(items, progress=report)
            seconds = time.perf_counter() - started
            info = loaded.describe_device()
    if npy is not None:
        _save(npy, vectors)
    if as_json:
        out = {"embeddings": [] if npy else vectors.tolist(), "dim": loaded.dim, "count": len(items)}
        out |= {"timings": {"embed_s": round(seconds, 6)}, "device": info, "model": loaded.info}
        print(json.dumps(out))
    elif npy is None:
        for row in vectors:
            print(" ".join(f"{v:.6f}" for v in row))
    if not as_json:
        where = f", in {npy}" if npy else ""
        print(f"{len(items)} vectors of {loaded.dim} in {seconds:.2f} s on {device_line(info)}{where}", file=sys.stderr)
    return 0


def _lines(file: Path | None) -> list[str]:
    if file is None:
        return []
    # Newlines alone end a line: form feeds and the like belong to the text.
    return [line for line in read_text(file).split("\n") if line.strip()]


def _save(path: Path, vectors: object) -> None:
    import numpy as np

    try:
        with path.open("wb") as f:
            np.save(f, np.asarray(vectors))
    except OSError as e:
        raise InputError(f"{path} cannot be written: {e}", hint="choose another path") from None
