"""Groups of the GPU table: MiniLM in f32 and f16, a vision transformer in f16, and a train step of GPT-2's size."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from gpu_bench import Bench, Group, Peers, Sizes, asked, precision_option
from measure import Worker, median_seconds
from random_models import RandomParams
from report import Row
from shapes import ENCODERS
from train_models import VISION, ours
from train_step import MODELS
from train_step import Sizes as TrainSizes
from train_step import works as train_works

import pumice as pm
from pumice import nn
from pumice.llm.embed import Pooling, encoder_graph
from pumice.models.config import ModelArchConfig
from pumice.models.registry import EncoderArchitecture, get_architecture

REPEATS = 7
# onnxruntime's WebGPU build is not on that machine: what it reached there, texts a second by batch.
ORT_WEBGPU, ORT_DATE = {1: 216.0, 32: 2907.0, 256: 547.0}, "2026-11-15"


# -- embeddings ---------------------------------------------------------------------------------------------------------
def encoder(bench: Bench, dtype: str) -> pm.Executable:
    """MiniLM with random weights; as `EmbeddingModel` has it, one executable for all batches."""
    key = f"encoder {dtype}"
    if key not in bench.made:
        cfg = ModelArchConfig.from_hf(ENCODERS[bench.sizes.models["minilm"]])
        arch = get_architecture(cfg.model_type)
        assert isinstance(arch, EncoderArchitecture)
        params = RandomParams(cfg, dtype)
        specs = {"tokens": pm.spec("B", "T", dtype="i32"), "length": pm.spec("B", dtype="i32")}
        graph = pm.trace(encoder_graph(arch, cfg, Pooling()), params=params.specs, **specs)
        # f32 is what is compared with torch's f32: exact.
        option = precision_option(pm.compile, bench.precision if dtype == "f16" else "exact")
        largest = {"B": max(bench.sizes.batches), "T": cfg.max_positions}
        exe = bench.stack.enter_context(pm.compile(graph, device=bench.device, max=largest, **option))
        exe.set_params(dict(params.arrays))
        bench.made[key] = exe
    found: pm.Executable = bench.made[key]
    return found


def embedding(bench: Bench, dtype: str, batch: int) -> Callable[[], object]:
    """A call of ours: token ids from the host in, vectors on the host out."""
    exe, length, vocab = encoder(bench, dtype), bench.sizes.text, ENCODERS[bench.sizes.models["minilm"]]["vocab_size"]
    tokens = np.random.default_rng(batch).integers(0, vocab, (batch, length)).astype(np.int32)
    lengths = np.full(batch, length, np.int32)
    return lambda: exe.run(tokens=tokens, length=lengths)


def make_encoder(bench: Bench, dtype: str) -> None:
    """Loads it, and compiles what its batches need."""
    for batch in bench.sizes.batches:
        embedding(bench, dtype, batch)()


def embedding_rates(bench: Bench, dtype: str, batch: int) -> dict[str, float]:
    """Texts a second of ours and the peer."""
    call, worker = embedding(bench, dtype, batch), bench.peers.get(bench.sizes.models["minilm"], dtype)
    peer = asked(worker, "embed", batch=batch, length=bench.sizes.text, repeats=REPEATS)
    found = bench.turns({"ours": lambda i: median_seconds(call, REPEATS, 1), **peer})
    return {side: batch / seconds for side, seconds in found.items()}


def minilm_rows(bench: Bench) -> list[Row]:
    """MiniLM in f32."""
    rows, quoted = [], []
    for batch in bench.sizes.batches:
        rate = embedding_rates(bench, "f32", batch)
        title, goal = f"MiniLM f32, batch {batch} × {bench.sizes.text} tokens", bench.goal(0.9, webgpu=0.9)
        rows.append(Row(f"minilm {batch}", title, "texts/s", rate["ours"], rate.get("peer"), "torch eager", goal))
        if batch in ORT_WEBGPU and not bench.sizes.is_small:
            name = f"onnxruntime-webgpu, measured on {ORT_DATE}, not in this run"
            goal = bench.goal(4, webgpu=4)
            quoted.append(Row(f"minilm {batch} ort", title, "texts/s", rate["ours"], ORT_WEBGPU[batch], name, goal))
    return rows + quoted


def half_minilm_rows(bench: Bench) -> list[Row]:
    """MiniLM in f16."""
    rows = []
    for batch in bench.sizes.batches[1:]:
        rate = embedding_rates(bench, "f16", batch)
        title = f"MiniLM f16, batch {batch} × {bench.sizes.text} tokens"
        goal = bench.goal(1.0)
        rows.append(Row(f"minilm f16 {batch}", title, "texts/s", rate["ours"], rate.get("peer"), "torch.compile f16", goal))
    return rows


def _prepare_half(peers: Peers, sizes: Sizes) -> None:
    args = {"batches": sizes.batches[1:], "length": sizes.text}
    peers.prepare(sizes.models["minilm"], "f16", work="prepare", **args)


# -- images -------------------------------------------------------------------------------------------------------------
def vision(bench: Bench) -> pm.Executable:
    """A vision transformer in f16, all through; its images are on the device."""
    if "vision" not in bench.made:
        network = VISION[bench.sizes.models["vit"]]
        model = network.make(ours())
        images, _ = network.batch()
        params = {name: array.astype(np.float16) for name, array in model.init().items()}

        def run(params: Any) -> Any:
            return nn.apply(model, {k: v for k, v in params.items() if k != "images"}, params["images"])

        given = {**params, "images": images.astype(np.float16)}
        option = precision_option(pm.compile, bench.precision)
        bench.made["vision"] = bench.stack.enter_context(pm.compile(run, params=given, device=bench.device, **option))
    found: pm.Executable = bench.made["vision"]
    return found


def vision_rows(bench: Bench) -> list[Row]:
    """Images on the device in, logits on the host out."""
    exe, name = vision(bench), bench.sizes.models["vit"]
    batch, _, side, _ = VISION[name].shape

    def run(i: int) -> float:
        return median_seconds(exe.run, REPEATS, 1)

    found = bench.turns({"ours": run, **asked(bench.peers.get(name), "classify", repeats=REPEATS)})
    rate = {side: batch / seconds for side, seconds in found.items()}
    work, goal = f"ViT-B f16 forward, batch {batch} × {side}²", bench.goal(0.7)
    return [Row("vit", work, "images/s", rate["ours"], rate.get("peer"), "torch f16, eager", goal)]


# -- training -----------------------------------------------------------------------------------------------------------
def _train_sizes(sizes: Sizes, **more: Any) -> TrainSizes:
    return TrainSizes(**{**MODELS["gpt2"], **sizes.train, **more})


def _own_precision(bench: Bench) -> str:
    """As the train step calls it, which names what matmuls are in."""
    return "f32" if bench.precision == "exact" else bench.precision


def train_step(bench: Bench, precision: str) -> Callable[[int], dict[str, Any]]:
    """Steps of ours, from the same parameters in each precision."""
    key = f"train {precision}"
    if key not in bench.made:
        sizes = _train_sizes(bench.sizes, precision=precision)
        bench.made[key] = train_works("pumice", sizes, bench.device)["measure"]
    found: Callable[[int], dict[str, Any]] = bench.made[key]
    return found


def torch_train(peers: Peers, sizes: Sizes) -> Worker | None:
    """PyTorch's process: bf16 autocast over f32 parameters."""
    same = _train_sizes(sizes, precision="bf16", device="webgpu" if peers.on_cuda else "host")
    return peers.get("--serve", "torch", "--sizes", json.dumps(asdict(same)), script="train_step.py")


