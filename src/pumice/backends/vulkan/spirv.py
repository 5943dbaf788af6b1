"""Passes over the words of SPIR-V: what naga's output needs, and the guards that foreign kernels keep and own ones go without.

An instruction is a list of words, the first of which has its length in the upper and its code in the lower half.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from pumice.errors import FormatError

Words = list[int]

_MAGIC = 0x07230203
# Subgroup operations are part of the language from this version on; from the next one on entry points list more variables.
_VERSION = 0x00010300
_HEADER = 5

_CAPABILITY, _EXT_IMPORT, _EXT_INST, _DECORATE = 17, 11, 12, 71
_TYPE_INT, _TYPE_FLOAT, _TYPE_VECTOR, _TYPE_ARRAY, _TYPE_STRUCT, _TYPE_POINTER = 21, 22, 23, 28, 30, 32
_TYPE_RUNTIME_ARRAY, _TYPE_BOOL = 29, 20
_CONSTANT_FALSE, _CONSTANT, _CONSTANT_COMPOSITE, _CONSTANT_NULL = 42, 43, 44, 46
_FUNCTION, _PARAMETER, _VARIABLE, _LOAD, _STORE, _ACCESS_CHAIN, _IN_BOUNDS = 54, 55, 59, 61, 62, 65, 66
_COPY_OBJECT, _BITCAST, _ALL, _INT_EQUAL = 83, 124, 155, 170
_CONST_KINDS = range(41, 53)
_SHADER, _FLOAT16 = 1, 9
_EXTENSION, _TYPE_VOID = 10, 19
# Cooperative matrices: their type, what it says of those that are multiplied, and bf16 as an encoding of 16-bit floats.
_TYPE_MATRIX, _MATRIX_A, _MATRIX_B = 4456, 0, 1
_BFLOAT16, _BFLOAT16_TYPE, _BFLOAT16_MATRIX = 0, 5116, 5118
_UNIFORM, _WORKGROUP, _PRIVATE, _FUNCTION_CLASS, _STORAGE_BUFFER = 2, 4, 6, 7, 12
_ARRAY_STRIDE = 6
# Barriers: that of a subgroup, and which memory it orders.
_CONTROL_BARRIER, _SUBGROUP_SCOPE, _ACQUIRE_RELEASE, _WORKGROUP_MEMORY = 224, 3, 0x8, 0x100
_UMIN = 38


def finish(code: bytes, *, own: bool, bf16: bool = False) -> bytes:
    """naga's module as drivers take it; kernels that are not our `own` get their indices bounded and keep naga's loop bounds.

    Factors of matrix products have 16 bits: f16, or `bf16`.
    """
    module = SpirvModule(code)
    drop_strides(module)
    narrow_matrices(module, bf16=bf16)
    declare_f16(module)
    order_subgroups(module)
    if own:
        unbound_loops(module)
        leave_workgroup_memory(module)
    else:
        clamp_indices(module)
    return module.to_bytes()


class SpirvModule:
    """A module as a list of instructions."""

    def __init__(self, code: bytes) -> None:
        words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
        if len(words) < _HEADER or words[0] != _MAGIC:
            raise FormatError("this is no SPIR-V", hint="delete the folder vulkan of the cache")
        self._header = [words[0], _VERSION, *words[2:_HEADER]]
        self.code: list[Words] = []
        at = _HEADER
        while at < len(words):
            size = words[at] >> 16
            if not size or at + size > len(words):
                raise FormatError("SPIR-V with an instruction that does not end", hint="delete the folder vulkan of the cache")
            self.code.append(list(words[at : at + size]))
            at += size

    def to_bytes(self) -> bytes:
        """The module as bytes; lengths of instructions follow from their words."""
        words = [*self._header]
        for one in self.code:
            words += [len(one) << 16 | (one[0] & 0xFFFF), *one[1:]]
        return struct.pack(f"<{len(words)}I", *words)

    def new_id(self) -> int:
        """A number that nothing has yet."""
        self._header[3] += 1
        return int(self._header[3] - 1)

    def of(self, *kinds: int) -> Iterator[Words]:
        """The instructions of some kinds."""
        return (one for one in self.code if one[0] & 0xFFFF in kinds)

    def declare(self, kind: int, *words: int) -> None:
        """Put an instruction at the end of types and constants, before the first function."""
        at = next((i for i, one in enumerate(self.code) if kind_of(one) == _FUNCTION), len(self.code))
        self.code.insert(at, [kind, *words])

    def constant(self, value: int) -> int:
        """The number of an unsigned constant."""
        kind = self.unsigned()
        found = next((one[2] for one in self.of(_CONSTANT) if one[1] == kind and one[3] == value), None)
        if found is None:
            found = self.new_id()
            self.declare(_CONSTANT, kind, found, value)
        return found

    def unsigned(self) -> int:
        """The number of the type u32."""
        found = next((one[1] for one in self.of(_TYPE_INT) if one[2:4] == [32, 0]), None)
        if found is None:
            found = self.new_id()
            self.declare(_TYPE_INT, found, 32, 0)
        return found


def kind_of(one: Sequence[int]) -> int:
    """The code of an instruction."""
    return one[0] & 0xFFFF


def narrow_matrices(module: SpirvModule, *, bf16: bool) -> None:
    """Matrices that are multiplied get components of 16 bits: naga took those of the memory that they are read from."""
    values = {one[2]: one[3] for one in module.of(_CONSTANT)}
    matrices = [one for one in module.of(_TYPE_MATRIX) if values[one[6]] in (_MATRIX_A, _MATRIX_B)]
    if not matrices:
        return
    half = module.new_id()
    at = next(i for i, one in enumerate(module.code) if kind_of(one) == _TYPE_VOID)
    module.code.insert(at, [_TYPE_FLOAT, half, 16, *([_BFLOAT16] if bf16 else [])])
    for one in matrices:
        one[2] = half
    if bf16:
        after = max(i for i, one in enumerate(module.code) if kind_of(one) == _EXTENSION) + 1
        module.code.insert(after, [_EXTENSION, *struct.unpack("<5I", b"SPV_KHR_bfloat16\0\0\0\0")])
        module.code[:0] = [[_CAPABILITY, _BFLOAT16_TYPE], [_CAPABILITY, _BFLOAT16_MATRIX]]


def declare_f16(module: SpirvModule) -> None:
    """Capability Float16 where there are 16-bit floats: naga leaves it out where they are only stored."""
    found = any(one[2:] == [16] for one in module.of(_TYPE_FLOAT))
    if found and not any(one[1] == _FLOAT16 for one in module.of(_CAPABILITY)):
        module.code.insert(0, [_CAPABILITY, _FLOAT16])


def order_subgroups(module: SpirvModule) -> None:
    """Barriers of a subgroup order what its threads wrote to workgroup memory: naga's name memory that Vulkan does not have."""
    values = {one[2]: one[3] for one in module.of(_CONSTANT)}
    for one in list(module.of(_CONTROL_BARRIER)):
        if values[one[1]] == _SUBGROUP_SCOPE:
            one[3] = module.constant(_ACQUIRE_RELEASE | _WORKGROUP_MEMORY)


