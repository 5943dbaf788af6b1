"""What a receipt says, as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pumice.receipts.envelope import Envelope

_SHOWN = 100


def receipt_lines(envelope: Envelope) -> Iterator[str]:
    """The lines of `pumice receipt show`; values are the signer's, so that nothing in them reaches the terminal unescaped."""
    from pumice.receipts.errors import InvalidReceipt
    from pumice.receipts.section import receipt_errors

    document = envelope.predicate
    if errors := receipt_errors(document):
        raise InvalidReceipt(f"the receipt breaks {len(errors)} rules: {'; '.join(errors[:5])}", errors=errors)
    section = document["pumice"]
    yield f"receipt   {envelope.digest}"
    yield f"signed    by {envelope.key.text} ({envelope.key.fingerprint})"
    yield f"made      {shown(document.get('createdAt'))} by Pumice {shown(section['version'])}"
    yield f"task      {shown(section['task'])}, route {shown(document['effectiveRouteId'])}"
    why = f": {shown(document['fallbackReason'])}" if document.get("fallbackReason") else ""
    yield f"status    {shown(document['status'])}{why}"
    yield f"model     {', '.join(shown(document['model'][name]) for name in ('id', 'dtype', 'weightsHash'))}"
    for file in section["model"].get("files", ()):
        yield f"          {shown(file['name'])}, {file['bytes']} bytes, sha256 {file['sha256']}"
    device = section["device"]
    yield f"device    {shown(device.get('name'))} ({shown(device.get('backend'))})"
    yield f"request   {_pairs(section['request'])}"
    for plan in section["plans"]:
        yield f"plan      {shown(plan['name'])} {plan['digest']}"
    for pack in section["packs"]:
        yield f"pack      {_pairs(pack)}"
    for lost in section["degraded"]:
        yield f"degraded  {_pairs(lost)}"
    if section["insecure"]:
        yield "insecure  a pack ran that nobody vouched for"
    for side in ("inputs", "outputs"):
        for listed in document[side]:
            yield from _artifact(side[:-1], listed, section["artifacts"][side][listed["role"]])
    timings = document["timings"]
    for stage in timings.get("stages") or ():
        yield f"stage     {_pairs(stage) if isinstance(stage, Mapping) else shown(stage)}"
    yield f"timed     by {shown(timings['source'])}, {timings['totalMs']} ms in all"
    yield f"besides   {_pairs(section['conditions']) or 'nothing else ran'}"
    log = section["log"]
    yield "log       in none" if log is None else f"log       line {log['index'] + 1}, after {log['previous']}"


def _artifact(side: str, listed: Mapping[str, Any], entry: Mapping[str, Any]) -> Iterator[str]:
    shape = f", shape {shown(listed['shape'])}" if "shape" in listed else ""
    yield f"{side:<9} {shown(listed['role'])}: {shown(entry['mediaType'])}, {entry['bytes']} bytes{shape}"
    yield f"          {entry['hash']} {listed['sha256']}"
    if entry.get("encoding") == "utf-8":
        yield f"          {shown(entry['content'])}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{shown(name)} {shown(value)}" for name, value in values.items() if value is not None)


def shown(value: object) -> str:
    """One short line without control characters.

    >>> shown("a\\x1b[2Jb"), len(shown("x" * 1000))
    ("'a\\\\x1b[2Jb'", 101)
    """
    text = str(value)
    text = text if text.isprintable() else repr(text)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
