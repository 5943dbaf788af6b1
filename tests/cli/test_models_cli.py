"""`pumice run`, `chat`, `embed` and `bench` end to end, on tiny checkpoints and on the real models."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cli_harness import RUN, command, environment, pumice, refused
from pumice.sources import present
from tiny_models import GOLDENS, TEMPLATE, checkpoint


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = checkpoint("llama", tmp_path_factory.mktemp("causal"))
    (made / "chat_template.jinja").write_text(TEMPLATE)
    return made


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("bert", tmp_path_factory.mktemp("encoder"), closing=True)


def test_run_prints_one_object(causal: Path) -> None:
    args = ("run", causal, "w5 w17 w9", *RUN, "--max-tokens", 6, "--temperature", 0, "--json", "--logprobs", 2)
    done = pumice(*args)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    out = json.loads(done.stdout)
    settings = {"seed", "sampling", "precision", "device", "model"}
    assert (
        set(out) == {"text", "tokens", "finish_reason", "usage", "timings", "logprobs", "cached"} | settings and not out["cached"]
    )
    assert out["usage"]["completion_tokens"] == len(out["tokens"]) == len(out["logprobs"]) and out["device"]["target"] == "host"
    assert {"load_s", "prefill_tok_s", "decode_tok_s"} <= set(out["timings"]) and out["model"]["architecture"] == "llama"
    again = json.loads(pumice(*args).stdout)
    assert again["tokens"] == out["tokens"] and again["text"] == out["text"]


def test_run_streams_and_says_how_fast(causal: Path) -> None:
    done = pumice("run", causal, "w5 w17 w9", *RUN, "--max-tokens", 6, "--temperature", 0)
    told = json.loads(pumice("run", causal, "w5 w17 w9", *RUN, "--max-tokens", 6, "--temperature", 0, "--json").stdout)
    assert done.returncode == 0 and done.stdout == told["text"] + "\n"
    assert "prompt 5 at" in done.stderr and done.stderr.rstrip().endswith("on host")


def test_a_seed_decides_the_answer(causal: Path) -> None:
    args = ("run", causal, "w5", *RUN, "--max-tokens", 12, "--temperature", 1.5, "--top-k", 0, "--json", "--seed")
    first, again, other = (json.loads(pumice(*args, seed).stdout)["tokens"] for seed in (7, 7, 8))
    assert first == again != other


def test_the_prompt_from_standard_input(causal: Path) -> None:
    args = ("run", causal, "-", *RUN, "--max-tokens", 4, "--temperature", 0, "--json", "--raw")
    given = json.loads(pumice("run", causal, "w5 w6", *args[3:]).stdout)
    assert json.loads(pumice(*args, stdin=b"w5 w6\n").stdout)["tokens"] == given["tokens"]
    # A locale that lets bad bytes through and one that does not: the same line.
    for encoding in ("utf-8:surrogateescape", "utf-8:strict"):
        refused(pumice(*args, stdin=b"w5 \xff", PYTHONIOENCODING=encoding), "standard input is not UTF-8: byte 3 is 0xff")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--temperature", "nan"], "temperature is nan"),
        (["--max-tokens", "-1"], "max_tokens is -1; ask for at least 1"),
        (["--max-tokens", "100000", "--strict"], "the context holds 64; ask for at most 61 tokens"),
        (["--context", "2"], "the context holds 2; shorten the prompt"),
        (["--context", "0"], "--context"),
        (["--stop", ""], "'' is not a stop string"),
        (["--device", "gpu"], "there is no device 'gpu'"),
        (["--seed", "-1"], "seed is -1"),
        (["--nope"], "--nope"),
        (["--raw", "--system", "x", "--logprobs", "21"], "logprobs is 21"),
    ],
)
def test_bad_options(causal: Path, options: list[str], said: str) -> None:
    refused(pumice("run", causal, "w5", *RUN, "--json", *options), said)


def test_an_argument_that_is_no_text(causal: Path) -> None:
    refused(pumice("run", causal, b"w5 \xff", *RUN), "surrogate")


def test_an_adapter_that_is_not_there(causal: Path) -> None:
    refused(pumice("run", causal, "w5", "--device", "webgpu:99"), "99", code=3)


def test_a_terminal_that_cannot_show_the_answer(causal: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(causal, other)
    text = (other / "tokenizer.json").read_text("utf-8")
    for k in range(4, 100):
        text = text.replace(f'"w{k}"', f'"\N{GREEK SMALL LETTER OMEGA}{k}"')
    (other / "tokenizer.json").write_text(text, "utf-8")
    done = pumice("run", other, "x", *RUN, "--max-tokens", 4, "--temperature", 0, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "?" in done.stdout


def test_a_reader_that_leaves_early(causal: Path) -> None:
    args = command("run", causal, "w5", *RUN, "--max-tokens", 40, "--temperature", 0)
    with subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as p:
        assert p.stdout and p.stderr
        p.stdout.read(1)
        p.stdout.close()
        assert b"Traceback" not in p.stderr.read()


def test_chat_remembers_and_forgets(causal: Path) -> None:
    lines = b"w5\n/stats\nw6\n/nope\n/reset\nw5\n/system w9\nw5\n/quit\n"
    done = pumice("chat", causal, *RUN, "--temperature", 0, "--max-tokens", 4, stdin=lines)
    assert done.returncode == 0
    answers = [line.removeprefix("> ") for line in done.stdout.split("\n")]
    first = json.loads(pumice("run", causal, "w5", *RUN, "--temperature", 0, "--max-tokens", 4, "--json").stdout)["text"]
    assert answers[0] == first and first in answers[2] and "4 tokens at" in done.stderr
    assert "there is no command /nope" in done.stderr and "conversation forgotten" in done.stderr


def test_chat_says_when_the_context_is_full(causal: Path) -> None:
    done = pumice("chat", causal, *RUN, "--max-tokens", 30, stdin=b"w5\n" * 4)
    assert done.returncode == 0 and "the context holds 64" in done.stderr and "or /reset" in done.stderr


def test_embed_prints_one_object_a_table_or_a_file(encoder: Path, tmp_path: Path) -> None:
    done = pumice("embed", encoder, "w5 w6", "w7", "", "--device", "host", "--json")
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1
    out = json.loads(done.stdout)
    vectors = np.array(out["embeddings"])
    assert vectors.shape == (3, out["dim"]) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    table = pumice("embed", encoder, "w5 w6", "w7", "", "--device", "host").stdout
    assert np.allclose([[float(v) for v in line.split()] for line in table.splitlines()], vectors, atol=1e-5)
    (tmp_path / "lines.txt").write_bytes(b"w5 w6\r\n\nw7\x0cw8\n")
    saved = pumice("embed", encoder, "-f", tmp_path / "lines.txt", "--npy", tmp_path / "v.npy", "--device", "host")
    assert saved.returncode == 0 and saved.stdout == "" and "2 vectors" in saved.stderr
    assert np.allclose(np.load(tmp_path / "v.npy")[0], vectors[0], atol=1e-6)


def test_embed_refusals(encoder: Path, causal: Path, tmp_path: Path) -> None:
    refused(pumice("embed", encoder, "--device", "host"), "there is no text to embed")
    refused(pumice("embed", encoder, "-f", tmp_path / "none", "--device", "host"), "cannot be read")
    refused(pumice("embed", encoder, "-f", "-", "--device", "host", stdin=b"\xff"), "standard input is not UTF-8")
    refused(pumice("embed", encoder, "w5", "--npy", tmp_path / "no" / "v.npy", "--device", "host"), "cannot be written")
    refused(pumice("embed", causal, "w5", *RUN[:2]), f"cannot do the task 'embed', it can generate; pumice run {causal} …")
    refused(pumice("run", encoder, "w5", *RUN), f"cannot do the task 'generate', it can embed; pumice embed {encoder} …")


def test_bench(causal: Path, encoder: Path) -> None:
    done = pumice("bench", causal, "--device", "host", "--prompt", 8, "--answer", 2, "--json")
    assert done.returncode == 0 and done.stdout.count("\n") == 1
    rows = json.loads(done.stdout)["results"]
    assert [r["work"] for r in rows] == ["prefill 8 tokens", "decode 2 tokens"]
    assert all(0 < r["rate_min"] <= r["rate"] <= r["rate_max"] and r["repeats"] == 5 for r in rows)
    assert re.search(r"texts/s +[\d.]+…[\d.]+ in 5 runs", pumice("bench", encoder, "--device", "host").stdout)
    for bad in (("--answer", 1), ("--prompt", 0)):
        refused(pumice("bench", causal, "--device", "host", *bad), bad[0])


def damaged(causal: Path, folder: Path, what: str) -> Path:
    made = folder / "model"
    shutil.copytree(causal, made)
    config = json.loads((made / "config.json").read_text())
    if what == "tokenizer":
        (made / "tokenizer.json").unlink()
    elif what == "architecture":
        config["model_type"] = "rwkv6"
    elif what == "shard":
        (made / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
        shutil.copy(GOLDENS / "llama" / "model.safetensors", made / "model-00001-of-00002.safetensors")
        (made / "model.safetensors.index.json").write_text(json.dumps(index))
    elif what == "renamed":
        shutil.copy(made / "model.safetensors", folder / "model.gguf")
        return folder / "model.gguf"
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("tokenizer", "there is no tokeniser"),
        ("architecture", "the architecture 'rwkv6' is not supported"),
        ("shard", "shards are missing"),
        ("renamed", "does not start with GGUF"),
    ],
)
def test_damaged_models(causal: Path, tmp_path: Path, what: str, said: str) -> None:
    refused(pumice("run", damaged(causal, tmp_path, what), "w5", *RUN), said)


def test_a_model_that_lacks_the_head_its_config_promises(tmp_path: Path) -> None:
    made = checkpoint("gemma2", tmp_path)
    config = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    refused(pumice("run", made, "w5", *RUN), "its config should say tie_word_embeddings: true")


@pytest.mark.parametrize(
    ("file", "text"),
    [("modules.json", '{"a": 1}'), ("modules.json", "[1]"), ("modules.json", "{"), ("sentence_bert_config.json", "[1]")],
)
def test_damaged_pooling_files(encoder: Path, tmp_path: Path, file: str, text: str) -> None:
    made = tmp_path / "model"
    shutil.copytree(encoder, made)
    (made / file).write_text(text)
    refused(pumice("embed", made, "w5", "--device", "host"), file)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, a folder in which nobody can make folders")
def test_a_cache_that_cannot_be_made() -> None:
    refused(pumice("run", "smollm2", "x", PUMICE_HOME="/proc/nowhere"), "cannot write to /proc/nowhere")


# -- the real models ------------------------------------------------------------------------------------------------
def here(name: str) -> str:
    if present(name) is None:
        pytest.skip(f"{name} is not in the cache: `pumice pull {name}`")
    return name


def test_smollm2_answers() -> None:
    done = pumice("run", here("smollm2"), "What is the capital of France?", "--temperature", 0, "--device", "host", "--json")
    out = json.loads(done.stdout)
    assert done.returncode == 0 and "Paris" in out["text"] and out["finish_reason"] == "stop"
    told = pumice("chat", "smollm2", "--temperature", 0, "--device", "host", stdin=b"What is the capital of France?\n")
    assert told.returncode == 0 and told.stdout.startswith("> " + out["text"])


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send on Windows")
@pytest.mark.parametrize("mode", ["run", "chat"])
def test_ctrl_c_stops_the_answer(mode: str) -> None:
    args = ["Tell me a very long story.", "--device", "host"] if mode == "run" else ["--device", "host"]
    with subprocess.Popen(
        command(mode, here("smollm2"), *args),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as p:
        assert p.stdin and p.stdout and p.stderr
        if mode == "run":
            p.stdin.close()  # else it would wait for the rest of its prompt
        if mode == "chat":
            p.stdin.write(b"Tell me a very long story.\n")
            p.stdin.flush()
        p.stdout.read(6)
        p.send_signal(signal.SIGINT)
        if mode == "chat":
            p.stdin.write(b"/stats\n")
            p.stdin.close()
        p.stdout.read()
        said = p.stderr.read()
    if mode == "run":
        assert p.returncode == 130 and said.splitlines()[-1] == b"pumice: interrupted"
    else:
        assert p.returncode == 0 and b"tokens at" in said


def test_minilm_embeds() -> None:
    out = json.loads(pumice("embed", here("minilm"), "a cat", "a kitten", "a bank loan", "--device", "host", "--json").stdout)
    cat, kitten, loan = np.array(out["embeddings"])
    assert out["dim"] == 384 and cat @ kitten > 0.7 > 0.4 > cat @ loan
