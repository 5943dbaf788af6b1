// Errors with the codes of Python's errors.py: what went wrong, what to do about it, and the things that it is about.

export type Fields = Record<string, unknown>;

/** The base of all errors of the runtime. `code` is stable; `hint` says what to do. */
export class PumiceError extends Error {
  readonly code: string = "error";
  constructor(
    message: string,
    readonly hint: string = "",
    readonly fields: Fields = {},
  ) {
    super(message);
    this.name = new.target.name;
  }
}

export class InputError extends PumiceError { override readonly code: string = "input"; }
export class UnknownName extends InputError { override readonly code = "unknown-name"; }
export class MissingName extends InputError { override readonly code = "missing-name"; }
export class ShapeError extends InputError { override readonly code = "shape"; }
export class DTypeError extends InputError { override readonly code = "dtype"; }
export class SymbolError extends InputError { override readonly code = "symbol"; }
export class IndexRangeError extends InputError { override readonly code = "index-range"; }
export class DataError extends InputError { override readonly code = "data"; }
export class FormatError extends InputError { override readonly code: string = "format"; }
export class DamagedFile extends FormatError { override readonly code = "damaged-file"; }
export class DiskFull extends PumiceError { override readonly code = "disk-full"; }
export class Diverged extends PumiceError { override readonly code = "diverged"; }
export class NotFinite extends PumiceError { override readonly code = "not-finite"; }
export class PlanError extends PumiceError { override readonly code: string = "plan"; }
export class LimitError extends PlanError { override readonly code = "limit"; }
export class ShaderError extends PlanError { override readonly code = "shader"; }
export class DeviceError extends PumiceError { override readonly code: string = "device"; }
export class NoDevice extends DeviceError { override readonly code = "no-device"; }
export class DeviceLost extends DeviceError { override readonly code = "device-lost"; }
export class OutOfMemory extends DeviceError { override readonly code = "out-of-memory"; }
export class RunCancelled extends PumiceError { override readonly code = "run-cancelled"; }
export class ClosedError extends PumiceError { override readonly code = "closed"; }
export class SourceError extends PumiceError { override readonly code: string = "source"; }
export class NotFound extends SourceError { override readonly code = "not-found"; }
export class NoNetwork extends SourceError { override readonly code = "no-network"; }
export class WrongHash extends SourceError { override readonly code = "wrong-hash"; }

const CLASSES = [
  PumiceError, InputError, UnknownName, MissingName, ShapeError, DTypeError, SymbolError, IndexRangeError, DataError,
  FormatError, DamagedFile, DiskFull, Diverged, NotFinite, PlanError, LimitError, ShaderError, DeviceError, NoDevice, DeviceLost, OutOfMemory,
  RunCancelled, ClosedError, SourceError, NotFound, NoNetwork, WrongHash,
];
const BY_CODE = new Map(CLASSES.map((kind) => [new kind("").code, kind]));

/** The error of the class that a code names, such as one that came from another thread; unknown codes give the base class. */
export function errorFrom(code: string, message: string, hint = "", fields: Fields = {}): PumiceError {
  return new (BY_CODE.get(code) ?? PumiceError)(message, hint, fields);
}
