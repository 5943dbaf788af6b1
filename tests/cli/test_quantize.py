"""`pumice quantize`: every architecture through GGUF and back, the errors of the formats, tokenisers, and refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from typer.testing import CliRunner

import pumice as pm
from conversion import golden, logits_of, relative, sentencepiece
from pumice.cli.main import app
from pumice.core import dtypes
from pumice.errors import InputError, PumiceError, UnknownName
from pumice.formats import TensorInfo, open_weights
from pumice.formats.gguf_writer import GgufWriter
from pumice.llm.quantize import TARGETS, QuantizeReport, choose_dtype, quantize_model
from pumice.models.registry import get_architecture
from pumice.text.gguf_export import export_tokenizer
from pumice.text.tokenizer import Tokenizer
from tiny_models import GOLDENS, byte_level, llama, write_tokenizer

Array = np.ndarray[Any, Any]
ROOT = Path(__file__).parents[2]
# GGUF cannot say these: a rope that grows with the text, windows in some layers of qwen2, a gemma with a scale of its own, norms
# within a mixer with an eps of their own, or of several groups together; and some architectures it does not have.
INEXPRESSIBLE = {
    "bamba": "cannot be converted",
    "falcon_first": "alibi",
    "falcon_mamba": "mixer_eps",
    "mamba2_groups": "norm_groups",
    "rwkv7": "cannot be converted",
    "gpt_oss": "cannot be converted",
    "ministral": "cannot be converted",
    "qwen3_moe_mixed": "dense_layers",
    "qwen3_next_mixed": "dense_layers",
    "opt": "cannot be converted",
    "opt_narrow": "cannot be converted",
    "llama_rope_dynamic": "dynamic",
    "qwen2_window": "sliding_window",
    "gemma3n": "cannot be converted",
    "gemma2": "attention_scale",
    "gemma3": "attention_scale",
}
# What llama.cpp would not open, or would compute otherwise.
LIMITS = {
    "cohere2": "attn_output.bias",
    "cohere_norms": "fewer than 64 layers",
    "deepseek_v2": "two best",
    "deepseek_v2_lite": "whole queries in 2 layers",
    "falcon_grouped": "attn_qkv.bias",
    "mistral": "no windows",
    "mixtral": "no windows",
    "olmoe": "2 key heads for 4 heads",
    "phi3": "no windows",
    "qwen3_next": "values of another width than keys",
}
# Every causal golden, so that a new architecture is tested as soon as it has one; a gemma is converted with the usual scale.
CAUSAL = sorted(
    p.parent.name
    for p in GOLDENS.glob("*/config.json")
    if get_architecture(json.loads(p.read_text())["model_type"]).kind == "causal"
    and INEXPRESSIBLE.get(p.parent.name) in (None, "attention_scale")
)


@pytest.mark.parametrize("name", CAUSAL)
def test_every_architecture_survives_the_conversion(name: str, tmp_path: Path) -> None:
    """As f32 nothing is lost: the GGUF file gives the logits that transformers gave for the checkpoint."""
    source, out = golden(name, tmp_path), tmp_path / "m.gguf"
    with open_weights(GOLDENS / name / "goldens.safetensors") as found:
        ids, wanted = found.array("prompt.40.ids"), found.array("prompt.40.logits")
        if name in INEXPRESSIBLE:
            config = json.loads((source / "config.json").read_text())
            (source / "config.json").write_text(json.dumps(config | {"query_pre_attn_scalar": config["head_dim"]}))
            wanted = logits_of(source, ids)
        report = quantize_model(source, to="f32", out=out)
        assert relative(logits_of(out, ids), wanted) < 1e-4
    assert report.relative_rmse == 0
    assert any(LIMITS[name] in note for note in report.notes) if name in LIMITS else not report.notes
    # What stays a float is f32, and the package sees the same tensors.
    reader = gguf.GGUFReader(out)
    assert {t.tensor_type.name for t in reader.tensors} == {"F32"}
    assert len(reader.tensors) == len(report.tensors)


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_gguf_cannot_say_is_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=INEXPRESSIBLE[name]):
        quantize_model(golden(name, tmp_path), to="f32", out=tmp_path / "m.gguf")
    assert not (tmp_path / "m.gguf").exists()


def test_encoders_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="'bert' cannot be converted"):
        quantize_model(golden("bert", tmp_path), to="q8_0", out=tmp_path / "m.gguf")


def test_checkpoints_of_other_quantisers_are_refused_by_name(tmp_path: Path) -> None:
    source = llama(tmp_path)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (source / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="gptq has quantised cannot be converted"):
        quantize_model(source, to="q8_0", out=tmp_path / "m.gguf")


# The most by which logits of the random llama may be off, relative to their size; about six times the weights' error at most.
LOGIT_ERRORS = {
    "f16": 1e-3, "bf16": 1e-2, "q8_0": 0.02, "q6_k": 0.05, "q5_k": 0.1, "q5_1": 0.1, "q5_0": 0.12, "q4_k": 0.2, "q4_1": 0.2,
    "q4_0": 0.22, "iq4_nl": 0.2, "iq4_xs": 0.2, "mxfp4": 0.3, "q3_k": 0.4, "q2_k": 0.7,
    "tq2_0": 1.5, "tq1_0": 1.5,
}  # fmt: skip


def test_a_quantised_model_answers_nearly_alike(tmp_path: Path) -> None:
    source = llama(tmp_path)
    ids = np.random.default_rng(1).integers(0, 128, 24)
    exact = logits_of(source, ids)
    errors = {}
    for to in LOGIT_ERRORS:
        out = tmp_path / f"{to}.gguf"
        report = quantize_model(source, to=to, out=out, pure=True)
        matrices = [t for t in report.tensors if len(t.shape) == 2]
        assert {t.dtype for t in matrices} == {to}
        assert all(t.bits == matrices[0].bits and 0 < t.relative_rmse < LOGIT_ERRORS[to] for t in matrices)
        errors[to] = relative(logits_of(out, ids), exact)
    assert all(errors[to] < bound for to, bound in LOGIT_ERRORS.items()), errors
    assert set(LOGIT_ERRORS) | {"f32"} == set(TARGETS)


def test_what_is_reported_is_what_the_file_holds(tmp_path: Path) -> None:
    source, out = llama(tmp_path), tmp_path / "m.gguf"
    seen: list[Any] = []
    progress: list[Any] = []
    report = quantize_model(source, to="q4_k", out=out, on_tensor=seen.append, progress=progress.append)
    assert report.tensors == seen
    assert report.bytes == out.stat().st_size
    assert (progress[-1].done, progress[-1].phase) == (progress[-1].total, "quantize")
    assert [p.done for p in progress] == sorted(p.done for p in progress)
    by_name = {t.name: t for t in report.tensors}
    assert {n: by_name[n].dtype for n in ("token_embd.weight", "output.weight", "blk.0.ffn_up.weight", "output_norm.weight")} == {
        "token_embd.weight": "q6_k", "output.weight": "q6_k", "blk.0.ffn_up.weight": "q4_k", "output_norm.weight": "f32",
    }  # fmt: skip
    with open_weights(source) as weights:
        wanted = weights.array("model.layers.0.mlp.up_proj.weight")
    tensor = next(t for t in gguf.GGUFReader(out).tensors if t.name == "blk.0.ffn_up.weight")
    missed = gguf.quants.dequantize(tensor.data, tensor.tensor_type) - wanted
    up = by_name["blk.0.ffn_up.weight"]
    assert up.rmse == pytest.approx(np.sqrt(np.mean(np.square(missed))), rel=1e-5)
    assert up.max_error == pytest.approx(np.abs(missed).max(), rel=1e-5)
    assert up.relative_rmse == pytest.approx(relative(missed + wanted, wanted), rel=1e-4)
    assert up.bits == 4.5
    total = sum(t.relative_rmse**2 * t.rms**2 * np.prod(t.shape) for t in report.tensors)
    size = sum(t.rms**2 * np.prod(t.shape) for t in report.tensors)
    assert report.relative_rmse == pytest.approx(np.sqrt(total / size))


def test_threads_do_not_change_the_file(tmp_path: Path) -> None:
    source = llama(tmp_path)
    for threads in (1, 3):
        quantize_model(source, to="q4_0", out=tmp_path / f"{threads}.gguf", threads=threads)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()
    with pytest.raises(InputError, match="0 threads"):
        quantize_model(source, to="q4_0", out=tmp_path / "0.gguf", threads=0)


def test_rows_that_do_not_fit_the_blocks_fall_back(tmp_path: Path) -> None:
    """The goldens have rows of 32 and 64, and qwen3 of 48: for q4_k the first take q5_0, the last f16."""
    report = quantize_model(golden("qwen3", tmp_path), to="q4_k", out=tmp_path / "m.gguf")
    found = {(t.shape[-1], t.dtype) for t in report.tensors if len(t.shape) == 2}
    assert found == {(48, "f16"), (64, "q5_0")}
    assert all("no multiple of" in t.note for t in report.tensors if len(t.shape) == 2)


@pytest.mark.parametrize(
    ("to", "name", "width", "pure", "chosen"),
    [
        ("q4_k", "blk.0.attn_q.weight", 512, False, "q4_k"),
        ("q2_k", "blk.0.attn_q.weight", 576, False, "iq4_nl"),
        ("q3_k", "blk.0.attn_q.weight", 576, False, "iq4_nl"),
        ("iq4_xs", "blk.0.attn_q.weight", 576, False, "iq4_nl"),
        ("iq4_xs", "output.weight", 512, False, "q6_k"),
        ("q5_k", "blk.0.attn_q.weight", 576, False, "q5_1"),
        ("q6_k", "blk.0.attn_q.weight", 576, False, "q8_0"),
        ("q8_0", "blk.0.attn_q.weight", 100, False, "f16"),
        ("q4_k", "token_embd.weight", 576, False, "q8_0"),
        ("q4_k", "token_embd.weight", 512, True, "q4_k"),
        ("q4_0", "output.weight", 512, False, "q8_0"),
        ("mxfp4", "output.weight", 512, False, "q8_0"),
        ("q6_k", "output.weight", 512, False, "q6_k"),
        ("bf16", "output.weight", 512, False, "bf16"),
        ("q4_0", "position_embd.weight", 512, False, "f16"),
        ("q4_0", "rope_factors_long.weight", 512, False, "f16"),
        ("q4_0", "blk.0.attn_q.bias", 512, False, "f16"),
    ],
)
def test_which_format_a_tensor_takes(to: str, name: str, width: int, pure: bool, chosen: str) -> None:
    assert choose_dtype(name, (8, width), dtypes.f16, dtypes.dtype(to), pure=pure)[0].name == chosen


def test_a_gguf_file_keeps_its_metadata(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    quantize_model(llama(tmp_path), to="f16", out=first)
    report = quantize_model(first, to="q8_0", out=second)
    assert not report.notes
    a, b = gguf.GGUFReader(first), gguf.GGUFReader(second)
    assert a.fields.keys() == b.fields.keys()
    changed = {k for k in a.fields if a.fields[k].contents() != b.fields[k].contents() or a.fields[k].types != b.fields[k].types}
    assert changed == {"general.file_type"}
    assert (a.fields["general.file_type"].contents(), b.fields["general.file_type"].contents()) == (1, 7)
    assert [t.name for t in a.tensors] == [t.name for t in b.tensors]


def test_the_sampling_defaults_of_a_folder_are_kept(tmp_path: Path) -> None:
    source, out = llama(tmp_path), tmp_path / "a.gguf"
    (source / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_k": 20, "max_new_tokens": 5}))
    quantize_model(source, to="q8_0", out=out)
    fields = gguf.GGUFReader(out).fields
    assert {k: round(fields[k].contents(), 6) for k in fields if "sampling" in k} == {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
    }
    with pm.load(out, device="host") as model:
        assert model.info["defaults"] == {"temperature": 0.6, "top_k": 20}


def test_tensors_that_have_the_format_are_copied(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    quantize_model(llama(tmp_path), to="q4_0", out=first)
    report = quantize_model(first, to="q4_0", out=second)
    assert first.read_bytes() == second.read_bytes()
    assert report.relative_rmse == 0
    assert any("quantised already" in note for note in report.notes)
    with pytest.raises(InputError, match="is the model itself"):
        quantize_model(first, to="q8_0", out=first, overwrite=True)


def test_other_tensors_of_a_gguf_file_are_copied(tmp_path: Path) -> None:
    """Integers, vectors, more than two dims, none at all; keys of the old file's making are dropped."""
    infos = [TensorInfo("ids", dtypes.i32, (3,)), TensorInfo("experts.weight", dtypes.f32, (2, 3, 32)),
             TensorInfo("none.weight", dtypes.f32, (0, 32)), TensorInfo("alone", dtypes.f32, ())]  # fmt: skip
    pairs = {"general.architecture": "odd", "general.alignment": np.uint32(64), "quantize.imatrix.file": "x"}
    experts = np.random.default_rng(0).normal(size=(2, 3, 32)).astype(np.float32)
    with GgufWriter(tmp_path / "a.gguf", pairs, infos) as writer:
        writer.write("ids", np.array([1, -2, 3], np.int32))
        writer.write("experts.weight", experts)
        writer.write("alone", np.array(2.5, np.float32))
    report = quantize_model(tmp_path / "a.gguf", to="q8_0", out=tmp_path / "b.gguf")
    assert [t.dtype for t in report.tensors] == ["i32", "q8_0", "q8_0", "f32"]
    with open_weights(tmp_path / "b.gguf") as weights:
        assert set(weights.metadata) == {"general.architecture", "general.file_type", "general.quantization_version"}
        assert weights.array("ids").tolist() == [1, -2, 3]
        assert weights.tensors["experts.weight"].shape == (2, 3, 32)
        assert float(weights.array("alone")) == 2.5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_broken_weights_are_refused_by_name(bad: float, name: str, tmp_path: Path) -> None:
    def spoil(arrays: dict[str, Array]) -> None:
        arrays[name].flat[5] = bad

    wanted = "blk.0.ffn_up.weight" if "mlp" in name else "output_norm.weight"
    with pytest.raises(InputError, match=f"'{wanted}': there are NaN"):
        quantize_model(llama(tmp_path, change=spoil), to="q4_k", out=tmp_path / "m.gguf")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["llama256"]


