"""All-reduce: every worker keeps a whole replica, and steps it by the mean of everybody's gradients.

torch's DistributedDataParallel does the work: it fills buckets during the backward pass and hands each over when it is
full. What is added here makes it survive whoever leaves. One backward pass of one worker:

    first bucket full   rest (a paced or slow worker), check in with the server: GO, when all live workers are there
    each bucket full    begin the mean of it over the group
    last bucket full    begin the mean of the buffers (batch-norm statistics), too
    all came            DistributedDataParallel puts the means into .grad; backward() returns

and `optimizer.step()` steps by them. Replicas stay equal bit for bit: a collective gives all the same bits, the optimizer's
hyper-parameters are the lowest worker's where they differ, and a step that does not count leaves no trace.

| what goes wrong                                   | what becomes of the step                                          |
| ------------------------------------------------- | ----------------------------------------------------------------- |
| somebody finishes or dies before all have checked in | nothing: the others form a new group and reduce in that        |
| somebody dies while buckets are on their way      | dropped by those to whom not all came. If it did all come to      |
|                                                   | somebody, the others take over that worker's state: it counts     |
| a gradient with a NaN or an infinity              | all see the same mean, and all skip it                            |
| the run is over, and somebody's step lasts too long | dropped, so that the others can end                             |
"""

from __future__ import annotations

import io
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.optim import Optimizer

from plesio.core.events import Verdict
from plesio.core.rollcall import Call
from plesio.engine.messages import Regrouped
from plesio.errors import ConfigurationError, PlesioError, StepCancelled, StopRun
from plesio.exchange import REPORT_S, Pacer, Standing, Used, warn_not_finite
from plesio.fabric.board import Board
from plesio.fabric.collective import Everybody, Group, MeetingPoint, as_it_is
from plesio.fabric.doorbell import Answer, Doorbell, Header, Note, Report
from plesio.replicated import IDLE, ReplicatedModel
from plesio.tensors.arena import Arena, Kind
from plesio.tensors.outer import hyper_parameters
from plesio.tensors.replica import ParameterReplica, is_finite

RESCUE_S = 0.4
"""How often a worker looks whether it is stuck in a group known to be broken; at the second look it gives that up."""
PATIENCE_S = 1.0
"""How much longer than the server's deadline for a silent worker the others wait: it is to evict that one first."""


class Tally(msgspec.Struct):
    """What a worker did since it last reported."""

    steps: int = 0
    samples: int = 0
    batches: int = 0
    folded: int = 0
    missing: int = 0
    wait_s: float = 0.0
    exchange_s: float = 0.0


