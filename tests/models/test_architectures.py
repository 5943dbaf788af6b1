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
}
LESS_MEAN = ("bert", "gpt2", "gpt_neox", "roberta")
GGUF_NAMES = {"gpt_neox": "gptneox", "mistral": "llama", "roberta": "bert"}
# There are no GGUF files of these, and GGUF knows no dynamic rope.
NO_GGUF = ("distilbert", "modernbert", "llama_rope_dynamic")


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
    if cfg.model_type == "granite":
        found |= {"attention.scale": cfg.attention_scale, "embedding_scale": cfg.embedding_multiplier}
        found |= {"residual_scale": cfg.residual_multiplier, "logit_scale": cfg.logits_divisor}
    if cfg.model_type == "lfm2":
        found["attention.head_count_kv"] = [0 if conv else cfg.kv_heads for conv in cfg.convolutions]
        found["shortconv.l_cache"] = cfg.taps
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


def gguf_tensors(cfg: ModelArchConfig, weights: Any) -> Iterator[tuple[str, Array]]:
    """The tensors under GGUF's names and in its layouts."""
    arrays = load_model_params(cfg, weights).arrays
    for p in get_architecture(cfg.model_type).params(cfg):
        role, kind = p.path.split(".")[-2:]
        a = arrays[p.path]
        if cfg.model_type in ("llama", "mistral", "granite") and role in ("q", "k"):
            heads = cfg.heads if role == "q" else cfg.kv_heads
            a = a.reshape(heads, 2, -1, *a.shape[1:]).swapaxes(1, 2).reshape(a.shape)
        elif cfg.model_type.startswith("gemma") and role.endswith("norm"):
            a = a + np.float32(1)
        elif cfg.model_type == "gpt_neox" and role == "qkv":
            a = a.reshape(cfg.heads, 3, -1, *a.shape[1:]).swapaxes(0, 1).reshape(a.shape)
        elif cfg.model_type == "gpt2" and kind == "weight" and role in ("qkv", "o", "up", "down"):
            a = a.T
        elif role == "conv":
            a = a[:, 0]
        elif getattr(cfg, "padding_id", None) is not None and role == "position_table":
            a = a[cfg.padding_id + 1 :]
        name = p.gguf[-1 if cfg.kind == "encoder" else 0]
        yield name, np.ascontiguousarray(a)
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
    if original.model_type.startswith("gemma"):
        # The file does not say how scores are scaled; it follows from the sizes of the published models.
        assert cfg.attention_scale == original.head_dim**-0.5
        cfg = dataclasses.replace(cfg, attention_scale=original.attention_scale)
    with compiled(cfg, file, "host") as exe:
        errors = prompt_errors(exe, goldens(name), (1, 19, 40))
    assert max(errors.values()) < 1e-4, errors


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
