"""What a config.json says about the tool that quantised its checkpoint; what is not read here is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumice.core.records import dataclass
from pumice.errors import FormatError, InputError

METHODS = ("gptq", "awq", "mlx", "fp8", "compressed-tensors", "modelopt", "mxfp4")
_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mixed-precision")


@dataclass(frozen=True, slots=True)
class Quantization:
    """What a config says about how its checkpoint is quantised; everything else shows in the shapes of the tensors.

    `shift` is added to zero points; `block` are the rows and columns of a scale of fp8; `groups` are MLX's group sizes of
    modules that differ from `group`.

    >>> Quantization.from_config({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}})
    Quantization(method='gptq', bits=4, group=0, shift=1, block=(128, 128), groups=())
    >>> Quantization.from_config({}) is None
    True
    """

    method: str
    bits: int = 4
    group: int = 0
    shift: int = 0
    block: tuple[int, int] = (128, 128)
    groups: tuple[tuple[str, int], ...] = ()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Quantization | None:
        """From the contents of a config.json; None if it says nothing, an error that names a method that is not known."""
        section = config.get("quantization_config")
        if section is None and (section := config.get("quantization")) is None:
            return None
        if not isinstance(section, Mapping):
            raise FormatError(f"config.json: the quantisation is no mapping but {type(section).__name__}")
        # MLX names no method, and writes the section under both names.
        method = section.get("quant_method", "mlx" if "group_size" in section and "bits" in section else None)
        if method == "gptq":
            # Newer tools write the name under both keys, or under the second only.
            form = section.get("checkpoint_format") or section.get("format") or "gptq"
            _require("gptq's checkpoint_format", form, "gptq", "gptq_v2")
            _require("gptq's rotation", section.get("rotation"), None)
            bits = _require("gptq's bits", section.get("bits"), 4, 8)
            return cls("gptq", bits=bits, shift=1 if form == "gptq" else 0)
        if method == "awq":
            for key in ("version", "format"):
                _require(f"awq's {key}", str(section.get(key) or "gemm").lower(), "gemm")
            return cls("awq", bits=_require("awq's bits", section.get("bits", 4), 4))
        if method == "mlx":
            _require("MLX's mode", section.get("mode", "affine"), "affine")
            nested = {k: v for k, v in section.items() if isinstance(v, Mapping)}
            groups = tuple((name, _whole(v.get("group_size", section["group_size"]))) for name, v in nested.items())
            return cls("mlx", group=_whole(section["group_size"]), groups=groups)
        if method == "fp8":
            block = section.get("weight_block_size") or (128, 128)
            if not isinstance(block, list | tuple) or len(block) != 2:
                raise FormatError(f"config.json: weight_block_size is {block!r:.60}, not two numbers")
            return cls("fp8", block=(_whole(block[0]), _whole(block[1])))
        if method == "compressed-tensors":
            _require("compressed-tensors' format", section.get("format"), *_FORMATS)
            _refuse_transforms(section)
            return cls("compressed-tensors")
        if method == "modelopt":
            _require("modelopt's quant_algo", section.get("quant_algo"), "NVFP4", "FP8")
            return cls("modelopt")
        if method == "mxfp4":
            return cls("mxfp4")
        raise InputError(
            f"config.json: weights quantised by {method!r:.60} are not supported",
            hint="supported: " + " ".join(METHODS) + ", and GGUF files",
            feature=method,
        )


def _require(what: str, value: Any, *allowed: Any) -> Any:
    if value not in allowed:
        known = " ".join(str(a) for a in allowed if a is not None)
        raise InputError(
            f"config.json: {what} = {value!r:.60} is not supported",
            hint=f"supported: {known}" if known else "take a checkpoint that was quantised without it",
            feature=what,
        )
    return value


def _refuse_transforms(section: Mapping[str, Any]) -> None:
    """Rotations of the activations and weights stored without their zeros, of which the tensors of a layer show nothing."""
    transform = section.get("transform_config")
    if isinstance(transform, Mapping) and transform.get("config_groups"):
        _require("compressed-tensors' transform_config", "rotated activations", None)
    sparsity = section.get("sparsity_config")
    if isinstance(sparsity, Mapping):
        _require("the format of compressed-tensors' sparsity_config", sparsity.get("format") or "dense", "dense")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise FormatError(f"config.json: a group size of {value!r:.60} in the quantisation")
    return value
