"""GGUF files with damaged bytes, and with metadata of wrong types and values: refused with a typed error, or used."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from formats.gguf_writer import ARRAY, BOOL, F32, F64, FORMS, I32, STRING, U8, U32, U64, Tensor, array_of, gguf, pair
from pumice.errors import PumiceError
from pumice.text.vocabulary import byte_alphabet

from fuzz.hostile import damaged, fuzz
from fuzz.model_files import UNIGRAM, use_model

HIDDEN, VOCAB = 8, 262
TEMPLATE = "{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{% endfor %}"
ARCHITECTURE = {
    "general.architecture": (STRING, "llama"),
    "general.name": (STRING, "tiny"),
    "general.alignment": (U32, 32),
    "llama.block_count": (U32, 1),
    "llama.context_length": (U32, 32),
    "llama.embedding_length": (U32, HIDDEN),
    "llama.feed_forward_length": (U32, 16),
    "llama.attention.head_count": (U32, 2),
    "llama.attention.head_count_kv": (ARRAY, array_of(U32, [1])),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "llama.rope.freq_base": (F32, 10000.0),
    "llama.rope.scaling.type": (STRING, "yarn"),
    "llama.rope.scaling.factor": (F32, 2.0),
    "llama.rope.scaling.original_context_length": (U32, 16),
    "general.sampling.temp": (F32, 0.7),
    "general.sampling.top_k": (I32, 20),
}
WORDS = ["th", "the", "Ġthe", "<|im_end|>", "<think>", "<s>"]
BYTE_LEVEL = {
    "model": (STRING, "gpt2"),
    "pre": (STRING, "llama-bpe"),
    "tokens": (ARRAY, array_of(STRING, [*byte_alphabet(), *WORDS])),
    "token_type": (ARRAY, array_of(I32, [1] * 256 + [1, 1, 1, 3, 4, 3])),
    "merges": (ARRAY, array_of(STRING, ["t h", "th e", "Ġ the"])),
    "eos_token_id": (U32, 259),
    "bos_token_id": (U32, 261),
    "add_bos_token": (BOOL, 1),
}
CHARSMAP = json.loads(UNIGRAM.read_text())["rules"]["metadata"]["tokenizer.ggml.precompiled_charsmap"]
PIECES = ["<unk>", "<s>", "</s>", "▁", "t", "h", "e", "▁t", "he", "▁the", "c", "a", "at", "<0x0A>"]
SCORED = {
    "tokens": (ARRAY, array_of(STRING, PIECES)),
    "scores": (ARRAY, array_of(F32, [0, 0, 0, *(-0.5 * i for i in range(len(PIECES) - 3))])),
    "token_type": (ARRAY, array_of(I32, [2, 3, 3, *[1] * (len(PIECES) - 4), 6])),
    "unknown_token_id": (U32, 0),
    "bos_token_id": (U32, 1),
    "eos_token_id": (U32, 2),
    "add_space_prefix": (BOOL, 1),
}
KINDS: list[dict[str, tuple[int, Any]]] = [
    BYTE_LEVEL,
    {"model": (STRING, "llama"), **SCORED},
    {"model": (STRING, "t5"), **SCORED, "precompiled_charsmap": (ARRAY, array_of(U8, CHARSMAP))},
    {"model": (STRING, "gemma4"), **SCORED, "merges": (ARRAY, array_of(STRING, ["▁ t", "h e", "▁t he"]))},
    {"model": (STRING, "bert"), **SCORED, "cls_token_id": (U32, 1), "seperator_token_id": (U32, 2)},
]  # fmt: skip
SHAPES = {
    "token_embd.weight": (HIDDEN, VOCAB),
    "output_norm.weight": (HIDDEN,),
    "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q.weight": (HIDDEN, HIDDEN),
    "blk.0.attn_k.weight": (HIDDEN, HIDDEN // 2),
    "blk.0.attn_v.weight": (HIDDEN, HIDDEN // 2),
    "blk.0.attn_output.weight": (HIDDEN, HIDDEN),
    "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.ffn_gate.weight": (HIDDEN, 16),
    "blk.0.ffn_up.weight": (HIDDEN, 16),
    "blk.0.ffn_down.weight": (16, HIDDEN),
}


def pairs(kind: dict[str, tuple[int, Any]]) -> dict[str, tuple[int, Any]]:
    template = {"tokenizer.chat_template": (STRING, TEMPLATE), "tokenizer.chat_templates": (ARRAY, array_of(STRING, ["rag"]))}
    named = {"tokenizer.chat_template.rag": (STRING, "{{ messages|length }}")}
    return {**ARCHITECTURE, **{f"tokenizer.ggml.{key}": value for key, value in kind.items()}, **template, **named}


def written(values: dict[str, tuple[int, Any]], tensors: list[Tensor] | None = None) -> bytes:
    made = [Tensor(name, "f32", dims) for name, dims in SHAPES.items()] if tensors is None else tensors
    return gguf([pair(key, code, value) for key, (code, value) in values.items()], made)


def odd_pair(rng: random.Random) -> tuple[int, Any]:
    """A value of any of GGUF's types."""
    choice = rng.randrange(6)
    if choice == 0:
        return STRING, rng.choice(["", "llama", "gpt2", "x" * 5000, "\x1b[2J", "{{ 1/0 }}", "{% for", "é", "-1"])
    if choice == 1:
        return ARRAY, array_of(STRING, rng.choice([[], ["a"], ["a"] * 262, ["", "\0"], ["<0x00>"] * 300]))
    if choice == 2:
        return ARRAY, array_of(ARRAY, [array_of(U32, [1, 2]), array_of(STRING, ["a"])][: rng.randrange(3)])
    if choice == 3:
        code = rng.choice([0, I32, F32, U64, F64, BOOL])
        return ARRAY, array_of(code, [rng.choice([0, 1])] * rng.choice([0, 1, 2, 14, 262]))
    if choice == 4:
        return rng.choice([F32, F64]), rng.choice([0.0, -1.0, 1e-30, 1e30, float("nan"), float("inf"), 0.5])
    code = rng.choice(list(FORMS))
    bits = {"B": 8, "b": 7, "H": 16, "h": 15, "I": 32, "i": 31, "Q": 64, "q": 63}.get(FORMS[code], 1)
    return code, 1 if code == BOOL else rng.choice([0, 1, 2, 3, 7, 8, 2**bits - 1])


