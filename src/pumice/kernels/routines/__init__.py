"""The routine kernels by rule name; a routine is a Python file with a pure `decide` and the emission of its variants."""

from __future__ import annotations

from collections.abc import Callable

from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines.attention import lower_attention
from pumice.kernels.routines.matmul import lower_matmul
from pumice.kernels.routines.qmatmul import lower_qmatmul
from pumice.kernels.routines.scatter import lower_scatter_add, lower_scatter_set
from pumice.kernels.routines.sort import lower_sort

ROUTINES: dict[str, Callable[[LowerContext, Group], list[Lowered]]] = {
    "matmul": lower_matmul,
    "qmatmul": lower_qmatmul,
    "attention": lower_attention,
    "scatter_add": lower_scatter_add,
    "scatter_set": lower_scatter_set,
    "argsort": lower_sort,
    "argtopk": lower_sort,
}
