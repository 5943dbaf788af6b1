"""Plans kept in the cache: found again, made anew when anything differs, and never more than what a plan is made of."""

from __future__ import annotations

import copy
import json
import pickle
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from language_models.test_engine import PROMPT, make_engine, tokens_of
from plan.plan_bytes import last, opened, sealed
from pumice import config
from pumice.backends.host import device
from pumice.core.caps import Caps
from pumice.core.kept import keep
from pumice.errors import InputError
from pumice.llm import plans, runner
from pumice.llm.load import _is_greedy
from pumice.llm.requests import Request, SamplingParams
from pumice.plan.build import build_plan
from pumice.plan.plan import Plan

HOST = Caps.preset("host")


def some_plan() -> Plan:
    return build_plan(pm.trace(lambda x: pm.softmax(x * 2.0 + 1.0, axis=-1), x=pm.spec("N", 4)), HOST)


def test_a_second_start_plans_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("traced again")

    with config.override(home=tmp_path):
        first = make_engine("llama")
        want = tokens_of(first, PROMPT)
        monkeypatch.setattr(runner, "trace_token_step", refuse)
        second = make_engine("llama")
        assert tokens_of(second, PROMPT) == want
        with pytest.raises(AssertionError, match="traced again"):
            make_engine("llama", context=32)
        first.close()
        second.close()


