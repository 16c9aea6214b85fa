"""What an operation block is made with: the public function, its names, and the samples that its tests use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, ParamSpec, TypeAlias, TypeVar

import numpy as np

from jitgrad.core.aval import ShapedArray
from jitgrad.core.primitive import (
    ArrayCall,
    Bilinear,
    Custom,
    Elementwise,
    Host,
    Linear,
    Partials,
    Primitive,
    Reduce,
    Value,
    View,
)
from jitgrad.errors import DefinitionError, UnsupportedError
from jitgrad.ops.guarded import guarded

__all__ = [
    "POSITIVE",
    "REAL",
    "UNIT",
    "Call",
    "Domain",
    "Operation",
    "Single",
    "elementwise",
    "host",
    "operation",
    "primitive_of",
    "reduction",
    "uniform",
    "view",
]

P = ParamSpec("P")
R = TypeVar("R")

Single: TypeAlias = Callable[[int, int], tuple[Primitive, bool, dict[str, Any]] | None]
"""For operands with so many axes: the one primitive that an operation is, whether it takes them in the other order, and its
parameters; None where it is more than one."""


@dataclass(frozen=True)
class Domain:
    """Where an operand may lie in tests: an interval, and points near which the derivative jumps."""

    low: float
    high: float
    kinks: tuple[float, ...] = ()
    integers: bool = False


REAL: Final = Domain(-3.0, 3.0)
POSITIVE: Final = Domain(0.1, 4.0)
UNIT: Final = Domain(-0.95, 0.95)


@dataclass(frozen=True)
class Call:
    """One sample call for the property tests; float ndarrays among ``args`` are differentiated."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def uniform(rng: np.random.Generator, *shape: int) -> np.ndarray[Any, Any]:
    """A sample array: numbers in [-2, 2)."""
    return rng.uniform(-2.0, 2.0, shape)


class Operation(Generic[P, R]):
    """A public function and everything that is derived from its block."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        primitive: Primitive | None,
        aliases: tuple[str, ...],
        namespace: str,
        method: bool | str,
        operator: str | None,
        domains: tuple[Domain, ...],
        samples: Callable[[np.random.Generator], Sequence[Call]] | None,
        reference: Callable[..., Any] | None,
        differentiable: bool,
        public: bool = True,
        in_place: bool = False,
        fold: Primitive | None = None,
        single: Single | None = None,
        remembered: bool = False,
    ) -> None:
        self.function = function if primitive is not None else guarded(function)
        self._body = function
        self.name = function.__name__
        self.primitive = primitive
        self.aliases = aliases
        self.namespace = namespace
        self.method = function.__name__ if method is True else method or ""
        self.operator = operator
        self.domains = domains
        self.samples = samples
        self.reference = reference
        self.differentiable = differentiable
        self.public = public
        self.in_place = in_place
        self.fold = fold
        self.single = single
        self.remembered = remembered
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._body(*args, **kwargs)  # for other operations, which pass what they have checked

    def __repr__(self) -> str:
        return f"<operation {self.name}>"


def _parameters(body: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the operands (``inspect.signature`` for every operation would be a tenth of the import)."""
    code = body.__code__
    return code.co_varnames[: code.co_argcount]


def _named(primitive: Primitive, body: Callable[..., Any]) -> Callable[..., Any]:
    """The public function of an elementwise primitive, with the signature of its body."""

    def function(*args: Any, **named: Any) -> Any:
        if named or len(args) != count:
            wrong = f"{', '.join(named)} by name" if named else len(args)
            raise UnsupportedError(f"{primitive.name}() takes {count} arguments ({', '.join(names)}), not {wrong}")
        return primitive(*args)

    names = _parameters(body)
    count = len(names)
    function.__name__ = function.__qualname__ = body.__name__
    function.__doc__ = body.__doc__
    function.__module__ = body.__module__
    function.__wrapped__ = body  # type: ignore[attr-defined]  # where inspect finds the signature
    return function


