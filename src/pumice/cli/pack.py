"""`pumice pack`: the group of its commands; each file that adds some is imported at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

pack_app = typer.Typer(
    name="pack",
    help="Signed packs of kernels: make, sign, check, install and run them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout and nothing else.")]
Pack = Annotated[Path, typer.Argument(metavar="PACK", help="The folder or zip of a pack.")]

# They need the names above.
from pumice.cli import pack_author, pack_inspect, pack_keys, pack_life, pack_run, pack_sign  # noqa: E402, F401
