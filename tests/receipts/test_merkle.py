"""Merkle trees beside the RFC's definitions, written out slowly, and known roots and proofs."""

from __future__ import annotations

import hashlib

import pytest

from pumice.receipts.merkle import (
    Frontier,
    consistency_ranges,
    inclusion_ranges,
    is_consistent,
    leaf_hash,
    node_hash,
    range_hashes,
    root_from_inclusion,
)

# The leaves and roots that implementations of Certificate Transparency test with.
KNOWN_LEAVES = [
    bytes.fromhex(h) for h in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", bytes(range(0x60, 0x70)).hex())
]
KNOWN_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
SIZES = range(34)


def slow_root(data: list[bytes]) -> bytes:
    """MTH of RFC 6962, 2.1."""
    if not data:
        return hashlib.sha256(b"").digest()
    if len(data) == 1:
        return hashlib.sha256(b"\x00" + data[0]).digest()
    k = split(len(data))
    return hashlib.sha256(b"\x01" + slow_root(data[:k]) + slow_root(data[k:])).digest()


def slow_path(m: int, data: list[bytes]) -> list[bytes]:
    """PATH of RFC 6962, 2.1.1."""
    if len(data) == 1:
        return []
    k = split(len(data))
    if m < k:
        return [*slow_path(m, data[:k]), slow_root(data[k:])]
    return [*slow_path(m - k, data[k:]), slow_root(data[:k])]


def slow_proof(m: int, data: list[bytes], whole: bool = True) -> list[bytes]:
    """PROOF and SUBPROOF of RFC 6962, 2.1.2."""
    if m == len(data):
        return [] if whole else [slow_root(data)]
    k = split(len(data))
    if m <= k:
        return [*slow_proof(m, data[:k], whole), slow_root(data[k:])]
    return [*slow_proof(m - k, data[k:], False), slow_root(data[:k])]


def split(n: int) -> int:
    k = 1
    while k * 2 < n:
        k *= 2
    return k


def leaves(n: int) -> list[bytes]:
    return [b"leaf %d" % i for i in range(n)]


def hashes(data: list[bytes]) -> list[bytes]:
    return [leaf_hash(d) for d in data]


def tree(data: list[bytes]) -> Frontier:
    made = Frontier()
    for d in data:
        made.add(leaf_hash(d))
    return made


@pytest.mark.parametrize("size", range(9))
def test_known_roots(size: int) -> None:
    assert tree(KNOWN_LEAVES[:size]).root().hex() == KNOWN_ROOTS[size] == slow_root(KNOWN_LEAVES[:size]).hex()


def test_the_examples_of_the_rfc() -> None:
    """2.1.3: a tree of seven leaves, whose nodes the RFC names a to l."""
    d = hashes(leaves(7))
    a, b, c, d3, e, f, j = d
    g, h, i = node_hash(a, b), node_hash(c, d3), node_hash(e, f)
    k, l_ = node_hash(g, h), node_hash(i, j)
    assert tree(leaves(7)).root() == node_hash(k, l_)
    assert range_hashes(d, inclusion_ranges(0, 7)) == [b, h, l_]
    assert range_hashes(d, inclusion_ranges(3, 7)) == [c, g, l_]
    assert range_hashes(d, inclusion_ranges(4, 7)) == [f, j, k]
    assert range_hashes(d, inclusion_ranges(6, 7)) == [i, k]
    assert range_hashes(d, consistency_ranges(3, 7)) == [c, d3, g, l_]
    assert range_hashes(d, consistency_ranges(4, 7)) == [l_]
    assert range_hashes(d, consistency_ranges(6, 7)) == [i, j, k]


@pytest.mark.parametrize("size", SIZES)
def test_roots_and_proofs_are_those_of_thd3efinition(size: int) -> None:
    data = leaves(size)
    root = tree(data).root()
    assert root == slow_root(data)
    for index in range(size):
        proof = range_hashes(hashes(data), inclusion_ranges(index, size))
        assert proof == slow_path(index, data)
        assert root_from_inclusion(leaf_hash(data[index]), index, size, proof) == root
    for old in range(size + 1):
        proof = range_hashes(hashes(data), consistency_ranges(old, size))
        assert proof == ([] if old == 0 else slow_proof(old, data))
        assert is_consistent(old, slow_root(data[:old]), size, root, proof)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13])
def test_proofs_of_something_else_are_refused(size: int) -> None:
    data = leaves(size)
    root = tree(data).root()
    wrong = leaf_hash(b"other")
    for index in range(size):
        proof = range_hashes(hashes(data), inclusion_ranges(index, size))
        leaf = leaf_hash(data[index])
        assert root_from_inclusion(wrong, index, size, proof) != root
        for at in range(len(proof)):
            assert root_from_inclusion(leaf, index, size, [*proof[:at], wrong, *proof[at + 1 :]]) != root
        for other in range(-1, size + 2):
            if other != index:
                assert root_from_inclusion(leaf, other, size, proof) != root
        assert root_from_inclusion(leaf, index, size, [*proof, wrong]) is None
        assert root_from_inclusion(leaf, index, size, proof[1:]) is None or not proof
    for old in range(1, size):
        proof = range_hashes(hashes(data), consistency_ranges(old, size))
        old_root = slow_root(data[:old])
        assert not is_consistent(old, wrong, size, root, proof)
        assert not is_consistent(old, old_root, size, wrong, proof)
        assert not is_consistent(old, old_root, size, root, [*proof, wrong])
        assert not is_consistent(old, old_root, size, root, proof[:-1])
        for at in range(len(proof)):
            assert not is_consistent(old, old_root, size, root, [*proof[:at], wrong, *proof[at + 1 :]])
    assert not is_consistent(size + 1, root, size, root, [])
    assert not is_consistent(size, wrong, size, root, [])
    assert not is_consistent(0, wrong, size, root, [])


def test_a_frontier_has_one_node_a_complete_subtree() -> None:
    with pytest.raises(ValueError, match="2 complete subtrees"):
        Frontier(3, [bytes(32)])
    with pytest.raises(ValueError, match="complete subtrees"):
        Frontier(1, [b"short"])
    with pytest.raises(ValueError, match="no leaf 3"):
        inclusion_ranges(3, 3)
    with pytest.raises(ValueError, match="does not begin"):
        consistency_ranges(4, 3)


def test_a_copy_grows_on_its_own() -> None:
    first = tree(leaves(3))
    second = first.copy()
    second.add(leaf_hash(b"leaf 3"))
    assert (first.root(), second.root()) == (slow_root(leaves(3)), slow_root(leaves(4)))
