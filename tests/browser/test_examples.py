"""The examples in web/examples, and the React hooks under StrictMode: in Chromium, from the server of `pumice web`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect

import pumice as pm
from browser.react_packages import bundle_for_react
from browser.webgpu import PATIENCE_MS
from pumice.web import STATIC, page_files
from tiny_models import TEMPLATE, checkpoint
from web_packages import WEB, modules

EXAMPLES = WEB / "examples"
QUESTION = "w5 w17 w42"
expect.set_options(timeout=PATIENCE_MS)


def with_runtime(folder: Path) -> Path:
    """A folder with the built files in it."""
    for name in page_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(STATIC / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny language model, and its web folder."""
    root = tmp_path_factory.mktemp("talker")
    model = checkpoint("llama", root)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    # Small chunks have few kernels, which a software adapter takes long to compile.
    pm.export_web(model, root / "site", context=512, chunk=4)
    return model, root / "site"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny encoder, and its web folder."""
    root = tmp_path_factory.mktemp("reader")
    model = checkpoint("bert", root, closing=True)
    pm.export_web(model, root / "site")
    return model, root / "site"


def native_answer(model: Path, *questions: str, system: str = "", max_tokens: int = 200) -> list[str]:
    """What Python answers to questions of one conversation."""
    with pm.load(model, device="host", context=512) as loaded:
        messages = [{"role": "system", "content": system}] if system else []
        for question in questions:
            messages.append({"role": "user", "content": question})
            said = loaded.generate(messages, temperature=0, max_tokens=max_tokens)
            messages.append({"role": "assistant", "content": said.text})
        return [m["content"] for m in messages if m["role"] == "assistant"]


def test_the_chat_in_plain_html(talker: tuple[Path, Path], serve: Callable[..., str], page: Page) -> None:
    model, folder = talker
    shutil.copytree(EXAMPLES / "plain-html", folder / "chat", dirs_exist_ok=True)
    page.goto(serve(folder) + "chat/")
    expect(page.locator("#send")).to_be_enabled()
    page.fill("#text", QUESTION)
    page.click("#send")
    expect(page.locator("#status")).to_contain_text("tokens/s")
    (wanted,) = native_answer(model, QUESTION)
    assert page.locator("#messages li").all_text_contents() == [QUESTION, wanted]
    expect(page.locator("#stop")).to_be_disabled()
    requests = page.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
    assert all(name.startswith(page.url.removesuffix("chat/")) or name.startswith("data:") for name in requests)


def test_the_chat_says_what_is_wrong(
    talker: tuple[Path, Path], serve: Callable[..., str], page: Page, complaints: list[str], tmp_path: Path
) -> None:
    shutil.copytree(talker[1], tmp_path / "site")
    shutil.copytree(EXAMPLES / "plain-html", tmp_path / "site" / "chat", dirs_exist_ok=True)
    (tmp_path / "site" / "manifest.json").unlink()
    page.goto(serve(tmp_path / "site") + "chat/")
    expect(page.locator("#status")).to_contain_text("manifest.json")
    complaints.clear()  # the browser reports the 404 itself


def test_search_in_one_script(reader: tuple[Path, Path], serve: Callable[..., str], page: Page) -> None:
    model, folder = reader
    shutil.copytree(EXAMPLES / "script-module", folder / "search", dirs_exist_ok=True)
    page.goto(serve(folder) + "search/")
    expect(page.locator("#query")).to_be_enabled()
    texts = ["w5 w6 w7", "w40 w41", "w8 w9 w10 w11"]
    page.fill("#texts", "\n".join(texts))
    page.fill("#query", "w5 w6 w9")
    expect(page.locator("#status")).to_contain_text("3 texts compared")
    with pm.load(model, device="host") as loaded:
        asked, *vectors = loaded.embed(["w5 w6 w9", *texts])
    scores = {text: float(asked @ vector) for text, vector in zip(texts, vectors, strict=True)}
    shown = page.locator("#results li").all_text_contents()
    assert [line.split("  ")[1] for line in shown] == sorted(texts, key=lambda text: -scores[text])
    for line in shown:
        score, text = line.split("  ")
        assert abs(float(score) - scores[text]) < 2e-3


def test_the_react_example(talker: tuple[Path, Path], serve: Callable[..., str], page: Page, tmp_path: Path) -> None:
    model, folder = talker
    shutil.copytree(folder, tmp_path / "site" / "model")
    with_runtime(tmp_path / "site")
    bundle_for_react(EXAMPLES / "react-vite" / "src" / "main.tsx", tmp_path / "site" / "main.js")
    html = (EXAMPLES / "react-vite" / "index.html").read_text()
    (tmp_path / "site" / "index.html").write_text(html.replace("./src/main.tsx", "./main.js"))
    page.goto(serve(tmp_path / "site"))
    use_the_chat(page, native_answer(model, QUESTION)[0])


def use_the_chat(page: Page, wanted: str) -> None:
    """What a person does with the React example."""
    expect(page.get_by_role("status")).to_contain_text("is ready")
    page.get_by_label("Message").fill(QUESTION)
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("status")).to_contain_text("tokens/s")
    assert page.locator("li").all_text_contents() == [QUESTION, wanted]
    page.get_by_role("button", name="Again").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert page.locator("li").all_text_contents() == [QUESTION, wanted]


@pytest.mark.slow
def test_vite_builds_the_example(talker: tuple[Path, Path], serve: Callable[..., str], page: Page, tmp_path: Path) -> None:
    """As an author does it: the npm package is packed and installed, tsc checks the example, Vite builds it."""
    modules()
    package, app = tmp_path / "package", tmp_path / "app"
    package.mkdir()
    for name in ("package.json", "README.md"):
        shutil.copy(WEB / name, package)
    subprocess.run(["node", str(WEB / "build.mjs"), "--package", "--out", str(package / "dist")], check=True, capture_output=True)
    subprocess.run(["npm", "pack", "--ignore-scripts", "--silent"], cwd=package, check=True, capture_output=True)
    (packed,) = package.glob("*.tgz")
    shutil.copytree(EXAMPLES / "react-vite", app, ignore=shutil.ignore_patterns("node_modules", "dist", "public"))
    about = json.loads((app / "package.json").read_text())
    about["dependencies"]["@pumice/web"] = f"file:{packed}"
    (app / "package.json").write_text(json.dumps(about))
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent", "--fetch-retries=1"]
    done = subprocess.run(install, cwd=app, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"npm cannot install vite: a registry that has it would run this test ({done.stderr})")
    built = subprocess.run(["npm", "run", "build"], cwd=app, capture_output=True, text=True, timeout=600, env=_without_ci())
    assert built.returncode == 0, built.stdout + built.stderr
    model, folder = talker
    shutil.copytree(folder, app / "dist" / "model")
    page.goto(serve(app / "dist"))
    use_the_chat(page, native_answer(model, QUESTION)[0])


def _without_ci() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "CI"}


@pytest.fixture
def hooks(talker: tuple[Path, Path], serve: Callable[..., str], page: Page, tmp_path: Path) -> Page:
    """A page with the hooks; `talker/` is a model beside it."""
    folder = with_runtime(tmp_path / "site")
    shutil.copytree(talker[1], folder / "talker")
    here = Path(__file__).parent / "hooks"
    bundle_for_react(here / "hooks.tsx", folder / "hooks.js")
    shutil.copy(here / "hooks.html", folder)
    page.goto(serve(folder) + "hooks.html")
    until(page, "window.hooks?.model")
    return page


def until(page: Page, expression: str) -> None:
    """Waits until an expression holds. Playwright's own way to do that uses eval, which the page's policy forbids."""
    for _ in range(PATIENCE_MS // 20):
        if page.evaluate(f"Boolean({expression})"):
            return
        page.wait_for_timeout(20)
    raise AssertionError(f"it never holds: {expression}")


def put(page: Page, **what: Any) -> None:
    page.evaluate("(next) => window.hooks.set(next)", what)


def test_a_model_lives_as_long_as_its_component(hooks: Page) -> None:
    assert hooks.evaluate("hooks.model.status") == "idle"
    put(hooks, url="talker/")
    expect(hooks.locator("#status")).to_have_text("ready")
    assert hooks.evaluate("hooks.statuses") == ["idle", "idle", "loading", "ready"], "the first twice: StrictMode"
    assert len(hooks.workers) == 1 and hooks.evaluate("hooks.model.progress.phase") == "ready"
    put(hooks, mounted=False)
    expect(hooks.locator("#status")).to_have_text("gone")
    _until_no_worker(hooks)


def _until_no_worker(page: Page) -> None:
    while page.workers:
        page.wait_for_timeout(20)


@pytest.mark.slow
def test_an_unmounted_component_stops_loading_and_answering(hooks: Page) -> None:
    put(hooks, url="talker/")
    until(hooks, "hooks.model.progress !== null")
    put(hooks, mounted=False)
    _until_no_worker(hooks)
    put(hooks, mounted=True)
    expect(hooks.locator("#status")).to_have_text("ready")
    hooks.evaluate("() => { hooks.chat.send('w5', { maxTokens: 200, ignoreEos: true }); }")
    until(hooks, "hooks.chat.messages[1]?.content.length > 0")
    put(hooks, mounted=False)
    _until_no_worker(hooks)


@pytest.mark.slow
def test_a_conversation_is_that_of_python(hooks: Page, talker: tuple[Path, Path]) -> None:
    put(hooks, url="talker/")
    expect(hooks.locator("#status")).to_have_text("ready")
    wanted = native_answer(talker[0], "w5 w6", "w11", system="w9", max_tokens=8)
    for question, answer in zip(("w5 w6", "w11"), wanted, strict=True):
        got = hooks.evaluate("(text) => hooks.chat.send(text)", question)
        assert got["text"] == answer and got["receipt"]
    until(hooks, "!hooks.chat.streaming")
    shown = [("user", "w5 w6"), ("assistant", wanted[0]), ("user", "w11"), ("assistant", wanted[1])]
    assert [(m["role"], m["content"]) for m in hooks.evaluate("hooks.chat.messages")] == shown
    ids = hooks.evaluate("hooks.chat.messages.map((m) => m.id)")
    assert len(set(ids)) == 4
    assert any(text.startswith("user: w5 w6\nassistant: ") and 0 < len(text) - 23 < len(wanted[0])
               for text in hooks.evaluate("hooks.contents")), "the answer grows"  # fmt: skip
    again = hooks.evaluate("hooks.chat.regenerate()")
    assert again["text"] == wanted[1]
    hooks.evaluate("hooks.chat.reset()")
    until(hooks, "hooks.chat.messages.length === 0")
    assert hooks.evaluate("hooks.chat.send('w5 w6')")["text"] == wanted[0]


@pytest.mark.slow
def test_stopping_keeps_what_there_is_and_a_failed_question_is_asked_again(hooks: Page, complaints: list[str]) -> None:
    put(hooks, url="talker/")
    assert hooks.evaluate("hooks.chat.send('w5')") is None
    expect(hooks.locator("#error")).to_contain_text("not loaded yet")
    expect(hooks.locator("#status")).to_have_text("ready")
    hooks.evaluate("() => { window.first = hooks.chat.send('w5', { maxTokens: 200, ignoreEos: true }); }")
    until(hooks, "hooks.chat.messages[1]?.content.length > 0")
    assert hooks.evaluate("hooks.chat.send('w6')") is None
    expect(hooks.locator("#error")).to_contain_text("still answering")
    hooks.evaluate("hooks.chat.stop()")
    stopped = hooks.evaluate("window.first")
    assert stopped["finishReason"] == "cancelled" and stopped["text"]
    until(hooks, "!hooks.chat.streaming")
    assert hooks.evaluate("hooks.chat.messages[1].content") == stopped["text"]

    hooks.evaluate("() => { window.second = hooks.chat.send('w7 w8', { maxTokens: 100, ignoreEos: true }); }")
    until(hooks, "hooks.chat.messages[3]?.content.length > 0")
    hooks.evaluate("hooks.model.model._loseDevice()")
    assert hooks.evaluate("window.second") is None
    until(hooks, "hooks.chat.error?.code === 'device-lost' && !hooks.chat.streaming")
    again = hooks.evaluate("hooks.chat.regenerate()")
    assert again["text"]
    until(hooks, "hooks.chat.error === null && !hooks.chat.streaming")
    messages = hooks.evaluate("hooks.chat.messages")
    assert [m["content"] for m in messages] == ["w5", stopped["text"], "w7 w8", again["text"]]
    complaints.clear()  # browsers may report a destroyed device


@pytest.mark.slow
def test_errors_of_loading_are_shown_and_loading_can_begin_again(hooks: Page, complaints: list[str], tmp_path: Path) -> None:
    put(hooks, url="later/")
    until(hooks, "hooks.model.status === 'error'")
    assert hooks.evaluate("hooks.model.error.code") == "not-found"
    complaints.clear()  # the browser reports the 404 itself
    shutil.copytree(tmp_path / "site" / "talker", tmp_path / "site" / "later")
    hooks.evaluate("hooks.model.reload()")
    expect(hooks.locator("#status")).to_have_text("ready")
    assert hooks.evaluate("hooks.model.error") is None


@pytest.mark.slow
def test_vectors_follow_the_texts(hooks: Page, reader: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(reader[1], tmp_path / "site" / "reader")
    put(hooks, url="reader/", texts=["w5"])
    expect(hooks.locator("#embedding")).to_have_text("ready")
    for texts in (["w6"], ["w7"], ["w8 w9", "w10"]):  # only the last are waited for
        put(hooks, texts=texts)
    until(hooks, "hooks.embedding.vectors?.length === 2")
    got = np.array(hooks.evaluate("hooks.embedding.vectors.map((v) => [...v])"))
    with pm.load(reader[0], device="host") as loaded:
        wanted = loaded.embed(["w8 w9", "w10"])
    assert np.min(np.sum(got * wanted, axis=1)) > 0.9999
    put(hooks, url="talker/")
    until(hooks, "hooks.embedding.status === 'idle' && hooks.model.status === 'ready'")