def drop_strides(module: SpirvModule) -> None:
    """No ArrayStride on arrays that are in no buffer: Vulkan allows them only where memory has a layout."""
    parts = {one[1]: one[2:3] for one in module.of(_TYPE_ARRAY, _TYPE_RUNTIME_ARRAY)}
    parts |= {one[1]: one[2:] for one in module.of(_TYPE_STRUCT)}
    wanted = [one[3] for one in module.of(_TYPE_POINTER) if one[2] in (_UNIFORM, _STORAGE_BUFFER)]
    laid_out: set[int] = set()
    while wanted:
        kind = wanted.pop()
        if kind not in laid_out:
            laid_out.add(kind)
            wanted += parts.get(kind, [])
    module.code = [
        one for one in module.code if not (kind_of(one) == _DECORATE and one[2] == _ARRAY_STRIDE and one[1] not in laid_out)
    ]


def unbound_loops(module: SpirvModule) -> None:
    """Without naga's count of the rounds of each loop: its test for the end becomes false, and the driver drops the rest."""
    ones = {one[2] for one in module.of(_CONSTANT) if one[3] == 0xFFFFFFFF}
    full = {one[2] for one in module.of(_CONSTANT_COMPOSITE) if len(one) == 5 and set(one[3:]) <= ones}
    counters = {one[2] for one in module.of(_VARIABLE) if len(one) == 5 and one[4] in full}
    loads = {one[2] for one in module.of(_LOAD) if one[3] in counters}
    tests = {one[2] for one in module.of(_INT_EQUAL) if one[4] in loads}
    ends = [one for one in module.of(_ALL) if one[3] in tests]
    if not ends:
        return
    false = module.new_id()
    module.declare(_CONSTANT_FALSE, ends[0][1], false)
    for one in ends:
        one[0], one[3] = 4 << 16 | _COPY_OBJECT, false


