"""Caps: the limits and features of a target as data, so that planning needs no device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pumice.core.records import dataclass
from pumice.core.tuning import Tuning, shipped
from pumice.errors import UnknownName

MIB = 1 << 20
_EMBEDDING_TOKENS = {"webgpu": 8192, "host": 1024}


@dataclass(frozen=True, slots=True)
class Caps:
    """What a target can do. Presets: `Caps.preset("browser-baseline" | "lavapipe" | "h200" | "host")`, and those in `BROWSERS`.

    >>> Caps.preset("browser-baseline").max_storage_buffers
    8
    >>> Caps.preset("lavapipe").with_(subgroups=False).subgroups
    False
    """

    name: str
    target: Literal["webgpu", "host"]
    max_storage_buffers: int = 8
    max_binding_bytes: int = 128 * MIB
    max_buffer_bytes: int = 256 * MIB
    max_uniform_bytes: int = 64 << 10
    storage_alignment: int = 256
    uniform_alignment: int = 256
    max_groups: int = 65535
    max_invocations: int = 256
    max_workgroup_x: int = 256
    workgroup_memory: int = 16 << 10
    f16: bool = False
    subgroups: bool = False
    subgroup_size: int = 0
    # Whether every kernel runs in subgroups of that size, threads in the order of their numbers.
    subgroup_fixed: bool = False
    # Matrix units: subgroups multiply 16 x 16 matrices of f16 or bf16, with sums in f32.
    matrix_f16: bool = False
    matrix_bf16: bool = False
    timestamps: bool = False
    # Software rasterisers and CPUs: enough work in flight is a few threads, not thousands.
    software: bool = False
    # Measured rates of such a device; the device layer looks them up.
    tuning: Tuning | None = None

    @staticmethod
    def preset(name: str) -> Caps:
        """The preset of that name."""
        if name not in PRESETS:
            raise UnknownName(f"there is no caps preset {name!r}", hint="one of " + " ".join(PRESETS))
        return PRESETS[name]

    def with_(self, **changes: Any) -> Caps:
        """A copy with some fields changed."""
        return replace(self, **changes)

    # -- what steps are -------------------------------------------------------------------------------------------------
    @property
    def dispatches(self) -> bool:
        """Whether steps are dispatches of kernels, with bindings and a grid; else each is a call of a host routine."""
        return self.target == "webgpu"

    @property
    def generates_kernels(self) -> bool:
        """Whether a routine's kernel is written for its group: it can compute operands where it reads them, join gate and up of a
        gated layer and hold constants as literals. Host routines are ready-made and read memory.
        """
        return self.target == "webgpu"

    @property
    def merges_matmuls(self) -> bool:
        """Whether one large matmul beats several of the same operand: dispatches cost, calls of host routines cost little.

        The parts of a merged result are strided, which costs the host more than merging gains.
        """
        return self.target == "webgpu"

    @property
    def turns_matmuls(self) -> bool:
        """Whether matmuls read transposed operands for nothing: one that is only read transposed then computes its transpose."""
        return self.target == "host"

    @property
    def multiplies_bytes(self) -> bool:
        """Whether matmuls gain from activations of 8 bits, which they then read as they are (`precision="fast"`).

        WGSL's kernels compute in f32: elsewhere the activations are rounded first, and the matmul is the exact one.
        """
        return self.target == "host"

    @property
    def is_gpu(self) -> bool:
        """Whether it is hardware that runs kernels: WebGPU, and no software rasteriser."""
        return self.target == "webgpu" and not self.software

    # -- memory ---------------------------------------------------------------------------------------------------------
    @property
    def usable_bindings(self) -> int:
        """Storage buffers that a kernel may bind: one of more than a browser's default is left to the runtime."""
        return self.max_storage_buffers - (1 if self.max_storage_buffers > 8 else 0)

    @property
    def exclusive_writes(self) -> bool:
        """Whether a step that writes to a buffer must not read from it, not even elsewhere: WebGPU forbids it."""
        return self.target == "webgpu"

    @property
    def word_stores(self) -> bool:
        """Whether stores write whole 32-bit words, so that elements of fewer bits share one; the host stores bytes."""
        return self.target == "webgpu"

    @property
    def splits_params(self) -> bool:
        """Whether a param larger than a binding is stored in parts."""
        return self.target == "webgpu"

    # -- what keeps it busy ---------------------------------------------------------------------------------------------
    @property
    def busy_groups(self) -> int:
        """Workgroups that keep the device busy: a software device has a few cores, a GPU about a hundred and more.

        >>> Caps.preset("h200").busy_groups, Caps.preset("lavapipe").busy_groups
        (128, 2)
        """
        return 2 if self.software else 128

    def workgroup(self, most: int) -> int:
        """Threads of a workgroup that has use for up to `most`.

        A software device runs the threads of a workgroup on one core, where more than a few vectors of them gain nothing.

        >>> [Caps.preset(p).workgroup(512) for p in ("h200", "browser-baseline", "lavapipe")]
        [512, 256, 64]
        """
        return min(most, 64 if self.software else most, self.max_invocations, self.max_workgroup_x)

    @property
    def serial_threads(self) -> bool:
        """Whether the threads of a workgroup run serially on one core: barriers are slow, sharing small work gains nothing."""
        return self.software

    @property
    def avoids_barriers(self) -> bool:
        """Whether threads should share nothing: they run serially, and without subgroups they only meet at barriers, which take
        long to compile and to run.

        >>> Caps.preset("browser-software").avoids_barriers, Caps.preset("lavapipe").avoids_barriers
        (True, False)
        """
        return self.serial_threads and not self.subgroups

    @property
    def loop_rounds(self) -> int | None:
        """The rounds that all loops of a thread may have together; None for any number.

        Mesa's llvmpipe, the software device that has subgroups, ends loops without an error after so many.

        >>> Caps.preset("lavapipe").loop_rounds, Caps.preset("h200").loop_rounds
        (65535, None)
        """
        return 65535 if self.serial_threads and self.subgroups else None

    @property
    def splits_sums(self) -> bool:
        """Whether several workgroups should share a long sum, which another kernel completes: there are idle ones without it."""
        return not self.software

    @property
    def unrolls(self) -> bool:
        """Whether loops should be written out: the loads of several rounds are then in flight, as global memory is slow.

        A software device has no latency to hide, and compiles long shaders slowly.
        """
        return not self.software

    @property
    def long_shaders(self) -> bool:
        """Whether shaders may be long, as on large GPUs; elsewhere it takes a browser seconds to compile them."""
        return self.unrolls and self.max_invocations >= 1024

    @property
    def coalesced_threads(self) -> int:
        """Neighbouring threads whose loads of neighbouring elements become one."""
        return 8 if self.software else 32

    @property
    def keeps_plans(self) -> bool:
        """Whether a plan from the user's cache is as good as one just made. Kernels from a file run with WebGPU's guards."""
        return self.target == "host"

    # -- language models ------------------------------------------------------------------------------------------------
    @property
    def overlaps_host(self) -> bool:
        """Whether a run goes on while the host does other work. A software device shares the host's cores."""
        return not self.software

    @property
    def joined_cache(self) -> bool:
        """Whether the keys and values of a layer are one state, which one dispatch updates; host calls cost little."""
        return self.target == "webgpu"

    @property
    def embedding_tokens(self) -> int:
        """Tokens of texts that are embedded together: they fill a GPU; on the host, their activations stay in cache."""
        return _EMBEDDING_TOKENS[self.target]


