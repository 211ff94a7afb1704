"""The open door: your own update of one example, run lock-free at the speed of compiled code."""

from __future__ import annotations

import math
import time
from collections import namedtuple
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import CheckpointError, ConfigurationError
from plesio.sparse.chunks import chunk_bounds, chunk_order
from plesio.sparse.compiling import check_update, compile_update
from plesio.sparse.epochs import DivergedError, Epoch, run_epochs
from plesio.sparse.examples import Sparse, columns, csr, finite, readable, size, take
from plesio.sparse.rates import rate
from plesio.sparse.report import Report, measure
from plesio.sparse.saving import Checkpoint
from plesio.sparse.settings import Shown, functions, number, one_of, whole
from plesio.sparse.sweeps import Free, Grouped, Work, chosen
from plesio.sparse.threads import thread_count

MODELS = ("auto", "replica", "shared")
SCHEDULES = ("constant", "decay", "invscaling", "linear")


class Kernel(Shown):
    """Stochastic gradient descent with an update of your own, by many threads on one model and without locks.

    `update(parameters, example, lr)` is a plain Python function, or one compiled by `numba.njit`. It changes the
    arrays of `parameters` in place, and may return the example's loss. It is compiled, and called for one example
    after the other, each epoch in the order of chunks that the seed gives; other threads do other chunks meanwhile, on
    the same arrays (Niu, Recht, Ré and Wright, 2011). With one thread the result is that of a plain loop, bit for bit.

    `example` is row i of the data given to `fit`: of an array `data[i]`, of a SciPy CSR matrix its `indices` and
    `values`, of a tuple of such columns a tuple, of a NamedTuple of them a NamedTuple. For a CSR matrix and labels,
    `fit((x, y))`, an update begins with `(indices, values), y = example`.

    Args:
        update: what to do for an example. As everywhere in Numba, an index out of range is not noticed: try it under
            NUMBA_BOUNDSCHECK=1 first.
        parameters: a dict of arrays, or a NamedTuple of them; the update reads `parameters.name`. They are trained in
            place: a second `fit` goes on from where the first ended.
        epochs: how often to go through the data.
        lr: the learning rate at the start; the update gets it in the parameters' own floating-point type.
        schedule: how it falls: "constant", "decay", "invscaling" or "linear" (see `plesio.sparse.rates`).
        threads: None for every core.
        model: "shared", one for all threads; "replica", one for each thread, merged after every epoch; "auto", what a
            trial of 0.2 s on copies finds fastest, which may be one thread; parameters above 256 MB, of which copies would
            cost too much, are shared by all threads without a trial.
        deterministic: the same bits for any number of threads. More than one then needs `touches` in `fit`.
        chunk: how many neighbouring rows a thread takes at a time.
        seed: of the order of the chunks.
        callbacks: each is called with an `Epoch` after every epoch; one that returns True ends the fit.
        checkpoint: a folder to keep the parameters in after every epoch.
        resume: a folder that an earlier fit of the same data, with the same settings but for `epochs` (under "linear" with
            these, too), kept them in: the fit goes on from there.
        progress: show a progress bar.

    Attributes:
        parameters: as given, trained.
        history_: an `Epoch` for each one that the last fit did, also before a resume.
        model_, threads_: what the last fit used.

    Raises:
        ConfigurationError: an argument that cannot work, or an update Numba cannot compile: the line and the reason.
        DivergedError: the loss, or a parameter, is not finite after an epoch.

    Least squares (loops over elements cost Numba less than array expressions, to compile and to run):

    >>> import numpy as np
    >>> def update(parameters, example, lr):
    ...     x, y = example
    ...     error = -y
    ...     for j in range(len(x)):
    ...         error += x[j] * parameters.w[j]
    ...     for j in range(len(x)):
    ...         parameters.w[j] -= lr * error * x[j]
    ...     return error * error / 2
    >>> x = np.random.default_rng(0).normal(size=(1000, 3))
    >>> kernel = Kernel(update, {"w": np.zeros(3)}, epochs=5, lr=0.05, threads=1).fit((x, x @ [1.0, 2.0, 3.0]))
    >>> kernel.parameters["w"].round(3).tolist()
    [1.0, 2.0, 3.0]
    """

    def __init__(
        self,
        update: Callable[[Any, Any, Any], Any],
        parameters: Any,
        *,
        epochs: int = 5,
        lr: float = 0.1,
        schedule: str = "constant",
        threads: int | None = None,
        model: str = "auto",
        deterministic: bool = False,
        chunk: int = 256,
        seed: int = 0,
        callbacks: Iterable[Callable[[Epoch], object]] = (),
        checkpoint: str | Path | None = None,
        resume: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        if deterministic and model == "replica":
            raise ConfigurationError("deterministic=True shares one model; leave model='replica' out.")
        self.update, self.parameters = update, parameters
        self.epochs, self.lr = whole("epochs", epochs, 0), number("lr", lr)
        self.schedule = one_of("schedule", schedule, SCHEDULES)
        self.threads, self.model, self.deterministic = threads, one_of("model", model, MODELS), deterministic
        self.chunk, self.seed = whole("chunk", chunk, 1), whole("seed", seed, 0)
        self.callbacks, self.progress = functions(callbacks), progress
        self.checkpoint, self.resume = checkpoint, resume
        check_update(update)
        _named(parameters)  # complains now
        self._rate = rate(schedule, lr=self.lr)
        self._touched: tuple[NDArray[np.int64], NDArray[np.uint32]] | None = None
        self.history_: list[Epoch] = []

    def fit(self, data: Any, touches: Any = None) -> Kernel:
        """Train on `data`, and return this kernel.

        Args:
            data: a column or a tuple of columns with a row an example: arrays (memory-mapped ones too), CSR matrices.
            touches: which parameters each example reads or writes: a CSR matrix with a row an example and a column a
                parameter, or its (indptr, indices). Needed for `deterministic` with several threads and for `report_`.
        """
        data, rows = columns(data)
        if rows == 0:
            raise ConfigurationError("data has no rows; there is nothing to learn from.")
        self._touched = None if touches is None else _touched(touches, rows)
        self._row_bytes = size(data) / rows
        bounds = chunk_bounds(rows, self.chunk)
        arrays = _named(self.parameters)
        names = ("lr", "schedule", "chunk", "seed", *(["epochs"] if self.schedule == "linear" else []))
        checkpoint = Checkpoint(self, names, data, family="kernel")
        history = [] if self.resume is None else self._go_on(checkpoint, arrays._asdict())
        first = len(history)
        floating = np.result_type(np.float32, *(array for array in arrays if array.dtype.kind == "f")).type
        loops = compile_update(self.update, take(data), arrays, data, floating(0))

        def plan(epoch: int) -> tuple[NDArray[np.uint32], NDArray[Any]]:
            order = chunk_order(len(bounds) - 1, self.seed, epoch)
            sizes = np.diff(bounds)[order]
            lrs = np.empty(len(order), floating)  # by chunk: the same whoever does it, and when
            lrs[order] = self._rate.over(epoch, epoch * rows + np.cumsum(sizes) - sizes, rows * self.epochs)
            return order, lrs

        self.model_, self.threads_ = self.model, thread_count(self.threads)
        sweep = self._way(Work(loops, arrays, data, bounds), plan(first), self.epochs - first)

        def one(epoch: int) -> Epoch:
            began = time.perf_counter()
            order, lrs = plan(epoch)
            loss, examples = sweep(order, lrs)
            mean = loss / rows if loops.has_loss else None if finite(arrays) else math.nan
            seconds = time.perf_counter() - began
            return Epoch(epoch, float(lrs[order[-1]]), mean, rows, seconds, tuple(examples))

        try:
            run_epochs(
                range(first, self.epochs),
                one,
                callbacks=self.callbacks,
                progress=self.progress,
                label="Kernel",
                save=lambda: checkpoint.save(arrays._asdict(), history),
                history=history,
            )
        except DivergedError as error:
            if finite(data):
                raise
            raise DivergedError(f"{error} But the data itself holds a NaN or an infinity.") from None
        self.history_ = history
        return self

    @property
    def report_(self) -> Report:
        """What the threads did to each other on this data, measured now (half a second): `print` it.

        Raises ConfigurationError before a fit, or if it was not told what examples touch.
        """
        if self._touched is None:
            raise ConfigurationError(
                "report_ needs fit(data, touches=...): which parameters an example reads or writes."
            )
        indptr, indices = self._touched
        arrays = _named(self.parameters)
        parameters = max(sum(array.size for array in arrays), int(indices.max(initial=0)) + 1)
        model = "deterministic" if self.deterministic and self.threads_ > 1 else self.model_
        touched = len(indices) / (len(indptr) - 1)
        moved = self._row_bytes + 2 * touched * max(array.itemsize for array in arrays)  # each read and written
        settings: Any = {"threads": self.threads_, "model": model, "epochs": self.history_, "seed": self.seed}
        return measure(indptr, indices, parameters, bytes_per_example=moved, **settings)

    def _way(self, work: Work, plan: tuple[NDArray[np.uint32], NDArray[Any]], epochs: int) -> Free | Grouped:
        """How the epochs are to be done, by what the user asked for and what is fastest."""
        if self.deterministic and self.threads_ > 1:
            self.model_ = "shared"
            if self._touched is None:
                raise ConfigurationError(
                    f"deterministic=True with {self.threads_} threads has to know which parameters an example touches: "
                    "fit(data, touches=a CSR matrix with a row an example and a column a parameter); or take threads=1."
                )
            return Grouped(work, self.threads_, *self._touched)
        if self.model == "auto":
            found = chosen(work, *plan, epochs, self.threads_)
            self.model_, self.threads_ = found.model, found.threads
        return Free(work, self.threads_, replicas=self.model_ == "replica")

    def _go_on(self, checkpoint: Checkpoint, own: dict[str, NDArray[Any]]) -> list[Epoch]:
        """From where the kept fit was: the parameters become its own, its epochs are given back."""
        arrays, _, history = checkpoint.load()
        kept, these = _types(arrays), _types(own)
        if kept != these:
            raise CheckpointError(f"{str(self.resume)!r} holds parameters {kept}, this kernel has {these}.")
        for name, array in own.items():
            np.copyto(array, arrays[name])
        return history


def _types(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: (array.shape, array.dtype.name) for name, array in arrays.items()}


_parameters_class: Any = lru_cache(maxsize=64)(partial(namedtuple, "Parameters"))
"""One class for the same names, so that Numba compiles once for them."""


def _named(parameters: Any) -> Any:
    """The arrays as a NamedTuple, which is what Numba can read by name.

    Raises ConfigurationError for what cannot be trained in place.
    """
    if not (isinstance(parameters, dict) or hasattr(parameters, "_asdict")) or not len(parameters):
        raise ConfigurationError(
            f"parameters is {type(parameters).__name__}; it must be a dict of arrays or a NamedTuple of arrays, not empty."
        )
    arrays = parameters if isinstance(parameters, dict) else parameters._asdict()
    for name, array in arrays.items():
        if not (isinstance(array, np.ndarray) and array.flags.c_contiguous and array.flags.writeable):
            raise ConfigurationError(
                f"parameters[{name!r}] must be a NumPy array, contiguous and writeable, as it is trained in place; "
                f"it is {type(array).__name__}. numpy.array(it) makes one."
            )
        readable(array, f"parameters[{name!r}]")
    if not isinstance(parameters, dict):
        return parameters
    try:
        return _parameters_class(tuple(arrays))(**arrays)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"parameters has names {list(arrays)}, to be read as parameters.name: {error}."
        ) from None


def _touched(touches: Any, rows: int) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """(indptr, indices) of the parameters that each example touches."""
    if isinstance(touches, tuple) and len(touches) == 2:
        touches = Sparse(*touches, values=np.empty(0))
    indptr, indices, _ = csr(touches, "touches")
    if len(indptr) != rows + 1:
        raise ConfigurationError(f"touches has {len(indptr) - 1} rows, data has {rows}; a row an example.")
    return indptr, indices
