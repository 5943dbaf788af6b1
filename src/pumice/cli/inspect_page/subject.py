"""The subject of `pumice inspect`: the plan of a token step, a plan file, or weights; found by name, planned, measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pumice.core.dims import evaluate
from pumice.core.own_sources import PACKAGE_FOLDER
from pumice.core.precisions import Precision
from pumice.errors import InputError
from pumice.formats import open_weights
from pumice.formats.weights import WeightFile
from pumice.functions.build import shown_code
from pumice.llm.cross_encoder import ScoringSettings, classifier_graph
from pumice.llm.embed import Pooling, encoder_graph
from pumice.llm.graphs import trace_token_step
from pumice.llm.load import read_classifier, read_config
from pumice.llm.memory import CacheLayout, page_groups
from pumice.llm.precision import choose_precision
from pumice.llm.prepare import prepare_kernels
from pumice.llm.sampling import Sampling
from pumice.models.classifier import ClassifierHead
from pumice.models.config import ModelArchConfig
from pumice.models.load import LoadedParams, load_model_params
from pumice.models.registry import EncoderArchitecture, get_architecture
from pumice.passes.precision import with_precision
from pumice.plan.build import build_plan
from pumice.plan.file import MAGIC, read_plan
from pumice.plan.plan import Plan
from pumice.run.device import Device, open_device
from pumice.run.load_plan import load_plan
from pumice.run.opening import plan_options
from pumice.run.profile import Profile
from pumice.sources import ProgressCallback, resolve
from pumice.tracing import spec, trace

Array = np.ndarray[Any, Any]
Kind = Literal["model", "plan", "weights"]
# Tokens of a prompt that is measured, and those before a token step that is.
_PROMPT = 256
_TEXT = 128
_CHUNK = 512
_BATCH = 32


@dataclass(frozen=True)
class Subject:
    """One thing to show. `step` says which of a model's graphs was planned; `note` why nothing was.

    `sizes` and `inputs` are the defaults of a measured run: symbols at those values, inputs that are not named there are
    zeros. `arrays` are the weights; zeros where there are none.
    """

    kind: Kind
    name: str
    path: Path
    step: str = ""
    plan: Plan | None = None
    device: Device | None = None
    config: ModelArchConfig | None = None
    weights: WeightFile | None = None
    note: str = ""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, int] = field(default_factory=dict)
    measured: str = ""


@contextmanager
def open_subject(
    name: str,
    *,
    device: str,
    prefill: bool,
    context: int,
    precision: Precision | None,
    weights_only: bool,
    progress: ProgressCallback | None,
) -> Iterator[Subject]:
    """The subject that a path or name stands for; its files are open for as long as the `with` block lasts."""
    path = Path(name).expanduser()
    if path.suffix == ".plan" or _starts_as_plan(path):
        if prefill or weights_only or precision is not None:
            raise InputError(f"{name} is a plan file", hint="--prefill, --weights and --precision go with a model")
        yield Subject("plan", path.name, path, plan=read_plan(path), measured="weights and inputs are zeros")
        return
    try:
        found = resolve(name, progress=progress)
    except InputError:
        if path.is_file():  # then it is the content that is unknown, and here it may be a plan as well
            hint = "give a .plan, .gguf or .safetensors file, or a model"
            raise InputError(f"{name} is no plan, GGUF or safetensors file", hint=hint, path=name) from None
        raise
    with open_weights(found.path) as weights:
        plain = Subject("weights", found.name, found.path, weights=weights)
        if weights_only:
            yield plain
            return
        try:
            config = read_config(found.path, weights)
            head = read_classifier(found.path, weights, config)
            params = load_model_params(config, weights, head)
        except InputError as e:
            # A file of tensors that is no model we know is still worth showing; a question about its steps is not answered.
            if prefill:
                raise
            yield Subject("weights", found.name, found.path, weights=weights, note=f"not planned: {e.message}")
            return
        opened = open_device(device)
        chosen = choose_precision(precision, weights, params, opened, found.name)
        yield _model(plain, config, head, params, opened, prefill=prefill, context=context, precision=chosen)


def _starts_as_plan(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def _model(
    files: Subject,
    config: ModelArchConfig,
    head: ClassifierHead | None,
    params: LoadedParams,
    device: Device,
    *,
    prefill: bool,
    context: int,
    precision: Precision,
) -> Subject:
    """The plan of a model's step, as `pm.load` would make it."""
    arch = get_architecture(config.model_type)
    if isinstance(arch, EncoderArchitecture):
        if prefill:
            raise InputError(f"{files.name} is an encoder, which has one graph only", hint="leave --prefill out")
        folder = files.path if files.path.is_dir() else files.path.parent
        names, step = ["tokens"], "embedding of texts"
        settings: Pooling | ScoringSettings
        if head is None:
            settings = Pooling.from_folder(folder)
            function = encoder_graph(arch, config, settings)
        else:
            settings, step = ScoringSettings.from_folder(folder, head), "scores of texts"
            typed = settings.type_rows(config) > 0
            names += ["types"] if typed else []
            function = classifier_graph(arch, config, head, typed=typed)
        longest = min(settings.max_tokens or config.max_positions, config.max_positions)
        with _own_lines():
            numbers = {name: spec("B", "T", dtype="i32") for name in names}
            graph = trace(function, params=params.specs, **numbers, length=spec("B", dtype="i32"))
        maxima = {"B": _BATCH, "T": longest}
        sizes = {"B": 1, "T": min(_TEXT, longest)}
        inputs, measured = {"length": sizes["T"]}, f"one text of {sizes['T']} tokens"
    else:
        context = min(context, config.max_positions)
        windows = page_groups(config.windows, context)
        layout = CacheLayout(1, context, joined=device.caps.joined_cache, windows=windows)
        chunk = min(_CHUNK, context) if prefill else None
        with _own_lines():
            graph = trace_token_step(arch, config, params.specs, layout, Sampling(), chunk=chunk)
        maxima = {}
        if chunk is None:
            before = min(_PROMPT, context - 1)
            step, sizes = f"token step, context {context}", {}
            inputs, measured = {"start": before, "length": 1, "total": before + 1}, f"a token step after {before} tokens"
        else:
            tokens = min(_PROMPT, chunk)
            step, sizes = f"prompt of up to {chunk} tokens, context {context}", {"T": tokens}
            inputs, measured = {"length": tokens, "total": tokens}, f"a prompt of {tokens} tokens"
    return Subject(
        "model",
        files.name,
        files.path,
        step if precision == "exact" else f"{step}, precision {precision}",
        build_plan(with_precision(graph, precision), device.caps, plan_options(), max=maxima),
        device,
        config,
        files.weights,
        "",
        params.arrays,
        sizes,
        inputs,
        measured,
    )


