"""Bounds of a kernel's WGSL, checked before any compiler sees it.

A shader compiler is native code that recurses over what it reads and expands arrays element by element: a few lines of WGSL can
overflow its stack or take all memory. This reads the declarations of a kernel as WGSL's grammar has them and holds them to the
limits of the WGSL specification (section "Limits"), or to narrower ones that generated kernels stay far below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from pumice.core.caps import Caps
from pumice.errors import PlanError
from pumice.plan.plan import Kernel
from pumice.plan.wgsl_outline import is_plain, outline
from pumice.plan.wgsl_tokens import (
    MAX_BRANCHES,
    MAX_CASES,
    MAX_DECLARATIONS,
    MAX_DEPTH,
    MAX_STATEMENT,
    Refused,
    SeenText,
    read_tokens,
    without_comments,
)

MAX_TYPE_DEPTH = 15
MAX_UNARY = 16
# Bytes of function variables of a function, of private variables of a kernel, and of any other value of fixed size.
MAX_FUNCTION_BYTES = 8192
MAX_PRIVATE_BYTES = 8192
MAX_VALUE_BYTES = 1 << 16
# Tokens of a function once all calls in it are inlined, as drivers do.
MAX_INLINED = 1 << 20

_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
_STRUCTURE = {*_OPEN, *_CLOSE, ";"}
_PREFIX = {"-", "!", "~", "&", "*", "&&"}
_SCALARS = {"f32": 4, "i32": 4, "u32": 4, "bool": 4, "f16": 2, "f": 4, "i": 4, "u": 4, "h": 2}
_VECTOR = re.compile(r"vec([234])([fiuh]?)")
_MATRIX = re.compile(r"mat([234])x([234])([fh]?)")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]{1,8}|0|[1-9][0-9]{0,9})[iu]?")
# What starts a declaration of a kernel; WGSL's `override` is for pipelines that set it, which plans do not.
_READERS = {"const": "constant", "alias": "alias", "struct": "struct", "var": "variable", "fn": "function"}
_SKIPPED = {"enable", "requires", "diagnostic", "const_assert"}


def check_kernels(kernels: Iterable[Kernel], caps: Caps) -> None:
    """Refuses kernels that a compiler should not see, or that differ from their declaration, with a PlanError."""
    seen = SeenText()
    for kernel in kernels:
        _check(kernel, caps, seen)


def check_kernel(kernel: Kernel, caps: Caps) -> None:
    """The same for one kernel.

    >>> check_kernel(Kernel("k", "fn main() { var a: array<u32, 2000000>; }", (), 0, 1), Caps.preset("browser-baseline"))
    Traceback (most recent call last):
        ...
    pumice.errors.PlanError: [plan] the kernel k: an array of 8000000 bytes, more than 65536
      hint: kernels of a plan file stay within the limits of WGSL; save the plan again from its graph
    """
    _check(kernel, caps, SeenText())


def _check(kernel: Kernel, caps: Caps, seen: SeenText) -> None:
    if _outline_is_right(kernel, caps, seen):
        return
    try:
        text = without_comments(kernel.wgsl)
        module = _WgslModule(text, read_tokens(text, seen.lines), caps)
        seen.add(module.tokens, module.words)
        module.check_text()
        module.check()
        module.check_declared(kernel, seen)
    except Refused as e:
        raise PlanError(
            f"the kernel {kernel.name}: {e}",
            hint="kernels of a plan file stay within the limits of WGSL; save the plan again from its graph",
            rule="wgsl",
            kernel=kernel.name,
        ) from None


def _outline_is_right(kernel: Kernel, caps: Caps, seen: SeenText) -> bool:
    """Whether the outline of a kernel is enough to see that it is within all bounds."""
    found = outline(kernel.wgsl, subgroups="subgroups" in kernel.features)
    if found is None:
        return False
    try:
        module = _WgslModule(found.text, read_tokens(found.text, seen.lines), caps, found.sizes)
        seen.add(module.tokens, module.words)
        module.check()
        module.check_declared(kernel, seen)
    except Refused:
        return False
    return True


@dataclass
class _Function:
    body: tuple[int, int]
    returned: int  # bytes
    size: int  # tokens, at most
    calls: dict[str, int] = field(default_factory=dict)


class _WgslModule:
    """The declarations of a kernel; `sizes` are those of functions whose bodies are not whole."""

    def __init__(self, text: str, tokens: list[str], caps: Caps, sizes: Mapping[str, int] | None = None) -> None:
        self.text, self.tokens, self.caps, self.at = text, tokens, caps, 0
        self.body_sizes = sizes or {}
        self.words = set(tokens)
        self.closed: dict[int, int] = {}  # by the position of a bracket: where it is closed
        self.declared: list[tuple[str, int]] = []
        self.sizes: dict[str, int] = {}  # of structs and aliases
        self.constants: dict[str, int] = {}
        self.functions: dict[str, _Function] = {}
        self.used = {"private": 0, "workgroup": 0}
        self.workgroup: list[str] = []  # the arguments of the attribute workgroup_size

    # -- reading ----------------------------------------------------------------------------------------------------
    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token != wanted):
            raise Refused(f"{wanted or 'more'} is expected at token {self.at}, not {token or 'the end'}")
        self.at += 1
        return token

    def skip_to(self, *ends: str) -> None:
        """Past everything before one of `ends` outside of brackets; the end stays."""
        while (token := self.peek()) not in ends:
            if token in _OPEN:
                self.at = self.closing(self.at)
            self.take()

    def closing(self, start: int) -> int:
        """Where the bracket at a position is closed; they all are, in order."""
        found = self.closed.get(start)
        if found is None:
            tokens, opening, found, depth = self.tokens, self.tokens[start], start, 1
            while depth:
                before, found = found, tokens.index(_OPEN[opening], found + 1)
                depth += tokens[before + 1 : found].count(opening) - 1
            self.closed[start] = found
        return found

    def positions(self, word: str, start: int, end: int) -> list[int]:
        """Where a word is, from start and before end."""
        found: list[int] = []
        with suppress(ValueError):
            while word in self.words:
                start = self.tokens.index(word, start, end) + 1
                found.append(start - 1)
        return found

    # -- rules of the text ------------------------------------------------------------------------------------------
    def check(self) -> None:
        """Checks the declarations; of the text and its words `check_text` does."""
        self.find_declarations()
        # Names may be used before they are declared, so types are read until their sizes no longer change.
        self.read("const")
        for _ in range(MAX_TYPE_DEPTH + 2):
            before = dict(self.sizes)
            self.read("alias", "struct")
            if self.sizes == before:
                break
        else:
            raise Refused(f"types nest deeper than {MAX_TYPE_DEPTH}, or in a circle")
        for at in self.positions("array", 0, len(self.tokens)):
            self.at = at
            if self.peek(1) == "<":
                self.type()
        self.read("var", "fn")
        for f in self.functions.values():
            self.check_body(f)
        self.check_calls()
        limits = {"private": MAX_PRIVATE_BYTES, "workgroup": self.caps.workgroup_memory}
        for space, used in self.used.items():
            if used > limits[space]:
                raise Refused(f"{used} bytes of {space} variables, more than {limits[space]}")

    def check_declared(self, kernel: Kernel, seen: SeenText) -> None:
        """Checks what the plan declares of a kernel: devices are chosen by it."""
        if [t.rstrip("u") for t in self.workgroup] != [str(kernel.workgroup)]:
            raise Refused(f"its workgroup size is ({' '.join(self.workgroup)[:40]}), not the plan's {kernel.workgroup}")
        if self.used["workgroup"] != kernel.shared_bytes:
            raise Refused(f"{self.used['workgroup']} bytes of workgroup variables, the plan says {kernel.shared_bytes}")
        if "enable" in self.words:
            raise Refused("it enables features itself, which is up to a runtime")
        if "subgroups" not in kernel.features and not seen.subgroups.isdisjoint(self.words):
            raise Refused("it uses subgroups, which are not among its features")
        if "f16" not in kernel.features and not seen.f16_words.isdisjoint(self.words):
            raise Refused("it uses f16, which is not among its features")

    def check_text(self) -> None:
        if not is_plain(self.text):
            self.check_structure()
        cases, branches = (self.tokens.count(word) if word in self.words else 0 for word in ("case", "else"))
        if cases > MAX_CASES or branches > MAX_BRANCHES:
            raise Refused(f"{cases} cases and {branches} branches, more than {MAX_CASES} and {MAX_BRANCHES}")
        if "override" in self.words:
            raise Refused("it has an override, which nothing sets")

    def check_structure(self) -> None:
        tokens = self.tokens
        opened: list[int] = []
        start = 0
        for at in [at for at, token in enumerate(tokens) if token in _STRUCTURE]:
            token = tokens[at]
            if token in _OPEN:
                opened.append(at)
                if len(opened) > MAX_DEPTH:
                    raise Refused(f"brackets nest deeper than {MAX_DEPTH}")
            elif token in _CLOSE:
                if not opened or _OPEN[tokens[opened[-1]]] != token:
                    raise Refused(f"{token} closes nothing")
                opened.pop()
            if token in (";", "{", "}"):
                self.check_statement(at - start)
                start = at + 1
        self.check_statement(len(tokens) - start)
        if opened:
            raise Refused(f"{_OPEN[tokens[opened[-1]]]} is missing at the end")
        prefixes = [at for at, token in enumerate(tokens) if token in _PREFIX]
        if any(later - at == MAX_UNARY for at, later in zip(prefixes, prefixes[MAX_UNARY:])):
            raise Refused(f"more than {MAX_UNARY} operators in a row")

    def check_statement(self, tokens: int) -> None:
        if tokens > MAX_STATEMENT:
            raise Refused(f"a statement of more than {MAX_STATEMENT} tokens")

    # -- declarations -----------------------------------------------------------------------------------------------
    def find_declarations(self) -> None:
        """The kinds of all declarations, and the positions after those."""
        count = 0
        while self.at < len(self.tokens):
            count += 1
            if count > MAX_DECLARATIONS:
                raise Refused(f"more than {MAX_DECLARATIONS} declarations")
            self.attributes()
            kind = self.take()
            if kind == ";":
                continue
            if kind not in _READERS and kind not in _SKIPPED:
                raise Refused(f"{kind[:40]} starts no declaration")
            self.declared.append((kind, self.at))
            if kind in ("struct", "fn"):
                self.skip_to("{")
                self.block()
            else:
                self.skip_to(";")
                self.take(";")

    def read(self, *kinds: str) -> None:
        """Reads the declarations of some kinds."""
        for kind, at in self.declared:
            if kind in kinds:
                self.at = at
                getattr(self, _READERS[kind])()

    def attributes(self) -> None:
        while self.peek() == "@":
            name, first = self.peek(1), self.at + 3
            self.at += 2
            if self.peek() == "(":
                self.take("(")
                self.skip_to(")")
                if name == "workgroup_size":
                    self.workgroup = self.tokens[first : self.at]
                self.take(")")

    def block(self) -> tuple[int, int]:
        start = self.at
        self.take("{")
        self.at = self.closing(start)
        self.take("}")
        return start + 1, self.at - 1

    def constant(self) -> None:
        name = self.take()
        self.skip_to("=", ";")
        if self.peek() == "=" and self.peek(2) == ";" and (found := _INTEGER.fullmatch(self.peek(1))):
            self.constants[name] = int(found[1], 0)
        self.skip_to(";")
        self.take(";")

    def alias(self) -> None:
        name = self.take()
        self.take("=")
        self.sizes[name] = self.type()
        self.take(";")

    def struct(self) -> None:
        name = self.take()
        self.take("{")
        total = 0
        while self.peek() != "}":
            self.attributes()
            self.take()
            self.take(":")
            total += -(-self.type() // 16) * 16
            if self.peek() == ",":
                self.take()
        self.take("}")
        self.sizes[name] = self.bounded(total, "a struct")

    def variable(self) -> None:
        space = ""
        if self.peek() == "<":
            self.take("<")
            space = self.take()
            while self.take() != ">":
                pass
        self.take()  # its name
        if self.peek() == ":":
            self.take()
            size = self.type()
        else:
            size = MAX_VALUE_BYTES
        if space in self.used:
            self.used[space] += -(-size // 16) * 16
        self.skip_to(";")
        self.take(";")

    def function(self) -> None:
        name = self.take()
        self.take("(")
        self.skip_to(")")
        self.take(")")
        returned = 0
        if self.peek() == "->":
            self.take()
            self.attributes()
            returned = self.type()
        body = self.block()
        self.functions[name] = _Function(body, returned, self.body_sizes.get(name, body[1] - body[0]))

    # -- types ------------------------------------------------------------------------------------------------------
    def type(self, depth: int = 0) -> int:
        """Bytes of the type that starts here, about as WGSL lays it out; 0 for an array whose length the buffer gives."""
        if depth > MAX_TYPE_DEPTH:
            raise Refused(f"types nest deeper than {MAX_TYPE_DEPTH}")
        name = self.take()
        if self.peek() != "<":
            return self.named(name, 4)
        self.take("<")
        if name == "array":
            size = self.array(depth)
        elif name == "ptr":
            while self.take() != ",":
                pass
            self.type(depth + 1)
            size = 8
            while self.peek() == ",":
                self.take()
                self.take()
        else:
            size = self.named(name, self.type(depth + 1))
        self.take(">")
        return size

    def array(self, depth: int) -> int:
        element = self.type(depth + 1)
        if self.peek() != ",":
            return 0
        self.take(",")
        size = self.bounded(-(-element // 4) * 4 * self.count(), "an array")
        if self.peek() == ",":
            self.take()
        return size

    def count(self) -> int:
        token = self.take()
        found = _INTEGER.fullmatch(token)
        if found is None and token not in self.constants:
            raise Refused("the length of an array is neither a number nor the name of one")
        if self.peek() not in (">", ","):
            raise Refused("the length of an array is an expression")
        return int(found[1], 0) if found else self.constants[token]

    def named(self, name: str, item: int) -> int:
        if name in _SCALARS:
            return _SCALARS[name]
        if found := _VECTOR.fullmatch(name):
            return (int(found[1]) + (found[1] == "3")) * (_SCALARS[found[2]] if found[2] else item)
        if found := _MATRIX.fullmatch(name):
            return int(found[1]) * (int(found[2]) + (found[2] == "3")) * (_SCALARS[found[3]] if found[3] else item)
        return self.sizes.get(name, item)  # an atomic, or something that the compiler refuses

    def bounded(self, size: int, what: str) -> int:
        if size > MAX_VALUE_BYTES:
            raise Refused(f"{what} of {size} bytes, more than {MAX_VALUE_BYTES}")
        return size

    # -- functions --------------------------------------------------------------------------------------------------
    def check_body(self, function: _Function) -> None:
        """Bytes of the variables of a function, and which functions it calls how often."""
        total = 0
        self.at, end = function.body
        for at in sorted(at for word in ("var", "const", *self.functions) for at in self.positions(word, self.at, end)):
            if at < self.at:
                continue  # inside of a type
            self.at = at
            token = self.take()
            if token == "var":
                total += self.local()
            elif token == "const" and self.peek() in self.constants:
                raise Refused("a constant of a function has the name of one of the kernel")
            elif token in self.functions and self.peek() == "(":
                function.calls[token] = function.calls.get(token, 0) + 1
        if total > MAX_FUNCTION_BYTES:
            raise Refused(f"{total} bytes of function variables, more than {MAX_FUNCTION_BYTES}")

    def local(self) -> int:
        """Bytes of a variable in a function; the position moves past its type, not past its value."""
        if self.peek() == "<":
            while self.take() != ">":
                pass
        self.take()
        if self.peek() == ":":
            self.take()
            return max(4, self.type())
        if self.peek() != "=":
            return 0
        first = self.peek(1)
        if first in self.functions:
            return self.functions[first].returned
        if first.startswith("mat"):
            return 64
        if first == "array" or first in self.sizes:
            before = self.at
            self.take("=")
            size = self.type() if self.peek(1) == "<" else self.sizes.get(first, MAX_VALUE_BYTES)
            self.at = before
            return size
        return 16

    def check_calls(self) -> None:
        inlined: dict[str, int] = {}

        def size(name: str, above: frozenset[str]) -> int:
            if name in above:
                raise Refused(f"the function {name[:40]} calls itself")
            if len(above) > MAX_DEPTH:
                raise Refused(f"calls nest deeper than {MAX_DEPTH}")
            if name not in inlined:
                function = self.functions[name]
                total = function.size
                total += sum(n * size(called, above | {name}) for called, n in function.calls.items())
                if total > MAX_INLINED:
                    raise Refused(f"the function {name[:40]} has more than {MAX_INLINED} tokens once its calls are inlined")
                inlined[name] = total
            return inlined[name]

        for name in self.functions:
            size(name, frozenset())
