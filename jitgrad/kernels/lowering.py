"""Lowering: functions of emitted source become LLVM IR in one pass over their syntax tree.

Numba's front end works on bytecode: it finds the control flow again, makes single assignments, infers all types to a fixed
point. That takes some milliseconds a line, and emitted source needs none of it: every name is assigned before it is read,
loops count, and a name keeps its type. So a function of the plain part of the language is typed and written out here; what each
operator, cast or call means is still asked of Numba, whose rules and implementations are the only ones.

Whatever is not plain (slices, arrays that are made, a name whose type changes around a loop) raises `NotPlain`, and the
whole function goes through Numba as it is. Both ways give the same code but for its form.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

from llvmlite import ir as llvm
from numba.core import cgutils, types
from numba.core.errors import NumbaError
from numba.extending import intrinsic

from jitgrad.kernels.lowering_expressions import ATTRIBUTES, Emission, NotPlain, Value, Variable
from jitgrad.kernels.lowering_statements import Statements

__all__ = ["Source"]

_STATEMENTS: Final = (
    ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.While, ast.If, ast.Return, ast.Raise, ast.Pass, ast.Break, ast.Continue,
)  # fmt: skip
_EXPRESSIONS: Final = (
    ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.IfExp, ast.Tuple, ast.Subscript,
    ast.Attribute,
)  # fmt: skip


class _Program(Statements):
    """A plain function for some types of arguments."""

    def __init__(self, typing_context: Any, source: Source, definition: ast.FunctionDef, kinds: Sequence[Any]) -> None:
        super().__init__(typing_context, source, definition.name)
        self.own_memory = source.has_own_memory(definition.name)
        self.definition = definition
        self.kinds = tuple(kinds)
        names = [a.arg for a in definition.args.args]
        if len(names) != len(self.kinds):
            raise NotPlain
        self.arguments = [Variable(kind) for kind in self.kinds]
        self.env = dict(zip(names, self.arguments, strict=True))
        self.body, ends = self.suite(definition.body)
        if self.result is None:
            self.result = types.none
        elif not ends and self.result != types.none:
            raise NotPlain

    def emit(self, context: Any, builder: Any, arguments: Sequence[Any]) -> Any:
        """Write the function at the builder's place; gives its result."""
        e = Emission(context, builder)
        e.values.update(zip(self.arguments, arguments, strict=True))
        e.end = e.block("end")
        if self.result != types.none:
            e.result = cgutils.alloca_once(builder, context.get_value_type(self.result))
        self.body(e)
        e.go(e.end)
        builder.position_at_end(e.end)
        return context.get_dummy_value() if e.result is None else builder.load(e.result)

    def call(self, e: Emission, given: Sequence[Value]) -> Any:
        """Write a call of the function, which is written to the module when it is first called there."""
        context, builder = e.context, e.builder
        made = builder.module.__dict__.setdefault("_jitgrad_functions", {})
        function = made.get(id(self))
        if function is None:
            convention = context.call_conv
            kind = convention.get_function_type(self.result, self.kinds)
            name = builder.module.get_unique_name(f"jitgrad.{self.name}")
            function = made[id(self)] = llvm.Function(builder.module, kind, name)
            function.linkage = "internal"
            names = [a.arg for a in self.definition.args.args]
            convention.decorate_function(function, names, self.kinds, noalias=self.own_memory)
            if self.own_memory:
                function.attributes.add("noinline")
            inner = llvm.IRBuilder(function.append_basic_block("entry"))
            values = context.get_arg_packer(self.kinds).from_arguments(inner, convention.get_arguments(function))
            result = self.emit(context, inner, values)
            convention.return_value(inner, context.get_return_value(inner, self.result, result))
        arguments = [e.cast(g, k) for g, k in zip(given, self.kinds, strict=True)]
        status, result = context.call_conv.call_function(builder, function, self.result, self.kinds, arguments)
        with cgutils.if_unlikely(builder, status.is_error):
            context.call_conv.return_status_propagate(builder, status)
        return result


def _may_be_plain(definition: ast.FunctionDef) -> bool:
    """Whether a look at the syntax leaves the chance; types are not known yet."""
    a = definition.args
    if a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or a.defaults or definition.decorator_list:
        return False
    for node in ast.walk(definition):
        if isinstance(node, ast.stmt) and node is not definition and not isinstance(node, _STATEMENTS):
            return False
        if isinstance(node, ast.expr) and not isinstance(node, _EXPRESSIONS):
            return False
        if isinstance(node, ast.Attribute) and node.attr not in ATTRIBUTES:
            return False
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and type(node.slice.value) is not int
        ):
            return False
    return True


class Source:
    """The functions of a source text, defined in the namespace ``names``; those but ``main`` are made ready to be called from
    compiled code, by ``called``. ``has_own_memory``: whether the arguments of a function never overlap."""

    def __init__(
        self,
        text: str,
        filename: str,
        names: dict[str, Any],
        called: Callable[[Any], Any],
        has_own_memory: Callable[[str], bool],
        main: str | None = None,
    ) -> None:
        self.filename = filename
        self.names = names
        self.has_own_memory = has_own_memory
        tree = ast.parse(text)
        definitions = [d for d in tree.body if isinstance(d, ast.FunctionDef)]
        self._definitions = {d.name: d for d in definitions if _may_be_plain(d)}
        self._programs: dict[Any, _Program | None] = {}
        exec(compile(tree, filename, "exec"), names)
        self.for_numba = {d.name: called(names[d.name]) for d in definitions if d.name != main}
        for name, original in self.for_numba.items():
            names[name] = called(self.shell(name, original)) if name in self._definitions else original

    def program(self, typing_context: Any, name: str, kinds: Sequence[Any]) -> _Program | None:
        """The function for arguments of these types, if it is plain."""
        definition = self._definitions.get(name)
        if definition is None:
            return None
        key = (name, *kinds)
        if key not in self._programs:
            self._programs[key] = None  # while it is made: a function that calls itself is not plain
            with contextlib.suppress(NotPlain, NumbaError):
                self._programs[key] = _Program(typing_context, self, definition, kinds)
        return self._programs[key]

    def forget(self) -> None:
        """Drop what is only needed to compile: Numba keeps intrinsics for ever."""
        self._programs.clear()
        self._definitions.clear()

    def shell(self, name: str, original: Any) -> Any:
        """The function with all of its body in one intrinsic, for Numba to compile; ``original`` is called for types of
        which it turns out not to be plain."""

        def typed(typing_context: Any, *kinds: Any) -> Any:
            program = self.program(typing_context, name, kinds)
            if program is not None:
                plain = program
                return plain.result(*kinds), lambda context, builder, _, args: plain.emit(context, builder, args)
            kind = typing_context.resolve_value_type(original)
            signature = typing_context.resolve_function_type(kind, kinds, {})

            def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
                given = zip(args, kinds, signature.args, strict=True)
                cast = [context.cast(builder, value, own, wanted) for value, own, wanted in given]
                return context.get_function(kind, signature)(builder, cast)

            return signature.return_type(*kinds), generate

        head = "".join(f", {a.arg}" for a in self._definitions[name].args.args)
        scope: dict[str, Any] = {"typed": typed}
        exec(f"def body(typing_context{head}):\n    return typed(typing_context{head})", scope)
        scope = {"__name__": self.names["__name__"], "body": intrinsic(scope["body"])}
        exec(compile(f"def {name}({head[2:]}):\n    return body({head[2:]})\n", self.filename, "exec"), scope)
        return scope[name]
