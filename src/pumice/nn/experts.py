"""Mixtures of experts: routing of tokens, linear layers of groups of rows, experts, and the loss that balances their load."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pumice import functions as F
from pumice.core.dims import Dim, product
from pumice.core.records import dataclass
from pumice.errors import InputError, ShapeError
from pumice.functions import fail
from pumice.nn import init
from pumice.nn.blocks import activation
from pumice.nn.layers import LORA_A, LORA_B, LORA_DROPOUT, Linear, even_bias
from pumice.nn.module import Buffer, Module, Parameter, computing
from pumice.tensor import Tensor

# Below every score.
_LEAST = -3.0e38


@dataclass(frozen=True)
class SortedRows:
    """Rows in the order of their experts: `order` [R] has the row at each place, `places` [R] the place of each row.

    `sizes` [experts] is how many rows each expert has, `experts` [R] the expert at each place, in order. Rows whose expert does
    not exist come last and belong to none.
    """

    order: Tensor
    places: Tensor
    sizes: Tensor
    experts: Tensor


def sort_by_expert(ids: Tensor, experts: int) -> SortedRows:
    """Sorts rows by the expert that each has been given, ids [R] (i32); rows of one expert keep their order.

    An id below 0 or from `experts` on is no expert: such rows come last, and `grouped_matmul` gives zeros for them.

    >>> import pumice as pm
    >>> found = pm.interpret(lambda ids: vars(sort_by_expert(ids, 3)), [2, 0, 7, 2, -1])
    >>> found["order"].tolist(), found["sizes"].tolist(), found["experts"].tolist()
    ([1, 0, 3, 2, 4], [1, 0, 2], [0, 2, 2, 3, 3])
    """
    known = F.where(F.logical_and(ids >= 0, ids < experts), ids, experts)
    order, rows = F.argsort(known), F.arange(ids.shape[0])
    places = F.scatter_set(F.zeros(ids.shape, "i32"), order, rows)
    sizes = F.sum(F.astype(F.expand_dims(known, 1) == F.arange(experts), "i32"), axis=0)
    return SortedRows(order, places, sizes, F.sort(known))


class GroupedLinear(Module):
    """A linear layer for each group of rows: x · weight[group]ᵀ + bias[group]; weight is [groups, out, in] and may be quantised.

    Adapters are grouped too: A [groups, rank, in] and B [groups, out, rank], whose scale is part of the latter.

    - `groups`: how many there are
    - `inputs`: size of the last axis of x
    - `outputs`: size of the last axis of the result
    - `bias`: whether there is one
    - `transposed`: whether the weight is kept as [groups, in, out]
    - `weight_init`: an initialiser, or the weights to start from; even within ±1/√inputs by default

    >>> list(GroupedLinear(8, 4, 3).named_parameters().values())
    [Parameter(8, 3, 4), Parameter(8, 3)]
    """

    attachments = (LORA_A, LORA_B, LORA_DROPOUT)
    weight: Any
    bias: Any

    def __init__(
        self, groups: int, inputs: int, outputs: int, bias: bool = True, *, transposed: bool = False, weight_init: Any = None
    ) -> None:
        self.groups, self.inputs, self.outputs, self.transposed = groups, inputs, outputs, transposed
        even = even_bias(inputs)
        shape = (groups, inputs, outputs) if transposed else (groups, outputs, inputs)
        self.weight = Parameter(shape, init=even if weight_init is None else weight_init)
        self.bias = Parameter((groups, outputs), init=even, decay=False) if bias else None

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        """x [R, in], rows in the order of their groups → [R, out]; rows of no group give zeros."""
        y = _grouped(computing(x), self.weight, rows.sizes, self.transposed)
        if self.bias is not None:
            of_rows = F.take(F.astype(self.bias, "f32"), F.minimum(rows.experts, self.groups - 1), axis=0)
            y = y + F.where(F.expand_dims(rows.experts < self.groups, 1), of_rows, 0.0)
        a, dropout = self.attached(LORA_A), self.attached(LORA_DROPOUT)
        if a is None:
            return y
        low = _grouped(x if dropout is None else dropout(x), a, rows.sizes)
        return y + _grouped(low, self.attached(LORA_B), rows.sizes)


def _grouped(x: Tensor, weight: Tensor, sizes: Tensor, transposed: bool = False) -> Tensor:
    """Rows times the weights [groups, out, in] of their groups; quantised weights stay packed."""
    if weight.dtype.is_quant:
        return F.grouped_qmatmul(x, weight, sizes)
    return F.grouped_matmul(x, weight if transposed else F.swapaxes(weight, 1, 2), sizes)


class GroupedLoRA(Module):
    """LoRA of a grouped linear layer, which is frozen: a low-rank update B·A·x · alpha / rank for each group.

    - `base`: the grouped layer
    - `rank`: rows of each A and columns of each B
    - `alpha`: the result of B·A is multiplied by alpha / rank; by default alpha is the rank

    >>> layer = GroupedLoRA(GroupedLinear(4, 8, 8), rank=2)
    >>> [n for n, p in layer.named_parameters().items() if p.trainable]
    ['lora_A.weight', 'lora_B.weight']
    """

    def __init__(self, base: GroupedLinear, rank: int = 8, alpha: float | None = None) -> None:
        if rank < 1:
            raise InputError(f"the rank must be at least 1, not {rank}", rank=rank)
        self.base = base
        base.freeze()
        self.rank, self.scale = rank, (rank if alpha is None else alpha) / rank
        self.lora_A = GroupedLinear(base.groups, base.inputs, rank, bias=False)
        self.lora_B = GroupedLinear(base.groups, rank, base.outputs, bias=False, weight_init=init.zeros())

    def forward(self, x: Tensor, rows: SortedRows) -> Tensor:
        y: Tensor = self.base(x, rows) + self.lora_B(self.lora_A(x, rows), rows) * self.scale
        return y


@dataclass(frozen=True)
class Routed:
    """Where tokens go: `ids` (i32) and `weights` [tokens, k], and `scores` [tokens, experts] of all experts."""

    ids: Tensor
    weights: Tensor
    scores: Tensor


class Router(Module):
    """Chooses k experts for each token, and how much each counts.

    - `width`: size of the last axis of x
    - `experts`: how many there are
    - `k`: experts of a token, at most as many as there are
    - `score`: "softmax" over all experts, "sigmoid" of each, or "chosen": a softmax over those that were chosen alone
    - `normalised`: whether the weights of a token are divided by their sum
    - `scale`: multiplies the weights
    - `groups`: parts of the experts, of which a token's come from a few
    - `top_groups`: how many groups those are
    - `group_score`: of a group: its "max", or the sum of its best two, "top2"
    - `corrected`: whether a bias of each expert is added to its score for the choice, not for the weight
    - `bias`: whether the linear layer has one

    >>> router = Router(8, experts=4, k=2)
    >>> list(router.named_parameters())
    ['weight']
    """

    weight: Any
    bias: Any
    e_score_correction_bias: Any

    def __init__(
        self,
        width: int,
        experts: int,
        k: int,
        *,
        score: Literal["softmax", "sigmoid", "chosen"] = "softmax",
        normalised: bool = False,
        scale: float = 1.0,
        groups: int = 1,
        top_groups: int = 1,
        group_score: Literal["max", "top2"] = "max",
        corrected: bool = False,
        bias: bool = False,
    ) -> None:
        _check_choice(experts, k, groups, top_groups, group_score)
        if score not in ("softmax", "sigmoid", "chosen"):
            raise InputError(f"the score is 'softmax', 'sigmoid' or 'chosen', not {score!r}", score=score)
        self.experts, self.k, self.score, self.normalised, self.scale = experts, k, score, normalised, scale
        self.groups, self.top_groups, self.group_score = groups, top_groups, group_score
        self.weight = Parameter((experts, width))
        self.bias = Parameter(experts, init=init.zeros(), decay=False) if bias else None
        self.e_score_correction_bias = Buffer(experts) if corrected else None

    def forward(self, x: Tensor) -> Routed:
        """x [tokens, width] → the experts of each token; logits and scores are f32."""
        x = F.astype(x, "f32")
        # Most quantised checkpoints leave it as it is, not all of them.
        logits = F.qmatmul(x, self.weight) if self.weight.dtype.is_quant else x @ F.transpose(F.astype(self.weight, "f32"))
        if self.bias is not None:
            logits = logits + F.astype(self.bias, "f32")
        scores = {"softmax": F.softmax, "sigmoid": F.sigmoid}.get(self.score, lambda s: s)(logits)
        choice = scores if self.e_score_correction_bias is None else scores + F.astype(self.e_score_correction_bias, "f32")
        _, ids = F.top_k(F.stop_gradient(self._limited(choice)), self.k)
        weights = F.take_along_axis(scores, ids, axis=-1)
        if self.score == "chosen":
            weights, scores = F.softmax(weights), F.softmax(logits)
        if self.normalised:
            # The least keeps a token whose scores are all 0 from giving NaN.
            weights = weights / (F.sum(weights, axis=-1, keepdims=True) + (1e-20 if self.score == "sigmoid" else 0.0))
        return Routed(ids, weights if self.scale == 1.0 else weights * self.scale, scores)

    def _limited(self, choice: Tensor) -> Tensor:
        """The scores, the least number outside of each token's best groups."""
        if self.groups == 1:
            return choice
        tokens, each = choice.shape[0], self.experts // self.groups
        by_group = F.reshape(choice, (tokens, self.groups, each))
        best = F.max(by_group, axis=-1) if self.group_score == "max" else F.sum(F.top_k(by_group, 2)[0], axis=-1)
        _, found = F.top_k(best, self.top_groups)
        kept = F.any(F.expand_dims(found, 2) == F.arange(self.groups), axis=1)
        return F.reshape(F.where(F.expand_dims(kept, 2), by_group, _LEAST), (tokens, self.experts))


