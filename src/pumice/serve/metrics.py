"""Counters, gauges and histograms of a server, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from pumice.serve.pool import ModelPool

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class LatencyHistogram:
    """How often durations fell below each of some bounds.

    >>> h = LatencyHistogram()
    >>> h.observe(0.02)
    >>> list(h.lines("x_seconds", 'model="a"'))[4], h.count
    ('x_seconds_bucket{model="a",le="0.025"} 1', 1)
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(_SECONDS) + 1)
        self.count, self.sum = 0, 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Count a duration, or several equal ones."""
        self._counts[bisect_left(_SECONDS, seconds)] += times
        self.count += times
        self.sum += seconds * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The samples of the histogram."""
        total = 0
        for bound, found in zip((*map(str, _SECONDS), "+Inf"), self._counts):
            total += found
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self.sum:.6f}"
        yield f"{name}_count{{{labels}}} {self.count}"


_HISTOGRAMS = {
    "time_to_first_token_seconds": "From the arrival of a request to the first token of its answer.",
    "time_between_tokens_seconds": "Between two tokens of an answer.",
    "request_duration_seconds": "From the arrival of a request to the end of its answer.",
}
_COUNTERS = {
    "prompt_tokens": "Tokens of prompts.",
    "generation_tokens": "Tokens that were generated.",
    "cancelled": "Requests whose client went away before their end.",
}
_STATES = ("unloaded", "loading", "ready", "restarting", "unloading", "failed", "closed")
_ENGINE = {
    "running": ("sequences_running", "Sequences that have a slot, the size of the batch."),
    "waiting": ("sequences_waiting", "Sequences that wait for a slot in the worker."),
    "pages_used": ("cache_pages_used", "Pages of keys and values that running sequences hold."),
    "pages_cached": ("cache_pages_cached", "Pages that are kept for prompts that begin alike."),
    "pages_free": ("cache_pages_free", "Pages that hold nothing."),
    "prefix_tokens": ("cache_hit_tokens", "Prompt tokens that were found in the cache."),
    "prefix_hits": ("cache_hits", "Prompts of which a beginning was found in the cache."),
    "preemptions": ("preemptions", "Sequences that lost their slot to others."),
}
_CACHE = {
    "hits": ("response_cache_hits_total", "counter", "Answers that were given again, without a run."),
    "misses": ("response_cache_misses_total", "counter", "Answers that could have been in the response cache."),
    "entries": ("response_cache_answers", "gauge", "Answers in the response cache."),
    "bytes": ("response_cache_bytes", "gauge", "What they take."),
}
_GROWING = ("prefix_tokens", "prefix_hits", "preemptions")


class Metrics:
    """What a server has counted since its start; `render` adds what its models are doing now."""

    def __init__(self) -> None:
        self._responses: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._refusals: defaultdict[str, int] = defaultdict(int)
        self._histograms: dict[tuple[str, str], LatencyHistogram] = {}
        self._counters: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.open_requests = 0

    def responded(self, route: str, status: int, code: str | None) -> None:
        """Count a response, by the route's pattern, never by what a client made up."""
        self._responses[route, status] += 1
        if code is not None:
            self._refusals[code] += 1

    def histogram(self, name: str, model: str) -> LatencyHistogram:
        """The histogram of a model."""
        return self._histograms.setdefault((name, model), LatencyHistogram())

    def add(self, name: str, model: str, count: int) -> None:
        """Raise a counter of a model."""
        self._counters[name, model] += count

    def render(self, pool: ModelPool) -> str:
        """All of it as text."""
        return "\n".join(self._lines(pool)) + "\n"

    def _lines(self, pool: ModelPool) -> Iterator[str]:
        hosts = pool.hosts
        yield from _head("http_responses_total", "counter", "Responses by route and status.")
        for (route, status), count in sorted(self._responses.items()):
            yield f'pumice_http_responses_total{{route="{route}",status="{status}"}} {count}'
        yield from _head("errors_total", "counter", "Requests that failed, by the code of their error.")
        for code, count in sorted(self._refusals.items()):
            yield f'pumice_errors_total{{code="{code}"}} {count}'
        yield from _head("http_requests_open", "gauge", "Requests that are being answered.")
        yield f"pumice_http_requests_open {self.open_requests}"
        for name, text in _COUNTERS.items():
            yield from _head(f"{name}_total", "counter", text)
            for model in hosts:
                yield f"pumice_{name}_total{{{_model(model)}}} {self._counters[name, model]}"
        for name, text in _HISTOGRAMS.items():
            yield from _head(name, "histogram", text)
            for model in hosts:
                yield from self.histogram(name, model).lines(f"pumice_{name}", _model(model))
        gauges: dict[str, tuple[str, Mapping[str, Any]]] = {
            "requests_waiting": ("Requests that wait for a model.", {m: h.waiting for m, h in hosts.items()}),
            "requests_running": ("Requests that a worker answers.", {m: h.running for m, h in hosts.items()}),
            "worker_memory_bytes": ("Resident memory of a worker.", {m: h.memory if h.worker else 0 for m, h in hosts.items()}),
        }
        for name, (text, values) in gauges.items():
            yield from _gauge(name, "gauge", text, values)
        yield from _gauge("worker_restarts_total", "counter", "Workers that died.", {m: h.restarts for m, h in hosts.items()})
        yield from _head("model_state", "gauge", "1 for the state that a model is in.")
        for model, host in hosts.items():
            device = str(host.info.get("device", {}).get("name", "")).replace("\\", "").replace('"', "").replace("\n", " ")
            for state in _STATES:
                labels = f'{_model(model)},state="{state}",device="{device}"'
                yield f"pumice_model_state{{{labels}}} {int(host.state == state)}"
        for key, (name, text) in _ENGINE.items():
            values = {m: h.statistics["engine"][key] for m, h in hosts.items() if "engine" in h.statistics}
            growing = key in _GROWING
            yield from _gauge(f"{name}_total" if growing else name, "counter" if growing else "gauge", text, values)
        cached = {m: h.statistics["cache"] for m, h in hosts.items() if "cache" in h.statistics}
        for key, (name, kind, text) in _CACHE.items() if cached else ():
            yield from _gauge(name, kind, text, {m: counts[key] for m, counts in cached.items()})


def _model(name: str) -> str:
    return f'model="{name}"'  # names of models have no quotes: spec.py


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP pumice_{name} {text}"
    yield f"# TYPE pumice_{name} {kind}"


def _gauge(name: str, kind: str, text: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield from _head(name, kind, text)
    for model, value in values.items():
        yield f"pumice_{name}{{{_model(model)}}} {value}"
