"""Vector (SIMD) instructions for the kernels, on packs of 4 float64 or 8 float32.

Numba's own vectoriser leaves short loops scalar, and with ranks of 5 to 50 all loops are short. A `place` is the index,
or the pair of indices, of the first number of a pack in an array whose rows are padded to whole packs.
With NUMBA_DISABLE_JIT=1 the same functions work on slices of numpy arrays: the readable definition of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TypeAlias

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.base import BaseContext
from numba.core.datamodel.manager import DataModelManager
from numba.core.typing.context import Context as TypingContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic as _intrinsic
from numba.extending import models, register_model

from fedmc.kernels.compiler import Compiled
from fedmc.types import Array, DType

Place = int | tuple[int, int]
Values: TypeAlias = Sequence[ir.Value]
Typed: TypeAlias = tuple[Signature, Callable[[BaseContext, ir.IRBuilder, Signature, Values], ir.Value]]
BYTES = 32  # of a pack
SHORT = 16  # for rows of up to this many numbers, loops are compiled for their exact length


@cache
def padded(width: int, dtype: DType) -> int:
    """`width` rounded up to whole packs."""
    count = BYTES // int(np.dtype(dtype).itemsize)
    return -(-width // count) * count


@cache
def static_length(line: int, dtype: DType) -> int:
    """The length of a line if it is short enough for loops compiled for exactly this length, else 0."""
    return line if line <= padded(SHORT, dtype) else 0


class Pack(types.Type):
    """The type of a pack inside compiled code."""

    def __init__(self, dtype: types.Float) -> None:
        self.dtype = dtype
        super().__init__(name=f"Pack({dtype})")


def _vector(dtype: types.Float) -> ir.VectorType:
    element = ir.DoubleType() if dtype == types.float64 else ir.FloatType()
    return ir.VectorType(element, BYTES * 8 // dtype.bitwidth)


@register_model(Pack)
class _PackModel(models.PrimitiveModel):
    def __init__(self, manager: DataModelManager, pack: Pack) -> None:
        super().__init__(manager, pack, _vector(pack.dtype))


def intrinsic(function: Compiled) -> Compiled:
    """Numba's `intrinsic`, or the numpy twin of the same name if nothing is compiled."""
    compiled = not getattr(config, "DISABLE_JIT", False)
    return _intrinsic(function) if compiled else _PLAIN[function.__name__]


def _element(array: types.Array) -> types.Float:
    """The type of an array's numbers."""
    element = array.dtype
    assert isinstance(element, types.Float)
    return element


def _pointer(
    context: BaseContext, builder: ir.IRBuilder, array_type: types.Array, array: ir.Value, place_type: types.Type,
    place: ir.Value,
) -> ir.Value:  # fmt: skip
    values = cgutils.unpack_tuple(builder, place) if isinstance(place_type, types.BaseTuple) else [place]
    kinds = list(place_type) if isinstance(place_type, Iterable) else [place_type]
    indices = [context.cast(builder, value, kind, types.intp) for value, kind in zip(values, kinds, strict=True)]
    made = context.make_array(array_type)(context, builder, array)
    first = cgutils.get_item_pointer(context, builder, array_type, made, indices, wraparound=False)
    return builder.bitcast(first, _vector(_element(array_type)).as_pointer())


