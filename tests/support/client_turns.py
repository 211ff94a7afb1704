"""A training function whose clients keep who had them last, and what a run's journal says of that."""

from __future__ import annotations

import io
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import plesio as ps
from plesio.protocol.journal import read_journal
from plesio.transport.client_states import BEGIN, ClientStates
from plesio.worker.clients.lent import LeasedClients
from support.loops import CLASSES, FEATURES, data

CLIENTS, PER_ROUND = 8, 4
INPUTS, LABELS = data(160)


def build() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, CLASSES))


def train(worker: ps.Worker, rounds: int, log: str = os.devnull, rest_s: float = 0.0, dies: str = "") -> None:
    """Each turn writes a line: who it was, and who had had the client before. `dies`: the process of worker 1 kills itself in the
    third of its turns, "before" or "after" its state is written; a replay, which has no process of its own, does not."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    lent = ps.Clients(
        TensorDataset(INPUTS, LABELS), ps.splits.iid(160, CLIENTS), per_round=PER_ROUND, rounds=rounds, batch_size=8,
        state="keep",
    )  # fmt: skip
    model, optimizer, clients = worker.prepare(model, optimizer, lent, share=lambda name, _: not name.startswith("1."))
    incarnation = _starts(log, worker.rank)
    for turn, client in enumerate(clients):
        if dies and worker.rank == 1 and turn == 2 and worker.server_pid:
            _die_when(worker, dies)
        version, before = worker.version, client.state.get("me")
        for inputs, labels in client:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if rest_s:
                time.sleep(rest_s)
        me = [worker.rank, incarnation, worker._state.number, client.round, client.id]
        client.state.update(me=me, bias=model[1].bias)
        _say(log, {"me": me, "before": before, "version": version})


def _die_when(worker: ps.Worker, dies: str) -> None:
    (clients,) = (one for one in worker._able if isinstance(one, LeasedClients))
    assert clients._kept is not None
    leave = clients._kept.leave

    def dying(*given: Any) -> None:
        if dies == "after":
            leave(*given)
        os.kill(os.getpid(), signal.SIGKILL)

    clients._kept.leave = dying  # type: ignore[method-assign]


def _starts(log: str, rank: int) -> int:
    """Which process of this worker it is."""
    if log == os.devnull:
        return 0
    path = Path(log)
    said = list(map(json.loads, path.read_text().splitlines())) if path.exists() else []
    incarnation = 1 + sum(one.get("starts") == rank for one in said)
    _say(log, {"starts": rank})
    return incarnation


def _say(log: str, line: dict[str, Any]) -> None:
    with open(log, "a") as file:
        file.write(json.dumps(line) + "\n")


def check(folder: Path, log: Path, replayed: bool = False) -> tuple[int, Counter[str]]:
    """Each turn began with what the last one left that was in the version it trained from, by the journal; how many turns there
    were, and what became of them. Of those that were lost, some are "left out": nobody made them again, for the client was in the
    next round, too."""
    folds = list(read_journal(folder).folds())
    counted = {
        (one.worker, one.incarnation, one.number): (fold.version, place)
        for fold in folds
        for place, one in enumerate(fold.members)
    }
    turns = [one for one in map(json.loads, log.read_text().splitlines()) if "me" in one]
    left: dict[int, list[tuple[tuple[int, int, int], list[int]]]] = {client: [] for client in range(CLIENTS)}
    became: Counter[str] = Counter()
    for order, one in enumerate(turns):
        key = tuple(one["me"][:3])
        became["counts" if key in counted else "lost"] += 1
        if key in counted:
            left[one["me"][4]].append(((*counted[key], order), one["me"]))
    rounds = {client: {me[3] for _, me in those} for client, those in left.items()}
    lost = {tuple(one["me"][3:]) for one in turns if tuple(one["me"][:3]) not in counted}
    for round, client in lost:
        if round not in rounds[client]:
            assert round + 1 in rounds[client]
            became["left out"] += 1
    for one in turns:
        known = [turn for turn in left[one["me"][4]] if turn[0][0] <= one["version"]]
        wanted = max(known)[1] if known else None
        assert one["before"] == wanted, one
    last = folds[-1].version
    states = ClientStates(folder / "clients")
    for client, those in left.items():
        found = states.get(client, last)
        assert (found is None) == (not those)
        if found is not None:
            assert record(found)["state"]["me"] == max(those)[1]
    return len(turns), became


def record(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return found


def states_of(folder: Path) -> dict[str, dict[str, Any]]:
    """What each client has at the end of a run."""
    paths = ClientStates(folder / "clients").newest()
    return {name: record(path.read_bytes()[:-8]) for name, path in sorted(paths.items()) if name != BEGIN}
