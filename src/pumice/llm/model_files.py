"""Which files a model was loaded from: noted when it is loaded, hashed when a receipt asks for them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from pumice.core.records import dataclass
from pumice.formats.bundle import MANIFEST, BundleWeights, manifest_text
from pumice.formats.weights import WeightFile
from pumice.models.peft import CONFIG, WEIGHTS
from pumice.sources import Resolved
from pumice.sources.digests import FileIdentity, file_digest

# Files beside the weights that are read: configuration, vocabulary, templates.
_SETTINGS = (".json", ".jinja", ".txt", ".model")


@dataclass(frozen=True)
class NamedFile:
    """A file as it was when it was opened, with its name below the model's folder."""

    name: str
    identity: FileIdentity

    def entry(self) -> dict[str, Any]:
        """As receipts list it; a file that has changed since is refused."""
        return {"name": self.name, "bytes": self.identity.bytes, "sha256": file_digest(self.identity)}


@dataclass(frozen=True)
class HashedFile:
    """A file whose hash is known from the bytes that were read."""

    name: str
    bytes: int
    sha256: str

    def entry(self) -> dict[str, Any]:
        """As receipts list it."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class LoadedAdapter:
    """The folder of a LoRA adapter that was loaded, and the factor of its update."""

    source: str
    scale: float
    files: tuple[NamedFile, ...]

    @staticmethod
    def of(folder: str | Path, scale: float) -> LoadedAdapter:
        """The adapter that is in a folder now."""
        files = [NamedFile(name, FileIdentity.of(Path(folder, name))) for name in (CONFIG, WEIGHTS)]
        return LoadedAdapter(str(folder), scale, tuple(files))

    def entry(self) -> dict[str, Any]:
        """As receipts name it."""
        return {"source": self.source, "scale": self.scale, "files": [file.entry() for file in self.files]}


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """What a model was loaded from. `source` is what loads the same one elsewhere; for files of the user, their path as given."""

    name: str
    source: str
    revision: str
    format: str
    architecture: str
    dtype: str
    files: tuple[NamedFile | HashedFile, ...]
    lora: LoadedAdapter | None = None

    @staticmethod
    def of(resolved: Resolved, weights: WeightFile, architecture: str, lora: LoadedAdapter | None) -> ModelFiles:
        """Of a model that is being loaded."""
        found = tuple(sorted(_files(resolved.path, weights), key=lambda file: file.name))
        about = (resolved.name, resolved.spec, resolved.revision, weights.kind, architecture, _main_dtype(weights))
        return ModelFiles(*about, found, lora)

    @cached_property
    def entry(self) -> Mapping[str, Any]:
        """As receipts name the model; hashes the files that were not hashed before."""
        from pumice.routes.documents import part

        found: dict[str, Any] = {
            "name": self.name,
            "source": self.source,
            "revision": self.revision,
            "format": self.format,
            "architecture": self.architecture,
            "dtype": self.dtype,
            "files": [file.entry() for file in self.files],
        }
        return part(found if self.lora is None else found | {"lora": self.lora.entry()})


def _files(path: Path, weights: WeightFile) -> Iterator[NamedFile | HashedFile]:
    if isinstance(weights, BundleWeights):
        # It has the hashes of all others, which are compared while the model is loaded: nothing is hashed for a receipt.
        text = manifest_text(weights.metadata)
        yield HashedFile(MANIFEST, len(text), hashlib.sha256(text).hexdigest())
        return
    yield from (NamedFile(path.name, FileIdentity.of(path)) for path in weights.paths)
    if weights.kind != "gguf":  # a GGUF file has its settings in itself
        yield from _settings(path if path.is_dir() else path.parent)


def _settings(folder: Path) -> list[NamedFile]:
    """Files of a model's folder that say how its weights run; the modules of sentence-transformers have folders of their own."""
    own = [path for path in folder.iterdir() if path.suffix in _SETTINGS and path.is_file()]
    return [NamedFile(p.relative_to(folder).as_posix(), FileIdentity.of(p)) for p in (*own, *folder.glob("*/config.json"))]


def _main_dtype(weights: WeightFile) -> str:
    """The dtype that most bytes of the weights have."""
    found: dict[str, int] = {}
    for tensor in weights.tensors.values():
        found[tensor.dtype.name] = found.get(tensor.dtype.name, 0) + tensor.nbytes
    return max(found, key=lambda name: found[name], default="none")
