"""RequestFacts: what a server notes of one request for its log and its metrics: ids, times and counts, and no text."""

from __future__ import annotations

import json
import secrets
import sys
import time
from typing import Any, TextIO

from pumice.core.own_sources import PACKAGE_FOLDER
from pumice.serve.metrics import Metrics


class RequestFacts:
    """One request from its arrival to the end of its response."""

    def __init__(self, metrics: Metrics, method: str, path: str) -> None:
        self._metrics, self.method, self.path = metrics, method, path
        self.id = f"req_{secrets.token_hex(12)}"
        self.started = time.perf_counter()
        self.route, self.status = "other", 0
        self.code: str | None = None
        self.model: str | None = None
        self.key: str | None = None
        self.prompt_tokens = self.completion_tokens = 0
        self.first_token: float | None = None
        self.gone = False
        self.text: dict[str, Any] | None = None
        self._last = self.started
        self._read: dict[int, int] = {}

    def note(self, answer: int, tokens: int) -> None:
        """A piece came from the worker, with which an answer has so many tokens."""
        now, model = time.perf_counter(), self.model or ""
        new = max(tokens - self._read.get(answer, 0), 0)
        self._read[answer] = tokens
        self.completion_tokens += new
        self._metrics.add("generation_tokens", model, new)
        if self.first_token is None:
            self.first_token = now - self.started
            self._metrics.histogram("time_to_first_token_seconds", model).observe(self.first_token)
        elif new:
            self._metrics.histogram("time_between_tokens_seconds", model).observe((now - self._last) / new, new)
        self._last = now

    def finish(self) -> None:
        """The response is over: counts it."""
        self._metrics.responded(self.route, self.status, self.code)
        if self.model is not None:
            self._metrics.histogram("request_duration_seconds", self.model).observe(time.perf_counter() - self.started)
            self._metrics.add("prompt_tokens", self.model, self.prompt_tokens)
            if self.gone:
                self._metrics.add("cancelled", self.model, 1)

    def as_json(self) -> dict[str, Any]:
        """The entry of the log."""
        found: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "event": "request",
            "id": self.id,
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "ms": round((time.perf_counter() - self.started) * 1000, 1),
        }
        more = {"model": self.model, "key": self.key, "error": self.code, "text": self.text}
        found |= {k: v for k, v in more.items() if v is not None}
        if self.model is not None:
            found |= {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        if self.first_token is not None:
            found["first_token_ms"] = round(self.first_token * 1000, 1)
        if self.gone:
            found["gone"] = True
        return found


class JsonLog:
    """A log of one JSON object a line."""

    def __init__(self, file: TextIO | None = None, *, quiet: bool = False) -> None:
        self._file, self._quiet = file, quiet

    def write(self, entry: dict[str, Any]) -> None:
        """Append an entry; a closed pipe ends no request."""
        if not self._quiet:
            try:
                print(json.dumps(entry), file=self._file or sys.stderr, flush=True)
            except (OSError, ValueError):
                self._quiet = True

    def event(self, name: str, **fields: Any) -> None:
        """Append something that is not about one request."""
        self.write({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "event": name, **fields})


def place_of(error: BaseException) -> str:
    """The place of a fault in this package: file and line, without any value.

    >>> place_of(ValueError("raised nowhere"))
    ''
    """
    trace, found = error.__traceback__, ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if name.startswith(PACKAGE_FOLDER):
            found = f"{name.removeprefix(PACKAGE_FOLDER)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
