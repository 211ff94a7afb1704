"""Linear models: against scikit-learn's own, against a plain loop, and for any number of threads."""

import math
import pickle

import numpy as np
import pytest
import scipy.sparse as sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from plesio.errors import CheckpointError, ConfigurationError
from plesio.sparse.csr import as_rows
from plesio.sparse.epochs import DivergedError
from plesio.sparse.linear import HogwildClassifier, HogwildRegressor
from plesio.sparse.linear.deals import deal
from plesio.sparse.linear.kernels import Data, Rules, sweep, sweep_with_memory
from plesio.sparse.linear.losses import CLASSIFICATION, LOG, slope_and_loss
from plesio.sparse.linear.plans import Learner, Penalty, make_plan
from plesio.sparse.rates import rate
from plesio.sparse.stored_rows import open_rows, save_rows
from sparse.problems import problem, sparse_classes

UNLIKE = "sample_weight is not equivalent to removing or repeating samples, as for scikit-learn's SGDClassifier"
EXPECTED = {f"check_sample_weight_equivalence_on_{kind}_data": UNLIKE for kind in ("dense", "sparse")}


@pytest.mark.few(22)
@parametrize_with_checks(
    [HogwildClassifier(threads=2, max_iter=20), HogwildRegressor(threads=1, max_iter=20)],
    expected_failed_checks=lambda _: EXPECTED,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimators_pass_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        HogwildClassifier(threads=1, max_iter=50),
        HogwildClassifier(threads=2, loss="log_loss", deterministic=True, model="shared", max_iter=20),
        HogwildRegressor(threads=2, max_iter=50),
    ],
    expected_failed_checks=lambda _: EXPECTED,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_estimators_pass_scikit_learns_checks_in_every_way(estimator, check):
    check(estimator)


SAME = {"alpha": 0.01, "l1_ratio": 0.3, "max_iter": 3, "tol": None, "shuffle": False, "eta0": 0.05}


@pytest.mark.few(11)
@pytest.mark.parametrize("penalty", ["l2", "l1", "elasticnet", None])
@pytest.mark.parametrize("loss", CLASSIFICATION)
def test_classifier_steps_match_scikit_learn(loss, penalty):
    """Rows in order, one a chunk: the same algorithm, but for float32 rounding."""
    X, margins = problem()
    settings = SAME | {"loss": loss, "penalty": penalty, "learning_rate": "invscaling"}
    ours = HogwildClassifier(threads=1, **settings).fit(X, margins > 0)
    theirs = SGDClassifier(**settings).fit(sparse.csr_matrix(X.astype(np.float64)), margins > 0)
    # After each epoch ours collect L1 from the features of earlier rows too, theirs when a row next touches them.
    near = 2e-5 if penalty in ("l2", None) else 5e-4
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=near)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=near)
    assert ours.t_ == theirs.t_


@pytest.mark.parametrize(
    "settings", [{"loss": "huber"}, {"average": True}, {"average": 50}, {"loss": "huber", "learning_rate": "optimal"}]
)
def test_regressor_steps_match_scikit_learn(settings):
    X, margins = problem()
    settings = SAME | {"penalty": "l2", "learning_rate": "constant"} | settings
    weight = np.random.default_rng(1).random(len(margins))
    ours = HogwildRegressor(threads=1, **settings).fit(X.toarray(), margins, weight)  # dense: the intercept's full rate
    theirs = SGDRegressor(**settings).fit(X.toarray().astype(np.float64), margins, sample_weight=weight)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=2e-5)


def objective(model, X, y, alpha, l1_ratio=0.0):
    z = np.where(y, 1.0, -1.0) * model.decision_function(X)
    w = model.coef_.ravel().astype(float)
    return np.logaddexp(0, -z).mean() + alpha * ((1 - l1_ratio) * w @ w / 2 + l1_ratio * np.abs(w).sum())


@pytest.mark.parametrize("way", [{"threads": 1}, {"threads": 2, "model": "shared"}, {"threads": 2, "model": "replica"}])
@pytest.mark.parametrize("l1_ratio", [0.0, 0.5])
def test_reaches_the_optimum_of_the_objective(way, l1_ratio):
    X, y = load_breast_cancer(return_X_y=True)
    X, y, alpha = (X - X.mean(0)) / X.std(0), y == 1, 0.02
    best = LogisticRegression(C=1 / (alpha * len(y)), l1_ratio=l1_ratio, solver="saga", max_iter=5000, tol=1e-6).fit(
        X, y
    )
    ours = HogwildClassifier(
        "log_loss", penalty="elasticnet", alpha=alpha, l1_ratio=l1_ratio, max_iter=150, tol=None, random_state=0, **way
    ).fit(X, y)
    least = objective(best, X, y, alpha, l1_ratio)
    assert least - 1e-4 < objective(ours, X, y, alpha, l1_ratio) < 1.01 * least


