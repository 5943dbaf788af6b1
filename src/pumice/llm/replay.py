"""Runs again what a receipt says ran: answers, vectors, rankings and traced functions, on the same device or another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from pumice.errors import OutOfMemory, PumiceError
from pumice.formats import open_weights
from pumice.llm.grammar import Grammar
from pumice.llm.load import load
from pumice.llm.model import LanguageModel
from pumice.llm.model_files import LoadedAdapter, ModelFiles
from pumice.llm.speculate import PromptLookup
from pumice.receipts.compare import TOLERANCE
from pumice.receipts.errors import NotReplayable, UntrustedSigner
from pumice.receipts.receipt import Receipt
from pumice.receipts.replay import Given, Replay, check_files, compare_runs
from pumice.receipts.verify import VerifiedReceipt
from pumice.run.device import Device, open_device
from pumice.run.replay import replay_route
from pumice.sources import NoNetwork, resolve

_SIZES = ("context", "slots", "memory", "cache_dtype")
_OPTIONS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty",
    "seed", "logprobs", "max_tokens", "stop", "system", "raw", "ignore_eos", "stop_tokens", "beams", "length_penalty",
)  # fmt: skip
# Where browsers have models from: nothing is fetched from there.
_ADDRESSES = ("http://", "https://", "files:", "folder:")


@contextmanager
def _reading() -> Iterator[None]:
    """A signer may write anything into a request: what cannot be read is named, and never ends in a stack trace."""
    try:
        yield
    except (TypeError, ValueError, KeyError, AttributeError) as problem:
        raise NotReplayable(
            f"the receipt's request cannot be read: {type(problem).__name__}: {problem}", hint="its maker wrote it in another way"
        ) from None


def replay(
    receipt: VerifiedReceipt,
    *,
    device: str | None = None,
    model: str | None = None,
    function: str | None = None,
    tolerance: float = TOLERANCE,
    fetch: bool = True,
) -> Replay:
    """Runs a receipt's request again and says which class of agreement it reached.

    `device`: by default the kind that the receipt names. `model`, `function`: where they are, if not where the receipt says.
    `fetch`: off for receipts of unknown signers, so that nothing they name is downloaded; `model` still is.
    Files, params and graphs that are not those of the receipt are refused before anything runs. Texts, tokens and files come from
    the receipt: replay only receipts of signers that you trust with that, as importing a function runs its module.
    """
    given = _Known(receipt, fetch)
    task = given.section["task"]
    opened = _device(given.section["device"], device)
    if task == "run":
        return compare_runs(receipt, replay_route(given, opened, function), tolerance)
    run = _TASKS.get(task)
    if run is None:
        raise NotReplayable(f"a receipt of the task {task} cannot be run again", hint=f"these can: {', '.join([*_TASKS, 'run'])}")
    try:
        return compare_runs(receipt, run(given, opened, model), tolerance)
    except MemoryError as problem:
        raise OutOfMemory(f"running the receipt again needs too much memory: {problem}", hint="look at its sizes") from None


class _Known(Given):
    """A receipt's request, and whether models that it names may be downloaded."""

    def __init__(self, receipt: VerifiedReceipt, fetch: bool) -> None:
        super().__init__(receipt)
        self.fetch = fetch


def _device(described: Mapping[str, Any], asked: str | None) -> Device:
    if asked is not None:
        return open_device(asked)
    backend = described.get("backend")
    if backend not in ("webgpu", "vulkan"):
        return open_device("host")
    try:
        return open_device(f"{backend}:{described.get('name')}")
    except PumiceError:  # it is not here: any other one
        return open_device("webgpu")


@contextmanager
def _loaded(given: _Known, device: Device, model: str | None, task: str | None, **sizes: Any) -> Iterator[Any]:
    """The model of a receipt, whose files are compared first."""
    entry, options = given.model, dict(sizes)
    source = _checked_model(entry, model, given.fetch)
    # Receipts from before say no precision: their runs were exact.
    options["precision"] = given.request.get("precision", "exact")
    if (largest := given.request.get("largest_step")) is not None:
        options["largest_step"] = largest
    with _reading():
        if (lora := entry.get("lora")) is not None:
            options |= {"lora": _adapter_folder(lora), "lora_scale": lora["scale"]}
        packs = sorted({kernel["pack"] for kernel in given.section["packs"]})
    with load(source, task, device=device, packs=packs, **options) as loaded:
        yield loaded


