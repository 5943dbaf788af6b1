export type Fields = Record<string, unknown>;
/** The base of all errors of the runtime. `code` is stable; `hint` says what to do. */
export declare class PumiceError extends Error {
    readonly hint: string;
    readonly fields: Fields;
    readonly code: string;
    constructor(message: string, hint?: string, fields?: Fields);
}
export declare class InputError extends PumiceError {
    readonly code: string;
}
export declare class UnknownName extends InputError {
    readonly code = "unknown-name";
}
export declare class MissingName extends InputError {
    readonly code = "missing-name";
}
export declare class ShapeError extends InputError {
    readonly code = "shape";
}
export declare class DTypeError extends InputError {
    readonly code = "dtype";
}
export declare class SymbolError extends InputError {
    readonly code = "symbol";
}
export declare class IndexRangeError extends InputError {
    readonly code = "index-range";
}
export declare class DataError extends InputError {
    readonly code = "data";
}
export declare class FormatError extends InputError {
    readonly code: string;
}
export declare class DamagedFile extends FormatError {
    readonly code = "damaged-file";
}
export declare class DiskFull extends PumiceError {
    readonly code = "disk-full";
}
export declare class Diverged extends PumiceError {
    readonly code = "diverged";
}
export declare class NotFinite extends PumiceError {
    readonly code = "not-finite";
}
export declare class PlanError extends PumiceError {
    readonly code: string;
}
export declare class LimitError extends PlanError {
    readonly code = "limit";
}
export declare class ShaderError extends PlanError {
    readonly code = "shader";
}
export declare class DeviceError extends PumiceError {
    readonly code: string;
}
export declare class NoDevice extends DeviceError {
    readonly code = "no-device";
}
export declare class DeviceLost extends DeviceError {
    readonly code = "device-lost";
}
export declare class OutOfMemory extends DeviceError {
    readonly code = "out-of-memory";
}
export declare class RunCancelled extends PumiceError {
    readonly code = "run-cancelled";
}
export declare class ClosedError extends PumiceError {
    readonly code = "closed";
}
export declare class SourceError extends PumiceError {
    readonly code: string;
}
export declare class NotFound extends SourceError {
    readonly code = "not-found";
}
export declare class NoNetwork extends SourceError {
    readonly code = "no-network";
}
export declare class WrongHash extends SourceError {
    readonly code = "wrong-hash";
}
/** The error of the class that a code names, such as one that came from another thread; unknown codes give the base class. */
export declare function errorFrom(code: string, message: string, hint?: string, fields?: Fields): PumiceError;