def plain_loop(X, y, turns, plan, weights, rules, paid=None):
    """What the kernels say they do, row by row, in Python."""
    intercept, f = 0.0, np.float32
    for turn in range(turns):
        chunk = plan.order[turn]
        scale, owed, before = plan.scales[turn], plan.truncations[turn], intercept
        for row in range(plan.bounds[chunk], plan.bounds[chunk + 1]):
            at = slice(X.indptr[row], X.indptr[row + 1])
            columns, values = X.indices[at], X.values[at]
            sums = [f(0)] * 4
            for i, (j, value) in enumerate(zip(columns, values, strict=True)):
                lane = i % 4 if i < len(values) // 4 * 4 else 0
                sums[lane] = sums[lane] + weights[j] * value
            margin = scale * float((sums[0] + sums[1]) + (sums[2] + sums[3])) + intercept
            e = math.exp(-margin * y[row])
            step = plan.rates[turn] * y[row] * (e / (1 + e))
            scale *= plan.shrinks[turn]
            owed += plan.rates[turn] * rules.truncation
            if paid is None and abs(step / plan.rates[turn]) <= rules.flat:
                continue
            intercept += rules.intercept_rate * step
            for j, value in zip(columns, values, strict=True):
                weights[j] += f(step / scale) * value
                if paid is not None:
                    debt = owed - paid[j] if weights[j] < 0 else owed + paid[j]
                    was = weights[j]
                    rest = max(0.0, was - debt / scale) if was > 0 else min(0.0, was + debt / scale)
                    weights[j] = f(rest)
                    paid[j] += f(scale * (weights[j] - was))
        intercept = before + (intercept - before)
    return intercept


@pytest.mark.parametrize("l1", [False, True])
def test_one_thread_equals_a_plain_loop_bit_for_bit(l1):
    X, margins = problem(rows=500, features=30, share=0.3)
    rows, y = as_rows(X), np.where(margins > 0, 1.0, -1.0)
    learner = Learner(np.zeros(30, np.float32), np.zeros(1), rate("optimal", lr=1.0, alpha=0.01))
    if l1:
        learner.paid = np.zeros(30, np.float32)
    cut = deal(np.arange(500, dtype=np.uint32))
    penalty = Penalty.named("elasticnet", 0.01, 0.3 if l1 else 0.0)
    plan, (whole,) = make_plan(cut.order(7, 0, True), cut.bounds, learner, penalty, epoch=0, total=500)
    data = Data(rows.indptr, rows.indices, rows.values, y, np.ones(500), cut.rows)
    rules = Rules(LOG, 0.0, 0.01, penalty.l1, 0.01, False, False)
    where = np.zeros(1, np.int64), whole.end, 1
    if l1:
        assert sweep_with_memory(data, plan, learner.model, rules, *where) == 500
    else:
        assert sweep(data, plan, learner.model, None, rules, *where) == 500
    weights, paid = np.zeros(30, np.float32), np.zeros(30, np.float32)
    intercept = plain_loop(rows, y, whole.end, plan, weights, rules, paid if l1 else None)
    assert weights.tobytes() == learner.weights.tobytes()
    assert intercept == learner.intercept[0]
    assert not l1 or paid.tobytes() == learner.paid.tobytes()


@pytest.mark.parametrize("name", CLASSIFICATION)
def test_slopes_are_the_derivatives_of_the_losses(name):
    def value(margin):
        _, loss, factor = slope_and_loss.py_func(CLASSIFICATION[name], margin, -1.0, 0.1)
        return loss + math.log(factor)

    for margin in (-40.0, -1.7, -0.3, 0.4, 0.9, 1.5, 3.0, 40.0):
        slope, *_ = slope_and_loss.py_func(CLASSIFICATION[name], margin, -1.0, 0.1)
        assert slope == pytest.approx((value(margin + 1e-6) - value(margin - 1e-6)) / 2e-6, abs=1e-4)


