"""Several LoRA adapters at once: their matrices in stacks on the device, of which each row of a batch uses its own."""

from __future__ import annotations

import difflib
import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

import pumice as pm
from pumice.core.records import dataclass
from pumice.errors import InputError, UnknownName
from pumice.llm.model_files import LoadedAdapter
from pumice.llm.requests import number
from pumice.models.config import ModelArchConfig
from pumice.models.lora import EMBED, HEAD, Adapter, LowRank, check_adapter, linear_layers, table_of
from pumice.models.peft import read_adapter
from pumice.nn.layers import LORA_UPDATE
from pumice.run.executable import Executable
from pumice.run.store import Store
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]

# Adapters that a stack first has room for; it doubles when it is full.
_FIRST_PLACES = 4
# Ranks are rounded up to a multiple of this, so that most adapters of a model fit the stack of the first one.
_RANKS = 16


@dataclass(frozen=True)
class AdapterLayout:
    """Stacks of `places` adapters with ranks up to `rank`: `layers` are the paths, inputs and outputs of the layers changed.

    Every layout has states of its own, numbered by `generation`.
    """

    generation: int
    places: int
    rank: int
    layers: tuple[tuple[str, int, int], ...]

    def stack(self, path: str, part: str) -> Tensor:
        """The matrices a or b of all adapters for a layer, as a traced state: [places, in, rank] or [places, rank, out]."""
        _, inputs, outputs = next(layer for layer in self.layers if layer[0] == path)
        shape = (self.places, inputs, self.rank) if part == "a" else (self.places, self.rank, outputs)
        return pm.state(self.name(path, part), shape)

    def name(self, path: str, part: str) -> str:
        """The name of a state."""
        return f"adapters{self.generation}.{path}.{part}"

    @property
    def names(self) -> list[str]:
        return [self.name(path, part) for path, _, _ in self.layers for part in "ab"]

    def updates(self, cfg: ModelArchConfig, rows: Tensor, *, one_end: bool) -> dict[str, Callable[[Tensor], Tensor]]:
        """What each layer adds to its result, as params beside those of the model.

        `rows` i32 [places] says how many tokens of the batch use each adapter: those of the first come first, and so on, then
        those without one. `one_end`: the head gets only one token, the last, as it does after a prefill chunk.
        """
        found: dict[str, Callable[[Tensor], Tensor]] = {}
        for path, _, _ in self.layers:
            own = pm.minimum(rows, 1) if one_end and path == HEAD else rows
            found[f"{table_of(cfg, path)}.{LORA_UPDATE}"] = partial(self._update, path, own)
        return found

    def _update(self, path: str, rows: Tensor, x: Tensor) -> Tensor:
        *lead, inputs = x.shape
        tokens = pm.reshape(x, (-1, inputs))
        low = pm.grouped_matmul(tokens, self.stack(path, "a"), rows)
        high = pm.grouped_matmul(low, self.stack(path, "b"), rows)
        return pm.reshape(high, (*lead, high.shape[-1]))


@dataclass(eq=False)  # one that was dropped is found among others by what it is: arrays do not compare
class HeldAdapter:
    """An adapter that is loaded: its place in the stacks, and how many requests use it; `serial` is never used again.

    `loaded` says from which files it is, if it is from any.
    """

    adapter: Adapter
    place: int
    serial: int
    loaded: LoadedAdapter | None = None
    users: int = 0
    dropped: bool = False

    @cached_property
    def sha256(self) -> str:
        """A digest of its matrices and scales, by layer."""
        digest = hashlib.sha256()
        for path, low in sorted(self.adapter.items()):
            digest.update(f"{path} {low.a.shape} {low.b.shape} {low.scale!r}\n".encode())
            digest.update(low.a.tobytes())
            digest.update(low.b.tobytes())
        return digest.hexdigest()


