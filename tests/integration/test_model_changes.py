"""Changes to a model or optimizer after prepare are followed or refused, never lost."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrizations, prune

import plesio as ps
from plesio.tensors.arena import Kind
from plesio.tensors.model import describe, dump_plain, dump_structure, load_structure
from support import loops
from support.long_forms import but_thorough, in_turn

SERVER = [ps.sync_sgd(), ps.async_sgd()]


def steps_of(strategy: ps.Strategy) -> int:
    """Of 2 workers with 5 each: those of an all-reduce by torch are everybody's."""
    return 5 if strategy.via.by_collective else 10


EVERY = [*SERVER, ps.local_sgd(every=2), ps.hogwild(), ps.allreduce("torch")]
SOME = but_thorough(EVERY, {"sync_sgd", "hogwild", ps.allreduce("torch").name})
SIMULATED = ps.Simulated("uniform")


class Sparse(nn.Module):
    """Most of an embedding's rows take no part in a step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(100, 8, sparse=True)
        self.out = nn.Linear(8, loops.CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.embedding(inputs[:, 0].abs().mul(20).long().clamp(0, 99)))
        return out


@pytest.mark.few(3)
@pytest.mark.parametrize("strategy", SOME, ids=str)
def test_sparse_gradients_match_plain_pytorch(strategy: ps.Strategy) -> None:
    """Over local steps, too."""
    train = partial(loops.follow, build=Sparse, optimizers=loops.sgd, steps=12)
    got = ps.run(train, strategy, workers=1).state_dict
    for name, value in loops.plain_pytorch(Sparse, loops.sgd, 12).items():
        torch.testing.assert_close(got[name], value, rtol=1e-5, atol=1e-6)


def without_biases() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(loops.FEATURES, 8, bias=False), nn.Tanh(), nn.Linear(8, loops.CLASSES, bias=False))


def muon(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Muon(model.parameters(), lr=0.02)


@pytest.mark.parametrize("engine", but_thorough(["local", SIMULATED], {SIMULATED}), ids=["local", "simulated"])
def test_muon_matches_plain_pytorch(engine: Any) -> None:
    train = partial(loops.follow, build=without_biases, optimizers=muon, steps=6)
    got = ps.run(train, ps.sync_sgd(), workers=1, engine=engine).state_dict
    for name, value in loops.plain_pytorch(without_biases, muon, 6).items():
        torch.testing.assert_close(got[name], value, rtol=1e-3, atol=1e-4)


class Stubborn(torch.optim.SGD):
    """An optimizer that cannot step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        raise RuntimeError("I need a scaler")


def stubborn(model: nn.Module) -> torch.optim.Optimizer:
    return Stubborn(model.parameters(), lr=0.1)


@pytest.mark.parametrize("engine", ["local", SIMULATED], ids=["local", "simulated"])
def test_an_optimizer_that_cannot_step_at_the_server_is_refused(engine: Any) -> None:
    train = partial(loops.follow, build=loops.mlp, optimizers=stubborn, steps=6)
    with pytest.raises(
        ps.ConfigurationError, match=r"Stubborn cannot step at the server: .*RuntimeError: I need a scaler"
    ):
        ps.run(train, ps.async_sgd(), workers=2, engine=engine)


def by_rank(worker: ps.Worker, what: str) -> None:
    """Worker 1 has another optimizer than the others."""
    model = loops.mlp()
    other = worker.rank == 1
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + worker.rank))
    if other and what == "class":
        optimizer = torch.optim.Adam(model.parameters())
    if other and what == "settings":
        optimizer.param_groups[0]["use_muon"] = True
    if other and what == "values":  # as one that was loaded from a file, a scheduler's notes in it
        optimizer.param_groups[0]["initial_lr"] = 1.0
    inputs, labels = loops.data()
    model, optimizer = worker.prepare(model, optimizer)
    for _ in range(4):
        loops.descend(optimizer, cross_entropy(model(inputs), labels))


