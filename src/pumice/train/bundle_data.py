"""Data of a train step as files of a bundle: samples, and the order in which batches take them. docs/bundle.md specifies both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pumice.core.dtypes import DType
from pumice.errors import InputError, MissingName
from pumice.run.convert import convert
from pumice.train.checks import LabelCheck
from pumice.train.data import Array, Batches, Tokens, check_finite, check_labels

# A tab keeps all samples in memory; more than this belongs on a server.
LARGEST_DATA = 512 << 20


class DataFiles(Protocol):
    """What files of a bundle are written to."""

    def write(self, name: str, pieces: Sequence[bytes]) -> None: ...


@dataclass
class DataWriter:
    """Writes the data of a train step to a bundle, in the dtypes of the step's inputs.

    - `files`: takes each file
    - `dtypes`: of the inputs of a batch, by name
    - `checks`: the labels that name classes
    """

    files: DataFiles
    dtypes: Mapping[str, DType]
    checks: Sequence[LabelCheck] = ()
    written: int = field(default=0, init=False)

    def add(self, part: str, batches: Batches) -> dict[str, Any]:
        """Write the samples of a part, such as "train", and give what the manifest says of them."""
        if not isinstance(batches, Batches):
            raise InputError(
                f"the {part} data is {type(batches).__name__}, whose batches a bundle cannot describe",
                hint="give train.Batches of a dataset, or leave the data out: a page may bring its own batches",
                name=part,
            )
        order = {"batch": batches.batch_size, "seed": batches.seed, "shuffle": batches.shuffle, "drop_last": batches.drop_last}
        dataset = batches.dataset
        found = self._tokens(part, dataset) if isinstance(dataset, Tokens) else self._fields(part, batches)
        return {**found, **order}

    def _tokens(self, part: str, data: Tokens) -> dict[str, Any]:
        if set(self.dtypes) != {"x", "y"}:
            raise MissingName(f"tokens give a batch x and y, the step takes {' and '.join(self.dtypes)}", name=part)
        largest = int(data.tokens.max())
        if data.vocab is not None and largest >= data.vocab:
            data.take(np.arange(len(data)))  # refuses it with the place
        kind = next(k for k in ("u1", "u2", "u4") if largest <= np.iinfo(k).max)
        name = f"data/{part}-tokens.bin"
        self._write(name, np.asarray(data.tokens).astype("<" + kind))
        dtype = {"u1": "u8", "u2": "u16", "u4": "u32"}[kind]
        window = {"context": data.context, "stride": data.stride, "samples": len(data)}
        return {"kind": "tokens", "file": name, "dtype": dtype, "tokens": len(data.tokens), **window}

    def _fields(self, part: str, batches: Batches) -> dict[str, Any]:
        samples = len(batches.dataset)
        arrays = batches.dataset.take(np.arange(samples))
        missing = [name for name in self.dtypes if name not in arrays]
        if missing or len(arrays) > len(self.dtypes):
            raise MissingName(
                f"the {part} data gives {' '.join(arrays)}, the step takes {' '.join(self.dtypes)}",
                hint="the fields of the data are the inputs of the step",
                names=missing,
            )
        fields: dict[str, Any] = {}
        for name, dtype in self.dtypes.items():
            array = convert(arrays[name], dtype, f"the field {name!r}")
            check_finite(name, array)
            for check in self.checks:
                if check.graph is None and check.name == name:
                    check_labels(name, array, check.classes, ignore=check.ignored)
            file = f"data/{part}-{len(fields)}.bin"
            self._write(file, array)
            fields[name] = {"file": file, "dtype": dtype.name, "shape": list(array.shape[1:])}
        return {"kind": "arrays", "samples": samples, "fields": fields}

    def _write(self, name: str, array: Array) -> None:
        self.written += array.nbytes
        if self.written > LARGEST_DATA:
            raise InputError(
                f"the data has more than {LARGEST_DATA >> 20} MiB, which a tab would keep in memory",
                hint="export a part of it, as train.split gives one",
            )
        self.files.write(name, [np.ascontiguousarray(array).tobytes()])
