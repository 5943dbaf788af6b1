"""Merkle trees as in RFC 6962: roots, inclusion proofs and consistency proofs, from leaves that pass by once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

HASH_BYTES = 32
Range = tuple[int, int]


def leaf_hash(data: bytes) -> bytes:
    """The hash of a leaf; the prefix keeps leaves and inner nodes apart.

    >>> leaf_hash(b"").hex()
    '6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d'
    """
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of an inner node.

    >>> node_hash(leaf_hash(b""), leaf_hash(b"\\0")).hex()
    'fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125'
    """
    return hashlib.sha256(b"\x01" + left + right).digest()


class Frontier:
    """The roots of the complete subtrees of a tree, the largest first: all that is needed to add leaves.

    >>> tree = Frontier()
    >>> for data in (b"", b"\\0", b"\\x10"):
    ...     tree.add(leaf_hash(data))
    >>> tree.size, len(tree.nodes), tree.root().hex()
    (3, 2, 'aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77')
    """

    __slots__ = ("nodes", "size")

    def __init__(self, size: int = 0, nodes: Iterable[bytes] = ()) -> None:
        self.size, self.nodes = size, list(nodes)
        if len(self.nodes) != size.bit_count() or any(len(node) != HASH_BYTES for node in self.nodes):
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} complete subtrees, not {len(self.nodes)}")

    def add(self, leaf: bytes) -> None:
        """Adds the hash of one more leaf."""
        node, size = leaf, self.size
        while size & 1:  # two complete subtrees of one size become one
            node, size = node_hash(self.nodes.pop(), node), size >> 1
        self.nodes.append(node)
        self.size += 1

    def root(self) -> bytes:
        """The root of the tree as it is now."""
        if not self.nodes:
            return hashlib.sha256(b"").digest()
        node = self.nodes[-1]
        for left in reversed(self.nodes[:-1]):
            node = node_hash(left, node)
        return node

    def copy(self) -> Frontier:
        """One that grows on its own."""
        return Frontier(self.size, self.nodes)


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """The subtrees, as ranges of leaves, whose roots prove that a leaf is in a tree; its sibling comes first.

    >>> inclusion_ranges(3, 7)
    [(2, 3), (0, 2), (4, 7)]
    """
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    found: list[Range] = []
    low, high = 0, size
    while high - low > 1:
        middle = low + _split(high - low)
        if index < middle:
            found.append((middle, high))
            high = middle
        else:
            found.append((low, middle))
            low = middle
    return found[::-1]


def consistency_ranges(old: int, size: int) -> list[Range]:
    """The subtrees whose roots prove that a tree begins with the leaves of an older one.

    >>> consistency_ranges(3, 7), consistency_ranges(4, 7), consistency_ranges(7, 7), consistency_ranges(0, 7)
    ([(2, 3), (3, 4), (0, 2), (4, 7)], [(4, 7)], [], [])
    """
    if not 0 <= old <= size:
        raise ValueError(f"a tree of {size} leaves does not begin with {old}")
    found: list[Range] = []
    low, high = 0, size
    while 0 < old < high:
        middle = low + _split(high - low)
        if old <= middle:
            found.append((middle, high))
            high = middle
        else:
            found.append((low, middle))
            low = middle
    if low:  # else the old tree is a complete subtree, whose root the verifier has
        found.append((low, high))
    return found[::-1]


def range_hashes(leaves: Iterable[bytes], ranges: Sequence[Range]) -> list[bytes]:
    """The roots of subtrees that do not overlap, from the hashes of all leaves in order.

    >>> leaves = [leaf_hash(bytes([i])) for i in range(7)]
    >>> range_hashes(iter(leaves), [(2, 3), (0, 2)]) == [leaves[2], node_hash(leaves[0], leaves[1])]
    True
    """
    trees = {wanted: Frontier() for wanted in ranges}
    order, at = sorted(ranges), 0
    for index, leaf in enumerate(leaves):
        if at < len(order) and order[at][1] <= index:
            at += 1
        if at == len(order):
            break
        if order[at][0] <= index:
            trees[order[at]].add(leaf)
    return [trees[wanted].root() for wanted in ranges]


def root_from_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """The root that an inclusion proof leads to; None where it has not as many hashes as it must have.

    >>> a, b = leaf_hash(b"a"), leaf_hash(b"b")
    >>> root_from_inclusion(b, 1, 2, [a]) == node_hash(a, b), root_from_inclusion(b, 1, 2, [])
    (True, None)
    """
    if not 0 <= index < size or len(ranges := inclusion_ranges(index, size)) != len(proof):
        return None
    node = leaf
    for (start, _), sibling in zip(ranges, proof):
        node = node_hash(node, sibling) if start > index else node_hash(sibling, node)
    return node


def is_consistent(old: int, old_root: bytes, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether a proof shows that the tree of `size` leaves begins with those of the older tree.

    >>> a, b = leaf_hash(b"a"), leaf_hash(b"b")
    >>> is_consistent(1, a, 2, node_hash(a, b), [b]), is_consistent(1, b, 2, node_hash(a, b), [b])
    (True, False)
    """
    if not 0 <= old <= size or len(ranges := consistency_ranges(old, size)) != len(proof):
        return False
    if old == 0:
        return old_root == Frontier().root()
    if old == size:
        return old_root == root
    nodes = list(zip(ranges, proof))
    if not ranges or ranges[0][0] >= old:  # the old tree is complete: its root is the first node
        nodes.insert(0, ((0, old), old_root))
    (first, before), *others = nodes
    after = before
    for (start, _), node in others:
        if start < first[0]:
            before, after = node_hash(node, before), node_hash(node, after)
        else:
            after = node_hash(after, node)
    return before == old_root and after == root


def _split(leaves: int) -> int:
    """The largest power of two below a number of leaves: how many go to the left."""
    return 1 << (leaves - 1).bit_length() - 1
