"""The report: sparsity against brute force, and collisions counted among real threads."""

from itertools import pairwise

import numpy as np
import pytest
from scipy import sparse

from plesio.errors import ConfigurationError
from plesio.sparse import Kernel, Report
from plesio.sparse import report as reports
from plesio.sparse.collisions import gather, sparsity, watch
from plesio.sparse.epochs import Epoch
from plesio.sparse.report import measure


def touches(rows, parameters, density, seed=0):
    matrix = sparse.random(rows, parameters, density, format="csr", random_state=seed)
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.uint32)


def all_of(indptr, indices, parameters, left_out=None):
    return gather(indptr, indices, parameters, np.arange(len(indptr) - 1), left_out)


def by_brute_force(indptr, indices, parameters):
    sets = [set(indices[begin:end].tolist()) for begin, end in pairwise(indptr)]
    rho = max(sum(bool(one & other) for other in sets) for one in sets) / len(sets)
    delta = max(sum(parameter in one for one in sets) for parameter in range(parameters)) / len(sets)
    return rho, delta, max(map(len, sets))


@pytest.mark.parametrize(("parameters", "density"), [(50, 0.01), (50, 0.1), (300, 0.01), (300, 0.002)])
@pytest.mark.parametrize("seed", range(3))
def test_sparsity_equals_brute_force(parameters, density, seed):
    indptr, indices = touches(120, parameters, density, seed)
    found = sparsity(all_of(indptr, indices, parameters))
    assert found.rho_exact
    assert (found.rho, found.delta, found.omega) == by_brute_force(indptr, indices, parameters)


def test_duplicate_parameters_of_an_example_count_once():
    indptr, indices = np.array([0, 3, 4]), np.array([1, 1, 2, 2], np.uint32)
    assert sparsity(all_of(indptr, indices, 3))[:3] == (1.0, 1.0, 2)


def test_a_truncated_search_reports_a_lower_bound(monkeypatch):
    indptr, indices = touches(2000, 100, 0.05)
    rho = sparsity(all_of(indptr, indices, 100)).rho
    monkeypatch.setattr("plesio.sparse.collisions.SEARCH_STEPS", 10)
    short = sparsity(all_of(indptr, indices, 100))
    assert not short.rho_exact
    assert 0 < short.rho <= rho


def test_no_examples_or_empty_ones_have_zero_sparsity():
    assert sparsity(all_of(np.array([0]), np.array([], np.uint32), 5)) == (0.0, 0.0, 0, True)
    assert sparsity(all_of(np.array([0, 0, 0]), np.array([], np.uint32), 5)) == (0.0, 0.0, 0, True)


def test_one_thread_has_no_collisions():
    met = watch(all_of(*touches(2000, 50, 0.1), 50), threads=1, budget_s=0.01)
    assert met.watched >= 2000
    assert met.updates == met.watched * 5
    assert (met.collision_rate, met.staleness_mean, met.staleness_max, met.lost_updates) == (0, 0, 0, 0)


def test_disjoint_threads_do_not_collide():
    rows = 20_000
    disjoint = all_of(np.arange(rows + 1), np.arange(rows, dtype=np.uint32), rows)
    met = watch(disjoint, threads=2, budget_s=0.05)
    assert (met.collision_rate, met.lost_updates) == (0, 0)
    assert met.updates == met.watched  # a parameter each, and none lost or counted twice


def test_shared_parameters_collide():
    rows, each = 20_000, 50  # the window between reading and writing is long: they meet even where they take turns
    indices = np.tile(np.arange(each, dtype=np.uint32), rows)
    everybody = all_of(np.arange(0, rows * each + 1, each), indices, each)
    met = watch(everybody, threads=2, budget_s=0.3)
    assert met.watched % rows == 0
    assert met.updates == met.watched * each
    assert 0 < met.collision_rate <= 1
    assert met.staleness_max >= 1
    assert 0 <= met.lost_updates < met.updates
    assert met.collision_rate <= met.staleness_mean


def test_hot_parameters_are_not_counted_as_collisions():
    rows = 2000
    indices = np.stack([np.zeros(rows), np.arange(1, rows + 1)], axis=1).astype(np.uint32).ravel()
    indptr = np.arange(0, 2 * rows + 1, 2)
    settings = {"threads": 2, "model": "hot", "hot": np.array([0])}
    report = measure(indptr, indices, rows + 1, **settings)
    assert report.delta == report.rho == 1.0
    assert report.collision_rate == 0.0
    assert report.updates == report.watched


@pytest.mark.parametrize(("model", "why"), [("replica", "a model of its own"), ("deterministic", "has no conflicts")])
def test_conflict_free_models_are_not_watched(model, why):
    report = measure(*touches(100, 50, 0.1), 50, threads=2, model=model)
    assert report.watched == report.updates == 0
    assert why in str(report)


def test_large_data_is_sampled_and_the_report_says_so(monkeypatch):
    monkeypatch.setattr(reports, "SPARSITY_NONZEROS", 2000)
    monkeypatch.setattr(reports, "WATCHED_NONZEROS", 2000)
    report = measure(*touches(3000, 100, 0.05), 100, threads=1)
    assert report.examples == 3000
    assert 256 <= report.looked_at < 1000
    assert f"(in a sample of {report.looked_at:,} examples)" in str(report)
    assert report.watched % report.looked_at == 0


def test_speeds_are_of_the_fastest_epoch():
    epochs = [Epoch(0, 0.1, 1.0, 300, 2.0, (100, 200)), Epoch(1, 0.1, 1.0, 300, 1.0, (120, 180))]
    report = measure(*touches(300, 50, 0.1), 50, threads=2, epochs=epochs, bytes_per_example=1e6)
    assert report.examples_per_s == (120.0, 180.0)
    assert report.bytes_per_s == 3e8
    assert report.bandwidth > 0
    assert "= 120 + 180 by thread" in str(report)
    assert "0.3 GB/s" in str(report)


def test_an_index_beyond_the_model_is_refused():
    with pytest.raises(ConfigurationError, match="touches parameter 7, but there are 7"):
        measure(np.array([0, 1]), np.array([7], np.uint32), 7, threads=1)


def step(parameters, example, lr):
    for k in range(len(example.indices)):
        parameters.w[example.indices[k]] += lr


@pytest.mark.thorough
def test_a_kernels_report_uses_the_given_touches():
    x = sparse.random(500, 40, 0.1, format="csr", random_state=0)
    kernel = Kernel(step, {"w": np.zeros(40)}, threads=1)
    with pytest.raises(ConfigurationError, match="touches="):
        _ = kernel.report_
    report = kernel.fit(x, touches=x).report_
    assert isinstance(report, Report)
    assert (report.examples, report.parameters, report.threads, report.model) == (500, 40, 1, "shared")
    assert (report.rho, report.delta, report.omega) == by_brute_force(x.indptr, x.indices, 40)
    assert report.bytes_per_s > 0
    lines = str(report).splitlines()
    assert all(len(line) <= 120 for line in lines)
    assert any("collisions" in line and "0.000%" in line for line in lines)
