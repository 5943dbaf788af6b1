"""Makes tests/models/goldens/beams.json: answers of transformers' beam search with the tiny checkpoints.

Needs the environment that tools/README.md describes. Kept are prompts for which float32 and float64 find the same answers, in
the same order, so that rounding decides nothing.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from make_goldens import GOLDENS, seed_of, tokens, write_json

NEW_TOKENS = 12
# Checkpoint; beams, length penalty, and how many tokens end an answer.
CASES: list[tuple[str, int, float, int]] = [
    ("llama", 2, 1.0, 1),
    ("llama", 4, 1.0, 0),
    ("llama", 4, 0.0, 2),
    ("llama", 4, -1.0, 2),
    ("llama", 5, 2.0, 3),
    ("gemma3", 3, 1.0, 2),
    ("lfm2", 4, 1.0, 2),
]


@torch.no_grad()
def answers(model: Any, prompt: torch.Tensor, beams: int, penalty: float, ends: list[int]) -> list[list[int]]:
    """The new tokens of all answers, the best first, without what pads them."""
    out = model.generate(
        prompt[None],
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        num_beams=beams,
        num_return_sequences=beams,
        length_penalty=penalty,
        early_stopping=False,
        eos_token_id=ends or None,
        pad_token_id=0,
    )
    found = []
    for row in out[:, len(prompt) :].tolist():
        end = next((k for k, token in enumerate(row) if token in ends), NEW_TOKENS - 1)
        found.append(row[: end + 1])
    return found


def make(name: str, beams: int, penalty: float, count: int) -> dict[str, Any]:
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(GOLDENS / name, dtype=dtype, attn_implementation="eager").eval()
        for dtype in (torch.float32, torch.float64)
    ]
    vocab = models[0].config.vocab_size
    for attempt in range(200):
        prompt = tokens(9, vocab, seed_of(f"beams/{name}/{beams}/{penalty}/{attempt}"))
        # Tokens that answers have anyway, so that some of them end early.
        free = answers(models[0], prompt, beams, penalty, [])
        ends = sorted({row[5 + 2 * k] for k, row in enumerate(free[:count])})
        if len(ends) < count or 0 in ends:
            continue
        first, second = (answers(model, prompt, beams, penalty, ends) for model in models)
        early = any(len(row) < NEW_TOKENS for row in first)
        if first == second and len({tuple(row) for row in first}) == beams and early == bool(count):
            print(f"{name} {beams} beams, penalty {penalty}: attempt {attempt}", flush=True)
            case = {"model": name, "beams": beams, "length_penalty": penalty, "stop_ids": ends, "max_tokens": NEW_TOKENS}
            return {**case, "prompt": prompt.tolist(), "answers": first}
    raise SystemExit(f"{name}: no prompt whose answers are clear")


if __name__ == "__main__":
    write_json(GOLDENS / "beams.json", [make(*case) for case in CASES])
