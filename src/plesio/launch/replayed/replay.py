"""`ps.replay(run, train)`: do an earlier run again from its journal, bit for bit, in one process.

The recorded clock. What made the run what it was is the order in which events came to the sequencer, and that is in the
journal; everything else follows. Each worker runs in a greenlet up to its next request and lies there until the journal
says that it came. Whatever depends on time in the worker (how many local steps fitted into `Seconds(t)`, whether it heard
in time that its step was called off) is read from the journal as well.

| record                      | what is done                                                              |
| --------------------------- | ------------------------------------------------------------------------- |
| Joined                      | a new greenlet runs up to where training begins; one that comes back is   |
|                             | brought to where it lost its seat                                         |
| Scaled, Switched            | the sequencer and the folder hear of it                                   |
| RoundBegins, GivenUp        | the sequencer hears of it                                                 |
| LeaseWanted, Pushed         | the worker's request must be that one; the sequencer hears of it          |
| Abandoned, Left             | the sequencer hears of it                                                 |
| resumption                  | all begin anew from the version that is there                             |
| Ticked                      | the sequencer is told the time it was then                                |
| end                         | the weights must have the same hash                                       |
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from math import nan
from pathlib import Path
from typing import Any

import msgspec
import torch

from plesio.config.run_config import SERVERS_MAX
from plesio.core import events
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer
from plesio.errors import ConfigurationError
from plesio.launch.one_process.greenlets import GreenletWorker, Peek
from plesio.launch.one_process.own_copies import own_copies
from plesio.launch.one_process.seating import Seating, apart
from plesio.launch.one_process.wall_clock import no_wall_clock
from plesio.launch.replayed.recorded_worker import RecordedWorker, answers
from plesio.launch.replayed.repeatable import ReplayError, changed, check_beginning, check_until, strategy_of
from plesio.launch.torch_settings import TorchSettings
from plesio.observe.meter import Meter
from plesio.protocol.journal import NO_END, Journal, JournalError, read_journal, records
from plesio.protocol.rows import RowsRequest
from plesio.protocol.worker import (
    Beginning,
    Contribution,
    GoOn,
    LeaseReply,
    LeaseRequest,
    Ready,
    Supply,
)
from plesio.server.checkpointer import Checkpointer
from plesio.server.interfaces import Replies
from plesio.server.keeping import Keeping
from plesio.server.program import Program, event_of
from plesio.server.recording import Recorder
from plesio.strategy import Strategy
from plesio.strategy.answers import Every
from plesio.strategy.answers.answer import WHOLE
from plesio.transport.doorbell import Located


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay found.

    Attributes:
        versions: how many versions came out bit for bit as they were.
        differs: what was different first, in words; empty if nothing was.
        missing: what the journal itself lacks, in words; empty if it is whole (or, with `until`, has no end).
        state_dict: the weights it ended with, under their PyTorch names.

    >>> run = ps.run(train, "async_sgd", workers=2, runs="runs", engine=ps.Simulated("uniform"))
    >>> print(ps.replay(run.folder, train))
    bit-identical: 20 versions, all computed again
    """

    versions: int
    differs: str = ""
    missing: str = ""
    state_dict: dict[str, torch.Tensor] = {}

    @property
    def identical(self) -> bool:
        """Whether everything that was compared is the same."""
        return not self.differs

    def __str__(self) -> str:
        identical = f"bit-identical: {self.versions:,} versions, all computed again"
        found = f"differs: {self.differs}" if self.differs else identical
        return f"{found}\n{self.missing}" if self.missing else found


class _DifferentError(Exception):
    """Something came out otherwise than in the journal."""


