"""What bench/ops.py measures: each op at one size that occurs in practice, its operands, and our function of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import pumice as pm
from pumice.core.blocks import quantize_rows
from pumice.core.dtypes import dtype

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Work:
    """One row: operands and function by sizes, and what it costs at least: bytes of operands and results, operations.

    `peer` is the function of bench/ops_peers.py that does the same in PyTorch; without one the row has a closed form beside it.
    `note` says why a row may be further off than the goal.
    """

    title: str
    sizes: Sizes
    small: Sizes
    operands: Callable[[Any, Sizes], dict[str, Array]]
    run: Callable[[Mapping[str, Any], Sizes], Any]
    peer: str = ""
    cost: Callable[[Sizes], tuple[float, float]] = lambda s: (0.0, 0.0)
    types: Callable[[Sizes], dict[str, Any]] = lambda s: {}
    note: str = ""

    def described(self, sizes: Sizes) -> str:
        return self.title.format(**sizes)


def normal(rng: Any, *shape: int) -> Array:
    return np.asarray(rng.standard_normal(shape, np.float32))


def _matrix(rows: str, columns: str) -> Callable[[Any, Sizes], dict[str, Array]]:
    return lambda rng, s: {"x": normal(rng, s[rows], s[columns])}


def _square(rng: Any, s: Sizes) -> dict[str, Array]:
    return {"x": normal(rng, s["batch"], s["n"], s["n"])}


def _definite(rng: Any, s: Sizes) -> dict[str, Array]:
    x = normal(rng, s["batch"], s["n"], s["n"])
    return {"x": x @ x.swapaxes(1, 2) / s["n"] + np.eye(s["n"], dtype=np.float32)}


def _ints(rng: Any, count: int, below: int) -> Array:
    return np.asarray(rng.integers(0, below, count, dtype=np.int32))


def _complex(rng: Any, s: Sizes) -> dict[str, Array]:
    return {"re": normal(rng, s["rows"], s["n"]), "im": normal(rng, s["rows"], s["n"])}


def _sequence(*names: str) -> Callable[[Any, Sizes], dict[str, Array]]:
    """Operands of recurrences [1, steps, heads, size]; keys of unit length, decays near 1."""

    def made(rng: Any, s: Sizes) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for name in names:
            if name == "v":
                found[name] = normal(rng, 1, s["steps"], s["heads"], s["values"])
            elif name == "g":
                found[name] = -np.abs(normal(rng, 1, s["steps"], s["heads"])) / 16
            elif name == "beta":
                found[name] = np.asarray(rng.random((1, s["steps"], s["heads"]), np.float32))
            elif name == "decay":
                found[name] = np.exp(-0.6 * rng.random((1, s["steps"], s["heads"], s["keys"]), np.float32))
            else:
                x = normal(rng, 1, s["steps"], s["groups"], s["keys"])
                found[name] = x / np.linalg.norm(x, axis=3, keepdims=True)
        return found

    return made


def _recurrence_cost(vectors: int, operations: int) -> Callable[[Sizes], tuple[float, float]]:
    def cost(s: Sizes) -> tuple[float, float]:
        a_step = vectors * s["heads"] * s["keys"] + 2 * s["heads"] * s["values"]
        return 4.0 * s["steps"] * a_step, float(operations * s["steps"] * s["heads"] * s["keys"] * s["values"])

    return cost


def _scan_cost(s: Sizes) -> tuple[float, float]:
    elements = s["steps"] * s["channels"]
    return 4.0 * (3 * elements + 2 * s["steps"] * s["size"]), 8.0 * elements * s["size"]


def _scan_operands(rng: Any, s: Sizes) -> dict[str, Array]:
    shape = (1, s["steps"], s["channels"])
    return {
        "x": normal(rng, *shape),
        "delta": np.asarray(0.1 * rng.random(shape, np.float32)),
        "a": -np.asarray(rng.random((s["channels"], s["size"]), np.float32)),
        "b": normal(rng, 1, s["steps"], s["size"]),
        "c": normal(rng, 1, s["steps"], s["size"]),
    }


def _ssd_operands(rng: Any, s: Sizes) -> dict[str, Array]:
    return {
        "x": normal(rng, 1, s["steps"], s["heads"], s["values"]),
        "delta": np.asarray(0.1 * rng.random((1, s["steps"], s["heads"]), np.float32)),
        "a": -np.asarray(rng.random(s["heads"], np.float32)),
        "b": normal(rng, 1, s["steps"], 1, s["keys"]),
        "c": normal(rng, 1, s["steps"], 1, s["keys"]),
    }


def _expert_operands(rng: Any, s: Sizes) -> dict[str, Array]:
    tokens, experts, k = s["tokens"], s["experts"], s["k"]
    scores = np.asarray(rng.random((tokens, experts), np.float32))
    ids = np.argsort(scores, axis=1)[:, :k].astype(np.int32)
    wide, deep = (experts, s["hidden"], s["width"]), (experts, s["width"], s["hidden"])
    small = np.float32(s["width"] ** -0.5)
    return {
        "x": normal(rng, tokens, s["width"]),
        "ids": ids,
        "weights": np.full((tokens, k), 1 / k, np.float32),
        "gate": normal(rng, *wide) * small,
        "up": normal(rng, *wide) * small,
        "down": normal(rng, *deep) * small,
    }


def _packed_operands(rng: Any, s: Sizes) -> dict[str, Array]:
    made = _expert_operands(rng, s)
    for name in ("gate", "up", "down"):
        weight = made[name]
        # One expert's blocks for all of them: encoding takes longer than the measurement.
        made[name] = np.repeat(quantize_rows(dtype("q4_k"), weight[0])[None], s["experts"], axis=0)
    return made


def _packed_types(s: Sizes) -> dict[str, Any]:
    wide, deep = (s["experts"], s["hidden"], s["width"]), (s["experts"], s["width"], s["hidden"])
    return {name: pm.spec(*shape, dtype="q4_k") for name, shape in (("gate", wide), ("up", wide), ("down", deep))}


def _experts(p: Mapping[str, Any], s: Sizes) -> Any:
    module = pm.nn.Experts(s["experts"], s["width"], s["hidden"])
    with pm.nn.bind(module, {f"{name}.weight": p[name] for name in ("gate", "up", "down")}):
        return module(p["x"], p["ids"], p["weights"])


def _expert_cost(s: Sizes) -> tuple[float, float]:
    return 0.0, 6.0 * s["tokens"] * s["k"] * s["width"] * s["hidden"]


def _gated_delta(p: Mapping[str, Any], s: Sizes) -> Any:
    return pm.gated_delta_net(p["q"], p["k"], p["v"], p["g"], p["beta"])[0]


def _delta(p: Mapping[str, Any], s: Sizes) -> Any:
    return pm.delta_rule(p["q"], p["k"], p["v"], p["k"] * -0.5, p["k"], p["decay"])[0]


# Why rows may be further off than the goal.
_MERGES = "a network of merges reads all elements for every doubling of what is sorted"
_DIGITS = "a radix sort of four bits a pass: eight passes of three kernels read and write all elements"
_TURNS = "each turn of disjoint rotations waits for the last one; barriers of a workgroup, not of a warp that holds the matrix"
_SORTED = "rows are sorted by segment first, so that repeats give the same bits"
_ROWS = ({"rows": 4096, "n": 4096}, {"rows": 8, "n": 256})
_ONE_ROW = ({"rows": 1, "n": 1 << 24}, {"rows": 1, "n": 1 << 12})


def _scan(title: str, function: str) -> Work:
    run: Callable[[Mapping[str, Any], Sizes], Any] = lambda p, s: getattr(pm, function)(p["x"], axis=-1)  # noqa: E731
    return Work(f"{title}, {{rows}} rows of {{n}}", *_ROWS, _matrix("rows", "n"), run, function)


def _batched(
    title: str, batch: int, n: int, run: Callable[[Any], Any], peer: str, *, definite: bool = False, note: str = ""
) -> Work:
    sizes = ({"batch": batch, "n": n}, {"batch": 4, "n": 8})
    made = _definite if definite else _square
    return Work(f"{title}, {{batch}} of {{n}} × {{n}}", *sizes, made, lambda p, s: run(p["x"]), peer, note=note)


WORKS: dict[str, Work] = {
    "fft": Work("FFT, {rows} of {n}", *_ROWS, _complex, lambda p, s: pm.fft.fft((p["re"], p["im"])), "fft"),
    "fft mixed": Work(
        "FFT of mixed radix, {rows} of {n}",
        {"rows": 4096, "n": 3000}, {"rows": 4, "n": 60}, _complex, lambda p, s: pm.fft.fft((p["re"], p["im"])), "fft",
    ),
    "fft prime": Work(
        "FFT of prime length, {rows} of {n}",
        {"rows": 1024, "n": 4093}, {"rows": 4, "n": 61}, _complex, lambda p, s: pm.fft.fft((p["re"], p["im"])), "fft",
        note="Bluestein: two transforms of twice the length with products around them, in four kernels",
    ),
    "rfft2": Work(
        "real FFT in two axes, {batch} of {n} × {n}",
        {"batch": 64, "n": 512}, {"batch": 2, "n": 16}, _square, lambda p, s: pm.fft.rfft2(p["x"]), "rfft2",
    ),
    "log mel": Work(
        "log-mel spectrogram as Whisper's, {rows} clips of {n} samples",
        {"rows": 32, "n": 480_000}, {"rows": 2, "n": 1600}, _matrix("rows", "n"),
        lambda p, s: pm.signal.whisper_log_mel(p["x"]), "log_mel",
    ),
    "fft convolution": Work(
        "convolution by FFT, {rows} signals of {n} with {taps} taps",
        {"rows": 64, "n": 65_536, "taps": 4096}, {"rows": 2, "n": 128, "taps": 16},
        lambda rng, s: {"x": normal(rng, s["rows"], s["n"]), "h": normal(rng, 1, s["taps"])},
        lambda p, s: pm.signal.fftconvolve(p["x"], p["h"], axes=-1), "fft_convolution",
    ),
    "cumsum": _scan("cumulative sum", "cumsum"),
    "cumsum long": Work(
        "cumulative sum, one row of {n}", *_ONE_ROW, _matrix("rows", "n"), lambda p, s: pm.cumsum(p["x"], axis=-1), "cumsum"
    ),
    "cumprod": _scan("cumulative product", "cumprod"),
    "cummax": _scan("cumulative maximum", "cummax"),
    "logcumsumexp": _scan("cumulative logsumexp", "logcumsumexp"),
    "linear scan": Work(
        "linear scan h = a h + b, {rows} rows of {n}", *_ROWS,
        lambda rng, s: {"a": np.asarray(rng.random((s["rows"], s["n"]), np.float32)), "b": normal(rng, s["rows"], s["n"])},
        lambda p, s: pm.linear_scan(p["a"], p["b"]), cost=lambda s: (12.0 * s["rows"] * s["n"], 2.0 * s["rows"] * s["n"]),
    ),
    "selective scan": Work(
        "selective scan (Mamba), {steps} tokens, {channels} channels of {size}",
        {"steps": 4096, "channels": 5120, "size": 16}, {"steps": 160, "channels": 8, "size": 4}, _scan_operands,
        lambda p, s: pm.selective_scan(p["x"], p["delta"], p["a"], p["b"], p["c"])[0], cost=_scan_cost,
        note="chunks run twice, and an exponential counts as one operation",
    ),
    "ssd": Work(
        "SSD (Mamba-2), {steps} tokens, {heads} heads of {keys} × {values}",
        {"steps": 4096, "heads": 64, "keys": 128, "values": 64}, {"steps": 160, "heads": 2, "keys": 8, "values": 4},
        _ssd_operands, lambda p, s: pm.ssd(p["x"], p["delta"], p["a"], p["b"], p["c"])[0], "ssd",
    ),
    "gated delta net": Work(
        "gated delta net (Qwen3-Next), {steps} tokens, {heads} heads of {keys} × {values}",
        {"steps": 4096, "heads": 32, "groups": 16, "keys": 128, "values": 128},
        {"steps": 160, "heads": 2, "groups": 1, "keys": 8, "values": 4},
        _sequence("q", "k", "v", "g", "beta"), _gated_delta, "gated_delta_net",
    ),
    "delta rule": Work(
        "delta rule with a decay by key (RWKV-7), {steps} tokens, {heads} heads of {keys} × {values}",
        {"steps": 4096, "heads": 32, "groups": 32, "keys": 64, "values": 64},
        {"steps": 160, "heads": 2, "groups": 2, "keys": 8, "values": 4},
        _sequence("q", "k", "v", "decay"), _delta, cost=_recurrence_cost(3, 10),
        note="steps depend on each other: a closed form without latency",
    ),
    "experts": Work(
        "{experts} experts of {width} × {hidden}, top {k}, {tokens} tokens, f32",
        {"tokens": 4096, "experts": 64, "k": 8, "width": 2048, "hidden": 1024},
        {"tokens": 16, "experts": 4, "k": 2, "width": 32, "hidden": 16}, _expert_operands, _experts, "experts",
    ),
    "experts q4_k": Work(
        "{experts} experts of {width} × {hidden} in q4_k, top {k}, {tokens} tokens",
        {"tokens": 4096, "experts": 64, "k": 8, "width": 2048, "hidden": 1024},
        {"tokens": 16, "experts": 4, "k": 2, "width": 256, "hidden": 256}, _packed_operands, _experts,
        cost=_expert_cost, types=_packed_types,
    ),
    "sort": Work(
        "sort, {rows} rows of {n}", {"rows": 1024, "n": 4096}, {"rows": 4, "n": 64}, _matrix("rows", "n"),
        lambda p, s: pm.sort(p["x"]), "sort", note=_MERGES,
    ),
    "sort long": Work(
        "sort, one row of {n}", {"rows": 1, "n": 1 << 20}, {"rows": 1, "n": 2048}, _matrix("rows", "n"),
        lambda p, s: pm.sort(p["x"]), "sort", note=_DIGITS,
    ),
    "top k": Work(
        "top {k} of {n}, {rows} rows", {"rows": 512, "n": 32_768, "k": 64}, {"rows": 4, "n": 512, "k": 8},
        _matrix("rows", "n"), lambda p, s: pm.top_k(p["x"], s["k"]), "top_k",
        note="rows are read six times: digits of the last key that is taken, of its position, and what is before it",
    ),
    "median": Work(
        "median of {n}, {rows} rows", {"rows": 2048, "n": 4096}, {"rows": 4, "n": 65}, _matrix("rows", "n"),
        lambda p, s: pm.median(p["x"], axis=-1), "median",
    ),
    "unique": Work(
        "unique numbers with counts, {n} of {below}", {"n": 1 << 20, "below": 1 << 16}, {"n": 512, "below": 64},
        lambda rng, s: {"x": _ints(rng, s["n"], s["below"])}, lambda p, s: pm.unique_counts(p["x"], size=s["below"]), "unique",
        note=_DIGITS,
    ),
    "searchsorted": Work(
        "searchsorted, {n} in {below}", {"n": 1 << 20, "below": 1 << 16}, {"n": 512, "below": 64},
        lambda rng, s: {"x": normal(rng, s["n"]), "sorted": np.sort(normal(rng, s["below"]))},
        lambda p, s: pm.searchsorted(p["sorted"], p["x"]), "searchsorted",
    ),
    "bincount": Work(
        "bincount, {n} numbers in {below} bins", {"n": 1 << 22, "below": 1024}, {"n": 512, "below": 16},
        lambda rng, s: {"x": _ints(rng, s["n"], s["below"])}, lambda p, s: pm.bincount(p["x"], length=s["below"]), "bincount",
    ),
    "segment sum": Work(
        "segment sums, {n} rows of {width} in {below} segments",
        {"n": 1 << 18, "width": 64, "below": 4096}, {"n": 128, "width": 8, "below": 16},
        lambda rng, s: {"x": normal(rng, s["n"], s["width"]), "ids": _ints(rng, s["n"], s["below"])},
        lambda p, s: pm.segment_sum(p["x"], p["ids"], s["below"]), "segment_sum", note=_SORTED,
    ),
    "nonzero": Work(
        "places of nonzeros, {n} numbers", {"n": 1 << 22}, {"n": 512},
        lambda rng, s: {"x": np.maximum(normal(rng, s["n"]), 0)}, lambda p, s: pm.nonzero(p["x"], size=s["n"]), "nonzero",
        note="flags, their counts, the list, its rows and their places are kernels of their own",
    ),
    "knn": Work(
        "{k} nearest neighbours, {n} points of {width}", {"n": 16_384, "width": 64, "k": 15}, {"n": 64, "width": 8, "k": 5},
        _matrix("n", "width"), lambda p, s: pm.knn_graph(p["x"], s["k"]), "knn",
        note="distances are sums of squared differences, exact for near points, where a product on matrix units is not",
    ),
    "cholesky": _batched("Cholesky", 1024, 64, pm.linalg.cholesky, "cholesky", definite=True),
    "triangular solve": _batched(
        "triangular solve", 1024, 64, lambda x: pm.linalg.solve_triangular(x, x, lower=True), "triangular_solve", definite=True
    ),
    "inverse": _batched("inverse", 1024, 64, pm.linalg.inv, "inverse", definite=True),
    "determinant": _batched("determinant", 1024, 32, lambda x: pm.linalg.slogdet(x), "determinant"),
    "qr": _batched("QR", 1024, 32, lambda x: pm.linalg.qr(x), "qr"),
    "svd": _batched("SVD", 512, 32, lambda x: pm.linalg.svd(x), "svd", note=_TURNS),
    "eigh": _batched(
        "symmetric eigenvalues", 512, 32, lambda x: pm.linalg.eigh(x), "eigh", definite=True, note=_TURNS
    ),
}  # fmt: skip
