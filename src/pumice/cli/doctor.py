"""`pumice doctor`: what is in this machine, which device `auto` takes and why, what fits it, and a kernel checked on each."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
import time
from typing import Any

from pumice import __version__
from pumice.cli.fits import fit_line, fitting_models, plugin_list
from pumice.errors import PumiceError
from pumice.sources.files import size_text

# The check's own bound: f32 softmax of a small matmul, far above rounding and far below any real fault.
TOLERANCE = 1e-5
_PACKAGES = ("numpy", "wgpu", "numba", "ml_dtypes")


def collect() -> dict[str, Any]:
    """Everything that the report says, as data. `exit_code`: 0 all well, 3 no device works, 4 a device gives wrong results."""
    adapters, problem = _adapters()
    vulkan = _vulkan()
    specs = ["host", *(f"webgpu:{a['index']}" for a in adapters if a["usable"])]
    specs += [f"vulkan:{a['index']}" for a in vulkan["adapters"] if a["checked"]]
    report: dict[str, Any] = {
        "pumice": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "host": _host(),
        "adapters": adapters,
        "vulkan": vulkan,
        "auto": _auto(),
        "checks": [check(spec) for spec in specs],
        "plugins": plugin_list(),
        "hints": [],
    }
    report["fits"] = fitting_models(report["auto"]["device"] or "host")
    for p in report["plugins"]:
        if not p["used"]:
            report["hints"].append(f"the plug-in {p['package']} announces {p['name']}, which is built in: that one is used")
    if not any(a["usable"] for a in adapters):
        from pumice.backends.webgpu.adapters import INSTALL_HINT

        what = problem or ("WebGPU finds OpenGL adapters only" if adapters else "WebGPU finds no adapter")
        report["hints"].append(f"{what}; Pumice runs on the host. For a GPU, {INSTALL_HINT}")
    if report["packages"]["numba"] is None:
        report["hints"].append("the host backend is faster with numba: pip install 'pumice[cpu]'")
    states = [c["status"] for c in report["checks"]]
    if "ok" not in states and "wrong" not in states:
        report["exit_code"] = 3
    else:
        report["exit_code"] = 0 if set(states) == {"ok"} else 4
    report["ok"] = report["exit_code"] == 0
    return report


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _host() -> dict[str, Any]:
    """The processor, with the level that kernels are compiled for and those that PUMICE_CPU can pick instead."""
    from pumice.backends.host.native import jit, levels
    from pumice.run.device import open_device

    about = open_device("host").describe()
    others = [level.name for level in levels.available()] if jit.available() else []
    return {key: about[key] for key in ("cpu", "cores", "memory_bytes", "level")} | {
        "other_levels": [name for name in others if name != about["level"]]
    }


def _adapters() -> tuple[list[dict[str, Any]], str]:
    from pumice.backends.webgpu.adapters import list_adapters

    try:
        found = list_adapters()
    except PumiceError as e:
        return [], e.message
    # OpenGL adapters mostly repeat a device that a better API shows too; `auto` never takes one, so none is checked.
    return [{**a.describe(), "usable": not a.is_opengl} for a in found], ""


def _vulkan() -> dict[str, Any]:
    """The devices of Vulkan, whether each can be used, and what `auto` makes of them. Nothing is fetched for it."""
    from pumice.backends.vulkan import naga
    from pumice.backends.vulkan.adapters import list_adapters, version_text
    from pumice.backends.vulkan.selfcheck import verdict

    found = verdict()
    report: dict[str, Any] = {"adapters": [], "auto": found.spec is not None, "reason": found.reason, "compiler": ""}
    try:
        naga.import_wasmtime()
        naga.cached_file(fetch=False)
    except PumiceError as e:
        report["compiler"] = f"{e.message}; {e.hint}" if e.hint else e.message
    try:
        adapters = list_adapters()
    except PumiceError:
        return report
    for a in adapters:
        about = {
            **a.describe(),
            "version": version_text(a.raw.api_version),
            "problem": a.raw.problem,
            "usable": not a.raw.problem,
        }
        report["adapters"].append({**about, "checked": not a.raw.problem and not report["compiler"]})
    return report


def _auto() -> dict[str, str]:
    from pumice.backends.select import choose

    try:
        choice = choose("auto")
    except PumiceError as e:
        return {"device": "", "reason": e.message}
    return {"device": choice.spec, "reason": choice.reason}


def check(spec: str) -> dict[str, Any]:
    """Compile softmax(x @ w + b) for a device, run it and compare with the reference interpreter.

    >>> check("host")["status"]
    'ok'
    """
    result: dict[str, Any] = {"device": spec, "name": "", "status": "error", "max_error": None, "message": ""}
    start = time.perf_counter()
    try:
        result.update(_compare(spec))
    except PumiceError as e:
        result["message"] = f"{e.message}; {e.hint}" if e.hint else e.message
    except Exception as e:  # report any failure
        result["message"] = f"{type(e).__name__}: {e}"
    result["seconds"] = round(time.perf_counter() - start, 4)
    return result


def _compare(spec: str) -> dict[str, Any]:
    import numpy as np

    import pumice as pm
    from pumice.reference.interpreter import evaluate_graph
    from pumice.run.device import open_device

    def layer(params: Any, x: Any) -> Any:
        return pm.softmax(x @ params["w"] + params["b"])

    rng = np.random.default_rng(7)
    params = {"w": rng.normal(size=(48, 33)).astype(np.float32), "b": rng.normal(size=33).astype(np.float32)}
    x = rng.normal(size=(19, 48)).astype(np.float32)
    device = open_device(spec)
    graph = pm.trace(layer, params={k: pm.spec(*v.shape) for k, v in params.items()}, x=pm.spec("B", 48))
    with pm.compile(graph, device=device, max={"B": 32}) as exe:
        exe.set_params(params)
        got = exe.run(x=x)
        start = time.perf_counter()
        exe.run(x=x)
        seconds = time.perf_counter() - start
    want = evaluate_graph(graph, {"x": x}, params).outputs[0]
    error = float(np.max(np.abs(np.asarray(got, np.float64) - want)))
    good = bool(np.isfinite(error) and error <= TOLERANCE)
    return {
        "name": device.name,
        "status": "ok" if good else "wrong",
        "max_error": error,
        "run_ms": round(seconds * 1e3, 3),
        "message": "" if good else f"off by {error:.3g}, allowed is {TOLERANCE:g}",
    }


def run(*, as_json: bool) -> int:
    """Print the report; returns the exit code."""
    report = collect()
    if as_json:
        print(json.dumps(report))
    else:
        _print(report)
    code: int = report["exit_code"]
    if code:
        bad = next(c for c in report["checks"] if c["status"] != "ok")
        what = "no device works" if code == 3 else f"the check failed on {bad['device']}"
        print(f"pumice: {what}: {bad['message']}", file=sys.stderr)
    return code


def _print(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    out = Console(highlight=False, soft_wrap=True)
    packages = ", ".join(f"{name} {version or 'not installed'}" for name, version in report["packages"].items())
    out.print(f"[bold]Pumice {report['pumice']}[/] · Python {report['python']} · {report['platform']}")
    out.print(packages, style="dim", markup=False)
    out.print()
    host = report["host"]
    level = f"level {host['level']}" if host["level"] else "no compiled kernels"
    out.print(f"[bold]host[/]      {_plain(host['cpu'])} · {host['cores']} threads · {size_text(host['memory_bytes'])} · {level}")
    if host["other_levels"]:
        out.print(f"          PUMICE_CPU can pick {' '.join(host['other_levels'])}")
    for a in report["adapters"]:
        lim = a["limits"]
        out.print(f"[bold]webgpu:{a['index']}[/]  {_plain(a['name'])} · {a['kind']} · {a['api']} · {_plain(a['driver'])}")
        out.print(
            f"          buffer {size_text(lim['max_buffer_bytes'])}, binding {size_text(lim['max_binding_bytes'])}, "
            f"{lim['max_storage_buffers']} bindings, workgroup {lim['max_invocations']} × {size_text(lim['workgroup_memory'])}"
        )
        out.print(f"          {' '.join(a['features']) or 'no optional features'}")
    if not report["adapters"]:
        out.print("no WebGPU adapter")
    vulkan = report["vulkan"]
    for a in vulkan["adapters"]:
        out.print(
            f"[bold]vulkan:{a['index']}[/]  {_plain(a['name'])} · {a['kind']} · Vulkan {a['version']} · {_plain(a['driver'])}"
        )
        state = a["problem"] or ("" if a["checked"] else f"not checked: {vulkan['compiler']}")
        if state:
            out.print(f"          {_plain(state)}")
    taken = "auto may take it" if vulkan["auto"] else "auto does not take it"
    out.print(f"[bold]vulkan[/]    {taken}: {_plain(vulkan['reason'])}")
    out.print()
    out.print(f"auto takes [bold]{report['auto']['device'] or 'nothing'}[/]: {_plain(report['auto']['reason'])}")
    out.print()
    table = Table(title="softmax(x @ w + b) against the reference", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for head in ("device", "result", "largest error", "one run", "all"):
        table.add_column(head)
    for c in report["checks"]:
        good = c["status"] == "ok"
        table.add_row(
            c["device"],
            "[green]ok[/]" if good else f"[red]{c['status']}[/] {_plain(c['message'])}",
            "-" if c["max_error"] is None else f"{c['max_error']:.1e}",
            f"{c['run_ms']:.2f} ms" if "run_ms" in c else "-",
            f"{c['seconds']:.2f} s",
        )
    out.print(table)
    if report["fits"]:
        out.print()
    for found in report["fits"]:
        out.print(_plain(fit_line(found, report["auto"]["device"])))
    if report["plugins"]:
        out.print("\nplug-ins: " + _plain(", ".join(f"{p['name']} ({p['package']})" for p in report["plugins"] if p["used"])))
    for hint in report["hints"]:
        out.print(f"\nhint: {_plain(hint)}")


def _plain(text: str) -> str:
    """Text that rich prints as it is: square brackets in names are no markup."""
    return text.replace("[", r"\[")
