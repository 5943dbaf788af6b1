"""Defects of the npm package that Pumice mends, one test each; tests/routes/test_package.py excepts them by name."""

from __future__ import annotations

from typing import Any

import pytest

import route_kit as kit
import route_samples as samples
from pumice.routes.definition import Role, define_route
from pumice.routes.documents import plain
from pumice.routes.errors import InvalidDocument
from pumice.routes.evidence import classify_receipt
from pumice.routes.kernel import kernel_metadata
from pumice.routes.receipts import RECEIPT
from pumice.routes.requests import request_errors, route_request
from pumice.routes.results import result_errors, worker_result
from pumice.routes.runtime_profile import RUNTIME_PROFILE
from pumice.routes.scheduler import SCHEDULER
from pumice.routes.tensors import TENSOR_MANIFEST


def package_errors(function: str, *given: Any) -> list[str]:
    (answer,) = kit.call([(function, *given)])
    return list(answer["value"]["errors"])


def throws(function: str, *given: Any) -> str:
    (answer,) = kit.call([(function, *given)])
    return str(answer["thrown"])


def flagged_route(**flags: bool) -> dict[str, Any]:
    return plain(
        define_route(
            "demo.text.webgpu-local.v0",
            model={"id": "m"},
            kernel=kernel_metadata("plan"),
            inputs=[Role("prompt", **flags)],
            outputs=[Role("text", **flags)],
            required_stages=["decode"],
        )
    )


def result_of(route: dict[str, Any], artifact: dict[str, Any]) -> dict[str, Any]:
    """A result that is complete but for what the artifacts lack."""
    request = {**plain(samples.request()), "scheduler": None, "backpressure": None}
    receipt = plain(samples.receipt())
    sides = {
        "inputs": [{"role": "prompt", **artifact}],
        "outputs": [{"role": "text", "status": "real", "shape": [1], **artifact}],
    }
    receipt |= sides
    request |= {"inputs": sides["inputs"], "outputs": sides["outputs"]}
    return {**plain(samples.samples()[12].document), "request": request, "receipt": receipt, "outputs": sides["outputs"]}


def test_role_flags_are_enforced() -> None:
    no_hash, no_id = {"artifactId": "a"}, {"sha256": samples.SHA}
    for flags, artifact in (({"hash_required": False}, no_hash), ({"artifact_required": False}, no_id)):
        lenient, strict = flagged_route(**flags), flagged_route()
        result = result_of(lenient, artifact)
        assert result_errors(result, lenient) == []
        assert request_errors(result["request"], lenient) == []
        assert result_errors(result, strict) != []
        # The package stores the flags, and refuses what they allow.
        assert package_errors("validateRouteWorkerResult", result, lenient) != []
    wrong = result_of(flagged_route(hash_required=False), {"artifactId": "a", "sha256": "made up"})
    assert "outputs[0].sha256 must be a SHA-256 in hex" in result_errors(wrong, flagged_route(hash_required=False))


def test_required_features_are_enforced() -> None:
    route, result = plain(samples.route()), plain(samples.samples()[12].document)
    result["backend"]["features"] = ["timestamp-query"]
    assert result_errors(result, route) == ["backend.features missing required feature shader-f16"]
    assert package_errors("validateRouteWorkerResult", result, route) == []


def test_optional_inputs_that_are_left_out_leave_no_placeholder() -> None:
    route = plain(samples.route())
    request = plain(samples.request())
    assert [given["role"] for given in request["inputs"]] == ["prompt"]
    assert request_errors(request, route) == []
    given = {"requestId": "1", "inputs": {"prompt": samples.artifact("p", 4)}, "outputs": {"text": samples.artifact("t", 8)}}
    (made,) = kit.call([("createRouteInvocationRequest", route, given)])
    assert made["value"]["inputs"][1] == {"role": "image"}
    assert package_errors("validateRouteInvocationRequest", made["value"], route) != []


def test_a_required_input_that_is_missing_is_named() -> None:
    with pytest.raises(InvalidDocument, match="inputs missing required role prompt"):
        route_request(samples.route(), "1", inputs={}, outputs={"text": samples.artifact("t", 8)})


