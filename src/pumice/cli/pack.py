"""`pumice pack`: the group of its commands; each file that adds some is imported at the end."""

from __future__ import annotations

import typer

pack_app = typer.Typer(
    name="pack",
    help="Signed packs of kernels: make, sign, check, install and run them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
