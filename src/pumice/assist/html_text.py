"""HTML as lines of text with the lines of the source that they come from; headings become Markdown's."""

from __future__ import annotations

from html.parser import HTMLParser

_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "br",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tr",
        "ul",
    ]
)
_HIDDEN = frozenset(["script", "style", "template", "noscript", "head", "svg", "iframe", "object"])
_HEADINGS = {f"h{k}": "#" * k + " " for k in range(1, 7)}


def html_lines(text: str) -> list[tuple[int, str]]:
    """The lines of text of a page, each with its line in the source; what is not shown to readers is left out.

    >>> html_lines("<h1>Title</h1>\\n<script>x()</script>\\n<p>One <b>two</b>.<p>Three")
    [(1, '# Title'), (3, 'One two.'), (3, 'Three')]
    """
    parser = _Lines()
    parser.feed(text)
    parser.close()
    parser.flush()
    return parser.lines


class _Lines(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.lines: list[tuple[int, str]] = []
        self._held, self._line, self._prefix = "", 0, ""
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _HIDDEN:
            self._hidden.append(tag)
        elif tag in _BLOCKS:
            self.flush()
            self._prefix = _HEADINGS.get(tag, "- " if tag == "li" else "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._hidden:
            # Also what was opened inside and never closed.
            del self._hidden[self._hidden.index(tag) :]
        elif tag in _BLOCKS:
            self.flush()

    def handle_data(self, data: str) -> None:
        if self._hidden or not data:
            return
        if not self._held.strip() and data.strip():
            before = len(data) - len(data.lstrip())
            self._line = self.getpos()[0] + data[:before].count("\n")
        self._held += data

    def flush(self) -> None:
        """Ends the line that was collected."""
        said = " ".join(self._held.split())
        if said:
            self.lines.append((self._line, self._prefix + said))
        self._held, self._prefix = "", ""