@contextmanager
def _own_lines() -> Iterator[None]:
    """Nodes that are traced meanwhile name the lines of our models as their origin."""
    token = shown_code.set(tuple(PACKAGE_FOLDER + part for part in ("models", "llm")))
    try:
        yield
    finally:
        shown_code.reset(token)


def measure(subject: Subject, device: str, sizes: Mapping[str, int], progress: ProgressCallback | None) -> Profile:
    """Where the time of a run goes, with the subject's weights; states are as they are at the start of a session."""
    plan = subject.plan
    if plan is None:
        raise InputError(
            f"{subject.name} has no steps to run" + (f": {subject.note}" if subject.note else ""), hint="leave --run out"
        )
    env = {**plan.maxima, **subject.sizes, **sizes}
    with load_plan(plan, subject.device or device) as exe:
        prepare_kernels(exe.device, plan, progress)
        for n in plan.graph.sources("param"):
            stored = n.type.at(env)
            array = subject.arrays.get(n.name)
            exe.set_params({n.name: np.zeros(stored.stored_shape, stored.dtype.np) if array is None else array}, partial=True)
        inputs: dict[str, Array] = {}
        for n in plan.graph.sources("input"):
            shape = tuple(evaluate(d, env) for d in n.type.shape)
            inputs[n.name] = np.full(shape, subject.inputs.get(n.name, 0), n.type.dtype.np)
        # All results are computed in any case; reading large ones back would only take time.
        return exe.profile(inputs, outputs=[])
