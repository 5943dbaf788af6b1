"""Records of scheduled runs: what the package writes is read without errors, and what contradicts itself is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

import route_kit as kit
from json_schema import agrees
from pumice.routes.documents import plain
from pumice.routes.kinds import document_errors, kind_of
from pumice.routes.records import (
    DUTY_DESCRIPTOR,
    EXECUTION_REPORT,
    GOVERNOR_DECISION,
    OBSERVATION,
    PROGRESS,
    RECORDS,
    RESIDENCY,
    SESSION,
    SUBMISSION_REPORT,
    WORKER_RESULT,
)
from pumice.routes.state_records import STATE_RECORDS
from route_records import BOUNDS, SCHEDULER, own_records
from route_samples import mutate


@pytest.fixture(scope="module")
def records() -> dict[str, Any]:
    return kit.records()


def test_records_that_the_package_writes_are_read(records: dict[str, Any]) -> None:
    kinds = {name: kind_of(record) for name, record in records.items()}
    assert all(kinds.values()), kinds
    assert len(records) == 64
    kept = {kind.schema_id for kind in (*RECORDS, *STATE_RECORDS)}
    assert kept <= {record["schema"] for record in records.values()}, "a kind of which the package makes none"
    for name, record in records.items():
        assert document_errors(record) == [], name
        schema = kinds[name].json_schema()  # type: ignore[union-attr]
        assert agrees(record, schema, schema), name


# What our records have besides, or the package's do.
ONLY_THEIRS = {
    "executionReport": {"schedulerRevision", "invocationScheduler"},
    "disabledReport": {"schedulerRevision", "invocationScheduler"},
    "boundedReport": {"schedulerRevision", "invocationScheduler"},
    "queue": set(),
}
ONLY_OURS = {name: {"cancellation"} for name in ("executionReport", "disabledReport", "boundedReport")}


def test_records_of_ours_have_the_package_s_kinds_and_fields(records: dict[str, Any]) -> None:
    ours = own_records()
    kept = {kind.schema_id for kind in (*RECORDS, *STATE_RECORDS)}
    assert kept <= {record["schema"] for record in ours.values()}, "a kind of which we make none"
    for name, record in ours.items():
        kind = kind_of(record)
        assert kind is not None and kind is kind_of(records[name]), name
        assert document_errors(record) == [], name
        assert agrees(plain(record), kind.json_schema(), kind.json_schema()), name
        mine, theirs = set(record), set(records[name])
        assert mine - theirs == ONLY_OURS.get(name, set()), name
        assert theirs - mine == ONLY_THEIRS.get(name, set()), name


def test_the_package_takes_records_of_ours() -> None:
    """All that it has a use for: it runs our manifest, holds our plan, applies our decision, reads our reports and messages."""
    (answer,) = kit.call([("takes", plain(own_records()), SCHEDULER, BOUNDS)])
    assert answer == {
        "value": {
            "manifest": "succeeded",
            "plan": "prepared",
            "governor": "applied",
            "dutyReport": "observed",
            "duty": "observed",
            "hostReport": "verified",
            "worker": "completed",
            "executionReport": True,
            "disabledReport": True,
            "boundedReport": True,
        }
    }


def test_what_a_schema_refuses_of_a_record_is_refused() -> None:
    chance = random.Random(61)
    refusals = 0
    for name, record in own_records().items():
        kind = kind_of(record)
        assert kind is not None
        schema = kind.json_schema()
        for _ in range(12):
            mutated = mutate(record, chance)
            if not agrees(mutated, schema, schema):
                refusals += 1
                assert kind.errors(mutated), (name, mutated)
    assert refusals > 150


def test_every_required_field_of_a_record_is_missed(records: dict[str, Any]) -> None:
    for name, record in records.items():
        kind = kind_of(record)
        assert kind is not None
        for field in kind.json_schema()["required"]:
            lacking = {key: value for key, value in record.items() if key != field}
            assert any(text.startswith(field) for text in kind.errors(lacking)), (name, field)


def test_progress_without_a_total_is_null(records: dict[str, Any]) -> None:
    unknown = {**records["progress"], "totalItems": None}
    assert PROGRESS.errors(unknown) == ["progress must be null until totalItems is known"]
    assert PROGRESS.errors({**unknown, "progress": None, "percent": None}) == []


def test_duties_are_counted_and_failures_kept(records: dict[str, Any]) -> None:
    report = records["executionReport"]
    assert EXECUTION_REPORT.errors({**report, "submittedGpuDutyCount": report["submittedGpuDutyCount"] + 1}) == [
        "submittedGpuDutyCount must equal observedPrefixFenceCount + unfencedSubmittedGpuDutyCount"
    ]
    assert EXECUTION_REPORT.errors({**report, "status": "failed"}) == ["failed reports must include failure"]
    assert EXECUTION_REPORT.errors({**report, "retention": "last-10"}) == ["retention must be uncapped"]
    submitted = records["submissionReport"]
    wrong = {**submitted, "duties": [{**submitted["duties"][0], "status": "gone"}]}
    assert SUBMISSION_REPORT.errors(wrong)[0].startswith("duties[0].status must be one of in-flight")


def test_submitted_work_is_never_interruptible(records: dict[str, Any]) -> None:
    duty = records["duty"]
    claimed = {**duty, "submissionBoundary": {**duty["submissionBoundary"], "interruptible": True}}
    text = "submitted command duty is non-preemptible; split work before submission"
    assert DUTY_DESCRIPTOR.errors(claimed) == [f"submissionBoundary {text}"]
    (answer,) = kit.call([("createWebGpuCommandDutyDescriptor", claimed)])
    assert answer["thrown"] == text
    control = {**duty["chunkControl"], "current": 9}
    assert DUTY_DESCRIPTOR.errors({**duty, "chunkControl": control}) == ["chunkControl.current is outside caller-declared bounds"]
    (answer,) = kit.call([("createWebGpuCommandDutyDescriptor", {**duty, "chunkControl": control})])
    assert answer["thrown"] == "chunkControl.current is outside caller-declared bounds"


def test_ledgers_and_sessions_do_not_contradict_themselves(records: dict[str, Any]) -> None:
    assert RESIDENCY.errors({**records["residency"], "totalResidentDeclaredBytes": 7}) == [
        "totalResidentDeclaredBytes must equal the declared bytes of resident resources"
    ]
    session = {**records["session"], "status": "device-lost"}
    assert SESSION.errors(session) == ["device-lost sessions must include deviceLoss"]
    assert SESSION.errors({**session, "deviceLoss": {"reason": "unknown", "message": "", "atMs": 3}}) == []


def test_records_of_decisions_workers_and_failures_need_their_fields() -> None:
    decision = {
        "schema": GOVERNOR_DECISION.schema_id,
        "status": "adjusted",
        "action": "reduce-phase-chunk",
        "revision": 1,
        "previousScheduler": {},
        "effectiveScheduler": {},
    }
    assert GOVERNOR_DECISION.errors(decision) == []
    assert GOVERNOR_DECISION.errors({**decision, "action": "guess"}) == ["action has unsupported value"]
    result = {"schema": WORKER_RESULT.schema_id, "executionId": "e", "operationId": "o", "status": "completed"}
    assert WORKER_RESULT.errors(result) == []
    assert (
        OBSERVATION.errors({"schema": OBSERVATION.schema_id, "status": "failed"})[-1]
        == "failed observations must include failure"
    )
