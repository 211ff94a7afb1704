"""The port of capabilities: who is told what is known at the start."""

from __future__ import annotations

from pathlib import Path

import pytest

import plesio as ps
from plesio.capabilities import those_with
from plesio.core.events import Effect, Switch
from plesio.core.sequencer import Sequencer
from plesio.observe.meter import Meter
from plesio.server.capabilities import CAPABILITIES, capabilities_of
from plesio.server.capabilities.clients import Clients
from plesio.server.capabilities.phases import PhaseChanges
from plesio.server.capabilities.rounds import BetweenRounds
from plesio.server.capabilities.tables import Tables
from plesio.server.capability import Capability
from plesio.server.checkpointer import Checkpointer
from plesio.server.interfaces import Replies
from plesio.server.keeping import Keeping
from plesio.server.program import Program
from plesio.strategy import Strategy

HOT = [Capability.came, Capability.folded, Capability.discarded]
"""What is told of contributions."""


def program_of(strategy: Strategy, clients: str = "") -> Program:
    keeper = Checkpointer(Keeping(clients=clients), strategy, workers=2)
    return Program(
        strategy, Sequencer(strategy, 2), Replies(), Meter(2), checkpointer=keeper, tell=lambda message: None
    )


def test_the_order_is_one_list() -> None:
    assert (BetweenRounds, PhaseChanges, Clients, Tables) == CAPABILITIES


def test_a_run_without_them_tells_nobody_of_its_contributions() -> None:
    program = program_of(ps.async_sgd())
    able = capabilities_of(program)
    assert [*map(type, able)] == [BetweenRounds, Tables]
    assert not any(those_with(able, hook) for hook in HOT)
    assert Switch not in program.actions


@pytest.mark.parametrize(
    ("strategy", "clients", "more"),
    [(ps.phases(ps.sync_sgd(), (5, ps.async_sgd())), "", PhaseChanges), (ps.fedavg(), "clients", Clients)],
    ids=["phases", "clients"],
)
def test_a_run_has_what_it_was_asked_for(
    strategy: Strategy, clients: str, more: type[Capability], tmp_path: Path
) -> None:
    program = program_of(strategy, str(tmp_path / clients) if clients else "")
    assert {*map(type, capabilities_of(program))} == {BetweenRounds, Tables, more}


def test_each_effect_is_done_by_somebody() -> None:
    program = program_of(ps.phases(ps.sync_sgd(), (5, ps.async_sgd())))
    assert program.actions.keys() == set(Effect.__args__)
