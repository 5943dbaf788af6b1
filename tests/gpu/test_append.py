"""Decoding: attention that puts the new keys and values into their cache itself gives the bits of two kernels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.plan import fusion
from pumice.plan.build import build_plan
from pumice.plan.cost import step_costs

from harness import Case, device, run_plan, wrong_outputs, wrong_states

# Hardware GPUs get thread groups, those without subgroups blocks in workgroup memory.
TARGETS: Mapping[str, dict[str, Any]] = {
    "thread groups": {"software": False},
    "blocks": {"software": False, "subgroups": False},
    "software": {},
}
PAGE = 8


@contextmanager
def apart(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(fusion, "merge_appends", lambda ctx, groups, fits: groups)
        yield


def decode_case(
    starts,
    *,
    heads=4,
    kv_heads=2,
    depth=16,
    depth_v=None,
    pages=3,
    dtype="f16",
    joined=True,
    padding=(),
    rope=True,
    normed=False,
    symbolic=False,
    seed=0,
    **options,
):
    """A step of decoding for sequences of these lengths, each with pages of its own; the token of `padding` rows is dropped."""
    rng = np.random.default_rng(seed)
    batch, depth_v = len(starts), depth_v or depth
    rows = (batch * pages + 1) * PAGE
    kept = "i8" if dtype == "q8" else dtype

    def held(name, size, kind):
        whole = rng.integers(-9, 9, (rows, size)) if kind == "i8" else rng.standard_normal((rows, size))
        numpy = {"f16": np.float16, "f32": np.float32, "i8": np.int8}[kind]
        return pm.state(name, (rows, size), kind, init=whole.astype(numpy))

    def append(name, new, row, kind):
        count, *rest = new.shape
        size = int(np.prod(rest))
        cache = held(f"{name} pages", size, kind)
        updated = pm.scatter_set(cache, row, new.reshape(count, size).astype(kind))
        pm.set_state(cache, updated)
        return updated.reshape(rows // PAGE, PAGE, *rest)

    def turned(x, start):
        return pm.rope(x, pm.expand_dims(start, 1)) if rope else x

    def run(q, k, v, table, row, start):
        if normed:
            k = pm.rms_norm(k)
        q, k, extra = turned(q, start), turned(k, start), {}
        if dtype == "q8":
            tops = [pm.maximum(pm.abs(x).max(axis=-1), 1e-30) / 127.0 for x in (k, v)]
            k, v = (pm.round(x / pm.expand_dims(top, -1)) for x, top in zip((k, v), tops, strict=True))
            extra = {f"{n}_scale": append(f"{n}_scale", top, row, "f32") for n, top in zip("kv", tops, strict=True)}
        if joined:
            both = append("kv", pm.stack([k, v], axis=1), row, kept)
            k, v = both[:, :, 0], both[:, :, 1]
        else:
            k, v = append("k", k, row, kept), append("v", v, row, kept)
        q = pm.expand_dims(q, 1)
        own = {"own_rows": True} if batch > 1 or symbolic else {}
        return pm.attention(
            q, k, v, layout="bshd", causal=True, offset=start, kv_index=table, **{**own, **extra, **options}
        ) + 1.0  # fmt: skip

    table = 1 + rng.permutation(batch * pages).reshape(batch, pages).astype(np.int32)
    row = np.array([table[b, at // PAGE] * PAGE + at % PAGE for b, at in enumerate(starts)], np.int32)
    row[list(padding)] = rows
    arrays = {
        "q": rng.standard_normal((batch, heads, depth)).astype(np.float32),
        "k": rng.standard_normal((batch, kv_heads, depth)).astype(np.float32),
        "v": rng.standard_normal((batch, kv_heads, depth_v)).astype(np.float32),
        "table": table,
        "row": row,
        "start": np.array(starts, np.int32),
    }
    specs = {n: pm.spec("B" if symbolic else batch, *a.shape[1:], dtype=a.dtype) for n, a in arrays.items()}
    return Case(pm.trace(run, **specs), arrays, {})


def both_ways(monkeypatch, case: Case, target: str, *, merged: bool = True, **limits: Any):
    """Runs a case with the append in the attention's kernel and apart; gives the merged plan."""
    caps = device("webgpu").caps.with_(**TARGETS[target], **limits)
    most = {"B": 8} if case.graph.symbols else None
    plan = build_plan(case.graph, caps, max=most)
    with apart(monkeypatch):
        other = build_plan(case.graph, caps, max=most)
    labels = [s.label for s in plan.steps]
    if merged:
        assert any("scatter_set" in name and "attention" in name for name in labels), labels
        assert not any("attention" not in name for name in labels if "scatter_set" in name)
        assert len(plan.steps) < len(other.steps)
    else:
        assert plan.steps == other.steps
    states: list[dict[str, Any]] = [{}, {}]
    found = [run_plan(device("webgpu"), p, case, states=held)[0] for p, held in zip((plan, other), states, strict=True)]
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one.view(np.uint32), two.view(np.uint32))
    for name, one in states[0].items():
        assert one.tobytes() == states[1][name].tobytes(), name
    assert wrong_outputs(case, found[0]) == "" and wrong_states(case, states[0]) == ""
    return plan


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8"])
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (8, 1), (12, 2)], ids=["GQA", "MHA", "MQA", "groups of six"])
def test_heads_and_caches(monkeypatch, heads, dtype, target):
    case = decode_case([13], heads=heads[0], kv_heads=heads[1], dtype=dtype)
    both_ways(monkeypatch, case, target)


