"""`pumice serve`: models over HTTP, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import json as json_module
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pumice.cli import INTERRUPTED
from pumice.cli.options import CacheDType, Context, Device, Fast, LargestStep, Lora, LoraScale, Packs, Precision, precision_of
from pumice.errors import InputError

DEFAULT_PORT = 8080
_BYTES = "write bytes as 8GiB or 500MB"


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Models as `pumice run` takes them; NAME=MODEL gives one another name."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any free one.")] = DEFAULT_PORT,
    api_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Hashes of API keys, of which requests need one.", show_default="none")
    ] = None,
    new_key: Annotated[
        str | None, typer.Option(metavar="NAME", help="Make a key, append its hash to --api-key-file, print it, and end.")
    ] = None,
    open_to_all: Annotated[bool, typer.Option("--open", help="Listen beyond this machine without any key.")] = False,
    device: Device = "auto",
    slots: Annotated[int, typer.Option(min=1, help="Sequences of a model that run at once.")] = 16,
    context: Context = 2048,
    memory: Annotated[
        str | None, typer.Option(help="Tokens, or bytes as 2GiB, for keys and values of a model.", show_default="two contexts")
    ] = None,
    cache_dtype: CacheDType = "f32",
    precision: Precision = None,
    fast: Fast = False,
    lora: Lora = None,
    lora_scale: LoraScale = 1.0,
    pack: Packs = None,
    largest_step: LargestStep = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait for a model; others are refused with 429.")] = 256,
    cache: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Keep answers, of temperature 0 or a seed, to give them again: up to so much for a model, as 64MiB.",
            show_default="none",
        ),
    ] = None,
    max_loaded: Annotated[int | None, typer.Option(min=1, help="Models that are loaded at once.", show_default="all")] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Memory of all workers, as 8GiB; idle models make room.", show_default="any"),
    ] = None,
    unload_after: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Unload a model that was not used for so long.", show_default="never")
    ] = None,
    lazy: Annotated[bool, typer.Option("--lazy", help="Load a model when it is first asked for.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of any answer.", show_default="the context")
    ] = None,
    max_body: Annotated[str, typer.Option(metavar="BYTES", help="The largest request.")] = "8MiB",
    timeout: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long a request may take.")] = 600.0,
    drain: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="How long open requests may take after SIGTERM.")] = 30.0,
    connections: Annotated[int, typer.Option(min=8, help="Connections at once; idle ones make room.")] = 1024,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="A site whose pages may use it; may be repeated.", show_default="none"),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The certificate, for https.", show_default="none")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key.", show_default="none")] = None,
    receipts: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a signed receipt of every answer.", show_default="none")
    ] = None,
    log_text: Annotated[bool, typer.Option("--log-text", help="Write prompts into the log, too.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No log of requests.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Say where it listens as one object on stdout.")] = False,
) -> None:
    """Serve models to clients of OpenAI's, Anthropic's and ollama's APIs."""
    if new_key is not None:
        _make_key(api_key_file, new_key)
        return
    _need_packages()
    from pumice.core.byte_counts import bytes_of
    from pumice.serve.server import ModelServer
    from pumice.serve.settings import HostSettings, PoolSettings, ServerSettings
    from pumice.serve.spec import ModelSpec
    from pumice.sources import check_source

    options: dict[str, Any] = {"device": device, "context": context, "cache_dtype": cache_dtype}
    options["memory"] = int(memory) if memory is not None and memory.isdigit() else memory
    options |= {"precision": precision_of(precision, fast), "lora": None if lora is None else str(lora), "lora_scale": lora_scale}
    options |= {"packs": pack, "largest_step": largest_step}
    if receipts is not None:
        if cache is not None:
            message = "--receipts and --cache do not go together: nothing runs for an answer that is in the cache"
            raise InputError(message, hint="leave one of them out", name="cache")
        receipts.mkdir(parents=True, exist_ok=True)
    specs = [ModelSpec.parse(text, slots=slots, **options) for text in models or ()]
    settings = ServerSettings(
        host=host,
        port=port,
        key_file=None if api_key_file is None else str(api_key_file),
        open_to_all=open_to_all,
        origins=tuple(cors_origin or ()),
        certificate=None if tls_cert is None else str(tls_cert),
        private_key=None if tls_key is None else str(tls_key),
        body_bytes=bytes_of(max_body, "--max-body", _BYTES),
        most_tokens=max_tokens,
        request_seconds=timeout,
        drain_seconds=drain,
        connections=connections,
        log_text=log_text,
        quiet=quiet,
        models=HostSettings(
            queue=queue,
            receipts=None if receipts is None else str(receipts.absolute()),
            cache=None if cache is None else bytes_of(cache, "--cache", _BYTES),
        ),
        pool=PoolSettings(
            loaded=max_loaded,
            memory=None if max_memory is None else bytes_of(max_memory, "--max-memory", _BYTES),
            idle_seconds=unload_after,
            preload=not lazy,
        ),
    )
    server = ModelServer(specs, settings)
    # Here a mistyped name can still end the command; later it is a model that others wait for.
    for spec in specs:
        check_source(spec.source)
    names = [spec.name for spec in specs]
    shown = {"url": server.url, "host": host, "port": server.port, "models": names}
    print(json_module.dumps(shown) if json else f"{', '.join(names)} at {server.url}; Ctrl-C ends it", flush=True)
    if server.run():
        raise typer.Exit(INTERRUPTED)


def _make_key(file: Path | None, name: str) -> None:
    from pumice.serve.keys import new_key

    if file is None:
        raise InputError("--new-key needs a file for the key's hash", hint="add --api-key-file FILE")
    print(new_key(file, name))
    print(f"pumice: this key is shown once; {file} holds its hash", file=sys.stderr)


def _need_packages() -> None:
    from pumice.errors import PumiceError

    try:
        import pydantic
        import starlette
        import uvicorn
    except ImportError as e:
        raise PumiceError(f"the server needs the package {e.name}", hint="pip install 'pumice[serve]'") from None
    del pydantic, starlette, uvicorn