@pytest.mark.few(2)
@pytest.mark.filterwarnings("ignore:threads=")  # more than the cores
@pytest.mark.parametrize("settings", [{"model": "shared"}, {"model": "replica"}, {"penalty": "l1", "average": True}])
def test_deterministic_bits_are_independent_of_threads(settings, monkeypatch):
    monkeypatch.setattr("plesio.sparse.linear.layouts._WORTH_MEETING", 100)
    X, y = sparse_classes()
    settings = {"loss": "log_loss", "max_iter": 3, "tol": None, "random_state": 5, "deterministic": True} | settings
    models = [HogwildClassifier(threads=threads, **settings).fit(X, y) for threads in (1, 2, 3, 4)]
    assert len({model.coef_.tobytes() + model.intercept_.tobytes() for model in models}) == 1
    assert models[0].score(X, y) > 0.8


@pytest.mark.filterwarnings("ignore:threads=")
def test_multiclass_bits_are_independent_of_threads():
    X, y = load_digits(return_X_y=True)
    settings = {"max_iter": 5, "tol": None, "random_state": 1, "alpha": 0.01}
    models = [HogwildClassifier(threads=threads, **settings).fit(X / 16, y) for threads in (1, 2, 3, 4)]
    assert len({model.coef_.tobytes() for model in models}) == 1
    assert models[0].score(X / 16, y) > 0.93
    assert sum(models[1].history_[0].examples_by_thread) == 10 * len(y)


def test_verbose_says_when_colouring_cannot_run_in_parallel(capsys):
    X, margins = problem(rows=300, share=0.9)
    HogwildClassifier(max_iter=1, tol=None, threads=1, deterministic=True, model="shared", verbose=1).fit(
        X, margins > 0
    )
    assert "one by one" in capsys.readouterr().out


@pytest.mark.few(1)
@pytest.mark.parametrize("model", ["shared", "replica", "hot", "auto"])
def test_two_threads_learn_as_much_as_one(model):
    X, y = sparse_classes(rows=20_000, features=2_000, nonzeros=20)
    settings = {"loss": "log_loss", "max_iter": 8, "tol": None, "random_state": 0}
    alone = HogwildClassifier(threads=1, **settings).fit(X[:15_000], y[:15_000])
    both = HogwildClassifier(threads=2, model=model, **settings).fit(X[:15_000], y[:15_000])
    assert sum(both.history_[-1].examples_by_thread) == 15_000
    assert both.score(X[15_000:], y[15_000:]) > alone.score(X[15_000:], y[15_000:]) - 0.02


def test_works_in_pipelines_grid_search_clone_and_pickle():
    texts = ["the cat sat", "a dog barked", "cats purr at night", "dogs fetch and bark"] * 10
    labels = ["cat", "dog", "cat", "dog"] * 10
    pipe = make_pipeline(
        HashingVectorizer(n_features=2**12, analyzer="char_wb", ngram_range=(2, 3)),
        HogwildClassifier("log_loss", max_iter=30, tol=None, random_state=0, threads=2),
    )
    search = GridSearchCV(pipe, {"hogwildclassifier__alpha": [1e-4, 1e-3]}, cv=2).fit(texts, labels)
    assert search.best_score_ == 1.0
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    np.testing.assert_array_equal(again.predict_proba(["my cat"]), search.predict_proba(["my cat"]))
    assert again.predict(["my cat"]) == ["cat"]
    assert not hasattr(clone(again)[-1], "coef_")


def test_partial_fit_continues_from_a_pickle_bit_for_bit():
    X, margins = problem(rows=400)
    y = margins > 0
    settings = {"loss": "log_loss", "penalty": "elasticnet", "average": True, "random_state": 3, "threads": 1}
    one, two = HogwildClassifier(**settings), HogwildClassifier(**settings)
    for part in (slice(0, 100), slice(100, 300), slice(300, 400)):
        one.partial_fit(X[part], y[part], classes=[False, True])
        two = pickle.loads(pickle.dumps(two)).partial_fit(X[part], y[part], classes=[False, True])
    assert one.t_ == 401
    assert one.coef_.tobytes() == two.coef_.tobytes()
    assert one.score(X, y) > 0.8


TINY = {"learning_rate": "constant", "eta0": 1e-9, "random_state": 0, "threads": 1}


