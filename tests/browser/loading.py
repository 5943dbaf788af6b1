"""Bundles that are small and have many chunks, and tabs that load them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import BrowserContext, Page

import pumice as pm
from browser.bundle_server import BundleServer
from pumice.core.caps import Caps
from pumice.run.bundle_write import new_bundle, plan_variants

CHUNK, SHARD = 4096, 5 * 4096 + 1024
SHARDS = 4
BASELINE = Caps.preset("browser-baseline")


def write_bundle(
    folder: Path, *, changed: float = 0.0, targets: Sequence[Caps] = (BASELINE,), chunk_bytes: int = CHUNK
) -> dict[str, Any]:
    """Writes a function of some weights, in shards of five chunks and a bit, and gives its manifest.

    `changed` alters the last weight, so that only the last shard differs.
    """
    rng = np.random.default_rng(0)
    arrays = {f"w{i}": rng.standard_normal((33, 40 + i)).astype(np.float32) for i in range(SHARDS * SHARD // (33 * 43 * 4))}
    last = list(arrays)[-1]
    arrays[last] += np.float32(changed)

    def total(params: dict[str, pm.Tensor], x: pm.Tensor) -> pm.Tensor:
        found = x
        for w in params.values():
            found = found + w[0, 0]
        return found

    specs = {key: pm.spec(*array.shape) for key, array in arrays.items()}
    graph = pm.trace(total, params=specs, x=pm.spec("B"))
    with new_bundle(folder, chunk_bytes=chunk_bytes, shard_bytes=SHARD, overwrite=True) as files:
        planned = plan_variants({"total": graph}, targets, max={"B": 4})
        types = {key: spec.type for key, spec in specs.items()}
        sections = {
            "model": {"name": "small"},
            "variants": files.variants(planned),
            "weights": files.weights(arrays, types, set(types)),
        }
        return files.finish("function", sections)


def weight_hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of each weight, as Pumice's own reader has it."""
    from pumice.formats.bundle import BundleWeights

    weights = BundleWeights(folder)
    try:
        return {name: hashlib.sha256(weights.array(name).tobytes()).hexdigest() for name in weights.tensors}
    finally:
        weights.close()


class Tab:
    """A tab with the page that loads bundles."""

    def __init__(self, context: BrowserContext, server: BundleServer) -> None:
        self.page: Page = context.new_page()
        self.page.goto(server.url + "loading.html")
        self.page.wait_for_function("window.loading !== undefined")

    def call(self, function: str, *given: Any) -> Any:
        return self.page.evaluate("async ([name, given]) => await window.loading[name](...given)", [function, list(given)])

    def start(self, **options: Any) -> int:
        """Begin a load; `report` waits for its end."""
        return int(self.call("start", {"from": "./bundle/", **options}))

    def load(self, **options: Any) -> dict[str, Any]:
        """What became of a load."""
        found: dict[str, Any] = self.call("report", self.start(**options))
        return found

    def wait_for_stored(self, digest: str, nbytes: int) -> None:
        """Until this much of a part is stored."""
        deadline = time.monotonic() + 60
        while self.call("stored", digest) < nbytes:
            assert time.monotonic() < deadline, f"only {self.call('stored', digest)} bytes are stored"
            self.page.wait_for_timeout(20)

    def wait_for_waiter(self, digest: str) -> None:
        """Until a load waits for a part that another one downloads."""
        deadline = time.monotonic() + 60
        while not self.call("waiters", digest):
            assert time.monotonic() < deadline, "no load waits"
            self.page.wait_for_timeout(20)

    def close(self) -> None:
        self.page.close()
