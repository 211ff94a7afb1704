"""What every recipe decides for one fixed course of events, in golden.txt: a change of behaviour shows in review.

    PYTHONPATH=tests python -m conformance.test_golden_decisions --write

makes the file anew; read what changed in it.

Three workers; worker 2 is slow and gets every fifth turn, dies and comes back. A worker whose turn comes while it is
held does nothing; one that is called off says at once that it dropped its step. Worker 0 tells of 30 samples a
contribution, worker 1 of 20, worker 2 of 10.
To read a line: `0#2` is the second contribution of worker 0; `fold v3 [0#2 tau1 0.50]` makes version 3 of it, one
version stale and half of the mean; `lr` is the part of the learning rate the fold moves by; `go 0@v3` lets worker 0 go
on from version 3; `stop 2#1@v3` calls its number 1 off.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from conformance.table import ROWS
from plesio.core.events import (
    Abandoned,
    Cancel,
    Discard,
    Effect,
    Fold,
    Forget,
    Grant,
    Hold,
    Joined,
    Left,
    Pushed,
    Share,
    Show,
    Switch,
    WakeAt,
)
from plesio.core.sequencer import Sequencer
from plesio.strategy import Strategy, recipes

FILE = Path(__file__).with_name("golden.txt")
TURNS = (0, 1, 0, 1, 2, 1, 0, 0, 1, 2, 0, 1)
SAMPLES = (30, 20, 10)
STRATEGIES: dict[str, Strategy] = {
    **{f"{name}{given}": recipes.recipe(name, **given) for name, row in ROWS.items() for given in row.golden},
    # a buffer is folded as full as it is, and nobody goes on before all have come
    "phases": recipes.phases(recipes.buffered(3), (1, recipes.async_sgd(correct="plain")), (4, recipes.sync_sgd())),
}


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
        case Switch(phase=phase):
            return f"phase {phase}"
        case Show() | Share() | Forget() | WakeAt():
            return ""
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
        self.lines.append(f"{title}: {'; '.join(filter(None, map(line, effects))) or '-'}")

    def run(self) -> str:
        self.lines.clear()
        for worker in TURNS:
            self.turn(worker)
        self.tell("2 dies", Left(2, 1, died=True))
        self.turn(0)
        self.tell("2 is back", Joined(2, 2))
        self.turn(2, incarnation=2)
        return "\n".join(self.lines)

    def turn(self, worker: int, incarnation: int = 1) -> None:
        if self.held[worker]:
            self.lines.append(f"{worker} is held")
            return
        self.held[worker] = True
        number = self.numbers[worker]
        self.tell(f"{worker}#{number}", Pushed(worker, incarnation, number, 1, SAMPLES[worker], 0))


def kept() -> dict[str, str]:
    """What the file says of each strategy."""
    parts = (part.partition("\n\n") for part in FILE.read_text().strip().split("\n\n\n"))
    return {name: lines for names, _, lines in parts for name in names.splitlines()}


def written() -> str:
    """The file made anew; strategies that decide alike share their lines."""
    names = defaultdict[str, list[str]](list)
    for name, strategy in STRATEGIES.items():
        names[Course(strategy).run()].append(name)
    return "\n\n".join("\n".join(alike) + f"\n\n{lines}\n" for lines, alike in names.items())


@pytest.mark.parametrize("name", STRATEGIES)
def test_decisions_match_the_golden_traces(name: str) -> None:
    lines = kept().get(name, "nothing: PYTHONPATH=tests python -m conformance.test_golden_decisions --write")
    assert Course(STRATEGIES[name]).run().splitlines() == lines.splitlines()


def test_every_recipe_has_a_row_with_a_golden_trace() -> None:
    assert set(ROWS) == set(recipes.RECIPES)
    assert all(row.golden for row in ROWS.values())
    assert set(kept()) == set(STRATEGIES)


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    FILE.write_text(written())
