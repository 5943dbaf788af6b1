"""Work that brings a GPU to its full clock, which falls within seconds of light load."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import numpy as np

import pumice as pm
from pumice.backends.base import Device

_SIZE, _LINKS = 2048, 16


class Load:
    """Call it before a measurement: it keeps the device busy for so many seconds. The host and its like are left alone."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __call__(self, seconds: float = 0.5) -> None:
        if self._device.caps.software or self._device.caps.target == "host":
            return
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._products.run()

    @cached_property
    def _products(self) -> pm.Executable:
        def chain(params: Any) -> Any:
            x = params["x"]
            for _ in range(_LINKS):
                x = x @ params["x"]
            return x[:1, :1]

        square = np.full((_SIZE, _SIZE), 1 / _SIZE, np.float32)
        return pm.compile(chain, params={"x": square}, device=self._device)

    def close(self) -> None:
        if "_products" in self.__dict__:
            self._products.close()
