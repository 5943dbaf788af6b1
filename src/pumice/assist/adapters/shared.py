"""What adapters share: models that are loaded on first use, options of answers, the choice of a tool, and work in threads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Mapping
from contextlib import closing
from typing import Any, TypeVar

from pumice.errors import InputError
from pumice.llm.load import load

T = TypeVar("T")

# The options of `generate` that frameworks for conversations know by these names.
ANSWER_OPTIONS = ("temperature", "max_tokens", "top_k", "top_p", "min_p", "seed", "stop", "logit_bias")


class LazyModel:
    """A model that is loaded when it is first asked for: a name or path as `pm.load` takes it, or a model that is loaded already.

    A copy has the same model; a pickle has its name, and the model is loaded again.

    >>> LazyModel("smollm2", "generate").name
    'smollm2'
    """

    def __init__(self, given: Any, task: str, options: Mapping[str, Any] | None = None) -> None:
        by_name = isinstance(given, str | os.PathLike)
        self._task, self._options = task, dict(options or {})
        self.name = str(given) if by_name else str(given.info.get("name", "pumice"))
        self._loaded = None if by_name else given
        self._lock = threading.Lock()

    def get(self) -> Any:
        """The loaded model; threads that ask at the same time get the same one."""
        with self._lock:
            if self._loaded is None:
                self._loaded = load(self.name, self._task, **self._options)
            return self._loaded

    def __deepcopy__(self, memo: Any) -> LazyModel:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return LazyModel, (self.name, self._task, self._options)


def answer_options(own: Mapping[str, Any], given: Mapping[str, Any], owner: str, also: Collection[str] = ()) -> dict[str, Any]:
    """The options of one answer: those of the call, then those of its `owner`; names in `also` are not for the model.

    >>> answer_options({"seed": 1, "top_k": 5, "stop": None}, {"seed": 2, "tools": []}, "PumiceChat", also=["tools"])
    {'top_k': 5, 'seed': 2}
    >>> answer_options({}, {"max_token": 5}, "PumiceChat")
    Traceback (most recent call last):
    pumice.errors.InputError: [input] max_token is no option of PumiceChat
      hint: one of temperature max_tokens top_k top_p min_p seed stop logit_bias
    """
    unknown = sorted(set(given) - {*ANSWER_OPTIONS, *also})
    if unknown:
        hint = "one of " + " ".join([*ANSWER_OPTIONS, *also])
        raise InputError(f"{unknown[0]} is no option of {owner}", hint=hint, name=unknown[0])
    wanted = {name: own.get(name) if given.get(name) is None else given[name] for name in ANSWER_OPTIONS}
    return {name: value for name, value in wanted.items() if value is not None}


def chosen_tool(given: str | Mapping[str, Any] | bool | None) -> Any:
    """The frameworks' and OpenAI's ways to say which tool must be called, as `stream_turn` takes it.

    >>> chosen_tool("any"), chosen_tool(None), chosen_tool({"type": "function", "function": {"name": "add"}})
    ('required', 'auto', {'mode': 'required', 'names': ['add']})
    """
    if given in (None, False, "auto"):
        return "auto"
    if given in (True, "any", "required"):
        return "required"
    if isinstance(given, Mapping):
        return given if "names" in given else {"mode": "required", "names": [given.get("function", given).get("name")]}
    return given if given == "none" else {"mode": "required", "names": [given]}


def refuse_part(kind: str) -> InputError:
    """The error for a part of a message that is no text.

    >>> refuse_part("image").message
    'a message has a part of the type image'
    """
    return InputError(f"a message has a part of the type {kind}", hint="send text: no model here sees or hears", name="messages")


async def from_thread(make: Callable[[Callable[[], bool]], Generator[T, None, None]]) -> AsyncGenerator[T, None]:
    """What a generator yields while it runs in a thread, so that the event loop goes on meanwhile.

    `make` gets a function that says whether nobody waits for more: the generator should end soon then.

    >>> async def collect():
    ...     return [k async for k in from_thread(lambda cancelled: (k for k in range(3)))]
    >>> asyncio.run(collect())
    [0, 1, 2]
    """
    loop, left = asyncio.get_running_loop(), threading.Event()
    items: asyncio.Queue[tuple[T] | None] = asyncio.Queue()

    def run() -> None:
        try:
            with closing(make(left.is_set)) as made:
                for item in made:
                    if left.is_set():
                        break
                    loop.call_soon_threadsafe(items.put_nowait, (item,))
        finally:
            loop.call_soon_threadsafe(items.put_nowait, None)

    running = asyncio.create_task(asyncio.to_thread(run))
    try:
        while (item := await items.get()) is not None:
            yield item[0]
        await running  # raises what the generator raised
    finally:
        left.set()
        await asyncio.gather(running, return_exceptions=True)
