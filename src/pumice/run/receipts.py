"""Receipts of runs: device, plans and params, how long the run took, and the hashes of what went in and out."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from pumice.backends.base import Array, Device, Done, Session
from pumice.backends.timing import Span, Timing
from pumice.core.caps import Caps
from pumice.core.threads import thread_count
from pumice.ir.graph import Graph
from pumice.plan.plan import Plan
from pumice.receipts.artifacts import Artifact
from pumice.receipts.receipt import HOST_REASON, Receipt, make_receipt
from pumice.routes.backend import backend_identity
from pumice.routes.documents import RouteDocument, part
from pumice.routes.errors import RouteError
from pumice.routes.kernel import QUEUE_SUBMIT_WAIT, TIMESTAMP_QUERY
from pumice.routes.staged import stage, staged_profile
from pumice.run.digests import array_digest, entry_digest, joint_digest
from pumice.run.entry import Entry
from pumice.run.packs import used_kernels
from pumice.run.request import RunRequest

if TYPE_CHECKING:
    from pumice.run.cooperative import Cooperative
    from pumice.run.executable import Executable

RUN_ROUTE = "pumice.run.v1"
# The roles of a graph that takes or gives nothing.
NO_INPUTS, NO_OUTPUTS = "inputs", "outputs"
NULL_REASON = "the null device computes nothing"
VULKAN_REASON = "ran on the GPU through Vulkan, not through WebGPU"
_REASONS = {"host": HOST_REASON, "null": NULL_REASON, "vulkan": VULKAN_REASON}
# The package whose version says what computes, by the kind of device; kernels reach Vulkan through a compiler in wasmtime.
_LIBRARIES = {"webgpu": "wgpu", "vulkan": "wasmtime", "host": "numba", "null": "numba"}
# Timestamps agree with the clock of the host if they explain at least this part of its wait, and no more than all it saw.
_LEAST_SHARE, _MOST_SHARE = 0.5, 1.05
# WebGPU's names of limits that devices describe.
_LIMITS = {
    "maxBufferSize": "max_buffer_bytes",
    "maxStorageBufferBindingSize": "max_binding_bytes",
    "maxComputeWorkgroupStorageSize": "workgroup_memory",
    "maxComputeInvocationsPerWorkgroup": "max_invocations",
    "maxComputeWorkgroupSizeX": "max_workgroup_x",
    "maxComputeWorkgroupSizeY": "max_workgroup_y",
}


# -- what ran it --------------------------------------------------------------------------------------------------------
def device_facts(device: Device) -> Mapping[str, Any]:
    """The arguments of `make_receipt` that say what a run was on: backend, device, caps, software, and why it is no WebGPU.

    Devices stay what they are, but for how many threads run them: each is asked once for each number.

    >>> from pumice.backends.select import open_device
    >>> facts = device_facts(open_device("host"))
    >>> facts["backend"]["runtime"], facts["device"]["target"], facts["fallback_reason"]
    ('native', 'host', 'ran on the host processor, not through WebGPU')
    """
    threads = thread_count()
    known, found = _device_facts.get(device, (0, {}))
    if known != threads:
        about, kind = device.describe(), _kind(device)
        found = {
            "backend": identity(device, about),
            "device": part(describe_device(device, about)),
            "caps": describe_caps(device.caps),
            "software": software_versions(kind),
        }
        if kind != "webgpu":
            found["fallback_reason"] = _REASONS[kind]
        _device_facts[device] = threads, found
    return found


_device_facts: WeakKeyDictionary[Device, tuple[int, dict[str, Any]]] = WeakKeyDictionary()


def _kind(device: Device) -> str:
    """How a device computes. Plans for WebGPU run on Vulkan too: a GPU says itself which API it is used through."""
    return "null" if device.name == "null" else getattr(device, "backend", None) or device.caps.target


def describe_device(device: Device, about: Mapping[str, Any]) -> dict[str, Any]:
    """A device as receipts have it, by what it says of itself; features and limits are in the backend's identity."""
    kept = {k: v for k, v in about.items() if k not in ("features", "requested_features", "limits", "caps", "index")}
    return {"target": device.caps.target, "software": device.caps.software, **kept}


