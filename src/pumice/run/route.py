"""@pm.route: a traced function becomes a route with a definition, requests, worker results and receipts."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import threading
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from pumice.backends.base import Device
from pumice.errors import ClosedError, InputError, PumiceError
from pumice.ir.graph import Graph
from pumice.ir.types import TensorType
from pumice.receipts.artifacts import Artifact
from pumice.receipts.errors import ArtifactMismatch
from pumice.receipts.receipt import Receipt
from pumice.routes.definition import Role, define_route
from pumice.routes.documents import RouteDocument
from pumice.routes.kernel import QUEUE_SUBMIT_WAIT, TIMESTAMP_QUERY, kernel_metadata
from pumice.routes.requests import request_errors, route_request
from pumice.routes.results import worker_result
from pumice.routes.rules import is_text
from pumice.run.compile import compile as compile_graph
from pumice.run.convert import by_name, flatten
from pumice.run.executable import Executable
from pumice.run.receipts import NO_INPUTS, NO_OUTPUTS, RecordedRun, RunSubject, output_roles, state_role
from pumice.run.store import Store
from pumice.sources.digests import FileChanged, FileIdentity, file_digest
from pumice.tracing import Spec, trace

STAGE = "run"


@dataclass(frozen=True)
class RouteRun:
    """What a request came to: the function's result, the receipt, and the worker result that holds it."""

    value: Any
    receipt: Receipt
    document: RouteDocument


@dataclass(frozen=True)
class _Settings:
    """How a route is compiled, beside its function."""

    device: str | Device
    params: Any
    max: Mapping[str, int] | None
    store: Store | None
    packs: Any
    model: str
    timing: str
    specs: Mapping[str, Any]


