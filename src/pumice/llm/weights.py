"""The weights of a model in a store on a device, which all its engines share."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

import pumice as pm
from pumice.core.streamed import StreamedArray
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams
from pumice.models.lora import Adapter, attach
from pumice.models.registry import CausalArchitecture
from pumice.run.device import Device
from pumice.run.executable import Executable
from pumice.run.packs import GivenPacks
from pumice.sources import Progress, ProgressCallback

if TYPE_CHECKING:
    from pumice.llm.engine import Engine

# Weights that are uploaded together.
_UPLOAD_BYTES = 1 << 23


class ModelWeights:
    """A causal model's architecture and weights, and the store that holds them; `name` is for errors."""

    def __init__(
        self,
        arch: CausalArchitecture,
        cfg: ModelArchConfig,
        params: LoadedParams,
        device: Device,
        *,
        adapter: Adapter | None = None,
        name: str = "",
        packs: GivenPacks = None,
        largest_step: float | None = None,
    ) -> None:
        self.arch, self.cfg = arch, cfg
        self.name = name or f"the {cfg.model_type} model"
        self.adapted = adapter is not None
        self.params = params if adapter is None else attach(cfg, params, adapter)
        self.store = pm.Store(device, packs=packs, largest_step=largest_step)
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def upload(self, exe: Executable, progress: ProgressCallback | None) -> None:
        """Uploads all weights through an executable that uses them."""
        total, done = self.params.nbytes, 0
        if progress is not None:
            progress(Progress(total, 0, "upload"))
        group: dict[str, np.ndarray[Any, Any] | StreamedArray] = {}
        waiting, left = 0, len(self.params.arrays)
        for name in self.params.arrays:
            group[name] = array = self.params.stored(name)
            waiting, left = waiting + array.nbytes, left - 1
            if waiting < _UPLOAD_BYTES and left:
                continue
            exe.set_params(group, partial=True)
            done, waiting, group = done + waiting, 0, {}
            if progress is not None:
                progress(Progress(total, done, "upload"))