def make_train(bench: Bench) -> None:
    """Compiles the step and notes its first losses, and those in f32."""
    for precision in dict.fromkeys((_own_precision(bench), "f32")):
        bench.made[f"losses {precision}"] = train_step(bench, precision)(bench.sizes.loss_steps)["losses"]


def train_rows(bench: Bench) -> list[Row]:
    """A train step, and how far its losses are from those in f32."""
    sizes, precision = bench.sizes, _own_precision(bench)
    measure, worker = train_step(bench, precision), torch_train(bench.peers, sizes)
    rows = []

    def seconds(answer: dict[str, Any]) -> float:
        return float(np.median(answer["walls"]))

    sides: dict[str, Callable[[int], float]] = {"ours": lambda i: seconds(measure(sizes.train_steps))}
    if worker is not None:
        sides["peer"] = lambda i: seconds(worker.ask("measure", steps=sizes.train_steps))
    rate = {side: 1 / found for side, found in bench.turns(sides).items()}
    t = _train_sizes(sizes)
    what = f"GPT-2 small, batch {t.batch} × {t.context}"
    work, name = f"{what}: train step, f32 parameters", "torch bf16 autocast, eager"
    goal = bench.goal(1.0) if precision != "f32" else None
    rows.append(Row("train", work, "steps/s", rate["ours"], rate.get("peer"), name, goal))
    if precision != "f32":
        curve, exact = (bench.made[f"losses {p}"] for p in (precision, "f32"))
        apart = 100 * largest_difference(curve, exact)
        work, goal = f"{what}: losses of {len(curve)} steps, largest difference from f32", bench.goal(1, least=False, unit="%")
        rows.append(Row("train losses", work, "%", apart, goal=goal, data={"losses": curve, "f32": exact}))
    return rows


def largest_difference(found: Sequence[float], exact: Sequence[float]) -> float:
    """The largest relative difference of two curves.

    >>> largest_difference([1.0, 2.1], [1.0, 2.0])
    0.05000000000000005
    """
    return max(abs(a - b) / abs(b) for a, b in zip(found, exact, strict=True))


GROUPS = {
    "minilm": Group(
        minilm_rows, lambda bench: make_encoder(bench, "f32"), lambda peers, sizes: peers.get(sizes.models["minilm"], "f32")
    ),
    "minilm16": Group(half_minilm_rows, lambda bench: make_encoder(bench, "f16"), _prepare_half, precise=True),
    "vit": Group(vision_rows, lambda bench: vision(bench).run(), lambda p, sizes: p.get(sizes.models["vit"]), precise=True),
    "train": Group(train_rows, make_train, torch_train, precise=True),
}
