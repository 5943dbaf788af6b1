"""Tools of other MCP servers for agents: a command that speaks over standard input and output, or a URL."""

from __future__ import annotations

import asyncio
import json
import shlex
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any

from pumice.assist.mcp.library import mcp_types
from pumice.assist.tool import Tool, ToolError, check_tool_name
from pumice.errors import InputError, PumiceError
from pumice.llm.grammar import Grammar

_START_SECONDS = 60.0
_CALL_SECONDS = 600.0
_MOST_TOOLS = 128
_MOST_SCHEMA = 1 << 14
_MOST_DESCRIPTION = 1000


class McpConnection:
    """A server whose tools agents may call; a context manager. Each call needs consent: what a server says of itself is a claim.

    `target` is a URL (streamable HTTP) or a command line. A server that ends makes the calls that wait, and all later ones, fail
    with an error that the model sees.
    """

    def __init__(self, target: str) -> None:
        mcp_types()
        if not target.strip():
            raise InputError("the MCP server is empty", hint="give a command or a URL", name="mcp")
        self.target = target
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._closing: asyncio.Event | None = None
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self._thread.start()
        try:
            self._ready.result(_START_SECONDS)
            self.tools = [self._tool(t) for t in self._listed()]
        except TimeoutError:
            self.close()
            raise PumiceError(f"{target:.200} did not answer within {_START_SECONDS:g} s", hint="is it an MCP server?") from None
        except PumiceError:
            self.close()
            raise
        except Exception as e:
            self.close()
            said = _reason(e)
            raise PumiceError(f"the MCP server {target:.200} cannot be used: {said}", hint="check the command or URL") from None

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as e:
            if not self._ready.done():
                self._ready.set_exception(e)

    async def _main(self) -> None:
        from mcp.client.client import Client
        from mcp.client.stdio import StdioServerParameters

        server: Any = self.target
        if not self.target.startswith(("http://", "https://")):
            command, *args = shlex.split(self.target)
            server = StdioServerParameters(command=command, args=args)
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        async with Client(server) as client:
            self._client = client
            self._ready.set_result(None)
            await self._closing.wait()

    def _await(self, work: Any, seconds: float) -> Any:
        """The result of a coroutine of the connection's own thread."""
        if self._loop is None or not self._thread.is_alive():
            work.close()
            raise ToolError(f"the MCP server {self.target:.100} has ended", hint="start it again")
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return waiting.result(seconds)
        except TimeoutError:
            waiting.cancel()  # this notifies the server
            raise ToolError(f"the MCP server {self.target:.100} did not answer within {seconds:g} s") from None

    def _listed(self) -> list[Any]:
        found: list[Any] = []
        cursor = None
        while True:
            page = self._await(self._client.list_tools(cursor=cursor), _START_SECONDS)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None or len(found) > _MOST_TOOLS:
                break
        if len(found) > _MOST_TOOLS:
            raise InputError(f"{self.target:.100} has more than {_MOST_TOOLS} tools", hint="use a server with fewer")
        return found

    def _tool(self, listed: Any) -> Tool:
        check_tool_name(listed.name)

        def call(**arguments: Any) -> str:
            return self._call(listed.name, arguments)

        about = " ".join((listed.description or "").split())[:_MOST_DESCRIPTION]
        return Tool(listed.name, about, enforceable(listed.input_schema), call, "run")

    def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            result = self._await(self._client.call_tool(name, dict(arguments)), _CALL_SECONDS)
        except ToolError:
            raise
        except Exception as e:
            raise ToolError(f"{name} failed: {_reason(e)}") from None
        texts = [c.text if getattr(c, "type", "") == "text" else f"[{getattr(c, 'type', 'content')}]" for c in result.content]
        if result.is_error:
            raise ToolError("\n".join(texts)[:_MOST_DESCRIPTION])
        return "\n".join(texts)

    def close(self) -> None:
        """Ends the connection, and the server's process if this client started it; a second call does nothing."""
        if self._loop is not None and self._closing is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join(10)

    def __enter__(self) -> McpConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def enforceable(schema: Any) -> dict[str, Any]:
    """A schema that masks can enforce; in the place of any other, that of any object: the server checks what it gets.

    >>> enforceable({"type": "object", "properties": {"a": {"type": "integer"}}})["properties"]
    {'a': {'type': 'integer'}}
    >>> enforceable({"type": "object", "properties": {"a": {"not": {}}}})
    {'type': 'object'}
    """
    anything = {"type": "object"}
    if not isinstance(schema, Mapping) or schema.get("type") != "object" or len(json.dumps(schema)) > _MOST_SCHEMA:
        return anything
    try:
        Grammar.json_schema(schema)
    except InputError:
        return anything
    return dict(schema)


def _reason(error: BaseException) -> str:
    """What went wrong, out of the groups that tasks wrap errors in."""
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return f"{type(error).__name__}: {str(error)[:300]}"
