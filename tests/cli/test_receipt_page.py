"""The page of a receipt: what it says, and that nothing in a receipt can become anything but text."""

from __future__ import annotations

import base64
import hashlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hostile_receipts import ATTACKS, hostile_receipt
from pumice import config
from pumice.cli.main import app
from pumice.cli.markup import Markup, element, joined, visible
from pumice.cli.receipt_page import receipt_page
from pumice.errors import InputError
from pumice.packs.keys import SigningKey
from pumice.receipts.artifacts import Artifact
from pumice.receipts.envelope import read_envelope, sign_envelope
from pumice.receipts.errors import InvalidReceipt
from pumice.receipts.keys import own_key, trusted_keys
from pumice.receipts.receipt import example_receipt, make_receipt, subject_of
from pumice.routes.backend import backend_identity
from pumice.routes.documents import plain
from pumice.routes.staged import stage, staged_profile

KEY = SigningKey.from_seed(bytes(range(32)))
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "header", "section", "div", "span", "h1", "h2", "h3", "p", "b",
    "code", "pre", "table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "details", "summary",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "viewbox", "preserveaspectratio", "aria-hidden", "x", "y",
    "width", "height",
}  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> Any:
    with config.override(home=tmp_path / "home"):
        yield tmp_path / "home"


class Reader(HTMLParser):
    """Tags with their attributes, and the text outside of the style."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.pieces: list[str] = []
        self.comments: list[str] = []
        self._inside = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside != "style":
            self.pieces.append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    @property
    def text(self) -> str:
        return "\n".join(self.pieces)


def show(receipt: bytes, folder: Path) -> str:
    file, out = folder / "r.json", folder / "r.html"
    file.write_bytes(receipt)
    done = CliRunner().invoke(app, ["receipt", "show", str(file), "--html", str(out)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0 and str(out) in done.stderr
    return out.read_text("utf-8")


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_of_a_receipt_becomes_markup(attack: str, tmp_path: Path) -> None:
    page = show(hostile_receipt(attack).sign(KEY), tmp_path)
    seen, plain_page = Reader(page), Reader(show(hostile_receipt("plain").sign(KEY), tmp_path))
    assert [(tag, sorted(attributes)) for tag, attributes in seen.tags] == [(t, sorted(a)) for t, a in plain_page.tags]
    assert {tag for tag, _ in seen.tags} <= TAGS and not seen.comments
    assert {name for _, attributes in seen.tags for name in attributes} <= ATTRIBUTES
    # It is there to be read, with what cannot be seen written out.
    assert seen.text.count(visible(attack)) > 20
    assert not {c for c in page if c != "\n" and not c.isprintable()}


def test_the_policy_allows_the_style_and_nothing_else(tmp_path: Path) -> None:
    page = show(example_receipt().sign(KEY), tmp_path)
    style = page.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    [policy] = [a["content"] for tag, a in Reader(page).tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert "url(" not in style and "@import" not in style and "http" not in style


def test_the_page_says_what_ran(tmp_path: Path) -> None:
    own_key()
    example_receipt().save(tmp_path / "saved.json")
    envelope = read_envelope((tmp_path / "saved.json").read_bytes())
    text = Reader(show(envelope.line, tmp_path)).text
    for said in (
        "generate with tiny", "by this machine's own key", "status: fallback", "evidence: fallback", "on the host processor",
        "4.5 ms", "queue-submit-wait", "the GPU's own", "prefill", "33%", "Hi", " there", "tiny.gguf", "ab" * 32, "cd" * 32,
        "max_tokens", "No kernel of a pack ran", envelope.digest, envelope.key.text, envelope.key.fingerprint, "line 1", "0" * 64,
        "pumice receipt verify FILE --replay", envelope.predicate["outputs"][0]["sha256"],
    ):  # fmt: skip
        assert said in text, said


def test_trust_and_privacy_are_shown(tmp_path: Path) -> None:
    assert "by a key that nobody here vouches for" in Reader(show(example_receipt().sign(KEY), tmp_path)).text
    trusted_keys().add(KEY.public, "a friend")
    text = Reader(show(example_receipt().as_private().sign(KEY), tmp_path)).text
    assert "a trusted key (a friend)" in text and "the run was kept private" in text and "salted SHA-256" in text
    assert "Hi" not in text.split()


def test_a_check_that_fails_is_shown(tmp_path: Path) -> None:
    document = plain(example_receipt().document)
    document["pumice"]["artifacts"]["inputs"]["prompt"]["content"] = "Ho"
    text = Reader(show(sign_envelope(document, subject_of(document), KEY), tmp_path)).text
    assert "not verified" in text and "The check “artefacts” failed" in text and "FAILED: the content of prompt" in text
    trusted_keys().add(KEY.public, "a friend")
    trusted_keys().revoke("a friend")
    assert "The check “key” failed" in Reader(show(example_receipt().sign(KEY), tmp_path)).text


def test_there_is_no_page_of_what_is_no_receipt(tmp_path: Path) -> None:
    with pytest.raises(InvalidReceipt):
        show(sign_envelope({"pumice": {}}, [], KEY), tmp_path)
    with pytest.raises(InputError, match="cannot be written"):
        (tmp_path / "r.json").write_bytes(example_receipt().sign(KEY))
        done = CliRunner().invoke(app, ["receipt", "show", str(tmp_path / "r.json"), "--html", str(tmp_path / "none" / "r.html")])
        raise done.exception or AssertionError
    assert not list(tmp_path.glob("*.html"))


def test_long_lists_and_texts_are_cut_in_tables_and_whole_as_contents() -> None:
    receipt = make_receipt(
        task="run", route_id="r", inputs=[Artifact.text("prompt", "word " * 10_000)], outputs=[Artifact.ids("ids", range(5000))],
        backend=backend_identity("GPU", features=[], limits={"maxBufferSize": 1}),
        model={"name": "m", "dtype": "f32", "params": {"count": 1, "sha256": "ab" * 32}},
        profile=staged_profile([stage("run", 0)]), request={f"name {i}": i for i in range(500)}, plans=[],
        device={"name": "x" * 5000}, caps={}, software={}, fallback_reason="host",
    )  # fmt: skip
    text = Reader(receipt_page(read_envelope(receipt.sign(KEY)), {}, None)).text
    assert "and 300 more" in text and "(5000 characters)" in text
    assert "word " * 10_000 in text and "4998,4999]" in text


def test_only_elements_are_markup() -> None:
    assert element("p", Markup("<b>"), "<b>") == "<p><b>&lt;b&gt;</p>"
    assert joined(["&", element("i", '"')]) == "&amp;<i>&quot;</i>"
    assert element("p", class_='"onclick="x') == '<p class="&quot;onclick=&quot;x"></p>'
    assert element("p", class_=None) == "<p></p>"
