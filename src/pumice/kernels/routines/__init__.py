"""The routine kernels by rule name; a routine is a Python file with a pure `decide` and the emission of its variants."""

from __future__ import annotations

from collections.abc import Callable

from pumice.ir.graph import Node
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines import matmul, qmatmul
from pumice.kernels.routines.attention import lower_attention
from pumice.kernels.routines.attention_gradient import lower_attention_gradient
from pumice.kernels.routines.conv import lower_conv
from pumice.kernels.routines.grouped import lower_grouped_grad_weight, lower_grouped_matmul
from pumice.kernels.routines.matmul import lower_matmul
from pumice.kernels.routines.norm_parameter_gradient import lower_norm_parameter_gradient
from pumice.kernels.routines.qmatmul import lower_qmatmul
from pumice.kernels.routines.scatter import lower_scatter_add, lower_scatter_set
from pumice.kernels.routines.scatter_along import lower_scatter_along_axis_add
from pumice.kernels.routines.sort import lower_sort

ROUTINES: dict[str, Callable[[LowerContext, Group], list[Lowered]]] = {
    "matmul": lower_matmul,
    "qmatmul": lower_qmatmul,
    "grouped_matmul": lower_grouped_matmul,
    "grouped_matmul_grad_weight": lower_grouped_grad_weight,
    "attention": lower_attention,
    "attention_gradient": lower_attention_gradient,
    "norm_parameter_gradient": lower_norm_parameter_gradient,
    "conv": lower_conv,
    "conv_grad_input": lower_conv,
    "conv_grad_weight": lower_conv,
    "scatter_add": lower_scatter_add,
    "scatter_set": lower_scatter_set,
    "scatter_along_axis_add": lower_scatter_along_axis_add,
    "sort": lower_sort,
    "top_k": lower_sort,
}

# Matmuls: with few vectors on the left, every workgroup may compute those itself.
MATMULS = ("matmul", "qmatmul")
# Operands of which a routine reads each element about once: they may be computed there instead of being stored first.
_PULLED = {"scatter_set": frozenset({2}), "attention": frozenset({0})}


def pulled_operands(ctx: LowerContext, node: Node) -> frozenset[int]:
    """Which operands of a routine node its kernel can compute as it reads them."""
    if node.op in MATMULS:
        pulls = matmul.pulls_left if node.op == "matmul" else qmatmul.pulls_left
        return frozenset({0}) if pulls(ctx, node) else frozenset()
    return _PULLED.get(node.op, frozenset())
