"""Files as passages: by the ending of their names, with bounds on what is read."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pumice.assist.memory.chunks import Passage, TextKind, page_passages, passages
from pumice.errors import FormatError, PumiceError

MOST_BYTES = 1 << 22
_MOST_PDF_BYTES = 1 << 27
_MOST_PAGES = 5000
_KINDS: dict[str, TextKind] = {
    **dict.fromkeys((".md", ".markdown", ".mdx"), "markdown"),
    **dict.fromkeys((".py", ".pyi"), "python"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".txt", ".rst", ".org", ".tex", ".adoc", ".log", ".csv", ".tsv", ""), "text"),
}
_CODE = (
    ".c .cc .cpp .cs .css .cu .el .ex .exs .glsl .go .h .hpp .hs .java .js .json .jsx .jl .kt .lua .m .mjs .ml .nim .php .pl"
    " .proto .r .rb .rs .scala .sh .sql .swift .toml .ts .tsx .vue .wat .wgsl .xml .yaml .yml .zig"
)
_KINDS |= dict.fromkeys(_CODE.split(), "code")
# Folders that hold no texts of the user's.
_LEFT_OUT = {"node_modules", "__pycache__", "site-packages", "build", "dist", "target"}


@dataclass(frozen=True)
class ReadFile:
    """The passages of a file; `unit` says what their numbers count: "line" or "page"."""

    passages: list[Passage]
    unit: str = "line"


def kind_of(name: str) -> str | None:
    """How a file is read, by its name; None for files that are left out.

    >>> kind_of("a/README.md"), kind_of("x.pdf"), kind_of("photo.png")
    ('markdown', 'pdf', None)
    """
    ending = os.path.splitext(name)[1].lower()
    return "pdf" if ending == ".pdf" else _KINDS.get(ending)


def text_files(root: Path) -> Iterator[Path]:
    """The files below a folder that can be indexed, in order; hidden ones, links and folders of programs are left out."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in _LEFT_OUT)
        for name in sorted(names):
            path = Path(folder, name)
            if not name.startswith(".") and kind_of(name) is not None and path.is_file() and not path.is_symlink():
                yield path


def read_bytes(path: Path) -> bytes:
    """A file's bytes; one that is too large, or no text, is a `FormatError`."""
    most = _MOST_PDF_BYTES if kind_of(path.name) == "pdf" else MOST_BYTES
    try:
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(path, flags), "rb") as file:
            data = file.read(most + 1)
    except OSError as e:
        raise FormatError(f"it cannot be read: {e.strerror}") from None
    if len(data) > most:
        raise FormatError(f"it has more than {most} bytes")
    return data


def read_passages(name: str, data: bytes) -> ReadFile:
    """The passages of a file of that name.

    >>> read_passages("a.md", b"# A\\ntext").passages
    [Passage(text='# A\\ntext', title='A', first=1, last=2)]
    """
    kind = kind_of(name) or "text"
    if kind == "pdf":
        return ReadFile(page_passages(_pdf_pages(data)), "page")
    if b"\0" in data[:8192]:
        raise FormatError("it is no text")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise FormatError(f"it is not UTF-8 at byte {e.start}") from None
    return ReadFile(passages(text, _text_kind(kind)))


def _text_kind(kind: str) -> TextKind:
    return next(k for k in _KINDS.values() if k == kind)


def _pdf_pages(data: bytes) -> Iterator[str]:
    try:
        import pypdf
    except ImportError:
        raise PumiceError("PDF files need the package pypdf", hint="pip install 'pumice[pdf]'") from None
    try:
        reader = pypdf.PdfReader(io.BytesIO(data))
        if len(reader.pages) > _MOST_PAGES:
            raise FormatError(f"it has more than {_MOST_PAGES} pages")
        for page in reader.pages:
            yield page.extract_text()
    except FormatError:
        raise
    except Exception as e:  # damaged files raise anything
        raise FormatError(f"it is no readable PDF file: {type(e).__name__}: {e!s:.200}") from None
