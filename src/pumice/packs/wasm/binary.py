"""A reader of the sections of a WASM module: what it imports, exports and declares, found without compiling any of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pumice.packs.errors import InvalidModule

_MAGIC = b"\0asm\x01\0\0\0"
# Sections come in this order, each at most once; custom ones (0) may stand anywhere. 12 (data count) precedes the code.
_ORDER = {number: at for at, number in enumerate((1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 10, 11))}
TYPE, IMPORT, FUNCTION, TABLE, MEMORY, GLOBAL, EXPORT, START, ELEMENT, CODE, DATA = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
FUNC, MEM = 0, 2
# Engines have the same bound; a count is never larger than the bytes that follow it.
_MAX_NAME = 100_000

VALUE_TYPES = {0x7F: "i32", 0x7E: "i64", 0x7D: "f32", 0x7C: "f64", 0x7B: "v128", 0x70: "funcref", 0x6F: "externref"}


@dataclass(frozen=True)
class FuncType:
    """Parameters and results, as bytes of the binary format."""

    params: bytes
    results: bytes

    def __str__(self) -> str:
        return (
            f"({', '.join(_type_name(t) for t in self.params)}) -> {', '.join(_type_name(t) for t in self.results) or 'nothing'}"
        )


@dataclass(frozen=True)
class SizeRange:
    """The first size of a memory or table, and the largest it allows itself."""

    minimum: int
    maximum: int | None


@dataclass
class Sections:
    """What a module declares; `payloads` has each section's bytes in order, for `rewrite`."""

    payloads: list[tuple[int, bytes]] = field(default_factory=list)
    types: list[FuncType] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)
    functions: list[int] = field(default_factory=list)
    tables: list[SizeRange] = field(default_factory=list)
    memories: list[SizeRange] = field(default_factory=list)
    globals: list[tuple[int, bool]] = field(default_factory=list)  # type, whether it can be set
    exports: dict[str, tuple[int, int]] = field(default_factory=dict)  # kind, index
    has_start: bool = False
    elements: int = 0
    passive_data: int = 0
    bodies: list[int] = field(default_factory=list)  # bytes of each function's code

    def type_of(self, function: int) -> FuncType:
        """The type of a function by its index; a module without imports has no others before its own."""
        return self.types[self.functions[function]]


