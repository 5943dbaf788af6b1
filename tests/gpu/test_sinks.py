"""Attention with sinks in every variant that devices get."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pumice as pm

from harness import device, run_as

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("queries", "keys", "depth", "variant", "caps"),
    [
        (1, 300, 64, "groups", {"software": False}),
        (3, 40, 16, "groups", {"software": False}),
        (70, 70, 32, "blocks", {"software": False}),
        (1, 600, 36, "flash", {"software": False, "subgroups": False}),
        (40, 40, 20, "flash", {"software": False, "subgroups": False}),
        (20, 30, 16, "flash", {}),
    ],
)
def test_sinks_take_their_share(queries: int, keys: int, depth: int, variant: str, caps: dict[str, Any]) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (rng.standard_normal((2, h, s, depth)).astype(np.float32) for h, s in ((6, queries), (2, keys), (2, keys)))
    sinks = np.float32([-200.0, -1.0, 0.0, 3.0, 9.0, 300.0])
    lengths = np.int32([0, keys])

    def fn(q: Any, k: Any, v: Any, sinks: Any, lengths: Any) -> Any:
        return pm.attention(q, k, v, sinks=sinks, kv_len=lengths, causal=True, window=37)

    plan = run_as(device("webgpu").caps.with_(**caps), fn, {"q": q, "k": k, "v": v, "sinks": sinks, "lengths": lengths})
    assert any(s.variant.startswith(variant) for s in plan.steps), [s.variant for s in plan.steps]
