"""Attention for few queries as hardware GPUs with subgroups get it: thread groups with a key each, alone or in parts."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pumice as pm
from pumice.core.caps import Caps
from pumice.kernels.routines.attention_thread_groups import decide_thread_groups

from harness import device, run_as

RNG = np.random.default_rng(12)


def draw(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def check(fn, arrays, *, variant="groups", **types):
    """Runs fn as a hardware GPU would and compares with the reference; gives the plan."""
    plan = run_as(device("webgpu").caps.with_(software=False), fn, arrays, types=types)
    assert any(s.variant.startswith(variant) for s in plan.steps), [s.variant for s in plan.steps]
    return plan


# Keys: one, fewer than thread groups, several steps with a rest. Depths: one lane's load up to several pieces a lane.
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(("keys", "depth"), [(1, 64), (7, 8), (300, 64), (600, 48), (70, 128)])
def test_one_query_against_a_cache(keys, depth, dtype):
    q, k, v = draw(2, 6, 1, depth), draw(2, 2, keys, depth, dtype=dtype), draw(2, 2, keys, depth, dtype=dtype)
    check(lambda q, k, v: pm.attention(q, k, v), {"q": q, "k": k, "v": v})


@pytest.mark.parametrize(
    "options",
    [{"causal": True}, {"causal": True, "window": 5}, {"softcap": 3.0, "scale": 0.7}, {"causal": True, "layout": "bshd"}],
    ids=str,
)
def test_a_few_queries(options):
    """Rows that see different keys, and more rows than a workgroup takes."""
    shape = (lambda h, s: (3, s, h, 16)) if options.get("layout") == "bshd" else (lambda h, s: (3, h, s, 16))
    arrays = {"q": draw(*shape(4, 5)), "k": draw(*shape(2, 90)), "v": draw(*shape(2, 90))}
    check(lambda q, k, v: pm.attention(q, k, v, **options), arrays)


@pytest.mark.parametrize("queries", [1, 3])
def test_rows_that_share_a_workgroup(queries):
    """With so many heads that workgroups are enough where each takes several rows, and one of them fewer than the others."""
    arrays = {"q": draw(20, 12, queries, 16), "k": draw(20, 4, 37, 16), "v": draw(20, 4, 37, 16)}
    check(lambda q, k, v: pm.attention(q, k, v, causal=True), arrays, variant="groups 2x" if queries == 1 else "groups 4x")


@pytest.mark.parametrize("kept", [0, 1, 33, 200])
def test_lengths_and_entries_of_a_cache(kept):
    """Lengths from 0, where nothing is seen, and entries in another order; masks and biases on top."""
    arrays = {
        "q": draw(2, 4, 1, 32),
        "k": draw(3, 4, 200, 32, dtype=np.float16),
        "v": draw(3, 4, 200, 32, dtype=np.float16),
        "lengths": np.array([kept, 200], np.int32),
        "entries": np.array([2, 0], np.int32),
        "bias": draw(4, 1, 200),
        "mask": RNG.random((2, 1, 1, 200)) < 0.7,
    }
    check(
        lambda q, k, v, lengths, entries, bias, mask: pm.attention(
            q, k, v, kv_len=lengths, kv_index=entries, offset=lengths - 1, causal=True, bias=bias, mask=mask
        ),
        arrays,
    )


def test_queries_that_are_computed_as_they_are_read():
    arrays = {"q": draw(2, 4, 1, 64), "k": draw(2, 4, 50, 64), "v": draw(2, 4, 50, 64)}
    plan = check(lambda q, k, v: pm.attention(pm.tanh(q) * 2.0, k, v) + 1.0, arrays)
    assert len(plan.steps) == 1


def test_a_symbolic_number_of_keys():
    arrays = {"q": draw(1, 4, 1, 32), "k": draw(1, 2, 77, 32), "v": draw(1, 2, 77, 32)}
    check(lambda q, k, v: pm.attention(q, k, v), arrays, k=pm.spec(1, 2, "S", 32, max=500), v=pm.spec(1, 2, "S", 32, max=500))


@pytest.mark.parametrize("keys", [40, 5000])
def test_many_keys_are_shared_out(keys):
    """A cache for so many keys that several workgroups take a part each; the lengths are short, and long."""
    arrays = {
        "q": draw(1, 4, 2, 16),
        "k": draw(1, 2, 6000, 16, dtype=np.float16),
        "v": draw(1, 2, 6000, 16, dtype=np.float16),
        "length": np.array([keys], np.int32),
    }
    plan = check(lambda q, k, v, length: pm.attention(q, k, v, kv_len=length, causal=True, offset=length - 2), arrays)
    assert any("parts" in s.variant for s in plan.steps)
    assert any(s.variant.startswith("join") for s in plan.steps)


@pytest.mark.parametrize("rows", [1, 4, 7, 16])
@pytest.mark.parametrize("keys", [1, 2048, 100000])
@pytest.mark.parametrize("depth", [8, 64, 80, 128, 256, 512])
def test_choices_fit(rows, keys, depth):
    caps = Caps.preset("h200")
    for heads in (1, 8, 300):
        for width in (4, 8):
            found = decide_thread_groups(caps, rows, keys, depth, width, heads, 128)
            if found is None:
                continue
            assert found.lanes * found.width * found.pieces == depth
            assert found.memory(depth) <= caps.workgroup_memory and found.threads <= caps.max_invocations
            assert found.subgroup % found.lanes == 0 and 1 <= found.rows <= rows


def test_other_targets_and_layouts_have_other_kernels():
    for caps in (Caps.preset("browser-baseline"), Caps.preset("h200").with_(subgroup_fixed=False)):
        assert decide_thread_groups(caps, 4, 100, 64, 8, 8, 128) is None
    arrays = {"q": draw(1, 2, 1, 20), "k": draw(1, 2, 30, 20, dtype=np.float16), "v": draw(1, 2, 30, 20, dtype=np.float16)}
    check(lambda q, k, v: pm.attention(q, k, v), arrays, variant="flash")
