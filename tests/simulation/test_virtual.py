"""The driver in virtual time, against closed forms, and with a folder that tracks each slot."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import pytest

import plesio as ps
from conformance.table import makers
from plesio.cluster import (
    Cluster,
    Constant,
    Crash,
    Exponential,
    Group,
    Join,
    Leave,
    Link,
    LogNormal,
    Partition,
    Ranked,
    Restart,
    Slow,
    StepTime,
    Timetable,
)
from plesio.cluster.faults import AnyFault
from plesio.core.events import Effect, Event, Fold, Hold, Show, Ticked
from plesio.errors import ConfigurationError, StrategyError
from plesio.launch.simulated.clock import VirtualClock
from plesio.launch.simulated.network import Star
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.workers import Answer, Message, Participant, Request, TimedWorker
from plesio.memory.port import Memory
from plesio.protocol.launcher import Final, SwitchRequest
from plesio.protocol.worker import Contribution, LeaseReply, LeaseRequest
from plesio.server.recording import Recorder
from plesio.strategy import Strategy
from plesio.strategy.answers import Seconds
from plesio.transport.doorbell import Located
from support import loops

STRATEGIES: dict[str, Callable[[], Strategy]] = {
    **makers(),
    "first_of": partial(ps.first_of, 3),
    "first_of without cancelling": partial(ps.first_of, 3, cancel_late=False),
    "bounded_staleness": partial(ps.bounded_staleness, 1),
    "buffered": partial(ps.buffered, 3),
    "ringmaster": partial(ps.ringmaster, 3),
    "local_sgd seconds": partial(ps.local_sgd, Seconds(0.5)),
    "phases": lambda: ps.phases(
        ps.async_sgd(),
        (5, ps.sync_sgd()),
        (12, ps.first_of(3)),
        (20, ps.buffered(3)),
        (40, ps.local_sgd(4)),
        (50, ps.bounded_staleness(1)),
    ),
}
GOING_ON: dict[str, Callable[[], Strategy]] = {
    "local_sgd": partial(ps.local_sgd, 4, overlap=True),
    "local_sgd seconds": partial(ps.local_sgd, Seconds(0.5), overlap=True),
    "post_local_sgd": partial(ps.post_local_sgd, 4, after=3, overlap=True),
    "diloco where away": partial(ps.diloco, 4),
    "async_local_sgd": partial(ps.async_local_sgd, 4, overlap=True),
    "async_local_sgd adaptive": partial(ps.async_local_sgd, 8, adaptive=True, overlap=True),
    "elastic_averaging": partial(ps.elastic_averaging, 4, overlap=True),
}
ALL = {**STRATEGIES, **{f"{name}, going on": make for name, make in GOING_ON.items()}}


FREE, MINUTE = Link(), {"seconds": 60.0}


def cluster_of(*steps: StepTime, link: Link = FREE, server: Link = FREE, faults: Sequence[AnyFault] = ()) -> Cluster:
    return Cluster(tuple(Group(1, step, link) for step in steps), server, tuple(faults))


def timed_workers(cluster: Cluster, strategy: Strategy, seed: int) -> list[TimedWorker]:
    away = zip(cluster.timetables(seed), cluster.away, strict=True)
    return [TimedWorker(one, strategy, goes_on=strategy.goes_on(far)) for one, far in away]


def simulate(
    strategy: Strategy,
    cluster: Cluster,
    *,
    seed: int = 0,
    nbytes: int = 0,
    silence_s: float = 300.0,
    limits: Mapping[str, float] = MINUTE,
    timeline: bool = True,
) -> tuple[VirtualRun, Final]:
    participants = timed_workers(cluster, strategy, seed)
    run = VirtualRun(
        strategy,
        cluster,
        participants,
        push_nbytes=nbytes,
        answer_nbytes=nbytes,
        silence_s=silence_s,
        limits=limits,
        timeline=timeline,
    )
    return run, run.run()


# Closed forms


def test_events_at_one_time_happen_in_the_order_planned() -> None:
    clock, seen = VirtualClock(), []
    for number, time_s in enumerate([1.0, 0.5, 1.0, 0.5, 1.0]):
        clock.at(time_s, seen.append, number)
    clock.at(0.7, lambda _: clock.at(0.7, seen.append, "later"), None)
    while clock.step():
        pass
    assert seen == [1, 3, "later", 0, 2, 4]


def test_a_synchronous_run_lasts_the_sum_of_its_rounds_slowest_steps() -> None:
    cluster = Cluster((Group(16, LogNormal(0.1, 0.5)),))
    timetables = cluster.timetables(seed=3)
    expected = sum(max(one.step_s(0.0) for one in timetables) for _ in range(50))
    _, final = simulate(ps.sync_sgd(), cluster, seed=3, limits={"contributions": 16 * 50})
    assert final.version == 50
    assert final.wall_s == pytest.approx(expected, rel=1e-12)
    assert final.staleness.max == 0
    compute = sum(one.compute_s for one in final.workers)
    assert sum(one.wait_s for one in final.workers) == pytest.approx(16 * expected - compute, rel=1e-9)


def test_an_asynchronous_run_folds_at_the_sum_of_the_workers_rates() -> None:
    speeds = (0.3, 0.5, 0.7, 1.1)
    _, final = simulate(ps.async_sgd(), cluster_of(*map(Constant, speeds)), limits={"seconds": 77.77})
    assert final.version == sum(int(77.77 / step_s) for step_s in speeds)
    assert all(one.wait_s == one.exchange_s == 0.0 for one in final.workers)


@pytest.mark.thorough
def test_mean_staleness_of_equal_workers_is_their_number_minus_1() -> None:
    _, final = simulate(ps.async_sgd(), cluster_of(*[Exponential(1.0)] * 9), limits={"contributions": 20_000})
    assert final.staleness.mean == pytest.approx(8.0, rel=0.02)


@pytest.mark.few(1)
@pytest.mark.parametrize(("way", "bytes_per_s"), [("push", 1e6), ("answer", 1e6)])
def test_a_full_server_link_sets_the_throughput(way: str, bytes_per_s: float) -> None:
    """20 workers could send 2,000 contributions a second, 1e4 bytes each; the link takes 100."""
    cluster = Cluster((Group(20, LogNormal(0.01, 0.2)),), server=Link(bytes_per_s=bytes_per_s))
    strategy, nbytes = ps.async_sgd(), 10_000
    participants = timed_workers(cluster, strategy, 0)
    run = VirtualRun(
        strategy,
        cluster,
        participants,
        push_nbytes=nbytes if way == "push" else 0,
        answer_nbytes=nbytes if way == "answer" else 0,
        limits={"seconds": 100.0},
    )
    assert run.run().version == pytest.approx(100 * 100, rel=0.005)


def test_a_message_alone_takes_latency_and_the_slower_link() -> None:
    for own, shared in ((1e3, 1e4), (1e4, 1e3)):
        cluster = cluster_of(Constant(1.0), link=Link(0.25, own), server=Link(0.0, shared))
        _, final = simulate(ps.async_sgd(), cluster, nbytes=500, limits={"contributions": 10})
        assert final.wall_s == pytest.approx(10 * (1.0 + 0.25 + 0.5) + 9 * (0.25 + 0.5))
        assert final.workers[0].exchange_s == pytest.approx(
            (10 + 9) * 0.75
        )  # of the last answer nothing: the run is over


def carried(star: Star, clock: VirtualClock, sent: Sequence[tuple[float, int, object]]) -> list[tuple[float, object]]:
    """When what comes, if worker 0 sends so many bytes at these times."""
    came: list[tuple[float, object]] = []
    for sent_s, nbytes, what in sent:
        star.send(0, sent_s, nbytes, lambda one: came.append((clock.now_s, one)), what)
    while clock.step():
        pass
    return came


@pytest.mark.parametrize(("own", "server"), [(FREE, FREE), (Link(0.1, 1e3), FREE), (FREE, Link(0.1, 1e3))])
def test_messages_of_a_worker_arrive_in_order(own: Link, server: Link) -> None:
    """Large and small ones alternate, also into a partition."""
    cut_off = Partition(worker=0, at_s=2.0, until_s=4.0)
    clock = VirtualClock()
    star = Star(cluster_of(Constant(1.0), link=own, server=server, faults=[cut_off]), clock)
    came = carried(star, clock, [(number / 10, 500 * (number % 3), number) for number in range(40)])
    assert [number for _, number in came] == list(range(40))


def test_messages_share_their_workers_link() -> None:
    """Each message with bytes takes a second of the link; one that was never sent takes none."""
    void = Message(0, 1, 0.5, Contribution(1, 1, 1))
    void.void = True
    clock = VirtualClock()
    star = Star(cluster_of(Constant(1.0), link=Link(0.25, 1e3)), clock)
    sent = [(0.5, 1000, void), (0.5, 1000, "large"), (0.5, 1000, "as large"), (0.5, 0, "small"), (5.0, 0, "later")]
    assert carried(star, clock, sent) == [(1.75, "large"), (2.75, "as large"), (2.75, "small"), (5.25, "later")]


def test_answers_share_their_workers_link_and_hold_up_nothing_that_it_sends() -> None:
    """One without bytes comes after the one before it, as over one connection. Another worker's link is its own."""
    link = Link(0.25, 1e3)
    clock = VirtualClock()
    star = Star(cluster_of(Constant(1.0), Constant(1.0), link=link), clock)
    assert [star.answer(0, 1000), star.answer(0, 0), star.answer(0, 1000)] == [1.25, 1.25, 2.25]
    assert star.answer(1, 1000) == 1.25
    sent = [(0.0, 1000, "a contribution"), (0.0, 0, "a request")]
    assert carried(star, clock, sent) == [(1.25, "a contribution"), (1.25, "a request")]