def describe_caps(caps: Caps) -> RouteDocument:
    """The caps that plans were made for.

    >>> describe_caps(Caps.preset("h200"))["tuning"]
    'nvidia-hopper'
    """
    return part({**asdict(caps), "tuning": None if caps.tuning is None else caps.tuning.name})


def identity(device: Device, about: Mapping[str, Any]) -> RouteDocument:
    """The backend identity of an opened device, by what it says of itself: what it has, and not what its adapter could give."""
    if "features" not in about:
        room = about.get("memory_bytes") or device.caps.max_buffer_bytes
        return backend_identity(about.get("cpu") or device.name, features=(), limits={"maxBufferSize": room})
    features, requested = about["features"], about["requested_features"]
    timed = TIMESTAMP_QUERY in requested and TIMESTAMP_QUERY in features
    return backend_identity(
        about["name"],
        features=features,
        requested_features=requested,
        limits={name: about["limits"][own] for name, own in _LIMITS.items()},
        timestamp_query="requested" if timed else "unavailable",
    )


@cache
def software_versions(kind: str) -> RouteDocument:
    """The versions of what computes on a kind of device.

    >>> sorted(software_versions("webgpu"))
    ['numpy', 'platform', 'pumice', 'python', 'wgpu']
    """
    from pumice import __version__

    library = _LIBRARIES[kind]
    try:
        version = metadata.version(library)
    except metadata.PackageNotFoundError:
        version = None
    known = {"pumice": __version__, "python": platform.python_version(), "numpy": np.__version__, library: version}
    return part({**known, "platform": platform.platform()})


def plan_facts(plans: Mapping[str, Plan]) -> dict[str, Any]:
    """The arguments of `make_receipt` that say which plans by name and which kernels of packs ran.

    >>> import pumice as pm
    >>> with pm.compile(lambda x: x * 2.0, x=pm.spec("N"), device="host") as exe:
    ...     facts = plan_facts({"main": exe.plan})
    >>> [(p["name"], p["digest"] == exe.plan.sha256) for p in facts["plans"]()], facts["packs"], facts["insecure"]
    ([('main', True)], [], False)
    """
    used = used_kernels(plans.values())
    return {
        "plans": lambda: [{"name": name, "digest": plan.sha256} for name, plan in plans.items()],
        "packs": used,
        "degraded": _degraded(),
        "insecure": any(kernel["insecure"] for kernel in used),
    }


def _degraded() -> list[dict[str, Any]]:
    if "pumice.packs.degraded" not in sys.modules:  # no pack was loaded
        return []
    from pumice.packs.degraded import degraded

    return [d.to_dict() for d in degraded()]


# -- how long it took ---------------------------------------------------------------------------------------------------
def agrees(timing: Timing) -> bool:
    """Whether timestamps of the device agree with what the host's clock saw of the same run.

    They must not exceed the time from the first command to the end of the wait, and explain at least half of the wait: of a run
    so short that the way to the device takes longer, the host cannot tell.

    >>> spans = Span("encode", 0.0, 0.001), Span("wait", 0.001, 0.010)
    >>> [agrees(Timing("timestamps", "", (), seconds, spans)) for seconds in (0.009, 0.020, 0.0001)]
    [True, False, False]
    >>> agrees(Timing("host", "", (), 0.009, spans))
    False
    """
    if timing.clock != "timestamps":
        return False
    waited, seen = timing.seconds_of("wait"), timing.seconds_of("encode", "wait")
    return waited * _LEAST_SHARE <= timing.device_seconds <= seen * _MOST_SHARE


