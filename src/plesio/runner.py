"""`ps.run`: train one function on many workers under one strategy, and say what it cost."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import html
import inspect
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import torch

from plesio.config import RunConfig
from plesio.config.checkpoint import Checkpoint
from plesio.config.faults import Fault, Pace
from plesio.config.on_ray import Ray
from plesio.config.simulated import Simulated
from plesio.config.until import Until
from plesio.errors import ConfigurationError, NonFiniteError, PlesioError, RunInterrupted
from plesio.launch.ctrl_c import CtrlC
from plesio.launch.job import Job, Listening, Live, Outcome
from plesio.launch.local.engine import LocalEngine
from plesio.launch.local.listen import Door
from plesio.launch.local.output import log_level
from plesio.launch.outer_momentum import check_outer, warn_of_few_versions
from plesio.launch.provenance import name_of, source_of, without_arguments
from plesio.launch.remote import torchrun
from plesio.launch.resume import kept, resumable, resumption
from plesio.launch.simulated.engine import SimulatedEngine
from plesio.launch.simulated.whatif import advice
from plesio.launch.surroundings import surroundings
from plesio.launch.watching import Watching
from plesio.launch.working_directory import check_working_directory
from plesio.observe.comparison import on_staleness
from plesio.observe.files import RunFolder
from plesio.observe.folders import make_folder
from plesio.observe.progress import ProgressLine, is_watched
from plesio.observe.report import in_rows
from plesio.observe.sinks import Feeds, Sink
from plesio.observe.summary import Summary
from plesio.observe.tables import run_table
from plesio.protocol.launcher import Final
from plesio.strategy import Strategy
from plesio.watch.process import check_installed, live_page
from plesio.worker.seeding import RandomState

_turn = threading.Lock()
_refusal = ""


class EvaluateError(PlesioError):
    """`evaluate` raised, which ended the run in good order; the message holds its traceback.

    Attributes:
        run: the `ps.Run` as far as it got: its weights and figures can be used like any other's.

    >>> def evaluate(model):
    ...     return {"accuracy": 1 / 0}
    >>> try:
    ...     ps.run(train, "sync_sgd", workers=2, evaluate=evaluate, engine=ps.Simulated("uniform"))
    ... except ps.EvaluateError as error:
    ...     print(sorted(error.run.state_dict))
    ['bias', 'weight']
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
        state_dict: the final global parameters, buffers and shared tables under their PyTorch names.
        folder: where it was written, or None.
        returned: what `train` returned, by worker; None for one that died, was still training when the run ended, or joined from
            elsewhere, and for what cannot be pickled or takes more than 16 MB.

    >>> run = ps.run(train, "async_sgd", workers=2, engine=ps.Simulated("uniform"))
    >>> run.version, run.steps, run.staleness.max, run.state_dict["weight"].shape
    (20, 20, 2, torch.Size([1, 2]))
    """

    def __init__(
        self,
        summary: Summary,
        state_dict: dict[str, torch.Tensor],
        folder: Path | None,
        returned: Sequence[Any] = (),
    ) -> None:
        self.returned = list(returned)
        self.summary = summary
        self.state_dict = state_dict
        self.folder = folder

    def __dir__(self) -> list[str]:
        """Also the summary's figures, for whoever asks by the tab key."""
        return [*super().__dir__(), *(name for name in dir(self.summary) if not name.startswith("_"))]

    def __getattr__(self, name: str) -> Any:
        """Any figure of the summary: `run.history`, `run.staleness.mean`, `run.steps_per_s`, ..."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.summary, name)

    def __str__(self) -> str:
        return run_table(self.summary, self.folder)

    def _repr_html_(self) -> str:
        """In a notebook: the table."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"<Run {self.summary.strategy}: version {self.summary.version}, {self.summary.wall_s:.1f} s>"


@contextlib.contextmanager
def alone(refusal: str) -> Iterator[None]:
    """Allow one run at a time; others raise with this message."""
    global _refusal
    if not _turn.acquire(blocking=False):
        raise ConfigurationError(_refusal)
    _refusal = refusal
    try:
        yield
    finally:
        _turn.release()


