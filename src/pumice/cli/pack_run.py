"""`pumice pack run`: one call of a WASM kernel of a verified pack."""

from __future__ import annotations

import json as json_text
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from pumice.cli.pack import Json, pack_app

if TYPE_CHECKING:
    import numpy as np

    from pumice.packs.manifest import KernelEntry, Param
    from pumice.run.packs import Pack

    Array = np.ndarray[Any, Any]

# The sizes that inputs have which nobody names.
_DIM, _ROWS = 64, (4,)
_SHOWN = 6
_TIMED_SECONDS = 0.2
_WRONG = 1  # the exit code of a kernel that disagrees with the reference


@pack_app.command("run")
def run_kernel(
    pack: Annotated[str, typer.Argument(metavar="NAME|FILE|DIR", help="An installed pack, or the zip or folder of one.")],
    kernel: Annotated[str, typer.Argument(metavar="KERNEL", help="The kernel's id.")],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="X=FILE.npy|random:2x8", help="An input; those that are not given are random."),
    ] = None,
    params: Annotated[
        list[str] | None, typer.Option("--param", metavar="NAME=VALUE", help="A parameter, in place of its default.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE.npy", help="Where to save the first output.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of random inputs.")] = 0,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not ask who signed it; check all else. For packs that you are making.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Compare the kernel with its op's reference on samples too.")] = False,
    json: Json = False,
) -> None:
    """Run one WASM kernel of a pack, in its sandbox, and show what it computes and how long it takes."""
    import statistics  # here, as all commands import this module

    import numpy as np

    from pumice.packs.wasm.kernel import WasmKernel
    from pumice.run.packs import load_pack

    loaded = load_pack(pack, insecure=insecure)
    verified = loaded.verified
    entry = verified.manifest.get_kernel(kernel)
    if entry.pumice.in_wgsl:
        _refuse(f"{kernel} is a WGSL kernel", "`pumice run --pack` uses it on a GPU; here WASM kernels run")
    arrays = _inputs(entry, inputs or [], seed)
    results = _outputs(entry, arrays)
    given = {name: _value(entry, name, text) for name, text in _pairs(params or [], "--param")}
    runner = WasmKernel(entry, verified.files[entry.path])
    call = runner.prepare(list(arrays.values()), given, list(results.values()))
    times = _run(lambda: call(list(arrays.values()), list(results.values())))
    if out is not None:
        try:
            with out.open("wb") as file:
                np.save(file, next(iter(results.values())), allow_pickle=False)
        except OSError as e:
            _refuse(f"{out} cannot be written: {e.strerror}", "name another file after --out")
    report = {
        "pack": verified.manifest.name,
        "version": verified.manifest.version,
        "insecure": verified.insecure,
        "signer": verified.signer,
        "kernel": kernel,
        "inputs": {name: _described(a) for name, a in arrays.items()},
        "outputs": {name: _described(a) for name, a in results.items()},
        "first_us": round(times[0], 1),
        "median_us": round(statistics.median(times[1:] or times), 1),
        "calls": len(times),
        "instances_reused": runner.module.reusable,
    }
    runner.close()
    if check:
        report["problem"] = compare(loaded, kernel)
    if json:
        print(json_text.dumps(report))
    else:
        _print(report)
    if report.get("problem"):
        raise typer.Exit(_WRONG)


def compare(pack: Pack, kernel: str) -> str:
    """What is wrong with a kernel by the reference of its op, as before its first use in a model; "" if nothing is."""
    from pumice.packs.active import offer
    from pumice.packs.fallback import KernelChain
    from pumice.run.device import open_device
    from pumice.run.qualify import qualify

    found = next((k for k in pack.kernels if k.id == kernel), None)
    if found is None:
        _refuse(f"{kernel} is of no op, so that there is nothing to compare it with", "leave out --check")
    offer(found, KernelChain(pack.verified, kernel))
    return qualify(found, open_device("host"))


def _inputs(entry: KernelEntry, texts: list[str], seed: int) -> dict[str, Array]:
    """The inputs in the manifest's order: from files, else random of the sizes that were named, else of the usual ones."""
    import numpy as np

    from pumice.ir.pack_kernels import TensorPattern
    from pumice.packs.ops import random_array
    from pumice.packs.wasm.signature import bind_dims, numpy_dtype

    specs = {spec.name: spec for spec in entry.inputs}
    shapes: dict[str, tuple[int, ...]] = {}
    loaded: dict[str, Array] = {}
    for name, text in _pairs(texts, "--input"):
        if name not in specs:
            _refuse(f"{entry.id} has no input {name!r}", f"it has {', '.join(specs)}")
        if text.startswith("random:"):
            shapes[name] = _shape(name, text.removeprefix("random:"))
        else:
            loaded[name] = _load(Path(text))
            shapes[name] = loaded[name].shape
    dims: dict[str, Any] = {}
    for name, shape in shapes.items():
        bind_dims(entry.id, specs[name], shape, dims)
    rng = np.random.default_rng(seed)
    found: dict[str, Array] = {}
    for name, spec in specs.items():
        if name not in loaded:
            for part in spec.shape:
                if isinstance(part, str):
                    dims.setdefault(part, _ROWS if part.endswith("...") else _DIM)
            sizes = TensorPattern(name, spec.dtype, spec.shape).shape_for(dims) or ()
            loaded[name] = random_array(rng, numpy_dtype(spec.dtype).name, tuple(int(n) for n in sizes))
        found[name] = loaded[name]
    return found


