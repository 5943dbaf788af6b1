"""`--cooperative` and what goes with it: how a command shares the device, and the page on which to watch that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.core.records import dataclass
from pumice.errors import InputError

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative

# Runs that are remembered: a generation has one for each token.
_KEEP = 32


@dataclass(frozen=True)
class SharingOptions:
    """What the options ask for; `cooperative` is None without --cooperative."""

    cooperative: Cooperative | None = None
    page: Path | None = None

    @contextlib.contextmanager
    def watched(self, title: str) -> Iterator[None]:
        """Keeps the page up to date, if there is one, until the end."""
        if self.cooperative is None or self.page is None:
            yield
            return
        from pumice.cli.live_page import LivePage

        with LivePage(self.cooperative, self.page, title=title):
            yield

    def as_json(self) -> dict[str, Any]:
        """What --json says of it."""
        if self.cooperative is None:
            return {}
        from pumice.run.snapshot import snapshot

        found = snapshot(self.cooperative)
        longest = max((s["longest_ms"] for s in found["stages"]), default=None)
        kept = {name: found[name] for name in ("mode", "settings", "runs", "verification")}
        return {"cooperative": {**kept, "longest_range_ms": longest}}

    def line(self) -> str:
        """The same for people; "" without --cooperative."""
        if self.cooperative is None:
            return ""
        found = self.as_json()["cooperative"]
        proof = found["verification"]
        state = "nothing ran" if proof is None else ", ".join([proof["status"], *proof["downgrades"]])
        longest = found["longest_range_ms"]
        took = "" if longest is None else f", the longest of the last ranges took {longest:.1f} ms"
        return f"cooperative: {found['runs']} runs{took}; {state}"


# Without --cooperative.
NOT_SHARED = SharingOptions()


def sharing(cooperative: bool, target_ms: float | None, yield_ms: float | None, page: Path | None) -> SharingOptions:
    """The options as one; what would fail later is refused now, before a model is loaded.

    >>> sharing(False, 2.0, None, None)
    Traceback (most recent call last):
    pumice.errors.InputError: [input] --target-ms goes with --cooperative
      hint: add --cooperative
    """
    given = {"target_ms": target_ms, "yield_ms": yield_ms}
    if not cooperative:
        for name, value in (*given.items(), ("page", page)):
            if value is not None:
                option = "--" + name.replace("_", "-")
                raise InputError(f"{option} goes with --cooperative", hint="add --cooperative", name=name)
        return NOT_SHARED
    from pumice.run.cooperative import Cooperative

    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise InputError(f"the page cannot be written to {page}", hint="name a file in a folder that exists", path=str(page))
    return SharingOptions(Cooperative(**{k: v for k, v in given.items() if v is not None}, keep=_KEEP), page)  # type: ignore[arg-type]
