"""The class that two runs of one request reach: by bytes, by numbers, by tokens, and where they part first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pumice.packs.keys import SigningKey
from pumice.receipts.artifacts import JSON_TYPE, NPY_TYPE, TEXT_TYPE, Artifact, json_bytes, npy_bytes
from pumice.receipts.compare import ComparedOutput, compare_output
from pumice.receipts.errors import ModelMismatch, NotReplayable
from pumice.receipts.receipt import Receipt, example_receipt, make_receipt
from pumice.receipts.replay import Given, Replay, check_files, compare_runs
from pumice.receipts.verify import VerifiedReceipt, verify_receipt
from pumice.routes.documents import plain

KEY = SigningKey.from_seed(bytes(range(32)))


def arrays(before: Any, after: Any, dtype: Any = np.float32, tolerance: float = 1e-3) -> ComparedOutput:
    old, new = (npy_bytes(np.asarray(value, dtype)) for value in (before, after))
    return compare_output("y", NPY_TYPE, old, new, tolerance)


def values(before: Any, after: Any) -> ComparedOutput:
    return compare_output("v", JSON_TYPE, json_bytes(before), json_bytes(after))


def test_arrays_are_compared_bit_by_bit_then_within_the_tolerance() -> None:
    assert arrays([1, 2], [1, 2]).reached == "bit-exact"
    near = arrays([[1, 2], [3, 4]], [[1, 2], [3, 4.002]])
    assert near.reached == "within-tolerance" and near.first == "element (1, 1): 4.0, then 4.001999855041504"
    assert near.figures["count"] == 1 and near.figures["max_rel"] == pytest.approx(5e-4, rel=1e-3)
    far = arrays([[1, 2], [3, 4]], [[1, 2.001], [3.1, 4.1]])
    assert far.reached == "different" and far.first.startswith("element (1, 0): 3.0"), "the first beyond the tolerance"
    assert arrays([1.0], [1.0005], tolerance=1e-4).reached == "different"
    assert arrays([0.0, 1.0], [-0.0, 1.0]).reached == "within-tolerance", "bits differ, numbers do not"


@pytest.mark.parametrize(
    ("before", "after"), [([np.nan, 1], [0, 1]), ([np.inf, 1], [-np.inf, 1]), ([1, np.inf], [1, 5]), ([1, 2], [1, np.nan])]
)
def test_nan_and_infinities_are_equal_or_different(before: list[float], after: list[float]) -> None:
    assert arrays(before, after).reached == "different"
    assert arrays([*before, 0.0], [*before, 1e-9]).reached == "within-tolerance"


def test_other_shapes_dtypes_and_integers_are_different() -> None:
    assert arrays([1, 2], [[1, 2]]).first == "shape (2,), then (1, 2)"
    old, new = npy_bytes(np.float32([1])), npy_bytes(np.float64([1]))
    assert compare_output("y", NPY_TYPE, old, new).first == "dtype float32, then float64"
    assert arrays([1, 2, 3], [1, 5, 6], np.int32).first == "element (1,): 2, then 5"
    header = new.replace(b"(1,)", b"(9,)")
    for broken in (b"no", new[:-1], header, new.replace(b"<f8", b"|O8")):
        with pytest.raises(NotReplayable, match="the content of y is not what its type says"):
            compare_output("y", NPY_TYPE, broken, new)
    with pytest.raises(NotReplayable, match="nests too deep"):
        compare_output("v", JSON_TYPE, b"[" * 100_000, b"[]")


def test_json_values_are_compared_by_place() -> None:
    assert values([1, 2], [1, 2, 3]).first == "element 2: nothing, then 3"
    assert values({"a": [1, 2]}, {"a": [1, 4]}).first == "element a, 1: 2, then 4"
    assert values([-0.5, -2.0], [-0.5001, -2.0]).reached == "within-tolerance"
    assert values([-0.5, -2.0], [-0.6, -2.0]).reached == "different"
    assert values([{"p": 0.5, "t": 1}], [{"p": 0.5001, "t": 2}]).first == "element 0, t: 1, then 2"
    assert values([], {}).reached == "different"
    assert not values([1], [2]).numbers and values([1.5], [2.5]).numbers


def test_texts_part_at_a_character() -> None:
    found = compare_output("text", TEXT_TYPE, "grün und gelb".encode(), "grün oder gelb".encode())
    assert found.first == "character 5: 'und gelb', then 'oder gelb'" and found.reached == "different"


# -- whole runs ---------------------------------------------------------------------------------------------------------
def run(outputs: list[Artifact], plan: str = "ab" * 32, caps: dict[str, Any] | None = None) -> Receipt:
    section = plain(example_receipt().document["pumice"])
    return make_receipt(
        task="generate",
        route_id="pumice.generate.v1",
        inputs=[Artifact.text("prompt", "Hi"), Artifact.ids("prompt_tokens", [1, 2])],
        outputs=outputs,
        backend=example_receipt().document["backend"],
        model=section["model"],
        profile=example_receipt().document["timings"]["profile"],
        request={"stop": ["x"]},
        plans=[{"name": "decode", "digest": plan}],
        device=section["device"],
        caps=caps or {},
        software={"pumice": "0.1.0"},
        fallback_reason="host",
    )


def verified(made: Receipt) -> VerifiedReceipt:
    return verify_receipt(made.sign(KEY), key=KEY.public)


def _of(found: Replay, role: str) -> ComparedOutput:
    return next(compared for compared in (*found.inputs, *found.outputs) if compared.role == role)


def tokens(*ids: int, logprobs: list[float] | None = None) -> list[Artifact]:
    found = [Artifact.text("text", str(ids)), Artifact.ids("tokens", ids)]
    return found if logprobs is None else [*found, Artifact.json("logprobs", logprobs)]


def test_equal_tokens_are_bit_exact_only_with_the_same_plans_or_equal_numbers() -> None:
    old = verified(run(tokens(1, 2)))
    assert compare_runs(old, run(tokens(1, 2))).reached == "bit-exact"
    other = compare_runs(old, run(tokens(1, 2), plan="cd" * 32, caps={"x": 1}))
    assert other.reached == "token-equal" and not other.same_plans and not other.same_caps
    numbers = verified(run(tokens(1, 2, logprobs=[-0.5, -1.5])))
    assert compare_runs(numbers, run(tokens(1, 2, logprobs=[-0.5, -1.5]), plan="cd" * 32)).reached == "bit-exact"
    assert compare_runs(numbers, run(tokens(1, 2, logprobs=[-0.5, -1.6]), plan="cd" * 32)).reached == "token-equal"
    different = compare_runs(numbers, run(tokens(1, 3, logprobs=[-0.5, -1.6])))
    assert different.reached == "different" and _of(different, "tokens").first == "element 1: 2, then 3"


def test_another_tokenisation_is_another_run() -> None:
    old = verified(run(tokens(1, 2)))
    new = run(tokens(1, 2))
    new.artifacts["prompt_tokens"]._content = lambda: b"[1,3]"
    found = compare_runs(old, new)
    assert found.reached == "different" and _of(found, "prompt_tokens").first == "element 1: 2, then 3"


def test_outputs_of_which_only_the_hash_is_known_are_equal_or_different() -> None:
    large = np.arange(1 << 15, dtype=np.float32)
    old = verified(run([Artifact.array("vectors", large)]))
    assert compare_runs(old, run([Artifact.array("vectors", large)], plan="cd" * 32)).reached == "bit-exact"
    found = compare_runs(old, run([Artifact.array("vectors", large + 1)]))
    assert found.reached == "different" and "only the hash" in found.outputs[0].first


def test_a_private_receipt_needs_its_openings() -> None:
    old = verified(run(tokens(1)).as_private())
    with pytest.raises(NotReplayable, match=r"request\.stop is not in the receipt"):
        Given(old)


def test_other_plans_on_the_same_caps_are_noted() -> None:
    found = compare_runs(verified(run(tokens(1))), run(tokens(1), plan="cd" * 32))
    assert any("another version of Pumice" in note for note in found.notes)
    assert found.to_json()["plans"] == [{"name": "decode", "receipt": "ab" * 32, "replay": "cd" * 32}]


def test_files_of_another_model_are_named() -> None:
    file = {"name": "a", "bytes": 1, "sha256": "ab" * 32}
    check_files([file], [file], "m")
    with pytest.raises(ModelMismatch, match="a of m is not the file that ran"):
        check_files([file], [{**file, "sha256": "cd" * 32}], "m")
    with pytest.raises(ModelMismatch, match="has the file b"):
        check_files([file], [file, {**file, "name": "b"}], "m")
