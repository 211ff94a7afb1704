"""What a run costs, as it is told while the run goes on and at its end."""

from __future__ import annotations

from math import inf

from msgspec.structs import asdict, replace

from plesio.observe.standing import LISTED_MAX, Standing
from plesio.observe.totals import Totals
from plesio.protocol.launcher import Final, Lately, Progress
from plesio.server.program import Program
from plesio.tensors.arena import ALL_PARTS, Lies
from plesio.tensors.model import Described

STALE_S = 1.0
"""How often all the staleness is told while a run goes on."""
NOWHERE = Lies()


class Figures:
    """Those of the run of one program."""

    def __init__(self, program: Program) -> None:
        self._program, self._meter = program, program.meter
        self._stale_told_s = -inf

    def progress(self, now_s: float) -> Progress:
        """What the run has cost so far, and what the workers are at."""
        totals = self._totals(exact=self._program.ended_s is not None)
        totals.wall_s = now_s - self._meter.zero_s
        return Progress(**asdict(totals), now=self._now(now_s))

    def final(self, now_s: float, lies: Lies = NOWHERE, model: Described | None = None) -> Final:
        """All the run cost; the weights of `model` are at `lies`."""
        program, meter, memory = self._program, self._meter, self._program.memory
        whole, leases = program.sequencer.switching.whole, program.sequencer.leases
        totals = replace(
            self._totals(exact=True),
            strategy=whole.name,
            recipe=whole.recipe,
            wall_s=max(0.0, (program.ended_s or now_s) - meter.zero_s) if meter.begun else 0.0,
            folded=sum(one.folded for one in meter.workers),
            batches_unvisited=leases.unvisited,
            unshared=not (leases.opened or meter.samples or program.counts_together or whole.every.by_client),
            shared_bytes=memory.shared_bytes,
            plain_bytes=memory.plain_bytes,
            staleness=meter.staleness(),
            workers=tuple(one.summary() for one in meter.seated),
        )
        tables = memory.rows.specs if memory.rows is not None else ()
        now, timeline = self._now(now_s, last=True), meter.timeline()
        return Final(**asdict(totals), timeline=timeline, lies=lies, model=model, now=now, tables=tables)

    def lately(self, now_s: float, window_s: float) -> Lately:
        """What the workers did in the last `window_s`, for a forecast."""
        meter, timeline = self._meter, self._meter.lately(now_s, window_s)
        made = [one.steps for one in timeline if one.steps]
        return Lately(
            phase=self._program.sequencer.switching.now,
            timeline=timeline,
            workers=tuple(one.summary() for one in meter.seated if not one.left),
            steps=sum(made),
            folded=len(made),
            bytes=2 * len(made) * (self._bytes() // max(1, meter.exchanges + meter.answers)),
            plain_bytes=self._program.memory.plain_bytes,
            served_s=len(made) * (meter.totals.served_s / max(1, meter.exchanges)),
        )

    def _now(self, now_s: float, last: bool = False) -> Standing:
        meter, sequencer, seated = self._meter, self._program.sequencer, self._meter.seated
        seats = sequencer.members.seats.items()
        held = {one for one, seat in seats if seat.waiting is not None and not meter.workers[one].ahead}
        listed = tuple(one.now(now_s, meter.zero_s, one.worker in held) for one in seated[:LISTED_MAX])
        stale = None
        if last or now_s - self._stale_told_s >= STALE_S or self._program.ended_s is not None:
            self._stale_told_s = now_s
            stale = {worker: dict(counts) for worker, counts in meter.stale().items()}
        waited_for, others = tuple(sequencer.waited_for[:LISTED_MAX]), len(seated) - len(listed)
        return Standing(listed, others, waited_for, meter.ideal_share(now_s), stale, sequencer.switching.now)

    def _totals(self, exact: bool) -> Totals:
        """What was counted so far, and what is quickly summed up; `exact`: all that came of rows is counted."""
        meter, rows = self._meter, self._program.memory.rows
        return replace(
            meter.totals,
            version=self._program.version,
            steps=meter.steps,
            samples=meter.samples,
            discarded=dict(meter.totals.discarded),
            rows=rows.summaries(exact) if rows is not None else {},  # before `_bytes`: what that costs counts
            row_servers=rows.loads if rows is not None else (),
            bytes=self._bytes(),
        )

    def _bytes(self) -> int:
        """An answer costs the bytes of the parameters that are not frozen; a contribution as many, or what it is packed in."""
        meter, memory = self._meter, self._program.memory
        whole = meter.exchanges * memory.push_bytes[ALL_PARTS] + meter.answers * memory.answer_bytes[ALL_PARTS]
        return (memory.part_bytes or whole) + memory.bytes_beside
