"""Devices as everything above the runtime knows them: the protocol, and how one is opened. No backend is imported there."""

from __future__ import annotations

from pumice.backends.base import Device as Device
from pumice.backends.select import open_device as open_device
