"""The manifest of a pack, `kernels.json`: models that check every field, and what the fields say together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Any, Literal

from pumice.core.dtypes import f32
from pumice.core.expressions import parse
from pumice.ir.pack_kernels import CAPS_NAMES, TensorPattern, is_of_type
from pumice.ir.types import TensorType
from pumice.packs.errors import InvalidManifest, KernelNotFound
from pumice.packs.json_text import parse_object
from pumice.packs.manifest_extension import KernelExtension, PackExtension
from pumice.packs.manifest_fields import (
    Date,
    DimPattern,
    Email,
    Field,
    FilePath,
    Hash,
    Identifier,
    KernelId,
    Label,
    ManifestPart,
    Many,
    Number,
    OptionalKeyText,
    PackName,
    PydanticCustomError,
    Scalar,
    Shape,
    Text,
    Title,
    ValidationError,
    Version,
    model_validator,
)
from pumice.packs.paths import MANIFEST, clash

SCHEMA_URL = "https://ruvllm.dev/schemas/kernel-pack-v1.json"
MAX_KERNELS = 256
_SHOWN_PROBLEMS = 20

Category = Literal["positional_encoding", "normalization", "activation", "kv_cache", "adapter", "attention", "custom"]
DTypeName = Literal["f32", "f16", "bf16", "i8", "u8", "i32", "q4", "q8"]
ParamType = Literal["f32", "f64", "i32", "i64", "u32", "u64", "bool"]
# The bytes of an element; two of q4 share a byte, which the shape counts.
DTYPE_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i8": 1, "u8": 1, "i32": 4, "q4": 1, "q8": 1}
# How each param is stored: little-endian, bool as u32.
PARAM_FORMATS = {"f32": "<f", "f64": "<d", "i32": "<i", "i64": "<q", "u32": "<I", "u64": "<Q", "bool": "<I"}

Problems = Iterator[tuple[str, str]]


class Author(ManifestPart):
    """Who made the pack, and the key that signs it (empty while it is not signed)."""

    name: Title
    email: Email
    signing_key: OptionalKeyText


class TensorSpec(ManifestPart):
    """An input or output: its shape has sizes, names (the same name is the same size) and at most one name with `...`."""

    name: Identifier
    dtype: DTypeName
    shape: Shape

    @property
    def key(self) -> tuple[str, str, tuple[DimPattern, ...]]:
        """What two kernels must share for one to stand in for the other."""
        return self.name, self.dtype, self.shape


class Param(ManifestPart):
    """A parameter of a kernel with its type, default and range."""

    type: ParamType
    default: Scalar
    min: Scalar | None = None
    max: Scalar | None = None
    description: Text = ""

    def problem(self, value: object) -> str:
        """Why a value cannot be given to this parameter; nothing if it can.

        >>> Param(type="u32", default=1, max=8).problem(9), Param(type="u32", default=1).problem(-1)
        ('is more than 8', 'is not a u32')
        """
        if is_of_type(value, self.type):
            if self.min is not None and value < self.min:
                return f"is less than {self.min}"
            return f"is more than {self.max}" if self.max is not None and value > self.max else ""
        return f"is not {'an' if self.type[0] in 'if' else 'a'} {self.type}"

    def problems(self) -> Problems:
        """What the fields say together that cannot be."""
        bounds = {"min": self.min, "max": self.max}
        for name, bound in bounds.items():
            if bound is not None and (self.type == "bool" or not is_of_type(bound, self.type)):
                yield name, f"should be of type {self.type}" if self.type != "bool" else "makes no sense for a bool"
                return
        if self.min is not None and self.max is not None and self.min > self.max:
            yield "min", "is more than max"
        elif problem := self.problem(self.default):
            yield "default", problem


class ResourceLimits(ManifestPart):
    """The most that a kernel may use; the runtime's own budget clamps it. A page has 64 KiB, the stack is in bytes."""

    max_memory_pages: Annotated[int, Field(ge=1, le=65_536)] = 256
    max_epoch_ticks: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    max_table_elements: Annotated[int, Field(ge=0, le=10_000_000)] = 1024
    max_stack_size: Annotated[int, Field(ge=1024, le=1 << 30)] | None = None
    max_globals: Annotated[int, Field(ge=0, le=100_000)] | None = None


