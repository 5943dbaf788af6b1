"""Training in a tab: the losses, texts, weights and accuracy of Python, and what happens when something goes wrong."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser

from browser.model_page import ModelPage
from browser.training_bundles import (
    CHARACTERS,
    DIGITS,
    export_line,
    export_recipe,
    line_data,
    line_step,
    native_losses,
    native_step,
    recipe_of,
)
from pumice import optim, train
from pumice.train.recipes.characters import sample

STEPS = 50
LOSSES = """
    const losses = [];
    for await (const record of window.training) losses.push(record.loss);
    return losses;
"""
WEIGHTS = """
    const bytes = await window.training.weights();
    let text = "";
    for (const byte of bytes) text += String.fromCharCode(byte);
    return btoa(text);
"""


@pytest.fixture(scope="module")
def _page(browser_session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelPage]:
    folder = tmp_path_factory.mktemp("web")
    export_line(folder / "line")
    export_line(folder / "averaged", accumulate=2, optimizer=optim.AdamW(optim.schedules.linear(0.1, 20), ema=0.5))
    page = ModelPage(browser_session.browser, folder)
    yield page
    page.close()


@pytest.fixture
def tab(browser: Browser, _page: ModelPage) -> Iterator[ModelPage]:
    """A page on which models stay loaded from test to test; each trains in a training of its own."""
    _page.open()
    yield _page
    _page.script("await window.training?.stop(); window.training = null")
    complaints = _page.complaints[:]
    _page.complaints.clear()
    assert complaints == []


def begin(tab: ModelPage, name: str, **options: Any) -> dict[str, Any]:
    """Starts a training of a bundle; what is known of it before its first step."""
    tab.load(name)
    body = "window.training = models[given.name].train(given.options); return await window.training.ready"
    return dict(tab.script(body, {"name": name, "options": options}))


def load_params(tmp_path: Path, encoded: str) -> dict[str, Any]:
    """What Python reads from the weights that the page gave."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes(base64.b64decode(encoded))
    return train.load_params(path)


# -- the tasks ------------------------------------------------------------------------------------------------------------
def test_the_character_transformer_learns_as_it_does_natively(tab: ModelPage, tmp_path: Path) -> None:
    recipe = recipe_of(CHARACTERS, tmp_path)
    with native_step(CHARACTERS, recipe) as step:
        export_recipe(step, recipe, tab.folder / "characters", "bottles")
        expected = native_losses(step, recipe.data, STEPS)
        facts = begin(tab, "characters", steps=STEPS)
        losses = tab.script(LOSSES)
        assert len(losses) == STEPS and expected[-1] < 0.8 * expected[0]
        np.testing.assert_allclose(losses, expected, rtol=0.01)
        assert (facts["task"], facts["batchSize"], facts["optimizer"]) == ("characters", 4, "adamw")
        # The weights of the page are those of Python, give the same loss there, and the same text.
        params = load_params(tmp_path, tab.script(WEIGHTS))
        for name, value in step.params().items():
            np.testing.assert_allclose(params[name], value, atol=2e-3)
        measured = tab.script("return await window.training.evaluate()")
        step.set_params(params)
        assert measured["loss"] == pytest.approx(step.evaluate(recipe.validation)["loss"], rel=1e-4)
        letters = train.text_tokens((tmp_path / "bottles.txt").read_text(), 16)[1]
        for temperature in (0.0, 0.8):
            given = {"length": 40, "seed": 5, "temperature": temperature, "prompt": "ten green"}
            found = tab.script("return await window.training.sample(given)", given)
            assert found == sample(step, letters, 16, **given)
    error = tab.error("await window.training.sample({prompt: 'Ωmega'})")
    assert error["code"] == "unknown-name" and "Ω" in error["message"]
    tab.unload("characters")


def test_the_digits_reach_their_native_accuracy(tab: ModelPage, tmp_path: Path) -> None:
    recipe = recipe_of(DIGITS, tmp_path)
    steps = DIGITS["run"]["steps"]
    with native_step(DIGITS, recipe) as step:
        export_recipe(step, recipe, tab.folder / "digits", "digits")
        native_losses(step, recipe.data, steps)
        want = step.evaluate(recipe.test)
        facts = begin(tab, "digits", steps=steps)
        records = tab.script("const all = []; for await (const r of window.training) all.push(r); return all")
        found = tab.script("return await window.training.evaluate('test')")
        assert want["accuracy"] > 0.93
        assert found["accuracy"] == pytest.approx(want["accuracy"], abs=0.01)
        assert found["loss"] == pytest.approx(want["loss"], rel=0.02)
        assert [r["step"] for r in records] == list(range(1, steps + 1))
        assert records[-1]["epoch"] == (steps - 1) // len(recipe.data) and 0.9 < records[-1]["metrics"]["accuracy"] <= 1
        assert facts["images"] == {"step": "predict", "input": "x", "label": "y", "height": 8, "width": 8}
        body = """
            const batch = await window.training.take("test", [0, 7, 9]);
            const { probabilities } = await window.training.run("predict", { x: batch.x });
            return { y: [...batch.y.data], shape: probabilities.shape, p: [...probabilities.data] };
        """
        seen = tab.script(body)
        expected = recipe.test.dataset.take(np.array([0, 7, 9]))
        assert seen["y"] == expected["y"].tolist() and seen["shape"] == [3, 10]
        assert np.argmax(np.reshape(seen["p"], (3, 10)), 1).tolist() == expected["y"].tolist()
    tab.unload("digits")


