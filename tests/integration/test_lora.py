"""Adapters in runs: the mean of their products, as a loop over whole matrices computes it; and what peft makes of a model."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.strategy import Strategy
from plesio.strategy.answers import Outer, Rebase

RATE, ROUNDS, SITES = 0.2, 3, 3
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
OWN = ps.LowRank("down", "up")


class Adapted(nn.Module):
    """A frozen layer, an adapter of rank 2 and a head that is trained whole."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.down, self.up, self.head = nn.Linear(6, 2, False), nn.Linear(2, 5, False), nn.Linear(5, 3)
        nn.init.normal_(self.up.weight, std=0.1)
        self.to(dtype)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.base(inputs) + self.up(self.down(inputs))))


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [one for one in model.parameters() if one.requires_grad]


def local_step(model: nn.Module, optimizer: torch.optim.Optimizer, site: int, step: int) -> None:
    """Sites differ much: each has inputs of its own scale, and one label."""
    random = torch.Generator().manual_seed(100 * site + step)
    inputs = (1 + site) * torch.randn(8, 6, generator=random).to(trained(model)[0].dtype)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs).float(), torch.full((8,), site % 3)).backward()
    optimizer.step()


def local(worker: ps.Worker, steps: int = 2 * ROUNDS, dtype: torch.dtype = torch.float32) -> None:
    """Workers whose optimizers have a state that goes on."""
    model = Adapted(dtype)
    model, optimizer = worker.prepare(model, torch.optim.SGD(trained(model), lr=RATE, momentum=0.9))
    for step in range(steps):
        worker.count(samples=1 + worker.rank)
        local_step(model, optimizer, worker.rank, step)


def site(worker: ps.Worker) -> None:
    model = Adapted()
    model, optimizer = worker.prepare(model, torch.optim.SGD(trained(model), lr=RATE))
    for turn in range(ROUNDS):
        for step in range(2):
            local_step(model, optimizer, worker.rank, 2 * turn + step)
        worker.contribute(samples=1 + worker.rank)


def by_hand(momentum: float, apart: bool = False) -> nn.Module:
    """Each round: the mean over sites by their samples; of the adapter, its product's, decomposed as a whole matrix."""
    shares = [(1 + one) / sum(range(1, SITES + 1)) for one in range(SITES)]
    models = [Adapted() for _ in range(SITES)]
    optimizers = [torch.optim.SGD(trained(one), lr=RATE, momentum=momentum) for one in models]
    for turn in range(ROUNDS):
        for number, (own, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for step in range(2):
                local_step(own, optimizer, number, 2 * turn + step)
        states = [{name: one.double() for name, one in own.state_dict().items()} for own in models]
        mean = {name: sum(share * one[name] for share, one in zip(shares, states, strict=True)) for name in states[0]}
        if not apart:
            product = [share * one["up.weight"] @ one["down.weight"] for share, one in zip(shares, states, strict=True)]
            u, values, vh = torch.linalg.svd(sum(product))  # type: ignore[call-overload]
            shortest = sum(
                share * torch.linalg.matrix_norm(one["down.weight"], -2)
                for share, one in zip(shares, states, strict=True)
            )
            p, lengths, qh = torch.linalg.svd(mean["down.weight"] @ vh[:2].T)
            mean["down.weight"] = p @ lengths.clamp(min=shortest).diag() @ qh @ vh[:2]
            mean["up.weight"] = u[:, :2] * values[:2] @ vh[:2] @ torch.linalg.pinv(mean["down.weight"])
        for own in models:
            own.load_state_dict({name: one.float() for name, one in mean.items()})
    return models[0]


def simulated(train: Any, strategy: Strategy, workers: int = SITES, **options: Any) -> ps.Run:
    return ps.run(train, strategy, workers=workers, engine=ps.Simulated("uniform"), **options)


def check(run: ps.Run, model: nn.Module) -> None:
    assert run.version == ROUNDS
    for name, value in model.state_dict().items():
        torch.testing.assert_close(run.state_dict[name], value, **CLOSE)
    assert torch.equal(run.state_dict["base.weight"], Adapted().base.weight)


@pytest.mark.parametrize(
    "strategy",
    [ps.local_sgd(2, combine=OWN), ps.diloco(2, lr=1.0, momentum=0.0, combine=OWN)],
    ids=lambda one: one.recipe,
)
def test_parameters_and_differences_make_what_a_plain_loop_makes(strategy: Strategy) -> None:
    check(simulated(local, strategy), by_hand(momentum=0.9))


def test_sites_make_what_a_plain_loop_makes() -> None:
    check(simulated(site, ps.fedavg(combine=OWN)), by_hand(momentum=0.0))


def test_the_means_apart_are_something_else() -> None:
    """So the tests above can tell."""
    apart = by_hand(momentum=0.9, apart=True)
    check(simulated(local, ps.local_sgd(2)), apart)
    with pytest.raises(AssertionError, match="not close"):
        check(simulated(local, ps.local_sgd(2, combine=OWN)), apart)


def test_with_one_worker_it_is_the_loop_alone_to_the_bit() -> None:
    model = Adapted()
    optimizer = torch.optim.SGD(trained(model), lr=RATE, momentum=0.9)
    for step in range(2 * ROUNDS):
        local_step(model, optimizer, 0, step)
    run = simulated(local, ps.local_sgd(2, combine=OWN), workers=1)
    assert all(torch.equal(run.state_dict[name], one) for name, one in model.state_dict().items())


@pytest.mark.parametrize("case", ["parameters", "sites", "half precision", "going on", "post local", "decoupled"])
def test_a_run_replays_bit_for_bit(case: str, tmp_path: Path) -> None:
    plain = ps.local_sgd(2, combine=OWN)
    half = partial(local, dtype=torch.bfloat16)
    train, strategy = {
        "parameters": (local, plain),
        "sites": (site, ps.fedavg(combine=OWN)),
        "half precision": (half, plain),
        "going on": (local, ps.local_sgd(2, combine=OWN, overlap=True)),
        "decoupled": (local, ps.decoupled(2, outer=Outer("SGD", lr=1.0), combine=OWN)),
        "post local": (local, replace(ps.post_local_sgd(2, after=2), combine=OWN)),
    }[case]  # fmt: skip
    assert case != "going on" or isinstance(strategy.adopt, Rebase)
    run = simulated(train, strategy, runs=tmp_path)
    assert run.version >= ROUNDS - 1
    assert run.state_dict["up.weight"].dtype == (torch.bfloat16 if train is half else torch.float32)
    assert ps.replay(run.folder, train).identical


@pytest.mark.thorough
def test_processes_make_the_bits_that_a_simulated_run_makes() -> None:
    strategy = ps.local_sgd(2, combine=OWN)
    run, other = ps.run(local, strategy, workers=2), simulated(local, strategy, workers=2)
    assert all(torch.equal(one, other.state_dict[name]) for name, one in run.state_dict.items())


def test_a_model_without_adapters_is_refused_where_it_is_prepared() -> None:
    with pytest.raises(
        ps.ConfigurationError, match=r"no two trained .* trained are down.weight, up.weight, head.weight"
    ):
        simulated(local, ps.local_sgd(2, combine="low_rank"))


def with_clients(worker: ps.Worker) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(12, 6), torch.zeros(12, dtype=torch.long))
    model = Adapted()
    clients = ps.Clients(data, ps.splits.iid(12, 4), per_round=4, rounds=1)
    worker.prepare(model, torch.optim.SGD(trained(model), lr=0.1), clients)