def replay(
    run: str | Path, train: Callable[..., object], *, until: int | None = None, force: bool = False, servers: int = 1
) -> Replayed:
    """Do a run again from its journal.

    All workers are in this process, and share what those of `ps.Simulated` share: globals, and what nested functions refer to.

    Args:
        run: a run folder, or a journal.
        train: the training function of that run.
        until: stop at this version, one that the journal holds.
        force: go on even if script, libraries or machine are not the same.
        servers: how many hold the rows of tables; the run may have had another number.

    Raises:
        ReplayError: script, libraries or machine differ (and not `force`), workers folded without a server, or the
            journal does not get to version `until`.
        JournalError: no journal.

    >>> run = ps.run(train, "async_sgd", workers=2, runs="runs", engine=ps.Simulated("uniform"))
    >>> again = ps.replay(run.folder, train)
    >>> again.identical, all(torch.equal(again.state_dict[name], one) for name, one in run.state_dict.items())
    (True, True)
    """
    journal = read_journal(run)
    strategy = strategy_of(journal)
    check_beginning(journal)
    if until is not None:
        check_until(journal, until)
    if not WHOLE.holds(servers) or not 1 <= servers <= SERVERS_MAX:
        raise ConfigurationError(f"servers={servers!r}: a whole number from 1 to {SERVERS_MAX}")
    differences = changed(journal.head, train)
    if differences and not force:
        raise ReplayError(
            f"{journal.path}: not the same as when it was written: {'; '.join(differences)}; "
            "restore that, or go on all the same with --force (force=True)"
        )
    settings = TorchSettings.of_this_process()
    try:
        _apply(journal)
        with tempfile.TemporaryDirectory(prefix="plesio-clients-") as clients:
            again = _Replay(journal, strategy, train, until, servers, clients if strategy.every.by_client else "")
            with apart(journal.head.threads), closing(again.seating), warnings.catch_warnings(), no_wall_clock():
                warnings.simplefilter("ignore")  # all that is to be said was said when the run was made
                return again.run()
    finally:
        settings.apply()


def _apply(journal: Journal) -> None:
    """Tell torch what the journal says; of those names and values that plesio writes, no others."""
    try:
        msgspec.convert(journal.head.torch, TorchSettings).apply()
    except (msgspec.ValidationError, RuntimeError) as error:
        raise JournalError(f"{journal.path}: its settings of torch are none that plesio writes: {error}") from error