@pytest.mark.parametrize("target", ["thread groups", "blocks"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "q8"])
@pytest.mark.parametrize("starts", [[0], [8], [23], [5, 16, 0], [3, 9, 23, 1, 0, 7, 8, 15]], ids=str)
def test_batches_and_first_tokens_of_pages(monkeypatch, starts, dtype, target):
    both_ways(monkeypatch, decode_case(starts, dtype=dtype, symbolic=len(starts) > 3), target)


@pytest.mark.parametrize("target", ["thread groups", "blocks"])
@pytest.mark.parametrize("dtype", ["f16", "q8"])
def test_rows_beyond_the_cache_are_dropped(monkeypatch, dtype, target):
    both_ways(monkeypatch, decode_case([4, 11, 20], dtype=dtype, padding=[1]), target)


@pytest.mark.parametrize("target", ["thread groups", "blocks"])
@pytest.mark.parametrize(
    "options",
    [
        {"window": 5},
        {"window": 9, "softcap": 3.0},
        {"normed": True},
        {"joined": False},
        {"joined": False, "depth_v": 24},
        {"rope": False, "depth": 32},
        {"depth": 128, "kv_heads": 1},
        {"depth": 6, "rope": False},
        {"scale": 0.5, "depth": 48},
    ],
    ids=str,
)
def test_options_and_layouts(monkeypatch, options, target):
    both_ways(monkeypatch, decode_case([19, 7], **options), target)


@pytest.mark.parametrize("dtype", ["f16", "q8"])
@pytest.mark.parametrize("target", ["thread groups", "blocks"])
@pytest.mark.parametrize("starts", [[4100], [2070, 4, 0]], ids=str)
def test_long_caches_are_shared_out(monkeypatch, starts, target, dtype):
    """Several workgroups take a part of the keys each; one of them stores the new one."""
    plan = both_ways(monkeypatch, decode_case(starts, pages=520, dtype=dtype), target)
    assert any("parts" in s.variant for s in plan.steps)


def test_what_stays_apart(monkeypatch):
    """Heads that share a word, rows that others may see, threads that share nothing, and too few bindings."""
    both_ways(monkeypatch, decode_case([9], depth=5, rope=False), "thread groups", merged=False)
    both_ways(monkeypatch, decode_case([9, 2], own_rows=False), "thread groups", merged=False)
    both_ways(monkeypatch, decode_case([9]), "software", merged=False, subgroups=False)
    both_ways(monkeypatch, decode_case([9], heads=34, kv_heads=2), "thread groups", merged=False)
    both_ways(monkeypatch, decode_case([9], dtype="q8"), "blocks", merged=False, max_storage_buffers=8)


