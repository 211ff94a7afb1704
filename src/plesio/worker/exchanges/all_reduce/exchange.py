"""A worker's part in an all-reduce: from the first full bucket of a backward pass to the optimizer's step."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import count
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.optim import Optimizer

from plesio.core.events import Verdict
from plesio.core.rounds import Call
from plesio.errors import ConfigurationError, DeadlineError, PlesioError, StopRun
from plesio.protocol.worker import (
    Beginning,
    CheckedOut,
    CheckIn,
    CheckOut,
    DroppedStep,
    Farewell,
    MirrorFilled,
    Regrouped,
    RollCalled,
    WorkDone,
)
from plesio.tensors.arena import Arena, Kind
from plesio.transport.board import Board
from plesio.transport.collective import LOOPBACK, CurrentGroup, Group, RendezvousStore, completed
from plesio.transport.doorbell import Doorbell
from plesio.worker.data_use import DataUse
from plesio.worker.exchanges.all_reduce.buffers import SharedBuffers
from plesio.worker.exchanges.all_reduce.replicated import IDLE, ReplicatedModel, reduce_again
from plesio.worker.exchanges.all_reduce.settings import SharedSettings
from plesio.worker.exchanges.all_reduce.takeover import take_over
from plesio.worker.exchanges.exchange import REPORT_S, Exchange
from plesio.worker.guards.divergence import DivergenceCheck
from plesio.worker.guards.unreduced import UnreducedGradients
from plesio.worker.pacer import Pacer
from plesio.worker.replica import ParameterReplica
from plesio.worker.state import WorkerState
from plesio.worker.warn import warn_not_finite

TRIES = 6
"""How often in a row the same workers try to form a group; each time they wait twice as long for each other."""
STORE_S = 5.0
"""How long each of those tries waits for the store by which workers find each other, if there is time for all of them."""
PATIENCE_S = 1.0
"""How much longer than the server's deadline for a silent worker the others wait: it is to evict that one first."""


