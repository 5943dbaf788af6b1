"""Bundles are loaded in a tab: checked, resumed, stored, shared between tabs; and every fault is told in plain words."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from browser import lab
from browser.bundle_server import BundleServer
from browser.loading import CHUNK, Tab, weight_hashes, write_bundle
from pumice.formats.bundle import manifest_digest, manifest_text

FIRST, SECOND, LAST = "weights/00000.bin", "weights/00001.bin", "weights/00004.bin"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "small"
    write_bundle(folder)
    return folder


@pytest.fixture
def server(bundle: Path) -> Iterator[BundleServer]:
    found = BundleServer(bundle, lab.built())
    yield found
    found.close()


@pytest.fixture
def tab(context: BrowserContext, server: BundleServer) -> Tab:
    return Tab(context, server)


def manifest_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    return found


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda body: body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]


def test_a_bundle_loads_and_then_loads_from_storage(server: BundleServer, tab: Tab, bundle: Path) -> None:
    report = tab.load()
    assert report["error"] is None and report["warnings"] == []
    assert report["weights"] == weight_hashes(bundle)
    assert (report["storage"], report["variant"], report["steps"]) == ("opfs", "browser-baseline", ["total"])
    files = manifest_of(bundle)["files"]
    assert {name: server.nbytes(name) for name in files} == {name: entry["bytes"] for name, entry in files.items()}
    again = tab.load()
    assert again["weights"] == report["weights"]
    assert all(len(server.sent(name)) == 1 for name in files)
    last = again["progress"][-1]
    assert last["loaded"] == last["total"] == last["fromCache"] == sum(entry["bytes"] for entry in files.values())


@pytest.mark.parametrize(
    ("shard", "at"),
    [(FIRST, 0), (FIRST, CHUNK - 1), (FIRST, CHUNK), (FIRST, 2 * CHUNK + 77), (FIRST, -1), (LAST, 0), (LAST, -1)],
)
def test_a_flipped_byte_is_refused(server: BundleServer, tab: Tab, bundle: Path, shard: str, at: int) -> None:
    at %= manifest_of(bundle)["files"][shard]["bytes"]
    server.faults.bodies[shard] = flipped(at)
    chunk = at // CHUNK
    error = tab.load()["error"]
    assert (error["code"], error["fields"]["file"], error["fields"]["chunk"]) == ("damaged-file", shard, chunk)
    assert error["message"].startswith(f"{shard}: chunk {chunk}, bytes {chunk * CHUNK} to ")
    assert "load again" in error["hint"] and "copy the bundle to the server again" in error["hint"]
    assert server.nbytes(shard) > 0
    # Nothing wrong was kept, and what was right is not asked for twice.
    server.faults.bodies.clear()
    server.log.clear()
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert all(one.start == chunk * CHUNK for one in server.sent(shard))
    (listed,) = tab.call("list")
    assert listed["complete"]


def test_bytes_that_a_cache_on_the_way_spoiled_are_asked_for_again(server: BundleServer, tab: Tab, bundle: Path) -> None:
    spoiled = iter([flipped(CHUNK + 5), bytes])
    server.faults.bodies[FIRST] = lambda body: next(spoiled)(body)
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert [one.start for one in server.sent(FIRST)] == [0, CHUNK]


def test_a_missing_shard_is_named(server: BundleServer, tab: Tab, bundle: Path) -> None:
    server.faults.statuses[SECOND] = 404, 99
    error = tab.load()["error"]
    assert (error["code"], error["message"]) == ("not-found", f"{SECOND}: the server has no such file")
    assert error["hint"] == "copy the whole bundle to the server again"
    assert len(server.sent(SECOND)) == 1
    assert not tab.call("list")[0]["complete"]
    server.faults.statuses.clear()
    assert tab.load()["weights"] == weight_hashes(bundle)


@pytest.mark.parametrize("what", ["manifest.json", SECOND])
def test_a_page_instead_of_a_file_is_a_missing_file(tmp_path: Path, context: BrowserContext, what: str) -> None:
    write_bundle(tmp_path / "b")
    (tmp_path / "b" / what).unlink()
    server = BundleServer(tmp_path / "b", lab.built())
    server.faults.pages = True
    try:
        error = Tab(context, server).load()["error"]
    finally:
        server.close()
    assert error["code"] == "not-found"
    assert error["message"] == f"{what}: the server has no such file, it answers with a web page instead"
    assert ("`pumice export --web` writes one" if what == "manifest.json" else "copy the whole bundle") in error["hint"]


@pytest.mark.parametrize("no_length", [False, True], ids=["length", "no-length"])
@pytest.mark.parametrize("no_ranges", [False, True], ids=["ranges", "no-ranges"])
def test_a_connection_that_breaks_off_is_resumed(
    server: BundleServer, tab: Tab, bundle: Path, no_length: bool, no_ranges: bool
) -> None:
    cut = 2 * CHUNK + 100
    server.faults.cuts[FIRST] = cut, Event()
    server.faults.no_length, server.faults.no_ranges = no_length, no_ranges
    number = tab.start()
    tab.wait_for_stored(manifest_of(bundle)["files"][FIRST]["sha256"], 2 * CHUNK)
    server.faults.cuts[FIRST][1].set()
    report = tab.call("report", number)
    assert report["error"] is None and report["weights"] == weight_hashes(bundle)
    first, second = server.sent(FIRST)
    assert (first.start, first.nbytes) == (0, cut)
    assert second.start == (0 if no_ranges else 2 * CHUNK)
    last = report["progress"][-1]
    assert last["loaded"] == last["total"] and last["fromCache"] == 0


@pytest.mark.parametrize("end", [0, CHUNK, 2 * CHUNK + 100])
def test_a_file_that_is_too_short_is_refused(server: BundleServer, tab: Tab, bundle: Path, end: int) -> None:
    server.faults.bodies[FIRST] = lambda body: body[:end]
    error = tab.load()["error"]
    assert error["code"] == "damaged-file" and error["fields"]["offset"] == end
    size = manifest_of(bundle)["files"][FIRST]["bytes"]
    assert error["message"] in (
        f"{FIRST}: the download ends at byte {end} of {size}",
        f"{FIRST}: the server's file ends before byte {end}",
    )
    assert "not complete" in error["hint"]
    server.faults.bodies.clear()
    assert tab.load()["weights"] == weight_hashes(bundle)


def test_a_file_that_is_too_long_is_refused(server: BundleServer, tab: Tab, bundle: Path) -> None:
    server.faults.bodies[FIRST] = lambda body: body + b"more"
    error = tab.load()["error"]
    size = manifest_of(bundle)["files"][FIRST]["bytes"]
    assert (error["code"], error["message"]) == ("damaged-file", f"{FIRST}: it has more than {size} bytes")


def test_a_server_that_fails_for_a_while_is_asked_again(server: BundleServer, tab: Tab, bundle: Path) -> None:
    server.faults.statuses |= {FIRST: (503, 2), "manifest.json": (500, 1)}
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert [one.status for one in server.sent(FIRST)] == [503, 503, 200]


@pytest.mark.parametrize(
    ("status", "code", "words"), [(503, "source", "an error (503)"), (403, "source", "refuses access (403)")]
)
def test_a_server_that_goes_on_failing_is_told(server: BundleServer, tab: Tab, status: int, code: str, words: str) -> None:
    server.faults.statuses[FIRST] = status, 99
    error = tab.load(retries=2)["error"]
    assert error["code"] == code and error["message"].startswith(f"{FIRST}: the server") and words in error["message"]
    assert len(server.sent(FIRST)) == (3 if status == 503 else 1)


def test_a_server_that_falls_silent_does_not_hang_the_load(server: BundleServer, tab: Tab, bundle: Path) -> None:
    server.faults.holds[FIRST] = 2 * CHUNK + 1, Event()
    error = tab.load(retries=1, stall=400)["error"]
    assert error["code"] == "no-network" and error["message"].startswith(f"{FIRST}: nothing arrived for")
    # What arrived before is kept.
    server.faults.holds.pop(FIRST)[1].set()
    server.log.clear()
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert [one.start for one in server.sent(FIRST)] == [2 * CHUNK]


def test_a_load_can_be_cancelled_and_goes_on_later(server: BundleServer, tab: Tab, bundle: Path) -> None:
    server.faults.holds[FIRST] = 3 * CHUNK, Event()
    number = tab.start()
    tab.wait_for_stored(manifest_of(bundle)["files"][FIRST]["sha256"], 3 * CHUNK)
    tab.call("cancel", number)
    error = tab.call("report", number)["error"]
    assert (error["code"], error["message"]) == ("run-cancelled", "loading was cancelled")
    server.faults.holds.pop(FIRST)[1].set()
    server.log.clear()
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert [one.start for one in server.sent(FIRST)] == [3 * CHUNK]


def rehashed(text: bytes) -> bytes:
    """The text with a hash of what it is, whatever its form."""
    old = re.search(rb',"sha256":"([0-9a-f]{64})"\}\n|,"sha256":"([0-9a-f]{64})","v', text)
    assert old is not None
    digest = old[1] or old[2]
    rest = text.replace(b',"sha256":"' + digest + b'"', b"")
    return text.replace(digest, hashlib.sha256(rest[:-1]).hexdigest().encode())


def respaced(text: bytes) -> bytes:
    return rehashed(text.replace(b'"kind":', b'"kind": '))


def reordered(text: bytes) -> bytes:
    return rehashed(text.replace(b'"f16":false,"software":false', b'"software":false,"f16":false'))


MANIFESTS: dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]] = {
    "newer": (lambda m: m | {"version": 4}, "made by a newer Pumice: its version is 4, this page reads 3"),
    "older": (lambda m: m | {"version": 2}, "version 2 of bundles is not read"),
    "another": (lambda m: m | {"format": "other"}, "this is no bundle"),
    "kind": (lambda m: m | {"kind": "poem"}, 'kind is "poem", not one of causal'),
    "outside": (lambda m: m | {"files": m["files"] | {"../x": m["files"][FIRST]}}, '"../x" is not in its folder'),
    "address": (lambda m: m | {"files": m["files"] | {"http://x/y": m["files"][FIRST]}}, "is not in its folder"),
    "hashes": (
        lambda m: m | {"files": m["files"] | {FIRST: m["files"][FIRST] | {"chunks": []}}},
        "0 hashes of chunks of 4096 bytes are not those of",
    ),
    "empty": (lambda m: m | {"variants": []}, "it has no variant"),
    "reach": (
        lambda m: m | {"weights": m["weights"] | {"pieces": [[[FIRST, 0, 1 << 30]], *m["weights"]["pieces"][1:]]}},
        'the weight "w0" reaches beyond its shard',
    ),
}


def test_a_manifest_that_cannot_be_used_is_refused(server: BundleServer, tab: Tab, bundle: Path) -> None:
    for name, (change, words) in MANIFESTS.items():
        manifest = change(manifest_of(bundle))
        text = manifest_text(manifest | {"sha256": manifest_digest(manifest)})
        server.faults.bodies["manifest.json"] = lambda _, text=text: text
        error = tab.load()["error"]
        assert error is not None, name
        assert error["code"] == "format" and error["message"].startswith("manifest.json: ") and words in error["message"], name
        assert error["hint"], name
    assert tab.call("list") == []
    assert {one.name for one in server.log} == {"manifest.json"}


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "changed": (lambda text: text.replace(b'"small"', b'"smaLl"'), "damaged-file", "its SHA-256 is not that of its contents"),
    "cut": (lambda text: text[:-40], "format", "it is no JSON"),
    "empty": (lambda text: b"", "format", "it is no JSON"),
    "space": (lambda text: text.replace(b'"kind":', b'"kind": '), "damaged-file", "its SHA-256 is not that of its contents"),
    "spaced": (respaced, "damaged-file", "it is not written in the canonical form"),
    "ordered": (reordered, "damaged-file", "it is not written in the canonical form"),
    "page": (lambda text: b"<!doctype html><title>no</title>", "format", "it is no JSON"),
    "bytes": (lambda text: b"\xff\xfe" + text, "format", "it is no text"),
}


def test_a_damaged_manifest_is_refused(server: BundleServer, tab: Tab) -> None:
    for name, (change, code, words) in DAMAGES.items():
        server.faults.bodies["manifest.json"] = change
        error = tab.load()["error"]
        assert error is not None, name
        assert error["code"] == code and error["message"].startswith("manifest.json: ") and words in error["message"], name
    assert tab.call("list") == []


def test_a_compressed_download_is_resumed_from_its_beginning(server: BundleServer, tab: Tab, bundle: Path) -> None:
    """Lengths and ranges are those of the compressed bytes: nothing can be told from them."""
    server.faults.gzip = True
    server.faults.cuts[FIRST] = 3 * CHUNK, Event()
    number = tab.start()
    digest = manifest_of(bundle)["files"][FIRST]["sha256"]
    tab.wait_for_stored(digest, 2 * CHUNK)
    server.faults.cuts[FIRST][1].set()
    report = tab.call("report", number)
    assert report["error"] is None and report["weights"] == weight_hashes(bundle)
    first, *_, last = server.sent(FIRST)
    assert (first.start, last.start) == (0, 0)
    assert tab.call("stored", digest) == manifest_of(bundle)["files"][FIRST]["bytes"]


def test_an_error_of_the_device_ends_the_load_as_it_is(server: BundleServer, tab: Tab) -> None:
    error = tab.load(failing="w3")["error"]
    assert (error["code"], error["message"]) == ("out-of-memory", "the device has no room")
    assert len(server.sent(FIRST)) == 1


def test_chosen_files_are_loaded_and_not_stored(server: BundleServer, tab: Tab, bundle: Path) -> None:
    names = ["manifest.json", *manifest_of(bundle)["files"]]
    report = tab.load(files=names)
    assert (report["error"], report["storage"], report["weights"]) == (None, "none", weight_hashes(bundle))
    assert tab.call("list") == []
    error = tab.load(files=[name for name in names if name != FIRST])["error"]
    assert (error["code"], error["message"]) == ("not-found", f"{FIRST}: it is not among the files")
    assert tab.load(files=names[1:])["error"]["message"] == "manifest.json: it is not among the files"


def test_the_time_left_follows_the_rate_of_the_last_seconds(tab: Tab) -> None:
    def left(arrivals: list[tuple[float, int, bool]]) -> list[float | None]:
        given = [{"at": at, "bytes": nbytes, "fromCache": stored} for at, nbytes, stored in arrivals]
        return [progress["secondsLeft"] for progress in tab.call("meter", 1000, given)]

    # Ten bytes in every second, of a thousand: nothing is said in the first second.
    steady = left([(second, 10, False) for second in range(21)])
    assert steady[0] is None and steady[20] == pytest.approx((1000 - 210) / 10, rel=0.15)
    # What came from storage at once says nothing about the download.
    stored = left([(0, 500, True), *((second, 10, False) for second in range(1, 11))])
    assert stored[-1] == pytest.approx(40, rel=0.25)
    # A connection that became ten times as fast is believed after some seconds, one that stands still before long.
    faster = left([*((second, 1, False) for second in range(10)), *((second, 10, False) for second in range(10, 26))])
    assert faster[-1] == pytest.approx((1000 - 170) / 10, rel=0.25)
    still = left([*((second, 10, False) for second in range(10)), (30, 1, False)])
    assert still[-1] is not None and still[-1] > 1000
