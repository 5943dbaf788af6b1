"""MCP with the official client: every tool over stdio and HTTP, cancellation, and servers that die."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from pumice.assist.mcp.client import McpConnection
from pumice.assist.mcp.server import ServedModels, http_app, make_server, server_tools
from pumice.assist.running import run_tool
from pumice.assist.tool import ToolError
from pumice.errors import InputError, PumiceError
from serve.serving import RERANKER, encoder

mcp = pytest.importorskip("mcp", reason="pip install mcp")
ROOT = Path(__file__).parents[2]
# pumice's own names, then the arguments of a call of each.
CALLS: dict[str, dict[str, Any]] = {
    "search_docs": {"query": "rerank endpoint"},
    "read_docs": {"page": "sampling.md"},
    "generate": {"prompt": "Hi", "max_tokens": 4},
    "skill_classify": {"text": "fine", "labels": "good, bad"},
    "skill_extract": {"text": "Ada"},
    "skill_summarise": {"text": "Ada"},
    "skill_title": {"text": "Ada"},
    "skill_translate": {"text": "Ada"},
    "embed": {"texts": ["w5 w6", "w7"]},
    "rerank": {"query": "a1", "texts": ["a1 b2", "b3"]},
}


@pytest.fixture(scope="module")
def models(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedModels]:
    folder = encoder(tmp_path_factory.mktemp("encoder"))
    served = ServedModels(str(model_folder), str(folder), str(RERANKER), {"device": "host", "context": 640})
    yield served
    served.close()


def command(models: ServedModels) -> list[str]:
    given = ["--model", str(models.generate), "--embedder", str(models.embed), "--reranker", str(models.rerank)]
    return ["-m", "pumice", "mcp", "serve", "--device", "host", "--context", "640", *given]


async def check_every_tool(client: Any) -> None:
    listed = (await client.list_tools()).tools
    assert [t.name for t in listed] == list(CALLS) and all(t.description and t.input_schema["type"] == "object" for t in listed)
    texts = {}
    for name, arguments in CALLS.items():
        result = await client.call_tool(name, arguments)
        texts[name] = result.content[0].text
        assert not result.is_error or name == "skill_extract", (name, texts[name])
    assert texts["read_docs"].startswith("# Sampling") and texts["skill_classify"] in ("good", "bad")
    vectors = json.loads(texts["embed"])
    assert vectors["dim"] == len(vectors["vectors"][1]) and {r["index"] for r in json.loads(texts["rerank"])} == {0, 1}
    for name, arguments in (("generate", {"prompt": 5}), ("generate", {"prompt": "a", "max_tokens": 0}), ("none", {})):
        result = await client.call_tool(name, arguments)
        assert result.is_error and result.content[0].text.startswith("error: ")


def test_every_tool_over_stdio(models: ServedModels) -> None:
    from mcp import Client, StdioServerParameters

    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    server = StdioServerParameters(command=sys.executable, args=command(models), env=env)

    async def main() -> None:
        async with Client(server) as client:
            await check_every_tool(client)

    asyncio.run(main())


def test_every_tool_over_http(models: ServedModels) -> None:
    import httpx
    import uvicorn
    from mcp import Client

    server = uvicorn.Server(
        uvicorn.Config(http_app(make_server(server_tools(models)), host="127.0.0.1"), port=0, log_level="warning", ws="none")
    )
    sock = server.config.bind_socket()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}/mcp"

    async def main() -> None:
        async with Client(url) as client:
            await check_every_tool(client)
        async with httpx.AsyncClient() as raw:  # a page of another site cannot use it
            refused = await raw.post(url, json={}, headers={"Host": "evil.example", "Origin": "http://evil.example"})
            assert refused.status_code in (403, 421)

    asyncio.run(main())
    with McpConnection(url) as connection:
        assert run_tool(connection.tools[1], {"page": "scans.md"}, seconds=30, most=7).text == "# Scans"
    server.should_exit = True
    thread.join(10)
    with pytest.raises(InputError, match="needs a key"):
        http_app(make_server([]), host="0.0.0.0")


def test_a_key_guards_http() -> None:
    import httpx

    app = http_app(make_server([]), host="0.0.0.0", key="secret")

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://a") as client:
            for headers in ({}, {"Authorization": "Bearer wrong"}):
                assert (await client.post("/mcp", json={}, headers=headers)).status_code == 401

    asyncio.run(main())


def test_a_cancelled_call_stops() -> None:
    from mcp import Client

    from pumice.assist.mcp.server import cancelled

    begun, stopped = threading.Event(), threading.Event()

    @pm.tool(effect="read")
    def wait() -> str:
        """Wait until it is cancelled."""
        begun.set()
        until = time.monotonic() + 30
        while not cancelled() and time.monotonic() < until:
            time.sleep(0.005)
        if cancelled():
            stopped.set()
        return "done"

    async def main() -> None:
        async with Client(make_server([wait])) as client:
            call = asyncio.create_task(client.call_tool("wait", {}))
            await asyncio.to_thread(begun.wait, 10)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            assert await asyncio.to_thread(stopped.wait, 10)
            assert (await client.list_tools()).tools[0].name == "wait"  # the server goes on

    asyncio.run(main())


SERVER = """
import os, sys, time
import pumice as pm
from pumice.assist.mcp.server import make_server, serve_stdio

@pm.tool
def echo(text: str) -> str:
    "Say it again."
    return text

@pm.tool
def die() -> str:
    "End the server."
    os._exit(3)

@pm.tool
def fail() -> str:
    "Fail."
    raise ValueError("no")

serve_stdio(make_server([echo, die, fail]))
"""


@pytest.fixture
def other_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "other.py"
    file.write_text(SERVER)
    return f"{sys.executable} {file}"


def test_tools_of_other_servers(other_server: str) -> None:
    with McpConnection(other_server) as connection:
        tools = {t.name: t for t in connection.tools}
        assert set(tools) == {"echo", "die", "fail"} and all(t.needs_consent for t in tools.values())
        assert tools["echo"].call({"text": "héllo"}) == "héllo"
        with pytest.raises(ToolError, match="ValueError: no"):
            tools["fail"].call({})
        with pytest.raises(ToolError, match="text"):
            tools["echo"].call({"wrong": 1})
        # It dies in mid-call: that call fails, and so do all later ones, soon.
        died = run_tool(tools["die"], {}, seconds=30, most=1000)
        assert died.failed and "did not end within" not in died.text
        again = run_tool(tools["echo"], {"text": "a"}, seconds=30, most=1000)
        assert again.failed and "did not end within" not in again.text


def test_servers_that_are_none() -> None:
    for target in ("", "no-such-command-at-all", f"{sys.executable} -c 'print(1)'", "http://127.0.0.1:9/mcp"):
        with pytest.raises(PumiceError):
            McpConnection(target)


def test_the_command_says_where_it_listens(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secret\n")
    args = [sys.executable, "-m", "pumice", "mcp", "serve", "--http", "--port", "0", "--key-file", str(key)]
    with subprocess.Popen(args, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}) as p:
        assert p.stderr is not None
        assert p.stderr.readline().startswith("serving MCP at http://127.0.0.1:")
        p.terminate()
