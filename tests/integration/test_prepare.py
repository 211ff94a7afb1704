"""`worker.prepare` and the first step report what torch accepts and a run cannot keep."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import plesio as ps
from support.long_forms import but_thorough


def line(bias: bool = False) -> nn.Linear:
    model = nn.Linear(4, 1, bias=bias)
    nn.init.ones_(model.weight)
    return model


def told_by(part: Callable[[], object]) -> list[str]:
    """What a part of a training function is warned of, each at a line of this file."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        part()
    assert {one.filename for one in told} <= {__file__}
    return [str(one.message) for one in told]


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor | None = None) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 4) if inputs is None else inputs).sum().backward()
    optimizer.step()


# Parameters that no group holds


def half_prepared(worker: ps.Worker, told: bool, frozen: bool = False) -> None:
    """As a GAN with two optimizers, of which one is prepared."""
    model = nn.Sequential(line(), nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 3))).double()
    model[1].requires_grad_(not frozen)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    messages = told_by(lambda: worker.prepare(model, optimizer, None))
    if told and worker.rank == 0:
        (message,) = messages
        assert "holds 1.0.weight, 1.0.bias, 1.1.weight and 1 more, with requires_grad=True" in message
        assert "Give prepare that optimizer, too" in message
    else:
        assert messages == []


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("strategy", "told"),
    [("sync_sgd", True), ("async_sgd", True), ("local_sgd", True), (ps.allreduce("torch"), True), ("hogwild", False)],
)
@pytest.mark.filterwarnings("ignore:nothing was trained")
def test_parameters_outside_all_groups_warn_once(strategy: Any, told: bool) -> None:
    ps.run(partial(half_prepared, told=told), strategy, workers=2, timeout_s=30.0)
    ps.run(partial(half_prepared, told=False, frozen=True), strategy, workers=1, timeout_s=30.0)


def two_groups(worker: ps.Worker) -> None:
    """One optimizer with a group for each part."""
    model = nn.ModuleList([line(), line()])
    rates = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[1].parameters(), "lr": 0.2}]
    prepared = torch.optim.SGD(rates)

    def part() -> None:
        _, optimizer, _ = worker.prepare(model, prepared, None)
        optimizer.zero_grad()
        for one in model:
            one(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    assert told_by(part) == []


@pytest.mark.parametrize(
    "strategy", but_thorough(["sync_sgd", "async_sgd", "local_sgd", "hogwild"], {"async_sgd", "local_sgd"})
)
def test_one_group_per_submodel_trains_both(strategy: Any) -> None:
    run = ps.run(two_groups, strategy, workers=1, timeout_s=30.0)
    assert torch.allclose(run.state_dict["0.weight"], torch.full((1, 4), 0.9))
    assert torch.allclose(run.state_dict["1.weight"], torch.full((1, 4), 0.8))


def two_layers() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))


def joining(model: nn.Sequential, prepare: Callable[[nn.Module, torch.optim.Optimizer], Any]) -> None:
    """The second layer joins after three steps."""
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "lr": 0.0}]
    trained, optimizer, _ = prepare(model, torch.optim.Adam(groups, lr=0.1))
    for step in range(6):
        if step == 3:
            optimizer.param_groups[1]["lr"] = 0.01
        one_step(trained, optimizer)


def joined_later(worker: ps.Worker) -> None:
    joining(two_layers(), lambda model, optimizer: worker.prepare(model, optimizer, None))


@pytest.mark.parametrize(
    "strategy",
    but_thorough(["sync_sgd", "async_sgd", "local_sgd", ps.allreduce("torch"), "hogwild"], {"async_sgd", "local_sgd"}),
    ids=str,
)
def test_groups_can_be_unfrozen_by_their_lr(strategy: Any) -> None:
    """As the error of add_param_group after prepare recommends."""
    model = two_layers()
    joining(model, lambda model, optimizer: (model, optimizer, None))
    run = ps.run(joined_later, strategy, workers=1, timeout_s=30.0)
    torch.testing.assert_close(run.state_dict, model.state_dict())


