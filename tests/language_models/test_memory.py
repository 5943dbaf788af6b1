"""Pages of keys and values on the device: copies, saves and restores, in every cache dtype and page group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pumice.llm.engine import Engine
from pumice.llm.memory import CacheStates
from tiny_models import PROMPT, tokens_of

TARGETS = [pytest.param("host"), pytest.param("webgpu", marks=pytest.mark.gpu)]


def states_of(e: Engine) -> tuple[CacheStates, dict[str, Any]]:
    """The paged states of an engine, and what each state holds, [pages, numbers]."""
    found = {n: e._store[n].read().reshape(e.layout.pool(), -1) for n in e._store if n.startswith("cache.")}
    return CacheStates(e._store, e.layout, e.cfg.windows), found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "dtype"), [("llama", "f32"), ("llama", "f16"), ("llama", "q8"), ("gemma3", "f32")])
def test_pages_are_copied_saved_and_restored(name: str, dtype: str, target: str, engine: Callable[..., Engine]) -> None:
    e = engine(name, target, slots=2, cache_dtype=dtype)
    tokens_of(e, PROMPT * 3, 2)
    states, before = states_of(e)
    used = [int(p) for p in np.flatnonzero(next(iter(before.values())).any(axis=1))]
    free = [p for p in range(e.layout.pool()) if p not in used][: len(used)]
    assert len(used) == 2 and len(free) == 2
    for group in range(len(e.layout.windows)):
        names = states._groups[group]
        states.copy(group, used, free)
        after = {n: e._store[n].read().reshape(e.layout.pool(), -1) for n in before}
        for n in before:
            want = before[n].copy()
            if n in names:
                want[free] = want[used]
            np.testing.assert_array_equal(after[n], want)
        saved = states.save(group, free[:1])
        assert all(saved[n].shape[:2] == (1, e.layout.page) for n in names)
        states.restore(group, used[1:], saved)
        for n in names:
            np.testing.assert_array_equal(e._store[n].read().reshape(e.layout.pool(), -1)[used[1]], before[n][used[0]])
            e._store[n].write(before[n].reshape(e._store[n].type.shape))
    states.close()


def test_each_page_group_has_the_states_of_its_layers(engine: Callable[..., Engine]) -> None:
    e = engine("gemma3")
    states, held = states_of(e)
    assert e.layout.windows == (None, *sorted({w for w in e.cfg.windows if w is not None}))
    assert sorted(n for names in states._groups for n in names) == sorted(held)
    *pages, slots = states._groups
    for group, names in enumerate(pages):
        assert {e.cfg.windows[int(n.split(".")[1])] for n in names} == {e.layout.windows[group]}
    assert not slots


def test_states_of_slots_are_a_group_of_rows(engine: Callable[..., Engine]) -> None:
    e = engine("lfm2", slots=3)
    states, _ = states_of(e)
    names, rows = states._groups[-1], 3 + e.layout.snapshots
    assert names == ["cache-slots.0.conv", "cache-slots.2.conv"] and {e._store[n].type.shape[0] for n in names} == {rows}
    held = {n: np.arange(rows * 64, dtype=np.float32).reshape(rows, 64) + k for k, n in enumerate(names)}
    e._store.write(held)
    states.copy(1, [0, 2], [5, 6])
    saved = states.save(1, [5])
    states.restore(1, [1], saved)
    for n in names:
        found = e._store[n].read()
        np.testing.assert_array_equal(found[[5, 6, 1]], held[n][[0, 2, 0]])
        np.testing.assert_array_equal(found[[0, 2, 3, 4]], held[n][[0, 2, 3, 4]])
    assert states.accepts(1, 1, saved) and not states.accepts(1, 2, saved)
    states.close()
