"""Receipts of answers: what a call was given and how its sequences ran, kept by reference until a receipt is asked for.

Nothing here refers to an engine or its weights: an answer that is kept must not keep a model alive.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from pumice.core.records import dataclass
from pumice.llm.adapters import HeldAdapter
from pumice.llm.grammar import Grammar
from pumice.llm.model_files import ModelFiles
from pumice.llm.records import SequenceRecord
from pumice.llm.requests import Request, SamplingParams
from pumice.llm.speculate import Drafter, DraftModel, PromptLookup
from pumice.run.device import Device

if TYPE_CHECKING:
    from pumice.llm.answers import Generation
    from pumice.llm.engine import Engine
    from pumice.plan.plan import Plan
    from pumice.receipts.artifacts import Artifact
    from pumice.receipts.receipt import Receipt

# How the numbers come about that draw tokens; docs/sampling.md has the rules.
SAMPLER = "threefry2x32"
_PLAIN = frozenset({str, int, bool, type(None)})
_NUMBERS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, eq=False)
class CallFacts:
    """What all answers of a call share: the model, the device, the sizes of the engine, and the options as they were given."""

    model: ModelFiles
    device: Device
    sizes: Mapping[str, Any]
    options: Mapping[str, Any]
    sequences: int

    @staticmethod
    def of(model: ModelFiles, engine: Engine, given: Mapping[str, Any], draft: Drafter | None, sequences: int) -> CallFacts:
        """The facts of a call with these options, which an engine answers."""
        options: dict[str, Any] = {"raw": bool(given.get("raw")), "ignore_eos": bool(given.get("ignore_eos"))}
        stop = given.get("stop") or ()
        options["stop"] = [stop] if isinstance(stop, str) else list(stop)
        options |= {name: given[name] for name in ("system", "adapter") if given.get(name) is not None}
        if given.get("beams", 1) > 1:
            options |= {"beams": given["beams"], "length_penalty": given.get("length_penalty", 1.0)}
        if draft is not None:
            options["draft"] = draft.files if isinstance(draft, DraftModel) else _draft_entry(draft)
        if (grammar := given.get("grammar")) is not None:
            options["grammar"] = _grammar_entry(grammar)
        return CallFacts(model, engine.device, engine.sizes, options, sequences)


@dataclass(eq=False)
class AnswerFacts:
    """What one answer came from; the engine's notes of its sequence come with it when it is complete."""

    call: CallFacts
    prompt: Any
    tokens: Sequence[int]
    sampling: SamplingParams
    max_tokens: int
    stop_ids: Sequence[int]
    choice: int = 0
    record: SequenceRecord = field(default_factory=SequenceRecord)
    degraded: Sequence[Any] = ()
    ended: float = 0.0

    @staticmethod
    def of(call: CallFacts, prompt: Any, request: Request) -> AnswerFacts:
        """The facts of a request; messages are copied, as callers go on with their lists."""
        given = prompt if isinstance(prompt, str) else copy.deepcopy(prompt)
        return AnswerFacts(
            call, given, request.prompt, request.sampling, request.max_tokens, sorted(request.stop_ids), request.choice
        )

    def complete(self, record: SequenceRecord) -> None:
        """The answer has ended: how it ran, and which kernels of packs had failed until then. Later calls change nothing."""
        if self.ended:
            return
        self.record, self.ended = record, time.time()
        if "pumice.packs.degraded" in sys.modules:  # else no pack was loaded
            from pumice.packs.degraded import degraded

            self.degraded = degraded()

    def receipt(self, answer: Generation) -> Receipt:
        """What proves the answer."""
        from pumice.receipts.receipt import make_receipt
        from pumice.routes.documents import now
        from pumice.routes.own import GENERATE
        from pumice.routes.staged import stage, staged_profile
        from pumice.run.receipts import device_facts, plan_facts

        call, record = self.call, self.record
        prefill = stage("prefill", 1e3 * record.prefill_s, metadata={"tokens": len(self.tokens) - record.reused})
        decode = stage("decode", 1e3 * record.decode_s, metadata={"tokens": max(len(answer.tokens) - 1, 0)})
        return make_receipt(
            task=GENERATE.task,
            route_id=GENERATE.route_id,
            inputs=self._inputs(),
            outputs=_outputs(answer),
            model=lambda: call.model.entry,
            profile=staged_profile([prefill, decode], required_stages=GENERATE.stages),
            request=self._request(),
            conditions=self._conditions(answer),
            created_at=now(self.ended),
            status="partial" if answer.finish_reason == "cancelled" else None,
            **device_facts(call.device),
            **(plan_facts(_named(record)) | {"degraded": [entry.to_dict() for entry in self.degraded]}),
        )

    def _inputs(self) -> list[Artifact]:
        from pumice.receipts.artifacts import Artifact

        if isinstance(self.prompt, str):
            given = Artifact.text("prompt", self.prompt)
        elif isinstance(self.prompt[0], Mapping):
            given = Artifact.json("prompt", _jsonable(self.prompt))
        else:
            given = Artifact.ids("prompt", self.prompt)
        grammar = self.call.options.get("grammar")
        more = [] if grammar is None else [Artifact.json("grammar", grammar)]
        return [given, Artifact.ids("prompt_tokens", self.tokens), *more]

    def _request(self) -> dict[str, Any]:
        sampling, options = self.sampling, self.call.options
        found: dict[str, Any] = {name: getattr(sampling, name) for name in _NUMBERS}
        found |= {"seed": sampling.seed, "sampler": SAMPLER, "logprobs": sampling.logprobs, "max_tokens": self.max_tokens}
        found["logit_bias"] = [[token, "-inf" if value == -math.inf else value] for token, value in sampling.biases]
        found |= {name: value for name, value in options.items() if name != "grammar"}
        if self.choice:
            found["choice"] = self.choice
        if self.record.adapter is not None:
            found["adapter"] = _adapter_entry(str(options.get("adapter")), self.record.adapter)
        if isinstance(draft := options.get("draft"), ModelFiles):
            found["draft"] = {"kind": "model", **{name: draft.entry[name] for name in ("name", "source", "files")}}
        plain: dict[str, Any] = _jsonable(found | {"stop_tokens": list(self.stop_ids), **self.call.sizes})
        return plain

    def _conditions(self, answer: Generation) -> dict[str, Any]:
        record = self.record
        found: dict[str, Any] = {
            "finish_reason": answer.finish_reason,
            "sequences": self.call.sequences,
            "batch": record.batch,
            "reused_tokens": record.reused,
            "preempted": record.preempted,
            "recomputed": record.recomputed,
        }
        if record.drafts is not None:
            found |= {"drafted": record.drafts.drafted, "accepted": record.drafts.accepted}
        return found