def run(
    train: Callable[..., object],
    strategy: Strategy | str | Callable[..., Strategy],
    *,
    workers: int,
    workers_max: int | None = None,
    engine: str | Simulated | Ray = "local",
    seed: int | None = None,
    data: str = "leases",
    faults: Sequence[Fault] = (),
    pace: Pace | float | None = None,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    evaluate_every_s: float = 1.0,
    until: Until | None = None,
    on_worker_error: str = "raise",
    on_nonfinite: str = "discard",
    timeout_s: float = 300.0,
    threads: int | None = None,
    checkpoint: Checkpoint | None = None,
    resume: str | Path | None = None,
    runs: str | Path | None = None,
    watch: Callable[[Live], object] | bool | None = None,
    sinks: Sequence[Sink] = (),
    progress: bool | None = None,
) -> Run:
    """Train on `workers` workers, keeping step as `strategy` says.

    Args:
        train: called with a `Worker` in each worker process; an ordinary PyTorch loop.
        strategy: `ps.async_sgd()` and the like, or the name of a recipe.
        workers: how many workers.
        workers_max: up to how many the run may be scaled while it goes on, by `live.scale(n)` in `watch`; None: as many as it
            begins with. Each may hold its own contribution and a version of the model: memory is laid out for all of them.
        engine: where they run: "local", processes of this host; `ps.Ray()`, processes on a Ray cluster; or
            `ps.Simulated(cluster)`, greenlets in virtual time.
        seed: seeds everything random: initial weights, order of data, jitter; left out: 0, and one worker begins with the
            random sources as the script has left them.
        data: leases: fast workers take more of the data; shards: each gets an equal part. Strategies in lock step always
            share out evenly.
        faults: what goes wrong on purpose: `ps.Slow(worker=0, factor=10)`, `ps.Kill(worker=1, after_s=2)`.
        pace: the least time a step takes, to stand in for an accelerator: seconds, or `ps.Pace(step_s=0.02, jitter=0.1)`.
        evaluate: called with the model while training goes on, on consistent snapshots (under `hogwild` they may be
            torn); returns a dict of metric names and numbers.
        evaluate_every_s: pause between two evaluations, in seconds.
        until: when to stop before the training functions return: `ps.Until(accuracy=0.95, seconds=30)`.
        on_worker_error: an exception in one worker: raise ends the run, continue goes on without that worker.
        on_nonfinite: a contribution with a NaN or an infinity: discard drops and counts it, raise ends the run. A run that
            drops all of its contributions ends with an error either way.
        timeout_s: seconds after which any wait of a process for another ends in a DeadlineError.
        threads: how many torch has in each process; left out: its share of the cores.
        checkpoint: how often to save the run, so that it can be resumed: `ps.Checkpoint(every_s=60)`.
        resume: the folder of an earlier run (or of its checkpoints) to continue: weights, the optimizer's state, the data
            not visited yet. In lock step the result is the same as without the interruption, bit for bit; but an
            optimizer that steps in the workers (as in local_sgd) starts there without the state it had.
        runs: the folder in which a folder for this run is made; None writes nothing.
        watch: called several times a second with how the run stands (`time_s`, `version`, `steps`, `samples`, `metrics`,
            `workers`); in a simulated run, at each evaluation. `live.scale(n)` starts workers, or has those with the highest
            numbers leave after their step, until there are n. True: a page on this host shows the run as it goes; its address is
            printed to standard error (`pip install 'plesio[watch]'`; on Ray it needs `runs`).
        sinks: where figures go while it runs, such as `ps.sinks.TensorBoard("tb")`. One that fails is dropped with a warning.
        progress: whether a line on standard error shows how the run stands; None: at a terminal and in a notebook.

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

    >>> def train(worker):
    ...     model = torch.nn.Linear(2, 1)
    ...     model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ...     for _ in range(10):
    ...         optimizer.zero_grad()
    ...         loss = model(torch.ones(4, 2)).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         worker.log(loss=loss)
    >>> run = ps.run(train, "sync_sgd", workers=2, engine=ps.Simulated("uniform"))  # without engine=: in two processes
    >>> run.ended, run.version, run.steps
    ('finished', 10, 20)
    """
    given = dict(locals())  # all of the above, by name
    functions = {name: given.pop(name) for name in ("train", "evaluate", "watch", "sinks")}
    shown = given.pop("progress")
    config = RunConfig(**given)
    page = watch is True
    functions["watch"] = seen_by = None if isinstance(watch, bool) else watch
    line = ProgressLine(config.strategy.name, config.until.target)
    if shown is None:
        shown = is_watched() and not isinstance(config.engine, Ray)
    if shown and (seen_by is None or callable(seen_by)):
        functions["watch"] = functools.partial(_seen, line, seen_by)
    try:
        return start(config, **functions, page=page)
    finally:
        line.clear()


