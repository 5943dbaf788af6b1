"""Neural networks: modules with named parameters, layers, initialisers and losses."""

from pumice.nn import init, losses
from pumice.nn.blocks import MLP, GatedMLP, MultiHeadAttention, TransformerBlock, activation
from pumice.nn.experts import (
    Experts,
    GroupedLinear,
    GroupedLoRA,
    MixtureOfExperts,
    Routed,
    Router,
    SortedRows,
    load_balancing_loss,
    sort_by_expert,
)
from pumice.nn.layers import Conv1d, Conv2d, Conv3d, Dropout, Embedding, Linear, LoRA, Sequential
from pumice.nn.losses import bce_with_logits, cross_entropy, huber, kl, l1, mse, nll
from pumice.nn.module import Buffer, Module, ParamBinding, Parameter, apply, bind
from pumice.nn.norms import BatchNorm1d, BatchNorm2d, GroupNorm, LayerNorm, RMSNorm

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "ParamBinding",
    "Buffer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Dropout",
    "Embedding",
    "Experts",
    "GatedMLP",
    "GroupNorm",
    "GroupedLinear",
    "GroupedLoRA",
    "LayerNorm",
    "Linear",
    "LoRA",
    "MLP",
    "MixtureOfExperts",
    "Module",
    "MultiHeadAttention",
    "Parameter",
    "RMSNorm",
    "Routed",
    "Router",
    "Sequential",
    "SortedRows",
    "TransformerBlock",
    "activation",
    "apply",
    "bce_with_logits",
    "bind",
    "cross_entropy",
    "huber",
    "init",
    "kl",
    "l1",
    "load_balancing_loss",
    "losses",
    "mse",
    "nll",
    "sort_by_expert",
]