def test_weights_too_large_for_f16_are_refused_by_name(tmp_path: Path) -> None:
    def grow(arrays: dict[str, Array]) -> None:
        arrays["lm_head.weight"] *= 1e12

    source = llama(tmp_path, change=grow)
    for to in ("f16", "q4_k"):
        with pytest.raises(InputError, match=r"'output\.weight'"):
            quantize_model(source, to=to, out=tmp_path / "m.gguf")


def test_a_broken_copy_is_refused_by_name(tmp_path: Path) -> None:
    with GgufWriter(tmp_path / "a.gguf", {"general.architecture": "odd"}, [TensorInfo("n.weight", dtypes.f32, (2,))]) as writer:
        writer.write("n.weight", np.array([1, np.nan], np.float32))
    with pytest.raises(InputError, match=r"'n\.weight': there are NaN"):
        quantize_model(tmp_path / "a.gguf", to="q8_0", out=tmp_path / "b.gguf")


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "smollm", "tekken", "gpt-4o"])
def test_byte_level_tokenisers_keep_their_way_of_splitting(pre: str, tmp_path: Path) -> None:
    byte_level(tmp_path, 300, pre=pre)
    pairs = export_tokenizer(tmp_path, 300)
    assert pairs["tokenizer.ggml.pre"] == pre
    assert pairs["tokenizer.ggml.add_bos_token"] is True
    assert [pairs[f"tokenizer.ggml.{n}_token_id"] for n in ("unknown", "bos", "eos", "padding")] == [0, 1, 2, 3]
    assert pairs["tokenizer.chat_template"].startswith("{% for m in messages")
    assert pairs["tokenizer.ggml.token_type"][:5].tolist() == [3, 3, 3, 3, 1]
    assert pairs["tokenizer.ggml.tokens"][-1] == "[PAD299]"
    again, source = Tokenizer.from_gguf(pairs), Tokenizer.from_folder(tmp_path)
    text = "We're worth 1212 words, I'M sure.</s> They were  worse\n\n"
    assert again.encode(text) == source.encode(text)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_tokenisers_get_scores_for_their_merges(prefix: bool, tmp_path: Path) -> None:
    sentencepiece(tmp_path, prefix=prefix)
    pairs = export_tokenizer(tmp_path, 280)
    assert pairs["tokenizer.ggml.model"] == "llama"
    assert pairs["tokenizer.ggml.add_space_prefix"] is prefix
    assert pairs["tokenizer.ggml.token_type"][[0, 1, 3, 260, 279]].tolist() == [2, 3, 6, 1, 5]
    again, source = Tokenizer.from_gguf(pairs), Tokenizer.from_folder(tmp_path)
    for text in ("hello world", "  well, who'd</s> he"):
        assert again.encode(text) == source.encode(text)