def cached(fn, **specs):
    """What fn(q, pages of a cache, start, cache) gives after a row of it was written."""

    def run(q, new, row, start):
        cache = pm.state("cache", (64, 64), "f32")
        held = pm.scatter_set(cache, row, new)
        pm.set_state(cache, held)
        return fn(q, held.reshape(8, 8, 2, 2, 16), start, cache)

    one = pm.spec(1, dtype="i32")
    types = {"q": pm.spec(1, 1, 4, 16), "new": pm.spec(1, 64), "row": one, "start": one, **specs}
    return [s.label for s in build_plan(pm.trace(run, **types), Caps.preset("h200")).steps]


def attend(q, pages, start):
    table = pm.reshape(pm.arange(8, dtype="i32"), (1, 8))
    return pm.attention(q, pages[:, :, 0], pages[:, :, 1], layout="bshd", causal=True, offset=start, kv_index=table)


def test_who_else_reads_the_cache():
    """A second attention finds the new rows in the cache; what reads the cache otherwise keeps its own step before."""
    assert not [s for s in cached(lambda q, pages, start, old: attend(q, pages, start)) if s.endswith("scatter_set")]
    twice = cached(lambda q, pages, start, old: attend(attend(q, pages, start), pages, start))
    assert ["scatter_set" in s for s in twice if "attention" in s] == [True, False]
    sums = cached(lambda q, pages, start, old: attend(q + pages.sum(), pages, start))
    assert any(s == "scatter_set" for s in sums)
    before = cached(lambda q, pages, start, old: attend(q, pages, start) + old.sum())
    assert any(s == "scatter_set" for s in before)
    epilogue = cached(lambda q, pages, start, old: attend(q, pages, start) + pages[0, 0, 0, 0])
    assert any(s == "scatter_set" for s in epilogue)


def test_several_new_tokens_stay_apart():
    """As in verifying drafts: two tokens of one sequence."""
    two = {"q": pm.spec(1, 2, 4, 16), "new": pm.spec(2, 64), "row": pm.spec(2, dtype="i32")}
    assert any(s == "scatter_set" for s in cached(lambda q, pages, start, old: attend(q, pages, start), **two))


def test_a_second_attention_over_the_same_cache(monkeypatch):
    """Layers that share a cache: the first appends, both see the new rows."""
    rng = np.random.default_rng(4)
    init = rng.standard_normal((64, 64)).astype(np.float16)

    def run(q, new, row, start):
        cache = pm.state("cache", (64, 64), "f16", init=init)
        held = pm.scatter_set(cache, row, new.astype("f16"))
        pm.set_state(cache, held)
        pages = held.reshape(8, 8, 2, 2, 16)
        return attend(pm.tanh(attend(q, pages, start)), pages, start)

    arrays = {
        "q": rng.standard_normal((1, 1, 4, 16)).astype(np.float32),
        "new": rng.standard_normal((1, 64)).astype(np.float32),
        "row": np.array([21], np.int32),
        "start": np.array([21], np.int32),
    }
    specs = {n: pm.spec(*a.shape, dtype=a.dtype) for n, a in arrays.items()}
    both_ways(monkeypatch, Case(pm.trace(run, **specs), arrays, {}), "thread groups")


def test_costs_count_what_is_read_and_written():
    """The merged step moves what the two did, less the second reading of nothing: the cache once, one row of it written."""
    case = decode_case([9])
    plan = build_plan(case.graph, Caps.preset("h200"))
    (step,) = (k for k, s in enumerate(plan.steps) if "attention" in s.label)
    cost = step_costs(plan, {})[step]
    assert cost.written == 4 * 4 * 16 + 2 * 2 * 2 * 16  # the result in f32, and a key and a value of two heads in f16
    assert 2 * 2 * 2 * 16 * 3 * PAGE < cost.read < 2 * 2 * 2 * 16 * 3 * PAGE + 2000
