"""Losses, computed in f32 and reduced by "mean", "sum" or "none"."""

from __future__ import annotations

from typing import Literal

from pumice import functions as F
from pumice.errors import InputError, ShapeError
from pumice.functions import TensorLike, fail
from pumice.functions.build import as_float, as_indices, as_tensor
from pumice.nn.module import Labels, active_binding
from pumice.tensor import Tensor

Reduction = Literal["mean", "sum", "none"]


def _wide(x: TensorLike) -> Tensor:
    return as_float(x).astype("f32")


def _reduced(x: Tensor, reduction: str, weights: Tensor | None = None, *, signed: bool = False) -> Tensor:
    """All elements together; a mean with weights is over their sum, 0 where all of them are 0. `signed` ones may be below 0."""
    if reduction == "none":
        return x
    if reduction == "sum":
        return F.sum(x)
    if reduction != "mean":
        raise fail(InputError, f"the reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    if weights is None:
        return F.mean(x)
    total = F.sum(weights)
    size = F.sum(F.abs(weights)) if signed else total
    # A batch in which every target is ignored must not turn the parameters into NaN.
    return F.sum(x) / F.where(size > 0, total, 1.0)


def _pair(a: TensorLike, b: TensorLike, name: str) -> tuple[Tensor, Tensor]:
    x, y = _wide(a), _wide(b)
    if x.shape != y.shape:
        raise fail(
            ShapeError,
            f"{name} takes two tensors of one shape, not {x.type.describe()} and {y.type.describe()}",
            hint="add or drop an axis of one: y[:, None], x[:, 0]",
        )
    return x, y


def cross_entropy(
    logits: TensorLike,
    targets: TensorLike,
    *,
    ignore_index: int | None = -100,
    label_smoothing: float = 0.0,
    weight: TensorLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The negative log-probability of each target under softmax(logits [..., classes]).

    The mean is over the sum of the targets' weights, which as in PyTorch may be negative, and is not finite where weights of
    both signs sum to 0; without any target it is 0.

    - `logits`: [..., classes]; classes come last
    - `targets`: integers [...] in 0…classes-1
    - `ignore_index`: targets equal to it cost nothing and count for nothing
    - `label_smoothing`: the share of each target that is spread over all classes
    - `weight`: a factor for each class
    - `reduction`: "mean", "sum" or "none"

    >>> import pumice as pm
    >>> pm.interpret(lambda x, y: cross_entropy(x, y), [[0.0, 0.0], [9.0, 0.0]], [1, -100])
    array(0.6931472, dtype=float32)
    """
    x = as_float(logits)
    labels = as_indices(targets, near=x)
    classes = _classes(x, labels, ignore_index)
    if not 0.0 <= label_smoothing < 1.0:
        raise fail(InputError, f"label_smoothing must be in 0…1, without 1, not {label_smoothing}")
    counts = _counted(labels, classes, ignore_index)
    # The op leaves out rows whose target is no class.
    inside = ignore_index is not None and 0 <= ignore_index < classes
    losses = F.cross_entropy(x, F.where(labels == ignore_index, -1, labels.astype("i32")) if inside else labels)
    weights = counts
    factors = None if weight is None else _class_weights(weight, classes, x)
    if factors is not None:
        weights = counts * F.gather(factors, F.clip(labels, 0, classes - 1))
        losses = losses * weights
    if label_smoothing:
        logs = F.log_softmax(x.astype("f32"), axis=-1)
        spread = -(F.mean(logs, axis=-1) if factors is None else F.sum(logs * factors, axis=-1) / classes)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * spread * counts
    return _reduced(losses, reduction, weights, signed=factors is not None)


def nll(
    logs: TensorLike,
    targets: TensorLike,
    *,
    ignore_index: int | None = -100,
    weight: TensorLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The negative of the log-probability [..., classes] that each target names; means are those of `cross_entropy`.

    - `logs`: log-probabilities [..., classes]
    - `targets`: integers [...] in 0…classes-1
    - `ignore_index`: targets equal to it cost nothing and count for nothing
    - `weight`: a factor for each class
    - `reduction`: "mean", "sum" or "none"

    >>> import pumice as pm
    >>> pm.interpret(nll, [[-1.0, -2.0], [-3.0, -4.0]], [1, 0])
    array(2.5, dtype=float32)
    """
    x = _wide(logs)
    labels = as_indices(targets, near=x)
    classes = _classes(x, labels, ignore_index)
    weights = _counted(labels, classes, ignore_index)
    inside = F.clip(labels, 0, classes - 1)
    if weight is not None:
        weights = weights * F.gather(_class_weights(weight, classes, x), inside)
    picked = F.squeeze(F.take_along_axis(x, F.expand_dims(inside, -1), -1), -1)
    return _reduced(-picked * weights, reduction, weights, signed=weight is not None)


def _classes(x: Tensor, labels: Tensor, ignored: int | None) -> int:
    """The number of classes; registers with the binding which labels to expect."""
    classes = x.shape[-1] if x.ndim else None
    if not isinstance(classes, int) or classes < 1 or labels.shape != x.shape[:-1]:
        raise fail(
            ShapeError,
            f"logits are [..., classes] and targets [...], not {x.type.describe()} and {labels.type.describe()}",
            hint="classes come last: move the axis, or reshape",
        )
    binding = active_binding()
    if binding is not None:
        binding.labels.append(Labels(labels.id, classes, ignored))
    return classes


def _counted(labels: Tensor, classes: int, ignored: int | None) -> Tensor:
    """1 for each target that names a class and is not ignored, else 0."""
    counts = F.logical_and(labels >= 0, labels < classes)
    return (counts if ignored is None else F.logical_and(counts, labels != ignored)).astype("f32")


def _class_weights(weight: TensorLike, classes: int, x: Tensor) -> Tensor:
    factors = as_float(as_tensor(weight, near=x)).astype("f32")
    if factors.shape != (classes,):
        raise fail(ShapeError, f"there are {classes} classes, weight is {factors.type.describe()}")
    return factors


def mse(x: TensorLike, targets: TensorLike, *, reduction: Reduction = "mean") -> Tensor:
    """The square of the difference.

    - `x`: predictions
    - `targets`: of the same shape
    - `reduction`: "mean", "sum" or "none"

    >>> import pumice as pm
    >>> pm.interpret(mse, [1.0, 3.0], [1.0, 1.0])
    array(2., dtype=float32)
    """
    a, b = _pair(x, targets, "mse")
    return _reduced(F.square(a - b), reduction)


def l1(x: TensorLike, targets: TensorLike, *, reduction: Reduction = "mean") -> Tensor:
    """The size of the difference.

    - `x`: predictions
    - `targets`: of the same shape
    - `reduction`: "mean", "sum" or "none"

    >>> import pumice as pm
    >>> pm.interpret(l1, [1.0, 3.0], [1.0, 1.0])
    array(1., dtype=float32)
    """
    a, b = _pair(x, targets, "l1")
    return _reduced(F.abs(a - b), reduction)


def huber(x: TensorLike, targets: TensorLike, *, delta: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """Half the square of a difference up to `delta`, beyond it a straight line.

    - `x`: predictions
    - `targets`: of the same shape
    - `delta`: where the line begins
    - `reduction`: "mean", "sum" or "none"

    >>> import pumice as pm
    >>> pm.interpret(lambda a, b: huber(a, b, reduction="none"), [0.5, 3.0], [0.0, 0.0])
    array([0.125, 2.5  ], dtype=float32)
    """
    if delta <= 0:
        raise fail(InputError, f"delta must be above 0, not {delta}")
    a, b = _pair(x, targets, "huber")
    size = F.abs(a - b)
    return _reduced(F.where(size <= delta, 0.5 * F.square(size), delta * (size - 0.5 * delta)), reduction)


def bce_with_logits(
    logits: TensorLike,
    targets: TensorLike,
    *,
    weight: TensorLike | None = None,
    pos_weight: TensorLike | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy of sigmoid(logits) with targets in 0…1.

    - `logits`: before the sigmoid
    - `targets`: of the same shape
    - `weight`: a factor of each element's loss, broadcast; the mean is over the number of elements
    - `pos_weight`: a factor for targets of 1, broadcast
    - `reduction`: "mean", "sum" or "none"

    >>> import pumice as pm
    >>> pm.interpret(bce_with_logits, [0.0], [1.0])
    array(0.6931472, dtype=float32)
    """
    x, y = _pair(logits, targets, "bce_with_logits")
    # softplus(-x) is -log(sigmoid(x)); 1 - sigmoid(x) adds x to it.
    miss = F.softplus(-x)
    losses = (1.0 - y) * x + (miss if pos_weight is None else (1.0 + (_wide(as_tensor(pos_weight, near=x)) - 1.0) * y) * miss)
    if weight is not None:
        losses = losses * _wide(as_tensor(weight, near=x))
    return _reduced(losses, reduction)


def kl(
    logs: TensorLike,
    targets: TensorLike,
    *,
    log_target: bool = False,
    reduction: Reduction | Literal["batch"] = "mean",
) -> Tensor:
    """The Kullback–Leibler divergence of log-probabilities from target probabilities.

    - `logs`: log-probabilities
    - `targets`: probabilities of the same shape
    - `log_target`: targets are logarithms too
    - `reduction`: "mean" over all elements, "sum", "none", or "batch": the sum over the size of the first axis, which is the
      divergence itself for rows of probabilities

    >>> import pumice as pm
    >>> pm.interpret(kl, [[-1.5, -2.0]], [[1.0, 0.0]])
    array(0.75, dtype=float32)
    """
    x, y = _pair(logs, targets, "kl")
    if log_target:
        losses = F.exp(y) * (y - x)
    else:
        positive = y > 0
        safe = F.where(positive, y, 1.0)
        losses = F.where(positive, safe * F.log(safe), 0.0) - y * x
    if reduction == "batch":
        return F.sum(losses) / as_tensor(losses.shape[0] if losses.ndim else 1, near=losses).astype("f32")
    return _reduced(losses, reduction)
