"""Functions as machine code, and the single instructions in them that Python has no word for.

What is compiled is kept until the file changes that it stands in: after a change here, touch those that use it.

Nothing is fast-math: LLVM neither reorders nor contracts, so that each `+` and `*` of a function that is `compiled` is
one IEEE operation of its type, and `fma` is one fused operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """The function as machine code for the types that it is called with, kept between runs; it lets go of the lock.

    numba finds what it has kept by what the function closes over, too. It would not find it by other `compiled` ones,
    which are new ones in each process: those that it closes over are `inner` ones. And it links what it finds by names:
    functions that are made by one of ours are `named` by what they close over.
    """
    return cast(F, numba.njit(nogil=True, cache=True, error_model="numpy")(function))


def inner(function: F) -> F:
    """The function itself, which compiled ones can call."""
    same: F = register_jitable(error_model="numpy")(function)
    return same


def named(*closed_over: Callable[..., Any]) -> Callable[[F], F]:
    """A decorator that makes a function's name say which functions it closes over.

    numba 0.68 tells functions of one name apart by a number that it gives them in each process: two that were kept by
    different processes may have the same, and one is then linked in place of the other.
    """

    def decorate(function: F) -> F:
        function.__name__ = "_".join([function.__name__, *(each.__name__.strip("_") for each in closed_over)])
        function.__qualname__ = function.__qualname__.rpartition(".")[0] + "." + function.__name__
        return function

    return decorate


def _instruction(result: Any, *arguments: Any, emit: Callable[..., Any]) -> Any:
    """What an intrinsic gives back to numba: its signature, and the code of one LLVM instruction."""
    return result(*arguments), lambda context, builder, signature, values: emit(context, builder, *values)


def _bitcast(to: Any) -> Callable[..., Any]:
    return lambda context, builder, value: builder.bitcast(value, context.get_value_type(to))


def _bits_of(typing_context: Any, x: Any) -> Any:
    """The word of a float64."""
    return _instruction(types.int64, types.float64, emit=_bitcast(types.int64))


def _float_of(typing_context: Any, word: Any) -> Any:
    """The float64 of a word."""
    return _instruction(types.float64, types.int64, emit=_bitcast(types.float64))


def _fma_of(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z in float32, rounded once: an instruction where the CPU has one, else the C library's function."""
    floats = (types.float32,) * 3
    return _instruction(types.float32, *floats, emit=lambda context, builder, *values: builder.fma(*values))


def _word_of(typing_context: Any, x: Any) -> Any:
    """The word of a float32."""
    return _instruction(types.uint32, types.float32, emit=_bitcast(types.uint32))


def _float32_of(typing_context: Any, word: Any) -> Any:
    """The float32 of a word."""
    return _instruction(types.float32, types.uint32, emit=_bitcast(types.float32))


def _word_at(typing_context: Any, words: Any, i: Any) -> Any:
    """The word i of an array int64, as another thread has left it: read again each time."""

    def emit(context: Any, builder: Any, array: Any, i: Any) -> Any:
        place = builder.gep(context.make_array(words)(context, builder, array).data, [i])
        return builder.load_atomic(place, "acquire", 8)

    return _instruction(types.int64, words, types.intp, emit=emit)


def _fetch_at(typing_context: Any, rows: Any, k: Any, i: Any) -> Any:
    """Has the cache fetch the line of the element (k, i) of an array: it is told what comes, and returns at once."""

    def emit(context: Any, builder: Any, array: Any, *place: Any) -> Any:
        word, byte, view = ir.IntType(32), ir.IntType(8).as_pointer(), context.make_array(rows)(context, builder, array)
        steps = [builder.mul(at, builder.extract_value(view.strides, axis)) for axis, at in enumerate(place)]
        address = builder.gep(builder.bitcast(view.data, byte), [builder.add(*steps)])
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        to_read, into_all_levels, data = word(0), word(3), word(1)
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
        builder.call(prefetch, [address, to_read, into_all_levels, data])
        return context.get_dummy_value()

    return _instruction(types.void, rows, types.intp, types.intp, emit=emit)


seen: Any = intrinsic(_word_at)
fetch: Any = intrinsic(_fetch_at)
bits: Any = intrinsic(_bits_of)
word32: Any = intrinsic(_word_of)
float32: Any = intrinsic(_float32_of)
float64: Any = intrinsic(_float_of)
fma: Any = intrinsic(_fma_of)
give_way: Any = types.ExternalFunction("sched_yield", types.int32())
"""The C library's."""
