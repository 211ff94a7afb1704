"""A worker's part in an all-reduce: from the first full bucket of a backward pass to the optimizer's step."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, NoReturn

import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.optim import LBFGS

from plesio.core.events import Verdict
from plesio.core.rounds import Call
from plesio.errors import ConfigurationError, DeadlineError, PlesioError, StopRun
from plesio.protocol import worker as messages
from plesio.tensors.arena import Kind
from plesio.tensors.model import Models
from plesio.tensors.several import Several
from plesio.transport.collective import CurrentGroup, Group, Hosts, completed, connected_store
from plesio.worker.exchanges.all_reduce.buffers import SharedBuffers
from plesio.worker.exchanges.all_reduce.replicated import IDLE, ReplicatedModel, UnreducedGradients, reduce_again
from plesio.worker.exchanges.all_reduce.settings import SharedSettings
from plesio.worker.exchanges.all_reduce.takeover import take_over
from plesio.worker.exchanges.among_peers import PeerExchange
from plesio.worker.guards.divergence import DivergenceCheck

TRIES = 6  # how often in a row the same workers try to form a group; each time they wait twice as long for each other
STORE_S = 5.0
"""How long each of those tries waits for the store by which workers find each other, if there is time for all of them."""
PATIENCE_S = 1.0
"""How much longer than the server's deadline for a silent worker the others wait: it is to evict that one first."""