def _seen(line: ProgressLine, watch: Callable[[Live], object] | None, live: Live) -> None:
    line.show(live)
    if watch is not None:
        watch(live)


@alone("another run is under way in this process, and there is one at a time: wait for its end, or use another process")
def start(
    config: RunConfig,
    train: Callable[..., object] | None,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    watch: Callable[[Live], object] | None = None,
    sinks: Sequence[Sink] = (),
    door: Door | None = None,
    page: bool = False,
) -> Run:
    """`run`, with its settings as one object; with a `door`, and without `train`, its workers join it from elsewhere; with a
    `page`, that shows it."""
    check_working_directory()
    _check_functions(config, train, evaluate, watch)
    if page:
        check_installed()
    config = _reduced_here(config, door)
    check_outer(config)
    if door is not None:
        _check_door(config.strategy, door.listening)
    cluster = config.engine.on(config.workers) if isinstance(config.engine, Simulated) else None
    if isinstance(config.engine, Ray):
        assert train is not None, "Ray's own workers join a local head"
        return _on_ray(config, train, evaluate, watch, sinks, page)
    job = Job(
        config=config,
        train=train,
        evaluate=evaluate,
        listening=door.listening if door is not None else None,
        log_level=log_level(),
        sources=RandomState().packed() if config.seed is None and config.seats == 1 and door is None else b"",
    )
    begin_from = resumption(job)
    folder, feeds = None, Feeds(sinks)
    name, document = name_of(train) if train is not None else "workers that joined", config.as_document()
    document["run"] |= {"train": name, "plesio": version("plesio")}
    if config.runs is not None:
        document["surroundings"] = surroundings(source_of(train))
        folder = RunFolder.create(config.runs, document, name, config.in_words(), config.until.target)
    path = folder.path if folder is not None else None
    job = kept(job, path, begin_from)
    called = path.name if path is not None else f"{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy.name}"
    saved = begin_from.saved.manifest if begin_from is not None else None
    ending = contextlib.ExitStack()
    seen_in = path
    if page and path is None:
        seen_in = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="plesio-")))
    seen = Watching(
        config.until,
        watch,
        feeds,
        begins=lambda: feeds.begin(called, document),
        before=(saved.steps, saved.samples) if saved is not None else (0, 0),
        folder=seen_in,
        head=_head(config, name, document, job),
    )
    shown = _shown(seen_in) if page and seen_in is not None else contextlib.nullcontext()
    with ending, shown, CtrlC() as ctrl_c, seen:  # until all is written
        if cluster is not None:
            outcome = SimulatedEngine(job, cluster, seen, ctrl_c).run()
        else:
            outcome = LocalEngine(job, seen, ctrl_c, door.sockets if door is not None else ()).run()
        if begin_from is not None:
            outcome.incidents.insert(0, begin_from.incident)
        done = _done(config, outcome, folder)
        seen.summary = done.summary if done is not None else None
    if ctrl_c.pressed:
        raise RunInterrupted(done, path, resumable(job), ctrl_c.number)
    assert done is not None, "a run that was not interrupted has a result"
    if outcome.evaluate_raised:
        raise EvaluateError(outcome.evaluate_raised, done)
    _check_finite(done)
    _warn_of_nothing(done)
    warn_of_few_versions(config, done.version)
    return done