class Platform(ManifestPart):
    """What a kernel needs of one WASM runtime."""

    min_version: Version
    features: Annotated[Many[Label], Field(max_length=32)]
    aot_available: bool


class Benchmark(ManifestPart):
    """A measured time, as `pumice pack bench` writes it."""

    latency_us: Number
    throughput_gflops: Number


class KernelEntry(ManifestPart):
    """One kernel: its file, what it takes and gives, and what it may use."""

    id: KernelId
    name: Title
    category: Category = "custom"
    path: FilePath
    hash: Hash
    entry_point: Identifier
    inputs: Annotated[Many[TensorSpec], Field(max_length=16)]
    outputs: Annotated[Many[TensorSpec], Field(min_length=1, max_length=16)]
    params: Annotated[dict[Identifier, Param], Field(max_length=64)] = Field(default_factory=dict)
    resource_limits: ResourceLimits
    platforms: Annotated[dict[Label, Platform], Field(max_length=16)] = Field(default_factory=dict)
    benchmarks: Annotated[dict[Label, Benchmark], Field(max_length=256)] = Field(default_factory=dict)
    pumice: KernelExtension = KernelExtension()

    @property
    def in_wgsl(self) -> bool:
        """Whether it is WGSL for GPUs; else it is WASM for the CPU."""
        return self.pumice.in_wgsl

    def problems(self) -> Problems:
        """What the fields say together that cannot be, with the path of each."""
        tensors = [*self.inputs, *self.outputs]
        names = [spec.name for spec in tensors]
        for i, spec in enumerate(tensors):
            path = f"inputs[{i}]" if i < len(self.inputs) else f"outputs[{i - len(self.inputs)}]"
            if spec.name in names[:i]:
                yield f"{path}.name", f"is the second {spec.name}"
        dims = {dim for spec in tensors for dim in spec.shape if isinstance(dim, str)}
        for name in sorted(dim for dim in dims if f"{dim}..." in dims):
            yield "inputs", f"use {name} both for one dim and, as {name}..., for any number"
        if self.pumice.op is not None:
            known = {dim for spec in self.inputs for dim in spec.shape}
            for i, spec in enumerate(self.outputs):
                for dim in spec.shape:
                    if isinstance(dim, str) and dim not in known:
                        yield f"outputs[{i}].shape", f"has {dim}, which no input gives a size"
            for i, sample in enumerate(self.pumice.op.samples):
                sizes: dict[str, Any] = {}
                for spec in self.inputs:
                    pattern = TensorPattern(spec.name, "f32", tuple(spec.shape))
                    if spec.name in sample and not pattern.match(TensorType(f32, tuple(sample[spec.name])), sizes):
                        shape = ", ".join(map(str, spec.shape))
                        yield f"pumice.op.samples[{i}].{spec.name}", f"is no shape of the pattern [{shape}]"
        for name, param in self.params.items():
            for path, rule in param.problems():
                yield f"params.{name}.{path}", rule
            if self.in_wgsl and param.type not in ("f32", "i32", "u32", "bool"):
                yield f"params.{name}.type", "should be f32, i32, u32 or bool in WGSL"
        suffix = ".wgsl" if self.in_wgsl else ".wasm"
        if not self.path.endswith(suffix):
            yield "path", f"should end with {suffix} for the target {self.pumice.target}"
        if self.in_wgsl and self.entry_point != "main":
            yield "entry_point", "should be main in WGSL"
        for path, rule in self.pumice.problems([spec.name for spec in self.inputs], set(self.params)):
            yield f"pumice.{path}", rule
        usable = {dim.removesuffix("...") for dim in dims} | {f"caps.{name}" for name in CAPS_NAMES}
        usable |= {f"rank.{dim.removesuffix('...')}" for dim in dims if dim.endswith("...")}
        for path, text in self.pumice.expressions.items():
            for name in parse(text).names:
                if name not in usable and not name.startswith("attr."):
                    yield f"pumice.{path}", f"has {name}, which is no dim of the kernel, rank.NAME, attr.NAME or known caps.NAME"


