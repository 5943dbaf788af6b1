"""top_k of many long rows: a workgroup a row finds the last element that is taken, digit by digit, then only those before it.

Elements are ordered by key and position, which is unique: the same are found whatever order threads count and collect them in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.kernels.builder import KernelBuilder
from pumice.kernels.routines.grouped import emit_scan

_BITS = 11
_BINS = 1 << _BITS
# Elements that a thread loads before it counts any of them: the loads are in flight together.
_AT_ONCE = 4
# Elements of a row that are worth several readings of it, and the most that are taken.
_LONG, MOST_SELECTED = 1 << 13, 512


def selects(caps: Caps, length: int, take: int, rows: int) -> bool:
    """Whether there is a workgroup for each row, and enough of them; sorting blocks of rows shares out fewer rows better.

    >>> caps = Caps.preset("h200")
    >>> selects(caps, 32768, 64, 512), selects(caps, 128000, 64, 1), selects(caps, 32768, 600, 512)
    (True, False, False)
    """
    return not caps.serial_threads and length >= _LONG and take <= MOST_SELECTED and 2 * rows >= caps.busy_groups


def select_threads(caps: Caps) -> int:
    """Threads of a row."""
    return caps.workgroup(512)


@dataclass(frozen=True, slots=True)
class Selection:
    """The first `take` of `length` elements, at most `most`; `key(at)` emits code that gives the key of the element `at`."""

    kb: KernelBuilder
    length: Dim
    most: int
    take: Dim
    key: Callable[[str], str]

    def emit(self, pairs: int) -> None:
        """Puts keys and positions of those taken, in any order, and padding behind them, into the shared arrays of `pairs`."""
        kb = self.kb
        kb.shared("counts", "atomic<u32>", _BINS)
        kb.shared("totals", "u32", kb.workgroup)
        # The digit of the last element that is taken, and how many of those with this digit are.
        kb.shared("chosen", "u32", 2)
        kb.emit(f"for (var e = lid; e < {pairs}u; e += {kb.workgroup}u) {{ keys[e] = 0xffffffffu; places[e] = 0xffffffffu; }}")
        kb.emit(f"var last_key = 0u;\nvar last_place = 0u;\nvar wanted = {kb.dim(self.take)};")
        for shift, bits in _digits(32):
            same = "" if shift + bits == 32 else f"(key >> {shift + bits}u) == (last_key >> {shift + bits}u)"
            self._find_digit("key", "last_key", shift, bits, same)
        for shift, bits in _digits(max(1, (self.most - 1).bit_length())):
            same = f"key == last_key && (at >> {shift + bits}u) == (last_place >> {shift + bits}u)"
            self._find_digit("at", "last_place", shift, bits, same)
        kb.emit("if (lid == 0u) { atomicStore(&counts[0], 0u); }\nworkgroupBarrier();")
        self._each("key < last_key || (key == last_key && at <= last_place)", self._collect(pairs))

    def _collect(self, pairs: int) -> str:
        return f"let slot = atomicAdd(&counts[0], 1u);\nif (slot < {pairs}u) {{ keys[slot] = key; places[slot] = at; }}"

    def _each(self, condition: str, what: str) -> None:
        """Code for every element of the row that fulfils a condition of its `key` and its position `at`."""
        kb, threads, length = self.kb, self.kb.workgroup, self.kb.dim(self.length)
        kb.open(f"for (var start = lid; start < {length}; start += {_AT_ONCE * threads}u)")
        loaded = []
        for q in range(_AT_ONCE):
            at = kb.let(f"start + {q * threads}u", "at")
            # Beyond the end the last one again, which does not count.
            loaded.append((at, kb.let(self.key(kb.let(f"min({at}, {length} - 1u)", "from")), "key")))
        for place, key in loaded:
            kb.open("")
            kb.emit(f"let at = {place};\nlet key = {key};")
            kb.open(f"if (at < {length}" + (f" && ({condition}))" if condition else ")"))
            kb.emit(what)
            kb.close()
            kb.close()
        kb.close()

    def _find_digit(self, source: str, known: str, shift: int, bits: int, same: str) -> None:
        """One more digit of the last element that is taken, from how often each occurs among those that agree so far."""
        kb, each = self.kb, -(-_BINS // self.kb.workgroup)
        kb.emit(f"for (var b = lid; b < {_BINS}u; b += {kb.workgroup}u) {{ atomicStore(&counts[b], 0u); }}\nworkgroupBarrier();")
        self._each(same, f"atomicAdd(&counts[({source} >> {shift}u) & {(1 << bits) - 1}u], 1u);")
        kb.emit("workgroupBarrier();")
        kb.open("")
        kb.emit(f"let first = min(lid * {each}u, {_BINS}u);\nlet end = min(first + {each}u, {_BINS}u);\nvar own = 0u;")
        kb.emit("for (var b = first; b < end; b++) { own += atomicLoad(&counts[b]); }\ntotals[lid] = own;")
        emit_scan(kb, "totals", lambda a, b: f"{a} + {b}")
        kb.emit("var before = totals[lid] - own;")
        kb.open("if (before < wanted && wanted <= before + own)")
        kb.open("for (var b = first; b < end; b++)")
        kb.emit("let here = atomicLoad(&counts[b]);")
        kb.emit(
            "if (before < wanted && wanted <= before + here) { chosen[0] = b; chosen[1] = wanted - before; }\nbefore += here;"
        )
        for _ in range(3):
            kb.close()
        kb.emit("workgroupBarrier();")
        kb.emit(f"{known} |= chosen[0] << {shift}u;\nwanted = chosen[1];")


def _digits(bits: int) -> list[tuple[int, int]]:
    """Where the digits of a number begin and their bits, the highest first.

    >>> _digits(32), _digits(15)
    ([(21, 11), (10, 11), (0, 10)], [(4, 11), (0, 4)])
    """
    out = []
    while bits > 0:
        size = min(_BITS, bits)
        bits -= size
        out.append((bits, size))
    return out
