"""Models of known shapes with random weights, for machines that have no checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pumice.backends.base import Device
from pumice.core.blocks import quantize_rows
from pumice.core.caps import Caps
from pumice.core.dtypes import dtype as get_dtype
from pumice.formats.safetensors_writer import write_safetensors
from pumice.ir.graph import Graph
from pumice.llm.engine import Engine
from pumice.llm.graphs import trace_token_step
from pumice.llm.memory import CacheLayout, page_groups
from pumice.llm.model import LanguageModel
from pumice.llm.requests import Request, SamplingParams, Timings
from pumice.llm.sampling import Sampling
from pumice.llm.weights import ModelWeights
from pumice.models.config import ModelArchConfig
from pumice.models.registry import CausalArchitecture, get_architecture
from pumice.text.tokenizer import Tokenizer
from pumice.tracing import spec

_BLOCK = 1 << 20
Array = np.ndarray[Any, Any]


class RandomParams:
    """Random weights in place of a checkpoint: `specs` and `arrays` as the engine takes them.

    Matrices are of `dtype`, or, where that is `q4_k_m`, of that mix; vectors are f32. With `planned` there are none to speak of:
    enough to plan with.
    """

    def __init__(self, cfg: ModelArchConfig, dtype: str, *, planned: bool = False) -> None:
        kinds = q4_k_m(cfg.layers) if dtype == "q4_k_m" else lambda path: dtype
        # One block again and again: a billion random numbers would take longer than what is to be measured.
        block = np.random.default_rng(0).standard_normal(_BLOCK, np.float32) * np.float32(0.02)
        blocks: dict[str, Array] = {"f16": block.astype(np.float16), "f32": block}
        self.specs: dict[str, Any] = {}
        self.arrays: dict[str, Array] = {}
        self.nbytes = 0
        for p in get_architecture(cfg.model_type).params(cfg):
            shape = tuple(p.shape)
            matrix = len(shape) > 1
            kind = kinds(p.path) if matrix else "f32"
            quant = get_dtype(kind)
            if kind not in blocks:
                blocks[kind] = quantize_rows(quant, block.reshape(-1, 4096)).reshape(-1)
            # Of a quantised one the bytes of its rows.
            stored = (*shape[:-1], quant.nbytes(shape[-1])) if quant.is_quant else shape
            if planned:
                array = np.broadcast_to(blocks[kind][:1], stored)
            else:
                array = np.resize(blocks[kind], stored) if matrix else np.ones(shape, np.float32)
            self.arrays[p.path] = array
            self.nbytes += array.nbytes
            node = self.specs
            *parents, last = p.path.split(".")
            for name in parents:
                node = node.setdefault(name, {})
            node[last] = spec(*shape, dtype=kind)
        self.specs["layers"] = list(self.specs["layers"].values())

    def stored(self, path: str) -> Array:
        """What to upload for a param."""
        return self.arrays[path]


def q4_k_m(layers: int) -> Callable[[str], str]:
    """The dtype of each matrix in llama.cpp's mix Q4_K_M, by its path.

    It is q4_k but for the token table (here the head too), and values and `down` of the first and the last eighth of the layers
    and of every third between, which are q6_k.

    >>> kinds = q4_k_m(28)
    >>> [i for i in range(28) if kinds(f"layers.{i}.ffn.down.weight") == "q6_k"]
    [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 24, 25, 26, 27]
    >>> kinds("embed.weight"), kinds("layers.0.mixer.q.weight")
    ('q6_k', 'q4_k')
    """

    def kind(path: str) -> str:
        if not path.startswith("layers."):
            return "q6_k"
        _, number, *rest = path.split(".")
        i, first = int(number), layers // 8
        more = i < first or i >= 7 * layers // 8 or (i - first) % 3 == 2
        return "q6_k" if more and rest[:2] in (["mixer", "v"], ["ffn", "down"]) else "q4_k"

    return kind


def random_weights(config: dict[str, Any], device: Device, *, dtype: str = "f16", **options: Any) -> ModelWeights:
    """A causal model's random weights for engines that share them; `options` are those of `ModelWeights`."""
    cfg = ModelArchConfig.from_hf(config)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    params: Any = RandomParams(cfg, dtype)
    return ModelWeights(arch, cfg, params, device, **options)


def random_engine(
    config: dict[str, Any], device: Device, *, dtype: str = "f16", context: int = 1024, **options: Any
) -> tuple[Engine, int]:
    """An engine for a causal model with random weights, and the bytes of those; `options` are the engine's."""
    weights = random_weights(config, device, dtype=dtype)
    return Engine(weights, context=context, **options), weights.params.nbytes


def random_model(config: dict[str, Any], device: Device, *, dtype: str = "f16") -> LanguageModel:
    """A language model with random weights, whose vocabulary is numbers; its own engine is small."""
    engine, _ = random_engine(config, device, dtype=dtype, context=64, slots=1)
    words = {"tokenizer.ggml.tokens": [f"{k} " for k in range(engine.cfg.vocab)], "tokenizer.ggml.merges": []}
    tokenizer = Tokenizer.from_gguf({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", **words})
    return LanguageModel(engine, tokenizer, None, info={}, load_s=0.0)


def write_checkpoint(config: dict[str, Any], folder: Path) -> Path:
    """A folder as Hugging Face has them, with random f16 weights and a vocabulary of numbers: for what takes files alone."""
    cfg = ModelArchConfig.from_hf(config)
    params = RandomParams(cfg, "f16")
    stored = get_architecture(cfg.model_type).params(cfg)
    tensors = {p.hf[0]: params.stored(p.path).astype(np.float16) for p in stored}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    words = {f"{k}": k for k in range(cfg.vocab)}
    tokenizer = {"model": {"type": "WordLevel", "vocab": words, "unk_token": "0"}, "pre_tokenizer": {"type": "WhitespaceSplit"}}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": [], **tokenizer}))
    with (folder / "model.safetensors").open("wb") as file:
        write_safetensors(file, tensors, {"format": "pt"})
    return folder


def random_prompts(engine: Engine, count: int, length: int, seed: int) -> list[list[int]]:
    """Prompts of random tokens."""
    found: list[list[int]] = np.random.default_rng(seed).integers(0, engine.cfg.vocab, (count, length)).tolist()
    return found


def generate(engine: Engine, prompt: int, steps: int, seed: int) -> Timings:
    """A greedy answer to a random prompt: another seed each time, or what the cache shares with the last one is not run."""
    timings = Timings()
    [tokens] = random_prompts(engine, 1, prompt, seed)
    for _ in engine.stream([Request(tokens, SamplingParams(temperature=0), steps)], timings=timings):
        pass
    return timings


def step_graph(config: dict[str, Any], caps: Caps, chunk: int | None) -> Graph:
    """The graph of a step as the engine plans it: for prompts in parts of `chunk` tokens, or, with None, for the next token."""
    cfg = ModelArchConfig.from_hf(config)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    params: Any = RandomParams(cfg, "f16", planned=True)
    layout = CacheLayout(1, 2048, joined=caps.target == "webgpu", windows=page_groups(cfg.windows, 2048))
    return trace_token_step(arch, cfg, params.specs, layout, Sampling(), chunk=chunk)
