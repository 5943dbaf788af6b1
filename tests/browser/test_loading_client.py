"""Faults of loading as users of `load` see them: errors of the right class, and a model that works where it can."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page

import pumice.web
from browser.bundle_server import BundleServer
from browser.loading import CHUNK, write_bundle

FIRST = "weights/00000.bin"
STATIC = Path(pumice.web.__file__).parent / "static"
# Loads the bundle and runs its function once; errors as their fields, with the names of their classes.
RUN = """async ({ options, cancelAfter }) => {
  const { load, PumiceError, DamagedFile, NotFound } = await import("/pumice.js");
  const stop = new AbortController();
  const progress = (p) => { if (cancelAfter !== null && p.loaded >= cancelAfter) stop.abort(); };
  try {
    const model = await load("./bundle/", { ...options, signal: stop.signal, progress });
    const x = { dtype: "f32", shape: [2], data: new Float32Array([1, 2]) };
    const outputs = await model.run("total", { x });
    const { storage, notStored } = model.info;
    await model.close();
    return { outputs: Object.values(outputs).flatMap((y) => [...y.data]), storage, notStored };
  } catch (error) {
    if (!(error instanceof PumiceError)) throw error;
    const kinds = { DamagedFile, NotFound };
    const kind = Object.keys(kinds).filter((name) => error instanceof kinds[name]);
    return { kind, name: error.name, code: error.code, message: error.message, hint: error.hint };
  }
}"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "small"
    write_bundle(folder)
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built runtime beside an empty page."""
    folder = tmp_path_factory.mktemp("site")
    for path in STATIC.glob("*.js"):
        shutil.copy(path, folder)
    (folder / "blank.html").write_text("<!doctype html><title>Blank</title>")
    return folder


@pytest.fixture
def server(bundle: Path, site: Path) -> Iterator[BundleServer]:
    found = BundleServer(bundle, site)
    yield found
    found.close()


@pytest.fixture
def run(context: BrowserContext, server: BundleServer) -> Callable[..., dict[str, Any]]:
    page = blank_page(context, server)
    return lambda **options: in_page(page, **options)


def blank_page(context: BrowserContext, server: BundleServer) -> Page:
    page = context.new_page()
    page.goto(server.url + "blank.html")
    return page


def in_page(page: Page, cancel_after: int | None = None, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(RUN, {"options": options, "cancelAfter": cancel_after})
    return found


def expected(bundle: Path) -> list[float]:
    """The first element of every weight, and x, in the order in which the function adds them."""
    from pumice.formats.bundle import BundleWeights

    weights = BundleWeights(bundle)
    try:
        first = [float(weights.array(name)[0, 0]) for name in weights.tensors]
    finally:
        weights.close()
    return [x + sum(first) for x in (1.0, 2.0)]


def test_a_damaged_shard_is_an_error_of_its_class(server: BundleServer, run: Callable[..., dict[str, Any]], bundle: Path) -> None:
    server.faults.bodies[FIRST] = lambda body: body[:-1] + bytes([body[-1] ^ 1])
    error = run()
    assert (error["kind"], error["name"], error["code"]) == (["DamagedFile"], "DamagedFile", "damaged-file")
    assert error["message"].startswith(f"{FIRST}: chunk 5, bytes 20480 to 21504, is not what was hashed")
    assert "load again" in error["hint"]
    server.faults.bodies.clear()
    assert run()["outputs"] == pytest.approx(expected(bundle), rel=1e-5)


def test_a_missing_shard_is_an_error_of_its_class(server: BundleServer, run: Callable[..., dict[str, Any]]) -> None:
    server.faults.statuses[FIRST] = 404, 99
    error = run()
    assert (error["kind"], error["message"]) == (["NotFound"], f"{FIRST}: the server has no such file")


def test_a_model_that_cannot_be_kept_runs_and_says_so(server: BundleServer, context: BrowserContext, bundle: Path) -> None:
    page = blank_page(context, server)
    session = context.new_cdp_session(page)
    session.send("Storage.overrideQuotaForOrigin", {"origin": server.url.rstrip("/"), "quotaSize": 30_000})
    report = in_page(page)
    assert report["outputs"] == pytest.approx(expected(bundle), rel=1e-5)
    assert report["storage"] == "none"
    assert report["notStored"]["message"].startswith("this browser's storage is full")
    assert "caches.delete()" in report["notStored"]["hint"]


def test_a_model_that_was_loaded_runs_without_a_network(
    server: BundleServer, run: Callable[..., dict[str, Any]], bundle: Path
) -> None:
    first = run()
    assert (first["storage"], first["notStored"]) == ("opfs", None)
    server.faults.offline = True
    assert run()["outputs"] == first["outputs"]


def test_a_cancelled_load_ends_and_goes_on_the_next_time(
    server: BundleServer, run: Callable[..., dict[str, Any]], bundle: Path
) -> None:
    server.faults.holds[FIRST] = 2 * CHUNK, Event()
    error = run(cancel_after=1)
    assert error["code"] == "run-cancelled" and "cancelled" in error["message"]
    server.faults.holds.pop(FIRST)[1].set()
    assert run()["outputs"] == pytest.approx(expected(bundle), rel=1e-5)


def test_a_model_in_use_survives_its_deletion(server: BundleServer, context: BrowserContext, bundle: Path) -> None:
    """What runs is on the device; the next load fetches it again."""
    page, other = blank_page(context, server), blank_page(context, server)
    page.evaluate("""async () => {
      const { load } = await import("/pumice.js");
      window.model = await load("./bundle/");
    }""")
    delete = "async () => (await import('/pumice.js')).caches.delete()"
    assert other.evaluate(delete) == sum(path.stat().st_size for path in bundle.rglob("*.*") if path.name != "manifest.json")
    x = {"dtype": "f32", "shape": [2]}
    run = """async (x) => {
      const outputs = await window.model.run("total", { x: { ...x, data: new Float32Array([1, 2]) } });
      return Object.values(outputs).flatMap((y) => [...y.data]);
    }"""
    assert page.evaluate(run, x) == pytest.approx(expected(bundle), rel=1e-5)
    assert in_page(other)["outputs"] == pytest.approx(expected(bundle), rel=1e-5)
    assert len(server.sent(FIRST)) == 2