def _on_ray(
    config: RunConfig,
    train: Callable[..., object],
    evaluate: Callable[..., Mapping[str, float]] | None,
    watch: Callable[[Live], object] | None,
    sinks: Sequence[Sink],
    page: bool,
) -> Run:
    from plesio.launch.remote.ray_backend import run_on_ray

    for name, given in (("watch", watch is not None), ("sinks", bool(sinks))):
        if given:
            raise ConfigurationError(
                f"{name}= is not possible with engine=ps.Ray(): the run stands at its head; until= works there"
            )

    def loop() -> None:
        from plesio.launch.remote.join import join

        with join() as worker:
            train(worker)

    with _shown_from(config.runs) if page else contextlib.nullcontext():
        done: Run = run_on_ray(config, loop, evaluate)
    return done


def _shown_from(runs: Path | None) -> contextlib.AbstractContextManager[None]:
    """A page of all runs in a folder, which is made if it is not there."""
    if runs is None:
        raise ConfigurationError(
            "watch=True with engine=ps.Ray() needs runs=, a folder that the head and this host share"
        )
    try:
        make_folder(runs)
    except OSError as error:
        raise ConfigurationError(f"runs={str(runs)!r} cannot be written: {error}; give another folder") from error
    return _shown(runs)


@contextlib.contextmanager
def _shown(place: Path) -> Iterator[None]:
    """Have a page show what is recorded there, and say where it is."""
    with live_page(place) as address:
        print(f"live page: {address}", file=sys.stderr, flush=True)
        yield


def _reduced_here(config: RunConfig, door: Door | None) -> RunConfig:
    """`config` with how an all-reduce goes here: in memory on one host without a GPU, else by torch.distributed."""
    in_memory = config.strategy.in_memory
    if in_memory is not None and door is None and config.engine == "local" and not torch.cuda.device_count():
        return dataclasses.replace(config, strategy=in_memory)
    config.check_server()
    return config


def _check_door(strategy: Strategy, listening: Listening) -> None:
    """Make sure that workers from elsewhere can fold in the strategy's way."""
    if strategy.via.in_shared_memory:
        raise ConfigurationError(
            f"under {strategy.name} workers fold in memory that they share, and these workers come from elsewhere: take "
            "async_sgd, which is the nearest to it"
        )
    if strategy.via.by_collective and listening.credentials is not None and listening.credentials.folder is not None:
        raise ConfigurationError(
            f"under {strategy.name} torch's gloo moves the gradients, which knows no TLS, and certs= asks for that: take "
            "sync_sgd, which computes the same, or talk in the clear by insecure=True (--insecure)"
        )


def _check_functions(config: RunConfig, train: object, evaluate: object, watch: object) -> None:
    """Raise `ConfigurationError` for a function of the user's that cannot be called, or one that is missing."""
    if train is not None and not callable(train):
        raise ConfigurationError(f"train={train!r}: a function that takes a ps.Worker")
    takes = {
        "watch": "the state of the run (or True, for the live page)",
        "evaluate": "the model and returns names and numbers",
    }
    for (name, what), given in zip(takes.items(), (watch, evaluate), strict=True):
        if given is not None and not callable(given):
            raise ConfigurationError(f"{name}={given!r}: a function that takes {what}")
    if evaluate is not None:
        _check_takes_a_model(evaluate)
    if config.until.metrics and evaluate is None:
        raise ConfigurationError(
            f"until={config.until!r} needs evaluate=, a function that measures {', '.join(config.until.metrics)}"
        )
    if train is not None:
        _check_runs_when_called(train)


def _check_takes_a_model(evaluate: Any) -> None:
    """Raise `ConfigurationError` for a function that cannot be called with a model alone, such as one of the script's own."""
    try:
        signature = inspect.signature(evaluate)
    except (TypeError, ValueError):  # not every callable tells
        return
    try:
        signature.bind(None)
    except TypeError:
        name = getattr(evaluate, "__name__", "evaluate")
        raise ConfigurationError(
            f"{name}{signature} is called with the model and nothing else, as {name}(model); give a function that takes one "
            f"argument, such as functools.partial or lambda model: {name}(model, ...), or give this one another name"
        ) from None


