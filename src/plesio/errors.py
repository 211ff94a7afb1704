"""The errors plesio raises: one small tree, rooted in `PlesioError`.

A message says what happened, the value, what was allowed and what to do.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import FrameType
from typing import Any

OTHER_WORDS = {
    **dict.fromkeys(("devices", "gpus", "n_jobs", "nproc", "nprocs", "num_processes", "world_size"), "workers"),
    "proximal_mu": "mu",
}
TEXT_MAX = 20_000  # how many characters of an exception's message, or of its traceback, are told


class PlesioError(Exception):
    """Root of everything plesio raises on purpose.

    Attributes:
        resume: what to pass as `resume=` after a run that was lost; None if it left no checkpoint.

    >>> try:
    ...     ps.async_sgd("dc-asgd")
    ... except ps.PlesioError as error:
    ...     print(type(error).__name__)
    StrategyError
    """

    resume: Path | None = None


class StrategyError(PlesioError, ValueError):
    """A strategy, or a field of one, that does not exist or cannot work.

    >>> ps.first_of(0)
    Traceback (most recent call last):
        ...
    plesio.errors.StrategyError: first_of(m=0): m must be a whole number of at least 1
    """


class ConfigurationError(PlesioError, ValueError):
    """An argument of a run that does not exist or cannot work.

    >>> ps.Slow(worker=0, factor=0.5)
    Traceback (most recent call last):
        ...
    plesio.errors.ConfigurationError: Slow(factor=0.5): factor must be at least 1 (10: ten times slower)
    """


class CheckpointError(ConfigurationError):
    """There is no checkpoint, it is damaged, or it is of another run.

    >>> ps.run(train, "sync_sgd", workers=2, resume="nowhere")  # train: as in the example of ps.run
    Traceback (most recent call last):
        ...
    plesio.errors.CheckpointError: resume='nowhere': there is no such folder; ...
    """


class ModelMismatchError(PlesioError):
    """The workers do not hold the same model, or a model changed its tensors after `prepare`.

    >>> def differs(worker):
    ...     model = torch.nn.Linear(2, 1 + worker.rank)
    ...     model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    >>> ps.run(differs, "sync_sgd", workers=2, engine=ps.Simulated("uniform"))
    Traceback (most recent call last):
        ...
    plesio.errors.ModelMismatchError: worker 1 does not hold the same model as worker 0: weight: wanted shape (1, 2), ...
    """


class SharedMemoryError(PlesioError, MemoryError):
    """The host has too little shared memory for this model and this many workers.

    >>> try:
    ...     run = ps.run(train, "async_sgd", workers=4, engine=ps.Simulated("uniform"))
    ... except ps.SharedMemoryError as error:  # it says how much is needed, and how much there is
    ...     run = ps.run(train, "async_sgd", workers=2)
    """


class WorkerError(PlesioError):
    """The training function of a worker raised; the message holds its traceback.

    >>> def divides(worker):
    ...     return 1 / worker.rank
    >>> ps.run(divides, "sync_sgd", workers=2, engine=ps.Simulated("uniform"))
    Traceback (most recent call last):
        ...
    plesio.errors.WorkerError: worker 0 raised ZeroDivisionError: division by zero
    ...
    """


class WorkerLostError(PlesioError):
    """Worker processes died and too few are left to go on.

    >>> keep = {"runs": "runs", "checkpoint": ps.Checkpoint(every_s=60), "engine": ps.Simulated("uniform")}
    >>> try:
    ...     run = ps.run(train, "async_sgd", workers=2, **keep)
    ... except ps.WorkerLostError as error:  # it names the run folder to resume from
    ...     print(error)
    """


class ServerLostError(PlesioError):
    """The server process died; its last version is lost unless a checkpoint holds it: pass that as `resume=`.

    >>> keep = {"runs": "runs", "checkpoint": ps.Checkpoint(every_s=60), "engine": ps.Simulated("uniform")}
    >>> try:
    ...     run = ps.run(train, "async_sgd", workers=2, **keep)
    ... except ps.ServerLostError as error:
    ...     run = ps.run(train, "async_sgd", workers=2, resume=error.resume, **keep)
    """


class DeadlineError(PlesioError, TimeoutError):
    """A wait took longer than allowed; the message names whom it waited for, the phase and the version.

    >>> try:
    ...     run = ps.run(train, "sync_sgd", workers=2, timeout_s=600, engine=ps.Simulated("uniform"))
    ... except ps.DeadlineError as error:  # also a TimeoutError
    ...     print(error)
    """


class NonFiniteError(PlesioError, ArithmeticError):
    """A contribution held a NaN or an infinity and the run was told to stop at that.

    >>> def diverges(worker):
    ...     model = torch.nn.Linear(2, 1)
    ...     model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ...     (model(torch.ones(1, 2)) / 0).sum().backward()
    ...     optimizer.step()
    >>> ps.run(diverges, "sync_sgd", workers=2, on_nonfinite="raise", engine=ps.Simulated("uniform"))
    Traceback (most recent call last):
        ...
    plesio.errors.NonFiniteError: contribution 1 of worker 1 held a NaN or an infinity; on_nonfinite='raise'
    """


class StopRun(PlesioError):
    """The run is over (target or budget reached, or a worker stopped it): unwinds a training function that goes on stepping.

    >>> def patient(worker):
    ...     model = torch.nn.Linear(2, 1)
    ...     model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ...     try:
    ...         while True:
    ...             model(torch.ones(1, 2)).sum().backward()
    ...             optimizer.step()
    ...             if worker.version >= 5:
    ...                 worker.stop("no better for 5 versions")
    ...     finally:  # where there is something to tidy up
    ...         print("over")
    >>> ps.run(patient, "sync_sgd", workers=1, engine=ps.Simulated("uniform")).ended
    over
    'worker 0 stopped the run: no better for 5 versions'
    """


class RunInterrupted(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or SIGHUP ended a run in an orderly way.

    Attributes:
        run: the `ps.Run` as far as it got; None if it was interrupted before there was a result.
        folder: the run folder that it was written to, or None.
        resume: what to pass as `resume=` to continue; None if there is no checkpoint.
        number: of the signal: 2 for Ctrl-C (SIGINT).
        behind: how many versions the newest checkpoint is behind; 0 where it was written at the end.
        starting: what was being done, if training had not begun.

    After SIGTERM and SIGHUP it is a SystemExit, too: a script that lets it pass ends with status 128 + number, so 143 or 129.

    >>> print(RunInterrupted(run=None, folder=None, resume="runs/a"))
    interrupted before there was a result; go on with resume='runs/a'
    """

    def __init__(
        self,
        run: Any,
        folder: Path | None,
        resume: Path | None,
        number: int = signal.SIGINT,
        behind: int = 0,
        starting: str = "",
    ) -> None:
        self.run = run
        self.folder = folder
        self.resume = resume
        self.number = number
        self.behind = behind
        self.starting = starting
        parts = [f"interrupted before there was a result{f', while {starting}' if starting else ''}"]
        if run is not None:
            written = f"written to {folder}" if folder is not None else "nothing is written without runs="
            written += f", without {', '.join(run.lacking)}" if run.lacking else ""
            parts = [f"interrupted at version {run.summary.version}", written]
        parts.append(
            f"go on with resume={str(resume)!r}" if resume is not None else "there is no checkpoint to go on from"
        )
        if behind:
            parts.append(f"the newest checkpoint there is of version {run.summary.version - behind}, {behind} behind")
        super().__init__("; ".join(parts))