def elementwise(
    *,
    partials: Sequence[Callable[..., Value] | None] | None = None,
    masks: Sequence[Callable[..., Value] | None] | None = None,
    chooses: bool = False,
    nondiff: bool = False,
    result: Literal["float", "same", "bool"] = "float",
    fixed: dict[int, Any] | None = None,
    refuses: str = "",
    operator: str | None = None,
    aliases: tuple[str, ...] = (),
    method: bool | str = True,
    public: bool = True,
    domain: Domain | Sequence[Domain] = REAL,
    reference: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., Any]], Operation[..., Any]]:
    """Define an elementwise operation: the decorated body IS its scalar kernel.

    ``partials``: one function ``(out, *inputs) -> derivative`` an operand, in jitgrad operations; None for an operand
    without one. ``masks``: where an operand reaches the result at all; ``chooses``: a derivative of 0 means that it does not
    (see ``Partials``). Without partials, say ``nondiff=True``. ``result``: dtype rule. ``refuses``: dtype kinds that are not
    taken. ``operator``: Python operator, as ``*`` or ``~``. ``public``: False for a part of another operation. ``domain``:
    where the property tests sample. ``reference``: the NumPy function to test against, by default the one of the same name.
    """

    def decorate(body: Callable[..., Any]) -> Operation[..., Any]:
        name = body.__name__
        arity = len(_parameters(body))
        if (partials is None and masks is None) != nondiff:
            raise DefinitionError(f"{name}: give its partials, or say nondiff=True")
        rule = None
        if not nondiff:
            rule = Partials(
                tuple(partials) if partials is not None else (None,) * arity,
                tuple(masks) if masks is not None else (None,) * arity,
                chooses,
            )
        primitive = Primitive(
            name, Elementwise(body, arity, result, fixed or {}, refuses), rule, definition=_where(body)
        )
        domains = (domain,) * arity if isinstance(domain, Domain) else tuple(domain)
        return Operation(
            _named(primitive, body),
            primitive=primitive,
            aliases=aliases,
            namespace="",
            method=method,
            operator=operator,
            domains=domains,
            samples=None,
            reference=reference,
            differentiable=not nondiff,
            public=public,
            in_place=method is not False and result != "bool" and 0 not in (fixed or {}),
        )

    return decorate


def primitive_of(
    partials: list[Callable[..., Value] | None] | None = None,
    masks: list[Callable[..., Value] | None] | None = None,
    result: Any = "same",
    chooses: bool = False,
) -> Callable[[Callable[..., Any]], Primitive]:
    """An elementwise primitive without a public name, for the derivatives of others; a constant if no rule is given."""

    def decorate(body: Callable[..., Any]) -> Primitive:
        constant = partials is None and masks is None
        rule: Any = {"partials": partials, "masks": masks, "nondiff": constant, "chooses": chooses}
        made = elementwise(**rule, result=result)(body).primitive
        assert made is not None
        return made

    return decorate


def operation(
    *,
    samples: Callable[[np.random.Generator], Sequence[Call]] | None,
    nondiff: bool = False,
    aliases: tuple[str, ...] = (),
    namespace: str = "",
    method: bool | str = False,
    operator: str | None = None,
    reference: Callable[..., Any] | None = None,
    in_place: bool = False,
    fold: Primitive | None = None,
    single: Single | None = None,
    remembered: bool = False,
) -> Callable[[Callable[P, R]], Operation[P, R]]:
    """Make a public operation of a function that normalises its arguments and calls primitives or other operations.

    ``samples(rng)`` gives calls for the property tests (None: tested by hand, for creation functions). ``namespace``:
    "linalg" for ``jg.linalg.NAME``. ``in_place``: there is a method ``NAME_`` that overwrites the first operand.
    ``fold``: the primitive that the operation is, over all axes, when called with a tensor alone.
    ``single``: the one primitive that an operation of two operands of one dtype is, where it is no more than that.
    ``remembered``: what it does depends on the avals of its tensors and on its other arguments alone, never on values, so
    that a call of one primitive need not be worked out again.
    """

    def decorate(function: Callable[P, R]) -> Operation[P, R]:
        return Operation(
            function,
            primitive=None,
            aliases=aliases,
            namespace=namespace,
            method=method,
            operator=operator,
            domains=(),
            samples=samples,
            reference=reference,
            differentiable=not nondiff,
            in_place=in_place,
            fold=fold,
            single=single,
            remembered=remembered,
        )

    return decorate


def _where(function: Callable[..., Any]) -> str:
    function = getattr(function, "__wrapped__", function)
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _public(name: str) -> str:
    """How messages call a primitive: ``sum_over`` is part of ``sum``."""
    for suffix in ("_over", "_to", "_view"):
        name = name.removesuffix(suffix)
    return name


