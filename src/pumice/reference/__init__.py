"""The reference: what a graph means, computed in NumPy, against which every backend is compared."""

from pumice.reference.interpreter import ReferenceResult, evaluate_graph

__all__ = ["ReferenceResult", "evaluate_graph"]
