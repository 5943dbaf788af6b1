"""An MCP server of models: generating, embedding, reranking, Pumice's documentation and skills as tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from pumice.assist.mcp.library import mcp_types
from pumice.assist.running import run_tool
from pumice.assist.tool import Tool, ToolError, tool
from pumice.errors import InputError

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

_MOST_CHARACTERS = 1 << 22
_MOST_TEXTS = 256
_MOST_TEXT = 100_000
# Set when the client cancels the call that runs in this context.
_stop: ContextVar[threading.Event | None] = ContextVar("mcp_stop", default=None)


@dataclass
class ServedModels:
    """The models of a server by task, each loaded when it is first asked for, and used by one call at a time."""

    generate: str | None = None
    embed: str | None = None
    rerank: str | None = None
    load_options: Mapping[str, Any] = field(default_factory=dict)
    skills: bool = True

    def __post_init__(self) -> None:
        self._stack = ExitStack()
        self._loaded: dict[str, Any] = {}
        self._lock = threading.Lock()

    def get(self, task: str) -> Any:
        """The model of a task."""
        with self._lock:
            if task not in self._loaded:
                from pumice.llm.load import load

                options = dict(self.load_options) if task == "generate" else {"device": self.load_options.get("device", "auto")}
                self._loaded[task] = self._stack.enter_context(load(getattr(self, task), task, **options))
            return self._loaded[task]

    def close(self) -> None:
        """Frees the models."""
        with self._lock:
            self._loaded.clear()
            self._stack.close()


def cancelled() -> bool:
    """Whether the client has cancelled the call that runs in this context."""
    stop = _stop.get()
    return stop is not None and stop.is_set()


def server_tools(models: ServedModels) -> list[Tool]:
    """The tools that a server of these models has.

    >>> [t.name for t in server_tools(ServedModels(generate="smollm2", embed="minilm", skills=False))]
    ['search_docs', 'read_docs', 'generate', 'embed']
    """
    from pydantic import Field

    found: list[Tool] = [*_docs_tools()]
    text = Annotated[str, Field(max_length=_MOST_TEXT)]
    texts = Annotated[list[text], Field(min_length=1, max_length=_MOST_TEXTS)]

    def add(function: Callable[..., Any], **annotations: Any) -> None:
        function.__annotations__.update(annotations)
        found.append(tool(effect="read")(function))

    if models.generate is not None:

        def generate(prompt: str, system: str = "", max_tokens: int = 256, temperature: float = 0.8) -> str:
            """Answer a prompt with the language model."""
            options = {"system": system or None, "max_tokens": max_tokens, "temperature": temperature}
            answer = models.get("generate").generate(prompt, cancelled=cancelled, **options)
            if answer.finish_reason == "cancelled":
                raise ToolError("cancelled")
            return str(answer.text)

        number, share = Annotated[int, Field(ge=1, le=4096)], Annotated[float, Field(ge=0, le=5)]
        add(generate, prompt=text, system=text, max_tokens=number, temperature=share)
        if models.skills:
            found.extend(_skill_tools(models))
    if models.embed is not None:

        def embed(texts: list[str]) -> dict[str, Any]:
            """Turn texts into vectors of numbers, whose dot products say how alike they are."""
            vectors = models.get("embed").embed(texts)
            return {"dim": int(vectors.shape[1]), "vectors": [[round(float(v), 6) for v in row] for row in vectors]}

        add(embed, texts=texts)
    if models.rerank is not None:

        def rerank(query: str, texts: list[str]) -> list[dict[str, Any]]:
            """Order texts by how well they answer a query, best first."""
            return [{"index": r.index, "score": r.score} for r in models.get("rerank").rank(query, texts)]

        add(rerank, query=text, texts=texts)
    return found


def _docs_tools() -> list[Tool]:
    from pumice.assist.builtin_tools import builtin_tools
    from pumice.assist.own_docs import pages, read_page

    def read_docs(page: str) -> str:
        return read_page(page)

    about = "Read a page of Pumice's documentation: " + ", ".join(pages())
    searching = [t for t in builtin_tools() if t.name == "search_docs"]
    return [*searching, tool(description=about, effect="read")(read_docs)]


def _skill_tools(models: ServedModels) -> list[Tool]:
    """The skills as tools: the model is loaded when one is first called."""
    from pumice.assist.skill import find_skills

    made = []
    for skill in find_skills().skills.values():
        if not skill.inputs:
            continue
        described = skill.as_tool(None)  # type: ignore[arg-type]

        def work(skill: Any = skill, **given: str) -> str:
            answer = skill.run(models.get("generate"), given, cancelled=cancelled)
            if answer.finish_reason == "cancelled":
                raise ToolError("cancelled")
            return str(answer.text)

        made.append(Tool(described.name, described.description, described.parameters, work, "read"))
    return made


def make_server(tools: Sequence[Tool], *, seconds: float = 600.0) -> Server[Any]:
    """The server of the official package for these tools; wrong arguments and errors are results that say what is wrong."""
    types = mcp_types()
    import anyio
    from mcp.server.lowlevel import Server

    from pumice import __version__

    by_name = {t.name: t for t in tools}

    async def list_tools(context: Any, params: Any) -> Any:
        listed = [types.Tool(name=t.name, description=t.description, input_schema=dict(t.parameters)) for t in tools]
        return types.ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: Any) -> Any:
        chosen = by_name.get(params.name)
        if chosen is None:
            said = f"error: there is no tool {params.name!r:.80}"
            return types.CallToolResult(content=[types.TextContent(type="text", text=said)], is_error=True)
        stop = threading.Event()
        _stop.set(stop)

        def work() -> Any:
            return run_tool(chosen, params.arguments or {}, seconds=seconds, most=_MOST_CHARACTERS)

        try:
            result = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
        except anyio.get_cancelled_exc_class():
            stop.set()
            raise
        content = [types.TextContent(type="text", text=result.text)]
        return types.CallToolResult(content=content, is_error=result.failed or result.cut)

    return Server("pumice", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def serve_stdio(server: Server[Any]) -> None:
    """Serves one client over standard input and output, until it leaves."""
    import anyio
    from mcp.server.stdio import stdio_server

    async def main() -> None:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())

    anyio.run(main)


def http_app(server: Server[Any], *, host: str, key: str | None = None) -> Any:
    """The ASGI application of a server over streamable HTTP, at /mcp; with a key, requests need it as a bearer token."""
    import secrets

    if host not in ("127.0.0.1", "localhost", "::1") and key is None:
        raise InputError(f"listening on {host} needs a key", hint="give --api-key-file, or listen on 127.0.0.1", name="host")
    app = server.streamable_http_app(host=host)
    if key is None:
        return app

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            given = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
            if not secrets.compare_digest(given.encode(), f"Bearer {key}".encode()):
                headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b"a key is needed\n"})
                return
        await app(scope, receive, send)

    return guarded