# Weights that come too late


def loading(worker: ps.Worker, when: str) -> None:
    """Weights of 5 are loaded before prepare, after it, or with the first step done."""
    model = line(bias=True)
    state = {"weight": torch.full((1, 4), 5.0), "bias": torch.zeros(1)}
    if when == "before":
        model.load_state_dict(state)
    trained, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.0), None)
    if when == "after":
        model.load_state_dict(state)
    one_step(trained, optimizer)
    if when == "later":
        model.load_state_dict(state)
    one_step(trained, optimizer)


@pytest.mark.parametrize(
    ("strategy", "when"),
    [("sync_sgd", "before"), ("local_sgd", "after"), (ps.allreduce("torch"), "after"), ("hogwild", "after")],
)
def test_weights_loaded_before_prepare_and_where_the_worker_steps_are_kept(strategy: Any, when: str) -> None:
    run = ps.run(partial(loading, when=when), strategy, workers=1, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], torch.full((1, 4), 5.0))


@pytest.mark.parametrize("strategy", ["sync_sgd", "async_sgd"])
@pytest.mark.parametrize("when", ["after", "later"])
def test_weights_loaded_after_prepare_are_refused_where_lost(strategy: Any, when: str) -> None:
    with pytest.raises(ps.ConfigurationError, match="weight, bias written to by hand since the last step: under"):
        ps.run(partial(loading, when=when), strategy, workers=2, engine=ps.Simulated("uniform"))


def limiting(worker: ps.Worker) -> None:
    """The forward pass writes into the weights, which the server does not see."""
    model = nn.Embedding(4, 3, max_norm=0.1)

    def part() -> None:
        _, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
        one_step(model, optimizer, torch.tensor([1, 2]))

    before = model.weight._version
    (words,) = told_by(part)
    assert words.startswith("Embedding(4, 3, max_norm=0.1) writes into its own weights in the forward pass")
    assert model.weight._version > before


def test_layers_that_limit_their_weights_warn_where_the_server_steps() -> None:
    assert ps.run(limiting, ps.sync_sgd(), workers=1, timeout_s=30.0).steps == 1


# Optimizers


def sparse_steps(model: nn.Embedding, optimizer: torch.optim.Optimizer) -> None:
    for number in range(6):
        one_step(model, optimizer, torch.tensor([1, 2, 2, 3 + number % 2]))


def sparse(worker: ps.Worker) -> None:
    model = nn.Embedding(9, 3, sparse=True)
    model, optimizer, _ = worker.prepare(model, torch.optim.SparseAdam(model.parameters(), lr=0.01), None)
    sparse_steps(model, optimizer)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "strategy",
    but_thorough([ps.hogwild(), ps.local_sgd(every=3), ps.allreduce("torch"), ps.sync_sgd()], {"hogwild", "sync_sgd"}),
)
def test_sparse_adam_moves_the_rows_of_a_batch(strategy: ps.Strategy) -> None:
    torch.manual_seed(0)
    alone = nn.Embedding(9, 3, sparse=True)
    started = alone.weight.detach().clone()
    sparse_steps(alone, torch.optim.SparseAdam(alone.parameters(), lr=0.01))
    run = ps.run(sparse, strategy, workers=1, seed=0, timeout_s=30.0)
    assert torch.equal(run.state_dict["weight"], alone.weight)
    both = ps.run(sparse, strategy, workers=2, seed=0, timeout_s=30.0)
    moved = (both.state_dict["weight"] != started).any(dim=1)
    assert moved.tolist() == [False, *[True] * 4, *[False] * 4]


def test_sparse_adam_is_refused_where_a_correction_reads_whole_tables() -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"SparseAdam cannot step at the server: .* dense gradients, .*local_sgd"
    ):
        ps.run(sparse, ps.async_sgd("gap_aware"), workers=1, timeout_s=30.0)


