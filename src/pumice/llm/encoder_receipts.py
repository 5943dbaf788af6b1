"""Receipts of encoders: the texts and tokens that went in, the numbers that came out, and how they were run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pumice.errors import InputError

if TYPE_CHECKING:
    from pumice.llm.encoders import EncoderModel
    from pumice.receipts.artifacts import Artifact
    from pumice.receipts.receipt import Receipt


@dataclass(eq=False)
class EncoderRun:
    """How the texts of one call ran: their token ids, the sizes of their batches, and the seconds for all of them."""

    tokens: Sequence[Sequence[int]] = ()
    batches: list[int] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0

    def ended(self) -> None:
        self.seconds = time.perf_counter() - self.began

    def receipt(
        self,
        model: EncoderModel,
        task: str,
        inputs: Sequence[Artifact],
        outputs: Sequence[Artifact],
        request: Mapping[str, Any],
    ) -> Receipt:
        """What proves the call; the token ids are an input beside the texts."""
        from pumice.receipts.artifacts import Artifact
        from pumice.receipts.receipt import make_receipt
        from pumice.routes.staged import stage, staged_profile
        from pumice.run.receipts import device_facts, plan_facts

        files = model.files
        if files is None:
            raise InputError("this model was not loaded from files, which a receipt names", hint="load it with pm.load")
        tokens = [list(map(int, ids)) for ids in self.tokens]
        sizes: dict[str, Any] = {"batch_size": model.batch_size, "max_tokens": model.max_tokens, "precision": model.precision}
        sizes["largest_step"] = model.plan.options.largest_step
        return make_receipt(
            task=task,
            route_id=f"pumice.{task}.v1",
            inputs=[*inputs, Artifact.json("tokens", tokens)],
            outputs=outputs,
            model=lambda: files.entry,
            profile=staged_profile([stage("encode", 1e3 * self.seconds)], required_stages=["encode"]),
            request={**request, **sizes},
            conditions={"batches": self.batches, "sequences": len(tokens)},
            **device_facts(model.device),
            **plan_facts({"encode": model.plan}),
        )