def _plain_place(array: Array, place: Place) -> tuple[int | slice, ...]:
    *line, first = place if isinstance(place, tuple) else (place,)
    return (*line, slice(first, first + BYTES // array.itemsize))


def _plain_part(found: Array, count: int, array: Array) -> Array:
    return np.pad(found[:count], (0, BYTES // array.itemsize - min(count, len(found))))


_PLAIN: dict[str, Compiled] = {
    "lanes": lambda array: BYTES // array.itemsize,
    "load": lambda array, place: array[_plain_place(array, place)].copy(),
    "load_part": lambda array, place, count: _plain_part(array[_plain_place(array, place)], count, array),
    "store": lambda array, place, pack: array.__setitem__(_plain_place(array, place), pack),
    "splat": lambda number: number,
    "spread": lambda array, place: array[place],
    "fma": lambda a, b, c: a * b + c,
    "times": lambda a, b: a * b,
    "plus": lambda a, b: a + b,
    "soft": lambda z, t: np.where(z > t, z - t, np.where(z < -t, z + t, z * 0)),
    "clip": lambda z, lo, hi: np.where(z < lo, lo, np.where(z > hi, hi, z)),
    "total": lambda pack: pack.sum(),
}


@intrinsic
def lanes(typing: TypingContext, array: types.Array) -> Typed:
    """The number of elements of the array in a pack, a compile-time constant."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        return context.get_constant(types.intp, BYTES * 8 // _element(array).bitwidth)

    return types.intp(array), code


@intrinsic
def load(typing: TypingContext, array: types.Array, place: types.Type) -> Typed:
    """The pack that starts at a place."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        pointer = _pointer(context, builder, array, given[0], place, given[1])
        return builder.load(pointer, align=_element(array).bitwidth // 8)

    return Pack(_element(array))(array, place), code


@intrinsic
def load_part(typing: TypingContext, array: types.Array, place: types.Type, count: types.Type) -> Typed:
    """The first `count` numbers from a place on, then zeros; memory beyond them is not read."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        vector = _vector(_element(array))
        pointer = _pointer(context, builder, array, given[0], place, given[1])
        wide = ir.VectorType(ir.IntType(64), vector.count)
        limit = _everywhere(builder, context.cast(builder, given[2], count, types.intp), vector.count)
        numbers = ir.Constant(wide, list(range(vector.count)))
        mask = builder.icmp_signed("<", numbers, limit)
        name = f"llvm.masked.load.v{vector.count}f{_element(array).bitwidth}.p0"
        kinds = [pointer.type, ir.IntType(32), mask.type, vector]
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, kinds), name)
        align = ir.Constant(ir.IntType(32), _element(array).bitwidth // 8)
        return builder.call(function, [pointer, align, mask, ir.Constant(vector, [0.0] * vector.count)])

    return Pack(_element(array))(array, place, count), code


@intrinsic
def store(typing: TypingContext, array: types.Array, place: types.Type, pack: Pack) -> Typed:
    """Write a pack to a place."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        pointer = _pointer(context, builder, array, given[0], place, given[1])
        builder.store(given[2], pointer, align=_element(array).bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, place, pack), code


def _everywhere(builder: ir.IRBuilder, number: ir.Value, count: int) -> ir.Value:
    undefined = ir.Constant(ir.VectorType(number.type, count), ir.Undefined)
    one = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(ir.IntType(32), count), [0] * count))


@intrinsic
def splat(typing: TypingContext, number: types.Float) -> Typed:
    """A pack with the given number in every lane."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        return _everywhere(builder, given[0], _vector(number).count)

    return Pack(number)(number), code


@intrinsic
def spread(typing: TypingContext, array: types.Array, place: types.Type) -> Typed:
    """A pack with the number at a place in every lane."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        pointer = _pointer(context, builder, array, given[0], place, given[1])
        vector = _vector(_element(array))
        number = builder.load(
            builder.bitcast(pointer, vector.element.as_pointer()), align=_element(array).bitwidth // 8
        )
        return _everywhere(builder, number, vector.count)

    return Pack(_element(array))(array, place), code


@intrinsic
def fma(typing: TypingContext, a: Pack, b: Pack, c: Pack) -> Typed:
    """a b + c"""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        vector = given[0].type
        name = f"llvm.fmuladd.v{vector.count}f{a.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector] * 3), name)
        return builder.call(function, given)

    return a(a, b, c), code


@intrinsic
def times(typing: TypingContext, a: Pack, b: Pack) -> Typed:
    """a b"""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        return builder.fmul(*given)

    return a(a, b), code


@intrinsic
def plus(typing: TypingContext, a: Pack, b: Pack) -> Typed:
    """a + b"""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        return builder.fadd(*given)

    return a(a, b), code


@intrinsic
def soft(typing: TypingContext, z: Pack, t: Pack) -> Typed:
    """Soft threshold: z moved towards 0 by t; NaN stays NaN."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        z, t = given
        zero = ir.Constant(z.type, [0.0] * z.type.count)
        below = builder.fcmp_ordered("<", z, builder.fneg(t))
        inner = builder.select(below, builder.fadd(z, t), builder.fmul(z, zero))
        return builder.select(builder.fcmp_ordered(">", z, t), builder.fsub(z, t), inner)

    return z(z, t), code


@intrinsic
def clip(typing: TypingContext, z: Pack, lo: Pack, hi: Pack) -> Typed:
    """z clipped to [lo, hi]; NaN stays NaN."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        z, lo, hi = given
        z = builder.select(builder.fcmp_ordered("<", z, lo), lo, z)
        return builder.select(builder.fcmp_ordered(">", z, hi), hi, z)

    return z(z, lo, hi), code


@intrinsic
def total(typing: TypingContext, pack: Pack) -> Typed:
    """The sum of a pack's numbers, added by halves."""

    def code(context: BaseContext, builder: ir.IRBuilder, signature: Signature, given: Values) -> ir.Value:
        vector, count = given[0], given[0].type.count
        while count > 1:
            count //= 2
            halves = [
                ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(first, first + count)))
                for first in (0, count)
            ]
            low, high = (builder.shuffle_vector(vector, vector, half) for half in halves)
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return pack.dtype(pack), code
