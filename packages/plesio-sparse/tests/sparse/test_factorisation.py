"""What a factorisation learns and predicts. How it is trained: test_factorisation_training.py."""

from __future__ import annotations

import itertools
import math
import pickle
import uuid
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from plesio.errors import ConfigurationError
from plesio.sparse import MatrixFactorization
from plesio.sparse.factorisation.ratings import Ids, moments, standardise
from sparse.ratings import bits, liked, model, ratings

FLOAT = np.float32


# What is learnt


def test_recovers_a_low_rank_matrix() -> None:
    users, items, numbers = ratings(120, 100, 8000)
    fitted = model(factors=8, epochs=60, regularization=0.03).fit(users[:7000], items[:7000], numbers[:7000])
    held_out = users[7000:], items[7000:], numbers[7000:]
    assert fitted.rmse(*held_out) < 0.25 < 0.9 < np.std(held_out[2])
    assert fitted.score(*held_out) == -fitted.rmse(*held_out)


def test_predictions_are_biases_plus_the_product_of_factors() -> None:
    users, items, numbers = ratings()
    fitted = model().fit(users, items, numbers)
    sums = fitted.mean_ + fitted.user_bias_[users] + fitted.item_bias_[items]
    sums = sums + (fitted.user_factors_[users] * fitted.item_factors_[items]).sum(1)
    assert np.allclose(sums, fitted.predict(users, items), atol=1e-5)
    assert fitted.mean_ == pytest.approx(numbers.mean())


def test_predictions_scale_with_the_ratings() -> None:
    users, items, numbers = ratings()
    small, large = model().fit(users, items, numbers), model().fit(users, items, 1000 * numbers)
    assert np.allclose(1000 * small.predict(users, items), large.predict(users, items), rtol=1e-3)


@pytest.mark.thorough
def test_bpr_ranks_the_users_own_genre_first() -> None:
    users, items = liked()
    fitted = model(loss="bpr", epochs=20).fit(users, items)
    assert fitted.auc(users, items) > 0.9
    for user in (0, 1, 2):
        best, scores = fitted.recommend(user, n=5)
        assert set(best % 3) == {user % 3}
        assert not set(best) & set(items[users == user])
        assert list(scores) == sorted(scores, reverse=True)
    everything, _ = fitted.recommend(0, n=1000, exclude_seen=False)
    assert sorted(everything) == list(range(60))
    assert not fitted.user_bias_.any()


def test_arrays_table_and_sparse_matrix_give_the_same_bits() -> None:
    users, items, numbers = ratings()
    numbers = numbers.astype(FLOAT)
    table = np.column_stack([users, items, numbers])
    assert bits(model().fit(users, items, numbers)) == bits(model().fit(table))
    by_row = csr_matrix((numbers, (users, items))).tocoo()
    assert bits(model().fit(csr_matrix((numbers, (users, items))))) == bits(
        model().fit(by_row.row, by_row.col, by_row.data)
    )


def test_ids_may_be_strings_or_huge_integers() -> None:
    users, items, numbers = ratings()
    names = np.array([f"user {user}" for user in range(60)])
    fitted = model().fit(names[users], items * 10**15, numbers)
    assert sorted(fitted.user_ids_) == sorted(names)
    assert fitted.predict(["user 3"], [2 * 10**15]).shape == (1,)
    assert set(fitted.recommend("user 3", n=3)[0]) <= set(np.arange(40) * 10**15)
    assert fitted.predict(["nobody"], [0]) == pytest.approx(fitted.mean_ + fitted.item_bias_[0])
    films = np.array([f"film {film}" for film in range(40)], dtype=object)
    by_name = model().fit(names[users], films[items], numbers)
    assert set(by_name.recommend("user 3", n=3)[0]) <= set(films)


def test_unknown_ids_fall_back_to_biases() -> None:
    users, items, numbers = ratings()
    fitted = model().fit(users + 2, items + 1, numbers)  # nobody is user 0 or 1
    assert fitted.predict([0, 999, -1], [0, 0, 999]) == pytest.approx(fitted.mean_)
    assert fitted.predict([1], [5])[0] == pytest.approx(fitted.mean_ + fitted.item_bias_[5], abs=1e-6)
    assert fitted.predict([5], [999])[0] == pytest.approx(fitted.mean_ + fitted.user_bias_[5], abs=1e-6)
    assert 0 not in fitted.recommend(999, n=1000)[0]
    assert not fitted.user_factors_[:2].any()


