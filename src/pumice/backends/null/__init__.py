"""The null backend: a device without hardware that records calls, for tests of what stands above a backend."""

from pumice.backends.null.device import NullDevice, NullSession

__all__ = ["NullDevice", "NullSession"]
