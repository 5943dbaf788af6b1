export type DType = "f32" | "f16" | "bf16" | "i32" | "u32" | "i8" | "u8" | "bool";
export type TypedArray = Float32Array | Int32Array | Uint32Array | Uint16Array | Int8Array | Uint8Array;
/** An array, dense and row-major. f16 and bf16 are raw bits in a Uint16Array, bool is 0 or 1 in a Uint8Array. */
export interface NDArray {
    dtype: DType;
    shape: number[];
    data: TypedArray;
}
/** Whether a name is that of a dtype that is not quantised. */
export declare function isPlain(dtype: string): dtype is DType;
/** Bytes of an element. */
export declare function itemBytes(dtype: DType): number;
/** Elements of a shape. */
export declare function elements(shape: readonly number[]): number;
/** The array that some bytes are; it takes the buffer over. */
export declare function fromBytes(dtype: DType, shape: readonly number[], bytes: ArrayBuffer): NDArray;
/** An array of zeros. */
export declare function zeros(dtype: DType, shape: readonly number[]): NDArray;
/** An array of numbers in a dtype; floats are rounded to the nearest even. */
export declare function fromNumbers(dtype: DType, shape: readonly number[], numbers: ArrayLike<number>): NDArray;
/** The elements as numbers: f16 and bf16 decoded, everything else as it is. */
export declare function toNumbers(array: NDArray): TypedArray;
/** Refuses data that does not belong to its dtype and shape; `what` names the array. */
export declare function checkArray(array: NDArray, what: string): void;
/** An array in a dtype: floats convert to floats of another width, integers where every value fits, as in Python. */
export declare function convert(array: NDArray, dtype: DType, name: string): NDArray;
/** A number as the bits of a bf16, rounded to the nearest even. */
export declare function toBf16(x: number): number;
/** The number that the bits of a bf16 are. */
export declare function fromBf16(half: number): number;
/** A number as the bits of an f16, rounded to the nearest even. */
export declare function toF16(x: number): number;
/** The number that the bits of an f16 are. */
export declare function fromF16(half: number): number;
