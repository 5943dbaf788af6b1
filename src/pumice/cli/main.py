"""The `pumice` command: what is true of all subcommands, which are in app.py; a start that needs none of them leaves them out."""

from __future__ import annotations

import contextlib
import errno
import gc
import io
import os
import sys
import warnings
from typing import Any

from pumice import config
from pumice.cli import INTERRUPTED
from pumice.cli.kept_lines import close_outputs, run_kept
from pumice.errors import InputError, PumiceError, PumiceWarning

_OBJECTS_PER_COLLECTION = 100_000
# What writing fails with where a disk is full or broken, or nobody reads.
_NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE}


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pumice.cli.app import app

    return app


def error_text(error: PumiceError) -> str:
    """What the command line says about an error; the last line holds what happened and what to do.

    >>> print(error_text(PumiceError("no such file", hint="check the path")))
    pumice: no such file; check the path
    """
    line = " ".join(error.message.split())
    if error.cli_hint:
        line += "; " + " ".join(error.cli_hint.split())
    at = f"at {error.where}\n" if error.where else ""
    return f"{at}pumice: {line}"


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: str | None = None
) -> None:
    """Pumice's own warnings are for people at the terminal: no file and line of the package with them."""
    if issubclass(category, PumiceWarning):
        print(f"pumice: {message}", file=sys.stderr)
    else:
        _show_other_warning(message, category, filename, lineno, file, line)


_show_other_warning = warnings.showwarning


def main() -> None:
    """The console script."""
    # What importing makes stays: looking for garbage every 700 objects takes a tenth of a start.
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
    # Python has None for a stream that was closed before the start, as services and scripts do (2>&-).
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An answer may hold characters that the terminal's encoding lacks; they must not end it.
        sys.stdout.reconfigure(errors="replace")
    warnings.showwarning = _show_warning
    try:
        _run()
    except OSError as e:
        if e.filename is not None and not config.debug:
            # A path that a command was given, and that nothing looked at before; PUMICE_DEBUG=1 shows where.
            problem = InputError(f"{e.filename} cannot be used: {e.strerror}", hint="check the path and its permissions")
            print(error_text(problem), file=sys.stderr)
            sys.exit(problem.exit_code)
        if e.errno not in _NOT_WRITTEN:
            raise
        if e.errno != errno.EPIPE:
            lost = PumiceError(
                f"the output cannot be written: {e.strerror}", hint="free some space, or write it to another place"
            )
            with contextlib.suppress(OSError):
                print(error_text(lost), file=sys.stderr)
        close_outputs()
        sys.exit(1)


def _run() -> None:
    """Does what the command line says, and writes all of its output."""
    try:
        if not run_kept(sys.argv[1:]):
            from pumice.cli.app import start

            start(sys.argv[1:])
    except SystemExit as e:
        if e.code == INTERRUPTED:
            print("pumice: interrupted", file=sys.stderr)
        raise
    except PumiceError as e:
        print(error_text(e), file=sys.stderr)
        sys.exit(e.exit_code)
    finally:
        # Python would only complain where it ends, after all exit codes.
        sys.stdout.flush()


if __name__ == "__main__":
    main()
