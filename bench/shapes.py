"""Shapes of the models that are measured with random weights, for us and for the peers."""

from __future__ import annotations

from typing import Any

RANDOM = "random:"  # begins the name of a shape in place of a model's
# What Hugging Face configurations say of them, so that peers can be made from the same table.
_LLAMA = {"model_type": "llama", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
_LLAMA |= {"hidden_act": "silu", "tie_word_embeddings": True}
_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")
CAUSAL: dict[str, dict[str, Any]] = {
    "tiny": {**_LLAMA, **dict(zip(_KEYS, (128, 2, 4, 2, 256, 512)))},
    "smollm2": {**_LLAMA, **dict(zip(_KEYS, (576, 30, 9, 3, 1536, 49152)))},
    "llama1b": {**_LLAMA, **dict(zip(_KEYS, (2048, 16, 32, 8, 8192, 128256))), "max_position_embeddings": 16384},
    # Rows are whole blocks of 256 weights, as formats such as q4_k want.
    "tiny-qwen": {**_LLAMA, **dict(zip(_KEYS, (256, 4, 4, 2, 512, 512))), "model_type": "qwen2"},
    "qwen1.5b": {**_LLAMA, **dict(zip(_KEYS, (1536, 28, 12, 2, 8960, 151936))), "model_type": "qwen2"},
}
MINILM: dict[str, Any] = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
ENCODERS = {
    "minilm": MINILM,
    "minilm-tiny": {
        **MINILM,
        **{"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 512},
    },
}


def decoder_shape(width: int, layers: int = 4, **more: Any) -> dict[str, Any]:
    """A decoder of any width, heads of 64."""
    heads = max(1, width // 64)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads}
    return {**CAUSAL["tiny"], **sizes, "intermediate_size": 4 * width, "vocab_size": 4096, **more}
