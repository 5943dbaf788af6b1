"""Random graphs with grids from the device: rows in groups, rows that are kept, and chains and gradients of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fuzz.several_results import ResultsGenerator
from harness import Case


@dataclass
class CountsGenerator(ResultsGenerator):
    """Grows a graph that has at least one op whose work is counted on the device."""

    @property
    def several(self) -> tuple[Callable[..., None], ...]:
        return CountsGenerator.groups, CountsGenerator.compact, CountsGenerator.gradient_of_compact

    def groups(self) -> None:
        before = len(self.builder.nodes)
        self.grouped_matmul()
        if len(self.builder.nodes) > before:
            self.keep(len(self.builder.nodes) - 1)


def counts_case(seed: int) -> Case:
    """The graph and data of a seed."""
    return CountsGenerator(seed).case()