def test_all_reduce_takes_the_time_of_a_ring() -> None:
    """2 (n-1) hops of 1/n of the bytes, over the slowest link."""
    link = Link(latency_s=0.01, bytes_per_s=1e6)
    cluster = Cluster((Group(3, Constant(1.0), link), Group(1, Constant(1.0), Link(0.0, 1e9))))
    _, final = simulate(ps.allreduce(), cluster, nbytes=4_000_000, limits={"contributions": 4 * 5})
    ring_s = 2 * 3 * (0.01 + 1_000_000 / 1e6)
    assert final.wall_s == pytest.approx(5 * 1.0 + 4 * ring_s)


def test_local_steps_fill_the_given_seconds() -> None:
    _, final = simulate(
        ps.local_sgd(Seconds(1.0)), cluster_of(Constant(0.125), Constant(0.375)), limits={"contributions": 20}
    )
    assert [one.steps for one in final.workers] == [80, 20]
    assert final.wall_s == pytest.approx(10.0)


def test_first_of_cancels_the_slowest_worker() -> None:
    """The fourth worker is cancelled each round, at its cost in time, and never folded."""
    cluster = cluster_of(Constant(1.0), Constant(2.0), Constant(3.0), Constant(10.0))
    _, final = simulate(ps.first_of(3), cluster, limits={"contributions": 30})
    assert final.wall_s == pytest.approx(30.0)
    assert [one.folded for one in final.workers] == [10, 10, 10, 0]
    assert final.discarded == {"cancelled": 10}
    assert final.workers[3].compute_s == pytest.approx(30.0)


