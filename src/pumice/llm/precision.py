"""Which precision a model runs in: the one asked for, where its weights and its device make a difference."""

from __future__ import annotations

import warnings

from pumice.core.precisions import MATRIX_ROUNDING, Precision, check_precision
from pumice.errors import PumiceWarning
from pumice.formats.bundle import BundleWeights
from pumice.formats.weights import WeightFile
from pumice.models.load import LoadedParams
from pumice.run.device import Device


def is_quantized(params: LoadedParams) -> bool:
    """Whether some weights are quantised: the precision is that of matmuls with such."""
    return any(spec.type.dtype.is_quant for spec in params.specs.values())


def useful_precision(asked: Precision, params: LoadedParams, name: str) -> Precision:
    """The precision asked for; a model without quantised weights is exact, which a warning says if it should be fast."""
    if asked != "fast" or is_quantized(params):
        return asked
    warnings.warn(
        f"the precision fast has no effect on {name}: none of its weights are quantised, and others are multiplied in f32",
        PumiceWarning,
        stacklevel=4,
    )
    return "exact"


def choose_precision(asked: Precision | None, weights: WeightFile, params: LoadedParams, device: Device, name: str) -> Precision:
    """The precision of a model: as asked, else as its bundle was exported, else exact; a warning says where fast is no gain."""
    chosen = useful_precision(asked if asked is not None else _exported(weights), params, name)
    if chosen == "fast" and not device.multiplies_bytes:
        warnings.warn(
            f"the precision fast brings no speed on {device.name}, whose kernels multiply floats: "
            "activations are rounded as asked, which costs accuracy for nothing",
            PumiceWarning,
            stacklevel=3,
        )
    if chosen in MATRIX_ROUNDING and not device.multiplies_matrices(chosen):
        warnings.warn(
            f"the precision {chosen} has no effect on {device.name}, which has no matrix units for it that can be used: "
            "matmuls are exact there; Vulkan reaches those of NVIDIA's GPUs (device='vulkan')",
            PumiceWarning,
            stacklevel=3,
        )
    return chosen


def _exported(weights: WeightFile) -> Precision:
    if not isinstance(weights, BundleWeights):
        return "exact"
    model = weights.metadata.get("model")
    return check_precision(model.get("precision", "exact")) if isinstance(model, dict) else "exact"
