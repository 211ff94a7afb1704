"""Robust folds in runs of sites: what a plain loop over the sites computes, and refusals in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.strategy import Strategy
from plesio.strategy.answers import Equal, Median, Round
from support import loops
from support.long_forms import but_thorough
from support.sites import ROUNDS, build, by_coordinate, by_hand, site, trimmed

SITES = 6
MEDIAN = by_coordinate(statistics.median)
CLOSE = {"rtol": 1e-6, "atol": 1e-6}
ROBUST = {
    "median": ps.fedavg(combine="median"),
    "trimmed": ps.fedavg(combine=ps.TrimmedMean(0.2)),
    "krum": ps.fedavg(combine="krum"),
    "multi-krum": ps.fedavg(combine=ps.Krum(1, keep=3)),
    "first": replace(ps.fedavg(combine="median"), name="first", gather=Round(5)),
    "fedprox": ps.fedprox(0.1, combine="median"),
    "gradients": replace(ps.sync_sgd(), name="median of gradients", weigh=Equal(), combine=Median()),
    "parameters": replace(ps.local_sgd(3), name="median of parameters", weigh=Equal(), combine=Median()),
    "fragments": replace(ps.local_sgd(4, fragments=2), name="median of parts", weigh=Equal(), combine=Median()),
}


def simulated(train: Any, strategy: Strategy, workers: int = SITES, **options: Any) -> ps.Run:
    return ps.run(train, strategy, workers=workers, engine=ps.Simulated("uniform"), **options)


def shared(worker: ps.Worker) -> None:
    """Steps on data that workers share."""
    model = build()
    data = torch.utils.data.TensorDataset(torch.randn(96, 6), torch.arange(96) % 2)
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), loader)
    for inputs, labels in loader:
        loops.descend(optimizer, nn.functional.cross_entropy(model(inputs), labels))


def check(run: ps.Run, expected: Mapping[str, torch.Tensor]) -> None:
    assert run.version == ROUNDS
    for name, value in expected.items():
        torch.testing.assert_close(run.state_dict[name], value, **CLOSE)


@pytest.mark.parametrize("name", ["median", "trimmed"])
def test_sites_make_what_a_plain_loop_makes(name: str) -> None:
    fold = {"median": MEDIAN, "trimmed": by_coordinate(trimmed(1))}[name]
    expected = by_hand(fold, SITES)
    middle = "1.num_batches_tracked"
    assert expected.pop(middle) == 3 * ROUNDS
    run = simulated(site, ROBUST[name])
    assert run.state_dict[middle] == 3 * ROUNDS
    check(run, expected)


def test_the_median_is_the_gradient_of_an_outer_optimizer() -> None:
    check(simulated(site, ps.fedopt("momentum", lr=0.5, combine="median")), by_hand(MEDIAN, SITES, 0.5, 0.9))


def moved(run: ps.Run) -> float:
    """How far any parameter is from where it began."""
    return max(float((run.state_dict[key] - value).abs().max().detach()) for key, value in build().named_parameters())


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["krum", "multi-krum"])
def test_krum_takes_no_liar(name: str) -> None:
    """One liar moves the mean anywhere, and under Krum nothing: the run is to the bit that of another lie."""
    honest, others = (simulated(partial(site, liars={1: factor}), ROBUST[name]) for factor in (-20.0, 35.0))
    assert all(torch.equal(value, others.state_dict[key]) for key, value in honest.state_dict.items())
    assert 3 * moved(honest) < moved(simulated(site, ps.fedavg()))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", but_thorough(ROBUST, {"krum", "gradients", "fragments", "first"}))
def test_a_run_replays_bit_for_bit(name: str, tmp_path: Path) -> None:
    train = site if ROBUST[name].every.by_client else shared
    run = simulated(train, ROBUST[name], runs=tmp_path)
    assert run.version > 1
    assert ps.replay(run.folder, train).identical


@pytest.mark.thorough
def test_of_half_precision_the_median_goes_into_the_master_copy(tmp_path: Path) -> None:
    train = partial(site, dtype=torch.bfloat16)
    run = simulated(train, ROBUST["median"], runs=tmp_path)
    assert {one.dtype for name, one in run.state_dict.items() if "num" not in name} == {torch.bfloat16}
    assert ps.replay(run.folder, train).identical
    plain = simulated(site, ROBUST["median"]).state_dict
    for name, _ in build().named_parameters():
        assert torch.allclose(run.state_dict[name].float(), plain[name], atol=0.02)
    assert moved(run) > 0.04


@pytest.mark.filterwarnings("ignore:worker 2. a contribution held a NaN")
def test_a_nan_is_left_out_of_the_round() -> None:
    run = simulated(partial(site, liars={2: float("nan")}), ROBUST["median"])
    assert run.version == ROUNDS
    assert run.discarded == {"not finite": ROUNDS}


# Refusals


@pytest.mark.filterwarnings("ignore:worker . a contribution held a NaN")
def test_a_round_that_becomes_too_small_ends_the_run_in_words() -> None:
    """Five of six are enough, four are not."""
    train = partial(site, liars={2: float("nan"), 4: float("nan")})
    with pytest.raises(
        ps.ConfigurationError, match=r"version 1: fedavg\(combine=krum\) needs contributions of at least 5"
    ) as told:
        simulated(train, ROBUST["krum"])
    assert "this one has 4, of worker 0, 1, 3, 5; the others left, had no samples, or sent a NaN" in str(told.value)


def with_clients(worker: ps.Worker) -> None:
    model = build()
    data = torch.utils.data.TensorDataset(torch.randn(12, 6), torch.zeros(12, dtype=torch.long))
    clients = ps.Clients(data, ps.splits.iid(12, 4), per_round=4, rounds=1)
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), clients)


def with_tables(worker: ps.Worker) -> None:
    model = nn.ModuleList([ps.Table(4, ps.RowSGD(0.1)), nn.Linear(4, 1)])
    worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("train", "name", "words"),
    [
        (with_clients, "median", r"ps.Clients and fedavg\(combine=median\): a worker adds up what its clients moved"),
        (with_tables, "gradients", "median of gradients cannot step their rows: they are added up"),
    ],
)
def test_what_is_added_up_before_the_fold_is_refused(train: Any, name: str, words: str) -> None:
    with pytest.raises(ps.ConfigurationError, match=words):
        simulated(train, ROBUST[name], workers=3)


def test_the_report_says_how_contributions_are_combined() -> None:
    assert ROBUST["multi-krum"].answers()["combine"] == "Krum (f=1, keep=3)"