def test_cancelled_work_does_not_use_the_servers_link() -> None:
    """The fast worker takes 1 s of work and 0.4 s on the link, whatever the slow one would send."""
    cluster = cluster_of(Constant(1.0), Constant(5.0), server=Link(bytes_per_s=1e3))
    run = VirtualRun(
        ps.first_of(1), cluster, timed_workers(cluster, ps.first_of(1), 0), push_nbytes=400, limits={"seconds": 100.0}
    )
    assert run.run().version == int(100.0 / 1.4)


def test_bounded_staleness_holds_and_releases_the_fast_worker() -> None:
    _, final = simulate(ps.bounded_staleness(2), cluster_of(Constant(0.1), Constant(1.0)), limits={"seconds": 10.5})
    assert [one.folded for one in final.workers] == [13, 10]  # two clocks ahead, and one pushed while it is held
    assert final.workers[0].wait_s > 8.0


# The same arguments give the same run


CHAOS = Cluster(
    (Group(3, LogNormal(0.1, 0.3), Link(0.02, 1e6)), Group(3, Exponential(0.2), Link(0.05, 1e5))),
    server=Link(0.0, 5e5),
    faults=(
        Slow(worker=0, factor=5.0, at_s=3.0, until_s=9.0),
        Crash(worker=1, at_s=2.03),
        Restart(worker=1, at_s=2.04),
        Crash(worker=1, at_s=7.0),
        Restart(worker=1, at_s=11.0),
        Crash(worker=4, at_s=5.0),
        Restart(worker=4, at_s=5.2),
        Partition(worker=2, at_s=6.0, until_s=9.5),
        Partition(worker=5, at_s=12.0, until_s=12.3),
        Join(worker=3, at_s=4.0),
        Leave(worker=0, at_s=15.0),
    ),
)