@pytest.mark.few(4)
@pytest.mark.parametrize("strategy", [*SERVER, ps.hogwild()], ids=str)
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("class", r"torch\.optim\.sgd\.SGD was wanted, got torch\.optim\.adam\.Adam; .*may differ"),
        ("settings", r"group 0: wanted the settings \[.*\], got \[.*'use_muon'.*\]"),
    ],
)
def test_workers_with_different_optimizers_are_refused(what: str, words: str, strategy: ps.Strategy) -> None:
    with pytest.raises(ps.ConfigurationError, match=rf"worker 1 .* same optimizer as worker 0: {words}"):
        ps.run(partial(by_rank, what=what), strategy, workers=2)


@pytest.mark.parametrize("what", ["class", "settings"])
def test_ranks_with_different_optimizers_are_refused(what: str) -> None:
    with pytest.raises(ps.ModelMismatchError, match=r"rank \d does not hold the same model and optimizer as rank \d"):
        ps.run(partial(by_rank, what=what), ps.allreduce("torch"), workers=2)


@pytest.mark.parametrize(
    ("what", "strategy"), [("values", ps.sync_sgd()), ("class", ps.local_sgd(every=2))], ids=["values", "local"]
)
def test_settings_and_unshared_optimizers_may_differ(what: str, strategy: ps.Strategy) -> None:
    assert ps.run(partial(by_rank, what=what), strategy, workers=2).steps == 8


def changed_amid(worker: ps.Worker, how: str) -> None:
    """After three steps the model is another."""
    inputs, labels = loops.data()
    model = loops.mlp()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for step in range(6):
        if step == 3 and how == "dtype":
            model.double()
            inputs = inputs.double()
        if step == 3 and how == "shape":
            model[0].weight.data, model[0].bias.data = torch.ones(1, loops.FEATURES), torch.ones(1)
            model[2].weight.data = torch.ones(loops.CLASSES, 1)
        if step == 3 and how == "memory":
            model[2].weight.data = model[2].weight.data.clone()
        loops.descend(optimizer, cross_entropy(model(inputs), labels))


CHANGED = {
    "dtype": r"0\.weight changed after prepare: it was float32 \(8, 6\), now it is float64 \(8, 6\)",
    "shape": r"0\.weight changed after prepare: it was float32 \(8, 6\), now it is float32 \(1, 6\)",
    "memory": r"2\.weight was given other memory after prepare",
}


@pytest.mark.few(2)
@pytest.mark.parametrize(("how", "strategy"), in_turn([*CHANGED], EVERY), ids=str)
def test_a_model_changed_during_training_is_refused(how: str, strategy: ps.Strategy) -> None:
    with pytest.raises(ps.ModelMismatchError, match=CHANGED[how]):
        ps.run(partial(changed_amid, how=how), strategy, workers=2)


def layer_added(model: Any) -> None:
    model.append(nn.Linear(loops.CLASSES, loops.CLASSES))


def layer_replaced(model: Any) -> None:
    model[2] = nn.Linear(8, loops.CLASSES)


def layer_removed(model: Any) -> None:
    model[2].register_parameter("bias", None)


def pruned(model: Any) -> None:
    prune.l1_unstructured(model[0], "weight", amount=0.5)


def normalised(model: Any) -> None:
    parametrizations.weight_norm(model[0])


def calibrated(model: Any) -> None:
    model.register_buffer("temperature", torch.ones(()))


REBUILT: dict[str, tuple[Callable[[Any], None], str]] = {
    "added": (layer_added, r"3\.weight was not in the model when it was prepared"),
    "replaced": (layer_replaced, r"2\.weight was another tensor when it was prepared"),
    "gone": (layer_removed, r"2\.bias is no longer in the model, and was when it was prepared"),
    "pruned": (pruned, r"0\.weight_mask was not in the model when it was prepared"),
    "parametrized": (normalised, r"0\.parametrizations\.weight\.original0 was not in the model"),
    "a buffer": (calibrated, r"temperature was not in the model when it was prepared"),
}


