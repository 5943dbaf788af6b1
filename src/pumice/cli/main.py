"""The `pumice` command: one thin function per subcommand, which imports what it needs only when it runs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pumice.errors import PumiceError

app = typer.Typer(
    name="pumice",
    help="A machine-learning engine over WebGPU: one graph, one plan, for GPUs, the CPU and the browser.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain help: the coloured one costs more start-up time than everything else together.
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else.")]


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


def error_text(error: PumiceError) -> str:
    """What the command line says about an error; the last line holds what happened and what to do.

    >>> print(error_text(PumiceError("no such file", hint="check the path")))
    pumice: no such file; check the path
    """
    line = " ".join(error.message.split())
    if error.hint:
        line += "; " + " ".join(error.hint.split())
    at = f"at {error.where}\n" if error.where else ""
    return f"{at}pumice: {line}"


def main() -> None:
    """The console script."""
    try:
        app()
    except PumiceError as e:
        print(error_text(e), file=sys.stderr)
        sys.exit(e.exit_code)


if __name__ == "__main__":
    main()
