"""Host plans with steps, memory or bindings changed, under a right digest: refused, or they run and give the same numbers.

What the host runs is native code over the plan's memory, so that a plan must not only be typed, but hold together.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import pumice as pm
from plan.plan_bytes import last, opened, sealed
from plan.plan_cases import CASES, PlanCase
from pumice.errors import FormatError
from pumice.plan.file import plan_from_bytes

from fuzz.hostile import fuzz

Header = dict[str, Any]
Change = Callable[[Header, random.Random], None]


def _any_step(header: Header, rng: random.Random) -> int:
    return rng.randrange(len(last(header)["steps"]["label"]))


def merge_steps(header: Header, rng: random.Random) -> None:
    """Two steps as one, which binds what both read and what either writes."""
    steps = last(header)["steps"]
    i, j = sorted((_any_step(header, rng), _any_step(header, rng)))
    if i == j:
        return
    nodes = steps["nodes"][i] + steps["nodes"][j]
    bound: dict[tuple[int, int], str] = {}
    for k in (i, j):
        words = steps["bindings"][k]
        for value, part, access in zip(words[::2], words[1::2], steps["access"][k]):
            if not (access == "r" and value in nodes) and not (access == "w" and k == i):
                bound.setdefault((value, part), access)
    steps["nodes"][j] = nodes
    steps["bindings"][j] = [word for pair in bound for word in pair]
    steps["access"][j] = "".join(bound.values())
    for column in steps.values():
        column.pop(i)


def swap_steps(header: Header, rng: random.Random) -> None:
    i, j = _any_step(header, rng), _any_step(header, rng)
    for column in last(header)["steps"].values():
        column[i], column[j] = column[j], column[i]


def change_anchor(header: Header, rng: random.Random) -> None:
    i = _any_step(header, rng)
    last(header)["steps"]["anchor"][i] = rng.choice([None, *last(header)["steps"]["nodes"][i]])


def change_root(header: Header, rng: random.Random) -> None:
    i = _any_step(header, rng)
    last(header)["steps"]["root"][i] = rng.choice(last(header)["steps"]["nodes"][i])


def change_access(header: Header, rng: random.Random) -> None:
    i = _any_step(header, rng)
    old, new = rng.sample("rwu", 2)
    last(header)["steps"]["access"][i] = last(header)["steps"]["access"][i].replace(old, new)


def shuffle_nodes(header: Header, rng: random.Random) -> None:
    rng.shuffle(last(header)["steps"]["nodes"][_any_step(header, rng)])


def bind_more(header: Header, rng: random.Random) -> None:
    i = _any_step(header, rng)
    last(header)["steps"]["bindings"][i] += [rng.choice(last(header)["values"]["id"]), 0]
    last(header)["steps"]["access"][i] += rng.choice("rwu")


def shift_buffer(header: Header, rng: random.Random) -> None:
    buffer, by = rng.randrange(len(header["buffers"]["kind"])), rng.choice([1, 2, 3, 4, 8, 16, 20, 64])
    for words in last(header)["values"]["parts"]:
        words[1] += by if words[0] == buffer else 0
    header["buffers"]["nbytes"][buffer] += by


def shift_value(header: Header, rng: random.Random) -> None:
    words = rng.choice(last(header)["values"]["parts"])
    words[1] += rng.choice([1, 4, 16, 64, 256, -4, -64, -256])
    words[2] += rng.choice([-64, -4, -1, 0, 0, 0, 1, 4, 64])
    header["buffers"]["nbytes"][words[0]] += rng.choice([0, 512])


def move_value(header: Header, rng: random.Random) -> None:
    """Onto another value."""
    one, other = rng.choice(last(header)["values"]["parts"]), rng.choice(last(header)["values"]["parts"])
    one[:2] = other[:2]
    header["buffers"]["nbytes"][one[0]] += rng.choice([0, 1 << 16])


def give_own_buffer(header: Header, rng: random.Random) -> None:
    words, buffers = rng.choice(last(header)["values"]["parts"]), header["buffers"]
    words[0], words[1] = len(buffers["kind"]), 0
    for key, value in (("kind", "arena"), ("nbytes", words[2]), ("name", "more")):
        buffers[key].append(value)


CHANGES: tuple[Change, ...] = (merge_steps, swap_steps, change_anchor, change_root, change_access, shuffle_nodes, bind_more,
                               shift_buffer, shift_value, move_value, give_own_buffer)  # fmt: skip


@cache
def _known(name: str) -> tuple[PlanCase, Header, list[bytes], list[Any]]:
    case = CASES[name]()
    data = case.plan("host").to_bytes()
    return case, *opened(data), _results(case, data)


def _results(case: PlanCase, data: bytes) -> list[Any]:
    with pm.load_plan(data, "host") as exe:
        exe.set_params(case.params)
        return [a for inputs in case.runs for a in exe.run(inputs, outputs=range(len(exe.graph.outputs)))]


@pytest.mark.parametrize("name", CASES)
def test_changed_host_plans_are_refused_or_right(name: str, request: pytest.FixtureRequest) -> None:
    case, header, blobs, want = _known(name)
    accepted = 0

    def make(rng: random.Random) -> bytes:
        changed = copy.deepcopy(header)
        for _ in range(rng.randint(1, 2)):
            rng.choice(CHANGES)(changed, rng)
        return sealed(changed, blobs)

    def attempt(data: bytes) -> None:
        nonlocal accepted
        plan_from_bytes(data)
        accepted += 1
        for got, right in zip(_results(case, data), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-3, atol=1e-3)

    fuzz(request, make, attempt, cases=150, allowed=FormatError)
    assert accepted or request.config.getoption("--fuzz-cases") is not None, "nothing got as far as the host"