def rebuilt(worker: ps.Worker, how: Callable[[Any], None], at: int) -> None:
    """At that step the model gets other tensors; under all-reduce it is the user's own that does."""
    inputs, labels = loops.data()
    own = loops.mlp()
    model, optimizer = worker.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
    for step in range(5):
        if step == at:
            how(own)
        loops.descend(optimizer, cross_entropy(model(inputs), labels))
    if at == 5:
        how(own)


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", SOME, ids=str)
@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param(*one, id=name, marks={"added": (), "gone": pytest.mark.thorough}.get(name, pytest.mark.slow))
        for name, one in REBUILT.items()
    ],
)
def test_tensors_added_after_prepare_are_refused(how: Callable[[Any], None], words: str, strategy: ps.Strategy) -> None:
    with pytest.raises(ps.ModelMismatchError, match=rf"{words}.*; add, .* before prepare"):
        ps.run(partial(rebuilt, how=how, at=3), strategy, workers=2, timeout_s=30.0)


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", SOME, ids=str)
def test_changes_after_the_last_step_are_allowed(strategy: ps.Strategy) -> None:
    """For an export; the result holds the trained weights."""
    assert ps.run(partial(rebuilt, how=layer_added, at=5), strategy, workers=2, timeout_s=30.0).steps == steps_of(
        strategy
    )


class Caching(nn.Module):
    """Adds to itself as it is called: a cache that is not saved; and saves one more tensor, made anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.utils.parametrizations.spectral_norm(nn.Linear(loops.FEATURES, loops.CLASSES))
        self.again = nn.Linear(loops.CLASSES, loops.CLASSES)
        self.again.weight = nn.Parameter(torch.eye(loops.CLASSES))
        self.twin = self.again
        self.register_buffer("empty", None)
        self.register_buffer("table", None, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not hasattr(self, "positions"):
            self.register_buffer("positions", torch.arange(3.0), persistent=False)
        self.table = torch.zeros(len(inputs), 1)
        out: torch.Tensor = self.twin(self.again(self.inner(inputs))) + self.positions + self.table
        return out

    def get_extra_state(self) -> torch.Tensor:
        return torch.ones(2)

    def set_extra_state(self, state: Any) -> None: ...


class Wrapped(nn.Module):
    """Another name for the tensors of a layer."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(inputs)
        return out


def wrap(model: Any) -> None:
    model.again = model.twin = Wrapped(model.again)


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", SOME, ids=str)
def test_caches_and_wrappers_are_allowed(strategy: ps.Strategy) -> None:
    def train(worker: ps.Worker) -> None:
        inputs, labels = loops.data()
        own = Caching()
        model, optimizer = worker.prepare(own, torch.optim.SGD(own.parameters(), lr=0.1))
        for step in range(5):
            if step == 3 and worker.rank == 0:
                wrap(own)
            loops.descend(optimizer, cross_entropy(model(inputs), labels))

    assert ps.run(train, strategy, workers=2, timeout_s=30.0).steps == steps_of(strategy)


def unfreezing(worker: ps.Worker, own: bool) -> None:
    """The first layer is unfrozen at the third step; `own`: it is one of the optimizer's."""
    inputs, labels = loops.data()
    model = loops.mlp()
    model[0].requires_grad_(False)
    model, optimizer = worker.prepare(model, loops.sgd(model if own else model[2]))
    for step in range(5):
        if step == 3:
            model[0].weight.requires_grad_(True)
        loops.descend(optimizer, cross_entropy(model(inputs), labels))


@pytest.mark.few(2)
@pytest.mark.parametrize("strategy", SOME, ids=str)
def test_a_layer_unfrozen_after_prepare_is_refused(strategy: ps.Strategy) -> None:
    with pytest.raises(ps.ModelMismatchError, match=r"0\.weight needed no gradient when prepare .*trainable='all'"):
        ps.run(partial(unfreezing, own=True), strategy, workers=2)


