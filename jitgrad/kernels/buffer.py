"""Buffers: kernel arguments that are ndarrays of any rank, read in place.

Numba's own array arguments cost an acquired reference and a struct for each call, and fix the rank. A buffer is unboxed
by reading four fields of the ndarray object (data, rank, extents, strides; NumPy's ABI keeps them where they are, and
``bridge`` checks it before first use). Strides count elements here, so operands whose strides are no multiple of the
itemsize must be copied before. The caller keeps the arrays alive and guarantees their dtypes.
"""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models
from numba.core.imputils import impl_ret_borrowed
from numba.extending import NativeValue, intrinsic, register_model, unbox

from jitgrad.core.aval import DTYPE_NAMES
from jitgrad.kernels.array_fields import FIELD_OFFSETS

__all__ = ["INTRINSICS", "Buffer", "Object", "Part"]

_I8P = ir.IntType(8).as_pointer()
_I32 = ir.IntType(32)
_I64 = ir.IntType(64)


class Buffer(types.Type):
    """Numba type of a raw ndarray of one dtype and any rank."""

    def __init__(self, dtype: types.Type) -> None:
        self.dtype = dtype
        super().__init__(name=f"Buffer({dtype})")


@register_model(Buffer)
class _BufferModel(models.StructModel):
    def __init__(self, manager: Any, kind: Buffer) -> None:
        members = [
            ("data", types.CPointer(kind.dtype)),
            ("nd", types.intp),
            ("dims", types.CPointer(types.intp)),
            ("strides", types.CPointer(types.intp)),
        ]
        super().__init__(manager, kind, members)


class Part(types.Type):
    """Numba type of a temporary array: a part of the working memory, known by a number that no other part has."""

    def __init__(self, dtype: types.Type, number: int) -> None:
        self.dtype = dtype
        self.number = number
        super().__init__(name=f"Part({dtype}, {number})")


@register_model(Part)
class _PartModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Part) -> None:
        super().__init__(manager, kind, manager.lookup(types.CPointer(kind.dtype)).get_value_type())


class Object(types.Type):
    """Numba type of any Python object, as its address; nothing is known of it but that it is an object."""

    def __init__(self) -> None:
        super().__init__(name="Object")


@register_model(Object)
class _ObjectModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Object) -> None:
        super().__init__(manager, kind, _I64)


@unbox(Object)
def _unbox_object(kind: Object, obj: Any, c: Any) -> Any:
    return NativeValue(c.builder.ptrtoint(obj, _I64))


