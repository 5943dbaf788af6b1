// Arrays as they cross the borders of the runtime: a dtype, a shape, and the elements in a typed array.

import { DTypeError, ShapeError } from "./errors.js";
import { shapeText } from "./text.js";

export type DType = "f32" | "f16" | "bf16" | "i32" | "u32" | "i8" | "u8" | "bool";
export type TypedArray = Float32Array | Int32Array | Uint32Array | Uint16Array | Int8Array | Uint8Array;

/** An array, dense and row-major. f16 and bf16 are raw bits in a Uint16Array, bool is 0 or 1 in a Uint8Array. */
export interface NDArray {
  dtype: DType;
  shape: number[];
  data: TypedArray;
}

interface Storage {
  bytes: number;
  kind: "float" | "int" | "bool";
  make: new (buffer: ArrayBuffer) => TypedArray;
}

const STORAGE: Record<DType, Storage> = {
  f32: { bytes: 4, kind: "float", make: Float32Array },
  f16: { bytes: 2, kind: "float", make: Uint16Array },
  bf16: { bytes: 2, kind: "float", make: Uint16Array },
  i32: { bytes: 4, kind: "int", make: Int32Array },
  u32: { bytes: 4, kind: "int", make: Uint32Array },
  i8: { bytes: 1, kind: "int", make: Int8Array },
  u8: { bytes: 1, kind: "int", make: Uint8Array },
  bool: { bytes: 1, kind: "bool", make: Uint8Array },
};
const RANGES: Partial<Record<DType, [number, number]>> = {
  i32: [-(2 ** 31), 2 ** 31 - 1],
  u32: [0, 2 ** 32 - 1],
  i8: [-128, 127],
  u8: [0, 255],
};

/** Whether a name is that of a dtype that is not quantised. */
export function isPlain(dtype: string): dtype is DType {
  return Object.hasOwn(STORAGE, dtype);
}

/** Bytes of an element. */
export function itemBytes(dtype: DType): number {
  return STORAGE[dtype].bytes;
}

/** Elements of a shape. */
export function elements(shape: readonly number[]): number {
  let count = 1;
  for (const n of shape) count *= n;
  return count;
}

/** The array that some bytes are; it takes the buffer over. */
export function fromBytes(dtype: DType, shape: readonly number[], bytes: ArrayBuffer): NDArray {
  return { dtype, shape: [...shape], data: new STORAGE[dtype].make(bytes) };
}

/** An array of zeros. */
export function zeros(dtype: DType, shape: readonly number[]): NDArray {
  return fromBytes(dtype, shape, new ArrayBuffer(elements(shape) * itemBytes(dtype)));
}

/** An array of numbers in a dtype; floats are rounded to the nearest even. */
export function fromNumbers(dtype: DType, shape: readonly number[], numbers: ArrayLike<number>): NDArray {
  const made = zeros(dtype, shape);
  if (numbers.length !== made.data.length) {
    throw new ShapeError(`${numbers.length} numbers do not fill the shape ${shapeText(shape)}`);
  }
  const encode = dtype === "f16" ? toF16 : dtype === "bf16" ? toBf16 : null;
  for (let i = 0; i < numbers.length; i++) made.data[i] = encode ? encode(numbers[i]!) : numbers[i]!;
  return made;
}

/** The elements as numbers: f16 and bf16 decoded, everything else as it is. */
export function toNumbers(array: NDArray): TypedArray {
  if (array.dtype !== "f16" && array.dtype !== "bf16") return array.data;
  const decode = array.dtype === "f16" ? fromF16 : fromBf16;
  return Float32Array.from(array.data, decode);
}

/** Refuses data that does not belong to its dtype and shape; `what` names the array. */
export function checkArray(array: NDArray, what: string): void {
  if (!isPlain(array?.dtype) || !Array.isArray(array.shape) || !(array.data instanceof STORAGE[array.dtype].make)) {
    const wanted = isPlain(array?.dtype) ? STORAGE[array.dtype].make.name : Object.keys(STORAGE).join(" ");
    throw new DTypeError(
      `${what} is no array of the runtime: its dtype is ${String(array?.dtype).slice(0, 40)}`,
      `give {dtype, shape, data}, data as ${wanted}`,
    );
  }
  if (!array.shape.every((n) => Number.isSafeInteger(n) && n >= 0) || elements(array.shape) !== array.data.length) {
    const shape = shapeText(array.shape.map(String));
    throw new ShapeError(`${what} has ${array.data.length} elements, not those of the shape ${shape}`, "", {
      got: array.shape,
    });
  }
  if (array.dtype === "bool" && array.data.some((v) => v > 1)) {
    throw new DTypeError(`${what} is bool and holds other bytes than 0 and 1`, "write 1 for true");
  }
}

/** An array in a dtype: floats convert to floats of another width, integers where every value fits, as in Python. */
export function convert(array: NDArray, dtype: DType, name: string): NDArray {
  if (array.dtype === dtype) return array;
  const [from, to] = [STORAGE[array.dtype].kind, STORAGE[dtype].kind];
  if (from !== to || from === "bool") {
    throw new DTypeError(`${name} must be ${dtype}, got ${array.dtype}`, `convert it first, to ${dtype}`, {
      name,
      expected: dtype,
      got: array.dtype,
    });
  }
  const [least, most] = RANGES[dtype] ?? [-Infinity, Infinity];
  const numbers = toNumbers(array);
  if (to === "int") {
    for (const v of numbers) {
      if (v < least || v > most) {
        throw new DTypeError(`${name} holds ${v}, which does not fit ${dtype}`, "", { name, expected: dtype });
      }
    }
  }
  return fromNumbers(dtype, array.shape, numbers);
}

// -- sixteen-bit floats -----------------------------------------------------------------------------------------------
const bits = new Uint32Array(1);
const float = new Float32Array(bits.buffer);

/** A number as the bits of an f32. */
function bitsOf(x: number): number {
  float[0] = x;
  return bits[0]!;
}

/** A number as the bits of a bf16, rounded to the nearest even. */
export function toBf16(x: number): number {
  const b = bitsOf(x);
  if (Number.isNaN(x)) return ((b >>> 16) & 0x8000) | 0x7fc0;
  return ((b + 0x7fff + ((b >>> 16) & 1)) >>> 16) & 0xffff;
}

/** The number that the bits of a bf16 are. */
export function fromBf16(half: number): number {
  bits[0] = half << 16;
  return float[0]!;
}

/** A number as the bits of an f16, rounded to the nearest even. */
export function toF16(x: number): number {
  const b = bitsOf(x);
  const sign = (b >>> 16) & 0x8000;
  const size = b & 0x7fffffff;
  if (size > 0x7f800000) return sign | 0x7e00;
  if (size >= 0x477ff000) return sign | 0x7c00;
  if (size < 0x38800000) {
    // Below the smallest normal number: a multiple of 2^-24. Doubles have room to spare, so it is rounded once.
    const scaled = Math.abs(fround(b)) * 2 ** 24;
    const whole = Math.floor(scaled);
    const rest = scaled - whole;
    return sign | (whole + (rest > 0.5 || (rest === 0.5 && whole % 2 === 1) ? 1 : 0));
  }
  return sign | ((size - 0x38000000 + 0xfff + ((size >>> 13) & 1)) >>> 13);
}

function fround(b: number): number {
  bits[0] = b;
  return float[0]!;
}

/** The number that the bits of an f16 are. */
export function fromF16(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 31;
  const fraction = half & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -24 * fraction;
}
