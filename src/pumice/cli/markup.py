"""HTML from values that nobody vouches for: text can only become text, and what could mislead a reader's eye is written out."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Sequence
from importlib.resources import files

# Printable for people, though not for Python: other spaces, and what joins letters and emoji.
_KEPT = frozenset("\n\t\u00a0\u2009\u200a\u200c\u200d\u202f\u3000")
_EMPTY = frozenset({"meta"})


class Markup(str):
    """Text that is HTML already; only `element` and `joined` make it."""

    __slots__ = ()


def element(name: str, /, *content: str, **attributes: str | None) -> Markup:
    """An element; content that is no markup is escaped. A `_` after an attribute's name is dropped, one in it is a dash.

    >>> element("p", "a < b ", element("b", "'x'"), class_="note")
    '<p class="note">a &lt; b <b>&#x27;x&#x27;</b></p>'
    """
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(visible(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{named}>" if name in _EMPTY else f"<{name}{named}>{joined(content)}</{name}>")


def joined(parts: Iterable[str]) -> Markup:
    """Several pieces one after the other.

    >>> joined(["<", element("i", "x")])
    '&lt;<i>x</i>'
    """
    return Markup("".join(part if isinstance(part, Markup) else html.escape(visible(part)) for part in parts))


def visible(text: str) -> str:
    """Text in which characters that cannot be seen, or that turn the reading direction, are written out.

    >>> visible("a\\u202eb\\x00c\\u00a0d\\n") == "a\\\\u202eb\\\\x00c\\u00a0d\\n"
    True
    """
    return "".join(c if c.isprintable() or c in _KEPT else repr(c)[1:-1] for c in text)


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), *, number: int | None = None) -> Markup:
    """A table; `number` is the column of figures.

    >>> table([["a", "1"]], number=1)
    '<table><tbody><tr><td>a</td><td class="number">1</td></tr></tbody></table>'
    """

    def row(cells: Sequence[str], kind: str) -> Markup:
        return element("tr", *(element(kind, cell, class_="number" if i == number else None) for i, cell in enumerate(cells)))

    heading = [element("thead", row(head, "th"))] if head else []
    return element("table", *heading, element("tbody", *(row(cells, "td") for cells in rows)))


def page(title: str, body: Markup, sheet: str, *, refresh: float | None = None) -> str:
    """A whole page, which runs no script and loads nothing; with `refresh` browsers load it again after so many seconds.

    >>> page("<b>", Markup(""), "").splitlines()[0], "<b>" in page("<b>", Markup(""), "")
    ('<!doctype html>', False)
    """
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        *([element("meta", http_equiv="refresh", content=f"{refresh:g}")] if refresh else []),
        element("title", title),
        Markup(f"<style>{sheet}</style>"),
    )
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def style(*names: str) -> str:
    """Style sheets of the pages: `style.css` has the colours, cards, figures and tables that all share."""
    return "\n".join(files("pumice.cli.inspect_page").joinpath(name).read_text("utf-8") for name in names)
