"""The routine kernels by rule name; a routine is a Python file with a pure `decide` and the emission of its variants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pumice.core.caps import Caps
from pumice.errors import PlanError
from pumice.ir.graph import Graph, Node
from pumice.ir.registry import Routine
from pumice.kernels.builder import Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.routines import (
    attention,
    compact,
    conv,
    factor,
    fft,
    grouped,
    grouped_quantized,
    matmul,
    matrices,
    nearest,
    orthogonal,
    qmatmul,
    rasterize,
    rasterize_gradient,
    recurrence,
    scatter,
    selective_scan,
    sort,
    splat_tiles,
)
from pumice.kernels.routines.attention_append import appends
from pumice.kernels.routines.attention_gradient import lower_attention_gradient
from pumice.kernels.routines.attention_gradient_tiles import has_kernel
from pumice.kernels.routines.norm_parameter_gradient import lower_norm_parameter_gradient
from pumice.kernels.routines.scatter_along import lower_scatter_along_axis_add
from pumice.kernels.routines.search import lower_searchsorted


@dataclass(frozen=True, slots=True)
class RoutineKernels:
    """The kernels of a routine, and what planning and reports ask of them.

    `lower(ctx, group)` makes them. `variants` says what each is for, by how its name begins.
    `pulls(ctx, node)`: whether they can compute the operands that the op's traits name as they read them.
    `reads_rows(ctx, node)`: whether they read whole rows of the weight for few vectors, so that one can compute gate and up.
    `fits(caps, graph, node)`: whether the target can run them; else the op is composed of others.
    `appends(ctx, group)`: whether one can write the group's `appended` rows of states that it reads.
    `packs(ctx, group)`: whether they store 16-bit results themselves, two a word; else another kernel packs them.
    """

    lower: Callable[[LowerContext, Group], list[Lowered]]
    variants: Mapping[str, str] = field(default_factory=dict)
    pulls: Callable[[LowerContext, Node], bool] | None = None
    reads_rows: Callable[[LowerContext, Node], bool] | None = None
    fits: Callable[[Caps, Graph, Node], bool] | None = None
    packs: Callable[[LowerContext, Group], bool] | None = None
    appends: Callable[[LowerContext, Group], bool] | None = None


def _never_lowered(ctx: LowerContext, group: Group) -> list[Lowered]:
    raise PlanError(f"there is no kernel for {ctx.graph.nodes[group.written[0]].op}: it is composed of others")


# Ops of which only the host has kernels.
_COMPOSED = RoutineKernels(_never_lowered, fits=lambda caps, graph, node: False)
_CONV = RoutineKernels(conv.lower_conv, conv.VARIANTS)
_SORT = RoutineKernels(sort.lower_sort, sort.VARIANTS)
_FFT = RoutineKernels(fft.lower_fft, fft.VARIANTS, fits=fft.has_kernel)
ROUTINES: Mapping[str, RoutineKernels] = {
    "matmul": RoutineKernels(
        matmul.lower_matmul, matmul.VARIANTS, matmul.pulls_left, matmul.reads_rows, packs=matmul.packs_results
    ),
    "qmatmul": RoutineKernels(qmatmul.lower_qmatmul, matmul.VARIANTS, qmatmul.pulls_left, qmatmul.pulls_left, qmatmul.has_kernel),
    "grouped_matmul": RoutineKernels(grouped.lower_grouped_matmul, grouped.VARIANTS),
    "grouped_matmul_grad_weight": RoutineKernels(grouped.lower_grouped_grad_weight, grouped.VARIANTS),
    "grouped_qmatmul": RoutineKernels(
        grouped_quantized.lower_grouped_qmatmul, grouped_quantized.VARIANTS, fits=qmatmul.has_kernel
    ),
    "attention": RoutineKernels(attention.lower_attention, attention.VARIANTS, appends=appends),
    "attention_gradient": RoutineKernels(lower_attention_gradient, fits=has_kernel),
    "norm_parameter_gradient": RoutineKernels(lower_norm_parameter_gradient),
    "channel_norm": _COMPOSED,
    "channel_norm_gradient": _COMPOSED,
    "compact": RoutineKernels(compact.lower_compact, compact.VARIANTS),
    "conv": _CONV,
    "conv_grad_input": _CONV,
    "conv_grad_weight": _CONV,
    "cholesky": RoutineKernels(factor.lower_cholesky, matrices.VARIANTS),
    "qr": RoutineKernels(orthogonal.lower_qr, matrices.VARIANTS),
    "svd": RoutineKernels(orthogonal.lower_svd, matrices.VARIANTS),
    "eigh": RoutineKernels(orthogonal.lower_eigh, matrices.VARIANTS),
    "lu": RoutineKernels(factor.lower_lu, matrices.VARIANTS),
    "triangular_solve": RoutineKernels(factor.lower_triangular_solve, matrices.VARIANTS),
    "fft": _FFT,
    "rfft": _FFT,
    "irfft": _FFT,
    "scatter_add": RoutineKernels(scatter.lower_scatter_add, scatter.VARIANTS),
    "scatter_extreme": RoutineKernels(scatter.lower_scatter_add, scatter.VARIANTS),
    "searchsorted": RoutineKernels(lower_searchsorted),
    "nearest": RoutineKernels(nearest.lower_nearest, nearest.VARIANTS),
    "scatter_set": RoutineKernels(scatter.lower_scatter_set, scatter.VARIANTS),
    "scatter_along_axis_add": RoutineKernels(lower_scatter_along_axis_add),
    "selective_scan": RoutineKernels(selective_scan.lower_selective_scan, recurrence.VARIANTS),
    "linear_attention": RoutineKernels(recurrence.lower_linear_attention, recurrence.VARIANTS),
    "rasterize": RoutineKernels(rasterize.lower_rasterize, rasterize.VARIANTS),
    "rasterize_gradient": RoutineKernels(rasterize_gradient.lower_rasterize_gradient, rasterize_gradient.VARIANTS),
    "splat_tiles": RoutineKernels(splat_tiles.lower_splat_tiles, splat_tiles.VARIANTS),
    "sort": _SORT,
    "top_k": _SORT,
}


def kernels_of(node: Node) -> RoutineKernels | None:
    """The kernels of a node whose op is lowered to a routine."""
    lowering = node.spec.lowering
    return ROUTINES[lowering.rule] if isinstance(lowering, Routine) else None


def pulled_operands(ctx: LowerContext, node: Node) -> frozenset[str]:
    """Which operands of a routine node its kernel can compute as it reads them."""
    names, kernels = node.spec.traits.pulls, kernels_of(node)
    pulls = bool(names) and kernels is not None and (kernels.pulls is None or kernels.pulls(ctx, node))
    return frozenset(names) if pulls else frozenset()
