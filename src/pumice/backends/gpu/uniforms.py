"""Sizes: the plan's uniform words and grid sizes, evaluated for the symbol values of a run and kept until they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pumice.backends.base import Array
from pumice.backends.gpu.memory import rounded
from pumice.core.dims import Dim, Expr, evaluate
from pumice.errors import SymbolError
from pumice.plan.plan import Step


class Sizes:
    """One slot per distinct tuple of uniforms; each distinct expression is evaluated once per change of the symbols.

    >>> from pumice.core.dims import sym
    >>> t = sym("T")
    >>> s = Sizes([Step("a", (), 0, (), 0, (t, 7), t), Step("b", (), 0, (), 0, (t, 7), t * 2)], {"T": 8}, 32)
    >>> s.bind({"T": 3}), s.bind({"T": 3}), s.slot(0) == s.slot(1), list(s.words[:2]), s.value(t * 2)
    (True, False, True, [np.uint32(3), np.uint32(7)], 6)
    """

    def __init__(self, steps: Sequence[Step], maxima: Mapping[str, int], alignment: int) -> None:
        self._maxima = maxima
        self._slots: list[tuple[int, int]] = []
        at: dict[tuple[Dim, ...], int] = {}
        end = 0
        for step in steps:
            if step.uniforms and step.uniforms not in at:
                at[step.uniforms] = rounded(end, alignment)
                end = at[step.uniforms] + rounded(4 * len(step.uniforms))
            self._slots.append((at.get(step.uniforms, 0), rounded(4 * len(step.uniforms))))
        self.nbytes = end
        self.words: Array = np.zeros(end // 4, np.uint32)
        self._symbolic: list[tuple[int, Expr]] = []
        exprs: dict[Expr, None] = {}
        for uniforms, start in at.items():
            for i, word in enumerate(uniforms, start // 4):
                if isinstance(word, Expr):
                    self._symbolic.append((i, word))
                    exprs[word] = None
                else:
                    self.words[i] = word % 2**32
        exprs.update((s.most_groups, None) for s in steps if isinstance(s.most_groups, Expr))
        self._exprs = tuple(exprs)
        self._values: dict[Expr, int] = {}
        self._env: dict[str, int] = {}
        self.bound = False

    def slot(self, step: int) -> tuple[int, int]:
        """Offset and size of a step's uniforms in the uniform buffer."""
        return self._slots[step]

    def value(self, d: Dim) -> int:
        """The value of a grid size for the bound symbols."""
        return self._values[d] if isinstance(d, Expr) else d

    def bind(self, env: Mapping[str, int]) -> bool:
        """Evaluate for `env`; False if nothing changed."""
        if self.bound and env == self._env:
            return False
        for symbol, value in env.items():
            limit = self._maxima.get(symbol, value)
            if not 0 <= value <= limit:
                raise SymbolError(f"{symbol} is {value}, the plan is made for 0 to {limit}", symbol=symbol, value=value)
        self.bound = False
        self._values = {e: evaluate(e, env) for e in self._exprs}
        for i, e in self._symbolic:
            self.words[i] = self._values[e] % 2**32
        self._env = dict(env)
        self.bound = True
        return True