def hostile_file(rng: random.Random) -> bytes:
    values = pairs(rng.choice(KINDS))
    if rng.random() < 0.35:
        return damaged(rng, written(values))
    for _ in range(rng.randint(1, 3)):
        key = rng.choice(list(values))
        if rng.random() < 0.15:
            del values[key]
        else:
            values[key] = odd_pair(rng)
        if not values:
            break
    tensors = [Tensor(name, "f32", dims) for name, dims in SHAPES.items()]
    if rng.random() < 0.2:
        at = rng.randrange(len(tensors))
        dims = tuple(rng.choice([0, 1, 2, 8, 32, 262]) for _ in range(rng.randrange(5)))
        name = rng.choice([tensors[at].name, "other", "rope_freqs.weight", "output.weight"])
        tensors[at] = Tensor(name, "f32", dims, data=bytes(min(4 * math.prod(dims), 1 << 16)))
    return written(values, tensors)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind["model"][1])
def test_what_is_damaged_is_valid(kind: dict[str, tuple[int, Any]], tmp_path: Path) -> None:
    from pumice.formats import open_weights
    from pumice.llm.load import read_config, read_template, read_tokenizer
    from pumice.models.load import load_model_params

    path = tmp_path / "model.gguf"
    path.write_bytes(written(pairs(kind)))
    with open_weights(path) as weights:
        assert read_tokenizer(path, weights).encode("the")
        assert read_template(path, weights) is not None
        assert load_model_params(read_config(path, weights), weights).nbytes


def test_hostile_gguf_files(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"

    def attempt(data: bytes) -> None:
        path.write_bytes(data)
        use_model(path)

    fuzz(request, hostile_file, attempt, allowed=PumiceError)
