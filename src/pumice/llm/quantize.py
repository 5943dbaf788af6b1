"""Quantising a model into a GGUF file: which tensor takes which format, in pieces on several threads, with its errors."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pumice.core import dtypes
from pumice.core.block_formats import FORMATS
from pumice.core.blocks import dequantize_rows
from pumice.core.dtypes import DType
from pumice.core.json_file import read_json
from pumice.core.threads import thread_count
from pumice.errors import InputError, UnknownName
from pumice.formats import open_weights
from pumice.formats.encode import ENCODERS, encode_rows
from pumice.formats.gguf_metadata import Metadata
from pumice.formats.gguf_writer import GgufWriter, check_target, typed_pairs
from pumice.formats.weights import TensorInfo, WeightFile, shown
from pumice.llm.bundle_model import refuse_bundle
from pumice.llm.defaults import as_gguf, defaults_of_folder
from pumice.models.config import ModelArchConfig
from pumice.models.gguf_limits import limits
from pumice.models.to_gguf import GgufTensor, to_gguf
from pumice.sources import Progress, ProgressCallback, resolve
from pumice.text.gguf_export import export_tokenizer

# Elements that are read, encoded and written at a time, by each thread.
_PIECE = 1 << 18

# What `general.file_type` says.
_FILE_TYPES = {dtypes.f32: 0, dtypes.f16: 1, dtypes.bf16: 32} | {
    dtype: format.file_type for dtype, format in FORMATS.items() if format.file_type is not None
}
TARGETS = (*(d.name for d in ENCODERS), "f16", "bf16", "f32")
_QUANTIZATION_VERSION = 2
_EDGES = ("token_embd.weight", "output.weight")
# Matrices that are small or read one row at a time, and that other programs expect as floats.
_KEPT = ("position_embd.weight", "token_types.weight")
_KEPT_PARTS = ("norm", "rope_", "ffn_gate_inp", "ssm_conv1d", "shortconv.conv.")
# What describes the source file and not the model.
_DROPPED = ("general.alignment", "general.file_type", "general.quantization_version", "split.", "quantize.")


@dataclass(frozen=True, slots=True)
class TensorReport:
    """What became of one tensor; `rms` is the size of its values, the errors are against them as the source has them.

    `note` says why a matrix has another format than the one asked for.
    """

    name: str
    shape: tuple[int, ...]
    source: str
    dtype: str
    source_bytes: int
    bytes: int
    rms: float
    rmse: float
    max_error: float
    note: str = ""

    @property
    def relative_rmse(self) -> float:
        return self.rmse / self.rms if self.rms else 0.0

    @property
    def bits(self) -> float:
        """Bits per weight."""
        return self.bytes * 8 / max(math.prod(self.shape), 1)


@dataclass(slots=True)
class QuantizeReport:
    """What `quantize_model` did."""

    model: str
    out: str
    to: str
    source_bytes: int = 0
    bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    tensors: list[TensorReport] = field(default_factory=list)

    @property
    def bits(self) -> float:
        """Bits per weight over all tensors."""
        return sum(t.bytes for t in self.tensors) * 8 / max(sum(math.prod(t.shape) for t in self.tensors), 1)

    @property
    def relative_rmse(self) -> float:
        """The error of all weights together, relative to their size."""
        missed = sum(t.rmse**2 * math.prod(t.shape) for t in self.tensors)
        size = sum(t.rms**2 * math.prod(t.shape) for t in self.tensors)
        return math.sqrt(missed / size) if size else 0.0

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        found = asdict(self) | {"bits": self.bits, "relative_rmse": self.relative_rmse}
        found["tensors"] = [asdict(t) | {"bits": t.bits, "relative_rmse": t.relative_rmse} for t in self.tensors]
        return found


def target_dtype(name: str) -> DType:
    """The format that a name asks for; what cannot be written is refused with the reason.

    >>> target_dtype("Q4_K").name
    'q4_k'
    >>> target_dtype("q8_k")
    Traceback (most recent call last):
    pumice.errors.UnknownName: [unknown-name] weights are not written as 'q8_k': it is the format of activations during a matmul
      hint: one of q4_0 q4_1 ...
    """
    lower = name.lower()
    if lower in TARGETS:
        return dtypes.dtype(lower)
    known = next((format for dtype, format in FORMATS.items() if dtype.name == lower), None)
    why = f": {known.not_written}" if known is not None else ""
    mixed = lower.rsplit("_", 1)[0] if lower.endswith(("_s", "_m", "_l")) else ""
    nearest = mixed if mixed in TARGETS else known.instead if known is not None else None
    hint = f"say {nearest}" if nearest else "one of " + " ".join(TARGETS)
    raise UnknownName(f"weights are not written as {name!r:.40}{why}", hint=hint, name=name)


def quantize_model(
    model: str | Path,
    *,
    to: str,
    out: str | Path,
    pure: bool = False,
    overwrite: bool = False,
    threads: int | None = None,
    progress: ProgressCallback | None = None,
    on_tensor: Callable[[TensorReport], None] | None = None,
) -> QuantizeReport:
    """Write a model's weights in another format, as one GGUF file; any model that `load` takes, if GGUF can hold it.

    Matrices take the format `to`; the token table and the output matrix a finer one unless `pure`; rows that are no whole
    number of blocks fall back to another format; norms and biases stay as they are. `on_tensor` is called for each one written.
    """
    started = time.perf_counter()
    target, path = target_dtype(to), Path(out)
    check_target(path, overwrite=overwrite)
    if threads is not None and threads < 1:
        raise InputError(f"{threads} threads cannot work", hint="give 1 or more")
    resolved = resolve(str(model), progress=progress)
    with open_weights(resolved.path) as weights:
        refuse_bundle(weights, str(model))
        if path.exists() and any(os.path.samefile(path, part) for part in weights.paths if part.exists()):
            raise InputError(
                f"{path} is the model itself, or a part of it", hint="choose another name for the file to write", path=str(path)
            )
        metadata, sources, notes = (
            _from_gguf(weights) if weights.kind == "gguf" else _from_folder(resolved.path, resolved.name, weights)
        )
        metadata["general.file_type"] = np.uint32(_FILE_TYPES[target])
        metadata["general.quantization_version"] = np.uint32(_QUANTIZATION_VERSION)
        report = QuantizeReport(str(model), str(path), target.name, notes=notes)
        if any(s.source.is_quant for s in sources):
            report.notes.append("the source is quantised already: errors are against its values, and add to those it has")
        chosen = [choose_dtype(s.name, s.shape, s.kept, target, pure=pure) for s in sources]
        infos = [TensorInfo(s.name, dtype, s.shape) for s, (dtype, _) in zip(sources, chosen)]
        total, done = sum(s.source_nbytes for s in sources), 0
        with GgufWriter(path, metadata, infos, overwrite=overwrite) as writer, _Workers(threads) as workers:
            for source, (dtype, note) in zip(sources, chosen):
                errors = _Errors()
                for packed, part in workers.in_order(_pieces(source, dtype)):
                    writer.write(source.name, packed)
                    errors.add(part)
                    if progress is not None:
                        progress(Progress(total, done + errors.count * source.source_nbytes // source.elements, "quantize"))
                done += source.source_nbytes
                made = errors.report(source, dtype, note)
                report.tensors.append(made)
                if on_tensor is not None:
                    on_tensor(made)
            report.bytes = writer.nbytes
    report.source_bytes = total
    report.seconds = time.perf_counter() - started
    return report


def choose_dtype(name: str, shape: tuple[int, ...], source: DType, to: DType, *, pure: bool = False) -> tuple[DType, str]:
    """The format in which a tensor is written, and why it is not `to`.

    >>> from pumice.core.dtypes import f16, q4_k
    >>> [choose_dtype(n, s, f16, q4_k)[0].name for n, s in
    ...     (("blk.0.ffn_up.weight", (8, 512)), ("blk.0.ffn_up.weight", (8, 96)), ("output.weight", (8, 512)))]
    ['q4_k', 'q5_0', 'q6_k']
    """
    kept = name in _KEPT or any(part in name for part in _KEPT_PARTS)
    if not (source.is_float or source.is_quant) or len(shape) < 2 or not name.endswith(".weight") or kept:
        return source, ""
    found, note = to, ""
    if name in _EDGES and not pure and to.is_quant:
        found = dtypes.q6_k if to.block == dtypes.q6_k.block else dtypes.q8_0
        note = "token table or output" if found != to else ""
    while found.is_quant and shape[-1] % found.block:
        note = f"rows of {shape[-1]} are no multiple of {found.block}"
        found = FORMATS[found].fallback or dtypes.f16
    return found, note


@dataclass(frozen=True, slots=True)
class _SourceTensor(GgufTensor):
    """A tensor to write: its format where it is not converted, and its stored rows where they can be copied."""

    kept: DType
    raw: Callable[[int, int], NDArray[Any]] | None = None


# A model's metadata, its tensors, and what is to be said of them.
_Source = tuple[dict[str, Any], list[_SourceTensor], list[str]]


def _from_gguf(weights: WeightFile) -> _Source:
    assert isinstance(weights.metadata, Metadata)
    pairs = {k: v for k, v in typed_pairs(weights.metadata).items() if not k.startswith(_DROPPED)}
    return pairs, [_stored(weights, info) for info in weights.tensors.values()], []


def _stored(weights: WeightFile, info: TensorInfo) -> _SourceTensor:
    def raw(start: int, stop: int) -> NDArray[Any]:
        array = weights.array(info.name)
        # Of a vector the elements count, of everything else the rows.
        return array.reshape(-1)[start:stop] if array.ndim < 2 else array.reshape(-1, array.shape[-1])[start:stop]

    def rows(start: int, stop: int) -> NDArray[np.float32]:
        found = raw(start, stop)
        return dequantize_rows(info.dtype, found, info.shape[-1]) if info.dtype.is_quant else found.astype(np.float32)

    return _SourceTensor(info.name, info.shape, info.dtype, rows, info.dtype, raw)


def _from_folder(path: Path, name: str, weights: WeightFile) -> _Source:
    folder = path if path.is_dir() else path.parent
    cfg = ModelArchConfig.from_hf(read_json(folder / "config.json"))
    pairs, tensors = to_gguf(cfg, weights)
    pairs |= export_tokenizer(folder, cfg.vocab, name.rstrip("/").rsplit("/", 1)[-1])
    notes = limits(cfg, pairs, [t.name for t in tensors])
    pairs |= as_gguf(defaults_of_folder(folder))
    # What is not converted becomes f32: other readers stop at taps and decays of fewer bits, and round what routers read.
    return pairs, [_SourceTensor(t.name, t.shape, t.source, t.rows, dtypes.f32) for t in tensors], notes


@dataclass(slots=True)
class _Errors:
    """Sums over the elements of a tensor, or of a piece of it."""

    count: int = 0
    squares: float = 0.0
    missed: float = 0.0
    most: float = 0.0

    def add(self, part: _Errors) -> None:
        self.count += part.count
        self.squares += part.squares
        self.missed += part.missed
        self.most = max(self.most, part.most)

    def report(self, source: _SourceTensor, dtype: DType, note: str) -> TensorReport:
        rms, rmse = (math.sqrt(v / max(self.count, 1)) for v in (self.squares, self.missed))
        nbytes = dtype.nbytes(source.elements)
        sizes = {"source_bytes": source.source_nbytes, "bytes": nbytes}
        return TensorReport(source.name, source.shape, source.source.name, dtype.name, **sizes, rms=rms, rmse=rmse,
                            max_error=self.most, note=note)  # fmt: skip


def _pieces(source: _SourceTensor, dtype: DType) -> Iterator[Callable[[], tuple[NDArray[Any], _Errors]]]:
    """Calls that each encode some rows."""
    k = max(source.shape[-1], 1) if len(source.shape) > 1 else 1
    rows, step = source.elements // k, max(1, _PIECE // k)
    return (partial(_encode, source, dtype, start, min(start + step, rows)) for start in range(0, rows, step))


def _encode(source: _SourceTensor, dtype: DType, start: int, stop: int) -> tuple[NDArray[Any], _Errors]:
    if not (dtype.is_float or dtype.is_quant):
        assert source.raw is not None, "only GGUF files hold other tensors, and they stay as they are"
        packed = source.raw(start, stop)
        return packed, _Errors(packed.size)
    x = source.rows(start, stop)
    if source.raw is not None and dtype == source.source:
        packed, missed = source.raw(start, stop), np.zeros(1, np.float32)
        if not np.isfinite(x).all():
            raise _broken(source, InputError("there are NaN or infinite values", hint="the file is damaged: download it again"))
    else:
        try:
            packed = encode_rows(dtype, x)
        except InputError as error:
            raise _broken(source, error) from error
        read = dequantize_rows(dtype, packed, x.shape[-1]) if dtype.is_quant else packed.astype(np.float32)
        missed = read - x
    squares, errors = (float(np.square(v, dtype=np.float64).sum()) for v in (x, missed))
    return packed, _Errors(x.size, squares, errors, float(np.abs(missed).max(initial=0.0)))


def _broken(source: _SourceTensor, error: InputError) -> InputError:
    return InputError(f"tensor {shown(source.name)}: {error.message}", hint=error.hint, name=source.name)


class _Workers:
    """Threads that work ahead of the one which writes, by a bounded number of pieces."""

    def __init__(self, threads: int | None) -> None:
        self._count = threads or thread_count()
        self._pool = ThreadPoolExecutor(self._count, "pumice-quantize")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)

    def in_order(self, jobs: Iterable[Callable[[], Any]]) -> Iterator[Any]:
        """What the jobs give, in their order."""
        waiting: deque[Future[Any]] = deque()
        for job in jobs:
            waiting.append(self._pool.submit(job))
            if len(waiting) > 2 * self._count:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
