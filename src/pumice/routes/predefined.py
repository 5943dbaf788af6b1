"""The four routes that the kit defines, as data: MoGE, SHARP, Kimodo and SF3D, and their receipts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice.routes.backpressure import backpressure_profile
from pumice.routes.definition import Role, define_route
from pumice.routes.documents import RouteDocument, plain
from pumice.routes.kernel import QUEUE_SUBMIT_WAIT, kernel_metadata
from pumice.routes.receipts import artifact_error, input_artifact, output_artifact, route_receipt
from pumice.routes.rules import ABSENT, field_of, is_integer, is_text
from pumice.routes.scheduler import Settings, checkpoint, scheduler_profile, span

_WALL_CLOCK = "adapter-phase-wall-clock"
_DTYPE = "fp16"


@dataclass(frozen=True)
class Output:
    """An output: the key by which callers pass it, its role, and its shape if it is fixed."""

    key: str
    role: str
    shape: tuple[int, ...] | None = None
    required: bool = True


@dataclass(frozen=True)
class PredefinedRoute:
    """All that tells one predefined route from another."""

    route_id: str
    model_id: str
    revision: str
    profile: str
    input_name: str
    input_role: str
    outputs: tuple[Output, ...]
    timing_source: str
    cooperative: bool
    notes: str
    worker: Mapping[str, Any]
    spans: tuple[Mapping[str, Any], ...]
    checkpoints: tuple[Mapping[str, Any], ...]
    check: Callable[[Mapping[str, Any]], Iterator[str]] = field(default=lambda outputs: iter(()))

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that a run must time: those of the spans."""
        return tuple(part["stage"] for part in self.spans)

    def definition(self, *, revision: str | None = None, dtype: str = _DTYPE, profile: str | None = None) -> RouteDocument:
        """The route's definition.

        >>> MOGE.definition()["requiredOutputRoles"]
        ('depth', 'normal')
        """
        chunks = dict.fromkeys(self.stages, 1) if self.cooperative else {}
        settings = Settings("cooperative" if self.cooperative else "throughput", 4 if self.cooperative else 0, True, chunks)
        shared = backpressure_profile("visible-wait", memory="shared")
        exclusive = backpressure_profile("visible-wait", "furnace", memory="exclusive")
        return define_route(
            self.route_id,
            model={"id": self.model_id, "revision": revision or self.revision, "dtype": dtype},
            kernel=kernel_metadata(profile or self.profile),
            inputs=[self.input_role],
            outputs=[Role(output.role, output.required, shape=output.shape) for output in self.outputs],
            required_stages=self.stages,
            timing_source=self.timing_source,
            scheduler=scheduler_profile(
                settings,
                state="scheduler-unverified",
                spans=self.spans,
                checkpoints=self.checkpoints,
                notes=self.notes,
            ),
            backpressure=shared if self.cooperative else exclusive,
            worker=self.worker,
        )

    def receipt(
        self,
        *,
        input: Mapping[str, Any],
        outputs: Mapping[str, Mapping[str, Any]],
        backend: Mapping[str, Any],
        profile: Mapping[str, Any],
        weights_hash: str,
        revision: str | None = None,
        dtype: str = _DTYPE,
        kernel: Mapping[str, Any] | None = None,
        fallback_reason: str | None = None,
        created_at: str | None = None,
    ) -> RouteDocument:
        """The receipt of a run, from artifacts by key.

        >>> MOGE.receipt(input={}, outputs={}, backend={}, profile={}, weights_hash="w")
        Traceback (most recent call last):
        pumice.routes.errors.InvalidDocument: [invalid-document] input image artifactId and sha256 are required
          hint: docs/routes.md has the rules of every document
        """
        if not (is_text(input.get("artifactId")) and is_text(input.get("sha256"))):
            raise artifact_error(f"{self.input_name} artifactId and sha256 are required")
        for output in self.outputs:
            if output.required and output.key not in outputs:
                raise artifact_error(f"{output.key} output is required")
        for text in self.check(plain(outputs)):
            raise artifact_error(text)
        return route_receipt(
            self.route_id,
            backend=backend,
            model={"id": self.model_id, "revision": revision or self.revision, "weightsHash": weights_hash, "dtype": dtype},
            kernel=kernel or kernel_metadata(self.profile),
            inputs=[input_artifact(self.input_role, input)],
            outputs=[output_artifact(o.role, outputs[o.key], key=o.key) for o in self.outputs if o.key in outputs],
            profile=profile,
            fallback_reason=fallback_reason,
            created_at=created_at,
        )


