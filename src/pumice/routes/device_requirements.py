"""What routes need of one device, together: features by union, limits by the largest, alignments by the smallest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import field_of, is_count, is_object, is_text, shown

ALIGNMENTS = ("minUniformBufferOffsetAlignment", "minStorageBufferOffsetAlignment")


class RequirementError(RouteError):
    """A requirement that no device could be asked for."""

    code = "device-requirement"
    advice = "a requirement has requiredFeatures (names) and requiredLimits (max… by number, min…Alignment by power of two)"


_require = RequirementError.require


def compose_requirements(requirements: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One requirement that meets all of them.

    >>> compose_requirements([{"requiredLimits": {"maxBufferSize": 4, "minUniformBufferOffsetAlignment": 256}},
    ...                       {"requiredFeatures": ["shader-f16"], "requiredLimits": {"maxBufferSize": 8,
    ...                        "minUniformBufferOffsetAlignment": 64}}])
    {'requiredFeatures': ['shader-f16'], 'requiredLimits': {'maxBufferSize': 8, 'minUniformBufferOffsetAlignment': 64}}
    """
    given = plain(requirements)
    _require(isinstance(given, list), "device requirements must be an array of descriptors")
    features: set[str] = set()
    limits: dict[str, int] = {}
    for one in given:
        for rule in _errors(one):
            _require(False, rule)
        features |= set(one.get("requiredFeatures") or ())
        for name, value in (one.get("requiredLimits") or {}).items():
            choose = min if name in ALIGNMENTS else max
            limits[name] = choose(limits.get(name, value), value)
    return {"requiredFeatures": sorted(features), "requiredLimits": limits}


def _errors(given: Any) -> Iterator[str]:
    if not is_object(given):
        yield "each device requirement must be a descriptor"
    features, limits = given.get("requiredFeatures"), given.get("requiredLimits")
    if features is not None:
        if not isinstance(features, list):
            yield "requiredFeatures must be an iterable of feature names"
        if not all(map(is_text, features)):
            yield "requiredFeatures must contain non-empty feature names"
    if limits is not None:
        if not is_object(limits):
            yield "requiredLimits must be an object"
        for name, value in limits.items():
            if name not in ALIGNMENTS and not name.startswith("max"):
                yield f"unknown limit class: {name}"
            if not is_count(value, 0):
                yield f"{name} must be a non-negative safe integer"
            if name in ALIGNMENTS and not (0 < value < 2**32 and int(value) & (int(value) - 1) == 0):
                yield f"{name} must be a positive power of two below 2^32"


def unmet_requirements(device: Mapping[str, Any], requirement: Mapping[str, Any]) -> list[str]:
    """What a device with these `features` and `limits` lacks, in words.

    >>> unmet_requirements({"features": [], "limits": {"maxBufferSize": 4}},
    ...                    {"requiredFeatures": ["shader-f16"], "requiredLimits": {"maxBufferSize": 8}})
    ['required feature shader-f16 is unavailable', 'maxBufferSize: required 8, effective 4']
    """
    wanted = compose_requirements([requirement])
    features, limits = field_of(device, "features"), field_of(device, "limits")
    held = list(features) if isinstance(features, (list, tuple, set, frozenset)) else []
    missing = [f"required feature {name} is unavailable" for name in wanted["requiredFeatures"] if name not in held]
    for name, value in wanted["requiredLimits"].items():
        found: Any = field_of(limits, name)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            missing.append(f"required limit {name} is unavailable")
        elif found > value if name in ALIGNMENTS else found < value:
            missing.append(f"{name}: required {shown(value)}, effective {shown(found)}")
    return missing