@pytest.mark.few(9)
@pytest.mark.parametrize("name", ALL)
def test_a_seed_gives_the_same_run_byte_for_byte(name: str) -> None:
    def once(seed: int) -> bytes:
        run, final = simulate(ALL[name](), CHAOS, seed=seed, nbytes=2000, silence_s=1.5, limits={"seconds": 15.0})
        return msgspec.json.encode((final, run.incidents))

    assert once(1) == once(1)
    assert once(1) != once(2)


# Nothing takes place after the end


def any_cluster(rng: random.Random) -> Cluster:
    """Three to five workers, far away or near; some are slow for a while, cut off, die, come back or come later."""
    groups = [
        Group(1, rng.choice([Constant(0.05), Exponential(0.05)]), rng.choice([FREE, Link(0.02), Link(0.3, 2e4)]))
        for _ in range(rng.randint(3, 5))
    ]
    faults: list[AnyFault] = []
    for worker in range(len(groups)):
        at_s = rng.uniform(0.02, 1.0)
        until_s = at_s + rng.uniform(0.01, 1.0)
        faults += rng.choice(
            [
                [],
                [Slow(worker=worker, factor=10.0, at_s=at_s, until_s=until_s)],
                [Partition(worker=worker, at_s=at_s, until_s=until_s)],
                [Crash(worker=worker, at_s=at_s), Restart(worker=worker, at_s=until_s)],
                [Leave(worker=worker, at_s=at_s)],
                [Join(worker=worker, at_s=at_s)],
            ]
        )
    return Cluster(tuple(groups), rng.choice([FREE, Link(0.0, 5e4)]), tuple(faults))


@pytest.mark.few(15)
@pytest.mark.parametrize("name", ALL)
def test_time_is_counted_once_and_only_before_the_end(name: str) -> None:
    """Time counted ahead of the server's decision to end is removed; that of a worker adds up until the end, or its death."""
    for seed in range(25):
        rng = random.Random(seed)
        cluster, seconds, silence_s = any_cluster(rng), rng.choice([0.5, 1.0, 2.5]), rng.choice([0.5, 300.0, 300.0])
        options: dict[str, Any] = {"seed": seed, "nbytes": rng.choice([0, 1000]), "silence_s": silence_s}
        _, final = simulate(ALL[name](), cluster, limits={"seconds": seconds}, **options)
        gone = {one.worker: one.at_s for one in cluster.faults if isinstance(one, Crash | Leave)}
        late = {one.worker for one in cluster.faults if isinstance(one, Restart | Join | Partition)}
        for one in final.workers:
            assert min(one.compute_s, one.wait_s, one.exchange_s) >= 0.0
            assert one.there_s <= final.wall_s + 1e-9
            spans = sorted((span.start_s, span.end_s) for span in final.timeline if span.worker == one.worker)
            bounds = [time_s for span in spans for time_s in span]
            assert all(earlier <= later + 1e-9 for earlier, later in itertools.pairwise([0.0, *bounds, final.wall_s]))
            if one.worker not in late and silence_s > seconds:
                assert one.there_s == pytest.approx(min(final.wall_s, gone.get(one.worker, math.inf))), (seed, one)


# Another strategy in flight


def test_a_straggler_holds_others_back_until_its_phase_ends() -> None:
    """Three seconds of 4 in a round are waited for; from version 5 on nobody waits."""
    cluster = cluster_of(Constant(1.0), Constant(4.0))
    run, final = simulate(ps.phases(ps.sync_sgd(), (5, ps.async_sgd())), cluster, limits={"seconds": 100.5})
    assert [(one.time_s, one.what) for one in run.incidents] == [
        (20.0, "switched from sync_sgd to async_sgd at version 5 (after 0.00 s of waiting for the slowest)")
    ]
    assert final.version == 5 + 80 + 20
    assert [one.wait_s for one in final.workers] == [5 * 3.0, 0.0]


