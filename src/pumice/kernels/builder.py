"""KernelBuilder: assembles one WGSL compute kernel: bindings, typed loads and stores, uniforms, library functions, body."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from pumice.core.caps import Caps
from pumice.core.dims import Dim
from pumice.core.dtypes import DType, u32
from pumice.errors import PlanError
from pumice.kernels.library import LIBRARY_CALL, library_source
from pumice.plan.plan import Access, Binding, DeviceCount, Grid, Kernel, Origin

_T = TypeVar("_T")
# A size: a dim, or the name of a u32 that the kernel works out itself.
Extent = Dim | str
_ELEMENT = {"f32": "f32", "i32": "i32", "u32": "u32"}  # every other dtype lives packed in u32 words

# How one element is taken out of the word w that holds it; s is its position in the word.
_UNPACK = {
    "f16": "unpack2x16float(w >> (s * 16u)).x",
    "bf16": "bitcast<f32>((w >> (s * 16u)) << 16u)",
    "i8": "(bitcast<i32>(w << (24u - s * 8u)) >> 24u)",
    "u8": "((w >> (s * 8u)) & 255u)",
    "bool": "(((w >> (s * 8u)) & 255u) != 0u)",
}
# The bits of one element, in the low end of a u32.
_PACK = {
    "f16": "pm_f16_bits({v})",  # pack2x16float may round and overflow as the driver likes
    "bf16": "pm_bf16_bits({v})",
    "i8": "(bitcast<u32>({v}) & 255u)",
    "u8": "({v} & 255u)",
    "bool": "select(0u, 1u, {v})",
}
# Bytes of an element of a workgroup array.
_ELEMENT_BYTES = {"f32": 4, "i32": 4, "u32": 4, "atomic<u32>": 4}
_ELEMENT_BYTES |= {f"vec{n}<{t}>": 4 * n for n in (2, 4) for t in ("f32", "i32", "u32")}
_WORD = re.compile(r"\w+")
# The names that `let_lazy` gives. A set of letters comes first, so that the search skips everything else.
_LAZY = re.compile(r"[ik](?<!\w[ik])\d+(?!\w)")
# How every kernel begins: the number of its workgroup, and nothing to do from `total` on.
_NUMBER = "  let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);\n"
_TOTAL = "  if (wg >= {total}) {{ return; }}\n"
_TOTAL_LINE = re.compile(re.escape(_NUMBER) + r"  if \(wg >= (?P<total>.+)\) \{ return; \}\n")


@dataclass(frozen=True, slots=True)
class Lowered:
    """A finished kernel and how to launch it: what `lower` functions return."""

    wgsl: str
    bindings: tuple[Binding, ...]
    uniforms: tuple[Dim, ...]
    groups: Grid
    label: str
    variant: str = ""
    workgroup: int = 1
    shared_bytes: int = 0
    features: tuple[str, ...] = ()
    origin: Origin = "generated"

    def bound_to(self, bindings: tuple[Binding, ...], groups: Grid) -> Lowered:
        """The same kernel for other values. As `dataclasses.replace`, which is slow for thousands of steps."""
        data = (self.label, self.variant, self.workgroup, self.shared_bytes, self.features, self.origin)
        return Lowered(self.wgsl, bindings, self.uniforms, groups, *data)

    def kernel(self) -> Kernel:
        """The kernel alone, as a plan has it."""
        access = tuple(b.access for b in self.bindings)
        sizes = (len(self.uniforms), self.workgroup, self.shared_bytes)
        return Kernel(self.label, self.wgsl, access, *sizes, self.features, origin=self.origin)


class Operand:
    """A bound value. `load(i)` is the element i in its compute type, `word(i)` the raw 32-bit word i of its storage.

    `wide` operands are bound as vec4s of words, so that `four(i)` loads the i-th sixteen bytes at once.
    """

    def __init__(
        self, kb: KernelBuilder, value: int, dtype: DType, part_elements: Sequence[int], access: Access, *, wide: bool = False
    ) -> None:
        self.kb, self.value, self.dtype, self.access, self.wide = kb, value, dtype, access, wide
        # part_elements: elements in each part; one entry (of any number) when the value is not sharded.
        self.part_elements = tuple(part_elements)
        self.names = [kb._bind(value, part, access, self.element) for part in range(len(self.part_elements))]

    @property
    def name(self) -> str:
        """The WGSL variable of an unsharded operand."""
        if len(self.names) != 1:
            raise PlanError("a sharded operand has no single variable; use load() or word()")
        return self.names[0]

    @property
    def element(self) -> str:
        """The WGSL element type of the storage array."""
        word = _ELEMENT.get(self.dtype.name, "u32")
        return f"vec4<{word}>" if self.wide else word

    def four(self, index: str) -> str:
        """WGSL for the vec4 of the four words from word 4·index on; of wide operands only."""
        return f"{self.name}[{index}]"

    def _word(self, name: str, index: str) -> str:
        """WGSL for one word of the storage array, in its element type."""
        return f"{name}[({index}) >> 2u][({index}) & 3u]" if self.wide else f"{name}[{index}]"

    def load(self, index: str) -> str:
        """WGSL for the element at `index` (u32), in the dtype's compute type."""
        if self.dtype.per_word == 1 and len(self.names) == 1:
            return self._word(self.names[0], index)
        fn = f"load_{self.names[0]}"
        if self.dtype.per_word == 1:
            body = self._select_part("i", lambda name, i: f"return {name}[{i}];", 1)
        else:
            n, shift = self.dtype.per_word, {2: 1, 4: 2}[self.dtype.per_word]
            one = f"let s = i & {n - 1}u; "
            if len(self.names) == 1:
                body = f"let w = {self._word(self.names[0], f'i >> {shift}u')}; {one}return {_UNPACK[self.dtype.name]};"
            else:
                body = f"let w = {self.word(f'i >> {shift}u')}; {one}return {_UNPACK[self.dtype.name]};"
        self.kb.function(f"fn {fn}(i: u32) -> {self.dtype.compute} {{ {body} }}")
        return f"{fn}({index})"

    def word(self, index: str) -> str:
        """WGSL for the raw u32 word at `index` of the storage; f32 and i32 storage is bit-cast."""
        cast = "" if self.element in ("u32", "vec4<u32>") else "bitcast<u32>"
        if len(self.names) == 1:
            text = self._word(self.names[0], index)
            return f"{cast}({text})" if cast else text
        fn = f"word_{self.names[0]}"
        body = self._select_part("i", lambda name, i: f"return {cast}({name}[{i}]);", None)
        self.kb.function(f"fn {fn}(i: u32) -> u32 {{ {body} }}")
        return f"{fn}({index})"

    def _select_part(self, index: str, use: Callable[[str, str], str], unit: int | None) -> str:
        """`use(array, local index)` under the test that picks the shard; unit None counts in words."""
        text, start = "", 0
        for name, elements in zip(self.names[:-1], self.part_elements[:-1], strict=True):
            size = elements if unit else self.dtype.nbytes(elements) // 4
            local = index if start == 0 else f"{index} - {start}u"
            text += f"if ({index} < {start + size}u) {{ {use(name, local)} }} "
            start += size
        return text + use(self.names[-1], f"{index} - {start}u")

    def store(self, index: str, value: str) -> str:
        """WGSL statement that stores `value` at `index`; only for dtypes of one element a word."""
        if self.dtype.per_word != 1:
            raise PlanError(f"{self.dtype} is stored by whole words: use store_word")
        return f"{self.name}[{index}] = {value};"

    def store_four(self, index: str, words: Sequence[str]) -> str:
        """WGSL statement that stores four words at once, from word 4·index on; of wide operands only."""
        return f"{self.name}[{index}] = {self.element}({', '.join(words)});"

    def store_word(self, word_index: str, lanes: Sequence[str]) -> str:
        """WGSL statement that stores `per_word` lane values (compute type) as word `word_index`."""
        return f"{self.name}[{word_index}] = {pack_word(self.dtype, lanes)};"


