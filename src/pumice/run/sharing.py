"""Sharing: how the runs of a store share its device with other work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumice.errors import InputError

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative
    from pumice.run.turns import Turns


class Sharing:
    """What a store and its children, which have their runs in one order, know about sharing the device."""

    _turns: Turns

    @property
    def cooperative(self) -> Cooperative | None:
        """How its runs share the device; None: each run as a whole."""
        return self._turns.cooperative

    @property
    def paces(self) -> bool:
        """Whether its runs are divided into ranges."""
        found = self._turns.cooperative
        return found is not None and found.mode == "cooperative"

    def cooperate(self, cooperative: Cooperative | None) -> None:
        """Let all later runs on the store, and on its children, share the device as it says; None: no longer.

        >>> import pumice as pm
        >>> with pm.compile(lambda x: x * 2.0, x=pm.spec(2), device="host") as exe:
        ...     c = pm.Cooperative(target_ms=2)
        ...     exe.store.cooperate(c)
        ...     exe.run(x=[1, 2]), c.report()["status"]
        (array([2., 4.], dtype=float32), 'succeeded')
        """
        if cooperative is not None:
            from pumice.run.cooperative import Cooperative

            if not isinstance(cooperative, Cooperative):
                raise InputError(
                    f"cooperate takes a pm.Cooperative, not {type(cooperative).__name__}",
                    hint="such as pm.Cooperative(target_ms=4)",
                )

        def put() -> None:
            self._turns.cooperative = cooperative

        self._turns.do(put)

    def end_pauses(self) -> None:
        """Let runs that are paused go on to their end; for callers that wait for that end, to close what they run on."""
        if self.cooperative is not None:
            self.cooperative.hurry()
