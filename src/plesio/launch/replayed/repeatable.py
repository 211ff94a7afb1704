"""Whether a journal can be replayed: by these libraries and this script, up to the version that is asked for."""

from __future__ import annotations

from collections.abc import Callable

import torch

from plesio.config.rules import REPLAYED
from plesio.errors import ConfigurationError
from plesio.observe.provenance import train_hash, versions
from plesio.protocol.journal import Journal, JournalError, JournalHead, records
from plesio.strategy import Strategy
from plesio.strategy.rules import why_not


class ReplayError(ConfigurationError):
    """A journal that cannot be replayed, or not with this script and these libraries.

    >>> run = ps.run(train, "sync_sgd", workers=2, runs="runs", engine=ps.Simulated("uniform"))
    >>> ps.replay(run.folder, train, until=1000)
    Traceback (most recent call last):
        ...
    plesio.launch.replayed.repeatable.ReplayError: until=1000: ... holds versions 0 to 10; give one of these
    """


def strategy_of(journal: Journal) -> Strategy:
    """The strategy of the run, if all that made its weights is in the journal."""
    try:
        strategy = Strategy.from_data(journal.head.strategy, journal.head.fields)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise JournalError(f"{journal.path}: its strategy is none that plesio writes: {error}") from error
    if why := why_not(REPLAYED, strategy):
        raise ReplayError(f"{journal.path}: {why}")
    return strategy


def check_beginning(journal: Journal) -> None:
    """The run must have begun there, or be one that was merely interrupted."""
    for record in journal:
        if not isinstance(record, records.Noted):
            return
        if record.text.startswith(records.ISLANDS):
            raise ReplayError(
                f"{journal.path}: {record.text}, and a replay has one process: it cannot repeat how they split the model"
            )
        if record.text.startswith(records.BEGINS):
            raise ReplayError(
                f"{journal.path} {record.text}: a run that went on under another strategy, with other workers or new data cannot "
                "be replayed from its journal alone; the part before it can, from that run's"
            )


def check_until(journal: Journal, until: int) -> None:
    """Before anything is done again: the journal must get there."""
    last = max((fold.version for fold in journal.folds()), default=0)
    if isinstance(until, bool) or not isinstance(until, int) or not 0 <= until <= last:
        lost = f" (it lacks {journal.missing})" if journal.missing is not None else ""
        raise ReplayError(f"until={until!r}: {journal.path} holds versions 0 to {last}{lost}; give one of these")


def changed(head: JournalHead, train: Callable[..., object]) -> list[str]:
    """What is not as it was, in words."""
    now = versions()
    found = [f"{name} was {was}, is {now.get(name)}" for name, was in head.versions.items() if was != now.get(name)]
    if head.train_hash and head.train_hash != train_hash(train):  # the head of workers that joined does not know it
        found.append(f"the training function ({head.script or 'in no file'}) has changed")
    capability = torch.backends.cpu.get_cpu_capability()
    if head.cpu_capability != capability:
        found.append(f"torch used {head.cpu_capability} kernels, uses {capability}")
    return found