@pytest.mark.parametrize("count", [2, 3])
def test_partial_fit_begins_at_what_coef_and_intercept_are_set_to(count):
    X, margins = problem(rows=100)
    y = np.digitize(margins, [0] if count == 2 else [-1, 1])
    learners = 1 if count == 2 else count
    coef, intercept = np.full((learners, X.shape[1]), 5.0), np.full(learners, 2.0)
    fresh = HogwildClassifier("log_loss", **TINY)
    fresh.classes_, fresh.coef_, fresh.intercept_ = np.arange(count), coef, intercept  # before any call, as clients do
    for model in (
        fresh,
        HogwildClassifier("log_loss", **TINY).fit(X, y),
        HogwildClassifier(average=True, **TINY).fit(X, y),
    ):
        for model_ in (model, pickle.loads(pickle.dumps(model))):
            model_.coef_, model_.intercept_ = coef, intercept
            model_.partial_fit(X, y)
            assert model_.coef_ == pytest.approx(5, abs=1e-4)
            assert model_.intercept_ == pytest.approx(2, abs=1e-4)
            model_.coef_[0, 0] = 7  # in place
            assert model_.partial_fit(X, y).coef_[0, 0] == pytest.approx(7, abs=1e-4)
    assert (coef == 5).all()  # a mean of several sites stays theirs
    fresh.coef_ = coef[:, 1:]
    with pytest.raises(ConfigurationError, match=r"coef_ has shape .*; allowed: finite numbers, \("):
        fresh.partial_fit(X, y)


def test_partial_fit_goes_by_the_settings_as_they_are_now():
    X, margins = problem(rows=200, share=1.0)
    y, settings = margins > 0, SAME | {"loss": "log_loss", "learning_rate": "invscaling"}
    ours, theirs = HogwildClassifier(threads=1, **settings), SGDClassifier(**settings)
    changes = [{"eta0": 0.5}, {"power_t": 0.1}, {"learning_rate": "constant"}, {"penalty": "l1"}, {"loss": "hinge"}]
    for row, change in enumerate([{}, *changes, {"alpha": 0.1}, {"penalty": "elasticnet", "l1_ratio": 0.5}]):
        x, label = X[row : row + 1], y[row : row + 1]
        ours.set_params(**change).partial_fit(x, label, classes=[False, True])
        theirs.set_params(**change).partial_fit(sparse.csr_matrix(x.astype(np.float64)), label, classes=[False, True])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
    assert ours.t_ == theirs.t_
    assert ours.set_params(average=True).partial_fit(X, y).coef_.shape == theirs.coef_.shape
    with pytest.raises(ConfigurationError, match="penalty"):
        ours.set_params(penalty="l3").partial_fit(X, y)
    linear = HogwildClassifier(learning_rate="linear", eta0=0.1, threads=1).partial_fit(X, y, classes=[False, True])
    assert linear.partial_fit(X, y).history_[0].lr == 0.1


def test_warm_start_begins_where_the_last_fit_ended():
    X, margins = problem()
    model = HogwildClassifier("log_loss", max_iter=5, tol=None, warm_start=True, random_state=0, threads=1)
    first = model.fit(X, margins > 0).history_[0].loss
    assert model.fit(X, margins > 0).history_[0].loss < first


def test_a_resumed_fit_has_the_same_bits(tmp_path):
    X, margins = problem(rows=400)
    settings = {"penalty": "elasticnet", "average": True, "max_iter": 6, "tol": None, "threads": 1}
    whole = HogwildClassifier(random_state=3, **settings).fit(X, margins > 0)
    HogwildClassifier(random_state=3, checkpoint=tmp_path, callbacks=[lambda epoch: epoch.number == 2], **settings).fit(
        X, margins > 0
    )
    resumed = HogwildClassifier(resume=tmp_path, **settings).fit(X, margins > 0)
    assert [epoch.number for epoch in resumed.history_] == list(range(6))
    assert resumed.coef_.tobytes() == whole.coef_.tobytes()
    with pytest.raises(CheckpointError, match=r"alpha=0.0001 \(now 0.5\)"):
        HogwildClassifier(resume=tmp_path, **settings | {"alpha": 0.5}).fit(X, margins > 0)
    settings |= {"learning_rate": "linear", "eta0": 0.1}
    HogwildClassifier(checkpoint=tmp_path, **settings).fit(X, margins > 0)
    with pytest.raises(CheckpointError, match=r"max_iter=6 \(now 9\)"):
        HogwildClassifier(resume=tmp_path, **settings | {"max_iter": 9}).fit(X, margins > 0)


