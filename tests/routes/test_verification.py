"""Verification receipts: the package's downgrades and counts, "verified" only by a trace, and every lack of proof by its name."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from pumice.routes.backend import device_request
from pumice.routes.backpressure import backpressure_profile
from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.evidence import classify_receipt
from pumice.routes.kernel import route_kernel_metadata
from pumice.routes.kinds import document_errors, schema_contract
from pumice.routes.scheduler import Settings, scheduler_profile
from pumice.routes.verification import VERIFICATION, TraceEvent, proves, verification_receipt

ROUTE = {"requestedRouteId": "demo.v0", "effectiveRouteId": "demo.v0", "backendKind": "webgpu-local"}
SCHEDULER = plain(scheduler_profile(Settings("cooperative", 2, True, {"prefill": 4, "decode": 1})))
PRESSURE = plain(backpressure_profile())


def trace(**changed: Any) -> list[TraceEvent]:
    """Two chunks of each phase, each waited for and followed by a yield."""
    found, at = [], 0.0
    for phase, items in (("prefill", 4), ("prefill", 2), ("decode", 1), ("decode", 1)):
        for kind, ms in (("phase-chunk", 3), ("queue-work-done", 1), ("js-yield", changed.get("pause", 2))):
            if kind in changed.get("without", ()):
                continue
            size = changed.get("items", items) if kind == "phase-chunk" else None
            found += [TraceEvent(f"{kind}-start", phase, at, size), TraceEvent(f"{kind}-end", phase, at + ms)]
            at += ms
    return found


def receipt(events: list[TraceEvent], authority: str = "queue-work-done", **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = plain(verification_receipt(ROUTE, SCHEDULER, PRESSURE, events, timing_authority=authority, **more))
    return found


def test_a_whole_trace_verifies_and_the_package_accepts_it() -> None:
    proved = receipt(trace())
    assert proved["status"] == "verified" and proved["downgrades"] == [] and proves(proved)
    assert document_errors(proved) == []
    checked, classed = kit.call(
        [("validateSchedulerVerificationReceipt", proved), ("classifySchedulerVerificationReceipt", proved)]
    )
    assert checked["value"] == {"ok": True, "errors": []}
    assert classed["value"]["status"] == "verified"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"events": []}, "event-trace-missing"),
        ({"events": trace(without=("js-yield",))}, "yield-events-missing"),
        ({"events": trace(without=("queue-work-done",))}, "queue-wait-events-missing"),
        ({"events": trace(without=("phase-chunk",))}, "chunk-size-not-observed.decode"),
        ({"events": trace(items=2)}, "chunk-larger-than-requested.decode"),
        ({"events": trace(pause=1)}, "yield-shorter-than-requested.decode"),
        ({"events": trace()[::-1]}, "event-times-out-of-order"),
        ({"events": trace()[:6]}, "requested-boundary-assertion-missing"),
        ({"events": trace()[:-2]}, "yield-missing-after-chunk.decode"),
        ({"events": trace(), "authority": "requestAnimationFrame"}, "timing-authority-not-observed"),
        ({"events": trace(), "timing_proxy_only": True}, "timing-proxy-only"),
    ],
)
def test_what_is_missing_is_named(given: dict[str, Any], named: str) -> None:
    found = receipt(**given)
    assert found["status"] == "scheduler-unverified" and named in found["downgrades"]
    claimed = {**found, "status": "verified", "downgrades": []}
    assert not proves(claimed)
    assert VERIFICATION.errors(claimed)


def test_the_wrong_route_or_a_dropped_field_is_invalid() -> None:
    dropped = {**SCHEDULER, "effectiveScheduler": {**SCHEDULER["effectiveScheduler"], "phaseChunkSize": {}}}
    with pytest.raises(RouteError, match="receipt-invalid"):
        verification_receipt(ROUTE, dropped, PRESSURE, trace(), timing_authority="queue-work-done")
    with pytest.raises(RouteError, match="route-identity-missing"):
        verification_receipt({}, SCHEDULER, PRESSURE)


def test_unsupported_fields_are_no_proof() -> None:
    effective = {
        **SCHEDULER["effectiveScheduler"],
        "phaseChunkSize": {"decode": 1},
        "unsupportedFields": ["phaseChunkSize.prefill"],
    }
    found = verification_receipt(ROUTE, {**SCHEDULER, "effectiveScheduler": effective}, PRESSURE, trace())
    assert found["status"] == "unsupported"


def history(chance: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A profile and events in pairs, some of them missing, some in other phases."""
    chunks = {phase: 1 for phase in ("a", "b") if chance.random() < 0.7}
    settings = Settings("cooperative", chance.choice((0, 2)), chance.random() < 0.5, chunks)
    profile = plain(scheduler_profile(settings))
    if chunks and chance.random() < 0.3:
        phase = chance.choice(list(chunks))
        listed = [chance.choice((f"phaseChunkSize.{phase}", "phaseChunkSize"))]
        effective = {**profile["effectiveScheduler"], "phaseChunkSize": {}, "unsupportedFields": listed}
        profile["effectiveScheduler"] = (
            effective if listed == ["phaseChunkSize"] or len(chunks) == 1 else profile["effectiveScheduler"]
        )
    events = []
    for at in range(chance.randint(0, 5)):
        kind, phase = chance.choice(("queue-work-done", "js-yield", "other")), chance.choice("abc")
        events += [{"kind": f"{kind}-{side}", "phase": phase, "boundary": phase, "atMs": at} for side in ("start", "end")]
    return profile, events


