"""PUMICE_VALIDATE: every run is compared with the reference interpreter, results and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pumice.errors import DeviceError
from pumice.reference.bounds import bound_graph
from pumice.reference.compare import mismatch
from pumice.run.convert import Array
from pumice.run.request import RunRequest

if TYPE_CHECKING:
    from pumice.run.executable import Executable


def validator(exe: Executable) -> Callable[[RunRequest, Sequence[Array]], None]:
    """Notes params and states before a run; what it returns compares the run's results with the reference.

    >>> import pumice as pm
    >>> from pumice import config
    >>> with config.override(validate=True), pm.compile(lambda x: x * 2.0, x=pm.spec(2), device="host") as exe:
    ...     exe.run(x=[1.0, 2.0])
    array([2., 4.], dtype=float32)
    """
    params = {name: e._read() for name, e in exe._params.items()}
    states = {name: e._read() for name, e in exe.state.items()}

    def compare(call: RunRequest, results: Sequence[Array]) -> None:
        expected = bound_graph(exe.graph, call.inputs, params, states, call.env, nodes=call.wanted)
        for node, got in zip(call.wanted, results, strict=True):
            problem = mismatch(got, expected.nodes[node], exe.graph.nodes[node].type.dtype)
            if problem:
                raise DeviceError(f"%{node} {exe.graph.nodes[node].op} differs from the reference: {problem}")
        for e in exe._changing():
            want = (expected.state if e.kind == "state" else expected.params)[e.name]
            problem = mismatch(e._read(), want, e.type.dtype)
            if problem:
                raise DeviceError(f"the {e.kind} {e.name!r} differs from the reference: {problem}")

    return compare
