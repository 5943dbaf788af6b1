"""The traced functions of a train step: loss and gradients, their sum over micro-batches, the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumice import functions as F
from pumice.errors import InputError
from pumice.ir.graph import Graph
from pumice.nn.module import Labels, Module, bind
from pumice.optim.optimizer import Named, Optimizer, global_norm
from pumice.passes.precision import with_precision
from pumice.tensor import Tensor
from pumice.tracing import Spec, set_param, set_state, spec, state, trace
from pumice.train.checks import ancestors

KEY, LR, NUMBER, FIRST = "step.key", "step.lr", "step.number", "step.first"
# Loss scaling of half precision: where it starts, after how many good train steps it doubles, and its bounds.
_FIRST_SCALE, _GROW_AFTER, _LEAST_SCALE, _MOST_SCALE = 2.0**15, 1000, 1.0, 2.0**24


@dataclass
class TrainStepGraphs:
    """The graphs of one train step: `main` does everything, or accumulates gradients that `apply` then applies."""

    model: Module
    loss: Callable[..., Any]
    optimizer: Optimizer
    inputs: Mapping[str, Any]
    precision: str
    accumulate: int
    aux: bool
    trained: tuple[str, ...] = ()
    labels: list[Labels] = field(default_factory=list)
    aux_names: tuple[str, ...] = ()

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled and train steps that are not finite are skipped."""
        return self.precision == "f16"

    @property
    def compute(self) -> str | None:
        """The dtype that modules compute in, where it is not that of their parameters."""
        return "f16" if self.precision == "f16" else None

    def _traced(self, run: Callable[..., Any], **specs: Any) -> Graph:
        """The graph of a function, its matmuls in the precision of matrix units that was asked for."""
        graph = trace(run, params=self.model.specs(), **specs)
        return with_precision(graph, "bf16") if self.precision == "bf16" else graph

    def main(self) -> Graph:
        """Loss and gradients of a batch; with one micro-batch per train step the update too."""

        def run(params: dict[str, Tensor], **given: Tensor) -> Any:
            batch = {name: given[name] for name in self.inputs}
            loss, aux, gradients, buffers = self._gradients(params, batch, given[KEY])
            if self.accumulate > 1:
                for name, gradient in gradients.items():
                    total = state(f"grad.{name}", gradient.shape)
                    wide = gradient.astype("f32")
                    set_state(total, F.where(given[FIRST] > 0, wide, total + wide))
                self._set_buffers(params, buffers, self._finite(loss) if self.scaled else None)
            else:
                ok = self._update(params, gradients, given[LR], given[NUMBER])
                self._set_buffers(params, buffers, ok)
            return (loss, aux) if self.aux else loss

        extra: dict[str, Spec] = {KEY: spec(2, dtype="u32")}
        extra |= {FIRST: spec()} if self.accumulate > 1 else {LR: spec(), NUMBER: spec()}
        graph = self._traced(run, **self.inputs, **extra)
        self._check_depends(graph)
        return graph

    def _check_depends(self, graph: Graph) -> None:
        """Refuses a loss that depends on no parameter: it would never change."""
        found = set(ancestors(graph, graph.outputs[0][1]))
        trained = {f"params.{name}" for name in self.trained} | set(self.trained)
        if not any(n.op == "param" and n.id in found and n.name in trained for n in graph):
            raise InputError("the loss depends on no parameter that is trained", hint="compute it from what the model gives")

    def apply(self) -> Graph:
        """The update by the accumulated gradients of micro-batches."""
        named = self.model.named_parameters()

        def run(params: dict[str, Tensor], **given: Tensor) -> None:
            totals = {name: state(f"grad.{name}", named[name].shape) for name in self.trained}
            gradients = {name: total * (1.0 / self.accumulate) for name, total in totals.items()}
            self._update(params, gradients, given[LR], given[NUMBER])

        return trace(run, params=self.model.specs(), **{LR: spec(), NUMBER: spec()})

    def forward(self, fn: Callable[..., Any], inputs: Mapping[str, Any]) -> Graph:
        """A function of the model, not in training."""

        def run(params: dict[str, Tensor], **given: Tensor) -> Any:
            with bind(self.model, params, compute=self.compute):
                return fn(self.model, **given)

        return self._traced(run, **inputs)

    def evaluation(self) -> Graph:
        """The loss and what came with it as a dict, not in training."""

        def measure(model: Module, **batch: Tensor) -> dict[str, Any]:
            loss, aux = self._split(self.loss(model, **batch))
            return {"loss": loss, **aux}

        return self.forward(measure, self.inputs)

    # -- parts ------------------------------------------------------------------------------------------------------
    def _split(self, result: Any) -> tuple[Tensor, dict[str, Any]]:
        """The loss in f32, and the rest by name."""
        rest: Any = {}
        if self.aux:
            if not isinstance(result, tuple) or len(result) != 2 or not isinstance(result[1], Mapping):
                raise InputError(f"with aux=True the loss function returns (loss, {{name: tensor}}), not {type(result).__name__}")
            result, rest = result
        if not isinstance(result, Tensor):
            pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
            raise InputError(
                f"the loss function returned {type(result).__name__}, not a scalar tensor",
                hint="compile_step(..., aux=True) takes a pair of the loss and a dict of numbers to watch" if pair else "",
            )
        if "loss" in rest:
            raise InputError("'loss' is the loss itself", hint="give the aux value another name", name="loss")
        return result.astype("f32") if result.dtype.is_float else result, dict(rest)

    def _gradients(
        self, params: Mapping[str, Tensor], batch: Mapping[str, Tensor], key: Tensor
    ) -> tuple[Tensor, dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
        fixed = {name: t for name, t in params.items() if name not in self.trained}

        def scaled(trained: dict[str, Tensor]) -> tuple[Tensor, Any]:
            with bind(self.model, {**fixed, **trained}, training=True, key=key, compute=self.compute) as binding:
                loss, aux = self._split(self.loss(self.model, **batch))
            self.labels = binding.labels
            self.aux_names = tuple(aux)
            return loss * _scale() if self.scaled else loss, (loss, aux, binding.updates)

        chosen = {name: params[name] for name in self.trained}
        (_, (loss, aux, buffers)), gradients = F.value_and_grad(scaled, has_aux=True)(chosen)
        return loss, aux, gradients, buffers

    def _update(self, params: Mapping[str, Tensor], gradients: Mapping[str, Tensor], lr: Tensor, number: Tensor) -> Tensor | None:
        """Traces the optimizer; gives the flag whether the update is applied, None where every one is."""
        ok: Tensor | None = None
        norm: Tensor | None = None
        if self.scaled:
            scale = _scale()
            gradients = {name: g.astype("f32") * (1.0 / scale) for name, g in gradients.items()}
            norm = global_norm(list(gradients.values()))
            ok = self._finite(norm)
            skipped, good = state("amp.skipped", (), "i32"), state("amp.good", (), "i32")
            # Skipped updates must not count in the optimizer's bias corrections either.
            number = number - skipped.astype("f32")
            grown = good + 1 >= _GROW_AFTER
            set_state(skipped, skipped + F.where(ok, 0, 1))
            set_state(good, F.where(F.logical_and(ok, F.logical_not(grown)), good + 1, 0))
            larger = F.minimum(F.where(grown, scale * 2.0, scale), _MOST_SCALE)
            set_state(scale, F.where(ok, larger, F.maximum(scale * 0.5, _LEAST_SCALE)))
        named_parameters = self.model.named_parameters()
        named: list[Named] = [(n, params[n], gradients[n], named_parameters[n]) for n in self.trained]
        self.optimizer.update(named, lr, number, ok=ok, norm=norm)
        return ok

    def _set_buffers(self, params: Mapping[str, Tensor], buffers: Mapping[str, Tensor], ok: Tensor | None) -> None:
        for name, value in buffers.items():
            old = params[name]
            new = value.astype(old.dtype)
            set_param(old, new if ok is None else F.where(ok, new, old))

    @staticmethod
    def _finite(x: Tensor) -> Tensor:
        return F.logical_not(F.logical_or(F.isnan(x), F.isinf(x)))


def _scale() -> Tensor:
    """The factor of the loss; declared once in a trace, named after that."""
    from pumice.functions.build import tracer_for

    known = "amp.scale" in tracer_for().states
    return state("amp.scale", (), "f32", None if known else _FIRST_SCALE)
