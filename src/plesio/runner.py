"""`ps.run`: train one function on many workers under one strategy, and say what it cost."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError

from plesio.checkpoint import Checkpoint
from plesio.engine.job import Job, Live, Outcome
from plesio.engine.local import WORKERS_MAX, LocalEngine
from plesio.engine.virtual import Limits
from plesio.errors import ConfigurationError, StrategyError, unknown_name
from plesio.faults import Fault, Pace, check_faults
from plesio.observe.files import RunFolder
from plesio.observe.summary import Evaluation, Summary
from plesio.observe.tables import run_table
from plesio.recipes import RECIPES, recipe
from plesio.resume import check_keeping, kept, resumption
from plesio.simulated import Simulated, SimulatedEngine
from plesio.strategy import Strategy
from plesio.whatif import advice

ENGINES = ("local",)
WORKERS_SIMULATED = 60_000
SHARING = ("leases", "shards")
ON_WORKER_ERROR = ("raise", "continue")
ON_NONFINITE = ("discard", "raise")


class Until:
    """When a run is over before its training functions are: the first of what is given.

    Args:
        seconds: of training.
        samples: visited by all workers together.
        steps: local optimizer steps of all workers together.
        metrics: values that `evaluate` is to reach: at least, or at most for a name with "loss" in it.

    >>> Until(accuracy=0.95, seconds=30)
    Until(accuracy=0.95, seconds=30)
    """

    def __init__(
        self, *, seconds: float | None = None, samples: int | None = None, steps: int | None = None, **metrics: float
    ) -> None:
        self.seconds = seconds
        self.samples = samples
        self.steps = steps
        self.metrics = metrics
        limits = {"seconds": seconds, "samples": samples, "steps": steps}
        self._limits = {name: value for name, value in limits.items() if value is not None}
        for name, value in self._limits.items():
            if not isinstance(value, (int, float)) or not value > 0:
                raise ConfigurationError(f"Until({name}={value!r}): {name} must be a number above 0")
        for name, value in metrics.items():
            if not isinstance(value, (int, float)):
                raise ConfigurationError(f"Until({name}={value!r}): a target is a number")

    def reached(self, live: Live) -> str | None:
        """Why the run is over, if it is.

        Raises:
            ConfigurationError: a target that `evaluate` does not measure would never be reached.
        """
        unknown = self.metrics.keys() - live.metrics.keys() if live.metrics else set()
        if unknown:
            raise ConfigurationError(unknown_name("metric", min(unknown), live.metrics))
        for name, wanted in self.metrics.items():
            got = live.metrics.get(name)
            if got is not None and (got <= wanted if "loss" in name else got >= wanted):
                return f"{name} {wanted:g} reached"
        now = {"seconds": live.time_s, "samples": live.samples, "steps": live.steps}
        for name, limit in self._limits.items():
            if now[name] >= limit:
                return f"{limit:g} {name} were up"
        return None

    def __repr__(self) -> str:
        parts = {**self.metrics, **self._limits}
        return f"Until({', '.join(f'{name}={value:g}' for name, value in parts.items())})"


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


def run(
    train: Callable[..., object],
    strategy: Strategy | str | Callable[..., Strategy],
    *,
    workers: int,
    engine: str | Simulated = "local",
    seed: int = 0,
    data: str = "leases",
    faults: Sequence[Fault] = (),
    pace: Pace | None = None,
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
        engine: where: "local", processes of this host; or `ps.Simulated(cluster)`, greenlets in virtual time.
        seed: of everything random: initial weights, order of data, jitter.
        data: "leases": fast workers take more of the data; "shards": each gets an equal part. Strategies in lock step
            always share out evenly.
        faults: what is to go wrong: `ps.Slow(worker=0, factor=10)`, `ps.Kill(worker=1, after_s=2)`.
        pace: how long a step lasts at least, in place of an accelerator: `ps.Pace(step_s=0.02, jitter=0.1)`.
        evaluate: called with the model beside the training, on consistent snapshots; returns names and numbers.
        evaluate_every_s: how long it pauses between snapshots.
        until: when to stop before the training functions return: `ps.Until(accuracy=0.95, seconds=30)`.
        on_worker_error: an exception in one worker: "raise" ends the run, "continue" goes on without that worker.
        on_nonfinite: a contribution with a NaN or an infinity: "discard" counts it, "raise" ends the run.
        timeout_s: how long anybody waits for anybody.
        checkpoint: how often to keep the run, so that it can be resumed: `ps.Checkpoint(every_s=60)`.
        resume: the folder of an earlier run (or of its checkpoints) to go on from: weights, the optimizer's state, the
            data not visited yet. In lock step the outcome is the same as without the interruption, bit for bit.
        runs: the folder that run folders go into; None writes nothing.
        watch: called with the state of the run several times a second.

    Returns:
        The finished run.

    Raises:
        StrategyError, ConfigurationError: before anything is started, if this cannot work.
        WorkerError: the training function of a worker raised; its traceback is in the message.
        WorkerLostError: every worker died. ServerLostError: the server died.
        CheckpointError: nothing to resume from, or it is of another run.
        ModelMismatchError, SharedMemoryError, NonFiniteError, DeadlineError: see their docstrings.

    Example:
        run = ps.run(train, ps.async_sgd(), workers=4)
        print(run)
    """
    strategy = _strategy(strategy)
    simulated = isinstance(engine, Simulated)
    if not isinstance(engine, Simulated):
        _choice("engine", engine, ENGINES)
    _choice("data", data, SHARING)
    _choice("on_worker_error", on_worker_error, ON_WORKER_ERROR)
    _choice("on_nonfinite", on_nonfinite, ON_NONFINITE)
    _check_numbers(workers, seed, evaluate_every_s, timeout_s, WORKERS_SIMULATED if simulated else WORKERS_MAX)
    _check_kinds(train, evaluate, pace, until)
    strategy.check_workers(workers)
    check_faults(tuple(faults), workers)
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
        check_keeping(job, checkpoint, runs, simulated)
    folder = RunFolder.create(runs, strategy, _configuration(job, until)) if runs is not None else None
    job = kept(job, folder.path if folder is not None else None, checkpoint, begin_from, simulated)
    seen = functools.partial(_watch, until, watch)
    if isinstance(engine, Simulated):
        outcome = SimulatedEngine(job, engine.on(workers), seen, _limits(until)).run()
    else:
        outcome = LocalEngine(job, seen).run()
    if begin_from is not None:
        outcome.incidents.insert(0, begin_from.incident)
    summary = _summary(strategy, outcome, simulated)
    summary = msgspec.structs.replace(summary, advice=advice(summary) or "")
    if folder is not None:
        try:
            folder.write(summary, outcome.state_dict)
        except (OSError, SafetensorError) as error:  # a full disk is no reason to lose what was trained
            warnings.warn(
                f"the run folder {folder.path} cannot be written: {error}; its figures and weights are in what run "
                "returns: save run.state_dict where there is room",
                RuntimeWarning,
                stacklevel=2,
            )
    return Run(summary, outcome.state_dict, folder.path if folder else None)


