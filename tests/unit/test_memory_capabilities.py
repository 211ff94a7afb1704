"""The port of capabilities at the memory: a run has what its strategy and its model ask for, and a plain one has none."""

from __future__ import annotations

import dataclasses
from functools import partial

import pytest
from torch.optim import SGD

import plesio as ps
from plesio.capabilities import LOADED, halves, those_with
from plesio.core.events import Fold, Forget, Share, Switch
from plesio.memory.blocks import Blocks
from plesio.memory.capability import MemoryCapability
from plesio.memory.machine import Machine
from plesio.memory.own_weights import OwnWeights
from plesio.memory.phase_change import PhaseChange
from plesio.memory.worker_states import LeftStates
from plesio.strategy import Strategy
from plesio.strategy.answers import Server
from unit.test_memory import hello

PHASES = ps.phases(ps.sync_sgd(), (5, ps.local_sgd(2)))
MEANS = dataclasses.replace(ps.allreduce(), via=Server())
SECURE = ps.fedavg(secure=ps.SecureSums(threshold=2, clip=0.5))


def machine_of(strategy: Strategy) -> Machine:
    hellos = [hello(worker, partial(SGD, lr=0.1)) for worker in range(2)]
    return Machine(Blocks(strategy, 2, hellos, evaluates=False))


def test_a_plain_run_asks_nobody() -> None:
    machine = machine_of(ps.async_sgd())
    asked = machine._able, machine._actions, machine._told, machine._folding, machine._answering, machine._checksums
    assert not any(asked)
    assert (machine.rows, machine.own, machine.states.leaves) == (None, None, False)


def test_a_run_has_what_it_asks_for() -> None:
    (changes,) = machine_of(PHASES)._able
    assert isinstance(changes, PhaseChange)
    assert changes.actions.keys() == {Switch, Forget, Share}
    own = machine_of(MEANS)
    assert isinstance(own.own, OwnWeights)
    assert isinstance(own.states, LeftStates)
    (sums,) = machine_of(SECURE)._able
    assert those_with([sums], MemoryCapability.folding)
    assert not those_with([sums], MemoryCapability.joins)


@pytest.mark.parametrize("strategy", [ps.async_sgd(), PHASES, ps.fedavg()], ids=lambda one: one.name)
def test_what_takes_a_while_to_load_is_loaded_where_it_is_asked_for(strategy: Strategy) -> None:
    assert halves(strategy, "memory") == halves(strategy, "worker") == []


def test_each_half_is_a_file() -> None:
    assert [one.__name__ for one in halves(SECURE, "memory")] == [one.memory for one in LOADED]
    assert [one.__name__ for one in halves(SECURE, "worker")] == [one.worker for one in LOADED]


def test_a_capability_that_gives_nothing_changes_no_fold() -> None:
    fold = Fold(version=1, members=(), scale=1.0)
    assert MemoryCapability().folding(fold) is fold
