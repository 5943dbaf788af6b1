"""Domain: the values that symbols may take: each from 0 to its maximum, and dims over several of them up to bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pumice.core.dims import Dim, Expr, Monomial, bounds, divide_exactly, upper

# A dim and the most that it may be.
Limit = tuple[Expr, int]


class Domain:
    """Maxima of symbols, narrowed by bounds on dims.

    >>> from pumice.core.dims import sym
    >>> b, t = sym("B"), sym("T")
    >>> few = Domain({"B": 32, "T": 512}, [(b * t, 64)])
    >>> few.upper(3 * b * t + 1), few.upper(t), Domain({"B": 32}, [(b, 4)]).upper(b * b)
    (193, 512, 16)
    """

    def __init__(self, maxima: Mapping[str, int], limits: Sequence[Limit] = ()) -> None:
        own = dict(maxima)
        products: list[Limit] = []
        for d, most in limits:
            symbol = _symbol(d)
            if symbol is None:
                products.append((d, most))
            else:
                own[symbol] = min(own[symbol], most)
        # A product that is bounded says nothing about its factors: the others may be 0.
        self.maxima: Mapping[str, int] = own
        self.limits = tuple(limits)
        self._products = products
        self._uppers: dict[Expr, int] = {}

    def narrowed(self, d: Expr, most: int) -> Domain:
        """This domain with one more bound."""
        return Domain(self.maxima, [*self.limits, (d, most)])

    def upper(self, d: Dim) -> int:
        """The greatest value of a dim, never below 0 (sound, perhaps not tight)."""
        if isinstance(d, int):
            return max(0, d)
        found = self._uppers.get(d)
        if found is None:
            found = self._uppers[d] = self._upper(d)
        return found

    def _upper(self, d: Expr) -> int:
        if not self._products:
            return upper(d, self.maxima)
        total = 0
        for mono, coef in d.terms:
            term = Expr(((mono, coef),)) if mono else coef
            total += self._term(term) if coef > 0 else bounds(term, self.maxima)[1]
        return max(0, min([total, *(most for limited, most in self._products if limited == d)]))

    def _term(self, term: Dim) -> int:
        found = bounds(term, self.maxima)[1]
        for d, most in self._products:
            rest = divide_exactly(term, d)
            if rest is not None:
                found = min(found, most * upper(rest, self.maxima))
        return found


def _symbol(d: Expr) -> str | None:
    """The symbol that a dim is, if it is nothing but one."""
    if len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1:
        atom, power = d.terms[0][0][0]
        return atom if isinstance(atom, str) and power == 1 else None
    return None


def _divided(mono: Monomial) -> tuple[Dim, int] | None:
    """The dim and the number that it is divided by, if a term is nothing but such a quotient."""
    atom, power = mono[0]
    if len(mono) > 1 or power > 1 or isinstance(atom, str) or atom[0] != "floordiv":
        return None
    return (atom[1], atom[2]) if isinstance(atom[2], int) and atom[2] > 0 else None


def normal_limit(d: Dim, most: int) -> Limit | None:
    """`d` ≤ `most` as a bound on a plainer dim, so that equal conditions look alike; None where `d` has no symbols.

    >>> from pumice.core.dims import ceildiv, sym
    >>> t = sym("T")
    >>> normal_limit(4 * t + 3, 40), normal_limit(ceildiv(t, 64), 2)
    ((Expr('T'), 9), (Expr('T'), 128))
    """
    while isinstance(d, Expr):
        constant = next((coef for mono, coef in d.terms if not mono), 0)
        if constant:
            d, most = d - constant, most - constant
            continue
        if len(d.terms) == 1:
            (mono, coef) = d.terms[0]
            if coef > 1:
                d, most = Expr(((mono, 1),)), most // coef
                continue
            divided = _divided(mono) if coef == 1 else None
            if divided is not None:
                d, most = divided[0], divided[1] * (most + 1) - 1
                continue
        return d, most
    return None