class Manifest(ManifestPart):
    """The whole manifest. Unknown keys are kept and written back.

    `from_json` reads one; what is wrong with it is listed in the error, field by field.
    """

    schema_url: Annotated[str, Field(alias="$schema", pattern=r"^(https?://[^\s]{1,190}/kernel-pack-v1\.json)?$")] = ""
    name: PackName
    version: Version
    description: Text
    min_runtime_version: Version
    max_runtime_version: Version
    created_at: Date
    author: Author
    kernels: Annotated[Many[KernelEntry], Field(min_length=1, max_length=MAX_KERNELS)]
    fallbacks: Annotated[dict[KernelId, KernelId], Field(max_length=MAX_KERNELS)] = Field(default_factory=dict)
    pumice: PackExtension = PackExtension()

    @classmethod
    def from_json(cls, data: bytes) -> Manifest:
        """The manifest in these bytes; InvalidManifest lists each field that is wrong, with the rule.

        >>> Manifest.from_json(b'{"name": "Core", "kernels": 3}')
        Traceback (most recent call last):
        pumice.packs.errors.InvalidManifest: [invalid-manifest] kernels.json has 8 errors:
          name: should match '^[a-z][a-z0-9_-]{0,63}$'
          version: is missing
          ...
        """
        try:
            return cls.model_validate(parse_object(data, MANIFEST))
        except ValidationError as error:
            problems = _listed(error)
        lines = [f"{path}: {rule}" if path else rule for path, rule in problems[:_SHOWN_PROBLEMS]]
        if len(problems) > _SHOWN_PROBLEMS:
            lines.append(f"and {len(problems) - _SHOWN_PROBLEMS} more")
        if len(lines) == 1:
            raise InvalidManifest(f"{MANIFEST}: {lines[0]}", hint="docs/packs.md describes every field", problems=problems)
        text = "".join(f"\n  {line}" for line in lines)
        raise InvalidManifest(
            f"{MANIFEST} has {len(problems)} errors:{text}", hint="docs/packs.md describes every field", problems=problems
        )

    def to_json(self, pretty: bool = False) -> str:
        """The manifest as JSON: what was given, with the unknown keys; defaults that were not given are left out."""
        value = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        layout: dict[str, Any] = {"indent": 2} if pretty else {"separators": (",", ":")}
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **layout)

    @cached_property
    def _by_id(self) -> dict[str, KernelEntry]:
        return {kernel.id: kernel for kernel in self.kernels}

    @property
    def kernel_ids(self) -> tuple[str, ...]:
        """The kernels' ids in the manifest's order."""
        return tuple(self._by_id)

    def get_kernel(self, kernel_id: str) -> KernelEntry:
        """The kernel of this id; KernelNotFound names those that there are."""
        try:
            return self._by_id[kernel_id]
        except KeyError:
            known = ", ".join(list(self._by_id)[:20])
            raise KernelNotFound(
                f"the pack {self.name} has no kernel {kernel_id!r}", hint=f"it has {known}", pack=self.name, kernel=kernel_id
            ) from None

    def get_fallback(self, kernel_id: str) -> KernelEntry | None:
        """The kernel that stands in for this one if it fails; None if there is none."""
        self.get_kernel(kernel_id)
        return None if kernel_id not in self.fallbacks else self.get_kernel(self.fallbacks[kernel_id])

    def kernels_by_category(self, category: str) -> tuple[KernelEntry, ...]:
        """The kernels of one category."""
        return tuple(kernel for kernel in self.kernels if kernel.category == category)

    @cached_property
    def listed_files(self) -> dict[str, str]:
        """Every file that the pack must have beside manifest and signature, with its hash in lower case."""
        return {path: hash.lower() for path, hash, _ in self._files()}

    def _files(self) -> Iterator[tuple[str, str, str]]:
        """Path, hash, and the field that says so."""
        for i, kernel in enumerate(self.kernels):
            yield kernel.path, kernel.hash, f"kernels[{i}].hash"
            for path, hash in kernel.pumice.files.items():
                yield path, hash, f"kernels[{i}].pumice.files.{path}"
        for path, hash in self.pumice.files.items():
            yield path, hash, f"pumice.files.{path}"

    @model_validator(mode="after")
    def _check(self) -> Manifest:
        if problems := list(self._problems()):
            raise PydanticCustomError("pack", "the fields contradict each other", {"problems": problems})
        return self

    def _problems(self) -> Problems:
        seen: set[str] = set()
        for i, kernel in enumerate(self.kernels):
            if kernel.id in seen:
                yield f"kernels[{i}].id", f"is the second {kernel.id}"
            seen.add(kernel.id)
            for path, rule in kernel.problems():
                yield f"kernels[{i}].{path}", rule
        hashes: dict[str, str] = {}
        for path, hash, field in self._files():
            if hashes.setdefault(path, hash.lower()) != hash.lower():
                yield field, f"is another hash of {path} than before"
        if pair := clash(hashes):
            yield "kernels", f"{pair} are one file where case does not matter, or one is the other's folder"
        yield from self._fallback_problems()

    def _fallback_problems(self) -> Problems:
        known = {kernel.id: kernel for kernel in self.kernels}
        for kernel_id, fallback_id in self.fallbacks.items():
            field = f"fallbacks.{kernel_id}"
            if missing := [name for name in (kernel_id, fallback_id) if name not in known]:
                yield field, f"there is no kernel {missing[0]}"
                continue
            kernel, fallback = known[kernel_id], known[fallback_id]
            for name in ("inputs", "outputs"):
                if [s.key for s in getattr(kernel, name)] != [s.key for s in getattr(fallback, name)]:
                    yield field, f"{fallback_id} has other {name} than {kernel_id}"
            if kernel.in_wgsl != fallback.in_wgsl:
                yield field, f"{fallback_id} has another target than {kernel_id}"
            chain, at = {kernel_id}, fallback_id
            while at not in chain and at in self.fallbacks:
                chain.add(at)
                at = self.fallbacks[at]
            if at == kernel_id:
                yield field, "leads back to itself"


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema of manifests: every rule that concerns one field alone.

    >>> manifest_schema()["required"][:3]
    ['name', 'version', 'description']
    """
    schema = _closed(Manifest.model_json_schema(by_alias=True))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Kernel pack manifest, version 1", **schema}


def _closed(schema: Any) -> Any:
    """Pydantic's schema with keys that have a pattern held to it, and without titles that repeat the names."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _closed(value) for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
    return found | {"additionalProperties": False} if "patternProperties" in found else found


