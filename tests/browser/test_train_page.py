"""The page of a training bundle: the curve, the samples, its controls by mouse and keyboard, weights out and in, and trouble."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from browser.model_pages import Visit, look, until
from browser.training_bundles import CHARACTERS, DIGITS, export_recipe, native_step, recipe_of
from pumice import train

SMALL: dict[str, Any] = {**DIGITS, "model": {"hidden": [], "dropout": 0.0}}


def told(page: Page) -> str:
    """The line of figures above the curve."""
    return page.locator(".figures").first.inner_text()


def step_of(page: Page) -> int:
    found = re.match(r"step (\d+)", told(page))
    return int(found[1]) if found else 0


def wait_for_step(page: Page, step: int) -> None:
    until(page, "(n) => +(/^step (\\d+)/.exec(document.querySelector('.figures').textContent)?.[1] ?? 0) >= n", step)


def paused(page: Page) -> None:
    """Pauses it, and waits until what it shows is of the last step."""
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="Go on").wait_for()


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    recipe = recipe_of(SMALL, folder)
    with native_step(SMALL, recipe) as step:
        export_recipe(step, recipe, folder / "web", "digits")
    return folder / "web"


def test_a_person_trains_digits(digits: Path, visit: Visit, tmp_path: Path) -> None:
    page = visit(digits)
    until(page, "() => document.querySelectorAll('.digits li').length === 15")
    before = page.locator(".digits .right").count()
    page.get_by_role("button", name="Train").click()
    wait_for_step(page, 60)
    paused(page)
    assert "accuracy" in told(page) and "steps/s" in told(page)
    curve = page.locator("svg.curve")
    assert re.match(r"Loss curve: from \S+ at step 1 to", curve.get_attribute("aria-label") or "")
    assert curve.locator("text").count() > 6 and len(curve.locator(".smooth").get_attribute("d") or "") > 100
    until(page, "() => /% of 359 test images are right/.test(document.body.textContent)")
    assert page.locator(".digits .right").count() > before + 3
    look(page, "train-digits")

    # One step, by keyboard; another learning rate and batch for it.
    at = step_of(page)
    page.get_by_label("Learning rate").focus()
    page.keyboard.press("Home")
    assert page.get_by_label("Learning rate").get_attribute("aria-valuetext") == "1e-5"
    page.get_by_label("Batch").focus()
    page.keyboard.press("Home")
    page.get_by_role("button", name="One step").press("Enter")
    wait_for_step(page, at + 1)
    assert step_of(page) == at + 1 and "learning rate 1e-5" in told(page)
    page.get_by_role("button", name="Follow the schedule").click()
    page.get_by_role("button", name="One step").press("Enter")
    wait_for_step(page, at + 2)
    assert "learning rate 0.01" in told(page)

    # The weights are those that Python then predicts with.
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download weights").click()
    saved = tmp_path / downloading.value.suggested_filename
    downloading.value.save_as(saved)
    assert saved.name == f"digits-step-{at + 2}.safetensors"
    page.get_by_role("button", name="Measure on test data").click()
    until(page, "() => /On test data: loss/.test(document.body.textContent)")
    shown = re.search(r"On test data: loss (\S+), accuracy (\S+)", page.locator("main").inner_text())
    recipe = recipe_of(SMALL, tmp_path)
    with native_step(SMALL, recipe) as step:
        step.set_params(train.load_params(saved))
        measured = step.evaluate(recipe.test)
    assert shown is not None
    assert float(shown[1]) == pytest.approx(measured["loss"], rel=0.01)
    assert float(shown[2]) == pytest.approx(measured["accuracy"], abs=0.006)

    # Back to the start, and the same weights again.
    page.get_by_role("button", name="Start again").click()
    until(page, "() => document.querySelector('.figures').textContent === 'Back to the first weights'")
    page.locator("#weights-file").set_input_files(saved)
    until(page, "(name) => document.querySelector('.figures').textContent === `The weights of ${name} are loaded`", saved.name)
    until(page, "(right) => document.querySelectorAll('.digits .right').length > right", before + 3)


def test_trouble_is_said_and_training_goes_on(digits: Path, visit: Visit, tmp_path: Path) -> None:
    page = visit(digits)
    wrong = tmp_path / "notes.safetensors"
    wrong.write_text("these are no weights")
    page.locator("#weights-file").set_input_files(wrong)
    page.get_by_role("alert").wait_for()
    assert "no safetensors file" in page.get_by_role("alert").inner_text()
    page.get_by_role("button", name="One step").click()
    wait_for_step(page, 1)
    assert page.get_by_role("alert").count() == 0

    page.get_by_role("button", name="Go on").click()
    wait_for_step(page, 5)
    page.evaluate("() => window.model._loseDevice()")
    page.get_by_role("alert").wait_for()
    assert "The graphics device was reset" in page.get_by_role("alert").inner_text()
    look(page, "train-trouble")
    page.get_by_role("button", name="Go on").click()
    wait_for_step(page, 12)
    paused(page)


@pytest.mark.slow  # a minute where WebGPU is software; test_train.py has the same model without the page
def test_a_person_trains_a_model_of_text(visit: Visit, tmp_path: Path) -> None:
    recipe = recipe_of(CHARACTERS, tmp_path)
    with native_step(CHARACTERS, recipe) as step:
        export_recipe(step, recipe, tmp_path / "web", "bottles")
    page = visit(tmp_path / "web")
    until(page, "() => document.querySelector('.written').textContent.length > 100")
    first = page.locator(".written").inner_text()
    page.get_by_role("button", name="Train").click()
    wait_for_step(page, 50)
    paused(page)
    page.get_by_label("Begin with").fill("green bottle")
    page.get_by_label("Temperature").fill("0")
    until(page, "(first) => document.querySelector('.written').textContent !== first", first)
    page.get_by_role("button", name="Write again").click()
    until(page, "() => document.querySelector('.written').textContent.startsWith('green bottle')")
    look(page, "train-characters")
    letters = train.text_tokens((tmp_path / "bottles.txt").read_text(), 16)[1]
    assert np.isin(letters.encode(page.locator(".written").inner_text().strip()), np.arange(len(letters))).all()
