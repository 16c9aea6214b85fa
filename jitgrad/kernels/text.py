"""Source text of scalar bodies and array kernels: read from the function itself, made ready for a kernel's namespace.

A body is straight-line Python ending in one ``return``. It calls ``scalar.exp``, ``scalar.sel`` ...; in a kernel these
are the bare names ``exp``, ``sel``, which the kernel's namespace defines (vector math when compiled, NumPy otherwise).
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import re
from collections.abc import Callable, Sequence
from opcode import opmap
from types import CodeType
from typing import Any, Final

from jitgrad.errors import DefinitionError

__all__ = ["KernelPart", "function_source", "inline"]

_MODULES: Final = ("scalar", "blas", "faults")


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    """The function as a tree of its own, without its docstring."""
    try:
        text = _source(function)
    except OSError as error:
        raise DefinitionError(
            f"the source of {function.__qualname__} is needed to make kernels of it: {error}"
        ) from None
    tree = ast.parse(text).body[0] if not text[0].isspace() else ast.parse(f"if True:\n{text}").body[0].body[0]  # type: ignore[attr-defined]
    if not isinstance(tree, ast.FunctionDef):
        raise DefinitionError(f"{function.__qualname__}: a kernel is made of a `def` function, not a lambda")
    _check_same(function, tree)
    if tree.body and isinstance(tree.body[0], ast.Expr) and isinstance(tree.body[0].value, ast.Constant):
        tree.body = tree.body[1:]  # the docstring
    return tree


def _source(function: Callable[..., Any]) -> str:
    """What ``inspect.getsource`` gives, without its search through all modules for the one that the function is of."""
    code = function.__code__
    linecache.checkcache(code.co_filename)
    lines = linecache.getlines(code.co_filename, function.__globals__)[code.co_firstlineno - 1 :]
    if not lines:
        raise OSError("could not get source code")
    return "".join(inspect.getblock(lines))


_ARITHMETIC: Final = frozenset(opmap[n] for n in opmap if n.startswith(("BINARY_", "COMPARE_", "UNARY_")))


def _essence(code: CodeType) -> tuple[Any, ...]:
    """What a code object computes: its names, constants and operators (calls are compiled in more ways than one)."""
    steps = [pair for pair in zip(code.co_code[::2], code.co_code[1::2], strict=True) if pair[0] in _ARITHMETIC]
    constants = [repr(c) for c in code.co_consts if not isinstance(c, CodeType)]
    return code.co_names, code.co_varnames, constants, steps


def _check_same(function: Callable[..., Any], definition: ast.FunctionDef) -> None:
    """Raise unless the source is still that of the function: a file may have been edited since it was imported."""
    bare = ast.parse("def f(): pass").body[0]
    assert isinstance(bare, ast.FunctionDef)
    bare.name, bare.args, bare.body = definition.name, definition.args, definition.body
    module = compile(ast.fix_missing_locations(ast.Module([bare], [])), "<source>", "exec", dont_inherit=True)
    code = next(c for c in module.co_consts if isinstance(c, CodeType) and c.co_name == definition.name)
    own = function.__code__
    if not own.co_freevars and _essence(code) != _essence(own):
        raise DefinitionError(
            f"{own.co_filename}:{own.co_firstlineno}: the file was edited after {function.__qualname__} was imported; "
            "start the program again"
        )


class _Rename(ast.NodeTransformer):
    """Parameters become the given names, locals get a prefix, ``scalar.f`` becomes ``f``, constants are typed."""

    def __init__(self, names: dict[str, str], constant_type: str | None) -> None:
        self.names = names
        self.constant_type = constant_type

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in _MODULES:
            return ast.Name(node.attr, ast.Load())
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self.constant_type and isinstance(node.value, float):
            return ast.Call(ast.Name(self.constant_type, ast.Load()), [node], [])
        return node


_HOLE: Final = re.compile(r"ARGUMENT(\d+)__|(TARGET__)")


def inline(
    function: Callable[..., Any], arguments: Sequence[str], target: str, constant_type: str | None = None
) -> list[str]:
    """The lines of ``target = function(*arguments)`` with the body written out.

    ``constant_type`` names the conversion for its float constants (``float32`` arithmetic must stay float32).
    """
    # a negative number is an expression, not a name: `x**y` must not become `-2.0**y`
    given = [f"({a})" if a[0] == "-" else a for a in arguments]
    return [line.format(target, *given) for line in _template(function, len(given), constant_type)]


def _with_holes(line: str) -> str:
    """A line as a format string, whose hole 0 is the target."""
    bare = line.replace("{", "{{").replace("}", "}}")
    return _HOLE.sub(lambda m: "{0}" if m[2] else f"{{{int(m[1]) + 1}}}", bare)


@functools.cache
def _template(function: Callable[..., Any], count: int, constant_type: str | None) -> list[str]:
    """The lines for any arguments and target, as format strings: unparsing a body takes longer than filling it in."""
    arguments, target = [f"ARGUMENT{k}__" for k in range(count)], "TARGET__"
    definition = _definition(function)
    parameters = [a.arg for a in definition.args.args]
    if len(parameters) != len(arguments):
        raise DefinitionError(f"{function.__qualname__} takes {len(parameters)} arguments, not {len(arguments)}")
    names = dict(zip(parameters, arguments, strict=True))
    for statement in definition.body:
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                # a parameter that the body assigns must not change the caller's variable
                names[part.id] = f"{target}_{part.id}"
    lines: list[str] = []
    for parameter, argument in zip(parameters, arguments, strict=True):
        if names[parameter] != argument:
            lines.append(f"{names[parameter]} = {argument}")
    *statements, last = definition.body
    rename = _Rename(names, constant_type)
    for statement in statements:
        if not isinstance(statement, ast.Assign | ast.AugAssign):
            raise DefinitionError(
                f"{function.__qualname__}: a scalar body is assignments and one return; use scalar.sel for if"
            )
        lines += ast.unparse(ast.fix_missing_locations(rename.visit(statement))).splitlines()
    if not isinstance(last, ast.Return) or last.value is None:
        raise DefinitionError(f"{function.__qualname__}: a scalar body ends with its one return")
    lines.append(f"{target} = {ast.unparse(ast.fix_missing_locations(rename.visit(last.value)))}")
    return [_with_holes(line) for line in lines]


class KernelPart:
    """A function that array kernels call by its name: its text goes before theirs. The name must be its own."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any) -> Any:
        """Run it as plain Python."""
        return self.function(*arguments)


@functools.cache
def function_source(function: Callable[..., Any]) -> str:
    """The text of a whole array kernel, undecorated and unannotated, with bare names for the scalar functions; the
    functions that it calls come first."""
    called = [function.__globals__.get(n) for n in function.__code__.co_names]
    parts = [function_source(p.function) for p in called if isinstance(p, KernelPart)]
    definition = _definition(function)
    definition.decorator_list = []
    definition.returns = None
    for argument in definition.args.args:
        argument.annotation = None
    parts.append(ast.unparse(ast.fix_missing_locations(_Rename({}, None).visit(definition))) + "\n")
    return "\n".join(parts)
