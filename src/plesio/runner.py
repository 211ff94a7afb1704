"""`ps.run`: train one function on many workers under one strategy, and say what it cost."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import torch

from plesio.choices import DATA, ON_NONFINITE, ON_WORKER_ERROR, check_choice
from plesio.config import as_pace, as_strategy, check_kinds, check_numbers
from plesio.errors import ConfigurationError, NonFiniteError, PlesioError, RunInterrupted
from plesio.faults import Fault, Pace, check_faults
from plesio.launch.ctrl_c import CtrlC
from plesio.launch.job import Job, Live, Outcome
from plesio.launch.local.engine import LocalEngine
from plesio.launch.provenance import name_of, without_arguments
from plesio.launch.resume import Resumption, check_keeping, kept, resumable, resumption
from plesio.launch.simulated.engine import Simulated, SimulatedEngine
from plesio.launch.simulated.limits import Limits
from plesio.launch.simulated.whatif import advice
from plesio.launch.until import Until
from plesio.launch.working_directory import check_working_directory
from plesio.observe.files import RunFolder
from plesio.observe.summary import Evaluation, Summary
from plesio.observe.tables import run_table
from plesio.protocol.launcher import Final
from plesio.server.checkpoints import Checkpoint
from plesio.strategy import Strategy

_turn = threading.Lock()
_refusal = ""


class EvaluateError(PlesioError):
    """`evaluate` raised, which ended the run in good order; the message holds its traceback.

    Attributes:
        run: the `ps.Run` as far as it got: its weights and figures can be used like any other's.
    """

    def __init__(self, raised: str, run: Run) -> None:
        self.run = run
        what, *more = raised.splitlines()
        where = run.folder if run.folder is not None else "this exception's .run"
        kept = f"what was trained until then, version {run.summary.version}, is in {where}"
        super().__init__("\n".join([f"evaluate raised {what}; {kept}", *more]))


class Run:
    """A finished run: print it for the table; the figures are its attributes.

    Attributes:
        summary: everything measured, see `plesio.observe.summary.Summary`.
        state_dict: the final global parameters and buffers under their PyTorch names.
        folder: where it was written, or None.
    """

    def __init__(self, summary: Summary, state_dict: dict[str, torch.Tensor], folder: Path | None) -> None:
        self.summary = summary
        self.state_dict = state_dict
        self.folder = folder

    @property
    def history(self) -> tuple[Evaluation, ...]:
        """The evaluations, in order."""
        return self.summary.history

    def __getattr__(self, name: str) -> Any:
        """Any figure of the summary: `run.staleness.mean`, `run.steps_per_s`, ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.summary, name)

    def __str__(self) -> str:
        return run_table(self.summary, self.folder)

    def __repr__(self) -> str:
        return f"<Run {self.summary.strategy}: version {self.summary.version}, {self.summary.wall_s:.1f} s>"


@contextmanager
def alone(refusal: str) -> Iterator[None]:
    """Until it ends, whoever calls `run` is refused with these words.

    Raises:
        ConfigurationError: somebody else is in it; its refusal.
    """
    global _refusal
    if not _turn.acquire(blocking=False):
        raise ConfigurationError(_refusal)
    _refusal = refusal
    try:
        yield
    finally:
        _turn.release()