def _outputs(entry: KernelEntry, inputs: dict[str, Array]) -> dict[str, Array]:
    import numpy as np

    from pumice.ir.pack_kernels import TensorPattern
    from pumice.packs.wasm.signature import bind_dims, numpy_dtype

    dims: dict[str, Any] = {}
    for spec in entry.inputs:
        bind_dims(entry.id, spec, inputs[spec.name].shape, dims)
    found = {}
    for spec in entry.outputs:
        shape = TensorPattern(spec.name, spec.dtype, spec.shape).shape_for(dims)
        if shape is None:
            _refuse(f"the inputs of {entry.id} do not say the size of its output {spec.name} {list(spec.shape)}", "")
        found[spec.name] = np.zeros(tuple(int(n) for n in shape), numpy_dtype(spec.dtype))
    return found


def _value(entry: KernelEntry, name: str, text: str) -> bool | int | float:
    param: Param | None = entry.params.get(name)
    if param is None:
        _refuse(f"{entry.id} has no parameter {name!r}", f"it has {', '.join(entry.params) or 'none'}")
    try:
        if param.type == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        return float(text) if param.type in ("f32", "f64") else int(text)
    except (KeyError, ValueError):
        _refuse(f"{text!r} is no value of the parameter {name} ({param.type})", "such as --param eps=1e-5")


def _pairs(texts: list[str], option: str) -> list[tuple[str, str]]:
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            _refuse(f"{option} {text!r} is no NAME=VALUE", "such as --input x=random:2x8")
        found.append((name, value))
    return found


def _shape(name: str, text: str) -> tuple[int, ...]:
    from math import prod

    parts = text.split("x") if text else []
    if not all(part.isascii() and part.isdigit() for part in parts) or prod(map(int, parts)) > 1 << 28:
        _refuse(f"random:{text} is no shape of {name}", "write sizes with x between them, such as random:2x8")
    return tuple(int(part) for part in parts)


def _load(path: Path) -> Array:
    import numpy as np

    try:
        found: Any = np.load(path, allow_pickle=False)
    except OSError as e:
        _refuse(f"{path} cannot be read: {e.strerror or e}", "write FILE.npy, or random:2x8 for random numbers")
    except (ValueError, EOFError) as e:
        _refuse(f"{path} is no .npy file: {e}", "numpy.save writes one")
    if not isinstance(found, np.ndarray):
        _refuse(f"{path} holds several arrays", "save one with numpy.save")
    array: Array = found
    return array


def _run(call: Any) -> list[float]:
    """Microseconds of the first call and of as many warm ones as fit a moment."""
    times: list[float] = []
    until = time.perf_counter() + _TIMED_SECONDS
    while not times or (time.perf_counter() < until and len(times) < 10_000):
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def _described(array: Array) -> dict[str, Any]:
    import numpy as np

    wide = array.astype(np.float64) if array.size else np.zeros(1)
    finite = wide[np.isfinite(wide)]
    return {
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "first": [float(f"{v:.6g}") for v in wide.reshape(-1)[:_SHOWN] if np.isfinite(v)],
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "not_finite": int(array.size - finite.size) if array.size else 0,
    }


def _print(report: dict[str, Any]) -> None:
    trust = "INSECURE: nobody vouches for it" if report["insecure"] else f"signed by {report['signer']}"
    print(f"{report['pack']} {report['version']}, {report['kernel']} ({trust})")
    for kind in ("inputs", "outputs"):
        for name, a in report[kind].items():
            numbers = ", ".join(f"{v:g}" for v in a["first"]) + (", …" if len(a["first"]) == _SHOWN else "")
            bad = f", {a['not_finite']} NOT FINITE" if a["not_finite"] else ""
            print(f"  {kind[:-1]:<6} {name} {a['dtype']}{a['shape']}  {numbers}{bad}")
    warm = f"{report['median_us']:.1f} µs warm (median of {report['calls']})" if report["calls"] > 1 else "called once"
    print(f"  time   {report['first_us']:.1f} µs first, {warm}")
    if "problem" in report:
        print(f"  check  {'WRONG: ' + report['problem'] if report['problem'] else 'agrees with the reference'}")


def _refuse(what: str, hint: str) -> NoReturn:
    from pumice.errors import InputError

    raise InputError(what, hint=hint)
