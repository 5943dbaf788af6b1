"""The Jinja environment of chat templates: Hugging Face's options, in a sandbox that also bounds time and memory."""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from pumice.text import checks, filters
from pumice.text.metering import LimitReached, Limits, RenderMeter

_meter: ContextVar[RenderMeter] = ContextVar("pumice_template_meter")

_STRING_METHODS = """
    capitalize casefold center count endswith find index isalnum isalpha isascii isdecimal isdigit isidentifier islower
    isnumeric isprintable isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind
    rindex rjust rpartition rsplit rstrip split splitlines startswith strip swapcase title upper zfill
"""
_METHODS: tuple[tuple[type, frozenset[str]], ...] = (
    (str, frozenset(_STRING_METHODS.split())),
    (dict, frozenset({"get", "items", "keys", "values", "copy"})),
    (list, frozenset({"index", "count", "copy"})),
    (tuple, frozenset({"index", "count"})),
    (LoopContext, frozenset({"cycle", "changed"})),
)


class Refusal(TemplateError):
    """What a template raises through `raise_exception`: it does not take this conversation."""


@contextmanager
def metered(limits: Limits, conversation: int) -> Iterator[None]:
    """Counts what templates do in the enclosed code, in this thread or task only."""
    token = _meter.set(RenderMeter(limits, conversation, inert=(Undefined,)))
    try:
        yield
    finally:
        _meter.reset(token)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja as chat templates expect it, with every operation that can take long or grow large counted.

    Jinja's own sandbox keeps templates away from Python's internals. On top of it, only known filters, methods and
    functions can be called, and `_Guards` plants a count wherever the compiled template would loop or build values
    without asking. Nothing is evaluated while compiling, so all of it is counted.
    """

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            cache_size=0,
            extensions=[LoopControlExtension, _GenerationTag],
        )
        self.filters = {name: _counted(function) for name, function in filters.table(_meter.get).items()}
        self.tests = checks.table(_meter.get)
        self._functions: tuple[Callable[..., Any], ...] = (_range, _dict, _raise_exception, _strftime_now, _Variables)
        self.globals = {
            "range": _range,
            "dict": _dict,
            "namespace": _Variables,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = super()._parse(source, name, filename)
        _Guards().visit(tree)
        tree.set_environment(self)
        return tree

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls what a template may call; see the class."""
        if isinstance(obj, MethodType) and obj.__self__ is self:  # planted by _Guards
            return obj(*args)
        meter = _meter.get()
        meter.step()
        # Inside loops and blocks Jinja passes their variables along, for functions that want the context.
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        for value in (*args, *kwargs.values()):
            meter.weigh(value)
        if isinstance(obj, Undefined):
            return obj(*args, **kwargs)  # raises, naming what is undefined
        if isinstance(obj, Macro | BlockReference | LoopContext):
            return self._nested(meter, context, obj, args, kwargs)
        if isinstance(obj, _Format) or any(obj is function for function in self._functions):
            result = obj(*args, **kwargs)
        else:
            result = _call_method(meter, obj, args, kwargs)
        return _paid(meter, result)

    def _nested(self, meter: RenderMeter, context: Context, obj: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        meter.depth += 1
        if meter.depth > meter.limits.calls:
            raise LimitReached(f"its macros or loops call each other more than {meter.limits.calls} deep")
        try:
            return super().call(context, obj, *args, **kwargs)
        finally:
            meter.depth -= 1

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Computes `left operator right`, unless the result would be too large."""
        meter = _meter.get()
        meter.step()
        _check_operation(meter, operator, left, right)
        result = self.binop_table[operator](left, right)
        if isinstance(result, int) and result.bit_length() > meter.limits.width:
            raise LimitReached("it computes with too large numbers")
        if isinstance(result, list | tuple | Set):
            meter.weigh(result)
        return result

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` with its attribute lookups in the sandbox and its widths bounded."""
        if isinstance(value, MethodType | BuiltinMethodType) and value.__name__ in ("format", "format_map"):
            receiver = value.__self__
            if isinstance(receiver, str):
                if value.__name__ == "format_map":
                    raise SecurityError("format_map is not available")
                return _Format(self, receiver)
        return None

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Looks up `obj.attribute`; names with two underscores are Python's own, whether they exist or not."""
        _meter.get().step()
        _check_name(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Looks up `obj[argument]`, which falls back to attributes."""
        _meter.get().step()
        _check_name(obj, argument)
        return super().getitem(obj, argument)

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuses at once, where Jinja would print nothing and carry on."""
        raise SecurityError(f"the attribute {attribute!r} of a {type(obj).__name__} is not available")

    # What _Guards plants. Templates cannot name these: identifiers never resolve to the environment.

    def count_pass(self, characters: int) -> bool:
        """Counts one pass through a loop or macro body that prints `characters` of fixed text; always true."""
        meter = _meter.get()
        meter.step()
        meter.charge(characters)
        return True

    def count_value(self, value: Any) -> Any:
        """Counts a list, tuple, dict or slice that the template just made."""
        meter = _meter.get()
        meter.step()
        return _paid(meter, value)

    def count_contents(self, value: Any) -> Any:
        """Counts what `x in value` looks through."""
        _meter.get().touch(value)
        return value

    def concatenate(self, *values: Any) -> str:
        """The `~` operator."""
        meter = _meter.get()
        meter.step()
        meter.charge(sum(meter.weigh(value) for value in values))
        return "".join(map(str, values))


class _Guards(NodeTransformer):
    """Plants the counting into a parsed template, and refuses statements that chat templates have no use for."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        self._count(node)
        if node.test is not None:
            # The condition runs for every item, also for those that it filters out.
            node.test = nodes.And(self._plant(node, "count_pass", [nodes.Const(0)]), node.test, lineno=node.lineno)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        return self._count(node)

    visit_CallBlock = visit_Block = visit_Macro

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._plant(node, "concatenate", node.nodes)

    def visit_List(self, node: nodes.List | nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return self._plant(node, "count_value", [node])

    visit_Dict = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return self._plant(node, "count_value", [node]) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return self._plant(node, "count_value", [node]) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        for operand in node.ops:
            if operand.op in ("in", "notin"):
                operand.expr = self._plant(node, "count_contents", [operand.expr])
        return nodes.And(self._plant(node, "count_pass", [nodes.Const(0)]), node, lineno=node.lineno)

    def visit_Include(self, node: nodes.Node) -> nodes.Node:
        raise SecurityError(f"line {node.lineno}: {type(node).__name__} is not available")

    visit_Import = visit_FromImport = visit_Extends = visit_Include
    visit_ScopedEvalContextModifier = visit_EvalContextModifier = visit_Include

    def _count(self, node: Any) -> nodes.Node:
        fixed = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        call = self._plant(node, "count_pass", [nodes.Const(fixed)])
        node.body.insert(0, nodes.ExprStmt(call, lineno=node.lineno))
        result: nodes.Node = node
        return result

    @staticmethod
    def _plant(node: nodes.Node, method: str, arguments: list[Any]) -> nodes.Call:
        return nodes.Call(nodes.EnvironmentAttribute(method), arguments, [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}`, which marks what a model is trained on; here it only groups."""

    tags = {"generation"}  # noqa: RUF012  Jinja's interface

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Variables(Namespace):
    """`namespace()`: the one thing a template can change; holds plain values only."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # as in Jinja, so that `self` can be a name in it
        values = dict(*args[1:], **kwargs)
        for name, value in values.items():
            _check_variable(name, value)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_variable(name, value)
        Namespace.__setitem__(self, name, value)

    def __repr__(self) -> str:
        return "<namespace>"  # Jinja's prints all values, which is not counted


def _check_name(obj: Any, name: Any) -> None:
    if isinstance(name, str) and name.startswith("__") and not isinstance(obj, dict):
        raise SecurityError(f"the attribute {name!r} of a {type(obj).__name__} is not available")


def _check_variable(name: Any, value: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"a namespace cannot hold {name!r}")
    if isinstance(value, Namespace):
        raise SecurityError("a namespace cannot hold a namespace")
    meter = _meter.get()
    meter.step()
    meter.weigh(value)


class _Format:
    """A string's `format` method, bound."""

    def __init__(self, sandbox: Sandbox, text: str) -> None:
        self._sandbox, self._text = sandbox, text

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        meter = _meter.get()
        fields, widths = 0, 0
        filters.check_fields(meter, self._text.count("{"))
        for _, field, spec, _ in string.Formatter().parse(self._text):
            if field is not None:
                fields += 1
                widths += filters.check_widths(meter, spec or "")
                if "{" in (spec or ""):
                    raise SecurityError("a format width cannot come from a value")
        meter.charge(len(self._text) + widths + fields * (64 + sum(meter.weigh(v) for v in (*args, *kwargs.values()))))
        return SandboxedFormatter(self._sandbox).vformat(self._text, args, kwargs)


def _check_operation(meter: RenderMeter, operator: str, left: Any, right: Any) -> None:
    numbers = isinstance(left, int) and isinstance(right, int)
    if operator == "*":
        for sequence, count in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(count, int):
                meter.charge(len(sequence) * max(count, 0))
        if numbers and left.bit_length() + right.bit_length() > meter.limits.width:
            raise LimitReached("it computes with too large numbers")
    elif operator == "+":
        if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
            meter.charge(len(left) + len(right))
    elif operator == "**":
        if numbers and right > 0 and left.bit_length() * right > meter.limits.width:
            raise LimitReached("it computes with too large numbers")
    elif operator == "%" and isinstance(left, str):
        filters.check_percent(meter, left, right)


def _call_method(meter: RenderMeter, obj: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if isinstance(obj, MethodType | BuiltinMethodType):
        receiver, name = obj.__self__, obj.__name__
        if any(isinstance(receiver, kind) and name in methods for kind, methods in _METHODS):
            if isinstance(receiver, str):
                args = filters.check_method(meter, receiver, name, args, kwargs)
            elif name in ("index", "count"):
                meter.touch(receiver)
            return obj(*args, **kwargs)
        raise SecurityError(f"the method {name!r} of a {type(receiver).__name__} is not available")
    raise SecurityError(f"a {type(obj).__name__} cannot be called")


def _paid(meter: RenderMeter, result: Any) -> Any:
    """`result`, with its size counted."""
    if isinstance(result, str):
        meter.charge(len(result))
    elif isinstance(result, list | tuple | dict | Set):
        meter.weigh(result)
        meter.charge(len(result))
    return result


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        meter = _meter.get()
        meter.step()
        return _paid(meter, function(*args, **kwargs))

    # Jinja keeps on the function whether it wants the environment or context as first argument.
    counted.__dict__.update(function.__dict__ if hasattr(function, "__dict__") else {})
    return counted


@jinja2.pass_context  # keeps Jinja from printing constants while compiling, where nothing is counted
def _finalize(context: Context, value: Any) -> Any:
    meter = _meter.get()
    meter.step()
    meter.charge(meter.weigh(value))
    return value


def _range(*args: int) -> range:
    numbers = range(*args)
    limit = _meter.get().limits.range
    # The length of a range beyond sys.maxsize cannot even be asked for.
    if numbers[limit : limit + 1]:
        raise LimitReached(f"it counts further than {limit}")
    return numbers


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)


def _raise_exception(message: Any) -> None:
    raise Refusal(str(message)[:2000])


def _strftime_now(layout: str) -> str:
    if not isinstance(layout, str) or len(layout) > 200 or re.search(r"%[-_0^#]*\d", layout):
        raise SecurityError("strftime_now takes a short layout without widths")
    return datetime.now().strftime(layout)
