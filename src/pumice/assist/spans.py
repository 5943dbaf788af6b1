"""OpenTelemetry spans of agents, where opentelemetry-api is installed and a program has set it up; counts and no text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumice.assist.agent import AgentAnswer


class AgentSpan:
    """A span that attributes can be added to; without OpenTelemetry it takes them and does nothing."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    @contextmanager
    def child(self, operation: str, name: str | None) -> Iterator[AgentSpan]:
        """A span for an answer of the model ("chat") or a call ("execute_tool"), by OpenTelemetry's names."""
        with _span(operation, name or "", self._span) as span:
            key = "gen_ai.tool.name" if operation == "execute_tool" else "gen_ai.request.model"
            span.note({key: name or ""})
            yield span

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Adds attributes."""
        if self._span is not None:
            self._span.set_attributes(dict(attributes))

    def finish(self, answer: AgentAnswer) -> None:
        """Adds what the whole answer took."""
        self.note(
            {
                "gen_ai.usage.input_tokens": answer.usage["prompt_tokens"],
                "gen_ai.usage.output_tokens": answer.usage["completion_tokens"],
                "pumice.agent.steps": answer.steps,
                "pumice.agent.calls": len(answer.calls),
                "pumice.agent.stopped": answer.stopped,
            }
        )


@contextmanager
def agent_span(model: str | None, tools: int) -> Iterator[AgentSpan]:
    """A span for an agent's whole answer; those of its steps are its children."""
    with _span("invoke_agent", model or "", None) as span:
        span.note({"gen_ai.request.model": model or "", "pumice.agent.tools": tools})
        yield span


@contextmanager
def _span(operation: str, name: str, parent: Any) -> Iterator[AgentSpan]:
    if find_spec("opentelemetry") is None:
        yield AgentSpan()
        return
    from opentelemetry import trace

    from pumice import __version__

    tracer = trace.get_tracer("pumice.assist", __version__)
    # Not made current: the steps of a generator run between those of its caller, whose context must stay its own.
    within = None if parent is None else trace.set_span_in_context(parent)
    span = tracer.start_span(f"{operation} {name}".strip(), within)
    span.set_attributes({"gen_ai.operation.name": operation, "gen_ai.system": "pumice"})
    try:
        yield AgentSpan(span)
    finally:
        span.end()
