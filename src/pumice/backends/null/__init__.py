"""The null backend: a device without hardware that records calls, for tests of the layers above backends."""

from pumice.backends.null.device import NullDevice, NullSession

__all__ = ["NullDevice", "NullSession"]
