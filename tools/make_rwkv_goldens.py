"""Makes tests/models/goldens/rwkv7 with the package `rwkv` of RWKV's author: transformers does not have this model.

Needs the environment of tools/README.md and `rwkv==0.8.32`. The checkpoint has the names of flash-linear-attention, under
which models are published on the Hub. Everything is seeded.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"RWKV_V7_ON": "1", "RWKV_JIT_ON": "1"}
sys.path.insert(0, str(Path(__file__).parent))

import torch
from make_goldens import GOLDENS, GREEDY_STEPS, LEAST_MARGIN, PROMPT_LENGTHS, check, error, greedy, seed_of, tokens
from rwkv.model import RWKV
from safetensors.torch import save_file

HIDDEN, LAYERS, HEAD, INNER, VOCAB, RANK = 128, 2, 64, 64, 128, 8
CONFIG: dict[str, Any] = {
    "architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
    "head_dim": HEAD, "intermediate_size": INNER, "vocab_size": VOCAB, "norm_eps": 1e-5, "hidden_act": "sqrelu",
    "a_low_rank_dim": RANK, "decay_low_rank_dim": RANK, "gate_low_rank_dim": RANK, "v_low_rank_dim": RANK,
    "norm_bias": True, "norm_first": True, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "max_position_embeddings": 2048, "value_dim": [HIDDEN] * LAYERS, "attn": None,
}  # fmt: skip
Weights = dict[str, torch.Tensor]


def random_weights() -> Weights:
    """Numbers for every tensor of the checkpoint, rounded to bf16."""
    shapes: dict[str, tuple[int, ...]] = {"model.embeddings.weight": (VOCAB, HIDDEN), "lm_head.weight": (VOCAB, HIDDEN)}
    for norm in ("model.norm", "model.layers.0.pre_norm"):
        shapes |= {f"{norm}.{kind}": (HIDDEN,) for kind in ("weight", "bias")}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for norm in ("attn_norm", "ffn_norm", "attn.g_norm"):
            shapes |= {f"{at}{norm}.{kind}": (HIDDEN,) for kind in ("weight", "bias")}
        shapes |= {f"{at}attn.x_{name}": (1, 1, HIDDEN) for name in "rwkvag"}
        shapes |= {f"{at}attn.{name}_proj.weight": (HIDDEN, HIDDEN) for name in "rkvo"}
        shapes |= {f"{at}attn.k_k": (HIDDEN,), f"{at}attn.k_a": (HIDDEN,), f"{at}attn.r_k": (HIDDEN // HEAD, HEAD)}
        for name in "wavg" if layer else "wag":
            shapes |= {
                f"{at}attn.{name}_lora.lora.0.weight": (RANK, HIDDEN),
                f"{at}attn.{name}_lora.lora.2.weight": (HIDDEN, RANK),
            }
            if name != "g":
                shapes[f"{at}attn.{name}_lora.lora.2.bias"] = (HIDDEN,)
        shapes |= {f"{at}ffn.x_k": (HIDDEN,), f"{at}ffn.key.weight": (INNER, HIDDEN), f"{at}ffn.value.weight": (HIDDEN, INNER)}
    generator, made = torch.Generator().manual_seed(seed_of("rwkv7")), {}
    for name, shape in shapes.items():
        values = torch.randn(shape, generator=generator)
        if "norm" in name:
            values = 0.25 * values + (0.0 if name.endswith("bias") else 1.0)
        elif len(shape) == 2 and "r_k" not in name and "embeddings" not in name:
            values *= 1.6 * shape[1] ** -0.5
        else:
            values *= 0.5
        made[name] = values.bfloat16()
    return made


def of_the_author(weights: Weights) -> Weights:
    """The same under the names of RWKV's own files."""
    found: Weights = {}
    outer = {"model.embeddings": "emb", "lm_head": "head", "model.norm": "ln_out", "model.layers.0.pre_norm": "blocks.0.ln0"}
    inner = {"attn_norm": "ln1", "ffn_norm": "ln2", "attn.g_norm": "att.ln_x", "attn.r_proj": "att.receptance"}
    inner |= {"attn.k_proj": "att.key", "attn.v_proj": "att.value", "attn.o_proj": "att.output"}
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        if module in outer:
            found[f"{outer[module]}.{kind}"] = tensor
            continue
        _, _, layer, rest = module.split(".", 3)
        at = f"blocks.{layer}."
        if "lora" in rest:
            letter, part = rest[5], {"0weight": "1", "2weight": "2", "2bias": "0"}[rest[-1] + kind]
            found[f"{at}att.{letter}{part}"] = tensor.T.contiguous() if kind == "weight" else tensor
        elif rest in inner:
            found[f"{at}{inner[rest]}.{kind}"] = tensor
        else:
            found[f"{at}{rest.replace('attn', 'att')}.{kind}"] = tensor
    return found


def main() -> None:
    torch.set_num_threads(1)
    folder = GOLDENS / "rwkv7"
    folder.mkdir(exist_ok=True)
    weights = random_weights()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2, sort_keys=True) + "\n")
    with tempfile.TemporaryDirectory() as made:
        torch.save(of_the_author(weights), f"{made}/model.pth")
        model = RWKV(model=f"{made}/model", strategy="cpu fp32")

    def logits(ids: torch.Tensor) -> torch.Tensor:
        rows, state = [], None
        for token in ids.tolist():
            row, state = model.forward([token], state)
            rows.append(row.clone())
        return torch.stack(rows)

    found: Weights = {}
    for length in PROMPT_LENGTHS:
        for attempt in range(500):
            ids = tokens(length, VOCAB, seed_of(f"rwkv7/{length}/{attempt}"))
            steps = greedy(logits, ids, GREEDY_STEPS)
            if steps["margins"].min() >= LEAST_MARGIN and len(steps["ids"].unique()) >= GREEDY_STEPS // 2:
                break
        else:
            raise SystemExit("every continuation repeats itself")
        whole = logits(ids)
        if length > 1:
            check("token by token against the whole", error(whole, model.forward(ids.tolist(), None, full_output=True)[0]), 5e-6)
        found |= {f"prompt.{length}.ids": ids.int(), f"prompt.{length}.logits": whole}
        found |= {f"prompt.{length}.greedy.{part}": value for part, value in steps.items()}
    save_file({k: v.contiguous() for k, v in found.items()}, folder / "goldens.safetensors")
    print({path.name: path.stat().st_size for path in sorted(folder.iterdir())})


if __name__ == "__main__":
    main()