def motion_errors(outputs: object) -> list[str]:
    """What is wrong with the shapes of a motion: joints and clip have the same number of frames.

    `outputs` are artifacts by key, or a receipt's list of outputs.

    >>> motion_errors({"somaJoints": {"shape": [5, 30, 3]}, "motionClip": {"shape": [6, 369]}})
    ['somaJoints and motionClip must share the same frame count (same positive frames), got 5 vs 6']
    """
    return list(_motion_errors(plain(outputs)))


def _motion_errors(outputs: Any) -> Iterator[str]:
    frames: list[int] = []
    for key, role, rest in (("somaJoints", "soma-joints", [30, 3]), ("motionClip", "motion-clip", [369])):
        if isinstance(outputs, list):
            found = [entry for entry in outputs if field_of(entry, "role") == role]
            if len(found) > 1:
                yield f"exactly one {role} artifact required, found {len(found)}"
                continue
            shape = field_of(found[0], "shape") if found else ABSENT
        else:
            shape = field_of(field_of(outputs, key), "shape")
        if isinstance(shape, list) and shape[1:] == rest and is_integer(shape[0]) and shape[0] > 0:
            frames.append(int(shape[0]))
        else:
            got = "undefined" if shape is ABSENT else json.dumps(shape, separators=(",", ":"))
            wanted = ", ".join(map(str, rest))
            yield f"{key} shape must be [frames, {wanted}] with positive integer frames, got {got}"
    if len(frames) == 2 and frames[0] != frames[1]:
        got = f"{frames[0]} vs {frames[1]}"
        yield f"somaJoints and motionClip must share the same frame count (same positive frames), got {got}"


def _after(*stages: str) -> list[dict[str, Any]]:
    return [checkpoint(f"after-{stage}", "stage-boundary", stage) for stage in stages]


def _phases(reason: str, *stages: str) -> list[dict[str, Any]]:
    return [span(f"{stage}-phase", stage, "gpu-submit-bound", reason=reason) for stage in stages]


_SUBMITTED = "GPU command buffers cannot be preempted after submit"
MOGE = PredefinedRoute(
    route_id="moge.depth-normal.webgpu-local.v0",
    model_id="Ruicheng/moge-2-vitl-normal",
    revision="local-vitl-normal",
    profile="conv-transpose2d-stride2",
    input_name="input image",
    input_role="source-image",
    outputs=(
        Output("depth", "depth", (592, 592)),
        Output("normal", "normal", (3, 592, 592)),
        Output("pointMap", "pointmap", (3, 592, 592), required=False),
        Output("mask", "mask", (592, 592), required=False),
    ),
    timing_source=QUEUE_SUBMIT_WAIT,
    cooperative=True,
    notes="MoGE can cooperate between staged submits and readback, not inside a submitted GPU pass.",
    worker={"exportName": "runMogeDepthNormalRoute"},
    spans=(
        span("backbone-submit", "backbone", "gpu-submit-bound", reason=_SUBMITTED),
        span("decoder-heads-submit", "decoder-heads", "gpu-submit-bound", reason=_SUBMITTED),
        span("output-readback", "output-readback", "readback-bound"),
    ),
    checkpoints=(
        *_after("backbone", "decoder-heads"),
        checkpoint("after-output-readback", "readback", "output-readback"),
    ),
)

