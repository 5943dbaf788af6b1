"""Receipts of training: of one train step, and of a whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumice.receipts.artifacts import Artifact
from pumice.receipts.receipt import Receipt, make_receipt
from pumice.routes.kernel import QUEUE_SUBMIT_WAIT
from pumice.routes.own import TRAIN_STEP
from pumice.routes.staged import stage, staged_profile
from pumice.run.convert import Array
from pumice.run.digests import digest_of_lines
from pumice.run.executable import Executable
from pumice.run.receipts import RecordedRun, device_facts, dtypes_of, host_stages, params_section, plan_facts
from pumice.train.checkpoint import CheckpointEntry
from pumice.train.log import jsonable

if TYPE_CHECKING:
    from pumice.train.step import TrainStep
    from pumice.train.trainer import Result

TRAIN_ROUTE = "pumice.train.v1"
# What of a result says where files are and how long it took, rather than what came out.
_PLACES = ("checkpoint", "best", "resumed_from", "seconds")


class RecordedStep:
    """A train step that ends with a receipt; the caller has the step's lock."""

    def __init__(self, step: TrainStep, batch: Mapping[str, Array]) -> None:
        self._step, self._batch = step, batch
        self._runs: list[RecordedRun] = []
        self._request = {
            **settings_of(step),
            "step": step.count,
            "micro": step.micro,
            "lr": step.lr,
        }

    def run(self, exe: Executable, inputs: Mapping[str, Array], captures: bool) -> Any:
        """As `exe.run`, and noted."""
        recorded = RecordedRun(exe, exe._call(inputs, None, captures), keep_states=False)
        self._runs.append(recorded)
        return recorded.call.finish(exe._in_turn(recorded.start).result())

    def receipt(self, loss: Array, more: Mapping[str, Array], captured: Mapping[str, Array]) -> Receipt:
        """The receipt, once all of the step has run."""
        first, last = self._runs[0], self._runs[-1]
        batch = {name: a for name, a in zip((a.role for a in first.inputs), first.inputs, strict=True) if name in self._batch}
        outputs = [Artifact.array("loss", loss)]
        outputs += [Artifact.array(f"aux.{name}", value) for name, value in more.items()]
        outputs += [Artifact.array(f"capture.{name}", value) for name, value in captured.items()]
        stages = host_stages(first.timing) + [s for run in self._runs[1:] for s in host_stages(run.timing, "update")]
        names = ("step", "update")
        updated = self._step.accumulate == 1 or last is not first
        return make_receipt(
            task=TRAIN_STEP.task,
            route_id=TRAIN_STEP.route_id,
            inputs=list(batch.values()),
            outputs=outputs,
            model=_model(self._step, first.params),
            profile=staged_profile(stages, required_stages=TRAIN_STEP.stages, timing_source=QUEUE_SUBMIT_WAIT),
            request=self._request,
            conditions={"params_after": last.params_after, "optimizer_states": self._states(), "updated": updated},
            runtime=first.runtime,
            **device_facts(first.device),
            **plan_facts({name: run.exe.plan for name, run in zip(names, self._runs, strict=False)}),
        )

    def _states(self) -> dict[str, Any]:
        """The digests over all states of the step, before and after, as `model.params` has that of params."""
        before: dict[str, tuple[str, str, str]] = {}
        after: dict[str, tuple[str, str, str]] = {}
        for run in self._runs:
            for state in run.states.values():
                before.setdefault(state["name"], (state["name"], state["type"], state["before"]))
                after[state["name"]] = state["name"], state["type"], state["after"]
        return {"count": len(before), "before": digest_of_lines(before.values()), "after": digest_of_lines(after.values())}


def settings_of(step: TrainStep) -> dict[str, Any]:
    """What a train step was compiled with, as data."""
    about = {"optimizer": step.optimizer.to_dict(), "schedule": step.schedule.to_dict()}
    found: dict[str, Any] = jsonable({"seed": step.seed, "precision": step.precision, "accumulate": step.accumulate, **about})
    return found


def _model(step: TrainStep, params: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": type(step.model).__name__, "dtype": dtypes_of(step.executable), "params": dict(params)}


def step_params(step: TrainStep) -> dict[str, Any]:
    """How many parameters a step has, their bytes, and the digest over all of them as they are now.

    >>> import numpy as np, pumice as pm
    >>> from pumice import nn, optim, train
    >>> def loss(model, x):
    ...     return nn.mse(model(x), x)
    >>> with train.compile_step(nn.Linear(2, 2), loss, optim.SGD(0.1), {"x": pm.spec(4, 2)}, device="host") as step:
    ...     before = step_params(step)
    ...     _ = step(x=np.ones((4, 2), "f4"))
    ...     before["count"], before["bytes"], step_params(step)["sha256"] != before["sha256"]
    (2, 24, True)
    """
    exe = step.executable
    return exe._in_turn(lambda _: params_section(exe._params.values()))


def training_receipt(
    step: TrainStep,
    result: Result,
    *,
    started: Mapping[str, Any],
    config: Mapping[str, Any],
    data: Mapping[str, Any],
    checkpoints: Iterable[CheckpointEntry] = (),
    measured: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Receipt:
    """The receipt of a training run: the settings and the data by hash, how it ended, the final parameters, the checkpoints.

    `started` is what `step_params` gave before the first step, `data` what the data says of itself (`Data.describe`), `measured`
    what was found out about the trained model.
    """
    files = [
        {"name": entry.path.name, "step": entry.step, "files": {n: dict(about) for n, about in entry.files.items()}}
        for entry in checkpoints
    ]
    ended = {key: value for key, value in result.as_json().items() if key not in _PLACES}
    resumed = None if result.resumed_from is None else Path(result.resumed_from).name
    final = step_params(step)
    return make_receipt(
        task="train",
        route_id=TRAIN_ROUTE,
        inputs=[Artifact.json("config", jsonable(config)), Artifact.json("data", jsonable(data))],
        outputs=[Artifact.json("result", {**ended, "measured": jsonable(measured or {})}), Artifact.json("checkpoints", files)],
        model={**_model(step, final), **({} if name is None else {"name": name})},
        profile=staged_profile([stage("train", result.seconds * 1e3)], required_stages=["train"]),
        request=settings_of(step),
        conditions={"params_before": dict(started), "resumed_from": resumed, "stopped": result.stopped, "steps": result.steps},
        status="partial" if result.stopped in ("interrupted", "terminated") else None,
        **device_facts(step.executable.device),
        **plan_facts({"step": step.executable.plan} | ({} if step._apply is None else {"update": step._apply.plan})),
    )
