"""A new pack to start from: one kernel in WASM and WGSL, its reference, its test and the next commands."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Literal, get_args

from pumice.errors import InputError

Language = Literal["wat", "c"]
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# Where each file of the template goes; a source of another language stays away.
_PLACES = {
    "kernels.json": "kernels.json",
    "README.md": "README.md",
    "test_pack.py.txt": "test_pack.py",
    "squared_relu.wgsl": "kernels/squared_relu.wgsl",
    "squared_relu.graph": "src/squared_relu.graph",
    "squared_relu.wat": "src/squared_relu.wat",
    "squared_relu.c": "src/squared_relu.c",
}


def new_pack(folder: Path, *, name: str = "", language: str = "wat") -> str:
    """Fills a new folder with a pack that builds and passes its test at once; gives the pack's name, by default the folder's.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     name = new_pack(Path(d, "fast-norms"))
    ...     name, sorted(f.name for f in Path(d, "fast-norms").rglob("*") if f.is_file())
    ('fast-norms', ['README.md', 'kernels.json', 'squared_relu.graph', 'squared_relu.wat', 'squared_relu.wgsl', 'test_pack.py'])
    """
    name = name or re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-_")
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r} is no name for a pack", hint="a-z first, then a-z 0-9 _ -, at most 64: --name NAME", name=name
        )
    if language not in get_args(Language):
        raise InputError(f"there is no template in {language!r}", hint="--language wat or c", language=language)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already, and not an empty folder", hint="give another folder", path=str(folder))
    words = {"@NAME@": name, "@LANGUAGE@": language, "@DATE@": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    template = resources.files("pumice.packs") / "template"
    for source, target in _PLACES.items():
        if source.endswith((".wat", ".c")) and not source.endswith(f".{language}"):
            continue
        text = (template / source).read_text(encoding="utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())  # as it is: hashes must not depend on the system's line ends
    return name