class Adapters:
    """The adapters of an engine, by name. They come and go while it runs; what a request uses stays until it has ended.

    Adding one that the stacks have no room for (too many, other layers, a larger rank) makes a new layout: token steps with
    adapters are planned again then, and `on_new_layout` is called before the old stacks go. `lock` keeps batches from starting
    meanwhile. Thread-safe.
    """

    def __init__(self, store: Store, cfg: ModelArchConfig, lock: threading.RLock | None = None) -> None:
        self._store, self._cfg, self._lock = store, cfg, lock or threading.RLock()
        self.on_new_layout: Callable[[], None] = lambda: None
        self._held: dict[str, HeldAdapter] = {}
        self._leaving: list[HeldAdapter] = []
        self._serials, self._generations = count(1), count()
        self.layout: AdapterLayout | None = None
        self._writer: Executable | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._held))

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __len__(self) -> int:
        return len(self._held)

    def load(self, name: str, folder: str | Path, *, scale: float = 1.0) -> None:
        """Load the adapter in a folder under a name, which requests choose it by; its update is multiplied by `scale`."""
        if not math.isfinite(number("scale", scale, whole=False)):
            raise InputError(f"scale is {scale}", hint="1 is as strong as in training, 0 switches the adapter off")
        found = read_adapter(self._cfg, Path(folder))
        scaled = {path: replace(low, scale=low.scale * scale) for path, low in found.items()}
        self.add(name, scaled, LoadedAdapter.of(folder, scale))

    def add(self, name: str, adapter: Adapter, loaded: LoadedAdapter | None = None) -> None:
        """The same for an adapter that is in memory; `loaded` names its files."""
        if not isinstance(name, str) or not name:
            raise InputError(f"the adapter's name is {name!r}", hint="give it a text")
        if EMBED in adapter:
            raise InputError(
                f"the adapter {name!r} changes the token table",
                hint="load the model with lora= instead: only adapters of linear layers can be chosen per request",
                name=name,
            )
        check_adapter(self._cfg, adapter)
        with self._lock:
            if name in self._held:
                raise InputError(f"there is an adapter {name!r} already", hint="drop it first, or choose another name", name=name)
            if self._fits(adapter):
                held = HeldAdapter(adapter, self._free_place(), next(self._serials), loaded)
                self._write(held)
            else:
                held = HeldAdapter(adapter, -1, next(self._serials), loaded)
                self._grow([*self._all(), held])
            self._held[name] = held

    def drop(self, name: str) -> None:
        """Forget an adapter; requests that use it go on with it."""
        with self._lock:
            held = self._find(name)
            del self._held[name]
            held.dropped = True
            if held.users:
                self._leaving.append(held)

    def digest(self, name: str) -> str:
        """What tells the adapter that has this name now from others."""
        with self._lock:
            return self._find(name).sha256

    def acquire(self, name: str) -> HeldAdapter:
        """The adapter for a request, which must `release` it."""
        with self._lock:
            held = self._find(name)
            held.users += 1
            return held

    def release(self, held: HeldAdapter) -> None:
        """A request has ended."""
        with self._lock:
            held.users -= 1
            if held.dropped and not held.users:
                self._leaving.remove(held)

    def rows(self, tokens: Iterable[tuple[HeldAdapter | None, int]]) -> Array:
        """How many tokens of a batch use each place, given the adapter and the number of tokens of each sequence."""
        assert self.layout is not None
        found = np.zeros(self.layout.places, np.int32)
        for held, n in tokens:
            if held is not None:
                found[held.place] += n
        return found

    def restore(self) -> None:
        """Writes all adapters again, after the device was lost."""
        with self._lock:
            for held in self._all():
                self._write(held)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # -- places -----------------------------------------------------------------------------------------------------
    def _all(self) -> list[HeldAdapter]:
        return [*self._held.values(), *self._leaving]

    def _find(self, name: str) -> HeldAdapter:
        if not isinstance(name, str):
            raise InputError(f"adapter is {name!r:.60}", hint="give the name of one that is loaded", name="adapter")
        if name not in self._held:
            near = difflib.get_close_matches(str(name), self._held, 1)
            known = " ".join(self._held) or "none: load one with model.adapters.load(name, folder)"
            hint = (f"the nearest is {near[0]!r}; " if near else "") + f"loaded: {known}"
            raise UnknownName(f"there is no adapter {name!r}", hint=hint, name=name)
        return self._held[name]

    def _free_place(self) -> int:
        taken = {held.place for held in self._all()}
        return next(i for i in count() if i not in taken)

    def _fits(self, adapter: Adapter) -> bool:
        layout = self.layout
        if layout is None or len(self._all()) >= layout.places:
            return False
        known = {path for path, _, _ in layout.layers}
        return all(path in known and low.rank <= layout.rank for path, low in adapter.items())

    def _grow(self, all_held: list[HeldAdapter]) -> None:
        """A new layout with room for all of these, and all of them in it."""
        sizes = linear_layers(self._cfg)
        paths = dict.fromkeys(path for held in all_held for path in held.adapter)
        layers = tuple((path, sizes[path].inputs, sizes[path].outputs) for path in sizes if path in paths)
        rank = max(low.rank for held in all_held for low in held.adapter.values())
        places = _FIRST_PLACES
        while places < len(all_held):
            places *= 2
        old = self.layout
        self.on_new_layout()
        self.layout = AdapterLayout(next(self._generations), places, -(-rank // _RANKS) * _RANKS, layers)
        self.close()
        for place, held in enumerate(all_held):
            held.place = place
            self._write(held)
        if old is not None:
            self._store.release(*(name for name in old.names if name in self._store))

    def _write(self, held: HeldAdapter) -> None:
        """Puts the matrices of an adapter into its place of the stacks."""
        layout = self.layout
        assert layout is not None
        if self._writer is None:
            self._writer = pm.compile(_trace_write(layout), store=self._store)
        inputs: dict[str, Array] = {"place": np.array([held.place], np.int32)}
        for k, (path, size, outputs) in enumerate(layout.layers):
            a, b = _padded(held.adapter.get(path), layout.rank, size, outputs)
            inputs |= {f"a{k}": a, f"b{k}": b}
        self._writer.run(inputs, outputs=[])


def _padded(low: LowRank | None, rank: int, inputs: int, outputs: int) -> tuple[Array, Array]:
    """The matrices [in, rank] and [rank, out] of an adapter, its scale in the second; zeros where it has none."""
    a, b = np.zeros((inputs, rank), np.float32), np.zeros((rank, outputs), np.float32)
    if low is not None:
        a[:, : low.rank] = low.a.T
        b[: low.rank] = low.b.T * np.float32(low.scale)
    return a, b


def _trace_write(layout: AdapterLayout) -> Any:
    """The graph that replaces one place of all stacks."""

    def put(path: str, part: str, place: Tensor, value: Tensor) -> None:
        stack = layout.stack(path, part)
        size = value.shape[0] * value.shape[1]
        updated = pm.scatter_set(pm.reshape(stack, (layout.places, size)), place, pm.reshape(value, (1, size)))
        pm.set_state(stack, pm.reshape(updated, stack.shape))

    def run(place: Tensor, **matrices: Tensor) -> Tensor:
        for k, (path, _, _) in enumerate(layout.layers):
            put(path, "a", place, matrices[f"a{k}"])
            put(path, "b", place, matrices[f"b{k}"])
        return place

    specs: Mapping[str, Any] = {
        name: spec
        for k, (_, inputs, outputs) in enumerate(layout.layers)
        for name, spec in ((f"a{k}", pm.spec(inputs, layout.rank)), (f"b{k}", pm.spec(layout.rank, outputs)))
    }
    return pm.trace(run, place=pm.spec(1, dtype="i32"), **specs)