def _check_choice(experts: int, k: int, groups: int, top_groups: int, group_score: str) -> None:
    rules = (
        ("k", k, 1 <= k <= experts, f"from 1 to the {experts} experts"),
        ("groups", groups, groups >= 1 and experts % max(groups, 1) == 0, f"a divisor of the {experts} experts"),
        ("top_groups", top_groups, 1 <= top_groups <= groups, f"from 1 to the {groups} groups"),
        ("k", k, k <= top_groups * (experts // max(groups, 1)), f"at most the experts of {top_groups} groups"),
        ("group_score", group_score, group_score in ("max", "top2"), "'max' or 'top2'"),
        ("groups", groups, group_score == "max" or experts // max(groups, 1) >= 2, "such that each has two experts or more"),
    )
    for name, value, holds, rule in rules:
        if not holds:
            raise InputError(f"the router's {name} must be {rule}, not {value!r}", name=name, got=value)


class Experts(Module):
    """Gated MLPs, of which each row runs through those that it was routed to: the sum of weight · down(act(gate(x)) · up(x)).

    - `count`: how many there are
    - `width`: size of the last axis of x and of the result
    - `hidden`: size of gate and up
    - `act`: relu, gelu, gelu_tanh, silu, tanh, sigmoid, or a function
    - `bias`: whether the layers have one

    >>> list(Experts(4, 8, 16).named_parameters())
    ['gate.weight', 'up.weight', 'down.weight']
    """

    def __init__(
        self, count: int, width: int, hidden: int, *, act: str | Callable[[Tensor], Tensor] = "silu", bias: bool = False
    ) -> None:
        self.count, self.act = count, activation(act)
        self.gate, self.up = GroupedLinear(count, width, hidden, bias), GroupedLinear(count, width, hidden, bias)
        self.down = GroupedLinear(count, hidden, width, bias)

    def forward(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """x [tokens, width], ids (i32) and weights [tokens, k] → [tokens, width]; an id that is no expert adds nothing."""
        if x.ndim != 2 or ids.ndim != 2 or ids.shape != weights.shape or ids.shape[0] != x.shape[0]:
            shapes = ", ".join(t.type.describe() for t in (x, ids, weights))
            raise fail(ShapeError, f"experts take x [tokens, width], ids and weights [tokens, k], not {shapes}")
        tokens, k = ids.shape
        rows = sort_by_expert(F.reshape(ids, (tokens * k,)), self.count)
        # One row for each expert of a token.
        found = self.hidden(F.take(x, rows.order // k if k != 1 else rows.order, axis=0), rows)
        each = F.reshape(F.take(found, rows.places, axis=0), (tokens, k, x.shape[1]))
        return F.sum(each * F.expand_dims(weights, 2), axis=1)

    def hidden(self, x: Tensor, rows: SortedRows) -> Tensor:
        """The MLPs of rows in the order of their experts."""
        y: Tensor = self.down(self.act(self.gate(x, rows)) * self.up(x, rows), rows)
        return y


class MixtureOfExperts(Module):
    """A feed-forward network of experts: each token runs through a few of them, and perhaps through a shared one.

    - `router`: chooses the experts
    - `experts`: the MLPs
    - `shared`: an MLP that all tokens run through
    - `shared_gate`: a linear layer with one output, whose sigmoid multiplies what the shared one gives

    >>> moe = MixtureOfExperts(Router(8, experts=4, k=2), Experts(4, 8, 16))
    >>> sorted({n.split(".")[0] for n in moe.named_parameters()})
    ['experts', 'router']
    """

    def __init__(self, router: Router, experts: Experts, shared: Module | None = None, shared_gate: Linear | None = None) -> None:
        self.router, self.experts, self.shared, self.shared_gate = router, experts, shared, shared_gate

    def forward(self, x: Tensor) -> Tensor:
        """x [..., width] → [..., width]."""
        return self.routed(x)[0]

    def routed(self, x: Tensor) -> tuple[Tensor, Routed]:
        """The result, and where tokens went: for `load_balancing_loss`."""
        rows = F.reshape(x, (product(x.shape[:-1]), x.shape[-1]))
        where: Routed = self.router(rows)
        y: Tensor = self.experts(rows, where.ids, where.weights)
        if self.shared is not None:
            shared = self.shared(rows)
            y = y + (shared if self.shared_gate is None else F.sigmoid(self.shared_gate(rows)) * shared)
        return F.reshape(y, x.shape), where


def load_balancing_loss(where: Routed, mask: Tensor | None = None) -> Tensor:
    """How unevenly experts are used, k where all are used alike, and more the less so: from 1 · k to experts.

    It is experts · Σ share of the choices · mean score, as in the Switch Transformer; the gradient comes from the scores. `mask`
    [tokens] says which tokens count; without any the loss is 0.

    >>> import pumice as pm
    >>> ids, even = [[0], [1]], [[0.5, 0.5], [0.5, 0.5]]
    >>> float(pm.interpret(lambda i, s: load_balancing_loss(Routed(i, s, s)), ids, even))
    1.0
    """
    experts = where.scores.shape[1]
    chosen = F.sum(F.astype(F.expand_dims(where.ids, 2) == F.arange(experts), "f32"), axis=1)
    counted: Tensor | Dim = where.scores.shape[0]
    scores = where.scores
    if mask is not None:
        counts = F.expand_dims(F.astype(mask, "f32"), 1)
        chosen, scores, counted = chosen * counts, scores * counts, F.maximum(F.sum(counts), 1.0)
        return F.sum(F.sum(chosen, axis=0) / counted * (F.sum(scores, axis=0) / counted)) * experts
    return F.sum(F.mean(chosen, axis=0) * F.mean(scores, axis=0)) * experts
