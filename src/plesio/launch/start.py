"""Starts a run on this host, real or simulated, and sees it to its end."""

from __future__ import annotations

import contextlib
import dataclasses
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
from plesio.config.rules import JOINED, refuse
from plesio.config.simulated import Simulated
from plesio.errors import ConfigurationError, RunInterrupted
from plesio.launch.advising import Adviser
from plesio.launch.checks import check_functions, check_rounds
from plesio.launch.ctrl_c import CtrlC
from plesio.launch.job import Job, Live, phase_names
from plesio.launch.local.engine import LocalEngine
from plesio.launch.local.listen import DoorSockets
from plesio.launch.local.output import log_level
from plesio.launch.result import (
    EvaluateError,
    Run,
    check_finite,
    result_of,
    warn_of_few_rounds,
    warn_of_nothing,
    warn_of_unevaluated,
)
from plesio.launch.resume import behind, kept, resumable, resumption
from plesio.launch.rounds import OnRound
from plesio.launch.watching import Watching
from plesio.observe.comparison import on_staleness
from plesio.observe.files import RunFolder
from plesio.observe.provenance import name_of, source_of
from plesio.observe.report import in_rows
from plesio.observe.sinks import Feeds, Sink
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
    cluster = config.place.on(config.workers) if isinstance(config.place, Simulated) else None
    job = Job(
        config=config,
        train=train,
        evaluate=evaluate,
        model=model,
        by_round=on_round is not None,
        listening=door.listening if door is not None else None,
        log_level=log_level(),
        sources=RandomState().packed() if config.seed is None and config.lone and door is None else b"",
    )
    begin_from = resumption(job)
    folder, feeds = None, Feeds(sinks)
    name, document = name_of(train) if train is not None else "workers that joined", config.as_document()
    document["run"] |= {"train": name, "plesio": version("plesio")}
    if config.runs is not None:
        document["surroundings"] = surroundings(source_of(train))
        folder = RunFolder(config.runs, document, name, config.in_words(), config.until.target)
    path = folder.path if folder is not None else None
    called = path.name if path is not None else f"{time.strftime('%Y%m%d-%H%M%S')}-{config.strategy.name}"
    saved = begin_from.saved.manifest if begin_from is not None else None
    with contextlib.ExitStack() as ending:  # until all is written
        job = kept(job, path, _of_clients(config, path, ending), begin_from)
        seen_in = path
        if page is not None:
            seen_in = path or Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="plesio-")))
            ending.enter_context(page(seen_in))
        ctrl_c = ending.enter_context(CtrlC())
        before = (saved.steps, saved.samples) if saved is not None else (0, 0)
        head = _head(config, name, document, job)
        adviser = Adviser(config)
        seen = ending.enter_context(
            Watching(config.until, watch, feeds, adviser, before=before, folder=seen_in, head=head)
        )
        feeds.begin(called, document)
        if cluster is not None:
            from plesio.launch.simulated.engine import SimulatedEngine  # greenlets, workers and a server

            outcome = SimulatedEngine(job, cluster, seen, ctrl_c, on_round).run()
        else:
            outcome = LocalEngine(
                job, seen, ctrl_c, door.sockets if door is not None else (), on_round, seen.starting
            ).run()
        if outcome.begun_s is not None:
            outcome.start_up_s = outcome.begun_s - since_s
        if begin_from is not None:
            outcome.incidents[:0] = begin_from.incidents
        done = result_of(config, outcome, folder, adviser.advice)
        seen.summary = done.summary if done is not None else None
    if ctrl_c.pressed:
        place = resumable(job)
        late = behind(place, done.summary.version, config.workers) if done is not None else 0
        raise RunInterrupted(done, path, place, ctrl_c.number, late)
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


def _head(config: RunConfig, name: str, document: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """What the live page says of the run as a whole."""
    return {
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