def _checked_model(entry: Mapping[str, Any], given: str | None, fetch: bool) -> str:
    """Where a model is that has the files which a receipt names."""
    source = given or entry.get("source")
    if not isinstance(source, str) or "files" not in entry:
        raise NotReplayable("the receipt names no files of a model", hint="say where it is: --model PATH")
    if given is None and source.startswith(_ADDRESSES):
        raise NotReplayable(f"a browser ran the model from {source}", hint="give the folder that it came from: --model DIR")
    try:
        resolved = resolve(source, offline=not fetch and given is None)
    except NoNetwork:
        if fetch or given is not None:
            raise
        raise UntrustedSigner(
            f"the model {source}, which somebody unknown names, is not here, and is not downloaded for them",
            hint=f"if you want it: --model {source}",
        ) from None
    with open_weights(resolved.path) as weights:
        found = ModelFiles.of(resolved, weights, "", None).entry
    check_files(entry["files"], found["files"], resolved.name)
    return source


def _adapter_folder(entry: Mapping[str, Any]) -> str:
    source = entry.get("source")
    if not isinstance(source, str):
        raise NotReplayable("the run had a LoRA adapter that came from no folder", hint="load adapters from folders")
    found = LoadedAdapter.of(source, entry["scale"]).entry()
    check_files(entry["files"], found["files"], f"the adapter {source}")
    return source


def _generate(given: _Known, device: Device, model: str | None) -> Receipt:
    request = given.request
    sizes = {name: request[name] for name in _SIZES if request.get(name) is not None}
    with ExitStack() as held, _loaded(given, device, model, "generate", **sizes) as loaded:
        with _reading():
            options: dict[str, Any] = {name: request[name] for name in _OPTIONS if request.get(name) is not None}
            options |= _biases(request.get("logit_bias") or ())
            if given.section["conditions"].get("finish_reason") == "cancelled":
                options["max_tokens"] = _tokens_before_cancel(given)
            if "grammar" in given.roles:
                options["grammar"] = _grammar(given.json("grammar"))
            if (draft := request.get("draft")) is not None:
                options["draft"] = _drafter(draft, held, device, given.fetch)
            if (adapter := request.get("adapter")) is not None:
                loaded.adapters.load(adapter["name"], _adapter_folder(adapter), scale=adapter["scale"])
                options["adapter"] = adapter["name"]
            prompt, choice = _prompt(given), int(request.get("choice", 0))
        answer = loaded.generate(prompt, n=choice + 1, **options)
        answer = answer[choice] if choice else answer
        found: Receipt = answer.receipt
        return found


def _prompt(given: Given) -> Any:
    if "prompt" not in given.roles:
        return given.json("prompt_tokens")
    return given.json("prompt") if given.is_json("prompt") else given.text("prompt")


def _biases(listed: Any) -> dict[str, Any]:
    """Biases by token; one of minus infinity is a token that is forbidden."""
    finite = {int(token): value for token, value in listed if value != "-inf"}
    forbidden = [int(token) for token, value in listed if value == "-inf"]
    return {k: v for k, v in (("logit_bias", finite), ("forbid", forbidden)) if v}


def _tokens_before_cancel(given: Given) -> int:
    count = len(given.json("tokens"))
    if not count:
        raise NotReplayable("the answer was cancelled before its first token", hint="there is nothing to compare")
    return count


def _grammar(entry: Mapping[str, Any]) -> Grammar:
    if not isinstance(entry.get("source"), str):
        raise NotReplayable(f"the answer's form was ruled by {entry.get('kind')}, which the receipt cannot hold")
    return Grammar(entry["source"], entry["kind"])


def _drafter(entry: Mapping[str, Any], held: ExitStack, device: Device, fetch: bool) -> PromptLookup | LanguageModel:
    if entry.get("kind") == "lookup":
        return PromptLookup(entry["longest"], entry["shortest"])
    if entry.get("kind") == "model":
        source = _checked_model(entry, None, fetch)
        found: LanguageModel = held.enter_context(load(source, "generate", device=device))
        return found
    raise NotReplayable(f"the answer was drafted by {entry.get('kind')}, which the receipt cannot hold")


def _embed(given: _Known, device: Device, model: str | None) -> Receipt:
    with _loaded(given, device, model, "embed") as loaded:
        made = loaded.embed if "texts" in given.roles else loaded.embed_tokens
        _, receipt = made(given.json("texts" if "texts" in given.roles else "tokens"), receipt=True)
        found: Receipt = receipt
        return found


def _scored(given: _Known, device: Device, model: str | None) -> Receipt:
    task = given.section["task"]
    with _loaded(given, device, model, {"rank": "rerank", "classify": "classify"}.get(task)) as loaded:
        texts = [tuple(text) if isinstance(text, list) else text for text in given.json("texts")]
        if task == "rank":
            _, receipt = loaded.rank(given.text("query"), texts, given.request.get("top"), receipt=True)
        else:
            _, receipt = (loaded.classify if task == "classify" else loaded.scores)(texts, receipt=True)
        found: Receipt = receipt
        return found


_TASKS: Mapping[str, Callable[[_Known, Device, str | None], Receipt]] = {
    "generate": _generate,
    "embed": _embed,
    "rank": _scored,
    "score": _scored,
    "classify": _scored,
}