def _check_runs_when_called(train: Callable[..., object]) -> None:
    """Raise `ConfigurationError` for a function that does nothing when it is called but make a generator or coroutine."""
    plain = without_arguments(train)
    plain = plain if inspect.isroutine(plain) else type(plain).__call__
    if inspect.isgeneratorfunction(plain) or inspect.isasyncgenfunction(plain):
        raise ConfigurationError(f"train={train!r} has a yield in it: calling it trains nothing; take the yield out")
    if inspect.iscoroutinefunction(plain):
        raise ConfigurationError(f"train={train!r} is an async def: calling it trains nothing; give it as a plain def")


def _head(config: RunConfig, name: str, document: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """What the live page says of the run as a whole."""
    return {
        "strategy": config.strategy.name,
        "train": name,
        "workers": config.workers,
        "began": time.time(),
        "clock": "virtual" if config.simulated else "wall",
        "target": config.until.target,
        "keeps": bool(job.keeping.folder),
        "notes": on_staleness(config.strategy.name.partition("(")[0]),
        "context": in_rows(document),
    }


def _done(config: RunConfig, outcome: Outcome, folder: RunFolder | None) -> Run | None:
    """The finished run, once its folder is written; None if it was interrupted before there was anything to write."""
    final = outcome.final
    if final is None or (outcome.interrupted and final.model is None and not outcome.state_dict):
        return None
    summary = _summary(config, outcome, final)
    if config.data == "leases" and not outcome.interrupted:  # shards cannot be taken over; after Ctrl-C nobody waits
        summary = msgspec.structs.replace(summary, advice=advice(summary, config.strategy) or "")
    if folder is not None:
        lacking = folder.write(summary, outcome.state_dict)
        if lacking:  # a full disk is no reason to lose what was trained
            why = "; ".join(dict.fromkeys(lacking.values()))
            warnings.warn(
                f"the run folder {folder.path} cannot be written: it lacks {', '.join(lacking)} ({why}); its figures and "
                "weights are in what run returns: save run.state_dict where there is room",
                RuntimeWarning,
                stacklevel=5,
            )
    returned = [outcome.returned.get(worker) for worker in range(len(summary.workers))]
    return Run(summary, outcome.state_dict, folder.path if folder else None, returned)


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
    """Warn where the training functions returned without training anything, or each made all of a loop."""
    if done.summary.multiplied:
        why = "it makes so many in all. If each worker is to make its whole loop, say worker.count(samples=...) in it"
        with contextlib.suppress(RuntimeWarning):  # a filter that raises warnings would cost the whole run
            warnings.warn(f"{done.summary.multiplied}: {why}", RuntimeWarning, stacklevel=5)
    if done.state_dict and (done.steps or done.version):
        return
    step = "step() of the optimizer that worker.prepare returned"
    missed = step if done.state_dict else "worker.prepare(model, optimizer, loader)"
    warnings.warn(f"nothing was trained: no worker called {missed}", RuntimeWarning, stacklevel=5)


def _summary(config: RunConfig, outcome: Outcome, final: Final) -> Summary:
    measured = {name: getattr(final, name) for name in final.__struct_fields__ if name in Summary.__struct_fields__}
    return Summary(
        **measured,
        strategy=config.strategy.name,
        recipe=config.strategy.name.split("(")[0],
        start_up_s=outcome.start_up_s,
        history=tuple(outcome.history),
        logged=tuple(outcome.logged),
        clients=outcome.clients.summaries(),
        incidents=tuple(outcome.incidents),
        ended=outcome.ended,
        clock="virtual" if config.simulated else "wall",
    )


def head(told: int) -> None:
    """Entry of a head that a worker's process starts (`plesio.launch.remote.head`): it reads what to run from its input, and
    writes the port that it listens on into `told`."""
    config, evaluate, listening, where = cloudpickle.load(sys.stdin.buffer)
    try:
        door = Door.open(listening)
        if where.store:
            torchrun.end_with_agent(where.store)
        with open(told, "w") as answer:
            answer.write(str(door.listening.port))
        print(start(config, None, evaluate, door=door), flush=True)
    except (PlesioError, RunInterrupted) as error:
        sys.exit(f"plesio: the run's head: {error}")
    if where.store:
        torchrun.tell_of_end(where)
