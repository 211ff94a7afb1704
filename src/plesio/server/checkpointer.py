"""The server's side of checkpoints: what goes into one, and going on from one."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from plesio.attachments import Attachments
from plesio.attachments.orders import Orders
from plesio.attachments.schedules import NOWHERE, Schedules
from plesio.core.leases import DataLeases
from plesio.core.sequencer import Sequencer, SequencerState
from plesio.errors import CheckpointError, PlesioError
from plesio.memory.port import Memory
from plesio.memory.saved import Kept
from plesio.memory.taking_over import without_last
from plesio.server.checkpoints import CheckpointStore, Manifest, Saved, WorkerProgress, read
from plesio.server.keeping import Keeping
from plesio.strategy import Strategy
from plesio.transport.client_states import ClientStates

NOTHING = WorkerProgress()


class Taken(NamedTuple):
    """Local steps, and the samples in them."""

    steps: int = 0
    samples: int = 0


class Checkpointer:
    """Writes one run's checkpoints, and `counts` what each worker contributed, if that is to be kept."""

    def __init__(
        self,
        keeping: Keeping,
        strategy: Strategy,
        workers: int,
        seats: int = 0,
        counts: bool = False,
        together: int = 1,
        once: Callable[[Callable[[], str]], str] = operator.call,
    ) -> None:
        self.counts = counts or bool(keeping.folder)
        self._keeping = keeping
        self.begins, self.every_s = keeping.begins, keeping.every_s
        self._strategy = strategy
        self._phase = 0  # which one the run is resumed in
        self._kept = -1
        resumed = Path(keeping.resume) if keeping.resume else None
        self._store = CheckpointStore(Path(keeping.folder), keeping.keep, resumed)
        self._once = once  # where it is done again by who cannot know what came of it
        self._failed: set[str] = set()  # why those since the last one that was written could not be
        self._workers, self._together = workers, together
        seats = seats or workers
        self.before = [WorkerProgress()] * seats
        self._made = [WorkerProgress()] * seats
        self._coming = [WorkerProgress()] * seats  # in a contribution that came and is not answered
        self._late = set[int]()  # whose last one came too late
        self._gives_back = any(one.may_come_late and one.send.feeds_back for one in strategy.phases)
        self.attachments = Attachments(seats)
        self.states = ClientStates(Path(keeping.clients)) if keeping.clients else None
        self.held_again: tuple[int, ...] = ()  # workers that go on with what they held before the run was resumed
        self.taken = Taken()  # what came; of this, what is not folded yet is done again after a resume

    @property
    def writes(self) -> bool:
        return bool(self._keeping.folder)

    @property
    def holds(self) -> bool:
        """Whether workers leave what they hold of their own."""
        return bool(self._keeping.folder or self._keeping.resume)

    def came(self, worker: int, number: int, told: WorkerProgress) -> None:
        """A contribution came; it may have crossed its own cancellation."""
        self.taken = Taken(self.taken.steps + told.steps, self.taken.samples + told.samples)
        if self.before[worker].contributions + number > self._made[worker].contributions:
            self._coming[worker] = told

    def answered(self, worker: int, number: int, late: bool = False) -> None:
        """Contribution `number` of `worker`, counted in its process, is dealt with; one called off was one step. `late`: it came
        too late."""
        (self._late.add if late else self._late.discard)(worker)
        made, one = self._made[worker], self._coming[worker]
        self._made[worker] = WorkerProgress(
            self.before[worker].contributions + number,
            made.steps + (one.steps if one.contributions else 1),
            made.samples + one.samples,
            made.batches + one.batches,
        )
        self._coming[worker] = NOTHING
        self.attachments.answered(worker)

    def done(self, sequencer: Sequencer) -> Taken:
        """Steps and samples that a resumed run does not repeat: all that came, without what waits to be folded."""
        again = sequencer.unfolded
        steps, samples = sum(one.steps for one in again), sum(one.samples for one in again)
        return Taken(self.taken.steps - steps, self.taken.samples - samples)

    def manifest(self, sequencer: Sequencer, position: int, clients: int = 0) -> Manifest:
        """What a checkpoint says beside what the memory keeps; `position`: the journal's."""
        done = self.done(sequencer)
        return Manifest(
            version=sequencer.version,
            strategy=self._strategy.name,
            fields=self._strategy.as_data(),
            workers=self._workers,
            seed=self._keeping.seed,
            train_hash=self._keeping.train_hash,
            layout=(),
            order=sequencer.state(),
            numbers={},
            progress=tuple(self._made),
            together=self._together,
            steps=done.steps,
            samples=done.samples,
            attachments=self.attachments.kept(),
            clients=clients,
            journal=self._keeping.journal,
            position=position if self._keeping.journal else 0,
        )

    def write(self, sequencer: Sequencer, memory: Memory, position: int) -> str:
        """Write one, if there is anything new; why it cannot, if that was not told yet."""
        if sequencer.version == self._kept:
            return ""
        kept = memory.kept()
        clients = self.states.newest() if self.states is not None else {}
        manifest = self.manifest(sequencer, position, len(clients)).with_memory(kept.layout, kept.numbers)
        rows = memory.rows.write if memory.rows is not None else None
        own = self.own_states(memory)
        why_not = self._once(lambda: self._store.try_to_save(manifest, kept.weights, kept.tensors, own, rows, clients))
        if why_not:
            reason = re.sub(r"\d+", "", why_not)  # each version has a file of its own
            told = reason in self._failed
            self._failed.add(reason)
            return "" if told else why_not
        self._kept = sequencer.version
        self._store.has(self._kept)
        self._failed.clear()
        return ""

    def restore(self, memory: Memory, order: Callable[[SequencerState], None]) -> bool:
        """Get ready to fold from the checkpoint to go on from, and give `order` the sequencer's state; False if there is none.
        `CheckpointError`: it cannot be read, or is of another model."""
        if not self._keeping.resume:
            return False
        saved = read(Path(self._keeping.resume))
        if self._keeping.new_data:
            saved = msgspec.structs.replace(saved, manifest=_of_new_data(saved.manifest))
        try:
            self._restore(saved, memory)
            order(msgspec.structs.replace(self._shared_anew(saved.manifest), phase=self._phase))
        except PlesioError:
            raise
        except Exception as error:
            raise CheckpointError(
                f"{saved.path} is whole, but holds what no run can have written ({type(error).__name__}: {error}); resume from "
                "another checkpoint, or begin a new run"
            ) from error
        return True

    def _restore(self, saved: Saved, memory: Memory) -> None:
        manifest, seats = saved.manifest, len(self._made)
        rows = saved.path, tuple(manifest.files)
        was, self._phase = manifest.under, manifest.phase_of(self._strategy)
        other = was if len(manifest.progress) != seats or was != self._strategy.phases[self._phase] else None
        state = saved.weights(), saved.state(), manifest.numbers, manifest.layout
        kept = Kept(*state, rows, saved.own_states(), other, self._phase)
        own = memory.restore(kept, str(saved.path), manifest.version)
        self._made = [*manifest.progress, *[WorkerProgress()] * seats][:seats]
        self.go_on(memory, own)
        self.taken = Taken(manifest.steps, manifest.samples)
        self.attachments.restore(manifest.attachments)
        if self.states is not None:
            self.states.restore(saved.path, manifest.clients, manifest.version)
        if saved.path.parent == Path(self._keeping.folder):  # elsewhere it is not this run's
            self._kept = manifest.version

    def _shared_anew(self, manifest: Manifest) -> SequencerState:
        """The order, with what waits of the data shared among as many workers as there are now, if these are others."""
        order = manifest.order
        if (manifest.workers, len(manifest.progress)) == (self._workers, len(self._made)):
            return order
        leases = DataLeases.restore(order.leases, self._workers, stealing=False)
        return msgspec.structs.replace(order, leases=leases.state(()))

    def again(self, worker: int) -> None:
        """Another process has this worker's seat: it counts its contributions from 1."""
        self.before[worker] = self._made[worker]
        self._late.discard(worker)
        self._coming[worker] = WorkerProgress()
        self.attachments.again(worker)

    @property
    def _numbers(self) -> list[int]:
        """Of each worker's last contribution that was answered."""
        return [made.contributions - was.contributions for made, was in zip(self._made, self.before, strict=True)]

    def lacking(self, memory: Memory, sequencer: Sequencer) -> list[int]:
        """Which members have not left yet what `own_states` wants, if there is anything to write."""
        members = sequencer.members.seats if sequencer.version != self._kept else ()
        numbers = self._numbers
        return memory.states.lacking({worker: numbers[worker] for worker in members if numbers[worker]})

    def own_states(self, memory: Memory) -> dict[int, bytes]:
        """What each worker held after its last contribution that was answered; nothing of those that left."""
        states = {worker: memory.states.of(worker, number) for worker, number in enumerate(self._numbers)}
        late = self._late if self._gives_back else ()
        known = {worker: without_last(state) if worker in late else state for worker, state in states.items() if state}
        return dict([*known.items()][:1]) if self._strategy.outer.in_worker else known

    def begins_anew(self) -> str:
        """Which workers had trained before the run was resumed, and begin with a new optimizer; empty if none does."""
        before = self.before if self._strategy.phases[self._phase].send.stepped else ()
        lost = [str(worker) for worker, one in enumerate(before) if one.contributions and worker not in self.held_again]
        if not lost:
            return ""
        return f"the checkpoint does not hold the state of the optimizer of worker {', '.join(lost)}, which begins anew"

    def go_on(self, memory: Memory, states: Mapping[int, bytes]) -> None:
        """The run is resumed here: new processes count their contributions from 1, and what had come is computed again. The
        first process in a seat takes up what its worker held, of those in `states`."""
        if self._strategy.outer.in_worker:  # any worker's is everybody's
            states = {worker: state for state in states.values() for worker in range(len(self._made))}
        held = [worker for worker in range(len(self._made)) if memory.states.hand_to(worker, states.get(worker))]
        self.held_again = tuple(held)
        self.before = list(self._made)
        self._late.clear()
        self._coming = [WorkerProgress()] * len(self.before)
        self.attachments.restore(self.attachments.kept())


def _of_new_data(manifest: Manifest) -> Manifest:
    """The same of a run that has visited nothing of its data, nor followed it with schedules."""
    workers = manifest.order.leases.workers
    order = msgspec.structs.replace(manifest.order, leases=DataLeases(workers, stealing=False).state(()))
    progress = tuple(msgspec.structs.replace(one, samples=0, batches=0) for one in manifest.progress)
    attachments = manifest.attachments | {Schedules.name: [NOWHERE], Orders.name: None}
    return msgspec.structs.replace(manifest, order=order, progress=progress, attachments=attachments)
