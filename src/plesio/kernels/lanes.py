"""Sixteen float32 at once, one cache line: arithmetic on rows as wide as the machine's registers allow, in one fixed order.

Without leave to reorder additions (`fastmath`) a compiler cannot sum a row with vector instructions, and with it nobody
knows the order. Here the order is written down: sixteen running sums, halved until one is left. So kernels are
fast and a plain loop can follow them bit for bit. LLVM splits a line into whatever registers the machine has.

    >>> from numba import njit
    >>> import numpy as np
    >>> @njit
    ... def squared_norm(row):
    ...     sums = fill(np.float32(0))
    ...     for at in range(0, row.size, LANES):
    ...         line = load(row, at)
    ...         sums = sums + line * line
    ...     return total(sums)
    >>> squared_norm(np.ones(32, np.float32))
    32.0
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"
from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

LANES = 16
LINE_BYTES = 64
_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_FOUR = 4  # bytes: rows start at floats, not always at lines, so that loads must not assume more


class _Line(types.Type):
    def __init__(self) -> None:
        super().__init__("plesio.kernels.lanes.Line")


line = _Line()


@register_model(_Line)
class _LineModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any) -> Any:
    view = context.make_array(array_type)(context, builder, array)
    at = context.cast(builder, index, index_type, types.intp)
    pointer = cgutils.get_item_pointer(context, builder, array_type, view, [at], wraparound=False)
    return builder.bitcast(pointer, _VECTOR.as_pointer())


def _is_row(array: Any) -> bool:
    return isinstance(array, types.Array) and array.dtype == types.float32 and array.ndim == 1


def _load(typingctx, array, index):
    """The sixteen numbers from `array[index]` on (float32, one dimension, contiguous)."""
    if not _is_row(array):
        return None

    def generate(context, builder, signature, args):
        return builder.load(_address(context, builder, array, args[0], index, args[1]), align=_FOUR)

    return line(array, index), generate


def _store(typingctx, array, index, value):
    """Write sixteen numbers to `array[index]` and after."""
    if not _is_row(array) or value is not line:
        return None

    def generate(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, array, args[0], index, args[1]), align=_FOUR)
        return context.get_dummy_value()

    return types.void(array, index, value), generate


def _fill(typingctx, number):
    """One float32, sixteen times."""

    def generate(context, builder, signature, args):
        one = context.cast(builder, args[0], number, types.float32)
        first = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), one, ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))

    return line(number), generate


def _total(typingctx, value):
    """The sum of the sixteen: the upper half onto the lower, four times."""

    def generate(context, builder, signature, args):
        rest, width = args[0], LANES
        while width > 1:
            width //= 2
            order = ir.VectorType(ir.IntType(32), width)
            lower = builder.shuffle_vector(rest, rest, ir.Constant(order, list(range(width))))
            upper = builder.shuffle_vector(rest, rest, ir.Constant(order, list(range(width, 2 * width))))
            rest = builder.fadd(lower, upper)
        return builder.extract_element(rest, ir.Constant(ir.IntType(32), 0))

    return types.float32(value), generate


def _called(builder, name, args):
    """One of LLVM's own functions of lines."""
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(args))
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32"), args)


def _root(typingctx, value):
    """The square roots."""

    def generate(context, builder, signature, args):
        return _called(builder, "sqrt", args)

    return line(value), generate


def _magnitude(typingctx, value):
    """The numbers without their signs."""

    def generate(context, builder, signature, args):
        return _called(builder, "fabs", args)

    return line(value), generate


def _fma(typingctx, one, other, addend):
    """one * other + addend, rounded once."""

    def generate(context, builder, signature, args):
        return _called(builder, "fma", args)

    return line(one, other, addend), generate


def _larger(typingctx, one, other):
    """The larger of each two; a NaN, where there is one."""

    def generate(context, builder, signature, args):
        first, second = args
        larger = builder.select(builder.fcmp_ordered(">=", first, second), first, second)
        return builder.select(builder.fcmp_unordered("uno", first, first), first, larger)

    return line(one, other), generate


def _line_at(typingctx, address, index):
    """The sixteen numbers from `index` on, of those that begin at an address."""

    def generate(context, builder, signature, args):
        return builder.load(_place(builder, *args), align=_FOUR)

    return line(types.int64, types.int64), generate


def _put_at(typingctx, address, index, value):
    """Write sixteen numbers there."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _place(builder, *args[:2]), align=_FOUR)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, line), generate


def _put_number_at(typingctx, address, number):
    """Write one int64 there."""

    def generate(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


def _place(builder, address, index):
    first = builder.inttoptr(address, ir.FloatType().as_pointer())
    return builder.bitcast(builder.gep(first, [index]), _VECTOR.as_pointer())


def _arithmetic(operation: Any, instruction: str) -> None:
    """Let `operation` on two lines be one instruction."""

    @infer_global(operation)
    class _Template(ConcreteTemplate):
        cases = (signature(line, line, line),)

    @lower_builtin(operation, line, line)
    def lower(context, builder, signature, args):
        return getattr(builder, instruction)(*args)


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")

# Read by type checkers as what compiled code calls, without the context that Numba adds.
load: Any = intrinsic(_load)
store: Any = intrinsic(_store)
fill: Any = intrinsic(_fill)
total: Any = intrinsic(_total)
root: Any = intrinsic(_root)
magnitude: Any = intrinsic(_magnitude)
fma: Any = intrinsic(_fma)
larger: Any = intrinsic(_larger)
line_at: Any = intrinsic(_line_at)
put_at: Any = intrinsic(_put_at)
put_number_at: Any = intrinsic(_put_number_at)