# What a web folder has plans for, in the order in which a browser tries them. Those with subgroups have f16 too, though no
# kernel computes in it yet. GPUs whose subgroups all have 32 threads are large ones, with larger limits.
_SUBGROUPS = Caps("browser-subgroups", "webgpu", f16=True, subgroups=True)
BROWSERS = {
    caps.name: caps
    for caps in (
        Caps("browser-software", "webgpu", software=True),
        _SUBGROUPS.with_(
            name="browser-subgroups-32",
            max_storage_buffers=10,
            max_binding_bytes=1 << 30,
            max_buffer_bytes=2 << 30,
            max_invocations=512,
            max_workgroup_x=512,
            workgroup_memory=32 << 10,
            subgroup_size=32,
            subgroup_fixed=True,
        ),
        _SUBGROUPS,
        Caps("browser-baseline", "webgpu"),
    )
}
PRESETS = {
    **BROWSERS,
    "lavapipe": Caps(
        "lavapipe",
        "webgpu",
        max_storage_buffers=16,
        max_buffer_bytes=(2 << 30) - 4,
        storage_alignment=32,
        uniform_alignment=64,
        max_invocations=1024,
        max_workgroup_x=1024,
        workgroup_memory=32 << 10,
        f16=True,
        subgroups=True,
        subgroup_size=8,
        subgroup_fixed=True,
        timestamps=True,
        software=True,
    ),
    "h200": Caps(
        "h200",
        "webgpu",
        max_storage_buffers=16,
        max_binding_bytes=(2 << 30) - 4,
        max_buffer_bytes=(4 << 30) - 4,
        storage_alignment=32,
        uniform_alignment=64,
        max_invocations=1024,
        max_workgroup_x=1024,
        workgroup_memory=48 << 10,
        f16=True,
        subgroups=True,
        subgroup_size=32,
        subgroup_fixed=True,
        timestamps=True,
        tuning=shipped("nvidia-hopper"),
    ),
    "host": Caps(
        "host",
        "host",
        max_storage_buffers=1 << 16,
        max_binding_bytes=1 << 62,
        max_buffer_bytes=1 << 62,
        storage_alignment=64,
        max_groups=1 << 62,
        software=True,
    ),
}
