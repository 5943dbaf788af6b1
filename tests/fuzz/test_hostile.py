"""The fuzzers' own helper: it must see what it is there to see."""

from __future__ import annotations

import random
import time

import pytest

from pumice.errors import FormatError

from fuzz.hostile import bounded_memory, broken, damaged, damaged_json, nested, odd_value


def test_a_pumice_error_is_no_problem_and_others_are() -> None:
    def refuse(case: str) -> None:
        raise FormatError(f"cannot read {case!r}", hint="fetch it again")

    def fail(case: str) -> None:
        raise KeyError(case)

    assert broken(refuse, "x") == ""
    assert broken(len, "x") == ""
    assert "KeyError: 'x'" in broken(fail, "x")
    assert "RecursionError" in broken(lambda case: repr(nested(100_000)), "x")


def test_a_message_that_repeats_the_file_or_steers_the_terminal_is_a_problem() -> None:
    def refuse(case: str) -> None:
        raise FormatError(case)

    assert "control characters" in broken(refuse, "\x1b[2J")
    assert "the message has" in broken(refuse, "x" * 10_000)


def test_a_hang_is_found() -> None:
    def hang(case: str) -> None:
        while True:
            try:
                time.sleep(0.01)
            except Exception:
                continue

    assert "Hang: still running after 0.2 s" in broken(hang, "x", seconds=0.2)


def test_memory_is_found_also_where_it_was_freed_again() -> None:
    with pytest.raises(AssertionError, match="bytes at the peak"), bounded_memory(50 << 20):
        bytearray(b"x") * (100 << 20)
    with bounded_memory(50 << 20):
        bytearray(b"x") * (10 << 20)


def test_cases_follow_from_their_seed() -> None:
    value = {"a": [1, 2, {"b": "c"}], "d": None}
    for seed in range(50):
        one, two = random.Random(seed), random.Random(seed)
        assert repr(damaged_json(one, value)) == repr(damaged_json(two, value))
        assert damaged(one, bytes(100)) == damaged(two, bytes(100))
        assert repr(odd_value(one)) == repr(odd_value(two))
    assert value == {"a": [1, 2, {"b": "c"}], "d": None}
