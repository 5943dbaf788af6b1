"""The parts of the page that need no browser, run by Node: text as blocks, texts as passages, arrays as a person writes them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import web_packages

PAGE = web_packages.WEB / "page"

Call = Callable[..., Any]


@pytest.fixture(scope="session")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Calls a function of a module of the page with JSON arguments; an error comes back as {"error", "code"}."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "all.ts").write_text(
        "".join(
            f"export * as {name} from {json.dumps(str(PAGE / f'{name}.ts'))};\n"
            for name in ("answer", "dom", "passages", "values")
        )
    )
    build = [*web_packages.command("esbuild"), str(folder / "all.ts"), "--bundle", "--format=esm", "--platform=node"]
    subprocess.run([*build, f"--outfile={folder / 'all.mjs'}", "--log-level=error"], check=True, timeout=60)
    script = """
      import * as modules from "./all.mjs";
      const [module, name, given] = JSON.parse(process.argv[2]);
      let result;
      try { result = modules[module][name](...given); } catch (e) { result = { error: e.message, code: e.code }; }
      console.log(JSON.stringify(result, (k, v) => (ArrayBuffer.isView(v) ? [...v] : v)));
    """
    (folder / "call.mjs").write_text(script)

    def run(module: str, name: str, *given: Any) -> Any:
        asked = json.dumps([module, name, given])
        done = subprocess.run(["node", folder / "call.mjs", asked], capture_output=True, text=True, timeout=60, check=True)
        return json.loads(done.stdout)

    return run


def test_an_answer_is_split_at_fences_and_empty_lines(call: Call) -> None:
    text = "Look:\n\n```python\nx = 1\n\ny = 2\n```\nDone, with `code`.\n"
    assert call("answer", "blocksOf", text) == [
        {"kind": "text", "text": "Look:", "language": ""},
        {"kind": "code", "text": "x = 1\n\ny = 2", "language": "python"},
        {"kind": "text", "text": "Done, with `code`.", "language": ""},
    ]


def test_a_fence_that_is_still_open_is_code_up_to_the_end(call: Call) -> None:
    assert call("answer", "blocksOf", "~~~\nfor i in x:\n  ```") == [
        {"kind": "code", "text": "for i in x:\n  ```", "language": ""}
    ]
    assert call("answer", "blocksOf", "```\nx\n``` not the end") == [
        {"kind": "code", "text": "x\n``` not the end", "language": ""}
    ]
    assert call("answer", "blocksOf", "") == []


@pytest.mark.parametrize("most", [40, 120, 700])
def test_passages_hold_all_words_within_the_length(call: Call, most: int) -> None:
    words = [f"word{k}{'.' if k % 7 == 0 else ''}" for k in range(300)]
    text = (
        " ".join(words[:100]) + "\n\n" + " ".join(words[100:]) + "\n\n" + "x" * 200 + " 日本語の文章です。次の文もあります。" * 8
    )
    spans = call("passages", "passagesOf", text, most)
    parts = [text[s["start"] : s["end"]] for s in spans]
    weights = [len(p) + 2 * sum(ord(c) >= 0x2E80 for c in p) for p in parts]
    assert max(weights) <= most + sum(len(" \n\n") for _ in range(20))
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(a["end"] <= b["start"] for a, b in pairwise(spans))


def test_a_paragraph_starts_a_passage_unless_the_one_before_is_short(call: Call) -> None:
    first, second = "One sentence here. And another one, a bit longer than it.", "The next paragraph."
    text = f"Title\n\n{first}\n\n{second}"
    parts = [text[s["start"] : s["end"]] for s in call("passages", "passagesOf", text, 120)]
    assert parts == [f"Title\n\n{first}", second]


def test_no_text_has_no_passages(call: Call) -> None:
    assert call("passages", "passagesOf", " \n\n ", 100) == []


def test_nested_lists_become_arrays_and_back(call: Call) -> None:
    spec = {"name": "x", "dtype": "f32", "shape": ["B", 2]}
    array = call("values", "parseArray", "[[1, 2.5], [3, -4]]", spec, [2, 2])
    assert array == {"dtype": "f32", "shape": [2, 2], "data": [1, 2.5, 3, -4]}
    assert call("values", "parseArray", "[1, 2, 3, 4]", spec, [2, 2])["shape"] == [2, 2]
    scalar = {"name": "n", "dtype": "i32", "shape": []}
    assert call("values", "parseArray", "7", scalar, []) == {"dtype": "i32", "shape": [], "data": [7]}


@pytest.mark.parametrize(
    ("text", "code"),
    [("[1, 2", "input"), ("", "input"), ('["a"]', "input"), ("[[1, 2], [3]]", "shape"), ("[[1], 2]", "shape")],
)
def test_what_is_no_array_is_refused_by_name(call: Call, text: str, code: str) -> None:
    refused = call("values", "parseArray", text, {"name": "weights", "dtype": "f32", "shape": ["B"]}, [2])
    assert refused["code"] == code
    assert "weights" in refused["error"]


def test_sizes_and_durations_read_well(call: Call) -> None:
    assert [call("dom", "bytes", n) for n in (0, 999, 1500, 98_000_000)] == ["0 B", "999 B", "1.5 kB", "98 MB"]
    assert [call("dom", "binaryBytes", n) for n in (32768, 1 << 30)] == ["32 KiB", "1 GiB"]
    assert [call("dom", "duration", s) for s in (0.34, 2.44, 200, 7300)] == ["340 ms", "2.4 s", "3 min 20 s", "2 h 1 min"]


def test_messages_of_the_runtime_become_sentences(call: Call) -> None:
    assert call("dom", "sentence", "the file is gone") == "The file is gone."
    assert call("dom", "sentence", "weights/0.bin: wrong hash") == "weights/0.bin: wrong hash."


def test_the_page_is_small() -> None:
    """Everything but the runtime and the tokenizer, as it is shipped."""
    from pumice.web import STATIC

    names = ["index.html", "page.css", "page.js", "sw.js", "app.webmanifest", "icon.svg", "icon-192.png", "icon-512.png"]
    assert sum((STATIC / name).stat().st_size for name in names) <= 200_000


def test_icons_are_what_the_script_draws(tmp_path: Path) -> None:
    """Pixels, not bytes: another zlib packs them differently."""
    import shutil

    from PIL import Image

    web_packages.modules()  # skips where there is no Node
    (tmp_path / "page").mkdir()
    shutil.copy(web_packages.WEB / "icons.mjs", tmp_path)
    subprocess.run(["node", "icons.mjs"], cwd=tmp_path, check=True, timeout=300)
    assert (tmp_path / "page" / "icon.svg").read_bytes() == (PAGE / "icon.svg").read_bytes()
    for size in (192, 512):
        drawn, kept = (Image.open(folder / f"icon-{size}.png") for folder in (tmp_path / "page", PAGE))
        assert drawn.size == kept.size == (size, size)
        assert drawn.convert("RGB").tobytes() == kept.convert("RGB").tobytes()
