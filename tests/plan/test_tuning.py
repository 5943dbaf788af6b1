"""The tuning table: the user's file before what is shipped, and files that are not what they should be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pumice.backends import tuning
from pumice.core.caps import Caps
from pumice.core.tuning import SHIPPED, Tuning
from pumice.errors import FormatError
from pumice.kernels.routines import qmatmul
from pumice.kernels.routines.matmul import FRAGMENTS, MEASURED_TILES, decide

H200, BASELINE = Caps.preset("h200"), Caps.preset("browser-baseline")
SIZE = (4096, 4096, 4096, 1)


def entry(**rates: float) -> dict[str, object]:
    names = {"large": "128x128x16 8x8", "small": "32x64x16 4x4"}
    return {"names": ["NVIDIA H200"], "cores": 100, "groups": [1, 4], "tiles": {names[k]: [r / 2, r] for k, r in rates.items()}}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PUMICE_HOME", str(tmp_path))
    return tmp_path


def test_shipped_tiles_are_ones_that_products_can_have() -> None:
    known = {t.key for t in (*MEASURED_TILES, *(tile for tile, _ in FRAGMENTS))}
    known |= {tile.quantised_key for tile, _ in qmatmul.FRAGMENTS}
    for name, data in SHIPPED.items():
        assert set(data["tiles"]) <= known, name


def test_targets_without_an_entry_get_tiles_by_rule() -> None:
    assert BASELINE.tuning is None and decide(BASELINE, *SIZE).name.startswith("tiled")
    assert Caps.preset("lavapipe").tuning is None
    assert decide(H200, *SIZE).name == "tiled 128x128x16 8x8"


def test_names_are_matched_as_a_whole() -> None:
    assert tuning.tuning_for("nvidia h200 nvl") is not None
    for other in ("h200", "NVIDIA H200 something", "NVIDIA", ""):
        assert tuning.tuning_for(other) is None


def test_the_users_file_comes_first_and_is_read_anew() -> None:
    assert tuning.tuning_for("NVIDIA H200") == H200.tuning
    path = tuning.save_user_entry("mine", entry(large=10.0, small=100.0))
    mine = tuning.tuning_for("NVIDIA H200")
    assert decide(H200.with_(tuning=mine), *SIZE).name == "tiled 32x64x16 4x4"
    assert tuning.tuning_for("another") is None
    tuning.save_user_entry("other", {**entry(large=1.0), "names": ["another"]})
    assert set(json.loads(path.read_text())) == {"mine", "other"}
    assert tuning.tuning_for("another") is not None
    path.unlink()
    assert tuning.tuning_for("NVIDIA H200") == H200.tuning


def test_time_follows_the_fullest_core() -> None:
    t = Tuning("t", ("t",), 10, (1, 3), (("tile", (10.0, 20.0)),))
    one, two, three, six = (t.seconds("tile", 10 * n, 1e9) for n in (1, 2, 3, 6))
    assert t.seconds("tile", 1, 1e9) == one and t.seconds("tile", 11, 1e9) == two
    assert one < two < three and two == pytest.approx((one + three) / 2) and six == pytest.approx(2 * three)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a": 1}',
        '{"a": {}}',
        json.dumps({"a": {**entry(large=1.0), "names": []}}),
        json.dumps({"a": {**entry(large=1.0), "groups": [2, 1]}}),
        json.dumps({"a": {**entry(large=1.0), "groups": [1]}}),
        json.dumps({"a": entry(large=-1.0)}),
    ],
)
def test_malformed_files_are_refused(home: Path, text: str) -> None:
    (home / "tuning.json").write_text(text)
    with pytest.raises(FormatError, match="tuning"):
        tuning.tuning_for("NVIDIA H200")


def test_malformed_entries_are_not_saved() -> None:
    with pytest.raises(FormatError, match="mine"):
        tuning.save_user_entry("mine", {"names": ["x"]})
    assert not tuning.user_file().exists()
