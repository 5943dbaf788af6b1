"""The tuning table of this machine: entries of the user's file before those that are shipped, by the adapter's exact name.

The file is `tuning.json` in the folder of the switch PUMICE_HOME; `pumice bench --tune` writes it. A device reads it when it is
opened and puts what it finds into its `Caps`: planning itself reads no file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pumice import config
from pumice.core.json_file import read_json
from pumice.core.private import make_private
from pumice.core.tuning import SHIPPED, Tuning, read_entry, shipped
from pumice.core.whole_file import write_whole
from pumice.errors import InputError


def tuning_for(adapter: str) -> Tuning | None:
    """The entry of an adapter, None where there is none.

    >>> tuning_for("NVIDIA H200").name, tuning_for("H200")
    ('nvidia-hopper', None)
    """
    return next((t for t in (*_user_entries(), *map(shipped, SHIPPED)) if t.knows(adapter)), None)


def user_file() -> Path:
    """Where the user's entries are."""
    return config.home / "tuning.json"


def save_user_entry(name: str, entry: Mapping[str, Any]) -> Path:
    """Put an entry into the user's file, in place of one of the same name; gives the file."""
    read_entry(name, entry, "the entry")
    path = user_file()
    entries = {**(_load(path) if path.is_file() else {}), name: dict(entry)}
    try:
        make_private(path.parent)
        write_whole(path, json.dumps(entries, indent=1) + "\n", mode=0o600)
    except OSError as e:
        raise InputError(f"{path} cannot be written: {e.strerror or e}", hint="set PUMICE_HOME to another folder") from e
    return path


def _user_entries() -> list[Tuning]:
    try:
        path = user_file()
        path.lstat()
    except (OSError, InputError):  # no such file, or no home folder that it could be in
        return []
    return [read_entry(name, entry, str(path)) for name, entry in _load(path).items()]


def _load(path: Path) -> dict[str, Any]:
    return read_json(path, hint="delete it, or measure again with pumice bench --tune")
