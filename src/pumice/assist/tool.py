"""Tools: Python functions that a model may call, with a schema from the signature and validated arguments."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias, get_type_hints, overload

from pumice.errors import InputError, PluginError, PumiceError

# What a call may do to the world: tools that only read run without asking, all others need the user's consent.
Effect: TypeAlias = Literal["read", "write", "run", "network"]
EFFECTS: tuple[Effect, ...] = ("read", "write", "run", "network")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SECTION = re.compile(r"^(args|arguments|parameters|returns?|raises|yields|examples?|notes?)\s*:\s*$", re.IGNORECASE)
_PARAMETER = re.compile(r"^\s*\**(\w+)\s*(?:\([^)]*\))?\s*:\s*(.+)$")
_SPHINX = re.compile(r"^\s*:param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.+)$")


class ToolError(PumiceError):
    """A tool that failed, or was given arguments that it does not take; the model sees the error, and the agent goes on."""

    code = "tool"


@dataclass(frozen=True)
class Tool:
    """A function with a name, a description and a JSON schema of its arguments; `call` validates them first.

    `effect` says what a call may do: anything but "read" needs the user's consent. `seconds` is how long a call may take where
    the agent's own limit is longer.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any]
    effect: Effect = "run"
    seconds: float | None = None
    # Makes keyword arguments of a JSON object; None for tools that check their own.
    validate: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = field(default=None, repr=False)

    @property
    def needs_consent(self) -> bool:
        """Whether a user must agree to each call."""
        return self.effect != "read"

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as chat templates and OpenAI's API describe it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def call(self, arguments: Mapping[str, Any]) -> Any:
        """What the function gives for arguments as a model writes them; an async function is run to its end."""
        given = dict(arguments) if self.validate is None else self.validate(arguments)
        found = self.function(**given)
        return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(value: Any) -> Any:
    return await value


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, effect: Effect = "run", seconds: float | None = None
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    effect: Effect = "run",
    seconds: float | None = None,
) -> Any:
    """A function as a tool, also as a decorator: the schema is that of its type hints, the texts are those of its docstring.

    >>> @tool(effect="read")
    ... def add(a: int, b: int = 1) -> int:
    ...     '''Add two numbers.
    ...
    ...     Args:
    ...         a: the first of them
    ...     '''
    ...     return a + b
    >>> add.description, add.parameters["required"], add.parameters["properties"]["a"]
    ('Add two numbers.', ['a'], {'description': 'the first of them', 'type': 'integer'})
    >>> add.call({"a": 2})
    3
    >>> add.call({"a": "two"})
    Traceback (most recent call last):
    pumice.assist.tool.ToolError: [tool] add: a: Input should be a valid integer, unable to parse string as an integer
      hint: the arguments must follow the tool's schema
    """

    def made(function: Callable[..., Any]) -> Tool:
        return _from_function(function, name, description, effect, seconds)

    return made if function is None else made(function)


