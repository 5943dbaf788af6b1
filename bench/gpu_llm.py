"""Decode and prefill speed of a llama-shaped model with random weights on this machine's GPU.

python bench/gpu_llm.py [--shape smollm2|llama1b] [--dtype f16|f32] [--steps 64]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent / "src")]

from pumice.backends.select import open_device  # noqa: E402
from pumice.llm.engine import Engine  # noqa: E402
from pumice.llm.requests import Request, SamplingParams, Timings  # noqa: E402
from pumice.models.config import ModelArchConfig  # noqa: E402
from pumice.models.registry import get_architecture  # noqa: E402
from pumice.tracing import spec  # noqa: E402

# hidden, layers, heads, key/value heads, intermediate, vocabulary
SHAPES = {
    "tiny": (128, 2, 4, 2, 256, 512),
    "smollm2": (576, 30, 9, 3, 1536, 49152),
    "llama1b": (2048, 16, 32, 8, 8192, 128256),
}
KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size")


class RandomParams:
    """Random weights in place of a checkpoint: `specs` and `arrays` as the engine takes them."""

    def __init__(self, cfg: ModelArchConfig, dtype: str) -> None:
        rng = np.random.default_rng(0)
        self.specs: dict[str, Any] = {}
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.nbytes = 0
        for p in get_architecture(cfg.model_type).params(cfg):
            shape = tuple(p.shape)
            matrix = len(shape) > 1
            kind = dtype if matrix else "f32"
            array = rng.standard_normal(shape, np.float32) * np.float32(0.02) if matrix else np.ones(shape, np.float32)
            self.arrays[p.path] = array.astype({"f16": np.float16, "f32": np.float32}[kind])
            self.nbytes += self.arrays[p.path].nbytes
            node = self.specs
            *parents, last = p.path.split(".")
            for name in parents:
                node = node.setdefault(name, {})
            node[last] = spec(*shape, dtype=kind)
        self.specs["layers"] = list(self.specs["layers"].values())


def measure(engine: Engine, prompt: int, steps: int) -> Timings:
    timings = Timings()
    # Another prompt each time: what the cache shares with the last one would not run again.
    tokens = np.random.default_rng(prompt).integers(0, engine.cfg.vocab, prompt).tolist()
    for _ in engine.stream([Request(tokens, SamplingParams(temperature=0), steps)], timings=timings):
        pass
    return timings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--dtype", choices=("f16", "f32"), default="f16")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    config = {"model_type": "llama", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
    cfg = ModelArchConfig.from_hf(
        {**config, "hidden_act": "silu", "tie_word_embeddings": True, **dict(zip(KEYS, SHAPES[args.shape]))}
    )
    params: Any = RandomParams(cfg, args.dtype)
    device = open_device(args.device)
    engine = Engine(get_architecture("llama"), cfg, params, device, context=1024)
    measure(engine, args.prompt, 8)
    best: list[tuple[float, float]] = []
    for _ in range(3):
        t = measure(engine, args.prompt + len(best) + 1, args.steps)
        best.append((t.prompt_tokens / t.prefill_s, t.decode_tokens / t.decode_s))
    prefill, decode = (sorted(x)[1] for x in zip(*best, strict=True))
    print(f"{args.shape} {args.dtype} on {device.name}: prefill {prefill:.0f} tokens/s, decode {decode:.0f} tokens/s,")
    print(f"  weights {params.nbytes / 1e9:.2f} GB, read at {params.nbytes * decode / 1e12:.2f} TB/s; {engine.report()}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
