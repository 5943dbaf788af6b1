"""Vectors inside numba kernels: 32 lanes of float32 or int32 as one value, loaded from addresses and kept in registers.

LLVM's loop vectoriser misses the loops over packed weights. Said as vectors, they become the processor's own
instructions, whatever the width of its registers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from pumice.backends.host.native import levels
from pumice.backends.host.native.codegen import small_floats, vector_math
from pumice.backends.host.native.codegen.vector_math import FUSED
from pumice.backends.host.native.codegen.vectors import emit_op
from pumice.backends.host.native.sizes import LANES

_BYTE, _SHORT, _WORD, _LONG = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_FLOAT = ir.FloatType()
ADDRESS = types.intp
_MOST_FETCHED = _LONG(1 << 16)
LEVEL = levels.current()
_helpers: Any = cgutils  # has no type information


class LanesType(types.Type):
    """The numba type of a vector of LANES elements."""

    def __init__(self, element: Any) -> None:
        self.vector = ir.VectorType(element, LANES)
        super().__init__(name=f"Lanes({element})")


FLOATS, INTS = LanesType(_FLOAT), LanesType(_WORD)


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: LanesType) -> None:
        super().__init__(manager, kind, kind.vector)  # type: ignore[no-untyped-call]


def define(result: Any, *operands: Any) -> Callable[[Callable[..., Any]], Any]:
    """Turns `build(builder, *values)`, which emits LLVM code, into a function that kernels may call."""

    def decorate(build: Callable[..., Any]) -> Any:
        def declare(context: Any, *given: Any) -> Any:
            def generate(target: Any, builder: Any, signature: Any, values: Any) -> Any:
                made = build(builder, *values)
                return target.get_dummy_value() if result is types.void else made

            return result(*operands), generate

        # numba counts the operands by this signature; the builder stands where it passes its context.
        declare.__signature__ = inspect.signature(build)  # type: ignore[attr-defined]
        declare.__name__ = build.__name__
        return intrinsic(declare)

    return decorate


def pointer(builder: Any, address: Any, pointee: Any) -> Any:
    """An address as an LLVM pointer."""
    return builder.inttoptr(address, pointee.as_pointer())


def call_named(builder: Any, name: str, result: Any, operands: list[Any], **options: Any) -> Any:
    """Calls a function of the C library, or an intrinsic of LLVM's, by name."""
    kind = ir.FunctionType(result, [o.type for o in operands])
    return builder.call(_helpers.get_or_insert_function(builder.module, kind, name), operands, **options)


def _load(builder: Any, address: Any, element: Any, align: int = 1) -> Any:
    found = builder.load(pointer(builder, address, ir.VectorType(element, LANES)))
    found.align = align
    return found


