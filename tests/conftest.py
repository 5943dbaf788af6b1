"""What all tests share: the markers, and property tests that do not time out on a busy machine."""

from __future__ import annotations

import functools
import signal

import pytest
from hypothesis import HealthCheck, settings

from pumice.errors import PumiceError

settings.register_profile("pumice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pumice")


def pytest_configure(config: pytest.Config) -> None:
    # Shells start what runs in the background with Ctrl-C ignored, which tests of interrupts would see.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "slow: takes minutes; left out of `make test`")
    config.addinivalue_line("markers", "vulkan: opens a Vulkan device, hardware or software, and translates kernels with naga")
    config.addinivalue_line("markers", "gpu: opens a WebGPU device, hardware or software")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--graphs", type=int, default=200, help="how many random graphs the fuzzer makes")
    parser.addoption("--graph-seed", type=int, default=0, help="the seed of the first random graph")
    parser.addoption("--fuzz-cases", type=int, default=None, help="how many cases each fuzzer of hostile input makes")
    parser.addoption("--fuzz-seed", type=int, default=0, help="the seed of the first of them")
    parser.addoption("--update-golden", action="store_true", help="accept the kernels that are emitted now")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Chromium on busy cores now and then loses a navigation or an event. Such a test gets one more try; the summary names it.
    for item in items:
        if "browser_session" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=1))


@functools.cache
def _missing() -> str:
    """Why tests of Vulkan cannot run here, and what to do; or nothing."""
    from pumice.backends.vulkan import naga
    from pumice.backends.vulkan.adapters import pick_adapter

    try:
        pick_adapter()
        naga.import_wasmtime()
        naga.cached_file()
    except PumiceError as e:
        return f"{e.message}; {e.hint}"
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("vulkan") and _missing():
        pytest.skip(_missing())
