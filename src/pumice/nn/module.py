"""Modules: plain Python objects whose parameters are attributes, named by their paths, and bound to tensors while traced."""

from __future__ import annotations

import difflib
import fnmatch
import hashlib
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from pumice.core import dtypes
from pumice.core.dtypes import DType
from pumice.core.records import dataclass
from pumice.errors import GraphError, InputError, MissingName, ShapeError, UnknownName
from pumice.functions import fail, random
from pumice.functions.tree import leaves, map_leaves
from pumice.ir.types import TensorType
from pumice.nn import init as initialisers
from pumice.tensor import Tensor
from pumice.tracing import Spec

Array = np.ndarray[Any, Any]


class Parameter:
    """What a module learns: a shape, how it starts, and how it is trained. It holds no numbers.

    - `shape`: a size or several; may be left out where `init` is an array
    - `init`: a function of `nn.init`, or the array to start from. Without it a vector starts at 0, as biases do, weights of two
      axes or more [out, in, …] start as those of a linear layer (zeros would never learn), a lookup table as an embedding's
    - `dtype`: f32, or another float if it is trained
    - `trainable`: whether optimizers change it
    - `decay`: whether weight decay applies to it, unless the optimizer's `decay` says otherwise; biases and norms say False
    - `lookup`: marks tables whose rows are picked instead of multiplied

    >>> w = Parameter((3, 2), init=initialisers.normal(0.02))
    >>> w, str(w.type)
    (Parameter(3, 2), 'f32[3,2]')
    """

    saved = True  # whether checkpoints hold it: no, where it never changes and comes from a file of its own

    def __init__(
        self,
        shape: int | tuple[int, ...] | None = None,
        init: initialisers.Initialiser | Any = None,
        dtype: Any = "f32",
        trainable: bool = True,
        decay: bool | None = True,
        lookup: bool = False,
    ) -> None:
        literal = None if init is None or callable(init) else initialisers.literal(init)
        if shape is None:
            if literal is None:
                raise InputError("a parameter needs a shape, or an array to start from", hint="nn.Parameter((3, 2))")
            shape = literal.value.shape
        dims = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        if any(isinstance(d, bool) or not isinstance(d, int | np.integer) or d < 0 for d in dims):
            raise ShapeError(f"the shape of a parameter is made of ints of at least 0, not {shape!r}")
        self.type = TensorType(dtypes.dtype(dtype), tuple(int(d) for d in dims))
        self.init: initialisers.Initialiser = literal or init or _default_init(len(dims), lookup)
        if trainable and not self.type.dtype.is_float:
            raise InputError(f"a parameter of dtype {self.type.dtype} cannot be trained", hint="trainable=False")
        self.trainable, self.decay, self.lookup = trainable, decay, lookup

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.static_shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def spec(self) -> Spec:
        """The type as `pm.trace` takes it."""
        return Spec(self.type)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(str, self.shape))})"


class Buffer(Parameter):
    """State of a module that is not trained, such as running means: saved with it, never differentiated.

    - `shape`: a size or several; may be left out where `init` is an array
    - `init`: a function of `nn.init`, or the array to start from; zeros by default
    - `dtype`: any
    """

    def __init__(
        self, shape: int | tuple[int, ...] | None = None, init: initialisers.Initialiser | Any = None, dtype: Any = "f32"
    ) -> None:
        super().__init__(shape, initialisers.zeros() if init is None else init, dtype, trainable=False, decay=False)


@dataclass(frozen=True)
class Labels:
    """Integers that name classes 0…classes-1, or `ignored`: what a loss was given as targets."""

    node: int
    classes: int
    ignored: int | None


@dataclass
class ParamBinding:
    """The tensors of parameters while a function is traced, and the updates and labels that modules record."""

    tensors: dict[int, Tensor]
    names: dict[int, str]
    paths: dict[int, str]
    training: bool
    key: Tensor | None
    compute: DType | None
    outer: ParamBinding | None
    updates: dict[str, Tensor] = field(default_factory=dict)
    labels: list[Labels] = field(default_factory=list)
    attached: dict[tuple[int, str], Any] = field(default_factory=dict)
    draws: dict[str, int] = field(default_factory=dict)

    def find(self, module: int) -> ParamBinding | None:
        """The innermost binding that knows a module."""
        at: ParamBinding | None = self
        while at is not None and module not in at.paths:
            at = at.outer
        return at


