"""Standard streams that are closed, or cannot take what is written: one line says so, and no traceback."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cli_harness import RUN, command, environment, pumice, refused
from tiny_models import checkpoint

FULL = Path("/dev/full")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("model"))


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_under_stdout_is_one_line(model: Path, more: tuple[str, ...]) -> None:
    line = command("run", model, "w5 w6", "--max-tokens", 4, *RUN, *more)
    for words in (line, command("models", *more)):
        with FULL.open("w") as full:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=environment(), text=True
            )
        assert done.returncode == 1 and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
        said = done.stderr.splitlines()[-1]
        assert said.startswith("pumice: the output cannot be written: No space left on device; free some space")


def test_a_pipe_that_nobody_reads_is_no_error_of_ours(model: Path) -> None:
    words = command("run", model, "w5 w6", "--max-tokens", 4, "--json", *RUN)
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as going:
        assert going.stdout is not None and going.stderr is not None
        going.stdout.close()
        assert going.stderr.read() == b""
    assert going.returncode == 1


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "2>&- <&-"])
def test_closed_streams_change_nothing(model: Path, closed: str) -> None:
    words = command("run", model, "w5 w6", "--max-tokens", 4, "--temperature", 0, *RUN)
    done = subprocess.run(["bash", "-c", f'"$@" {closed}', "bash", *words], capture_output=True, env=environment(), text=True)
    assert done.returncode == 0
    assert done.stdout == pumice(*words[3:]).stdout != ""


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs a folder in which even root makes nothing")
def test_paths_that_nothing_looked_at_are_named() -> None:
    refused(pumice("pack", "new", "/proc/mine"), "pumice: /proc/mine cannot be used: No such file or directory; check the path")
    shown = pumice("pack", "new", "/proc/mine", PUMICE_DEBUG="1")
    assert shown.returncode == 1 and "Traceback" in shown.stderr


def test_mcp_does_not_serve_what_is_no_model() -> None:
    for option in ("--model", "--embedder", "--reranker"):
        refused(pumice("mcp", "serve", option, "nosuch"), "there is no model 'nosuch'")
