"""One run under its faults, from the first head to the last: what strikes, and what has come right before the next does."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from plesio.core.headship import most
from support.namespaces import OtherHost, hosts_on_a_switch
from support.standby import LOOPBACK, Host, Hosts, Leader, OverError, hosts, until
from torture.standbys.plan import CUT, FREEZE_HEAD, KILL_HEAD, KILL_STANDBY, KILL_WORKER, SITES, Plan

ELECTED, FENCED = "elected: this is the head now", "most of the run follows another head by now"
STANDS_BY = "standing by for "


class Story:
    """`tally`: what happened.

    `at_the_end`: the head was lost when all workers had ended, so nobody came to the next one. `over_apart`: the run ended during
    a split; who was cut off cannot know, and may have had data.
    """

    def __init__(self, plan: Plan, ours: Hosts, sites: list[OtherHost], tally: Counter[str]) -> None:
        self.plan, self.ours, self._sites, self.tally = plan, ours, sites, tally
        self._rng = random.Random(plan.seed)
        self._at: dict[str, int] = {}  # by name of a host: its site
        self.over_apart = self.at_the_end = False
        self.train = plan.train(ours.seen)
        self.head = self._lead(ours.head, plan.places[0])
        for rank in range(plan.workers):
            self._work(rank)
        self.standby = self._lead(self._stand_by, plan.places[1])

    # Who is where

    def _enter(self, site: int) -> Callable[[], None]:
        return self._sites[site].enter if self._sites else lambda: None

    def _lead(self, begin: Callable[[str, Callable[[], None]], Leader], site: int) -> Leader:
        leader = begin(self._sites[site].address if self._sites else LOOPBACK, self._enter(site))
        self._at[leader.name] = site
        return leader

    def _stand_by(self, at: str, enter: Callable[[], None]) -> Leader:
        return self.ours.standby(at, enter, self.plan.every)

    def _work(self, rank: int) -> None:
        site = self.plan.places[2 + rank]
        self._at[self.ours.worker(self.train, rank, self._enter(site)).name] = site

    # What strikes

    def run(self) -> None:
        """All of it; the run ends well."""
        strikes = {
            KILL_HEAD: self._kill_head,
            FREEZE_HEAD: self._freeze_head,
            KILL_STANDBY: self._kill_standby,
            KILL_WORKER: self._kill_worker,
            CUT: self._cut,
        }
        try:
            self._settle()
            for fault in self.plan.faults:
                self.ours.until_further(self._rng.randint(1, 5))
                time.sleep(0.3 * self._rng.random())
                self.tally[fault] += 1
                strikes[fault]()
                self._settle()
        except OverError:
            self.tally["over before all faults"] += 1
        (self.ours.seen / "hurry").touch()
        if self.at_the_end:
            self.tally["head lost when all had ended"] += 1
        else:
            self._end()

    def _settle(self) -> None:
        """Wait until the run would survive the next fault: who was elected has a standby, and the head before has ended."""
        beat = self.standby.beat

        def good() -> bool:
            return ELECTED in self.standby.log or (self.standby.beat > beat and self.ours.survives(self.standby))

        while True:
            self.ours.until(good)
            if ELECTED not in self.standby.log:
                return self.ours.until_further()
            self._promoted()
            beat = (0, 0)

    def _promoted(self) -> None:
        old, self.head = self.head, self.standby
        self.tally["elected"] += 1
        old.may_fail = True
        if not old.killed:
            assert old.end(), f"{old.name} ended as if all was well, though another is head"
            assert FENCED in old.log, f"{old.name} does not say why it ended: {old.log}"
            self.tally["ended as another leads"] += 1
        self.ours.until(lambda: self.head.leads or self._all_ended)
        if not self.head.leads:
            self.at_the_end = True
            raise OverError
        self.standby = self._lead(self._stand_by, self._rng.randrange(SITES))

    @property
    def _all_ended(self) -> bool:
        return all(one.ended and not one.code for one in self.ours.workers.values())

    def _kill_head(self) -> None:
        self.head.kill()
        self.ours.until(lambda: ELECTED in self.standby.log)

    def _kill_standby(self) -> None:
        self.standby.kill()
        self.standby = self._lead(self._stand_by, self._at[self.standby.name])

    def _kill_worker(self) -> None:
        rank = self._rng.randrange(self.plan.workers)
        self.ours.workers[rank].kill()
        self._work(rank)

    def _freeze_head(self) -> None:
        """Until the standby is head, or for a while."""
        self.head.freeze()
        self.head.may_fail = True
        try:
            if self._rng.random() < 0.6:
                self.ours.until(lambda: self.standby.leads)
                self.ours.until_further(2)
            else:
                time.sleep(self._rng.uniform(0.2, 3.0))
        finally:
            self.head.thaw()

    def _cut(self) -> None:
        """Cut off some sites from all others, until what has to come of it has come, or for a while."""
        apart = self._rng.sample(range(SITES), self._rng.randint(1, SITES - 1))
        reach = {host: self._at[host.name] if self._at[host.name] in apart else -1 for host in self._live()}
        for site in apart:
            self._sites[site].connect(False)
        try:
            if self._rng.random() < 0.3:
                self.tally["short splits"] += 1
                time.sleep(self._rng.uniform(0.1, 3.0))
            else:
                self._apart(reach)
        finally:
            self.over_apart = self.ours.over
            for site in apart:
                self._sites[site].connect(True)

    def _live(self) -> list[Host]:
        return [self.head, self.standby, *(one for one in self.ours.workers.values() if not one.ended)]

    def _apart(self, reach: dict[Host, int]) -> None:
        """What each side can do. `reach`: who reaches whom: those of the same number."""
        if ELECTED in self.standby.log:  # votes were under way before
            return
        voters = self.ours.voters(self.standby)
        sides = {
            place: [name for host, name in voters.items() if reach[host or self.head] == place]
            for place in reach.values()
        }
        may = {place for place, names in sides.items() if most(list(voters.values()), names)}
        if reach[self.standby] in may and reach[self.head] not in may:
            self.tally["splits: another is elected"] += 1
            self.ours.until(lambda: ELECTED in self.standby.log)
            time.sleep(2 * self._rng.random())
        elif reach[self.head] in may:
            self.tally["splits: the head goes on"] += 1
            time.sleep(self._rng.uniform(1.0, 6.0))
        else:
            self.tally["splits: everybody waits"] += 1
            time.sleep(self._rng.uniform(2.5, 6.0))

    def _end(self) -> None:
        """All end, with the status that they should."""
        ours = self.ours
        until(lambda: ours.over, ours.all)
        if self.over_apart:
            self.tally["over in a split"] += 1
            assert self.last.end() == 0
            return
        for worker in ours.workers.values():
            assert worker.end() == 0, f"{worker.name}: {worker.log}"
        last = self.last
        assert last.end() == 0
        if last is self.head and not self.standby.killed and STANDS_BY in self.standby.log:
            assert self.standby.end() == 0, f"{self.standby.name}: {self.standby.log}"
            assert not self.standby.copies, "a standby left its copy behind"

    @property
    def last(self) -> Leader:
        """Where the run ended."""
        (last,) = (one for one in self.ours.leaders if one.has_ended_the_run)
        return last


def tell(plan: Plan, folder: Path, tally: Counter[str]) -> None:
    """Play it; `tally`: what happened. Raises `AssertionError` where a promise is broken."""
    from torture.standbys.checks import check

    with ExitStack() as ending:
        sites = ending.enter_context(hosts_on_a_switch(SITES)) if plan.in_networks else []
        ours = ending.enter_context(hosts(folder, plan.strategy, plan.workers, acknowledge=plan.acknowledge))
        story = Story(plan, ours, sites, tally)
        story.run()
        if not story.at_the_end:
            check(story)
