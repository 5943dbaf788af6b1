"""Names of files in packs: relative, of plain characters, the same file on every system."""

from __future__ import annotations

import re
from collections.abc import Iterable

MANIFEST = "kernels.json"
SIGNATURE = "kernels.json.sig"
MAX_PATH = 200
MAX_FOLDERS = 7

# ASCII only: no two names are then equal by Unicode normalisation alone.
PATH_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*(/[A-Za-z0-9_][A-Za-z0-9_.+-]*)*$"
_PATH = re.compile(PATH_PATTERN.removesuffix("$") + r"\Z")
# Windows opens a device for these, with any suffix.
_DEVICES = {"con", "prn", "aux", "nul", *(f"{name}{i}" for name in ("com", "lpt") for i in range(10))}


def path_problem(path: str) -> str:
    """What is wrong with the name of a file in a pack; nothing if it is safe.

    >>> path_problem("kernels/rope.wasm"), path_problem("../x")
    ('', 'is not a relative path of letters, digits and _ . + - with / between')
    """
    if len(path) > MAX_PATH:
        return f"is longer than {MAX_PATH} characters"
    if not _PATH.match(path):
        return "is not a relative path of letters, digits and _ . + - with / between"
    parts = path.split("/")
    if len(parts) > MAX_FOLDERS + 1:
        return f"is more than {MAX_FOLDERS} folders deep"
    for part in parts:
        if part.endswith("."):
            return "has a part that ends with a dot"
        if part.split(".")[0].lower() in _DEVICES:
            return f"has the part {part}, which names a device on Windows"
    return ""


def clash(paths: Iterable[str]) -> str:
    """Two paths that are one file on some systems, or of which one is the other's folder; nothing if there are none.

    >>> clash(["a/b", "A/B"]), clash(["a", "a/b"]), clash(["a/b", "a/c"])
    ('a/b and A/B', 'a and a/b', '')
    """
    files: dict[str, str] = {}
    folders: dict[str, str] = {}  # each with the path that it was first written in
    for path in paths:
        folded = path.casefold()
        if folded in files or folded in folders:
            return f"{files.get(folded) or folders[folded]} and {path}"
        files[folded] = path
        for end in (i for i, c in enumerate(folded) if c == "/"):
            if folded[:end] in files:
                return f"{files[folded[:end]]} and {path}"
            if (other := folders.setdefault(folded[:end], path))[:end] != path[:end]:
                return f"{other} and {path}"
    return ""
