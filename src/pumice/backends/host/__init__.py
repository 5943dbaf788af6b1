"""The host backend: plans on this machine's cores."""

from pumice.backends.host.device import HostDevice, HostSession

__all__ = ["HostDevice", "HostSession"]