_active: ContextVar[ParamBinding | None] = ContextVar("pumice_binding", default=None)


def active_binding() -> ParamBinding | None:
    """The innermost binding of this thread, None outside of any."""
    return _active.get()


class Module:
    """Something with parameters and a `forward`. Parameters and child modules are attributes, also in lists, tuples and dicts.

    Inside `forward`, while the module is bound, `self.weight` is a tensor; outside it is the Parameter.

    >>> import pumice as pm
    >>> class Scale(Module):
    ...     def __init__(self, n):
    ...         self.weight = Parameter(n, init=initialisers.ones())
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> class Two(Module):
    ...     def __init__(self):
    ...         self.layers = [Scale(3), Scale(3)]
    ...     def forward(self, x):
    ...         return self.layers[1](self.layers[0](x))
    >>> two = Two()
    >>> list(two.named_parameters())
    ['layers.0.weight', 'layers.1.weight']
    >>> g = pm.trace(lambda params, x: apply(two, params, x), params=two.specs(), x=pm.spec("B", 3))
    >>> [n.op for n in g]
    ['param', 'param', 'input', 'mul', 'mul']
    """

    # Names of what a binding may give the module besides its parameters: see `attached`.
    attachments: ClassVar[tuple[str, ...]] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; subclasses say it."""
        raise GraphError(f"{type(self).__name__} has no forward", hint="define forward(self, x)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for name, held in self.__dict__.get("_parameters", {}).items():
            if isinstance(held, Parameter) and _resolve(held) is held:
                raise fail(
                    InputError,
                    f"{type(self).__name__} was called where its parameter {name!r} has no value",
                    hint="call it in a loss function, through step.forward(...), or as nn.apply(model, params, x)",
                )
        return self.forward(*args, **kwargs)

    # -- attributes -------------------------------------------------------------------------------------------------
    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.setdefault("_parameters", {})
        if _holds_parameters(value):
            self.__dict__.pop(name, None)
            held[name] = value
        else:
            held.pop(name, None)
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        held = self.__dict__.get("_parameters", {})
        if name not in held:
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return map_leaves(_resolve, held[name])

    def __delattr__(self, name: str) -> None:
        if name in self.__dict__.get("_parameters", {}):
            del self._parameters[name]
        else:
            object.__delattr__(self, name)

    # -- what it holds ----------------------------------------------------------------------------------------------
    def named_modules(self) -> dict[str, Module]:
        """This module under "", and all below it by path; one that is held twice has its first path."""
        return _named(self)[0]

    def named_parameters(self) -> dict[str, Parameter]:
        """Parameters and buffers by path; one that is held twice has its first path."""
        return _named(self)[1]

    def specs(self) -> dict[str, Spec]:
        """The types of all parameters by path, as the `params` of `pm.trace`."""
        return {name: p.spec for name, p in self.named_parameters().items()}

    def init(self, seed: int = 0, only: Collection[str] | None = None) -> dict[str, Array]:
        """Values to start from, by path; each depends on the seed and its own name alone.

        >>> from pumice import nn
        >>> a, b = nn.Linear(2, 3).init(seed=1), nn.Sequential(nn.Linear(2, 3)).init(seed=1)
        >>> list(a), bool((a["weight"] == b["0.weight"]).all())
        (['weight', 'bias'], False)
        """
        wanted = self.named_parameters()
        chosen = wanted if only is None else {n: p for n, p in wanted.items() if n in only}
        return {name: _initial(name, p, seed) for name, p in chosen.items()}

    def freeze(self, pattern: str = "*") -> Module:
        """Leave the parameters whose paths match out of training: they take no gradient. Patterns are those of a shell."""
        return self._set_trainable(pattern, False)

    def unfreeze(self, pattern: str = "*") -> Module:
        """Train the parameters whose paths match again."""
        return self._set_trainable(pattern, True)

    def _set_trainable(self, pattern: str, trainable: bool) -> Module:
        found = {n: p for n, p in self.named_parameters().items() if fnmatch.fnmatchcase(n, pattern)}
        if not found:
            raise UnknownName(f"no parameter matches {pattern!r}", hint=near(pattern, self.named_parameters()), name=pattern)
        for p in found.values():
            p.trainable = trainable and p.dtype.is_float and not isinstance(p, Buffer)
        return self

    # -- while bound ------------------------------------------------------------------------------------------------
    @property
    def training(self) -> bool:
        """Whether the module is bound for training: dropout drops, batch norm looks at the batch."""
        binding = self._binding()
        return binding is not None and binding.training

    def set_buffer(self, name: str, value: Tensor) -> None:
        """Give a buffer of this module the value that it takes after the run."""
        buffer = self.__dict__.get("_parameters", {}).get(name)
        if not isinstance(buffer, Buffer):
            raise fail(UnknownName, f"{type(self).__name__} has no buffer {name!r}", name=name)
        binding = self._binding()
        if binding is None:
            raise fail(GraphError, f"the buffer {name!r} is set while its module is not bound", hint="see nn.bind")
        full = binding.names[id(buffer)]
        if full in binding.updates:
            raise fail(GraphError, f"the buffer {full!r} is set twice", hint="call its module once in training", name=full)
        binding.updates[full] = value

    def draw_key(self) -> Tensor:
        """A random key of this module's own, a new one at each call; the same for the same path in every run of a step."""
        binding = self._binding()
        if binding is None or binding.key is None:
            raise fail(GraphError, f"{type(self).__name__} needs a random key", hint="nn.bind(..., key=...)")
        path = binding.paths[id(self)]
        number = binding.draws.get(path, 0)
        binding.draws[path] = number + 1
        word = int.from_bytes(hashlib.sha256(f"{path}#{number}".encode()).digest()[:4], "little")
        return random.fold_in(binding.key, word)

    def attached(self, name: str) -> Any:
        """What the binding gives this module under one of its `attachments`, such as an adapter; None where it does not."""
        binding = self._binding()
        return None if binding is None else binding.attached.get((id(self), name))

    def described(self) -> str:
        """The module's kind and, while it is bound, its path: how errors name it."""
        binding = self._binding()
        path = "" if binding is None else binding.paths[id(self)]
        return f"{type(self).__name__} {path!r}" if path else type(self).__name__

    def _binding(self) -> ParamBinding | None:
        active = _active.get()
        return None if active is None else active.find(id(self))

    def __repr__(self) -> str:
        named = self.named_parameters()
        return f"<{type(self).__name__}: {len(named)} parameters, {sum(math.prod(p.shape) for p in named.values())} elements>"