def test_fit_and_score_work_on_memory_mapped_rows(tmp_path):
    X, y = sparse_classes(features=3_000)
    save_rows(tmp_path / "rows", X, y)
    rows, labels = open_rows(tmp_path / "rows")
    model = HogwildClassifier(max_iter=10, tol=None, random_state=0, threads=2).fit(rows, labels)
    assert model.score(X, y) == model.score(rows, labels) > 0.95


def test_early_stopping_holds_out_the_same_rows_of_a_folder(tmp_path):
    X, y = sparse_classes(features=3_000)
    save_rows(tmp_path / "rows", X, y)
    settings = {"max_iter": 3, "tol": None, "random_state": 0, "threads": 1, "shuffle": False, "early_stopping": True}
    mapped, read = (HogwildClassifier(**settings).fit(*data) for data in (open_rows(tmp_path / "rows"), (X, y)))
    assert mapped.coef_.tobytes() == read.coef_.tobytes()
    assert [epoch.score for epoch in mapped.history_] == [epoch.score for epoch in read.history_]
    assert mapped.history_[0].examples == 5400


def test_early_stopping_or_tolerance_ends_a_fit():
    X, y = load_iris(return_X_y=True)
    stopped = HogwildClassifier("log_loss", early_stopping=True, random_state=0, alpha=0.01).fit(X, y)
    assert stopped.n_iter_ < 100
    assert 0.5 < stopped.history_[-1].score <= 1
    settled = HogwildClassifier("log_loss", learning_rate="adaptive", eta0=0.1, random_state=0, alpha=0.01).fit(X, y)
    assert settled.n_iter_ < 1000
    assert settled.history_[-1].lr < 1e-5
    with pytest.warns(ConvergenceWarning, match="max_iter=2 epochs"):
        HogwildClassifier(max_iter=2).fit(X, y)


def test_sorted_and_weighted_classes_are_learnt():
    X, margins = problem(rows=4000)
    order = np.argsort(margins)
    model = HogwildClassifier("log_loss", max_iter=5, tol=None, random_state=0).fit(X[order], margins[order] > 0)
    assert model.score(X, margins > 0) > 0.9
    heavy = HogwildClassifier("log_loss", max_iter=5, tol=None, random_state=0, class_weight={0: 1, 1: 20})
    assert heavy.fit(X, margins > 0).predict(X).mean() > 1.1 * model.predict(X).mean()
    rare = margins > np.quantile(margins, 0.95)
    balanced = clone(heavy).set_params(class_weight="balanced").fit(X, rare)
    assert balanced.predict(X)[rare].mean() > 0.9


@pytest.mark.parametrize("loss", ["log_loss", "modified_huber"])
def test_probabilities_match_scikit_learn(loss):
    X, y = load_iris(return_X_y=True)
    ours = HogwildClassifier(loss, max_iter=20, tol=None, random_state=0).fit(X, y)
    theirs = SGDClassifier(loss=loss, max_iter=1, tol=None).fit(X, y)
    theirs.coef_, theirs.intercept_ = ours.coef_.astype(float), ours.intercept_
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=1e-5)
    assert not hasattr(HogwildClassifier("hinge"), "predict_proba")


def test_to_torch_gives_the_same_margins():
    torch = pytest.importorskip("torch")
    X, y = load_iris(return_X_y=True)
    model = HogwildClassifier(max_iter=5, tol=None, random_state=0, penalty="l1").fit(X, y).sparsify()
    module = model.to_torch()
    with torch.no_grad():
        margins = module(torch.from_numpy(X.astype(np.float32))).numpy()
    np.testing.assert_allclose(margins, model.decision_function(X), rtol=1e-3, atol=1e-3)


def test_the_report_describes_the_fit_and_survives_pickling():
    X, y = sparse_classes()
    model = HogwildClassifier(max_iter=2, tol=None, threads=2, model="shared", random_state=0).fit(X, y)
    assert (model.report_.threads, model.report_.examples, model.report_.omega) == (2, 6000, 4)
    copy = pickle.loads(pickle.dumps(model))
    assert copy.report_ == model.report_


