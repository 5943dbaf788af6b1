"""Data by position: any batch of any epoch is a pure function of the seed, so that a run can resume exactly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pumice.errors import DataError, IndexRangeError, InputError, MissingName, ShapeError

Array = NDArray[Any]
Batch = Mapping[str, Array]

# Rows that are hashed to identify data; hashing everything would take longer than loading it.
_SAMPLED = 64


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A run's position in its data: the epoch, and how many batches of it were taken.

    >>> Position(0, 2).after(3), Position(0, 1).after(3)
    (Position(epoch=1, index=0), Position(epoch=0, index=2))
    """

    epoch: int = 0
    index: int = 0

    def after(self, batches: int) -> Position:
        """The position one batch further, given the number of batches in an epoch."""
        return Position(self.epoch + 1, 0) if self.index + 1 >= batches else Position(self.epoch, self.index + 1)


class Data(Protocol):
    """The data of a Trainer: a number of batches per epoch, and each batch by position."""

    def __len__(self) -> int: ...

    def batch(self, epoch: int, index: int) -> Batch:
        """The batch at a position; the same one on every call."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON: a checkpoint refuses to go on with another."""
        ...


class Dataset(Protocol):
    """Samples by number."""

    def __len__(self) -> int: ...

    def take(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """The samples of these numbers, stacked along the first axis of each field."""
        ...

    def describe(self) -> dict[str, Any]: ...


def permutation(count: int, seed: int, epoch: int = 0) -> NDArray[np.int64]:
    """The numbers below `count` in an order that depends on the seed and the epoch alone.

    Sorted hashes rather than NumPy's generators, whose streams may change with a release: a resumed run must see the same order.

    >>> permutation(5, seed=1).tolist(), permutation(5, seed=1, epoch=1).tolist()
    ([0, 1, 3, 2, 4], [1, 4, 3, 2, 0])
    """
    key = int.from_bytes(hashlib.blake2b(f"{seed}/{epoch}".encode(), digest_size=8).digest(), "little")
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    x ^= x >> np.uint64(31)
    return np.argsort(x, kind="stable").astype(np.int64)


class Batches:
    """The samples of a dataset in batches: reshuffled in each epoch, or in order.

    - `dataset`: `Arrays`, `Tokens`, `ImageFolder`, a `Subset`, or anything with `len`, `take` and `describe`
    - `batch_size`: samples in a batch; the last one of an epoch has what is left
    - `seed`: of the order
    - `shuffle`: whether each epoch has an order of its own
    - `drop_last`: leaves out a last batch that is shorter than the others

    >>> data = Batches(Arrays(x=np.arange(5)), 2, seed=1)
    >>> len(data), [b["x"].tolist() for b in data], data.batch(epoch=1, index=0)["x"].tolist()
    (3, [[0, 1], [3, 2], [4]], [1, 4])
    """

    def __init__(
        self, dataset: Dataset, batch_size: int, *, seed: int = 0, shuffle: bool = True, drop_last: bool = False
    ) -> None:
        if batch_size < 1:
            raise InputError(f"a batch size of {batch_size}", hint="a batch has at least one sample", batch_size=batch_size)
        samples = len(dataset)
        if not samples or (drop_last and samples < batch_size):
            raise InputError(
                f"the data has {samples} samples, which make no batch of {batch_size}",
                hint="use smaller batches or more data",
                samples=samples,
                batch_size=batch_size,
            )
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        samples = len(self.dataset)
        return samples // self.batch_size if self.drop_last else -(-samples // self.batch_size)

    def batch(self, epoch: int, index: int) -> dict[str, Array]:
        """The batch at a position."""
        if not 0 <= index < len(self):
            raise IndexRangeError(f"there is no batch {index} in an epoch of {len(self)}", index=index)
        span = slice(index * self.batch_size, min((index + 1) * self.batch_size, len(self.dataset)))
        if not self.shuffle:
            return self.dataset.take(np.arange(span.start, span.stop))
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, permutation(len(self.dataset), self.seed, epoch)
        return self.dataset.take(self._order[1][span])

    def __iter__(self) -> Iterator[dict[str, Array]]:
        """The batches of the first epoch."""
        return (self.batch(0, index) for index in range(len(self)))

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON."""
        order = {"batch_size": self.batch_size, "seed": self.seed, "shuffle": self.shuffle, "drop_last": self.drop_last}
        return {**self.dataset.describe(), **order}


class Arrays:
    """Fields of equal length, each an array whose first axis counts samples.

    NaN and infinity are refused by field and row; so are labels outside of `classes`, given as {field: number of classes}.

    >>> Arrays({"y": 2}, x=np.zeros((3, 2)), y=np.array([0, 1, 5]))
    Traceback (most recent call last):
    pumice.errors.IndexRangeError: [index-range] 'y' has the label 5 in row 2, outside of the 2 classes from 0 to 1
      hint: labels count from 0; check the data or the number of classes
    """

    def __init__(self, classes: Mapping[str, int] | None = None, /, **fields: Any) -> None:
        if not fields:
            raise MissingName("data without fields", hint="name the arrays: Arrays(x=…, y=…)")
        self.fields: dict[str, Array] = {name: np.asarray(value) for name, value in fields.items()}
        lengths = {name: value.shape[0] if value.ndim else 0 for name, value in self.fields.items()}
        if len(set(lengths.values())) > 1:
            raise ShapeError(
                "fields of different lengths: " + ", ".join(f"{name} has {n}" for name, n in lengths.items()),
                hint="the first axis of every field counts the samples",
                lengths=lengths,
            )
        self._length = next(iter(lengths.values()))
        for name, value in self.fields.items():
            check_finite(name, value)
        for name, count in (classes or {}).items():
            if name not in self.fields:
                raise MissingName(f"classes are given for {name!r}, which is no field", hint="one of " + " ".join(self.fields))
            check_labels(name, self.fields[name], count)

    def __len__(self) -> int:
        return self._length

    def take(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """The samples of these numbers."""
        return {name: value[rows] for name, value in self.fields.items()}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name} {value.dtype.name}{list(value.shape[1:])}" for name, value in self.fields.items())
        return f"<{len(self)} samples: {fields}>"

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON."""
        fields = {name: [value.dtype.name, *value.shape[1:]] for name, value in self.fields.items()}
        return {"kind": "arrays", "samples": len(self), "fields": fields, "digest": digest(*self.fields.values())}


class Subset:
    """Some samples of a dataset.

    >>> Subset(Arrays(x=np.arange(4)), np.array([3, 1])).take(np.array([0]))["x"].tolist()
    [3]
    """

    def __init__(self, dataset: Dataset, rows: NDArray[np.int64]) -> None:
        self.dataset, self.rows = dataset, rows

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """The samples of these numbers within the subset."""
        return self.dataset.take(self.rows[rows])

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON."""
        return {**self.dataset.describe(), "subset": len(self), "rows": digest(self.rows)}


class Mapped:
    """A dataset whose batches pass through a function, which must depend on nothing but its argument.

    >>> Mapped(Arrays(x=np.arange(3)), lambda b: {"x": b["x"] * 2}).take(np.array([2]))["x"].tolist()
    [4]
    """

    def __init__(self, dataset: Dataset, fn: Callable[[dict[str, Array]], dict[str, Array]]) -> None:
        self.dataset, self.fn = dataset, fn

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """The samples of these numbers, changed."""
        return self.fn(self.dataset.take(rows))

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON."""
        return {**self.dataset.describe(), "mapped": getattr(self.fn, "__qualname__", type(self.fn).__qualname__)}


def split(dataset: Dataset, validation: float | int, *, seed: int = 0) -> tuple[Dataset, Dataset]:
    """A dataset as two, without a common sample: one to train on, and a share or a number of samples to validate with.

    Samples are drawn at random; those of a text, which has an order, are its last ones.

    >>> train, held = split(Arrays(x=np.arange(10)), 0.2)
    >>> len(train), sorted([*train.take(np.arange(8))["x"].tolist(), *held.take(np.arange(2))["x"].tolist()]) == [*range(10)]
    (8, True)
    """
    samples = len(dataset)
    count = validation if isinstance(validation, int) else round(samples * validation)
    if not 0 < count < samples:
        raise InputError(
            f"{validation} of {samples} samples for validation leaves nothing on one side",
            hint="give a share between 0 and 1, or a number of samples",
            validation=validation,
        )
    ordered = getattr(dataset, "split_at", None)
    if ordered is not None:
        first, second = ordered(samples - count)
        return first, second
    order = permutation(samples, seed, -1)
    return Subset(dataset, np.sort(order[count:])), Subset(dataset, np.sort(order[:count]))


def check_finite(name: str, values: Array) -> None:
    """Refuse a field with NaN or infinity, by name and row.

    >>> check_finite("x", np.array([0.0, np.nan]))
    Traceback (most recent call last):
    pumice.errors.DataError: [data] 'x' has nan in row 1
      hint: drop or fill these samples before training: one of them ruins every param
    """
    if (values.dtype.kind != "f" and values.dtype.name != "bfloat16") or not values.size:
        return
    # The sum is finite only if all values are, and needs no mask of the data's size; an overflow is checked in full.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values, dtype=np.float64)):
            return
    bad = np.argwhere(~np.isfinite(values.reshape(len(values), -1).astype(np.float64, copy=False)))
    if len(bad):
        row, column = (int(v) for v in bad[0])
        raise DataError(
            f"{name!r} has {values.reshape(len(values), -1)[row, column]} in row {row}",
            hint="drop or fill these samples before training: one of them ruins every param",
            field=name,
            row=row,
        )


def check_labels(name: str, labels: Array, classes: int, *, ignore: int | None = None) -> None:
    """Refuse labels that are no class numbers, by name, row and value; `ignore` is a label without loss.

    >>> check_labels("y", np.array([0, -1]), 2, ignore=-1)
    """
    if labels.dtype.kind not in "iu":
        raise InputError(f"{name!r} holds {labels.dtype.name}, labels are integers", field=name, hint="cast it to int32")
    bad = (labels < 0) | (labels >= classes)
    if ignore is not None:
        bad &= labels != ignore
    if not bad.any():
        return
    first = tuple(int(v) for v in np.argwhere(bad)[0])
    raise IndexRangeError(
        f"{name!r} has the label {labels[first]} in row {first[0]}, outside of the {classes} classes from 0 to {classes - 1}",
        hint="labels count from 0; check the data or the number of classes",
        field=name,
        row=first[0],
        label=int(labels[first]),
        classes=classes,
    )


def digest(*arrays: Array) -> str:
    """A short hash of arrays' shapes, types and a few of their rows, which identifies the data.

    >>> digest(np.arange(3)) == digest(np.arange(3)) != digest(np.arange(1, 4))
    True
    """
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.dtype.name}{array.shape}".encode())
        if array.ndim and array.shape[0]:
            rows = np.unique(np.linspace(0, array.shape[0] - 1, min(_SAMPLED, array.shape[0])).astype(np.int64))
            found.update(np.ascontiguousarray(array[rows]).tobytes())
    return found.hexdigest()[:16]


