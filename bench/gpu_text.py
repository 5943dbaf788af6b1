"""Groups of the GPU table: causal models with random weights, decoding one sequence, reading prompts, and in Q4_K_M's mix."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from batch_sides import PAGE, greedy_request
from gpu_batch import batch_rows, prepare_batches, token_steps
from gpu_bench import Bench, Group, Peers, Sizes, asked, precision_option
from measure import medians
from random_models import generate, random_prompts, random_weights
from report import Row
from shapes import CAUSAL

from pumice.llm.engine import Engine
from pumice.llm.weights import ModelWeights

TITLES = {"smollm2": "SmolLM2-135M", "llama1b": "Llama-3.2-1B", "qwen1.5b": "Qwen2.5-1.5B"}
# As torch keeps its own.
CACHE_DTYPE = "f16"
_seeds = count(2)  # another prompt each time, or what the cache shares with the last one is not run


# -- engines ------------------------------------------------------------------------------------------------------------
def weights_of(bench: Bench, name: str, dtype: str = "f16") -> ModelWeights:
    """The random weights of a model on a device, which all its engines share."""
    key = f"{name} {dtype} weights"
    if key not in bench.made:
        option = precision_option(ModelWeights, bench.precision)
        bench.made[key] = random_weights(CAUSAL[bench.sizes.models[name]], bench.device, dtype=dtype, **option)
    found: ModelWeights = bench.made[key]
    return found


def engine_of(bench: Bench, name: str, kind: str, dtype: str = "f16", **options: Any) -> Engine:
    """An engine of a model, made with these options when it is first asked for."""
    key = f"{name} {dtype} {kind}"
    if key not in bench.made:
        weights = weights_of(bench, name, dtype)
        bench.made[key] = bench.stack.enter_context(Engine(weights, cache_dtype=CACHE_DTYPE, **options))
    found: Engine = bench.made[key]
    return found


def decoder(bench: Bench, name: str) -> Engine:
    return engine_of(bench, name, "decode", context=max(1024, bench.sizes.prefill + 8))


def reader(bench: Bench, name: str) -> Engine:
    """An engine for long prompts, one at a time."""
    chunk = {"chunk": bench.chunk} if bench.chunk else {}
    return engine_of(bench, name, "long prompts", context=max(bench.sizes.long_prefills) + 32, slots=1, **chunk)


def batcher(bench: Bench, name: str, sequences: int, dtype: str = "f16") -> Engine:
    """An engine with room for so many sequences at their full length."""
    # A context from which prompts are read in parts of the usual size: else the first sequence ends before the last one begins.
    full = bench.sizes.full_cache
    return engine_of(bench, name, "batch", dtype, slots=sequences, context=8 * full, memory=sequences * (full + 2 * PAGE))


# -- one sequence -------------------------------------------------------------------------------------------------------
def make_text(bench: Bench, name: str) -> None:
    """Loads a model and compiles its steps."""
    generate(decoder(bench, name), bench.sizes.prefill, 8, seed=1)
    if name == "llama1b":
        generate(reader(bench, name), max(bench.sizes.long_prefills), 1, seed=1)


def prepare_text(peers: Peers, sizes: Sizes, name: str) -> None:
    peers.get("math")
    args = {"prompt": sizes.prompt, "steps": sizes.answer, "cache_length": sizes.cache}
    peers.prepare(sizes.models[name], work="prepare", **args)


def text_rows(bench: Bench, name: str, bound: float, webgpu: float, idle: float) -> list[Row]:
    """Decode of one sequence and what it costs the host, how long the device waits for it, and prompts."""
    sizes, title, engine = bench.sizes, TITLES[name], decoder(bench, name)
    worker = bench.peers.get(sizes.models[name])

    def decode(i: int) -> float:
        t = generate(engine, sizes.prompt, sizes.answer, next(_seeds))
        return t.decode_s / t.decode_tokens

    options = {"prompt": sizes.prompt, "steps": sizes.answer}
    ways = [asked(worker, way, side=way, **options) for way in ("generate", "loop")]
    token = bench.turns({"ours": decode, **ways[0], **ways[1]})
    rate = {side: 1 / seconds for side, seconds in token.items()}
    work, unit = f"{title} f16 decode, {sizes.answer} tokens after {sizes.prompt}", "tokens/s"
    library, bare = "transformers, static cache + compile", "a loop of one's own around the compiled step"
    goal = bench.goal(bound, webgpu=webgpu)
    rows = [
        Row(f"{name} decode", work, unit, rate["ours"], rate.get("generate"), library, goal),
        Row(f"{name} loop", work, unit, rate["ours"], rate.get("loop"), bare),
    ]
    if name == "llama1b":
        nbytes = engine.weights.params.nbytes
        rows.append(bandwidth_row(bench, f"{name} bandwidth", "the same: weights read", nbytes * rate["ours"], 0.75, 0.6))
    spent = medians({"": [1e6 * cpu_of_a_token(engine, sizes) for _ in range(bench.rounds)]})[""]
    limit = bench.goal(100, least=False, unit="µs") if name == "llama1b" else None
    rows.append(Row(f"{name} cpu", f"{title}: processor time of a decoded token, all threads", "µs", spent, goal=limit))
    rows.append(_idle_row(bench, name, token["ours"], idle))
    bounds = {sizes.prefill: (1.0, 0.25)} if name == "llama1b" else {}
    rows += prefill_rows(bench, engine, name, [sizes.prefill], bounds)
    if name == "llama1b":
        longer = sizes.long_prefills
        rows += prefill_rows(bench, reader(bench, name), name, longer, dict.fromkeys(longer, (0.5, None)))
    return rows


def bandwidth_row(bench: Bench, key: str, work: str, rate: float, bound: float, webgpu: float | None = None) -> Row:
    """Bytes a second beside those of a copy."""
    copy = bench.copy_bandwidth / 1e12
    return Row(key, work, "TB/s", rate / 1e12, copy, "device copy", bench.goal(bound, webgpu=webgpu))


def cpu_of_a_token(engine: Engine, sizes: Sizes) -> float:
    """Seconds of processor time, of all threads of this process, for each token after the first one."""
    [prompt] = random_prompts(engine, 1, sizes.prompt, next(_seeds))
    marks = []
    for _ in engine.stream([greedy_request(prompt, sizes.answer)]):
        marks.append(time.process_time())
    return (marks[-1] - marks[0]) / (len(marks) - 1)


def _idle_row(bench: Bench, name: str, token_seconds: float, most: float) -> Row:
    engine, sizes = decoder(bench, name), bench.sizes
    generate(engine, sizes.prompt, sizes.answer, next(_seeds))  # the clock as in decode, and a sequence as long
    busy = engine.profile().device_seconds
    idle, data = 100 * max(0.0, 1 - busy / token_seconds), {"busy_seconds": busy, "token_seconds": token_seconds}
    goal = bench.goal(most, webgpu=10, least=False, unit="%")
    return Row(f"{name} idle", f"{TITLES[name]}: GPU idle between tokens", "%", idle, goal=goal, data=data)


def prefill_rows(
    bench: Bench, engine: Engine, name: str, lengths: Sequence[int], bounds: dict[int, tuple[float, float | None]]
) -> list[Row]:
    """Prompts of these lengths, to the first token on the host."""
    worker, rows = bench.peers.get(bench.sizes.models[name]), []
    for length in lengths:

        def ours(i: int, length: int = length) -> float:
            return generate(engine, length, 1, next(_seeds)).prefill_s

        found = bench.turns({"ours": ours, **asked(worker, "prefill", count=length)})
        speed = {side: length / seconds for side, seconds in found.items()}
        goal = None
        if length in bounds:
            bound, webgpu = bounds[length]
            goal = bench.goal(bound, webgpu=webgpu)
        key = f"{name} prefill" if length == bench.sizes.prefill else f"{name} prefill {length}"
        work = f"{TITLES[name]} f16 prefill, {length:,} tokens"
        note = f"in parts of {engine.chunk:,}" if engine.chunk < length else ""
        rows.append(Row(key, work, "tokens/s", speed["ours"], speed.get("peer"), "torch f16, eager", goal, note))
    return rows


# -- several sequences --------------------------------------------------------------------------------------------------
def make_batch(bench: Bench) -> None:
    """Loads a model, and compiles its steps for each number of sequences."""
    engine = batcher(bench, "llama1b", max(bench.sizes.sequences))
    for sequences in bench.sizes.sequences:
        token_steps(engine, sequences, bench.sizes.full_cache - bench.sizes.new_tokens, bench.sizes.new_tokens)(0)


def prepare_batch(peers: Peers, sizes: Sizes) -> None:
    peers.get("math")
    prepare_batches(peers, sizes.models["llama1b"], sizes.sequences, [sizes.full_cache])


def llama_batch_rows(bench: Bench) -> list[Row]:
    sizes = bench.sizes
    engine = batcher(bench, "llama1b", max(sizes.sequences))
    return batch_rows(bench, engine, sizes.models["llama1b"], sizes.sequences, [sizes.full_cache], new_tokens=sizes.new_tokens)


def make_mix(bench: Bench) -> None:
    """The same for both forms of a model."""
    sizes = bench.sizes
    for dtype in ("f16", "q4_k_m"):
        engine = batcher(bench, "qwen1.5b", sizes.sequences[0], dtype)
        for sequences in (1, sizes.sequences[0]):
            token_steps(engine, sequences, sizes.full_cache - sizes.new_tokens, sizes.new_tokens)(0)


def mix_rows(bench: Bench) -> list[Row]:
    """Q4_K_M's mix beside f16, and the bandwidth at which its weights are read; of several sequences once for all."""
    sizes, title, rows = bench.sizes, TITLES["qwen1.5b"], []
    most = sizes.sequences[0]
    engines = {dtype: batcher(bench, "qwen1.5b", most, dtype) for dtype in ("q4_k_m", "f16")}
    nbytes = engines["q4_k_m"].weights.params.nbytes
    for sequences in (1, most):
        prompt = sizes.full_cache - sizes.new_tokens
        rate = bench.turns({d: token_steps(engine, sequences, prompt, sizes.new_tokens) for d, engine in engines.items()})
        work = f"{title} in Q4_K_M's mix, decode of {sequences} sequence{'s' * (sequences > 1)}"
        key, ours = f"qwen1.5b q4_k_m {sequences}", rate["q4_k_m"]
        rows += [
            Row(key, work, "token steps/s", ours, rate["f16"], "ours in f16", bench.goal(1.5)),
            bandwidth_row(bench, f"{key} bandwidth", f"{work}: weights read", nbytes * ours, 0.5),
        ]
    return rows


def _text_group(name: str, **bounds: float) -> Group:
    return Group(
        functools.partial(text_rows, name=name, **bounds),
        functools.partial(make_text, name=name),
        functools.partial(prepare_text, name=name),
        precise=True,
    )


GROUPS = {
    "smollm2": _text_group("smollm2", bound=4.0, webgpu=3.0, idle=5),
    "llama1b": _text_group("llama1b", bound=2.0, webgpu=2.0, idle=10),
    "batch": Group(llama_batch_rows, make_batch, prepare_batch, precise=True),
    "qwen1.5b": Group(mix_rows, make_mix, lambda peers, sizes: peers.get("math"), precise=True),
}
