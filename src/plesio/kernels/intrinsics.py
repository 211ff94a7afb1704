"""Instructions that Numba has no name for: a prefetch, atomic addition and reading, fused addition, order, giving the core away.

`prefetch` asks for a cache line that will be needed soon; it pays only where the model is larger than the last-level
cache. `fetch_add` is how threads take the next chunk of work from one shared counter without a lock and without the
interpreter. `meet` is how they wait for each other there.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator, call-overload"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_READ, _WRITE, _KEEP_IN_ALL_CACHES, _DATA = 0, 1, 3, 1
_SPINS = 2000  # looks, of some 10 ns, before a waiting thread lets others have its core


def inner(function: Any) -> Any:
    """`njit` for functions called by compiled code only: no Python wrapper is built, which saves a quarter of the time."""
    return njit(no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """The address of `array[index]` for a one-dimensional array; no bounds are looked at, no negative index wraps."""
    view = context.make_array(array_type)(context, builder, array)
    at = context.cast(builder, index, index_type, types.intp)
    return cgutils.get_item_pointer(context, builder, array_type, view, [at], wraparound=False)


def _prefetch(typingctx, array, index):
    """Ask for the cache line of `array[index]` (one dimension), soon to be read and written."""
    if not isinstance(array, types.Array) or array.ndim != 1 or not isinstance(index, types.Integer):
        return None

    def generate(context, builder, signature, args):
        pointer = _address(context, builder, array, args[0], index, args[1])
        byte_pointer = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer.type, word, word, word]),
            "llvm.prefetch.p0",
        )
        builder.call(function, [byte_pointer, word(_WRITE), word(_KEEP_IN_ALL_CACHES), word(_DATA)])
        return context.get_dummy_value()

    return types.void(array, index), generate


def _fetch_add(typingctx, array, index, amount):
    """Add `amount` to `array[index]` (int64, one dimension) in one atomic step; return what was there before."""
    if not isinstance(array, types.Array) or array.dtype != types.int64 or array.ndim != 1:
        return None

    def generate(context, builder, signature, args):
        pointer = _address(context, builder, array, args[0], index, args[1])
        by = context.cast(builder, args[2], amount, types.int64)
        return builder.atomic_rmw("add", pointer, by, "acq_rel")

    return types.int64(array, index, amount), generate


def _settle(typingctx, array, index, value):
    """Make `array[index]` (uint32, one dimension) `value` if it is zero, in one atomic step; return what it is then."""
    if not isinstance(array, types.Array) or array.dtype != types.uint32 or array.ndim != 1:
        return None

    def generate(context, builder, signature, args):
        pointer = _address(context, builder, array, args[0], index, args[1])
        zero, wanted = ir.IntType(32)(0), context.cast(builder, args[2], value, types.uint32)
        answer = builder.cmpxchg(pointer, zero, wanted, "acq_rel", "acquire")
        return builder.select(builder.extract_value(answer, 1), wanted, builder.extract_value(answer, 0))

    return types.uint32(array, index, value), generate


def _load(typingctx, array, index):
    """What `array[index]` (int64, one dimension) holds now: read from memory each time, not kept in a register."""
    if not isinstance(array, types.Array) or array.dtype != types.int64 or array.ndim != 1:
        return None

    def generate(context, builder, signature, args):
        pointer = _address(context, builder, array, args[0], index, args[1])
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(array, index), generate


def _fused(typingctx, one, other, addend):
    """one * other + addend of three float32, rounded once."""
    if not one == other == addend == types.float32:
        return None

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.FloatType(), [ir.FloatType()] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, "llvm.fma.f32"), args)

    return types.float32(one, other, addend), generate


def _ordered(typingctx):
    """What comes before is stored before what comes after, should the process be killed. It makes no instruction."""

    def generate(context, builder, signature, args):
        builder.fence("seq_cst", "singlethread")
        return context.get_dummy_value()

    return types.void(), generate


def _give_way(typingctx):
    """Let another thread have this core, if one waits for it (POSIX sched_yield)."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


# by assignment, not by decorator: callers give no typing context, which a type checker would ask them for
prefetch: Any = intrinsic(_prefetch)
fetch_add: Any = intrinsic(_fetch_add)
settle: Any = intrinsic(_settle)
load: Any = intrinsic(_load)
fused: Any = intrinsic(_fused)
ordered: Any = intrinsic(_ordered)
give_way: Any = intrinsic(_give_way)


@inner
def meet(gate, arrivals):
    """Wait until `arrivals` calls were made in all on `gate` (int64[2], zeros at first); False if somebody gave up.

    `gate[0]` counts; a thread that cannot come any more sets `gate[1]`, so that the others need not wait for ever.
    """
    fetch_add(gate, 0, 1)
    spins = 0
    while load(gate, 0) < arrivals:
        if load(gate, 1) != 0:
            return False
        spins += 1
        if spins > _SPINS:
            give_way()
    return True