class Tokens:
    """Windows of a long row of token numbers: x holds `context` of them, y the one after each.

    Windows begin every `stride` tokens (adjacent by default). The row may be a memory map.

    >>> data = Tokens(np.arange(10), context=4)
    >>> len(data), {k: v.tolist() for k, v in data.take(np.array([1])).items()}
    (2, {'x': [[4, 5, 6, 7]], 'y': [[5, 6, 7, 8]]})
    """

    def __init__(self, tokens: Array, context: int, *, stride: int | None = None, vocab: int | None = None) -> None:
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ShapeError(f"tokens are {tokens.dtype.name} {tokens.shape}, not one row of integers")
        self.tokens, self.context, self.vocab = tokens, context, vocab
        self.stride = context if stride is None else stride
        if min(self.context, self.stride) < 1:
            raise InputError(f"a context of {self.context} and a stride of {self.stride}", hint="both are at least 1")
        if len(tokens) <= context:
            raise InputError(
                f"{len(tokens)} tokens do not fill a context of {context} and the token after it",
                hint="use a shorter context or more text",
                tokens=len(tokens),
                context=context,
            )

    def __len__(self) -> int:
        return (len(self.tokens) - 1 - self.context) // self.stride + 1

    def __repr__(self) -> str:
        return f"<{len(self)} windows of {self.context} tokens>"

    def take(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """The windows of these numbers; tokens beyond the vocabulary are refused with their place."""
        places = rows[:, None] * self.stride + np.arange(self.context + 1)
        found = self.tokens[places].astype(np.int32)
        if self.vocab is not None and found.size and (found.min() < 0 or found.max() >= self.vocab):
            at = tuple(np.argwhere((found < 0) | (found >= self.vocab))[0])
            raise IndexRangeError(
                f"token {found[at]} at place {places[at]}, the vocabulary has {self.vocab}",
                hint="the file is of another tokenizer, or of another type than it was opened with",
                token=int(found[at]),
                place=int(places[at]),
            )
        return {"x": found[:, :-1], "y": found[:, 1:]}

    def split_at(self, windows: int) -> tuple[Tokens, Tokens]:
        """The text before a window, and from it on; no window of the one shares a predicted token with the other's."""
        place = windows * self.stride
        parts = (self.tokens[: place + 1], self.tokens[place:])
        first, second = (Tokens(part, self.context, stride=self.stride, vocab=self.vocab) for part in parts)
        return first, second

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON."""
        window = {"context": self.context, "stride": self.stride, "digest": digest(self.tokens)}
        return {"kind": "tokens", "tokens": len(self.tokens), **window}
