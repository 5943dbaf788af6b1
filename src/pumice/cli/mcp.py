"""`pumice mcp`: models, documentation and skills for programs that speak the Model Context Protocol."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from pumice.cli.options import Context, Device

mcp_app = typer.Typer(
    name="mcp",
    help="The Model Context Protocol: Pumice as a server of tools.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@mcp_app.callback()
def _group() -> None:
    pass


@mcp_app.command("serve")
def serve_mcp(
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="A language model, for generate and skills.", show_default="none")
    ] = None,
    embedder: Annotated[str | None, typer.Option(metavar="MODEL", help="Encoder, for embed.", show_default="none")] = None,
    reranker: Annotated[str | None, typer.Option(metavar="MODEL", help="Cross-encoder, for rerank.", show_default="none")] = None,
    http: Annotated[bool, typer.Option("--http", help="Streamable HTTP at /mcp, not standard input and output.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = 8765,
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the key that HTTP clients must send.", show_default="none")
    ] = None,
    device: Device = "auto",
    context: Context = 2048,
) -> None:
    """Serve tools until the client leaves, or Ctrl-C."""
    from pumice.assist.mcp.server import ServedModels, http_app, make_server, serve_stdio, server_tools
    from pumice.cli.text_input import read_text
    from pumice.sources import check_source

    for name in (model, embedder, reranker):
        if name is not None:
            check_source(name)
    models = ServedModels(model, embedder, reranker, {"device": device, "context": context})
    server = make_server(server_tools(models))
    key = read_text(key_file).strip() if key_file is not None else None
    try:
        if not http:
            print("serving MCP on standard input and output", file=sys.stderr)
            serve_stdio(server)
            return
        import uvicorn

        app = http_app(server, host=host, key=key)
        running = uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning", ws="none"))
        sock = running.config.bind_socket()
        print(f"serving MCP at http://{host}:{sock.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
        running.run(sockets=[sock])
    finally:
        models.close()
