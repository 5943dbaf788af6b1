"""The vectors of a memory in one matrix, searched exactly: for some 100,000 passages faster than an index that has to be kept."""

from __future__ import annotations

from typing import Any

import numpy as np

from pumice.assist.memory.database import MemoryDatabase
from pumice.errors import DamagedFile

Array = np.ndarray[Any, Any]


class VectorMatrix:
    """All vectors of a database, read once; later changes are read when the next search comes."""

    def __init__(self, database: MemoryDatabase, dim: int) -> None:
        self._database, self._dim = database, dim
        self._ids: Array = np.zeros(0, np.int64)
        self._rows: Array = np.zeros((0, dim), np.float32)
        self._seen: tuple[int, int] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    def search(self, query: Array, top: int, allowed: Array | None = None) -> list[tuple[int, float]]:
        """The passages whose vectors are nearest to a query by dot product, best first; `allowed` are the ids to choose from."""
        self._refresh()
        ids, rows = self._ids, self._rows
        if allowed is not None:
            kept = np.nonzero(np.isin(ids, allowed))[0]
            ids, rows = ids[kept], rows[kept] if len(kept) < len(rows) else rows
        if not len(ids):
            return []
        scores = rows @ np.asarray(query, np.float32)
        top = min(top, len(ids))
        best = np.argpartition(scores, len(ids) - top)[len(ids) - top :]
        # Equal scores in the order of ids, so that results repeat.
        best = best[np.lexsort((ids[best], -scores[best]))]
        return [(int(ids[k]), float(scores[k])) for k in best]

    def _refresh(self) -> None:
        now = self._database.changes()
        if now == self._seen:
            return
        present = np.array([row[0] for row in self._database.read("SELECT passage FROM vectors ORDER BY passage")], np.int64)
        kept = np.isin(self._ids, present, assume_unique=True)
        last = int(self._ids[-1]) if len(self._ids) else 0  # ids only grow
        new = self._database.read("SELECT passage, vector FROM vectors WHERE passage > ? ORDER BY passage", (last,))
        for passage, vector in new:
            if len(vector) != 4 * self._dim:
                raise DamagedFile(
                    f"the vector of passage {passage} has {len(vector) // 4} numbers, not {self._dim}",
                    hint="index into a new file",
                    file=self._database.path,
                )
        added = np.frombuffer(b"".join(vector for _, vector in new), "<f4").reshape(-1, self._dim)
        if not kept.all() or len(new):
            old = self._rows if kept.all() else self._rows[kept]
            self._rows = np.concatenate([old, added]) if len(old) else added
            self._ids = np.concatenate([self._ids[kept], np.array([passage for passage, _ in new], np.int64)])
        self._seen = now
