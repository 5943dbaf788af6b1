"""`pumice inspect`: what a model, a plan file or a weights file holds, as a summary, as data, or as a page."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pumice.cli.inspect_page import data, render, text
from pumice.cli.inspect_page.subject import Subject, measure, open_subject
from pumice.cli.pull import progress_bar
from pumice.core.precisions import Precision
from pumice.errors import InputError


def run(
    model: str,
    *,
    device: str,
    html: Path | None,
    measured: bool,
    prefill: bool,
    weights: bool,
    context: int,
    at: Sequence[str],
    as_json: bool,
    precision: Precision | None = None,
) -> int:
    """Look, print, and write the page if one is wanted; the exit code."""
    sizes = read_sizes(at)
    planned: dict[str, Any] = {"device": device, "prefill": prefill, "context": context, "precision": precision}
    with (
        progress_bar(quiet=as_json) as progress,
        open_subject(model, **planned, weights_only=weights, progress=progress) as subject,
    ):
        _check_sizes(subject, sizes)
        profile = measure(subject, device, sizes, progress) if measured else None
        # A page of a measured run shows the steps at the sizes that it had.
        sizes = dict(profile.env) if profile is not None else sizes
        found = data.page(subject, sizes, profile) if html is not None else data.summary(subject, sizes, profile)
    if html is not None:
        render.write(render.render(found), html)
        found = {k: v for k, v in found.items() if k not in data.PAGE_ONLY} | {"html": str(html)}
    if as_json:
        print(json.dumps(found))
        return 0
    print(text.render(found))
    if html is not None:
        print(f"the page is {html}", file=sys.stderr)
    return 0


def read_sizes(at: Sequence[str]) -> dict[str, int]:
    """The symbol sizes that --at gives.

    >>> read_sizes(["T=16", "B=2"])
    {'T': 16, 'B': 2}
    """
    sizes = {}
    for item in at:
        name, equals, value = item.partition("=")
        if not name or not equals or not value.isascii() or not value.isdigit() or len(value) > 15:
            raise InputError(f"--at {item!r} is no size", hint="write --at SYMBOL=NUMBER, for example --at T=16")
        sizes[name] = int(value)
    return sizes


def _check_sizes(subject: Subject, sizes: dict[str, int]) -> None:
    known = subject.plan.maxima if subject.plan is not None else {}
    for name, value in sizes.items():
        if name not in known:
            raise InputError(f"{subject.name} has no symbol {name!r}", hint="it has " + (" ".join(known) or "none"))
        if value > known[name]:
            raise InputError(f"{name} is {value}, the plan is made for at most {known[name]}", hint="ask for less")
