"""What a tab has loaded is kept: shared between tabs, resumed, never trusted, and given up where there is no room."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from playwright.sync_api import BrowserContext

from browser import lab
from browser.bundle_server import BundleServer
from browser.loading import CHUNK, Tab, weight_hashes, write_bundle

FIRST, LAST = "weights/00000.bin", "weights/00004.bin"


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


def files_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())["files"]
    return found


def total_of(folder: Path) -> int:
    return sum(entry["bytes"] for entry in files_of(folder).values())


@pytest.mark.parametrize("without_opfs", [False, True], ids=["opfs", "cache-storage"])
def test_two_tabs_download_once(server: BundleServer, context: BrowserContext, bundle: Path, without_opfs: bool) -> None:
    """The first is held in mid-load until the second one waits for it."""
    server.faults.holds[FIRST] = 2 * CHUNK, Event()
    one, other = Tab(context, server), Tab(context, server)
    first = one.start(withoutOpfs=without_opfs)
    server.wait_for(FIRST, 2 * CHUNK)
    second = other.start(withoutOpfs=without_opfs)
    other.wait_for_waiter(files_of(bundle)[FIRST]["sha256"])
    server.faults.holds[FIRST][1].set()
    reports = [one.call("report", first), other.call("report", second)]
    assert [report["weights"] for report in reports] == [weight_hashes(bundle)] * 2
    assert {report["storage"] for report in reports} == {"cache" if without_opfs else "opfs"}
    assert {name: len(server.sent(name)) for name in files_of(bundle)} == dict.fromkeys(files_of(bundle), 1)
    assert any(progress.get("waiting") for progress in reports[1]["progress"])
    assert not reports[1]["progress"][-1].get("waiting")


@pytest.mark.parametrize("without_opfs", [False, True], ids=["opfs", "cache-storage"])
def test_a_tab_closed_in_mid_load_is_resumed(
    server: BundleServer, context: BrowserContext, bundle: Path, without_opfs: bool
) -> None:
    """And another tab that waited for it takes over."""
    held = 3 * CHUNK + 10
    server.faults.holds[FIRST] = held, Event()
    tab, other = Tab(context, server), Tab(context, server)
    tab.start(withoutOpfs=without_opfs)
    tab.wait_for_stored(files_of(bundle)[FIRST]["sha256"], 3 * CHUNK)
    number = other.start(withoutOpfs=without_opfs)
    other.wait_for_waiter(files_of(bundle)[FIRST]["sha256"])
    event = server.faults.holds.pop(FIRST)[1]
    tab.close()
    report = other.call("report", number)
    event.set()
    assert report["weights"] == weight_hashes(bundle)
    first, second = server.sent(FIRST)
    assert (first.start, second.start) == (0, 3 * CHUNK)
    assert second.nbytes == files_of(bundle)[FIRST]["bytes"] - 3 * CHUNK
    assert report["progress"][-1]["fromCache"] >= 3 * CHUNK


def test_a_new_tab_goes_on_where_a_closed_one_stopped(server: BundleServer, context: BrowserContext, bundle: Path) -> None:
    server.faults.holds[FIRST] = 4 * CHUNK, Event()
    tab = Tab(context, server)
    tab.start()
    tab.wait_for_stored(files_of(bundle)[FIRST]["sha256"], 4 * CHUNK)
    tab.close()
    server.faults.holds.pop(FIRST)[1].set()
    server.log.clear()
    tab = Tab(context, server)
    (listed,) = tab.call("list")
    assert not listed["complete"] and 0 < listed["bytes"] < total_of(bundle)
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert [one.start for one in server.sent(FIRST)] == [4 * CHUNK]
    (listed,) = tab.call("list")
    assert listed["complete"] and listed["bytes"] == total_of(bundle)


@pytest.mark.parametrize("change", [{"cut": CHUNK + 7}, {"cut": 0}, {"flip": 2 * CHUNK}])
def test_stored_bytes_that_were_lost_are_fetched_again(
    server: BundleServer, context: BrowserContext, bundle: Path, change: dict[str, int]
) -> None:
    tab = Tab(context, server)
    tab.load()
    server.log.clear()
    tab.call("spoil", files_of(bundle)[FIRST]["sha256"], change)
    assert tab.load()["weights"] == weight_hashes(bundle)
    (at,) = change.values()
    assert [one.start for one in server.sent(FIRST)] == [at // CHUNK * CHUNK]
    server.log.clear()
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert {one.name for one in server.log} == {"manifest.json"}


def limit_storage(context: BrowserContext, tab: Tab, server: BundleServer, quota: int | None) -> None:
    session = context.new_cdp_session(tab.page)
    origin = server.url.rstrip("/")
    session.send("Storage.overrideQuotaForOrigin", {"origin": origin, **({} if quota is None else {"quotaSize": quota})})


def test_a_model_that_is_larger_than_the_room_is_not_begun_to_be_kept(
    server: BundleServer, context: BrowserContext, bundle: Path
) -> None:
    tab = Tab(context, server)
    report = tab.load(estimate={"quota": 1_000_000, "usage": 960_000})
    assert report["error"] is None and report["weights"] == weight_hashes(bundle)
    (warning,) = report["warnings"]
    assert warning["code"] == "disk-full" and warning["fields"] == {"wanted": total_of(bundle), "free": 40_000}
    assert warning["message"].startswith("this browser's storage has room for 0.0 MB, the model needs 0.1 MB more")
    assert "it is loaded, but not kept for the next time" in warning["message"]
    assert "caches.delete()" in warning["hint"]
    assert tab.call("list") == []
    assert tab.load()["warnings"] == []
    assert tab.call("list")[0]["complete"]


@pytest.mark.parametrize("without_opfs", [False, True], ids=["opfs", "cache-storage"])
@pytest.mark.parametrize("quota", [1, 60_000])
def test_storage_that_fills_up_ends_the_keeping_not_the_load(
    server: BundleServer, context: BrowserContext, bundle: Path, without_opfs: bool, quota: int
) -> None:
    """Before the first chunk, and after some whole files."""
    tab = Tab(context, server)
    tab.call("usage")
    session = context.new_cdp_session(tab.page)
    limit = {"origin": server.url.rstrip("/"), "quotaSize": quota}
    session.send("Storage.overrideQuotaForOrigin", limit)
    report = tab.load(withoutOpfs=without_opfs)
    assert report["error"] is None and report["weights"] == weight_hashes(bundle)
    (warning,) = report["warnings"]
    assert (warning["code"], warning["message"].split(":")[0]) == ("disk-full", "this browser's storage is full")
    assert "free some disk space" in warning["hint"]
    assert tab.call("list") == [] and tab.call("remove") == 0
    # With room, the next load is kept.
    session.send("Storage.overrideQuotaForOrigin", {"origin": limit["origin"]})
    assert tab.load(withoutOpfs=without_opfs)["warnings"] == []
    assert tab.call("list")[0]["complete"]


def test_a_load_without_storage_keeps_nothing(server: BundleServer, context: BrowserContext, bundle: Path) -> None:
    tab = Tab(context, server)
    report = tab.load(cache=False)
    assert report["storage"] == "none" and report["weights"] == weight_hashes(bundle)
    assert tab.call("list") == []


@pytest.mark.parametrize("why", ["offline", "failing", "silent"])
def test_a_second_load_needs_no_server(server: BundleServer, context: BrowserContext, why: str) -> None:
    tab = Tab(context, server)
    loaded = tab.load()
    server.log.clear()
    if why == "offline":
        server.faults.offline = True
    elif why == "failing":
        server.faults.statuses["manifest.json"] = 503, 99
    else:
        server.faults.holds["manifest.json"] = 10, Event()
    again = tab.load(stall=500)
    assert again["error"] is None and again["weights"] == loaded["weights"]
    assert {one.name for one in server.log} <= {"manifest.json"} and len(server.log) <= 1


def test_without_network_and_storage_it_says_so(server: BundleServer, context: BrowserContext) -> None:
    tab = Tab(context, server)
    server.faults.offline = True
    error = tab.load(retries=1)["error"]
    assert error["code"] == "no-network" and error["message"].startswith("manifest.json: the server cannot be reached")
    assert "check the address and the connection" in error["hint"]


def test_a_half_loaded_model_says_offline_what_is_missing(server: BundleServer, context: BrowserContext) -> None:
    tab = Tab(context, server)
    server.faults.statuses[LAST] = 404, 99
    assert tab.load()["error"]["code"] == "not-found"
    server.faults.offline = True
    error = tab.load(retries=1)["error"]
    assert error["code"] == "no-network"


def test_a_changed_bundle_shares_what_did_not_change(tmp_path: Path, context: BrowserContext) -> None:
    folder = tmp_path / "b"
    write_bundle(folder)
    server = BundleServer(folder, lab.built())
    try:
        tab = Tab(context, server)
        tab.load()
        old = files_of(folder)
        write_bundle(folder, changed=1.0)
        new = files_of(folder)
        changed = {name for name, entry in new.items() if entry != old.get(name)}
        assert LAST in changed and FIRST not in changed
        server.log.clear()
        assert tab.load()["weights"] == weight_hashes(folder)
        assert {one.name for one in server.log} == {"manifest.json", *changed}
        # What only the old one had is gone.
        (listed,) = tab.call("list")
        assert listed["complete"] and listed["bytes"] == total_of(folder)
        assert tab.call("remove") == total_of(folder)
    finally:
        server.close()


def test_models_are_listed_and_deleted(server: BundleServer, context: BrowserContext, bundle: Path) -> None:
    tab = Tab(context, server)
    tab.load()
    (listed,) = tab.call("list")
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    assert listed == {"sha256": manifest["sha256"], "name": "small", "bytes": total_of(bundle), "complete": True}
    usage = tab.call("usage")
    assert usage["quota"] > usage["used"] >= total_of(bundle) and usage["persistent"] is False
    refused = tab.call("remove", "0" * 64)
    assert refused["code"] == "input" and "no stored model" in refused["message"]
    assert tab.call("remove", listed["sha256"]) == total_of(bundle)
    assert tab.call("list") == []
    server.log.clear()
    assert tab.load()["weights"] == weight_hashes(bundle)
    assert server.nbytes(FIRST) == files_of(bundle)[FIRST]["bytes"]


def test_a_model_is_not_deleted_while_another_tab_loads_it(server: BundleServer, context: BrowserContext, bundle: Path) -> None:
    server.faults.holds[FIRST] = 2 * CHUNK, Event()
    one, other = Tab(context, server), Tab(context, server)
    number = one.start()
    server.wait_for(FIRST, 2 * CHUNK)
    refused = other.call("remove")
    assert refused["code"] == "input" and "being loaded in a tab; nothing was deleted" in refused["message"]
    server.faults.holds.pop(FIRST)[1].set()
    assert one.call("report", number)["weights"] == weight_hashes(bundle)
    assert other.call("remove") == total_of(bundle)
    assert other.call("list") == []
