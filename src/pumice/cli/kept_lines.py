"""The parameters of `pumice run`, kept for the next start: it reads its command line by them, without typer and the commands.

To import typer and to declare all commands takes longer than to pack a small model.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pumice.cli import INTERRUPTED
from pumice.cli.lines import KINDS, CommandParameter, read_values
from pumice.core.kept import forget_oldest, keep, kept_folder, read_kept
from pumice.core.own_sources import sources_digest

# The command whose parameters are kept.
KEPT = "run"
_MOST = 8


def run_kept(words: Sequence[str]) -> bool:
    """Whether a line is one that kept parameters can read; then it runs, and ends the process."""
    found = _read() if words and words[0] == KEPT else None
    values = None if found is None else read_values(found[0], words[1:])
    if found is None or values is None:
        return False
    from pumice.cli.run_line import run_line

    # As typer calls commands: its exit codes, and its ways with Ctrl-C, Ctrl-D and closed pipes.
    try:
        sys.exit(run_line(**{**found[1], **values}))
    except EOFError:
        print("\nAborted!", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except OSError as e:
        if e.errno != errno.EPIPE:
            raise
        close_outputs()
        sys.exit(1)


def keep_parameters(parameters: Mapping[str, CommandParameter], defaults: Mapping[str, Any]) -> None:
    """Keeps the parameters of the command, and the values of those that a line does not give."""
    path = _path()
    if path is None or path.exists():
        return
    entries = {name: [p.kind.__name__, p.many, list(p.names), p.low, p.high, p.required] for name, p in parameters.items()}
    if keep(path, json.dumps({"parameters": entries, "defaults": dict(defaults)}).encode()):
        forget_oldest(path.parent, _MOST)


def _read() -> tuple[dict[str, CommandParameter], dict[str, Any]] | None:
    path = _path()
    body = None if path is None else read_kept(path)
    if body is None:
        return None
    data = json.loads(body)
    parameters = {
        name: CommandParameter(KINDS[kind], many, tuple(names), low, high, required)
        for name, (kind, many, names, low, high, required) in data["parameters"].items()
    }
    return parameters, data["defaults"]


def _path() -> Path | None:
    folder = kept_folder("commands")
    return None if folder is None else folder / f"{KEPT}-{sources_digest()[:32]}.json"


def close_outputs() -> None:
    """What is left to be written goes nowhere: Python would complain about it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
