"""`pumice embed`: vectors of texts, as a table of numbers, JSON, or a NumPy file; on a terminal, how similar they are."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pumice.cli.generate import device_line
from pumice.cli.pull import progress_bar
from pumice.cli.receipt_option import ReceiptFile
from pumice.cli.text_input import shortened, text_items
from pumice.errors import InputError


def run(
    model: str,
    texts: Sequence[str],
    file: Path | None,
    *,
    load_options: Mapping[str, Any],
    as_json: bool,
    npy: Path | None,
    receipts: ReceiptFile | None = None,
) -> int:
    """Embed the texts (arguments, then lines of the file) and write the vectors; the exit code."""
    from pumice.llm.load import load

    items = text_items(texts, file, "embed")
    with progress_bar(quiet=as_json) as report, load(model, "embed", **load_options, progress=report) as loaded:
        started = time.perf_counter()
        found = loaded.embed(items, progress=report, receipt=receipts is not None)
        vectors, proof = found if receipts is not None else (found, None)
        seconds = time.perf_counter() - started
        info = loaded.describe_device()
    if npy is not None:
        _save(npy, vectors)
    kept = {} if receipts is None or proof is None else receipts.as_json(proof)
    if as_json:
        out = {"embeddings": [] if npy else vectors.tolist(), "dim": loaded.dim, "count": len(items)}
        out |= {"timings": {"embed_s": round(seconds, 6)}, "device": info, "model": loaded.info}
        print(json.dumps(out | kept))
    elif npy is None and len(items) > 1 and sys.stdout.isatty():
        # On a terminal, similarities say more than some hundred numbers per text.
        for line in similarity_lines(items, vectors):
            print(line)
    elif npy is None:
        for row in vectors:
            print(" ".join(f"{v:.6f}" for v in row))
    if not as_json:
        where = f", in {npy}" if npy else ""
        on = device_line(info, loaded.precision)
        print(f"{len(items)} vectors of {loaded.dim} in {seconds:.2f} s on {on}{where}", file=sys.stderr)
        if kept:
            print(f"receipt: {kept['receipt']['file']}", file=sys.stderr)
    return 0


def similarity_lines(texts: Sequence[str], vectors: Any) -> Iterator[str]:
    """The cosine of every pair of vectors as a table, a line for each text.

    >>> list(similarity_lines(["a cat", "a loan"], [[1.0, 0.0], [0.6, 0.8]]))
    ['      1     2', '1  1.00  0.60  a cat', '2  0.60  1.00  a loan']
    """
    import numpy as np

    rows = np.asarray(vectors, np.float64)
    rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    width = len(str(len(texts)))
    yield " " * width + "".join(f"{k:>6}" for k in range(1, len(texts) + 1))
    for k, (text, similar) in enumerate(zip(texts, rows @ rows.T, strict=True), 1):
        yield f"{k:>{width}}" + "".join(f"{v:>6.2f}" for v in similar + 0.0) + f"  {shortened(text)}"


def _save(path: Path, vectors: object) -> None:
    import numpy as np

    try:
        with path.open("wb") as f:
            np.save(f, np.asarray(vectors))
    except OSError as e:
        raise InputError(f"{path} cannot be written: {e}", hint="choose another path") from None