def pack_word(dtype: DType, lanes: Sequence[str]) -> str:
    """WGSL for the word that holds values (compute type) of a dtype of which several share one."""
    pack = _PACK[dtype.name]
    width = 32 // dtype.per_word
    parts = [f"({pack.format(v=v)} << {k * width}u)" if k else pack.format(v=v) for k, v in enumerate(lanes)]
    return " | ".join(parts)


def unpack_word(dtype: DType, word: str, lane: int) -> str:
    """WGSL for one of the values (compute type) in such a word, itself a name.

    >>> from pumice.core.dtypes import i8
    >>> unpack_word(i8, "x", 3)
    '(bitcast<i32>(x << (24u - 3u * 8u)) >> 24u)'
    """
    return re.sub(r"\b[ws]\b", lambda m: word if m[0] == "w" else f"{lane}u", _UNPACK[dtype.name])


class KernelBuilder:
    """Collects the parts of a kernel and prints its WGSL.

    The body sees `wg` (flattened workgroup number, u32), `lid` (invocation in the workgroup) and, through `dim`, every size.
    Nothing is executed for workgroups beyond `groups`: the prelude returns (uniformly) before the body.

    >>> kb = KernelBuilder(Caps.preset("browser-baseline"), workgroup=64)
    >>> from pumice.core import dtypes
    >>> x, y = kb.read(0, dtypes.f32), kb.write(1, dtypes.f32)
    >>> kb.emit(f"let i = wg * 64u + lid;")
    >>> kb.emit(f"if (i < {kb.dim(100)}) {{ {y.store('i', x.load('i'))} }}")
    >>> print(kb.finish(groups=2, label="copy").wgsl)
    @group(0) @binding(0) var<storage, read> b0: array<f32>;
    @group(0) @binding(1) var<storage, read_write> b1: array<f32>;
    <BLANKLINE>
    @compute @workgroup_size(64)
    fn main(@builtin(workgroup_id) wid: vec3<u32>, ... lid: u32) {
      let wg = wid.x + nwg.x * (wid.y + nwg.y * wid.z);
      if (wg >= 2u) { return; }
      let i = wg * 64u + lid;
      if (i < 100u) { b1[i] = b0[i]; }
    }
    <BLANKLINE>
    """

    def __init__(self, caps: Caps, *, workgroup: int) -> None:
        self.caps, self.workgroup = caps, workgroup
        self.inplace: int | None = None  # a value that this kernel overwrites as it reads it
        self.table_of: Callable[[DType], int | None] = lambda dtype: None  # what is read beside values of a dtype
        self.bindings: list[Binding] = []
        self.uniforms: list[Dim] = []
        self._declared: list[str] = []
        self._functions: dict[str, None] = {}
        self._library: dict[str, None] = {}
        self._shared: list[str] = []
        self._shared_bytes = 0
        self._features: set[str] = set()
        self._operands: dict[tuple[int, Access], Operand] = {}
        self._body: list[str] = []
        self._lazy: dict[str, str] = {}
        self._indent = "  "
        self._counter = 0

    # -- bindings ---------------------------------------------------------------------------------------------------
    def read(self, value: int, dtype: DType, part_elements: Sequence[int] = (0,), *, wide: bool = False) -> Operand:
        """A read-only binding of a value, the same one each time; a value updated in place is read through its update.

        The first read of a value decides whether its binding is wide; values updated in place, or in parts, never are.
        """
        if value == self.inplace or (value, "update") in self._operands:
            return self._operand(value, dtype, part_elements, "update")
        found = self._operands.get((value, "read"))
        if found is None:
            found = Operand(self, value, dtype, part_elements, "read", wide=wide and len(part_elements) == 1)
            self._operands[value, "read"] = found
        return found

    def table(self, dtype: DType) -> Operand:
        """The table that is read beside values of a dtype, words of u32."""
        value = self.table_of(dtype)
        if value is None:
            raise PlanError(f"the graph has no table for {dtype}", dtype=dtype.name)
        return self.read(value, u32)

    def may_widen(self, value: int) -> bool:
        """Whether `read` of a value can give a wide binding."""
        if value == self.inplace or (value, "update") in self._operands:
            return False
        found = self._operands.get((value, "read"))
        return found is None or found.wide

    def write(self, value: int, dtype: DType, *, wide: bool = False) -> Operand:
        """The binding of a value that this kernel writes in full; `wide` if it does so by whole vec4s of words."""
        found = self._operands.get((value, "write"))
        if found is None:
            found = self._operands[value, "write"] = Operand(self, value, dtype, (0,), "write", wide=wide)
        return found

    def update(self, value: int, dtype: DType, *, wide: bool = False) -> Operand:
        """A binding that is read and written in place; `wide` if it is written by whole vec4s of words."""
        return self._operand(value, dtype, (0,), "update", wide=wide)

    def _operand(self, value: int, dtype: DType, part_elements: Sequence[int], access: Access, *, wide: bool = False) -> Operand:
        found = self._operands.get((value, access))
        if found is None:
            found = self._operands[value, access] = Operand(self, value, dtype, part_elements, access, wide=wide)
        return found

    def _bind(self, value: int, part: int, access: Access, element: str) -> str:
        name = f"b{len(self.bindings)}"
        mode = "read" if access == "read" else "read_write"
        self._declared.append(f"@group(0) @binding({len(self.bindings)}) var<storage, {mode}> {name}: array<{element}>;")
        self.bindings.append(Binding(value, part, access))
        return name

    # -- sizes ------------------------------------------------------------------------------------------------------
    def dim(self, d: Extent) -> str:
        """A dim as a u32 in WGSL: a literal when static, else a uniform field that the host evaluates for each run."""
        if isinstance(d, str):
            return d
        if isinstance(d, int):
            return f"{d % (1 << 32)}u"  # negative strides wrap, as u32 arithmetic does
        return self.size(d)

    def size(self, d: Dim) -> str:
        """A dim as a uniform field even when it is static, so that kernels for other sizes have the same text."""
        if d not in self.uniforms:
            self.uniforms.append(d)
        return f"u.d{self.uniforms.index(d)}"

    def inf(self) -> str:
        """f32 infinity, which WGSL cannot write down as a literal."""
        return "pm_inf()"

    # -- body -------------------------------------------------------------------------------------------------------
    def use(self, *names: str) -> None:
        """Include functions of the WGSL library (pm_*), with what they need."""
        for name in names:
            self._library[name] = None

    def function(self, text: str) -> None:
        """Include a module-scope function, once."""
        self._functions[text] = None

    def shared(self, name: str, element: str, count: int) -> str:
        """A workgroup array of `count` elements of a WGSL type."""
        self._shared.append(f"var<workgroup> {name}: array<{element}, {count}>;")
        # As WebGPU counts: each variable in whole 16 bytes.
        self._shared_bytes += -(-_ELEMENT_BYTES[element] * count // 16) * 16
        return name

    def subgroup(self, operation: str, *operands: str) -> str:
        """WGSL of an operation over the subgroup, of which the body then knows `sg_size` and `sg_lane`.

        >>> KernelBuilder(Caps.preset("h200"), workgroup=32).subgroup("Add", "x")
        'subgroupAdd(x)'
        """
        self._features.add("subgroups")
        return f"subgroup{operation}({', '.join(operands)})"

    def need(self, *features: str) -> None:
        """Note features that the kernel needs."""
        self._features.update(features)

    def fresh(self, prefix: str = "t") -> str:
        """A WGSL name not used yet."""
        self._counter += 2 if self._counter in (15, 31, 63) else 1  # 16, 32 and 64 would turn i, u or f into a type's name
        return f"{prefix}{self._counter}"

    def emit(self, text: str) -> None:
        """Append statements to the body."""
        if "\n" in text:
            self._body.extend([self._indent + line for line in text.splitlines()])
        elif text:
            self._body.append(self._indent + text)

    def in_turn(self, pieces: Sequence[Callable[[], _T]]) -> list[_T]:
        """Interleaves independent pieces of code, so that the loads of all are in flight together.

        Pieces with blocks, or that read what they assigned, are emitted one after the other.
        """
        start = len(self._body)
        results = [piece() for piece in pieces]
        lines = self._body[start:]
        if any("{" in line or "}" in line for line in lines):
            return results
        depth: dict[str, int] = {}
        lets: list[tuple[int, str]] = []
        rest, assigned, used = [], set(), set()
        for line in lines:
            first, *names = _WORD.findall(line)
            if first == "let":
                depth[names[0]] = 1 + max((depth.get(name, 0) for name in names[1:]), default=0)
                lets.append((depth[names[0]], line))
                used.update(names[1:])
            else:
                assigned.add(first)
                rest.append(line)
        if not assigned & used:
            self._body[start:] = [line for _, line in sorted(lets, key=lambda pair: pair[0])] + rest
        return results

    def let(self, expr: str, prefix: str = "t") -> str:
        """Bind an expression to a fresh name and return the name."""
        name = self.fresh(prefix)
        self.emit(f"let {name} = {expr};")
        return name

    def let_lazy(self, expr: str, prefix: Literal["i", "k"] = "i") -> str:
        """Like `let`, but the line is dropped at the end if nothing uses the name."""
        name = self.let(expr, prefix)
        self._lazy[name] = self._body[-1]
        return name

    def _drop_unused(self) -> list[str]:
        """The body without the lazy lines that no later line needs."""
        if not self._lazy:
            return self._body
        # How often each name occurs: a line that nothing needs has the only one, and takes those that it reads with it.
        used = Counter(_LAZY.findall("\n".join(self._body)))
        unused: set[str] = set()
        for name, line in reversed(self._lazy.items()):
            if used[name] == 1:
                unused.add(line)
                used.subtract(_LAZY.findall(line))
        return [line for line in self._body if line not in unused] if unused else self._body

    def open(self, head: str) -> None:
        """Open a block: `kb.open("if (x)")`."""
        self.emit(head + " {")
        self._indent += "  "

    def close(self, tail: str = "") -> None:
        """Close the innermost block."""
        self._indent = self._indent[2:]
        self.emit("}" + tail)

    def orelse(self) -> None:
        """Close the innermost `if` and open its `else`."""
        self._body.append(self._indent[2:] + "} else {")

    def finish(self, *, groups: Grid, label: str, variant: str = "", any_size: bool = False) -> Lowered:
        """The kernel as text with its launch data; with `any_size` the number of workgroups is no part of the text.

        For a DeviceCount the kernel reads the count itself: a folded grid may have more workgroups than that.
        """
        if isinstance(groups, DeviceCount):
            total = f"min({self.read(groups.value, u32).word(f'{groups.word}u')}, {self.dim(groups.most)})"
        else:
            total = self.size(groups) if any_size else self.dim(groups)
        limit = self.caps.max_storage_buffers
        if len(self.bindings) > limit:
            raise PlanError(f"{label} binds {len(self.bindings)} storage buffers, {self.caps.name} has {limit}")
        body = self._drop_unused()
        head = [*self._declared, *_declare_sizes(len(self.bindings), len(self.uniforms)), *self._shared]
        helpers = library_source([*self._library, *_library_names(self._functions, body)])
        builtins = (
            "@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, "
            "@builtin(local_invocation_index) lid: u32"
        )
        if "subgroups" in self._features:
            builtins += ", @builtin(subgroup_size) sg_size: u32, @builtin(subgroup_invocation_id) sg_lane: u32"
        text = "\n".join([*head, *helpers, *self._functions])
        text += f"\n\n@compute @workgroup_size({self.workgroup})\nfn main({builtins}) {{\n"
        text += _NUMBER + _TOTAL.format(total=total)
        text += "\n".join(body) + "\n}\n"
        data = (self.workgroup, self._shared_bytes, tuple(sorted(self._features)))
        return Lowered(text, tuple(self.bindings), tuple(self.uniforms), groups, label, variant, *data)


def _declare_sizes(bindings: int, words: int) -> list[str]:
    """The uniform block of a kernel, after its storage bindings."""
    if not words:
        return []
    fields = ", ".join(f"d{i}: u32" for i in range(words))
    return [f"struct Sizes {{ {fields} }}", f"@group(0) @binding({bindings}) var<uniform> u: Sizes;"]


def kernel_of_pieces(kernel: Kernel) -> Kernel:
    """A generated kernel for some of its workgroups: two more uniform words, the first one's number and where to end.

    The workgroups compute the same, whatever dispatch they run in: WebGPU promises no order among them.

    >>> kb = KernelBuilder(Caps.preset("browser-baseline"), workgroup=64)
    >>> kb.emit("b0[wg] = 1u;")
    >>> print(kernel_of_pieces(kb.finish(groups=9, label="ones").kernel()).wgsl)
    struct Sizes { d0: u32, d1: u32 }
    @group(0) @binding(0) var<uniform> u: Sizes;
    <BLANKLINE>
    <BLANKLINE>
    @compute @workgroup_size(64)
    fn main(@builtin(workgroup_id) wid: vec3<u32>, ... lid: u32) {
      let wg = u.d0 + wid.x + nwg.x * (wid.y + nwg.y * wid.z);
      if (wg >= min(9u, u.d1)) { return; }
      b0[wg] = 1u;
    }
    <BLANKLINE>
    """
    bindings, words = len(kernel.access), kernel.uniform_words
    found = _TOTAL_LINE.search(kernel.wgsl)
    if found is None or kernel.origin != "generated":
        raise PlanError(f"the kernel {kernel.name} was not made by this process and runs whole")
    number = _NUMBER.replace("= ", f"= u.d{words} + ", 1)
    head, body = kernel.wgsl[: found.start()], kernel.wgsl[found.end() :]
    declared = _declare_sizes(bindings, words + 2)
    if words:
        for old, new in zip(_declare_sizes(bindings, words), declared, strict=True):
            head = head.replace(old, new, 1)
    else:
        # After the storage bindings, which are the first lines.
        lines = head.split("\n")
        head = "\n".join([*lines[:bindings], *declared, *lines[bindings:]])
    text = head + number + _TOTAL.format(total=f"min({found['total']}, u.d{words + 1})") + body
    return replace(kernel, wgsl=text, uniform_words=words + 2)


def _library_names(functions: dict[str, None], body: list[str]) -> list[str]:
    return list(dict.fromkeys(LIBRARY_CALL.findall("\n".join([*functions, *body]))))
