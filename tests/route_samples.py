"""Valid documents of every kind, made by Pumice, and the functions of both sides that check them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pumice.routes import predefined
from pumice.routes.backend import BACKEND, backend_identity
from pumice.routes.backpressure import BACKPRESSURE, backpressure_profile
from pumice.routes.definition import DEFINITION, Role, define_route
from pumice.routes.documents import RouteDocument, plain
from pumice.routes.kernel import KERNEL, TIMING, kernel_metadata, timing_metadata
from pumice.routes.receipts import RECEIPT, route_receipt
from pumice.routes.requests import request_errors, route_request
from pumice.routes.results import result_errors, worker_result
from pumice.routes.runtime_profile import RUNTIME_PROFILE, runtime_profile
from pumice.routes.scheduler import SCHEDULER, Settings, checkpoint, scheduler_profile, span
from pumice.routes.staged import STAGED, stage, staged_profile
from pumice.routes.tensors import TENSOR_MANIFEST, tensor_manifest

SHA = "5e" * 32
AT = "2026-01-01T00:00:00.000Z"


@dataclass(frozen=True)
class Sample:
    """A document, the package's function that checks it, ours, and what both need besides."""

    name: str
    function: str
    ours: Callable[..., list[str]]
    document: dict[str, Any]
    context: tuple[Any, ...] = ()

    def errors(self, document: Any) -> list[str]:
        return self.ours(document, *self.context)


def identity(runtime: str = "browser") -> RouteDocument:
    return backend_identity(
        "Apple M4",
        features=["timestamp-query", "shader-f16"],
        requested_features=["timestamp-query"],
        limits={"maxBufferSize": 1 << 30, "maxComputeWorkgroupSizeX": 256},
        timestamp_query="requested",
        runtime=runtime,
    )


def profile(*names: str, source: str = "queue-submit-wait") -> RouteDocument:
    stages = [stage(name, 1.26, shape=(1, 2), metadata={"k": 1}) for name in names]
    validated = source == "timestamp-query"
    return staged_profile(stages, required_stages=names, timing_source=source, timestamps_validated=validated)


def scheduler() -> RouteDocument:
    return scheduler_profile(
        Settings("cooperative", 4, True, {"decode": 2, "prefill": 1}),
        Settings("cooperative", 4, True, {"decode": 4, "prefill": 1}),
        unsupported=["phaseChunkSize.decode"],
        spans=[span("decode-submit", "decode", "gpu-submit-loop", reason="submitted"), span("read", None, "readback-bound")],
        checkpoints=[checkpoint("after-decode", "post-submit", "decode")],
        notes="n",
    )


def route() -> RouteDocument:
    return define_route(
        "demo.text.webgpu-local.v0",
        model={"id": "m", "revision": "1", "dtype": "f16"},
        kernel=kernel_metadata("plan"),
        inputs=["prompt", Role("image", required=False)],
        outputs=["text", Role("logits", required=False, shape=(1, 8))],
        required_features=["shader-f16"],
        required_stages=["prefill", "decode"],
        scheduler=scheduler(),
        backpressure=backpressure_profile("interactive", memory="shared", cache="warm", frame_tail={"p95FrameGapMs": 9.3}),
        worker={"exportName": "run"},
    )


def artifact(name: str, *shape: int) -> dict[str, Any]:
    return {"artifactId": name, "sha256": SHA, "shape": list(shape)}


def request() -> RouteDocument:
    return route_request(
        route(),
        "request-1",
        inputs={"prompt": artifact("p", 4)},
        outputs={"text": artifact("t", 8), "logits": artifact("l", 1, 8)},
        config={"seed": 1},
        created_at=AT,
    )


def receipt() -> RouteDocument:
    return route_receipt(
        "demo.text.webgpu-local.v0",
        backend=identity(),
        model={"id": "m", "revision": "1", "weightsHash": SHA, "dtype": "f16"},
        kernel=kernel_metadata("plan"),
        inputs=[{"role": "prompt", **artifact("p", 4)}],
        outputs=[{"role": "text", "status": "real", **artifact("t", 8)}],
        profile=profile("prefill", "decode"),
        runtime={"scheduler": scheduler(), "backpressure": backpressure_profile("batch")},
        created_at=AT,
    )


