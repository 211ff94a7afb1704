"""What rows are to be: in dicts of float64, and at `RowServers` in one process that carries out each effect when it is decided.

A worker is to get the bits that the latter had when its request was served, however late each table server is; in the end, the
rows of all table servers are to have its checksum, their keys and versions, and about the dicts' values.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from plesio.core.events import Cancel, Discard, Effect, Fold, FoldRows, Hold, Serve
from plesio.memory.row_servers import RowServers
from plesio.protocol.rows import RowsRequest
from plesio.tables.store import Store
from plesio.tables.window import Rows
from plesio.transport.row_slots import RowSlots
from torture.oracle import PromiseBroken
from torture.plan import Plan
from torture.tables.desk import LR, SPEC, Desk


class Model:
    """Rows as dicts: `stepped`: at which clock each did last."""

    def __init__(self) -> None:
        self.clock = 0
        self.values: dict[int, NDArray[np.float64]] = {}
        self.stepped: dict[int, int] = {}
        self._fresh = Store(SPEC)

    def row(self, key: int) -> NDArray[np.float64]:
        """A row's values, born or not."""
        if key in self.values:
            return self.values[key]
        out = np.empty((1, SPEC.dim), np.float32)
        self._fresh.pull(np.array([key]), out)
        return out[0].astype(np.float64)

    def step(self, gradients: dict[int, NDArray[np.float64]]) -> None:
        """Each once."""
        self.clock += 1
        for key, gradient in gradients.items():
            self.values[key] = self.row(key) - LR * gradient
            self.stepped[key] = self.clock

    def state(self) -> tuple[Any, ...]:
        return deepcopy((self.clock, self.values, self.stepped))


class Made(NamedTuple):
    """Of a contribution: its number, the keys of its rows, their gradients, and which have any."""

    number: int
    keys: list[int]
    gradients: NDArray[np.float32]
    touched: NDArray[np.uint8]

    def plain(self) -> dict[int, NDArray[np.float64]]:
        """The gradients by key."""
        found = zip(self.keys, self.gradients.astype(np.float64), self.touched, strict=True)
        return {key: gradient for key, gradient, touched in found if touched}


