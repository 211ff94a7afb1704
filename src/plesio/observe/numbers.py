"""Derives the numbers of a run under way from what its server tells: one place for all sinks and for `/metrics`."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence

from plesio.observe.measures import MEASURES, REASONS, Number
from plesio.observe.standing import ALL, LISTED_MAX, ReaderNow, Standing, WorkerNow
from plesio.observe.totals import LIVE_COLUMNS, Totals

WINDOW_S = 5.0  # what rates are of
HERE = ("compute", "wait")
TABLE, ROW_SERVER = ([one for one in MEASURES.values() if one.group == group] for group in ("rows", "row_servers"))


class Numbers:
    """Those of one run; it knows the last `WINDOW_S`, the staleness that was told last, and how far counts had come."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, dict[int, int]]] = deque([(0.0, {})])  # the time, and steps by worker
        self._stale: dict[int, dict[int, int]] = {}
        self._heard: tuple[float, int, int] = (0.0, 0, 0)  # when steps or version changed last, and these
        self._most: dict[str, float] = {}

    def hear(self, now: Standing) -> None:
        """Staleness is told now and then: it may be between two tellings of all numbers."""
        if now.stale is not None:
            self._stale = now.stale

    def of(
        self, time_s: float, totals: Totals, now: Standing, running: bool = True, readers: Sequence[ReaderNow] = ()
    ) -> tuple[Number, ...]:
        """All numbers, as the run stands now."""
        self.hear(now)
        if (totals.steps, totals.version) != self._heard[1:]:
            self._heard = time_s, totals.steps, totals.version
        while len(self._window) > 1 and self._window[1][0] <= time_s - WINDOW_S:
            self._window.popleft()
        told = [*self._run(time_s, totals, now, running), *self._workers(time_s, now)]
        discarded, lost = {**dict.fromkeys(REASONS, 0), **totals.discarded}, MEASURES["discarded", "contributions"]
        told += [Number(lost, count, why) for why, count in discarded.items()]
        told += [Number(one, getattr(rows, one.name), name) for name, rows in totals.rows.items() for one in TABLE]
        servers = enumerate(totals.row_servers)
        told += [Number(one, getattr(server, one.name), str(k)) for k, server in servers for one in ROW_SERVER]
        told += [number for one in readers[:LISTED_MAX] for number in _of_reader(one)]
        if time_s > self._window[-1][0]:
            self._window.append((time_s, {ALL: totals.steps, **{one.worker: one.steps for one in now.workers}}))
        return tuple(self._grown(one) if one.measure.grows else one for one in told)

    def _run(self, time_s: float, totals: Totals, now: Standing, running: bool) -> Iterator[Number]:
        waited_s, there_s = sum(one.wait_s for one in now.workers), sum(map(_there_s, now.workers))
        stale = sum(map(Counter, self._stale.values()), Counter())
        known = {name: getattr(totals, name) for name in LIVE_COLUMNS} | {
            "time_s": time_s,
            "running": int(running),
            "workers": sum(one.at in HERE for one in now.workers) + now.others,
            "steps_per_s": self._rate(time_s, ALL, totals.steps),
            "still_s": time_s - self._heard[0],
            "ideal_share": now.ideal,
            "waiting_share": waited_s / there_s if there_s > 0 else 0.0,
            "staleness_mean": sum(tau * n for tau, n in stale.items()) / max(1, stale.total()),
            "staleness_max": max(stale, default=0),
        }
        return (Number(MEASURES["run", name], value) for name, value in known.items())

    def _workers(self, time_s: float, now: Standing) -> Iterator[Number]:
        for one in now.workers:
            there_s = _there_s(one)
            known = {
                "there": int(one.at in HERE),
                "waiting": int(one.at == "wait"),
                "waited_for": int(one.worker in now.waited_for),
                "state_s": max(0.0, time_s - one.since_s),
                "steps": one.steps,
                "steps_per_s": self._rate(time_s, one.worker, one.steps),
                "staleness": one.staleness,
                "waiting_share": one.wait_s / there_s if there_s > 0 else 0.0,
                "compute_s": one.compute_s,
                "wait_s": one.wait_s,
                "exchange_s": one.exchange_s,
            }
            yield from (Number(MEASURES["worker", name], value, str(one.worker)) for name, value in known.items())

    def _rate(self, time_s: float, worker: int, steps: int) -> float:
        since_s, before = self._window[0]
        return (steps - before.get(worker, 0)) / (time_s - since_s) if time_s > since_s else 0.0

    def _grown(self, one: Number) -> Number:
        """It, or what it was: what a worker is at counts as computing until it turns out to be something else."""
        most = self._most[one.path] = max(one.value, self._most.get(one.path, 0.0))
        return Number(one.measure, most, one.label)


def _of_reader(one: ReaderNow) -> Iterator[Number]:
    known = {"version": one.version, "behind": one.behind, "silent_s": one.silent_s, "bytes": one.nbytes}
    return (Number(MEASURES["reader", name], value, one.name) for name, value in known.items())


def _there_s(one: WorkerNow) -> float:
    return one.compute_s + one.wait_s + one.exchange_s