class AllReduceExchange(Exchange):
    """A worker's part in it.

    Args:
        state: what the worker knows of its place.
        optimizer: the user's; it steps here.
        replica: the model's tensors in one arena.
        ring: the run's buffers: the evaluator's mirror first, two for the final weights last.
        model: the user's.
        regrouped: waits for the server to name the next group.
        timeout_s: how long to wait for anybody.
    """

    def __init__(
        self,
        state: WorkerState,
        optimizer: Optimizer,
        replica: ParameterReplica,
        ring: Sequence[Arena],
        model: nn.Module,
        doorbell: Doorbell,
        board: Board,
        pacer: Pacer,
        used: DataUse,
        regrouped: Callable[[], Regrouped],
        timeout_s: float,
    ) -> None:
        self._state = state
        self._optimizer = optimizer
        self._replica = replica
        self._ring = ring
        self._doorbell = doorbell
        self._board = board
        self._pacer = pacer
        self._used = used
        self._regrouped = regrouped
        self._timeout_s = timeout_s
        self._buffers = SharedBuffers(replica.arena.of_kind(Kind.BUFFER))
        self._settings = SharedSettings(optimizer)
        self._store: Any = None
        self._group = Group(None, 0, 0, 1, timeout_s)
        self._divergence = DivergenceCheck(replica.arena)
        self._process_group = CurrentGroup(self._group, lambda: self._divergence.checksum(self._round))
        trained = [
            one for one, spec in zip(replica.tensors, replica.layout.specs, strict=True) if spec.kind is Kind.TRAINED
        ]
        self._unreduced = UnreducedGradients(trained)
        ignored = [spec.name for spec in replica.layout.specs if spec.kind is not Kind.TRAINED]
        self.model = ReplicatedModel(
            model, self._process_group, ignored, self._reduce, replica.check, self._unreduced.after_forward
        )
        self._round = 0  # steps completed, by this replica
        self._version = 0  # those of them that moved the parameters
        self._batches = self._samples = 0  # that they used
        self._told = 0  # the version the server knows of
        self._leads = False
        self._mirrors = 0
        self._entered = False  # a backward pass of this step checked in
        self._spoiled = False  # its gradient will not be everybody's
        self._resting = True  # a backward pass takes its time
        self._over = False  # no step follows
        self._error: PlesioError | None = None
        self._issued_s = 0.0
        self._done = WorkDone()
        self._reported_s = 0.0

    def begin(self) -> None:
        """Wait until everybody is there, and form the first group."""
        self._doorbell.answer(Beginning, self._timeout_s, 0, 0)
        self._replica.adopt(self._doorbell.buffer)
        self._buffers.keep()
        self._state.begin(1)
        self._reported_s = time.monotonic()
        if self._check_in(intact=False) is Call.REGROUP:
            self._regroup()
        self._pacer.begin()

    # The backward pass

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The communication hook: a bucket of gradients is complete on this worker."""
        tensor = bucket.buffer().cpu()  # from a device of its own a copy, which DistributedDataParallel copies back
        if bucket.index() == 0:
            self._enter()
        self._process_group.silent = self._spoiled
        future = completed(tensor) if self._spoiled else self._group.mean(tensor)
        if bucket.is_last():
            self._unreduced.after_backward()
            self._replica.bring_back()
            self._buffers.begin(None if self._spoiled else self._group)
            self._issued_s = time.monotonic()
            self._pacer.begin()
        return future

    def _reduce_again(self) -> None:
        """Some gradients were added to outside of the passes that are reduced."""
        used = self._process_group.used
        self._resting = False
        reduce_again(self.model)
        self._resting = True
        self._process_group.used = used
        if self._error is not None:
            raise self._error

    def _enter(self) -> None:
        """Wait until everybody has got as far; what is wrong is raised by `step`, outside of the backward pass."""
        if self._resting:
            self._pacer.rest(time.sleep)
        again, self._entered = self._entered, True
        try:
            while not (self._spoiled or self._over) and self._group.finish():
                call = self._check_in()
                if call is Call.GO:
                    self._tell_board()
                    return
                self._spoiled = call is not Call.REGROUP or self._regroup(again)
        except PlesioError as error:
            self._error = error
        self._spoiled = True

    def _tell_board(self) -> None:
        """All are there: if this worker dies from here on, the step may be in the others' replicas with its gradient."""
        batches, samples = self._batches + self._used.batches, self._samples + self._used.samples
        self._board.folding(self._state.worker, self._round + 1, batches, samples)

    def _completed(self, round: int, version: int) -> None:
        """This replica is that far."""
        self._round, self._version = round, version
        self._board.folded(self._state.worker, round)

    def _check_in(self, intact: bool = True) -> Call:
        """Tell the server that this worker is there; what it says when all are."""
        news = self._settings.news()
        now_s = time.monotonic()
        self._doorbell.send(CheckIn(self._round, self._version, intact, news))
        answer = self._doorbell.answer(RollCalled, self._timeout_s + PATIENCE_S, self._round, self._version)
        self._done.wait_s += time.monotonic() - now_s
        self._state.stopped = self._state.stopped or answer.stop
        if answer.call is Call.UNEVEN:
            raise ConfigurationError(
                f"worker {self._state.worker} called backward() after {self._round} steps, another worker after a "
                "different number; under all-reduce every worker must call backward() equally often for each step(). If "
                "one step() is for several batches, count them on from epoch to epoch (a worker's part of an epoch may be "
                "one batch longer than another's, and what is over goes into the next epoch's first step), or leave out "
                "batches until the workers' number divides an epoch. If only some workers call backward() on one more loss, "
                "let all do it, on that loss times 0 where it is not wanted"
            )
        if answer.call is Call.GO:
            self._settings.agree(self._group, answer.settings_differ)
        return answer.call

    # The step

    def step(self) -> None:
        """One step of the training loop."""
        if self._error is not None:
            raise self._error
        if self._over or not self._entered:
            self._refuse_step()
        if self._unreduced.found:
            self._reduce_again()
        self._entered = False
        batches, samples = self._used()
        verdict = self._conclude()
        self._state.verdict, self._state.version = verdict, self._version
        if verdict is Verdict.CANCELLED:
            self._drop(batches)
        else:
            self._count(verdict, batches, samples)
        self._mirror()
        self._over = self._state.stopped
        self._state.begin(self._state.number + 1)
        self._pacer.begin()

    def _refuse_step(self) -> None:
        if self._state.stopped:
            raise StopRun("the run is over")
        raise ConfigurationError(
            "step() without a gradient to exchange: call the model that prepare returned (not one of its methods, or the "
            "model given to prepare), then loss.backward(), then step()"
        )

    def _conclude(self) -> Verdict:
        """Step, if everything came and is finite."""
        came = self._group.finish()
        self._done.exchange_s += max(self._group.done_s - self._issued_s, 0.0) if self._issued_s else 0.0
        spoiled, self._spoiled, self._issued_s = self._spoiled, False, 0.0
        if spoiled or not came:
            return self._recover()
        if not self._process_group.alike:
            self._divergence.refuse(self._round)
        if not self._replica.check_gradients():
            self._buffers.restore()
            self._completed(self._round + 1, self._version)
            return Verdict.NOT_FINITE
        self._buffers.take(self._group.size)
        with self._settings.in_force() if self._group.size > 1 else nullcontext():
            self._optimizer.step()
        self._completed(self._round + 1, self._version + 1)
        return Verdict.TAKEN

    def _recover(self) -> Verdict:
        """This step's gradient did not come: go on without it, in a new group if this one broke."""
        self._process_group.alike = True  # who took over another's state is
        self._buffers.restore()
        behind = self._round, self._version
        if self._group.broken and not self._state.stopped:
            self._group.close()
            if self._check_in(intact=False) is Call.REGROUP:
                self._regroup()
        if self._round > behind[0]:
            return Verdict.TAKEN if self._version > behind[1] else Verdict.NOT_FINITE
        return Verdict.CANCELLED

    def _count(self, verdict: Verdict, batches: int, samples: int) -> None:
        """The step counts."""
        done = self._done
        self._state.steps += 1
        done.steps += 1
        done.samples += samples
        done.batches += batches
        self._samples += samples
        self._batches += batches
        done.missing += self._missing()
        if verdict is Verdict.TAKEN:
            done.folded(staleness=0)
        if verdict is Verdict.NOT_FINITE:
            self._state.discarded += 1
            warn_not_finite(self._state.worker)
            self.report(finite=False)
        elif self._state.stopped or time.monotonic() - self._reported_s > REPORT_S:
            self.report()

    def _drop(self, batches: int) -> None:
        """The step does not count; its data goes to whoever asks next."""
        self._missing()
        self.report()
        self._state.discarded += 1
        reason = "the run ended" if self._state.stopped else "the group broke"
        self._doorbell.send(DroppedStep(batches, reason=reason))

    def _missing(self) -> int:
        """Parameters that took no part in this worker's loss."""
        used, self._process_group.used = self._process_group.used, None
        return int((used == 0).sum()) - IDLE if used is not None else 0

    # Groups

    def _regroup(self, again: bool = False) -> bool:
        """Join the group that the server called; whether the step under way is lost to this worker.

        It is where this worker took over another's state or had to give up, and where one of several backward passes of
        this step is done already (`again`): those to whom it did not come start the step anew, and so do all.

        Raises:
            DeadlineError: nobody left, and still no group comes about.
        """
        members: tuple[int, ...] = ()
        alike, since_s = 0, 0.0
        for tries in count():
            message = self._regrouped()
            if message.members != members:
                members, alike, since_s = message.members, 0, time.monotonic()
            alike += 1
            try:
                return self._join(message, tries) or (again and not message.intact)
            except RuntimeError as error:
                self._group.fail(error)
                if alike == TRIES or time.monotonic() - since_s > self._timeout_s:
                    self._refuse_group(members, alike, time.monotonic() - since_s, error)
            self._group.close()
            if self._check_in(intact=False) is not Call.REGROUP:
                break
        return True

    def _refuse_group(self, members: tuple[int, ...], tries: int, lasted_s: float, error: RuntimeError) -> NoReturn:
        reason = str(error).strip().split("\n")[0]
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        raise DeadlineError(
            f"workers {', '.join(map(str, members))} could not form a group for all-reduce at version {self._version}: tried "
            f"{tries} times in {lasted_s:.1f} s; torch says: {reason}. Each connects to all others by sockets on {LOOPBACK}: "
            f"allow more open files (ulimit -n; now {most} a process) if these are too few, or choose a strategy with a server"
        ) from error

    def _join(self, message: Regrouped, tries: int) -> bool:
        """Become a member; whether this worker took over another's state.

        Raises:
            RuntimeError: somebody did not come, or died before the state was passed on.
        """
        self._group.close()
        if self._store is None:
            self._store = RendezvousStore.at(message.port, min(self._timeout_s / TRIES, STORE_S))
        rank = message.members.index(self._state.worker)
        size = len(message.members)
        generation, board = message.generation, self._board
        self._group = Group(
            self._store, generation, rank, size, self._timeout_s, tries, lambda: board.broken >= generation
        )
        self._process_group.group = self._group
        before = self._round, self._version
        if message.source >= 0:
            source = message.members.index(message.source)
            self._completed(
                *take_over(self._group, source, before, self._optimizer, self._replica.arena, self._buffers)
            )
        self._leads = rank == 0
        if self._leads:
            self._told, self._mirrors = message.version, message.mirrors
        return (self._round, self._version) != before

    # Telling

    def report(self, finite: bool = True) -> None:
        """Tell the server what was done since last told; the lowest worker also, how many versions that made."""
        versions = self._version - self._told if self._leads else 0
        if not self._done.steps and not versions:
            return
        done, self._done = self._done, WorkDone()
        done.versions, done.finite = versions, finite
        now_s = time.monotonic()
        done.lasted_s, self._reported_s = now_s - self._reported_s, now_s
        self._told += versions
        self._doorbell.send(done)

    def _mirror(self) -> None:
        """The lowest worker shows the evaluator its replica when that asks."""
        wanted = self._board.mirror_wanted
        if self._leads and wanted > self._mirrors:
            self.report()
            self._replica.fill_slot()
            self._ring[0].copy_from(self._replica.arena, Kind.FROZEN)  # which the loop may write (a teacher's)
            self._mirrors = wanted
            self._doorbell.send(MirrorFilled(wanted))

    def end(self) -> None:
        """The training function returned. Whoever is last leaves the final weights; nobody knows who that is."""
        saved = self._replica.writes.saved_buffers() if self._state.warns_at_the_end() else {}
        written = {place: one.clone() for place, one in saved.items()}
        self._buffers.restore()
        self._replica.writes.warn_of_buffers(written, self._replica.arena.views)
        self.report()
        self._doorbell.send(CheckOut(self._version))
        if self._doorbell.answer(CheckedOut, self._timeout_s, self._round, self._version).wanted:
            self._ring[self._doorbell.buffer].copy_from(self._replica.arena)
        self._doorbell.send(Farewell())
        self._group.close()
