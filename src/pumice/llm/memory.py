"""What sequences remember, on the device: keys and values in pages, states of slots; and copies, saves and restores of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import pumice as pm
from pumice.core.dims import product
from pumice.core.records import dataclass
from pumice.models.memory import distance_bias
from pumice.run.executable import Executable
from pumice.run.store import Store
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]

# Tokens of a page.
PAGE = 32


def pages_for(tokens: int, page: int = PAGE) -> int:
    """How many pages hold so many tokens.

    >>> pages_for(1), pages_for(32), pages_for(33)
    (1, 1, 2)
    """
    return -(-tokens // page)


@dataclass(frozen=True)
class CacheLayout:
    """The cache: up to `slots` sequences of up to `context` tokens each, in pages of `page` tokens, as `dtype`: f32, f16 or q8.

    Layers with the same window are a page group: `windows` has the window of each group, `pages` how many pages each has, by
    default enough for all slots. `joined` keeps the key and the value of a token side by side, so that one dispatch appends
    both. `states` begins the names of its states. Layers that keep a state for each slot have rows for `snapshots` of it, too.
    """

    slots: int
    context: int
    dtype: str = "f32"
    joined: bool = False
    states: str = "cache"
    pages: tuple[int, ...] = ()
    windows: tuple[int | None, ...] = (None,)
    page: int = PAGE
    snapshots: int = 0

    @property
    def table(self) -> int:
        """Entries of the page table of a sequence."""
        return pages_for(self.context, self.page)

    def pool(self, group: int = 0) -> int:
        """Pages of a group."""
        return self.pages[group] if self.pages else self.slots * self.table

    def rows(self, group: int = 0) -> int:
        """Tokens that a group has room for; as a row it is the first that does not exist."""
        return self.pool(group) * self.page

    def group(self, window: int | None) -> int:
        """The page group of layers with this window; those without one of their own are in the first.

        >>> CacheLayout(1, 512, windows=(None, 64)).group(64), CacheLayout(1, 512).group(1024)
        (1, 0)
        """
        return self.windows.index(window) if window in self.windows else 0


def page_groups(windows: Sequence[int | None], context: int) -> tuple[int | None, ...]:
    """The windows of the page groups of a model, by the windows of its layers; the first is that of full attention.

    >>> page_groups([16, None, 16, 4096], 512), page_groups([16, 16], 512)
    ((None, 16), (16,))
    """
    found = [None if w is None or w >= context else w for w in windows]
    return tuple(sorted(dict.fromkeys(found), key=lambda w: (w is not None, w or 0)))


def group_input(name: str, group: int) -> str:
    """The name of an input that each page group has for itself.

    >>> group_input("pages", 0), group_input("pages", 1)
    ('pages', 'pages1')
    """
    return f"{name}{group or ''}"


class PagedMemory:
    """The memory of a batch while it is traced: keys and values in pages, and for each slot the states of recurrent layers.

    For each page group, `tables` [B, P] has the pages of the sequences (None: its only page) and `rows` [B · T] the row of the
    pool that each new token takes; rows beyond the pool are dropped, which is how padding is kept out. `end` is the length of the
    sequences with the new tokens; omit it when decoding one token: its position gives the length. `slot` [B] has the slots of the
    sequences, `new_tokens` [B] how many of their tokens are no padding, None where all are.
    """

    # Whether no batch row sees the new tokens of another one: pages are shared where they are full, or copied before.
    own_rows = True

    def __init__(
        self,
        layout: CacheLayout,
        tables: Sequence[Tensor | None],
        rows: Sequence[Tensor],
        start: Tensor,
        end: Tensor | None,
        *,
        slot: Tensor,
        new_tokens: Tensor | None = None,
    ) -> None:
        self.layout, self.tables, self.rows, self.start, self.end = layout, tables, rows, start, end
        self.slot, self.new_tokens = slot, new_tokens
        self._states: dict[str, Tensor] = {}
        self._held: dict[int, tuple[Tensor, Tensor, dict[str, Tensor]]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, *, window: int | None = None, **options: Any) -> Tensor:
        """Appends keys and values to the pages, and attends to the whole sequence of each batch row."""
        self._held[layer] = self._appended(layer, k, v, window)
        return self.attend_again(layer, q, window=window, **options)

    def _appended(self, layer: int, k: Tensor, v: Tensor, window: int | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Pages of keys and of values with the new ones, and scales of both where they are integers."""
        layout = self.layout
        dtype, group = "i8" if layout.dtype == "q8" else layout.dtype, layout.group(window)
        prefix, scales = f"{layout.states}.{layer}", {}
        if layout.dtype == "q8":
            # Eight bits and a scale per vector, so that one large entry costs only its own vector precision.
            k, k_top = _eight_bits(k)
            v, v_top = _eight_bits(v)
            scales["k_scale"] = self._append(f"{prefix}.k_scale", group, k_top, "f32")
            scales["v_scale"] = self._append(f"{prefix}.v_scale", group, v_top, "f32")
        if layout.joined and k.shape == v.shape:
            both = self._append(f"{prefix}.kv", group, pm.stack([k, v], axis=2), dtype)
            keys, values = both[:, :, 0], both[:, :, 1]
        else:
            keys, values = self._append(f"{prefix}.k", group, k, dtype), self._append(f"{prefix}.v", group, v, dtype)
        return keys, values, scales

    def attend_again(
        self,
        layer: int,
        q: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
        slopes: Sequence[float] | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attends to the whole sequence of each batch row, in the pages of a layer that has been given the new tokens."""
        layout, group = self.layout, self.layout.group(window)
        keys, values, scales = self._held[layer]
        places = {"offset": self.start, "kv_len": self.end, "kv_index": self.tables[group], **scales}
        table = self.tables[group]
        length = layout.page * (1 if table is None else table.shape[1])
        bias = None if slopes is None else distance_bias(slopes, length)
        options: dict[str, Any] = {"scale": scale, "window": window, "softcap": softcap, "bias": bias, "sinks": sinks, **places}
        if self.own_rows and q.shape[1] == 1:
            options["own_rows"] = True
        return pm.attention(q, keys, values, layout="bshd", causal=True, **options)

    def _append(self, name: str, group: int, new: Tensor, dtype: str) -> Tensor:
        """New vectors [B, T, …] into their rows of a state; the whole state as [pages, page, …]."""
        batch, width, *rest = new.shape
        size = product(rest)
        cache = pm.state(name, (self.layout.rows(group), size), dtype)
        updated = pm.scatter_set(cache, self.rows[group], new.reshape(batch * width, size).astype(dtype))
        pm.set_state(cache, updated)
        return updated.reshape(self.layout.pool(group), self.layout.page, *rest)

    def recall(self, layer: int, name: str, shape: tuple[int, ...], dtype: str = "f32") -> Tensor:
        """The state [B, *shape] of the batch rows' slots."""
        full = f"{self.layout.states}-slots.{layer}.{name}"
        rows = self.layout.slots + self.layout.snapshots
        held = self._states[full] = pm.state(full, (rows, product(shape)), dtype)
        found = held if rows == 1 else pm.take(held, self.slot, axis=0)
        return found.reshape(self.start.shape[0], *shape)

    def keep(self, layer: int, name: str, value: Tensor) -> None:
        """Writes the state [B, *shape] of the batch rows' slots, which was recalled before."""
        held = self._states[f"{self.layout.states}-slots.{layer}.{name}"]
        rows = value.reshape(value.shape[0], held.shape[1]).astype(held.dtype)
        pm.set_state(held, rows if held.shape[0] == 1 else pm.scatter_set(held, self.slot, rows))


class RaggedMemory(PagedMemory):
    """The memory of tokens [1, T] of several sequences side by side: each token attends like a sequence of its own.

    `tables` [T, P] and `start` [T] are by token. Keys and values of all are appended before any is read, and the position of a
    token hides what comes after it.
    """

    own_rows = False

    def attend_again(self, layer: int, q: Tensor, **options: Any) -> Tensor:
        one, width, *head = q.shape
        found = super().attend_again(layer, q.reshape(width, one, *head), **options)
        return found.reshape(one, width, *found.shape[2:])


def _eight_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantises each vector to integers from -127 to 127; gives these and the scales."""
    top = pm.maximum(pm.abs(x).max(axis=-1), 1e-30) / 127.0
    return pm.round(x / pm.expand_dims(top, -1)), top


# Pages that a run of `CacheStates` moves at most.
_AT_ONCE = 16


class CacheStates:
    """The states of a cache in a store: copies pages within them, and moves pages to and from arrays.

    `layers` has the window of each layer. What is kept for slots is a group after the page groups, and each row a page of it.
    """

    def __init__(self, store: Store, layout: CacheLayout, layers: Sequence[int | None]) -> None:
        self._store = store
        slots = len(layout.windows)
        # Which states each group has, and the rows of a page; they exist once an executable of the token step does.
        self._groups: list[list[str]] = [[] for _ in range(slots + 1)]
        self._rows = [layout.page] * slots + [1]
        for name in store:
            first, _, rest = name.partition(".")
            if store[name].kind != "state":
                continue
            if first == layout.states:
                self._groups[layout.group(layers[int(rest.partition(".")[0])])].append(name)
            elif first == f"{layout.states}-slots":
                self._groups[slots].append(name)
        self._exes: dict[tuple[str, int], Executable] = {}

    def copy(self, group: int, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copies whole pages of a group; no target is the source of another copy."""
        self._store.copy_rows(self._groups[group], sources, targets, rows=self._rows[group])

    def save(self, group: int, pages: Sequence[int]) -> dict[str, Array]:
        """What pages of a group hold, by state, [pages, page, …]."""
        if not pages:
            return {}
        exe, parts = self._executable("save", group), []
        for first in range(0, len(pages), _AT_ONCE):
            parts.append(exe.run(source=np.array(pages[first : first + _AT_ONCE], np.int32)))
        return {name: np.concatenate([p[name] for p in parts]) for name in self._groups[group]}

    def accepts(self, group: int, count: int, saved: Mapping[str, Array]) -> bool:
        """Whether `saved` has as many pages of a group as `restore` would put back, in this cache's layout and dtype."""
        for name in self._groups[group]:
            kind = self._store[name].type
            want = (count, self._rows[group], int(product(kind.shape[1:]))), kind.dtype.np
            if name not in saved or (saved[name].shape, saved[name].dtype) != want:
                return False
        return True

    def restore(self, group: int, pages: Sequence[int], saved: Mapping[str, Array]) -> None:
        """Puts into pages of a group what `save` gave for as many."""
        exe = self._executable("restore", group) if pages else None
        for first in range(0, len(pages), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            held = {_input_name(k): saved[name][part] for k, name in enumerate(self._groups[group])}
            assert exe is not None
            exe.run({"target": np.array(pages[part], np.int32), **held}, outputs=[])

    def close(self) -> None:
        for exe in self._exes.values():
            exe.close()
        self._exes.clear()

    def _executable(self, work: str, group: int) -> Executable:
        if (work, group) not in self._exes:
            trace = {"save": self._trace_save, "restore": self._trace_restore}[work]
            self._exes[work, group] = pm.compile(trace(self._groups[group], self._rows[group]), store=self._store)
        return self._exes[work, group]

    def _state(self, name: str) -> tuple[Tensor, int]:
        """A state of the store, and how many numbers of it are a token's."""
        kind = self._store[name].type
        return pm.state(name, kind.shape, kind.dtype.name), int(product(kind.shape[1:]))

    def _trace_save(self, names: Sequence[str], rows: int) -> Any:
        def run(source: Tensor) -> dict[str, Tensor]:
            out = {}
            for name in names:
                state, size = self._state(name)
                out[name] = pm.take(state.reshape(-1, rows * size), source, axis=0).reshape(source.shape[0], rows, size)
            return out

        return pm.trace(run, source=_numbers())

    def _trace_restore(self, names: Sequence[str], rows: int) -> Any:
        def run(target: Tensor, **held: Tensor) -> Tensor:
            for k, name in enumerate(names):
                state, size = self._state(name)
                pages = held[_input_name(k)].reshape(target.shape[0], rows * size)
                updated = pm.scatter_set(state.reshape(-1, rows * size), target, pages)
                pm.set_state(state, updated.reshape(state.shape))
            return target

        specs = {}
        for k, name in enumerate(names):
            kind = self._store[name].type
            shape = ("N", rows, int(product(kind.shape[1:])))
            specs[_input_name(k)] = pm.spec(*shape, dtype=kind.dtype.name, max=_AT_ONCE)
        return pm.trace(run, target=_numbers(), **specs)


def _numbers() -> pm.Spec:
    return pm.spec("N", dtype="i32", max=_AT_ONCE)


def _input_name(k: int) -> str:
    return f"held{k}"
