"""Plain text tables and numbers that fit in them."""

from __future__ import annotations

from collections.abc import Sequence

_PREFIXES = ("", "k", "M", "G", "T")


def quantity(value: float | None, unit: str) -> str:
    """A number with a prefix and three digits; a dash for None.

    >>> quantity(1536, "B"), quantity(0.00123, "s"), quantity(None, "B"), quantity(0, "s"), quantity(12, "B")
    ('1.54 kB', '1.23 ms', '-', '0 s', '12 B')
    """
    if value is None:
        return "-"
    if value == 0:
        return f"0 {unit}"
    scaled, prefix = value, ""
    if abs(value) < 1 and unit == "s":
        k = next((k for k in (1, 2) if abs(value) * 1000**k >= 1), 3)
        scaled, prefix = value * 1000**k, " mµn"[k]
    else:
        k = 0
        while abs(scaled) >= 1000 and k < len(_PREFIXES) - 1:
            scaled, k = scaled / 1000, k + 1
        prefix = _PREFIXES[k]
    text = f"{scaled:.0f}" if scaled >= 100 or (not prefix and scaled == int(scaled)) else f"{scaled:.3g}"
    return f"{text} {prefix}{unit}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Rows under a header, columns as wide as they need; those named in `left` are set to the left, the rest to the right.

    >>> print(table(["op", "time"], [["matmul", "2 ms"], ["add", "10 ms"]]))
    op       time
    matmul   2 ms
    add     10 ms
    """
    lines = [list(header), *[list(r) for r in rows]]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]

    def cell(text: str, k: int) -> str:
        return text.ljust(widths[k]) if k in left else text.rjust(widths[k])

    return "\n".join("  ".join(cell(t, k) for k, t in enumerate(line)).rstrip() for line in lines)
