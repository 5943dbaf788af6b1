"""--fast and --precision of the commands that run models, and the note that --fast exists."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import pumice as pm
from cli_harness import RUN, pumice
from pumice import config
from pumice.backends.host.device import HostDevice
from pumice.cli.fast_notice import fast_notice
from pumice.cli.main import app
from pumice.errors import PumiceError, PumiceWarning
from tiny_models import quantized_llama

TURN = (*RUN, "--temperature", 0, "--max-tokens", 3, "--raw")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized_llama(tmp_path_factory.mktemp("llama"))


def invoke(*args: object) -> tuple[dict[str, Any], str]:
    """What a command prints with --json, and on stderr."""
    done = CliRunner().invoke(app, [*map(str, args), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(("options", "precision"), [((), "exact"), (("--fast",), "fast"), (("--precision", "fast"), "fast")])
def test_run_takes_it_and_names_it(file: Path, options: tuple[str, ...], precision: str) -> None:
    found, _ = invoke("run", file, "we were", *TURN, *options)
    assert found["precision"] == found["model"]["precision"] == precision


def test_bench_names_it(file: Path) -> None:
    found, _ = invoke("bench", file, "--device", "host", "--prompt", 4, "--answer", 2, "--fast")
    assert found["precision"] == "fast" and [row["work"] for row in found["results"]] == ["prefill 4 tokens", "decode 2 tokens"]


def test_inspect_shows_it(file: Path) -> None:
    for options, count in (((), 0), (("--fast",), 1)):
        found, _ = invoke("inspect", file, "--device", "host", "--context", 64, *options)
        assert json.dumps(found).count("precision fast") >= count
        assert ("precision fast" in found["step"]) == bool(count)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("run", "MODEL", "hi", "--precision", "best"), "there is no precision 'best'; one of exact fast f16 bf16"),
        (("run", "MODEL", "hi", "--fast", "--precision", "exact"), "--fast and --precision exact contradict each other"),
        (("chat", "MODEL", "--precision", "8"), "there is no precision '8'"),
        (("embed", "MODEL", "text", "--precision", "8"), "there is no precision '8'"),
        (("rerank", "MODEL", "query", "text", "--precision", "8"), "there is no precision '8'"),
        (("classify", "MODEL", "text", "--precision", "8"), "there is no precision '8'"),
        (("export", "MODEL", "--bundle", "out", "--precision", "8"), "there is no precision '8'"),
        (("inspect", "MODEL", "--precision", "8"), "there is no precision '8'"),
        (("bench", "ops", "--fast"), "bench ops runs no model, which would have a precision"),
    ],
)
def test_what_makes_no_sense_is_refused(args: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, args)
    assert isinstance(done.exception, PumiceError) and said in f"{done.exception.message}; {done.exception.hint}"


def test_a_model_without_quantised_weights_says_so_in_plain_words(file: Path) -> None:
    done = pumice("run", file.parent / "llama256", "we were", *TURN, "--fast", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["precision"] == "exact"
    assert "pumice: the precision fast has no effect on" in done.stderr and "Warning" not in done.stderr


def test_people_see_it_in_the_line_about_speed(file: Path) -> None:
    done = CliRunner().invoke(app, [*map(str, ("run", file, "we were", *TURN)), "--fast"])
    assert done.exit_code == 0 and done.stderr.splitlines()[-1].endswith("on host, precision fast")


# -- the note ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A home where nothing was said yet, and a processor that gains from bytes."""
    monkeypatch.setattr(HostDevice, "multiplies_bytes", True)
    with config.override(home=tmp_path / "home"):
        yield


@pytest.fixture(scope="module")
def model(file: Path) -> Iterator[Any]:
    with pm.load(file, device="host", context=64, slots=1) as loaded:
        yield loaded


def test_the_note_is_given_once_for_each_home(model: Any, own_home: None, tmp_path: Path) -> None:
    assert fast_notice(model, at_terminal=True).startswith("note: --fast rounds activations to 8 bits")
    assert fast_notice(model, at_terminal=True) == ""
    with config.override(home=tmp_path / "other"):
        assert fast_notice(model, at_terminal=True)


def test_no_note_where_it_would_not_help(model: Any, own_home: None, monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    assert fast_notice(model, at_terminal=False) == ""
    monkeypatch.setattr(model.engine.weights, "precision", "fast")  # it is used already
    assert fast_notice(model, at_terminal=True) == ""
    monkeypatch.setattr(model.engine.weights, "precision", "exact")
    monkeypatch.setattr(HostDevice, "multiplies_bytes", False)
    assert fast_notice(model, at_terminal=True) == ""
    monkeypatch.setattr(HostDevice, "multiplies_bytes", True)
    with pm.load(file.parent / "llama256", device="host", context=64, slots=1) as dense:
        assert fast_notice(dense, at_terminal=True) == ""
    assert fast_notice(model, at_terminal=True) != ""


def test_no_note_without_a_place_to_note_it_down(model: Any, own_home: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with config.override(home=tmp_path / "file"), pytest.warns(PumiceWarning, match="cannot be written"):
        assert fast_notice(model, at_terminal=True) == ""
