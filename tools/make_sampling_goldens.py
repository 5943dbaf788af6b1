"""Makes tests/language_models/golden_sampling.json: distributions of transformers' logits processors, for rules both have.

Needs the environment that tools/README.md describes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.generation import logits_process as rules

VOCAB = 80
CASES: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"temperature": 1.5, "top_k": 12},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 2.0, "min_p": 0.1},
    {"temperature": 1.0, "typical_p": 0.5},
    {"temperature": 2.5, "typical_p": 0.9},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 25, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.6},
    {"temperature": 1.0, "repeat_penalty": 1.6},
    {"temperature": 1.2, "repeat_penalty": 0.7, "top_k": 20},
    {"temperature": 1.0, "logit_bias": {"3": 4.0, "11": -3.0}},
    {"temperature": 1.0, "logit_bias": {"5": 2.5}, "repeat_penalty": 1.4, "top_p": 0.9, "typical_p": 0.8},
]


def processors(case: dict[str, Any]) -> list[Any]:
    """In the order of GenerationMixin."""
    out: list[Any] = []
    if "logit_bias" in case:
        out.append(rules.SequenceBiasLogitsProcessor({(int(t),): v for t, v in case["logit_bias"].items()}))
    if "repeat_penalty" in case:
        out.append(rules.RepetitionPenaltyLogitsProcessor(case["repeat_penalty"]))
    warpers = {
        "temperature": rules.TemperatureLogitsWarper,
        "top_k": rules.TopKLogitsWarper,
        "top_p": rules.TopPLogitsWarper,
        "min_p": rules.MinPLogitsWarper,
        "typical_p": rules.TypicalLogitsWarper,
    }
    return out + [make(case[name]) for name, make in warpers.items() if name in case]


def main() -> None:
    rng = np.random.default_rng(21)
    found = []
    for case in CASES:
        logits = np.round(rng.normal(scale=2.5, size=VOCAB), 3)
        tokens = rng.integers(0, VOCAB, 12)
        scores = torch.tensor(logits, dtype=torch.float64)[None]
        for rule in processors(case):
            scores = rule(torch.tensor(tokens)[None], scores)
        p = torch.softmax(scores, dim=-1)[0].numpy()
        found.append({**case, "logits": logits.tolist(), "tokens": tokens.tolist(), "p": [float(f"{v:.7g}") for v in p]})
    path = Path(__file__).parents[1] / "tests" / "language_models" / "golden_sampling.json"
    path.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in found) + "\n]\n")


if __name__ == "__main__":
    main()
