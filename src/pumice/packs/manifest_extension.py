"""Pumice's own part of the manifest, under the key `pumice`: where a kernel runs, which op it is, and when it fits."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Annotated, Literal

from pumice.packs.manifest_fields import (
    MAX_DIM,
    MAX_RANK,
    ClosedPart,
    ExpressionText,
    Field,
    FilePath,
    Hash,
    Identifier,
    KeyText,
    Label,
    Many,
    Scalar,
)

Target = Literal["host", "webgpu"]
_IN_WGSL: dict[Target, bool] = {"host": False, "webgpu": True}
# Elements of a sample's operand: comparing with the reference must not take long.
MAX_SAMPLE = 1 << 20
_MAX_REFERENCE = 1 << 16

_Size = Annotated[int, Field(ge=1, le=MAX_DIM)]
_SampleShape = Annotated[tuple[_Size, ...], Field(strict=False, max_length=MAX_RANK)]
_Attr = Annotated[Scalar | Annotated[str, Field(max_length=200)], Field()]


class Wgsl(ClosedPart):
    """What a kernel in WGSL needs: invocations and memory of a workgroup, features, number of workgroups, time limit."""

    workgroup: Annotated[int, Field(ge=1, le=1024)]
    shared_bytes: Annotated[int, Field(ge=0, le=1 << 16)] = 0
    features: Annotated[Many[Label], Field(max_length=32)] = ()
    groups: ExpressionText
    time_limit_ms: Annotated[int, Field(ge=1, le=10_000)] = 2000


class NewOp(ClosedPart):
    """An op that a pack brings: its reference is a graph of existing ops, as `print(graph)` gives it."""

    name: Identifier
    operands: Annotated[Many[Identifier], Field(min_length=1, max_length=16)]
    attrs: Annotated[dict[Identifier, _Attr], Field(max_length=32)] = Field(default_factory=dict)
    reference: Annotated[str, Field(min_length=1, max_length=_MAX_REFERENCE)]
    samples: Annotated[Many[dict[Identifier, _SampleShape]], Field(min_length=1, max_length=32)]
    tolerance: Annotated[float, Field(ge=0, le=1)]

    def problems(self, inputs: list[str]) -> Iterator[tuple[str, str]]:
        """What the fields say together that cannot be, with the path of each."""
        if list(self.operands) != inputs:
            yield "operands", f"should be the inputs' names in their order ({', '.join(inputs)})"
        for i, sample in enumerate(self.samples):
            if sample.keys() != set(self.operands):
                yield f"samples[{i}]", "should have a shape for each operand and nothing else"
            for name, shape in sample.items():
                if prod(shape) > MAX_SAMPLE:
                    yield f"samples[{i}].{name}", f"has more than {MAX_SAMPLE} elements"


class KernelExtension(ClosedPart):
    """Key `pumice` of a kernel. `implements` names an op that exists, `op` brings one; with neither it is called by its id."""

    target: Target = "host"
    implements: Identifier | None = None
    op: NewOp | None = None
    params: Annotated[dict[Identifier, ExpressionText], Field(max_length=64)] = Field(default_factory=dict)
    when: Annotated[Many[ExpressionText], Field(max_length=32)] = ()
    wgsl: Wgsl | None = None
    scratch: ExpressionText | None = None
    files: Annotated[dict[FilePath, Hash], Field(max_length=512)] = Field(default_factory=dict)

    @property
    def in_wgsl(self) -> bool:
        """Whether the kernel is WGSL for GPUs; else it is WASM for the CPU."""
        return _IN_WGSL[self.target]

    @property
    def expressions(self) -> dict[str, str]:
        """Every expression by its path."""
        found = {f"params.{name}": text for name, text in self.params.items()}
        found |= {f"when[{i}]": text for i, text in enumerate(self.when)}
        if self.scratch is not None:
            found["scratch"] = self.scratch
        return found if self.wgsl is None else found | {"wgsl.groups": self.wgsl.groups}

    def problems(self, inputs: list[str], params: set[str]) -> Iterator[tuple[str, str]]:
        """What the fields say together that cannot be, with the path of each."""
        if self.op is not None:
            if self.implements is not None:
                yield "op", "cannot stand beside implements: a kernel is of one op"
            for path, rule in self.op.problems(inputs):
                yield f"op.{path}", rule
        if self.in_wgsl and self.scratch is not None:
            yield "scratch", "is for WASM kernels only: WGSL has workgroup memory"
        if self.in_wgsl != (self.wgsl is not None):
            yield "wgsl", "should be there for the target webgpu, and only for it"
        for name in self.params.keys() - params:
            yield f"params.{name}", "is not one of the kernel's params"


class PackExtension(ClosedPart):
    """Key `pumice` of the pack: its further files with their hashes, and the key that may sign its successor."""

    files: Annotated[dict[FilePath, Hash], Field(max_length=512)] = Field(default_factory=dict)
    next_key: KeyText | None = None
