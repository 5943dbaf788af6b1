"""Parity: arrays of a run kept by stage, and compared with a reference in numbers that say where they differ and how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pumice.routes.documents import plain
from pumice.routes.errors import RouteError
from pumice.routes.rules import is_count, is_object, is_text

# NumPy's types by the names of the arrays that the package compares.
TYPED_ARRAYS = {
    "int8": "Int8Array",
    "uint8": "Uint8Array",
    "int16": "Int16Array",
    "uint16": "Uint16Array",
    "int32": "Int32Array",
    "uint32": "Uint32Array",
    "float32": "Float32Array",
}


class ParityError(RouteError):
    """Arrays that cannot be compared, or a capture that is not there."""

    code = "parity"
    advice = "compare float32 or integer arrays of one type and length, all of whose numbers are finite"


_require = ParityError.require


def compare_arrays(
    actual: np.ndarray[Any, Any],
    reference: np.ndarray[Any, Any],
    *,
    stage_id: str | None = None,
    sampling: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """How two arrays differ; `sampling` {"mode": "stride", "stride": n, "offset": k} looks at some elements only.

    >>> found = compare_arrays(np.float32([1, 2, 4]), np.float32([1, 2, 3]))
    >>> found["metrics"]["mismatchCount"], found["metrics"]["worstSourceIndex"], found["metrics"]["maxAbsoluteError"]
    (1, 2, 1.0)
    """
    kinds = [_typed(array, name) for array, name in ((actual, "actual"), (reference, "reference"))]
    _require(kinds[0] == kinds[1], "actual and reference must use the same typed array constructor")
    a, b = np.asarray(actual).reshape(-1), np.asarray(reference).reshape(-1)
    _require(a.size == b.size, "actual and reference must have the same length")
    _require(a.size > 0, "actual and reference must not be empty")
    mode, stride, offset = _sampled(sampling)
    chosen = slice(offset, None, stride)
    count = len(range(a.size)[chosen])
    _require(count > 0, "sampling selects no elements")
    x, y = a[chosen].astype(np.float64), b[chosen].astype(np.float64)
    odd = [_non_finite(values) for values in (x, y)]
    rule = f"comparison contains non-finite values: actual={odd[0]['count']}, reference={odd[1]['count']}"
    _require(not odd[0]["count"] and not odd[1]["count"], rule)
    _require(stage_id is None or is_text(stage_id), "stageId must be a non-empty string")
    return {
        "schema": "kaminos.webgpu-parity-comparison.v0",
        "stageId": stage_id,
        "comparisonDomain": {
            "mode": "float32-metrics" if kinds[0] == "Float32Array" else "integer-exact",
            "effectiveType": kinds[0],
            "normalization": "none",
        },
        "actualType": kinds[0],
        "referenceType": kinds[1],
        "sourceElementCount": int(a.size),
        "comparedElementCount": count,
        "sampling": {
            "mode": mode,
            "stride": stride,
            "offset": offset,
            "firstSourceIndex": offset,
            "lastSourceIndex": offset + (count - 1) * stride,
        },
        "nonFinite": {"actual": odd[0], "reference": odd[1]},
        "actual": _summary(x),
        "reference": _summary(y),
        "metrics": _metrics(x, y, stride, offset),
    }


def _typed(array: object, name: str) -> str:
    dtype = array.dtype.name if isinstance(array, np.ndarray) else ""
    wide = "Float64Array is unsupported; compare WebGPU floating tensors as Float32Array after FP16 decoding"
    _require(dtype != "float64", f"{name} {wide}")
    _require(dtype in TYPED_ARRAYS, f"{name} must be a supported WebGPU parity typed array")
    return TYPED_ARRAYS[dtype]


def _sampled(sampling: Any) -> tuple[str, int, int]:
    if sampling is None:
        return "all", 1, 0
    _require(is_object(sampling), "sampling must be an object")
    mode, stride, offset = sampling.get("mode"), sampling.get("stride"), sampling.get("offset", 0)
    if mode == "all":
        _require(sampling.get("stride", 1) == 1 and offset == 0, "sampling mode all requires stride 1 and offset 0")
        return "all", 1, 0
    _require(mode == "stride", "sampling must use mode all or stride")
    _require(is_count(stride), "sampling.stride must be a positive safe integer")
    below = is_count(offset, 0) and offset < stride
    _require(below, "sampling.offset must be a nonnegative safe integer below stride")
    return "stride", int(stride), int(offset)


def _non_finite(values: np.ndarray[Any, Any]) -> dict[str, int]:
    nan = int(np.isnan(values).sum())
    above, below = (int((values == side).sum()) for side in (math.inf, -math.inf))
    return {
        "count": nan + above + below,
        "nanCount": nan,
        "positiveInfinityCount": above,
        "negativeInfinityCount": below,
    }


def _summary(values: np.ndarray[Any, Any]) -> dict[str, float]:
    return {
        "min": float(values.min()),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "standardDeviation": float(values.std()),
    }


def _metrics(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any], stride: int, offset: int) -> dict[str, Any]:
    error = np.abs(x - y)
    worst = int(error.argmax())
    squares = float(np.dot(error, error))
    norms = [float(np.dot(values, values)) for values in (x, y)]
    zero = norms[1] == 0
    infinite = zero and squares > 0
    relative = None if infinite else 0.0 if zero else math.sqrt(squares / norms[1])
    cosine = None if 0 in norms else float(np.dot(x, y)) / (math.sqrt(norms[0]) * math.sqrt(norms[1]))
    return {
        "exactMatch": not error.any(),
        "mismatchCount": int(np.count_nonzero(error)),
        "maxAbsoluteError": float(error[worst]),
        "worstSourceIndex": offset + worst * stride,
        "worstActual": float(x[worst]),
        "worstReference": float(y[worst]),
        "meanAbsoluteError": float(error.mean()),
        "rootMeanSquareError": math.sqrt(squares / error.size),
        "l2Error": math.sqrt(squares),
        "relativeL2Error": relative,
        "relativeL2Status": "infinite-zero-reference-norm" if infinite else "defined",
        "cosineSimilarity": None if cosine is None else max(-1.0, min(1.0, cosine)),
    }


class CaptureRegistry:
    """Arrays of one run by stage: each is copied once, described without its numbers, and compared where it is.

    >>> captures = CaptureRegistry("run")
    >>> captures.capture("decode", np.float32([[1, 2]]), layout="NC")["byteLength"]
    8
    >>> captures.compare("decode", np.float32([[1, 2]]))["metrics"]["exactMatch"]
    True
    """

    def __init__(self, run_id: str) -> None:
        _require(is_text(run_id), "runId must be a non-empty string")
        self.run_id = run_id
        self._captures: dict[str, tuple[dict[str, Any], np.ndarray[Any, Any]]] = {}

    def capture(
        self, stage_id: str, values: np.ndarray[Any, Any], *, shape: Sequence[int] | None = None, layout: str | None = None
    ) -> dict[str, Any]:
        """Keeps a copy of an array under a stage's name; its description. The shape is the array's unless it is given."""
        _require(is_text(stage_id), "stageId must be a non-empty string")
        _require(stage_id not in self._captures, f"capture {stage_id} already exists for run {self.run_id}")
        kind = _typed(values, "values")
        _require(values.size > 0, "capture values must not be empty")
        sizes = list(values.shape if shape is None else shape)
        _require(bool(sizes), "shape must be a non-empty array when provided")
        for i, size in enumerate(sizes):
            _require(is_count(size, 0), f"shape[{i}] must be a nonnegative safe integer")
        total = math.prod(sizes)
        _require(total == values.size, f"shape describes {total} elements, expected {values.size}")
        _require(layout is None or is_text(layout), "layout must be a non-empty string")
        found = {
            "schema": "kaminos.webgpu-parity-capture.v0",
            "runId": self.run_id,
            "stageId": stage_id,
            "typedArrayConstructor": kind,
            "elementCount": int(values.size),
            "byteLength": int(values.nbytes),
            "shape": [int(size) for size in sizes],
            "layout": layout,
        }
        self._captures[stage_id] = (found, np.array(values, order="C").reshape(-1))
        return dict(found)

    @property
    def stages(self) -> list[str]:
        """The names of the stages that were captured."""
        return list(self._captures)

    def describe(self, stage_id: str) -> dict[str, Any] | None:
        """The description of a capture, or None."""
        found = self._captures.get(stage_id)
        return None if found is None else plain(found[0])

    def _values(self, stage_id: str) -> np.ndarray[Any, Any]:
        found = self._captures.get(stage_id)
        if found is None:
            raise ParityError(f"capture {stage_id} is missing from run {self.run_id}", hint="stages lists the captures")
        return found[1]

    def compare(
        self, stage_id: str, reference: np.ndarray[Any, Any], *, sampling: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The comparison of a capture with a reference, with the run's name."""
        found = compare_arrays(self._values(stage_id), reference, stage_id=stage_id, sampling=sampling)
        return {**found, "runId": self.run_id}

    def read_bytes(self, stage_id: str, offset: int = 0, length: int | None = None) -> bytes:
        """A range of the bytes of a capture."""
        data = self._values(stage_id).tobytes()
        size = len(data) - offset if length is None else length
        inside = is_count(offset, 0) and is_count(size, 0) and offset + size <= len(data)
        _require(inside, "byte range must be inside the captured tensor")
        return data[offset : offset + size]

    def release(self, stage_id: str) -> bool:
        """Drops a capture; False if there is none."""
        return self._captures.pop(stage_id, None) is not None

    def clear(self) -> None:
        """Drops all captures."""
        self._captures.clear()