class _Checksums(Recorder):
    """Keeps checksums of versions instead of a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, int] = {}

    def told(self, event: events.Event, effects: Sequence[events.Effect], now_s: float, loss: float = nan) -> None:
        for effect in effects:
            if isinstance(effect, events.Fold):
                self.made[effect.version] = self.memory.checksum(effect.version)


class _Replay(Replies):
    """One replay: it brings the events to the server's program, and is its replies."""

    def __init__(
        self,
        journal: Journal,
        strategy: Strategy,
        train: Callable[..., object],
        until: int | None,
        servers: int,
        clients: str,
    ) -> None:
        head = journal.head
        self._journal = journal
        self._strategy = strategy
        self._train = own_copies(train, head.seats)
        self._until = until
        self._checksums = _Checksums()
        self._checkpointer = Checkpointer(Keeping(clients=clients), strategy, head.workers, head.seats, counts=True)
        leases = DataLeases(head.workers, head.stealing, lone=head.seats == 1)
        self._program = Program(
            strategy,
            Sequencer(strategy, head.workers, leases, head.silence_s),
            self,
            Meter(head.workers, spans_max=0, seats=head.seats),
            recorder=self._checksums,
            checkpointer=self._checkpointer,
            tell=lambda message: None,
        )
        resumed = any(isinstance(one, records.Resumed) for one in journal)
        self.seating = Seating(strategy, self._program, resumed or strategy.gives_back_mean, servers)
        self._seats = [RecordedWorker() for _ in range(head.seats)]
        self._answered: list[tuple[RecordedWorker, Any]] = []  # who goes on when an event is dealt with
        self._same = 0
        self._elsewhere: set[int | None] = set()  # workers of other hosts that are about to join

    def run(self) -> Replayed:
        differs = ""
        record: records.Record
        try:
            for record in self._journal.decisions():
                event = record.event
                if isinstance(event, events.WorkerEvent):
                    self._seats[event.worker].upcoming.append(event)
                    if isinstance(event, events.Joined):
                        self._seats[event.worker].joins.append(event)
            for record in self._journal:
                if self._until is not None and self._same >= self._until and self._program.begun:
                    break
                self._take(record)
        except (LookupError, AssertionError, OverflowError) as error:
            raise JournalError(f"{self._journal.path}: {record} cannot be in this run: {error!r}") from error
        except _DifferentError as found:
            differs = f"version {self._same + 1}: {found}"
        finally:
            for seat in self._seats:
                seat.over()
        weights = self.seating.state_dict if self._program.begun else {}
        missing = "" if self._journal.complete or self._until is not None else NO_END
        if self._journal.missing is not None:
            missing = f"the journal lacks {self._journal.missing}"
        return Replayed(versions=self._same, differs=differs, missing=missing, state_dict=weights)

    # What the journal says

    def _take(self, record: records.Record) -> None:
        match record:
            case records.Decision(time_s, event):
                self._told(event, time_s)
            case records.Noted(_, worker, text) if text == records.ELSEWHERE.format(worker):
                self._elsewhere.add(worker)
            case records.Resumed():
                self._resume(record.held)
            case records.Ended() if self._checksums.memory.digest() != record.weights_hash:
                raise _DifferentError("all versions looked the same, but the final weights differ")
        for seat, answer in self._answered:  # they run up to their next requests
            if seat.worker is not None and not seat.lost:
                seat.hear(answer)
        self._answered.clear()
        if isinstance(record, records.Decision):
            for place, fold in enumerate(record.folds):
                self._compare(fold, record.checksums[place])

    def _told(self, event: events.Event, time_s: float) -> None:
        if isinstance(event, events.WorkerEvent):
            self._heard(event, time_s)
        elif isinstance(event, events.Scaled):
            self._program.scale(event.workers, time_s)
        else:
            self._program.receive(event, time_s)

    def _compare(self, fold: events.Fold, checksum: int) -> None:
        ours = self._checksums.made.pop(fold.version, None)
        if ours != checksum:
            who = ", ".join(f"{one.number} of worker {one.worker}" for one in fold.members)
            what = f"made of contribution {who}, the weights are not the same"
            raise _DifferentError(what if ours is not None else "it was not made here")
        self._same = fold.version

    def _resume(self, held: tuple[int, ...]) -> None:
        """The run was interrupted after its checkpoint; do what restoring that does. `held`: whose own state came back."""
        if not self._program.begun:
            raise _DifferentError("the journal begins at a checkpoint: the part before it is not there")
        self._program.look()
        for seat in self._seats:
            seat.empty()
        memory = self._program.memory
        states = self._checkpointer.own_states(memory)
        self._checkpointer.go_on(memory, {worker: state for worker, state in states.items() if worker in held})
        memory.begin_anew()
        self._program.go_back(self._program.sequencer.state())

    def _heard(self, event: events.WorkerEvent, time_s: float) -> None:
        program, seat, worker = self._program, self._seats[event.worker], event.worker
        if isinstance(event, events.RowsWanted) and event.ahead:
            seat.forget(event)
        elif not (isinstance(event, events.Joined) or seat.asked_ahead):
            seat.upcoming.popleft()
        holds = seat.worker is not None and event.incarnation == seat.incarnation  # its process is still a member
        if isinstance(event, events.Joined):
            self._program.meter.workers[worker].away = worker in self._elsewhere
            self._elsewhere.discard(worker)
            self._join(seat, event, time_s)
            program.joined(worker, event.incarnation, time_s)
        elif isinstance(event, events.Left):
            seat.empty()
            program.left(worker, event.incarnation, event.died, time_s, event.early)
        elif holds and isinstance(event, events.Pushed):
            made = seat.request
            if not isinstance(made, Contribution) or event_of(made, event.worker, event.incarnation) != event:
                raise self._otherwise(seat, event)
            if made.beside.goes_on:
                self._answered.append((seat, None))
            program.pushed(worker, event.incarnation, made, time_s)
        elif holds and isinstance(event, events.RowsWanted):
            asked = seat.rows_asked if event.ahead else seat.request
            if not isinstance(asked, RowsRequest) or asked.number != event.number:
                raise self._otherwise(seat, event)
            program.supplies[type(asked)](worker, event.incarnation, asked, time_s)
        else:  # one under way when its worker was evicted: the sequencer, too, takes no notice of it
            otherwise = isinstance(event, events.LeaseWanted) and not answers(event, seat.request)
            if holds and otherwise and not seat.asked_ahead:
                raise self._otherwise(seat, event)
            program.receive(event, time_s)
            seat.asked_ahead = False
        if seat.called_off and holds and isinstance(event, (events.Abandoned, events.Pushed)):
            self._answered.append((seat, seat.called_off.popleft()))

    def _join(self, seat: RecordedWorker, event: events.Joined, time_s: float) -> None:
        head = self._journal.head
        seat.empty()
        if seat.worker is None:
            every: Every = seat  # type: ignore[assignment]
            task = self._train(), self._strategy, event.worker, head.workers, head.seed
            lone, sources = head.seats == 1, head.sources or b""
            seat.worker = GreenletWorker(*task, seat, every, lone=lone, sources=sources, stealing=head.stealing)
            if not self.seating.seat(seat.worker, time_s):
                raise self._otherwise(seat, event)
            seat.request = Ready()
        if event.at is not None:
            while not seat.lost:
                seat.request = seat.worker.resume(self._on_the_way(seat, event, event.at))
            seat.request = seat.worker.lose_seat()
        seat.incarnation = event.incarnation
        seat.joins.popleft()
        seat.upcoming.popleft()  # only now: on the way there it was still to come

    def _on_the_way(self, seat: RecordedWorker, event: events.Joined, to: events.Whereabouts) -> object:
        """Bring a worker nearer to where it lost its seat. What it did on the way is in no version, and much of it in no journal:
        the head that it did it for was lost. It only has to be as far."""
        assert seat.worker is not None, "it is under way"
        request, steps, version = seat.request, seat.worker.state.steps, self._program.version
        if request is None or steps > to.steps or (isinstance(request, LeaseRequest) and request.epoch >= to.epochs):
            raise self._otherwise(seat, event)
        if isinstance(request, LeaseRequest):
            here = steps < to.steps - (not to.asks) or request.epoch + 1 == to.epochs
            return LeaseReply(((request.epoch, 0),) if here else ())
        if request is Peek.LOOK:
            return False
        if isinstance(request, Ready):
            return self.seating.memory.whole(Beginning(version, False, 0, 0))
        return self.seating.memory.whole(GoOn(version, False, events.Verdict.TAKEN))

    def _otherwise(self, seat: RecordedWorker, event: events.WorkerEvent) -> _DifferentError:
        error = seat.worker.error if seat.worker is not None else None
        here = error or f"worker {event.worker} wants {seat.request}"
        return _DifferentError(f"the journal has {event}; here {here}")

    # What workers are answered when the event is dealt with. The run was not refused anything, or the journal would not have it

    def granted(self, grant: events.Grant, answer: Located) -> float:
        self._answered.append((self._seats[grant.worker], answer))
        return 0.0

    def called_off(self, cancel: events.Cancel, answer: Located) -> None:
        """It goes on when the journal says that it heard of that."""
        self._seats[cancel.worker].called_off.append(answer)

    def supplied(self, worker: int, reply: Supply) -> None:
        self._answered.append((self._seats[worker], reply))

    def evicted(self, evict: events.Evict) -> None:
        self._seats[evict.worker].empty()
