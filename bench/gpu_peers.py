"""The peers of the GPU table in a process of their own: PyTorch on CUDA, asked by bench/gpu.py. Weights are random."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import median_seconds, serve
from shapes import CAUSAL, ENCODERS
from train_models import VISION, torchs

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# The processor, which only tiny sizes are tried on, has no fast f16.
HALF = torch.float16 if DEVICE == "cuda" else torch.float32


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def several(run: Callable[[], object], times: int) -> float:
    """Median seconds of a call that is made `times` times before the device is waited for."""

    def burst() -> None:
        for _ in range(times):
            run()
        wait()

    return median_seconds(burst, 9, 2) / times


def matmul(n: int, dtype: str) -> float:
    """Seconds of a square product, without TF32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(n, n, device=DEVICE, dtype=getattr(torch, dtype)) for _ in range(2))
    return several(lambda: a @ b, 8)


def copy(nbytes: int) -> float:
    """Bytes a second of a copy, those read and those written."""
    a = torch.ones(nbytes // 4, device=DEVICE)
    b = torch.empty_like(a)
    return 2 * nbytes / several(lambda: b.copy_(a), 8)


# -- language models ----------------------------------------------------------------------------------------------------
def causal(config: dict[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    cfg = LlamaConfig(**{k: v for k, v in config.items() if k != "model_type"}, attn_implementation="sdpa")
    before = torch.get_default_dtype()
    torch.set_default_dtype(HALF)
    try:
        with torch.device(DEVICE):
            return LlamaForCausalLM(cfg).eval()
    finally:
        torch.set_default_dtype(before)


class Text:
    """A causal model; decode over a static cache by a compiled step, in the library's own loop or in one written for it.

    Several sequences run in lockstep: all are as long.
    """

    def __init__(self, name: str, sequences: int = 1, cache_length: int = 0) -> None:
        self.sequences, self.cache_length = sequences, cache_length
        self.config = CAUSAL[name]
        self.model = causal(self.config)
        self.model.generation_config.eos_token_id = None  # random weights would end the text anywhere
        self.step: Any = None

    def _tokens(self, count: int) -> Any:
        return torch.randint(0, self.config["vocab_size"], (self.sequences, count), device=DEVICE)

    def prepare(self, prompt: int, steps: int, cache_length: int) -> None:
        """Compiles what is measured later."""
        self.compile_step(cache_length)
        for _ in range(2):
            self.generate(prompt, steps)

    def compile_step(self, cache_length: int = 0) -> None:
        """Compiles the step of `loop` alone, for caches of so many tokens, or of those that the process was started for."""
        from transformers import StaticCache

        cache_length = cache_length or self.cache_length
        self.cache = StaticCache(config=self.model.config, max_cache_len=cache_length)
        self.step = torch.compile(self._step, mode="reduce-overhead" if DEVICE == "cuda" else "default", fullgraph=True)
        for _ in range(2):
            self.loop(cache_length // 2, 8)

    @torch.inference_mode()
    def loop(self, prompt: int, steps: int) -> float:
        """Seconds a token step of a loop that does nothing but call the compiled step."""
        self.cache.reset()
        positions = torch.arange(prompt + steps, device=DEVICE)
        out = self.model(
            input_ids=self._tokens(prompt), past_key_values=self.cache, cache_position=positions[:prompt], logits_to_keep=1
        )
        token = out.logits[:, -1:].argmax(-1)
        wait()
        start = time.perf_counter()
        for i in range(steps):
            # The next replay of the graph overwrites what this one gave.
            token = self.step(token, positions[prompt + i : prompt + i + 1]).clone()
        token.tolist()
        return (time.perf_counter() - start) / steps

    def _step(self, token: Any, position: Any) -> Any:
        out = self.model(input_ids=token, past_key_values=self.cache, cache_position=position, position_ids=position[None])
        return out.logits[:, -1:].argmax(-1)

    @torch.inference_mode()
    def generate(self, prompt: int, steps: int) -> float:
        """Seconds a token of `model.generate`, which compiles the step itself when it is told to use a static cache."""
        times: list[float] = []

        def note(ids: Any, scores: Any, **rest: Any) -> Any:
            times.append(time.perf_counter())  # called once a token, which is waited for by then
            return torch.zeros(ids.shape[0], dtype=torch.bool, device=ids.device)

        options = {"max_new_tokens": steps, "do_sample": False, "cache_implementation": "static"}
        tokens = self._tokens(prompt)
        self.model.generate(tokens, attention_mask=torch.ones_like(tokens), stopping_criteria=[note], pad_token_id=0, **options)
        return (times[-1] - times[0]) / (len(times) - 1)

    @torch.inference_mode()
    def prefill(self, count: int) -> float:
        """Seconds of a prompt to its first token."""
        tokens = self._tokens(count)

        def run() -> None:
            self.model(input_ids=tokens, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1).tolist()

        return median_seconds(run, 9, 3)


# -- embeddings ---------------------------------------------------------------------------------------------------------
class Encoder:
    """A BERT, in f32 and eager, or in f16 and compiled: token ids from the host in, pooled vectors on the host out."""

    def __init__(self, name: str, dtype: str) -> None:
        from transformers import BertConfig, BertModel

        torch.backends.cuda.matmul.allow_tf32 = False
        self.config = ENCODERS[name]
        config = BertConfig(**{k: v for k, v in self.config.items() if k != "model_type"}, attn_implementation="sdpa")
        model = BertModel(config, add_pooling_layer=False).eval().to(DEVICE)
        self.embedded: Any = self._embedded
        if dtype == "f16":
            model = model.to(HALF)
            self.embedded = torch.compile(self._embedded, dynamic=False)
        self.model = model

    def _embedded(self, ids: Any, mask: Any) -> Any:
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return torch.nn.functional.normalize(hidden.mean(1), dim=-1)

    def prepare(self, batches: list[int], length: int) -> None:
        """Compiles what is measured later."""
        for batch in batches:
            self.embed(batch, length, 1)

    @torch.inference_mode()
    def embed(self, batch: int, length: int, repeats: int) -> float:
        """Seconds of a call."""
        tokens = torch.randint(0, self.config["vocab_size"], (batch, length))

        def run() -> None:
            ids = tokens.to(DEVICE)
            self.embedded(ids, torch.ones_like(ids)).cpu()

        return median_seconds(run, repeats, 3)


# -- images -------------------------------------------------------------------------------------------------------------
class Vision:
    """An image network in f16, eager: images on the device in, logits on the host out."""

    def __init__(self, name: str) -> None:
        network = VISION[name]
        self.model = network.make(torchs()).eval().to(DEVICE).to(HALF)
        self.images = torch.from_numpy(network.batch()[0]).to(DEVICE).to(HALF)

    @torch.inference_mode()
    def classify(self, repeats: int) -> float:
        """Seconds of a call."""
        return median_seconds(lambda: self.model(self.images).cpu(), repeats, 3)


def works(side: str, *args: str) -> dict[str, Callable[..., Any]]:
    """What the process of a side answers to.

    A side is `math`; an encoder with f32 or f16; an image network; or a causal model with a number of sequences and the length of
    their caches.
    """
    if side == "math":
        return {"matmul": matmul, "copy": copy}
    if side in ENCODERS:
        encoder = Encoder(side, *args)
        return {"prepare": encoder.prepare, "embed": encoder.embed}
    if side in VISION:
        return {"classify": Vision(side).classify}
    text = Text(side, *map(int, args))
    prepare = {"prepare": text.prepare, "compile_step": text.compile_step}
    return {**prepare, "loop": text.loop, "generate": text.generate, "prefill": text.prefill}


if __name__ == "__main__":
    serve(works(*sys.argv[1:]))
