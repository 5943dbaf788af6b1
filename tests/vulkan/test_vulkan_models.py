"""Language models on Vulkan: the tokens are WebGPU's."""

from __future__ import annotations

import numpy as np
import pytest

import pumice as pm

from harness import device

pytestmark = [pytest.mark.gpu, pytest.mark.vulkan, pytest.mark.slow]


def test_greedy_tokens_of_smollm2_are_those_of_webgpu() -> None:
    answers = {}
    for target in ("vulkan", "webgpu"):
        with pm.load("smollm2", device=device(target)) as model:
            out = model.generate("What is the capital of France?", max_tokens=24, temperature=0)
            answers[target] = list(out.tokens), model.logits([1, 2, 3, 4])
    tokens, logits = answers["vulkan"]
    assert len(tokens) > 5 and tokens == answers["webgpu"][0]
    np.testing.assert_array_equal(logits, answers["webgpu"][1])
