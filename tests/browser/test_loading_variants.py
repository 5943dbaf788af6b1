"""A tab takes the first variant that its device can run, loads the plans of no other, and says what a small device lacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from browser import lab
from browser.bundle_server import BundleServer
from browser.loading import BASELINE, Tab, weight_hashes, write_bundle
from pumice.core.caps import Caps
from pumice.formats.bundle import manifest_digest, manifest_text

# The adapter of the tests has 10 storage buffers and no f16; a device gets at least 8, the default. Plans leave one above 8 free.
WIDE = replace(BASELINE, name="wide", max_storage_buffers=11)
HALF = replace(BASELINE, name="half", max_storage_buffers=10)
SOFTWARE = replace(BASELINE, name="processor", max_storage_buffers=10, software=True)
SMALL = {"maxStorageBuffersPerShaderStage": 8}


def write_variants(folder: Path, targets: Sequence[Caps]) -> None:
    """A bundle with these variants; no kernel uses f16 yet, so the manifest is made to say it of `HALF`."""
    manifest = write_bundle(folder, targets=targets)
    for variant in manifest["variants"]:
        variant["caps"]["f16"] = variant["name"] == HALF.name
    rewrite(folder, manifest)


def rewrite(folder: Path, manifest: dict[str, Any]) -> None:
    manifest["sha256"] = manifest_digest(manifest)
    (folder / "manifest.json").write_bytes(manifest_text(manifest))


@contextmanager
def loaded(folder: Path, context: BrowserContext, **options: Any) -> Iterator[tuple[dict[str, Any], BundleServer]]:
    server = BundleServer(folder, lab.built())
    try:
        yield Tab(context, server).load(**{"limits": {}, **options}), server
    finally:
        server.close()


def plans_sent(server: BundleServer) -> set[str]:
    return {one.name for one in server.log if one.name.startswith("plans/")}


def test_the_first_variant_that_runs_is_taken_and_no_other_plan_is_loaded(tmp_path: Path, context: BrowserContext) -> None:
    write_variants(tmp_path / "b", [HALF, WIDE, BASELINE])
    with loaded(tmp_path / "b", context) as (report, server):
        assert (report["error"], report["variant"]) == (None, "wide")
        assert plans_sent(server) == {"plans/wide/total.plan"}
        assert report["weights"] == weight_hashes(tmp_path / "b")


def test_a_small_device_gets_the_variant_that_fits(tmp_path: Path, context: BrowserContext) -> None:
    write_variants(tmp_path / "b", [HALF, WIDE, BASELINE])
    with loaded(tmp_path / "b", context, limits=SMALL) as (report, server):
        assert (report["error"], report["variant"]) == (None, "browser-baseline")
        assert "plans/half/total.plan" not in plans_sent(server)
        last = report["progress"][-1]
        assert last["loaded"] == last["total"]


def test_a_device_that_is_too_small_is_told_what_it_lacks(tmp_path: Path, context: BrowserContext) -> None:
    write_variants(tmp_path / "b", [HALF, WIDE])
    with loaded(tmp_path / "b", context, limits=SMALL) as (report, server):
        error = report["error"]
        assert error["code"] == "limit"
        assert (error["fields"]["needed"], error["fields"]["available"]) == (10, 8)
        assert "needs" in error["message"] and "10" in error["message"] and "8" in error["message"]
        assert error["hint"]
        # Nothing is loaded that cannot run.
        assert not any(one.name.startswith("weights/") for one in server.log)


def test_a_bundle_for_other_adapters_alone_is_refused(tmp_path: Path, context: BrowserContext) -> None:
    write_variants(tmp_path / "b", [HALF])
    with loaded(tmp_path / "b", context) as (report, server):
        assert report["error"]["code"] == "limit"
        assert report["error"]["message"] == "no variant of the bundle is for this adapter"
        assert plans_sent(server) == set()


def test_variants_for_processors_are_for_software_adapters(tmp_path: Path, context: BrowserContext) -> None:
    write_bundle(tmp_path / "b", targets=[SOFTWARE, BASELINE])
    with loaded(tmp_path / "b", context) as (report, _):
        assert report["variant"] == "processor"


def test_a_variant_is_taken_by_its_name(tmp_path: Path, context: BrowserContext) -> None:
    write_bundle(tmp_path / "b", targets=[WIDE, BASELINE])
    with loaded(tmp_path / "b", context, variant="browser-baseline") as (report, _):
        assert report["variant"] == "browser-baseline"
    with loaded(tmp_path / "b", context, variant="other") as (report, _):
        assert (report["error"]["code"], report["error"]["message"]) == ("unknown-name", "the bundle has no variant other")
        assert report["error"]["hint"] == "it has wide, browser-baseline"


def rewrite_plan(folder: Path, change: Callable[[bytes], bytes]) -> None:
    """Another plan in a bundle whose hashes are right."""
    manifest = json.loads((folder / "manifest.json").read_bytes())
    name = manifest["variants"][0]["steps"]["total"]["plan"]
    body = change((folder / name).read_bytes())
    (folder / name).write_bytes(body)
    size = manifest["chunk_bytes"]
    chunks = [hashlib.sha256(body[at : at + size]).hexdigest() for at in range(0, len(body), size)]
    manifest["files"][name] = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(), "chunks": chunks}
    rewrite(folder, manifest)


def of_version(version: int) -> Callable[[bytes], bytes]:
    def change(body: bytes) -> bytes:
        body = body[:8] + version.to_bytes(4, "little") + body[12:-32]
        return body + hashlib.sha256(body).digest()

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_version(2), "made by a newer Pumice: its version is 2, this one reads 1"),
        (lambda body: body[:-1] + bytes([body[-1] ^ 1]), "its SHA-256 is not that of its contents"),
        (lambda body: b"no plan" + body, "this is no plan file"),
    ],
    ids=["newer", "damaged", "other"],
)
def test_a_plan_that_cannot_be_read_is_named(
    tmp_path: Path, context: BrowserContext, change: Callable[[bytes], bytes], words: str
) -> None:
    write_bundle(tmp_path / "b")
    rewrite_plan(tmp_path / "b", change)
    with loaded(tmp_path / "b", context) as (report, server):
        error = report["error"]
        assert (error["code"], error["message"]) == ("format", f"plans/browser-baseline/total.plan: {words}")
        assert ("reload the page" if "newer" in words else "") in error["hint"] and error["hint"]
        assert not any(one.name.startswith("weights/") for one in server.log)
