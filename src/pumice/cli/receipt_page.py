"""The page of a receipt: one HTML file that says what ran, on what and from what, and what of it can be believed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pumice.cli.markup import Markup, element, page, style, table

if TYPE_CHECKING:
    from pumice.errors import PumiceError
    from pumice.receipts.envelope import Envelope

# Of a longer list or text the rest is only counted: the signed document has all of it.
_MOST_ROWS, _MOST_CHARACTERS = 200, 2000
_STAGE_COLOURS = 6


def receipt_page(envelope: Envelope, passed: Mapping[str, str], failed: tuple[str, PumiceError] | None) -> str:
    """The page of a valid receipt. `passed`: what `verify_receipt` found in each check; `failed`: the check that failed, and why.

    >>> from pumice.packs.keys import SigningKey
    >>> from pumice.receipts.envelope import read_envelope
    >>> from pumice.receipts.receipt import example_receipt
    >>> made = receipt_page(read_envelope(example_receipt().sign(SigningKey.generate())), {"form": "one line"}, None)
    >>> "on the host processor" in made, "<script" in made
    (True, False)
    """
    document = envelope.predicate
    section = document["pumice"]
    body = element(
        "main",
        _head(document, section, passed, failed),
        *_warnings(section, failed),
        _figures(document, section),
        _artifacts(document, section, "inputs", "What went in"),
        _artifacts(document, section, "outputs", "What came out"),
        _stages(document["timings"]),
        _card(
            "What was asked for",
            _facts(section["request"]),
            element("h3", "What else may change the numbers"),
            _facts(section["conditions"]),
        ),
        _model(document, section),
        _machine(document, section),
        _packs(section),
        _checks(envelope, section, passed, failed),
        _card(
            "The whole receipt", element("details", element("summary", "JSON, as it was signed"), element("pre", _json(document)))
        ),
    )
    title = f"{section['task']} · {document['model']['id']} · receipt"
    return page(title, body, style("style.css", "receipt.css"))


def _head(
    document: Mapping[str, Any], section: Mapping[str, Any], passed: Mapping[str, str], failed: tuple[str, PumiceError] | None
) -> Markup:
    from pumice.routes.evidence import classify_receipt

    found = classify_receipt(document)
    reasons = "; ".join(map(str, found["reasons"]))
    signer = passed.get("key", "an unknown key")
    states = [_badge("bad", "not verified") if failed else _badge("good", "signature right")]
    states.append(_badge("warn" if "nobody" in signer or "key" not in passed else "good", f"by {signer}"))
    return element(
        "header",
        element("h1", f"{section['task']} with {document['model']['id']}"),
        element("p", f"Receipt of a run, made {document.get('createdAt')} by Pumice {section['version']}."),
        element(
            "div",
            *states,
            _badge("good" if document["status"] == "real" else "warn", f"status: {document['status']}"),
            _badge("good" if found["authoritative"] else "warn", f"evidence: {found['classification']}"),
        ),
        *([element("p", _sentence(document.get("fallbackReason") or reasons))] if reasons else []),
    )


def _warnings(section: Mapping[str, Any], failed: tuple[str, PumiceError] | None) -> Iterable[Markup]:
    if failed is not None:
        check, error = failed
        yield _note(element("b", f"The check “{check}” failed: "), f"{error.message}. {error.hint}")
    if section["insecure"]:
        yield _note(element("b", "Insecure: "), "a pack ran that nobody vouched for.")
    if section["degraded"]:
        yield _note(
            element("b", f"Degraded ({len(section['degraded'])}): "), "kernels of packs failed, and others did their work."
        )


def _figures(document: Mapping[str, Any], section: Mapping[str, Any]) -> Markup:
    timings = document["timings"]
    shown = {
        "in all": f"{_number(timings['totalMs'])} ms",
        "timed by": timings["source"],
        "device": section["device"].get("name") or document["backend"]["adapterName"],
        "weights": document["model"]["dtype"],
        "packs": "none" if not section["packs"] else str(len(section["packs"])),
        "log": "in none" if section["log"] is None else f"line {section['log']['index'] + 1}",
    }
    figures = (element("div", element("b", _text(v)), element("span", k), class_="figure") for k, v in shown.items())
    return element("div", *figures, class_="figures")


def _artifacts(document: Mapping[str, Any], section: Mapping[str, Any], side: str, title: str) -> Markup:
    parts: list[Markup] = []
    for listed in document[side][:_MOST_ROWS]:
        entry = section["artifacts"][side][listed["role"]]
        salted = entry["hash"].startswith("salted")
        shape = f", shape {_text(listed['shape'])}" if "shape" in listed else ""
        about = {
            "what": f"{entry['mediaType']}, {_number(entry['bytes'])} bytes{shape}",
            "salted SHA-256" if salted else "SHA-256": element("code", listed["sha256"]),
        }
        if "status" in listed:
            about["status"] = _text(listed["status"])
        parts += [element("h3", _text(listed["role"])), _content(entry, salted), table(about.items())]
    return _card(title, *parts)


def _content(entry: Mapping[str, Any], salted: bool) -> Markup:
    if salted:
        return element("p", "Not in the receipt: the run was kept private. Who made it can open it: pumice receipt open.")
    if "content" not in entry:
        return element("p", "Not in the receipt, as it is large; its hash is.")
    if entry["encoding"] != "utf-8":
        return element("p", "In the receipt as base64; below is its hash.")
    return element("pre", entry["content"] or " ")


def _stages(timings: Mapping[str, Any]) -> Markup:
    stages = [s for s in timings.get("stages") or () if isinstance(s, Mapping)][:_MOST_ROWS]
    times = [max(float(s["ms"]), 0.0) if isinstance(s.get("ms"), (int, float)) else 0.0 for s in stages]
    total = sum(times) or 1.0
    rows = []
    for stage, ms in zip(stages, times):
        metadata = stage.get("metadata")
        more = _pairs(metadata) if isinstance(metadata, Mapping) else ""
        rows.append([_text(stage.get("name")), f"{_number(round(ms, 3))} ms", f"{ms / total:.0%}", more])
    start, bars = 0.0, []
    for i, ms in enumerate(times):
        width = ms / total * 1000
        bars.append(
            element("rect", class_=f"stage{i % _STAGE_COLOURS}", x=f"{start:.2f}", y="0", width=f"{width:.2f}", height="10")
        )
        start += width
    picture = element("svg", *bars, class_="stages", viewBox="0 0 1000 10", preserveAspectRatio="none", aria_hidden="true")
    profile = timings.get("profile")
    compared = profile.get("timestampQueryValidatedAgainstStaged") if isinstance(profile, Mapping) else None
    by = {
        "timestamp-query": "The GPU's own timestamps, which agree with the clock around each submit.",
        "queue-submit-wait": "The host's clock, from submit until the results were there; not the GPU's own.",
    }.get(str(timings["source"]), "")
    source = element(
        "p",
        "Timed by ",
        element("code", _text(timings["source"])),
        f". {by}" if by else ".",
        "" if compared is None else f" Timestamps compared with them: {'yes' if compared else 'no'}.",
    )
    return _card(
        "Where the time went", picture, element("div", table(rows, ("stage", "time", "share", "")), class_="wide"), source
    )


def _model(document: Mapping[str, Any], section: Mapping[str, Any]) -> Markup:
    model = section["model"]
    about = {k: v for k, v in model.items() if k not in ("files", "params")}
    files = [[f["name"], f"{_number(f['bytes'])}", element("code", f["sha256"])] for f in model.get("files", ())[:_MOST_ROWS]]
    plans = [[_text(p["name"]), element("code", p["digest"])] for p in section["plans"][:_MOST_ROWS]]
    parts = [_facts(about)]
    if files:
        parts += [element("h3", "Files"), element("div", table(files, ("file", "bytes", "SHA-256"), number=1), class_="wide")]
    if "params" in model:
        parts += [element("h3", "Parameters"), _facts(model["params"])]
    if plans:
        parts += [element("h3", "Plans that ran"), table(plans)]
    return _card("From what", *parts, element("h3", "Kernels"), _facts(document["kernel"]))


def _machine(document: Mapping[str, Any], section: Mapping[str, Any]) -> Markup:
    return _card(
        "On what",
        _facts(section["device"]),
        element("h3", "Software"),
        _facts(section["software"]),
        element("details", element("summary", "Capabilities that plans were made for"), _facts(section["caps"])),
        element("details", element("summary", "Backend, as routes describe it"), _facts(document["backend"])),
    )


def _packs(section: Mapping[str, Any]) -> Markup:
    parts = [_facts(pack) for pack in section["packs"][:_MOST_ROWS]] or [element("p", "No kernel of a pack ran.")]
    lost = [_facts(entry) for entry in section["degraded"][:_MOST_ROWS]]
    return _card("Packs", *parts, *([element("h3", "Degraded"), *lost] if lost else []))


def _checks(
    envelope: Envelope, section: Mapping[str, Any], passed: Mapping[str, str], failed: tuple[str, PumiceError] | None
) -> Markup:
    rows = [[check, found] for check, found in passed.items()]
    if failed is not None:
        rows.append([failed[0], element("b", f"FAILED: {failed[1].message}", class_="bad")])
    log = section["log"]
    place = {"place": "in no log: nothing shows that receipts before or after it were not taken away"}
    if log is not None:
        place = {"place": f"line {log['index'] + 1}", "line before it": element("code", log["previous"])}
    signed = {
        "signed by": element("code", envelope.key.text),
        "fingerprint": element("code", envelope.key.fingerprint),
        "SHA-256 of the file": element("code", envelope.digest),
    }
    return _card(
        "What of it can be believed",
        table([*signed.items()]),
        element("h3", "Checks when this page was made"),
        table(rows),
        element("h3", "Log"),
        table(place.items()),
        element("p", "This page is a view: only the signed file proves anything. Check it, and repeat the run, with:"),
        element("pre", "pumice receipt verify FILE --replay"),
    )


# -- pieces -----------------------------------------------------------------------------------------------------------------
def _card(title: str, *content: str) -> Markup:
    return element("section", element("h2", title), *content, class_="card")


def _note(*content: str) -> Markup:
    return element("section", *content, class_="card note")


def _badge(kind: str, text: str) -> Markup:
    return element("span", _text(text), class_=f"badge {kind}")


def _facts(values: Mapping[str, Any]) -> Markup:
    """Names and values of an object; None is left out."""
    rows = [[_text(name), _value(value)] for name, value in values.items() if value is not None]
    if not rows:
        return element("p", "Nothing.")
    rest = [["…", f"and {len(rows) - _MOST_ROWS} more"]] if len(rows) > _MOST_ROWS else []
    return table([*rows[:_MOST_ROWS], *rest])


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return _pairs(value) or "nothing"
    if isinstance(value, list):
        return _text(", ".join(_value(v) if not isinstance(v, list) else _json(v) for v in value[:_MOST_ROWS]) or "none")
    return _text(value)


def _pairs(values: Mapping[str, Any]) -> str:
    return _text(", ".join(f"{name} {_value(v)}" for name, v in list(values.items())[:_MOST_ROWS] if v is not None))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}… ({len(text)} characters)"


def _number(value: object) -> str:
    """A number with its thousands apart, so that it can be read."""
    return f"{value:,}" if isinstance(value, (int, float)) else str(value)


def _sentence(text: object) -> str:
    return f"{_text(text).rstrip('.')}."


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=1)
