"""Chunking: every line is kept, in order, where it stands, in passages that fit."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumice.assist.memory.chunks import TextKind, page_passages, passages
from pumice.assist.memory.readers import kind_of, read_passages, text_files
from pumice.errors import FormatError

ROOT = Path(__file__).parents[2]
KINDS = [k for k in get_args(TextKind) if k != "html"]
LINES = st.lists(
    st.sampled_from(["", "  ", "# A", "## B c", "text of a line", "    indented", "def f():", "class C:", "```", "x" * 70])
)


@pytest.mark.parametrize("kind", KINDS)
@given(lines=LINES)
def test_every_line_is_kept_in_its_place(kind: TextKind, lines: list[str]) -> None:
    text = "\n".join(lines)
    found = passages(text, kind, most=60)
    kept = [part for p in found for part in p.text.split("\n") if part.strip()]
    assert "".join("".join(kept).split()) == "".join(text.split())
    for p in found:
        assert len(p.text) <= 60 and p.text.strip() and 1 <= p.first <= p.last <= len(lines)
        first = p.text.split("\n")[0]
        assert first.strip() in lines[p.first - 1]
    assert [p.first for p in found] == sorted(p.first for p in found)


@pytest.mark.parametrize("path", ["README.md", "docs/serve.md", "src/pumice/llm/engine.py", "web/package.json"])
def test_real_files(path: str) -> None:
    data = (ROOT / path).read_bytes()
    lines = data.decode().splitlines()
    covered: set[int] = set()
    for p in read_passages(path, data).passages:
        assert lines[p.first - 1].strip().startswith(p.text.splitlines()[0].strip()[:20])
        covered |= set(range(p.first, p.last + 1))
    assert [k for k, line in enumerate(lines, 1) if line.strip() and k not in covered] == []


def test_functions_and_methods_are_named() -> None:
    source = (ROOT / "src/pumice/llm/engine.py").read_text()
    (engine,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == "Engine"]
    methods = {f"Engine.{n.name}" for n in engine.body if isinstance(n, ast.FunctionDef)}
    assert methods <= {p.title for p in passages(source, "python")}


def test_headings_of_html_pages() -> None:
    page = "<html><body>\n<h1>A</h1>\n<p>one</p>\n<h2>B</h2>\n<p>two\nthree</p></body>"
    assert [(p.title, p.text, p.first) for p in passages(page, "html")] == [("A", "# A\none", 2), ("A › B", "## B\ntwo three", 4)]


def test_pages_of_pdf_files() -> None:
    pypdf = pytest.importorskip("pypdf", reason="pip install pypdf")
    assert [p.first for p in page_passages(["a", "", "b"])] == [1, 3]
    for data in (b"", b"%PDF-1.4 damaged", b"no pdf"):
        with pytest.raises(FormatError, match="no readable PDF"):
            read_passages("a.pdf", data)
    assert pypdf is not None
    data = small_pdf(["First page about kettles.", "Second page about cups."])
    read = read_passages("a.pdf", data)
    assert read.unit == "page" and [(p.first, p.text) for p in read.passages] == [
        (1, "First page about kettles."),
        (2, "Second page about cups."),
    ]


def small_pdf(pages: list[str]) -> bytes:
    """A PDF file by hand: a page with one line of text for each."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * k} 0 R" for k in range(len(pages)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for k, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * k} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    table = "".join(f"{at:010d} 00000 n \n" for at in places)
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(out)}\n%%EOF"
    return f"{out}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def test_what_is_no_text_is_refused() -> None:
    for data, words in ((b"a\0b", "no text"), (b"\xff\xfe\xfa", "not UTF-8")):
        with pytest.raises(FormatError, match=words):
            read_passages("a.txt", data)


def test_which_files_are_read(tmp_path: Path) -> None:
    for name in ("a.md", ".hidden.md", "b.png", "sub/c.py", ".git/d.md", "node_modules/e.js", "f.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "link.md").symlink_to(tmp_path / "a.md")
    assert [p.relative_to(tmp_path).as_posix() for p in text_files(tmp_path)] == ["a.md", "f.pdf", "sub/c.py"]
    assert kind_of("Makefile") == "text" and kind_of("a.PY") == "python"
