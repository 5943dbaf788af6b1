"""Write tests/language_models/golden with PEFT: adapters of the tiny golden models, the logits they give, and their gradients.

Run it with a Python that has torch, transformers and peft: `python tools/make_lora_goldens.py`. The tests need none of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

TESTS = Path(__file__).parents[1] / "tests"
FOLDER = TESTS / "language_models" / "golden"
CASES: dict[str, dict[str, Any]] = {
    "llama": {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "k_proj", "v_proj", "down_proj"],
        "rank_pattern": {"layers.1.self_attn.q_proj": 2},
        "alpha_pattern": {"v_proj": 3},
    },
    "gpt2": {"r": 3, "lora_alpha": 5, "target_modules": ["c_attn", "c_fc"], "use_rslora": True, "fan_in_fan_out": True},
    "gpt_neox": {"r": 2, "lora_alpha": 2, "target_modules": "all-linear"},
}
# Beside the table of tokens and the head: a model whose head has a weight of its own, and one whose head is the table.
TABLES: dict[str, dict[str, Any]] = {
    "llama": {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head", "q_proj"]},
    "gpt2": {"r": 3, "lora_alpha": 5, "target_modules": ["wte", "lm_head"], "fan_in_fan_out": True},
}


def main() -> None:
    made = [(FOLDER / name, name, options) for name, options in CASES.items()]
    made += [(FOLDER.with_name("golden_tables") / name, name, options) for name, options in TABLES.items()]
    for folder, name, options in made:
        torch.manual_seed(len(name))
        base = AutoModelForCausalLM.from_pretrained(TESTS / "models" / "goldens" / name, dtype=torch.float32)
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **options))
        model.eval()
        for key, value in model.named_parameters():
            if "lora_" in key:
                torch.nn.init.normal_(value, std=0.1)
        tokens = torch.randint(4, base.config.vocab_size, (2, 9))
        labels = tokens.clone()
        labels[0, :4] = -100
        result = model(input_ids=tokens, labels=labels)
        result.loss.backward()
        out = {"tokens": tokens, "labels": labels, "logits": result.logits, "loss": result.loss}
        for key, value in model.named_parameters():
            if value.grad is not None:
                out["grad " + key.replace(".default", "")] = value.grad
        model.save_pretrained(folder)
        (folder / "README.md").unlink(missing_ok=True)
        np.savez_compressed(folder / "expected.npz", **{k: v.detach().numpy() for k, v in out.items()})
        path = folder / "adapter_config.json"
        config = json.loads(path.read_text())
        config["base_model_name_or_path"] = f"tiny-{name}"
        config["target_modules"] = sorted(config["target_modules"])
        path.write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
