"""What the runtime lets any kernel use; a kernel's own `resource_limits` are clamped by it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pumice.packs.manifest import ResourceLimits

PAGE_BYTES = 65_536


@dataclass(frozen=True)
class Budget:
    """The most that kernels may use. A page has 64 KiB; the stack is the machine stack below a call, in bytes.

    `tick_seconds` is the length of an epoch tick, and `pool` the number of instances that one kernel may have at once.

    >>> SERVER.max_pages, EMBEDDED.max_ticks
    (1024, 1000)
    """

    tick_seconds: float
    default_ticks: int
    max_ticks: int
    max_pages: int
    pool: int
    max_table_elements: int
    max_stack: int
    max_globals: int
    max_module_bytes: int = 8 << 20
    # Compiling takes up to half a second for the worst function of this size, and more than twice that for twice the size.
    max_code_bytes: int = 1 << 20
    max_function_bytes: int = 64 << 10

    def clamp(self, asked: ResourceLimits) -> KernelLimits:
        """The limits of one kernel: what it asks for, and no more than this budget has."""
        ticks = asked.max_epoch_ticks if "max_epoch_ticks" in asked.model_fields_set else self.default_ticks
        stack = self.max_stack if asked.max_stack_size is None else max(asked.max_stack_size, _MIN_STACK)
        return KernelLimits(
            pages=min(asked.max_memory_pages, self.max_pages),
            ticks=min(ticks, self.max_ticks),
            table_elements=min(asked.max_table_elements, self.max_table_elements),
            stack=min(stack, self.max_stack),
            globals=min(self.max_globals if asked.max_globals is None else asked.max_globals, self.max_globals),
            instances=self.pool,
        )


@dataclass(frozen=True)
class KernelLimits:
    """What one kernel may use."""

    pages: int
    ticks: int
    table_elements: int
    stack: int
    globals: int
    instances: int


# Entering a kernel takes some stack of the runtime's own: with less than this no kernel starts.
_MIN_STACK = 16 << 10

SERVER = Budget(
    tick_seconds=0.010, default_ticks=1000, max_ticks=6000, max_pages=1024, pool=16,
    max_table_elements=10_000, max_stack=512 << 10, max_globals=1000,
)  # fmt: skip
EMBEDDED = Budget(
    tick_seconds=0.001, default_ticks=100, max_ticks=1000, max_pages=64, pool=4,
    max_table_elements=1024, max_stack=128 << 10, max_globals=100,
)  # fmt: skip
