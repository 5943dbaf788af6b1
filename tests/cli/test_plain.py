"""Plain command lines mean the same whether typer reads them or not, and all others are left to it."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

from pumice import config
from pumice.cli import kept_lines, main, plain, run_line

ROOT = Path(__file__).parents[2]


def read_by_typer(words: list[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that typer gives to the command, defaults and all."""
    seen: dict[str, Any] = {}
    for command in main.app.registered_commands:
        if command.callback is not None and command.callback.__name__ == words[0]:
            original = command.callback

            def note(**given: Any) -> None:
                seen.update(given)

            hints, signature = get_type_hints(original, include_extras=True), inspect.signature(original)
            parameters = [p.replace(annotation=hints[n]) for n, p in signature.parameters.items()]
            note.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
            note.__annotations__ = hints
            note.__name__ = original.__name__
            monkeypatch.setattr(command, "callback", note)
    typer.main.get_command(main.app).main(words, standalone_mode=False)
    return seen


@pytest.mark.parametrize(
    "words",
    [
        ["run", "smollm2", "hello"],
        ["run", "smollm2", "-", "--device", "host", "--json", "--temperature", "0", "--top-p", ".9", "--seed", "12"],
        ["run", "--max-tokens", "-1", "smollm2", "--raw", "hello", "--system", "be brief"],
        ["run", "smollm2", "x", "--stop", "a", "--stop", "b", "--seed", "1", "--seed", "2", "--profile", "trace.json"],
        ["run", "smollm2", ""],
        ["chat", "smollm2", "--context", "64", "--min-p", "1e-2"],
        ["embed", "minilm", "--json", "a", "b", "-f", "texts.txt", "--npy", "out.npy"],
        ["embed", "minilm"],
        ["bench"],
        ["bench", "smollm2", "--prompt", "8"],
        ["pull", "smollm2", "--verify"],
        ["doctor", "--json"],
    ],
    ids=" ".join,
)
def test_the_same_values(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    action: Any = plain.bind(main.app, words)
    assert action is not None
    defaults = {n: p.default for n, p in inspect.signature(action.func).parameters.items()}
    ours = {**defaults, **action.keywords}
    theirs = read_by_typer(words, monkeypatch)
    assert ours == theirs
    assert {n: type(v) for n, v in ours.items()} == {n: type(v) for n, v in theirs.items()}


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--version"],
        ["--help"],
        ["nope"],
        ["models"],
        ["run"],
        ["run", "smollm2", "x", "y"],
        ["run", "smollm2", "x", "--help"],
        ["run", "smollm2", "x", "--nope", "1"],
        ["run", "smollm2", "x", "--seed"],
        ["run", "smollm2", "x", "--seed", "one"],
        ["run", "smollm2", "x", "--seed=1"],
        ["run", "smollm2", "x", "--context", "0"],
        ["run", "smollm2", "x", "--temperature", "nan"],
        ["run", "smollm2", "x", "--system", "--raw"],
        ["run", "smollm2", "--", "-x"],
        ["run", "smollm2", "-x"],
    ],
    ids=" ".join,
)
def test_left_to_typer(words: list[str]) -> None:
    assert plain.bind(main.app, words) is None


def start(home: Path, *words: str) -> tuple[list[str], str]:
    """The exit code of a command line and the modules that it imported; what it said on stderr."""
    code = "import sys; from pumice.cli.main import main\ntry: main()\nexcept SystemExit as e: print(e.code, *sys.modules)"
    env = {**os.environ, "PUMICE_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=ROOT / "src", check=True, env=env
    )
    return done.stdout.split(), done.stderr


def test_a_plain_line_imports_no_pydantic_and_the_next_one_no_typer(tmp_path: Path) -> None:
    for is_first in (True, False):
        (code, *modules), said = start(tmp_path, "run", "no-such-model", "hello")
        assert code == "2" and "pydantic" not in modules and "no-such-model" in said
        assert ("typer" in modules) == ("pumice.cli.app" in modules) == is_first


def test_what_kept_parameters_do_not_read_goes_to_typer(tmp_path: Path) -> None:
    start(tmp_path, "run", "no-such-model", "hello")
    (code, *modules), said = start(tmp_path, "run", "no-such-model", "hello", "--nope")
    assert code == "2" and "typer" in modules and "--nope" in said
    shown, _ = start(tmp_path, "env")
    assert "PUMICE_HOME" in shown and "typer" in shown


@pytest.mark.parametrize(
    "words",
    [
        ["smollm2", "-", "--device", "host", "--json", "--temperature", "0", "--top-p", ".9", "--seed", "12"],
        ["--max-tokens", "-1", "smollm2", "--raw", "hello", "--stop", "a", "--stop", "b", "--profile", "trace.json"],
        ["smollm2", "x", "--context", "0"],
        ["smollm2", "x", "--seed", "one"],
    ],
    ids=" ".join,
)
def test_kept_parameters_read_the_same_values(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def note(**given: Any) -> int:
        seen.append(given)
        return 0

    monkeypatch.setattr(run_line, "run_line", note)
    with config.override(home=tmp_path):
        action: Any = plain.bind(main.app, ["run", "smollm2"])
        kept_lines.keep_parameters(*plain.parameters_of(action.func))
        wanted: Any = plain.bind(main.app, ["run", *words])
        if wanted is None:
            assert not kept_lines.run_kept(["run", *words]) and not seen
            return
        for run in (lambda: kept_lines.run_kept(["run", *words]), wanted):
            with pytest.raises((SystemExit, typer.Exit)):
                run()
    assert seen[0] == seen[1] and {n: type(v) for n, v in seen[0].items()} == {n: type(v) for n, v in seen[1].items()}


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (EOFError(), 1)], ids=["ctrl-c", "ctrl-d"])
def test_a_kept_line_ends_as_typer_ends_it(
    error: BaseException, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**given: Any) -> int:
        raise error

    monkeypatch.setattr(run_line, "run_line", fail)
    with config.override(home=tmp_path):
        action: Any = plain.bind(main.app, ["run", "smollm2"])
        kept_lines.keep_parameters(*plain.parameters_of(action.func))
        for run in (lambda: kept_lines.run_kept(["run", "smollm2"]), lambda: plain.run(action)):
            with pytest.raises(SystemExit) as ended:
                run()
            assert ended.value.code == code


def test_a_closed_pipe_ends_a_kept_line_quietly(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pumice.cli import kept_lines, main, run_line\n"
        "def answer(**given):\n"
        "    for _ in range(10_000): print('word' * 100, flush=True)\n"
        "    return 0\n"
        "run_line.run_line = answer\nmain.main()"
    )
    start(tmp_path, "run", "no-such-model", "hello")
    env = {**os.environ, "PUMICE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", code, "run", "smollm2", "x"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT / "src", env=env) as child:
        assert child.stdout is not None and child.stderr is not None
        child.stdout.readline()
        child.stdout.close()
        assert (child.stderr.read(), child.wait(timeout=60)) == (b"", 1)
