"""EncoderModel: what models of whole texts share: texts of like length in one batch, a row of numbers for each."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

import pumice as pm
from pumice.core.precisions import Precision
from pumice.errors import ClosedError, InputError, NotFinite
from pumice.llm.encoder_receipts import EncoderRun
from pumice.llm.model_files import ModelFiles
from pumice.llm.prepare import prepare_kernels, report_compilation
from pumice.models.load import LoadedParams
from pumice.passes.precision import with_precision
from pumice.plan.plan import Plan
from pumice.run.device import Device
from pumice.run.packs import GivenPacks, used_kernels
from pumice.sources import Progress, ProgressCallback
from pumice.tensor import Tensor
from pumice.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative

Array = np.ndarray[Any, Any]
# Batches that are queued on a GPU while it computes another, so that it need not wait for the host.
_AHEAD = 2


class EncoderModel:
    """An encoder on a device. A context manager; `close()` frees it.

    `function` is traced with the params, with each of `inputs`, i32 [B, T], and with length [B], and gives [B, width].
    `precision` is "exact", or "fast" where matmuls with quantised weights round their activations to 8 bits.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        params: LoadedParams,
        tokenizer: Tokenizer,
        device: Device,
        *,
        width: int,
        max_tokens: int,
        info: Mapping[str, Any],
        files: ModelFiles | None = None,
        inputs: Sequence[str] = ("tokens",),
        lower_case: bool = False,
        batch_size: int = 32,
        progress: ProgressCallback | None = None,
        packs: GivenPacks = None,
        largest_step: float | None = None,
        precision: Precision = "exact",
    ) -> None:
        if lower_case:
            tokenizer.lower_case()
        self.tokenizer, self.device, self.info = tokenizer, device, dict(info)
        self.precision = precision
        self.files = files  # for receipts
        self.max_tokens, self.batch_size, self._width = max_tokens, batch_size, width
        specs = {name: pm.spec("B", "T", dtype="i32") for name in inputs}
        graph = pm.trace(function, params=params.specs, **specs, length=pm.spec("B", dtype="i32"))
        self._lock, self._closed = threading.Lock(), False
        self._store = pm.Store(device, packs=packs, largest_step=largest_step)
        self._exe = pm.compile(with_precision(graph, precision), max={"B": batch_size, "T": max_tokens}, store=self._store)
        prepare_kernels(device, self._exe.plan, progress)
        self._exe.set_params(dict(params.arrays))

    def _require_open(self) -> None:
        if self._closed:
            raise ClosedError("the model is closed", hint="load it again")

    @property
    def name(self) -> str:
        """What it was loaded by."""
        return str(self.info.get("name", ""))

    def packs_used(self) -> list[dict[str, Any]]:
        """The kernels of packs that it runs."""
        return used_kernels([self.plan])

    @property
    def plan(self) -> Plan:
        """What it runs."""
        return self._exe.plan

    def _run(self, progress: ProgressCallback | None, phase: str, ran: EncoderRun, **inputs: Sequence[Sequence[int]]) -> Array:
        """One row for each text, float32 [n, width]; each input has the numbers of each text's tokens, `ran` how they ran."""
        self._require_open()
        ran.tokens = ids = inputs["tokens"]
        out = np.zeros((len(ids), self._width), np.float32)
        # Texts of similar length share a batch, so that little of it is padding.
        order = sorted(range(len(ids)), key=lambda k: -len(ids[k]))
        overlaps = self.device.caps.overlaps_host
        most = self.device.caps.embedding_tokens
        under_way: deque[tuple[list[int], Callable[[], Array]]] = deque()
        begun = done = 0
        while done < len(order):
            if begun < len(order) and len(under_way) <= _AHEAD * overlaps:
                widest = max(1, len(ids[order[begun]]))
                rows = order[begun : begun + max(1, min(self.batch_size, most // widest))]
                batch = {name: _padded([values[k] for k in rows], widest) for name, values in inputs.items()}
                batch["length"] = np.array([max(1, len(ids[k])) for k in rows], np.int32)
                exe, alone = self._exe, len(rows) == len(order)  # nothing to overlap with: waiting here is a little faster
                under_way.append((rows, exe.submit(batch).result if overlaps and not alone else partial(exe.run, batch)))
                begun += len(rows)
                ran.batches.append(len(rows))
                continue
            rows, result = under_way.popleft()
            with report_compilation(self.device, progress):
                out[rows] = result()
            done += len(rows)
            if progress is not None:
                progress(Progress(len(order), done, phase))
        ran.ended()
        if not np.isfinite(out).all():
            name, text = self.info.get("name", "the encoder"), int(np.flatnonzero(~np.isfinite(out).all(axis=1))[0])
            raise NotFinite(f"{name} computes NaN or infinite values for text {text}", hint=NotFinite.HINT, model=name, text=text)
        return out

    def describe_device(self) -> dict[str, Any]:
        """The device's name and kind."""
        return {"name": self.device.name, "target": self.device.caps.target, "software": self.device.caps.software}

    def cooperate(self, cooperative: Cooperative | None) -> None:
        """Let all its runs share the device as a `pm.Cooperative` says; None: no longer."""
        self._store.cooperate(cooperative)

    def reopen(self, device: str | Device | None = None) -> None:
        """Reopen on a new device after this one was lost; the weights are read again from their files."""
        with self._lock:
            self._require_open()
            self._store.reopen(device)
            self.device = self._store.device

    def close(self) -> None:
        """Free the device memory; a second call does nothing."""
        self._store.end_pauses()
        with self._lock:
            self._closed = True
            self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _padded(rows: Sequence[Sequence[int]], width: int) -> Array:
    out = np.zeros((len(rows), width), np.int32)
    for r, numbers in enumerate(rows):
        out[r, : len(numbers)] = numbers
    return out


def text_list(texts: str | Sequence[str]) -> list[str]:
    """The texts of a call, which may be a single one.

    >>> text_list("one"), text_list(("one", "two"))
    (['one'], ['one', 'two'])
    """
    if not isinstance(texts, Iterable):
        raise InputError(f"the texts are {type(texts).__name__}", hint="give a text, or several in a list")
    items = [texts] if isinstance(texts, str) else list(texts)
    for k, t in enumerate(items):
        if not isinstance(t, str):
            raise InputError(f"text {k} is no string but {type(t).__name__}", hint="give a text, or several in a list")
    return items