def test_counts_and_downgrades_are_the_package_s() -> None:
    """Except for what only Pumice asks of a proof, and for the verdict: the package never says "verified" of these."""
    chance = random.Random(7)
    cases = [history(chance) for _ in range(200)]
    answers = kit.call(
        [
            (
                "createSchedulerVerificationReceipt",
                {
                    "route": ROUTE,
                    "scheduler": profile,
                    "backpressure": PRESSURE,
                    "eventTrace": {"timingAuthority": "queue-work-done", "events": events},
                },
            )
            for profile, events in cases
        ]
    )
    own = (
        "timing",
        "event-times",
        "effective-mode",
        "chunk-",
        "phase-chunk",
        "queue-wait-missing-",
        "yield-missing-",
        "yield-shorter",
    )
    for (profile, events), answer in zip(cases, answers, strict=True):
        ours: dict[str, Any] = plain(verification_receipt(ROUTE, profile, PRESSURE, events, timing_authority="queue-work-done"))
        ours["downgrades"] = [name for name in ours["downgrades"] if not name.startswith(own)]
        theirs = answer["value"]
        if ours["status"] == "verified":
            assert theirs["downgrades"] == []
            ours |= {"status": theirs["status"], "classification": theirs["classification"]}
            ours["boundaryAssertions"] = [{**entry, "status": "observed"} for entry in ours["boundaryAssertions"]]
        assert ours == theirs, (profile, events)


def test_evidence_takes_a_proof_and_not_a_claim() -> None:
    for given, state in ((receipt(trace()), "verified"), ({**receipt([]), "status": "verified"}, "scheduler-unverified")):
        scheduler = {**SCHEDULER, "verificationState": "verified"}
        found = classify_receipt({"runtime": {"schedulerVerification": given, "scheduler": scheduler}})
        assert found["schedulerVerificationState"] == found["schedulerVerificationStatus"] == state
        assert bool(found["schedulerVerificationDowngrades"]) == (state != "verified")


def test_requests_for_devices_kernel_metadata_and_the_contract_are_the_package_s() -> None:
    limits = {"maxBufferSize": 5, "maxBindGroups": 4, "maxComputeWorkgroupSizeX": 3}
    options = ("prefer", "require", "disable")
    features = (["timestamp-query", "shader-f16"], ["shader-f16"])
    cases = [(names, option) for names in features for option in options]
    calls: list[tuple[Any, ...]] = [
        ("createWebGpuDeviceRequest", {"features": names, "limits": limits}, {"timestampQuery": option})
        for names, option in cases
    ]
    kernel = {"kernel": {"profile": "p", "commit": "c"}, "requiredStages": ["a"], "timingSource": "timestamp-query"}
    *devices, made, contract = kit.call(
        [*calls, ("createRouteKernelProfileMetadata", kernel), ("createWebGpuRouteSchemaContract",)]
    )
    for (names, option), answer in zip(cases, devices, strict=True):
        if "thrown" in answer:
            with pytest.raises(RouteError) as caught:
                device_request(names, limits, timestamps=option)
            assert caught.value.message == answer["thrown"]
        else:
            assert device_request(names, limits, timestamps=option) == answer["value"]
    assert route_kernel_metadata("p", ["a"], source="timestamp-query", commit="c") == made["value"]
    assert schema_contract() == contract["value"]
    with pytest.raises(RouteError, match="unsupported value"):
        device_request([], {}, timestamps="maybe")
