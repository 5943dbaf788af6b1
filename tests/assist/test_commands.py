"""The assistant on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pumice.cli.main import app
from pumice.errors import InputError, UnknownName


def pumice(*args: str, text: str | None = None) -> str:
    done = CliRunner().invoke(app, list(args), input=text)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_skills_are_listed_and_run(model_folder: Path, tmp_path: Path) -> None:
    listed = json.loads(pumice("skill", "list", "--json", "--skills", str(tmp_path)))
    assert [s["name"] for s in listed["skills"]] == ["classify", "extract", "summarise", "title", "translate"]
    common = ("skill", "run", str(model_folder), "classify")
    given = ("fine", "-i", "labels=good, bad", "--device", "host", "--seed", "3")
    answer = json.loads(pumice(*common, *given, "--json"))
    assert answer["skill"] == "classify" and answer["text"] in ("good", "bad")
    assert pumice(*common, *given).strip() == answer["text"]
    with pytest.raises(UnknownName, match="no skill"):
        pumice("skill", "run", str(model_folder), "nothing", "x")
    with pytest.raises(InputError, match="NAME=TEXT"):
        pumice(*common, "fine", "-i", "labels")
    with pytest.raises(UnknownName, match="no input"):
        pumice(*common, "fine", "-i", "colour=red")


def test_chats_with_tools(model_folder: Path, tmp_path: Path) -> None:
    tools = tmp_path / "mine.py"
    tools.write_text("def twice(a: int) -> int:\n    'Twice.'\n    return 2 * a\n")
    common = ("chat", str(model_folder), "--device", "host", "--max-tokens", "20", "--tools", str(tools))
    done = CliRunner().invoke(app, [*common, "--skill", "title"], input="Hi\n/undo\n/quit\n")
    assert done.exit_code == 0, done.output
    assert "tools: twice (asks), skill_title" in done.stderr and "forgotten: Hi" in done.stderr
    for more, words in (
        (["--receipt", str(tmp_path / "r.json")], "do not go together"),
        (["--skill", "nothing"], "no skill"),
        (["--tools", str(tmp_path / "none.py")], "no file"),
        (["--root", str(tmp_path / "none")], "no folder"),
    ):
        with pytest.raises(InputError, match=words):
            pumice(*common, *more, text="")


def test_folders_are_indexed_and_asked(model_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "home.md").write_text("# Tea\n\nThe kettle is red.\n")
    with pytest.raises(InputError, match="not indexed"):
        pumice("ask", str(folder), "kettle")
    report = json.loads(pumice("index", str(folder), "--embedder", "none", "--json"))
    assert report["added"] == ["home.md"] and report["embedder"] is None
    assert "0 added, 0 changed, 0 removed, 1 unchanged" in pumice("index", str(folder))
    assert pumice("ask", str(folder), "Where is the kettle?", "--passages").startswith("[1] home.md:1 (Tea)\n# Tea\n")
    common = ("ask", str(folder), "Where is the kettle?", "--model", str(model_folder), "--device", "host", "--max-tokens", "5")
    assert pumice(*common).endswith("\n[1] home.md:1\n")
    answer = json.loads(pumice(*common, "--json"))
    assert answer["passages"][0]["line"] == 1 and answer["usage"]["completion_tokens"] == 5
    assert pumice("ask", str(folder), "elephants", "--passages") == "nothing found\n"