_SHARP_STAGES = ("spn", "monodepth", "gaussian-decoder", "compose-ply")
SHARP = PredefinedRoute(
    route_id="sharp.image-to-splat.webgpu-local.v0",
    model_id="apple/ml-sharp",
    revision="local-sharp-webgpu",
    profile="spn-dinov2l16-monodepth-gaussian-ply",
    input_name="input image",
    input_role="source-image",
    outputs=(
        Output("splat", "splat-candidate", (1179648, 14)),
        Output("depthMap", "depth-map", (768, 768, 4)),
        Output("metadata", "sharp-webgpu-metadata", (1,)),
        Output("autoCropEvidence", "splat-autocrop-evidence", (1,), required=False),
    ),
    timing_source=_WALL_CLOCK,
    cooperative=False,
    notes="SHARP is furnace-class until finer adapter receipts prove smaller cooperative boundaries.",
    worker={
        "exportName": "runSharpImageToSplatRoute",
        "adapterReportSchema": "kaminos.sharp-webgpu-adapter-report.v0",
        "pipelineRouteId": "adapter.sharp-image-to-splat-live.v0",
    },
    spans=(
        *_phases("Browser WebGPU cannot preempt a submitted SHARP adapter phase.", *_SHARP_STAGES),
        span("output-capture-phase", "output-capture", "readback-bound"),
    ),
    checkpoints=(*_after(*_SHARP_STAGES), checkpoint("after-output-capture", "readback", "output-capture")),
)

KIMODO = PredefinedRoute(
    route_id="kimodo.text-to-motion.webgpu-local.v0",
    model_id="NVIDIA/Kimodo-SOMA-RP-v1.1",
    revision="SOMA-RP-v1.1",
    profile="kimodo-text-to-motion",
    input_name="text prompt",
    input_role="text-prompt",
    outputs=(
        Output("somaJoints", "soma-joints"),
        Output("motionClip", "motion-clip"),
        Output("filmstrip", "filmstrip", required=False),
    ),
    timing_source=_WALL_CLOCK,
    cooperative=True,
    notes="Kimodo can expose useful cooperative pressure between diffusion steps; each submitted step remains non-preemptible.",
    worker={
        "exportName": "runKimodoTextToMotionRoute",
        "textEmbedding": "external-llama3-8b",
        "motionFormat": "kimodo-soma30-explicit-joints",
    },
    spans=(
        span("text-embedding", "text-embedding", "external-bound"),
        span(
            "ddim-sampling-loop",
            "ddim-sampling",
            "gpu-submit-loop",
            reason="Each diffusion step submit is non-preemptible; cooperative yielding occurs between steps.",
            metadata={"checkpointCadence": "per-diffusion-step"},
        ),
        span("fk-decode", "fk-decode", "cpu-bound", interruptible=True),
        span("output-capture", "output-capture", "readback-bound"),
    ),
    checkpoints=(
        checkpoint("between-diffusion-steps", "diffusion-step", "ddim-sampling", metadata={"cadence": "per-step"}),
        checkpoint("after-output-capture", "readback", "output-capture"),
    ),
    check=_motion_errors,
)

_SF3D_STAGES = ("image-preprocess", "dinov2-tokenizer", "two-stream-backbone", "triplane-decode", "marching-tet", "texture-bake")
SF3D = PredefinedRoute(
    route_id="sf3d.image-to-mesh.webgpu-local.v0",
    model_id="stabilityai/stable-fast-3d",
    revision="stable-fast-3d",
    profile="dinov2-two-stream-triplane-marching-tet-texture-bake",
    input_name="input image",
    input_role="source-image",
    outputs=(
        Output("meshGlb", "mesh-glb", (1,)),
        Output("albedoTexture", "albedo-texture"),
        Output("normalMap", "normal-map"),
        Output("meshObj", "mesh-obj", (1,), required=False),
    ),
    timing_source=_WALL_CLOCK,
    cooperative=False,
    notes="SF3D remains furnace-class until attention/triplane/marching phases expose finer cooperative boundaries.",
    worker={"exportName": "runSf3dImageToMeshRoute", "meshFormat": "glb", "textureBake": True, "normalMap": True},
    spans=(
        *_phases(
            "SF3D browser phases are treated as non-preemptible GPU work until finer receipts prove step boundaries.",
            *_SF3D_STAGES,
        ),
        span("glb-export-phase", "glb-export", "cpu-bound"),
    ),
    checkpoints=(*_after(*_SF3D_STAGES), checkpoint("after-glb-export", "stage-boundary", "glb-export", waits=False)),
)
PREDEFINED = (MOGE, SHARP, KIMODO, SF3D)


def predefined_routes() -> list[RouteDocument]:
    """The definitions of all four.

    >>> [route["model"]["id"] for route in predefined_routes()][0]
    'Ruicheng/moge-2-vitl-normal'
    """
    return [route.definition() for route in PREDEFINED]
