"""What a run cost, told when no worker is left."""

from __future__ import annotations

from plesio.core.sequencer import Sequencer
from plesio.observe.meter import Meter
from plesio.protocol.launcher import Final
from plesio.server.assembly import Assembly


def final_figures(
    wall_s: float, sequencer: Sequencer, meter: Meter, built: Assembly | None = None, buffer: int = 0, lost: str = ""
) -> Final:
    """All a run cost; `built` is None where no memory was laid out, `buffer` holds the weights unless they are `lost`.

    Bytes are there and back for each exchange: a contribution one way, parameters the other, frozen ones neither way.
    Work that was called off before it was sent costs the parameters only.
    """
    return Final(
        wall_s=wall_s,
        version=sequencer.version,
        steps=meter.steps,
        samples=meter.samples,
        folded=sum(one.folded for one in meter.workers),
        discarded=dict(meter.discarded),
        missing_gradients=meter.missing_gradients,
        batches_unvisited=sequencer.leases.unvisited,
        bytes=(meter.exchanges + meter.answers) * built.layout.payload_bytes if built else 0,
        shared_bytes=built.shared_bytes if built else 0,
        staleness=meter.staleness(),
        workers=tuple(one.summary() for one in meter.workers),
        timeline=meter.timeline(),
        buffer=buffer,
        buffers=len(built.ring) if built else 0,
        model=built.model if built else None,
        lost=lost,
    )
