"""How a linear model is trained: the contest of thread counts, and renumbered features."""

import numpy as np
import pytest

from plesio.sparse import epochs
from plesio.sparse.choosing import Contest
from plesio.sparse.csr import as_rows
from plesio.sparse.linear import HogwildClassifier
from plesio.sparse.linear.deals import deal
from plesio.sparse.linear.kernels import Data, Rules
from plesio.sparse.linear.layouts import Replicas, Shared
from plesio.sparse.linear.losses import LOG
from plesio.sparse.linear.plans import Learner, Penalty, make_plan
from plesio.sparse.linear.renumbering import bring_home, renumber
from plesio.sparse.rates import rate
from sparse.problems import problem, sparse_classes


def test_coefficients_return_to_the_original_feature_order(monkeypatch):
    monkeypatch.setattr("plesio.sparse.linear.ways.last_level_cache_bytes", lambda: 1000)
    X, y = sparse_classes(features=3_000)
    settings = {"max_iter": 4, "tol": None, "random_state": 0, "threads": 1}
    renumbered = HogwildClassifier(**settings).fit(X, y)
    both = HogwildClassifier(**settings | {"threads": 2, "model": "shared"}).fit(X, y)
    monkeypatch.undo()
    plain = HogwildClassifier(**settings).fit(X, y)
    assert renumbered.coef_.tobytes() == plain.coef_.tobytes()
    assert np.corrcoef(both.coef_, plain.coef_)[0, 1] > 0.8


@pytest.mark.parametrize("threads", [1, 4])
def test_renumber_gives_each_feature_one_number(threads):
    rows = as_rows(sparse_classes(rows=30_000, features=5_000)[0])
    renumbered, features = renumber(rows, threads)
    np.testing.assert_array_equal(features[renumbered.indices], rows.indices)
    known = features[features < rows.features]
    assert len(np.unique(known)) == len(known) == len(np.unique(rows.indices))
    weights, home = np.arange(len(features), dtype=np.float32), np.zeros(rows.features, np.float32)
    bring_home(home, features, weights, threads)
    np.testing.assert_array_equal(home[rows.indices], weights[renumbered.indices])


@pytest.mark.parametrize("speed_up", [0.8, 1.6])
def test_the_contest_picks_the_faster_thread_count(speed_up, monkeypatch):
    now = 0.0
    monkeypatch.setattr("plesio.sparse.choosing.time.perf_counter", lambda: now)
    contest, order, by_all = Contest(np.full(203, 1e4), open=True), np.arange(203, dtype=np.uint32), []
    for _ in range(4):
        turns = []
        for part, all_threads in contest.parts(order):
            now += len(part) / (speed_up if all_threads else 1.0)
            turns += part.tolist()
            by_all.append(all_threads)
        assert turns == order.tolist()
    faster = speed_up > 1
    assert by_all == [True, False] * 2 + [faster] * 2
    assert (contest.open, contest.won) == (False, faster)


def test_loading_time_does_not_decide_the_contest(monkeypatch):
    """However long the first part takes, the second epoch is compared too."""
    now = 0.0
    monkeypatch.setattr("plesio.sparse.choosing.time.perf_counter", lambda: now)
    contest, order = Contest(np.full(100, 1e6), open=True), np.arange(100, dtype=np.uint32)
    for loading_s in (1e6, 0.0):
        for part, all_threads in contest.parts(order):
            now += len(part) / (1.8 if all_threads else 1.0) + (loading_s if all_threads else 0.0)
    assert (contest.open, contest.won) == (False, True)


def test_progress_counts_one_per_epoch(monkeypatch):
    moved = []
    monkeypatch.setattr("plesio.sparse.linear.ways._WORTH_THREADS", 0)
    X, margins = problem()
    token = epochs._move.set(moved.append)
    try:
        HogwildClassifier(max_iter=3, tol=None, threads=2, random_state=0).fit(X, margins > 0)
    finally:
        epochs._move.reset(token)
    assert sum(moved) == pytest.approx(3)


@pytest.mark.parametrize("moved_by", ["nothing", "one thread", "a fold"])
def test_replicas_start_from_the_current_model(moved_by):
    """Four replicas with a quarter of the turns each; the model becomes their mean."""
    X, y = sparse_classes(rows=400, features=300)
    rows, y = as_rows(X), np.where(y, 1.0, -1.0)
    cut = deal(np.arange(400, dtype=np.uint32))
    learner = Learner(np.zeros(300, np.float32), np.zeros(1), rate("constant", lr=0.5))
    rules, half = Rules(LOG, 0.0, 0.01, 0.0, 0.0, False, False), len(cut.bounds) // 2
    data = Data(rows.indptr, rows.indices, rows.values, y, np.ones(400), cut.rows)

    def swept(weights, intercept, turns):
        apart = Learner(weights.copy(), intercept.copy(), learner.rate)
        order = np.array(turns, np.uint32)
        plan, _ = make_plan(order, cut.bounds, apart, Penalty(0.0, 0.0), epoch=0, total=400)
        Shared(1)(apart, data, plan, rules, 0, len(order))
        return apart.weights, apart.intercept

    replicas = Replicas(1, fixed=True)
    turns = np.arange(2 * half, dtype=np.uint32)
    plan, _ = make_plan(turns, cut.bounds, learner, Penalty(0.0, 0.0), epoch=0, total=400)
    for _ in range(3):
        parts = [swept(learner.weights, learner.intercept, turns[first::4]) for first in range(4)]
        replicas(learner, data, plan, rules, 0, len(turns))
        np.testing.assert_allclose(learner.weights, np.mean([weights for weights, _ in parts], axis=0), rtol=1e-5)
        if moved_by == "one thread":
            Shared(1)(learner, data, plan, rules, 0, 5)
        elif moved_by == "a fold":
            learner.scale = 0.5
            learner.fold()
