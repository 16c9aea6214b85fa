"""NumPy's functions on tensors: ufuncs by ``__array_ufunc__``, the others by ``__array_function__``.

NumPy hands a call over to the tensor; the operation of that name is run, with NumPy's signature adapted to it, so that
results are tracked. What cannot be right raises: nothing here turns a tracked tensor into plain numbers.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

import numpy as np

from jitgrad.core.modes import grad_mode
from jitgrad.core.primitive import Elementwise, Primitive
from jitgrad.errors import ConversionError, UnsupportedError
from jitgrad.ops.blocks import Operation
from jitgrad.ops.catalog import public_names
from jitgrad.tensor.inplace import assign
from jitgrad.tensor.operands import as_tensor
from jitgrad.tensor.short_way import binary_function, unary_function
from jitgrad.tensor.tensor import Tensor

__all__ = ["METHODS"]

Function = Callable[..., Any]
_OUTSIDE: Final = "for the values alone, outside of the graph, pass x.detach().numpy()"


# --------------------------------------------------------------------------- results written into out=


def _stays_in_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_traced or (value._edge is not None and bool(grad_mode.get())))


def _into(out: Any, result: Any, what: str) -> Any:
    """Write a result where ``out=`` says."""
    if isinstance(out, tuple) and isinstance(result, tuple):
        return tuple(r if o is None else _into(o, r, what) for o, r in zip(out, result, strict=True))
    if isinstance(out, tuple):
        (out,) = out
    if out is None:
        return result
    if isinstance(out, Tensor):
        if out.shape != result.shape:
            raise UnsupportedError(
                f"{what}(out=...): a result of shape {result.shape} for a tensor of shape {out.shape}"
            )
        return assign(out, result, f"{what}(out=...)")
    if _stays_in_graph(result):
        raise ConversionError(
            f"{what} would write a tracked result into an ndarray, where its gradient is lost (as `array += tensor` "
            "does). Make the array a tensor first, `a = jg.tensor(a)`, or write `a = a + t`; `t.detach()` if only the "
            "values are meant."
        )
    np.copyto(out, result._array(what), casting="same_kind")
    return out


# --------------------------------------------------------------------------- ufuncs

_REDUCE: Final = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "fmax": "nanmax", "fmin": "nanmin",
    "logical_and": "all", "logical_or": "any", "logaddexp": "logsumexp",
}  # fmt: skip
_ACCUMULATE: Final = {"add": "cumsum", "multiply": "cumprod", "maximum": "cummax", "minimum": "cummin"}
_NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "where": (True,),
    "casting": ("same_kind",),
    "order": ("K", "C", "A"),
    "subok": (True, False),
    "optimize": (True, False, "greedy", "optimal"),
    "device": ("cpu",),
}
_NOTHING: Final = np._NoValue


def _is_neutral(name: str, value: Any) -> bool:
    """Whether an argument says nothing that an operation without it would do differently."""
    if value is None or value is _NOTHING:
        return True
    return any(
        value is v or (isinstance(v, str) and isinstance(value, str) and value == v) for v in _NEUTRAL.get(name, ())
    )


def _refuse(what: str, name: str) -> NoReturn:
    raise UnsupportedError(f"{what}: the argument {name}= is not supported for tensors; {_OUTSIDE}")


@functools.lru_cache(maxsize=1024)
def _ufunc_operation(ufunc: np.ufunc) -> Operation[..., Any] | None:
    """The operation of a ufunc of NumPy or scipy.special; by identity, as anyone can call a ufunc ``add``."""
    names = public_names()
    name = ufunc.__name__
    for candidate in (name, *(n for n in names if getattr(np, n, None) is ufunc)):
        if candidate in names and getattr(np, candidate, None) is ufunc:
            return names[candidate]
    special = sys.modules.get("scipy.special")  # whoever passes one of its ufuncs has imported it
    if special is not None and getattr(special, name, None) is ufunc:
        return names.get(name) or names.get(f"special.{name}")
    return None


@functools.lru_cache(maxsize=1024)
def _ufunc_function(ufunc: np.ufunc) -> Function | None:
    """What to call for a ufunc: its operation, elementwise ones by the short way of operators."""
    op = _ufunc_operation(ufunc)
    primitive = None if op is None else op.primitive
    if op is None or primitive is None or not isinstance(primitive.impl, Elementwise):
        return None if op is None else op.function
    if primitive.impl.arity == 1:
        return _unary(primitive)
    return _binary(primitive) if primitive.impl.arity == 2 else op.function


def _unary(primitive: Primitive) -> Function:
    short = unary_function(primitive)
    return lambda x: short(x if type(x) is Tensor else as_tensor(x, primitive.name))


def _binary(primitive: Primitive) -> Function:
    short = binary_function(primitive)

    def call(x: Any, y: Any) -> Any:
        if type(x) is not Tensor:
            if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
                return primitive(x, y)
            x = as_tensor(x, primitive.name)
        result = short(x, y)
        return primitive(x, y) if result is NotImplemented else result

    return call


def _ufunc_label(ufunc: np.ufunc, method: str) -> str:
    special = sys.modules.get("scipy.special")
    module = "ufunc"
    if getattr(np, ufunc.__name__, None) is ufunc:
        module = "np"
    elif special is not None and getattr(special, ufunc.__name__, None) is ufunc:
        module = "scipy.special"
    return f"{module}.{ufunc.__name__}" + ("" if method == "__call__" else f".{method}")


def _missing(what: str) -> UnsupportedError:
    return UnsupportedError(f"jitgrad has no {what} for tensors; write it with functions that it has, or, {_OUTSIDE}")


def _named(table: dict[str, str], ufunc: np.ufunc, what: str) -> Function:
    name = table.get(ufunc.__name__)
    if name is None or name not in public_names() or getattr(np, ufunc.__name__, None) is not ufunc:
        raise _missing(what)
    return public_names()[name].function


def _speaks_for_itself(x: Any) -> bool:
    """Whether an operand of another library has its own say about ufuncs."""
    return hasattr(x, "__array_ufunc__") and not isinstance(x, Tensor | np.ndarray | np.generic)


def __array_ufunc__(self: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
    """For NumPy's ufuncs: the operation of the same name, recorded as ever."""
    for x in inputs:
        kind = type(x)
        if kind is not Tensor and kind is not np.ndarray and _speaks_for_itself(x):
            return NotImplemented
    if method == "__call__":
        function = _ufunc_function(ufunc)
        if function is not None and not kwargs and out is None:
            return function(*inputs)
    what = _ufunc_label(ufunc, method)
    if method == "__call__":
        for name, value in kwargs.items():
            if not _is_neutral(name, value):
                _refuse(what, name)
        if function is None:
            raise _missing(what)
        result = function(*inputs)
    elif method in ("reduce", "accumulate"):
        function = _named(_REDUCE if method == "reduce" else _ACCUMULATE, ufunc, what)
        kwargs.setdefault("axis", 0)
        named = _known(function, kwargs, what)
        result = function(*inputs, **named)
    elif method == "outer":
        op = _ufunc_operation(ufunc)
        if op is None:
            raise _missing(what)
        for name, value in kwargs.items():
            if not _is_neutral(name, value):
                _refuse(what, name)
        first, second = (as_tensor(x, what) for x in inputs)
        result = op.function(first.reshape(first.shape + (1,) * second.ndim), second)
    else:  # at, reduceat
        raise _missing(what)
    return result if out is None else _into(out, result, what)


