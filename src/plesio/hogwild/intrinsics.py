"""Two instructions that Numba has no name for: a prefetch, and an atomic addition.

Both are no-ops as far as the mathematics goes. `prefetch` asks for a cache line that will be needed soon; it pays
only where the model is larger than the last-level cache. `fetch_add` is how threads take the next chunk of work
from one shared counter without a lock and without the interpreter.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_READ, _WRITE, _KEEP_IN_ALL_CACHES, _DATA = 0, 1, 3, 1


def _address(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    """The address of `array[index]` for a one-dimensional array; no bounds are looked at, no negative index wraps."""
    view = context.make_array(array_type)(context, builder, array)
    at = context.cast(builder, index, index_type, types.intp)
    return cgutils.get_item_pointer(context, builder, array_type, view, [at], wraparound=False)


@intrinsic
def prefetch(typingctx, array, index):
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


@intrinsic
def fetch_add(typingctx, array, index, amount):
    """Add `amount` to `array[index]` (int64, one dimension) in one atomic step; return what was there before."""
    if not isinstance(array, types.Array) or array.dtype != types.int64 or array.ndim != 1:
        return None

    def generate(context, builder, signature, args):
        pointer = _address(context, builder, array, args[0], index, args[1])
        by = context.cast(builder, args[2], amount, types.int64)
        return builder.atomic_rmw("add", pointer, by, "monotonic")

    return types.int64(array, index, amount), generate
