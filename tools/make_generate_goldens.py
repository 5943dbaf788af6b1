"""Makes tests/models/goldens/generate.json: greedy answers of `transformers.generate` that outgrow their rope's first length.

The scalings `dynamic` and `longrope` turn keys by angles that depend on how long the sequence is, so what a cache holds
matters: these are the answers of models that have just been loaded. Needs the environment that tools/README.md describes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from make_goldens import GOLDENS, logits_of, seed_of, through_cache, tokens, write_json

NEW_TOKENS = 20
LEAST_MARGIN = 0.01  # between the best two logits, so that rounding never changes a token
# Checkpoint, entries of its config that are others here, and lengths of prompts: below, at and beyond the border.
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "phi3_longrope": ("phi3_longrope", {}, (14, 31, 32, 33)),
    "llama_dynamic": ("llama_rope_dynamic", {}, (9, 23, 24, 30)),
    "llama_longrope": (
        "llama_rope_dynamic",
        {
            "max_position_embeddings": 96,
            "rope_parameters": {
                "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 24,
                "short_factor": [1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 2.2, 2.5],
                "long_factor": [1.0, 1.5, 2.5, 4.0, 6.0, 9.0, 11.0, 12.0],
            },
        },
        (9, 23, 24, 30),
    ),
}  # fmt: skip


@torch.no_grad()
def answer(model: Any, prompt: torch.Tensor) -> tuple[list[int], float]:
    """Greedy tokens of a model that has seen nothing yet, and how clear the least clear choice was."""
    out = copy.deepcopy(model).generate(
        prompt[None],
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(out.logits)[:, 0].topk(2).values
    return out.sequences[0, len(prompt) :].tolist(), float((best[:, 0] - best[:, 1]).min())


def one_regime(model: Any, prompt: torch.Tensor, found: list[int]) -> bool:
    """Whether the tokens also follow when the cache is kept as it is, or from whole sequences without a cache."""
    step, ids = through_cache(model), prompt
    kept, anew = [], []
    for token in found:
        kept.append(int(step(ids)[-1].argmax()))
        anew.append(int(logits_of(model, ids[None])[0, -1].argmax()))
        ids = torch.cat([ids, torch.tensor([token])])
    return kept == found and anew == found


def make(name: str) -> list[dict[str, Any]]:
    checkpoint, changes, lengths = CASES[name]
    config = transformers.AutoConfig.from_pretrained(GOLDENS / checkpoint, **copy.deepcopy(changes))
    model = transformers.AutoModelForCausalLM.from_pretrained(
        GOLDENS / checkpoint, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    rows = []
    for length in lengths:
        for attempt in range(2000):
            prompt = tokens(length, config.vocab_size, seed_of(f"{name}/{length}/{attempt}"))
            found, margin = answer(model, prompt)
            # A prompt beyond the border of longrope has one regime from beginning to end.
            if margin >= LEAST_MARGIN and (length > lengths[2] or not one_regime(model, prompt, found)):
                rows.append({"prompt": prompt.tolist(), "tokens": found})
                print(f"{name} {length}: attempt {attempt}, margin {margin:.4f}", flush=True)
                break
        else:
            raise SystemExit(f"{name}: no answer to {length} tokens is clear and telling")
    return rows


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    made = {n: {"checkpoint": c, "config": changes, "answers": make(n)} for n, (c, changes, _) in CASES.items()}
    write_json(GOLDENS / "generate.json", made)


if __name__ == "__main__":
    main()