# -- a training of any step -----------------------------------------------------------------------------------------------
def test_gradients_accumulate_and_averages_start_from_the_params(tab: ModelPage) -> None:
    settings: dict[str, Any] = {"accumulate": 2, "optimizer": optim.AdamW(optim.schedules.linear(0.1, 20), ema=0.5)}
    with line_step(**settings) as step:
        expected = native_losses(step, line_data(), 11)
    begin(tab, "averaged", steps=11)
    np.testing.assert_allclose(tab.script(LOSSES), expected, rtol=1e-4)


def test_pausing_stepping_and_changing_the_rate(tab: ModelPage) -> None:
    with line_step() as step:
        expected = native_losses(step, line_data(), 12)
    begin(tab, "line", paused=True)
    body = """
        const t = window.training, found = [];
        await t.step(3);
        await t.resume(4);
        for await (const record of t) found.push(record);  // the first loop has the steps before it too
        found.push(...await t.step());
        t.learningRate = 0;
        const values = async () => (await t.weights()).slice(-12).join();  // behind the header: three numbers
            const before = await values(), held = await t.step(2), after = await values();
        t.learningRate = null;
        const free = await t.step(), state = t.state;
        return {found: found.map((r) => r.loss), same: before === after, held, free, state, count: t.stepCount};
    """
    got = tab.script(body)
    np.testing.assert_allclose(got["found"], expected[:8], rtol=1e-4)
    assert got["same"] and [r["learningRate"] for r in got["held"]] == [0, 0]
    assert got["free"][0]["learningRate"] == pytest.approx(0.1) and (got["state"], got["count"]) == ("paused", 11)


def test_another_batch_size_and_seed(tab: ModelPage) -> None:
    data = train.Batches(line_data().dataset, 3, seed=7)
    with line_step(seed=7, params=first_params()) as step:
        expected = native_losses(step, data, 6)
    begin(tab, "line", steps=6, batchSize=3, seed=7)
    np.testing.assert_allclose(tab.script(LOSSES), expected, rtol=1e-4)
    for options, word in (
        ({"batchSize": 5}, "batchSize is 5"),
        ({"seed": -1}, "seed is -1"),
        ({"learningRate": -1}, "learningRate"),
    ):
        error = tab.error("await models.line.train(given).ready", options)
        assert error["code"] == "input" and word in error["message"]


def first_params() -> dict[str, Any]:
    with line_step() as step:
        return step.params()


