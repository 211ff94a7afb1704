"""`ps.run`: train one function on many workers under one strategy, and say what it cost."""

from __future__ import annotations

import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from torch import nn

from plesio.config import RunConfig
from plesio.config.checkpoint import Checkpoint
from plesio.config.evaluations import Every
from plesio.config.faults import Fault, Pace
from plesio.config.on_ray import Ray
from plesio.config.simulated import Simulated
from plesio.config.until import Until
from plesio.entry import entry
from plesio.errors import ConfigurationError, RunTerminated
from plesio.launch.checks import check_functions
from plesio.launch.ctrl_c import EndedBySignal, in_words
from plesio.launch.job import Live
from plesio.launch.local.listen import DoorSockets
from plesio.launch.newest import say
from plesio.launch.remote.find import host_and_port
from plesio.launch.remote.read import readers_door
from plesio.launch.result import Run
from plesio.launch.rounds import Round
from plesio.launch.start import ALONE, alone
from plesio.launch.start import start as start_here
from plesio.observe.progress import ProgressLine, is_watched
from plesio.observe.sinks import Sink
from plesio.strategy import Strategy
from plesio.strategy.recipes import DEFAULT
from plesio.watch.process import check_installed, live_page

ANYWHERE = ("127.0.0.1", 0)
"""Where the live page is served if nobody says so: on this host alone, at any port."""