class Reader:
    """Reads numbers, names and vectors; whatever does not fit is an InvalidModule."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data, self.what, self.at = data, what, 0

    def fail(self, why: str) -> InvalidModule:
        return InvalidModule(f"the module's {self.what} cannot be read: {why}", hint="rebuild it", section=self.what)

    def bytes(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise self.fail("it ends too early")
        found, self.at = self.data[self.at : end], end
        return found

    def byte(self) -> int:
        return self.bytes(1)[0]

    def number(self, bits: int = 32) -> int:
        """An unsigned LEB128 number."""
        value = shift = 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift >= bits:
                raise self.fail("a number is too long")
        if value >> bits:
            raise self.fail("a number is too large")
        return value

    def skip_signed(self) -> None:
        for _ in range(10):
            if self.byte() < 0x80:
                return
        raise self.fail("a number is too long")

    def count(self) -> int:
        """The length of a vector, each of whose elements takes at least a byte."""
        found = self.number()
        if found > len(self.data) - self.at:
            raise self.fail(f"it declares {found} entries and is shorter than that")
        return found

    def name(self) -> str:
        size = self.number()
        if size > _MAX_NAME:
            raise self.fail("a name is too long")
        try:
            return self.bytes(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self.fail("a name is not UTF-8") from None

    def bounds(self) -> SizeRange:
        flags = self.byte()
        if flags > 1:
            raise self.fail("shared and 64-bit memories and tables are off")
        minimum = self.number()
        return SizeRange(minimum, self.number() if flags else None)

    def skip_constant(self) -> None:
        """A constant expression, up to its end."""
        while (op := self.byte()) != 0x0B:
            if op in (0x41, 0x42):  # i32.const, i64.const
                self.skip_signed()
            elif op in (0x43, 0x44):  # f32.const, f64.const
                self.bytes(4 if op == 0x43 else 8)
            elif op in (0x23, 0xD2):  # global.get, ref.func
                self.number()
            elif op == 0xFD:
                if self.number() != 12:  # v128.const
                    raise self.fail("a constant has an unknown instruction")
                self.bytes(16)
            elif op == 0xD0:  # ref.null
                self.byte()
            elif op not in (0x6A, 0x6B, 0x6C, 0x7C, 0x7D, 0x7E):  # add, sub and mul
                raise self.fail("a constant has an unknown instruction")

    def end(self) -> None:
        if self.at != len(self.data):
            raise self.fail("bytes are left over")


def read_sections(module: bytes) -> Sections:
    """The sections of a module. InvalidModule says which one cannot be read.

    >>> read_sections(b"\\0asm\\1\\0\\0\\0").exports
    {}
    >>> read_sections(b"text")
    Traceback (most recent call last):
    pumice.packs.errors.InvalidModule: [invalid-module] the bytes are no WASM module (version 1)
      hint: build the kernel for wasm32 without the component model
    """
    if not module.startswith(_MAGIC):
        raise InvalidModule(
            "the bytes are no WASM module (version 1)", hint="build the kernel for wasm32 without the component model"
        )
    found = Sections()
    whole = Reader(module, "list of sections")
    whole.at = len(_MAGIC)
    last = -1
    while whole.at < len(module):
        number = whole.byte()
        payload = whole.bytes(whole.number())
        if number == 0:
            continue  # names and notes of compilers: nothing of them is used
        at = _ORDER.get(number)
        if at is None or at <= last:
            raise whole.fail(f"section {number} is unknown, twice there or in the wrong place")
        last = at
        found.payloads.append((number, payload))
        _read(found, number, payload)
    if any(index >= len(found.types) for index in found.functions):
        raise InvalidModule("a function of the module has a type that is not there", hint="rebuild it")
    return found


def leb(value: int) -> bytes:
    """An unsigned number as LEB128.

    >>> leb(300)
    b'\\xac\\x02'
    """
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def rewrite(sections: Sections, appended: dict[int, bytes]) -> bytes:
    """The module without its custom sections, with one more entry in each of these sections."""
    out = bytearray(_MAGIC)
    for number, payload in sections.payloads:
        if number in appended:
            reader = Reader(payload, "sections")
            count = reader.number()
            payload = leb(count + 1) + payload[reader.at :] + appended[number]
        out += bytes([number]) + leb(len(payload)) + payload
    return bytes(out)


def _read(found: Sections, number: int, payload: bytes) -> None:
    reader = Reader(payload, _NAMES[number])
    match number:
        case 1:
            for _ in range(reader.count()):
                if reader.byte() != 0x60:
                    raise reader.fail("a type is no function's")
                found.types.append(FuncType(reader.bytes(reader.count()), reader.bytes(reader.count())))
        case 2:
            # One is too many: the rest is not read.
            if reader.count():
                found.imports.append(f"{reader.name()}.{reader.name()}")
            return
        case 3:
            found.functions = [reader.number() for _ in range(reader.count())]
        case 4:
            for _ in range(reader.count()):
                if reader.byte() != 0x70:
                    raise reader.fail("a table has other elements than functions")
                found.tables.append(reader.bounds())
        case 5:
            found.memories = [reader.bounds() for _ in range(reader.count())]
        case 6:
            for _ in range(reader.count()):
                kind, mutable = reader.byte(), reader.byte()
                if mutable > 1:
                    raise reader.fail("a global is neither fixed nor mutable")
                reader.skip_constant()
                found.globals.append((kind, bool(mutable)))
        case 7:
            for _ in range(reader.count()):
                name = reader.name()
                if name in found.exports:
                    raise reader.fail(f"{name!r} is exported twice")
                found.exports[name] = reader.byte(), reader.number()
        case 8:
            found.has_start = True
            return
        case 9:
            found.elements = reader.count()
            return  # what they are is checked by the engine
        case 10:
            for _ in range(reader.count()):
                size = reader.number()
                reader.bytes(size)
                found.bodies.append(size)
        case 11:
            for _ in range(reader.count()):
                flags = reader.number()
                found.passive_data += flags == 1
                if flags == 2:
                    reader.number()
                elif flags > 2:
                    raise reader.fail("a segment has unknown flags")
                if flags != 1:
                    reader.skip_constant()
                reader.bytes(reader.number())
        case _:
            return  # the data count: checked by the engine
    reader.end()


def _type_name(byte: int) -> str:
    return VALUE_TYPES.get(byte, f"type {byte:#x}")


_NAMES = {
    1: "types", 2: "imports", 3: "functions", 4: "tables", 5: "memories", 6: "globals", 7: "exports", 8: "start function",
    9: "elements", 10: "code", 11: "data", 12: "data count",
}  # fmt: skip
