"""The `__init__` of frozen dataclasses with so many fields, written out: to have Python compile it takes half a millisecond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def initialisers(store: Callable[[Any, str, Any], None]) -> tuple[Callable[..., None], ...]:
    """What stores one field, two fields, and so on, by `store`; records.py puts the names of a class in place of p0, p1, ….

    >>> found = {}
    >>> initialisers(lambda self, name, value: found.update({name: value}))[1](None, 5, 7)
    >>> found
    {'p0': 5, 'p1': 7}
    """

    def init_1(self: Any, p0: Any) -> None:
        store(self, "p0", p0)

    def init_2(self: Any, p0: Any, p1: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)

    def init_3(self: Any, p0: Any, p1: Any, p2: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)

    def init_4(self: Any, p0: Any, p1: Any, p2: Any, p3: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)

    def init_5(self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)

    def init_6(self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any, p5: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)

    def init_7(self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)
        store(self, "p6", p6)

    def init_8(self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)
        store(self, "p6", p6)
        store(self, "p7", p7)

    def init_9(self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any, p8: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)
        store(self, "p6", p6)
        store(self, "p7", p7)
        store(self, "p8", p8)

    def init_10(self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any, p8: Any, p9: Any) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)
        store(self, "p6", p6)
        store(self, "p7", p7)
        store(self, "p8", p8)
        store(self, "p9", p9)

    def init_11(
        self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any, p8: Any, p9: Any, p10: Any
    ) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)
        store(self, "p6", p6)
        store(self, "p7", p7)
        store(self, "p8", p8)
        store(self, "p9", p9)
        store(self, "p10", p10)

    def init_12(
        self: Any, p0: Any, p1: Any, p2: Any, p3: Any, p4: Any, p5: Any, p6: Any, p7: Any, p8: Any, p9: Any, p10: Any, p11: Any
    ) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)
        store(self, "p6", p6)
        store(self, "p7", p7)
        store(self, "p8", p8)
        store(self, "p9", p9)
        store(self, "p10", p10)
        store(self, "p11", p11)

    def init_13(
        self: Any,
        p0: Any,
        p1: Any,
        p2: Any,
        p3: Any,
        p4: Any,
        p5: Any,
        p6: Any,
        p7: Any,
        p8: Any,
        p9: Any,
        p10: Any,
        p11: Any,
        p12: Any,
    ) -> None:
        store(self, "p0", p0)
        store(self, "p1", p1)
        store(self, "p2", p2)
        store(self, "p3", p3)
        store(self, "p4", p4)
        store(self, "p5", p5)
        store(self, "p6", p6)
        store(self, "p7", p7)
        store(self, "p8", p8)
        store(self, "p9", p9)
        store(self, "p10", p10)
        store(self, "p11", p11)
        store(self, "p12", p12)

    return (init_1, init_2, init_3, init_4, init_5, init_6, init_7, init_8, init_9, init_10, init_11, init_12, init_13)
