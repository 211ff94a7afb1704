"""Who takes part in the next collective, where workers fold among themselves.

Theory. A collective works only if all of its members take part: if one died, finished or left its loop, the others would
wait forever. So before each collective every live worker checks in; once all have, all get the same answer:

| all live workers checked in, and                          | call    | what they do                                  |
| --------------------------------------------------------- | ------- | --------------------------------------------- |
| they are the group, in one piece, and equally far         | GO      | the collective                                |
| somebody left the group, or a collective broke, or a      | REGROUP | form the new group, take over what they lack, |
| step moved only some of them                              |         | then check in again                           |
| they are in different rounds, and nothing had broken      | UNEVEN  | give up: they call backward unequally often   |
| the run is over and somebody does not come                | DISMISS | drop the step; to each, without the others    |

A worker's *round* is the number of steps it completed, its *version* how many of them moved its parameters. After a
collective broke half way some may have completed a step that others have not: those take over the state of a worker that
did (`source`), so that nobody's work is undone. So do workers that skipped a step because their own gradient was not finite.
A worker that leaves counts as checked in, so nobody waits for the dead. If it died amid a step of several collectives, the
others begin that step anew (`intact` is False): else a part of its work would be in the model, and the whole of it is given
to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec


class Call(IntEnum):
    """What workers that checked in are told."""

    GO = 0
    REGROUP = 1
    DISMISS = 2
    UNEVEN = 3


class Outcome(msgspec.Struct, frozen=True):
    """The answer to `workers`. `source`: whose state those behind take over. `intact`: no collective broke, and nobody died.
    `settings_differ`: what they last said their settings were does."""

    call: Call
    workers: tuple[int, ...]
    generation: int
    settings_differ: bool = False
    intact: bool = True
    source: int | None = None


@dataclass(slots=True)
class _Place:
    """A live worker: when it was last released, and what it checked in with."""

    released_s: float
    since_s: float = 0.0
    here: bool = False
    intact: bool = True
    reached: tuple[int, int] = (0, 0)
    settings: bytes = b""


class RollCall:
    """Sees to it that all live workers go into a collective, or none."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: tuple[int, ...] = ()
        self._places: dict[int, _Place] = {}
        self._dismissed = False
        self._died = False  # a worker, since the last outcome

    def join(self, worker: int, now_s: float) -> None:
        self._places[worker] = _Place(now_s)

    def leave(self, worker: int, died: bool) -> None:
        self._places.pop(worker, None)
        self._died = self._died or died

    def dismiss(self) -> None:
        self._dismissed = True

    def arrive(self, worker: int, reached: tuple[int, int], intact: bool, settings: bytes, now_s: float) -> None:
        """A worker checks in. `reached`: its round and version; `settings`: its optimizer's, empty where they are as before."""
        place = self._places[worker]
        assert not place.here, "a worker that checked in waits for the answer"
        place.here, place.reached, place.intact, place.since_s = True, reached, intact, now_s
        place.settings = settings or place.settings

    def outcome(self, now_s: float) -> Outcome | None:
        here = tuple(sorted(worker for worker, place in self._places.items() if place.here))
        if not here or (len(here) < len(self._places) and not self._dismissed):
            return None
        places = [self._places[worker] for worker in here]
        outcome = Outcome(Call.DISMISS, here, self.generation) if self._dismissed else self._decide(here, places)
        self._died = False
        for place in places:
            place.here, place.released_s = False, now_s
        return outcome

    def _decide(self, here: tuple[int, ...], places: list[_Place]) -> Outcome:
        reached = [place.reached for place in places]
        furthest = max(reached)
        intact = all(place.intact for place in places) and not self._died
        if here == self.members and intact:
            if any(round != furthest[0] for round, _ in reached):
                return Outcome(Call.UNEVEN, here, self.generation)
            if min(reached) == furthest:
                differ = any(place.settings != places[0].settings for place in places)
                return Outcome(Call.GO, here, self.generation, differ)
        self.generation += 1
        self.members = here
        source = None if min(reached) == furthest else here[reached.index(furthest)]
        return Outcome(Call.REGROUP, here, self.generation, intact=intact, source=source)

    def waited_s(self, now_s: float) -> float:
        return max((now_s - place.since_s for place in self._places.values() if place.here), default=0.0)

    def silent(self, now_s: float, silence_s: float) -> list[tuple[int, float]]:
        """Who keeps others waiting and was let go more than `silence_s` ago, and how long ago that was."""
        if self.waited_s(now_s) <= 0:
            return []
        silent_s = {worker: now_s - place.released_s for worker, place in self._places.items() if not place.here}
        return [(worker, seconds) for worker, seconds in silent_s.items() if seconds > silence_s]