def _watch(until: Until | None, watch: Callable[[Live], object] | None, live: Live) -> str | None:
    if watch is not None:
        watch(live)
    return until.reached(live) if until is not None else None


def _limits(until: Until | None) -> Limits:
    """What virtual time is cut off at exactly."""
    if until is None:
        return Limits()
    given = {"seconds": until.seconds, "steps": until.steps, "samples": until.samples}
    return Limits(**{name: float(value) for name, value in given.items() if value is not None})


def _strategy(strategy: Strategy | str | Callable[..., Strategy]) -> Strategy:
    if isinstance(strategy, str):
        return recipe(strategy)
    if not isinstance(strategy, Strategy) and getattr(strategy, "__name__", None) in RECIPES:
        return recipe(strategy.__name__)
    if not isinstance(strategy, Strategy):
        raise StrategyError(
            f"strategy={strategy!r}: give a strategy such as ps.async_sgd(), or one of the names {', '.join(RECIPES)}"
        )
    return strategy


def _choice(field: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigurationError(unknown_name(field, str(value), known))


def _check_numbers(workers: int, seed: int, evaluate_every_s: float, timeout_s: float, most: int) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool) or not 1 <= workers <= most:
        raise ConfigurationError(f"workers={workers!r}: a whole number from 1 to {most} on one host")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigurationError(f"seed={seed!r}: a whole number of at least 0")
    for name, value in (("evaluate_every_s", evaluate_every_s), ("timeout_s", timeout_s)):
        if not isinstance(value, (int, float)) or not value > 0:
            raise ConfigurationError(f"{name}={value!r}: a number of seconds above 0")


def _check_kinds(train: object, evaluate: object, pace: object, until: object) -> None:
    if not callable(train):
        raise ConfigurationError(f"train={train!r}: a function that takes a ps.Worker")
    if evaluate is not None and not callable(evaluate):
        raise ConfigurationError(
            f"evaluate={evaluate!r}: a function that takes the model and returns names and numbers"
        )
    if pace is not None and not isinstance(pace, Pace):
        raise ConfigurationError(f"pace={pace!r}: such as ps.Pace(step_s=0.02)")
    if until is not None and not isinstance(until, Until):
        raise ConfigurationError(f"until={until!r}: such as ps.Until(accuracy=0.95, seconds=30)")
    if isinstance(until, Until) and until.metrics and evaluate is None:
        raise ConfigurationError(
            f"until={until!r} needs evaluate=, a function that measures {', '.join(until.metrics)}"
        )


def _configuration(job: Job, until: Until | None) -> dict[str, Any]:
    """The resolved configuration, for the run folder."""
    return {
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


def _summary(strategy: Strategy, outcome: Outcome, simulated: bool) -> Summary:
    final = outcome.final
    assert final is not None, "a run that ended without an error has a result"
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
