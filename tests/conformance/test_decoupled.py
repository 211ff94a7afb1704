"""`decoupled` against a plain loop over events: uneven workers, a quorum, a grace, and steps on while answers travel. Time is
virtual; an answer is there as soon as its version is made, and a worker looks for it at the end of each step."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

import plesio as ps
from conformance.test_rebase import Packer, Weights, clone
from plesio.cluster import Cluster, Crash, Group, Restart, Trace
from plesio.strategy import Strategy
from plesio.strategy.answers import Codec, Int8, TopK
from support import loops
from support.codec_twins import assert_close_by_steps
from support.runs import by_name

pytestmark = pytest.mark.filterwarnings("ignore:.*outer momentum")  # of few rounds
STEPS_S = 1.0, 1.03, 1.31, 2.93, 1.07, 1.17
VARIES = 1.0, 1.021, 0.983, 1.007, 0.991
"""How long steps of each worker take, and times what in turn: no two things happen at once."""
SAMPLES = 8, 4, 8, 6, 8, 8
EVERY = 3
SPAN_S = 29.0
"""About how long each worker trains."""


def rows_of(rank: int, step: int) -> slice:
    return slice(first := (step * 8 + rank * 8) % 88, first + SAMPLES[rank])


def step_s(rank: int, step: int) -> float:
    return STEPS_S[rank] * VARIES[step % len(VARIES)]


def steps_of(rank: int) -> int:
    return int(SPAN_S / STEPS_S[rank])


@dataclass(eq=False)
class Sent:
    """How far a worker moved, from how many samples, and the versions that its first and its last step were computed from."""

    rank: int
    delta: Weights
    samples: int
    worked_s: float
    began: int
    computing: int


def weight(one: Sent, version: int) -> float:
    """By samples, and for less the staler."""
    return one.samples * (1.0 + version - one.began) ** -0.5


def mean(came: list[Sent], version: int) -> Weights:
    shares = [weight(one, version) for one in came]
    every = [(share / sum(shares), one.delta) for share, one in zip(shares, came, strict=True)]
    return {name: sum(share * delta[name] for share, delta in every) for name in came[0].delta}


def by_coordinate(middle: Callable[[Sequence[float]], float]) -> Callable[[list[Sent], int], Weights]:
    def combine(came: list[Sent], version: int) -> Weights:
        columns = {name: torch.stack([one.delta[name].flatten() for one in came]).T for name in came[0].delta}
        return {
            name: torch.tensor([middle(one) for one in each.tolist()]).view_as(came[0].delta[name])
            for name, each in columns.items()
        }

    return combine


def krum(came: list[Sent], version: int) -> Weights:
    """Of five or more the one whose len - 3 nearest are nearest."""
    flat = [torch.cat([value.flatten() for value in one.delta.values()]).double() for one in came]
    far = [sorted(float((one - other).square().sum()) for other in flat if other is not one) for one in flat]
    scores = [sum(each[: len(came) - 3]) for each in far]
    return came[scores.index(min(scores))].delta


@dataclass
class Server:
    """Nesterov by the mean of a round: the `quorum` first, and who comes in the grace after them."""

    common: Weights
    members: set[int]
    quorum: int
    grace_s: float | None
    combine: Callable[[list[Sent], int], Weights] = mean
    least: int = 1
    version: int = 0
    until_s: float = float("inf")
    came: list[Sent] = field(default_factory=list)
    answers: dict[int, tuple[int, int, Weights]] = field(default_factory=dict)
    rounds: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paces: dict[int, float] = {}
        self.weights: dict[int, float] = {}
        self.past = {name: torch.zeros_like(value) for name, value in self.common.items()}
        self.came_s, self.answered_s, self.periods_s = {}, dict.fromkeys(self.members, 0.0), {}

    def hear(self, sent: Sent, now_s: float) -> None:
        rank, pace = sent.rank, sent.samples / SAMPLES[sent.rank] / sent.worked_s
        self.paces[rank] = 0.5 * self.paces.get(rank, pace) + 0.5 * pace
        self.periods_s[rank], self.came_s[rank] = now_s - self.answered_s[rank], now_s
        self.weights[rank] = 1.0 if self.least > 1 else weight(sent, self.version)
        self.came.append(sent)
        self.settle(now_s)

    def settle(self, now_s: float) -> None:
        if len(self.came) < min(self.quorum, max(self.least, len(self.members))) or not self.came:
            return
        if self.members <= {one.rank for one in self.came}:
            self.fold(now_s)
            return
        usual_s = statistics.median_high([self.periods_s[one] for one in self.members if one in self.periods_s])
        left_s = max(0.0, usual_s - (now_s - self.came_s[self.came[0].rank]))
        if self.until_s == float("inf"):
            self.until_s = now_s + (left_s if self.grace_s is None else self.grace_s)

    def fold(self, now_s: float) -> None:
        came, self.came, self.until_s = sorted(self.came, key=lambda one: one.rank), [], float("inf")
        self.rounds.append([one.rank for one in came])
        total, missing = (
            sum(self.weights[one] for one in self.weights if (one in self.rounds[-1]) == there) for there in (1, 0)
        )
        for name, moved in self.combine(came, self.version).items():
            self.past[name] = 0.6 * self.past[name] + moved
            self.common[name] -= 0.7 * total / (total + missing) * (moved + 0.6 * self.past[name])
        self.version += 1
        for one in came:
            granted = max(1, round(EVERY * (self.paces[one.rank] / max(self.paces.values()))))
            self.answers[one.rank] = self.version, granted, clone(self.common)
            self.answered_s[one.rank] = now_s

    def leave(self, rank: int, now_s: float) -> None:
        self.members.discard(rank)
        del self.paces[rank], self.weights[rank]
        self.settle(now_s)


class Learner:
    """A worker; `start`: what its next contribution counts from; `late`: it goes on while its answer travels."""

    def __init__(self, rank: int, late: bool, aligned: bool) -> None:
        self.aligned = aligned
        self.rank, self.late, self.model = rank, late, loops.mlp()
        self.optimizer = loops.momentum(self.model)
        self.weights = {name: value.data for name, value in self.model.named_parameters()}
        self.start = clone(self.weights)
        self.packer: Packer | None = None
        self.version = self.began = self.steps = self.done = self.answered_at = 0
        self.granted = EVERY
        self.waits = self.in_flight = self.ends = False

    def step(self) -> None:
        inputs, labels = loops.data()
        rows = rows_of(self.rank, self.done)
        loops.descend(self.optimizer, loops.loss_of(self.model, inputs[rows], labels[rows]))
        self.steps, self.done = self.steps + 1, self.done + 1

    def send(self, codec: Codec | None) -> Sent:
        delta = {name: self.start[name] - value for name, value in self.weights.items()}
        if codec is not None:
            self.packer = self.packer or Packer(codec)
            there = self.packer(self.start, clone(self.weights))
            delta = {name: self.start[name] - value for name, value in there.items()}
        worked_s = sum(step_s(self.rank, step) for step in range(self.done - self.steps, self.done))
        sent = Sent(self.rank, delta, self.steps * SAMPLES[self.rank], worked_s, self.began, self.version)
        self.start, self.began, self.steps, self.in_flight = clone(self.weights), self.version, 0, True
        self.answered_at = 0
        return sent

    def is_due(self) -> bool:
        """So many steps after its answer came, which it took after one step or more."""
        return not self.in_flight and self.steps >= self.granted + max(0, self.answered_at - 1)

    def take(self, answer: tuple[int, int, Weights]) -> None:
        """What was done since it sent, on top of the version."""
        self.version, granted, common = answer
        self.granted = granted if self.aligned else EVERY
        self.answered_at = self.steps if self.aligned else 0
        for name, mine in self.weights.items():
            mine.copy_(common[name] + (mine - self.start[name]))
        self.start, self.in_flight = common, False
        self.began = self.began if self.steps else self.version


def by_hand(
    quorum: int,
    grace_s: float | None,
    late: bool,
    codec: Codec | None = None,
    workers: int = 4,
    aligned: bool = True,
    **how: Any,
) -> tuple[Weights, list[list[int]]]:
    """The common weights, and who was in each round."""
    crew = [Learner(rank, late, aligned) for rank in range(workers)]
    server = Server(clone(crew[0].weights), set(range(workers)), quorum, grace_s, **how)
    ends_s = [(step_s(one.rank, 0), one.rank) for one in crew]
    heapq.heapify(ends_s)

    def go_on(one: Learner, now_s: float) -> None:
        """After a step, or when the answer that it waited for is there."""
        last = one.done == steps_of(one.rank)
        if one.in_flight and one.rank in server.answers and (one.steps or one.waits):
            one.take(server.answers.pop(one.rank))
        due = one.is_due() or (last and one.steps)
        one.waits = one.in_flight and (last or not one.late or (one.steps >= one.granted and not aligned))
        if one.waits:
            return
        if due:
            server.hear(one.send(codec), now_s)
            one.waits = waits = last or not one.late
            wake(now_s)
            if waits:
                return
        if last and not one.in_flight:
            server.leave(one.rank, now_s)
            wake(now_s)
        elif not one.waits:
            heapq.heappush(ends_s, (now_s + step_s(one.rank, one.done), one.rank))

    def wake(now_s: float) -> None:
        for one in crew:
            if one.waits and one.rank in server.answers:
                go_on(one, now_s)

    while ends_s or server.until_s < float("inf"):  # too few may be left for another version
        if not ends_s or server.until_s < ends_s[0][0]:
            now_s = server.until_s
            server.fold(now_s)
            wake(now_s)
            continue
        now_s, rank = heapq.heappop(ends_s)
        crew[rank].step()
        go_on(crew[rank], now_s)
    return server.common, server.rounds


def train(worker: ps.Worker) -> None:
    inputs, labels = loops.data()
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.momentum(model), None)
    for step in range(steps_of(worker.rank)):
        rows = rows_of(worker.rank, step)
        worker.count(samples=SAMPLES[worker.rank])
        loops.descend(optimizer, loops.loss_of(model, inputs[rows], labels[rows]))


def ran(strategy: Strategy, workers: int = 4, faults: tuple[Any, ...] = ()) -> ps.Run:
    laws = [Trace(tuple(one * factor for factor in VARIES)) for one in STEPS_S[:workers]]
    engine = ps.Simulated(Cluster(tuple(Group(1, law) for law in laws), faults=faults))
    return ps.run(train, strategy, workers=workers, engine=engine)


def check(strategy: Strategy, wanted: Weights, workers: int = 4) -> None:
    got = ran(strategy, workers).state_dict
    for name, value in wanted.items():
        torch.testing.assert_close(got[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.few(4)
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("grace_s", [None, 0.4, 1.777])
@pytest.mark.parametrize("quorum", [1, 2, 4])
def test_rounds_of_who_is_there(quorum: int, grace_s: float | None, overlap: bool) -> None:
    wanted, rounds = by_hand(quorum, grace_s, overlap)
    assert quorum == 4 or len({len(one) for one in rounds}) > 1
    check(ps.decoupled(EVERY, quorum, grace_s, overlap=overlap), wanted)


@pytest.mark.parametrize("codec", [Int8(), TopK(0.3)], ids=str)
def test_what_is_sent_packed(codec: Codec) -> None:
    """Answers whole. What packing left out is in the next contribution."""
    packed = ps.decoupled(EVERY, 2, codec=TopK(0.3))
    strategy = replace(packed, send=replace(packed.send, codec=codec))
    assert_close_by_steps(ran(strategy).state_dict, by_hand(2, None, True, codec)[0])


def half_each(worker: ps.Worker) -> None:
    """Worker 0 moves ten numbers, worker 1 the ninety others, each step by as much."""
    model = torch.nn.ParameterList([torch.zeros(10), torch.zeros(90)])
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    for _ in range(4 if worker.rank else 25):
        worker.count(samples=1)
        optimizer.zero_grad()
        (model[worker.rank] * torch.arange(1.0, len(model[worker.rank]) + 1)).sum().backward()
        optimizer.step()


def test_of_a_delta_that_comes_too_late_nothing_goes_into_the_next() -> None:
    """Three of worker 1's four are stale, and their data would be leased again. What packing left out of them is no part of the
    fourth: the largest numbers of that alone, a tenth of the 112 that are in memory."""
    late = Cluster((Group(1, Trace((1.0,))), Group(1, Trace((9.9,)))))
    strategy = ps.decoupled(1, grace_s=0.01, lr=1.0, momentum=0.0, within=0, codec=TopK(0.1), overlap=False)
    run = ps.run(half_each, strategy, workers=2, engine=ps.Simulated(late))
    assert run.discarded == {"stale": 3}
    assert run.state_dict["1"].tolist() == [0.0] * 79 + [-float(one) for one in range(80, 91)]


COMBINES: dict[str, tuple[int, Callable[[list[Sent], int], Weights]]] = {
    "median": (3, by_coordinate(statistics.median)),
    "trimmed_mean": (5, by_coordinate(lambda each: statistics.fmean(sorted(each)[1:-1]))),
    "krum": (5, krum),
}


@pytest.mark.parametrize(
    "strategy",
    [
        ps.decoupled(EVERY, combine="median"),
        ps.diloco(EVERY, combine="median"),
        ps.local_sgd(EVERY, weigh="equal", combine="median"),
    ],
    ids=by_name,
)
def test_two_of_three_wait_until_the_third_comes_back(strategy: Strategy) -> None:
    faults = Crash(worker=1, at_s=7.2), Restart(worker=1, at_s=60.0)
    run = ran(strategy, 3, faults)
    assert run.version > 2
    assert 60.0 < run.summary.wall_s < 100.0


@pytest.mark.parametrize("recipe", [ps.decoupled, ps.diloco])
@pytest.mark.parametrize("combine", COMBINES)
def test_what_a_few_cannot_move(combine: str, recipe: Callable[..., Strategy]) -> None:
    """Of six workers: until fewer are left than make a version."""
    least, fold = COMBINES[combine]
    quorum = least if recipe is ps.decoupled else 6
    wanted, rounds = by_hand(quorum, None, True, workers=6, aligned=quorum < 6, combine=fold, least=least)
    assert len(rounds) > 4
    check(recipe(EVERY, combine=combine, overlap=True), wanted, workers=6)
