"""What tests over hand-written plans share: a device with fixed capabilities, and a check that it holds no more than before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from gpu.plans import CAPS
from pumice.backends.webgpu.device import WebGpuDevice


@pytest.fixture(scope="module")
def device() -> WebGpuDevice:
    return WebGpuDevice(caps=CAPS)


@pytest.fixture
def nothing_leaks(device: WebGpuDevice) -> Iterator[None]:
    gc.collect()
    before = device.ledger()
    yield
    gc.collect()
    assert device.ledger() == before
