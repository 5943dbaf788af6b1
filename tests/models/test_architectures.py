"""Every golden checkpoint gives the logits or hidden states that transformers gave, from safetensors and as GGUF holds it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pumice as pm
from pumice import sources
from pumice.core import dtypes
from pumice.core.blocks import dequantize_rows, quantize_rows
from pumice.formats import open_weights
from pumice.formats.weights import OpenFile, TensorInfo
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params
from pumice.models.memory import WholeSequences
from pumice.models.registry import CausalArchitecture, EncoderArchitecture, get_architecture
from pumice.models.rope import inverse_frequencies
from pumice.run.executable import Executable
from pumice.tensor import Tensor

Array = np.ndarray[Any, Any]
GOLDENS = Path(__file__).parent / "goldens"
NAMES = sorted(p.parent.name for p in GOLDENS.glob("*/goldens.safetensors") if (p.parent / "config.json").exists())
MOST = {"B": 4, "T": 48}
TARGETS = [
    pytest.param("host", 1e-4, id="host"),
    pytest.param("webgpu", 2e-3, id="webgpu", marks=pytest.mark.gpu),
]


class MemoryFile(OpenFile):
    """A weight file that was never written."""

    def __init__(self, kind: Any, arrays: Mapping[str, Array]) -> None:
        self.kind, self.path, self.metadata, self._arrays = kind, Path("memory"), {}, dict(arrays)
        self.paths = (self.path,)
        self.tensors = {n: TensorInfo(n, dtypes.dtype(a.dtype), a.shape) for n, a in arrays.items()}

    def array(self, name: str) -> Array:
        return self._arrays[name]


def config_of(name: str) -> ModelArchConfig:
    return ModelArchConfig.from_hf(json.loads((GOLDENS / name / "config.json").read_text()))


@cache
def goldens(name: str) -> dict[str, Array]:
    with open_weights(GOLDENS / name / "goldens.safetensors") as file:
        return {key: file.array(key) for key in file.tensors}


def error(got: Array, wanted: Array) -> float:
    """Relative L2 distance."""
    exact = wanted.astype(np.float64)
    return float(np.linalg.norm(got - exact) / np.linalg.norm(exact))


def compiled(cfg: ModelArchConfig, weights: Any, device: str) -> Executable:
    """The whole model without a cache, for any batch and length up to `MOST`."""
    arch, loaded = get_architecture(cfg.model_type), load_model_params(cfg, weights)
    tokens, mask = pm.spec("B", "T", dtype="i32"), pm.spec("B", "T", dtype="bool")
    if isinstance(arch, EncoderArchitecture):

        def hidden(params: Any, tokens: Tensor, mask: Tensor) -> Tensor:
            return arch.hidden(cfg, params, tokens, mask)

        exe = pm.compile(hidden, params=loaded.specs, tokens=tokens, mask=mask, max=MOST, device=device)
    else:

        def logits(params: Any, tokens: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
            memory = WholeSequences(mask.reshape(mask.shape[0], 1, 1, mask.shape[1]))
            return arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, memory))

        exe = pm.compile(logits, params=loaded.specs, tokens=tokens, positions=tokens, mask=mask, max=MOST, device=device)
    exe.set_params(loaded.arrays)
    return exe


def prompt_errors(exe: Executable, found: Mapping[str, Array], lengths: tuple[int, ...]) -> dict[int, float]:
    """The error of each prompt's logits, or under 0 that of the only batch of an encoder."""
    if "batch.ids" in found:
        mask = found["batch.mask"].astype(bool)
        got = exe.run(tokens=found["batch.ids"], mask=mask)
        return {0: error(got * mask[..., None], found["batch.hidden"])}
    errors = {}
    for n in lengths:
        positions, mask = np.arange(n, dtype=np.int32)[None], np.ones((1, n), bool)
        got = exe.run(tokens=found[f"prompt.{n}.ids"][None], positions=positions, mask=mask)
        errors[n] = error(got[0], found[f"prompt.{n}.logits"])
    return errors


