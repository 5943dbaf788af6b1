"""The sides of the CPU table, each in a process of its own: `python cpu_sides.py SIDE THREADS MODEL`, asked by bench/cpu.py."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from measure import cpu_seconds, median_seconds, require_native, resident_mib, seconds_of, serve

Works = Mapping[str, Callable[..., Any]]
CONTEXT = 2048


class _ProcessorTime:
    """Processor time of this process until the first token and after it, by which others on the machine do not matter."""

    def __init__(self) -> None:
        self._begin = cpu_seconds()
        self._first: float | None = None

    def note_first(self) -> None:
        """To be called when a token is there; later calls change nothing."""
        if self._first is None:
            self._first = cpu_seconds()

    def used(self, tokens: int) -> dict[str, float]:
        """Seconds of the prompt, and of each token after the first."""
        first = cpu_seconds() if self._first is None else self._first
        return {"prefill_cpu": first - self._begin, "token_cpu": (cpu_seconds() - first) / max(1, tokens)}


# -- language models ----------------------------------------------------------------------------------------------------
def pumice_text(model: Path, threads: int, **settings: Any) -> Works:
    """Pumice through its engine, which counts prompt and answer apart."""
    import pumice as pm
    from pumice.llm.requests import Request, SamplingParams, Timings

    require_native()
    loaded = pm.load(model, device="host", context=CONTEXT, **settings)

    def generate(tokens: list[int], steps: int) -> dict[str, float]:
        timings, clock = Timings(), _ProcessorTime()
        for _ in loaded.engine.stream([Request(tokens, SamplingParams(temperature=0), steps)], timings=timings):
            clock.note_first()
        found = {"prefill": timings.prefill_s, "token": timings.decode_s / max(1, timings.decode_tokens)}
        return found | clock.used(timings.decode_tokens)

    return {"generate": generate, "vocab": lambda: loaded.engine.cfg.vocab, "memory": resident_mib}


def llama_text(model: Path, threads: int) -> Works:
    """llama.cpp with flash attention, greedy, token by token."""
    import llama_cpp

    settings = {"n_threads": threads, "n_threads_batch": threads, "n_gpu_layers": 0, "verbose": False}
    llama = llama_cpp.Llama(str(model), n_ctx=CONTEXT, n_batch=512, flash_attn=True, logits_all=False, **settings)

    def generate(tokens: list[int], steps: int) -> dict[str, float]:
        llama.reset()
        start, clock = time.perf_counter(), _ProcessorTime()
        llama.eval(tokens)
        token = llama.sample(temp=0.0)
        first = time.perf_counter()
        clock.note_first()
        for _ in range(steps - 1):
            llama.eval([token])
            token = llama.sample(temp=0.0)
        found = {"prefill": first - start, "token": (time.perf_counter() - first) / max(1, steps - 1)}
        return found | clock.used(steps - 1)

    return {"generate": generate, "memory": resident_mib}


# -- embeddings: token ids in, pooled vectors of length 1 out -------------------------------------------------------------
def embed_works(run: Callable[[Any], Any], vocab: int) -> Works:
    def embed(batch: int, length: int, calls: int) -> float:
        """Seconds of a call."""
        tokens = np.random.default_rng(0).integers(0, vocab, (batch, length)).astype(np.int64)
        start = time.perf_counter()
        for _ in range(calls):
            run(tokens)
        return (time.perf_counter() - start) / calls

    def vectors(batch: int, length: int) -> Any:
        tokens = np.random.default_rng(0).integers(0, vocab, (batch, length)).astype(np.int64)
        return np.asarray(run(tokens)).tolist()

    return {"embed": embed, "vectors": vectors, "memory": resident_mib}


def pumice_embed(model: Path, threads: int) -> Works:
    import pumice as pm
    from pumice.formats import open_weights
    from pumice.llm.load import read_config

    require_native()
    encoder = pm.load(model, device="host")
    vocab = read_config(model, open_weights(model)).vocab
    return embed_works(lambda tokens: encoder.embed_tokens(tokens.tolist()), vocab)


def torch_model(model: Path, attention: str = "sdpa") -> tuple[Any, int]:
    """MiniLM with its pooling as a module."""
    import torch
    from transformers import AutoModel

    class Embed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(model, dtype=torch.float32, attn_implementation=attention)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
            pooled = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
            return torch.nn.functional.normalize(pooled, dim=-1)

    embed = Embed().eval()
    return embed, embed.model.config.vocab_size


def torch_embed(model: Path, threads: int) -> Works:
    import torch

    torch.set_num_threads(threads)
    embed, vocab = torch_model(model)

    def run(tokens: Any) -> Any:
        with torch.inference_mode():
            return embed(torch.from_numpy(tokens), torch.ones(tokens.shape, dtype=torch.int64)).numpy()

    return embed_works(run, vocab)


def export(model: Path, folder: str) -> str:
    """MiniLM as an ONNX file, fused as onnxruntime's own tool for such models does it; made once for each version of both."""
    import onnxruntime
    import torch
    from onnxruntime.transformers import optimizer

    path = Path(folder) / f"minilm-torch-{torch.__version__}-onnxruntime-{onnxruntime.__version__}.onnx"
    if not path.exists():
        embed, _ = torch_model(model, "eager")  # whose attention the tool recognises
        example = torch.ones(2, 16, dtype=torch.int64)
        names = ["input_ids", "attention_mask"]
        options: dict[str, Any] = {"input_names": names, "output_names": ["vectors"], "opset_version": 17, "dynamo": False}
        options["dynamic_axes"] = {name: {0: "batch", 1: "length"} for name in names}
        path.parent.mkdir(parents=True, exist_ok=True)
        plain, new = path.with_suffix(".plain"), path.with_suffix(".new")
        with torch.inference_mode():
            torch.onnx.export(embed, (example, example), plain, **options)
        cfg = embed.model.config
        fused = optimizer.optimize_model(str(plain), "bert", num_heads=cfg.num_attention_heads, hidden_size=cfg.hidden_size)
        fused.save_model_to_file(str(new))
        new.rename(path)
        plain.unlink()
    return str(path)