def test_a_second_start_has_its_decode_step_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is read and its kernels are bound while the weights are uploaded: the second token waits for neither."""
    sampled = SamplingParams(seed=3)
    with config.override(home=tmp_path):
        with closing(make_engine("llama")) as first:
            assert (True, 1, runner.USUAL) not in first._exes  # planning would make the first load slower
            want = tokens_of(first, PROMPT, sampling=sampled)
        with closing(make_engine("llama")) as second:
            decode = second._exes[True, 1, runner.USUAL]
            bound: list[Any] = []
            program = device.Program
            monkeypatch.setattr(device, "Program", lambda *args: bound.append(args) or program(*args))
            events = second.stream([Request(PROMPT, sampled, len(want))])
            got = [next(events).token]
            after_prefill = len(bound)
            got += [event.token for event in events]
            assert got == want
            assert len(bound) == after_prefill == 1  # the prompt's own
            assert second._exes[True, 1, runner.USUAL] is decode


def test_a_start_for_greedy_answers_has_their_steps_ready(tmp_path: Path) -> None:
    greedy = runner.Sampling()
    with config.override(home=tmp_path):
        with closing(make_engine("llama", greedy=True)) as first:
            assert [sampling for _, _, sampling in first._exes] == [greedy]
            want = tokens_of(first, PROMPT)
        with closing(make_engine("llama", greedy=True)) as second:
            assert {(decode, sampling) for decode, _, sampling in second._exes} == {(False, greedy), (True, greedy)}
            assert tokens_of(second, PROMPT) == want and len(second._exes) == 2


@pytest.mark.parametrize(
    ("defaults", "options", "greedy"),
    [
        ({}, {}, False),
        ({}, {"temperature": 0}, True),
        ({"temperature": 0.0}, {"temperature": None}, True),
        ({"temperature": 0.0}, {"temperature": 0.5}, False),
        ({}, {"temperature": 0, "json_schema": {}}, False),
        ({}, {"temperature": 0, "logprobs": 2}, False),
        ({}, {"beams": 4}, False),
    ],
)
def test_which_calls_draw_nothing(defaults: dict[str, Any], options: dict[str, Any], greedy: bool) -> None:
    assert _is_greedy(defaults, options, 50_000) is greedy


def test_a_load_for_options_that_are_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="there is no option 'temprature'"):
        pm.load("smollm2", ready_for={"temprature": 0})


def test_what_is_read_is_what_was_kept(tmp_path: Path) -> None:
    plan, path = some_plan(), tmp_path / "new" / "a.plan"
    assert plans.read_plan(path) is None
    plans.keep_plan(path, plan)
    assert plans.read_plan(path) == plan


def test_inputs_switches_and_sources_tell_plans_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    path = plans.plan_path(HOST, "a")
    assert path == plans.plan_path(HOST, "a") != plans.plan_path(HOST, "b")
    with config.override(nofuse=True):
        assert plans.plan_path(HOST, "a") != path
    monkeypatch.setattr(plans, "sources_digest", lambda: "that of other files")
    assert plans.plan_path(HOST, "a") != path


def test_nothing_is_kept_for_other_devices_and_while_plans_are_shown(tmp_path: Path) -> None:
    assert plans.plan_path(Caps.preset("browser-baseline"), "a") is None
    with config.override(debug=1):
        assert plans.plan_path(HOST, "a") is None
    assert plans.read_plan(None) is None
    plans.keep_plan(None, some_plan())


def dotted_pickle(folder: Path) -> bytes:
    """A pickle of protocol 4 whose name walks from a module of Pumice to a function of another one, and calls it."""

    def text(value: str) -> bytes:
        return b"\x8c" + bytes([len(value.encode())]) + value.encode()

    return b"\x80\x04" + text("pumice.plan.plan") + text("os.mkdir") + b"\x93" + text(str(folder)) + b"\x85R."


class _Foreign:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("pumice-was-here"),)


def hostile_entries(marker: Path) -> dict[str, bytes]:
    good = some_plan().to_bytes()
    header, blobs = opened(good)
    webgpu = build_plan(pm.trace(lambda x: x + 1.0, x=pm.spec("N")), Caps.preset("browser-baseline"))
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 4
    unsound = copy.deepcopy(header)
    last(unsound)["steps"]["root"] = [1 << 20] * len(last(header)["steps"]["root"])
    beyond = copy.deepcopy(header)
    last(beyond)["values"]["parts"][-1][1] += 1 << 20
    return {
        "dotted pickle": dotted_pickle(marker),
        "pickle": pickle.dumps(_Foreign()),
        "pickled plan": pickle.dumps([1, 2]),
        "text": b"no plan",
        "nothing": b"",
        "truncated": good[:-1],
        "flipped bit": bytes(flipped),
        "other version": sealed(header, blobs, version=2),
        "other target": webgpu.to_bytes(),
        "unsound step": sealed(unsound, blobs),
        "memory beyond its buffer": sealed(beyond, blobs),
        "unknown routine": sealed(json.loads(json.dumps(header).replace("softmax", "systems")), blobs),
    }


@pytest.mark.parametrize("kind", hostile_entries(Path("x")))
def test_hostile_entries_run_nothing_and_are_made_again(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "cache" / "a.plan"
    keep(path, hostile_entries(tmp_path / "was-here")[kind])  # under a right digest
    assert plans.read_plan(path) is None
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache"]
    plans.keep_plan(path, some_plan())
    assert plans.read_plan(path) == some_plan()


def test_damaged_entries_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.plan"
    plans.keep_plan(path, some_plan())
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole[:40] + b"x" + whole[41:]):
        path.write_bytes(data)
        assert plans.read_plan(path) is None


def test_an_engine_answers_as_before_over_a_hostile_cache(tmp_path: Path) -> None:
    with config.override(home=tmp_path):
        with closing(make_engine("llama")) as first:
            want = tokens_of(first, PROMPT)
        entries = sorted((tmp_path / "plans").iterdir())
        assert entries
        for path in entries:
            keep(path, dotted_pickle(tmp_path / "was-here"))
        with closing(make_engine("llama")) as second:
            assert tokens_of(second, PROMPT) == want
        assert not (tmp_path / "was-here").exists()
        assert all(plans.read_plan(path) is not None for path in entries)


def test_the_oldest_plans_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_KEPT", 2)
    plan = some_plan()
    for name in "abc":
        plans.keep_plan(tmp_path / f"{name}.plan", plan)
    assert len(list(tmp_path.iterdir())) == 2 and plans.read_plan(tmp_path / "c.plan") == plan