class Judge:
    """Of one simulated run."""

    def __init__(self, plan: Plan, servers: int) -> None:
        self.made: dict[int, Made] = {}
        """The contributions that move rows, by payload."""
        self._plan, self._servers = plan, servers
        self._at_once = plan.strategy.rows.at_once
        self._after_fold = plan.strategy.release.after_fold and not self._at_once
        self._serials = count(1)
        self._asked: dict[int, tuple[int, list[int]]] = {}  # by serial: where its keys begin, and these
        self._images: dict[str, tuple[tuple[Any, ...], int]] = {}
        self._slots: list[RowSlots] = []
        self.begin(())

    def begin(self, image: Sequence[Any]) -> None:
        """A life of the servers begins, from a checkpoint if there is one."""
        self._close()
        self._slots = [RowSlots.create([SPEC], self._plan.workers + 1) for _ in range(self._servers)]
        self._here = RowServers.here(self._slots, self._at_once)
        self._desks = [Desk(self._slots, worker) for worker in range(self._plan.workers)]
        self._model = Model()
        self._wanted: dict[tuple[int, int], RowsRequest] = {}  # at the head, by worker and contribution
        self._served: dict[int, NDArray[np.float32]] = {}  # by serial
        self._windows: dict[tuple[int, int], tuple[list[int], Rows]] = {}  # by worker and contribution
        self._sum: dict[int, NDArray[np.float64]] = {}
        self._stepped_ahead: set[int] = set()  # payloads whose rows stepped before their fold
        self._settled = [0] * self._plan.workers  # the last contribution that something has become of
        if image:
            folder, clock = image
            state, checksum = self._images[folder]
            self._model.clock, self._model.values, self._model.stepped = deepcopy(state)
            self._here.restore(Path(folder), sorted(one.name for one in Path(folder).iterdir()), clock)
            if clock != self._model.clock or self._here.checksum() != checksum:
                self._broken(
                    f"rows come back as they were kept: those of clock {self._model.clock} do not, from {clock}"
                )

    def _close(self) -> None:
        for slots in self._slots:
            slots.close()

    # What workers ask and get

    def serial(self) -> int:
        """One that no other request has."""
        return next(self._serials)

    def asked(self, serial: int, start: int, keys: list[int]) -> None:
        """Somebody is going to want these rows."""
        self._asked[serial] = start, list(keys)

    def wanted(self, worker: int, request: RowsRequest) -> None:
        """A member's request came."""
        self._wanted[worker, request.number] = request

    def got(self, worker: int, serial: int, values: NDArray[np.float32]) -> None:
        """Its rows came."""
        decided = self._served.pop(serial, None)
        if decided is None:
            self._broken(f"a request is served once: {serial} of worker {worker} was served, and not as decided")
        if decided.tobytes() != values.tobytes():
            self._broken(
                f"rows are as they were when the order served them: worker {worker} was to get {decided.tolist()} "
                f"and got {values.tolist()}"
            )

    # What is decided

    def carried(self, effect: Effect, payloads: Sequence[int]) -> None:
        """This is about to be carried out; `payloads`: whose rows."""
        if isinstance(effect, Serve):
            self._serve(effect)
        elif isinstance(effect, FoldRows) and self._at_once:
            self._give(effect.worker, payloads[0])
            self._model.step(self._mean(payloads, [1.0]))
            self._stepped_ahead.update(payloads)
        elif isinstance(effect, Hold) and not self._at_once:
            self._give(effect.worker, payloads[0])
            for key, gradient in self._mean(payloads, [effect.weight]).items():
                self._sum[key] = self._sum.get(key, 0.0) + gradient
        elif isinstance(effect, Fold) and not self._at_once:
            self._fold(effect, payloads)
        if isinstance(effect, (Cancel, Discard)):
            self._settled[effect.worker] = max(self._settled[effect.worker], effect.number)
        if isinstance(effect, Fold):
            self._stepped_ahead.difference_update(payloads)
            for one in effect.members:
                self._settled[one.worker] = max(self._settled[one.worker], one.number)
        if not isinstance(effect, Serve):
            self._here.do(effect)

    def _serve(self, serve: Serve) -> None:
        worker, number = serve.worker, serve.number
        request = self._wanted.pop((worker, number), None)
        if request is None:
            self._broken(f"a request is served once: there is none for {number} of worker {worker}")
        if serve.ahead and self._after_fold and self._settled[worker] < number - 1:
            self._broken(f"rows ahead come after the fold: those for {number} of worker {worker} came before")
        start, keys = self._asked[request.serial]
        desk, (before, rows) = self._desks[worker], self._windows.get((worker, number), ([], None))
        self._here.asked(worker, desk.ask(number, keys, start, serve.ahead, request.serial))
        self._here.do(serve)
        rows = desk.take(number, start + len(keys), rows if start else None)
        self._windows[worker, number] = before[:start] + keys, rows
        self._served[request.serial] = rows.values[start:].copy()
        for key, values in zip(keys, self._served[request.serial], strict=True):
            self._check(key, values)

    def _give(self, worker: int, payload: int) -> None:
        if payload in self.made:
            number, keys, gradients, touched = self.made[payload]
            served, rows = self._windows.get((worker, number), ([], None))
            if rows is None or served != keys:
                self._broken(
                    f"a slot is its contribution's until that is folded: {number} of worker {worker} is not there"
                )
            self._desks[worker].give(number, rows, gradients, touched)

    def _mean(self, payloads: Sequence[int], weights: Sequence[float]) -> dict[int, NDArray[np.float64]]:
        total: dict[int, NDArray[np.float64]] = {}
        for payload, weight in zip(payloads, weights, strict=True):
            for key, gradient in self.made[payload].plain().items() if payload in self.made else ():
                total[key] = total.get(key, 0.0) + weight * gradient
        return total

    def _fold(self, fold: Fold, payloads: Sequence[int]) -> None:
        if fold.held:
            mean, self._sum = {key: one / fold.held for key, one in self._sum.items()}, {}
        else:
            for member, payload in zip(fold.members, payloads, strict=True):
                self._give(member.worker, payload)
            mean = self._mean(payloads, [one.share for one in fold.members])
        self._model.step(mean)

    def forget(self, worker: int) -> None:
        """Another process sits there now."""
        self._here.forget(worker)
        self._desks[worker] = Desk(self._slots, worker)
        self._settled[worker] = 0
        for kept in (self._wanted, self._windows):
            for key in [key for key in kept if key[0] == worker]:
                del kept[key]

    # What is left

    def kept(self, folder: str) -> None:
        """A checkpoint is written."""
        if self._stepped_ahead:
            self._broken("a checkpoint has no rows that stepped by what is computed again")
        self._images[folder] = self._model.state(), self._here.checksum()

    def ended(self, rows: RowServers) -> None:
        """Rows in the end; of all table servers, when they have done what was decided."""
        kept, model = rows.kept()[SPEC.name], self._model
        versions = dict(zip(kept["keys"].tolist(), kept["versions"].tolist(), strict=True))
        if versions != model.stepped:
            self._broken(f"rows step once, with their own gradients: last at {model.stepped}, and not {versions}")
        for key, values in zip(kept["keys"].tolist(), kept["values"], strict=True):
            self._check(key, values)
        if (rows.clock, rows.checksum()) != (self._here.clock, self._here.checksum()):
            self._broken(f"checksums are the same for any number of servers, and for {self._servers} they are not")

    def _check(self, key: int, values: NDArray[np.float32]) -> None:
        plain = self._model.row(key)
        if not np.allclose(values, plain, rtol=1e-5, atol=1e-3):
            self._broken(f"rows step once, with their own gradients: {key} is {values}, and not {plain}")

    def close(self) -> None:
        """Its memory goes."""
        self._close()

    def _broken(self, words: str) -> NoReturn:
        raise PromiseBroken(words)