class Route:
    """A traced function as a route; `pm.route` makes it. Calling it runs it. It is compiled when it first runs.

    Thread-safe. `close()` it, or use it as a context manager; what it computed stays.
    """

    def __init__(self, route_id: str, fn: Callable[..., Any], settings: _Settings, source: str = "") -> None:
        self.route_id, self.function, self._settings = route_id, fn, settings
        self._source = source
        # The file as it was when the function was defined: an edited one says nothing of what runs.
        file = self._file()
        self._identity = FileIdentity.of(file) if file.is_file() else None
        self._lock = threading.Lock()
        self._executable: Executable | None = None
        self._closed = False
        self.__doc__ = fn.__doc__

    # -- what it is -------------------------------------------------------------------------------------------------
    @cached_property
    def graph(self) -> Graph:
        """The traced function."""
        given = self._settings
        return trace(self.function, **({} if given.params is None else {"params": given.params}), **given.specs)

    @property
    def params(self) -> dict[str, Any]:
        """The params that it was made with, by name: arrays, or specs where they come later."""
        return {} if self._settings.params is None else flatten(self._settings.params)

    @property
    def max(self) -> Mapping[str, int]:
        """The maxima of symbols that it was made with."""
        return self._settings.max or {}

    @cached_property
    def definition(self) -> RouteDocument:
        """The route's definition: roles are the inputs and the outputs by name, those of fixed shape with it.

        >>> import pumice as pm
        >>> @pm.route("demo.scale.v0", x=pm.spec("N", 2))
        ... def scale(x):
        ...     return {"double": x * 2.0, "total": x.sum()}
        >>> scale.definition["requiredInputRoles"], scale.definition["requiredOutputRoles"]
        (('x',), ('double', 'total'))
        """
        return define_route(
            self.route_id,
            model=self._model,
            kernel=kernel_metadata("pumice.plan"),
            inputs=self._inputs(),
            outputs=self._outputs(),
            required_stages=[STAGE],
            timing_source=self._settings.timing,
            worker={"runtime": "pumice", "function": self.source},
        )

    @property
    def source(self) -> str:
        """The function as `load_route` finds it: module or file, and name."""
        if self._source:
            return self._source
        module, name = getattr(self.function, "__module__", "?"), getattr(self.function, "__qualname__", "?")
        return f"{self._file().name if module == '__main__' and self._file() else module}:{name}"

    @cached_property
    def _model(self) -> dict[str, str]:
        dtypes = sorted({n.type.dtype.name for n in self.graph.sources("param")})
        return {"id": self._settings.model, "revision": self.graph.hash[:16], "dtype": "+".join(dtypes) or "none"}

    def _inputs(self) -> list[Role]:
        graph = self.graph
        named = [_role(n.name, n.type) for n in graph.sources("input")] or [Role(NO_INPUTS)]
        return named + [_role(state_role(n.name), n.type, required=False) for n in graph.sources("state")]

    def _outputs(self) -> list[Role]:
        graph = self.graph
        types = [graph.nodes[i].type for _, i in graph.outputs]
        named = [_role(role, t) for role, t in zip(output_roles(graph, range(len(types))), types, strict=True)]
        states = [graph.nodes[i] for i, _ in graph.updates if graph.nodes[i].op == "state"]
        return named + [_role(state_role(n.name, after=True), n.type) for n in states] or [Role(NO_OUTPUTS)]

    def _about(self) -> dict[str, Any]:
        """The function, and the file it is in unless that has changed since."""
        about: dict[str, Any] = {"name": getattr(self.function, "__qualname__", "?"), "file": None, "sha256": None}
        if self._identity is None:
            return about
        with suppress(FileChanged):
            about["sha256"] = file_digest(self._identity)
        return {**about, "file": Path(self._identity.path).name}

    def _file(self) -> Path:
        try:
            return Path(inspect.getsourcefile(self.function) or "")
        except TypeError:
            return Path()

    # -- running ----------------------------------------------------------------------------------------------------
    @property
    def executable(self) -> Executable:
        """The compiled function, for its params and states; it is made now if it has not run yet."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"the route {self.route_id} is closed", hint="route.on(device) gives it again")
            if self._executable is None:
                given = self._settings
                made = compile_graph(self.graph, device=given.device, max=given.max, store=given.store, packs=given.packs)
                try:
                    arrays = {k: v for k, v in flatten(given.params).items() if not isinstance(v, Spec)}
                    if arrays:
                        made.set_params(arrays, partial=True)
                except BaseException:
                    made.close()
                    raise
                self._executable = made
            return self._executable

    def __call__(self, arrays: Mapping[str, Any] | None = None, /, **inputs: Any) -> Any:
        """Run it on inputs by name; the result is nested as the function returned it."""
        return self.executable.run(by_name(arrays, inputs))

    def run(self, arrays: Mapping[str, Any] | None = None, /, *, receipt: bool = False, **inputs: Any) -> Any:
        """Run it; with `receipt` the result comes with a `Receipt`.

        >>> import pumice as pm
        >>> @pm.route("demo.double.v0", x=pm.spec("N"), device="host")
        ... def double(x):
        ...     return x * 2.0
        >>> with double:
        ...     result, receipt = double.run(x=[1.0, 2.0], receipt=True)
        >>> result.tolist(), receipt.document["effectiveRouteId"], receipt.document["status"]
        ([2.0, 4.0], 'demo.double.v0', 'fallback')
        """
        given = by_name(arrays, inputs)
        return self._recorded(given) if receipt else self.executable.run(given)

    def _recorded(self, given: Mapping[str, Any], request_id: str | None = None) -> tuple[Any, Receipt]:
        exe = self.executable
        call = exe._call(given, None, False)
        subject = RunSubject(
            route_id=self.route_id,
            model={"name": self._model["id"], "revision": self._model["revision"]},
            request={"function": self.source} | ({} if request_id is None else {"request_id": request_id}),
            conditions={"function": self._about()},
            timing_source=self._settings.timing,
        )
        recorded = RecordedRun(exe, call, subject)
        value, receipt = recorded.finish(exe._in_turn(recorded.start).result())
        return value, receipt

    # -- documents --------------------------------------------------------------------------------------------------
    def request(
        self,
        arrays: Mapping[str, Any] | None = None,
        /,
        *,
        request_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        **inputs: Any,
    ) -> RouteDocument:
        """A request for these inputs, which it names by their hashes; nothing runs.

        >>> import pumice as pm
        >>> @pm.route("demo.double.v0", x=pm.spec("N"), device="host")
        ... def double(x):
        ...     return x * 2.0
        >>> with double:
        ...     asked = double.request(x=[1.0, 2.0], request_id="r1")
        ...     done = double.result(asked, x=[1.0, 2.0])
        >>> done.document["requestId"], done.document["status"], done.value.tolist()
        ('r1', 'fallback', [2.0, 4.0])
        """
        name = request_id if request_id is not None else uuid.uuid4().hex
        if not is_text(name):
            raise InputError(f"the request id is {name!r}", hint="a string that is not empty", name="request_id")
        given = {a.role: artifact_entry(a) for a in self._artifacts(by_name(arrays, inputs))}
        wanted = {role: {"artifactId": f"{name}.{role}"} for role in self.definition["requiredOutputRoles"]}
        return route_request(self.definition, name, inputs=given, outputs=wanted, config=config)

    def result(self, request: Mapping[str, Any], arrays: Mapping[str, Any] | None = None, /, **inputs: Any) -> RouteRun:
        """Run a request on the inputs that it names, and give result, receipt and worker result; other inputs are refused."""
        if errors := request_errors(request, self.definition):
            wrong = f"the request is not one for {self.route_id}: {'; '.join(errors)}"
            raise InputError(wrong, hint="route.request(...) makes one", errors=errors)
        given = by_name(arrays, inputs)
        named = {entry["role"]: entry["sha256"] for entry in request["inputs"]}
        artifacts = self._artifacts(given)
        if others := named.keys() - {a.role for a in artifacts}:
            raise InputError(
                f"the request also names {min(others)!r}", hint="a state is set through route.executable, not by a request"
            )
        for artifact in artifacts:
            if named[artifact.role].removeprefix("sha256:").lower() != artifact.sha256:
                raise ArtifactMismatch(
                    f"the input {artifact.role!r} is not the one that the request names", hint="give the array that was hashed"
                )
        value, receipt = self._recorded(given, request["requestId"])
        return RouteRun(value, receipt, worker_result(self.definition, request, receipt.document))

    def _artifacts(self, given: Mapping[str, Any]) -> list[Artifact]:
        """Inputs as a run converts and hashes them."""
        call = self.executable._call(given, None, False)
        if call.states:
            raise InputError("a request has inputs alone, no states", hint="set states through route.executable first")
        return [Artifact.array(name, array) for name, array in call.inputs.items()] or [Artifact.json(NO_INPUTS, {})]

    # -- life -------------------------------------------------------------------------------------------------------
    def on(self, device: str | Device, *, params: Any = None) -> Route:
        """The same route on another device, or with other params; it is closed on its own."""
        old = self._settings
        given = old.params if params is None else params
        settings = _Settings(device, given, old.max, None, old.packs, old.model, old.timing, old.specs)
        return Route(self.route_id, self.function, settings, self._source)

    def close(self) -> None:
        """Free what it has on the device; a second call does nothing."""
        with self._lock:
            self._closed, made = True, self._executable
        if made is not None:
            made.close()

    def __enter__(self) -> Route:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<route {self.route_id}>"


def _role(name: str, type: TensorType, *, required: bool = True) -> Role:
    # A shape with symbols is another one in each request.
    return Role(name, required, shape=(type.static_shape or (1,)) if type.is_static else None)


def artifact_entry(artifact: Artifact) -> dict[str, Any]:
    """An artefact as requests name it."""
    return {
        "artifactId": f"{artifact.role}-{artifact.sha256[:16]}",
        "sha256": artifact.sha256,
        "shape": list(artifact.shape),
    }


def route(
    route_id: str,
    /,
    *,
    device: str | Device = "auto",
    params: Any = None,
    max: Mapping[str, int] | None = None,
    store: Store | None = None,
    packs: Any = None,
    model: str | None = None,
    timing: str = QUEUE_SUBMIT_WAIT,
    **specs: Any,
) -> Callable[[Callable[..., Any]], Route]:
    """Make a traced function a route: what it takes and gives has names, and its runs have receipts.

    `specs` are the inputs; `device`, `params`, `max`, `store` and `packs` are those of `pm.compile`. `model` names what computes,
    the route itself by default. `timing` is the clock that every receipt of the route has: "queue-submit-wait", the host's, or
    "timestamp-query", the device's, which refuses runs whose timestamps are missing or do not agree with the host's.

    >>> import pumice as pm
    >>> @route("demo.edges.v0", image=pm.spec("H", "W"), device="host")
    ... def edges(image):
    ...     return {"dx": image[:, 1:] - image[:, :-1]}
    >>> with edges:
    ...     edges(image=[[1.0, 3.0, 6.0]])
    {'dx': array([[2., 3.]], dtype=float32)}
    """
    for name, value in (("route id", route_id), ("model", route_id if model is None else model)):
        if not is_text(value):
            raise InputError(f"the {name} is {value!r}", hint="a string that is not empty, such as 'my.edges.v0'", name=name)
    if timing not in (QUEUE_SUBMIT_WAIT, TIMESTAMP_QUERY):
        raise InputError(f"timing is {timing!r}", hint=f"{QUEUE_SUBMIT_WAIT!r} or {TIMESTAMP_QUERY!r}", name="timing")
    settings = _Settings(device, params, max, store, packs, model or route_id, timing, specs)

    def decorate(fn: Callable[..., Any]) -> Route:
        if not callable(fn):
            raise InputError(f"a route is made of a function, not of {type(fn).__name__}", hint="put @pm.route(...) above a def")
        return Route(route_id, fn, settings)

    return decorate


def load_route(spec: str) -> Route:
    """The route that `file.py:name` or `package.module:name` is; its module is run.

    >>> load_route("edges.py")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] 'edges.py' names no function
      hint: write FILE.py:FUNCTION or MODULE:FUNCTION, such as edges.py:edges
    """
    where, _, name = spec.rpartition(":")
    if not where or not name:
        raise InputError(
            f"{spec!r} names no function", hint="write FILE.py:FUNCTION or MODULE:FUNCTION, such as edges.py:edges", name=spec
        )
    found: Any = _module(where)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Route):
        what = "there is no such name in it" if found is None else f"it is a {type(found).__name__}"
        raise InputError(f"{spec} is no route: {what}", hint="put @pm.route('my.route.v0', x=pm.spec(...)) above the function")
    return Route(found.route_id, found.function, found._settings, spec)


def _module(where: str) -> ModuleType:
    path = Path(where)
    try:
        if path.suffix != ".py":
            return importlib.import_module(where)
        if not path.is_file():
            raise InputError(f"there is no file {path}", hint="give the path of a Python file", path=str(path))
        name = f"pumice_route_{path.stem}"
        made = importlib.util.spec_from_file_location(name, path)
        assert made is not None and made.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(made)
        made.loader.exec_module(module)
        return module
    except PumiceError:
        raise
    except Exception as e:
        raise InputError(f"{where} cannot be imported: {type(e).__name__}: {e}", hint="it must run on its own") from e
