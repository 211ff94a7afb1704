"""What a checkpoint of the sequencer keeps: whatever happened before, all data that is not done is leased again."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plesio.core.events import Cancel, Discard, Event, Fold, Grant, Joined, Leased, LeaseWanted, Left, Pushed, Scaled
from plesio.core.leases import Batch, DataLeases
from plesio.core.sequencer import Sequencer, SequencerState
from plesio.strategy import Strategy, recipes
from support.long_forms import examples
from support.runs import by_name
from support.sequencing import decided

TOTAL = 7


class Run:
    """A sequencer driven at random; `places` is the test's own account of every batch."""

    def __init__(self, strategy: Strategy, workers: int) -> None:
        self.strategy = strategy
        self.workers = workers
        self.sequencer = Sequencer(strategy, workers, DataLeases(workers, stealing=not strategy.in_lock_step))
        self.incarnations = dict.fromkeys(range(workers), 0)
        self.waits: dict[int, bool] = {}
        self.numbers: dict[int, int] = {}
        self.held: dict[int, list[Batch]] = {}
        self.pushed: dict[tuple[int, int, int], list[Batch]] = {}
        self.ended: set[Batch] = set()
        self.opened: set[Batch] = set()

    def tell(self, event: Event) -> None:
        for effect in self.sequencer.receive(event, 0.0):
            if isinstance(effect, Fold):
                for member in effect.members:
                    self.ended.update(self.pushed[member.worker, member.incarnation, member.number])
            elif isinstance(effect, Grant):
                self.waits[effect.worker] = False
                self.numbers[effect.worker] = effect.number + 1
            elif isinstance(effect, Cancel):
                self.numbers[effect.worker] = effect.number + 1
            elif isinstance(effect, Leased):
                self.held[effect.worker].extend(effect.batches)

    def act(self, name: str, worker: int, dial: int) -> None:
        if name == "scale":
            self.tell(Scaled(1 + dial % 4))
            return
        incarnation = self.incarnations[worker]
        if name == "join":
            self.incarnations[worker] += 1 + dial % 2
            self.held[worker] = []
            self.tell(Joined(worker, self.incarnations[worker]))
        elif worker not in self.waits:
            return
        elif name == "leave":
            del self.waits[worker]
            self.tell(Left(worker, incarnation, died=True))
        elif self.waits[worker]:
            return
        elif name == "lease":
            epoch = dial % 3
            self.opened.update((one, batch) for one in range(epoch + 1) for batch in range(TOTAL))
            self.tell(LeaseWanted(worker, incarnation, epoch, TOTAL, 1 + dial % 4))
        else:
            batches = [self.held[worker].pop(0) for _ in range(min(dial % 3, len(self.held[worker])))]
            finite = dial != 5
            self.pushed[worker, incarnation, self.numbers[worker]] = batches
            self.ended.update(() if finite else batches)
            self.waits[worker] = True
            self.tell(Pushed(worker, incarnation, self.numbers[worker], 1, 1, len(batches), finite))


STRATEGIES = (recipes.sync_sgd(), recipes.first_of(1), recipes.async_sgd(), recipes.buffered(3), recipes.rennala(2))
STEPS = st.lists(
    st.tuples(st.sampled_from(("join", "lease", "push", "push", "push", "lease", "leave", "scale")), st.integers(0, 9)),
    max_size=60,
)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=by_name)
@settings(max_examples=examples(20), deadline=None, derandomize=True)
@given(workers=st.integers(1, 4), later_workers=st.integers(1, 4), steps=STEPS, dials=st.data())
def test_a_restored_sequencer_continues_from_its_checkpoint(
    strategy: Strategy, workers: int, later_workers: int, steps: list[tuple[str, int]], dials: st.DataObject
) -> None:
    run = Run(strategy, workers)
    for worker in range(workers):
        run.act("join", worker, 0)
    for name, dial in steps:
        run.act(name, dials.draw(st.integers(0, workers - 1)), dial)
    before = run.sequencer
    state = msgspec.msgpack.decode(msgspec.msgpack.encode(before.state()), type=SequencerState)
    after = Sequencer.restore(strategy, later_workers, state, stealing=not strategy.in_lock_step)

    assert after.version == before.version
    assert (after._pending, after.members.seats) == ([], {})
    assert (after.leases.done, after.leases.skipped) == (before.leases.done, before.leases.skipped)
    assert after.leases.opened == before.leases.opened == len(run.opened)
    if later_workers == before.workers:
        assert after.state() == state
    for worker in range(min(workers, later_workers)):
        old = Joined(worker, run.incarnations[worker])
        assert [type(one) for one in after.receive(old, 1.0)] == [Discard]
    for worker in range(1, later_workers):
        after.receive(Left(worker, 0, died=True), 1.0)
    (grant,) = decided(after.receive(Joined(0, 10**6), 2.0))
    assert isinstance(grant, Grant)
    assert grant.version == before.version
    if run.opened:
        last = max(epoch for epoch, _ in run.opened)
        (leased,) = after.receive(LeaseWanted(0, 10**6, last, TOTAL, 10**6), 3.0)
        assert isinstance(leased, Leased)
        assert sorted(leased.batches) == sorted(run.opened - run.ended)