@dataclass(eq=False)
class AllReduceExchange(PeerExchange):
    """A worker's part in it.

    Attributes:
        user_model: what was given to prepare; `model` is what the training loop calls.
        regrouped: waits for the server to name the next group.
        hosts: where members find each other.
    """

    user_model: nn.Module
    regrouped: Callable[[], messages.Regrouped]
    hosts: Hosts = Hosts()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.user_model, Models) or isinstance(self.optimizer, Several | LBFGS):
            raise ConfigurationError(
                "allreduce exchanges in the backward pass of one module, for one optimizer that steps once a backward pass; for "
                "several modules or optimizers, and for L-BFGS, take sync_sgd or local_sgd"
            )
        arena, layout = self.replica.arena, self.replica.layout
        self._buffers = SharedBuffers(arena.of_kind(Kind.BUFFER))
        self._settings = SharedSettings(self.optimizer)
        self._store: Any = None
        self._group = Group(None, 0, 0, 1, self.timeout_s)
        self._divergence = DivergenceCheck(arena)
        self._process_group = CurrentGroup(self._group, lambda: self._divergence.checksum(self._round))
        self._unreduced = UnreducedGradients(self.replica.trained)
        ignored = [spec.name for spec in layout.specs if spec.kind is not Kind.TRAINED]
        self.model = ReplicatedModel(
            self.user_model,
            self._process_group,
            ignored,
            self._reduce,
            self.replica.check,
            self._unreduced.after_forward,
        )
        self._round = 0  # steps completed, by this replica; `_version` of them moved the parameters
        self._leads = False
        self._mirror = 0  # the last that it filled
        self._entered = False  # a backward pass of this step checked in
        self._left_out = False  # this step's gradient goes into no all-reduce
        self._resting = True  # a backward pass takes its time
        self._over = False  # no step follows
        self._error: PlesioError | None = None
        self._issued_s = 0.0

    def begin(self) -> None:
        super().begin()
        self._buffers.keep()
        self.state.begin(1)
        if self._check_in(intact=False) is Call.REGROUP:
            self._regroup()
        self.pacer.begin()

    # The backward pass

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The communication hook: a bucket of gradients is complete on this worker."""
        tensor = bucket.buffer().cpu()  # from a device of its own a copy, which DistributedDataParallel copies back
        if bucket.index() == 0:
            self._enter()
        self._process_group.silent = self._left_out
        future = completed(tensor) if self._left_out else self._group.mean(tensor)
        if bucket.is_last():
            self._unreduced.after_backward()
            self.replica.bring_back()
            self._buffers.begin(None if self._left_out else self._group)
            self._issued_s = time.monotonic()
            self.pacer.begin()
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
            self.pacer.rest(time.sleep)
        again, self._entered = self._entered, True
        try:
            while not (self._left_out or self._over) and self._group.finish():
                call = self._check_in()
                if call is Call.GO:
                    return
                self._left_out = call is not Call.REGROUP or self._regroup(again)
        except PlesioError as error:
            self._error = error
        self._left_out = True

    def _completed(self, round: int, version: int) -> None:
        self._round, self._version = round, version
        self.board.folded(self.state.worker, round)

    def _check_in(self, intact: bool = True) -> Call:
        """Tell the server that this worker is there; what it says when all are."""
        news = self._settings.news()
        now_s = time.monotonic()
        batches, samples = self._batches + self.used.batches, self._samples + self.used.counted
        self.doorbell.send(messages.CheckIn(self._round, self._version, intact, batches, samples, news))
        answer = self.doorbell.answer(messages.RollCalled, self.timeout_s + PATIENCE_S, self._round, self._version)
        self._done.wait_s += time.monotonic() - now_s
        self.state.stopped = self.state.stopped or answer.stop
        if answer.call is Call.UNEVEN:
            raise ConfigurationError(
                f"worker {self.state.worker} called backward() after {self._round} steps, another worker after a "
                "different number; under all-reduce every worker must call backward() equally often for each step(). If "
                "one step() is for several batches, count them on from epoch to epoch: a worker's part of an epoch may be "
                "one batch longer. If only some call backward() on one more loss, let all do it, times 0 where it is not wanted"
            )
        if answer.call is Call.GO:
            self._settings.agree(self._group, answer.settings_differ)
        return answer.call

    # The step

    def step(self) -> None:
        if self._error is not None:
            raise self._error
        if self._over or not self._entered:
            self._refuse_step()
        if self._unreduced.found:
            self._reduce_again()
        self._entered = False
        batches, samples = self.used()
        verdict = self._conclude()
        self.state.version = self._version
        if verdict is Verdict.CANCELLED:
            self._drop(batches)
        else:
            if verdict is Verdict.TAKEN:
                self._done.folded(staleness=0)
            self._count(batches, samples, self._missing())
            self._report_step(verdict is not Verdict.NOT_FINITE)
        self._fill_mirror()
        self._over = self.state.stopped
        self.state.begin(self.state.number + 1)
        self.pacer.begin()

    def _refuse_step(self) -> None:
        if self.state.stopped:
            raise StopRun("the run is over")
        raise ConfigurationError(
            "step() without a gradient to exchange: call the model that prepare returned (not one of its methods, or the "
            "model given to prepare), then loss.backward(), then step()"
        )

    def _conclude(self) -> Verdict:
        """Step, if everything came and is finite."""
        came = self._group.finish()
        self._done.exchange_s += max(self._group.done_s - self._issued_s, 0.0) if self._issued_s else 0.0
        left_out, self._left_out, self._issued_s = self._left_out, False, 0.0
        if left_out or not came:
            return self._recover()
        if not self._process_group.alike:
            self._divergence.refuse(self._round)
        if not self.replica.check_gradients():
            self._buffers.restore()
            self._completed(self._round + 1, self._version)
            return Verdict.NOT_FINITE
        self._buffers.take(self._group.size)
        with self._settings.in_force() if self._group.size > 1 else nullcontext():
            self.optimizer.step()
        self.moved()
        self._completed(self._round + 1, self._version + 1)
        return Verdict.TAKEN

    def _recover(self) -> Verdict:
        """This step's gradient did not come: go on without it, in a new group if this one broke."""
        self._process_group.alike = True  # who took over another's state is
        self._buffers.restore()
        behind = self._round, self._version
        if self._group.broken and not self.state.stopped:
            self._group.close()
            if self._check_in(intact=False) is Call.REGROUP:
                self._regroup()
        if self._round > behind[0]:
            return Verdict.TAKEN if self._version > behind[1] else Verdict.NOT_FINITE
        return Verdict.CANCELLED

    def _drop(self, batches: int) -> None:
        """The step does not count; its data goes to whoever asks next."""
        self._missing()
        self.report()
        self.state.discarded += 1
        reason = "the run ended" if self.state.stopped else "the group broke"
        self.doorbell.send(messages.DroppedStep(batches, reason=reason))

    def _missing(self) -> int:
        """Parameters that took no part in this worker's loss."""
        used, self._process_group.used = self._process_group.used, None
        return int((used == 0).sum()) - IDLE if used is not None else 0

    # Groups

    def _regroup(self, again: bool = False) -> bool:
        """Join the group that the server called. Returns True if this worker must redo the step. It must after it took over
        another's state or gave up. It also must after the first of several backward passes (`again`). A new member has not made
        that pass, so all start the step anew."""
        members: tuple[int, ...] = ()
        alike, since_s = 0, 0.0
        for tries in count():
            message = self.regrouped()
            if message.outcome.workers != members:
                members, alike, since_s = message.outcome.workers, 0, time.monotonic()
            alike += 1
            try:
                return self._join(message, tries) or (again and not message.outcome.intact)
            except RuntimeError as error:
                self._group.fail(error)
                if alike == TRIES or time.monotonic() - since_s > self.timeout_s:
                    self._refuse_group(members, alike, time.monotonic() - since_s, error)
            self._group.close()
            if self._check_in(intact=False) is not Call.REGROUP:
                break
        return True

    def _refuse_group(self, members: tuple[int, ...], tries: int, lasted_s: float, error: RuntimeError) -> NoReturn:
        reason = str(error).strip().split("\n")[0]
        raise DeadlineError(
            f"workers {', '.join(map(str, members))} could not form a group for all-reduce at version {self._version}: tried "
            f"{tries} times in {lasted_s:.1f} s; torch says: {reason}. Each connects to all others by sockets from "
            f"{self.hosts.own}: allow more open files (ulimit -n) if these are too few, or choose a "
            "strategy with a server"
        ) from error

    def _join(self, message: messages.Regrouped, tries: int) -> bool:
        """Become a member; whether this worker took over another's state. RuntimeError if somebody is missing."""
        self._group.close()
        if self._store is None:
            self._store = connected_store(self.hosts.store, message.port, min(self.timeout_s / TRIES, STORE_S))
        outcome, board = message.outcome, self.board
        members, generation = outcome.workers, outcome.generation
        rank = members.index(self.state.worker)
        known_broken = lambda: board.broken >= generation  # noqa: E731
        self._group = Group(
            self._store, generation, rank, len(members), self.timeout_s, tries, known_broken, self.hosts.own
        )
        self._process_group.group = self._group
        before = self._round, self._version
        if outcome.source is not None:
            source = members.index(outcome.source)
            self._completed(*take_over(self._group, source, before, self.optimizer, self.replica.arena, self._buffers))
        self._leads = rank == 0
        return (self._round, self._version) != before

    # Telling

    def _fill_mirror(self) -> None:
        """The lowest worker shows the evaluator its replica when that asks."""
        wanted = self.board.mirror_wanted
        if self._leads and wanted and wanted != self._mirror:
            self.report()
            self.replica.fill_slot()
            self.replica.ring.first.read.copy_from(
                self.replica.arena, Kind.FROZEN
            )  # which the loop may write (a teacher's)
            self._mirror = wanted
            self.doorbell.show(messages.MirrorFilled(wanted))

    def end(self) -> None:
        """The training function returned. Whoever is last leaves the final weights; nobody knows who that is."""
        warns = self.state.worker == 0 and not self.state.stopped
        saved = self.replica.writes.saved_buffers() if warns else {}
        written = {place: one.clone() for place, one in saved.items()}
        self._buffers.restore()
        self.replica.writes.warn_of_late([], written, self.replica.arena.views)
        self.report()
        self.doorbell.send(messages.CheckOut(self._round, self._version))
        if self.doorbell.answer(messages.CheckedOut, self.timeout_s, self._round, self._version).wanted:
            self.doorbell.shown(self.replica.ring).read.copy_from(self.replica.arena)
            self.doorbell.show(messages.Farewell())
        else:
            self.doorbell.send(messages.Farewell())
        self._group.close()