def test_a_run_goes_over_to_another_phase_when_that_is_asked_for() -> None:
    strategy, cluster = ps.phases(ps.async_sgd(), ps.local_sgd(3)), cluster_of(Constant(1.0), Constant(4.0))
    run = VirtualRun(strategy, cluster, timed_workers(cluster, strategy, 0), limits={"seconds": 60.5})
    run.clock.at(9.5, lambda why: run.order(SwitchRequest(1, why)), "it was asked for")
    final = run.run()
    assert [one.time_s for one in run.incidents] == [12.0]
    assert "from async_sgd to local_sgd(every 3 steps) at version 13 (after 2.50 s" in run.incidents[0].what
    assert run.incidents[0].what.endswith("waiting for the slowest): it was asked for")
    assert final.version == 13 + 4
    assert final.workers[0].wait_s == 2.0 + 4 * 9.0
    with pytest.raises(StrategyError, match=r"phase 2: the run has 0 \(async_sgd\), 1 \(local_sgd"):
        run.order(SwitchRequest(2))


# A worker that goes on


def test_a_worker_that_goes_on_loses_no_time() -> None:
    """Its answer comes after 2 of 4 steps. Staleness counts from the version that the first step was computed on: in between are
    two of the other's, and one of its own."""
    cluster = cluster_of(Constant(1.0), Constant(1.0), link=Link(1.0))
    _, final = simulate(ps.async_local_sgd(4, overlap=True), cluster, limits={"seconds": 101.5})
    assert [one.steps for one in final.workers] == [100, 100]
    assert all(one.compute_s == final.wall_s for one in final.workers)
    assert final.staleness.by_worker == {0: {0: 1, 2: 1, 3: 23}, 1: {1: 1, 3: 24}}


def test_a_worker_that_goes_on_waits_when_it_is_due() -> None:
    """A round trip of 10 s, a step of 1 s: 2 steps each 10 s."""
    _, final = simulate(
        ps.local_sgd(2, overlap=True), cluster_of(Constant(1.0), link=Link(5.0)), limits={"seconds": 92.0}
    )
    (only,) = final.workers
    assert only.steps == 2 * 9
    assert (only.compute_s, only.wait_s) == (20.0, 0.0)
    assert only.exchange_s == pytest.approx(72.0)


def test_a_worker_that_goes_on_is_held_by_a_straggler_only_when_it_is_due() -> None:
    """A round takes 12 s. The fast one is due 3 s after it sent, twice in the first one."""
    cluster = cluster_of(Constant(1.0), Constant(4.0))
    _, final = simulate(ps.local_sgd(3, overlap=True), cluster, limits={"seconds": 121.0})
    fast, slow = final.workers
    assert (slow.compute_s, slow.wait_s) == (121.0, 0.0)
    assert fast.wait_s == pytest.approx(121.0 - fast.compute_s)
    assert fast.compute_s == 3 + 10 * 3 + 1


@pytest.mark.few(1)
@pytest.mark.parametrize("name", GOING_ON)
def test_timed_workers_take_their_answers_when_those_that_train_do(name: str) -> None:
    steps = LogNormal(0.02, 0.3)
    cluster = Cluster((Group(1, steps), Group(2, steps, Link(0.01)), Group(2, steps, Link(0.07))))
    strategy = GOING_ON[name]()
    run = ps.run(
        loops.without_data, strategy, workers=5, seed=3, engine=ps.Simulated(cluster), until=ps.Until(seconds=4.0)
    )
    _, final = simulate(strategy, cluster, seed=3, limits={"seconds": 4.0})
    assert run.summary.staleness == final.staleness
    assert list(run.summary.workers) == [msgspec.structs.replace(one, samples=0) for one in final.workers]


# What is folded is what was computed


