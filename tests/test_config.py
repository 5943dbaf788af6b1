"""Configuration: values come from overrides, the environment or defaults, and bad ones are refused by name."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pumice import config
from pumice.errors import InputError, UnknownName


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for switch in config.table():
        monkeypatch.delenv(switch.env, raising=False)


def test_defaults() -> None:
    assert config.debug == 0
    assert config.nofuse is False
    assert config.device == "auto"
    assert config.default_max == 1024
    assert config.home == Path("~/.cache/pumice").expanduser()


def test_the_environment_is_read_at_each_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMICE_DEBUG", "3")
    monkeypatch.setenv("PUMICE_NOARENA", "yes")
    monkeypatch.setenv("PUMICE_HOME", "~/elsewhere")
    assert (config.debug, config.noarena, config.home) == (3, True, Path("~/elsewhere").expanduser())
    monkeypatch.setenv("PUMICE_DEBUG", "")
    assert config.debug == 0


@pytest.mark.parametrize(
    ("env", "value"),
    [("DEBUG", "6"), ("DEBUG", "-1"), ("DEBUG", "x"), ("NOFUSE", "2"), ("DEFAULT_MAX", "0"), ("THREADS", "1.5"), ("DEVICE", " ")],
)
def test_bad_values(monkeypatch: pytest.MonkeyPatch, env: str, value: str) -> None:
    monkeypatch.setenv(f"PUMICE_{env}", value)
    with pytest.raises(InputError, match=f"PUMICE_{env} is '{value}'") as caught:
        config.get(env.lower())
    assert "it takes" in caught.value.hint


def test_overrides_nest_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUMICE_DEBUG", "1")
    with config.override(debug=2, nofuse=True):
        with config.override(debug=4):
            assert (config.debug, config.nofuse) == (4, True)
        assert config.debug == 2
    assert (config.debug, config.nofuse) == (1, False)
    with pytest.raises(RuntimeError), config.override(debug=5):
        raise RuntimeError
    assert config.debug == 1


def test_overrides_stay_in_their_thread() -> None:
    seen: list[int] = []
    with config.override(debug=5):
        thread = threading.Thread(target=lambda: seen.append(config.debug))
        thread.start()
        thread.join()
    assert seen == [0]


def test_overrides_are_checked() -> None:
    with pytest.raises(InputError, match="override"), config.override(debug=True):
        pass
    with pytest.raises(UnknownName, match="'debgu'"), config.override(debgu=1):
        pass
    with pytest.raises(AttributeError):
        _ = config.nothing


def test_the_table_is_complete() -> None:
    declared = {name for name in config.__annotations__ if not name.startswith("_")}
    assert declared == {s.name for s in config.table()}
    for s in config.table():
        assert s.meaning
        assert s.expects
        assert s.env == f"PUMICE_{s.name.upper()}"
