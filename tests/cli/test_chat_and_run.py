"""`pumice chat` in a terminal, what `pumice run` makes of standard input, and what is refused before a model is loaded."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from cli_harness import RUN, command, environment, pumice, refused
from pumice import config
from pumice.cli.text_input import whole_prompt
from pumice.llm.model import DEFAULT_MAX_TOKENS
from pumice.llm.requests import SamplingParams
from tiny_models import TEMPLATE, checkpoint

TURN = ("--temperature", 0, "--max-tokens", 4)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("causal"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a chat template."""
    return checkpoint("llama", tmp_path_factory.mktemp("bare"))


def answer_to(model: Path, *args: object, stdin: bytes = b"") -> str:
    done = pumice("run", model, *args, *RUN, *TURN, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["text"])


def test_drafts_give_the_same_answer_and_are_counted(causal: Path, bare: Path) -> None:
    want = answer_to(causal, "w5 w6 w5 w6")
    for draft in ("lookup", bare):
        done = pumice("run", causal, "w5 w6 w5 w6", "--draft", draft, *RUN, *TURN, "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["text"] == want and {"drafted", "accepted", "acceptance_rate"} <= found["timings"].keys()
    shown = pumice("run", causal, "w5 w6 w5 w6", "--draft", bare, *RUN, *TURN)
    assert re.search(r"\d+ of \d+ drafts accepted", shown.stderr)


# --- a terminal ---


class Terminal:
    """A command on a pseudo-terminal; `seen` is all it wrote so far."""

    def __init__(self, child: int, master: int) -> None:
        self.child, self.master, self.seen, self._from = child, master, "", 0

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, pattern: str) -> str:
        """What was written up to the pattern, since the last wait; an end without it fails."""
        until = time.monotonic() + 120
        while (found := re.compile(pattern).search(self.seen, self._from)) is None:
            assert time.monotonic() < until, f"{pattern!r} did not come: {self.seen!r}"
            if select.select([self.master], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.master, 4096).decode()
                except OSError:
                    pytest.fail(f"the command ended: {self.seen!r}")
        text, self._from = self.seen[self._from : found.end()], found.end()
        return text


@contextmanager
def terminal(*args: object) -> Iterator[Terminal]:
    import pty

    child, master = pty.fork()
    if child == 0:
        os.execve(sys.executable, command(*args), environment(TERM="xterm"))
    try:
        yield Terminal(child, master)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(master)


needs_terminal = pytest.mark.skipif(
    sys.platform == "win32" or importlib.util.find_spec("readline") is None, reason="needs pseudo-terminals and readline"
)


@needs_terminal
def test_lines_are_edited_and_recalled(causal: Path) -> None:
    up, left, home = "\x1b[A", "\x1b[D", "\x01"
    first, second = answer_to(causal, "w5"), answer_to(causal, "w5 w6")
    with terminal("chat", causal, *RUN, *TURN) as chat:
        chat.wait_for("> ")
        chat.type("w7" + left + "\x04" + "5" + left + left + "\x7f" + "\r")  # 7 is overwritten by 5; nothing to delete before
        assert first in chat.wait_for(r"cut after 4 tokens[^>]*> ")
        chat.type("/reset\r")
        chat.wait_for("forgotten\r\n.*> ")
        chat.type(up + up + " w6" + "\r")
        assert second in chat.wait_for(r"cut after 4 tokens[^>]*> ")
        chat.type("/reset\r")
        chat.wait_for("forgotten\r\n.*> ")
        chat.type("w6" + home + "w5 \r")
        assert second in chat.wait_for(r"cut after 4 tokens[^>]*> ")


@needs_terminal
@pytest.mark.parametrize("device", ["host", "auto"])  # to choose, auto opens GPU drivers, and some of them bring libedit
def test_a_pasted_text_of_several_lines_is_one_message(causal: Path, device: str) -> None:
    want = answer_to(causal, "w5\nw6")
    with terminal("chat", causal, *TURN, "--device", device, "--context", 64) as chat:
        chat.wait_for("> ")
        chat.type("\x1b[200~w5\nw6\x1b[201~")
        chat.type("\r")
        assert want in chat.wait_for(r"cut after 4 tokens[^>]*> ")