def _holds_parameters(value: Any) -> bool:
    return isinstance(value, Parameter) or (
        isinstance(value, list | tuple | Mapping) and any(isinstance(v, Parameter) for v in leaves(value))
    )


def _resolve(value: Any) -> Any:
    """The tensor that a parameter is bound to now, or the parameter itself."""
    binding = _active.get()
    while isinstance(value, Parameter) and binding is not None:
        if id(value) in binding.tensors:
            return binding.tensors[id(value)]
        binding = binding.outer
    return value


def _named(module: Module) -> tuple[dict[str, Module], dict[str, Parameter]]:
    """What a module holds, by path: itself, its parameters, then its children, depth first."""
    modules: dict[str, Module] = {}
    parameters: dict[str, Parameter] = {}
    seen: set[int] = set()

    def visit(value: Any, path: str) -> None:
        if isinstance(value, Module | Parameter):
            if id(value) in seen:
                return
            seen.add(id(value))
            if isinstance(value, Module):
                modules[path] = value
                for name, held in _attributes(value):
                    visit(held, f"{path}.{name}" if path else name)
            elif path in parameters:
                raise InputError(f"two parameters have the name {path!r}", hint="use dict keys without dots", name=path)
            else:
                parameters[path] = value
        elif isinstance(value, list | tuple):
            for i, v in enumerate(value):
                visit(v, f"{path}.{i}")
        elif isinstance(value, Mapping):
            for k, v in value.items():
                visit(v, f"{path}.{k}")

    visit(module, "")
    return modules, parameters


