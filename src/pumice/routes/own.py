"""The routes that Pumice runs itself, as data: text generation, embedding, ranking, classification, train steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pumice.routes.definition import Role, define_route
from pumice.routes.documents import RouteDocument
from pumice.routes.kernel import QUEUE_SUBMIT_WAIT, kernel_metadata

ANY_MODEL = "any"


@dataclass(frozen=True)
class OwnRoute:
    """A task as a route: any model that can do it, by name."""

    task: str
    inputs: tuple[Role, ...]
    outputs: tuple[Role, ...]
    stages: tuple[str, ...]

    @property
    def route_id(self) -> str:
        """The id that receipts of the task have.

        >>> GENERATE.route_id
        'pumice.generate.v1'
        """
        return f"pumice.{self.task}.v1"

    def definition(
        self,
        model: str = ANY_MODEL,
        *,
        revision: str = "unversioned",
        dtype: str = "any",
        inputs: Iterable[Role | str] | None = None,
    ) -> RouteDocument:
        """The route with a model; `inputs` are those of a train step, which takes the arrays of a batch by name.

        >>> GENERATE.definition("smollm2")["requiredOutputRoles"]
        ('text', 'tokens')
        """
        return define_route(
            self.route_id,
            model={"id": model, "revision": revision, "dtype": dtype},
            kernel=kernel_metadata("pumice.plan"),
            inputs=self.inputs if inputs is None else inputs,
            outputs=self.outputs,
            required_stages=self.stages,
            timing_source=QUEUE_SUBMIT_WAIT,
            worker={"runtime": "pumice", "task": self.task},
        )


def _optional(*names: str) -> tuple[Role, ...]:
    return tuple(Role(name, required=False) for name in names)


def _roles(*names: str) -> tuple[Role, ...]:
    return tuple(map(Role, names))


# Token ids are an input too: a text is them only by way of a tokenizer.
GENERATE = OwnRoute(
    "generate",
    (*_roles("prompt"), *_optional("prompt_tokens", "grammar")),
    (*_roles("text", "tokens"), *_optional("logprobs")),
    ("prefill", "decode"),
)
EMBED = OwnRoute("embed", (*_roles("texts"), *_optional("tokens")), _roles("vectors"), ("encode",))
RANK = OwnRoute("rank", (*_roles("query", "texts"), *_optional("tokens")), _roles("ranking", "scores"), ("encode",))
CLASSIFY = OwnRoute("classify", (*_roles("texts"), *_optional("tokens")), _roles("labels", "scores"), ("encode",))
TRAIN_STEP = OwnRoute("train-step", _roles("batch"), _roles("loss"), ("run",))
OWN = (GENERATE, EMBED, RANK, CLASSIFY, TRAIN_STEP)
BY_ID = {route.route_id: route for route in OWN}


def own_routes() -> list[RouteDocument]:
    """The definitions of all of them, for any model.

    >>> [route["routeId"] for route in own_routes()][:2]
    ['pumice.generate.v1', 'pumice.embed.v1']
    """
    return [route.definition() for route in OWN]
