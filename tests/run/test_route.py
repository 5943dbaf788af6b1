"""Routes made of traced functions: definitions, requests and worker results that both sides accept, on every device."""

from __future__ import annotations

import hashlib
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
import route_kit as kit
from pumice.errors import ClosedError, InputError, UnknownName
from pumice.receipts.errors import ArtifactMismatch
from pumice.receipts.section import receipt_errors
from pumice.routes.documents import plain
from pumice.routes.errors import NotAuthoritative, RouteError
from pumice.routes.results import require_authoritative_result, result_errors
from pumice.run.route import load_route

from harness import device

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]
on_both = pytest.mark.parametrize("target", TARGETS)
IMAGE = np.arange(12, dtype="f4").reshape(3, 4)
W = np.float32([1, 2, 3, 4])


def npy_hash(array: Any) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return hashlib.sha256(file.getvalue()).hexdigest()


def edges(params: Any, image: Any, gain: Any) -> Any:
    """Differences of neighbours."""
    return {"dx": (image[:, 1:] - image[:, :-1]) * gain, "weighted": (image * params["w"]).sum()}


def routed(target: Any, **options: Any) -> pm.Route:
    made = pm.route(
        "my.edges.v0", image=pm.spec("H", 4, max=8), gain=pm.spec(), params={"w": W}, device=target, model="edges", **options
    )
    return made(edges)


def test_the_definition_has_the_roles_of_the_function() -> None:
    route = routed("host")
    definition = plain(route.definition)
    assert definition["routeId"] == "my.edges.v0" and definition["model"]["id"] == "edges"
    assert [(r["role"], r.get("shape")) for r in definition["inputRoles"]] == [("image", None), ("gain", [1])]
    assert [(r["role"], r.get("shape")) for r in definition["outputRoles"]] == [("dx", None), ("weighted", [1])]
    assert definition["requiredStages"] == ["run"] and definition["timingSource"] == "queue-submit-wait"
    assert definition["worker"]["function"].endswith("test_route:edges")
    assert kit.call([("validateRouteDefinition", definition)])[0]["value"] == {"ok": True, "errors": []}
    assert route._executable is None and route.__doc__ == "Differences of neighbours."


@on_both
def test_a_request_becomes_a_worker_result_that_both_sides_accept(target: str) -> None:
    with routed(device(target)) as route:
        request = route.request(image=IMAGE, gain=2.0, request_id="r1", config={"note": "test"})
        done = route.result(request, image=IMAGE, gain=2.0)
        np.testing.assert_array_equal(done.value["dx"], np.full((3, 3), 2.0))
        document, definition = plain(done.document), plain(route.definition)
    assert result_errors(document, definition) == [] and receipt_errors(document["receipt"]) == []
    # The package knows the runtime "browser" alone; ours says native.
    browser = {**document["backend"], "runtime": "browser"}
    answers = kit.call(
        [
            ("validateRouteInvocationRequest", plain(request), definition),
            ("validateRouteWorkerResult", {**document, "backend": browser}, definition),
            ("validateRouteReceipt", document["receipt"]),
            ("classifyWebGpuRouteWorkerResultEvidence", {**document, "backend": browser}, definition),
        ]
    )
    assert [a["value"] for a in answers[:3]] == [{"ok": True, "errors": []}] * 3
    hashes = {entry["role"]: entry["sha256"] for entry in document["outputs"]}
    assert hashes == {role: npy_hash(done.value[role]) for role in ("dx", "weighted")}
    assert {e["role"]: e["sha256"] for e in plain(request)["inputs"]} == {
        "image": npy_hash(IMAGE),
        "gain": npy_hash(np.float32(2)),
    }
    assert document["receipt"]["pumice"]["request"]["request_id"] == document["requestId"] == "r1"
    if target == "host":
        assert document["status"] == "fallback"
        with pytest.raises(NotAuthoritative, match="receipt status is fallback"):
            require_authoritative_result(document, definition)
    else:
        assert require_authoritative_result(document, definition) == document


@on_both
def test_a_route_runs_as_a_function_and_with_a_receipt(target: str) -> None:
    with routed(device(target)) as route:
        plainly = route(image=IMAGE, gain=1.0)
        found, receipt = route.run({"image": IMAGE}, gain=1.0, receipt=True)
        np.testing.assert_array_equal(plainly["weighted"], found["weighted"])
        np.testing.assert_array_equal(route.run(image=IMAGE, gain=1.0)["dx"], found["dx"])
        document = plain(receipt.document)
        assert document["effectiveRouteId"] == "my.edges.v0" and document["timings"]["source"] == "queue-submit-wait"
        about = document["pumice"]["conditions"]["function"]
        assert about["name"] == "edges" and about["file"] == "test_route.py"
        assert about["sha256"] == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        assert document["model"]["revision"] == route.graph.hash[:16]
        assert document["pumice"]["conditions"]["graph"] == route.graph.hash
        other = route.on("host", params={"w": W + 1})
        with other:
            changed = plain(other.run(image=IMAGE, gain=1.0, receipt=True)[1].document)
        assert changed["model"]["weightsHash"] != document["model"]["weightsHash"]
        assert changed["model"]["revision"] == document["model"]["revision"]