def test_every_architecture_has_a_golden() -> None:
    from pumice.models.registry import ARCHITECTURES

    assert {config_of(name).model_type for name in NAMES} == set(ARCHITECTURES)


@pytest.mark.parametrize(("device", "tolerance"), TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_equals_transformers(name: str, device: str, tolerance: float) -> None:
    with open_weights(GOLDENS / name / "model.safetensors") as weights:
        exe = compiled(config_of(name), weights, device)
    with exe:
        errors = prompt_errors(exe, goldens(name), (1, 7, 19, 40) if device == "host" else (1, 19))
    assert max(errors.values()) < tolerance, errors


@pytest.mark.parametrize("name", [n for n in NAMES if "padded.ids" in goldens(n)])
def test_left_padding_changes_nothing(name: str) -> None:
    found = goldens(name)
    mask = found["padded.mask"]
    positions = np.maximum(mask.cumsum(1) - 1, 0).astype(np.int32)
    with open_weights(GOLDENS / name / "model.safetensors") as weights:
        exe = compiled(config_of(name), weights, "host")
    with exe:
        got = exe.run(tokens=found["padded.ids"], positions=positions, mask=mask.astype(bool))
    assert error(got[:, -1], found["padded.logits"]) < 1e-4


def test_the_given_length_decides_over_the_positions() -> None:
    """Chunks of a long prompt turn their keys as the whole prompt does: with `length`, a prefix takes the long factors."""
    name, n = "phi3_longrope", 40
    cfg, arch = config_of(name), get_architecture("phi3")
    assert isinstance(arch, CausalArchitecture)

    def logits(params: Any, tokens: Tensor, length: Tensor) -> Tensor:
        positions = pm.broadcast_to(pm.arange(tokens.shape[1]), tokens.shape)
        return arch.logits(cfg, params, arch.hidden(cfg, params, tokens, positions, WholeSequences(), length=length))

    with open_weights(GOLDENS / name / "model.safetensors") as weights:
        loaded = load_model_params(cfg, weights)
        tokens, length = pm.spec(1, "T", dtype="i32"), pm.spec(1, dtype="i32")
        exe = pm.compile(logits, params=loaded.specs, tokens=tokens, length=length, max={"T": n}, device="host")
        exe.set_params(loaded.arrays)
    ids, wanted = goldens(name)[f"prompt.{n}.ids"][None], goldens(name)[f"prompt.{n}.logits"]
    with exe:
        assert error(exe.run(tokens=ids[:, :20], length=[n])[0], wanted[:20]) < 1e-4
        assert error(exe.run(tokens=ids[:, :20], length=[20])[0], wanted[:20]) > 1e-3


# --- the same checkpoints as GGUF files hold them ---

SIZES = {
    "embedding_length": "hidden",
    "block_count": "layers",
    "attention.head_count": "heads",
    "attention.head_count_kv": "kv_heads",
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "feed_forward_length": "intermediate",
    "context_length": "max_positions",
    "attn_logit_softcapping": "attention_softcap",
    "final_logit_softcapping": "logits_softcap",
    "use_parallel_residual": "parallel_residual",
    "logit_scale": "logits_multiplier",
    "attention.clamp_kqv": "clip",
    "attention.max_alibi_bias": "most_slope",
    "expert_count": "experts",
    "expert_used_count": "experts_per_token",
    "expert_feed_forward_length": "expert_hidden",
    "attention.q_lora_rank": "q_rank",
    "attention.kv_lora_rank": "kv_rank",
    "expert_weights_scale": "routed_scale",
    "expert_group_count": "groups",
    "expert_group_used_count": "top_groups",
}
LESS_MEAN = (
    "bert", "bloom", "cohere", "cohere2", "falcon", "gpt2", "gpt_neox", "mpt", "olmo", "phi", "roberta", "stablelm", "starcoder2",
)  # fmt: skip
GGUF_NAMES = {
    "cohere": "command-r", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "gpt_oss": "gpt-oss", "gpt_neox": "gptneox",
    "falcon_mamba": "mamba", "mistral": "llama",
    "mixtral": "llama", "phi": "phi2", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next",
    "roberta": "bert",
}  # fmt: skip
# There are no GGUF files of these, GGUF knows no dynamic rope, and of several groups there each has a norm of its own.
NO_GGUF = (
    "bamba", "falcon_first", "mamba2_groups", "rwkv7", "distilbert", "ministral", "modernbert", "opt", "opt_narrow",
    "qwen3_moe_mixed", "qwen3_next_mixed", "llama_rope_dynamic",
)  # fmt: skip
# Rotated pairs are neighbours in GGUF files of these.
NEIGHBOURS = ("granite", "llama", "mistral", "mixtral", "olmo", "smollm3")
# Each key head's queries, key and value stand together in Hugging Face files of these.
HEADWISE = ("bloom", "falcon", "gpt_neox")


def gguf_metadata(cfg: ModelArchConfig) -> dict[str, Any]:
    """What a converter writes for a model."""
    arch = GGUF_NAMES.get(cfg.model_type, cfg.model_type)
    found: dict[str, Any] = {key: getattr(cfg, field, None) for key, field in SIZES.items()}
    found[f"attention.layer_norm_{'' if cfg.model_type in LESS_MEAN else 'rms_'}epsilon"] = cfg.norm_eps
    found["attention.sliding_window"] = next((w for w in cfg.windows if w), 0)
    if cfg.model_type == "gemma3":
        assert cfg.local_rope is not None
        found["rope.freq_base_swa"] = cfg.local_rope.theta
        found["attention.sliding_window_pattern"] = cfg.windows.index(None) + 1
    if cfg.model_type == "gemma3n":
        found |= {"altup.num_inputs": cfg.streams, "altup.active_idx": cfg.active}
        found |= {"embedding_length_per_layer_input": cfg.layer_size, "attention.shared_kv_layers": cfg.layers - cfg.own_keys}
        found["activation_sparsity_scale"] = [-np.inf if cutoff is None else cutoff for cutoff in cfg.cutoffs]
        found["attention.sliding_window_pattern"] = [window is not None for window in cfg.windows]
    if cfg.model_type == "granite":
        found |= {"attention.scale": cfg.attention_scale, "embedding_scale": cfg.embedding_multiplier}
        found |= {"residual_scale": cfg.residual_multiplier, "logit_scale": cfg.logits_divisor}
    if "mamba" in cfg.model_type or cfg.model_type in ("jamba", "qwen3_next"):
        found |= get_architecture(cfg.model_type).gguf_entries(cfg)
    if cfg.model_type == "lfm2":
        found["attention.head_count_kv"] = [0 if conv else cfg.kv_heads for conv in cfg.convolutions]
        found["shortconv.l_cache"] = cfg.taps
    if cfg.model_type == "qwen2_moe":
        found["expert_shared_feed_forward_length"] = cfg.shared_hidden
    if cfg.model_type.startswith("deepseek"):
        found |= {"attention.value_length": cfg.value_dim, "expert_weights_norm": cfg.normalised}
        found |= {
            "expert_shared_count": cfg.shared_hidden // cfg.expert_hidden,
            "leading_dense_block_count": len(cfg.dense_layers),
        }
        found["expert_gating_func"] = 2 if cfg.model_type == "deepseek_v3" else 1
        found["rope.scaling.yarn_log_multiplier"] = 0.0707
    if cfg.rope is not None:
        found |= {"rope.freq_base": cfg.rope.theta, "rope.dimension_count": cfg.rope.rotary_dim}
        s = cfg.rope.scaling
        if s.kind in ("linear", "yarn"):
            found |= {"rope.scaling.type": s.kind, "rope.scaling.factor": s.factor}
        if s.kind in ("yarn", "longrope"):
            found["rope.scaling.original_context_length"] = s.original_positions
        if s.kind == "longrope":
            found["rope.scaling.attn_factor"] = s.attention_factor
    prefixed = {f"{arch}.{key}": value for key, value in found.items() if value is not None}
    return {"general.architecture": arch, **prefixed}


def gpt_oss_experts(layer: str, role: str, kind: str, a: Array) -> Iterator[tuple[str, Array]]:
    """Hugging Face files have gate and up in turns, and matrices as [in, out]."""
    parts = {"gate": a[..., ::2], "up": a[..., 1::2]} if role == "gate_up" else {"down": a}
    for part, values in parts.items():
        yield f"blk.{layer}.ffn_{part}_exps.{kind}", np.ascontiguousarray(values.swapaxes(1, 2) if kind == "weight" else values)


def gguf_tensors(cfg: ModelArchConfig, weights: Any) -> Iterator[tuple[str, Array]]:
    """The tensors under GGUF's names and in its layouts."""
    arrays = load_model_params(cfg, weights).arrays
    for p in get_architecture(cfg.model_type).params(cfg):
        role, kind = p.path.split(".")[-2:]
        a = arrays[p.path]
        if cfg.model_type in NEIGHBOURS and role in ("q", "k"):
            heads = cfg.heads if role == "q" else cfg.kv_heads
            a = a.reshape(heads, 2, -1, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
        elif cfg.model_type in ("gemma", "gemma2", "gemma3", "qwen3_next") and role.endswith("norm"):
            a = a + np.float32(p.role != "mixer.norm")
        elif cfg.model_type in HEADWISE and role == "qkv":
            each = a.reshape(cfg.kv_heads, cfg.heads // cfg.kv_heads + 2, cfg.head_dim, *a.shape[1:])
            a = np.concatenate([part.reshape(-1, *a.shape[1:]) for part in (each[:, :-2], each[:, -2], each[:, -1])])
        elif cfg.model_type == "gpt2" and kind == "weight" and role in ("qkv", "o", "up", "down"):
            a = a.T
        elif role == "conv" and kind == "weight":
            a = a[:, 0]
        elif role == "mixer" and kind == "a":
            a = -np.exp(a)
        elif getattr(cfg, "padding_id", None) is not None and role == "position_table":
            a = a[cfg.padding_id + 1 :]
        if cfg.model_type == "mamba2" and (kind in ("a", "d") or p.role == "mixer.norm"):
            a = a.reshape(-1, 1) if role == "mixer" else a.reshape(1, -1)
        if cfg.model_type == "gpt_oss" and ".experts." in p.path:
            yield from gpt_oss_experts(p.path.split(".")[1], role, kind, a)
            continue
        name = p.gguf[-1 if cfg.kind == "encoder" else 0]
        yield name, np.ascontiguousarray(a)
    if cfg.model_type == "gemma3n":
        # Files hold keys and values of the layers that use those of others, too.
        wide = np.zeros((cfg.kv_heads * cfg.head_dim, cfg.hidden), np.float32)
        for layer in range(cfg.own_keys, cfg.layers):
            yield from {f"blk.{layer}.attn_k.weight": wide, f"blk.{layer}.attn_v.weight": wide}.items()
    if cfg.rope is not None and cfg.rope.scaling.kind == "llama3":
        plain = dataclasses.replace(cfg.rope, scaling=dataclasses.replace(cfg.rope.scaling, kind="none"))
        yield "rope_freqs.weight", inverse_frequencies(plain) / inverse_frequencies(cfg.rope)
    if cfg.rope is not None and cfg.rope.scaling.kind == "longrope":
        yield "rope_factors_short.weight", np.array(cfg.rope.scaling.short, np.float32)
        yield "rope_factors_long.weight", np.array(cfg.rope.scaling.long, np.float32)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in NO_GGUF])
def test_gguf_layouts_give_the_same(name: str) -> None:
    original = config_of(name)
    with open_weights(GOLDENS / name / "model.safetensors") as weights:
        file = MemoryFile("gguf", dict(gguf_tensors(original, weights)))
    metadata = gguf_metadata(original)
    if original.model_type.startswith("qwen") and any(original.windows):
        with pytest.raises(pm.errors.InputError, match="sliding_window"):
            ModelArchConfig.from_gguf(metadata, file.tensors)
        return
    cfg = ModelArchConfig.from_gguf(metadata, file.tensors)
    if original.model_type in ("gemma", "gemma2", "gemma3"):
        # The file does not say how scores are scaled; it follows from the sizes of the published models.
        assert cfg.attention_scale == original.head_dim**-0.5
        cfg = dataclasses.replace(cfg, attention_scale=original.attention_scale)
    with compiled(cfg, file, "host") as exe:
        errors = prompt_errors(exe, goldens(name), (1, 19, 40))
    assert max(errors.values()) < 1e-4, errors


def test_newer_gguf_files_attend_to_small_vectors() -> None:
    """They have the projections of keys and values apart: queries go to the small vectors, which are all that is remembered."""
    original = config_of("deepseek_v2")
    with open_weights(GOLDENS / "deepseek_v2" / "model.safetensors") as weights:
        tensors = dict(gguf_tensors(original, weights))
    for i in range(original.layers):
        both = tensors.pop(f"blk.{i}.attn_kv_b.weight").reshape(original.heads, -1, original.kv_rank)
        keys, values = both[:, : -original.value_dim], both[:, -original.value_dim :]
        tensors |= {f"blk.{i}.attn_k_b.weight": keys.swapaxes(1, 2).copy(), f"blk.{i}.attn_v_b.weight": values.copy()}
    sizes = {"key_length": original.kv_rank + original.rope_dim, "value_length": original.kv_rank, "head_count_kv": 1}
    sizes |= {"key_length_mla": original.head_dim, "value_length_mla": original.value_dim}
    metadata = gguf_metadata(original) | {f"deepseek2.attention.{name}": size for name, size in sizes.items()}
    file = MemoryFile("gguf", tensors)
    cfg = ModelArchConfig.from_gguf(metadata, file.tensors)
    arch = get_architecture(cfg.model_type)
    assert isinstance(arch, CausalArchitecture)
    [(kept,), *_] = arch.memories(cfg)
    assert (kept.kv_heads, kept.key_dim, kept.value_dim) == (1, 24, 16)
    with compiled(cfg, file, "host") as exe:
        errors = prompt_errors(exe, goldens("deepseek_v2"), (1, 19, 40))
    assert max(errors.values()) < 1e-4, errors


def test_newer_gguf_files_have_the_gates_of_delta_nets_apart() -> None:
    original = config_of("qwen3_next")
    with open_weights(GOLDENS / "qwen3_next" / "model.safetensors") as weights:
        tensors = dict(gguf_tensors(original, weights))
    each, served = original.key_size, original.value_heads // original.key_heads * original.value_size
    for name in [name for name in tensors if name.endswith("ssm_in.weight")]:
        by_head = tensors.pop(name).reshape(original.key_heads, -1, original.hidden)
        parts = np.split(by_head, [each, 2 * each, 2 * each + served], axis=1)
        q, k, v, gate = (part.reshape(-1, original.hidden) for part in parts)
        tensors[name.replace("ssm_in", "attn_qkv")] = np.concatenate([q, k, v])
        tensors[name.replace("ssm_in", "attn_gate")] = gate
    file = MemoryFile("gguf", tensors)
    cfg = ModelArchConfig.from_gguf(gguf_metadata(original), file.tensors)
    with compiled(cfg, file, "host") as exe:
        errors = prompt_errors(exe, goldens("qwen3_next"), (1, 19, 40))
    assert max(errors.values()) < 1e-4, errors


def test_experts_in_mxfp4_are_those_of_their_values() -> None:
    """As gpt-oss is published: blocks and scales of two tensors each, codes of neighbours in a byte."""
    config = json.loads((GOLDENS / "gpt_oss" / "config.json").read_text())
    with open_weights(GOLDENS / "gpt_oss" / "model.safetensors") as weights:
        plain = {n: weights.array(n) for n in weights.tensors}
    packed, exact = dict(plain), dict(plain)
    for name, a in plain.items():
        if name.endswith(("gate_up_proj", "down_proj")):
            rows = np.ascontiguousarray(a.swapaxes(1, 2))
            blocks = quantize_rows(dtypes.mxfp4, rows)
            exact[name] = np.ascontiguousarray(dequantize_rows(dtypes.mxfp4, blocks, rows.shape[-1]).swapaxes(1, 2))
            each = blocks.reshape(*rows.shape[:2], -1, 17)
            codes = np.concatenate([each[..., 1:] & 15, each[..., 1:] >> 4], axis=-1)
            del packed[name]
            packed |= {f"{name}_blocks": codes[..., ::2] | codes[..., 1::2] << 4, f"{name}_scales": each[..., 0].copy()}
    given = {"tokens": goldens("gpt_oss")["prompt.19.ids"][None], "positions": np.arange(19, dtype=np.int32)[None]}
    given["mask"] = np.ones((1, 19), bool)
    found = []
    for arrays, section in ((packed, {"quantization_config": {"quant_method": "mxfp4"}}), (exact, {})):
        with compiled(ModelArchConfig.from_hf(config | section), MemoryFile("safetensors", arrays), "host") as exe:
            found.append(exe.run(given))
            packed_matmuls = [n for n in exe.graph if n.op == "grouped_qmatmul"]
        assert len(packed_matmuls) == (2 * config["num_hidden_layers"] if section else 0)
    assert error(found[0], found[1]) < 1e-5


def test_experts_that_a_file_has_one_by_one_must_be_alike() -> None:
    def changed(**changes: Array | None) -> MemoryFile:
        with open_weights(GOLDENS / "mixtral" / "model.safetensors") as weights:
            arrays: dict[str, Array | None] = {n: weights.array(n) for n in weights.tensors} | changes
        return MemoryFile("safetensors", {n: a for n, a in arrays.items() if a is not None})

    name = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    with pytest.raises(pm.errors.InputError, match=r"lacks 1 of the model's tensors: .*experts\.2\.w3"):
        load_model_params(config_of("mixtral"), changed(**{name: None}))
    with pytest.raises(pm.errors.InputError, match=r"experts\.0\.w3\.weight' and .*experts\.2\.w3.* belong together"):
        load_model_params(config_of("mixtral"), changed(**{name: np.zeros((64, 32), np.float16)}))
    with pytest.raises(pm.errors.InputError, match="num_experts_per_tok"):
        config = json.loads((GOLDENS / "mixtral" / "config.json").read_text())
        ModelArchConfig.from_hf(config | {"num_experts_per_tok": 5})


def upcycled(experts: int, chosen: int) -> tuple[ModelArchConfig, MemoryFile]:
    """The llama golden as a mixtral whose experts are all the MLP of the llama."""
    config = json.loads((GOLDENS / "llama" / "config.json").read_text())
    config |= {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": chosen, "sliding_window": None}
    arrays, rng = {}, np.random.default_rng(0)
    with open_weights(GOLDENS / "llama" / "model.safetensors") as weights:
        for name in weights.tensors:
            layer, _, part = name.partition(".mlp.")
            moved = {"gate_proj.weight": "w1", "up_proj.weight": "w3", "down_proj.weight": "w2"}.get(part)
            copies = [f"{layer}.block_sparse_moe.experts.{e}.{moved}.weight" for e in range(experts)] if moved else [name]
            arrays |= dict.fromkeys(copies, weights.array(name))
    width = config["hidden_size"]
    for i in range(config["num_hidden_layers"]):
        arrays[f"model.layers.{i}.block_sparse_moe.gate.weight"] = rng.standard_normal((experts, width)).astype(np.float32)
    return ModelArchConfig.from_hf(config), MemoryFile("safetensors", arrays)


@pytest.mark.parametrize(("experts", "chosen"), [(4, 1), (4, 3), (3, 3)])
def test_identical_experts_are_the_dense_model(experts: int, chosen: int) -> None:
    """Weights that sum to 1 of what is the same give that: to the rounding of the sum, the logits of the llama."""
    with open_weights(GOLDENS / "llama" / "model.safetensors") as weights, compiled(config_of("llama"), weights, "host") as exe:
        ids = goldens("llama")["prompt.40.ids"][None]
        given = {"tokens": ids, "positions": np.arange(40, dtype=np.int32)[None], "mask": np.ones((1, 40), bool)}
        wanted = exe.run(given)
    cfg, file = upcycled(experts, chosen)
    with compiled(cfg, file, "host") as exe:
        got = exe.run(given)
    assert error(got, wanted) < 1e-6
    np.testing.assert_array_equal(got.argmax(-1), wanted.argmax(-1))


@pytest.mark.slow
def test_smollm2_upcycled_answers_as_the_dense_model() -> None:
    """Every MLP four times, two of them for each token: from packed blocks, the same logits to the rounding of a sum."""
    present = sources.present("smollm2")
    if present is None:
        pytest.skip("smollm2 is not in the cache; `pumice pull smollm2` fetches it")
    with open_weights(present.path) as weights:
        tensors = {name: weights.array(name) for name in weights.tensors}
        infos, metadata = dict(weights.tensors), dict(weights.metadata)
        dense = MemoryFile("gguf", {})
        dense._arrays, dense.tensors = dict(tensors), infos
        upcycled, rng = MemoryFile("gguf", {}), np.random.default_rng(0)
        upcycled._arrays, upcycled.tensors = dict(tensors), dict(infos)
        for name, info in infos.items():
            if any(part in name for part in ("ffn_gate.", "ffn_up.", "ffn_down.")):
                merged = name.replace(".weight", "_exps.weight")
                upcycled._arrays[merged] = np.stack([upcycled._arrays.pop(name)] * 4)
                del upcycled.tensors[name]
                upcycled.tensors[merged] = TensorInfo(merged, info.dtype, (4, *info.shape))
        width = metadata["llama.embedding_length"]
        for i in range(metadata["llama.block_count"]):
            name = f"blk.{i}.ffn_gate_inp.weight"
            upcycled._arrays[name] = rng.standard_normal((4, width)).astype(np.float32)
            upcycled.tensors[name] = TensorInfo(name, dtypes.f32, (4, width))
        ids = goldens("smollm2")["france.ids"][None]
        positions = np.arange(ids.shape[1], dtype=np.int32)[None]
        given = {"tokens": ids, "positions": positions, "mask": np.ones(ids.shape, bool)}
        found = []
        for file, more in ((dense, {}), (upcycled, {"llama.expert_count": 4, "llama.expert_used_count": 2})):
            cfg = ModelArchConfig.from_gguf({**metadata, **more}, file.tensors)
            assert cfg.model_type == ("mixtral" if more else "llama")
            with compiled(cfg, file, "host") as exe:
                found.append(exe.run(given))
    assert error(found[1], found[0]) < 1e-5
    np.testing.assert_array_equal(found[1].argmax(-1), found[0].argmax(-1))


@pytest.mark.parametrize("dtype", [dtypes.q4_1, dtypes.q8_0])
def test_quantised_weights_stay_quantised(dtype: dtypes.DType) -> None:
    """The packed model equals the model of its dequantised weights; a tied table serves as embedding and as head."""
    original = config_of("llama_rope_llama3")
    with open_weights(GOLDENS / "llama_rope_llama3" / "model.safetensors") as weights:
        plain = dict(gguf_tensors(original, weights))
    packed = MemoryFile("gguf", plain)
    exact = dict(plain)
    for name, a in plain.items():
        if a.ndim == 2:
            blocks = quantize_rows(dtype, a)
            packed.tensors[name] = TensorInfo(name, dtype, a.shape)
            packed._arrays[name] = blocks
            exact[name] = dequantize_rows(dtype, blocks, a.shape[1])
    metadata = gguf_metadata(original)
    ids = goldens("llama_rope_llama3")["prompt.19.ids"][None]
    given = {"tokens": ids, "positions": np.arange(19, dtype=np.int32)[None], "mask": np.ones((1, 19), bool)}
    with compiled(ModelArchConfig.from_gguf(metadata, packed.tensors), packed, "host") as exe:
        got = exe.run(given)
        readers = [n for n in exe.graph if any(exe.graph.nodes[a].type.dtype == dtype for a in n.args if a is not None)]
    # A table, seven matrices a layer, and the table again as the head.
    assert sorted(n.op for n in readers) == ["embedding"] + ["qmatmul"] * (7 * original.layers + 1)
    file = MemoryFile("gguf", exact)
    with compiled(ModelArchConfig.from_gguf(metadata, file.tensors), file, "host") as exe:
        assert error(got, exe.run(given)) < 1e-4


# --- loading ---


def llama_file(**changes: Array | None) -> MemoryFile:
    """The llama golden in memory, with tensors replaced or, by None, removed."""
    with open_weights(GOLDENS / "llama" / "model.safetensors") as weights:
        arrays: dict[str, Array | None] = {n: weights.array(n) for n in weights.tensors}
    arrays |= {name.replace("__", "."): value for name, value in changes.items()}
    return MemoryFile("safetensors", {n: a for n, a in arrays.items() if a is not None})


def test_missing_tensors_are_named() -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    with pytest.raises(pm.errors.InputError, match=r"lacks 1 of the model's tensors: 'model\.layers\.1\.mlp\.up_proj") as e:
        load_model_params(config_of("llama"), llama_file(**{name: None}))
    assert e.value.code == "missing-name" and e.value.fields["names"] == [name]
    with pytest.raises(pm.errors.InputError, match=r"lm_head\.weight") as e:
        load_model_params(config_of("llama"), llama_file(**{"lm_head.weight": None}))
    assert "tie_word_embeddings" in e.value.hint


def test_unexpected_tensors_are_named() -> None:
    extra = {f"model.layers.{i}.mlp.experts.weight": np.zeros((2, 2), np.float32) for i in range(7)}
    with pytest.raises(pm.errors.InputError, match=r"holds 7 tensors .*experts.* and 2 more") as e:
        load_model_params(config_of("llama"), llama_file(**extra))
    assert e.value.code == "unknown-name"


def test_known_buffers_and_copies_are_left_alone() -> None:
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}
    assert load_model_params(config_of("llama"), llama_file(**buffers)).nbytes > 0
    tied = dataclasses.replace(config_of("llama"), tie_embeddings=True)
    assert "head.weight" not in load_model_params(tied, llama_file()).specs


def test_wrong_shapes_and_dtypes_are_named() -> None:
    name = "model.norm.weight"
    with pytest.raises(pm.errors.InputError, match=r"'model\.norm\.weight' has shape \(31,\), the config asks for \(32,\)") as e:
        load_model_params(config_of("llama"), llama_file(**{name: np.zeros(31, np.float32)}))
    assert e.value.code == "shape"
    with pytest.raises(pm.errors.InputError, match=r"'model\.norm\.weight' is i32") as e:
        load_model_params(config_of("llama"), llama_file(**{name: np.zeros(32, np.int32)}))
    assert e.value.code == "dtype"
    with pytest.raises(pm.errors.InputError, match="the config comes from hf and the weights from a gguf file"):
        load_model_params(config_of("llama"), MemoryFile("gguf", {}))


def test_arrays_are_views_that_are_made_when_asked_for() -> None:
    with open_weights(GOLDENS / "llama" / "model.safetensors") as weights:
        loaded = load_model_params(config_of("llama"), weights)
        a = loaded.arrays["layers.0.mixer.q.weight"]
        assert not a.flags.owndata and not a.flags.writeable
        assert loaded.nbytes == sum(loaded.arrays[path].nbytes for path in loaded.arrays)
        assert loaded.specs["layers.0.mixer.q.weight"].type.dtype == dtypes.bf16