def _from_function(
    function: Callable[..., Any], name: str | None, description: str | None, effect: Effect, seconds: float | None
) -> Tool:
    name = name or str(getattr(function, "__name__", ""))
    check_tool_name(name)
    if effect not in EFFECTS:
        raise InputError(f"the effect of the tool {name} is {effect!r}", hint="one of " + " ".join(EFFECTS), name=name)
    about, texts = read_docstring(inspect.getdoc(function) or "")
    model = _arguments_model(function, name, texts)

    def validate(given: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            found = model.model_validate(dict(given))
        except ValueError as e:  # pydantic's error is one
            raise ToolError(f"{name}: {_problems(e)}", hint="the arguments must follow the tool's schema", name=name) from None
        return {key: getattr(found, key) for key in type(found).model_fields}

    schema = {k: v for k, v in model.model_json_schema().items() if k != "title"}
    schema["properties"] = {
        key: {k: v for k, v in sorted(entry.items()) if k != "title"} for key, entry in schema.get("properties", {}).items()
    }
    return Tool(name, description or about, schema, function, effect, seconds, validate)


def check_tool_name(name: str) -> None:
    """Refuses a name that chat templates and APIs would not take."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"{name!r:.80} is no name of a tool", hint="up to 64 letters, digits, _ and -, the first a letter or _", name=name
        )


def _arguments_model(function: Callable[..., Any], name: str, texts: Mapping[str, str]) -> Any:
    """The pydantic model of a function's arguments."""
    pydantic = _pydantic()
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as e:
        raise InputError(f"the type hints of the tool {name} cannot be read: {e}", hint="import what they name") from None
    fields: dict[str, Any] = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(
                f"the tool {name} takes {parameter}", hint="tools take named arguments only", name=name, argument=key
            )
        if key not in hints:
            raise InputError(
                f"the argument {key} of the tool {name} has no type hint", hint=f"write {key}: str, or what it is", argument=key
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[key] = (hints[key], pydantic.Field(default, description=texts.get(key)))
    settings = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    try:
        return pydantic.create_model(name, __config__=settings, **fields)
    except (pydantic.errors.PydanticUserError, NameError, TypeError) as e:
        first = str(e).splitlines()[0]
        raise InputError(f"the tool {name} has no schema: {first}", hint="use types of JSON, or pydantic models") from None


def _pydantic() -> Any:
    try:
        import pydantic
    except ImportError:
        raise PumiceError("tools need the package pydantic", hint="pip install 'pumice[assist]'") from None
    return pydantic


def _problems(error: Any) -> str:
    """What pydantic found wrong, without the values, which may be long."""
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_input=False, include_url=False))


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """The description of a docstring, and its texts about arguments, in Google's or Sphinx' style.

    >>> read_docstring("Find it.\\n\\nArgs:\\n    name (str): what\\n        to find\\n\\nReturns:\\n    a path")
    ('Find it.', {'name': 'what to find'})
    >>> read_docstring("Find it.\\n\\n:param str name: what to find\\n:returns: a path")
    ('Find it.', {'name': 'what to find'})
    """
    about: list[str] = []
    texts: dict[str, str] = {}
    section, last, margin = "", "", 0
    for line in text.splitlines():
        if heading := _SECTION.match(line.strip()):
            section, last = heading[1].lower(), ""
        elif found := _SPHINX.match(line):
            last, section = found[1], "sphinx"
            texts[last] = found[2].strip()
        elif line.lstrip().startswith((":return", ":raise", ":rtype", ":type", ">>>")):
            section, last = "other", ""
        elif section in ("args", "arguments", "parameters"):
            indent = len(line) - len(line.lstrip())
            found = _PARAMETER.match(line)
            if found and (not last or indent <= margin):
                last, margin = found[1], indent
                texts[last] = found[2].strip()
            elif last and line.strip():
                texts[last] += " " + line.strip()
            elif line.strip() and not indent:
                section = "other"
        elif section == "sphinx" and line.strip() and last:
            texts[last] += " " + line.strip()
        elif not section:
            about.append(line.strip())
    return "\n".join(about).strip(), texts


def tools_of_file(file: str | Path) -> list[Tool]:
    """The tools of a Python file, which is run: what `tool` made or, without any, its own public functions.

    A function that was not decorated counts as one that runs something: each call needs consent.
    """
    path = Path(file)
    if not path.is_file():
        raise InputError(f"there is no file {path}", hint="give a Python file with functions", file=str(path))
    spec = importlib.util.spec_from_file_location(f"pumice_tools_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file", hint="its name ends with .py", file=str(path))
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as e:
        raise PluginError(f"{path} cannot be run: {type(e).__name__}: {e}", hint="correct the file", file=str(path)) from e
    found = tools_of_module(module)
    if not found:
        raise InputError(f"{path} has no tools", hint="define functions with type hints and docstrings", file=str(path))
    return found


def tools_of_module(module: ModuleType) -> list[Tool]:
    """The tools of a module, in the order of their definition."""
    made = [value for value in vars(module).values() if isinstance(value, Tool)]
    if made:
        return made
    own = [
        value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return [tool(function) for function in own]


def as_tools(given: Sequence[Tool | Callable[..., Any]]) -> dict[str, Tool]:
    """Tools and functions by name; two of one name are refused.

    >>> list(as_tools([tool(name="one")(lambda: 1)]))
    ['one']
    """
    found: dict[str, Tool] = {}
    for entry in given:
        if not isinstance(entry, Tool) and not callable(entry):
            raise InputError(f"{entry!r:.60} is no tool", hint="give functions, or what pm.tool made of them")
        made = entry if isinstance(entry, Tool) else tool(entry)
        if made.name in found:
            raise InputError(f"two tools are called {made.name}", hint="rename one with tool(name=…)", name=made.name)
        found[made.name] = made
    return found
