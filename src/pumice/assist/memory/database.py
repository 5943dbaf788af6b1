"""The SQLite file of a memory: documents, their passages with vectors, and a full-text index; each change is one transaction."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pumice.assist.memory.chunks import Passage
from pumice.errors import ClosedError, DamagedFile, DiskFull, InputError

Array = np.ndarray[Any, Any]

# "Pumi": tells our files from other programs'.
_APPLICATION = 0x50756D69
_VERSION = 1
_BUSY_SECONDS = 30.0
_SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE documents (
  id INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, source TEXT NOT NULL, root TEXT NOT NULL, hash TEXT NOT NULL,
  unit TEXT NOT NULL, metadata TEXT NOT NULL, UNIQUE (namespace, source)) STRICT;
CREATE TABLE passages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, document INTEGER NOT NULL REFERENCES documents ON DELETE CASCADE,
  title TEXT NOT NULL, body TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL) STRICT;
CREATE INDEX passages_of_document ON passages (document);
CREATE TABLE vectors (passage INTEGER PRIMARY KEY REFERENCES passages ON DELETE CASCADE, vector BLOB NOT NULL) STRICT;
CREATE VIRTUAL TABLE words USING fts5 (title, body, content='passages', content_rowid='id', tokenize='porter unicode61');
"""


@dataclass(frozen=True)
class StoredDocument:
    """A document to store: where it is from, what it was made of, and its passages with a vector each, or none."""

    namespace: str
    source: str
    hash: str
    passages: Sequence[Passage]
    vectors: Array | None
    metadata: Mapping[str, Any]
    root: str = ""
    unit: str = "line"


class MemoryDatabase:
    """An open file. All methods may be called from any thread; a second process may use the file at the same time."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._commits = 0
        self._connection: sqlite3.Connection | None = None
        try:
            # Transactions are ours: Python's would begin before some statements and not before others.
            made = sqlite3.connect(self.path, timeout=_BUSY_SECONDS, check_same_thread=False, isolation_level=None)
        except sqlite3.Error as e:
            raise InputError(f"{self.path} cannot be opened: {e}", hint="name a file in a folder that exists") from None
        self._connection = made
        try:
            self._open(made)
        except BaseException:
            self.close()
            raise

    def _open(self, made: sqlite3.Connection) -> None:
        with _typed(self.path):
            application = made.execute("PRAGMA application_id").fetchone()[0]
            version = made.execute("PRAGMA user_version").fetchone()[0]
            empty = not made.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not empty and application != _APPLICATION:
                raise InputError(f"{self.path} is a database of another program", hint="name another file")
            if not empty and version != _VERSION:
                raise InputError(
                    f"{self.path} has version {version} of the format, this Pumice reads {_VERSION}", hint="index into a new file"
                )
            made.execute("PRAGMA journal_mode = WAL")
            # A commit is on the disk when it returns: what was acknowledged survives a crash of the machine, too.
            made.execute("PRAGMA synchronous = FULL")
            made.execute("PRAGMA foreign_keys = ON")
            # Functions in a schema that somebody else wrote are not called.
            made.execute("PRAGMA trusted_schema = OFF")
            if empty:
                with self.transaction() as connection:
                    if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:  # another process was first
                        for statement in _statements(_SCHEMA):
                            connection.execute(statement)
                        connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                        connection.execute(f"PRAGMA user_version = {_VERSION}")

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing of what is done in the block; when it ends well, it is on the disk."""
        with self._lock, _typed(self.path):
            connection = self._opened()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            self._commits += 1

    @contextmanager
    def locked(self) -> Iterator[sqlite3.Connection]:
        """The connection, for the block alone; temporary tables may be written."""
        with self._lock, _typed(self.path):
            yield self._opened()

    def read(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self._lock, _typed(self.path):
            return self._opened().execute(query, values).fetchall()

    def changes(self) -> tuple[int, int]:
        """A pair that is another one after any change, of this or another process."""
        with self._lock:
            connection = self._opened()
            # The file's own version says what others have done; what this connection did is counted here.
            return connection.execute("PRAGMA data_version").fetchone()[0], self._commits

    def setting(self, name: str) -> str | None:
        """A setting of the file; None if it was never set."""
        found = self.read("SELECT value FROM settings WHERE name = ?", (name,))
        return str(found[0][0]) if found else None

    def set_setting(self, name: str, value: str) -> None:
        """Sets it for good."""
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, value))

    def store(self, documents: Sequence[StoredDocument]) -> None:
        """Puts documents in the place of those with the same namespace and source, all of them or none."""
        with self.transaction() as connection:
            for document in documents:
                self._remove(connection, document.namespace, document.source)
                values = (document.namespace, document.source, document.root, document.hash, document.unit)
                number = connection.execute(
                    "INSERT INTO documents (namespace, source, root, hash, unit, metadata) VALUES (?, ?, ?, ?, ?, ?)",
                    (*values, json.dumps(dict(document.metadata), ensure_ascii=False)),
                ).lastrowid
                for k, p in enumerate(document.passages):
                    row = (number, p.title, p.text, p.first, p.last)
                    added = connection.execute(
                        "INSERT INTO passages (document, title, body, first, last) VALUES (?, ?, ?, ?, ?)", row
                    ).lastrowid
                    connection.execute("INSERT INTO words (rowid, title, body) VALUES (?, ?, ?)", (added, p.title, p.text))
                    if document.vectors is not None:
                        vector = np.ascontiguousarray(document.vectors[k], "<f4").tobytes()
                        connection.execute("INSERT INTO vectors VALUES (?, ?)", (added, vector))

    def remove(self, namespace: str, sources: Sequence[str]) -> int:
        """Removes documents, all of them or none; how many there were."""
        with self.transaction() as connection:
            return sum(self._remove(connection, namespace, source) for source in sources)

    @staticmethod
    def _remove(connection: sqlite3.Connection, namespace: str, source: str) -> int:
        # Not by triggers: SQLite runs none on virtual tables where the schema is not trusted.
        connection.execute(
            "INSERT INTO words (words, rowid, title, body) SELECT 'delete', passages.id, title, body FROM documents"
            " JOIN passages ON passages.document = documents.id WHERE namespace = ? AND source = ?",
            (namespace, source),
        )
        return connection.execute("DELETE FROM documents WHERE namespace = ? AND source = ?", (namespace, source)).rowcount

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise ClosedError("the memory is closed", hint="open it again")
        return self._connection

    def close(self) -> None:
        """Closes the file; a second call does nothing."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def _statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one: executescript would commit in between."""
    held = ""
    for line in script.splitlines(keepends=True):
        held += line
        if sqlite3.complete_statement(held):
            yield held
            held = ""


@contextmanager
def _typed(path: str) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.OperationalError as e:
        if "full" in str(e):
            raise DiskFull(f"the disk of {path} is full", hint="make room; what was acknowledged before is there") from None
        if "locked" in str(e):
            raise InputError(f"{path} is in use by another process", hint="try again when it is done") from None
        raise InputError(f"{path}: {e}", hint="check the file and its folder") from None
    except sqlite3.DatabaseError as e:
        raise DamagedFile(f"{path} is damaged, or no memory: {e}", hint="index into a new file", file=path) from None
