"""A user's update, compiled into the scheduler's loops; and Numba's complaint made short where it cannot be."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
from __future__ import annotations

import inspect
import linecache
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from numba import njit, typeof, types
from numba.core.dispatcher import Dispatcher
from numba.core.errors import NumbaError, UnsupportedBytecodeError

from plesio.errors import ConfigurationError
from plesio.kernels.intrinsics import fetch_add, inner, meet


class Loops(NamedTuple):
    """The compiled loops around one update."""

    free: Callable[..., Any]  # threads take chunk after chunk and update one model without any order
    grouped: Callable[..., Any]  # threads do group after group and meet in between
    has_loss: bool  # whether the update returns the loss


def compile_update(update: Callable[..., Any], take: Any, parameters: Any, data: Any, lr: Any) -> Loops:
    """Compile `update` for these parameters and this data.

    Raises ConfigurationError, with the line at fault and the reason, if Numba cannot compile it.
    """
    compiled = _dispatcher(update)
    numbers = (typeof(data), types.int64)
    take.compile(numbers)
    example = take.overloads[numbers].signature.return_type
    arguments = (typeof(parameters), example, typeof(lr))
    try:
        compiled.compile(arguments)
    except (NumbaError, UnsupportedBytecodeError, AttributeError, NotImplementedError) as error:
        raise ConfigurationError(_complaint(compiled.py_func, error)) from None
    result = compiled.overloads[arguments].signature.return_type
    if not isinstance(result, (types.NoneType, types.Integer, types.Float, types.Boolean)):
        raise ConfigurationError(
            f"{_name(compiled.py_func)} returns {result}; an update returns the example's loss, a number, or nothing."
        )
    return _loops(compiled, take, not isinstance(result, types.NoneType))


def check_update(update: Any) -> None:
    """Raises ConfigurationError if this is no function of three arguments."""
    function = update.py_func if isinstance(update, Dispatcher) else update
    if not inspect.isfunction(function):
        raise ConfigurationError(
            f"update is {update!r}; it must be a function update(parameters, example, lr), plain or compiled by numba.njit."
        )
    if len(inspect.signature(function).parameters) != 3:
        raise ConfigurationError(
            f"{_name(function)} takes {inspect.signature(function)}; an update takes (parameters, example, lr)."
        )


@lru_cache(maxsize=64)
def _dispatcher(update: Any) -> Any:
    return update if isinstance(update, Dispatcher) else inner(update)


@lru_cache(maxsize=64)
def _loops(update: Any, take: Any, has_loss: bool) -> Loops:
    if has_loss:
        one = update
    else:

        @inner
        def one(parameters, example, lr):
            update(parameters, example, lr)
            return 0.0

    @njit(nogil=True)
    def free(parameters, data, bounds, order, lrs, counter, stop):
        loss, examples = 0.0, 0
        while True:
            at = fetch_add(counter, 0, 1)
            if at >= stop:
                return loss, examples
            chunk = order[at]
            for row in range(bounds[chunk], bounds[chunk + 1]):
                loss += one(parameters, take(data, row), lrs[chunk])
            examples += bounds[chunk + 1] - bounds[chunk]

    @njit(nogil=True)
    def grouped(parameters, data, rows, bounds, parallel, chunk_rows, lrs, losses, gate, thread, threads, first, stop):
        examples = 0
        for group in range(first, stop):
            begin, end = bounds[group], bounds[group + 1]
            if parallel[group]:
                begin, end = begin + (end - begin) * thread // threads, begin + (end - begin) * (thread + 1) // threads
            elif thread != 0:
                end = begin
            for at in range(begin, end):
                row = rows[at]
                losses[at] = one(parameters, take(data, row), lrs[row // chunk_rows])
            examples += end - begin
            if not meet(gate, (group + 1 - first) * threads):
                break
        return examples

    return Loops(free, grouped, has_loss)


def _complaint(function: Callable[..., Any], error: Any) -> str:
    """Two lines out of Numba's sixty: the place, its source line, and the reason."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines()]
    told = [line for line in lines if line and not line.startswith(("Failed in nopython", "During:"))]
    reason = told[0].split(" Raised from ")[0][:300] if told else "Numba does not say why"
    if assigned := re.match(r"No definition for lowering .*\.(\w+) = ", reason):
        reason = f"a parameter cannot be replaced, only changed in place: parameters.{assigned[1]}[:] = ..."
    if "Cannot determine Numba type of <class 'function'>" in reason:
        reason += "; decorate that function with numba.njit too"
    place = getattr(error, "loc", None)
    where = ": "
    if place and (source := linecache.getline(place.filename, place.line).strip()):
        where = f", line {place.line}: {source}\n    "
    return f"{_name(function)} cannot be compiled{where}{reason}"


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__name__} ({function.__code__.co_filename})"
