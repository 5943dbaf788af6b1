"""Model files: GGUF and safetensors, memory-mapped, read by code that trusts no number in them."""

from __future__ import annotations

import os
from pathlib import Path

from pumice.formats.bundle import BundleWeights, is_bundle
from pumice.formats.gguf import MAGIC, open_gguf
from pumice.formats.safetensors import open_safetensors
from pumice.formats.weights import TensorInfo, WeightFile, malformed

__all__ = ["TensorInfo", "WeightFile", "open_weights"]


def open_weights(path: Path | str) -> WeightFile:
    """The weights at a path: a .gguf file (any shard opens its whole set), a .safetensors file, a model folder, or a bundle.

    >>> import struct, tempfile
    >>> header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "model.safetensors")
    ...     _ = file.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<2f", 1.5, -2))
    ...     with open_weights(file) as weights:
    ...         print(weights.kind, weights.tensors["w"].type, weights.array("w").tolist())
    safetensors f32[2] [1.5, -2.0]
    """
    path = Path(path)
    if os.path.isdir(path):
        return BundleWeights(path) if is_bundle(path) else open_safetensors(path)
    if not os.path.exists(path):
        raise malformed(path, "there is no such file or folder", hint="check the path; a dangling link counts as missing")
    # Names decide where they are clear; the blobs of a download cache have none, there the content does.
    if path.suffix == ".gguf":
        return open_gguf(path)
    if path.suffix != ".safetensors" and _starts_as_gguf(path):
        return open_gguf(path)
    return open_safetensors(path)


def _starts_as_gguf(path: Path) -> bool:
    try:
        # A named pipe would block here; the readers refuse what is no regular file.
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False
