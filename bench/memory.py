"""Searching 100,000 passages: a memory by vectors, words and both, beside usearch and sqlite-vec on the same vectors.

`python bench/memory.py [--passages N] [--hnsw]`. usearch and, for sqlite-vec, apsw are used where they are installed: Python's
own sqlite3 often cannot load extensions. --hnsw also builds usearch's approximate index, which takes a minute or more.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pumice as pm
from pumice.assist.memory.chunks import Passage
from pumice.assist.memory.database import StoredDocument
from pumice.assist.memory.search import SearchFilter, find_words

DOCS = Path(__file__).parents[1] / "docs"
QUERIES = (
    "how are masks of attention laid out",
    "which precision rounds activations to 8 bits?",
    "kernel",
    "what does the server do when a worker process dies",
    "sign a kernel pack with a key and install it",
    "model file memory plan graph tensor kernel host device",
    "how do I resume a training run from a checkpoint?",
    "limits of a browser's storage",
)
TOP = 50


def median(run: Callable[[int], Any], rounds: int = 5) -> tuple[float, float]:
    """Milliseconds of a call, over all queries, by the clock and of processors: on a busy machine the first says little."""
    times, busy = [], []
    for _ in range(rounds):
        for k in range(len(QUERIES)):
            started, used = time.perf_counter(), time.process_time()
            run(k)
            times.append(1e3 * (time.perf_counter() - started))
            busy.append(1e3 * (time.process_time() - used))
    return sorted(times)[len(times) // 2], sorted(busy)[len(busy) // 2]


def fill(memory: Any, count: int) -> np.ndarray:
    """Passages of the docs' words, with the vectors of some and noise around them."""
    words = re.findall(r"\S+", " ".join(p.read_text() for p in sorted(DOCS.glob("*.md"))))
    rng, numbers = random.Random(0), np.random.default_rng(0)
    seeds = [" ".join(words[at : at + 120]) for at in range(0, len(words) - 120, 300)][:256]
    centres = memory.embedder.embed(seeds)
    vectors = centres[numbers.integers(0, len(centres), count)] + 0.04 * numbers.normal(size=(count, centres.shape[1]))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    for first in range(0, count, 1000):
        size = min(1000, count - first)
        found = [Passage(" ".join(words[at : at + 120])) for at in (rng.randrange(len(words) - 120) for _ in range(size))]
        part = vectors[first : first + size]
        memory.database.store([StoredDocument("default", f"{first}", "", found, part, {})])
    return vectors


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--passages", type=int, default=100_000)
    options.add_argument("--hnsw", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as folder, pm.Memory(Path(folder, "m.db"), "minilm", device="host") as memory:
        started = time.perf_counter()
        vectors = fill(memory, given.passages)
        seconds = time.perf_counter() - started
        print(f"{given.passages} passages of 120 words, {vectors.shape[1]} numbers each, stored in {seconds:.0f} s")
        started = time.perf_counter()
        queries = memory.embedder.embed(list(QUERIES))
        memory.search(QUERIES[0])
        print(f"first search (vectors are read once): {time.perf_counter() - started:.2f} s")
        rows = {
            "embed the query": lambda k: memory.embedder.embed([QUERIES[k]]),
            "pumice, vectors (exact)": lambda k: memory._matrix.search(queries[k], TOP),
            "pumice, words": lambda k: find_words(memory.database, QUERIES[k], TOP, SearchFilter(), NEAR[k]),
            "pumice, hybrid, with the query's embedding": lambda k: memory.search(QUERIES[k], top=8),
        }
        NEAR = [[p for p, _ in memory._matrix.search(q, TOP)] for q in queries]
        rows |= usearch_rows(vectors, queries, given.hnsw) | sqlite_vec_rows(vectors, queries)
        for name, run in rows.items():
            clock, used = median(run)
            print(f"{name:<46} {clock:8.1f} ms, {used:6.1f} ms of processors")


def usearch_rows(vectors: np.ndarray, queries: np.ndarray, hnsw: bool) -> dict[str, Callable[[int], Any]]:
    try:
        from usearch.index import Index, search
    except ImportError:
        print("usearch is not installed")
        return {}
    rows = {"usearch, exact": lambda k: search(vectors, queries[k], TOP, "ip", exact=True)}
    if hnsw:
        index = Index(ndim=vectors.shape[1], metric="ip", dtype="f32")
        started = time.perf_counter()
        index.add(np.arange(len(vectors)), vectors, threads=2)
        print(f"usearch's HNSW index is built in {time.perf_counter() - started:.0f} s")
        exact = [set(np.argsort(-(vectors @ q))[:TOP].tolist()) for q in queries]
        kept = np.mean([len(exact[k] & set(index.search(q, TOP).keys.tolist())) / TOP for k, q in enumerate(queries)])
        rows[f"usearch, HNSW (finds {kept:.0%})"] = lambda k: index.search(queries[k], TOP)
    return rows


def sqlite_vec_rows(vectors: np.ndarray, queries: np.ndarray) -> dict[str, Callable[[int], Any]]:
    try:
        import apsw
        import sqlite_vec
    except ImportError:
        print("sqlite-vec or apsw is not installed")
        return {}
    connection = apsw.Connection(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.execute(f"CREATE VIRTUAL TABLE v USING vec0 (e float[{vectors.shape[1]}] distance_metric=cosine)")
    with connection:
        connection.executemany("INSERT INTO v (rowid, e) VALUES (?, ?)", ((k, v.tobytes()) for k, v in enumerate(vectors)))
    query = f"SELECT rowid, distance FROM v WHERE e MATCH ? AND k = {TOP}"
    return {"sqlite-vec, exact": lambda k: list(connection.execute(query, (queries[k].tobytes(),)))}


if __name__ == "__main__":
    main()