def adapting(worker: ps.Worker | None, steps: int = 9) -> dict[str, torch.Tensor]:
    """Two adapters take turns, as set_adapter does it: one is frozen while the other trains."""
    inputs, labels = loops.data()
    model = loops.mlp()
    layers = (model[0], model[2])
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    if worker is not None:
        model, optimizer = worker.prepare(model, optimizer, trainable="all")
    for step in range(steps):
        for place, layer in enumerate(layers):
            layer.requires_grad_(place != step // 3 % 2)
        loops.descend(optimizer, cross_entropy(model(inputs), labels))
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


@pytest.mark.parametrize("strategy", [*SERVER, "allreduce", "local_sgd", ps.async_sgd("gap_aware")], ids=str)
def test_adapters_that_take_turns_train_as_in_torch(strategy: Any) -> None:
    run = ps.run(adapting, strategy, workers=1, engine=SIMULATED)
    assert all(torch.equal(run.state_dict[name], one) for name, one in adapting(None).items())


def wide(hidden: int = 50_000) -> nn.Module:
    """Large enough for passes by compiled kernels, and to be read in place."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(loops.FEATURES, hidden), nn.Tanh(), nn.Linear(hidden, loops.CLASSES))


AWAKE = ((), (0,), (0, 1), (), (1,), (0, 1))
"""By turns: the workers that train the first layer, too."""


def waking(worker: ps.Worker, build: Callable[[], nn.Module]) -> None:
    model = build()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = worker.prepare(model, optimizer, trainable="all")
    inputs, labels = loops.data()
    for step in range(2 * len(AWAKE)):
        model[0].requires_grad_(worker.rank in AWAKE[step // 2])
        loops.descend(optimizer, cross_entropy(model(inputs[worker.rank :: 2]), labels[worker.rank :: 2]))


def woken(build: Callable[[], nn.Module]) -> nn.Module:
    """The same in one process: a worker without a gradient counts as zeros, where the other has one."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs, labels = loops.data()
    for step in range(2 * len(AWAKE)):
        optimizer.zero_grad()
        for rank in range(2):
            model[0].requires_grad_(rank in AWAKE[step // 2])
            (cross_entropy(model(inputs[rank::2]), labels[rank::2]) / 2).backward()
        optimizer.step()
    return model


@pytest.mark.few(2)
@pytest.mark.parametrize("build", but_thorough([loops.mlp, wide], {loops.mlp}), ids=["small", "large"])
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.allreduce()], ids=str)
def test_what_wakes_in_one_worker_first_trains_as_in_one_process(strategy: ps.Strategy, build: Any) -> None:
    run = ps.run(partial(waking, build=build), strategy, workers=2, engine=SIMULATED)
    for name, wanted in woken(build).state_dict().items():
        torch.testing.assert_close(run.state_dict[name], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("correct", "build"),
    in_turn(["dana", "gap_aware", "delay_compensated", "plain"], [loops.mlp, wide]),
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_layer_that_never_wakes_is_as_if_left_out(correct: Any, build: Any) -> None:
    left_in, left_out = (
        ps.run(partial(half, build=build, given=given), ps.async_sgd(correct), workers=3, engine=SIMULATED)
        for given in (True, False)
    )
    assert all(torch.equal(one, left_out.state_dict[name]) for name, one in left_in.state_dict.items())


def half(worker: ps.Worker, build: Callable[[], nn.Module], given: bool) -> None:
    """Trains the last layer; the first one is `given` to the optimizer, too."""
    model = build()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters() if given else model[2].parameters(), lr=0.01)
    model, optimizer = worker.prepare(model, optimizer, **({"trainable": "all"} if given else {}))
    inputs, labels = loops.data()
    for _ in worker.steps(30):
        loops.descend(optimizer, cross_entropy(model(inputs), labels))


def freezing(worker: ps.Worker | None) -> dict[str, torch.Tensor]:
    """Two optimizers; of one a bias is frozen in the middle, so that its tensors no longer step together."""
    inputs, labels = loops.data()
    model = loops.mlp()
    parts = [torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9) for layer in (model[0], model[2])]
    if worker is not None:
        model, *parts = worker.prepare(model, *parts)
    for step in range(12):
        model[2].bias.requires_grad_(step < 6)
        for part in parts:
            part.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        for part in parts:
            part.step()
    return {name: one.detach().clone() for name, one in model.state_dict().items()}


@pytest.mark.parametrize("strategy", SERVER, ids=str)
def test_several_optimizers_keep_their_momenta_when_a_tensor_is_frozen(strategy: ps.Strategy) -> None:
    run = ps.run(freezing, strategy, workers=1, engine=SIMULATED)
    assert all(torch.equal(run.state_dict[name], one) for name, one in freezing(None).items())


def resumed(worker: ps.Worker, frozen: bool) -> None:
    model = loops.mlp()
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = worker.prepare(model, optimizer, trainable="all")
    inputs, labels = loops.data()
    for _ in worker.steps(4):
        loops.descend(optimizer, cross_entropy(model(inputs), labels))


