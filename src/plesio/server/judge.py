"""Judges the model: the user's `evaluate`, which may fail without costing the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from plesio.errors import ConfigurationError, as_utf8, traceback_of, words_of


class Judge:
    """A user's `evaluate`, whose exception does not cost the run: `raised` is that in words, and nothing is judged any more.

    >>> judge = Judge(lambda model: 1 / 0)
    >>> judge(nn.Identity()), judge.raised.splitlines()[0]
    ({}, 'ZeroDivisionError: division by zero')
    """

    def __init__(self, evaluate: Callable[[nn.Module], object]) -> None:
        self._evaluate = evaluate
        self.raised = ""

    def __call__(self, model: nn.Module) -> dict[str, float]:
        """The metrics of `model`; none once an exception was raised."""
        if not self.raised:
            try:
                with torch.no_grad():
                    return as_metrics(self._evaluate(model.eval()))
            except (Exception, SystemExit) as error:
                self.raised = _in_words(error)
        return {}


def _in_words(error: BaseException) -> str:
    """Its class and its message, and where it was raised unless that is here."""
    words = f"{type(error).__name__}: {words_of(error)}"
    if isinstance(error, ConfigurationError):
        return words
    where = error.__traceback__.tb_next if error.__traceback__ is not None else None
    return f"{words}\n{traceback_of(error.with_traceback(where))}".rstrip()


def as_metrics(value: object) -> dict[str, float]:
    """What an evaluation function returned as names and numbers.

    >>> as_metrics({"accuracy": torch.tensor(0.5)})
    {'accuracy': 0.5}
    """
    if isinstance(value, Mapping):
        try:
            return {as_utf8(str(name)): float(number) for name, number in value.items()}
        except (TypeError, ValueError, OverflowError):
            pass
    raise ConfigurationError(
        f"evaluate returned {value!r}; it is to return names and numbers, such as {{'accuracy': 0.93}}"
    )
