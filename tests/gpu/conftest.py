"""What tests over hand-written plans share: a device with fixed capabilities, and a check that it holds no more than before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from gpu.plans import CAPS
from pumice.backends.gpu.device import GpuDevice
from pumice.backends.vulkan.device import VulkanDevice
from pumice.backends.webgpu.device import WebGpuDevice


@pytest.fixture(
    scope="module",
    params=["webgpu", pytest.param("vulkan", marks=[pytest.mark.vulkan, pytest.mark.slow])],
)
def device(request: pytest.FixtureRequest) -> GpuDevice:
    """Both GPU APIs behave the same way; that Vulkan does is a matter of slow tests."""
    return WebGpuDevice(caps=CAPS) if request.param == "webgpu" else VulkanDevice(caps=CAPS)


@pytest.fixture
def nothing_leaks(device: GpuDevice) -> Iterator[None]:
    gc.collect()
    before = device.ledger()
    yield
    gc.collect()
    assert device.ledger() == before
