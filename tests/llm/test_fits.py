"""What fits: the bytes per token are those of the states that an engine has."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pumice.cli.fits import fit
from pumice.core.caps import Caps
from pumice.llm.engine import Engine
from pumice.llm.fits import cache_bytes_per_token, fitting_tokens
from tiny_models import GOLDENS


def cache_rows(e: Engine) -> dict[str, int]:
    """Bytes of a token in each state of keys and values."""
    found = {}
    for name in e._store:
        entry = e._store[name]
        if entry.kind == "state" and name.rpartition(".")[2] in ("k", "v", "kv", "k_scale", "v_scale"):
            found[name] = math.prod(entry.type.shape[1:]) * entry.type.dtype.itemsize
    return found


@pytest.mark.parametrize("dtype", ["f32", "f16", "q8"])
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "lfm2"])
def test_bytes_per_token_are_those_of_the_engine(name: str, dtype: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, cache_dtype=dtype)
    assert sum(cache_rows(e).values()) == cache_bytes_per_token(e.cfg, dtype) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "phi3"])
def test_a_cache_that_fits_keeps_every_state_within_a_binding(name: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, "webgpu")
    largest = max(cache_rows(e).values())
    count = fitting_tokens(e.cfg, "f32", e.device.caps, 0, None)
    assert count is not None and count * largest <= e.device.caps.max_binding_bytes < (count + 1) * largest


def test_memory_and_weights_limit_what_fits() -> None:
    [found] = fit("tiny", GOLDENS / "llama", Caps.preset("host"), 1 << 20)
    left = (1 << 20) - found["weights_bytes"]
    assert found["model"] == "tiny" and found["weights_bytes"] > 0
    assert found["tokens"] == {dtype: left // size for dtype, size in found["bytes_per_token"].items()}
    [small] = fit("tiny", GOLDENS / "llama", Caps.preset("host"), 100)
    assert set(small["tokens"].values()) == {0}
    [gpu] = fit("tiny", GOLDENS / "llama", Caps.preset("browser-baseline"), None)
    assert gpu["tokens"]["f32"] < gpu["tokens"]["f16"] < gpu["tokens"]["q8"]
    assert fit("an encoder", GOLDENS / "bert", Caps.preset("host"), 1 << 20) == []
    assert fit("no model", GOLDENS / "texts.json", Caps.preset("host"), 1 << 20) == []
