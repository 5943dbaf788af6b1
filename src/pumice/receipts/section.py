"""The rules of a receipt's `pumice` section, and the laws that join it with the rest of the receipt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pumice.receipts.artifacts import json_bytes
from pumice.routes.backend import WEBGPU_LOCAL
from pumice.routes.documents import DocumentKind, shared
from pumice.routes.receipts import RECEIPT
from pumice.routes.rules import (
    BOOLEAN,
    COUNT,
    OBJECT,
    TEXT,
    Field,
    Items,
    Law,
    Nested,
    Record,
    Rule,
    Schema,
    exactly,
    field_of,
    is_object,
    one_of,
)

RUN_SCHEMA = "pumice.run.v1"
SIDES = ("inputs", "outputs")
PLAIN_HASH, SALTED_HASH = "sha-256", "salted-sha-256"

_HEX = re.compile(r"[0-9a-f]{64}\Z")
HEX = Rule(
    "must be a SHA-256 in lower-case hex",
    lambda value: isinstance(value, str) and bool(_HEX.match(value)),
    {"type": "string", "pattern": "^[0-9a-f]{64}$"},
)
STRING = Rule("must be a string", lambda value: isinstance(value, str), {"type": "string"})
# What the first receipt of a log names as the one before it.
NO_LINE = "0" * 64


def _content(entry: Mapping[str, Any]) -> Iterator[str]:
    has = "content" in entry
    if has != ("encoding" in entry):
        yield "content and encoding must come together"
    if has and entry.get("hash") == SALTED_HASH:
        yield "content must be absent where the hash is salted"


def _position(log: Mapping[str, Any]) -> Iterator[str]:
    index, previous = field_of(log, "index"), field_of(log, "previous")
    if isinstance(index, int) and isinstance(previous, str) and (index == 0) != (previous == NO_LINE):
        yield "previous must be zeros for index 0, and for no other"


def _says_log(section: Mapping[str, Any]) -> Iterator[str]:
    if "log" not in section:
        yield "log must be null or an object"


def _weights(model: Mapping[str, Any]) -> Iterator[str]:
    if ("files" in model) == ("params" in model):
        yield " must have files or params, and not both"


ENTRY = Record(
    "artefact",
    (
        Field("mediaType", TEXT),
        Field("bytes", COUNT),
        Field("hash", exactly(PLAIN_HASH, SALTED_HASH)),
        Field("content", STRING, "absent"),
        Field("encoding", one_of("must be utf-8 or base64", ("utf-8", "base64")), "absent"),
        Law("content comes with its encoding, and never with a salted hash", _content),
    ),
)


@dataclass(frozen=True)
class ByRole:
    """A field that holds artefact entries by their role."""

    name: str

    def errors(self, owner: Mapping[str, Any], path: str) -> Sequence[str]:
        value = field_of(owner, self.name)
        if not is_object(value) or not value:
            return (f"{path}{self.name} must be a non-empty object",)
        listed = ((f"{path}{self.name}.{role}.", entry if is_object(entry) else {}) for role, entry in value.items())
        return [text for here, entry in listed for text in ENTRY.errors(entry, here)]

    def properties(self) -> Iterator[tuple[str, Schema, bool]]:
        yield self.name, {"type": "object", "minProperties": 1, "additionalProperties": ENTRY.schema()}, True


_FILE = Record("file", (Field("name", TEXT), Field("bytes", COUNT), Field("sha256", HEX)))
_PARAMS = Record("params", (Field("count", COUNT), Field("sha256", HEX)))
_FILES_RULE = Rule(
    "must be a list of files, each with name, bytes and sha256",
    lambda value: isinstance(value, list) and bool(value) and not any(e for file in value for e in _FILE.errors(file)),
    {"type": "array", "minItems": 1, "items": _FILE.schema()},
)
_MODEL = Record(
    "model",
    (
        Field("name", TEXT),
        Field("dtype", TEXT),
        Field("files", _FILES_RULE, "absent"),
        Nested("params", _PARAMS, "absent"),
        Law("weights are files or params", _weights),
    ),
)
_PLAN = Record("plan", (Field("name", TEXT), Field("digest", HEX)))
_LOG = Record(
    "log",
    (
        Field("index", COUNT),
        Field("previous", HEX),
        Law("the first receipt of a log has none before it", _position),
    ),
)
RUN = DocumentKind(
    "pumice run",
    RUN_SCHEMA,
    Record(
        "pumice",
        (
            Field("schema", exactly(RUN_SCHEMA)),
            Field("version", TEXT),
            Field("task", TEXT),
            Field("request", OBJECT),
            Nested("model", _MODEL),
            Items("plans", _PLAN, "must be an array", least=0),
            Items("packs", OBJECT, "must be an array", least=0),
            Items("degraded", OBJECT, "must be an array", least=0),
            Field("insecure", BOOLEAN),
            Field("device", OBJECT),
            Field("caps", OBJECT),
            Field("software", OBJECT),
            Field("conditions", OBJECT),
            Nested("artifacts", Record("artifacts", (ByRole("inputs"), ByRole("outputs")))),
            Nested("log", _LOG, "null"),
            Law("a receipt says that it is in no log by null", _says_log),
        ),
    ),
)


def receipt_errors(document: object) -> list[str]:
    """Everything that is wrong with a receipt of Pumice: the route receipt's rules, the section's, and what joins them.

    >>> receipt_errors({})[0], receipt_errors({})[-1]
    ('schema must be kaminos.webgpu-route-receipt.v0', 'pumice must be an object')
    """
    value = shared(document)
    errors = list(RECEIPT.record.errors(value))
    section = field_of(value, "pumice")
    if not is_object(section):
        return [*errors, "pumice must be an object"]
    # The laws that join both take the form for granted.
    return [*errors, *RUN.record.errors(section, "pumice.")] if errors else section_errors(value)


def section_errors(receipt: Mapping[str, Any], model: Mapping[str, Any] | None = None) -> list[str]:
    """What is wrong with the section of a receipt, as JSON, that is right otherwise; `model`: `model_entry` of it, if known."""
    section = receipt["pumice"]
    return list(RUN.record.errors(section, "pumice.")) or list(_joined(receipt, section, model))


def _joined(receipt: Mapping[str, Any], section: Mapping[str, Any], model: Mapping[str, Any] | None) -> Iterator[str]:
    roles: list[str] = []
    for side in SIDES:
        listed, described = [entry["role"] for entry in receipt[side]], section["artifacts"][side]
        roles += listed
        if sorted(listed) != sorted(described):
            yield f"pumice.artifacts.{side} must have the roles of {side}"
        for entry in receipt[side]:
            if not HEX.holds(entry["sha256"]):
                yield f"{side} {entry['role']} sha256 {HEX.text}"
    if len(set(roles)) < len(roles):
        yield "a role must occur once among inputs and outputs"
    hashes = {entry["hash"] for side in SIDES for entry in section["artifacts"][side].values()}
    if len(hashes) > 1:
        yield "pumice.artifacts must all be hashed in the same way"
    for name, role in referred(section["request"]).items():
        if role not in section["artifacts"]["inputs"]:
            yield f"pumice.request.{name} names an artefact that is not there"
    made = model_entry(section["model"]) if model is None else model
    if any(receipt["model"][name] != made[name] for name in ("id", "weightsHash")):
        yield "model must have the name and the weights of pumice.model"
    if receipt["status"] == "real" and section["device"].get("backend") != "webgpu":
        yield f"status must not be real where the device is not WebGPU: {WEBGPU_LOCAL} would be claimed of it"


def referred(request: Mapping[str, Any]) -> dict[str, str]:
    """The roles of artefacts that stand for values of a private receipt's request, by the values' names.

    >>> referred({"seed": 1, "stop": {"artifact": "request.stop"}})
    {'stop': 'request.stop'}
    """
    return {name: str(v["artifact"]) for name, v in request.items() if is_object(v) and v.keys() == {"artifact"}}


def model_entry(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model as route receipts have it: one hash for all weights, of one file its own.

    >>> model_entry({"name": "tiny", "dtype": "f32", "params": {"count": 1, "sha256": "ab" * 32}})["revision"]
    'unversioned'
    """
    files = model.get("files") or []
    if len(files) == 1:
        weights = files[0]["sha256"]
    else:
        weights = hashlib.sha256(json_bytes(files)).hexdigest() if files else model["params"]["sha256"]
    return {
        "id": model["name"],
        "revision": model.get("revision") or "unversioned",
        "weightsHash": f"sha256:{weights}",
        "dtype": model["dtype"],
    }