def predefined_receipt(given: predefined.PredefinedRoute) -> RouteDocument:
    shapes = {"somaJoints": (5, 30, 3), "motionClip": (5, 369)}
    return given.receipt(
        input=artifact("i", 4),
        outputs={output.key: artifact(output.key, *shapes.get(output.key, (1,))) for output in given.outputs},
        backend=identity(),
        profile=profile(*given.stages, source=given.timing_source),
        weights_hash=SHA,
        created_at=AT,
    )


def samples() -> list[Sample]:
    """One or more valid documents of every kind."""
    tensors = [
        {"name": "w", "dtype": "fp16", "shape": [2, 3], "byteOffset": 0, "byteLength": 12},
        {"name": "b", "dtype": "u8", "shape": [4], "byteOffset": 12, "byteLength": 4},
    ]
    runtime = runtime_profile(
        "r.v0", backend=identity(), kernel=kernel_metadata("p", commit="c"), profile=profile("a", "b"), created_at=AT
    )
    result = worker_result(route(), request(), receipt(), created_at=AT)
    timestamps = profile("a", source="timestamp-query")
    known = plain(route())
    plainly = [
        Sample("backend identity", "validateWebGpuBackendIdentity", BACKEND.errors, plain(identity())),
        Sample("kernel metadata", "validateKernelProfileMetadata", kernel_errors, plain(kernel_metadata("p", commit="c"))),
        Sample("timing metadata", "validateRouteTimingMetadata", TIMING.errors, plain(timing_metadata(["a", "b"]))),
        Sample("staged profile", "validateStagedSubmitProfile", STAGED.errors, plain(profile("a", "b"))),
        Sample("timestamp profile", "validateStagedSubmitProfile", STAGED.errors, plain(timestamps)),
        Sample("runtime profile", "validateWebGpuRuntimeProfile", RUNTIME_PROFILE.errors, plain(runtime)),
        Sample("scheduler profile", "validateWebGpuRouteSchedulerProfile", SCHEDULER.errors, plain(scheduler())),
        Sample("backpressure", "validateWebGpuRouteBackpressureProfile", BACKPRESSURE.errors, known["backpressure"]),
        Sample("tensors", "validateTensorManifest", TENSOR_MANIFEST.errors, plain(tensor_manifest("m", "1", tensors))),
        Sample("route definition", "validateRouteDefinition", DEFINITION.errors, known),
        Sample("request", "validateRouteInvocationRequest", request_errors, plain(request()), (known,)),
        Sample("receipt", "validateRouteReceipt", RECEIPT.errors, plain(receipt())),
        Sample("result", "validateRouteWorkerResult", result_errors, plain(result), (known,)),
    ]
    for given in predefined.PREDEFINED:
        plainly += [
            Sample(given.route_id, "validateRouteDefinition", DEFINITION.errors, plain(given.definition())),
            Sample(given.route_id, "validateRouteReceipt", RECEIPT.errors, plain(predefined_receipt(given))),
        ]
    return plainly


def kernel_errors(value: Any) -> list[str]:
    """The package prefixes the errors of kernel metadata that stands alone."""
    errors = KERNEL.errors(value)
    return errors if errors == ["kernel must be an object"] else [f"kernel.{text}" for text in errors]


# --- mutation ---

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2.5, 1e9, "", " ", "x", "real", "fallback", "partial", "cooperative", "throughput", "verified",
    "requested",
    "timestamp-query", "gpu-submit-bound", "browser", [], {}, [1], ["x"], [1.5], [None], [{}], {"x": 1}, {"a": None}, SHA,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value in a document, but not of the document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in inner:
        yield (*path, name)
        yield from places(part, (*path, name))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def mutate(value: Any, chance: random.Random) -> Any:
    """The document with one to three changes: a field dropped, renamed, replaced, doubled or exchanged."""
    copy = plain(value)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        found = list(places(copy))
        if not found:
            return plain(chance.choice(_VALUES))
        *above, name = chance.choice(found)
        owner = at(copy, tuple(above))
        change = chance.choice(("drop", "rename", "replace", "replace", "replace", "double", "exchange"))
        if change == "drop":
            del owner[name]
        elif change == "rename" and isinstance(owner, dict):
            owner[chance.choice(("x", f"{name}s", "name", "role", "schema"))] = owner.pop(name)
        elif change == "double" and isinstance(owner, list):
            owner.append(plain(owner[name]))
        elif change == "exchange":
            owner[name] = plain(at(copy, chance.choice(found)))
        else:
            owner[name] = plain(chance.choice(_VALUES))
    return copy