def spread(builder: Any, scalar: Any, vector: Any) -> Any:
    """One number in all lanes of a vector."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, _WORD(0))
    lanes = ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), lanes)


# --- memory ---


@define(INTS, ADDRESS)
def load_u8(builder: Any, at: Any) -> Any:
    """Bytes, side by side, as ints."""
    return builder.zext(_load(builder, at, _BYTE), INTS.vector)


@define(INTS, ADDRESS)
def load_i8(builder: Any, at: Any) -> Any:
    """Signed bytes as ints."""
    return builder.sext(_load(builder, at, _BYTE), INTS.vector)


@define(FLOATS, ADDRESS, ADDRESS)
def load_split_half(builder: Any, low: Any, high: Any) -> Any:
    """f16 numbers whose low and high bytes are stored apart."""
    wide = ir.VectorType(_SHORT, LANES)
    upper = builder.shl(builder.zext(_load(builder, high, _BYTE), wide), ir.Constant(wide, [8] * LANES))
    bits = builder.or_(builder.zext(_load(builder, low, _BYTE), wide), upper)
    return small_floats.from_half(builder, bits)


@define(FLOATS, ADDRESS)
def load_f16(builder: Any, at: Any) -> Any:
    """f16 numbers, side by side."""
    return small_floats.from_half(builder, _load(builder, at, _SHORT))


@define(FLOATS, ADDRESS)
def load_bf16(builder: Any, at: Any) -> Any:
    """bf16 numbers: the upper halves of f32."""
    bits = builder.zext(_load(builder, at, _SHORT), INTS.vector)
    return builder.bitcast(builder.shl(bits, ir.Constant(INTS.vector, [16] * LANES)), FLOATS.vector)


@define(FLOATS, ADDRESS)
def load_f32(builder: Any, at: Any) -> Any:
    return _load(builder, at, _FLOAT, 4)


@define(types.void, ADDRESS, FLOATS)
def store_f32(builder: Any, at: Any, value: Any) -> None:
    builder.store(value, pointer(builder, at, FLOATS.vector)).align = 4


@define(types.float32, ADDRESS)
def float_at(builder: Any, at: Any) -> Any:
    return builder.load(pointer(builder, at, _FLOAT))


@define(types.float32, ADDRESS)
def f16_at(builder: Any, at: Any) -> Any:
    one = builder.load(pointer(builder, at, ir.VectorType(_SHORT, 1)))
    one.align = 2
    return builder.extract_element(small_floats.from_half(builder, one), _WORD(0))


@define(types.float32, ADDRESS)
def bf16_at(builder: Any, at: Any) -> Any:
    bits = builder.zext(builder.load(pointer(builder, at, _SHORT)), _WORD)
    return builder.bitcast(builder.shl(bits, _WORD(16)), _FLOAT)


@define(types.void, ADDRESS, types.float32)
def set_float(builder: Any, at: Any, value: Any) -> None:
    builder.store(value, pointer(builder, at, _FLOAT))


@define(types.int64, ADDRESS)
def long_at(builder: Any, at: Any) -> Any:
    return builder.load(pointer(builder, at, _LONG))


@define(types.void, ADDRESS, types.int64)
def set_long(builder: Any, at: Any, value: Any) -> None:
    builder.store(value, pointer(builder, at, _LONG))


@define(types.int32, ADDRESS)
def int_at(builder: Any, at: Any) -> Any:
    return builder.load(pointer(builder, at, _WORD))


@define(types.void, ADDRESS, ADDRESS, types.intp)
def copy_bytes(builder: Any, to: Any, source: Any, count: Any) -> None:
    _helpers.raw_memmove(builder, pointer(builder, to, _BYTE), pointer(builder, source, _BYTE), count, 1)


@define(ADDRESS)
def block_memory(builder: Any) -> Any:
    """The address of a vector for each of 256 elements, on the stack of the kernel that asks."""
    # Not by numba's helper, which clears the memory each time.
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(FLOATS.vector, 256))
    return builder.ptrtoint(memory, _LONG)


def compare_and_swap(builder: Any, at: Any, expected: int, value: int) -> Any:
    """Replaces the word `expected` by `value`; whether that was what stood there."""
    made = builder.cmpxchg(pointer(builder, at, _LONG), _LONG(expected), _LONG(value), "seq_cst")
    return builder.extract_value(made, 1)


def store_word(builder: Any, at: Any, value: int) -> None:
    """Writes a word that other threads wait for."""
    builder.store_atomic(_LONG(value), pointer(builder, at, _LONG), "seq_cst", 8)


def fetch_for_writing(builder: Any, at: Any) -> None:
    """Asks for a cache line that will be written soon."""
    call_named(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer(builder, at, _BYTE), _WORD(1), _WORD(3), _WORD(1)])


def fetch_for_reading(builder: Any, at: Any, first_cache: bool = True) -> None:
    """Asks for a cache line that will be read soon; an address outside all memory does no harm.

    Without `first_cache` it goes to the second one: the first waits for few lines at once, too few for memory's full rate.
    """
    locality = _WORD(3 if first_cache else 2)
    call_named(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer(builder, at, _BYTE), _WORD(0), locality, _WORD(1)])


@define(types.void, ADDRESS, types.intp)
def fetch_range(builder: Any, at: Any, size: Any) -> None:
    """Asks for bytes side by side, in their order, for the second cache; not for more than a part of it holds.

    What another core has written comes from its cache. Where that is not a near one, it takes as long as from memory, and numbers
    that are read a few from each row come at a fifth of the rate of those in order.
    """
    before, most = builder.block, builder.select(builder.icmp_signed("<", size, _MOST_FETCHED), size, _MOST_FETCHED)
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    done = builder.phi(_LONG)
    done.add_incoming(_LONG(0), before)
    builder.cbranch(builder.icmp_signed("<", done, most), inside, after)
    builder.position_at_end(inside)
    fetch_for_reading(builder, builder.add(at, done), False)
    done.add_incoming(builder.add(done, _LONG(64)), inside)
    builder.branch(head)
    builder.position_at_end(after)


@define(types.void, ADDRESS)
def prefetch(builder: Any, at: Any) -> None:
    """The same for kernels to call."""
    fetch_for_reading(builder, at)


# --- arithmetic ---


@define(INTS, INTS, types.int32)
def band(builder: Any, a: Any, mask: Any) -> Any:
    return builder.and_(a, spread(builder, mask, INTS.vector))


@define(INTS, INTS, types.int32)
def shift_right(builder: Any, a: Any, bits: Any) -> Any:
    return builder.lshr(a, spread(builder, bits, INTS.vector))


@define(INTS, INTS, types.int32)
def shift_left(builder: Any, a: Any, bits: Any) -> Any:
    return builder.shl(a, spread(builder, bits, INTS.vector))


@define(INTS, INTS, types.int32)
def minus(builder: Any, a: Any, b: Any) -> Any:
    return builder.sub(a, spread(builder, b, INTS.vector))


@define(INTS, INTS, INTS)
def bor(builder: Any, a: Any, b: Any) -> Any:
    return builder.or_(a, b)


@define(FLOATS, INTS)
def to_floats(builder: Any, a: Any) -> Any:
    return builder.sitofp(a, FLOATS.vector)


@define(FLOATS)
def zeros(builder: Any) -> Any:
    return ir.Constant(FLOATS.vector, None)


@define(FLOATS, types.float32)
def everywhere(builder: Any, a: Any) -> Any:
    """One number in all lanes."""
    return spread(builder, a, FLOATS.vector)


@define(FLOATS, FLOATS, FLOATS)
def times(builder: Any, a: Any, b: Any) -> Any:
    return builder.fmul(a, b, flags=FUSED)


@define(FLOATS, FLOATS, types.float32)
def scaled(builder: Any, a: Any, factor: Any) -> Any:
    return builder.fmul(a, spread(builder, factor, FLOATS.vector), flags=FUSED)


@define(FLOATS, FLOATS, FLOATS)
def plus(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b, flags=FUSED)


@define(FLOATS, FLOATS, FLOATS, FLOATS)
def madd(builder: Any, a: Any, b: Any, total: Any) -> Any:
    """total + a b."""
    return builder.fadd(total, builder.fmul(a, b, flags=FUSED), flags=FUSED)


@define(FLOATS, FLOATS, types.float32, FLOATS)
def madd_scalar(builder: Any, a: Any, factor: Any, total: Any) -> Any:
    """total + a times one number."""
    product = builder.fmul(a, spread(builder, factor, FLOATS.vector), flags=FUSED)
    return builder.fadd(total, product, flags=FUSED)


@define(FLOATS, FLOATS)
def nearest(builder: Any, a: Any) -> Any:
    """Rounded to whole numbers, half to even."""
    return vector_math.nearest(builder, a)


@define(types.float32, FLOATS)
def total_of(builder: Any, a: Any) -> Any:
    """The sum of all lanes, in whatever order is fastest."""
    return call_named(builder, f"llvm.vector.reduce.fadd.v{LANES}f32", _FLOAT, [_FLOAT(0.0), a], fastmath=("reassoc",))


@define(FLOATS, FLOATS, FLOATS)
def over(builder: Any, a: Any, b: Any) -> Any:
    return builder.fdiv(a, b)


@define(FLOATS, FLOATS, FLOATS)
def less(builder: Any, a: Any, b: Any) -> Any:
    """a - b."""
    return builder.fsub(a, b, flags=FUSED)


@define(FLOATS, FLOATS, FLOATS)
def larger(builder: Any, a: Any, b: Any) -> Any:
    """The greater of two numbers."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@define(FLOATS, FLOATS, types.intp, types.intp, types.float32)