def test_tokenisers_that_gguf_cannot_hold(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, 100)
    with pytest.raises(InputError, match="it is of the kind WordLevel"):
        export_tokenizer(tmp_path, 100)
    byte_level(tmp_path, 100)
    state = json.loads((tmp_path / "tokenizer.json").read_text())
    state["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "[aeiou]+"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="way of splitting text has no name"):
        export_tokenizer(tmp_path, 100)
    with pytest.raises(PumiceError, match="the model's table 50 rows"):
        export_tokenizer(tmp_path, 50)


def invoke(*args: object) -> Any:
    return CliRunner().invoke(app, ["quantize", *map(str, args)])


def test_the_command_prints_each_tensor_and_the_total(tmp_path: Path) -> None:
    source, out = golden("llama", tmp_path), tmp_path / "m.gguf"
    done = invoke(source, "--to", "q8_0", "--out", out, "--verbose")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].split() == ["tensor", "shape", "from", "to", "bits", "rmse", "relative", "max", "error"]
    up = next(line for line in lines if line.startswith("blk.0.ffn_up.weight")).split()
    assert up[1:5] == ["64×32", "bf16", "q8_0", "8.50"]
    assert up[6].endswith("%")
    total = next(line for line in lines if line.startswith(str(out)))
    assert "bits per weight" in total
    assert len(lines) == 2 + len(gguf.GGUFReader(out).tensors)
    quiet = invoke(source, "--to", "q8_0", "--out", out, "--force")
    assert quiet.exit_code == 0 and [line.split(",")[0] for line in quiet.output.splitlines()] == [total.split(",")[0]]