class Wrapping(torch.optim.Optimizer):
    """As Accelerate's: an optimizer that passes everything on to another."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def defaults(self) -> dict[str, object]:  # type: ignore[override]
        return self.optimizer.defaults

    @property
    def state(self) -> dict[torch.Tensor, object]:  # type: ignore[override]
        return self.optimizer.state


# Trainers


def as_trainer(optimizer: torch.optim.Optimizer, model: nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """The loop of a stand-in for Hugging Face's Trainer: a function of a module of that name."""
    space: dict[str, Any] = {"__name__": "transformers.trainer", "one_step": one_step}
    code = "def train(optimizer, model, batches):\n    for batch in batches:\n        one_step(model, optimizer, batch)"
    exec(code, space)  # the name of a frame's module is that of the dictionary it is executed in
    space["train"](optimizer, model, batches)


def under_a_trainer(worker: ps.Worker, how: str) -> None:
    """It is given the prepared loader, or reads the data by itself."""
    model = line()
    data = DataLoader(torch.ones(8, 4), 2)
    loader = None if how == "no loader" else data
    model, optimizer, prepared = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    as_trainer(optimizer, model, prepared if how == "the prepared loader" else data)


@pytest.mark.few(5)
@pytest.mark.parametrize(
    "strategy",
    but_thorough(["sync_sgd", "local_sgd", "hogwild", ps.allreduce("torch")], {"sync_sgd", "hogwild"}),
    ids=str,
)
@pytest.mark.parametrize("how", ["no loader", "another loader"])
def test_a_trainer_that_reads_all_data_on_each_worker_is_refused(how: str, strategy: Any) -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"transformers\.Trainer .*whole train_dataset; take plesio\.integrations"
    ):
        ps.run(partial(under_a_trainer, how=how), strategy, workers=2, timeout_s=30.0)


@pytest.mark.parametrize(
    ("how", "workers", "steps"), [("the prepared loader", 2, 4), ("no loader", 1, 4), ("another loader", 1, 4)]
)
def test_a_trainer_with_the_prepared_loader_or_one_worker_trains(how: str, workers: int, steps: int) -> None:
    assert ps.run(partial(under_a_trainer, how=how), "sync_sgd", workers=workers, timeout_s=30.0).steps == steps


# Models


def lazy(worker: ps.Worker, batch: bool) -> None:
    model = nn.Sequential(line(), nn.LazyLinear(2), nn.LazyBatchNorm1d())
    if batch:
        model(torch.ones(2, 4))
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    one_step(model, optimizer)


@pytest.mark.parametrize("strategy", ["sync_sgd", "hogwild", ps.allreduce("torch")], ids=str)
def test_an_uninitialised_lazy_module_is_refused(strategy: Any) -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"^1\.weight has no shape yet .*; run one batch through the model before"
    ):
        ps.run(partial(lazy, batch=False), strategy, workers=1, timeout_s=30.0)
    assert ps.run(partial(lazy, batch=True), strategy, workers=1, timeout_s=30.0).steps == 1


# What is refused, with a remedy


def pair(worker: ps.Worker, how: str) -> None:
    """Two models with an optimizer each."""
    first, second = line(), line()
    one, other = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second))
    if how == "listed":
        worker.prepare(nn.ModuleList([first, second]), [one, other])
    elif how == "schedule":
        worker.prepare(first, one, torch.optim.lr_scheduler.StepLR(other, 10))
    elif how == "of one model":
        worker.prepare(first, one, torch.optim.Adam(first.parameters()))
    else:
        worker.prepare(first, one)
        worker.prepare(second, other)


def single(worker: ps.Worker, how: str) -> None:
    model, loader = line(), DataLoader(torch.ones(8, 4), 4)
    number = torch.zeros(1, requires_grad=True)
    if how == "complex":
        model.register_buffer("phases", torch.ones(3, dtype=torch.complex64))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    if how == "another module's":
        optimizer.add_param_group({"params": line().parameters()})
    if how == "wrapped":
        optimizer = Wrapping(optimizer)
    added = {"a tensor": [number], "a tensor's": [torch.optim.Adam([number])], "a loader twice": [loader, loader]}
    worker.prepare(model, torch.optim.SGD if how == "a class" else optimizer, *added.get(how, []))


