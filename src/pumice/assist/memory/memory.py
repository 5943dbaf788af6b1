"""Memory: `pm.Memory(path)` keeps texts in a file and finds them again by meaning and by words, with citations."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from pumice.assist.memory.chunks import CHUNKING_VERSION, Passage, TextKind, passages
from pumice.assist.memory.database import Array, MemoryDatabase, StoredDocument
from pumice.assist.memory.search import (
    CANDIDATES,
    MODES,
    Hit,
    SearchFilter,
    SearchMode,
    allowed_ids,
    find_words,
    fuse,
    read_hits,
)
from pumice.assist.memory.vectors import VectorMatrix
from pumice.errors import InputError
from pumice.llm.requests import number
from pumice.sources import ProgressCallback

if TYPE_CHECKING:
    from pumice.assist.memory.folder import IndexReport
    from pumice.llm.cross_encoder import CrossEncoder
    from pumice.llm.embed import EmbeddingModel

DEFAULT_NAMESPACE = "default"
# Without a tokeniser: characters of a token, fewer than in English text, so that a budget holds.
_CHARACTERS_PER_TOKEN = 3


@dataclass(frozen=True)
class Recall:
    """Passages as a block of text for a prompt, each after its number and place; `hits` are those that fit the budget."""

    text: str
    hits: tuple[Hit, ...]
    tokens: int

    @property
    def citations(self) -> list[str]:
        """The places by number: the first is [1]."""
        return [hit.place for hit in self.hits]


class TextMemory:
    """Texts in one SQLite file. A context manager; `close()` closes it. Known to users as `pm.Memory`.

    `embedder` is an embedding model, or the name of one, which is loaded when it is first needed; the file remembers the name. A
    file without one is searched by words alone. What `add` and `index` have returned, or reported as done, survives a crash.

    >>> with TextMemory(":memory:") as memory:
    ...     memory.add("The kettle is in the kitchen.", source="notes.txt")
    ...     memory.search("where is the kettle?")[0].place
    True
    'notes.txt:1'
    """

    def __init__(
        self,
        path: str | Path,
        embedder: str | EmbeddingModel | None = None,
        *,
        device: str = "auto",
        progress: ProgressCallback | None = None,
    ) -> None:
        self.database = MemoryDatabase(path)
        self._device, self._progress = device, progress
        self._own: Any = None  # a model that was loaded here, and is closed with the memory
        self._model: EmbeddingModel | None = None
        self._matrix: VectorMatrix | None = None
        try:
            self._name = self._agreed(embedder)
        except BaseException:
            self.database.close()
            raise
        if embedder is not None and not isinstance(embedder, str):
            self._use(embedder)

    def _agreed(self, embedder: Any) -> str | None:
        """The name of the embedder, which is set when the file is new: vectors of two models cannot be compared."""
        kept = self.database.setting("embedder")
        if embedder is None:
            return kept
        name = embedder if isinstance(embedder, str) else str(embedder.info.get("spec") or embedder.info.get("name") or "given")
        if kept is None:
            if self.database.read("SELECT 1 FROM passages LIMIT 1"):
                raise InputError(
                    f"{self.database.path} was made without an embedder", hint="index into a new file", name="embedder"
                )
            self.database.set_setting("embedder", name)
        elif kept != name:
            raise InputError(
                f"{self.database.path} was made with the embedder {kept}, not {name}",
                hint=f"use {kept}, or index into a new file",
                name="embedder",
            )
        return name

    def _use(self, model: EmbeddingModel) -> None:
        dim = self.database.setting("dim")
        if dim is None:
            self.database.set_setting("dim", str(model.dim))
        elif int(dim) != model.dim:
            raise InputError(
                f"{self.database.path} has vectors of {dim} numbers, the embedder gives {model.dim}",
                hint="use the model that it was made with, or index into a new file",
            )
        self._model, self._matrix = model, VectorMatrix(self.database, model.dim)

    @property
    def embedder(self) -> EmbeddingModel | None:
        """The embedding model, which is loaded now if it was not; None for a memory that is searched by words alone."""
        if self._model is None and self._name is not None:
            from pumice.llm.load import load

            self._own = load(self._name, "embed", device=self._device, progress=self._progress)
            self._use(self._own)
        return self._model

    # -- what is kept -----------------------------------------------------------------------------------------------
    def add(
        self,
        text: str,
        *,
        source: str,
        namespace: str = DEFAULT_NAMESPACE,
        kind: TextKind = "text",
        metadata: Mapping[str, Any] | None = None,
    ) -> bool:
        """Keep a text under the name `source`, in the place of the one that had it; whether anything changed.

        `metadata` are JSON values, by which a search can be limited.
        """
        check_metadata(metadata or {})
        digest = content_hash(text.encode(), kind, metadata or {})
        if self.hashes(namespace).get(source) == digest:
            return False
        self.store([self.document(namespace, source, digest, passages(text, kind), metadata or {})])
        return True

    def document(
        self, namespace: str, source: str, digest: str, found: Sequence[Passage], metadata: Mapping[str, Any], **more: str
    ) -> StoredDocument:
        """A document as it is stored; its vectors are made by `store`."""
        for name, value in (("namespace", namespace), ("source", source)):
            if not isinstance(value, str) or not value:
                raise InputError(f"{name} is {value!r:.60}", hint="give a name", name=name)
        return StoredDocument(namespace, source, digest, found, None, metadata, **more)

    def store(self, documents: Sequence[StoredDocument], progress: ProgressCallback | None = None) -> None:
        """Embed documents in one batch, and keep all of them or none."""
        model = self.embedder
        if model is None:
            self.database.store(documents)
            return
        texts = [p.embedded for d in documents for p in d.passages]
        vectors = model.embed(texts, progress=progress) if texts else np.zeros((0, model.dim), np.float32)
        made, at = [], 0
        for d in documents:
            made.append(
                StoredDocument(
                    d.namespace, d.source, d.hash, d.passages, vectors[at : at + len(d.passages)], d.metadata, d.root, d.unit
                )
            )
            at += len(d.passages)
        self.database.store(made)

    def index(
        self,
        folder: str | Path,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        metadata: Mapping[str, Any] | None = None,
        progress: ProgressCallback | None = None,
        on_stored: Callable[[list[str]], None] | None = None,
    ) -> IndexReport:
        """Keep the text files below a folder: what has changed is read anew, what is gone is forgotten.

        `on_stored` is called with the names of files once they are on the disk.
        """
        from pumice.assist.memory.folder import index_folder

        check_metadata(metadata or {})
        return index_folder(self, Path(folder), namespace, metadata or {}, progress, on_stored)

    def hashes(self, namespace: str) -> dict[str, str]:
        """The sources of a namespace with the hashes of what was kept."""
        return dict(self.database.read("SELECT source, hash FROM documents WHERE namespace = ?", (namespace,)))

    def forget(self, source: str, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """Forget what was kept under a name; whether there was anything."""
        return self.database.remove(namespace, [source]) > 0

    def stats(self) -> dict[str, Any]:
        """How much is kept, by namespace, and with which embedder."""
        rows = self.database.read(
            "SELECT namespace, count(DISTINCT documents.id), count(passages.id) FROM documents"
            " LEFT JOIN passages ON passages.document = documents.id GROUP BY namespace ORDER BY namespace"
        )
        spaces = {namespace: {"documents": documents, "passages": count} for namespace, documents, count in rows}
        return {"file": self.database.path, "embedder": self._name, "namespaces": spaces}

    # -- what is found ----------------------------------------------------------------------------------------------
    def search(
        self,
        query: str,
        *,
        top: int = 8,
        mode: SearchMode | None = None,
        namespace: str | None = None,
        where: Mapping[str, Any] | None = None,
        rerank: CrossEncoder | None = None,
    ) -> list[Hit]:
        """The passages that fit a query best: "hybrid" fuses what is found by vectors and by words; each alone is a mode, too.

        `namespace` and `where` (metadata, as {"kind": "mail"} or {"year": [2025, 2026]}) limit it. `rerank` is a cross-encoder,
        which reads the best candidates together with the query and puts them in order.
        """
        if not isinstance(query, str) or not query.strip():
            raise InputError("the query is empty", hint="give a text", name="query")
        if number("top", top, whole=True) < 1:
            raise InputError(f"top is {top}", hint="ask for at least 1", name="top")
        mode = mode or ("words" if self._name is None else "hybrid")
        if mode not in MODES:
            raise InputError(f"mode is {mode!r:.40}", hint="one of " + " ".join(MODES), name="mode")
        limits = SearchFilter(namespace, where or {})
        wanted = max(CANDIDATES, top)
        ranked = self._ranked(query, mode, wanted, limits)
        if rerank is None:
            return read_hits(self.database, ranked[:top])
        hits = read_hits(self.database, ranked[:wanted])
        scores = rerank.rank(query, [h.text for h in hits], top) if hits else []
        return [hits[r.index].with_score(r.score) for r in scores]

    def _ranked(self, query: str, mode: SearchMode, wanted: int, limits: SearchFilter) -> list[tuple[int, float]]:
        rankings: list[list[int]] = []
        close: list[int] | None = None
        if mode != "words":
            model = self.embedder
            if model is None or self._matrix is None:
                raise InputError("this memory has no embedder", hint='search with mode="words"', name="mode")
            near = self._matrix.search(model.embed([query])[0], wanted, allowed_ids(self.database, limits))
            if mode == "vectors":
                return near
            close = [passage for passage, _ in near]
            rankings.append(close)
        rankings.append(find_words(self.database, query, wanted, limits, close))
        return fuse(rankings)

    def recall(
        self, query: str, token_budget: int = 1024, *, count: Callable[[str], int] | None = None, **options: Any
    ) -> Recall:
        """What is known about a query as a block of text of at most `token_budget` tokens, with a number and place for each part.

        `count` counts the tokens of a text; by default the embedder's tokeniser does. `options` are those of `search`.
        """
        if number("token_budget", token_budget, whole=True) < 1:
            raise InputError(f"token_budget is {token_budget}", hint="allow at least 1 token", name="token_budget")
        count = count or self._count
        parts: list[str] = []
        kept: list[Hit] = []
        tokens = 0
        for hit in self.search(query, **{"top": 20, **options}):
            part = f"[{len(kept) + 1}] {hit.place}" + (f" ({hit.title})" if hit.title else "") + f"\n{hit.text}"
            size = count(part + "\n\n")
            if tokens + size <= token_budget:
                parts.append(part)
                kept.append(hit)
                tokens += size
        return Recall("\n\n".join(parts), tuple(kept), tokens)

    def _count(self, text: str) -> int:
        if self._model is not None:
            return len(self._model.tokenizer.encode(text, add_special=False))
        return math.ceil(len(text) / _CHARACTERS_PER_TOKEN)

    # -- life -------------------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Close the file, and the embedder if it was loaded here."""
        self.database.close()
        if self._own is not None:
            self._own.close()
            self._own = None

    def __enter__(self) -> TextMemory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


Memory = TextMemory


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Refuses what is no JSON object."""
    try:
        json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError) as e:
        raise InputError(f"the metadata cannot be kept: {e}", hint="give a dict of JSON values", name="metadata") from None


def content_hash(data: bytes, kind: str, metadata: Mapping[str, Any]) -> str:
    """The hash of what a document is made of: bytes, how they are read, and metadata."""
    made = hashlib.sha256(json.dumps([CHUNKING_VERSION, kind, dict(metadata)], sort_keys=True).encode())
    made.update(data)
    return made.hexdigest()


__all__ = ["Array", "Memory", "Recall", "TextMemory"]
