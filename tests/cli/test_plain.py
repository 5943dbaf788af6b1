"""Plain command lines mean the same whether typer reads them or not, and all others are left to it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import typer

from pumice.cli import main, plain

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


def test_a_plain_line_does_not_import_pydantic() -> None:
    code = "import sys; from pumice.cli.main import main\ntry: main()\nexcept SystemExit as e: print(e.code, *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "no-such-model", "hello"],
        capture_output=True,
        text=True,
        cwd=ROOT / "src",
        check=True,
    )
    code, *modules = done.stdout.split()
    assert code == "2" and "typer" in modules and "pydantic" not in modules and "no-such-model" in done.stderr
