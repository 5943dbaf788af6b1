"""The fixtures themselves: a WebGPU adapter, pages whose errors are seen, storage of a test's own, and no loop in the way."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page

import web_packages
from browser.lab import SOURCES, Lab

PAGE = "<!doctype html><meta charset='utf-8'><title>a page</title>"


@pytest.fixture
def site(tmp_path: Path, serve: Callable[..., str]) -> str:
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "worker.js").write_text("if (location.hash) Promise.reject(new Error('late')); else console.error('worse');\n")
    return serve(tmp_path)


def test_a_page_has_webgpu_in_a_secure_isolated_context(site: str, page: Page) -> None:
    page.goto(site)
    assert page.title() == "a page"
    found = page.evaluate("async () => (await navigator.gpu.requestAdapter()).info.architecture")
    assert found == "swiftshader"
    assert page.evaluate("[isSecureContext, crossOriginIsolated]") == [True, True]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("console.error('so bad')", "console: so bad"),
        ("void Promise.reject(new Error('nobody waits'))", "uncaught: nobody waits"),
        ("setTimeout(() => { throw new Error('thrown'); })", "uncaught: thrown"),
        ("void new Worker('worker.js')", "console: worse"),
        ("void new Worker('worker.js#late')", "late"),
        ("void fetch('missing.bin')", "404"),
    ],
)
def test_complaints_of_pages_and_workers_are_seen(site: str, page: Page, complaints: list[str], script: str, said: str) -> None:
    page.goto(site)
    page.evaluate(f"() => {{ {script}; }}")
    for _ in range(100):
        if complaints:
            break
        page.wait_for_timeout(50)
    assert said in "\n".join(complaints)
    complaints.clear()


def test_contexts_share_no_storage(site: str, new_context: Callable[..., BrowserContext]) -> None:
    first, second = new_context(), new_context()
    pages = [first.new_page(), first.new_page(), second.new_page()]
    for page in pages:
        page.goto(site)
    write = "async () => { const root = await navigator.storage.getDirectory(); await root.getFileHandle('x', {create: true}); }"
    names = "async () => await Array.fromAsync((await navigator.storage.getDirectory()).keys())"
    pages[0].evaluate(write)
    assert [page.evaluate(names) for page in pages] == [["x"], ["x"], []]


@pytest.mark.parametrize("when", ["before", "after"])
def test_tests_without_a_browser_may_run_event_loops(when: str, request: pytest.FixtureRequest) -> None:
    if when == "after":
        request.getfixturevalue("browser_session")
    assert asyncio.run(asyncio.sleep(0, "ran")) == "ran"


def test_the_lab_tells_what_the_compiler_says(lab: Lab) -> None:
    good = "@compute @workgroup_size(64) fn main() {}"
    bad = "@compute @workgroup_size(64) fn main() { let x: u32 = 1.5; }"
    subgroups = "@compute @workgroup_size(64) fn main() { _ = subgroupAdd(1u); }"
    kernels = [(good, []), (bad, []), (subgroups, ["subgroups"]), (subgroups, [])]
    found = lab.call("checkKernels", [{"wgsl": text, "features": features} for text, features in kernels])
    assert [found[0], found[2]] == ["", ""]
    assert found[1].startswith("1:") and "u32" in found[1]
    assert "subgroups" in found[3]


def test_the_lab_is_typed() -> None:
    done = subprocess.run([*web_packages.command("tsc"), "-p", str(SOURCES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