def _named(record: SequenceRecord) -> dict[str, Plan]:
    """The plans that ran by name; those for the same work with another sampling are numbered."""
    found: dict[str, Plan] = {}
    for name, plan in record.plans.values():
        number = 1 + sum(other == name or other.startswith(f"{name}#") for other in found)
        found[name if number == 1 else f"{name}#{number}"] = plan
    return found


def _outputs(answer: Generation) -> list[Artifact]:
    from pumice.receipts.artifacts import Artifact

    found = [Artifact.text("text", answer.text), Artifact.ids("tokens", answer.tokens)]
    if answer.logprobs is not None:
        found.append(Artifact.json("logprobs", _jsonable(answer.logprobs)))
    return found


def _adapter_entry(name: str, held: HeldAdapter) -> dict[str, Any]:
    """An adapter that a request chose: its name, a digest of its matrices, and the folder it was loaded from."""
    found = {"name": name, "sha256": held.sha256}
    return found if held.loaded is None else found | held.loaded.entry()


def _draft_entry(draft: Drafter) -> dict[str, Any]:
    if isinstance(draft, PromptLookup):
        return {"kind": "lookup", "longest": draft.longest, "shortest": draft.shortest}
    return {"kind": f"{type(draft).__module__}.{type(draft).__qualname__}"}


def _grammar_entry(grammar: Any) -> dict[str, Any]:
    if isinstance(grammar, Grammar):
        return {"kind": grammar.kind, "source": grammar.source}
    return {"kind": f"{type(grammar).__module__}.{type(grammar).__qualname__}"}


def _jsonable(value: Any) -> Any:
    """A value as JSON has it: NumPy's numbers as plain ones, anything else as its text."""
    kind = type(value)
    if kind in _PLAIN or (kind is float and math.isfinite(value)):  # most are
        return value
    if kind is dict or isinstance(value, Mapping):
        return {str(name): _jsonable(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if type(value).__module__ == "numpy" and not getattr(value, "shape", None):
        return _jsonable(value.item())
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
