"""The peer of bench/ops.py in a process of its own: the same ops in PyTorch, on CUDA or on the processor. Operands are random."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from measure import median_seconds, serve

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"


def seconds(run: Callable[[], object], times: int) -> float:
    """Median seconds of a call, of several that are made before the device is waited for."""

    def burst() -> None:
        for _ in range(times):
            run()
        if DEVICE == "cuda":
            torch.cuda.synchronize()

    return median_seconds(burst, 5, 2) / times


def normal(*shape: int) -> Any:
    return torch.randn(*shape, device=DEVICE)


def even(*shape: int) -> Any:
    return torch.rand(*shape, device=DEVICE)


def ints(count: int, below: int) -> Any:
    return torch.randint(0, below, (count,), device=DEVICE)


def definite(batch: int, n: int) -> Any:
    x = normal(batch, n, n)
    return x @ x.mT / n + torch.eye(n, device=DEVICE)


Run = Callable[[], object]


def fft(rows: int, n: int) -> Run:
    x = torch.complex(normal(rows, n), normal(rows, n))
    return lambda: torch.fft.fft(x)


def rfft2(batch: int, n: int) -> Run:
    x = normal(batch, n, n)
    return lambda: torch.fft.rfft2(x)


def log_mel(rows: int, n: int) -> Run:
    x, window, filters = normal(rows, n), torch.hann_window(400, device=DEVICE), even(80, 201)

    def run() -> object:
        power = torch.stft(x, 400, 160, window=window, return_complex=True)[..., :-1].abs() ** 2
        logs = torch.clamp(filters @ power, min=1e-10).log10()
        return (torch.maximum(logs, logs.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0

    return run


def fft_convolution(rows: int, n: int, taps: int) -> Run:
    x, h, size = normal(rows, n), normal(1, taps), n + taps - 1
    return lambda: torch.fft.irfft(torch.fft.rfft(x, size) * torch.fft.rfft(h, size), size)


def scan(name: str) -> Callable[..., Run]:
    def made(rows: int, n: int) -> Run:
        x = normal(rows, n)
        return lambda: getattr(torch, name)(x, dim=-1)

    return made


def sort(rows: int, n: int) -> Run:
    x = normal(rows, n)
    return lambda: torch.sort(x, stable=True)


def top_k(rows: int, n: int, k: int) -> Run:
    x = normal(rows, n)
    return lambda: torch.topk(x, k)


def median(rows: int, n: int) -> Run:
    x = normal(rows, n)
    return lambda: torch.quantile(x, 0.5, dim=-1)


def unique(n: int, below: int) -> Run:
    x = ints(n, below)
    return lambda: torch.unique(x, return_counts=True)


def searchsorted(n: int, below: int) -> Run:
    x, places = normal(n), torch.sort(normal(below)).values
    return lambda: torch.searchsorted(places, x)


def bincount(n: int, below: int) -> Run:
    x = ints(n, below)
    return lambda: torch.bincount(x, minlength=below)


def segment_sum(n: int, width: int, below: int) -> Run:
    x, ids = normal(n, width), ints(n, below)
    return lambda: torch.zeros(below, width, device=DEVICE).index_add_(0, ids, x)


def nonzero(n: int) -> Run:
    x = torch.clamp(normal(n), min=0)
    return lambda: torch.nonzero(x)


def knn(n: int, width: int, k: int) -> Run:
    x, rows = normal(n, width), max(1, (1 << 27) // n)

    def run() -> object:
        # A point is its own nearest neighbour.
        return [torch.topk(torch.cdist(part, x), k + 1, largest=False) for part in x.split(rows)]

    return run


def batched(apply: Callable[[Any], object], made: Callable[[int, int], Any]) -> Callable[..., Run]:
    def prepared(batch: int, n: int) -> Run:
        x = made(batch, n)
        return lambda: apply(x)

    return prepared


def experts(tokens: int, experts: int, k: int, width: int, hidden: int) -> Run:
    x, ids = normal(tokens, width), torch.argsort(even(tokens, experts), dim=1)[:, :k]
    gate, up, down = normal(experts, width, hidden), normal(experts, width, hidden), normal(experts, hidden, width)

    def run() -> object:
        order = torch.argsort(ids.reshape(-1))
        rows, sizes = order // k, torch.bincount(ids.reshape(-1), minlength=experts).tolist()
        parts = x[rows].split(sizes)
        found = [(torch.nn.functional.silu(part @ gate[e]) * (part @ up[e])) @ down[e] for e, part in enumerate(parts)]
        return torch.zeros_like(x).index_add_(0, rows, torch.cat(found) / k)

    return run


# -- recurrences, by matmuls within chunks -------------------------------------------------------------------------------
_CHUNK = 64


def chunked(x: Any) -> Any:
    """[1, steps, heads, …] → [heads, chunks, length, …], filled up with zeros."""
    missing = -x.shape[1] % _CHUNK
    x = torch.nn.functional.pad(x, (*(0, 0) * (x.ndim - 2), 0, missing))
    return x[0].reshape(-1, _CHUNK, *x.shape[2:]).movedim(2, 0)


def ssd(steps: int, heads: int, keys: int, values: int) -> Run:
    x, delta, a = normal(1, steps, heads, values), 0.1 * even(1, steps, heads), -even(heads)
    b, c = normal(1, steps, 1, keys), normal(1, steps, 1, keys)
    mask = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=DEVICE).tril()

    def run() -> object:
        v, k, q, logs = chunked(x * delta[..., None]), chunked(b), chunked(c), chunked(delta * a).cumsum(2)
        between = torch.where(mask, (logs[..., :, None] - logs[..., None, :]).exp(), 0)
        inside = ((q @ k.mT) * between) @ v
        added = (k * (logs[..., -1:] - logs).exp()[..., None]).mT @ v
        state, states = torch.zeros_like(added[:, 0]), []
        for i in range(added.shape[1]):
            states.append(state)
            state = logs[:, i, -1, None, None].exp() * state + added[:, i]
        return inside + (q * logs.exp()[..., None]) @ torch.stack(states, 1)

    return run


def gated_delta_net(steps: int, heads: int, groups: int, keys: int, values: int) -> Run:
    q, k = (torch.nn.functional.normalize(normal(1, steps, groups, keys), dim=3) for _ in range(2))
    q, k = (t.repeat_interleave(heads // groups, 2) for t in (q, k))
    v, g, beta = normal(1, steps, heads, values), -normal(1, steps, heads).abs() / 16, even(1, steps, heads)
    lower = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=DEVICE).tril()
    strict = lower.tril(-1)

    def run() -> object:
        queries, own, logs = chunked(q) * keys**-0.5, chunked(k), chunked(g).cumsum(2)
        weighted, rated = chunked(k * beta[..., None]), chunked(v * beta[..., None])
        between = torch.where(lower, (logs[..., :, None] - logs[..., None, :]).exp(), 0)
        among = torch.where(strict, (weighted @ own.mT) * between, 0)
        known = torch.cat([rated, weighted * logs.exp()[..., None]], -1)
        solved = torch.linalg.solve_triangular(among, known, upper=False, unitriangular=True)
        new, read = solved.split([values, keys], -1)
        inside, kept = (queries @ own.mT) * between, own * (logs[..., -1:] - logs).exp()[..., None]
        queries = queries * logs.exp()[..., None]
        state, found = torch.zeros(heads, keys, values, device=DEVICE), []
        for i in range(new.shape[1]):
            corrected = new[:, i] - read[:, i] @ state
            found.append(queries[:, i] @ state + inside[:, i] @ corrected)
            state = logs[:, i, -1, None, None].exp() * state + kept[:, i].mT @ corrected
        return torch.stack(found, 1)

    return run


WORKS: dict[str, Callable[..., Run]] = {
    "fft": fft,
    "rfft2": rfft2,
    "log_mel": log_mel,
    "fft_convolution": fft_convolution,
    **{name: scan(name) for name in ("cumsum", "cumprod", "cummax", "logcumsumexp")},
    "ssd": ssd,
    "gated_delta_net": gated_delta_net,
    "experts": experts,
    "sort": sort,
    "top_k": top_k,
    "median": median,
    "unique": unique,
    "searchsorted": searchsorted,
    "bincount": bincount,
    "segment_sum": segment_sum,
    "nonzero": nonzero,
    "knn": knn,
    "cholesky": batched(torch.linalg.cholesky, definite),
    "triangular_solve": batched(lambda x: torch.linalg.solve_triangular(x, x, upper=False), definite),
    "inverse": batched(torch.linalg.inv, definite),
    "determinant": batched(torch.linalg.slogdet, lambda batch, n: normal(batch, n, n)),
    "qr": batched(torch.linalg.qr, lambda batch, n: normal(batch, n, n)),
    "svd": batched(lambda x: torch.linalg.svd(x, full_matrices=False), lambda batch, n: normal(batch, n, n)),
    "eigh": batched(torch.linalg.eigh, definite),
}


def measured(name: str) -> Callable[..., float]:
    return lambda times, **sizes: seconds(WORKS[name](**sizes), times)


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)
    with torch.no_grad():
        serve({name: measured(name) for name in WORKS})
