"""OpenTelemetry spans of requests, where the package opentelemetry-api is installed and a program has set it up; else nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumice.serve.facts import RequestFacts


def _tracer() -> Any:
    if find_spec("opentelemetry") is None:
        return None
    from opentelemetry import trace

    from pumice import __version__

    return trace.get_tracer("pumice.serve", __version__)


@contextmanager
def request_span(facts: RequestFacts, headers: dict[str, str]) -> Iterator[None]:
    """A span for a request, a child of the one that its traceparent header names; it holds counts and no text."""
    tracer = _tracer()
    if tracer is None:
        yield
        return
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind, StatusCode

    with tracer.start_as_current_span(f"{facts.method}", context=extract(headers), kind=SpanKind.SERVER) as span:
        try:
            yield
        finally:
            # Names as OpenTelemetry's conventions for HTTP and for generative models have them.
            span.update_name(f"{facts.method} {facts.route}")
            span.set_attributes({k: v for k, v in _attributes(facts).items() if v is not None})
            if facts.status >= 500:
                span.set_status(StatusCode.ERROR)


def _attributes(facts: RequestFacts) -> dict[str, Any]:
    found: dict[str, Any] = {
        "http.request.method": facts.method,
        "http.route": facts.route,
        "http.response.status_code": facts.status,
        "error.type": facts.code,
        "pumice.request_id": facts.id,
    }
    if facts.model is not None:
        found |= {
            "gen_ai.system": "pumice",
            "gen_ai.request.model": facts.model,
            "gen_ai.usage.input_tokens": facts.prompt_tokens,
            "gen_ai.usage.output_tokens": facts.completion_tokens,
            "gen_ai.server.time_to_first_token": facts.first_token,
        }
    return found