def leave_workgroup_memory(module: SpirvModule) -> None:
    """No zeros into workgroup memory, which one thread would write at the start: own kernels write before they read."""
    shared = {one[2] for one in module.of(_VARIABLE) if one[3] == _WORKGROUP}
    zeros = {one[2] for one in module.of(_CONSTANT_NULL)}
    module.code = [one for one in module.code if not (kind_of(one) == _STORE and one[1] in shared and one[2] in zeros)]


def clamp_indices(module: SpirvModule) -> None:
    """Indices into arrays and vectors that are in no buffer end at the last element; those of buffers the driver bounds."""
    types = {one[1]: one for one in module.of(_TYPE_VECTOR, _TYPE_ARRAY, _TYPE_STRUCT, _TYPE_POINTER)}
    values = {one[2]: one[3] for one in module.of(_CONSTANT)}
    constants = {one[2] for one in module.code if kind_of(one) in _CONST_KINDS}
    pointers = {one[2]: one[1] for one in module.of(_VARIABLE, _PARAMETER, _ACCESS_CHAIN, _IN_BOUNDS)}
    unsigned = module.unsigned()
    # A cast to the type that a value has already is none.
    typed = {one[2]: one[1] for one in module.code if len(one) > 2 and one[1] == unsigned}
    library = next((one[1] for one in module.of(_EXT_IMPORT)), None)
    if library is None:
        library = module.new_id()
        after = sum(kind_of(one) in (_CAPABILITY, 10) for one in module.code)
        module.code.insert(after, [_EXT_IMPORT, library, *struct.unpack("<4I", b"GLSL.std.450\0\0\0\0")])
    out: list[Words] = []
    lasts: dict[int, int] = {}
    for one in list(module.code):
        if kind_of(one) in (_ACCESS_CHAIN, _IN_BOUNDS):
            pointer = types[pointers[one[3]]]
            if pointer[2] in (_WORKGROUP, _PRIVATE, _FUNCTION_CLASS):
                kind = types.get(pointer[3])
                for k in range(4, len(one)):
                    if kind is None:
                        break
                    if kind_of(kind) == _TYPE_STRUCT:
                        kind = types.get(kind[2 + values[one[k]]])
                        continue
                    count = values[kind[3]] if kind_of(kind) == _TYPE_ARRAY else kind[3]
                    if one[k] not in constants or values.get(one[k], 0) >= count:
                        last = lasts.setdefault(count - 1, module.constant(count - 1))
                        if typed.get(one[k]) != unsigned:
                            out.append([_BITCAST, unsigned, module.new_id(), one[k]])
                            one[k] = out[-1][2]
                        out.append([_EXT_INST, unsigned, module.new_id(), library, _UMIN, one[k], last])
                        one[k] = out[-1][2]
                    kind = types.get(kind[2])
        out.append(one)
    # New constants were declared in the old list: they belong before the first function of the new one.
    known = {id(one) for one in out}
    declared = [one for one in module.code if id(one) not in known]
    at = next((i for i, one in enumerate(out) if kind_of(one) == _FUNCTION), len(out))
    module.code = [*out[:at], *declared, *out[at:]]
