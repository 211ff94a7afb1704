"""A run that goes on from a checkpoint of another strategy, or of other workers: what is refused, and what is told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from plesio.config import RunConfig
from plesio.errors import CheckpointError
from plesio.memory.taking_over import lost, one_for_all
from plesio.protocol.journal import BEGINS
from plesio.server.checkpoints import Manifest, Saved
from plesio.strategy import Strategy

DRAWN_ANEW = (
    "one worker draws the order of its data as the script does, several draw it together: where that is shuffled, some samples "
    "of the epoch under way may come twice, and others not"
)


class Change(NamedTuple):
    """What is other now in `words`, with the state that does not go on: `loses` says whether any does not. `begins`: where the
    new journal does."""

    words: str
    loses: bool
    begins: str


def change_of(saved: Saved, now: RunConfig) -> Change | None:
    """What is other now than in the run of that checkpoint; None if nothing is.

    Raises:
        CheckpointError: so much that the run cannot go on.
    """
    manifest = saved.manifest
    was, under = manifest.under, now.strategy.phases[manifest.phase_of(now.strategy)]
    if why := _refused(manifest, was, under, now):
        raise CheckpointError(
            f"{saved.path} is of a run with {why}; resume with the same, or begin a new run and load weights.safetensors in "
            "the training function"
        )
    told, dropped = [], list[str]()
    if now.data == "new":
        told.append(
            "the data is new: epochs and schedules begin anew, and the run's samples are of it, beside "
            f"{manifest.samples} before in {manifest.steps} steps"
        )
    had = _words(manifest.whole, manifest.workers, len(manifest.progress))
    has = _words(now.strategy, now.workers, now.seats)
    if had != has or replace(manifest.whole, chooses=None) != replace(now.strategy, chooses=None):
        other = [(now, then) for now, then in zip(has, had, strict=True) if now != then] or [
            *zip(has, had, strict=True)
        ]
        told.append("resumed {}, was {}".format(*map(" ".join, zip(*other, strict=True))))
        dropped = [*filter(None, _lost(saved, was, under, now))]
    new = ", with new data" if now.data == "new" else ""
    begins = f"{BEGINS}version {manifest.version} of a run {' '.join(had)} ({manifest.journal or saved.path}){new}"
    return Change("; ".join([*told, *dropped]), bool(dropped), begins) if told else None


def _words(strategy: Strategy, workers: int, seats: int) -> tuple[str, str]:
    most = f" (at most {seats})" if seats > workers else ""
    return f"under {strategy.name}", f"with {workers} worker{'' if workers == 1 else 's'}{most}"


def _refused(manifest: Manifest, was: Strategy, now: Strategy, config: RunConfig) -> str:
    """What that run had that cannot be otherwise now, in words; empty if all can."""
    if config.seeded != manifest.seed:
        return f"seed={manifest.seed}, this one has seed={config.seeded}"
    if was.send.privacy != now.send.privacy:
        return f"strategy={was.name}, and what that spent of its privacy does not count under {now.name}"
    if was.send.control != now.send.control:
        return f"strategy={was.name}, this one has {now.name}: control variates are of all rounds or of none"
    if config.together != manifest.together:
        return f"{manifest.together} batches a step, one for each worker that all-reduces, and this one has {config.together}"
    clients = [(one.every.by_client, one.every.by_client and one.gather.in_rounds) for one in (was, now)]
    if clients[0] != clients[1]:
        return f"strategy={was.name}, which counts clients, rounds or batches otherwise than {now.name}"
    return ""


def _lost(saved: Saved, was: Strategy, now: Strategy, config: RunConfig) -> Iterator[str]:
    """Which state does not go on as it was, and why (`plesio.memory.taking_over`)."""
    manifest, data = saved.manifest, saved.manifest.order.leases
    yield from lost(was, now, manifest.numbers, manifest.workers)
    if was.keeps_inner_state:
        yield from _lost_of_workers(saved.holders, now.send.stepped, config.seats)
    under_way = config.data != "new" and (any(data.waiting) or data.returned)
    if (len(manifest.progress) == 1) != (config.seats == 1) and under_way:
        yield DRAWN_ANEW


def _lost_of_workers(holders: list[int], each: bool, seats: int) -> Iterator[str]:
    """Of the optimizers that stepped in the workers; the checkpoint has the state of `holders`. `each` steps its own now."""
    if not each:
        yield one_for_all(holders, holders[0] if holders else None, "the checkpoint does not hold it")
    elif gone := [str(worker) for worker in holders if worker >= seats]:
        yield f"the state of the optimizer of worker {', '.join(gone)} is dropped, for there are {seats} now"
