"""Several sequences at once on a GPU against torch's compiled batched step, with what the device could do at best."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from batch_sides import run_batch
from gpu_bench import Bench, Peers, Side, asked
from measure import SideError
from random_models import random_prompts
from report import Row, figure
from shapes import CAUSAL

from pumice.llm.engine import Engine


def prepare_batches(peers: Peers, shape: str, sequences: Sequence[int], lengths: Sequence[int]) -> None:
    """Lets torch compile a step for each number of sequences and length of their caches: side by side, each takes a minute."""
    for count in sequences:
        for length in lengths:
            peers.prepare(shape, str(count), str(length), work="compile_step")


def batch_rows(
    bench: Bench,
    engine: Engine,
    shape: str,
    sequences: Sequence[int],
    lengths: Sequence[int],
    *,
    new_tokens: int,
    keep: Callable[[Row], None] = lambda row: None,
) -> list[Row]:
    """Token steps at each number of sequences, while the cache of each fills up to each length; `keep` has each row at once."""
    matmul = bench.matmul_rates("float16")
    roof = Roofline(CAUSAL[shape], bench.copy_bandwidth, matmul["ours"], matmul.get("peer"))
    print(roof.text, file=sys.stderr)
    rows: list[Row] = []
    for count in sequences:
        for length in lengths:
            prompt = length - new_tokens
            worker = bench.peers.get(shape, str(count), str(length))
            seconds = asked(worker, "loop", prompt=prompt, steps=new_tokens)
            peer: dict[str, Side] = {name: lambda i, ask=ask: 1 / ask(i) for name, ask in seconds.items()}  # type: ignore[misc]
            rate = bench.turns({"ours": token_steps(engine, count, prompt, new_tokens), **peer})
            said, data = roof.explain(count, length - new_tokens / 2, rate["ours"])
            work = f"{shape} f16, {count} sequences, caches of {prompt} to {length} tokens"
            name, goal = "torch, compiled batched step, static cache", bench.goal(1.0, webgpu=1.0 if count <= 32 else None)
            key = f"{shape} {count} x {length}"
            row = Row(key, work, "token steps/s", rate["ours"], rate.get("peer"), name, goal, said, data)
            keep(row)
            rows.append(row)
    return rows


def token_steps(engine: Engine, sequences: int, prompt: int, steps: int) -> Side:
    """Token steps a second while so many sequences decode. Their prompts are always the same, so that they are cached."""
    prompts = random_prompts(engine, sequences, prompt, seed=1000 * sequences + prompt)

    def run(i: int) -> float:
        rate = run_batch(engine, prompts, steps)["decode"]
        if rate is None:
            raise SideError("the first sequence ended before the last one began")
        return float(rate) / sequences

    return run


@dataclass(frozen=True)
class Roofline:
    """What a device can do at best: bytes a second of a copy, f16 matmuls by us and by the peer (None: not measured)."""

    config: dict[str, Any]
    copy: float
    matmul: float
    peer_matmul: float | None

    @property
    def text(self) -> str:
        peer = "" if self.peer_matmul is None else f", torch's f16 matmul {self.peer_matmul / 1e12:.0f} TFLOP/s"
        return f"roofline: copy {self.copy / 1e12:.2f} TB/s, our f16 matmul {self.matmul / 1e12:.1f} TFLOP/s{peer}"

    def work(self, sequences: int, cached: float) -> tuple[float, float]:
        """Bytes that a token step reads at least, and its arithmetic: f16 weights once, f16 keys and values of each sequence."""
        c = self.config
        width, head = c["hidden_size"], c["hidden_size"] // c["num_attention_heads"]
        keys = 2 * c["num_key_value_heads"] * head
        layer = width * (2 * width + keys + 3 * c["intermediate_size"])
        weights = c["num_hidden_layers"] * layer + width * c["vocab_size"]
        nbytes = 2 * weights + 2 * sequences * cached * keys * c["num_hidden_layers"]
        return nbytes, sequences * (2 * weights + 4 * cached * width * c["num_hidden_layers"])

    def explain(self, sequences: int, cached: float, rate: float) -> tuple[str, dict[str, float]]:
        """What a rate of token steps means next to the roofline, in words and numbers."""
        nbytes, flops = self.work(sequences, cached)
        # Reading and arithmetic overlap at best: the slower one bounds the step.
        best = 1 / max(nbytes / self.copy, flops / self.matmul)
        bound = "reading" if nbytes / self.copy > flops / self.matmul else "arithmetic"
        share = {"bytes_per_s": rate * nbytes, "flop_per_s": rate * flops, "best": best}
        said = (
            f"{rate * nbytes / 1e12:.2f} of {self.copy / 1e12:.2f} TB/s, {rate * flops / 1e12:.1f} of {self.matmul / 1e12:.1f}"
            f" TFLOP/s; {bound} bounds ours at {figure(best)}"
        )
        if self.peer_matmul is not None:
            peer = 1 / max(nbytes / self.copy, flops / self.peer_matmul)
            said += f", torch with tensor cores at {figure(peer)}"
            share["peer_best"] = peer
        return said, share
