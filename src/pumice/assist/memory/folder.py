"""Indexing a folder: files that changed are read, embedded in batches and stored, those that are gone are forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.assist.files import shown_name
from pumice.assist.memory.database import StoredDocument
from pumice.assist.memory.readers import kind_of, read_bytes, read_passages, text_files
from pumice.errors import InputError, PumiceError
from pumice.sources import Progress, ProgressCallback

if TYPE_CHECKING:
    from pumice.assist.memory.memory import TextMemory

# Passages that are embedded together, and stored in one transaction: less is lost by a crash, more is faster.
_BATCH = 64


@dataclass
class IndexReport:
    """What an indexing did: files by what happened to them, passages that were stored, and why files were left out."""

    added: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    passages: int = 0
    skipped: dict[str, str] = field(default_factory=dict)


def index_folder(
    memory: TextMemory,
    folder: Path,
    namespace: str,
    metadata: Mapping[str, Any],
    progress: ProgressCallback | None,
    on_stored: Callable[[list[str]], None] | None,
) -> IndexReport:
    """Brings what a memory knows of a folder up to date. Files that cannot be read are left out, and the report says why."""
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder", hint="give the folder to index", folder=str(folder))
    from pumice.assist.memory.memory import content_hash

    root = str(folder.resolve())
    known = memory.hashes(namespace)
    report = IndexReport()
    files = list(text_files(folder))
    waiting: list[StoredDocument] = []
    present: set[str] = set()

    def flush() -> None:
        if not waiting:
            return
        memory.store(waiting)
        names = [d.source for d in waiting]
        for name in names:
            (report.changed if name in known else report.added).append(name)
        report.passages += sum(len(d.passages) for d in waiting)
        waiting.clear()
        if on_stored is not None:
            on_stored(names)

    for k, path in enumerate(files):
        source = path.relative_to(folder).as_posix()
        try:
            source.encode()
            data = read_bytes(path)
            digest = content_hash(data, kind_of(path.name) or "", metadata)
            if known.get(source) == digest:
                present.add(source)
                report.unchanged += 1
            else:
                found = read_passages(path.name, data)
                present.add(source)
                waiting.append(memory.document(namespace, source, digest, found.passages, metadata, root=root, unit=found.unit))
        except UnicodeEncodeError:
            report.skipped[shown_name(source)] = "its name is not UTF-8"
        except PumiceError as e:
            report.skipped[shown_name(source)] = "; ".join(filter(None, (e.message, e.hint)))
        if sum(len(d.passages) for d in waiting) >= _BATCH:
            flush()
        if progress is not None:
            progress(Progress(len(files), k + 1, "index"))
    flush()
    before = memory.database.read("SELECT source FROM documents WHERE namespace = ? AND root = ?", (namespace, root))
    report.removed = sorted({row[0] for row in before} - present)
    if report.removed:
        memory.database.remove(namespace, report.removed)
    return report