@alone("another run is under way in this process, and there is one at a time: wait for its end, or use another process")
def run(
    train: Callable[..., object],
    strategy: Strategy | str | Callable[..., Strategy],
    *,
    workers: int,
    engine: str | Simulated = "local",
    seed: int = 0,
    data: str = "leases",
    faults: Sequence[Fault] = (),
    pace: Pace | float | None = None,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    evaluate_every_s: float = 1.0,
    until: Until | None = None,
    on_worker_error: str = "raise",
    on_nonfinite: str = "discard",
    timeout_s: float = 300.0,
    checkpoint: Checkpoint | None = None,
    resume: str | Path | None = None,
    runs: str | Path | None = None,
    watch: Callable[[Live], object] | None = None,
) -> Run:
    """Train on `workers` workers, keeping step as `strategy` says.

    Args:
        train: called with a `Worker` in each worker process; an ordinary PyTorch loop.
        strategy: `ps.async_sgd()` and the like, or the name of a recipe.
        workers: how many.
        engine: where they run: "local", processes of this host; or `ps.Simulated(cluster)`, greenlets in virtual time.
        seed: seeds everything random: initial weights, order of data, jitter.
        data: "leases": fast workers take more of the data; "shards": each gets an equal part. Strategies in lock step
            always share out evenly.
        faults: what goes wrong on purpose: `ps.Slow(worker=0, factor=10)`, `ps.Kill(worker=1, after_s=2)`.
        pace: the least time a step takes, to stand in for an accelerator: seconds, or `ps.Pace(step_s=0.02, jitter=0.1)`.
        evaluate: called with the model while training goes on, on consistent snapshots (under `hogwild` they may be
            torn); returns a dict of metric names and numbers.
        evaluate_every_s: seconds it pauses between two snapshots.
        until: when to stop before the training functions return: `ps.Until(accuracy=0.95, seconds=30)`.
        on_worker_error: an exception in one worker: "raise" ends the run, "continue" goes on without that worker.
        on_nonfinite: a contribution with a NaN or an infinity: "discard" drops and counts it, "raise" ends the run. If all
            contributions of a run were dropped for that reason, it ends with an error either way.
        timeout_s: seconds after which any wait of a process for another ends in a DeadlineError.
        checkpoint: how often to save the run, so that it can be resumed: `ps.Checkpoint(every_s=60)`.
        resume: the folder of an earlier run (or of its checkpoints) to continue: weights, the optimizer's state, the data
            not visited yet. In lock step the result is the same as without the interruption, bit for bit; but an
            optimizer that steps in the workers (as in local_sgd) starts there without the state it had.
        runs: the folder in which a folder for this run is made; None writes nothing.
        watch: called several times a second with how the run stands (`time_s`, `version`, `steps`, `samples`, `metrics`);
            in a simulated run, at each evaluation.

    Returns:
        The finished run.

    Raises:
        StrategyError, ConfigurationError: before anything starts, if the arguments cannot work.
        WorkerError: the training function of a worker raised; its traceback is in the message.
        WorkerLostError: every worker died. ServerLostError: the server died.
        CheckpointError: nothing to resume from, or it is of another run.
        EvaluateError: evaluate raised, which ends the run; the result so far is in the run folder and the exception.
        RunInterrupted: Ctrl-C, SIGTERM or SIGHUP (a KeyboardInterrupt); the result so far is in the run folder and the
            exception. A second one ends the run at once.
        ModelMismatchError, SharedMemoryError, NonFiniteError, DeadlineError: see their docstrings.

    Example:
        run = ps.run(train, ps.async_sgd(), workers=4)
        print(run)
    """
    check_working_directory()
    strategy = as_strategy(strategy)
    pace = as_pace(pace)
    simulated = isinstance(engine, Simulated)
    check_choice("data", data, DATA)
    check_choice("on_worker_error", on_worker_error, ON_WORKER_ERROR)
    check_choice("on_nonfinite", on_nonfinite, ON_NONFINITE)
    check_numbers(workers, seed, evaluate_every_s, timeout_s, simulated)
    check_kinds(train, engine, evaluate, until, watch, runs)
    _check_runs_when_called(train)
    strategy.check_workers(workers)
    check_faults(faults, workers)
    job = Job(
        train=train,
        strategy=strategy,
        workers=workers,
        seed=seed,
        stealing=data == "leases" and not strategy.in_lock_step,
        evaluate=evaluate,
        evaluate_every_s=evaluate_every_s,
        faults=tuple(faults),
        pace=pace,
        timeout_s=timeout_s,
        continue_on_worker_error=on_worker_error == "continue",
        raise_on_nonfinite=on_nonfinite == "raise",
    )
    begin_from = resumption(resume, job) if resume is not None else None
    if checkpoint is not None or resume is not None:
        check_keeping(job, checkpoint, runs, simulated, begin_from)
    configuration = {
        **_configuration(job, until),
        "engine": str(engine),
        "checkpoint": str(checkpoint) if checkpoint is not None else "none",
        "resumed_from": str(resume) if resume is not None else "nothing",
    }
    target = next(iter(until.metrics.items()), None) if until is not None else None
    folder = RunFolder.create(runs, strategy, configuration, target) if runs is not None else None
    path = folder.path if folder is not None else None
    job = kept(job, path, checkpoint, begin_from, simulated)
    seen = functools.partial(_watch, until, watch, begin_from)
    with CtrlC() as ctrl_c:  # until all is written
        if isinstance(engine, Simulated):
            outcome = SimulatedEngine(job, engine.on(workers), seen, _limits(until), ctrl_c).run()
        else:
            outcome = LocalEngine(job, seen, ctrl_c).run()
        if begin_from is not None:
            outcome.incidents.insert(0, begin_from.incident)
        done = _done(job, outcome, folder, simulated, shared_out=data == "leases")
    if ctrl_c.pressed:
        raise RunInterrupted(done, path, resumable(job), ctrl_c.number)
    assert done is not None, "a run that was not interrupted has a result"
    if outcome.evaluate_raised:
        raise EvaluateError(outcome.evaluate_raised, done)
    _check_finite(done)
    _warn_of_nothing(done)
    return done


