"""Bounds of a kernel's WGSL, checked before any compiler sees it.

A shader compiler is native code that recurses over what it reads and expands arrays element by element: a few lines of WGSL can
overflow its stack or take all memory. This reads the declarations of a kernel as WGSL's grammar has them and holds them to the
limits of the WGSL specification (section "Limits"), or to narrower ones that generated kernels stay far below.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pumice.core.caps import Caps
from pumice.errors import PlanError
from pumice.plan.plan import Kernel

MAX_TEXT = 1 << 18
MAX_TOKENS = 1 << 16
MAX_WORD = 255
MAX_DECLARATIONS = 1024
# Brackets of all kinds; WGSL allows 127 levels of braces.
MAX_DEPTH = 96
MAX_TYPE_DEPTH = 15
# Operators and operands between two semicolons or braces: compilers recurse over them.
MAX_STATEMENT = 4096
MAX_UNARY = 16
MAX_BRANCHES = 512
MAX_CASES = 1023
# Bytes of function variables of a function, of private variables of a kernel, and of any other value of fixed size.
MAX_FUNCTION_BYTES = 8192
MAX_PRIVATE_BYTES = 8192
MAX_VALUE_BYTES = 1 << 16
# Tokens of a function once all calls in it are inlined, as drivers do.
MAX_INLINED = 1 << 20

# A word, a number, an operator or bracket, or what is no WGSL.
_TOKEN = re.compile(r"[^\W\d]\w*|\.?\d(?:[eEpP][+-]|[\w.])*|->|&&|\|\||[-+*/%&|^=!<]=|[][(){}<>;:,.@=+\-*/%&|^!~]|\S")
# The rest of a line, which ends at each of Unicode's line breaks, or the start of a block.
_COMMENT = re.compile(r"//[^\n\v\f\r\x85\u2028\u2029]*|/\*")
_FOREIGN = re.compile(r"[^]\w\s[(){}<>;:,.@=+\-*/%&|^!~]")
_BLOCK = re.compile(r"/\*|\*/")
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
_STRUCTURE = {*_OPEN, *_CLOSE, ";"}
_PREFIX = {"-", "!", "~", "&", "*", "&&"}
_SCALARS = {"f32": 4, "i32": 4, "u32": 4, "bool": 4, "f16": 2, "f": 4, "i": 4, "u": 4, "h": 2}
_VECTOR = re.compile(r"vec([234])([fiuh]?)")
_MATRIX = re.compile(r"mat([234])x([234])([fh]?)")
# Names of types of f16, and numbers of it.
_HALF = re.compile(r"vec[234]h|mat[234]x[234]h|\.?\d[\w.]*h")
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]{1,8}|0|[1-9][0-9]{0,9})[iu]?")
# What starts a declaration of a kernel; WGSL's `override` is for pipelines that set it, which plans do not.
_READERS = {"const": "constant", "alias": "alias", "struct": "struct", "var": "variable", "fn": "function"}
_SKIPPED = {"enable", "requires", "diagnostic", "const_assert"}


def check_kernel(kernel: Kernel, caps: Caps) -> None:
    """Refuses a kernel that a compiler should not see, or that differs from its declaration, with a PlanError.

    >>> check_kernel(Kernel("k", "fn main() { var a: array<u32, 2000000>; }", (), 0, 1), Caps.preset("browser-baseline"))
    Traceback (most recent call last):
        ...
    pumice.errors.PlanError: [plan] the kernel k: an array of 8000000 bytes, more than 65536
      hint: kernels of a plan file stay within the limits of WGSL; save the plan again from its graph
    """
    try:
        module = _WgslModule(_tokens(kernel.wgsl), caps)
        module.check()
        module.check_declared(kernel)
    except _Refused as e:
        raise PlanError(
            f"the kernel {kernel.name}: {e}",
            hint="kernels of a plan file stay within the limits of WGSL; save the plan again from its graph",
            rule="wgsl",
            kernel=kernel.name,
        ) from None


class _Refused(Exception):
    """What is wrong with a kernel."""


def _tokens(text: str) -> list[str]:
    if len(text) > MAX_TEXT:
        raise _Refused(f"{len(text)} characters, more than {MAX_TEXT}")
    found = _TOKEN.findall(_without_comments(text))
    if len(found) > MAX_TOKENS:
        raise _Refused(f"more than {MAX_TOKENS} tokens")
    for token in dict.fromkeys(found):
        if _FOREIGN.match(token):
            raise _Refused(f"the character U+{ord(token):04X} is not WGSL")
        if len(token) > MAX_WORD:
            raise _Refused(f"a word of {len(token)} characters, more than {MAX_WORD}")
    return found


def _without_comments(text: str) -> str:
    """The text with a space in the place of each comment."""
    kept: list[str] = []
    at = 0
    while (start := _COMMENT.search(text, at)) is not None:
        kept += [text[at : start.start()], " "]
        at = _after_comment(text, start.end()) if start[0] == "/*" else start.end()
    return "".join([*kept, text[at:]])


def _after_comment(text: str, at: int) -> int:
    """Where a block comment ends; they nest."""
    depth = 1
    while depth:
        match = _BLOCK.search(text, at)
        if match is None:
            raise _Refused("a comment does not end")
        depth += 1 if match[0] == "/*" else -1
        if depth > MAX_DEPTH:
            raise _Refused(f"comments nest deeper than {MAX_DEPTH}")
        at = match.end()
    return at


@dataclass
class _Function:
    body: tuple[int, int]
    returned: int  # bytes
    calls: dict[str, int] = field(default_factory=dict)


class _WgslModule:
    """The declarations of a kernel."""

    def __init__(self, tokens: list[str], caps: Caps) -> None:
        self.tokens, self.caps, self.at = tokens, caps, 0
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
            raise _Refused(f"{wanted or 'more'} is expected at token {self.at}, not {token or 'the end'}")
        self.at += 1
        return token

    def skip_to(self, *ends: str) -> None:
        """Past everything before one of `ends` outside of brackets; the end stays."""
        while self.peek() not in ends:
            self.at = self.closed.get(self.at, self.at)
            self.take()

    # -- rules of the text ------------------------------------------------------------------------------------------
    def check(self) -> None:
        self.check_text()
        self.find_declarations()
        # Names may be used before they are declared, so types are read until their sizes no longer change.
        self.read("const")
        for _ in range(MAX_TYPE_DEPTH + 2):
            before = dict(self.sizes)
            self.read("alias", "struct")
            if self.sizes == before:
                break
        else:
            raise _Refused(f"types nest deeper than {MAX_TYPE_DEPTH}, or in a circle")
        for at in [at for at, token in enumerate(self.tokens) if token == "array"]:
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
                raise _Refused(f"{used} bytes of {space} variables, more than {limits[space]}")

    def check_declared(self, kernel: Kernel) -> None:
        """Checks what the plan declares of a kernel: devices are chosen by it."""
        if [t.rstrip("u") for t in self.workgroup] != [str(kernel.workgroup)]:
            raise _Refused(f"its workgroup size is ({' '.join(self.workgroup)[:40]}), not the plan's {kernel.workgroup}")
        if self.used["workgroup"] != kernel.shared_bytes:
            raise _Refused(f"{self.used['workgroup']} bytes of workgroup variables, the plan says {kernel.shared_bytes}")
        if "enable" in self.tokens:
            raise _Refused("it enables features itself, which is up to a runtime")
        words = set(self.tokens)
        if "subgroups" not in kernel.features and any(t.startswith("subgroup") for t in words):
            raise _Refused("it uses subgroups, which are not among its features")
        if "f16" not in kernel.features and any(t == "f16" or _HALF.fullmatch(t) for t in words):
            raise _Refused("it uses f16, which is not among its features")

    def check_text(self) -> None:
        tokens = self.tokens
        opened: list[int] = []
        start = 0
        for at in [at for at, token in enumerate(tokens) if token in _STRUCTURE]:
            token = tokens[at]
            if token in _OPEN:
                opened.append(at)
                if len(opened) > MAX_DEPTH:
                    raise _Refused(f"brackets nest deeper than {MAX_DEPTH}")
            elif token in _CLOSE:
                if not opened or _OPEN[tokens[opened[-1]]] != token:
                    raise _Refused(f"{token} closes nothing")
                self.closed[opened.pop()] = at
            if token in (";", "{", "}"):
                self.check_statement(at - start)
                start = at + 1
        self.check_statement(len(tokens) - start)
        if opened:
            raise _Refused(f"{_OPEN[tokens[opened[-1]]]} is missing at the end")
        prefixes = [at for at, token in enumerate(tokens) if token in _PREFIX]
        if any(later - at == MAX_UNARY for at, later in zip(prefixes, prefixes[MAX_UNARY:])):
            raise _Refused(f"more than {MAX_UNARY} operators in a row")
        cases, branches = tokens.count("case"), tokens.count("else")
        if cases > MAX_CASES or branches > MAX_BRANCHES:
            raise _Refused(f"{cases} cases and {branches} branches, more than {MAX_CASES} and {MAX_BRANCHES}")
        if "override" in self.tokens:
            raise _Refused("it has an override, which nothing sets")

    def check_statement(self, tokens: int) -> None:
        if tokens > MAX_STATEMENT:
            raise _Refused(f"a statement of more than {MAX_STATEMENT} tokens")

    # -- declarations -----------------------------------------------------------------------------------------------
    def find_declarations(self) -> None:
        """The kinds of all declarations, and the positions after those."""
        count = 0
        while self.at < len(self.tokens):
            count += 1
            if count > MAX_DECLARATIONS:
                raise _Refused(f"more than {MAX_DECLARATIONS} declarations")
            self.attributes()
            kind = self.take()
            if kind == ";":
                continue
            if kind not in _READERS and kind not in _SKIPPED:
                raise _Refused(f"{kind[:40]} starts no declaration")
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
        self.at = self.closed[start]
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
        self.functions[name] = _Function(self.block(), returned)

    # -- types ------------------------------------------------------------------------------------------------------
    def type(self, depth: int = 0) -> int:
        """Bytes of the type that starts here, about as WGSL lays it out; 0 for an array whose length the buffer gives."""
        if depth > MAX_TYPE_DEPTH:
            raise _Refused(f"types nest deeper than {MAX_TYPE_DEPTH}")
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
            raise _Refused("the length of an array is neither a number nor the name of one")
        if self.peek() not in (">", ","):
            raise _Refused("the length of an array is an expression")
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
            raise _Refused(f"{what} of {size} bytes, more than {MAX_VALUE_BYTES}")
        return size

    # -- functions --------------------------------------------------------------------------------------------------
    def check_body(self, function: _Function) -> None:
        """Bytes of the variables of a function, and which functions it calls how often."""
        total = 0
        self.at, end = function.body
        wanted = {"var", "const", *self.functions}
        for at in [at for at in range(self.at, end) if self.tokens[at] in wanted]:
            if at < self.at:
                continue  # inside of a type
            self.at = at
            token = self.take()
            if token == "var":
                total += self.local()
            elif token == "const" and self.peek() in self.constants:
                raise _Refused("a constant of a function has the name of one of the kernel")
            elif token in self.functions and self.peek() == "(":
                function.calls[token] = function.calls.get(token, 0) + 1
        if total > MAX_FUNCTION_BYTES:
            raise _Refused(f"{total} bytes of function variables, more than {MAX_FUNCTION_BYTES}")

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
                raise _Refused(f"the function {name[:40]} calls itself")
            if len(above) > MAX_DEPTH:
                raise _Refused(f"calls nest deeper than {MAX_DEPTH}")
            if name not in inlined:
                function = self.functions[name]
                total = function.body[1] - function.body[0]
                total += sum(n * size(called, above | {name}) for called, n in function.calls.items())
                if total > MAX_INLINED:
                    raise _Refused(f"the function {name[:40]} has more than {MAX_INLINED} tokens once its calls are inlined")
                inlined[name] = total
            return inlined[name]

        for name in self.functions:
            size(name, frozenset())
