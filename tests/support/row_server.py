"""One server's rows, and two workers that pull and push: what happens is drawn from seeds, and may happen again."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import plesio as ps
from plesio.core.events import Fold, FoldRows, Member, Serve
from plesio.memory.row_tables import RowTables
from plesio.memory.surviving_rows import SurvivingRows
from plesio.protocol.rows import RowsRequest
from plesio.system.recovery_log import RecoveryLog
from plesio.tables.spec import TableSpec
from plesio.transport.row_slots import Laid, RowSlots

WORKERS = 2
SPECS = (
    TableSpec("ids", 3, ps.RowAdagrad(0.5, initial=0.25), scale=0.1, seed=3, expire=ps.Unused(3)),
    TableSpec("words", 2, ps.RowSGD(0.5), scale=0.1, seed=4, admit=ps.Seen(2), expire=ps.Unused(5)),
    TableSpec("tags", 2, ps.RowAdam(0.1), scale=0.1, seed=5),
)
READER = WORKERS


class Act(NamedTuple):
    """What happens next, to whom; its `seed` draws the rest."""

    what: str
    worker: int
    seed: int


class Server:
    """With a `log` it may be gone on with. `many`: keys of a pull, about. `at_once`: rows do not wait for a round."""

    def __init__(self, at_once: bool, many: int, log: RecoveryLog | None = None) -> None:
        self.at_once, self.many, self.log = at_once, many, log
        slots = RowSlots.create(SPECS, WORKERS + 1)
        self.tables: RowTables = RowTables(slots, at_once) if log is None else SurvivingRows(log, slots, at_once)
        self.slots = slots
        self.numbers, self.came = [0] * (WORKERS + 1), [0] * (WORKERS + 1)
        self.asked: list[dict[int, list[int]]] = [{}] * (WORKERS + 1)
        self.begin_anew(*range(WORKERS + 1))
        self.pushed: list[int] = []  # who waits
        self.seen: list[Any] = []

    def begin_anew(self, *readers: int) -> None:
        """Nobody has asked for anything."""
        for reader in readers:
            self.numbers[reader] = 0  # of what it was served last
            self.came[reader] = 0  # of what it pushed last
            self.asked[reader] = {}  # how many keys of each table, by number

    def once(self, do: Callable[[], Any]) -> Any:
        return do() if self.log is None else self.log.once(do)

    def possible(self) -> list[tuple[str, int]]:
        """What may happen. A worker that waits may pull for its next contribution."""
        found = [("look", 0)] * 4 + [("read", READER)] * 2
        for worker, (number, came) in enumerate(zip(self.numbers[:WORKERS], self.came, strict=False)):
            waits = worker in self.pushed
            found += [("pull", worker)] * 8 * (number == came)
            found += [("more", worker)] * 2 * (number > came)
            found += [("push", worker)] * 8 * (number > came and not waits)
            found += [("leave", worker)] * (not waits)
        return found

    def act(self, act: Act) -> None:
        worker, rng = act.worker, random.Random(act.seed)
        if act.what in ("pull", "more", "read"):
            self.pull(worker, rng, act.what)
        elif act.what == "push":
            self.came[worker] += 1
            self.once(partial(self.write, worker, act.seed))
            self.once(partial(self.goes_on, worker))
            self.pushed.append(worker)
            if self.at_once or len(self.pushed) == WORKERS or rng.random() < 0.2:
                self.step()
        elif act.what == "leave":
            self.tables.forget(worker)
            self.begin_anew(worker)
        else:
            what = rng.choice(["take_checksum", "take_checksum", "checksum"])
            self.seen.append(self.tables.ask(what)())

    def pull(self, worker: int, rng: random.Random, what: str) -> None:
        self.numbers[worker] += what == "pull"
        number = self.numbers[worker]
        before = self.asked[worker].get(number, [0] * len(SPECS))
        keys = [self.keys(rng) for _ in SPECS]
        self.once(partial(self.ask, worker, number, before, keys))
        wanted = [(at, len(some)) for at, some in zip(before, keys, strict=True)]
        self.tables.asked(worker, RowsRequest(number, tuple(wanted)))
        self.tables.do(Serve(worker, number))
        self.seen.append(self.once(partial(self.answered, worker, number, wanted)))
        if number:
            self.asked[worker][number] = [at + count for at, count in wanted]

    def keys(self, rng: random.Random) -> list[int]:
        """A window of keys that drifts: some die."""
        first = len(self.seen) * self.many // 8
        return rng.sample(range(first, first + 2 * self.many), rng.randint(0, self.many))

    # What workers do; it is not done again

    def ask(self, worker: int, number: int, before: list[int], keys: list[list[int]]) -> None:
        for table, (at, some) in enumerate(zip(before, keys, strict=True)):
            self.slots.of(worker, number, table).keys[at : at + len(some)] = some

    def answered(self, worker: int, number: int, wanted: list[tuple[int, int]]) -> bytes:
        """It reads its rows."""
        places = (self.slots.of(worker, number, table).rows(at, at + count) for table, (at, count) in enumerate(wanted))
        return b"".join(laid.values.tobytes() for laid in places)

    def goes_on(self, worker: int) -> None:
        """It was answered, and lays keys of the next but one contribution there."""
        for laid in self.places(worker):
            laid.values[:], laid.keys[:] = np.nan, -1 - np.arange(len(laid.keys))

    def write(self, worker: int, seed: int) -> None:
        source = np.random.default_rng(seed)
        for laid in self.places(worker):
            laid.gradients[:] = source.standard_normal(laid.gradients.shape, np.float32)
            laid.touched[:] = source.random(len(laid.touched)) < 0.9

    def spoil(self, worker: int) -> None:
        for laid in self.places(worker):
            laid.gradients[:] = np.nan

    def places(self, worker: int) -> list[Laid]:
        """What it pushed last, of each table."""
        number = self.came[worker]
        counts = enumerate(self.asked[worker][number])
        return [self.slots.of(worker, number, table).rows(0, count) for table, count in counts]

    # What the server does

    def step(self) -> None:
        """Rows step, and who waited goes on: nothing that lay in its slot is there any more."""
        share, who = 1 / len(self.pushed), [(worker, self.came[worker]) for worker in self.pushed]
        effects: list[Any] = [FoldRows(*one) for one in who]
        if not self.at_once:
            effects = [Fold(1, tuple(Member(one, 1, number, 0, share, 1, 1) for one, number in who), 1.0)]
        for effect in effects:
            self.tables.do(effect)
        for worker in self.pushed:
            self.once(partial(self.spoil, worker))
            del self.asked[worker][self.came[worker]]
        self.pushed = []

    def stands(self) -> list[Any]:
        """All that the run knows, to the bit."""
        tables = self.tables
        kept = {
            name: {part: one.tobytes() for part, one in rows.items()} for name, rows in tables.ask("kept")().items()
        }
        return [self.seen, tables.clock, tables.counted, kept, tables.ask("checksum")(), tables.ask("take_checksum")()]
