"""The text stream against its definition: decode everything, cut at the stop string that starts first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumice.errors import InputError
from pumice.text import TextStream


def reference(data: bytes, stop: Sequence[str]) -> str:
    text = data.decode("utf-8", "replace")
    return text[: min((at for s in stop if (at := text.find(s)) >= 0), default=len(text))]


def streamed(pieces: Sequence[bytes], stop: Sequence[str]) -> tuple[list[str], TextStream]:
    stream = TextStream(pieces.__getitem__, stop)
    return [*(stream.push(i) for i in range(len(pieces))), stream.finish()], stream


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    borders = [0, *sorted(min(a, len(data)) for a in at), len(data)]
    return [data[a:b] for a, b in pairwise(borders)]


# Few letters, so that stop strings overlap each other and themselves.
LETTERS = st.sampled_from(["a", "b", "ab", "é", "漢", "🌦"])
TEXT = st.lists(LETTERS, max_size=12).map("".join)
STOPS = st.lists(TEXT.filter(bool), max_size=4)
BORDERS = st.lists(st.integers(0, 60), max_size=20)


@given(TEXT, STOPS, BORDERS)
def test_any_split_gives_the_reference(text: str, stop: list[str], at: list[int]) -> None:
    data = text.encode()
    emitted, stream = streamed(cut(data, at), stop)
    assert "".join(emitted) == reference(data, stop)
    assert stream.stopped == any(s in text for s in stop)


@given(st.binary(max_size=24), st.lists(st.sampled_from(["\ufffd", "a", "\ufffda", "é"]), max_size=2), BORDERS)
def test_any_bytes_give_the_reference(data: bytes, stop: list[str], at: list[int]) -> None:
    assert "".join(streamed(cut(data, at), stop)[0]) == reference(data, stop)


@given(TEXT, STOPS)
def test_every_border_alone_gives_the_reference(text: str, stop: list[str]) -> None:
    data = text.encode()
    for at in range(len(data) + 1):
        assert "".join(streamed([data[:at], data[at:]], stop)[0]) == reference(data, stop)


@given(TEXT, STOPS, BORDERS)
def test_nothing_is_held_back_needlessly(text: str, stop: list[str], at: list[int]) -> None:
    pieces = cut(text.encode(), at)
    stream = TextStream(pieces.__getitem__, stop)
    emitted = data = ""
    longest = max((len(s) for s in stop), default=1)
    for i in range(len(pieces)):
        emitted += stream.push(i)
        data = b"".join(pieces[: i + 1]).decode("utf-8", "ignore")
        if not stream.stopped and not any(s in data for s in stop):
            assert len(data) - len(emitted) < longest


def test_a_character_comes_whole_as_soon_as_it_is_complete() -> None:
    pieces = [bytes([b]) for b in "🌦x".encode()]
    assert streamed(pieces, [])[0] == ["", "", "", "🌦", "x", ""]


def test_bad_bytes_come_once_they_are_certain() -> None:
    assert streamed([b"\xe6", b"\xbc", b"a", b"\xf0\x9f"], [])[0] == ["", "", "\ufffda", "", "\ufffd"]


def test_a_stop_string_across_tokens_is_never_shown() -> None:
    emitted, stream = streamed([b"Yes", b".\n\nHu", b"man", b": no"], ["\n\nHuman:"])
    assert emitted == ["Yes", ".", "", "", ""]
    assert stream.stop_string == "\n\nHuman:"


def test_a_false_start_of_a_stop_string_is_shown() -> None:
    assert streamed([b"<", b"|", b"b>"], ["<|end|>"])[0] == ["", "", "<|b>", ""]


def test_the_stop_string_that_starts_first_wins() -> None:
    assert "".join(streamed([b"xabc", b"d!"], ["bc", "abcd"])[0]) == "x"
    assert "".join(streamed([b"xabc", b"e!"], ["bc", "abcd"])[0]) == "xa"


def test_leading_space_is_stripped_once() -> None:
    stream = TextStream([b"", b" a", b" b"].__getitem__, strip_leading_space=True)
    assert [stream.push(i) for i in range(3)] == ["", "a", " b"]


def test_a_finished_stream_takes_no_more() -> None:
    stream = TextStream(lambda i: b"x")
    stream.finish()
    assert stream.finish() == ""
    with pytest.raises(InputError, match="finished"):
        stream.push(0)


@pytest.mark.parametrize("stop", [[""], [None], [b"x"]])
def test_stop_strings_are_checked(stop: list[str]) -> None:
    with pytest.raises(InputError, match="not a stop string"):
        TextStream(lambda i: b"x", stop)


def test_one_stop_string_may_stand_alone() -> None:
    assert streamed([b"a STOP b"], "STOP")[0] == ["a ", ""]