# What most other attributes are: looking into them takes longer than the rest of a walk.
_PLAIN = frozenset((int, float, bool, str, type(None)))


def _attributes(module: Module) -> list[tuple[str, Any]]:
    """The attributes that may hold parameters or modules, parameters first."""
    others = [(n, v) for n, v in module.__dict__.items() if type(v) not in _PLAIN and n != "_parameters"]
    # A parameter that was put into a list after the list became an attribute moves to its place now.
    moved = [n for n, v in others if not isinstance(v, Module) and _holds_parameters(v)]
    for name in moved:
        setattr(module, name, module.__dict__[name])
    return [*module.__dict__.get("_parameters", {}).items(), *(item for item in others if item[0] not in moved)]


def _default_init(axes: int, lookup: bool) -> initialisers.Initialiser:
    if axes < 2:
        return initialisers.zeros()
    return initialisers.normal() if lookup else initialisers.linear()


def _initial(name: str, parameter: Parameter, seed: int) -> Array:
    words = np.frombuffer(hashlib.sha256(name.encode()).digest(), np.uint32)
    rng = np.random.default_rng([seed, *map(int, words)])
    t = parameter.type
    array = np.asarray(parameter.init(t.stored_shape, rng))
    if array.shape != t.stored_shape:
        raise ShapeError(f"the initial value of {name!r} has shape {array.shape}, it must have {t.stored_shape}", name=name)
    return array.astype(t.dtype.np, copy=False)


def near(name: str, known: Collection[str]) -> str:
    """A hint with the name that may have been meant."""
    found = difflib.get_close_matches(name, known, 1)
    return f"did you mean {found[0]!r}?" if found else "there are: " + (" ".join(list(known)[:20]) or "none")


@contextmanager
def bind(
    module: Module,
    params: Mapping[str, Tensor],
    *,
    training: bool = False,
    key: Tensor | None = None,
    compute: Any = None,
) -> Iterator[ParamBinding]:
    """While it lasts, the module's parameters are these tensors: all of them, by path, and what modules allow beside them.

    `training` and `key` (u32[2]) are for dropout and the like. With `compute`, a float dtype such as "f16", parameters that are
    trained and what layers multiply them with are cast to it.
    """
    modules, named = _named(module)
    attached: dict[tuple[int, str], Any] = {}
    for name, value in params.items():
        if name in named:
            continue
        path, _, kind = name.rpartition(".")
        if path in modules and kind in modules[path].attachments:
            attached[id(modules[path]), kind] = value
        else:
            raise fail(UnknownName, f"the module has no parameter {name!r}", hint=near(name, named), name=name)
    missing = [name for name in named if name not in params]
    if missing:
        raise fail(MissingName, f"the parameter {missing[0]!r} was not given", hint="bind them all", names=missing)
    dtype = None if compute is None else dtypes.dtype(compute)

    def bound(p: Parameter, t: Tensor) -> Tensor:
        return t.astype(dtype) if dtype is not None and t.dtype == dtypes.f32 and not isinstance(p, Buffer) else t

    tensors = {id(p): bound(p, params[name]) for name, p in named.items()}
    names = {id(p): name for name, p in named.items()}
    paths = {id(m): path for path, m in modules.items()}
    binding = ParamBinding(tensors, names, paths, training, key, dtype, _active.get(), attached=attached)
    token = _active.set(binding)
    try:
        yield binding
    finally:
        _active.reset(token)


def apply(module: Module, params: Mapping[str, Tensor], /, *args: Any, **kwargs: Any) -> Any:
    """What the module computes with these tensors for parameters, not in training; for use inside a traced function.

    >>> import pumice as pm
    >>> from pumice import nn
    >>> layer = nn.Linear(2, 3)
    >>> g = pm.trace(lambda params, x: apply(layer, params, x), params=layer.specs(), x=pm.spec("B", 2))
    >>> str(g.nodes[-1].type)
    'f32[B,3]'
    """
    with bind(module, params):
        return module(*args, **kwargs)


def computing(x: Tensor) -> Tensor:
    """x in the dtype in which bound layers multiply: itself, unless the binding names another."""
    binding = _active.get()
    if binding is None or binding.compute is None or not x.dtype.is_float:
        return x
    return x.astype(binding.compute)