def test_a_run_with_another_part_frozen_at_prepare_does_not_resume(tmp_path: Path) -> None:
    first = ps.run(
        partial(resumed, frozen=True), workers=1, engine=SIMULATED, strategy="sync_sgd", runs=tmp_path,
        checkpoint=ps.Checkpoint(every_s=3600.0),
    )  # fmt: skip
    with pytest.raises(ps.CheckpointError, match=r"0\.weight: .* frozen at prepare, got 0\.weight"):
        ps.run(partial(resumed, frozen=False), workers=1, engine=SIMULATED, strategy="sync_sgd", resume=first.folder)


def half_precision(worker: ps.Worker) -> None:
    model = wide().to(torch.bfloat16)
    model, optimizer = worker.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.001))
    inputs, labels = loops.data()
    for _ in worker.steps(4):
        loops.descend(optimizer, cross_entropy(model(inputs.to(torch.bfloat16)).float(), labels))


def test_a_large_model_in_bfloat16_looks_ahead() -> None:
    run = ps.run(half_precision, ps.async_sgd(), workers=2, engine=SIMULATED)
    assert run.version == 4
    assert all(one.isfinite().all() for one in run.state_dict.values())


def test_ddp_refuses_what_is_unfrozen_later() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"trainable='all'\): DistributedDataParallel reduces what needs"):
        ps.run(adapting, ps.allreduce("torch"), workers=1, timeout_s=30.0)


def test_gradients_outside_the_optimizer_are_allowed() -> None:
    assert ps.run(partial(unfreezing, own=False), ps.sync_sgd(), workers=2, engine=SIMULATED).version == 5


LOCAL = ps.local_sgd(every=4)


@pytest.mark.parametrize("engine", ["local", SIMULATED], ids=["local", "simulated"])
def test_a_nan_in_a_local_step_costs_one_contribution(engine: Any) -> None:
    """The NaN does not stay in the momentum of the worker's own optimizer."""
    train = partial(loops.poisoned, who=1, at=5, value=float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where workers are in this process, it is told here
        run = ps.run(train, LOCAL, workers=2, engine=engine)
    assert run.discarded == {"not finite": 1}
    assert run.folded == 2 * 5 - 1
    assert run.workers[1].discarded == 1
    assert all(bool(value.isfinite().all()) for value in run.state_dict.values())
    with pytest.raises(ps.NonFiniteError, match="contribution 2 of worker 1"):
        ps.run(train, LOCAL, workers=2, engine=engine, on_nonfinite="raise")


def two_heads(worker: ps.Worker, settings: dict[str, Any]) -> None:
    """Each worker trains a head of its own; with one worker, the second head only now and then. Every gradient is one."""
    model = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False), "b": nn.Linear(1, 1, bias=False)})
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0, **settings), None)
    for step in range(4):
        loops.descend(
            optimizer, model["b" if worker.rank or (worker.workers == 1 and step == 0) else "a"](torch.ones(1, 1)).sum()
        )


@pytest.mark.parametrize(
    "strategy", but_thorough([ps.sync_sgd(), ps.first_of(2), ps.buffered(2, correct="plain")], {"sync_sgd"}), ids=str
)
def test_an_unused_head_gets_no_gradient_from_that_worker(strategy: ps.Strategy) -> None:
    """The server computes the mean in a worker's slot; it must not return as that worker's own."""
    run = ps.run(partial(two_heads, settings={}), strategy, workers=2, timeout_s=30.0)
    assert [float(weight) for weight in run.state_dict.values()] == [-2.0, -2.0]


def test_changes_of_a_gradient_by_the_optimizer_are_not_resent() -> None:
    """torch's multi-tensor Nesterov adds the momentum to the gradient itself."""
    ends = [
        ps.run(partial(two_heads, settings={**nesterov, "foreach": foreach}), "sync_sgd", workers=1, timeout_s=30.0)
        for nesterov in ({"momentum": 0.5, "nesterov": True},)
        for foreach in (True, False)
    ]
    assert torch.equal(*(run.state_dict["b.weight"] for run in ends))


@pytest.mark.parametrize("strategy", ["buffered", "async_sgd"])
def test_the_first_momentum_is_undampened(strategy: str) -> None:
    """As in torch: dampening starts with the second gradient."""

    def once(worker: ps.Worker, dampening: float) -> None:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        plain = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, dampening=dampening)
        model, optimizer, _ = worker.prepare(model, plain, None)
        loops.descend(optimizer, model(torch.ones(1, 1)).sum())

    damped, plain = (
        ps.run(partial(once, dampening=dampening), strategy, workers=4, engine=SIMULATED) for dampening in (0.9, 0.0)
    )
    assert torch.equal(damped.state_dict["weight"], plain.state_dict["weight"])