def _listed(error: ValidationError) -> list[tuple[str, str]]:
    """Path and rule of everything that was found, in order, each once."""
    found: dict[tuple[str, str], None] = {}
    items = error.errors(include_url=False, include_input=False)
    above = {item["loc"][:i] for item in items for i in range(len(item["loc"]))}
    for item in items:
        if item["type"] == "too_short" and item["loc"] in above:
            continue  # elements that are wrong do not count, and are listed themselves
        if item["type"] == "pack":
            found.update(dict.fromkeys(item["ctx"]["problems"]))
        else:
            found[_path(item["loc"]), _rule(item)] = None
    return list(found)


def _path(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        # Keys come from the file: they are cut, and cannot write control characters to a terminal.
        name = part if isinstance(part, int) or (part.isprintable() and len(part) <= 80) else ascii(part[:80])[1:-1] + "…"
        text += f"[{name}]" if isinstance(part, int) else f".{name}"
    return text.removeprefix(".")


def _rule(item: Any) -> str:
    """Pydantic's message in the words of the other rules."""
    match item["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "is not a key of this part"
        case "value_error":
            return str(item["ctx"]["error"])
        case "string_pattern_mismatch":
            return f"should match '{item['ctx']['pattern']}'"
    message: str = item["msg"]
    return message.removeprefix("Input ")[:300]