def profile_of(timing: Timing, *, source: str | None = None, required: Sequence[str] = ("run",)) -> RouteDocument:
    """The stages of a run: by the device's timestamps where they agree with the host's clock, else by that.

    `source` asks for one of the two. Timestamps time the stage `run` alone; the host's clock also upload and readback, where the
    backend tells them apart.

    >>> phases = ("upload", 0.002), ("encode", 0.001), ("wait", 0.01), ("readback", 0.001)
    >>> spans = tuple(Span(name, 0.0, seconds) for name, seconds in phases)
    >>> timing = Timing("timestamps", "timestamps around the run", (), 0.009, spans)
    >>> profile = profile_of(timing)
    >>> profile["timingSource"], [(s["name"], s["ms"]) for s in profile["stages"]]
    ('timestamp-query', [('run', 9)])
    >>> [(s["name"], s["ms"]) for s in profile_of(timing, source="queue-submit-wait")["stages"]]
    [('upload', 2), ('run', 11), ('readback', 1)]
    """
    valid = agrees(timing)
    if source == TIMESTAMP_QUERY and not valid:
        raise RouteError(
            "the run has no timestamps that agree with the host's clock",
            hint=f"time it by {QUEUE_SUBMIT_WAIT}",
            clock=timing.clock,
        )
    chosen = source or (TIMESTAMP_QUERY if valid else QUEUE_SUBMIT_WAIT)
    if chosen == TIMESTAMP_QUERY:
        about = {"seconds": timing.device_seconds, "method": timing.method, QUEUE_SUBMIT_WAIT: _host_seconds(timing)}
        stages = [stage("run", timing.device_seconds * 1e3, metadata=about)]
    else:
        stages = host_stages(timing)
    return staged_profile(stages, required_stages=required, timing_source=chosen, timestamps_validated=valid)


def host_stages(timing: Timing, run: str = "run") -> list[dict[str, Any]]:
    """The stages that the host's clock saw; `run` is the name of the one that the device worked in."""
    device = {} if timing.clock != "timestamps" else {TIMESTAMP_QUERY: timing.device_seconds, "agrees": agrees(timing)}
    return [
        stage(name if name != "run" else run, seconds * 1e3, metadata={"seconds": seconds, **(device if name == "run" else {})})
        for name, seconds in _host_seconds(timing).items()
    ]


def _host_seconds(timing: Timing) -> dict[str, float]:
    """Upload and readback where the backend tells them apart, and all the rest as the run."""
    apart = {name: timing.seconds_of(name) for name in ("upload", "readback") if any(s.name == name for s in timing.spans)}
    ran = sum(span.seconds for span in timing.spans) - sum(apart.values())
    found = {"upload": apart.get("upload"), "run": ran, "readback": apart.get("readback")}
    return {name: seconds for name, seconds in found.items() if seconds is not None}


# -- one run ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RunSubject:
    """What a receipt says a run was of: a graph that somebody compiled, or a route with a name, a model and a request."""

    route_id: str = RUN_ROUTE
    task: str = "run"
    model: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] = field(default_factory=dict)
    conditions: Mapping[str, Any] = field(default_factory=dict)
    kernel: Mapping[str, Any] | None = None
    timing_source: str | None = None
    required_stages: Sequence[str] = ("run",)


