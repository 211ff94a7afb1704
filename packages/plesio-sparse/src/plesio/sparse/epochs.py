"""The run of the epochs: what every family does between two sweeps over its data.

Watching for divergence, telling the callbacks, moving the progress bar and writing checkpoints are the same for a
linear model, a factorisation and word2vec; the sweep itself is the family's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import numpy as np

from plesio.errors import PlesioError
from plesio.sparse.settings import functions


class DivergedError(PlesioError, ArithmeticError):
    """The loss is not a finite number any more: the learning rate was too high for this data."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """One sweep over the data, as callbacks see it.

    Attributes:
        number: which; the first is 0.
        lr: the learning rate at its end.
        loss: the mean loss of an example; None where nobody computed it.
        examples: how many were done, by all threads.
        seconds: how long it took.
        examples_by_thread: how many each thread did.
        score: the validation score of early stopping, where there is one.
    """

    number: int
    lr: float
    loss: float | None
    examples: int
    seconds: float
    examples_by_thread: tuple[int, ...]
    score: float | None = None


SLICE_S = 0.25  # about how long threads work between two looks at Ctrl-C and the progress bar

_move: ContextVar[Callable[[float], None] | None] = ContextVar("move", default=None)


def slices(total: int, length: int = 256, whole: int = 0) -> Iterator[tuple[int, int]]:
    """Cut a sweep over `total` chunks into (first, stop) slices of about 0.25 s, timed from one to the next.

    The first has `length` chunks: few where a chunk may take long. An epoch has `whole` chunks, if it has more.

    >>> list(slices(3))
    [(0, 3)]
    """
    first = 0
    while first < total:
        stop = min(first + length, total)
        began = time.perf_counter()
        yield first, stop
        seconds = max(time.perf_counter() - began, 1e-6)
        length = max(1, min(16 * length, int((stop - first) * SLICE_S / seconds)))
        advance((stop - first) / max(total, whole))
        first = stop


def advance(share: float) -> None:
    """Move the progress bar by this share of an epoch; for code that divides epochs without `slices`."""
    if move := _move.get():
        move(share)


def run_epochs(
    epochs: range,
    one: Callable[[int], Epoch],
    *,
    callbacks: Iterable[Callable[[Epoch], object]] = (),
    progress: bool = False,
    label: str = "",
    save: Callable[[], None] = lambda: None,
    history: list[Epoch] | None = None,
) -> list[Epoch]:
    """Run `one(number)` for each of `epochs`; the results are appended to `history`, which is returned.

    After each: a loss that is not finite ends the run, `save` is called, then every callback; one that returns True
    stops the run in good order.

    Args:
        label: what the progress bar says.

    Raises:
        ConfigurationError: callbacks that are not functions.
        DivergedError: with the epoch, the learning rate and what to try. What was saved last is still good.

    >>> sweep = lambda number: Epoch(number, 0.1, 1.0 / (number + 1), 10, 0.01, (10,))
    >>> [epoch.loss for epoch in run_epochs(range(5), sweep, callbacks=[lambda epoch: epoch.loss < 0.6])]
    [1.0, 0.5]
    """
    callbacks = functions(callbacks)
    history = [] if history is None else history
    with _bar(epochs, label, progress) as at:
        for number in epochs:
            epoch = one(number)
            if epoch.loss is not None and not math.isfinite(epoch.loss):
                raise DivergedError(
                    f"the loss is {epoch.loss} after epoch {number} (of {epochs.start} to {epochs.stop - 1}) at learning rate "
                    f"{epoch.lr:g}: the model diverged. Try a learning rate of {epoch.lr / 10:.2g}; if the data holds "
                    "numbers much larger than 1, scale them."
                )
            history.append(epoch)
            save()
            at(epoch)
            answers = [callback(epoch) for callback in callbacks]
            if any(isinstance(answer, (bool, np.bool_)) and answer for answer in answers):
                break
    return history


@contextmanager
def _bar(epochs: range, label: str, shown: bool) -> Iterator[Callable[[Epoch], None]]:
    if not shown:
        yield lambda epoch: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}")
    told = TextColumn("{task.fields[told]}")
    with Progress(text, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), told) as bar:
        task = bar.add_task(label, total=len(epochs), told="")

        def at(epoch: Epoch) -> None:
            loss = "" if epoch.loss is None else f"loss {epoch.loss:.4g} · "
            rate = epoch.examples / max(epoch.seconds, 1e-9)
            bar.update(task, completed=epochs.index(epoch.number) + 1, told=f"{loss}{rate:,.0f} examples/s")

        token = _move.set(lambda share: bar.advance(task, share))
        try:
            yield at
        finally:
            _move.reset(token)