class Slots(Memory):
    """A memory that holds each fold against what the members' slots hold."""

    def __init__(self, workers: int) -> None:
        self.slots: list[tuple[int, int]] = [(0, 0)] * workers  # (incarnation, version computed from)
        self.held: list[tuple[int, int]] = []
        self.version = 0
        self.folded: list[tuple[int, int, int]] = []
        self.published = [0] * workers

    def do(self, effect: Effect) -> None:
        if isinstance(effect, Show):
            self.published[effect.worker] = self.version
        elif isinstance(effect, Hold):
            self.held.append(self.slots[effect.worker])
        elif isinstance(effect, Fold):
            self._fold(effect)

    def _fold(self, fold: Fold) -> None:
        slots = [self.slots[member.worker] for member in fold.members]
        if fold.held:
            slots, self.held = self.held, []
        assert slots == [(member.incarnation, self.version - member.staleness) for member in fold.members]
        self.version += 1
        assert fold.version == self.version
        self.folded += [(member.worker, member.incarnation, member.number) for member in fold.members]


class Trainer(Participant):
    """A participant with data: takes leases, one batch a step, for some epochs; its slot says from what it computed."""

    TOTAL = 40

    def __init__(self, worker: int, timetable: Timetable, strategy: Strategy, folder: Slots, epochs: int) -> None:
        self.worker, self.timetable, self.phases, self.folder = worker, timetable, strategy.phases, folder
        self.epochs = epochs

    def begin(self, incarnation: int) -> None:
        self.incarnation, self.epoch = incarnation, 0
        self.batches: list[tuple[int, int]] = []
        self.version, self.steps, self.finished = -1, 0, False

    def go_on(self, answer: Answer, told: Located, now_s: float) -> tuple[float, Request]:
        assert not self.finished
        if isinstance(answer, LeaseReply):
            self.batches += answer.batches
            if not answer.batches:
                self.epoch += 1
        else:
            assert answer.version == self.folder.published[self.worker]
            self.every = self.phases[told.answer.phase].every
            self.version, self.steps, self.began_s, self.number = answer.version, 0, now_s, answer.number + 1
        return self._work(now_s)

    def _work(self, now_s: float) -> tuple[float, Request]:
        while self.batches:
            self.batches.pop(0)
            now_s += self.timetable.step_s(now_s)
            self.steps += 1
            if self.every.due(self.steps, now_s - self.began_s):
                return self._push(now_s)
        if self.epoch < self.epochs:
            return now_s, LeaseRequest(self.epoch, self.TOTAL, 2, 0, 0)
        if self.steps:
            return self._push(now_s)
        self.finished = True
        return now_s, None

    def _push(self, now_s: float) -> tuple[float, Request]:
        self.folder.slots[self.worker] = (self.incarnation, self.version)
        steps, self.steps = self.steps, 0
        return now_s, Contribution(self.number, steps, 8 * steps, steps)

    def end(self) -> None:
        assert not self.finished
        self.finished = True  # nobody asks a dead process anything


def train(
    strategy: Strategy, cluster: Cluster, *, stealing: bool = True, silence_s: float = 1.5
) -> tuple[VirtualRun, Slots]:
    folder = Slots(cluster.workers)
    trainers = [Trainer(k, one, strategy, folder, epochs=4) for k, one in enumerate(cluster.timetables(0))]
    run = VirtualRun(
        strategy,
        cluster,
        trainers,
        folder,
        push_nbytes=2000,
        answer_nbytes=2000,
        stealing=stealing,
        silence_s=silence_s,
        limits={"seconds": 2000.0},
    )
    final = run.run()
    assert run.ended == "finished"
    assert final.folded == len(folder.folded) == len(set(folder.folded))
    return run, folder


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_computed_contribution_is_folded(name: str) -> None:
    """Through crashes, restarts, partitions, evictions and full links, with every batch in the end."""
    run, folder = train(STRATEGIES[name](), CHAOS)
    assert run.program.sequencer.leases.opened == 4 * Trainer.TOTAL
    assert folder.version > 4 * Trainer.TOTAL / 20
    if name not in ("rennala", "ringmaster"):  # who works for nothing at the end has nobody to redo it
        assert run.program.sequencer.leases.unvisited <= 2


def test_without_faults_every_batch_is_visited() -> None:
    calm = Cluster((Group(4, LogNormal(0.1, 0.5), Link(0.01, 1e6)),))
    for strategy, stealing in itertools.product((ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(2)), (True, False)):
        run, _ = train(strategy, calm, stealing=stealing)
        assert (run.program.sequencer.leases.unvisited, run.program.sequencer.leases.done) == (0, 4 * Trainer.TOTAL)