def test_a_page_may_bring_its_own_batches(tab: ModelPage) -> None:
    data = line_data()
    with line_step() as step:
        expected = native_losses(step, data, 5)
    batches = [{k: v.tolist() for k, v in data.batch(i // 3, i % 3).items()} for i in range(5)]
    tab.load("line")
    body = """
        const array = (rows) => ({dtype: "f32", shape: [rows.length, rows[0].length], data: Float32Array.from(rows.flat())});
        const batch = (i) => given[i] ? {x: array(given[i].x), y: array(given[i].y)} : null;
        window.training = models.line.train({data: batch});
        const losses = [];
        for await (const { loss } of window.training) losses.push(loss);
        return losses;
    """
    np.testing.assert_allclose(tab.script(body, batches), expected, rtol=1e-4)
    empty = "{dtype: 'f32', shape: [1, 2], data: Float32Array.of(1, NaN)}"
    error = tab.error(f"for await (const _ of models.line.train({{data: () => ({{x: {empty}, y: {empty}}})}}));")
    assert error["code"] == "data" and "NaN" in error["message"]
    error = tab.error("for await (const _ of models.line.train({data: () => { throw new Error('no more rows') }}));")
    assert error["code"] == "input" and "no more rows" in error["message"]


def test_weights_go_in_again_and_reset_goes_back(tab: ModelPage, tmp_path: Path) -> None:
    begin(tab, "line", paused=True)
    first = load_params(tmp_path, tab.script(WEIGHTS))
    assert all((first[name] == value).all() for name, value in first_params().items())
    body = """
        const t = window.training, a = (await t.step(5)).map((r) => r.loss), kept = await t.weights();
        await t.reset();
        const b = (await t.step(5)).map((r) => r.loss);
        await t.reset();
        await t.loadWeights(kept);
        const values = (bytes) => bytes.slice(-12).join();  // behind the header: three numbers
        return {a, b, same: values(await t.weights()) === values(kept), count: t.stepCount};
    """
    found = tab.script(body)
    assert found["a"] == found["b"] and found["same"] and found["count"] == 0
    path = tmp_path / "other.safetensors"
    for params, word in (
        ({"weight": first["weight"]}, "lacks the parameter 'bias'"),
        ({**first, "more": first["bias"]}, "no parameter 'more'"),
        ({**first, "weight": first["weight"].T.copy()}, "not"),
    ):
        train.save_params(path, params)
        encoded = base64.b64encode(path.read_bytes()).decode()
        script = "await window.training.loadWeights(Uint8Array.from(atob(given), (c) => c.charCodeAt(0)))"
        error = tab.error(script, encoded)
        assert word in error["message"] and error["code"] in ("missing-name", "unknown-name", "shape")
    error = tab.error("await window.training.loadWeights(new TextEncoder().encode('this is a text'))")
    assert error["code"] == "format" and "no safetensors file" in error["message"]


# -- what goes wrong --------------------------------------------------------------------------------------------------------
def test_a_loss_that_is_nan_is_said_and_the_last_copy_goes_on(tab: ModelPage) -> None:
    begin(tab, "line", paused=True, snapshotEvery=4)
    body = """
        const t = window.training, first = (await t.step(6)).map((r) => r.loss);
        t.learningRate = 1e6;
        let error = null;
        await t.resume();
        try { for await (const record of t); } catch (e) { error = failed(e); }
        const state = t.state;
        t.learningRate = null;
        const again = await t.step(2);
        return {first, error, state, again};
    """
    found = tab.script(body)
    assert found["error"]["code"] == "diverged" and found["state"] == "failed"
    assert "the loss is" in found["error"]["message"] and "learning rate" in found["error"]["hint"]
    start = found["again"][0]["step"]
    assert f"the parameters of step {start - 1} are kept" in found["error"]["message"] and start > 4
    assert all(np.isfinite(r["loss"]) for r in found["again"])


def test_a_lost_device_is_said_and_training_goes_on_from_the_last_copy(tab: ModelPage) -> None:
    with line_step() as step:
        expected = native_losses(step, line_data(), 12)
    begin(tab, "line", paused=True, snapshotEvery=3)
    body = """
        const t = window.training;
        await t.step(7);
        await t.resume();
        let error = null;
        const lost = models.line._loseDevice();
        try { for await (const record of t); } catch (e) { error = failed(e); }
        await lost;
        const state = t.state, again = await t.step(2);
        return {error, state, again};
    """
    found = tab.script(body)
    assert found["error"]["code"] == "device-lost" and found["state"] == "failed"
    for record in found["again"]:
        if record["step"] <= 12:
            assert record["loss"] == pytest.approx(expected[record["step"] - 1], rel=1e-4)
    assert found["again"][1]["step"] == found["again"][0]["step"] + 1 and found["again"][0]["step"] > 3
    tab.unload("line")  # a device that is lost twice within seconds is given up


def test_a_device_that_is_lost_during_a_pause_takes_nothing_with_it(tab: ModelPage) -> None:
    with line_step() as step:
        expected = native_losses(step, line_data(), 8)
    begin(tab, "line", paused=True)
    body = """
        const t = window.training;
        await t.step(6);
        await t.pause();
        await models.line._loseDevice();
        return (await t.step(2)).map((r) => r.loss);
    """
    np.testing.assert_allclose(tab.script(body), expected[6:], rtol=1e-4)
    tab.unload("line")


def test_closing_the_model_ends_its_training(tab: ModelPage) -> None:
    begin(tab, "line")
    body = """
        const t = window.training;
        let error = null;
        const reading = (async () => { try { for await (const r of t); } catch (e) { error = failed(e); } })();
        await models.line.close();
        await reading;
        return {error, state: t.state};
    """
    found = tab.script(body)
    assert found["error"]["code"] == "closed" and found["state"] == "stopped"
    error = tab.error("await window.training.step()")
    assert error["code"] == "closed"
    tab.unload("line")


def test_a_bundle_without_a_train_step_does_not_train(tab: ModelPage) -> None:
    tab.load("line")
    error = tab.error("models.line.generate('hello')")
    assert error["code"] == "input" and "train bundle" in error["message"]