@entry("argument of ps.run", ConfigurationError)
def run(
    train: Callable[..., object],
    strategy: Strategy | str | Callable[..., Strategy] = DEFAULT,
    *,
    workers: int,
    workers_max: int | None = None,
    ranks: int = 1,
    engine: str | Simulated | Ray = "local",
    seed: int | None = None,
    data: str = "leases",
    faults: Sequence[Fault] = (),
    pace: Pace | float | None = None,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    model: Callable[[], nn.Module] | None = None,
    evaluate_every: Every | None = None,
    evaluate_every_s: float | None = None,
    on_round: Callable[[Round], object] | None = None,
    until: Until | None = None,
    on_worker_error: str = "raise",
    on_nonfinite: str = "discard",
    timeout_s: float = 300.0,
    leave_s: float = 30.0,
    threads: int | None = None,
    readers: bool | str | None = None,
    servers: int = 1,
    checkpoint: Checkpoint | None = None,
    durability: str = "auto",
    standby: int = 0,
    acknowledge: str = "head",
    resume: str | Path | None = None,
    runs: str | Path | None = None,
    watch: Callable[[Live], object] | bool | str | None = None,
    sinks: Sequence[Sink] = (),
    progress: bool | None = None,
) -> Run:
    """Train on `workers` workers, keeping step as `strategy` says.

    Args:
        train: called with a `Worker` in each worker process; an ordinary PyTorch loop.
        strategy: `ps.async_sgd()` and the like, or the name of a recipe; left out: `async_sgd`.
        workers: how many workers.
        workers_max: up to how many the run may be scaled while it goes on, by `live.scale(n)` in `watch`; None: as many as it
            begins with. Each may hold its own contribution and a version of the model: memory is laid out for all of them.
        ranks: how many processes each worker is made of. They train one copy of the model together, as torch's FSDP2,
            DistributedDataParallel or tensor parallelism have it; worker.island says which one this is.
        engine: where they run: "local", processes of this host; `ps.Ray()`, processes on a Ray cluster; or
            `ps.Simulated(cluster)`, greenlets in virtual time.
        seed: seeds everything random: initial weights, order of data, jitter; left out: 0, and one worker begins with the
            random sources as the script has left them.
        data: leases: fast workers take more of the data; shards: each gets an equal part. Strategies in lock step always
            share out evenly. new: leases of other data than the run had that is resumed, whose epochs begin anew.
        faults: what goes wrong on purpose: `ps.Slow(worker=0, factor=10)`, `ps.Kill(worker=1, after_s=2)`.
        pace: the least time a step takes, to stand in for an accelerator: seconds, or `ps.Pace(step_s=0.02, jitter=0.1)`.
        evaluate: called with the model while training goes on, on consistent snapshots (under `hogwild` they may be
            torn); returns a dict of metric names and numbers.
        model: builds the model that `evaluate` is given, where that cannot be a copy of a worker's: that one is split among its
            processes, or is Keras's.
        evaluate_every: how often evaluate(model) is called: `ps.Rounds(n)` (versions), `ps.Steps(n)` of all workers, or
            `ps.Seconds(s)` after the last. Training does not wait: what is due while one is under way is left out.
        evaluate_every_s: pause between two evaluations, in seconds. Left out: 0.5, and under a federated recipe each round is
            evaluated.
        on_round: called in this process with each version (a `ps.Round`) before the next round begins. It may evaluate every
            version, choose clients, stop the run. Workers wait meanwhile, for `timeout_s` at most. What it raises ends the run.
        until: when to stop before the training functions return: `ps.Until(accuracy=0.95, seconds=30)`.
        on_worker_error: an exception in one worker: raise ends the run, continue goes on without that worker.
        on_nonfinite: a contribution with a NaN or an infinity: discard drops and counts it, raise ends the run. A run that
            drops all of its contributions ends with an error either way.
        timeout_s: seconds after which any wait of a process for another ends in a DeadlineError.
        leave_s: seconds that a worker has to leave in good order after SIGTERM (`Worker.leave`), before it ends at once.
        threads: how many torch has in each process; left out: its share of the cores.
        readers: where processes that only read the run find it (`ps.read`, `Worker.reader`): True, on this host; "HOST:PORT".
        servers: how many servers hold the rows of tables (ps.Table), each a process of its own if there are several.
        checkpoint: how often to save the run, so that it can be resumed: `ps.Checkpoint(every_s=60)`.
        durability: what survives the server's death. process: everything, for a spare process goes on; none: the last
            checkpoint; auto: process where checkpoints are kept, the model has no tables, and it can be.
        standby: how many standbys may follow the run's head from other hosts (plesio standby), to go on if its host dies. For
            workers that join (plesio serve, ps.join): those of ps.run are on the host that dies.
        acknowledge: who has a contribution by the time that its worker hears of it. head: the death of the head's host may
            undo what no standby had; standby: all standbys have it, too.
        resume: the folder of an earlier run (or of its checkpoints) to continue: weights, the optimizer's state, the data
            not visited yet. In lock step the result is the same as without the interruption, bit for bit. The strategy and
            the number of workers may be others; the run says which state does not go on then. "newest", or the folder given
            as `runs`: the newest run in there that the same strategy and function made and that did not finish; a new run
            if there is none; the run itself, as it was written, if it has finished. One that is alive is an error.
        runs: the folder in which a folder for this run is made; None writes nothing.
        watch: called several times a second with how the run stands (`time_s`, `version`, `steps`, `samples`, `metrics`,
            `workers`); in a simulated run, at each evaluation. `live.scale(n)` starts workers, or has those with the highest
            numbers leave after their step, until there are n. True: a page on this host shows the run as it goes; its address is
            printed to standard error (`pip install 'plesio[watch]'`; on Ray it needs `runs`). "HOST:PORT": the same at this
            address, where Prometheus and others find the run's numbers.
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
        RunInterrupted: Ctrl-C, SIGTERM or SIGHUP (a KeyboardInterrupt; after the last two a SystemExit, too: status 143 or
            129); the result so far is in the run folder and the exception. A second one ends the run at once.
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
    functions = {name: given.pop(name) for name in ("train", "evaluate", "model", "on_round", "watch", "sinks")}
    shown = given.pop("progress")
    config = RunConfig(**given)
    page = watch if isinstance(watch, bool) or (isinstance(watch, str) and ":" in watch) else False
    functions["watch"] = seen_by = None if page or watch is False else watch
    line = ProgressLine(config.strategy.name, config.until.target)
    if shown is None:
        shown = is_watched() and not config.place.elsewhere
    if shown and (seen_by is None or callable(seen_by)):
        functions["watch"] = _Seen(line, seen_by)
    try:
        return start(config, **functions, page=page)
    except EndedBySignal as stop:  # Python exits as by a signal after KeyboardInterrupt itself, with 1 after any other
        if stop.number == signal.SIGINT:
            raise KeyboardInterrupt from None
        say(in_words(stop))
        raise SystemExit(128 + stop.number) from None
    except RunTerminated as stop:  # after which Python shows no message
        say(in_words(stop))
        raise
    finally:
        line.clear()


class _Seen:
    """The user's `watch`, with a line that shows the run."""

    def __init__(self, line: ProgressLine, watch: Callable[[Live], object] | None) -> None:
        self._line, self._watch = line, watch
        self.starting = line.starting

    def __call__(self, live: Live) -> None:
        self._line.show(live.totals, live.metrics)
        if self._watch is not None:
            self._watch(live)


