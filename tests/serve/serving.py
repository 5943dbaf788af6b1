"""Tiny models to serve, and servers of them: a language model of random weights that can spell every byte, and encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pumice.serve.frames import Frame
from pumice.serve.hosts import ModelHost
from pumice.serve.spec import ModelSpec
from tiny_models import GOLDENS, byte_level, checkpoint

VOCAB, CONTEXT = 288, 2048
# An answer of so many tokens is not at its end when its first piece is read, on a busy machine neither.
LONG_CONTEXT = 32_768
# Roles by their first letter; tools and their calls as Hermes' models write them.
TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"
)


def language_model(folder: Path, *, name: str = "tiny", template: str | None = TEMPLATE, context: int = CONTEXT) -> Path:
    """A llama of one layer and random weights with a byte-level tokeniser."""
    from safetensors.numpy import save_file

    made = folder / name
    made.mkdir()
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": VOCAB,
              "num_key_value_heads": 1, "intermediate_size": 64, "max_position_embeddings": context, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": False}  # fmt: skip
    (made / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(3)
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
              "self_attn.o_proj": (64, 64)} | {f"mlp.{k}_proj": (64, 64) for k in ("gate", "up", "down")}  # fmt: skip
    arrays = {f"model.layers.0.{k}.weight": rng.normal(size=s).astype("f4") / 8 for k, s in shapes.items()}
    for norm in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        arrays[f"model.{norm}.weight"] = np.ones(64, "f4")
    arrays["model.embed_tokens.weight"] = rng.normal(size=(VOCAB, 64)).astype("f4")
    arrays["lm_head.weight"] = rng.normal(size=(VOCAB, 64)).astype("f4") / 8
    save_file(arrays, made / "model.safetensors")
    byte_level(made, VOCAB)
    settings = json.loads((made / "tokenizer_config.json").read_text())
    settings.pop("chat_template")
    if template is not None:
        settings["chat_template"] = template
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    return made


def encoder(folder: Path) -> Path:
    return checkpoint("bert", folder, closing=True)


RERANKER = GOLDENS / "classifiers" / "bert"  # one label; words are a1, b2, …


def spec(folder: Path, *, slots: int = 4, **options: Any) -> ModelSpec:
    return ModelSpec(folder.name, str(folder), {"device": "host", **options}, slots)


def language_spec(folder: Path, *, slots: int = 4, context: int = CONTEXT) -> ModelSpec:
    return spec(folder, slots=slots, context=context)


def ends_of_answers(host: ModelHost) -> list[str]:
    """The reasons for which answers of its worker end from now on; it grows as they do."""
    assert host.worker is not None
    reasons: list[str] = []
    worker, on_frame = host.worker, host._on_frame

    def note(frame: Frame) -> None:
        if (reason := frame.get("reason")) is not None:
            reasons.append(reason)
        on_frame(frame)

    worker._on_frame = note
    return reasons
