"""What comes to a factorisation after its fit, and weights of ratings, against plain loops and full fits."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.sparse import MatrixFactorization
from plesio.sparse.factorisation.ratings import moments
from sparse.ratings import bits, liked, model, ratings

FLOAT = np.float32


def split(user: int = 7) -> tuple[Any, Any]:
    """Ratings of all others, and of one user."""
    users, items, numbers = ratings(120, 100, 8000)
    theirs = users == user
    return (users[~theirs], items[~theirs], numbers[~theirs]), (users[theirs], items[theirs], numbers[theirs])


def good(epochs: int = 40, **settings: Any) -> MatrixFactorization:
    return model(**{"factors": 8, "epochs": epochs, "regularization": 0.03, "schedule": "linear"} | settings)


def predicted(fitted: MatrixFactorization, user: Any) -> NDArray[np.float32]:
    told: NDArray[np.float32] = fitted.predict([user] * 100, np.arange(100))
    return told


# fold_in


def descended(fitted: MatrixFactorization, items: Any, numbers: Any, weights: Any) -> tuple[Any, float]:
    """A user's factors and bias by gradient descent on the objective in the docstring, in float64."""
    scale, beside = fitted._scale, fitted._items.factors[items].astype(float)
    p, bias = np.zeros(beside.shape[1]), 0.0
    for _ in range(6_000):
        errors = (numbers - fitted.mean_) / scale - fitted._items.biases[items] - bias - beside @ p
        step = 0.3 / weights.sum()
        p += step * (weights * errors @ beside - fitted.regularization * weights.sum() * p)
        bias += step * fitted.biases * (weights @ errors - fitted.regularization * weights.sum() * bias)
    return p * np.sqrt(scale), bias * scale


@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("side", ["users", "items"])
def test_a_folded_row_is_the_minimum_of_the_models_objective(side: str, biases: bool) -> None:
    others, (users, items, numbers) = split()
    weights = np.random.default_rng(0).choice([0.5, 1, 4], len(users))
    order = slice(None) if side == "users" else slice(None, None, -1)
    first, second = [*others[:2]][order]
    fitted = good(10, biases=biases).fit(first, second, others[2])
    ids = [users + 500, items][order]
    if side == "users":
        factors, bias = descended(fitted, items, numbers, weights)
    else:
        turned = copy.deepcopy(fitted)
        turned._users, turned._items = turned._items, turned._users
        factors, bias = descended(turned, items, numbers, weights)
    before = fitted._users.table.copy(), fitted._items.table.copy()
    assert fitted.fold_in(*ids, numbers, side=side, sample_weight=weights) is fitted
    found = (fitted.user_factors_, fitted.user_bias_) if side == "users" else (fitted.item_factors_, fitted.item_bias_)
    assert found[0][-1] == pytest.approx(factors, abs=1e-4)
    assert found[1][-1] == pytest.approx(bias, abs=1e-4)
    for table, old in zip((fitted._users.table, fitted._items.table), before, strict=True):
        assert np.array_equal(table[: len(old)], old)


def test_folding_in_comes_as_near_as_a_full_fit() -> None:
    others, (users, items, numbers) = split()
    early, late = slice(0, 50), slice(50, None)
    folded = good().fit(*others).fold_in(users[early], items[early], numbers[early])
    everything = [np.concatenate([a, b[early]]) for a, b in zip(others, (users, items, numbers), strict=True)]
    full = good().fit(*everything)
    assert np.corrcoef(predicted(folded, 7), predicted(full, 7))[0, 1] > 0.98
    held_out = users[late], items[late], numbers[late]
    assert folded.rmse(*held_out) < 1.1 * full.rmse(*held_out) < 0.5 * np.std(held_out[2])


def test_new_users_and_items_are_known_at_once() -> None:
    others, (_, items, numbers) = split()
    names = np.array([f"user {user}" for user in others[0]])
    fitted = good(5).fit(names, *others[1:])
    fitted.recommend("user 3")  # has sorted what users have
    fitted.fold_in(["ada"] * len(items), items, numbers)
    assert set(fitted.recommend("ada", n=200)[0]) == set(range(100)) - set(items)
    assert len(fitted.recommend("ada", n=200, exclude_seen=False)[0]) == 100
    fitted.fold_in(["ada", "user 3", "user 5"], [100, 100, 101], [6.0, 6.0, 1.0], side="items")
    assert 101 in fitted.recommend("ada", n=200)[0]
    assert 100 not in fitted.recommend("ada", n=200)[0]
    assert fitted.predict("user 9", 100) > fitted.predict("user 9", 101)
    copied = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copied.predict(["ada"] * 102, range(102)), fitted.predict(["ada"] * 102, range(102)))
    copied.partial_fit(["ada", "bea"], [3, 101], [5.0, 5.0])
    assert 3 not in copied.recommend("ada", n=200)[0]
    assert np.isfinite(copied.predict("bea", 101))