def onnx_embed(model: Path, threads: int) -> Works:
    """`model` is the exported file."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def run(tokens: Any) -> Any:
        return session.run(None, {"input_ids": tokens, "attention_mask": np.ones_like(tokens)})[0]

    return embed_works(run, 30522)


def pumice_plan(model: Path, threads: int) -> Works:
    """Planning and compiling the two steps of a Llama-shaped model of many layers, cold: this process has done nothing yet."""
    from random_models import step_graph
    from shapes import CAUSAL, decoder_shape

    from pumice.backends.webgpu.device import WebGpuDevice
    from pumice.core.caps import Caps
    from pumice.plan.build import build_plan

    def plan(layers: int) -> float:
        caps, config = Caps.preset("h200"), {**CAUSAL["llama1b"], "num_hidden_layers": layers}
        return seconds_of(lambda: [build_plan(step_graph(config, caps, chunk), caps) for chunk in (None, 512)])

    def compile(layers: int) -> float:
        # Narrow: the memory of params has nothing to do with compiling.
        device = WebGpuDevice()
        plans = [build_plan(step_graph(decoder_shape(512, layers), device.caps, chunk), device.caps) for chunk in (None, 512)]
        return seconds_of(lambda: [device.open(plan) for plan in plans])

    return {"plan": plan, "compile": compile}


def machine(model: Path, threads: int) -> Works:
    """What the machine itself can do, by NumPy: the roofline."""

    def matmul(n: int) -> float:
        """Arithmetic of an f32 product, operations a second."""
        a = np.ones((n, n), np.float32)
        return 2 * n**3 / median_seconds(lambda: a @ a, 5)

    def read(nbytes: int) -> float:
        """Bytes a second that all threads together read: each multiplies its part of a large array with itself."""
        parts = np.array_split(np.ones(nbytes // 4, np.float32), threads)
        with ThreadPoolExecutor(threads) as pool:
            return nbytes / median_seconds(lambda: list(pool.map(np.dot, parts, parts)), 5)

    return {"matmul": matmul, "read": read}


SIDES: dict[str, Callable[[Path, int], Works]] = {
    "machine": machine,
    "pumice-plan": pumice_plan,
    "pumice-text": pumice_text,
    "pumice-text-fast": partial(pumice_text, precision="fast"),
    "llama-text": llama_text,
    "pumice-embed": pumice_embed,
    "torch-embed": torch_embed,
    "onnx-embed": onnx_embed,
    "export": lambda model, threads: {"export": lambda folder: export(model, folder)},
}

if __name__ == "__main__":
    side, threads, model = sys.argv[1:]
    serve(SIDES[side](Path(model), int(threads)))
