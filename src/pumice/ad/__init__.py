"""Reverse-mode differentiation: the rules of the ops, applied to a whole graph."""

from pumice.ad.graphs import gradient_graph
from pumice.ad.reverse import CustomGradient, backward

__all__ = ["CustomGradient", "backward", "gradient_graph"]
