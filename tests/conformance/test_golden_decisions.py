"""What every recipe decides for one fixed course of events, written out: a change of behaviour shows in review.

Three workers; worker 2 is slow and gets every fifth turn, dies and comes back. A worker whose turn comes while it is
held does nothing; one that is called off says at once that it dropped its step. Worker 0 tells of 30 samples a
contribution, worker 1 of 20, worker 2 of 10.
To read a line: `0#2` is the second contribution of worker 0; `fold v3 [0#2 tau1 0.50]` makes version 3 of it, one
version stale and half of the mean; `lr` is the part of the learning rate the fold moves by; `go 0@v3` lets worker 0 go
on from version 3; `stop 2#1@v3` calls its number 1 off.
"""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from plesio.core.events import Abandoned, Cancel, Discard, Effect, Fold, Grant, Hold, Joined, Left, Pushed
from plesio.core.sequencer import Sequencer
from plesio.strategy import Strategy, recipes
from plesio.strategy.answers import Seconds

TURNS = (0, 1, 0, 1, 2, 1, 0, 0, 1, 2, 0, 1)
SAMPLES = (30, 20, 10)


def line(effect: Effect) -> str:
    match effect:
        case Fold(version=version, members=members, scale=scale, held=held):
            parts = ", ".join(f"{one.worker}#{one.number} tau{one.staleness} {one.share:.2f}" for one in members)
            return f"fold v{version} [{parts}] lr {scale:.2f}{' held' if held else ''}"
        case Grant(worker=worker, version=version):
            return f"go {worker}@v{version}"
        case Hold(worker=worker, number=number, weight=weight):
            return f"hold {worker}#{number} x {weight:.2f}"
        case Discard(worker=worker, number=number, verdict=verdict, staleness=staleness):
            return f"drop {worker}#{number} tau{staleness} {verdict.name.lower()}"
        case Cancel(worker=worker, number=number, version=version):
            return f"stop {worker}#{number}@v{version}"
    raise AssertionError(effect)


class Course:
    """The fixed course of events; writes down what the sequencer decides."""

    def __init__(self, strategy: Strategy) -> None:
        self.sequencer = Sequencer(strategy, workers=3)
        self.numbers = [0, 0, 0]
        self.held = [True, True, True]
        self.lines: list[str] = []
        for worker in range(3):
            self.tell(f"join {worker}", Joined(worker, 1))

    def tell(self, title: str, event: Joined | Left | Pushed) -> None:
        effects = self.sequencer.receive(event, now_s=0.0)
        for effect in effects:
            if isinstance(effect, (Grant, Cancel)):
                self.held[effect.worker] = False
                self.numbers[effect.worker] = effect.number + 1
            if isinstance(effect, Cancel):
                seat = self.sequencer.members.seats[effect.worker]
                assert self.sequencer.receive(Abandoned(seat.worker, seat.incarnation, 0), now_s=0.0) == []
        self.lines.append(f"{title}: {'; '.join(line(effect) for effect in effects) or '-'}")

    def run(self) -> list[str]:
        self.lines.clear()
        for worker in TURNS:
            self.turn(worker)
        self.tell("2 dies", Left(2, 1, died=True))
        self.turn(0)
        self.tell("2 is back", Joined(2, 2))
        self.turn(2, incarnation=2)
        return self.lines

    def turn(self, worker: int, incarnation: int = 1) -> None:
        if self.held[worker]:
            self.lines.append(f"{worker} is held")
            return
        self.held[worker] = True
        number = self.numbers[worker]
        self.tell(f"{worker}#{number}", Pushed(worker, incarnation, number, 1, SAMPLES[worker], 0))


