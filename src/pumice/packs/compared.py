"""What was found when kernels of packs were compared with the reference, by pack and device: files that can be made again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pumice.core.kept import keep, read_kept

_FOLDER = "compared"


class ComparedKernels:
    """The verdicts of one pack on one device: by kernel id what is wrong with it, "" for those that agree.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as d:
    ...     ComparedKernels(Path(d), "ab" * 32, "a device").keep({"rope": ""})
    ...     again = ComparedKernels(Path(d), "ab" * 32, "a device").read()
    ...     forget_compared(Path(d), "ab" * 32)
    ...     again, ComparedKernels(Path(d), "ab" * 32, "a device").read()
    ({'rope': ''}, {})
    """

    def __init__(self, folder: Path, pack_digest: str, device: str) -> None:
        number = hashlib.sha256(f"{device}\0{pack_digest}".encode()).hexdigest()
        self._path = folder / _FOLDER / f"{pack_digest[:16]}-{number[:32]}.json"

    def read(self) -> dict[str, str]:
        """What is known; nothing where there is no file, or something else."""
        body = read_kept(self._path)
        try:
            found = {} if body is None else json.loads(body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) and all(isinstance(v, str) for v in found.values()) else {}

    def keep(self, verdicts: dict[str, str]) -> None:
        """Remembers verdicts for the next process."""
        keep(self._path, json.dumps(verdicts).encode())


def forget_compared(folder: Path, pack_digest: str) -> None:
    """Lets a pack's kernels be compared again, on every device."""
    for path in (folder / _FOLDER).glob(f"{pack_digest[:16]}-*.json"):
        path.unlink(missing_ok=True)