def _known(function: Function, kwargs: dict[str, Any], what: str) -> dict[str, Any]:
    """The arguments that an operation takes; the others must say nothing."""
    known = inspect.signature(function).parameters
    named = {}
    for name, value in kwargs.items():
        if name in known and value is not _NOTHING:
            named[name] = value
        elif not _is_neutral(name, value) and value is not False:
            _refuse(what, name)
    return named


# --------------------------------------------------------------------------- other functions


_VARIADIC: Final = inspect.Parameter.VAR_POSITIONAL
_KEYWORDS: Final = inspect.Parameter.VAR_KEYWORD


class _Adapter:
    """Calls an operation with the arguments of the NumPy function of its name."""

    def __init__(self, function: Function, op: Operation[..., Any], what: str) -> None:
        self.function = function
        self.op = op.function
        self.what = what
        self._forms: dict[Any, Any] = {}  # how calls of one form (how many arguments, which keywords) are passed on

    @functools.cached_property
    def signature(self) -> inspect.Signature | None:
        """What NumPy's function takes; None for one in C without a text signature, whose arguments pass as they are."""
        try:
            return inspect.signature(self.function)
        except ValueError:
            return None

    @functools.cached_property
    def own(self) -> Mapping[str, inspect.Parameter]:
        """What the operation takes."""
        return inspect.signature(self.op).parameters

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not kwargs and len(args) == 1:
            return self.op(*args)
        form = (len(args), *kwargs)
        if form not in self._forms:
            self._forms[form] = self._form(len(args), kwargs)
        if self._forms[form] is not None and not any(v is _NOTHING for v in kwargs.values()):
            places, keywords = self._forms[form]
            given = (*args, *kwargs.values())
            return self.op(*[given[i] for i in places], **{name: given[i] for name, i in keywords})
        if self.signature is None:
            out = kwargs.pop("out", None)
            result = self.op(*args, **_known(self.op, kwargs, self.what))
            return _into(out, result, self.what)
        variadic, values, out = self._sorted(self.signature.bind(*args, **kwargs).arguments)
        result = self.op(*self._leading(values), *variadic, **values)
        return _into(out, result, self.what)

    def _leading(self, values: dict[str, Any]) -> list[Any]:
        """Takes out what can be passed by position: some operations have no names for their operands."""
        positional = []
        for name, p in self.own.items():
            if p.kind is p.KEYWORD_ONLY or name not in values:
                break
            positional.append(values.pop(name))
        return positional

    def _form(self, count: int, keywords: dict[str, Any]) -> tuple[list[int], list[tuple[str, int]]] | None:
        """Where the arguments of a call go; None where that depends on their values."""
        if self.signature is None:
            return None
        numbers = {name: count + i for i, name in enumerate(keywords)}
        given = self.signature.bind(*range(count), **numbers).arguments
        if any(self.signature.parameters[n].kind in (_VARIADIC, _KEYWORDS) for n in given) or "out" in given:
            return None
        try:
            _, values, _ = self._sorted(given)
        except UnsupportedError:
            return None
        if len(values) != len(given):
            return None
        places = self._leading(values)
        return places, list(values.items())

    def _sorted(self, given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        """Arguments of NumPy by the names that the operation gives them; out= apart."""
        assert self.signature is not None
        theirs = self.signature.parameters
        own = [name for name, p in self.own.items() if p.kind is not p.KEYWORD_ONLY]
        variadic: tuple[Any, ...] = ()
        values: dict[str, Any] = {}
        out = None
        for i, (name, p) in enumerate(theirs.items()):
            if name not in given:
                continue
            value = given[name]
            if p.kind is p.VAR_POSITIONAL:
                variadic = value
            elif p.kind is p.VAR_KEYWORD:
                values.update(_known(self.op, value, self.what))
            elif name == "out":
                out = value
            elif name in self.own:
                if value is not _NOTHING:
                    values[name] = value
            elif i < len(own) and own[i] not in theirs and p.kind is not p.KEYWORD_ONLY:
                values[own[i]] = value
            elif not _is_neutral(name, value) and value is not p.default:
                _refuse(self.what, name)
        return variadic, values, out


def _label(function: Any) -> str:
    module = str(getattr(function, "__module__", "numpy")).replace("numpy", "np", 1)
    return f"{module}.{getattr(function, '__name__', function)}"


@functools.cache
def _adapters() -> dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Any]]:
    """NumPy's functions that have an operation, or an answer of their own."""
    table: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], Any]] = {}
    for name, op in public_names().items():
        found: Any = np
        for part in name.split("."):
            found = getattr(found, part, None)
        if callable(found) and not isinstance(found, np.ufunc | type):
            table[found] = _Adapter(found, op, f"np.{name}")
    for function, answer in _ANSWERS.items():
        table[function] = functools.partial(_answer, answer)
    for function in _ON_VALUES:
        table[function] = functools.partial(_on_values, function)
    for function in _ON_UNTRACKED:
        table[function] = functools.partial(_on_untracked, function)
    return table


