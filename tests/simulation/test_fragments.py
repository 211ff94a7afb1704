"""Models that are exchanged in parts: what travels, checkpoints, replay, and workers that die or come late."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cluster import Cluster, Crash, Group, Join, Link, LogNormal, Restart
from plesio.memory.machine import Machine
from plesio.protocol.journal import read_journal
from plesio.protocol.worker import Contribution
from plesio.strategy import Strategy
from plesio.tensors.arena import ALL_PARTS
from support.long_forms import in_turn
from support.loops import data, descend
from support.replayed import build
from support.runs import assert_replays, by_name, in_two_parts, same

pytestmark = pytest.mark.filterwarnings("ignore:.*outer momentum")  # of few rounds
FAR = Link(latency_s=0.12)
EVEN = Cluster((Group(4, LogNormal(0.1, 0.3)),))
FAULTS = Crash(worker=1, at_s=1.13), Restart(worker=1, at_s=1.9), Join(worker=3, at_s=0.77)
FAULTY = Cluster((Group(2, LogNormal(0.1, 0.3)), Group(2, LogNormal(0.1, 0.3), FAR)), faults=FAULTS)
STRATEGIES = [
    recipe(6, fragments=fragments, overlap=overlap, codec=codec)
    for recipe in (ps.diloco, ps.local_sgd, ps.async_local_sgd)
    for fragments, codec in ((2, None), (3, "int4"))
    for overlap in (False, True)
] + [ps.decoupled(6, fragments=3), ps.slowmo(4, fragments=2), ps.local_sgd(ps.Seconds(0.9), fragments=2)]
QUICK = 3, 5, 12, 14
"""With overlap and without, packed and not, in rounds of whoever is there, by time."""


def train(worker: Any) -> None:
    """96 samples an epoch, 4 of them."""
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*data(96)), batch_size=3, shuffle=True)
    model, optimizer, loader = worker.prepare(model, optimizer, loader)
    for _ in range(4):
        for inputs, labels in loader:
            descend(optimizer, cross_entropy(model(inputs), labels))


def simulated(strategy: Strategy, cluster: Cluster = EVEN, **options: Any) -> ps.Run:
    return ps.run(train, strategy, workers=4, engine=ps.Simulated(cluster), seed=2, **options)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[int, int], list[Contribution]]:
    """What each worker sent, by worker and number: several, if another process of it sent one, too."""
    found: dict[tuple[int, int], list[Contribution]] = defaultdict(list)
    told = Machine.told

    def noted(self: Machine, worker: int, made: Contribution) -> None:
        found[worker, made.number].append(made)
        told(self, worker, made)

    monkeypatch.setattr(Machine, "told", noted)
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(one, marks=() if number in QUICK else pytest.mark.slow, id=f"{one.name} {one.adopt}")
        for number, one in enumerate(STRATEGIES)
    ],
)
def test_a_worker_that_dies_and_one_that_comes_late(strategy: Strategy, tmp_path: Path) -> None:
    """Every batch is in a version, and a replay gives the same bits."""
    run = simulated(strategy, FAULTY, runs=tmp_path)
    assert (run.summary.batches_unvisited, run.discarded) == (0, {})
    assert_replays(run, train)


def test_a_round_is_of_one_part(tmp_path: Path, sent: dict[tuple[int, int], list[Contribution]]) -> None:
    """Also for who comes late, until the first has no data left: it sends what is left of all."""
    run = simulated(ps.diloco(6, fragments=3), FAULTY, runs=tmp_path)
    rounds = [
        {sent[one.worker, one.number][0 if one.incarnation == 1 else -1].beside.part for one in fold.members}
        for fold in read_journal(run.folder).folds()
    ]
    of_all = next(place for place, parts in enumerate(rounds) if ALL_PARTS in parts)
    assert of_all > 8
    assert rounds[:of_all] == [{version % 3} for version in range(of_all)]
    assert rounds[-1] == {ALL_PARTS}


def test_a_worker_in_every_other_round_leaves_no_part_out(sent: dict[tuple[int, int], list[Contribution]]) -> None:
    """It has even versions only. Each part has its turn within two turns of all."""
    fast, slow = Group(3, LogNormal(0.1, 0.0)), Group(1, LogNormal(0.199, 0.0))
    simulated(ps.decoupled(2, grace_s=0.01, fragments=2), Cluster((fast, slow)))
    parts = [many[0].beside.part for (worker, _), many in sorted(sent.items()) if worker == 3]
    assert len(parts) > 12
    assert all({0, 1} <= {*parts[first : first + 5]} for first in range(len(parts) - 5))


@pytest.mark.few(2)
@pytest.mark.parametrize("codec", [None, "int8", "int4"])
@pytest.mark.parametrize("recipe", [ps.diloco, ps.async_local_sgd])
def test_only_a_part_travels(recipe: Any, codec: str | None, sent: dict[tuple[int, int], list[Contribution]]) -> None:
    """With the buffers of the batch norm, there and back."""
    run = simulated(recipe(6, fragments=3, codec=codec))
    made = [one for many in sent.values() for one in many]
    parts = {part: sum(one.beside.part == part for one in made) for part in (0, 1, 2, ALL_PARTS)}
    assert min(parts.values()) > 0
    tensors = [6 * 16, 16, 16, 16, 16 * 3, 3]  # linear, norm, linear
    buffers = 64 + 64 + (8 if codec is None else 64)  # packed, they travel as they lie

    def room(*numbers: int) -> int:
        if codec is None:
            return 4 * sum(numbers)
        padded = sum((one + 15) // 16 * 16 for one in numbers)  # one block
        return 4 * (-(-padded // 256)) + (padded if codec == "int8" else padded // 2)

    cut = [tensors[:1], tensors[1:4], tensors[4:]]
    each = {part: room(*numbers) + buffers for part, numbers in enumerate(cut)}
    each[ALL_PARTS] = sum(room(*numbers) for numbers in cut) + buffers
    assert run.summary.bytes == 2 * sum(each[part] * count for part, count in parts.items())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "seconds"),
    in_turn(
        [ps.local_sgd(6, fragments=2), ps.diloco(6, fragments=3), ps.diloco(6, fragments=3, codec="int4")], [1.35, 2.1]
    ),
    ids=by_name,
)
def test_a_resumed_run_gives_the_same_weights(strategy: Strategy, seconds: float, tmp_path: Path) -> None:
    """What workers did on the parts that they had not sent comes back, too."""
    whole, _, second = in_two_parts(partial(simulated, strategy), tmp_path, ps.Until(seconds=seconds))
    assert same(second, whole)
    assert_replays(second, train)


@pytest.mark.parametrize("recipe", [ps.local_sgd, ps.diloco, ps.slowmo, ps.async_local_sgd])
def test_one_fragment_is_none(recipe: Any) -> None:
    plain, one = recipe(6), recipe(6, fragments=1)
    assert (plain, plain.name, plain.as_data()) == (one, one.name, one.as_data())


def test_a_model_has_a_tensor_for_each_part() -> None:
    with pytest.raises(ps.ConfigurationError, match="a part of the model is at least one tensor, and 6 are trained"):
        simulated(ps.diloco(14, fragments=7))