def test_missing_gradients_are_counted_over_local_steps() -> None:
    """One layer of `Tied`, with two tensors, is used every other step."""
    train = partial(loops.follow, build=loops.Tied, optimizers=loops.sgd, steps=8)
    counts = [ps.run(train, strategy, workers=2).missing_gradients for strategy in (ps.sync_sgd(), LOCAL)]
    assert counts == [2 * 8 // 2 * 2] * 2


def saving(worker: ps.Worker, load: bool) -> None:
    """Ask for the optimizer's state after prepare, and `load` some there."""
    inputs, labels = loops.data()
    model, warm = loops.mlp(), loops.mlp()
    old = loops.adam(warm)
    cross_entropy(warm(inputs), labels).backward()
    old.step()
    model, optimizer = worker.prepare(model, loops.adam(model))
    kept = optimizer.state_dict()
    assert kept["state"] == {}
    kept["param_groups"][0]["lr"] = 0.5
    optimizer.load_state_dict(kept)  # settings alone
    assert optimizer.param_groups[0]["lr"] == 0.5
    if load:
        optimizer.load_state_dict(old.state_dict())
    model(inputs).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("strategy", SERVER, ids=str)
def test_load_state_dict_after_prepare_is_refused_at_the_server(strategy: ps.Strategy) -> None:
    assert ps.run(partial(saving, load=False), strategy, workers=1, engine=SIMULATED).steps == 1
    with pytest.raises(ps.ConfigurationError, match=r"load_state_dict after prepare: Adam steps at the server"):
        ps.run(partial(saving, load=True), strategy, workers=1, engine=SIMULATED)


@pytest.mark.parametrize("strategy", [LOCAL, ps.hogwild(), ps.allreduce("torch")], ids=str)
def test_optimizer_state_in_the_worker_saves_and_loads(strategy: ps.Strategy) -> None:
    assert ps.run(partial(saving, load=True), strategy, workers=1).steps == 1


def scheduled(worker: ps.Worker, first: bool) -> None:
    """A scheduler made before prepare; it steps before the optimizer, or after."""
    inputs, labels = loops.data()
    model = loops.mlp()
    optimizer = loops.sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer = worker.prepare(model, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if first:
            scheduler.step()
        for _ in range(3):
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            scheduler.step()
    assert [type(one.message) for one in caught] == [UserWarning] * first, [str(one.message) for one in caught]
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5 ** (3 + first)


@pytest.mark.parametrize("first", [False, True], ids=["in order", "too early"])
@pytest.mark.parametrize("strategy", [*SERVER, LOCAL], ids=str)
def test_a_scheduler_made_before_prepare_sees_steps(strategy: ps.Strategy, first: bool) -> None:
    assert ps.run(partial(scheduled, first=first), strategy, workers=1, engine=SIMULATED).steps == 3


def exporting(worker: ps.Worker) -> None:
    """What was never written to, though it holds a NaN, and the whole made half precision in the end."""
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 2).requires_grad_(False))
    model[1].bias.data[0] = torch.nan
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model[0].parameters(), lr=0.1), None)
    for _ in range(3):
        loops.descend(optimizer, model[0](torch.ones(1, 2)).sum())
    if worker.seed:
        model.half()


@pytest.mark.parametrize("seed", [0, 1], ids=["as it was", "exported"])
def test_unwritten_parameters_do_not_warn(seed: int) -> None:
    assert ps.run(exporting, ps.sync_sgd(), workers=2, engine=SIMULATED, seed=seed).steps == 6


def marking(worker: ps.Worker) -> None:
    """Write into a parameter that needs no gradient, once, as a teacher's average would each time."""
    model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 2).requires_grad_(False))
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model[0].parameters(), lr=0.1), None)
    model[1].weight.data.fill_(7.0)
    for _ in range(5):
        loops.descend(optimizer, model(torch.ones(1, 2)).sum())
        assert torch.equal(model[1].weight, torch.full((2, 1), 7.0))