def _answer(answer: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return answer(*args, **kwargs)


def __array_function__(self: Tensor, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """For NumPy's other functions: the operation of the same name, recorded as ever."""
    if not all(issubclass(t, Tensor | np.ndarray) for t in types):
        return NotImplemented
    adapter = _adapters().get(func)
    if adapter is None:
        raise _missing(_label(func))
    return adapter(args, kwargs)


# --------------------------------------------------------------------------- functions that jitgrad answers itself


def _plain(obj: Any, convert: Callable[[Tensor], Any]) -> Any:
    """Arguments with every tensor converted, inside of lists and dicts too."""
    if isinstance(obj, Tensor):
        return convert(obj)
    if isinstance(obj, list | tuple):
        return type(obj)([_plain(o, convert) for o in obj]) if type(obj) in (list, tuple) else obj
    if isinstance(obj, dict):
        return {k: _plain(v, convert) for k, v in obj.items()}
    return obj


def _on_values(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function whose result (a bool, a text) carries no gradient."""
    what = _label(function)

    def values(t: Tensor) -> Any:
        return t._array(what)

    return function(*_plain(args, values), **_plain(kwargs, values))


def _on_untracked(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A function that stores values elsewhere: tracked tensors are refused, as ``numpy()`` does."""

    def exported(t: Tensor) -> Any:
        return t.numpy()

    return function(*_plain(args, exported), **_plain(kwargs, exported))


def _on_dtypes(function: Function) -> Function:
    """A function of dtypes: tensors count as their dtype."""

    def answer(*args: Any, **kwargs: Any) -> Any:
        return function(*_plain(args, lambda t: t.dtype), **_plain(kwargs, lambda t: t.dtype))

    return answer


def _size(a: Any, axis: Any = None) -> Any:
    return np.size(np.broadcast_to(0, as_tensor(a).shape), axis)


def _where(condition: Any, x: Any = _NOTHING, y: Any = _NOTHING) -> Any:
    if x is _NOTHING and y is _NOTHING:
        return public_names()["nonzero"].function(condition)
    if x is _NOTHING or y is _NOTHING:
        raise ValueError("either both or neither of x and y should be given")
    return public_names()["where"].function(condition, x, y)


def _clip(
    a: Any, a_min: Any = None, a_max: Any = None, out: Any = None, *, min: Any = None, max: Any = None, **kwargs: Any
) -> Any:
    for name, value in kwargs.items():
        if not _is_neutral(name, value):
            _refuse("np.clip", name)
    low = min if a_min is None or a_min is _NOTHING else a_min
    high = max if a_max is None or a_max is _NOTHING else a_max
    low, high = (None if v is _NOTHING else v for v in (low, high))
    return _into(out, public_names()["clip"].function(a, low, high), "np.clip")


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = True) -> None:
    if where is not True:
        _refuse("np.copyto", "where")
    if not isinstance(dst, Tensor):
        if _stays_in_graph(src):
            raise ConversionError(
                "a tracked tensor would be written into an ndarray, where its gradient is lost (np.copyto, np.full). "
                "Use jg.full, or a tensor as the target: `a = jg.tensor(a); a[...] = t`"
            )
        np.copyto(dst, src._array("np.copyto"), casting=casting)  # type: ignore[arg-type]
        return
    assign(dst, src, "np.copyto")


_ANSWERS: Final[dict[Any, Function]] = {
    np.shape: lambda a: as_tensor(a).shape,
    np.ndim: lambda a: as_tensor(a).ndim,
    np.size: _size,
    np.result_type: _on_dtypes(np.result_type),
    np.can_cast: _on_dtypes(np.can_cast),
    np.common_type: lambda *arrays: np.common_type(*(np.empty(0, as_tensor(a).dtype) for a in arrays)),
    np.iscomplexobj: lambda x: False,
    np.isrealobj: lambda x: True,
    np.where: _where,
    np.clip: _clip,
    np.copyto: _copyto,
}
_ON_VALUES: Final[tuple[Any, ...]] = (
    np.allclose, np.array_equal, np.array_equiv, np.shares_memory, np.may_share_memory,
    np.array_repr, np.array_str, np.array2string,
)  # fmt: skip
_ON_UNTRACKED: Final[tuple[Any, ...]] = (np.save, np.savez, np.savez_compressed, np.savetxt)

METHODS: Final[dict[str, Any]] = {
    "__array_ufunc__": __array_ufunc__,
    "__array_function__": __array_function__,
}
