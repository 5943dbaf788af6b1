"""The exception tree: every error has a stable code, structured fields, a hint and, where known, the user's call site."""

from __future__ import annotations

from typing import Any


class PumiceError(Exception):
    """Base of every error Pumice raises.

    `code` is stable across releases, `fields` holds the values the message was made of,
    `hint` says what to do about it, `where` is the user's source line if it is known. `cli_hint` is the hint for a user
    of the command line, where that one is about Python.

    >>> e = ShapeError("cannot add (2,) and (3,)", op="add", hint="make the shapes broadcast")
    >>> e.code, e.fields["op"]
    ('shape', 'add')
    >>> print(e)
    [shape] cannot add (2,) and (3,)
      hint: make the shapes broadcast
    """

    code = "error"
    exit_code = 1

    def __init__(self, message: str, *, hint: str = "", cli_hint: str = "", where: str = "", **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.cli_hint = cli_hint or hint
        self.where = where
        self.fields = fields

    def __str__(self) -> str:
        text = f"[{self.code}] {self.message}"
        if self.where:
            text += f"\n  at: {self.where}"
        if self.hint:
            text += f"\n  hint: {self.hint}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only fields would be lost by the default pickling, and errors cross process borders.
        return _rebuild, (type(self), self.message, self.hint, self.cli_hint, self.where, self.fields)


def _rebuild(cls: type[PumiceError], message: str, hint: str, cli_hint: str, where: str, fields: dict[str, Any]) -> PumiceError:
    return cls(message, hint=hint, cli_hint=cli_hint, where=where, **fields)


class PumiceWarning(UserWarning):
    """Something that works, but not as it should; the text says what to do about it."""


class InputError(PumiceError):
    """Something the caller passed is wrong; nothing has been dispatched."""

    code = "input"
    exit_code = 2


class UnknownName(InputError):
    """A name that the graph, the registry or the configuration does not have."""

    code = "unknown-name"


class MissingName(InputError):
    """A name that had to be given and was not."""

    code = "missing-name"


class ShapeError(InputError):
    """Shapes that do not fit the rule of an op, a spec or a parameter."""

    code = "shape"


class DTypeError(InputError):
    """A dtype that an op, a spec or a parameter does not take."""

    code = "dtype"


class SymbolError(InputError):
    """Symbolic dims that contradict each other or exceed their maximum."""

    code = "symbol"


class IndexRangeError(InputError):
    """Index values outside the tensor that they select from."""

    code = "index-range"


class DataError(InputError):
    """Data that nothing can be learned from, such as NaN; names the input and the place."""

    code = "data"


class FormatError(InputError):
    """A file or text that does not follow its format."""

    code = "format"


class DamagedFile(FormatError):
    """A file whose bytes are not those that were hashed; `fields` name the file and, where known, the chunk and the offset."""

    code = "damaged-file"


class DiskFull(PumiceError):
    """The disk has no space left for a file that was being written; nothing of it remains."""

    code = "disk-full"


class CheckpointMismatch(InputError):
    """A checkpoint of another model, optimizer or data than those it should continue."""

    code = "checkpoint-mismatch"


class Diverged(PumiceError):
    """A training run whose loss is no longer a number."""

    code = "diverged"


class NotFinite(PumiceError):
    """A model whose results are NaN or infinite, so that nothing can be made of them; names the model."""

    code = "not-finite"
    HINT = "its weights are damaged or overflow: check them (pumice pull MODEL --verify), or use another file or format"


class PluginError(PumiceError):
    """A plug-in that cannot be imported, or does not give what it announces; names the package."""

    code = "plugin"


class GraphError(PumiceError):
    """A graph that breaks a rule of the IR."""

    code = "graph"


class PlanError(PumiceError):
    """A plan that would be unsound to run, or a graph that cannot be planned."""

    code = "plan"


class LimitError(PlanError):
    """Something needs more than the target has; names the thing, its size and the limit."""

    code = "limit"


class ShaderError(PlanError):
    """A kernel that the driver's compiler refuses; has the WGSL line and what the compiler says about it."""

    code = "shader"


class DeviceError(PumiceError):
    """The device or its driver failed."""

    code = "device"


class NoDevice(DeviceError):
    """No device that could serve the request."""

    code = "no-device"
    exit_code = 3


class DeviceLost(DeviceError):
    """The device stopped answering; the executable must be rebuilt on a new one."""

    code = "device-lost"


class DeviceTimeout(DeviceLost):
    """The device did not answer in the time that PUMICE_TIMEOUT allows; it counts as lost from then on."""

    code = "timeout"


class OutOfMemory(DeviceError):
    """The device has no memory left for what was asked; what was there before is untouched."""

    code = "out-of-memory"


class DeadlineError(PumiceError):
    """A call to a language model that was not answered before its deadline."""

    code = "deadline"
    HINT = "give it more time, or the engine fewer calls at once"


class QueueFull(PumiceError):
    """A call that was refused because too many wait for the engine already; nothing ran for it."""

    code = "queue-full"
    HINT = "ask again when others have their answers, ask for fewer at once, or allow a longer queue: queue=…"


class RunCancelled(PumiceError):
    """A run that was cancelled at a checkpoint; `fields["complete"]` says whether its states were updated, all of them."""

    code = "run-cancelled"


class ClosedError(PumiceError):
    """The executable or the device was closed before this call."""

    code = "closed"
