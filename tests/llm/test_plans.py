"""Plans kept in the cache: found again, made anew when anything differs, and never more than what a plan is made of."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import pumice as pm
from llm.test_engine import PROMPT, make_engine, tokens_of
from pumice import config
from pumice.core.caps import Caps
from pumice.core.kept import keep
from pumice.llm import engine, plans
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
        monkeypatch.setattr(engine, "trace_step", refuse)
        second = make_engine("llama")
        assert tokens_of(second, PROMPT) == want
        with pytest.raises(AssertionError, match="traced again"):
            make_engine("llama", context=32)
        first.close()
        second.close()


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
    monkeypatch.setattr(plans, "_sources", lambda: iter([("x.py", 1, 2)]))
    assert plans.plan_path(HOST, "a") != path


def test_nothing_is_kept_for_other_devices_and_while_plans_are_shown(tmp_path: Path) -> None:
    assert plans.plan_path(Caps.preset("browser-baseline"), "a") is None
    with config.override(debug=1):
        assert plans.plan_path(HOST, "a") is None
    assert plans.read_plan(None) is None
    plans.keep_plan(None, some_plan())


class _Foreign:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("pumice-was-here"),)


def test_files_that_hold_something_else_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.plan"
    plans.keep_plan(path, some_plan())
    whole = path.read_bytes()
    for data in (b"", whole[:-1], whole[:40] + b"x" + whole[41:]):
        path.write_bytes(data)
        assert plans.read_plan(path) is None
    for content in (pickle.dumps(_Foreign()), pickle.dumps([some_plan()]), b"no pickle"):
        keep(path, content)
        assert plans.read_plan(path) is None
    assert not Path("pumice-was-here").exists()


def test_the_oldest_plans_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "_KEPT", 2)
    plan = some_plan()
    for name in "abc":
        plans.keep_plan(tmp_path / f"{name}.plan", plan)
    assert len(list(tmp_path.iterdir())) == 2 and plans.read_plan(tmp_path / "c.plan") == plan
