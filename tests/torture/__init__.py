"""Fault simulation: the real core under a lossy network, crashing processes and a forgetful disk.

Theory. The core asks for nothing, it is told: so a whole cluster of it runs in one thread, on simulated time, and a seed
decides everything that happens. The parts under test are the shipped ones, unchanged: sequencer, membership,
leases and their checkpoints, which every run with a server uses. The simulated network loses, repeats and reorders single
messages, which is worse than what pipes and TCP do; `sessions/` makes requests of these that are answered once.

| file       | what it is                                                                                 |
| ---------- | ------------------------------------------------------------------------------------------ |
| plan.py    | what a seed stands for: size, strategy, faults and their rates                             |
| world.py   | one run: faults strike (safety), then the network heals and all must get on (liveness)     |
| chaos.py   | the faults that strike at a moment                                                         |
| agenda.py  | simulated time: what happens when                                                          |
| tables/    | rows of tables at several servers, each late by a time of its own                          |
| network.py | links that lose, repeat, delay, reorder, and are cut                                       |
| disk.py    | forgets what was not synced                                                                |
| server.py  | the server around the core; crashes between any two effects                                |
| reborn.py  | the server whose process dies alone: a spare goes on from its log, in memory that outlives |
| process.py | a worker around its session; clocks that drift and jump                                    |
| sessions/  | delivery: requests that are answered once, leases that run out, restarts that are told     |
| model.py   | parameters that are the multiset of what was folded                                        |
| oracle.py  | raises at the first promise that is broken                                                 |
| bugs/      | bugs to plant: each must be found                                                          |
| story.py   | letters in words                                                                           |
| shrink.py  | the smallest run that still fails, as a story                                              |

>>> run_seed(7).failure is None
True
"""

from __future__ import annotations

from torture.bugs import BUGS, planted
from torture.bugs.phases import PHASE_BUGS
from torture.bugs.rebirth import REBIRTH_BUGS
from torture.bugs.reborn_rows import REBORN_ROW_BUGS
from torture.bugs.rows import ROW_BUGS
from torture.plan import (
    FAULTS,
    ROW_FAULTS,
    Plan,
    draw,
    draw_with_deaths,
    draw_with_rows,
    draw_with_rows_and_deaths,
    draw_with_switches,
    way_to_draw,
)
from torture.shrink import excerpt, shrink
from torture.world import Outcome, simulate


def run_seed(
    seed: int,
    bug: str | None = None,
    *,
    workers: int | None = None,
    contributions: int | None = None,
    tables: bool = False,
    deaths: bool = False,
    switches: bool = False,
    story: bool = False,
) -> Outcome:
    """Run what `seed` stands for; the same seed and sizes give the same run, event for event.

    Args:
        bug: the name of a bug to plant (`BUGS`), to see it found.
        workers, contributions: the size; drawn where not given. `contributions` is a worker's.
        tables: whether the model has one, whose rows are at one to three servers; with `deaths` at the one that dies.
        deaths: whether the server's process dies now and then, and is reborn.
        switches: whether the strategy is another one now and then.
        story: whether the outcome is to tell what happened, a line an event.

    Raises:
        ConfigurationError: no such bug.

    >>> run_seed(0, "a restart is not told").failure
    'a restart is told: worker ... was not'
    """
    plan = way_to_draw(tables, deaths, switches)(seed, workers, contributions)
    return simulate(plan, planted(bug), story=story)


__all__ = [
    "BUGS",
    "FAULTS",
    "PHASE_BUGS",
    "REBIRTH_BUGS",
    "REBORN_ROW_BUGS",
    "ROW_BUGS",
    "ROW_FAULTS",
    "Outcome",
    "Plan",
    "draw",
    "draw_with_deaths",
    "draw_with_rows",
    "draw_with_rows_and_deaths",
    "draw_with_switches",
    "excerpt",
    "run_seed",
    "shrink",
]