def test_predict_and_recommend_take_scalar_ids() -> None:
    users, items, numbers = ratings()
    fitted = model().fit(users, items, numbers)
    one = fitted.predict(3, np.int64(4))
    assert np.ndim(one) == 0
    assert one == fitted.predict([3], [4])[0]
    names = model().fit([f"user {user}" for user in users], items, numbers)
    assert names.predict("user 3", 4) == names.predict(["user 3"], [4])[0]
    with pytest.raises(ConfigurationError, match="items has shape"):
        fitted.predict([3], 4)
    with pytest.raises(ConfigurationError, match=r"user=\[3, 4\]: allowed is one user; for more, \[model.recommend"):
        fitted.recommend([3, 4])


def test_partial_fit_improves_and_adds_new_ids() -> None:
    users, items, numbers = ratings()
    fitted = model(epochs=5).fit(users, items, numbers)
    before = fitted.rmse(users, items, numbers)
    assert fitted.partial_fit(users, items, numbers).rmse(users, items, numbers) < before
    newcomer = np.full(30, 60), np.arange(30), np.full(30, 5.0)
    fitted.partial_fit(*newcomer)
    assert fitted.predict(*newcomer[:2]).mean() > fitted.mean_
    assert len(fitted.history_) == 7
    first = model().partial_fit(users, items, numbers)
    assert bits(first) == bits(model(epochs=1, schedule="constant").fit(users, items, numbers))


def test_a_pickled_model_predicts_the_same() -> None:
    users, items, numbers = ratings()
    fitted = model().fit(users, items, numbers)
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict(users, items), fitted.predict(users, items))


# Bad input

