"""Models in a browser tab: the built runtime and page (static/, from the sources in web/), their export and their server."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
# The page of `pumice splat view`.
SPLAT_PAGE = Path(__file__).parent / "splat_page"
_FOR_DEVELOPERS = ("types/", "react.js")


def page_files() -> list[str]:
    """The names of the built files that a web folder gets: the runtime and the page, not what only developers use.

    >>> from pumice.web import STATIC, page_files
    >>> all((STATIC / name).is_file() for name in page_files())
    True
    """
    names = (path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
    return sorted(name for name in names if not name.startswith(_FOR_DEVELOPERS))
