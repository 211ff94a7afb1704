"""Starts a run on this host, real or simulated, and sees it to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from plesio.config import RunConfig
from plesio.config.engine import LOCAL
from plesio.config.rules import HERE, JOINED, refuse
from plesio.config.run_config import NEWEST
from plesio.config.simulated import Simulated
from plesio.errors import ConfigurationError, RunInterrupted, RunTerminated
from plesio.launch.advising import Adviser
from plesio.launch.checks import check_functions, check_rounds
from plesio.launch.ctrl_c import CtrlC
from plesio.launch.exchanges import Exchanges
from plesio.launch.job import Job, Live, phase_names
from plesio.launch.local.engine import LocalEngine
from plesio.launch.local.listen import DoorSockets
from plesio.launch.local.output import log_level
from plesio.launch.newest import called, newest, say
from plesio.launch.result import (
    EvaluateError,
    Run,
    check_finite,
    result_of,
    warn_of_few_rounds,
    warn_of_nothing,
    warn_of_unevaluated,
    written,
)
from plesio.launch.resume import behind, kept, resumable, resumption
from plesio.launch.rounds import OnRound
from plesio.launch.standby.others import refuse_if_led
from plesio.launch.watching import Watching
from plesio.observe.comparison import on_staleness
from plesio.observe.files import RunFolder
from plesio.observe.provenance import source_of
from plesio.observe.report import in_rows
from plesio.observe.sinks import Feeds, Sink
from plesio.observe.sinks.feed import Follow
from plesio.observe.surroundings import surroundings
from plesio.tensors.outer_optimizer import momentum_of
from plesio.transport.client_states import FOLDER as CLIENTS
from plesio.worker.randomness.seeding import RandomState

Page = Callable[[Path], contextlib.AbstractContextManager[None]]
"""Shows what is recorded in a folder."""
_turn = threading.Lock()
_refusal = ""
ALONE = "another run is under way in this process, and there is one at a time: wait for its end, or use another process"


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


@alone(ALONE)
def start(
    config: RunConfig,
    train: Callable[..., object] | None,
    evaluate: Callable[..., Mapping[str, float]] | None = None,
    watch: Callable[[Live], object] | None = None,
    sinks: Sequence[Sink] = (),
    door: DoorSockets | None = None,
    page: Page | None = None,
    since_s: float | None = None,
    model: Callable[[], nn.Module] | None = None,
    on_round: OnRound | None = None,
    readers: DoorSockets | None = None,
) -> Run:
    """Train on this host; with a `door`, and without `train`, on workers that join from elsewhere. A `page` shows what is
    recorded while it goes on. The time to start counts from `since_s` on the monotonic clock, without it from this call."""
    since_s = time.monotonic() if since_s is None else since_s
    check_functions(config, train, evaluate, watch, model, on_round)
    config = _reduced_here(config, door)
    check_rounds(config, on_round)
    momentum = momentum_of(config.strategy)
    if door is not None:
        refuse(JOINED, config, door.listening)
    else:
        refuse(HERE, config)
    cluster = config.place.on(config.workers) if isinstance(config.place, Simulated) else None
    name, feeds = called(train), Feeds(sinks)
    with contextlib.ExitStack() as ending:  # until all is written
        ctrl_c = ending.enter_context(CtrlC())
        with ctrl_c.at_once("looking for a checkpoint to go on from"):
            found = newest(config, train) if config.resume == NEWEST else None
            if found is not None:
                if found.finished is not None:
                    say(found.words)
                    return written(found.finished)
                ending.enter_context(found.held or contextlib.nullcontext())
                config = dataclasses.replace(config, resume=found.place)
            job = Job(
                config=config,
                train=train,
                evaluate=evaluate,
                model=model,
                by_round=on_round is not None,
                listening=door.listening if door is not None else None,
                reading=readers.listening if readers is not None else None,
                log_level=log_level(),
                sources=RandomState().packed() if config.seed is None and config.lone and door is None else b"",
            )
            begin_from = resumption(job)
            if door is not None and begin_from is not None and config.standby and not door.listening.takes_over:
                refuse_if_led(begin_from.saved.path.parent.parent, door.listening)
        if found is not None:  # by now a signal finds it at something else
            say(found.words)
        document = config.as_document()
        document["run"] |= {"train": name, "plesio": version("plesio")}
        folder = None
        if config.runs is not None:
            document["surroundings"] = surroundings(source_of(train))
            folder = RunFolder(config.runs, document, name, config.until.target)
            ending.callback(folder.close)
        path = folder.path if folder is not None else None
        title = path.name if path is not None else f"{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy.name}"
        saved = begin_from.saved.manifest if begin_from is not None else None
        job = kept(job, path, _of_clients(config, path, ending), begin_from)
        feeds.follow(_exchanges_of(job))
        seen_in = path
        if page is not None:
            seen_in = path or Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="plesio-")))
            ending.enter_context(page(seen_in))
        before = (saved.steps, saved.samples) if saved is not None else (0, 0)
        head = _head(config, name, title, document, job)
        adviser = Adviser(config)
        seen = ending.enter_context(Watching(config, watch, feeds, adviser, before=before, folder=seen_in, head=head))
        feeds.begin(title, document)
        if cluster is not None:
            from plesio.launch.simulated.engine import SimulatedEngine  # greenlets, workers and a server

            outcome = SimulatedEngine(job, cluster, seen, ctrl_c, on_round).run()
        else:
            outcome = LocalEngine(
                job,
                seen,
                ctrl_c,
                door.sockets if door is not None else (),
                on_round,
                seen.starting,
                readers.sockets if readers is not None else (),
            ).run()
        if outcome.begun_s is not None:
            outcome.start_up_s = outcome.begun_s - since_s
        if begin_from is not None:
            takes_over = door is not None and door.listening.takes_over > 0
            outcome.incidents[:0] = begin_from.went_on if takes_over else begin_from.incidents
        done, place = result_of(config, outcome, folder, adviser.advice), resumable(job)
        if done is not None:
            done.resume, done.behind = place, behind(place, done.summary.version, config.workers)
            seen.summary = done.summary
            seen.lacks = f", without {', '.join(done.lacking)}" if done.lacking else ""
            seen.failed = bool(done.lacking or outcome.evaluate_raised)
    if ctrl_c.pressed:
        kind = RunInterrupted if ctrl_c.number == signal.SIGINT else RunTerminated
        late = done.behind if done is not None else 0
        raise kind(done, path, place, ctrl_c.number, late, outcome.starting)
    assert done is not None, "a run that was not interrupted has a result"
    if outcome.evaluate_raised:
        raise EvaluateError(outcome.evaluate_raised, done)
    check_finite(done)
    warn_of_nothing(done, resumed=saved is not None)
    warn_of_unevaluated(config.evaluations, done)
    warn_of_few_rounds(config.strategy, momentum, done.version)
    return done


def _reduced_here(config: RunConfig, door: DoorSockets | None) -> RunConfig:
    """`config` with how an all-reduce goes here: in memory on one host without a GPU, else by torch among an island's ranks."""
    in_memory = config.strategy.in_memory
    if in_memory is not None and door is None and config.place is LOCAL and not torch.cuda.device_count():
        return dataclasses.replace(config, strategy=in_memory)
    if config.strategy.via.by_collective and not config.simulated:
        return config.as_island()
    config.check_server()
    return config


def _of_clients(config: RunConfig, path: Path | None, ending: contextlib.ExitStack) -> Path:
    """The folder for what clients keep: in that of the run, or one that goes with it."""
    if path is not None or not config.strategy.every.by_client:
        return (path or Path()) / CLIENTS
    return Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="plesio-clients-")))


def _exchanges_of(job: Job) -> Follow | None:
    """What tells sinks of exchanges, where there is a journal."""
    if not job.keeping.journal:
        return None
    return lambda share: Exchanges(Path(job.keeping.journal), share, virtual=job.config.simulated).new


def _head(config: RunConfig, name: str, title: str, document: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """What the live page says of the run as a whole."""
    return {
        "name": title,
        "strategy": config.strategy.name,
        "train": name,
        "temporary": config.runs is None,  # so that its folder's name says nothing
        "workers": config.workers,
        "began": time.time(),
        "clock": config.place.clock,
        "target": config.until.target,
        "keeps": bool(job.keeping.folder),
        "phases": phase_names(config.strategy),
        "notes": on_staleness(config.strategy.name),
        "context": in_rows(document),
    }