def test_a_known_users_row_is_replaced_and_others_stay() -> None:
    others, mine = split()
    fitted, other = good(5).fit(*others), good(5).fit(*others)
    fitted.fold_in([7, 7, 8], [0, 1, 2], [1.0, 2.0, 3.0]).fold_in(*mine)
    other.fold_in(*mine)
    assert np.array_equal(predicted(fitted, 7), predicted(other, 7))
    assert np.array_equal(predicted(fitted, 9), predicted(other, 9))


def test_threads_fold_in_at_once_while_others_recommend() -> None:
    others, (_, items, numbers) = split()
    fitted, alone = good(5).fit(*others), good(5).fit(*others)
    begun, failed = threading.Barrier(4), []

    def work(first: int, last: int) -> None:
        try:
            begun.wait(30)
            for user in range(first, last, 2):
                fitted.fold_in([user] * 5, items[:5], numbers[:5] + user % 3)
                fitted.fold_in([3, 4], [10**6 + user] * 2, [1.0, 2.0], side="items")
            for _ in range(0 if last else 100):
                assert len(fitted.recommend(5, n=3)[0]) == 3
                assert np.isfinite(fitted.predict(np.arange(500), np.zeros(500, int))).all()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=args) for args in ((200, 500), (201, 500), (0, 0), (0, 0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    for user in range(200, 500):
        alone.fold_in([user] * 5, items[:5], numbers[:5] + user % 3)
    for user in range(200, 500):
        assert np.array_equal(predicted(fitted, user), predicted(alone, user))
    assert len(fitted.item_ids_) == 400


@pytest.mark.parametrize("penalty", [0.0, 0.1])
def test_more_factors_than_ratings_have_a_finite_row(penalty: float) -> None:
    others, mine = split()
    fitted = good(5, factors=40, regularization=penalty).fit(*others)
    fitted.fold_in(*(one[:3] for one in mine))
    assert np.abs(predicted(fitted, 7) - fitted.mean_).max() < 10
    if not penalty:
        assert fitted.rmse(*(one[:3] for one in mine)) < 0.01


@pytest.mark.parametrize(
    ("settings", "given", "told"),
    [
        ({}, ([7, 7], [0, 999], [1.0, 2.0]), r"knows no items \[999\], .* rows for users only"),
        ({}, ([7, 7], ["0", "1"], [1.0, 2.0]), "items are str, those learnt are int64"),
        ({}, (["ada"], [0], [1.0]), "users are str, those learnt are int64"),
        ({}, ([7], [0]), "fold_in needs the ratings"),
        ({}, ([7], [0], [np.nan]), "rating 0 is nan"),
        ({}, ([7], [0, 1], [1.0]), "have 1, 2, 1 entries"),
        ({"loss": "bpr"}, ([7], [0]), "under 'bpr' give the new pairs to partial_fit"),
    ],
)
def test_what_cannot_be_folded_in_is_refused(settings: dict[str, Any], given: Any, told: str) -> None:
    others, _ = split()
    pairs = others if not settings else others[:2]
    fitted = good(1, **settings).fit(*pairs)
    before = bits(fitted), len(fitted.user_ids_), len(fitted.item_ids_)
    with pytest.raises(ConfigurationError, match=told):
        fitted.fold_in(*given)
    assert (bits(fitted), len(fitted.user_ids_), len(fitted.item_ids_)) == before
    with pytest.raises(ConfigurationError, match=r"(unknown side 'user'|loss='squared')"):
        fitted.fold_in([7], [0], [1.0], side="user")
    with pytest.raises(ConfigurationError, match="call fit first"):
        good(**settings).fold_in(*given)


def test_a_callback_cannot_change_the_model_and_its_copy_can() -> None:
    others, mine = split()
    copies = []

    def keep(_: object) -> None:
        copies.append(copy.deepcopy(fitted))
        fitted.fold_in(*mine)

    fitted = good(3, callbacks=[keep])
    with pytest.raises(ConfigurationError, match="learning now, in another thread or around this callback"):
        fitted.fit(*others)
    fitted.callbacks = ()
    fitted.fit(*others).fold_in(*mine)
    assert np.isfinite(predicted(copies[0].fold_in(*mine), 7)).all()


# Weights


@pytest.mark.thorough
def test_ratings_of_weight_0_are_not_there() -> None:
    users, items, numbers = ratings()
    there = np.random.default_rng(0).random(1500) < 0.6
    there[users == 9] = False  # nor is a user who has no others
    weighted = model().fit(users, items, numbers, sample_weight=there)
    without = model().fit(users[there], items[there], numbers[there], sample_weight=np.ones(there.sum()))
    assert bits(weighted) == bits(without)
    assert weighted._users.rows(np.array([9])).tolist() == [-1]
    liking = model(loss="bpr").fit(*liked(), sample_weight=np.arange(len(liked()[0])) % 2)
    assert bits(liking) == bits(
        model(loss="bpr").fit(*(one[1::2] for one in liked()), sample_weight=[1] * (len(liked()[0]) // 2))
    )


def test_weights_of_1_give_the_bits_of_none() -> None:
    users, items, numbers = ratings()
    ones = np.ones(1500)
    for settings in ({}, {"deterministic": True}, {"optimizer": "sgd", "lr": 0.02}):
        fitted = model(**settings).fit(users, items, numbers, sample_weight=ones)
        assert np.allclose(
            fitted.predict(users, items), model(**settings).fit(users, items, numbers).predict(users, items), atol=1e-4
        )


def test_a_weight_counts_as_repeating_the_rating() -> None:
    """To first order in a sweep, whose steps are small then; exactly in the moments and where rows are solved for."""
    users, items, numbers = ratings()
    weights = np.random.default_rng(0).integers(1, 4, 1500)
    again = np.repeat(np.arange(1500), weights)
    assert moments(numbers.astype(FLOAT), weights.astype(FLOAT)) == pytest.approx(moments(numbers[again].astype(FLOAT)))
    for settings in ({"lr": 0.01}, {"lr": 0.002, "optimizer": "sgd"}):
        weighted = model(epochs=40, **settings).fit(users, items, numbers, sample_weight=weights)
        repeated = model(epochs=40, **settings).fit(users[again], items[again], numbers[again])
        plain = model(epochs=40, **settings).fit(users, items, numbers)
        near, far = (
            np.abs(weighted.predict(users, items) - other.predict(users, items)).mean() for other in (repeated, plain)
        )
        assert near < 0.2 * far
        assert weighted.history_[-1].loss == pytest.approx(repeated.history_[-1].loss, rel=0.02)
    start = slice(0, 60)
    others = users > 5
    fitted = model().fit(users[others], items[others], numbers[others])
    mine = np.flatnonzero(~others)[start]
    twice = copy.deepcopy(fitted)
    fitted.fold_in(users[mine], items[mine], numbers[mine], sample_weight=weights[mine])
    twice.fold_in(*(one[np.repeat(mine, weights[mine])] for one in (users, items, numbers)))
    assert fitted.user_factors_ == pytest.approx(twice.user_factors_, abs=1e-6)


def test_partial_fit_takes_weights() -> None:
    users, items, numbers = ratings()
    weights = np.random.default_rng(0).random(1500)
    first = model(epochs=1).fit(users, items, numbers, sample_weight=weights)
    assert bits(model().partial_fit(users, items, numbers, sample_weight=weights)) == bits(first)
    few = copy.deepcopy(first).partial_fit([3, 4], [5, 6], [9.0, -9.0], sample_weight=[1.0, 0.0])
    assert few.predict(3, 5) > first.predict(3, 5)
    assert few.predict(4, 6) == first.predict(4, 6)


@pytest.mark.parametrize(
    ("weights", "told"),
    [
        ([1.0, -0.5], "weights are -0.5 to 1; allowed are 0"),
        ([0.0, 0.0], "not 0 for all"),
        ([1.0, np.nan], "weight 1 is nan"),
        ([1e300, 1.0], "weight 0 is 1e[+]300"),
        ([1.0], "sample_weight has 1 entries for 2 ratings"),
        (1.0, "weights have shape"),
        (["heavy", "light"], "weights have shape"),
    ],
)
def test_invalid_weights_are_refused_everywhere(weights: Any, told: str) -> None:
    users, items, numbers = ratings()
    fitted = model(epochs=1).fit(users, items, numbers)
    before = bits(fitted)
    for call in (model().fit, fitted.partial_fit, fitted.fold_in):
        with pytest.raises(ConfigurationError, match=told):
            call([0, 1], [0, 1], [1.0, 2.0], sample_weight=weights)
    assert bits(fitted) == before


def test_a_weighted_fit_goes_on_from_its_checkpoint_alone(tmp_path: Any) -> None:
    users, items, numbers = ratings()
    weights = np.random.default_rng(0).random(1500)
    model(epochs=2, checkpoint=tmp_path).fit(users, items, numbers, sample_weight=weights)
    resumed = model(epochs=3, resume=tmp_path).fit(users, items, numbers, sample_weight=weights)
    assert bits(resumed) == bits(model(epochs=3).fit(users, items, numbers, sample_weight=weights))
    with pytest.raises(ValueError, match="of another fit: data="):
        model(epochs=3, resume=tmp_path).fit(users, items, numbers)
