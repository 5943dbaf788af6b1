"""The transformer block that all architectures share, configured by fields, and causal models built from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pumice import functions as F
from pumice.models.config import ModelArchConfig
from pumice.models.linear import ROWS_A, ROWS_B, Params, apply, linear
from pumice.models.rope import Rotary
from pumice.tensor import Tensor

Tree = Mapping[str, Any]  # params as they are traced: nested mappings and lists of tensors


class Attend(Protocol):
    """Attention as the caller has it, with or without a cache; which keys a query may see is the caller's business."""

    def __call__(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float | None = None,
        window: int | None = None,
        softcap: float | None = None,
    ) -> Tensor:
        """q [B, T, heads, D], k and v [B, T, kv_heads, D] of the new tokens → [B, T, heads, D]."""
        ...


def hidden(
    cfg: ModelArchConfig, params: Tree, tokens: Tensor, positions: Tensor, attend: Attend, *, length: Tensor | None = None
) -> Tensor:
    """Tokens and positions i32 [B, T] → the last layer's output f32 [B, T, hidden], with the final norm.

    `length` i32 [B] is explained at `Rotary`; most models do not look at it.

    >>> import pumice as pm
    >>> from pumice.models.params import LLAMA_NAMES, param_defs
    >>> cfg = ModelArchConfig(model_type="llama", source="hf", hidden=8, layers=1, heads=2, kv_heads=1, head_dim=4,
    ...     intermediate=16, vocab=10, max_positions=32, norm_eps=1e-5, activation="silu", windows=(None,))
    >>> def model(tokens, positions, **weights):
    ...     layer = {p.split(".")[2]: {"weight": w} for p, w in weights.items() if p.startswith("layers")}
    ...     params = {"embed": {"weight": weights["embed.weight"]}, "layers": [layer], "norm": {"weight": weights["norm.weight"]}}
    ...     attend = lambda layer, q, k, v, **options: pm.attention(q, k, v, causal=True, layout="bshd", **options)
    ...     return hidden(cfg, params, tokens, positions, attend)
    >>> weights = {p.path: pm.spec(*p.shape) for p in param_defs(cfg, LLAMA_NAMES)}
    >>> ids = pm.spec("B", "T", dtype="i32")
    >>> str(pm.trace(model, tokens=ids, positions=ids, **weights).nodes[-1].type)
    'f32[B,T,8]'
    """
    return run_layers(cfg, params, embed(cfg, params, tokens, positions), positions, attend, length)


def logits(cfg: ModelArchConfig, params: Tree, x: Tensor) -> Tensor:
    """What `hidden` gave, all of it or some positions [..., hidden] → logits f32 [..., vocab]."""
    y = apply(x, params["embed" if cfg.tie_embeddings else "head"])
    if cfg.logits_divisor != 1.0:
        y = y / cfg.logits_divisor
    if cfg.logits_softcap is not None:
        y = F.tanh(y / cfg.logits_softcap) * cfg.logits_softcap
    return y


def embed(cfg: ModelArchConfig, params: Tree, tokens: Tensor, positions: Tensor, types: Tensor | None = None) -> Tensor:
    """Rows of the token table, with learned positions and token types where the model has them."""
    x = _rows(params["embed"], tokens)
    if cfg.embedding_multiplier != 1.0:
        x = x * cfg.embedding_multiplier
    if cfg.type_rows:
        # Without types all tokens are of type 0, one row for all of them.
        x = x + _rows(params["types"], F.zeros((1, 1), "i32") if types is None else types)
    if cfg.position_rows:
        x = x + _rows(params["positions"], positions)
    return normed(cfg, params.get("embed_norm"), x)


def _rows(table: Params, ids: Tensor) -> Tensor:
    rows = F.astype(F.embedding(table["weight"], ids), "f32")
    if ROWS_A not in table:
        return rows
    return rows + linear(F.embedding(F.transpose(table[ROWS_A]), ids), table[ROWS_B])


def run_layers(
    cfg: ModelArchConfig, params: Tree, x: Tensor, positions: Tensor, attend: Attend, length: Tensor | None = None
) -> Tensor:
    """All layers and the final norm; cos and sin are computed once for each kind of layer."""
    factors = params.get("rope", {})
    rotary = None if cfg.rope is None else Rotary(cfg.rope, factors, positions, length)
    local = rotary if cfg.local_rope is None else Rotary(cfg.local_rope, factors, positions, length)
    for index, layer in enumerate(params["layers"]):
        x = _block(cfg, index, layer, x, rotary if cfg.windows[index] is None else local, attend)
    return normed(cfg, params.get("norm"), x)