def test_a_push_that_crosses_its_cancellation_is_not_counted() -> None:
    """With a second of latency nearly all late pushes cross; their batches go to others."""
    cluster = Cluster((Group(2, LogNormal(1.0, 0.3), Link(1.0)), Group(2, LogNormal(1.2, 0.3), Link(1.0))))
    run, _ = train(ps.first_of(2), cluster, silence_s=60.0)
    late = run.meter.totals.discarded["cancelled"]
    assert late > 10
    assert run.meter.exchanges > run.program.sequencer.version * 2, "some were sent before they were called off"
    assert run.meter.exchanges < run.program.sequencer.version * 2 + late, "and some were not sent"
    assert run.program.sequencer.leases.unvisited <= 2


def test_steps_cancelled_while_waiting_for_data_cost_the_parameters_bytes() -> None:
    """The slow workers wait two seconds for data; the fast ones make a version or two."""
    cluster = Cluster((Group(2, LogNormal(1.0, 0.3)), Group(2, LogNormal(1.2, 0.3), Link(2.0))))
    run, folder = train(ps.first_of(2), cluster, silence_s=60.0)
    late = run.meter.totals.discarded["cancelled"]
    assert late > 10
    assert run.nbytes == 2000 * (run.meter.exchanges + len(folder.folded) + late)


# Faults


def test_a_crash_loses_unsent_work() -> None:
    cluster = cluster_of(
        Constant(1.0), Constant(1.0), faults=[Crash(worker=1, at_s=10.5), Restart(worker=1, at_s=20.25)]
    )
    run, final = simulate(ps.async_sgd(), cluster, limits={"seconds": 30.6})
    assert [one.folded for one in final.workers] == [30, 10 + 10]
    assert final.workers[1].compute_s == pytest.approx(10.5 + 10.35)
    assert [incident.worker for incident in run.incidents] == [1]


def test_a_barrier_does_not_wait_for_the_dead() -> None:
    cluster = cluster_of(Constant(1.0), Constant(3.0), faults=[Crash(worker=1, at_s=4.0)])
    _, final = simulate(ps.sync_sgd(), cluster, limits={"seconds": 10.5})
    assert [one.folded for one in final.workers] == [1 + 1 + 6, 1]
    assert final.workers[1].left == "died"


def test_a_restarted_worker_waits_for_the_fold_of_its_last_contribution() -> None:
    """Worker 0's contribution of 1 s stays in its slot until worker 1 is done at 10 s."""
    faults = [Crash(worker=0, at_s=2.0), Restart(worker=0, at_s=3.0)]
    cluster = cluster_of(Constant(1.0), Constant(10.0), faults=faults)
    _, final = simulate(ps.sync_sgd(), cluster, limits={"seconds": 20.5})
    assert final.version == 2
    assert [one.folded for one in final.workers] == [2, 2]


def test_messages_wait_for_the_end_of_a_partition() -> None:
    cluster = cluster_of(Constant(1.0), faults=[Partition(worker=0, at_s=2.5, until_s=7.0)])
    _, final = simulate(ps.async_sgd(), cluster, limits={"seconds": 10.5})
    assert final.version == 2 + 1 + 3


def test_a_long_partition_evicts_and_the_worker_rejoins() -> None:
    cluster = cluster_of(Constant(1.0), Constant(1.0), faults=[Partition(worker=1, at_s=2.5, until_s=50.5)])
    run, final = simulate(ps.sync_sgd(), cluster, silence_s=10.0, limits={"seconds": 60.6})
    assert len(run.incidents) == 1
    assert "evicted" in run.incidents[0].what
    assert 12.0 < run.incidents[0].time_s <= 13.5
    assert [one.folded for one in final.workers] == [2 + 48, 2 + 10]
    assert final.workers[1].left is None


