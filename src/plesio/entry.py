"""What the functions have in common that users call: an unknown argument gets a hint, and an error shows the user's lines."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeVar

from plesio.errors import PlesioError, RunInterrupted, is_engine, unknown_name

P = ParamSpec("P")
R = TypeVar("R")


def entry(
    what: str, kind: type[PlesioError], more: Iterable[str] = (), once: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function: an unknown keyword is an error of that `kind`, and plesio's errors leave its call
    without plesio's own frames. `what` its keywords are called; `more` are those that `**options` takes;
    `once` gives the present name of one that was called otherwise, and is told."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(function).parameters.values()
        known = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD and one.name != "self"} | {*more}

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            for old in once.keys() & kwargs:
                warnings.warn(f"{what} {old!r} is now {once[old]!r}: write {once[old]}={kwargs[old]}", FutureWarning, 2)
                if once[old] in kwargs:
                    raise kind(f"{what} {once[old]!r} is given twice, once by its old name {old!r}: leave {old}= out")
                kwargs[once[old]] = kwargs.pop(old)
            for name in kwargs:
                if name not in known:
                    raise kind(unknown_name(what, name, known))
            try:
                return function(*args, **kwargs)
            except (PlesioError, RunInterrupted) as error:
                raise error.with_traceback(_users_frames(error.__traceback__)) from _users_cause(error)

        return checked

    return decorate


def entered(function: Callable[P, AbstractContextManager[R]]) -> Callable[P, AbstractContextManager[R]]:
    """Decorate a public context manager: plesio's errors leave its `with` without plesio's own frames."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[R]:
        return _Entered(function(*args, **kwargs))

    return called


class _Entered(AbstractContextManager[R]):
    def __init__(self, inner: AbstractContextManager[R]) -> None:
        self._inner = inner

    def __enter__(self) -> R:
        try:
            return self._inner.__enter__()
        except PlesioError as error:
            raise error.with_traceback(_users_frames(error.__traceback__)) from _users_cause(error)

    def __exit__(self, *raised: Any) -> bool | None:
        return self._inner.__exit__(*raised)


def _users_cause(error: BaseException) -> BaseException | None:
    """What `error` came of, if that came out of a line of the user's."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    trace = _users_frames(cause.__traceback__) if cause is not None else None
    return cause.with_traceback(trace) if cause is not None and trace is not None else None


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without plesio's frames."""
    if trace is None or not is_engine(trace.tb_frame):
        return trace and TracebackType(_users_frames(trace.tb_next), trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
    return _users_frames(trace.tb_next)
