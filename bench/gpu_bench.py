"""What the groups of the GPU table share: sizes, precision, PyTorch's processes, a device, and how a call is repeated on it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from measure import SideError, Worker, in_turns, median_seconds, medians
from report import Goal, Row
from warm import Load

import pumice as pm
from pumice.backends.gpu.device import GpuDevice
from pumice.core.dtypes import dtype as get_dtype

HERE = Path(__file__).parent
PEERS = "gpu_peers.py"
PRECISIONS = ("exact", "f16", "bf16")
Side = Callable[[int], float]


@dataclass(frozen=True)
class Sizes:
    """How large everything is that is measured; models are names of shapes.py, `train` those of train_step.py's sizes."""

    matmul: int = 4096
    outputs: int = 4096
    inputs: int = 16384
    copy_bytes: int = 1 << 30
    # Weights that take turns, together larger than any cache, and how often each has its turn.
    weights: int = 8
    rounds_of_weights: int = 8
    models: Mapping[str, str] = field(default_factory=lambda: {n: n for n in ("smollm2", "llama1b", "qwen1.5b", "minilm", "vit")})
    prompt: int = 16
    answer: int = 128
    cache: int = 256
    prefill: int = 512
    long_prefills: tuple[int, ...] = (2048, 8192)
    sequences: tuple[int, ...] = (32, 128)
    # Tokens in the caches of several sequences when they are full, and how many of these are decoded.
    full_cache: int = 128
    new_tokens: int = 64
    batches: tuple[int, ...] = (1, 32, 256)
    text: int = 128
    train: Mapping[str, Any] = field(default_factory=dict)
    train_steps: int = 5
    loss_steps: int = 20

    @property
    def is_small(self) -> bool:
        return self == SMALL


SMALL = Sizes(
    matmul=64,
    outputs=32,
    inputs=512,
    copy_bytes=1 << 20,
    weights=2,
    rounds_of_weights=2,
    models={"smollm2": "tiny", "llama1b": "tiny", "qwen1.5b": "tiny-qwen", "minilm": "minilm-tiny", "vit": "vit-tiny"},
    prompt=4,
    answer=6,
    cache=32,
    prefill=16,
    long_prefills=(24, 40),
    sequences=(2, 3),
    full_cache=16,
    new_tokens=6,
    batches=(1, 2, 3),
    text=8,
    train={"layers": 2, "width": 32, "heads": 2, "context": 16, "batch": 2, "vocab": 64},
    train_steps=2,
    loss_steps=3,
)


# -- precision ----------------------------------------------------------------------------------------------------------
def precision_option(function: Callable[..., Any], precision: str) -> dict[str, Any]:
    """A precision as an option of a function of ours, which is exact where nothing is said.

    >>> precision_option(pm.train.compile_step, "f16"), precision_option(pm.compile, "exact")
    ({'precision': 'f16'}, {})
    """
    if precision == "exact":
        return {}
    if "precision" not in inspect.signature(function).parameters:
        raise SideError(f"{function.__name__} takes no precision: only exact can be measured, not {precision}")
    return {"precision": precision}


# -- peers --------------------------------------------------------------------------------------------------------------
class Peers:
    """PyTorch in processes of their own, with which all devices are compared; none of them where no Python has it."""

    def __init__(self, python: str | None, stack: ExitStack, on_cuda: bool = True) -> None:
        self._python, self._stack, self.on_cuda = python, stack, on_cuda
        self._workers: dict[tuple[str, ...], Worker | None] = {}
        # Requests that were sent and not answered, in order.
        self._waiting: list[tuple[str, ...]] = []
        self._settled = False

    def get(self, *args: str, script: str = PEERS) -> Worker | None:
        """The process of a script with these arguments, started when it is first asked for; None if it cannot be had."""
        key = (script, *args)
        if key not in self._workers:
            self._workers[key] = None
            if self._python is not None:
                # Several compile side by side.
                worker = Worker(self._python, HERE / script, *args, environment={"TORCHINDUCTOR_COMPILE_THREADS": "3"})
                self._workers[key] = self._stack.enter_context(worker)
                self._send(key, "ready")
                if self._settled:
                    self.settle()
        return self._workers[key]

    def prepare(self, *args: str, work: str, **options: Any) -> None:
        """Lets a process begin with what takes long, such as compiling, until `settle`."""
        self.get(*args)
        self._send((PEERS, *args), work, **options)

    def settle(self) -> None:
        """Waits until all have begun and prepared what they should: nothing is measured before. One that failed is no peer."""
        self._settled = True
        for key in self._waiting:
            worker = self._workers[key]
            try:
                if worker is not None:
                    worker.answer()
            except SideError as e:
                self._drop(key, e)
        self._waiting.clear()

    def _send(self, key: tuple[str, ...], work: str, **options: Any) -> None:
        worker = self._workers[key]
        try:
            if worker is not None:
                worker.send(work, **options)
                self._waiting.append(key)
        except SideError as e:
            self._drop(key, e)

    def _drop(self, key: tuple[str, ...], error: SideError) -> None:
        print(f"left out: {error}", file=sys.stderr)
        self._workers[key] = None


def asked(worker: Worker | None, work: str, *, side: str = "peer", **options: Any) -> dict[str, Side]:
    """A request to a peer as a side that takes turns; no side where there is no peer."""
    return {} if worker is None else {side: lambda i: float(worker.ask(work, **options))}