BAD = {
    "loss": "log",
    "penalty": "l3",
    "alpha": -1.0,
    "l1_ratio": 1.5,
    "learning_rate": "cosine",
    "model": "both",
    "threads": 0,
    "max_iter": 0,
    "validation_fraction": 1.5,
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_settings_are_named(name):
    X, margins = problem()
    with pytest.raises(ConfigurationError, match=str(BAD[name])):
        HogwildClassifier(**{name: BAD[name]}).fit(X, margins > 0)


def test_bad_data_and_divergence_are_refused():
    X, margins = problem()
    with pytest.raises(ValueError, match="one class"):
        HogwildClassifier().fit(X, np.zeros(len(margins)))
    with pytest.raises(ValueError, match="NaN"):
        HogwildRegressor().fit(X, np.full(len(margins), np.nan))
    with pytest.raises(ConfigurationError, match="works without L1"):
        HogwildClassifier(model="hot", penalty="l1").fit(X, margins > 0)
    regressor = HogwildRegressor(eta0=1e6, learning_rate="constant", threads=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"at learning rate 1e\+06: .*stopped\. Try a smaller eta0"):
        losses = [epoch.loss for epoch in regressor.fit(X * 100, margins).history_]
    assert losses[-1] >= losses[-2], "it is not waited for once it rises"
    assert losses[:-1] == sorted(losses[:-1], reverse=True)
    with pytest.raises(DivergedError, match=r"after epoch 0 .* learning rate 1e\+30"):
        regressor.set_params(eta0=1e30).fit(X * 100, margins)


def test_empty_rows_train_only_the_intercept():
    X = sparse.csr_array((50, 8), dtype=np.float32)
    model = HogwildRegressor(eta0=0.1, max_iter=300, tol=None, learning_rate="constant", threads=1).fit(
        X.toarray(), [2.0] * 50
    )
    assert model.intercept_ == pytest.approx([2.0], abs=1e-3)
    assert not model.coef_.any()


@pytest.mark.slow  # Kernel's thousand fits go through the same pool
def test_a_thousand_fits_visit_every_row():
    X, margins = problem(rows=64)
    model = HogwildClassifier(max_iter=1, tol=None, threads=2, model="shared", random_state=0)
    assert all(sum(model.fit(X, margins > 0).history_[0].examples_by_thread) == 64 for _ in range(1000))


def test_a_falling_but_diverged_loss_warns_at_the_end():
    """scikit-learn's default schedule, too, starts far too fast for this loss."""
    X, margins = problem()
    model = HogwildClassifier("squared_hinge", alpha=1e-5, max_iter=5, tol=None, threads=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match=r"after epoch 4 .*: the model diverged\. Try a larger alpha"):
        assert model.fit(X, margins > 0).n_iter_ == 5
    losses = [epoch.loss for epoch in model.history_]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"alpha": None}, "alpha=None is not allowed"),
        ({"max_iter": 2.5}, "max_iter=2.5 is not allowed; allowed is a whole number from 1"),
        ({"l1_ratio": None}, "l1_ratio=None is not allowed; allowed is 0 to 1"),
    ],
)
def test_non_numeric_settings_are_refused(settings, words):
    X, margins = problem(rows=20)
    with pytest.raises(ConfigurationError, match=words):
        HogwildClassifier(**settings).fit(X, margins > 0)


def test_numpy_integers_are_accepted():
    X, margins = problem(rows=20)
    assert HogwildClassifier(threads=np.int64(1), max_iter=np.int64(2), tol=None).fit(X, margins > 0).n_iter_ == 2


def test_non_finite_weights_are_named_by_row():
    X, margins = problem(rows=20)
    weight = np.ones(20)
    weight[3] = np.nan
    with pytest.raises(ConfigurationError, match="sample_weight holds nan at row 3"):
        HogwildRegressor().fit(X, margins, sample_weight=weight)


def test_predict_checks_column_indices():
    X, margins = problem(rows=20)
    model = HogwildRegressor(max_iter=2, tol=None).fit(X, margins)
    other = X.copy()
    other.indices[5] = 3_000_000
    with pytest.raises(ConfigurationError, match=rf"to 3000000 in a matrix of {X.shape[1]} columns"):
        model.predict(other)


def test_resume_refuses_other_data_or_settings(tmp_path):
    X, margins = problem(rows=50)
    HogwildClassifier(max_iter=2, tol=None, checkpoint=tmp_path).fit(X, margins > 0)
    for labels in (margins <= 0, np.arange(50) % 3):
        with pytest.raises(CheckpointError, match="of another fit: data="):
            HogwildClassifier(max_iter=3, tol=None, resume=tmp_path).fit(X, labels)
    with pytest.raises(CheckpointError, match=r"eta0=0\.01 \(now 0\.5\)"):
        HogwildClassifier(max_iter=3, tol=None, eta0=0.5, resume=tmp_path).fit(X, margins > 0)