def _rule(
    name: str,
    transpose: Callable[..., Any] | None,
    argnums: tuple[int, ...] | None,
    holes: bool,
    contracts: bool,
    transposes: tuple[Callable[..., Value], Callable[..., Value]] | None,
    vjp: Callable[..., Any] | None,
    jvp: Callable[..., Any] | None,
    constants: tuple[int, ...],
    nondiff: bool,
) -> Linear | Bilinear | Custom | None:
    given = [r for r in (transpose, transposes, vjp) if r is not None]
    if len(given) != (0 if nondiff else 1):
        raise DefinitionError(f"{name}: give one of transpose, transposes, vjp, or say nondiff=True")
    if transpose is not None:
        return Linear(transpose, argnums, holes, contracts)
    if transposes is not None:
        return Bilinear(transposes)
    if vjp is not None:
        return Custom(vjp, jvp, constants)
    return None


def view(
    *, transpose: Callable[..., Any] | None = None, holes: bool = False, contracts: bool = False, nondiff: bool = False
) -> Callable[[Callable[..., Any]], Primitive]:
    """Define a primitive whose result is a NumPy view of its operand; ``transpose(g, x, **params)``."""

    def decorate(function: Callable[..., Any]) -> Primitive:
        rule = _rule(function.__name__, transpose, (0,), holes, contracts, None, None, None, (), nondiff)
        return Primitive(_public(function.__name__), View(function), rule, definition=_where(function))

    return decorate


def host(
    *,
    infer: Callable[..., Sequence[ShapedArray] | ShapedArray],
    transpose: Callable[..., Any] | None = None,
    argnums: tuple[int, ...] | None = (0,),
    holes: bool = False,
    contracts: bool = False,
    transposes: tuple[Callable[..., Value], Callable[..., Value]] | None = None,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    constants: tuple[int, ...] = (),
    nondiff: bool = False,
    outputs: int = 1,
    expression: Callable[..., Any] | None = None,
    call: Callable[..., ArrayCall | None] | None = None,
    prepare: Callable[..., Callable[..., Any]] | None = None,
) -> Callable[[Callable[..., Any]], Primitive]:
    """Define a primitive by a function of ndarrays that runs array kernels; ``infer(*avals, **params)`` gives the avals
    of its results. One of ``transpose`` (linear in ``argnums``; None: in all), ``transposes`` (bilinear), ``vjp`` (with
    ``jvp`` for forward mode; ``constants``: operands without a derivative), or ``nondiff=True``. ``expression``: the
    same in jitgrad operations; ``call(*operands, *results, **params)``: the array kernel that computes it; both for kernels
    that it becomes part of, and None where they do not apply. ``prepare``: see ``Host``."""

    def decorate(function: Callable[..., Any]) -> Primitive:
        rule = _rule(function.__name__, transpose, argnums, holes, contracts, transposes, vjp, jvp, constants, nondiff)
        return Primitive(
            _public(function.__name__),
            Host(function, infer, expression, call, prepare),
            rule,
            outputs=outputs,
            definition=_where(function),
        )

    return decorate


def reduction(
    *,
    start: Callable[[Any], Any],
    finish: Callable[..., Any] | None = None,
    accumulator: Callable[[Any], Any],
    result: Callable[[Any], Any],
    needs_elements: bool = False,
    transpose: Callable[..., Any] | None = None,
    vjp: Callable[..., Any] | None = None,
    jvp: Callable[..., Any] | None = None,
    nondiff: bool = False,
) -> Callable[[Callable[..., Any]], Primitive]:
    """Define a primitive that folds over the axes ``axes`` (sorted, non-negative; dropped from the result).

    The decorated body is the step ``(acc, x) -> acc``; ``start(dtype)`` the first value; ``finish(acc, n)`` the end.
    ``accumulator(dtype)`` and ``result(dtype)`` are dtypes.
    """

    def decorate(step: Callable[..., Any]) -> Primitive:
        rule = _rule(step.__name__, transpose, (0,), False, False, None, vjp, jvp, (), nondiff)
        impl = Reduce(start, step, finish, accumulator, result, needs_elements)
        return Primitive(_public(step.__name__), impl, rule, definition=_where(step))

    return decorate