# -- our side -----------------------------------------------------------------------------------------------------------
class Bench:
    """A device with what is measured on it, and the peers."""

    def __init__(
        self,
        device: GpuDevice,
        peers: Peers,
        stack: ExitStack,
        *,
        sizes: Sizes,
        rounds: int,
        precision: str = "exact",
        chunk: int = 0,
    ) -> None:
        self.device, self.peers, self.sizes, self.rounds = device, peers, sizes, rounds
        self.precision = precision
        # Tokens of a long prompt that are run at once; the engine's own choice if 0.
        self.chunk = chunk
        self.stack = stack
        self.warm = Load(device)
        stack.callback(self.warm.close)
        # What groups made before the first measurement.
        self.made: dict[str, Any] = {}

    def goal(self, bound: float, *, webgpu: float | None = None, least: bool = True, unit: str = "") -> Goal | None:
        """A goal for Vulkan, and the one that WebGPU has in its place; tiny sizes and software have none."""
        if self.sizes.is_small or self.device.caps.software:
            return None
        found = bound if self.device.backend == "vulkan" else webgpu
        return None if found is None else Goal(found, least, unit)

    def turns(self, sides: Mapping[str, Side]) -> dict[str, float]:
        """Medians of sides, taken in turns."""
        self.warm()
        return medians(in_turns(sides, self.rounds, rest=0.0))

    @functools.cached_property
    def copy_bandwidth(self) -> float:
        """Bytes a second of a copy on the device, read and written: the best that either side reaches."""
        nbytes = self.sizes.copy_bytes
        x = np.ones(nbytes // 4, np.float32)
        with Repeated(self.device, lambda p, x, k: x + 1.0, 8, {"x": x}, fuse=False) as ours:
            self.warm()
            best = 2 * nbytes / ours.seconds()
        worker = self.peers.get("math")
        return max(best, float(worker.ask("copy", nbytes=nbytes)) if worker else 0.0)

    def matmul_rates(self, dtype: str, **options: Any) -> dict[str, float]:
        """Operations a second of a square matmul, "ours" with options of `pm.compile` and, where there is one, the "peer"'s."""
        n, rng = self.sizes.matmul, np.random.default_rng(0)
        kind = get_dtype(dtype).np
        params = {name: (rng.standard_normal((n, n), np.float32) / np.float32(n**0.5)).astype(kind) for name in ("x", "w")}
        with Repeated(self.device, lambda p, x, k: x @ p["w"], 8, params, **options) as ours:
            found = self.turns({"ours": ours.seconds, **asked(self.peers.get("math"), "matmul", n=n, dtype=dtype)})
        return {name: 2 * n**3 / seconds for name, seconds in found.items()}


@dataclass(frozen=True)
class Group:
    """Rows that are measured together.

    `prepare` tells peers what to compile and `make` makes ours meanwhile, both before anything is measured. Where `precise`, rows
    are those of a precision, and measured in each that is asked for; others are exact, and measured once.
    """

    rows: Callable[[Bench], list[Row]]
    make: Callable[[Bench], object] = lambda bench: None
    prepare: Callable[[Peers, Sizes], object] = lambda peers, sizes: None
    precise: bool = False

    def measure(self, bench: Bench) -> list[Row]:
        """The rows, with the device and the precision in their keys."""
        found = [with_precision(row, bench.precision) if self.precise else row for row in self.rows(bench)]
        api = bench.device.backend
        return [replace(row, key=f"{row.key} {api}", device=api) for row in found]


def with_precision(row: Row, precision: str) -> Row:
    """A row as that of a precision; rows of `exact` have its name nowhere.

    >>> with_precision(Row("decode", "decode", "tokens/s", 1.0), "f16").key
    'decode f16'
    """
    if precision == "exact":
        return row
    return replace(row, key=f"{row.key} {precision}", work=f"{row.work}, precision {precision}")


class Repeated:
    """Measures one application of fn(params, x, k) on the device: `times` + 1 of them in one run, less the cost of one.

    The device's own clock takes the time where it has one. Params are uploaded once; the first x is the param of that name.
    """

    def __init__(self, device: GpuDevice, fn: Callable[..., Any], times: int, params: dict[str, Any], **options: Any) -> None:
        specs = {name: pm.spec(*a.shape, dtype=a.dtype) for name, a in params.items()} | options.pop("types", {})

        def chain(n: int, **more: Any) -> pm.Executable:
            def model(params: Any) -> Any:
                x = params["x"]
                for k in range(n):
                    x = fn(params, x, k)
                return x.reshape(-1)[:1]

            return pm.compile(model, params=specs, device=device, **options, **more)

        self._stamps = device.caps.timestamps
        self.times, self.long = times, chain(times + 1)
        self.long.set_params(params)
        self.short = chain(1, store=self.long.store)

    def seconds(self, _: int = 0) -> float:
        long, short = (self._run_seconds(exe) for exe in (self.long, self.short))
        # Of tiny sizes the difference may drown in noise.
        return (long - short if long > short else long) / self.times

    def _run_seconds(self, exe: pm.Executable) -> float:
        return float(exe.profile(repeats=5).device_seconds) if self._stamps else median_seconds(exe.run, 5)

    def __enter__(self) -> Repeated:
        return self

    def __exit__(self, *error: object) -> None:
        self.long.close()
        self.short.close()