@pytest.mark.gpu
def test_a_route_can_ask_for_timestamps() -> None:
    @pm.route("my.square.v0", x=pm.spec(256, 256), device=device("webgpu"), timing="timestamp-query")
    def square(x: Any) -> Any:
        return x @ x

    x = np.ones((256, 256), "f4")
    with square:
        square(x=x)
        done = square.result(square.request(x=x), x=x)
        assert done.document["timings"]["source"] == "timestamp-query" == square.definition["timingSource"]
        with square.on("host") as elsewhere, pytest.raises(RouteError, match="no timestamps that agree"):
            elsewhere.run(x=x, receipt=True)


def test_other_inputs_and_foreign_requests_are_refused() -> None:
    with routed("host") as route:
        request = route.request(image=IMAGE, gain=2.0)
        with pytest.raises(ArtifactMismatch, match="'gain' is not the one that the request names"):
            route.result(request, image=IMAGE, gain=3.0)
        with pytest.raises(InputError, match="routeId must match route definition"):
            route.result({**plain(request), "routeId": "other.v0"}, image=IMAGE, gain=2.0)
        with pytest.raises(UnknownName):
            route.request(image=IMAGE, gain=1.0, more=1)
        with pytest.raises(InputError, match="request id"):
            route.request(image=IMAGE, gain=1.0, request_id=" ")


def test_a_closed_route_says_so() -> None:
    route = routed("host")
    route.close()
    for call in (route, route.run, route.request):
        with pytest.raises(ClosedError, match=r"my\.edges\.v0 is closed"):
            call(image=IMAGE, gain=1.0)
    opened = route.on("host")
    opened(image=IMAGE, gain=1.0)
    opened.close()
    opened.close()


def test_threads_compile_it_once() -> None:
    with routed("host") as route:
        found: list[Any] = []
        threads = [threading.Thread(target=lambda: found.append(route.executable)) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(found) == 8 and len(set(map(id, found))) == 1


def test_functions_without_inputs_or_outputs_are_routes() -> None:
    @pm.route("my.count.v0", device="host")
    def count() -> None:
        n = pm.state("n", (1,))
        pm.set_state(n, n + 1.0)

    with count:
        done = count.result(count.request())
        assert result_errors(done.document, count.definition) == []
        assert count.definition["requiredOutputRoles"] == ("state.n.after",)
        (state,) = done.document["receipt"]["pumice"]["conditions"]["states"]
        assert state["name"] == "n" and state["changed"] and state["initial"]
        with pytest.raises(InputError, match=r"also names 'state\.n'"):
            given = plain(count.request())
            count.result({**given, "inputs": [*given["inputs"], {"role": "state.n", "artifactId": "n", "sha256": "ab" * 32}]})
        again = count.result(count.request())
        assert result_errors(again.document, count.definition) == [] and "state.n" in again.receipt.artifacts


def test_bad_definitions_are_refused() -> None:
    with pytest.raises(InputError, match="route id"):
        pm.route("")
    with pytest.raises(InputError, match="timing is 'sundial'"):
        pm.route("my.v0", timing="sundial")
    with pytest.raises(InputError, match="not of int"):
        pm.route("my.v0")(3)  # type: ignore[arg-type]


def test_routes_are_found_in_files_and_modules(tmp_path: Path) -> None:
    file = tmp_path / "blur.py"
    file.write_text(
        "import pumice as pm\n\n@pm.route('my.blur.v0', x=pm.spec('N'))\ndef blur(x):\n    return x * 0.5\n\nother = 3\n"
    )
    with load_route(f"{file}:blur").on("host") as found:
        assert found.definition["worker"]["function"] == f"{file}:blur" and found(x=[2.0]).tolist() == [1.0]
        file.write_text(file.read_text() + "# edited\n")
        about = found.run(x=[2.0], receipt=True)[1].document["pumice"]["conditions"]["function"]
        assert about["file"] == "blur.py" and about["sha256"] is None
    for spec, said in (
        (f"{file}:other", "it is a int"),
        (f"{file}:nothing", "no such name"),
        (f"{tmp_path}/gone.py:f", "no file"),
        ("no_such_module:f", "cannot be imported"),
    ):
        with pytest.raises(InputError, match=said):
            load_route(spec)


def test_errors_name_the_line_of_the_user() -> None:
    route = pm.route("my.wrong.v0", x=pm.spec(2), device="host")(lambda x: x)
    with pytest.raises(pm.errors.ShapeError) as caught:
        route(x=[1.0, 2.0, 3.0])
    assert "test_route.py" in str(caught.value)
