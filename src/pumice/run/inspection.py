"""The methods of an executable that look inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from pumice.errors import InputError
from pumice.run.convert import by_name

if TYPE_CHECKING:
    from pumice.run.executable import Executable
    from pumice.run.nan import NanReport
    from pumice.run.profile import Profile
    from pumice.run.report import Report


class Inspection:
    """Inspection methods of `Executable`: reports, profiles, traces of NaN."""

    def profile(
        self,
        arrays: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Sequence[int | str] | None = None,
        repeats: int = 5,
        **inputs: Any,
    ) -> Profile:
        """Where the time of a run goes: runs `repeats` times with every step timed, and as often as usual to compare.

        Times come from the device's own timestamps where it has them, else from the host's clock with a wait after each
        step; `Profile.clock` says which. States are put back afterwards.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x @ x, x=pm.spec(8, 8), device="host") as exe:
        ...     p = exe.profile(x=[[1.0] * 8] * 8, repeats=2)
        >>> p.clock, [(s.label, s.flops) for s in p.steps]
        ('host', [('matmul', 1024)])
        """
        from pumice.run.profile import profile_executable

        return profile_executable(cast("Executable", self), by_name(arrays, inputs), outputs, repeats)

    def report(self, sizes: Mapping[str, int] | None = None, /, **symbols: int) -> Report:
        """What was planned: steps, kernel variants and why, memory, bytes moved, at the given symbol sizes or their maxima.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: pm.relu(x) + 1.0, x=pm.spec("B", 4, max=8), device="host") as exe:
        ...     r = exe.report(B=2)
        >>> r.dispatches, r.upload_bytes, r.readback_bytes
        (1, 32, 32)
        """
        from pumice.run.report import report_executable

        return report_executable(cast("Executable", self), {**(sizes or {}), **symbols})

    def find_nan(self, arrays: Mapping[str, Any] | None = None, /, *, memory: int = 512 << 20, **inputs: Any) -> NanReport | None:
        """The first node that makes a NaN or an infinity for these inputs, with the numbers around it; None if all is finite.

        Runs the graph again with nothing fused and no memory reused, on the same device with the same params and the states
        as they are now, which stay so. Values are looked at in lots of at most `memory` bytes.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: pm.sqrt(pm.log(x)) + 1.0, x=pm.spec(2), device="host") as exe:
        ...     found = exe.find_nan(x=[2.0, 0.5])
        >>> found.kind, found.node.op, found.node.first, found.inputs[0].least
        ('nan', 'sqrt', (1,), -0.693...)
        """
        from pumice.run.nan import find_nan

        if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
            raise InputError(f"memory is {memory!r}", hint="a number of bytes")
        return find_nan(cast("Executable", self), by_name(arrays, inputs), memory)