def _field_reader(width: int) -> Any:
    """An intrinsic that reads an integer of so many bits at an address (an object, or an int) and an offset."""

    @intrinsic
    def read(typingctx: Any, address: Any, offset: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = builder.inttoptr(builder.add(args[0], args[1]), ir.IntType(width).as_pointer())
            return builder.sext(builder.load(pointer), _I64) if width < 64 else builder.load(pointer)

        return types.int64(address if isinstance(address, Object) else types.int64, types.int64), generate

    return read


@unbox(Buffer)
def _unbox(kind: Buffer, obj: Any, c: Any) -> Any:
    builder = c.builder
    base = builder.bitcast(obj, _I8P)

    def field(name: str, kind: Any) -> Any:
        address = builder.gep(base, [_I64(FIELD_OFFSETS[name])])
        return builder.load(builder.bitcast(address, kind.as_pointer()))

    struct = cgutils.create_struct_proxy(kind)(c.context, builder)
    struct.data = field("data", struct.data.type)
    struct.nd = builder.sext(field("nd", _I32), _I64)
    struct.dims = field("dims", struct.dims.type)
    struct.strides = field("strides", struct.strides.type)
    return NativeValue(struct._getvalue())


def _struct(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    return cgutils.create_struct_proxy(kind)(context, builder, value=value)


def _product(builder: Any, pointer: Any, stop: Any) -> Any:
    total = cgutils.alloca_once_value(builder, _I64(1))
    with cgutils.for_range(builder, stop) as loop:
        extent = builder.load(builder.gep(pointer, [loop.index]))
        builder.store(builder.mul(builder.load(total), extent), total)
    return builder.load(total)


def _use_wide_vectors(builder: Any) -> None:
    """Let LLVM use the widest registers: on CPUs with AVX-512 it holds back by default, for the sake of code that uses
    them rarely. Kernels are loops of arithmetic; their elementary functions run a third faster. llvmlite checks names of
    attributes against a list of its own, hence the base class."""
    set.add(builder.function.attributes, '"prefer-vector-width"="512"')


_MEMORY: Final = (Buffer, Part, types.CPointer)
_MOST_SCOPES: Final = 32


def _address(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """The address of the first element."""
    return _struct(context, builder, kind, value).data if isinstance(kind, Buffer) else value


def _say_apart(builder: Any, kind: Any, instruction: Any) -> None:
    """Tell LLVM of an access to a part of the working memory that it touches no other part (as ``noalias`` says it of
    arguments): else loops over several of them would be vectorised behind tests of addresses, or not at all."""
    if not isinstance(kind, Part) or kind.number >= _MOST_SCOPES:
        return
    own, others = _scopes(builder.module, kind.number)
    instruction.set_metadata("alias.scope", own)
    instruction.set_metadata("noalias", others)


def _scopes(module: Any, number: int) -> tuple[Any, Any]:
    """The metadata of one part and of all others, made once for a module."""
    made = module.__dict__.setdefault("_jitgrad_scopes", {})
    if number not in made:
        domain = module.add_metadata([ir.MetaDataString(module, "jitgrad")])
        scopes = [module.add_metadata([ir.MetaDataString(module, f"jitgrad {k}"), domain]) for k in range(_MOST_SCOPES)]
        own = scopes.pop(number)
        made[number] = module.add_metadata([own]), module.add_metadata(scopes)
    return made[number]  # type: ignore[no-any-return]


def _last(builder: Any, kind: type) -> Any:
    return next(i for i in reversed(builder.block.instructions) if isinstance(i, kind))


@intrinsic
def load(typingctx: Any, memory: Any, index: Any) -> Any:
    """Element number ``index`` counted from the first, in elements."""
    if not isinstance(memory, _MEMORY):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _use_wide_vectors(builder)
        kind = signature.args[0]
        pointer = builder.gep(_address(context, builder, kind, args[0]), [args[1]], inbounds=True)
        value = context.unpack_value(builder, signature.return_type, pointer)
        _say_apart(builder, kind, _last(builder, ir.instructions.LoadInstr))
        return value

    return memory.dtype(memory, types.intp), generate


@intrinsic
def store(typingctx: Any, memory: Any, index: Any, value: Any) -> Any:
    """Write one element; the value is cast to the dtype of the buffer."""
    if not isinstance(memory, _MEMORY):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        pointer = builder.gep(_address(context, builder, kind, args[0]), [args[1]], inbounds=True)
        context.pack_value(builder, signature.args[2], args[2], pointer)
        _say_apart(builder, kind, _last(builder, ir.instructions.StoreInstr))
        return context.get_dummy_value()

    return types.none(memory, types.intp, memory.dtype), generate


@intrinsic
def data(typingctx: Any, memory: Any) -> Any:
    """The address of the first element, for ``carray`` and for functions that kernels call."""
    if not isinstance(memory, _MEMORY):
        return None

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _address(context, builder, signature.args[0], args[0])

    return types.CPointer(memory.dtype)(memory), generate


_LINE: Final = 64  # bytes: a line of the cache, and the widest vector register


def _within(context: Any, builder: Any, kind: Any, work: Any, offset: Any, result: Any) -> Any:
    """The address so many bytes behind the first whole line of the cache in the working memory: NumPy gives memory on 16
    bytes, where each access to a wide vector would touch two lines."""
    base = _address(context, builder, kind, work)
    pad = builder.and_(builder.neg(builder.ptrtoint(base, _I64)), _I64(_LINE - 1))
    pointer = builder.gep(builder.gep(base, [pad], inbounds=True), [offset], inbounds=True)
    return builder.bitcast(pointer, context.get_value_type(result))


def _part_maker(element: types.Type) -> Any:
    """An intrinsic that makes a part of the working memory: from a number of bytes on (behind its first whole line of the
    cache), so many elements (for the reader; nothing is tested), with its number as a literal."""

    @intrinsic(prefer_literal=True)
    def part(typingctx: Any, work: Any, offset: Any, count: Any, number: Any) -> Any:
        if not isinstance(number, types.IntegerLiteral):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _within(context, builder, signature.args[0], args[0], args[1], signature.return_type)

        return Part(element, number.literal_value)(work, types.intp, types.intp, number), generate

    return part


@intrinsic
def size(typingctx: Any, buffer: Any) -> Any:
    """Number of elements."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = _struct(context, builder, signature.args[0], args[0])
        return _product(builder, struct.dims, struct.nd)

    return types.intp(buffer), generate


@intrinsic
def last_extent(typingctx: Any, buffer: Any) -> Any:
    """Extent of the last axis; 1 for a scalar."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = _struct(context, builder, signature.args[0], args[0])
        result = cgutils.alloca_once_value(builder, _I64(1))
        with builder.if_then(builder.icmp_signed(">", struct.nd, _I64(0))):
            last = builder.sub(struct.nd, _I64(1))
            builder.store(builder.load(builder.gep(struct.dims, [last])), result)
        return builder.load(result)

    return types.intp(buffer), generate


@intrinsic
def rows(typingctx: Any, buffer: Any) -> Any:
    """Product of the extents before the last axis."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = _struct(context, builder, signature.args[0], args[0])
        last = builder.sub(struct.nd, _I64(1))
        stop = builder.select(builder.icmp_signed(">", last, _I64(0)), last, _I64(0))
        return _product(builder, struct.dims, stop)

    return types.intp(buffer), generate


def _element_stride(builder: Any, struct: Any, axis: Any, itemsize: int) -> Any:
    """Stride in elements; 0 where the extent is 1 (broadcast)."""
    stride = builder.load(builder.gep(struct.strides, [axis]))
    stretched = builder.icmp_signed("==", builder.load(builder.gep(struct.dims, [axis])), _I64(1))
    return builder.select(stretched, _I64(0), builder.sdiv(stride, _I64(itemsize)))


def _itemsize(context: Any, kind: Any) -> int:
    return int(context.get_abi_sizeof(context.get_data_type(kind.dtype)))


@intrinsic
def step(typingctx: Any, buffer: Any, out: Any) -> Any:
    """Elements from one column to the next when ``buffer`` is broadcast against ``out``."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        struct = _struct(context, builder, signature.args[0], args[0])
        result = cgutils.alloca_once_value(builder, _I64(0))
        with builder.if_then(builder.icmp_signed(">", struct.nd, _I64(0))):
            last = builder.sub(struct.nd, _I64(1))
            builder.store(_element_stride(builder, struct, last, _itemsize(context, signature.args[0])), result)
        return builder.load(result)

    return types.intp(buffer, out), generate


@intrinsic
def origin(typingctx: Any, buffer: Any, out: Any, row: Any) -> Any:
    """Where row number ``row`` of ``out`` begins in ``buffer``, broadcast from the right."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        struct = _struct(context, builder, kind, args[0])
        target = _struct(context, builder, signature.args[1], args[1])
        itemsize = _itemsize(context, kind)
        rest = cgutils.alloca_once_value(builder, args[2])
        offset = cgutils.alloca_once_value(builder, _I64(0))
        missing = builder.sub(target.nd, struct.nd)
        before_last = builder.sub(target.nd, _I64(1))
        with cgutils.for_range(builder, before_last) as loop:
            axis = builder.sub(builder.sub(before_last, _I64(1)), loop.index)
            extent_ = builder.load(builder.gep(target.dims, [axis]))
            remaining = builder.load(rest)
            builder.store(builder.sdiv(remaining, extent_), rest)
            position = builder.srem(remaining, extent_)
            own = builder.sub(axis, missing)
            with builder.if_then(builder.icmp_signed(">=", own, _I64(0))):
                stride = _element_stride(builder, struct, own, itemsize)
                builder.store(builder.add(builder.load(offset), builder.mul(position, stride)), offset)
        return builder.load(offset)

    return types.intp(buffer, out, types.intp), generate


@intrinsic
def read_only(typingctx: Any, array: Any) -> Any:
    """An array as one that Numba refuses to compile writes to."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return impl_ret_borrowed(context, builder, signature.return_type, args[0])

    return array.copy(readonly=True)(array), generate


def _pointer_maker(element: types.Type) -> Any:
    """An intrinsic like a part, which only gives the address."""

    @intrinsic
    def pointer(typingctx: Any, work: Any, offset: Any, count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return _within(context, builder, signature.args[0], args[0], args[1], signature.return_type)

        return types.CPointer(element)(work, types.intp, types.intp), generate

    return pointer


def _kept_maker(element: types.Type) -> Any:
    """An intrinsic that makes a small array on the stack, of a number of elements that is a literal.

    LLVM sees that nothing else is there, and on a thread's own stack nothing is shared.
    """

    @intrinsic(prefer_literal=True)
    def kept(typingctx: Any, count: Any) -> Any:
        if not isinstance(count, types.IntegerLiteral):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            kind = ir.ArrayType(context.get_data_type(element), count.literal_value)
            with builder.goto_entry_block():
                memory = builder.alloca(kind)
            memory.align = 64
            return builder.bitcast(memory, context.get_value_type(signature.return_type))

        return types.CPointer(element)(count), generate

    return kept


_ELEMENTS: Final = {name: types.boolean if name == "bool" else getattr(types, name) for name in DTYPE_NAMES}

INTRINSICS: Final[dict[str, Any]] = {
    "read_only": read_only,
    "load": load,
    "store": store,
    "data": data,
    "size": size,
    "last_extent": last_extent,
    "rows": rows,
    "step": step,
    "origin": origin,
    "read32": _field_reader(32),
    "read64": _field_reader(64),
    **{f"part_{name}": _part_maker(element) for name, element in _ELEMENTS.items()},
    **{f"pointer_{name}": _pointer_maker(element) for name, element in _ELEMENTS.items()},
    **{f"kept_{name}": _kept_maker(element) for name, element in _ELEMENTS.items()},
}
