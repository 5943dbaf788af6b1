"""Damaged and hostile plan files: accepted or a FormatError, whatever they hold."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from plan.plan_bytes import hashed, opened, sealed
from plan.plan_cases import CASES
from plan.wgsl_attacks import ATTACKS
from pumice.core.caps import Caps
from pumice.errors import PlanError
from pumice.plan.file import plan_from_bytes
from pumice.plan.plan import Kernel
from pumice.plan.wgsl_check import check_kernel

from fuzz.hostile import damaged, damaged_json, fuzz, nested

NAMES = ("several_results", "mlp")


@cache
def plans() -> list[bytes]:
    return [CASES[name]().plan(*target).to_bytes() for name in NAMES for target in ((), ("host",))]


def hostile_plan(rng: random.Random) -> bytes:
    whole = rng.choice(plans())
    kind = rng.randrange(4)
    if kind == 0:  # the digest holds, so that what is inside is looked at
        return hashed(damaged(rng, whole)[:-32])
    if kind == 1:
        return damaged(rng, whole)
    header, blobs = opened(whole)
    changed: Any = damaged_json(rng, header)
    if kind == 3 and isinstance(changed, dict):
        changed[rng.choice(sorted(header))] = rng.choice([nested(rng.choice((10, 400))), {"name": [], "max": []}, [[]] * 50])
    blobs = list(blobs)
    if blobs and rng.random() < 0.3:
        k = rng.randrange(len(blobs))
        blobs[k] = rng.choice([damaged(rng, blobs[k]), b"", rng.choice(list(ATTACKS.values())).encode()])
    return sealed(changed, blobs)


def test_hostile_plan_files(request: pytest.FixtureRequest) -> None:
    fuzz(request, hostile_plan, plan_from_bytes)


@cache
def kernels() -> list[str]:
    return [k.wgsl for name in NAMES for k in CASES[name]().plan().kernels]


_PIECES = (
    *("array<", "u32", ", 9>", ">", "<", "(", ")", "{", "}", "/*", "*/", ";", "fn f(", "struct S {", "alias A =", "const N = 4;"),
    *(
        "var<private> x:",
        "var<workgroup> y:",
        "else if",
        "@",
        "->",
        "ptr<function, ",
        "override n: u32;",
        "0xFFFFFFFF",
        "é",
        "\x00",
    ),
)


def hostile_wgsl(rng: random.Random) -> str:
    if rng.random() < 0.3:
        text = rng.choice(list(ATTACKS.values()))[:20000]
    else:
        text = rng.choice(kernels())
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(text) + 1)
        piece = rng.choice(_PIECES) * rng.choice((1, 1, 2, 300))
        text = text[:at] + piece + text[at + rng.choice((0, 0, 1, 50)) :]
    return text


def test_hostile_wgsl(request: pytest.FixtureRequest) -> None:
    fuzz(
        request,
        hostile_wgsl,
        lambda text: check_kernel(Kernel("k", text, (), 0, 64), Caps.preset("browser-baseline")),
        allowed=PlanError,
    )
