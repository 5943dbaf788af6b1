"""Choices between kernels of packs and built-in ones: the user's word, measured times, and what is kept of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pumice.errors import InputError, PumiceWarning
from pumice.packs import choice
from pumice.packs.choice import FILE, MAX_RECORDS, Choices, MeasuredTime
from pumice.packs.lifecycle import Use

VERSIONS = {"pumice": "1"}


@dataclass(frozen=True)
class Kernel:
    pack: str = "core"
    id: str = "softmax_f32"
    op: str = "softmax"
    pack_digest: str = "0" * 64


def measured(pack: str, kernel: str) -> Use:
    return "measured"


def opened(folder: Path, **more: Any) -> Choices:
    return Choices(folder, measured, **{"versions": VERSIONS, **more})


def test_nothing_is_known_before_it_was_measured_and_reading_makes_no_files(tmp_path: Path) -> None:
    assert opened(tmp_path / "packs").prefers("cpu", Kernel(), "f32[8]") is None
    assert not (tmp_path / "packs").exists()


@pytest.mark.parametrize(("ours", "wins"), [(0.5, True), (0.97, True), (0.971, False), (1.0, False), (2.0, False)])
def test_a_pack_must_win_by_three_percent(tmp_path: Path, ours: float, wins: bool) -> None:
    choices = opened(tmp_path)
    assert choices.decide("cpu", Kernel(), "f32[8]", lambda kernel, sample: (ours, 1.0), None) is wins
    assert opened(tmp_path).prefers("cpu", Kernel(), "f32[8]") is wins


def test_medians_of_alternating_runs_decide_and_the_first_run_does_not_count(tmp_path: Path) -> None:
    # The first run compiles; then single slow and quick runs of either must not decide.
    times: Iterator[tuple[float, float]] = iter(
        [(90.0, 0.1), (0.8, 1.0), (50.0, 1.0), (0.8, 0.01), (0.9, 1.0), (0.7, 70.0), (0.01, 1.0), (0.8, 1.0)]
    )
    given: list[object] = []

    def measure(kernel: Kernel, sample: str) -> tuple[float, float]:
        given.append((kernel, sample))
        return next(times)

    choices = opened(tmp_path)
    assert choices.decide("cpu", Kernel(), "f32[8]", measure, "sample")
    found = choices.time_of("cpu", Kernel(), "f32[8]")
    assert found and (found.seconds, found.built_in_seconds) == (0.8, 1.0)
    assert given == [(Kernel(), "sample")] * (choice.RUNS + 1)
    assert choices.decide("cpu", Kernel(), "f32[8]", measure, "sample")  # known now: `times` is used up


def test_a_time_is_of_one_device_kernel_pack_version_and_shape(tmp_path: Path) -> None:
    choices = opened(tmp_path)
    choices.record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    for device, kernel, signature in (
        ("gpu", Kernel(), "f32[8]"),
        ("cpu", Kernel(), "f32[9]"),
        ("cpu", replace(Kernel(), pack="other"), "f32[8]"),
        ("cpu", replace(Kernel(), id="softmax_f16"), "f32[8]"),
        ("cpu", replace(Kernel(), pack_digest="1" * 64), "f32[8]"),
        ("cpu", replace(Kernel(), op="log_softmax"), "f32[8]"),
    ):
        assert choices.prefers(device, kernel, signature) is None
    assert choices.prefers("cpu", Kernel(), "f32[8]") is True


def test_long_signatures_stay_apart(tmp_path: Path) -> None:
    choices = opened(tmp_path)
    same = "f32[8] " * 400
    choices.record("cpu", Kernel(), same + "f32[1]", 1.0, 2.0)
    choices.record("cpu", Kernel(), same + "f32[2]", 2.0, 1.0)
    again = opened(tmp_path)
    assert (again.prefers("cpu", Kernel(), same + "f32[1]"), again.prefers("cpu", Kernel(), same + "f32[2]")) == (True, False)
    assert (tmp_path / FILE).stat().st_size < 2000


def test_the_users_word_comes_before_times(tmp_path: Path) -> None:
    words: dict[str, Use] = {"softmax_f32": "measured"}
    choices = Choices(tmp_path, lambda pack, kernel: words[kernel], versions=VERSIONS)
    choices.record("cpu", Kernel(), "f32[8]", 2.0, 1.0)
    assert choices.prefers("cpu", Kernel(), "f32[8]") is False
    words["softmax_f32"] = "always"
    assert choices.prefers("cpu", Kernel(), "f32[8]") is True and choices.prefers("cpu", Kernel(), "f32[9]") is True
    words["softmax_f32"] = "never"
    choices.record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    assert choices.prefers("cpu", Kernel(), "f32[8]") is False


def test_of_two_packs_with_the_same_kernel_the_faster_one_is_taken(tmp_path: Path) -> None:
    words: dict[str, Use] = {"a": "measured", "b": "measured", "c": "measured", "d": "measured"}
    choices = Choices(tmp_path, lambda pack, kernel: words[pack], versions=VERSIONS)
    a, b, c, d = (replace(Kernel(), pack=name) for name in "abcd")
    choices.record("cpu", a, "f32[8]", 0.9, 1.0)
    choices.record("cpu", b, "f32[8]", 1.6, 2.0)  # measured on a slower day, with a larger gain
    choices.record("cpu", c, "f32[8]", 0.99, 1.0)
    assert choices.ranked("cpu", [a, b, c, d], "f32[8]") == choices.ranked("cpu", [a, b, c, d]) == [b, a]
    assert choices.ranked("cpu", [c, d], "f32[8]") == []
    words["d"] = "always"
    assert choices.ranked("cpu", [a, b, c, d], "f32[8]") == [d, b, a]
    words["a"] = "always"
    assert choices.ranked("cpu", [d, b, a], "f32[8]") == [a, d, b]
    words["a"] = words["d"] = words["b"] = "never"
    assert choices.ranked("cpu", [a, b, c, d], "f32[8]") == []


def test_without_a_shape_the_latest_time_of_the_kernel_counts(tmp_path: Path) -> None:
    now = iter(range(100))
    choices = opened(tmp_path, clock=lambda: next(now))
    assert choices.prefers("cpu", Kernel()) is None
    choices.record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    choices.record("gpu", Kernel(), "f32[8]", 2.0, 1.0)
    assert choices.prefers("cpu", Kernel()) is True and choices.prefers("gpu", Kernel()) is False
    choices.record("cpu", Kernel(), "f32[9]", 2.0, 1.0)
    assert choices.prefers("cpu", Kernel()) is False and choices.prefers("cpu", replace(Kernel(), pack="other")) is None


def test_times_of_other_versions_do_not_count_and_go_with_the_next_one(tmp_path: Path) -> None:
    opened(tmp_path).record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    newer = opened(tmp_path, versions={"pumice": "2"})
    assert newer.prefers("cpu", Kernel(), "f32[8]") is None
    newer.record("cpu", Kernel(), "f32[9]", 1.0, 2.0)
    assert [t["signature"] for t in json.loads((tmp_path / FILE).read_text())["times"]] == ["f32[9]"]


def test_the_file_is_bounded_and_the_oldest_times_go_first(tmp_path: Path) -> None:
    now = iter(range(10**6))
    choices = opened(tmp_path, clock=lambda: next(now))
    known = (
        MeasuredTime("cpu", "core", "k", "0" * 64, "op", f"{i}", 1.0, 2.0, i - MAX_RECORDS, VERSIONS) for i in range(MAX_RECORDS)
    )
    text = json.dumps({"format": 1, "times": [vars(t) for t in known]})
    (tmp_path / FILE).write_text(text)
    choices.record("cpu", Kernel(), "new", 1.0, 2.0)
    kept = opened(tmp_path).measured()
    assert len(kept) == MAX_RECORDS and kept[0].signature == "1" and kept[-1].signature == "new"


def test_two_processes_add_to_the_same_file(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    assert one.measured() == two.measured() == []
    one.record("cpu", Kernel(), "one", 1.0, 2.0)
    two.record("cpu", Kernel(), "two", 1.0, 2.0)
    assert [t.signature for t in opened(tmp_path).measured()] == ["one", "two"]


def test_threads_may_share_it(tmp_path: Path) -> None:
    choices = opened(tmp_path)

    def work(i: int) -> None:
        for j in range(5):
            choices.decide("cpu", Kernel(), f"{i} {j}", lambda kernel, sample: (1.0, 2.0), None, runs=1)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(opened(tmp_path).measured()) == 20


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"times": 3}', '{"times": [3]}', '{"times": [{}]}', "[" * 1000]
    + [
        json.dumps({"times": [vars(MeasuredTime("cpu", "core", "k", "0" * 64, "op", "s", *times, 0.0, VERSIONS))]})
        for times in ((float("nan"), 1.0), (1.0, float("inf")), (0.0, 1.0), (1.0, -1.0), ("1", 1.0))
    ],
)
def test_a_damaged_file_is_reported_and_measured_again(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.warns(PumiceWarning, match="measured again"):
        assert opened(tmp_path).measured() == []
    with pytest.warns(PumiceWarning, match="measured again"):
        opened(tmp_path).record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    assert opened(tmp_path).prefers("cpu", Kernel(), "f32[8]") is True


def test_a_file_that_others_can_write_is_reported_and_not_used(tmp_path: Path) -> None:
    opened(tmp_path).record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    (tmp_path / FILE).chmod(0o666)
    with pytest.warns(PumiceWarning, match="written by other users"):
        assert opened(tmp_path).prefers("cpu", Kernel(), "f32[8]") is None


def test_where_nothing_can_be_written_choices_hold_for_the_process(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    choices = opened(tmp_path / "file" / "packs")
    with pytest.warns(PumiceWarning):
        choices.record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    assert choices.prefers("cpu", Kernel(), "f32[8]") is True


@pytest.mark.parametrize(("ours", "built_in"), [(float("nan"), 1.0), (1.0, float("nan")), (0.0, 1.0), (1.0, float("inf"))])
def test_times_that_cannot_be_are_refused(tmp_path: Path, ours: float, built_in: float) -> None:
    with pytest.raises(InputError, match="core/softmax_f32 was measured as"):
        opened(tmp_path).record("cpu", Kernel(), "f32[8]", ours, built_in)
    assert not (tmp_path / FILE).exists()


def test_a_removed_packs_times_can_be_forgotten(tmp_path: Path) -> None:
    choices = opened(tmp_path)
    choices.record("cpu", Kernel(), "f32[8]", 1.0, 2.0)
    choices.record("cpu", replace(Kernel(), pack="other"), "f32[8]", 1.0, 2.0)
    choices.forget(["core"])
    assert choices.prefers("cpu", Kernel(), "f32[8]") is None
    assert [t.pack for t in opened(tmp_path).measured()] == ["other"]
