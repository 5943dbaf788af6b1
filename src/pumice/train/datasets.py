"""Datasets from files: token files, texts by characters, folders of images, and scikit-learn's handwritten digits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pumice.errors import FormatError, InputError, MissingName, UnknownName
from pumice.train.data import Array, Arrays, Tokens, digest

_TOKEN_TYPES = {"u16": "<u2", "u32": "<u4"}
_IMAGES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}
# Decoded images are cached up to this many bytes: small collections are read once, large ones again in each epoch.
_KEPT_BYTES = 1 << 30


def open_tokens(
    path: str | Path, context: int, *, dtype: str = "u16", stride: int | None = None, vocab: int | None = None
) -> Tokens:
    """The tokens of a file, mapped rather than read: raw u16 or u32 numbers (.bin), or a NumPy row (.npy).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.arange(9, dtype="<u2").tofile(f"{folder}/t.bin")
    ...     open_tokens(f"{folder}/t.bin", 4).take(np.array([1]))["y"].tolist()
    [[5, 6, 7, 8]]
    """
    path = Path(path)
    try:
        if path.suffix == ".npy":
            found: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            if dtype not in _TOKEN_TYPES:
                raise UnknownName(f"tokens of type {dtype!r}", hint="u16 or u32", dtype=dtype)
            found = np.memmap(path, _TOKEN_TYPES[dtype], "r")
    except (OSError, ValueError) as error:
        raise FormatError(
            f"{path} cannot be read as tokens: {error}",
            hint="raw u16 or u32 numbers in a .bin file, or one row of integers in a .npy file",
            path=str(path),
        ) from error
    return Tokens(found, context, stride=stride, vocab=vocab)


@dataclass(frozen=True)
class Characters:
    """A vocabulary of single characters.

    >>> letters = Characters.of("abba!")
    >>> letters.encode("ab!").tolist(), letters.decode([1, 2])
    ([1, 2, 0], 'ab')
    """

    letters: str

    @classmethod
    def of(cls, text: str) -> Characters:
        """The characters of a text, in order."""
        return cls("".join(sorted(set(text))))

    def __len__(self) -> int:
        return len(self.letters)

    def encode(self, text: str) -> NDArray[np.int32]:
        """The numbers of a text's characters."""
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        known = np.frombuffer(self.letters.encode("utf-32-le"), np.uint32)
        places = np.minimum(np.searchsorted(known, codes), max(len(known) - 1, 0))
        wrong = np.flatnonzero(known[places] != codes) if len(known) else np.arange(len(codes))
        if len(wrong):
            raise UnknownName(
                f"the vocabulary has no character {text[wrong[0]]!r}",
                hint=f"it has {self.letters!r}",
                character=text[wrong[0]],
                place=int(wrong[0]),
            )
        return places.astype(np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some numbers."""
        return "".join(self.letters[int(i)] for i in ids)


def read_texts(paths: Sequence[str | Path]) -> str:
    """The UTF-8 texts of files, one after the other; a missing or foreign file is named."""
    texts = []
    for path in paths:
        try:
            texts.append(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise FormatError(f"{path} cannot be read as text: {error}", hint="a file in UTF-8", path=str(path)) from error
    return "\n".join(texts)


def text_tokens(text: str, context: int, *, stride: int | None = None) -> tuple[Tokens, Characters]:
    """A text by characters, and the vocabulary made from it.

    >>> data, letters = text_tokens("hello world", context=4)
    >>> letters.decode(data.take(np.array([0]))["y"][0])
    'ello'
    """
    letters = Characters.of(text)
    return Tokens(letters.encode(text), context, stride=stride, vocab=len(letters)), letters


class ImageFolder:
    """Images in folders, whose names are the classes: x f32 [B, channels, height, width] from 0 to 1, y i32 [B].

    Needs Pillow (extra `examples`). `size` is (height, width): images of another size are resized.
    """

    def __init__(self, path: str | Path, size: tuple[int, int], *, channels: int = 3) -> None:
        if channels not in (1, 3):
            raise InputError(f"images of {channels} channels", hint="1 (grey) or 3 (colour)", channels=channels)
        self.path, self.size, self.channels = Path(path), size, channels
        if not self.path.is_dir():
            raise InputError(f"there is no folder {path}", hint="one folder per class, with images in it", path=str(path))
        self.classes = tuple(sorted(child.name for child in self.path.iterdir() if child.is_dir()))
        found = [
            (file, label)
            for label, name in enumerate(self.classes)
            for file in sorted((self.path / name).rglob("*"))
            if file.suffix.lower() in _IMAGES
        ]
        if not found:
            raise InputError(
                f"{path} has no images in folders",
                hint="one folder per class, with .png or .jpg files in it",
                path=str(path),
            )
        self.files = tuple(file for file, _ in found)
        self.labels = np.array([label for _, label in found], np.int32)
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: NDArray[np.int64]) -> dict[str, Array]:
        """The images of these numbers, decoded."""
        x = np.stack([self._pixels(int(row)) for row in rows]).astype(np.float32) / np.float32(255)
        return {"x": x, "y": self.labels[rows]}

    def _pixels(self, row: int) -> NDArray[np.uint8]:
        found = self._kept.get(row)
        if found is None:
            found = read_image(self.files[row], self.size, self.channels)
            if (len(self._kept) + 1) * found.nbytes <= _KEPT_BYTES:
                self._kept[row] = found
        return found

    def describe(self) -> dict[str, Any]:
        """What the data is, as JSON; files are identified by their sizes."""
        sizes = np.array([file.stat().st_size for file in self.files])
        names = [str(file.relative_to(self.path)) for file in self.files]
        shape = [self.channels, *self.size]
        content = digest(sizes, np.array(names))
        return {"kind": "images", "samples": len(self), "classes": list(self.classes), "shape": shape, "digest": content}


def read_image(path: str | Path, size: tuple[int, int] | None, channels: int) -> NDArray[np.uint8]:
    """The pixels of an image file, u8 [channels, height, width], resized to (height, width) if that is given."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise MissingName("reading images needs Pillow", hint="pip install 'pumice[examples]'", package="pillow") from None
    try:
        with Image.open(path) as image:
            pixels = image.convert("L" if channels == 1 else "RGB")
            if size is not None and pixels.size != size[::-1]:
                pixels = pixels.resize(size[::-1], Image.Resampling.BILINEAR)
            found = np.asarray(pixels, np.uint8)
    except (OSError, UnidentifiedImageError, ValueError, Image.DecompressionBombError) as error:
        raise FormatError(
            f"{path} cannot be read as an image: {error}", hint="remove or replace this file", path=str(path)
        ) from error
    return np.ascontiguousarray(found.reshape(*found.shape[:2], channels).transpose(2, 0, 1))


def digits(*, images: bool = False) -> Arrays:
    """scikit-learn's 1,797 handwritten digits: x f32 from 0 to 1, [B, 64] or [B, 1, 8, 8] as images; y i32 [B].

    Needs scikit-learn (extra `examples`), which carries the data: nothing is downloaded.

    >>> len(digits())
    1797
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingName(
            "the digits come with scikit-learn, which is not installed", hint="pip install 'pumice[examples]'", package="sklearn"
        ) from None
    found = load_digits()
    x = (found.data / 16).astype(np.float32)
    return Arrays({"y": 10}, x=x.reshape(-1, 1, 8, 8) if images else x, y=found.target.astype(np.int32))
