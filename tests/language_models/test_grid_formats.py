"""GGUF files whose matrices are in the formats with grids and ternary codes: the tokens of the same values in float32."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.core.dtypes import DType
from pumice.formats import TensorInfo, open_weights
from pumice.formats.gguf_metadata import Metadata
from pumice.formats.gguf_writer import GgufWriter, typed_pairs
from pumice.ir.ops.matmul import ALIKE
from pumice.llm.quantize import quantize_model
from tiny_models import llama

Array = np.ndarray[Any, Any]
FORMATS = tuple(map(dtypes.dtype, ["iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s", "tq2_0", "tq1_0"]))


def files(folder: Path, kinds: tuple[DType, ...]) -> tuple[Path, Path]:
    """A model whose matrices take turns in these formats, and one with the values that they then have, in float32."""
    plain, packed, twin = (folder / f"{name}.gguf" for name in ("plain", "packed", "twin"))
    quantize_model(llama(folder), to="f32", out=plain)
    turns = itertools.cycle(kinds)
    with open_weights(plain) as weights:
        assert isinstance(weights.metadata, Metadata)
        pairs, arrays = typed_pairs(weights.metadata), {name: np.array(weights.array(name)) for name in weights.tensors}
    formats = {name: next(turns) if a.ndim == 2 else dtypes.f32 for name, a in arrays.items()}
    stored = {name: quantize_rows(kind, arrays[name]) if kind.is_quant else arrays[name] for name, kind in formats.items()}
    values = {
        name: dequantize_rows(kind, stored[name], arrays[name].shape[-1]) if kind.is_quant else arrays[name]
        for name, kind in formats.items()
    }
    for path, chosen, contents in ((packed, formats, stored), (twin, dict.fromkeys(arrays, dtypes.f32), values)):
        with GgufWriter(path, pairs, [TensorInfo(name, chosen[name], a.shape) for name, a in arrays.items()]) as writer:
            for name, content in contents.items():
                writer.write(name, content)
    return packed, twin


def tokens(path: Path, device: str) -> list[int]:
    with pm.load(path, device=device) as model:
        return list(model.generate("12 or we", temperature=0, max_tokens=12).tokens)


def test_a_file_of_several_such_formats(tmp_path: Path) -> None:
    kinds = tuple(kind for kind in FORMATS if kind not in ALIKE)
    packed, twin = files(tmp_path, kinds)
    with open_weights(packed) as weights:
        assert {t.dtype for t in weights.tensors.values()} == {*kinds, dtypes.f32}
    found = tokens(packed, "host")
    assert found == tokens(twin, "host") and len(set(found)) > 1


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("kinds", [FORMATS, *((kind,) for kind in FORMATS)], ids=lambda k: "mixed" if len(k) > 1 else k[0].name)
def test_tokens_on_both_devices(tmp_path: Path, kinds: tuple[DType, ...]) -> None:
    """Of one format in all matrices, query, key and value are packed together; of several they are not."""
    packed, twin = files(tmp_path, kinds)
    want = tokens(twin, "host")
    assert tokens(packed, "host") == want
    assert tokens(packed, "webgpu") == want