def keep_lanes(builder: Any, a: Any, first: Any, stop: Any, other: Any) -> Any:
    """The lanes first…stop-1, which may be out of range, and another number in the others."""
    lanes = ir.Constant(INTS.vector, list(range(LANES)))
    begin, end = (spread(builder, builder.trunc(x, _WORD), INTS.vector) for x in (first, stop))
    inside = builder.and_(builder.icmp_signed(">=", lanes, begin), builder.icmp_signed("<", lanes, end))
    return builder.select(inside, a, spread(builder, other, FLOATS.vector))


@define(types.float32, FLOATS)
def largest_of(builder: Any, a: Any) -> Any:
    """The greatest of all lanes."""
    return call_named(builder, f"llvm.vector.reduce.fmax.v{LANES}f32", _FLOAT, [a], fastmath=("nnan",))


def _function(op: str) -> Any:
    """An op of one operand for kernels to call."""
    emit = emit_op(op)

    def build(builder: Any, x: Any) -> Any:
        return emit(builder, x)

    build.__name__ = op
    return define(FLOATS, FLOATS)(build)


exp, tanh, silu, gelu_tanh = (_function(op) for op in ("exp", "tanh", "silu", "gelu_tanh"))


# --- whole numbers ---

_HALF_LANES = LANES // 2