class RecordedRun:
    """A run that ends with a receipt: `start` it in the executable's turn, then `finish` gives results and receipt.

    States are artefacts too, unless `keep_states` is False: then only their digests are noted.
    """

    def __init__(self, exe: Executable, call: RunRequest, subject: RunSubject | None = None, *, keep_states: bool = True) -> None:
        self.exe, self.call, self.subject, self._keep_states = exe, call, subject or RunSubject(), keep_states
        call.measure = True

    def start(self, session: Session) -> Done:
        """Runs, and notes everything that a later run could change."""
        exe, call = self.exe, self.call
        exe._set_up(call)
        given, call.states = call.states, {}  # they are set now
        self.device = exe.device
        self.params = params_section(exe._params.values())
        self._before = {e: entry_digest(e) for e in exe.state.values()}
        self.inputs = self._inputs(given)
        began = time.perf_counter()
        results = exe._begin(session, call).result()
        seconds = time.perf_counter() - began
        self.timing = call.timing or Timing("host", "host clock around the run", (), seconds, (Span("run", 0.0, seconds),))
        self.states = {e: self._state(e) for e in exe.state.values()}
        changed = [e for e in exe._params.values() if e in exe._updated]
        self.params_after = params_section(exe._params.values()) if changed else self.params
        self.outputs = self._outputs(results)
        self.runtime = _scheduling(exe.store.cooperative)
        return Done(results)

    def finish(self, results: list[Array]) -> Any:
        """What `run` gives, and the receipt after it."""
        found = self.call.finish(results)
        return (found, self.receipt()) if self.call.captures is None else (*found, self.receipt())

    def receipt(self) -> Receipt:
        """The receipt of the run, once it is done."""
        exe, subject = self.exe, self.subject
        model = {"name": f"graph-{exe.traced.hash[:16]}", "dtype": dtypes_of(exe), **subject.model}
        names = [name for name, _ in exe.graph.outputs]
        request = {
            "symbols": dict(self.call.env),
            "outputs": [names[i] for i in self.call.outputs],
            "captures": self.call.captures is not None,
        }
        # Digests of states are those of artefacts, which private receipts salt.
        states = [{k: about[k] for k in ("name", "type", "changed", "initial")} for about in self.states.values()]
        conditions: dict[str, Any] = {"graph": exe.traced.hash, "states": states}
        if self.params_after is not self.params:
            conditions["params_after"] = self.params_after
        return make_receipt(
            task=subject.task,
            route_id=subject.route_id,
            inputs=self.inputs,
            outputs=self.outputs,
            model={**model, "params": self.params},
            profile=profile_of(self.timing, source=subject.timing_source, required=subject.required_stages),
            request={**request, **subject.request},
            conditions={**conditions, **subject.conditions},
            kernel=subject.kernel,
            runtime=self.runtime,
            **device_facts(self.device),
            **plan_facts({"run": exe.plan}),
        )

    def _inputs(self, given: Mapping[Entry, Array]) -> list[Artifact]:
        """The inputs, and states that do not begin as those of a new executable do."""
        found = [Artifact.array(name, array) for name, array in self.call.inputs.items()]
        if self._keep_states:
            begun = [e for e in self.exe.state.values() if e in given or not self._is_initial(e)]
            found += [Artifact.array(state_role(e.name), given[e] if e in given else e._read()) for e in begun]
        # Documents have at least one input and one output; a graph of params alone has none.
        return found or [Artifact.json(NO_INPUTS, {})]

    def _outputs(self, results: Sequence[Array]) -> list[Artifact]:
        graph = self.exe.graph
        roles = output_roles(graph, self.call.outputs) + [f"capture.{name}" for name in self.call.captures or ()]
        # An output that was asked for twice is one artefact.
        found = [Artifact.array(role, array) for role, array in dict(zip(roles, results, strict=True)).items()]
        if self._keep_states:
            updated = [e for e in self.exe.state.values() if e in self.exe._updated]
            found += [Artifact.array(state_role(e.name, after=True), e._read()) for e in updated]
        return found or [Artifact.json(NO_OUTPUTS, {})]

    def _state(self, entry: Entry) -> dict[str, Any]:
        """What the run began and ended with; `initial` where that was the value of a new executable."""
        before, after = self._before[entry], entry_digest(entry)
        known = {"name": entry.name, "type": str(entry.type), "before": before, "after": after, "changed": before != after}
        return {**known, "initial": self._is_initial(entry)}

    def _is_initial(self, entry: Entry) -> bool:
        return self._before[entry] == array_digest(entry._spec.initial())


def _scheduling(cooperative: Cooperative | None) -> dict[str, Any] | None:
    """The profiles of a scheduled run, with the trace that proves them."""
    if cooperative is None:
        return None
    profiles = {"scheduler": cooperative.scheduler(), "backpressure": cooperative.backpressure()}
    return {**profiles, "schedulerVerification": cooperative.verification()}


def state_role(name: str, *, after: bool = False) -> str:
    """The role of a state that a run began with, or left behind.

    >>> state_role("n"), state_role("n", after=True)
    ('state.n', 'state.n.after')
    """
    return f"state.{name}.after" if after else f"state.{name}"


def output_roles(graph: Graph, positions: Iterable[int]) -> list[str]:
    """The roles of outputs: their names, longer ones where inputs have them.

    >>> import pumice as pm
    >>> output_roles(pm.trace(lambda x: {"x": x + 1.0, "y": x}, x=pm.spec(2)), (1, 0))
    ['y', 'output.x']
    """
    taken = {n.name for n in graph.sources("input")}
    return [f"output.{name}" if name in taken else name for name in (graph.outputs[i][0] for i in positions)]


def params_section(entries: Iterable[Entry]) -> dict[str, Any]:
    """Params as the section `model` has them: how many, their bytes, and the digest over all; the caller has the turn."""
    listed = list(entries)
    return {"count": len(listed), "bytes": sum(e.type.max_nbytes({}) for e in listed), "sha256": joint_digest(listed)}


def dtypes_of(exe: Executable) -> str:
    """The dtypes of an executable's params."""
    return "+".join(sorted({e.type.dtype.name for e in exe._params.values()})) or "none"