@needs_terminal
def test_similarities_are_shown_where_someone_looks(tmp_path: Path) -> None:
    encoder = checkpoint("bert", tmp_path, closing=True)
    texts = ("w5 w6", "w7", "w5 w6")
    vectors = np.array(json.loads(pumice("embed", encoder, *texts, "--device", "host", "--json").stdout)["embeddings"])
    with terminal("embed", encoder, *texts, "--device", "host") as shown:
        rows = [line.split() for line in shown.wait_for(r"3 vectors of").splitlines()[-4:-1]]
    assert [row[4:] for row in rows] == [t.split() for t in texts]
    np.testing.assert_allclose([[float(v) for v in row[1:4]] for row in rows], vectors @ vectors.T, atol=0.0051)


# --- chat without one ---


def chat_with(model: Path, lines: str, *options: object) -> tuple[list[str], str]:
    """What each message was answered, and stderr."""
    done = pumice("chat", model, *RUN, *TURN, *options, stdin=lines.encode())
    assert done.returncode == 0, done.stderr
    return done.stdout.replace("... ", "").split("> ")[1:], done.stderr


def test_messages_of_several_lines(causal: Path) -> None:
    want = answer_to(causal, "w5\nw6")
    for text in ("w5\\\nw6\n", '"""w5\nw6"""\n', '"""\nw5\nw6\n"""\n'):
        answers, _ = chat_with(causal, text)
        assert answers[0].rstrip() == want, text
    assert chat_with(causal, '"""w5"""\n')[0][0].rstrip() == answer_to(causal, "w5")


def test_only_commands_start_with_a_slash(causal: Path) -> None:
    answers, said = chat_with(causal, "/usr/share/w5\n/reset\n/w5 w6\n/reset\n /help\n/rest\n/help\n")
    assert [a.rstrip() for a in answers[:5:2]] == [answer_to(causal, t) for t in ("/usr/share/w5", "/w5 w6", "/help")]
    assert said.count("there is no command") == 1 and "there is no command /rest" in said
    assert said.count("/reset forgets the conversation") == 3  # at the start, with the error, and as asked


def test_a_beam_search_has_no_speed_of_the_prompt(causal: Path) -> None:
    done = pumice("run", causal, "w5 w6", "--beams", 2, "--max-tokens", 4, *RUN)
    assert done.returncode == 0 and re.search(r"prompt \d+, first after", done.stderr)
    assert re.search(r"prompt \d+ at \d+/s, first after", pumice("run", causal, "w5 w6", *TURN, *RUN).stderr)


def test_a_cut_answer_has_a_mark(causal: Path) -> None:
    _, said = chat_with(causal, "w5\n")
    assert "[cut after 4 tokens; a larger --max-tokens lets it go on]" in said
    done = pumice("run", causal, "w5", "--device", "host", "--context", 16, "--temperature", 0, "--max-tokens", 500)
    assert "a larger --context lets it go on]" in done.stderr
    ended = pumice("run", causal, "w5", *RUN, *TURN, "--stop", "w")
    assert ended.returncode == 0 and "[cut" not in ended.stderr


def test_a_model_without_a_template_continues_the_text(bare: Path) -> None:
    first = answer_to(bare, "w5", "--raw")
    second = answer_to(bare, f"w5\n{first}\nw6", "--raw")
    answers, said = chat_with(bare, "w5\nw6\n/system x\n")
    assert [a.rstrip() for a in answers[:2]] == [first, second]
    assert "note: this model has no chat template" in said and "no place for a system text" in said
    done = pumice("chat", bare, *RUN, "--system", "x")
    assert done.returncode == 2 and "leave --system out" in done.stderr


# --- run ---


def test_what_is_piped_in_follows_the_prompt(causal: Path) -> None:
    assert answer_to(causal, "w5", stdin=b"w6 w7\n") == answer_to(causal, "w5\n\nw6 w7")
    assert answer_to(causal, stdin=b"w6 w7\n") == answer_to(causal, "w6 w7") == answer_to(causal, "-", stdin=b"w6 w7")
    assert answer_to(causal, "w5", stdin=b" \n") == answer_to(causal, "w5")
    refused(pumice("run", causal, *RUN), "there is no prompt")


