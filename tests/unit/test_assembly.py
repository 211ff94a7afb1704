"""What a run is told of its own set-up before it begins."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import cloudpickle
import pytest
from torch.optim import SGD, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from plesio import recipes
from plesio.engine.assembly import Assembly
from plesio.engine.messages import Hello
from plesio.strategy import Strategy
from plesio.tensors.model import describe
from plesio.tensors.outer import OptimizerSpec
from support import loops

Make = Callable[..., Optimizer]


class Mine(Adam):
    """Whatever it does differently, the look-ahead does not know of it."""


def advice(make: Make, strategy: Strategy, workers: int = 2) -> list[str]:
    """What the user is warned of when training begins."""
    model = loops.mlp()
    optimizer = make(model.parameters())
    spec = OptimizerSpec.of(optimizer)
    shown = cloudpickle.dumps((spec.kind, spec.defaults, spec.groups))
    hellos = [Hello(worker, 1, describe(model, optimizer)[0], shown, b"") for worker in range(workers)]
    assembly = Assembly(strategy, workers, hellos, evaluates=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assembly.build_folder()
    said = [str(one.message) for one in caught if one.category is RuntimeWarning]
    assert said == ([assembly.advice] if assembly.advice else [])
    return said


@pytest.mark.parametrize("make", [NAdam, RAdam, Adamax, Mine], ids=lambda make: make.__name__)
def test_a_momentum_nobody_looks_ahead_by_is_told_once(make: type[Optimizer]) -> None:
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
def test_what_is_looked_ahead_by_or_has_no_momentum_is_no_reason_to_warn(name: str) -> None:
    assert advice(SILENT[name], recipes.async_sgd()) == []


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [(recipes.async_sgd("plain"), 2), (recipes.sync_sgd(), 2), (recipes.local_sgd(), 2), (recipes.async_sgd(), 1)],
    ids=["plain", "in step", "local", "alone"],
)
def test_who_did_not_ask_for_look_ahead_is_not_warned(strategy: Strategy, workers: int) -> None:
    assert advice(NAdam, strategy, workers) == []
