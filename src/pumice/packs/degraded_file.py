"""What kernels of installed packs could not do in earlier processes: counted in `degraded.json`, for `pumice pack list`.

A process adds its own counts when it ends; one that is killed adds none. A pack that changes its version starts anew.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pumice import config
from pumice.core.json_file import parse_json
from pumice.core.private import open_private
from pumice.errors import InputError, PumiceError, PumiceWarning
from pumice.packs import degraded as degraded_here
from pumice.packs.degraded import Degraded
from pumice.packs.store_files import StoreFiles
from pumice.sources.lock import exclusive

FILE, _LOCK = "degraded.json", "degraded.lock"
_MAX_ENTRIES = 1000
_MAX_BYTES = 4 << 20
_MAX_MESSAGE = 500


def add_own_counts() -> None:
    """Adds what failed in this process to the file, for packs that are installed. Nothing here keeps a process from ending."""
    try:
        folder = config.home / "packs"
        installed = StoreFiles(folder).read_state().packs
        own = [d for d in degraded_here.degraded() if d.pack in installed]
        if own:
            change_kept(folder, lambda known: _sum([*known, *own]))
    except (OSError, PumiceError) as e:
        warnings.warn(f"failures of packs are not kept: {e}", PumiceWarning, stacklevel=1)


def kept(folder: Path) -> list[Degraded]:
    """What earlier processes have added."""
    try:
        with open_private(folder) as opened:
            found = parse_json(opened.read(FILE, _MAX_BYTES), folder / FILE, dict)["degraded"]
        return [_read(entry) for entry in found]
    except FileNotFoundError:
        return []
    except (OSError, InputError, KeyError, TypeError, ValueError) as e:
        warnings.warn(f"{folder / FILE} cannot be read: {e}; counting starts anew", PumiceWarning, stacklevel=2)
        return []


def forget_failures(folder: Path, pack: str) -> None:
    """Forgets the failures of a pack, here and in the file, as another version of it is used from now on."""
    degraded_here.forget(pack)
    try:
        if (folder / FILE).exists():
            change_kept(folder, lambda known: [d for d in known if d.pack != pack])
    except (OSError, PumiceError) as e:
        warnings.warn(f"earlier failures of {pack} stay in {folder / FILE}: {e}", PumiceWarning, stacklevel=2)


def change_kept(folder: Path, change: Callable[[list[Degraded]], list[Degraded]]) -> None:
    """Replaces the file by what `change` makes of it; processes take turns."""
    with exclusive(folder / _LOCK), open_private(folder) as opened:
        entries = [{**d.to_dict(), "message": d.message[:_MAX_MESSAGE]} for d in change(kept(folder))[:_MAX_ENTRIES]]
        opened.write(FILE, (json.dumps({"format": 1, "degraded": entries}, indent=1) + "\n").encode())


def _sum(entries: Iterable[Degraded]) -> list[Degraded]:
    """One entry for each pack, kernel and way to fail, with the first one's message.

    >>> _sum([Degraded("a", "k", "trap", 2, "first"), Degraded("a", "k", "trap", 3, "second")])
    [Degraded(pack='a', kernel='k', code='trap', count=5, message='first')]
    """
    found: dict[tuple[str, str, str], Degraded] = {}
    for d in entries:
        known = found.setdefault((d.pack, d.kernel, d.code), d)
        if known is not d:
            found[d.pack, d.kernel, d.code] = replace(known, count=known.count + d.count)
    return list(found.values())


def _read(entry: Any) -> Degraded:
    found = Degraded(**entry)
    texts = found.pack, found.kernel, found.code, found.message
    if not all(isinstance(t, str) for t in texts) or type(found.count) is not int:
        raise ValueError(f"{entry} is no entry")
    return found