def test_clients_that_a_worker_adds_up_are_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match="a worker adds up what its clients moved"):
        simulated(with_clients, ps.fedavg(combine=OWN))


# peft


def small_llama() -> Any:
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=40, **sizes))
    adapters = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "embed_tokens"])
    return peft.get_peft_model(model, adapters)


def llama(worker: ps.Worker, folder: Path, steps: int = 8) -> None:
    """One shares the loop among workers; at the end of the last round each saves its adapters, as with peft alone."""
    model = small_llama()
    model, optimizer = worker.prepare(model, torch.optim.AdamW(trained(model), lr=0.01))
    for step in range(steps):
        tokens = torch.randint(40, (2, 8), generator=torch.Generator().manual_seed(10 * step + worker.rank))
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    model.save_pretrained(folder / str(worker.rank))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")  # peft's and transformers' own
@pytest.mark.parametrize(
    "strategy", [ps.diloco(4), ps.decoupled(4), ps.local_sgd(4, combine="low_rank")], ids=lambda one: one.recipe
)
def test_only_adapters_travel_and_the_merged_model_is_the_same(strategy: Strategy, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    run = simulated(partial(llama, folder=tmp_path), strategy, workers=2)
    whole = small_llama()
    adapters = sum(one.numel() for one in trained(whole))
    buffers = sum(one.nbytes for one in whole.buffers())
    assert run.summary.folded == 4
    assert run.summary.bytes == 2 * 4 * (4 * adapters + buffers)  # there and back
    base = copy.deepcopy(whole).unload().state_dict()
    whole.load_state_dict(run.state_dict)
    served = copy.deepcopy(whole)
    assert all(torch.equal(one, base[name]) for name, one in whole.unload().state_dict().items())
    merged = served.merge_and_unload().state_dict()
    plain: Any = copy.deepcopy(whole.base_model.model)
    with_adapters = small_llama()
    with_adapters.load_state_dict(run.state_dict)
    with_adapters.save_pretrained(tmp_path / "run")
    workers = () if strategy.recipe == "decoupled" else ("0", "1")  # there they are ahead of their last answer
    for saved in ("run", *workers):
        own = peft.PeftModel.from_pretrained(copy.deepcopy(plain), tmp_path / saved).merge_and_unload().state_dict()
        assert all(torch.equal(one, merged[name]) for name, one in own.items())
    assert any(not torch.equal(one, base[name]) for name, one in merged.items())


def by_trainer(worker: ps.Worker, folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from plesio.integrations.transformers import Trainer

    rows = [{"input_ids": row, "labels": row} for row in torch.arange(256).remainder(40).view(32, 8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1,
        max_grad_norm=1.0, bf16=True, use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    Trainer(worker, model=small_llama(), args=arguments, train_dataset=rows).train()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_hugging_face_exchanges_adapters_alone(tmp_path: Path) -> None:
    run = ps.run(partial(by_trainer, folder=tmp_path), ps.local_sgd(2, combine="low_rank"), workers=2)
    whole = small_llama()
    an_exchange = 4 * sum(one.numel() for one in trained(whole)) + sum(one.nbytes for one in whole.buffers())
    assert run.summary.folded == 4
    assert run.summary.bytes == 2 * 4 * an_exchange
    base = whole.unload().state_dict()
    after = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): one for name, one in run.state_dict.items()
    }
    assert all(torch.equal(after[name], one) for name, one in base.items() if name in after)
    assert any(one.any() for name, one in after.items() if "lora_B" in name)
