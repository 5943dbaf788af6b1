"""Data by position: orders that depend on nothing but the seed, files of every kind, and data that is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumice.errors import DataError, FormatError, IndexRangeError, InputError, MissingName, ShapeError, UnknownName
from pumice.train.data import Arrays, Batches, Mapped, Position, Subset, Tokens, permutation, split
from pumice.train.datasets import Characters, ImageFolder, digits, open_tokens, read_texts, text_tokens


@given(st.integers(1, 300), st.integers(0, 2**40), st.integers(-1, 5))
def test_an_order_has_every_number_once(count, seed, epoch):
    order = permutation(count, seed, epoch)
    assert sorted(order.tolist()) == list(range(count))
    assert order.tolist() == permutation(count, seed, epoch).tolist()


def test_orders_are_what_earlier_releases_had():
    """A checkpoint of today must continue tomorrow: these numbers may not change."""
    assert permutation(8, 0).tolist() == [1, 4, 2, 6, 0, 7, 3, 5]
    assert permutation(8, 0, 1).tolist() == [1, 0, 4, 7, 5, 2, 6, 3]
    assert len({tuple(permutation(8, seed, epoch).tolist()) for seed in range(5) for epoch in range(5)}) == 25


@given(st.integers(1, 40), st.integers(1, 9), st.booleans(), st.booleans())
def test_an_epoch_has_every_sample_once(samples, size, shuffle, drop_last):
    if drop_last and samples < size:
        with pytest.raises(InputError, match="which make no batch"):
            Batches(Arrays(x=np.arange(samples)), size, drop_last=True)
        return
    data = Batches(Arrays(x=np.arange(samples)), size, seed=3, shuffle=shuffle, drop_last=drop_last)
    for epoch in range(2):
        found = [data.batch(epoch, i)["x"].tolist() for i in range(len(data))]
        rows = [row for batch in found for row in batch]
        assert len(set(rows)) == len(rows) == (samples // size * size if drop_last else samples)
        assert all(len(batch) == size for batch in found[:-1])
        assert shuffle or rows == list(range(len(rows)))
    with pytest.raises(IndexRangeError, match="no batch"):
        data.batch(0, len(data))


def test_batches_come_in_any_order_of_asking():
    data = Batches(Arrays(x=np.arange(20)), 3, seed=9)
    walked, at = [], Position()
    for _ in range(2 * len(data)):
        walked.append(data.batch(at.epoch, at.index)["x"].tolist())
        at = at.after(len(data))
    assert at == Position(2, 0)
    again = Batches(Arrays(x=np.arange(20)), 3, seed=9)
    for number in reversed(range(len(walked))):
        assert again.batch(*divmod(number, len(data)))["x"].tolist() == walked[number]


def test_splits_share_nothing():
    train, held = split(Arrays(x=np.arange(50)), 0.3, seed=1)
    a, b = (set(part.take(np.arange(len(part)))["x"].tolist()) for part in (train, held))
    assert not a & b and a | b == set(range(50)) and len(b) == 15
    assert len(split(train, 5)[1]) == 5
    for share in (0.0, 1.0, 50):
        with pytest.raises(InputError, match="leaves nothing"):
            split(Arrays(x=np.arange(50)), share)


def test_a_text_is_split_in_order_and_predicts_nothing_twice():
    for stride in (4, 2):
        train, held = split(Tokens(np.arange(101), 4, stride=stride), 0.2)
        seen, kept = ({int(v) for v in part.take(np.arange(len(part)))["y"].ravel()} for part in (train, held))
        assert max(seen) < min(kept)


def test_descriptions_are_json_and_tell_data_apart():
    x = np.random.default_rng(0).normal(size=(9, 2)).astype("f4")
    base = Batches(Arrays(x=x), 2).describe()
    assert json.loads(json.dumps(base)) == base == Batches(Arrays(x=x.copy()), 2).describe()
    others = [
        Batches(Arrays(x=x), 3),
        Batches(Arrays(x=x), 2, seed=1),
        Batches(Arrays(x=x + 1), 2),
        Batches(Arrays(z=x), 2),
        Batches(Subset(Arrays(x=x), np.arange(8)), 2),
        Batches(Mapped(Arrays(x=x), lambda b: b), 2),
        Batches(Tokens(np.arange(99), 4), 2),
    ]
    assert all(other.describe() != base for other in others)


def test_what_is_refused():
    with pytest.raises(DataError, match="'x' has nan in row 3") as error:
        Arrays(x=np.array([[0.0, 1], [2, 3], [4, 5], [np.nan, 6]]))
    assert error.value.fields["row"] == 3
    with pytest.raises(DataError, match="'x' has inf in row 1"):
        Arrays(x=np.array([0, np.inf], np.float16))
    with pytest.raises(IndexRangeError, match="'y' has the label -1 in row 1, outside of the 3 classes"):
        Arrays({"y": 3}, y=np.array([2, -1]))
    with pytest.raises(InputError, match="labels are integers"):
        Arrays({"y": 3}, y=np.array([0.5]))
    with pytest.raises(MissingName, match="no field"):
        Arrays({"z": 3}, y=np.array([1]))
    with pytest.raises(ShapeError, match="x has 2, y has 3"):
        Arrays(x=np.zeros(2), y=np.zeros(3))
    with pytest.raises(InputError, match="batch size of 0"):
        Batches(Arrays(x=np.zeros(2)), 0)
    with pytest.raises(InputError, match="5 tokens do not fill a context of 5"):
        Tokens(np.arange(5), 5)
    # A large sum is no infinity.
    assert len(Arrays(x=np.full(10, 3e38, np.float32))) == 10


@pytest.mark.parametrize(("name", "dtype"), [("t.bin", "u16"), ("t.bin", "u32"), ("t.npy", "u16")])
def test_token_files(tmp_path, name, dtype):
    ids = np.arange(1000, dtype="<u2" if dtype == "u16" else "<u4")
    path = tmp_path / name
    if name.endswith("npy"):
        np.save(path, ids)
    else:
        ids.tofile(path)
    data = open_tokens(path, 8, dtype=dtype, vocab=1000)
    assert len(data) == 124
    found = data.take(np.array([100]))
    assert found["x"].tolist() == [list(range(800, 808))] and found["y"].tolist() == [list(range(801, 809))]
    assert found["x"].dtype == np.int32
    with pytest.raises(IndexRangeError, match="token 600 at place 600, the vocabulary has 600"):
        open_tokens(path, 8, dtype=dtype, vocab=600).take(np.array([75]))


def test_token_files_that_are_none(tmp_path):
    (tmp_path / "odd.bin").write_bytes(b"abc")
    (tmp_path / "bad.npy").write_bytes(b"abc")
    for name in ("odd.bin", "bad.npy", "missing.bin"):
        with pytest.raises(FormatError, match=name):
            open_tokens(tmp_path / name, 4)
    with pytest.raises(UnknownName, match="'u8'"):
        open_tokens(tmp_path / "odd.bin", 4, dtype="u8")


def test_texts_by_characters(tmp_path):
    (tmp_path / "a.txt").write_text("größer…", encoding="utf-8")
    (tmp_path / "b.txt").write_text("𝄞 so", encoding="utf-8")
    text = read_texts([tmp_path / "a.txt", tmp_path / "b.txt"])
    data, letters = text_tokens(text, 4)
    assert letters.decode(letters.encode(text)) == text and len(letters) == len(set(text))
    assert letters.decode(data.take(np.array([0]))["x"][0]) == "größ"
    with pytest.raises(UnknownName, match="no character 'Z'"):
        letters.encode("Z")
    with pytest.raises(UnknownName):
        Characters("").encode("a")
    (tmp_path / "c.txt").write_bytes(b"\xff\xfe\xfa")
    for name in ("c.txt", "d.txt"):
        with pytest.raises(FormatError, match=name):
            read_texts([tmp_path / name])


def _picture(path: Path, shade: int, size: tuple[int, int] = (6, 4)) -> None:
    from PIL import Image

    path.parent.mkdir(exist_ok=True)
    Image.new("RGB", size, (shade, 0, 255)).save(path)


def test_folders_of_images(tmp_path):
    _picture(tmp_path / "cat" / "1.png", 51)
    _picture(tmp_path / "cat" / "2.bmp", 102, (12, 8))
    _picture(tmp_path / "dog" / "1.png", 153)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    data = ImageFolder(tmp_path, (4, 6))
    assert data.classes == ("cat", "dog") and len(data) == 3
    for _ in range(2):  # the second time from memory
        found = data.take(np.array([2, 1]))
        assert found["x"].shape == (2, 3, 4, 6) and found["x"].dtype == np.float32 and found["y"].tolist() == [1, 0]
        np.testing.assert_allclose(found["x"][:, 0, 0, 0], [0.6, 0.4])
        np.testing.assert_allclose(found["x"][:, 2], 1)
    assert ImageFolder(tmp_path, (2, 2), channels=1).take(np.array([0]))["x"].shape == (1, 1, 2, 2)
    described = data.describe()
    assert json.loads(json.dumps(described)) == described
    (tmp_path / "dog" / "1.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(FormatError, match=r"dog/1.png cannot be read as an image"):
        ImageFolder(tmp_path, (4, 6)).take(np.array([2]))
    with pytest.raises(InputError, match="no images in folders"):
        ImageFolder(tmp_path / "dog", (4, 6))
    with pytest.raises(InputError, match="there is no folder"):
        ImageFolder(tmp_path / "bird", (4, 6))


def test_digits():
    data = digits(images=True)
    found = data.take(np.arange(4))
    assert found["x"].shape == (4, 1, 8, 8) and found["x"].max() <= 1 and found["y"].tolist() == [0, 1, 2, 3]
