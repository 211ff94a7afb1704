"""What a run costs, as it is told while the run goes on and at its end."""

from __future__ import annotations

from math import inf

from plesio.core.sequencer import Sequencer
from plesio.memory.port import Memory
from plesio.observe.meter import Meter
from plesio.observe.standing import LISTED_MAX, Standing
from plesio.observe.summary import RowsSummary
from plesio.protocol.launcher import Final, Lately
from plesio.strategy import Strategy
from plesio.tensors.arena import ALL_PARTS, Lies
from plesio.tensors.model import Described

STALE_S = 1.0
"""How often all the staleness is told while a run goes on."""
NOWHERE = Lies()


class Figures:
    """Those of one run."""

    def __init__(self, strategy: Strategy, meter: Meter) -> None:
        self._strategy = strategy
        self._meter = meter
        self._stale_told_s = -inf

    def now(
        self, sequencer: Sequencer, memory: Memory, now_s: float, over: bool, nbytes: int | None = None
    ) -> Standing:
        """What the workers are at; `nbytes`: what was sent so far, where a driver knows it better."""
        meter, seats = self._meter, sequencer.members.seats
        seated = meter.seated
        held = {one for one, seat in seats.items() if seat.waiting is not None and not meter.workers[one].ahead}
        listed = tuple(one.now(now_s, meter.zero_s, one.worker in held) for one in seated[:LISTED_MAX])
        stale = None
        if now_s - self._stale_told_s >= STALE_S or over:
            self._stale_told_s = now_s
            stale = {worker: dict(counts) for worker, counts in meter.stale().items()}
        return Standing(
            listed,
            len(seated) - len(listed),
            tuple(sequencer.waited_for[:LISTED_MAX]),
            meter.ideal_share(now_s),
            self._bytes(memory) if nbytes is None else nbytes,
            dict(meter.discarded),
            stale,
            _rows(memory, exact=over),
            memory.rows.loads if memory.rows is not None else (),
            sequencer.phases.now,
        )

    def final(
        self,
        sequencer: Sequencer,
        memory: Memory,
        now_s: float,
        ended_s: float | None,
        counted: bool,
        lies: Lies = NOWHERE,
        model: Described | None = None,
    ) -> Final:
        """All the run cost; the weights of `model` are at `lies`; `counted`: the workers share counters.
        An answer costs the bytes of the parameters that are not frozen, and a contribution as many, or those that it is packed
        in."""
        meter, leases, rows = self._meter, sequencer.leases, _rows(memory, exact=True)  # which `_bytes` counts
        return Final(
            wall_s=max(0.0, (ended_s or now_s) - meter.zero_s) if meter.begun else 0.0,
            version=sequencer.version,
            steps=meter.steps,
            samples=meter.samples,
            folded=sum(one.folded for one in meter.workers),
            discarded=dict(meter.discarded),
            missing_gradients=meter.missing_gradients,
            batches_unvisited=leases.unvisited,
            unshared=not (leases.opened or meter.samples or counted or self._strategy.every.by_client),
            bytes=self._bytes(memory),
            shared_bytes=memory.shared_bytes,
            served_s=meter.served_s,
            plain_bytes=memory.plain_bytes,
            staleness=meter.staleness(),
            rows=rows,
            tables=memory.rows.specs if memory.rows is not None else (),
            workers=tuple(one.summary() for one in meter.seated),
            timeline=meter.timeline(),
            lies=lies,
            model=model,
            now=self.now(sequencer, memory, now_s, ended_s is not None),
        )

    def lately(self, memory: Memory, phase: int, now_s: float, window_s: float) -> Lately:
        """What the workers did in the last `window_s`."""
        meter = self._meter
        messages, exchanges = meter.exchanges + meter.answers, meter.exchanges
        return Lately(
            phase=phase,
            workers=tuple(one.summary() for one in meter.seated if not one.left),
            spans=meter.lately(now_s, window_s),
            nbytes=self._bytes(memory) // max(1, messages),
            plain_bytes=memory.plain_bytes,
            served_s=meter.served_s / max(1, exchanges),
        )

    def _bytes(self, memory: Memory) -> int:
        meter = self._meter
        whole = meter.exchanges * memory.push_bytes[ALL_PARTS] + meter.answers * memory.answer_bytes[ALL_PARTS]
        return memory.part_bytes or whole + memory.row_bytes


def _rows(memory: Memory, exact: bool) -> dict[str, RowsSummary]:
    return memory.rows.summaries(exact) if memory.rows is not None else {}