GOLDEN: list[tuple[str, dict[str, Any], str]] = [
    (
        "allreduce",
        {},
        """
        0#1: -
        1#1: -
        0 is held
        1 is held
        2#1: fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0@v1; go 1@v1; go 2@v1
        1#2: -
        0#2: -
        0 is held
        1 is held
        2#2: fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 1.00; go 1@v2; go 0@v2; go 2@v2
        0#3: -
        1#3: -
        2 dies: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 1.00; go 0@v3; go 1@v3
        0#4: -
        2 is back: go 2@v3
        2#1: -
        """,
    ),
    (
        "sync_sgd",
        {},
        """
        0#1: -
        1#1: -
        0 is held
        1 is held
        2#1: fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0@v1; go 1@v1; go 2@v1
        1#2: -
        0#2: -
        0 is held
        1 is held
        2#2: fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 1.00; go 1@v2; go 0@v2; go 2@v2
        0#3: -
        1#3: -
        2 dies: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 1.00; go 0@v3; go 1@v3
        0#4: -
        2 is back: go 2@v3
        2#1: -
        """,
    ),
    (
        "first_of",
        {"m": 2},
        """
        0#1: -
        1#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0@v1; go 1@v1; drop 2#1 tau1 cancelled; stop 2#1@v1
        0#2: -
        1#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0@v2; go 1@v2; drop 2#2 tau1 cancelled; stop 2#2@v2
        2#3: -
        1#3: fold v3 [1#3 tau0 0.50, 2#3 tau0 0.50] lr 1.00; go 2@v3; go 1@v3; drop 0#3 tau1 cancelled; stop 0#3@v3
        0#4: -
        0 is held
        1#4: fold v4 [0#4 tau0 0.50, 1#4 tau0 0.50] lr 1.00; go 0@v4; go 1@v4; drop 2#4 tau1 cancelled; stop 2#4@v4
        2#5: -
        0#5: fold v5 [0#5 tau0 0.50, 2#5 tau0 0.50] lr 1.00; go 2@v5; go 0@v5; drop 1#5 tau1 cancelled; stop 1#5@v5
        1#6: -
        2 dies: -
        0#6: fold v6 [0#6 tau0 0.50, 1#6 tau0 0.50] lr 1.00; go 1@v6; go 0@v6
        2 is back: go 2@v6
        2#1: -
        """,
    ),
    (
        "first_of",
        {"m": 2, "cancel_late": False},
        """
        0#1: -
        1#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 1.00; go 0@v1; go 1@v1
        0#2: -
        1#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.50] lr 1.00; go 0@v2; go 1@v2
        2#1: drop 2#1 tau2 stale; go 2@v2
        1#3: -
        0#3: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 1.00; go 1@v3; go 0@v3
        0#4: -
        1#4: fold v4 [0#4 tau0 0.50, 1#4 tau0 0.50] lr 1.00; go 0@v4; go 1@v4
        2#2: drop 2#2 tau2 stale; go 2@v4
        0#5: -
        1#5: fold v5 [0#5 tau0 0.50, 1#5 tau0 0.50] lr 1.00; go 0@v5; go 1@v5
        2 dies: -
        0#6: -
        2 is back: go 2@v5
        2#1: fold v6 [0#6 tau0 0.50, 2#1 tau0 0.50] lr 1.00; go 0@v6; go 2@v6
        """,
    ),
    (
        "async_sgd",
        {},
        """
        0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
        1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
        0#2: fold v3 [0#2 tau1 1.00] lr 0.33; go 0@v3
        1#2: fold v4 [1#2 tau1 1.00] lr 0.33; go 1@v4
        2#1: fold v5 [2#1 tau4 1.00] lr 0.33; go 2@v5
        1#3: fold v6 [1#3 tau1 1.00] lr 0.33; go 1@v6
        0#3: fold v7 [0#3 tau3 1.00] lr 0.33; go 0@v7
        0#4: fold v8 [0#4 tau0 1.00] lr 0.33; go 0@v8
        1#4: fold v9 [1#4 tau2 1.00] lr 0.33; go 1@v9
        2#2: fold v10 [2#2 tau4 1.00] lr 0.33; go 2@v10
        0#5: fold v11 [0#5 tau2 1.00] lr 0.33; go 0@v11
        1#5: fold v12 [1#5 tau2 1.00] lr 0.33; go 1@v12
        2 dies: -
        0#6: fold v13 [0#6 tau1 1.00] lr 0.33; go 0@v13
        2 is back: go 2@v13
        2#1: fold v14 [2#1 tau0 1.00] lr 0.33; go 2@v14
        """,
    ),
    (
        "async_sgd",
        {"correct": "plain", "weigh": "polynomial"},
        """
        0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
        1#1: fold v2 [1#1 tau1 1.00] lr 0.24; go 1@v2
        0#2: fold v3 [0#2 tau1 1.00] lr 0.24; go 0@v3
        1#2: fold v4 [1#2 tau1 1.00] lr 0.24; go 1@v4
        2#1: fold v5 [2#1 tau4 1.00] lr 0.15; go 2@v5
        1#3: fold v6 [1#3 tau1 1.00] lr 0.24; go 1@v6
        0#3: fold v7 [0#3 tau3 1.00] lr 0.17; go 0@v7
        0#4: fold v8 [0#4 tau0 1.00] lr 0.33; go 0@v8
        1#4: fold v9 [1#4 tau2 1.00] lr 0.19; go 1@v9
        2#2: fold v10 [2#2 tau4 1.00] lr 0.15; go 2@v10
        0#5: fold v11 [0#5 tau2 1.00] lr 0.19; go 0@v11
        1#5: fold v12 [1#5 tau2 1.00] lr 0.19; go 1@v12
        2 dies: -
        0#6: fold v13 [0#6 tau1 1.00] lr 0.24; go 0@v13
        2 is back: go 2@v13
        2#1: fold v14 [2#1 tau0 1.00] lr 0.33; go 2@v14
        """,
    ),
    (
        "bounded_staleness",
        {"s": 1},
        """
        0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
        1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
        0#2: fold v3 [0#2 tau1 1.00] lr 0.33
        1#2: fold v4 [1#2 tau1 1.00] lr 0.33
        2#1: fold v5 [2#1 tau4 1.00] lr 0.33; go 0@v5; go 1@v5; go 2@v5
        1#3: fold v6 [1#3 tau0 1.00] lr 0.33
        0#3: fold v7 [0#3 tau1 1.00] lr 0.33
        0 is held
        1 is held
        2#2: fold v8 [2#2 tau2 1.00] lr 0.33; go 0@v8; go 1@v8; go 2@v8
        0#4: fold v9 [0#4 tau0 1.00] lr 0.33
        1#4: fold v10 [1#4 tau1 1.00] lr 0.33
        2 dies: go 0@v10; go 1@v10
        0#5: fold v11 [0#5 tau0 1.00] lr 0.33; go 0@v11
        2 is back: go 2@v11
        2#1: fold v12 [2#1 tau0 1.00] lr 0.33; go 2@v12
        """,
    ),
    (
        "buffered",
        {"k": 2},
        """
        0#1: hold 0#1 x 1.00; go 0@v0
        1#1: hold 1#1 x 1.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 0.67 held; go 1@v1
        0#2: hold 0#2 x 1.00; go 0@v1
        1#2: hold 1#2 x 1.00; fold v2 [0#2 tau1 0.50, 1#2 tau0 0.50] lr 0.67 held; go 1@v2
        2#1: hold 2#1 x 1.00; go 2@v2
        1#3: hold 1#3 x 1.00; fold v3 [2#1 tau2 0.50, 1#3 tau0 0.50] lr 0.67 held; go 1@v3
        0#3: hold 0#3 x 1.00; go 0@v3
        0#4: hold 0#4 x 1.00; fold v4 [0#3 tau2 0.50, 0#4 tau0 0.50] lr 0.67 held; go 0@v4
        1#4: hold 1#4 x 1.00; go 1@v4
        2#2: hold 2#2 x 1.00; fold v5 [1#4 tau1 0.50, 2#2 tau2 0.50] lr 0.67 held; go 2@v5
        0#5: hold 0#5 x 1.00; go 0@v5
        1#5: hold 1#5 x 1.00; fold v6 [0#5 tau1 0.50, 1#5 tau1 0.50] lr 0.67 held; go 1@v6
        2 dies: -
        0#6: hold 0#6 x 1.00; go 0@v6
        2 is back: go 2@v6
        2#1: hold 2#1 x 1.00; fold v7 [0#6 tau1 0.50, 2#1 tau0 0.50] lr 0.67 held; go 2@v7
        """,
    ),
    (
        "rennala",
        {"k": 2},
        """
        0#1: hold 0#1 x 1.00; go 0@v0
        1#1: hold 1#1 x 1.00; fold v1 [0#1 tau0 0.50, 1#1 tau0 0.50] lr 0.67 held; go 1@v1
        0#2: drop 0#2 tau1 stale; go 0@v1
        1#2: hold 1#2 x 1.00; go 1@v1
        2#1: drop 2#1 tau1 stale; go 2@v1
        1#3: hold 1#3 x 1.00; fold v2 [1#2 tau0 0.50, 1#3 tau0 0.50] lr 0.67 held; go 1@v2
        0#3: drop 0#3 tau1 stale; go 0@v2
        0#4: hold 0#4 x 1.00; go 0@v2
        1#4: hold 1#4 x 1.00; fold v3 [0#4 tau0 0.50, 1#4 tau0 0.50] lr 0.67 held; go 1@v3
        2#2: drop 2#2 tau2 stale; go 2@v3
        0#5: drop 0#5 tau1 stale; go 0@v3
        1#5: hold 1#5 x 1.00; go 1@v3
        2 dies: -
        0#6: hold 0#6 x 1.00; fold v4 [1#5 tau0 0.50, 0#6 tau0 0.50] lr 0.67 held; go 0@v4
        2 is back: go 2@v4
        2#1: hold 2#1 x 1.00; go 2@v4
        """,
    ),
    (
        "ringmaster",
        {"r": 3},
        """
        0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
        1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
        0#2: fold v3 [0#2 tau1 1.00] lr 0.33; go 0@v3
        1#2: fold v4 [1#2 tau1 1.00] lr 0.33; go 1@v4
        2#1: drop 2#1 tau4 stale; go 2@v4
        1#3: fold v5 [1#3 tau0 1.00] lr 0.33; go 1@v5
        0#3: fold v6 [0#3 tau2 1.00] lr 0.33; go 0@v6
        0#4: fold v7 [0#4 tau0 1.00] lr 0.33; go 0@v7
        1#4: fold v8 [1#4 tau2 1.00] lr 0.33; go 1@v8
        2#2: drop 2#2 tau4 stale; go 2@v8
        0#5: fold v9 [0#5 tau1 1.00] lr 0.33; go 0@v9
        1#5: fold v10 [1#5 tau1 1.00] lr 0.33; go 1@v10
        2 dies: -
        0#6: fold v11 [0#6 tau1 1.00] lr 0.33; go 0@v11
        2 is back: go 2@v11
        2#1: fold v12 [2#1 tau0 1.00] lr 0.33; go 2@v12
        """,
    ),
    (
        "local_sgd",
        {"every": 16},
        """
        0#1: -
        1#1: -
        0 is held
        1 is held
        2#1: fold v1 [0#1 tau0 0.33, 1#1 tau0 0.33, 2#1 tau0 0.33] lr 1.00; go 0@v1; go 1@v1; go 2@v1
        1#2: -
        0#2: -
        0 is held
        1 is held
        2#2: fold v2 [0#2 tau0 0.33, 1#2 tau0 0.33, 2#2 tau0 0.33] lr 1.00; go 1@v2; go 0@v2; go 2@v2
        0#3: -
        1#3: -
        2 dies: fold v3 [0#3 tau0 0.50, 1#3 tau0 0.50] lr 1.00; go 0@v3; go 1@v3
        0#4: -
        2 is back: go 2@v3
        2#1: -
        """,
    ),
    (
        "local_sgd",
        {"every": Seconds(0.3)},
        """
        0#1: -
        1#1: -
        0 is held
        1 is held
        2#1: fold v1 [0#1 tau0 0.50, 1#1 tau0 0.33, 2#1 tau0 0.17] lr 1.00; go 0@v1; go 1@v1; go 2@v1
        1#2: -
        0#2: -
        0 is held
        1 is held
        2#2: fold v2 [0#2 tau0 0.50, 1#2 tau0 0.33, 2#2 tau0 0.17] lr 1.00; go 1@v2; go 0@v2; go 2@v2
        0#3: -
        1#3: -
        2 dies: fold v3 [0#3 tau0 0.60, 1#3 tau0 0.40] lr 1.00; go 0@v3; go 1@v3
        0#4: -
        2 is back: go 2@v3
        2#1: -
        """,
    ),
    (
        "hogwild",
        {},
        """
        0#1: fold v1 [0#1 tau0 1.00] lr 0.33; go 0@v1
        1#1: fold v2 [1#1 tau1 1.00] lr 0.33; go 1@v2
        0#2: fold v3 [0#2 tau1 1.00] lr 0.33; go 0@v3
        1#2: fold v4 [1#2 tau1 1.00] lr 0.33; go 1@v4
        2#1: fold v5 [2#1 tau4 1.00] lr 0.33; go 2@v5
        1#3: fold v6 [1#3 tau1 1.00] lr 0.33; go 1@v6
        0#3: fold v7 [0#3 tau3 1.00] lr 0.33; go 0@v7
        0#4: fold v8 [0#4 tau0 1.00] lr 0.33; go 0@v8
        1#4: fold v9 [1#4 tau2 1.00] lr 0.33; go 1@v9
        2#2: fold v10 [2#2 tau4 1.00] lr 0.33; go 2@v10
        0#5: fold v11 [0#5 tau2 1.00] lr 0.33; go 0@v11
        1#5: fold v12 [1#5 tau2 1.00] lr 0.33; go 1@v12
        2 dies: -
        0#6: fold v13 [0#6 tau1 1.00] lr 0.33; go 0@v13
        2 is back: go 2@v13
        2#1: fold v14 [2#1 tau0 1.00] lr 0.33; go 2@v14
        """,
    ),
]


@pytest.mark.parametrize(("name", "settings", "expected"), GOLDEN, ids=[f"{name}{given}" for name, given, _ in GOLDEN])
def test_decisions_match_the_golden_traces(name: str, settings: dict[str, Any], expected: str) -> None:
    assert Course(recipes.recipe(name, **settings)).run() == dedent(expected).strip().splitlines()


def test_every_recipe_has_a_golden_trace() -> None:
    assert {name for name, _, _ in GOLDEN} == set(recipes.RECIPES)