def joined(builder: Any, parts: list[Any]) -> Any:
    """Vectors of the same length one after the other."""
    while len(parts) > 1:
        lanes = ir.Constant(ir.VectorType(_WORD, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [builder.shuffle_vector(parts[i], parts[i + 1], lanes) for i in range(0, len(parts), 2)]
    return parts[0]


@define(types.void, ADDRESS, types.intp, ADDRESS)
def turn_bytes(builder: Any, at: Any, stride: Any, to: Any) -> None:
    """16 rows of 16 bytes, `stride` apart, written as columns that are LANES apart."""
    count = 16
    kind = ir.VectorType(_BYTE, count)
    rows = []
    for i in range(count):
        rows.append(builder.load(pointer(builder, builder.add(at, builder.mul(stride, _LONG(i))), kind)))
        rows[-1].align = 1
    halves = [[i // 2 + first + count * (i % 2) for i in range(count)] for first in (0, count // 2)]
    orders = [ir.Constant(ir.VectorType(_WORD, count), half) for half in halves]
    # Each round puts rows i and i + 8 together like two halves of a deck of cards; after four every column is a row.
    for _ in range(4):
        rows = [builder.shuffle_vector(rows[i], rows[i + count // 2], order) for i in range(count // 2) for order in orders]
    for i, column in enumerate(rows):
        builder.store(column, pointer(builder, builder.add(to, _LONG(i * LANES)), kind)).align = 1


@define(types.void, ADDRESS, types.intp, ADDRESS)
def turn_words(builder: Any, at: Any, stride: Any, to: Any) -> None:
    """16 rows of four words, `stride` bytes apart, written as columns that are LANES words apart."""
    kind, column_kind = ir.VectorType(_WORD, 4), ir.VectorType(_WORD, 16)
    rows = []
    for i in range(16):
        rows.append(builder.load(pointer(builder, builder.add(at, builder.mul(stride, _LONG(i))), kind)))
        rows[-1].align = 1

    def mix(a: Any, b: Any, first: int, width: int) -> Any:
        """In each four lanes `width` of a and as many of b, in turns, from lane `first` of the four on."""
        order = [first + i * width + j + side for i in range(2 // width) for side in (0, 16) for j in range(width)]
        places = ir.Constant(column_kind, [4 * four + x for four in range(4) for x in order])
        return builder.shuffle_vector(a, b, places)

    # Rows i, i + 4, i + 8 and i + 12 side by side: four squares of four are turned at once.
    wide = [joined(builder, rows[i::4]) for i in range(4)]
    pairs = [mix(wide[i], wide[i + 1], first, 1) for first in (0, 2) for i in (0, 2)]
    turned = [mix(pairs[i], pairs[i + 1], first, 2) for i in (0, 2) for first in (0, 2)]
    for i, column in enumerate(turned):
        builder.store(column, pointer(builder, builder.add(to, _LONG(i * 4 * LANES)), column_kind)).align = 1


@define(types.void, ADDRESS, ADDRESS)
def copy_short(builder: Any, to: Any, source: Any) -> None:
    """Copies two bytes."""
    value = builder.load(pointer(builder, source, _SHORT))
    value.align = 1
    builder.store(value, pointer(builder, to, _SHORT)).align = 1


@define(INTS, types.int32)
def whole_everywhere(builder: Any, a: Any) -> Any:
    """One whole number in all lanes."""
    return spread(builder, a, INTS.vector)


@define(INTS, INTS, INTS)
def whole_plus(builder: Any, a: Any, b: Any) -> Any:
    return builder.add(a, b)


@define(INTS, FLOATS)
def to_whole(builder: Any, a: Any) -> Any:
    """Whole numbers below 2**31 as such."""
    return builder.fptosi(a, INTS.vector)


@define(INTS, FLOATS)
def bits_of(builder: Any, a: Any) -> Any:
    return builder.bitcast(a, INTS.vector)


@define(types.float32, types.int32)
def float_of_bits(builder: Any, a: Any) -> Any:
    return builder.bitcast(a, _FLOAT)


@define(INTS, INTS, types.int32)
def bxor(builder: Any, a: Any, mask: Any) -> Any:
    return builder.xor(a, spread(builder, mask, INTS.vector))


def _half_of(builder: Any, a: Any, upper: Any) -> Any:
    """The lower half of the lanes, or the upper one."""
    undefined, wide = ir.Constant(a.type, ir.Undefined), ir.VectorType(_WORD, _HALF_LANES)
    halves = (builder.shuffle_vector(a, undefined, ir.Constant(wide, list(range(i, i + _HALF_LANES)))) for i in (0, _HALF_LANES))
    low, high = halves
    return builder.select(builder.icmp_signed("!=", upper, _LONG(0)), high, low)


@define(types.int32, INTS, types.intp)
def half_total(builder: Any, a: Any, upper: Any) -> Any:
    """The sum of the lower half of the lanes, or of the upper one."""
    return call_named(builder, f"llvm.vector.reduce.add.v{_HALF_LANES}i32", _WORD, [_half_of(builder, a, upper)])


@define(types.float32, FLOATS, types.intp)
def half_sum(builder: Any, a: Any, upper: Any) -> Any:
    """The same for floats, in whatever order is fastest."""
    operands = [_FLOAT(0.0), _half_of(builder, a, upper)]
    return call_named(builder, f"llvm.vector.reduce.fadd.v{_HALF_LANES}f32", _FLOAT, operands, fastmath=("reassoc",))


@define(types.int32, INTS)
def most_of(builder: Any, a: Any) -> Any:
    """The greatest of all lanes."""
    return call_named(builder, f"llvm.vector.reduce.smax.v{LANES}i32", _WORD, [a])


@define(types.void, ADDRESS, INTS)
def store_bytes(builder: Any, at: Any, a: Any) -> None:
    """The lowest byte of each lane, side by side."""
    low = builder.trunc(a, ir.VectorType(_BYTE, LANES))
    builder.store(low, pointer(builder, at, low.type)).align = 1


@define(types.void, ADDRESS, types.int32)
def set_int(builder: Any, at: Any, value: Any) -> None:
    builder.store(value, pointer(builder, at, _WORD))
