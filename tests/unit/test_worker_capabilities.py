"""The port of capabilities at a worker: which it has is known when `prepare` is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import plesio as ps
from plesio.capabilities import those_with
from plesio.tensors.model import TablePlace
from plesio.worker.capabilities import those_of
from plesio.worker.capability import Capability
from plesio.worker.clients.lent import LeasedClients
from plesio.worker.given import Given, How
from plesio.worker.row_gradients import Tables
from plesio.worker.shared_tables import SharedTables

PLAIN = How(None, frozen_too=False, share=None, lets_writes_go=False, tables=None)


def able(*things: Any, inline: bool = False) -> list[Capability]:
    model = next(one for one in things if isinstance(one, nn.Module))
    given = Given.sorted([*things, torch.optim.SGD([nn.Parameter(torch.ones(1)), *model.parameters()])])
    context: Any = SimpleNamespace(inline=inline, state=SimpleNamespace(discarded=0))
    return those_of(given, PLAIN, context, [])


def test_a_worker_without_them_is_told_nothing_of_its_steps() -> None:
    plain = able(nn.Linear(2, 1))
    assert [*map(type, plain)] == [Tables]
    assert not those_with(plain, Capability.stepped)
    assert not any(one.by_turns or one.where() for one in plain)


def test_the_order_is_one_list() -> None:
    model, clients = nn.Linear(2, 1), ps.Clients([1, 2], [[0], [1]], per_round=1, rounds=1)
    model.place = TablePlace(*(0 for _ in TablePlace.__struct_fields__))
    assert [*map(type, able(model, clients))] == [Tables, SharedTables, LeasedClients]
    assert [*map(type, able(model, clients, inline=True))] == [Tables, LeasedClients]
