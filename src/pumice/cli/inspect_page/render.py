"""The page of a subject: one HTML file that holds its style, its scripts and its data, and fetches nothing."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from pumice.core.whole_file import write_whole
from pumice.errors import InputError

STYLES = ("style.css", "pictures.css")
# In the order in which they are run: what comes later calls what comes earlier.
SCRIPTS = ("page.js", "layout.js", "graph.js", "memory.js", "kernels.js", "timeline.js", "weights.js", "start.js")


def render(data: Mapping[str, Any]) -> str:
    """The page as text.

    >>> page = render({"name": "</script><b>"})
    >>> "</script><b>" in page, page.startswith("<!doctype html>")
    (False, True)
    """
    folder = files(__package__)
    text = folder.joinpath("template.html").read_text("utf-8")
    scripts = "\n".join(f"<script>\n{folder.joinpath(name).read_text('utf-8')}</script>" for name in SCRIPTS)
    parts = {
        "TITLE": html.escape(str(data["name"])),
        "STYLE": "\n".join(folder.joinpath(name).read_text("utf-8") for name in STYLES),
        "DATA": embedded(data),
        "SCRIPTS": scripts,
    }
    for name, part in parts.items():
        # Neither the title nor the data can hold such a mark: both have their angle brackets written out.
        text = text.replace(f"<!--{name}-->", part, 1)
    return text


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that is safe inside a script element: no text in it ends the element or opens a comment.

    >>> embedded({"a": "</script><!--"})
    '{"a":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write(page: str, path: Path) -> None:
    """Write a page atomically: readers of `path` see the old page or the whole new one."""
    try:
        write_whole(path, page)
    except OSError as e:
        raise InputError(
            f"the page cannot be written to {path}: {e.strerror or e}", hint="check the folder", path=str(path)
        ) from e
