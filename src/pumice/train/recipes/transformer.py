"""The small causal transformer of the text and addition recipes."""

from __future__ import annotations

from dataclasses import dataclass

from pumice import functions as F
from pumice import nn
from pumice.errors import InputError
from pumice.tensor import Tensor


@dataclass(frozen=True)
class TransformerSettings:
    """Depth, width and heads of a transformer."""

    layers: int = 3
    width: int = 64
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.layers, self.width, self.heads) < 1 or self.width % self.heads:
            raise InputError(
                f"a transformer of {self.layers} layers, width {self.width} and {self.heads} heads",
                hint="all are at least 1, and the heads divide the width",
            )


class Transformer(nn.Module):
    """Token and position tables, blocks, a norm, and a linear layer to the vocabulary."""

    def __init__(self, vocab: int, context: int, settings: TransformerSettings) -> None:
        width = settings.width
        small = nn.init.normal(0.02)
        self.tokens = nn.Embedding(vocab, width, weight_init=small)
        self.positions = nn.Embedding(context, width, weight_init=small)
        self.blocks = [
            nn.TransformerBlock(width, settings.heads, 4 * width, causal=True, dropout=settings.dropout)
            for _ in range(settings.layers)
        ]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False, weight_init=small)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(F.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
