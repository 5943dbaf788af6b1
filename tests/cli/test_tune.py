"""`pumice bench --tune`: what it measures, and that products then go by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from pumice import config
from pumice.backends.null.device import NullDevice
from pumice.backends.tuning import save_user_entry, tuning_for
from pumice.backends.webgpu.device import WebGpuDevice
from pumice.cli import tune as command
from pumice.core.caps import Caps
from pumice.errors import InputError
from pumice.kernels.routines.matmul import MEASURED_TILES
from pumice.plan.build import build_plan


@pytest.mark.parametrize("cores", [1, 2, 3, 20, 128, 132])
def test_cores_are_counted(cores: int) -> None:
    # Two workgroups on one core take a third longer than one does, as they hide each other's waits.
    assert command.count_cores(lambda groups: (1 + (-(-groups // cores) - 1) / 3) * 1e-4) == cores


@pytest.mark.parametrize("device", [NullDevice(Caps.preset("host")), NullDevice(Caps.preset("lavapipe"))])
def test_only_gpus_are_tuned(device: Any) -> None:
    with pytest.raises(InputError, match="is no GPU"):
        command.tune(device, lambda line: None)


@pytest.mark.gpu
def test_measured_tiles_are_the_ones_that_products_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = WebGpuDevice()
    monkeypatch.setattr(device, "caps", device.caps.with_(software=False), raising=True)
    few = sorted(MEASURED_TILES, key=lambda tile: tile.bm * tile.bn)[:2]
    for name, value in (("fitting", lambda caps, tiles: few), ("count_cores", lambda seconds: 2), ("K", 64), ("REPEATS", 2)):
        monkeypatch.setattr(command, name, value)
    said: list[str] = []
    name, entry = command.tune(device, said.append)
    assert entry["cores"] == 2 and list(entry["tiles"]) == [t.key for t in few]
    assert all(len(rates) == len(command.GROUPS) and min(rates) > 0 for rates in entry["tiles"].values())
    assert len(said) == 3
    best = {few[0].key: [1.0, 1.0, 1.0], few[1].key: [9.0, 9.0, 9.0]}
    with config.override(home=tmp_path):
        save_user_entry(name, {**entry, "tiles": best})
        found = tuning_for(device.caps.name)
        assert found is not None and found.name == name
        graph = pm.trace(lambda a, b: a @ b, a=pm.spec(128, 64), b=pm.spec(64, 128))
        assert [s.variant for s in build_plan(graph, device.caps.with_(tuning=found)).steps] == [few[1].name]
