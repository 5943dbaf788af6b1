"""Allowlists: which list counts for a kernel, changes to them, and files that are not as they should be."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pumice.packs.allowlist import MAX_HASHES, Allowlist, plain_hash
from pumice.packs.errors import InvalidTrustStore, NotInAllowlist

A, B, C = (f"sha256:{digit * 64}" for digit in "abc")


def test_a_list_of_its_own_stands_above_the_global_one() -> None:
    allowed = Allowlist(enforce=True).add(A).add(B, "rope")
    assert allowed.allows("norm", A) and not allowed.allows("norm", B)
    assert allowed.allows("rope", B) and not allowed.allows("rope", A)
    allowed.check("norm", A)
    with pytest.raises(NotInAllowlist) as caught:
        allowed.check("rope", A)
    assert caught.value.fields["kernel_id"] == "rope"


def test_only_an_enforced_list_refuses() -> None:
    Allowlist().check("rope", A)
    with pytest.raises(NotInAllowlist):
        Allowlist(enforce=True).check("rope", A)


def test_case_of_hashes() -> None:
    upper = "sha256:" + "A" * 64
    assert Allowlist(enforce=True).add(upper).allows("rope", A) and Allowlist(enforce=True).add(A).allows("rope", upper)
    with pytest.raises(InvalidTrustStore):
        plain_hash("SHA256:" + "a" * 64)


def test_removing() -> None:
    allowed = Allowlist(enforce=True).add(A).add(B, "rope").add(C, "rope")
    assert not allowed.remove(A).hashes
    assert allowed.remove(B, "rope").kernels == {"rope": {C}}
    empty = allowed.remove(B, "rope").remove(C, "rope")
    assert empty.kernels == {"rope": frozenset()} and not empty.allows("rope", A)  # a list that allows nothing
    assert allowed.remove(kernel_id="rope").allows("rope", A)
    for hash, kernel_id in ((C, None), (A, "rope"), (A, "norm"), (None, "norm"), (None, None)):
        with pytest.raises(NotInAllowlist, match="the allowlist has no"):
            allowed.remove(hash, kernel_id)


def test_merging() -> None:
    one, two = Allowlist(enforce=True).add(A).add(A, "rope"), Allowlist().add(B).add(B, "rope").add(C, "norm")
    merged = one.merge(two)
    assert merged == Allowlist({"rope": frozenset({A, B}), "norm": frozenset({C})}, frozenset({A, B}), True)
    assert not two.merge(one).enforce


def test_written_and_read() -> None:
    allowed = Allowlist(enforce=True).add(A).add(B, "rope").add(C, "rope")
    assert Allowlist.from_json(allowed.to_json().encode()) == allowed
    # As the specification has it, without our two keys.
    found = Allowlist.from_json(json.dumps({"version": "1.0", "kernels": {"rope": [A.upper().replace("SHA", "sha")]}}).encode())
    assert found == Allowlist({"rope": frozenset({A})})


@pytest.mark.parametrize(
    "value",
    [
        [],
        {},
        {"version": 1},
        {"version": 2, "kernels": {}},
        {"version": True, "kernels": {}},
        {"version": 1, "kernels": []},
        {"version": 1, "kernels": {"rope": A}},
        {"version": 1, "kernels": {"rope": [1]}},
        {"version": 1, "kernels": {"rope": ["SHA256:" + "a" * 64]}},
        {"version": 1, "kernels": {"rope": ["a" * 64]}},
        {"version": 1, "kernels": {"../rope": [A]}},
        {"version": 1, "kernels": {}, "enforce": "no"},
        {"version": 1, "kernels": {}, "enforced": True},
        {"version": 1, "kernels": {}, "hashes": {}},
        {"version": 1, "kernels": {}, "hashes": [f"sha256:{i:064x}" for i in range(MAX_HASHES + 1)]},
    ],
    ids=lambda value: json.dumps(value)[:60],
)
def test_files_that_are_no_allowlist(value: Any) -> None:
    with pytest.raises(InvalidTrustStore):
        Allowlist.from_json(json.dumps(value).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"version": 1, "kernels": {}, "kernels": {}}', b"[" * 5000])
def test_bytes_that_are_no_allowlist(data: bytes) -> None:
    with pytest.raises(InvalidTrustStore):
        Allowlist.from_json(data)