def start(
    config: RunConfig,
    train: Callable[..., object] | None,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    watch: Callable[[Live], object] | None = None,
    sinks: Sequence[Sink] = (),
    door: DoorSockets | None = None,
    page: bool | str = False,
    since_s: float | None = None,
    model: Callable[[], nn.Module] | None = None,
    on_round: Callable[[Round], object] | None = None,
) -> Run:
    """`run`, with its settings as one object: on this host, or on Ray. See `plesio.launch.start`."""
    if page:
        check_installed()
    at = host_and_port(page, "watch=") if isinstance(page, str) else ANYWHERE
    if not config.place.elsewhere:
        shown = functools.partial(_shown, at=at) if page else None
        readers = readers_door(config, door)
        with contextlib.ExitStack() as ours:  # of a run that does not start, too
            if readers is not None:
                say(f'readers: ps.read("{readers.listening.host}:{readers.listening.port}")')
                for one in readers.sockets:
                    ours.enter_context(one)
            return start_here(config, train, evaluate, watch, sinks, door, shown, since_s, model, on_round, readers)
    with alone(ALONE):
        check_functions(config, train, evaluate, watch)
        if on_round is not None:
            raise ConfigurationError(
                "on_round= is not possible with engine=ps.Ray(): the run stands at its head; evaluate= works"
            )
        if model is not None:
            raise ConfigurationError(
                "model= is not possible with engine=ps.Ray(): its head evaluates a copy of a worker's model"
            )
        if watch is not None or sinks:
            raise ConfigurationError(
                "watch= and sinks= are not possible with engine=ps.Ray(): the run stands at its head; until= works there"
            )
        if page and config.runs is None:
            raise ConfigurationError(
                "watch=True with engine=ps.Ray() needs runs=, a folder that the head and this host share"
            )
        return _on_ray(config, train, evaluate, config.runs if page else None, at)


def _on_ray(
    config: RunConfig,
    train: Callable[..., object] | None,
    evaluate: Callable[..., Mapping[str, float]] | None,
    shown: Path | None,
    at: tuple[str, int],
) -> Run:
    """The runs in the folder that is `shown` are on the page at that address."""
    from plesio.launch.remote.ray_backend import run_on_ray

    island = config.ranks > 1

    def loop() -> None:
        from plesio.launch.remote.join import join

        assert train is not None, "Ray's own workers join a local head"
        with join(island=island) as worker:
            train(worker)

    with contextlib.ExitStack() as stack:
        if shown is not None:
            shown.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_shown(shown, at))
        done: Run = run_on_ray(config, loop, evaluate)
    return done


@contextlib.contextmanager
def _shown(place: Path, at: tuple[str, int]) -> Iterator[None]:
    """Have a page show what is recorded there, and say where it is."""
    with live_page(place, *at) as address:
        print(f"live page: {address}", file=sys.stderr, flush=True)
        yield
