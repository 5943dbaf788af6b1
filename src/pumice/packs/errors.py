"""Errors of kernel packs: what is wrong with a pack, and what went wrong while one of its kernels ran."""

from __future__ import annotations

from pumice.errors import InputError, PumiceError


class PackError(InputError):
    """A pack that is refused; nothing of it has been compiled."""

    code = "pack"
    exit_code = 4


class InvalidManifest(PackError):
    """A manifest that is not as docs/packs.md says; the message names the field."""

    code = "invalid-manifest"


class UnsafePack(PackError):
    """A folder or zip that could do harm or mean two things: links, escapes, duplicates, bombs, sizes."""

    code = "unsafe-pack"


class KernelNotFound(PackError):
    """A kernel or pack of that name that is not there (`pack:NAME` for packs)."""

    code = "kernel-not-found"


class HashMismatch(PackError):
    """A file whose SHA-256 is not the one in the manifest."""

    code = "hash-mismatch"


class InvalidSignature(PackError):
    """A signature that is malformed or not of these bytes."""

    code = "invalid-signature"


class NoTrustedKey(PackError):
    """A pack that no trusted key has signed."""

    code = "no-trusted-key"


class KeyRevoked(PackError):
    """A key that its owner or this machine has revoked."""

    code = "key-revoked"


class InvalidKey(PackError):
    """A key that is malformed, unknown or cannot be opened with that passphrase."""

    code = "invalid-key"


class InvalidTrustStore(PackError):
    """A file of trusted keys or allowed kernels that is damaged, or an entry that it cannot hold; nothing is trusted by it."""

    code = "invalid-trust-store"


class RuntimeTooOld(PackError):
    """A pack for newer versions of Pumice."""

    code = "runtime-too-old"


class RuntimeTooNew(PackError):
    """A pack for older versions of Pumice."""

    code = "runtime-too-new"


class VersionIncompatible(PackError):
    """A range of versions that cannot be read or holds none."""

    code = "version-incompatible"


class MissingFeature(PackError):
    """A kernel that needs what this runtime or device does not have."""

    code = "missing-feature"


class NotInAllowlist(PackError):
    """A kernel that the allowlist in force does not name with this hash."""

    code = "not-in-allowlist"


class BuildFailed(PackError):
    """A pack that cannot be built: a source that does not compile, or a file that is not there."""

    code = "build-failed"


class PackStateError(PackError):
    """An order that the installed packs do not allow, such as a rollback without an earlier pack."""

    code = "pack-state"


class HealthCheckFailed(PackError):
    """A pack that did not pass its health check; the one before it stays active."""

    code = "health-check-failed"


class PackKernelError(PumiceError):
    """A kernel of a pack that could not do its work; its result is not used."""

    code = "pack-kernel"


class InvalidModule(PackKernelError):
    """A WASM module that does not validate, imports anything, or lacks an export of the right type."""

    code = "invalid-module"


class ResourceLimit(PackKernelError):
    """A kernel that declares or takes more memory, tables, globals, stack or instances than it may."""

    code = "resource-limit"


class EpochDeadline(PackKernelError):
    """A kernel that ran past its deadline and was stopped."""

    code = "epoch-deadline"


class KernelTrap(PackKernelError):
    """A kernel that trapped; `trap` says how."""

    code = "kernel-trap"


class StackOverflow(PackKernelError):
    """A kernel that recursed beyond its stack."""

    code = "stack-overflow"


class Unreachable(PackKernelError):
    """A kernel that reached code it declares unreachable."""

    code = "unreachable"


class IntegerOverflow(PackKernelError):
    """A kernel that overflowed or divided an integer by zero."""

    code = "integer-overflow"


class IndirectCallTypeMismatch(PackKernelError):
    """A kernel that called through its table with another type."""

    code = "indirect-call-type"


class MemoryAccessViolation(PackKernelError):
    """A region outside the memory, or a kernel that wrote outside its output; `offset` and `size` say where."""

    code = "memory-access"


class AllocationFailed(PackKernelError):
    """Regions that do not fit the memory; `requested_bytes` says how much was asked for."""

    code = "allocation-failed"


class InvalidParameters(PackKernelError):
    """A parameter outside its type or range, or regions that overlap."""

    code = "invalid-parameters"


class ShapeMismatch(PackKernelError):
    """Arrays whose shapes the kernel's patterns do not match."""

    code = "shape-mismatch"


class DTypeMismatch(PackKernelError):
    """Arrays of another dtype than the kernel declares."""

    code = "dtype-mismatch"


class InitializationFailed(PackKernelError):
    """A kernel whose kernel_init returned an error code."""

    code = "initialization-failed"


class KernelCode(PackKernelError):
    """A kernel that returned an error code, `kernel_code`.

    1 invalid input, 2 invalid output, 3 invalid params, 4 out of memory, 5 not implemented, 6 and all others internal.
    """

    code = "kernel-code"


class PackKernelFailed(PackKernelError):
    """A kernel and all its fallbacks failed; the built-in kernel does the work."""

    code = "pack-kernel-failed"


class KernelDisabled(PackKernelError):
    """A kernel that was compared with the reference and found wrong, slow or endless here; `reason` says which."""

    code = "kernel-disabled"
