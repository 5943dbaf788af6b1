"""Gradients of losses over many classes."""

from __future__ import annotations

from pumice.ir.gradient import Backward, Gradients, Val


def _picked(x: Val, targets: Val) -> Val:
    """The element of each row that its target names, in f32; any element where there is none."""
    # Targets that are no class, such as ignored ones, must not be used as indices.
    places = _valid(x, targets).choose(targets, 0).reshape((*targets.shape, 1))
    return x.op("take_along_axis", places, axis=x.rank - 1).wide().reshape(targets.shape)


def _valid(x: Val, targets: Val) -> Val:
    inside = targets.lt(targets.scalar(x.shape[-1]))
    return inside if targets.dtype.kind == "uint" else inside.both(targets.ge(0))


def cross_entropy(c: Backward) -> Gradients:
    """In one pass: loss + target logit is the log-sum-exp of the row."""
    x, targets = c.operands["logits"], c.operands["targets"]
    return {"logits": x.op("cross_entropy_gradient", targets, _picked(x, targets), c.out, c.dy)}


def cross_entropy_gradient(c: Backward) -> Gradients:
    x, targets, dz = c.operands["logits"], c.operands["targets"], c.dy.wide()
    picked, loss, dy = c.operands["picked"], c.operands["loss"], c.operands["dy"]
    row = (x.rank - 1,)
    valid = _valid(x, targets)

    def along(v: Val) -> Val:
        return v.reshape((*v.shape, 1))

    def probability() -> Val:
        return ((x.wide() - along(picked)) - along(loss)).op("exp")

    def weighted() -> Val:
        """How the result moves with each logit: dy times the probability, where there is a target."""
        return dz * along(valid.choose(dy, 0.0)) * probability()

    def of_row() -> Val:
        return -weighted().sum(row)

    def of_dy() -> Val:
        return valid.choose((dz * probability()).sum(row) - _picked(dz, targets), 0.0)

    return c.each(logits=weighted, picked=of_row, loss=of_row, dy=of_dy)