class AllReduceExchange:
    """A worker's part in it.

    Buffers are averaged over the workers with each step, as the parameters are by theirs; counts take the largest.

    Args:
        standing: what the worker knows of its place.
        optimizer: the user's; it steps here.
        replica: the model's tensors in one arena.
        ring: the run's buffers: the evaluator's mirror first, the final weights last.
        model: the user's.
        regrouped: waits for the server to name the next group.
        timeout_s: how long to wait for anybody.
    """

    cancels = False

    def __init__(
        self,
        standing: Standing,
        optimizer: Optimizer,
        replica: ParameterReplica,
        ring: Sequence[Arena],
        model: nn.Module,
        doorbell: Doorbell,
        board: Board,
        pacer: Pacer,
        used: Used,
        regrouped: Callable[[], Regrouped],
        timeout_s: float,
    ) -> None:
        self._standing = standing
        self._optimizer = optimizer
        self._replica = replica
        self._ring = ring
        self._doorbell = doorbell
        self._board = board
        self._pacer = pacer
        self._used = used
        self._regrouped = regrouped
        self._timeout_s = timeout_s
        specs = list(zip(replica.tensors, replica.layout.specs, strict=True))
        self._trained = [tensor for tensor, spec in specs if spec.kind is Kind.TRAINED]
        self._buffers = replica.arena.of_kind(Kind.BUFFER)
        self._kept = [flat.clone() for flat in self._buffers]
        self._incoming: list[torch.Tensor] = []
        self._store: Any = None
        self._group = Group(None, 0, 0, 1, timeout_s)
        self._everybody = Everybody(self._group)
        ignored = [spec.name for _, spec in specs if spec.kind is not Kind.TRAINED]
        self.model = ReplicatedModel(model, self._everybody, ignored, self._reduce)
        self._round = 0  # steps completed, by this replica
        self._version = 0  # those of them that moved the parameters
        self._told = 0  # the version the server knows of
        self._leads = False
        self._mirrors = 0
        self._entered = False  # a backward pass of this step checked in
        self._spoiled = False  # its gradient will not be everybody's
        self._over = False  # no step follows
        self._error: PlesioError | None = None
        self._sent_settings = b""
        self._agreed: list[dict[str, Any]] | None = None
        self._issued_s = 0.0
        self._tally = Tally()
        self._reported_s = 0.0

    def begin(self) -> None:
        """Wait until everybody is there, and form the first group."""
        self._replica.adopt(self._doorbell.answer(self._timeout_s, 0, 0).buffer)
        self._keep_buffers()
        self._reported_s = time.monotonic()
        if self._check_in(Note.BROKEN) is Call.REGROUP:
            self._regroup()
        threading.Thread(target=self._rescue, name="rescue", daemon=True).start()
        self._pacer.begin()

    def _rescue(self) -> None:
        """Give up what is stuck in a group that another member reported broken, where gloo itself does not notice."""
        stuck: Group | None = None
        while True:
            time.sleep(RESCUE_S)
            group = self._group
            suspect = group.busy and self._board.broken >= group.generation
            if suspect and group is stuck:
                group.abandon()
            stuck = group if suspect else None

    # The backward pass

    def _reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The communication hook: a bucket of gradients is complete on this worker."""
        tensor = bucket.buffer()
        if bucket.index() == 0:
            self._enter()
        self._everybody.silent = self._spoiled
        future = as_it_is(tensor) if self._spoiled else self._group.mean(tensor)
        if bucket.is_last():
            self._begin_buffers()
            self._issued_s = time.monotonic()
            self._pacer.begin()
        return future

    def _enter(self) -> None:
        """Wait until everybody has got as far; what is wrong is raised by `step`, outside of the backward pass."""
        self._pacer.rest(time.sleep)
        again, self._entered = self._entered, True
        try:
            while not (self._spoiled or self._over) and self._group.finish():
                call = self._check_in(Note.ENTER)
                if call is Call.GO:
                    return
                self._spoiled = call is not Call.REGROUP or self._regroup(again)
        except PlesioError as error:
            self._error = error
        self._spoiled = True

    def _check_in(self, note: Note) -> Call:
        """Tell the server that this worker is there; what it says when all are."""
        settings = msgspec.msgpack.encode(hyper_parameters(self._optimizer), enc_hook=repr)
        news = settings if settings != self._sent_settings else b""
        self._sent_settings = settings
        now_s = time.monotonic()
        self._doorbell.send(Header(note, True, 0, 0, self._round, self._version, 0, now_s, news))
        answer = self._doorbell.answer(self._timeout_s + PATIENCE_S, self._round, self._version)
        self._tally.wait_s += time.monotonic() - now_s
        self._standing.stopped = self._standing.stopped or answer.stop
        call = Call(answer.buffer)
        if call is Call.UNEVEN:
            raise ConfigurationError(
                f"worker {self._standing.worker} called backward() after {self._round} steps, another worker after a "
                "different number; under all-reduce every worker must call backward() equally often for each step()"
            )
        if call is Call.GO:
            self._agree(settings, answer)
        return call

    def _agree(self, settings: bytes, answer: Answer) -> None:
        """The lowest worker's hyper-parameters are everybody's in this step, where they are not the same anyway."""
        self._agreed = None
        if answer.staleness:
            try:
                self._agreed = msgspec.msgpack.decode(self._group.share(settings, 0))
            except RuntimeError as error:
                self._group.fail(error)

    def _begin_buffers(self) -> None:
        self._incoming = []
        if self._spoiled or not self._group.works:
            return
        self._incoming = [flat.clone() if flat.is_floating_point() else flat.long() for flat in self._buffers]
        for incoming in self._incoming:
            self._group.reduce(incoming, largest=not incoming.is_floating_point())

    # The step

    def step(self) -> None:
        """One step of the training loop."""
        if self._error is not None:
            raise self._error
        if self._over or not self._entered:
            self._refuse_step()
        self._entered = False
        batches, samples = self._used()
        verdict = self._conclude()
        self._standing.verdict, self._standing.version = verdict, self._version
        if verdict is Verdict.CANCELLED:
            self._drop(batches)
        else:
            self._count(verdict, batches, samples)
        self._mirror()
        self._over = self._standing.stopped
        self._pacer.begin()

    def _refuse_step(self) -> None:
        if self._standing.stopped:
            raise StopRun("the run is over")
        raise ConfigurationError(
            "step() without a gradient to exchange: call the model that prepare returned (not one of its methods, or the "
            "model given to prepare), then loss.backward(), then step()"
        )

    def _conclude(self) -> Verdict:
        """Step, if everything came and is finite."""
        came = self._group.finish()
        self._tally.exchange_s += max(self._group.done_s - self._issued_s, 0.0) if self._issued_s else 0.0
        spoiled, self._spoiled, self._issued_s = self._spoiled, False, 0.0
        if spoiled or not came:
            return self._recover()
        if not all(_finite(parameter.grad) for parameter in self._trained):
            self._restore_buffers()
            self._round += 1
            return Verdict.NOT_FINITE
        for flat, incoming in zip(self._buffers, self._incoming, strict=False):  # none to come where alone
            flat.copy_(incoming.div_(self._group.size) if incoming.is_floating_point() else incoming)
        self._keep_buffers()
        with self._settings():
            self._optimizer.step()
        self._round += 1
        self._version += 1
        return Verdict.TAKEN

    @contextmanager
    def _settings(self) -> Iterator[None]:
        """The hyper-parameters as they were agreed on, for one step."""
        groups = self._optimizer.param_groups
        if self._group.size == 1:
            yield
            return
        mine = msgspec.msgpack.encode(hyper_parameters(self._optimizer), enc_hook=repr)
        if self._agreed is None and mine == self._sent_settings:
            yield
            return
        if mine != self._sent_settings:
            warnings.warn(
                "a hyper-parameter of the optimizer changed between backward() and step(): under all-reduce it takes "
                "effect at the next step, when all workers know of it; change it before backward(), or after step()",
                RuntimeWarning,
                stacklevel=6,
            )
        agreed = self._agreed or msgspec.msgpack.decode(self._sent_settings)
        kept = [dict(group) for group in groups]
        for group, theirs in zip(groups, agreed, strict=True):
            group.update({key: _setting(value) for key, value in theirs.items() if not isinstance(value, str)})
        try:
            yield
        finally:
            for group, before in zip(groups, kept, strict=True):
                group.update(before)

    def _recover(self) -> Verdict:
        """This step's gradient did not come: go on without it, in a new group if this one broke."""
        self._restore_buffers()
        behind = self._round, self._version
        if self._group.broken and not self._standing.stopped:
            self._group.close()
            if self._check_in(Note.BROKEN) is Call.REGROUP:
                self._regroup()
        if self._round > behind[0]:
            return Verdict.TAKEN if self._version > behind[1] else Verdict.NOT_FINITE
        return Verdict.CANCELLED

    def _count(self, verdict: Verdict, batches: int, samples: int) -> None:
        """The step counts."""
        tally = self._tally
        self._standing.steps += 1
        tally.steps += 1
        tally.samples += samples
        tally.batches += batches
        tally.folded += verdict is Verdict.TAKEN
        tally.missing += self._missing()
        if verdict is Verdict.NOT_FINITE:
            self._standing.discarded += 1
            warn_not_finite(self._standing.worker)
            self.report(finite=False)
        elif self._standing.stopped or time.monotonic() - self._reported_s > REPORT_S:
            self.report()

    def _drop(self, batches: int) -> None:
        """The step does not count; its data goes to whoever asks next."""
        self._missing()
        self.report()
        self._standing.discarded += 1
        reason = b"the run ended" if self._standing.stopped else b"the group broke"
        self._doorbell.send(Header(Note.ABANDON, True, batches, 0, 0, 0, 0, time.monotonic(), reason))

    def _missing(self) -> int:
        """Parameters that took no part in this worker's loss."""
        used, self._everybody.used = self._everybody.used, None
        return int((used == 0).sum()) - IDLE if used is not None else 0

    # Groups

    def _regroup(self, again: bool = False) -> bool:
        """Join the group that the server called; whether the step under way is lost to this worker.

        It is where this worker took over another's state or had to give up, and where one of several backward passes of
        this step is done already (`again`): those to whom it did not come start the step anew, and so do all.
        """
        for tries in count():
            message = self._regrouped()
            try:
                return self._join(message, tries) or (again and not message.intact)
            except RuntimeError as error:
                self._group.fail(error)
            self._group.close()
            if self._check_in(Note.BROKEN) is not Call.REGROUP:
                break
        return True

    def _join(self, message: Regrouped, tries: int) -> bool:
        """Become a member; whether this worker took over another's state.

        Raises:
            RuntimeError: somebody did not come, or died before the state was passed on.
        """
        self._group.close()
        if self._store is None:
            self._store = MeetingPoint.at(message.port)
        rank = message.members.index(self._standing.worker)
        size = len(message.members)
        self._group = Group(self._store, message.generation, rank, size, self._timeout_s, tries)
        self._everybody.group = self._group
        taken_over = message.source >= 0 and self._take_over(message.members.index(message.source))
        self._leads = rank == 0
        if self._leads:
            self._told, self._mirrors = message.version, message.mirrors
        return taken_over

    def _take_over(self, source: int) -> bool:
        """Those that are behind go on from member `source`: parameters, buffers, and the optimizer's state.

        It is put in place only when all of it has come: whoever dies meanwhile, this replica is whole.
        """
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        state = io.BytesIO()
        if self._group.rank == source:
            states = [dict(self._optimizer.state.get(parameter, {})) for parameter in parameters]
            torch.save({"round": self._round, "version": self._version, "states": states}, state)
        came = torch.load(io.BytesIO(self._group.share(state.getvalue(), source)), weights_only=True)
        kept = {
            id(flat): one for flat, one in zip(self._buffers, self._kept, strict=True)
        }  # the next step wrote into it
        flats = [kept.get(id(flat), flat).clone() for flat in self._replica.arena.flat]
        for flat in flats:
            self._group.broadcast(flat, source)
        if (came["round"], came["version"]) == (self._round, self._version):
            return False
        self._round, self._version = came["round"], came["version"]
        for parameter, theirs in zip(parameters, came["states"], strict=True):
            self._optimizer.state[parameter] = theirs
        for mine, flat in zip(self._replica.arena.flat, flats, strict=True):
            mine.copy_(flat)
        self._keep_buffers()
        return True

    def _keep_buffers(self) -> None:
        """What the buffers are to be if the next step comes to nothing: forward passes write into them."""
        for kept, flat in zip(self._kept, self._buffers, strict=True):
            kept.copy_(flat)

    def _restore_buffers(self) -> None:
        for kept, flat in zip(self._kept, self._buffers, strict=True):
            flat.copy_(kept)

    # Telling

    def report(self, finite: bool = True) -> None:
        """Tell the server what was done since last told; the lowest worker also, how many versions that made."""
        versions = self._version - self._told if self._leads else 0
        if not self._tally.steps and not versions:
            return
        tally, self._tally = self._tally, Tally()
        self._reported_s = time.monotonic()
        self._told += versions
        staleness = {0: tally.folded} if tally.folded else {}
        self._doorbell.send(
            Header(
                note=Note.REPORT,
                finite=finite,
                batches=tally.batches,
                steps=tally.steps,
                number=versions,
                samples=tally.samples,
                missing=tally.missing,
                ready_s=self._reported_s,
                extra=msgspec.msgpack.encode(Report(tally.wait_s, staleness, tally.exchange_s)),
            )
        )

    def _mirror(self) -> None:
        """The lowest worker shows the evaluator its replica when that asks."""
        wanted = self._board.mirror_wanted
        if self._leads and wanted > self._mirrors:
            self.report()
            self._replica.fill_slot()
            self._mirrors = wanted
            self._doorbell.send(Header(Note.MIRRORED, True, 0, 0, wanted, 0, 0, time.monotonic()))

    def cancelled(self) -> bool:
        """Never: nobody calls work off."""
        return False

    def abandon(self) -> None:
        """Never asked for."""
        raise StepCancelled("nobody calls work off without a server")

    def end(self) -> None:
        """The training function returned. Whoever is last leaves the final weights; nobody knows who that is, and those
        that end at once write the same bits."""
        self._restore_buffers()
        self._ring[-1].copy_from(self._replica.arena, Kind.TRAINED, Kind.BUFFER)
        self.report()
        self._doorbell.send(Header(Note.FINISH, True, 0, 0, self._version, 0, 0, time.monotonic()))
        self._group.close()


def _finite(gradient: torch.Tensor | None) -> bool:
    if gradient is None:
        return True
    values = gradient.detach().coalesce().values() if gradient.is_sparse else gradient.detach()
    return is_finite(values.reshape(-1))


def _setting(value: Any) -> Any:
    """A hyper-parameter as optimizers have it: pairs are tuples."""
    return tuple(value) if isinstance(value, list) else value