def test_kernel_errors_of_runtime_profiles_have_one_prefix() -> None:
    profile = plain(samples.samples()[5].document)
    profile["kernel"] = {"profile": "p"}
    assert RUNTIME_PROFILE.errors(profile) == ["kernel.kitVersion must be a non-empty string"]
    assert package_errors("validateWebGpuRuntimeProfile", profile) == ["kernel.kernel.kitVersion must be a non-empty string"]


def test_a_result_without_a_route_is_an_error_and_no_crash() -> None:
    result = plain(samples.samples()[12].document)
    assert result_errors(result, None)[:2] == ["route.route must be an object", "routeId must match route definition"]
    assert "null" in throws("validateRouteWorkerResult", result, None)


def test_the_status_of_a_result_is_its_receipt_s() -> None:
    route, result = plain(samples.route()), plain(samples.samples()[12].document)
    result["status"] = "fallback"
    assert result_errors(result, route) == ["status must match receipt.status"]
    assert package_errors("validateRouteWorkerResult", result, route) == []


@pytest.mark.parametrize("sha256", ["abc", "sha256:" + "g" * 64, samples.SHA + "0", samples.SHA[:-1], f" {samples.SHA}"])
def test_hashes_have_the_form_of_hashes(sha256: str) -> None:
    receipt = plain(samples.receipt())
    receipt["outputs"][0]["sha256"] = sha256
    assert RECEIPT.errors(receipt) == ["outputs[0].sha256 must be a SHA-256 in hex"]
    receipt["outputs"][0]["sha256"] = f"sha256:{samples.SHA.upper()}"
    assert RECEIPT.errors(receipt) == []


def test_a_scheduler_is_verified_only_with_a_verification_receipt() -> None:
    receipt = plain(samples.receipt())
    claimed = {**receipt["runtime"]["scheduler"], "verificationState": "verified"}
    for side in ("requestedScheduler", "effectiveScheduler"):
        claimed[side] = {**claimed[side], "phaseChunkSize": {}}
    claimed["effectiveScheduler"]["unsupportedFields"] = []
    receipt["runtime"]["scheduler"] = claimed
    found = classify_receipt(receipt)
    assert found["authoritative"] and found["schedulerVerificationState"] == "scheduler-unverified"
    assert found["schedulerVerificationDowngrades"] == ["event-trace-missing"]
    (theirs,) = kit.call([("classifyWebGpuRouteReceiptEvidence", receipt)])
    assert theirs["value"]["schedulerVerificationState"] == "verified"


def test_validators_report_what_makes_the_package_throw() -> None:
    tensors = plain(samples.samples()[8].document)
    tensors["tensors"].append(None)
    assert TENSOR_MANIFEST.errors(tensors)[0] == "tensors[2].name must be a non-empty string"
    assert "null" in throws("validateTensorManifest", tensors)
    scheduler = plain(samples.scheduler())
    del scheduler["effectiveScheduler"]["unsupportedFields"]
    assert SCHEDULER.errors(scheduler)[0] == "effectiveScheduler.unsupportedFields must be an array"
    assert "includes" in throws("validateWebGpuRouteSchedulerProfile", scheduler)


def test_native_is_a_further_runtime() -> None:
    receipt = {**plain(samples.receipt()), "backend": plain(samples.identity("native"))}
    assert classify_receipt(receipt)["classification"] == "authoritative-live-webgpu"
    # The package accepts the receipt; its check of the identity alone knows browsers only.
    assert package_errors("validateRouteReceipt", receipt) == []
    assert package_errors("validateWebGpuBackendIdentity", receipt["backend"]) == ["runtime must be browser"]


def test_results_are_made_from_receipts() -> None:
    result = worker_result(samples.route(), samples.request(), samples.receipt())
    assert result["status"] == "real" and result["timings"]["source"] == "queue-submit-wait"
    with pytest.raises(InvalidDocument, match=r"receipt\.requestedRouteId must match route definition"):
        worker_result(samples.route(), samples.request(), {**plain(samples.receipt()), "requestedRouteId": "x"})