def _check_runs_when_called(train: Callable[..., object]) -> None:
    """Raise `ConfigurationError` for a function that does nothing when it is called but make a generator or coroutine."""
    plain = without_arguments(train)
    plain = plain if inspect.isroutine(plain) else type(plain).__call__
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"train={train!r} has a yield in it: calling it trains nothing; take the yield out")
    if inspect.iscoroutinefunction(plain):
        raise ConfigurationError(f"train={train!r} is an async def: calling it trains nothing; give it as a plain def")


def _watch(
    until: Until | None, watch: Callable[[Live], object] | None, begun_from: Resumption | None, live: Live
) -> str | None:
    if live.evaluate_raised:
        return f"evaluate raised {live.evaluate_raised.partition(':')[0]}"
    if watch is not None:
        watch(live)
    if until is None:
        return None
    before = begun_from.saved.manifest if begun_from is not None else None
    return until.reached(live, before.steps, before.samples) if before is not None else until.reached(live)


def _done(job: Job, outcome: Outcome, folder: RunFolder | None, simulated: bool, shared_out: bool) -> Run | None:
    """The finished run, once its folder is written; None if it was interrupted before there was anything to write."""
    final = outcome.final
    if final is None or (outcome.interrupted and final.model is None and not outcome.state_dict):
        return None
    summary = _summary(job.strategy, outcome, final, simulated)
    if shared_out and not outcome.interrupted:  # shards cannot be taken over; after Ctrl-C nobody waits for advice
        summary = msgspec.structs.replace(summary, advice=advice(summary, job.strategy) or "")
    if folder is not None:
        lacking = folder.write(summary, outcome.state_dict)
        if lacking:  # a full disk is no reason to lose what was trained
            why = "; ".join(dict.fromkeys(lacking.values()))
            warnings.warn(
                f"the run folder {folder.path} cannot be written: it lacks {', '.join(lacking)} ({why}); its figures and "
                "weights are in what run returns: save run.state_dict where there is room",
                RuntimeWarning,
                stacklevel=4,
            )
    return Run(summary, outcome.state_dict, folder.path if folder else None)


def _check_finite(done: Run) -> None:
    """Raise `NonFiniteError` where every contribution was discarded: nothing was trained."""
    discarded = done.summary.discarded.get("not finite", 0)
    if discarded and not done.summary.folded:
        where = f"; written to {done.folder}" if done.folder is not None else ""
        raise NonFiniteError(
            f"nothing was trained: no contribution was finite ({discarded:,} with a NaN or an infinity were discarded); "
            "look at the learning rate, the loss and the data, or stop at the first one with "
            f"on_nonfinite='raise' (--on-nonfinite raise){where}"
        )


def _warn_of_nothing(done: Run) -> None:
    """Warn where the training functions returned without training anything."""
    missed = ""
    if not done.state_dict:
        missed = "worker.prepare(model, optimizer, loader)"
    elif not done.steps and not done.version:
        missed = "step() of the optimizer that worker.prepare returned"
    if missed:
        warnings.warn(f"nothing was trained: no worker called {missed}", RuntimeWarning, stacklevel=4)


def _limits(until: Until | None) -> Limits:
    """What virtual time is cut off at exactly."""
    if until is None:
        return Limits()
    given = {"seconds": until.seconds, "steps": until.steps, "samples": until.samples}
    return Limits(**{name: float(value) for name, value in given.items() if value is not None})


def _configuration(job: Job, until: Until | None) -> dict[str, Any]:
    """The resolved configuration, for the run folder."""
    return {
        "train": name_of(job.train),
        "plesio": version("plesio"),
        "workers": job.workers,
        "seed": job.seed,
        "data": "leases" if job.stealing else "shards",
        "timeout_s": job.timeout_s,
        "evaluate_every_s": job.evaluate_every_s,
        "on_worker_error": "continue" if job.continue_on_worker_error else "raise",
        "on_nonfinite": "raise" if job.raise_on_nonfinite else "discard",
        "faults": [str(fault) for fault in job.faults],
        "pace": str(job.pace) if job.pace else "none",
        "until": repr(until) if until else "the training functions return",
    }


def _summary(strategy: Strategy, outcome: Outcome, final: Final, simulated: bool) -> Summary:
    return Summary(
        strategy=strategy.name,
        recipe=strategy.name.split("(")[0],
        workers=final.workers,
        wall_s=final.wall_s,
        start_up_s=outcome.start_up_s,
        version=final.version,
        steps=final.steps,
        samples=final.samples,
        folded=final.folded,
        discarded=final.discarded,
        missing_gradients=final.missing_gradients,
        batches_unvisited=final.batches_unvisited,
        bytes=final.bytes,
        shared_bytes=final.shared_bytes,
        staleness=final.staleness,
        history=tuple(outcome.history),
        logged=tuple(outcome.logged),
        timeline=final.timeline,
        incidents=tuple(outcome.incidents),
        ended=outcome.ended,
        clock="virtual" if simulated else "wall",
    )


__all__ = ["Live", "Run", "Until", "run"]
