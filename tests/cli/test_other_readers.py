"""GGUF files as llama.cpp reads them: what it asks for is written, and what it cannot take is said or refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from conversion import golden, logits_of, relative, sentencepiece
from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.llm.quantize import quantize_model
from pumice.text.gguf_export import export_tokenizer
from pumice.text.tokenizer import Tokenizer
from tiny_models import byte_level


def test_what_other_readers_pass_over_is_said(tmp_path: Path) -> None:
    source = golden("mistral", tmp_path)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"sliding_window": 7}))
    (note,) = quantize_model(source, to="f32", out=tmp_path / "m.gguf").notes
    assert "beyond 7 tokens" in note
    (note,) = quantize_model(golden("deepseek_v2", tmp_path), to="f32", out=tmp_path / "d.gguf").notes
    assert "two best" in note


def test_the_scale_of_deepseeks_attention_counts_once(tmp_path: Path) -> None:
    source = golden("deepseek_v3", tmp_path)
    config = json.loads((source / "config.json").read_text())
    config |= {"rope_theta": 1e4, "rope_parameters": None, "rope_scaling": {
        "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 32, "mscale": 1.0, "mscale_all_dim": 1.0,
    }}  # fmt: skip
    (source / "config.json").write_text(json.dumps(config))
    quantize_model(source, to="f32", out=tmp_path / "m.gguf")
    with open_weights(tmp_path / "m.gguf") as weights:
        assert "deepseek2.rope.scaling.yarn_log_multiplier" in weights.metadata
        assert "deepseek2.rope.scaling.attn_factor" not in weights.metadata


@pytest.mark.parametrize("name", ["olmo2", "stablelm", "qwen2_moe"])
def test_readers_that_want_an_output_matrix_find_the_token_table_again(name: str, tmp_path: Path) -> None:
    source = golden(name, tmp_path)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with open_weights(source) as weights:
        arrays = {n: np.array(weights.array(n)) for n in weights.tensors if not n.startswith("lm_head")}
    save_file(arrays, source / "model.safetensors")
    out = tmp_path / "m.gguf"
    quantize_model(source, to="f32", out=out)
    with open_weights(out) as weights:
        np.testing.assert_array_equal(weights.array("output.weight"), weights.array("token_embd.weight"))
    ids = np.arange(4, 20)
    assert relative(logits_of(out, ids), logits_of(source, ids)) < 1e-5


@pytest.mark.parametrize("name", ["mamba", "mamba2", "mixtral"])
def test_what_is_not_converted_becomes_f32(name: str, tmp_path: Path) -> None:
    """llama.cpp stops at taps and decays of 16 bits, and rounds what a router of 16 bits reads."""
    source = golden(name, tmp_path)
    with open_weights(source) as weights:
        halves = {n: np.array(weights.array(n)).astype(np.float16) for n in weights.tensors}
    save_file(halves, source / "model.safetensors")
    quantize_model(source, to="f16", out=tmp_path / "m.gguf")
    with open_weights(tmp_path / "m.gguf") as weights:
        kept = [t for t in weights.tensors.values() if "conv1d" in t.name or "ssm_a" in t.name or "ffn_gate_inp" in t.name]
        assert kept
        assert {t.dtype.name for t in kept} == {"f32"}


@pytest.mark.parametrize(("closing", "called"), [(True, "Phi-3 mine"), (False, "mine")])
def test_the_name_says_whether_special_tokens_take_spaces_along(closing: bool, called: str, tmp_path: Path) -> None:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

    sentencepiece(tmp_path, prefix=True)
    made = Backend.from_file(str(tmp_path / "tokenizer.json"))
    made.add_special_tokens(["<|endoftext|>", AddedToken("<|user|>", rstrip=closing, normalized=False, special=True)])
    made.add_special_tokens([AddedToken("</s>", rstrip=closing, normalized=False, special=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    pairs = export_tokenizer(tmp_path, 280, "mine")
    assert pairs["general.name"] == called
    text = "<|user|> hello</s>  world"
    assert Tokenizer.from_gguf(pairs).encode(text) == Tokenizer.from_folder(tmp_path).encode(text)


def test_files_without_phi_3s_tokens_do_not_have_its_name(tmp_path: Path) -> None:
    """llama.cpp does not open them otherwise."""
    byte_level(tmp_path, 300)
    assert export_tokenizer(tmp_path, 300, "tiny-phi3")["general.name"] == "tiny-phi 3"


@pytest.mark.parametrize("added", [{"single_word": True}, {"rstrip": True}])
def test_added_tokens_that_match_otherwise_are_refused(added: dict[str, bool], tmp_path: Path) -> None:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as Backend

    byte_level(tmp_path, 300)
    made = Backend.from_file(str(tmp_path / "tokenizer.json"))
    made.add_tokens([AddedToken("there", normalized=False, **added)])
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(InputError, match="would split 'there wordthere' otherwise"):
        export_tokenizer(tmp_path, 310)