def test_the_newline_at_the_end_of_a_file_is_no_part_of_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of tiny models are told apart by any space; these are the texts themselves."""
    for given, raw, want in (("-", False, "w5\nw6"), ("-", True, "w5\nw6\n\n"), ("a", False, "a\n\nw5\nw6")):
        with tempfile.TemporaryFile("w+") as file:
            file.write("w5\nw6\n\n")
            file.seek(0)
            monkeypatch.setattr(sys, "stdin", file)
            assert whole_prompt(given, raw=raw) == want


@pytest.mark.skipif(sys.platform == "win32", reason="pipes cannot be polled on Windows")
def test_an_input_that_stays_open_is_named(causal: Path) -> None:
    args = command("run", causal, "w5", *RUN, *TURN)
    with subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as p:
        assert p.stdin and p.stderr
        assert b"waiting for standard input to end" in p.stderr.readline()
        p.stdin.close()
        assert p.wait(60) == 0


def test_log_probabilities_are_shown(causal: Path) -> None:
    told = json.loads(pumice("run", causal, "w5", *RUN, *TURN, "--logprobs", 2, "--json").stdout)["logprobs"]
    done = pumice("run", causal, "w5", *RUN, *TURN, "--logprobs", 2)
    lines = [line.split() for line in done.stderr.splitlines() if re.match(r" +-\d+\.\d{3}  '", line)]
    assert [(float(line[0]), line[1]) for line in lines] == [(round(t["logprob"], 3), repr(t["token"])) for t in told]
    assert "'" not in done.stdout


def test_options_are_refused_before_a_model_is_looked_for() -> None:
    for words, said in (
        (["run", "--top-p", 7], "top_p is 7"),
        (["run", "--stop", ""], "'' is not a stop string"),
        (["run", "--cache-dtype", "i8"], "cache_dtype is 'i8'"),
        (["chat", "--max-tokens", 0], "max_tokens is 0"),
        (["run", "--device", "gpu"], "auto, host, webgpu[:N|:NAME] or vulkan[:N|:NAME]"),
    ):
        done = pumice(words[0], "no/such/model", *(["x"] if words[0] == "run" else []), *words[1:])
        refused(done, said)
        assert "no/such" not in done.stderr and "null" not in done.stderr


def test_the_cache_dtype_is_taken(causal: Path) -> None:
    assert answer_to(causal, "w5", "--cache-dtype", "q8") == answer_to(causal, "w5")


def test_a_run_is_answered_from_the_cache(causal: Path, tmp_path: Path) -> None:
    home = str(tmp_path)
    (tmp_path / "kernels").symlink_to(config.home / "kernels")  # compiled before
    first, second, shown = (
        pumice("run", causal, "w5 w6", *RUN, *TURN, "--cache", *more, PUMICE_HOME=home) for more in (("--json",), ("--json",), ())
    )
    found = [json.loads(done.stdout) for done in (first, second)]
    assert [f["cached"] for f in found] == [False, True]
    assert len({(f["text"], tuple(f["tokens"]), f["finish_reason"]) for f in found}) == 1
    assert shown.stdout == found[0]["text"] + "\n" and "4 tokens of an earlier run, from the cache" in shown.stderr


def test_a_cache_that_does_not_go_with_other_options_is_refused(causal: Path, tmp_path: Path) -> None:
    for more, said in (
        (("--receipt", tmp_path / "a.json"), "--receipt and --cache do not go together"),
        (("--profile", tmp_path / "a.json"), "--profile and --cache do not go together"),
        (("--server", "http://127.0.0.1:9"), "--cache and --server do not go together"),
    ):
        refused(pumice("run", "no/such/model", "w5", *TURN, "--cache", *more, PUMICE_HOME=str(tmp_path)), said)
    done = pumice("run", causal, "w5", *RUN, "--cache")
    refused(done, "the answer is drawn at temperature 0.8")


def test_a_missing_tokenizer(causal: Path, tmp_path: Path) -> None:
    shutil.copytree(causal, tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").unlink()
    refused(pumice("run", tmp_path / "m", "w5", *RUN), "there is no tokeniser")


def test_help_shows_the_defaults() -> None:
    shown = " ".join(pumice("run", "--help").stdout.split())
    params = SamplingParams()
    for name in ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty"):
        text = shown[shown.index(f"--{name.replace('_', '-')} ") :]
        assert text[: text.index("--", 2)].rstrip().endswith(f"(the model's own, else {getattr(params, name)})]"), name
    assert f"(the model's own, else {DEFAULT_MAX_TOKENS})]" in shown and "[default: 2048; x>=1]" in shown
    top = " ".join(pumice("--help").stdout.split())
    assert "3 no usable device" in top and "5 no network" in top