class Told(Recorder):
    """Keeps what the sequencer was told."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def told(self, event: Event, effects: Sequence[Effect], now_s: float, loss: float = math.nan) -> None:
        self.events.append(event)


def test_a_rejoining_worker_drops_its_earlier_work() -> None:
    """It hears of its eviction and of a cancelled step; the eviction comes first."""
    near = Group(2, Ranked(0.04), Link(0.02))
    cut_off = Partition(worker=2, at_s=0.1, until_s=1.5)
    cluster = Cluster((near, Group(1, Constant(0.08), Link(0.02))), faults=(cut_off,))
    strategy, told = ps.first_of(2), Told()
    workers = timed_workers(cluster, strategy, 0)
    VirtualRun(strategy, cluster, workers, silence_s=0.5, limits={"seconds": 3.0}, recorder=told).run()
    spoke = [one.incarnation for one in told.events if not isinstance(one, Ticked) and one.worker == 2]
    assert 2 in spoke
    assert spoke == sorted(spoke)


def test_joins_and_leaves_happen_at_their_times() -> None:
    cluster = cluster_of(Constant(1.0), Constant(1.0), faults=[Join(worker=1, at_s=5.25), Leave(worker=0, at_s=8.5)])
    run, final = simulate(ps.async_sgd(), cluster, limits={"seconds": 10.5})
    assert [one.folded for one in final.workers] == [8, 5]
    assert final.workers[0].left == "finished"
    assert run.incidents == []


def test_a_run_ends_when_all_workers_are_gone() -> None:
    cluster = cluster_of(Constant(1.0), Constant(1.0), faults=[Crash(worker=0, at_s=3.5), Crash(worker=1, at_s=4.5)])
    run, final = simulate(ps.sync_sgd(), cluster)
    assert (run.ended, final.wall_s, final.version) == ("finished", 4.5, 4)


# Limits


def test_limits_and_evaluations_end_a_run() -> None:
    cluster = cluster_of(Constant(1.0), Constant(1.0))
    assert simulate(ps.async_sgd(), cluster, limits={"steps": 7})[0].ended == "7 steps were up"
    assert simulate(ps.async_sgd(), cluster, limits={"samples": 7})[0].ended == "7 samples were up"
    seen: list[tuple[float, int]] = []

    def evaluate(now_s: float) -> None:
        seen.append((now_s, run.program.version))
        if run.program.version >= 4:
            run.end("good enough")

    strategy = ps.async_sgd()
    participants = timed_workers(cluster, strategy, 0)
    run = VirtualRun(strategy, cluster, participants)
    run.clock.repeat(0.0, 0.75, evaluate)
    run.run()
    assert run.ended == "good enough"
    assert seen == [(0.0, 0), (0.75, 0), (1.5, 2), (2.25, 4)]


def test_remaining_workers_are_told_of_the_end() -> None:
    class Told(TimedWorker):
        ended = 0

        def end(self) -> None:
            self.ended += 1

    cluster = cluster_of(Constant(1.0), Constant(1.0), faults=[Crash(worker=0, at_s=2.5)])
    told = [Told(one, ps.async_sgd()) for one in cluster.timetables(0)]
    VirtualRun(ps.async_sgd(), cluster, told, limits={"seconds": 5.0}).run()
    assert [one.ended for one in told] == [1, 1]


def test_the_timeline_can_be_left_out() -> None:
    cluster = cluster_of(Constant(1.0), Constant(2.0))
    _, kept = simulate(ps.sync_sgd(), cluster)
    _, bare = simulate(ps.sync_sgd(), cluster, timeline=False)
    assert len(kept.timeline) > 60
    assert bare.timeline == ()
    assert bare.workers == kept.workers
    busy = sum(span.end_s - span.start_s for span in kept.timeline if span.worker == 0 and span.kind == "compute")
    assert busy == pytest.approx(kept.workers[0].compute_s)
    assert math.isclose(busy, 30.0)


def test_invalid_simulations_are_refused() -> None:
    cluster = cluster_of(Constant(1.0))
    with pytest.raises(StrategyError, match="first 3 of 1"):
        simulate(ps.first_of(3), cluster)

    class Asking:
        def __init__(self, total: int) -> None:
            self.total = total

        def begin(self, incarnation: int) -> None:
            pass

        def go_on(self, answer: Answer, told: Located, now_s: float) -> tuple[float, Request]:
            return now_s, LeaseRequest(0, self.total, 1, 0, 0)

        def end(self) -> None:
            pass

    with pytest.raises(ConfigurationError, match="worker 1: its loader has 5 batches an epoch, another worker's 4"):
        VirtualRun(ps.sync_sgd(), cluster_of(Constant(1.0), Constant(1.0)), [Asking(4), Asking(5)]).run()