@pytest.mark.parametrize("strategy", SOME, ids=str)
def test_writes_to_frozen_parameters_stay_in_the_worker(strategy: ps.Strategy) -> None:
    assert ps.run(marking, strategy, workers=2, timeout_s=30.0).steps == steps_of(strategy)


@pytest.mark.parametrize("strategy", [*SERVER, LOCAL], ids=str)
def test_writes_to_frozen_parameters_warn(strategy: ps.Strategy) -> None:
    with pytest.warns(RuntimeWarning, match=r"wrote into parameters that need no gradient: 1\.weight\."):
        run = ps.run(marking, strategy, workers=2, engine=SIMULATED)
    assert not torch.equal(run.state_dict["1.weight"], torch.full((2, 1), 7.0))


def test_warnings_as_errors_do_not_fail_the_run() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ps.run(marking, ps.sync_sgd(), workers=2, engine=SIMULATED).steps == 10


def tuning_last(worker: ps.Worker, steps: int, persistent: bool = True, write: bool = True) -> None:
    """After the last step a buffer is written into, another one assigned; before it, and by forward passes, they are, too."""
    inputs, labels = loops.data()
    own = loops.batch_norm()
    own.register_buffer("temperature", torch.ones(()), persistent)
    own.register_buffer("scale", torch.ones(()), persistent)
    model, optimizer, _ = worker.prepare(own, loops.sgd(own), None)
    try:
        for step in range(steps):
            optimizer.zero_grad()
            own.temperature.fill_(float(step))
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    finally:
        own.eval()(inputs)
        if write:
            own.temperature.fill_(2.5)
            own.scale = torch.tensor(2.5)


LOST = r"wrote into temperature, scale after its last exchange: .*to run\.state_dict after ps\.run"


@pytest.mark.parametrize("strategy", [*SERVER, LOCAL], ids=str)
def test_buffer_writes_after_the_last_exchange_warn(strategy: ps.Strategy) -> None:
    with pytest.warns(RuntimeWarning, match=LOST) as caught:
        run = ps.run(partial(tuning_last, steps=8), strategy, workers=2, engine=SIMULATED)
    assert sum("wrote into" in str(one.message) for one in caught) == 1
    assert float(run.state_dict["scale"]) == 1.0


def writing_down(worker: ps.Worker, train: Callable[..., None], folder: Path) -> None:
    """What this process is told in warnings, also after `train`."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        with Path(folder, "warnings.txt").open("a") as file:
            file.write(f"worker {worker.rank} is told: {message}\n")

    warnings.simplefilter("always")
    warnings.showwarning = show
    train(worker)


def told(train: Callable[..., None], strategy: ps.Strategy, folder: Path, **options: Any) -> tuple[Any, str]:
    """The run in processes, and what they were told."""
    run = ps.run(partial(writing_down, train=train, folder=folder), strategy, workers=2, timeout_s=30.0, **options)
    file = folder / "warnings.txt"
    return run, file.read_text() if file.exists() else ""


KEPT: list[tuple[dict[str, Any], ps.Until | None]] = [
    ({"steps": 8, "write": False}, None), ({"steps": 8, "persistent": False}, None), ({"steps": 10**6}, ps.Until(steps=8)),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("kept", "strategy"), in_turn(KEPT, [ps.allreduce("torch"), ps.hogwild(), ps.sync_sgd()], pytest.mark.thorough)
)
def test_buffer_writes_that_are_kept_do_not_warn(kept: Any, strategy: ps.Strategy, tmp_path: Path) -> None:
    options, until = kept
    _, words = told(partial(tuning_last, **options), strategy, tmp_path, until=until)
    assert words == ""


def test_buffers_of_the_last_local_steps_are_exchanged() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = ps.run(partial(tuning_last, steps=6), LOCAL, workers=2, engine=SIMULATED)
    assert float(run.state_dict["temperature"]) == 2.5


def restoring(worker: ps.Worker, write: bool = True) -> None:
    """What early stopping does in the end: load the best weights, here the first ones."""
    inputs, labels = loops.data()
    own = loops.mlp()
    model, optimizer, _ = worker.prepare(own, loops.sgd(own), None)
    best = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(8):
        loops.descend(optimizer, cross_entropy(model(inputs), labels))
        held = model[0].weight.data.clone()  # as a moving average is swapped in to be evaluated, and out again
        model[0].weight.data.zero_()
        model[0].weight.data.copy_(held)
    if write:
        model.load_state_dict(best)


@pytest.mark.parametrize("strategy", [*SERVER, LOCAL], ids=str)
def test_weights_restored_after_the_last_exchange_warn(strategy: ps.Strategy) -> None:
    with pytest.warns(RuntimeWarning, match=r"wrote into 0\.weight.* after its last exchange: .*state_dict"):
        ps.run(restoring, strategy, workers=2, engine=SIMULATED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ps.run(partial(restoring, write=False), strategy, workers=2, engine=SIMULATED)


def test_a_process_warns_of_weights_restored_after_the_last_exchange(tmp_path: Path) -> None:
    _, words = told(restoring, ps.sync_sgd(), tmp_path)
    assert words.count("told") == words.count("worker 0 is told: worker 0 wrote into 0.weight") == 1


class Variable:
    """As a variable of Keras on torch: a parameter."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = nn.Parameter(value, requires_grad=False)