def test_the_command_as_json(tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    done = invoke(golden("llama", tmp_path), "--to", "q4_k", "--out", out, "--json")
    found = json.loads(done.stdout)
    assert found["bytes"] == out.stat().st_size
    assert found["to"] == "q4_k"
    assert {"name", "shape", "source", "dtype", "bytes", "rmse", "relative_rmse", "max_error", "bits", "note"} <= set(
        found["tensors"][0]
    )


def test_an_existing_file_needs_force(tmp_path: Path) -> None:
    source, out = golden("llama", tmp_path), tmp_path / "m.gguf"
    out.write_text("mine")
    command = [sys.executable, "-m", "pumice.cli.main", "quantize", str(source), "--to", "q8_0", "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("exists; choose another name, or allow to overwrite it (--force)")
    assert out.read_text() == "mine"
    assert invoke(source, "--to", "q8_0", "--out", out, "--force").exit_code == 0
    assert out.read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize(
    ("to", "message"),
    [("q8_k", "activations"), ("q4_k_m", "say q4_k"), ("q9_9", "one of q4_0"), ("i32", "one of q4_0")],
)
def test_formats_that_there_are_not(to: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownName) as raised:
        quantize_model(tmp_path, to=to, out=tmp_path / "m.gguf")
    assert message in str(raised.value)


SLOW_WRITER = """
import signal, sys, time
from pumice.formats import gguf_writer
from pumice.llm.quantize import quantize_model
# Where the tests run in the background, Ctrl-C is ignored, and so it would be here.
signal.signal(signal.SIGINT, signal.default_int_handler)
write = gguf_writer.GgufWriter.write
def slowly(self, *args):
    write(self, *args)
    print("piece", flush=True)
    time.sleep(30)
gguf_writer.GgufWriter.write = slowly
quantize_model(sys.argv[1], to="q8_0", out=sys.argv[2])
"""


@pytest.mark.skipif(os.name == "nt", reason="signals are another thing there")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_leaves_no_file(how: signal.Signals, tmp_path: Path) -> None:
    source, folder = golden("llama", tmp_path), tmp_path / "out"
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SLOW_WRITER, str(source), str(folder / "m.gguf")]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"piece\n"
        process.send_signal(how)
        assert process.wait(20) != 0
    assert not (folder / "m.gguf").exists()
    if how == signal.SIGINT:
        assert not list(folder.iterdir())
    quantize_model(source, to="q8_0", out=folder / "m.gguf")
    assert [p.name for p in folder.iterdir()] == ["m.gguf"]


def test_a_quantised_file_generates(tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    report: QuantizeReport = quantize_model(llama(tmp_path), to="q8_0", out=out)
    assert report.seconds > 0
    ids = [5, 9, 40, 77]
    with pm.load(str(out), device="host", context=32) as model, pm.load(str(tmp_path / "llama256"), device="host") as exact:
        assert relative(np.asarray(model.logits(ids)), np.asarray(exact.logits(ids))) < 0.02
        answer = model.generate("we were", raw=True, max_tokens=4, temperature=0)
        assert answer.tokens == exact.generate("we were", raw=True, max_tokens=4, temperature=0).tokens
        assert model.tokenizer.encode("we</s>") == exact.tokenizer.encode("we</s>")


@pytest.mark.slow
@pytest.mark.parametrize("to", ["q8_0", "q6_k", "q4_k"])
def test_smollm2_still_knows_france(to: str, tmp_path: Path) -> None:
    out, started = tmp_path / "m.gguf", time.time()
    quantize_model("smollm2", to=to, out=out)
    assert out.stat().st_mtime >= started - 1
    with pm.load(str(out), device="host", context=64) as model:
        assert "Paris" in model.generate("The capital of France is", raw=True, max_tokens=8, temperature=0).text