def tied_by_memory(worker: ps.Worker) -> None:
    """They would be trained apart."""
    model = nn.Sequential(line(), line())
    model[1].weight.data = model[0].weight.data
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


TIED = r"tie them as one parameter \(1\.weight = 0\.weight, without"


@pytest.mark.parametrize(
    ("train", "words"),
    [
        (partial(pair, how="listed"), "given a list; it takes torch.s modules, optimizers.*, one by one"),
        (partial(pair, how="schedule"), "given a StepLR of another SGD than it was given: give it that one, too"),
        (partial(pair, how="of one model"), "1 parameters are in more than one of the optimizers"),
        (partial(pair, how="one after the other"), "a second SGD would train this worker alone"),
        (partial(single, how="wrapped"), r"^Wrapping wraps SGD, .*: call worker\.prepare before Wrapping's own"),
        (partial(single, how="a class"), "given <class 'torch.optim.sgd.SGD'>; it takes torch.s modules"),
        (partial(single, how="a loader twice"), "given the same DataLoader twice"),
        (partial(single, how="another module's"), "optimizer are not in the model.*or put all modules that it trains"),
        (partial(single, how="a tensor's"), r"of no module, such as .* give prepare torch\.nn\.ParameterList\(\[t\]\)"),
        (partial(single, how="a tensor"), r"given a Tensor; .* give prepare torch\.nn\.ParameterList\(\[t\]\)"),
        (partial(single, how="complex"), "phases: torch.complex64.* torch.view_as_real shows it, or a constant as a"),
        (tied_by_memory, TIED),
    ],
)
def test_what_prepare_cannot_take_is_refused_with_a_remedy(train: Any, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        ps.run(train, ps.sync_sgd(), workers=1, engine=ps.Simulated("uniform"))


@pytest.mark.parametrize("strategy", ["local_sgd", "hogwild", ps.allreduce("torch")], ids=str)
def test_weights_tied_by_data_are_refused_by_every_strategy(strategy: Any) -> None:
    with pytest.raises(ps.ConfigurationError, match=TIED):
        ps.run(tied_by_memory, strategy, workers=1, timeout_s=30.0)


# Tensors of no module, such as the temperature of soft actor-critic


def tempered(worker: ps.Worker, how: str) -> float:
    """`how`: the tensor's optimizer is "prepared", "left out", of a "plain" one, or "anew" for each step, as of an attack."""
    model, alpha = line(), torch.zeros(1, requires_grad=True) if how == "plain" else nn.Parameter(torch.zeros(1))
    optimizer, tune = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam([alpha])
    if how == "prepared":
        both = worker.prepare(model, nn.ParameterList([alpha]), optimizer, tune)
        model, _, optimizer, tune = both
    else:
        model, optimizer = worker.prepare(model, optimizer)
    for _ in range(4):
        worker.count(samples=1)
        one_step(model, optimizer)
        for _ in range(3):
            tune.zero_grad()
            ((1 - 2 * worker.rank) * alpha).sum().backward()
            tune.step()
        if how == "anew":
            tune = torch.optim.Adam([alpha])
    return alpha.item()


@pytest.mark.parametrize(
    ("how", "workers"), [("plain", 2), ("left out", 2), ("anew", 2), ("prepared", 2), ("left out", 1)]
)
def test_an_optimizer_that_trains_each_workers_own_tensor_is_warned_of_once(how: str, workers: int) -> None:
    run = partial(ps.run, partial(tempered, how=how), "sync_sgd", engine=ps.Simulated("uniform"), workers=workers)
    if how == "plain":
        with pytest.raises(ps.ConfigurationError, match=r"Adam, which prepare was not given.*ParameterList"):
            run()
        return
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        values = run().returned
    own = (how, workers) == ("left out", 2)
    assert ["each worker trains its own" in str(one.message) for one in told] == [True] * own
    assert (len(set(values)) == 1) == (how == "prepared" or workers == 1)
