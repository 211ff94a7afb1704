"""What the memory does with tensors. A fold has four parts:

    gather (what came) -> correct (a stale gradient) -> step (the next version) -> publish (what readers are shown)

Of parameters of half precision the master copy is stepped, see `plesio.memory.master`.

| strategy                     | gather            | step                               | publish                    |
| ---------------------------- | ----------------- | ---------------------------------- | -------------------------- |
| gradients, in rounds         | all as one        | the user's optimizer               | the version itself         |
| gradients, look-ahead        | one after another | with the worker's own momentum     | the version, looking ahead |
| parameters, or differences   | all as one        | a mean, or the strategy's optimizer | the version, or packed     |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from plesio.core.events import Fold, Show
from plesio.memory.gather import AllAtOnce, Came, Gather, InTurn, held_by
from plesio.memory.master import Master, state_layout
from plesio.memory.momenta import Momenta, momentum_keys
from plesio.memory.momenta_in_passes import MomentaInPasses
from plesio.memory.packed import Packed
from plesio.memory.publish import Ahead, Publisher, Versions
from plesio.memory.register import NewArena, Register, When
from plesio.memory.steps import Mean, Optimizing, Step, Towards
from plesio.protocol.worker import Answer, Contribution
from plesio.strategy import Strategy
from plesio.strategy.answers import DelayCompensated, GapAware, Plain, WorkerMomentum
from plesio.tensors.after_step import Applied
from plesio.tensors.arena import ALL_PARTS, Arena, Layout
from plesio.tensors.carrying import Kept, Part
from plesio.tensors.corrections import Correction, DelayCompensation, GapAwareness
from plesio.tensors.one_pass import LARGE, Pass, kernels
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.tensors.optimizer_state import StatefulOptimizer
from plesio.tensors.pieces import kept_copies
from plesio.tensors.rows import NO_ROWS
from plesio.tensors.tensor_set import of_bits
from plesio.transport.doorbell import Located

CORRECTIONS: dict[type, Callable[[Any, NewArena], Correction] | None] = {
    Plain: None,
    WorkerMomentum: None,  # goes with `LookAhead`: workers have momenta of their own
    DelayCompensated: lambda rule, new: DelayCompensation(rule, new("mean square") if rule.adaptive else None),
    GapAware: lambda rule, _: GapAwareness(rule),
}
"""The arithmetic of each answer to `correct`. Nothing else asks of which class an answer is."""


class Parts(NamedTuple):
    """What a folder is made of; `state`: all that it keeps."""

    state: Register
    gather: Gather
    correction: Correction | None
    step: Step
    publisher: Publisher
    after: Applied | None
    master: Master | None


class Folder:
    """Folds contributions, and publishes what comes of it.

    Attributes:
        lost: why nobody could go on from the memory of this process, though it was made for that; empty if somebody could.
    """

    lost = ""

    def __init__(self, parts: Parts) -> None:
        self.state, gather, self._correction, step, publisher, self._after, self._master = parts
        self._gather, self._step, self._publisher = gather, step, publisher
        self.hold = gather.hold
        self.publish, self.snapshot, self.reads = publisher.publish, publisher.whole, publisher.reads
        self.set_groups, self.share_among = step.set_groups, step.share_among
        self._absent: dict[int, bytes] = {}  # in what each worker sent last
        self._places: dict[int, int] = {}  # the buffer that each was shown last
        self.begin_from, self.carried, self.copy_state = step.begin_from, step.carried, step.copy_state

    settle: Callable[[], bool] | None = None
    """Does something for what comes next, while there is time; whether there was anything."""

    @property
    def looks_ahead(self) -> bool:
        return isinstance(self._publisher, Ahead)

    @property
    def bytes_beside(self) -> int:
        """What travelled of tables."""
        tables = self._gather.tables
        return tables.nbytes if tables is not None else 0

    def told(self, worker: int, made: Contribution) -> None:
        """What came with a contribution."""
        if made.settings:
            self.set_groups(worker, msgspec.msgpack.decode(made.settings))
        if made.rows or made.absent != self._absent.get(worker, b""):
            self._absent[worker] = made.absent
            self._gather.came(worker, of_bits(made.absent), made.rows)

    def show(self, show: Show, part: int = ALL_PARTS) -> None:
        """A worker reads this part of the version from now on."""
        self._places[show.worker] = self.publish(show.worker, show.unasked, part)

    def located(self, worker: int, answer: Answer) -> Located:
        """An answer to it, with the place of what it was shown last."""
        return Located(answer, self._places.get(worker, 0))

    def fold(self, fold: Fold) -> None:
        """Make the next version of the contributions of `fold`."""
        publisher, correction, master = self._publisher, self._correction, self._master
        versions = publisher.versions
        for came in self._came(fold):
            before = current = versions.buffers[versions.current]
            if master is not None:
                came, current = master.widened(came), master.weights
            if correction is not None:
                came = came if came.scratch is None else came.own()
                assert came.then is not None, "it is of one worker, which reads a version"
                correction.correct(came.slots[0], current, came.then, came.absent)
            index = publisher.next(fold, self._step)
            shown = versions.buffers[index]
            target = shown if master is None else master.next()
            self._step(target, current, came, index)
            if self._after is not None:
                self._after(target)
                publisher.rewritten()
            if master is not None:
                master.made(target)
                master.show(shown, came)
            if correction is not None:
                correction.stepped(before, shown, came.absent)
            publisher.made(index)

    def _came(self, fold: Fold) -> Iterable[Came]:
        """What to step with, one after the other. As a rule that is one contribution, for which there is nothing to gather."""
        gather = self._gather
        if len(fold.members) > 1 or fold.held or not gather.plain:
            return gather.of(fold)
        worker = fold.members[0].worker
        then = self._publisher.versions.of(worker) if worker in gather.known else None
        absent = gather.absent.get(worker, 0)
        return (Came(worker, [gather.slots[worker]], [1.0], fold.scale, 1, absent, NO_ROWS, then, gather.scratch),)

    def forget(self, worker: int) -> None:
        """`worker` is gone: it reads nothing any more."""
        self._publisher.forget(worker)
        self._step.forget(worker)

    def kept(self) -> Kept:
        """What a checkpoint keeps beside the parameters; what is in the buffer is computed again."""
        return self.state.kept()

    def all_behind(self) -> None:
        """All buffers but the current one may hold older rows of tables: another folder wrote them."""
        if (tables := self._gather.tables) is not None:
            versions = self._publisher.versions
            tables.changed(dict.fromkeys(tables.places, versions.buffers[0].memory), versions.current)

    def begin_anew(self) -> None:
        """As after a restore: nobody reads anything but what it was shown, and the buffer is empty."""
        self._publisher.begin_anew()
        self._gather.begin_anew()


def state_copies(strategy: Strategy, specs: Sequence[OptimizerSpec], layout: Layout, workers: int) -> int:
    """How many times the size of the model is kept at the server beside versions and slots; in float32 where it is of half
    precision."""
    wide = state_layout(strategy, layout)
    kept = kept_copies(specs, wide) if specs else 0
    as_one = strategy.server_noise is not None or not strategy.combine.adds_up
    masters = (2 + strategy.correct.corrects + as_one) * (wide is not layout)
    unpacked = strategy.send.codec is not None or strategy.send.secure is not None
    if strategy.adopt.looks_ahead and kept:
        return masters + kept + workers + held_by(strategy) + unpacked
    return masters + kept + strategy.correct.state_copies + min(1, held_by(strategy)) + unpacked


def build_folder(
    strategy: Strategy,
    specs: Sequence[OptimizerSpec],
    versions: Versions,
    slots: Sequence[Arena],
    workers: int,
    new_arena: NewArena,
    packed: Sequence[Arena] = (),
    threads: int = 1,
    after: Applied | None = None,
    made: Callable[[Parts], Folder] = Folder,
) -> Folder:
    """The folder for a strategy and a user's optimizers; for none, what averages parameters.

    The current buffer of `versions` holds the first version. `packed`: where packed answers go, if they are. Passes over a large
    model are shared among `threads`. `after` is done to each new version. `made`: puts it together.

    An optimizer without a momentum (plain SGD, Adagrad) has nothing to look ahead by, and is folded as it is.
    """
    first = versions.buffers[versions.current]
    layout, averages = (
        first.layout,
        strategy.gather.in_rounds and strategy.outer.averages and not strategy.outer.by_rate,
    )
    has_master = state_layout(strategy, layout) is not layout
    state, optimizer = Register(new_arena), None
    master = Master(versions, state, averages, strategy.correct.corrects) if has_master else None
    first = first if master is None else master.weights
    if specs:
        optimizer = StatefulOptimizer(specs, first, state.maker("optimizer", When.STEP), threads)
        optimizer.copies_always = after is not None
        state.parts["optimizer"] = optimizer
    if strategy.adopt.looks_ahead and optimizer is not None and any(keys := momentum_keys(optimizer)):
        kind = MomentaInPasses if optimizer.large else Momenta
        momenta = kind(keys, optimizer, versions, master, len(slots), workers, strategy.outer.scale, state)
        in_turn = InTurn(versions, slots, momenta.live, strategy, momenta.damp, state)
        momenta.tables = in_turn.tables
        ahead = Ahead(momenta, versions, in_turn.tables, after)
        return made(Parts(state, in_turn, None, momenta, ahead, after, master))
    correction = None
    if (build := CORRECTIONS[type(strategy.correct)]) is not None:
        state.parts["correction"] = correction = build(strategy.correct, partial(state.array, part="correction"))
    known = range(len(slots)) if correction is not None else ()
    gather = AllAtOnce(strategy, versions, slots, known, state)
    step = _step(strategy, optimizer, workers, gather, first, threads)
    if isinstance(step, Part):
        state.parts["step"] = step
    in_place = strategy.gather.in_rounds and optimizer is not None and optimizer.large
    publisher = Publisher(versions, gather.tables, in_place)
    if (codec := strategy.adopt.codec) is not None:
        state.parts["shown"] = publisher = Packed(codec, versions, packed)
    return made(Parts(state, gather, correction, step, publisher, after, master))


def _step(
    strategy: Strategy, optimizer: StatefulOptimizer | None, workers: int, gather: Gather, first: Arena, threads: int
) -> Step:
    if optimizer is not None:
        return Optimizing(strategy, optimizer, workers, gather.tables)
    if strategy.outer.by_rate or not strategy.gather.in_rounds:
        return Towards()
    large = strategy.gives_back_mean and sum(first.layout.trained_elements) >= LARGE
    one_pass = kernels() if large else None
    return Mean(strategy.gives_back_mean, Pass(one_pass, threads).mean if one_pass is not None else None)
