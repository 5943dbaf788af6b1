"""Receipts of runs: valid here and for the npm package, every hash recomputed, every fact shown, and no cost without one."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
import route_kit as kit
from pumice import config
from pumice.backends.null.device import NullDevice
from pumice.errors import ClosedError, DTypeError, MissingName, PumiceWarning, UnknownName
from pumice.packs.degraded import forget, note
from pumice.receipts.envelope import read_envelope
from pumice.receipts.receipt import HOST_REASON, Receipt
from pumice.routes.documents import plain, shared
from pumice.routes.evidence import classify_receipt
from pumice.routes.receipts import RECEIPT
from pumice.run import digests, receipts

from harness import device

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)
W = np.float32([[1, 2], [3, 4]])
X = np.float32([[1, 0], [0, 1], [1, 1]])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def scaled(params: Any, x: Any) -> Any:
    pm.capture("sum", x.sum())
    return {"y": x @ params["w"], "x": x * params["b"]}


def counting(x: Any) -> Any:
    n = pm.state("n", (2,), init=[1.0, 1.0])
    pm.set_state(n, n + x)
    return n + x


def compiled(target: str) -> pm.Executable:
    params = {"w": W, "b": np.float32(2)}
    return pm.compile(scaled, params=params, x=pm.spec("N", 2), max={"N": 8}, device=device(target))


def traced() -> pm.Graph:
    """What `compiled` compiles, which is the same for every device."""
    return pm.trace(scaled, params={"w": W, "b": np.float32(2)}, x=pm.spec("N", 2))


def section(receipt: Receipt) -> dict[str, Any]:
    found: dict[str, Any] = plain(receipt.document["pumice"])
    return found


@on_both
def test_a_receipt_names_inputs_outputs_params_and_plan(target: str) -> None:
    with compiled(target) as exe:
        found, receipt = exe.run(x=X, receipt=True)
        np.testing.assert_array_equal(found["y"], exe.run(x=X)["y"])
        document = plain(receipt.document)
        hashes = {a["role"]: (a["sha256"], a["shape"]) for a in document["inputs"] + document["outputs"]}
        assert hashes == {
            "x": (sha256(npy(X)), [3, 2]),
            "y": (sha256(npy(found["y"])), [3, 2]),
            "output.x": (sha256(npy(X * 2)), [3, 2]),
        }
        lines = f"b f32[] {sha256(np.float32(2).tobytes())}\nw f32[2,2] {sha256(W.tobytes())}\n"
        own = section(receipt)
        assert own["model"]["params"] == {"count": 2, "bytes": 20, "sha256": sha256(lines.encode())}
        assert document["model"]["weightsHash"] == f"sha256:{sha256(lines.encode())}"
        assert own["plans"] == [{"name": "run", "digest": exe.plan.sha256}]
        assert own["request"] == {"symbols": {"N": 3}, "outputs": ["y", "x"], "captures": False}
        assert own["conditions"] == {"graph": traced().hash, "states": []}
        assert own["caps"]["name"] == exe.device.caps.name and own["device"]["name"] == exe.device.name.split(" via ")[0]
        assert own["software"]["numpy"] == np.__version__ and ("wgpu" in own["software"]) == (target == "webgpu")
        assert own["packs"] == own["degraded"] == [] and own["insecure"] is False
        assert plain(read_envelope(receipt.sign()).predicate) == document


@on_both
def test_both_sides_accept_it_and_only_webgpu_is_authoritative(target: str) -> None:
    with compiled(target) as exe:
        receipt = plain(exe.run(x=X, receipt=True)[-1].document)
    assert RECEIPT.errors(receipt) == []
    checked, backend, evidence = kit.call(
        [
            ("validateRouteReceipt", receipt),
            ("validateWebGpuBackendIdentity", {**receipt["backend"], "runtime": "browser"}),
            ("classifyWebGpuRouteReceiptEvidence", {**receipt, "backend": {**receipt["backend"], "runtime": "browser"}}),
        ]
    )
    assert checked["value"] == backend["value"] == {"ok": True, "errors": []}
    wanted = "fallback" if target == "host" else "authoritative-live-webgpu"
    assert evidence["value"]["classification"] == classify_receipt(receipt)["classification"] == wanted
    assert receipt["fallbackReason"] == (HOST_REASON if target == "host" else None)


@on_both
def test_captures_picked_outputs_and_submits_have_receipts(target: str) -> None:
    with compiled(target) as exe:
        found, captured, receipt = exe.run(x=X, captures=True, outputs=["y"], receipt=True)
        assert list(receipt.artifacts) == ["x", "y", "capture.sum"]
        np.testing.assert_array_equal(np.load(io.BytesIO(receipt.artifacts["capture.sum"].content)), captured["sum"])
        x = X.copy()
        futures = [exe.submit(x=x, receipt=True), exe.submit(x=x)]
        x[:] = 0
        (again, later), last = futures[0].result(60), futures[1].result(60)
        np.testing.assert_array_equal(again["y"], found[0])
        np.testing.assert_array_equal(last["y"], found[0])
        assert later.artifacts["x"].sha256 == receipt.artifacts["x"].sha256 == sha256(npy(X))


@on_both
def test_states_before_and_after_are_hashed(target: str) -> None:
    with pm.compile(counting, x=pm.spec(2), device=device(target)) as exe:
        first, second = (exe.run(x=[1, 2], receipt=True)[1] for _ in range(2))
        known = {"name": "n", "type": "f32[2]"}
        assert section(first)["conditions"]["states"] == [{**known, "changed": True, "initial": True}]
        assert section(second)["conditions"]["states"] == [{**known, "changed": True, "initial": False}]
        values = [sha256(npy(np.float32(v))) for v in ([1, 1], [2, 3], [3, 5])]
        assert [role for role in first.artifacts if role.startswith("state.")] == ["state.n.after"]
        assert first.artifacts["state.n.after"].sha256 == values[1]
        found = {role: a.sha256 for role, a in second.artifacts.items() if role.startswith("state.")}
        assert found == {"state.n": values[1], "state.n.after": values[2]}
        _, given = exe.run(x=[0, 0], n=[1, 1], receipt=True)
        assert given.artifacts["state.n"].sha256 == given.artifacts["state.n.after"].sha256 == values[0]
        assert section(given)["conditions"]["states"] == [{**known, "changed": False, "initial": True}]
        # Nothing in a private receipt is a hash that somebody could guess the value of.
        exe.run(x=[0, 0], n=[4, 4])
        private = exe.run(x=[1, 2], receipt=True)[1].as_private().to_json()
        assert all(value not in private for value in (sha256(npy(np.float32([4, 4]))), sha256(np.float32([4, 4]).tobytes())))


def test_params_that_a_run_updates_have_two_digests() -> None:
    def step(params: Any, g: Any) -> None:
        pm.set_param(params["w"], params["w"] - g)

    with pm.compile(step, params={"w": np.float32([3, 4])}, g=pm.spec(2), device="host") as exe:
        result, receipt = exe.run(g=[1, 1], receipt=True)
        own = section(receipt)
        assert result is None and list(own["artifacts"]["outputs"]) == ["outputs"]
        before, after = (f"w f32[2] {sha256(np.float32(v).tobytes())}\n".encode() for v in ([3, 4], [2, 3]))
        assert own["model"]["params"]["sha256"] == sha256(before)
        assert own["conditions"]["params_after"]["sha256"] == sha256(after)


def test_a_graph_without_inputs_has_a_receipt() -> None:
    with pm.compile(lambda params: params["w"] + 1.0, params={"w": W}, device="host") as exe:
        _, receipt = exe.run(receipt=True)
        assert RECEIPT.errors(receipt.document) == [] and receipt.document["inputs"][0]["sha256"] == sha256(b"{}")


@on_both
def test_changed_facts_show(target: str) -> None:
    with compiled(target) as exe:
        first = section(exe.run(x=X, receipt=True)[-1])
        exe.set_params({"b": np.float32(3)}, partial=True)
        second = section(exe.run(x=X, receipt=True)[-1])
        exe.store.add("other", W + 1, like="w")
        exe.store.swap("w", "other")
        third = section(exe.run(x=X, receipt=True)[-1])
        weights = [s["model"]["params"]["sha256"] for s in (first, second, third)]
        assert len(set(weights)) == 3 and first["plans"] == second["plans"] == third["plans"]


def test_params_are_read_only_when_they_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    whole = digests.array_digest
    monkeypatch.setattr(digests, "array_digest", lambda a: read.append(a.nbytes) or whole(a))
    with compiled("host") as exe:
        for _ in range(3):
            exe.run(x=X, receipt=True)
        assert sorted(read) == [4, 16]
        exe.set_params({"b": np.float32(3)}, partial=True)
        exe.run(x=X, receipt=True)
        assert sorted(read) == [4, 4, 16]


def test_a_run_without_a_receipt_hashes_and_times_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("a run without a receipt did work for one")

    with compiled("host") as exe:
        monkeypatch.setattr(receipts.RecordedRun, "__init__", refuse)
        monkeypatch.setattr(digests, "array_digest", refuse)
        monkeypatch.setattr(type(exe._session), "profile", refuse)
        exe.run(x=X)
        exe.submit(x=X).result(60)
        exe.begin({"x": X})()


def test_the_plan_is_hashed_once_and_only_for_a_document(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = pm.compile(lambda x: x, x=pm.spec(1), device="host").plan.__class__.to_bytes
    monkeypatch.setattr("pumice.plan.plan.Plan.to_bytes", lambda plan: made.append(1) or whole(plan))
    with compiled("host") as exe:
        found = [exe.run(x=X, receipt=True)[1] for _ in range(3)]
        assert made == []
        assert len({r.document["pumice"]["plans"][0]["digest"] for r in found}) == 1 and made == [1]


@pytest.mark.gpu
def test_timestamps_count_only_where_they_agree_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    # Large enough that the device computes for most of the time that the host waits.
    size = 4096 if device("webgpu").caps.is_gpu else 256
    big = np.ones((size, size), "f4")
    with pm.compile(lambda x: (x @ x).sum(), x=pm.spec(size, size), device=device("webgpu")) as exe:
        exe.run(x=big)
        timings = plain(exe.run(x=big, receipt=True)[1].document["timings"])
        assert timings["source"] == "timestamp-query" and timings["profile"]["timestampQueryValidatedAgainstStaged"] is True
        (stage,) = timings["stages"]
        assert stage["name"] == "run" and set(stage["metadata"]["queue-submit-wait"]) == {"upload", "run", "readback"}
        assert kit.call([("validateStagedSubmitProfile", timings["profile"])])[0]["value"]["ok"]
        monkeypatch.setattr(receipts, "_MOST_SHARE", 0.0)  # as where the device's clock runs wild
        timings = plain(exe.run(x=big, receipt=True)[1].document["timings"])
        assert timings["source"] == "queue-submit-wait" and [s["name"] for s in timings["stages"]] == [
            "upload",
            "run",
            "readback",
        ]
        assert timings["profile"]["timestampQueryValidatedAgainstStaged"] is False
        assert timings["stages"][1]["metadata"]["agrees"] is False


@pytest.mark.gpu
def test_a_target_without_timestamps_is_timed_by_the_host() -> None:
    with pm.compile(lambda x: x * 2.0, x=pm.spec(4), device=device("webgpu-baseline")) as exe:
        document = exe.run(x=[1, 2, 3, 4], receipt=True)[1].document
        assert document["timings"]["source"] == "queue-submit-wait" and document["status"] == "real"
        assert document["backend"]["timestampQuery"] == "requested" and document["pumice"]["caps"]["timestamps"] is False


def test_receipts_of_a_device_share_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked = NullDevice(), []
    describe = own.describe
    monkeypatch.setattr(own, "describe", lambda: asked.append(1) or describe())
    with pm.compile(lambda x: x * 2.0, x=pm.spec(4), device=own) as exe:
        first, second = (exe.run(x=np.ones(4, np.float32), receipt=True)[1].document for _ in range(2))
        other = pm.compile(lambda x: x, x=pm.spec(4), device=NullDevice()).run(x=np.ones(4, np.float32), receipt=True)[1].document
    assert len(asked) == 1
    assert shared(first)["pumice"]["caps"] is shared(second)["pumice"]["caps"]
    assert first["pumice"]["device"] == second["pumice"]["device"] == other["pumice"]["device"]
    with pytest.raises(TypeError):
        first["pumice"]["caps"]["name"] = "another"


def test_a_receipt_names_the_threads_of_its_run() -> None:
    with pm.compile(lambda x: x * 2.0, x=pm.spec(4), device="host") as exe:
        exe.run(x=np.ones(4, np.float32), receipt=True)
        with config.override(threads=1):
            assert exe.run(x=np.ones(4, np.float32), receipt=True)[1].document["pumice"]["device"]["cores"] == 1


def test_a_device_that_computes_nothing_says_so() -> None:
    with pm.compile(lambda x: x * 2.0, x=pm.spec(4), device=NullDevice()) as exe:
        document = exe.run(x=[1, 2, 3, 4], receipt=True)[1].document
        assert document["status"] == "fallback" and document["fallbackReason"] == receipts.NULL_REASON


def test_debugged_and_validated_runs_have_receipts(capsys: pytest.CaptureFixture[str]) -> None:
    for switch in ({"validate": True}, {"debug": 2}):
        with config.override(**switch), compiled("host") as exe:
            assert RECEIPT.errors(exe.run(x=X, receipt=True)[1].document) == []


@on_both
def test_wrong_calls_are_refused_as_without_a_receipt(target: str) -> None:
    exe = compiled(target)
    with pytest.raises(DTypeError):
        exe.run(x=np.array([["a", "b"]]), receipt=True)
    with pytest.raises(UnknownName):
        exe.run(x=X, outputs=["z"], receipt=True)
    with pytest.raises(DTypeError):
        exe.submit(x=np.array([["a", "b"]]), receipt=True).result(60)
    exe.close()
    for call in (exe.run, exe.submit):
        with pytest.raises(ClosedError):
            call(x=X, receipt=True)
    with (
        pm.compile(scaled, params={"w": pm.spec(2, 2), "b": pm.spec()}, x=pm.spec(3, 2), device=device(target)) as unset,
        pytest.raises(MissingName),
    ):
        unset.run(x=X, receipt=True)


def test_arrays_that_change_later_stay_as_they_were() -> None:
    with compiled("host") as exe:
        x = X.copy()
        found, receipt = exe.run(x=x, receipt=True)
        expected = sha256(npy(found["y"]))
        x[:] = 7
        found["y"][:] = 7
        exe.set_params({"b": np.float32(9)}, partial=True)
        document = json.loads(receipt.to_json())
        assert document["inputs"][0]["sha256"] == sha256(npy(X)) and document["outputs"][0]["sha256"] == expected
        assert (
            document["pumice"]["model"]["params"]["sha256"] != section(exe.run(x=x, receipt=True)[1])["model"]["params"]["sha256"]
        )


@on_both
def test_a_cooperative_run_proves_its_schedule(target: str) -> None:
    cooperative = pm.Cooperative(chunk=1)
    with pm.compile(lambda x: pm.softmax(pm.exp(x) @ x), x=pm.spec(8, 8), device=device(target), cooperative=cooperative) as exe:
        found, receipt = exe.run(x=np.eye(8), receipt=True)
        document = plain(receipt.document)
        assert document["timings"]["source"] == "queue-submit-wait"
        assert document["runtime"]["schedulerVerification"]["eventTrace"]["events"]
        if target == "webgpu":
            assert classify_receipt(document)["schedulerVerificationState"] == "verified"
        exe.cooperate(None)
        plainly, unscheduled = exe.run(x=np.eye(8), receipt=True)
        np.testing.assert_array_equal(plainly, found)
        assert "runtime" not in unscheduled.document


def test_kernels_of_packs_and_their_failures_are_named() -> None:
    pytest.importorskip("wasmtime", reason="needs wasmtime: pip install 'pumice[packs]'")
    with pytest.warns(PumiceWarning, match="INSECURE"):
        pack = pm.load_pack(Path(__file__).parents[2] / "packs" / "core", insecure=True)

    def normed(params: Any, x: Any) -> Any:
        return pm.rms_norm(x, params["w"])

    params = {"w": np.ones(64, "f4")}
    with pm.Store("host", packs=[pack]) as store:
        exe = pm.compile(normed, params=params, x=pm.spec(4, 64), store=store)
        note("core", "rms_norm_f32", "unreachable", "it trapped")
        own = section(exe.run(x=np.ones((4, 64), "f4"), receipt=True)[1])
        forget("core")
        later = section(exe.run(x=np.ones((4, 64), "f4"), receipt=True)[1])
    (kernel,) = own["packs"]
    assert (kernel["pack"], kernel["digest"], kernel["insecure"]) == ("core", pack.digest, True) and own["insecure"] is True
    assert [d["code"] for d in own["degraded"]] == ["unreachable"] and later["degraded"] == []