PAIR = [0, 1], [0, 1]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"loss": "hinge"}, "unknown loss 'hinge'; known: bpr, squared"),
        ({"optimizer": "adam"}, "unknown optimizer 'adam'"),
        ({"model": "replica"}, "known: auto, shared"),
        ({"factors": 0}, "factors=0"),
        ({"epochs": -1}, "epochs=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"lr": math.nan}, "lr=nan"),
        ({"regularization": -1.0}, "regularization=-1.0"),
        ({"schedule": "cosine"}, "unknown schedule 'cosine'"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        MatrixFactorization(**settings)


@pytest.mark.parametrize(
    ("settings", "data", "told"),
    [
        ({}, (*PAIR, [1.0, math.nan]), "rating 1 is nan"),
        ({}, (*PAIR, [1.0, 1e300]), "rating 1 is 1e[+]300"),
        ({}, (*PAIR, [1.0]), "have 2, 2, 1 entries"),
        ({}, ([], [], []), "have 0, 0, 0 entries"),
        ({}, PAIR, "ratings are missing"),
        ({}, (np.zeros((2, 2)),), r"shape \(2, 2\)"),
        ({}, ([0.5, 1.0], [0, 1], [1, 2]), "users holds numbers that are not whole"),
        ({}, (np.zeros((2, 2)), [0, 1], [1, 2]), "users has shape"),
        ({}, (*PAIR, ["good", "bad"]), "allowed: n numbers"),
        ({"loss": "bpr"}, (*PAIR, [1, -2]), "rating 1 is -2; .* count or weight must be above 0"),
        ({"loss": "bpr"}, (*PAIR, [0, 2]), "rating 0 is 0"),
    ],
)
def test_invalid_data_is_refused(settings: dict[str, Any], data: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        model(**settings).fit(*data)


def test_early_stopping_requires_validation_data() -> None:
    with pytest.raises(ConfigurationError, match="early_stopping needs validation"):
        model(early_stopping=2).fit(*ratings())


def test_predict_before_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="call fit first"):
        model().predict([0], [0])


def test_bpr_skips_a_user_who_likes_every_item() -> None:
    fitted = model(loss="bpr").fit(np.zeros(5, int), np.arange(5))
    assert np.isfinite(fitted.item_factors_).all()


# Ids


def test_ids_keep_their_rows_as_new_ones_arrive() -> None:
    ids = Ids()
    assert ids.learn(np.array([3, 1, 3])).tolist() == [3, 1, 3]
    assert ids.learn(np.array([10**9, 1])).tolist() == [4, 1]
    assert ids.rows(np.array([10**9, 3, 17])).tolist() == [4, 3, -1]
    assert ids.rows(np.array([], dtype=str)).tolist() == []
    many = Ids()
    names = np.array([f"user {k}" for k in range(1000)])
    many.learn(names)
    for k in range(1000, 1400):  # one by one, so that some are found by order and some by the dictionary
        assert many.learn(np.array([f"user {k}", "user 0"])).tolist() == [k, many.rows(names[:1])[0]]
    assert many.names[many.rows(np.array(["user 1399", "user 1125", "user 7"]))].tolist() == [
        "user 1399",
        "user 1125",
        "user 7",
    ]
    assert many.rows(np.array(["user 1400"])).tolist() == [-1]


HASH = np.uint64(0x9E3779B97F4A7C15)
KINDS: dict[str, Any] = {
    "int64": lambda ids: ids,
    "uint64": lambda ids: (ids.astype(np.uint64) + np.uint64(1)) * HASH,
    "str": lambda ids: [f"u{one}" for one in ids],
    "bytes": lambda ids: np.char.encode(ids.astype(str)),
    "bool": lambda ids: ids % 2 == 0,
    "datetime64": lambda ids: np.datetime64("2020-01-01") + ids,
    "timedelta64": lambda ids: ids.astype("m8[s]"),
    "UUID": lambda ids: [uuid.UUID(int=int(one)) for one in ids],
}


@pytest.mark.parametrize(("first", "then"), list(itertools.permutations(KINDS, 2)))
def test_ids_of_another_type_are_refused_everywhere(first: str, then: str) -> None:
    if (first, then) == ("uint64", "int64"):
        return  # the same numbers, exactly
    users, items, numbers = ratings(count=200)
    other_users, other_items, users, items = (KINDS[kind](ids) for kind in (then, first) for ids in (users, items))
    fitted = model(epochs=1).fit(users, items, numbers)
    before = bits(fitted)
    for call in (
        lambda: fitted.partial_fit(other_users, items, numbers),
        lambda: fitted.partial_fit(users, other_items, numbers),  # refused before the users are learnt
        lambda: fitted.predict(other_users, items),
        lambda: fitted.rmse(other_users, items, numbers),
        lambda: fitted.auc(users, other_items),
        lambda: fitted.recommend(max(other_users)),
        lambda: model(epochs=1).fit(users, items, numbers, validation=(other_users, items, numbers)),
    ):
        with pytest.raises(ConfigurationError, match=rf"(users|items) are {then}.*, those learnt are {first}"):
            call()
    assert bits(fitted) == before
    assert bits(fitted.partial_fit(users, items, numbers)) != before


@pytest.mark.parametrize("missing", [None, np.nan, np.datetime64("NaT"), float("inf"), 2.5, 2.0**60])
def test_missing_ids_are_refused_everywhere(missing: Any) -> None:
    users, items, numbers = ratings(count=200)
    for kind in (lambda one: one, str, np.datetime64 if isinstance(missing, np.datetime64) else float):
        whole: list[Any] = [kind(int(one)) if kind is not np.datetime64 else kind(int(one), "D") for one in users]
        holed = [*whole[:-1], missing]
        fitted = model(epochs=1).fit(whole, items, numbers)
        for call in (model().fit, fitted.partial_fit, fitted.predict, fitted.rmse, fitted.auc):
            for given in (holed, np.array(holed, object)):
                arguments = (given, items) if call == fitted.predict else (given, items, numbers)
                with pytest.raises(ConfigurationError, match=r"users (holds|are)"):
                    call(*arguments)
        with pytest.raises(ConfigurationError):
            fitted.recommend(missing)


def test_partial_fit_leaves_the_tables_where_they_are() -> None:
    users, items, numbers = ratings(300, 300, 3000)
    fitted = model(epochs=1).fit(users, items, numbers)
    copied = 0
    for k in range(100):  # old and new users; a pickled one goes on alike
        fitted, table = pickle.loads(pickle.dumps(fitted)) if k == 50 else fitted, fitted._users.table
        fitted.partial_fit([300 + k, 5], [3, 3], [1.0, 2.0])
        copied += not np.shares_memory(fitted._users.table, table)
    assert copied == 2  # into a larger one, and by the pickle
    assert fitted.user_ids_.tolist() == list(range(400))
    assert np.isfinite(fitted.predict(np.arange(400), np.arange(400) % 300)).all()


@pytest.mark.parametrize("schedule", ["invscaling", "decay", "linear"])
def test_partial_fit_goes_on_at_the_rate_that_fit_came_to(schedule: str) -> None:
    users, items, numbers = ratings()
    fitted = model(schedule=schedule, epochs=4).fit(users, items, numbers)
    fitted.partial_fit(users[:50], items[:50], numbers[:50])
    expected = {"invscaling": 0.2 / 6001**0.25, "decay": 0.2 * 0.9**4, "linear": 0.2}[schedule]
    assert fitted.history_[-1].lr == pytest.approx(expected, rel=5e-3)


def test_moments_match_numpy_far_from_zero() -> None:
    numbers = np.random.default_rng(0).normal(1000, 0.5, 50_000).astype(FLOAT)
    assert moments(numbers) == pytest.approx((numbers.mean(dtype=float), numbers.std(dtype=float)), rel=1e-9)
    assert moments(np.full(50_000, 3.3, FLOAT)) == (float(FLOAT(3.3)), 0.0)


def test_standardise_is_independent_of_threads_and_fit_keeps_its_input() -> None:
    numbers = np.random.default_rng(0).normal(3.5, 1.2, 3 << 18).astype(FLOAT)
    one, three = numbers.copy(), numbers.copy()
    standardise(one, 3.5, 1.2, 1)
    standardise(three, 3.5, 1.2, 3)
    assert one.tobytes() == three.tobytes()
    assert (one.mean(), one.std()) == (pytest.approx(0, abs=1e-2), pytest.approx(1, rel=1e-2))
    users, items, numbers = ratings()
    given = numbers.astype(FLOAT)
    model().fit(users, items, given)
    assert np.array_equal(given, numbers.astype(FLOAT))


# The same model in PyTorch


def test_to_torch_gives_the_same_predictions() -> None:
    import torch

    users, items, numbers = ratings()
    fitted = model().fit(users, items, numbers)
    dense = fitted.to_torch()
    with torch.no_grad():
        told = dense(torch.from_numpy(users), torch.from_numpy(items))
    assert np.allclose(told.numpy(), fitted.predict(users, items), atol=1e-5)


def train_densely(worker: Any) -> None:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    users, items, numbers = ratings()
    dense = model(epochs=1).fit(users, items, numbers).to_torch()
    optimizer = torch.optim.SGD(dense.parameters(), lr=0.5)
    data = TensorDataset(torch.from_numpy(users), torch.from_numpy(items), torch.from_numpy(numbers).float())
    dense, optimizer, loader = worker.prepare(dense, optimizer, DataLoader(data, batch_size=50, shuffle=True))
    for _ in range(10):
        for user, item, number in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(dense(user, item), number).backward()
            optimizer.step()


def test_the_dense_copy_trains_under_the_hogwild_recipe() -> None:
    import torch

    import plesio as ps

    users, items, numbers = ratings()
    before = model(epochs=1).fit(users, items, numbers)
    run = ps.run(train_densely, ps.hogwild(lr_scale="full"), workers=2, engine=ps.Simulated("uniform"))
    dense = before.to_torch()
    dense.load_state_dict(run.state_dict)
    with torch.no_grad():
        told = dense(torch.from_numpy(users), torch.from_numpy(items)).numpy()
    assert np.sqrt(np.mean((told - numbers) ** 2)) < 0.9 * before.rmse(users, items, numbers)
