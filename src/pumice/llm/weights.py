"""The weights of a model in a store on a device, which all its engines share."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

import pumice as pm
from pumice.core.precisions import Precision
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
    """A causal model's architecture and weights, and the store that holds them; `name` is for errors.

    `precision` is that of all its matmuls with quantised weights.
    """

    def __init__(
        self,
        arch: CausalArchitecture,
        cfg: ModelArchConfig,
        params: LoadedParams,
        device: Device,
        *,
        adapter: Adapter | None = None,
        name: str = "",
        precision: Precision = "exact",
        packs: GivenPacks = None,
        largest_step: float | None = None,
    ) -> None:
        self.arch, self.cfg, self.precision = arch, cfg, precision
        self.name = name or f"the {cfg.model_type} model"
        self.adapted = adapter is not None
        self.params = params if adapter is None else attach(cfg, params, adapter)
        self.store = pm.Store(device, packs=packs, largest_step=largest_step)
        self.engines: weakref.WeakSet[Engine] = weakref.WeakSet()

    def upload(self, exe: Executable, progress: ProgressCallback | None) -> None:
        """Uploads all weights through an executable that uses them."""
        total, done, uploading = self.params.nbytes, 0, True

        def moved(nbytes: int) -> None:
            # Later the device may ask for the same pieces again, when it starts over.
            if progress is not None and uploading:
                progress(Progress(total, done + nbytes, "upload"))

        moved(0)
        group: dict[str, np.ndarray[Any, Any] | StreamedArray] = {}
        waiting, left = 0, len(self.params.arrays)
        for name in self.params.arrays:
            array = self.params.stored(name)
            if array.nbytes >= 2 * _UPLOAD_BYTES and not group and isinstance(array, np.ndarray) and array.flags.c_contiguous:
                array = _in_pieces(array, moved)
            group[name] = array
            waiting, left = waiting + array.nbytes, left - 1
            if waiting < _UPLOAD_BYTES and left:
                continue
            exe.set_params(group, partial=True)
            done, waiting, group = done + waiting, 0, {}
            moved(0)
        uploading = False


def _in_pieces(array: np.ndarray[Any, Any], moved: Callable[[int], None]) -> StreamedArray:
    """A large array to upload piece by piece; `moved` gets how many bytes are, so that the file's pages can go meanwhile."""
    flat = array.reshape(-1).view(np.uint8)

    def source(start: int, stop: int) -> Iterator[np.ndarray[Any, Any]]:
        for at in range(start, stop, _UPLOAD_BYTES):
            moved(at)
            yield flat[at : min(at + _UPLOAD_BYTES, stop)]

    return StreamedArray(array.dtype, array.shape, source)