class KerasNorm(nn.Module):
    """Keeps its running mean and a count as Keras's layers do. The base is frozen, and nobody writes into it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.out, self.base = nn.Linear(loops.FEATURES, loops.CLASSES), nn.Linear(3, 3).requires_grad_(False)
        self._mean, self._count = Variable(torch.zeros(loops.FEATURES)), Variable(torch.zeros(1, dtype=torch.int32))
        self._non_trainable_variables = [self._mean]
        self._seed_generators = [SimpleNamespace(state=self._count)]
        self.held = nn.ParameterDict({"mean": self._mean.value, "count": self._count.value})

    def _flatten_layers(self) -> list[nn.Module]:
        return [self]

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self._mean.value.lerp_(inputs.mean(0), 0.1)
                self._count.value.add_(1)
        out: torch.Tensor = self.out(inputs - self._mean.value)
        return out


@pytest.mark.few(3)
@pytest.mark.parametrize("strategy", SOME, ids=str)
def test_keras_moving_statistics_are_exchanged_as_buffers_are(strategy: ps.Strategy) -> None:
    train = partial(loops.follow, build=KerasNorm, optimizers=loops.sgd, steps=12)
    got = ps.run(train, strategy, workers=1).state_dict
    for name, value in loops.plain_pytorch(KerasNorm, loops.sgd, 12).items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=0)


def test_only_what_keras_writes_travels() -> None:
    model = KerasNorm()
    described, tensors = describe(model, torch.optim.SGD(model.parameters(), lr=0.1), frozen_too=True)
    assert {spec.name for spec in described.specs if spec.kind is Kind.BUFFER} == {"held.mean", "held.count"}
    described, _ = describe(model, loops.sgd(model.out))
    assert {spec.name for spec in described.specs if spec.kind is Kind.FROZEN} == {"base.weight", "base.bias"}
    copy = load_structure(
        dump_structure(model, tensors), described.specs, tuple(torch.ones_like(one) for one in tensors)
    )
    assert isinstance(copy._mean.value, nn.Parameter)
    assert copy._mean.value is copy.held["mean"]


def test_a_model_that_is_built_lies_over_the_weights_wherever_it_holds_its_own() -> None:
    model = KerasNorm()
    described, tensors = describe(model, loops.sgd(model.out))
    views = tuple(torch.ones_like(one) for one in tensors)
    built = load_structure(dump_plain(KerasNorm, described), described.specs, views)
    views[next(at for at, one in enumerate(tensors) if one is model._mean.value)].fill_(2.0)
    assert built._mean.value.tolist() == built.held["mean"].tolist() == [2.0] * loops.FEATURES


class PicklesItself(nn.Linear):
    """As Keras's models do: with the weights of now."""

    def __reduce__(self) -> Any:
        return partial(torch.load, weights_only=False), (_saved(self),)


def _saved(model: nn.Module) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(dict(model.state_dict()), file)
    file.seek(0)
    return file


def test_evaluate_refuses_a_copy_with_other_weights() -> None:
    model = PicklesItself(2, 1)
    with pytest.raises(
        ps.ConfigurationError, match=r"PicklesItself pickles copies of its own weights, .* of the beginning"
    ):
        dump_structure(model, list(model.parameters()))