class RunTerminated(RunInterrupted, SystemExit):
    """The same by a signal that ends programs."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.code = 128 + self.number


class StepCancelled(PlesioError):
    """The step under way no longer counts; `with worker.step():` swallows it and the loop goes on.

    >>> def steps(worker):
    ...     model = torch.nn.Linear(2, 1)
    ...     model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ...     for _ in range(5):
    ...         with worker.step():
    ...             model(torch.ones(1, 2)).sum().backward()
    ...             optimizer.step()
    >>> ps.run(steps, ps.first_of(1), workers=2, engine=ps.Simulated("two-speeds")).discarded
    {'cancelled': 5}
    """


def error_class(name: str) -> type[PlesioError] | None:
    """The class of plesio's error called `name`: processes send an error as its name and its message."""
    found = globals().get(name)
    return found if isinstance(found, type) and issubclass(found, PlesioError) else None


def is_own(error: BaseException) -> bool:
    """Whether plesio's class of that name raised it, and not a user's own of the same name."""
    return error_class(type(error).__name__) is type(error)


def unknown_name(kind: str, name: str, known: Iterable[str], others: Mapping[str, str] = {}) -> str:
    """The message for an unknown name: the name, the known ones, the closest match; `others`: what others call some of them."""
    names = sorted(known)
    if not names:
        return f"unknown {kind} {name!r}; there are none"
    same = OTHER_WORDS.get(name)
    words = {**others, **{one: one for one in names}}
    close = [same] if same in names else get_close_matches(name, words, 1) or get_close_matches(name.lower(), words, 1)
    hint = f"; did you mean {words[close[0]]!r}?" if close else ""
    return f"unknown {kind} {name!r}; known: {', '.join(names)}{hint}"


def words_of(error: BaseException) -> str:
    """The message of any exception, with its notes, also of one whose `__str__` raises; a long one is cut."""
    return _told(lambda: " ".join([str(error), *getattr(error, "__notes__", ())]).strip())


def traceback_of(error: BaseException) -> str:
    """The traceback of any exception, with its message, from the user's first frame on; a long one is cut."""
    trace = error.__traceback__
    while trace is not None and is_engine(trace.tb_frame):
        trace = trace.tb_next
    begin = trace or error.__traceback__  # where no frame is the user's: all
    return _told(lambda: "".join(traceback.format_exception(type(error), error, begin)))


def is_engine(frame: FrameType) -> bool:
    """Whether it is a frame of plesio's, not of a user."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in ("plesio", "contextlib")


def _told(tell: Callable[[], str]) -> str:
    """What it returns, cut in the middle where it is long: a traceback begins with the frames and ends with the message."""
    try:
        text = tell()
    except BaseException as failure:  # it is the user's code, which may raise anything
        return f"(its message cannot be told: {type(failure).__name__})"
    if len(text) > TEXT_MAX:
        half = TEXT_MAX // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out]\n{text[-half:]}"
    return as_utf8(text)


def as_utf8(text: str) -> str:
    """The text with what UTF-8 cannot encode escaped, such as parts of a file's name in another encoding."""
    return text.encode(errors="backslashreplace").decode()
