"""A bundle's weights as a model package with chunk plans, for loaders that know those documents; see docs/routes.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pumice.formats.bundle import BundleWeights
from pumice.formats.weights import TensorInfo
from pumice.routes.chunk_plans import chunk_plan
from pumice.routes.documents import RouteDocument
from pumice.routes.model_packages import model_package
from pumice.routes.model_resources import COPY_DST, STORAGE, model_manifest

# Dtypes that both sides have; others are bytes there, and `metadata` says what they are.
_SAME = ("f32", "f16", "i32", "u32", "u8")


def resource_package(weights: BundleWeights) -> RouteDocument:
    """The package of a bundle: a resource for each shard, whose one allocation is the whole file, in the chunks of the bundle.

    The revision is the SHA-256 of the bundle's manifest. Chunks are named FILE@OFFSET. A tensor that is no array of a dtype that
    WebGPU has, or that is in several pieces, is bytes: `metadata` has its name, dtype and shape, and where the piece begins.
    """
    manifest = weights.metadata
    model, revision, size = str(manifest["model"]["name"]), str(manifest["sha256"]), manifest["chunk_bytes"]
    tensors: dict[str, list[dict[str, Any]]] = {}
    for info in weights.tensors.values():
        for file, tensor in _pieces(weights, info):
            tensors.setdefault(file, []).append(tensor)
    plans = []
    for file, listed in tensors.items():
        entry = manifest["files"][file]
        end = entry["bytes"]
        held = {"allocationId": file, "byteOffset": 0, "byteLength": end, "usage": STORAGE | COPY_DST, "tensors": listed}
        about = model_manifest(model, revision, [held], byte_length=end, sha256=entry["sha256"])
        chunks = [
            {"chunkId": f"{file}@{at}", "byteOffset": at, "byteLength": min(size, end - at), "sha256": digest}
            for at, digest in zip(range(0, end, size), entry["chunks"], strict=True)
        ]
        plans.append((file, chunk_plan(f"{file}:chunks", about, {file: chunks})))
    return model_package(f"pumice-bundle:{revision}", model, revision, plans)


def _pieces(weights: BundleWeights, info: TensorInfo) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pieces of a weight, each with its file."""
    pieces = weights.pieces(info.name)
    start = 0
    for k, (file, offset, size) in enumerate(pieces):
        place = {"byteOffset": offset, "byteLength": size}
        if len(pieces) == 1 and info.dtype.name in _SAME:
            yield file, {"name": info.name, "dtype": info.dtype.name, "shape": list(info.shape) or [1], **place}
        else:
            name = info.name if len(pieces) == 1 else f"{info.name}#{k}"
            about = {"weight": info.name, "dtype": info.dtype.name, "shape": list(info.shape), "begin": start}
            yield file, {"name": name, "dtype": "u8", "shape": [size], "metadata": about, **place}
        start += size
