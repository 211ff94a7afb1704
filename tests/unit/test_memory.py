"""The set-up of a run: warnings and refusals before it begins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from torch import nn
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from plesio.errors import ConfigurationError
from plesio.memory.blocks import Blocks
from plesio.memory.machine import Machine
from plesio.protocol.evaluator import Snapshot, SnapshotRequest
from plesio.protocol.worker import Hello
from plesio.server.snapshots import Snapshots
from plesio.strategy import Strategy, recipes
from plesio.tensors.model import describe
from plesio.tensors.optimizer_spec import OptimizerSpec
from plesio.transport.channel import Channel, channel_pair
from support import loops

Make = Callable[..., Optimizer]


class Mine(Adam):
    """Whatever it does differently, the look-ahead does not know of it."""


def hello(worker: int, make: Make) -> Hello:
    """What a worker shows of itself that has this optimizer."""
    model = loops.mlp()
    optimizer = make(model.parameters())
    return Hello(worker, describe(model, optimizer)[0], (OptimizerSpec.of(optimizer),), b"any")


def advice(make: Make, strategy: Strategy, workers: int = 2) -> list[str]:
    """What the user is warned of when training begins."""
    hellos = [hello(worker, make) for worker in range(workers)]
    machine = Machine(Blocks(strategy, workers, hellos, evaluates=False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        machine.begin(0)
    return [str(one.message) for one in caught if one.category is RuntimeWarning]


@pytest.mark.parametrize("make", [NAdam, RAdam, Adamax, Mine], ids=lambda make: make.__name__)
def test_momentum_without_look_ahead_warns_once(make: type[Optimizer]) -> None:
    assert advice(make, recipes.async_sgd()) == [
        f"{make.__name__}: no look-ahead is known for it, so async_sgd folds it plainly, which can diverge with many "
        "workers; use SGD, Adam or AdamW, or correct='plain' to accept it"
    ]


SILENT: dict[str, Make] = {
    "SGD": partial(SGD, lr=0.1),
    "SGD, momentum": partial(SGD, lr=0.1, momentum=0.9),
    "RMSprop": partial(RMSprop, lr=0.1),
    "RMSprop, momentum": partial(RMSprop, lr=0.1, momentum=0.9),
    "Adam": Adam,
    "AdamW": AdamW,
    "Adagrad": Adagrad,
    "Adadelta": Adadelta,
    "Adafactor": Adafactor,
    "NAdam, no momentum": partial(NAdam, betas=(0.0, 0.999)),
}


@pytest.mark.parametrize("name", SILENT)
def test_supported_or_absent_momentum_does_not_warn(name: str) -> None:
    assert advice(SILENT[name], recipes.async_sgd()) == []


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [(recipes.async_sgd("plain"), 2), (recipes.sync_sgd(), 2), (recipes.local_sgd(), 2), (recipes.async_sgd(), 1)],
    ids=["plain", "in step", "local", "alone"],
)
def test_strategies_without_look_ahead_do_not_warn(strategy: Strategy, workers: int) -> None:
    assert advice(NAdam, strategy, workers) == []


def two_groups(parameters: Iterator[nn.Parameter]) -> Optimizer:
    """The second group has no parameters: the models' tensors do not tell."""
    return SGD([{"params": list(parameters)}, {"params": []}], lr=0.1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Adam, r"torch\.optim\.sgd\.SGD was wanted, got torch\.optim\.adam\.Adam"),
        (two_groups, "1 parameter groups were wanted, got 2"),
    ],
    ids=["class", "groups"],
)
def test_different_optimizers_are_refused_where_one_is_shared(make: Make, words: str) -> None:
    hellos = [hello(0, partial(SGD, lr=0.1)), hello(1, make)]
    for strategy in (recipes.sync_sgd(), recipes.async_sgd(), recipes.hogwild(), recipes.allreduce()):
        with pytest.raises(
            ConfigurationError, match=rf"worker 1 does not hold the same optimizer as worker 0: {words};"
        ):
            Blocks(strategy, 2, hellos, evaluates=False)
    Blocks(recipes.local_sgd(), 2, hellos, evaluates=False)


def test_a_locally_defined_optimizer_class_matches_across_workers() -> None:
    """Each worker has its own class object."""

    def define() -> type[Optimizer]:
        class Own(SGD):
            """Defined in the training function."""

        return Own

    Blocks(recipes.sync_sgd(), 2, [hello(worker, define()) for worker in range(2)], evaluates=False)


def test_a_closed_evaluator_connection_is_not_polled() -> None:
    """The closed end is noticed at the answer."""
    ours, theirs = channel_pair()
    line = Channel(ours, SnapshotRequest, "the evaluator")
    snapshots = Snapshots(line, lambda: (0.0, 0, 0), look=lambda: None, due=lambda: True)
    evaluator: Channel[Any] = Channel(theirs, Snapshot, "the server")
    evaluator.send(SnapshotRequest())
    assert snapshots.hear(1.0)
    evaluator.close()
    machine = Machine(Blocks(recipes.sync_sgd(), 1, [hello(0, partial(SGD, lr=0.1))], evaluates=True))
    machine.begin(0)
    assert snapshots.wanted()
    snapshots.send(machine, final=False)
    assert not snapshots.hear(1.0)
    line.close()
