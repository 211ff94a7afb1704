"""What a run may be able to do beside training, a file each: its half at the server. None imports another."""

from __future__ import annotations

from plesio.server.capabilities.clients import Clients
from plesio.server.capabilities.phases import PhaseChanges
from plesio.server.capabilities.rounds import BetweenRounds
from plesio.server.capabilities.tables import Tables
from plesio.server.capability import Capability, Serving

CAPABILITIES: tuple[type[Capability], ...] = (BetweenRounds, PhaseChanges, Clients, Tables)
"""In the order in which they are told."""


def capabilities_of(program: Serving) -> list[Capability]:
    """Those that the run has."""
    return [kind(program) for kind in CAPABILITIES if kind.is_of(program)]