def normed(cfg: ModelArchConfig, params: Params | None, x: Tensor) -> Tensor:
    """x through a norm of the config's kind; unchanged without params for one."""
    if params is None:
        return x
    if cfg.norm == "layer":
        return F.layer_norm(x, params["weight"], params.get("bias"), eps=cfg.norm_eps)
    weight = params["weight"]
    if cfg.norm_offset:
        weight = F.astype(weight, "f32") + cfg.norm_offset
    return F.rms_norm(x, weight, eps=cfg.norm_eps)


def _block(cfg: ModelArchConfig, index: int, p: Tree, x: Tensor, rotary: Rotary | None, attend: Attend) -> Tensor:
    attended = _attention(cfg, index, p, normed(cfg, p.get("attn_norm"), x), rotary, attend)
    if cfg.parallel_residual:
        return _mlp(cfg, p, normed(cfg, p["mlp_norm"], x)) + attended + x
    x = _joined(cfg, x, attended, p.get("post_attn_norm"))
    return _joined(cfg, x, _mlp(cfg, p, normed(cfg, p.get("mlp_norm"), x)), p.get("post_mlp_norm"))


def _joined(cfg: ModelArchConfig, x: Tensor, branch: Tensor, norm: Params | None) -> Tensor:
    if cfg.norms == "residual":
        return normed(cfg, norm, x + branch)
    branch = normed(cfg, norm, branch)
    return x + (branch if cfg.residual_multiplier == 1.0 else branch * cfg.residual_multiplier)


def _attention(cfg: ModelArchConfig, index: int, p: Tree, x: Tensor, rotary: Rotary | None, attend: Attend) -> Tensor:
    q, k, v = _projections(cfg, p, x)
    if cfg.qk_norm == "head":
        q, k = normed(cfg, p["q_norm"], q), normed(cfg, p["k_norm"], k)
    if rotary is not None:
        q, k = rotary(q), rotary(k)
    y = attend(index, q, k, v, scale=cfg.attention_scale, window=cfg.windows[index], softcap=cfg.attention_softcap)
    return apply(F.reshape(y, (*x.shape[:2], cfg.heads * cfg.head_dim)), p["o"], cfg.transposed_weights)


def _projections(cfg: ModelArchConfig, p: Tree, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q [B, T, heads, D], k and v [B, T, kv_heads, D]."""
    batch, time = x.shape[:2]
    if cfg.qkv == "split":
        q, k, v = (apply(x, p[name], cfg.transposed_weights) for name in ("q", "k", "v"))
        if cfg.qk_norm == "projection":
            q, k = normed(cfg, p["q_norm"], q), normed(cfg, p["k_norm"], k)
        q = F.reshape(q, (batch, time, cfg.heads, cfg.head_dim))
        k, v = (F.reshape(t, (batch, time, cfg.kv_heads, cfg.head_dim)) for t in (k, v))
        return q, k, v
    fused = apply(x, p["qkv"], cfg.transposed_weights)
    if cfg.qkv == "by_head":
        each = F.reshape(fused, (batch, time, cfg.heads, 3, cfg.head_dim))
        return each[:, :, :, 0], each[:, :, :, 1], each[:, :, :, 2]
    each = F.reshape(fused, (batch, time, cfg.heads + 2 * cfg.kv_heads, cfg.head_dim))
    keys_end = cfg.heads + cfg.kv_heads
    return each[:, :, : cfg.heads], each[:, :, cfg.heads : keys_end], each[:, :, keys_end:]


def _mlp(cfg: ModelArchConfig, p: Tree, x: Tensor) -> Tensor:
    if not cfg.gated:
        inner = _activated(cfg, apply(x, p["up"], cfg.transposed_weights))
    elif cfg.fused_gate_up:
        both = apply(x, p["gate_up"], cfg.transposed_weights)
        inner = _activated(cfg, both[..., : cfg.intermediate]) * both[..., cfg.intermediate :]
    else:
        inner = _activated(cfg, apply(x, p["gate"])) * apply(x, p["up"])
    return apply(inner, p["down"], cfg.transposed_weights)


def _activated(cfg: ModelArchConfig, x: Tensor) -> Tensor:
    if cfg.activation == "silu":
        return F.silu(x)
    if cfg.activation == "relu":
        return F.relu(x)
    return F.gelu(x, approximate=cfg.activation == "gelu_tanh")
