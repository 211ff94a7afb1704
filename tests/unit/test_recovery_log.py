"""The log that a server's successor goes on from: it does again what the dead process did, loses nothing, doubles nothing."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from plesio.system.recovery_log import _FREE, TURNS_MOST, RecoveryLog

HALF_BYTES = 400
READ_MOST = 48
Step = tuple[str, Any]


class Died(Exception):
    """The process ends here."""


class Words:
    """The words of a log, whose process dies before it stores one of the next."""

    def __init__(self, words: Any) -> None:
        self._words = words
        self.left: int | None = None

    def __getitem__(self, which: int) -> int:
        word: int = self._words[which]
        return word

    def __setitem__(self, which: int, word: int) -> None:
        self.step()
        self._words[which] = word

    def step(self) -> None:
        """One of the moments at which it may die."""
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Died


class World:
    """What outlives processes: the words, a pipe that is written to, what was done to others."""

    def __init__(self) -> None:
        self.log = RecoveryLog(HALF_BYTES)
        self.words = Words(self.log._words)
        self.log._words = self.words  # type: ignore[assignment]
        self.inbox, self.pipe = os.pipe()
        os.set_blocking(self.inbox, False)
        self.sent = b""
        self.done: list[int] = []

    def effect(self, number: int) -> int:
        """What is to be done once, or twice if the process dies before that is on record."""
        self.words.step()
        self.done.append(number)
        self.words.step()
        return number

    def close(self) -> None:
        os.close(self.inbox)
        os.close(self.pipe)


class Process:
    """Its log and all it has seen. `fork` is what a fork gives."""

    def __init__(self, world: World, log: RecoveryLog, seen: list[object]) -> None:
        self.world, self.log, self.seen = world, log, seen

    def fork(self) -> Process:
        return Process(self.world, copy.copy(self.log), self.seen[:])

    def take(self, step: Step) -> None:
        """One step of its program."""
        kind, what = step
        if kind == "turn":
            seen: object = self.log.next_turn()
            if seen is None:
                self.log.turn(*what)
                seen = what
        elif kind == "read":
            seen = self.log.read(self.world.inbox, READ_MOST)
        else:
            seen = self.log.once(partial(self.world.effect, what))
        self.seen.append(seen)

    @property
    def heard(self) -> bytes:
        return b"".join(one for one in self.seen if isinstance(one, bytes))


class Deaths(RuleBasedStateMachine):
    """One process after another takes the same steps; any may die at any moment, also while it recovers."""

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        self.world = World()
        self.process = Process(self.world, self.world.log, [])
        self.steps: list[Step] = []  # of the program,
        self.spares: list[tuple[Process, int]] = []  # and how many of them each spare has taken
        self.deaths = self.number = 0

    @rule(data=st.binary(min_size=16, max_size=60))
    def arrive(self, data: bytes) -> None:
        os.write(self.world.pipe, data)
        self.world.sent += data

    @rule(now_s=st.floats(0, 1e6), dies=st.none() | st.integers(0, 3))
    def turn(self, now_s: float, dies: int | None) -> None:
        self.number += 1
        self._step(("turn", (self.number, now_s)), dies)

    @rule(dies=st.none() | st.integers(0, 4))
    def read(self, dies: int | None) -> None:
        if len(self.process.heard) < len(self.world.sent):
            self._step(("read", None), dies)

    @rule(dies=st.none() | st.integers(0, 4))
    def once(self, dies: int | None) -> None:
        self.number += 1
        self._step(("once", self.number), dies)

    def _step(self, step: Step, dies: int | None) -> None:
        self.steps.append(step)
        self._mortal(dies, partial(self.process.take, step))

    @rule(dies=st.none() | st.integers(0, 4), works=st.sampled_from((True, True, True, False)))
    def fork(self, dies: int | None, works: bool) -> None:
        self._mortal(dies, partial(self._fork, works))

    def _fork(self, works: bool) -> None:
        log = self.process.log
        log.begin()
        if not works:
            log.give_up()
            return
        self.spares = [*self.spares[-1:], (self.process.fork(), len(self.steps))]
        log.counts()

    def _mortal(self, dies: int | None, do: Callable[[], None]) -> None:
        self.world.words.left = dies
        try:
            do()
        except Died:
            self._die()
        self.world.words.left = None

    @rule(again=st.lists(st.integers(0, 12), max_size=2))
    def die(self, again: list[int]) -> None:
        """At rest; and its spares while they recover."""
        self._die(*again)

    def _die(self, *again: int) -> None:
        self.deaths += 1
        taking_over = [one for one in self.spares if one[0].log.is_mine]
        if not taking_over:  # the run is over
            self.world.close()
            self._begin()
            return
        [(spare, taken)] = taking_over
        self.world.words.left = again[0] if again else None
        process = spare.fork()
        try:
            process.log.recover()
            for step in self.steps[taken:]:
                process.take(step)
        except Died:
            self._die(*again[1:])
            return
        assert not process.log.recovering
        self.process = process

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        seen, world = self.process.seen, self.world
        wanted = [what for _, what in self.steps]
        assert [one for one in seen if not isinstance(one, bytes)] == [one for one in wanted if one is not None]
        assert world.sent.startswith(self.process.heard)
        effects = [what for kind, what in self.steps if kind == "once"]
        assert sorted(set(world.done)) == effects
        assert len(world.done) - len(effects) <= self.deaths

    def teardown(self) -> None:
        log, world = self.process.log, self.world
        while len(self.process.heard) < len(world.sent):
            self._step(("read", None), None)
        assert self.process.heard == world.sent
        assert log.turns >= 0
        world.close()


TestDeaths = Deaths.TestCase


@pytest.mark.parametrize(("room", "most"), [(1 << 15, 1600), (1 << 20, TURNS_MOST)], ids=["full", "many turns"])
def test_a_worn_log_asks_for_a_spare_and_takes_no_more_than_it_has_room_for(room: int, most: int) -> None:
    log = RecoveryLog(_FREE + room)
    assert log.rest()
    log.begin()
    log.counts()
    turns = 0
    while not log.rest():
        log.turn(turns, 0.0)
        turns += 1
    assert most // 2 < log.turns == turns <= most
    assert log.is_mine
    for _ in range(200):  # nobody has forked one
        log.once(lambda: "x" * 10_000)
    assert not log.is_mine
    assert not log.recording
    log.begin()
    log.counts()
    assert log.is_mine
    assert not log.rest()


def test_a_turn_that_kills_twice_is_known_by_its_place() -> None:
    log = RecoveryLog(1 << 12)
    log.begin()
    log.counts()
    spare = copy.copy(log)
    places = []
    for number in range(3):
        log.turn(number, 0.0)
        places.append(spare.place)
        log.rest()
        assert spare.place == (0, 0)
    assert len(set(places)) == 3
    log.turn(3, 0.0)
    place = spare.place
    spare.recover()
    while spare.next_turn() is not None:
        pass
    assert spare.place == place not in places
