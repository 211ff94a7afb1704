"""Matrix factorisation: against a plain loop, against known ranks, and for any number of threads."""

from __future__ import annotations

import math
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from plesio.errors import CheckpointError, ConfigurationError
from plesio.hogwild import MatrixFactorization
from plesio.hogwild.choosing import Chosen
from plesio.hogwild.epochs import DivergedError
from plesio.hogwild.factorisation import training
from plesio.hogwild.factorisation.kernels import ATTEMPTS, Rivals
from plesio.hogwild.factorisation.layout import blocks, strips
from plesio.hogwild.factorisation.ratings import Ids

FLOAT = np.float32


def ratings(users: int = 60, items: int = 40, count: int = 1500, seed: int = 0) -> tuple[Any, Any, Any]:
    """Distinct pairs out of a matrix of rank 3, with a mean, biases and a little noise."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(users * items)[:count]
    who, what = np.divmod(pairs, items)
    left, right = rng.normal(size=(users, 3)), rng.normal(size=(items, 3))
    score = 3.5 + 0.3 * rng.normal(size=users)[who] + 0.5 * rng.normal(size=items)[what]
    return who, what, score + 0.5 * (left[who] * right[what]).sum(1) + 0.1 * rng.normal(size=count)


def liked(users: int = 80, items: int = 60, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each user likes most items of one of three genres."""
    rng = np.random.default_rng(seed)
    taste = np.arange(users)[:, None] % 3 == np.arange(items)[None, :] % 3
    return np.nonzero(taste & (rng.random((users, items)) < 0.6))  # type: ignore[return-value]


def model(**settings: Any) -> MatrixFactorization:
    defaults = {"factors": 20, "epochs": 3, "threads": 1, "seed": 7, "schedule": "constant"}
    return MatrixFactorization(**{**defaults, **settings})


def bits(one: MatrixFactorization) -> bytes:
    return one.user_factors_.tobytes() + one.item_factors_.tobytes() + one.item_bias_.tobytes()


# A plain loop


def total(line: NDArray[np.float32]) -> np.float32:
    """Sixteen running sums, halved until one is left."""
    sums = line.reshape(-1, 16)
    folded = np.zeros(16, FLOAT)
    for part in sums:
        folded = folded + part
    while len(folded) > 1:
        folded = folded[: len(folded) // 2] + folded[len(folded) // 2 :]
    return FLOAT(folded[0])


class Loop:
    """The same factorisation, one rating after the other, in NumPy scalars and rows."""

    def __init__(self, fresh: MatrixFactorization, users: Any, items: Any, numbers: Any) -> None:
        fresh.epochs = 0
        fresh.fit(users, items, numbers)
        self.settings = fresh
        self.tables = fresh._users.table.copy(), fresh._items.table.copy()
        self.head = self.tables[0].shape[1] - 16
        self.share = FLOAT(1 / (fresh.factors + fresh.biases))

    def lr(self, row: NDArray[np.float32]) -> np.float32:
        lr = FLOAT(self.settings.lr)
        return lr / np.sqrt(row[self.head + 1]) if self.settings.optimizer == "adagrad" else lr

    def finish(
        self, row: NDArray[np.float32], lr: np.float32, error: np.float32, gradient: NDArray[np.float32]
    ) -> None:
        squares = total(gradient * gradient)
        if self.settings.biases:
            to_bias = error - FLOAT(self.settings.regularization) * row[self.head]
            squares += to_bias * to_bias
            row[self.head] += lr * to_bias
        if self.settings.optimizer == "adagrad":
            row[self.head + 1] += squares * self.share

    def squared(self, user: int, item: int, rating: np.float32) -> None:
        penalty, width = FLOAT(self.settings.regularization), self.head
        user_row, item_row = self.tables[0][user], self.tables[1][item]
        p, q = user_row[:width].copy(), item_row[:width].copy()
        error = rating - (user_row[width] + item_row[width] + total(p * q))
        lrs = self.lr(user_row), self.lr(item_row)
        to_p, to_q = error * q - penalty * p, error * p - penalty * q
        user_row[:width], item_row[:width] = p + lrs[0] * to_p, q + lrs[1] * to_q
        self.finish(user_row, lrs[0], error, to_p)
        self.finish(item_row, lrs[1], error, to_q)

    def bpr(self, user: int, item: int, rival: int) -> None:
        penalty, width = FLOAT(self.settings.regularization), self.head
        user_row, item_row, rival_row = self.tables[0][user], self.tables[1][item], self.tables[1][rival]
        p, q, r = user_row[:width].copy(), item_row[:width].copy(), rival_row[:width].copy()
        lead = float(item_row[width] - rival_row[width] + total(p * (q - r)))
        doubt = FLOAT(1 - 1 / (1 + math.exp(-lead)))
        lrs = self.lr(user_row), self.lr(item_row), self.lr(rival_row)
        pull = doubt * p
        to_p, to_q, to_r = doubt * (q - r) - penalty * p, pull - penalty * q, penalty * r + pull
        user_row[:width] = p + lrs[0] * to_p
        item_row[:width], rival_row[:width] = q + lrs[1] * to_q, r - lrs[2] * to_r
        user_row[width + 1] += total(to_p * to_p) * self.share
        self.finish(item_row, lrs[1], doubt, to_q)
        self.finish(rival_row, lrs[2], -doubt, to_r)


def draw(rivals: Rivals, chunk: int, user: int, at: int, key: int) -> int:
    """An item the user has not seen, by splitmix64 of the rating's number."""
    word = 2**64 - 1
    first, last = int(rivals.first[chunk]), int(rivals.last[chunk])
    seen = rivals.seen[rivals.starts[user] : rivals.starts[user + 1]].tolist()
    for attempt in range(ATTEMPTS):
        number = (key + at * ATTEMPTS + attempt + 0x9E3779B97F4A7C15) & word
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & word
        number = (number ^ number >> 27) * 0x94D049BB133111EB & word
        number = (number ^ number >> 31) >> 32
        item = int(rivals.items[first + (number * (last - first) >> 32)])
        if item not in seen:
            return item
    return -1


@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "sgd", "lr": 0.02}, {"biases": False}, {"deterministic": True}, {"factors": 16}],
    ids=str,
)
def test_squared_is_a_plain_loop_bit_for_bit(settings: dict[str, Any]) -> None:
    users, items, numbers = ratings()
    loop = Loop(model(**settings), users, items, numbers)
    scaled = (numbers.astype(FLOAT) - FLOAT(loop.settings.mean_)) * FLOAT(1 / loop.settings._scale)
    rows = users.astype(np.uint32), items.astype(np.uint32)
    if loop.settings.deterministic:
        layout = blocks(*rows, scaled, (60, 40), seed=7)
    else:
        layout = strips(*rows, scaled, 60, loop.tables[0].strides[0], seed=7)
    for epoch in range(3):
        for chunk in layout.order(7, epoch):
            for at in range(layout.bounds[chunk], layout.bounds[chunk + 1]):
                loop.squared(layout.users[at], layout.items[at], layout.ratings[at])
    fitted = model(**settings).fit(users, items, numbers)
    assert np.array_equal(fitted._users.table, loop.tables[0])
    assert np.array_equal(fitted._items.table, loop.tables[1])


@pytest.mark.parametrize("deterministic", [False, True])
def test_bpr_is_a_plain_loop_bit_for_bit(deterministic: bool) -> None:
    users, items = liked()
    settings = {"loss": "bpr", "deterministic": deterministic}
    loop = Loop(model(**settings), users, items, None)
    work = loop.settings._training(np.zeros(len(users), FLOAT))
    layout, rivals = work.layout, work.rivals
    assert rivals is not None
    for epoch in range(3):
        for chunk in layout.order(7, epoch):
            for at in range(layout.bounds[chunk], layout.bounds[chunk + 1]):
                rival = draw(rivals, chunk, layout.users[at], at, training.key_of(7, epoch))
                if rival >= 0:
                    loop.bpr(layout.users[at], layout.items[at], rival)
    fitted = model(**settings).fit(users, items)
    assert np.array_equal(fitted._users.table, loop.tables[0])
    assert np.array_equal(fitted._items.table, loop.tables[1])


# Threads


@pytest.mark.filterwarnings("ignore:threads=")
@pytest.mark.parametrize("loss", ["squared", "bpr"])
def test_deterministic_is_the_same_for_any_number_of_threads(loss: str) -> None:
    users, items, numbers = ratings(200, 150, 12_000)
    numbers = np.abs(numbers) + 1
    found = {
        bits(model(loss=loss, deterministic=True, threads=threads).fit(users, items, numbers))
        for threads in (1, 2, 3, 4)
    }
    assert len(found) == 1


def test_one_thread_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    users, items, numbers = ratings()
    first, again, other = (model(seed=seed).fit(users, items, numbers) for seed in (1, 1, 2))
    assert bits(first) == bits(again) != bits(other)


@pytest.mark.parametrize("loss", ["squared", "bpr"])
def test_two_threads_learn_as_much_and_do_everything(loss: str) -> None:
    users, items, numbers = ratings(300, 200, 20_000)
    numbers = np.abs(numbers) + 1
    one, two = (
        model(loss=loss, epochs=8, threads=threads, model="shared").fit(users, items, numbers) for threads in (1, 2)
    )
    assert two.threads_ == 2
    assert all(sum(epoch.examples_by_thread) == len(users) for epoch in two.history_)
    assert two.history_[-1].loss == pytest.approx(one.history_[-1].loss, rel=0.1)


def test_a_thousand_fits_leave_no_thread_behind() -> None:
    users, items, numbers = ratings(12, 8, 40)
    model(threads=2, model="shared").fit(users, items, numbers)
    before = threading.active_count()
    for seed in range(1000):
        fitted = model(threads=2, model="shared", epochs=1, seed=seed).fit(users, items, numbers)
        assert sum(fitted.history_[0].examples_by_thread) == 40
    assert threading.active_count() == before


def test_a_small_fit_takes_one_thread_by_itself() -> None:
    assert model(threads=2).fit(*ratings()).threads_ == 1


@pytest.mark.parametrize("loss", ["squared", "bpr"])
def test_a_trial_of_threads_leaves_the_model_alone(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    users, items, numbers = ratings()
    numbers = np.abs(numbers) + 1
    tried = []

    def choose(trials: Any) -> Chosen:
        tried.extend((trial.threads, trial.run() + trial.run()) for trial in trials)
        return Chosen("shared", 1, {})

    monkeypatch.setattr(training, "WORTH_A_TRIAL_S", 0.0)
    monkeypatch.setattr(training, "choose", choose)
    fitted = model(loss=loss, threads=2).fit(users, items, numbers)
    assert [threads for threads, _ in tried] == [1, 2]
    assert all(examples > 0 for _, examples in tried)
    assert bits(fitted) == bits(model(loss=loss, threads=1).fit(users, items, numbers))


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_report_knows_how_sparse_the_ratings_are(deterministic: bool) -> None:
    users, items, numbers = ratings()
    report = model(threads=2, model="shared", deterministic=deterministic).fit(users, items, numbers).report_
    assert (report.examples, report.parameters, report.omega) == (1500, 100, 2)
    assert report.delta == max(np.bincount(users).max(), np.bincount(items).max()) / 1500
    assert bool(report.watched) is not deterministic
    assert len(report.examples_per_s) == 2
    assert "1,500 examples" in str(report)


# What is learnt


def test_a_matrix_of_low_rank_is_found() -> None:
    users, items, numbers = ratings(120, 100, 8000)
    fitted = model(factors=8, epochs=60, regularization=0.03).fit(users[:7000], items[:7000], numbers[:7000])
    held_out = users[7000:], items[7000:], numbers[7000:]
    assert fitted.rmse(*held_out) < 0.25 < 0.9 < np.std(held_out[2])
    assert fitted.score(*held_out) == -fitted.rmse(*held_out)


def test_attributes_add_up_to_a_prediction() -> None:
    users, items, numbers = ratings()
    fitted = model().fit(users, items, numbers)
    sums = fitted.mean_ + fitted.user_bias_[users] + fitted.item_bias_[items]
    sums = sums + (fitted.user_factors_[users] * fitted.item_factors_[items]).sum(1)
    assert np.allclose(sums, fitted.predict(users, items), atol=1e-5)
    assert fitted.mean_ == pytest.approx(numbers.mean())


def test_the_scale_of_the_ratings_does_not_matter() -> None:
    users, items, numbers = ratings()
    small, large = model().fit(users, items, numbers), model().fit(users, items, 1000 * numbers)
    assert np.allclose(1000 * small.predict(users, items), large.predict(users, items), rtol=1e-3)


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


def test_the_three_ways_to_give_ratings_agree() -> None:
    users, items, numbers = ratings()
    numbers = numbers.astype(FLOAT)
    table = np.column_stack([users, items, numbers])
    assert bits(model().fit(users, items, numbers)) == bits(model().fit(table))
    by_row = csr_matrix((numbers, (users, items))).tocoo()
    assert bits(model().fit(csr_matrix((numbers, (users, items))))) == bits(
        model().fit(by_row.row, by_row.col, by_row.data)
    )


def test_ids_may_be_words_or_huge_numbers() -> None:
    users, items, numbers = ratings()
    names = np.array([f"user {user}" for user in range(60)])
    fitted = model().fit(names[users], items * 10**15, numbers)
    assert sorted(fitted.user_ids_) == sorted(names)
    assert fitted.predict(["user 3"], [2 * 10**15]).shape == (1,)
    assert set(fitted.recommend("user 3", n=3)[0]) <= set(np.arange(40) * 10**15)
    assert fitted.predict([3, None], [0, 0])[0] == pytest.approx(fitted.mean_ + fitted.item_bias_[0])
    films = np.array([f"film {film}" for film in range(40)], dtype=object)
    by_name = model().fit(names[users], films[items], numbers)
    assert set(by_name.recommend("user 3", n=3)[0]) <= set(films)


def test_the_unknown_fall_back_to_biases() -> None:
    users, items, numbers = ratings()
    fitted = model().fit(users + 2, items + 1, numbers)  # nobody is user 0 or 1
    assert fitted.predict([0, 999, -1], [0, 0, 999]) == pytest.approx(fitted.mean_)
    assert fitted.predict([1], [5])[0] == pytest.approx(fitted.mean_ + fitted.item_bias_[5], abs=1e-6)
    assert fitted.predict([5], [999])[0] == pytest.approx(fitted.mean_ + fitted.user_bias_[5], abs=1e-6)
    assert 0 not in fitted.recommend(999, n=1000)[0]
    assert not fitted.user_factors_[:2].any()


def test_partial_fit_learns_more_and_takes_newcomers_in() -> None:
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


# Stopping, keeping, going on


def test_early_stopping_returns_to_the_best() -> None:
    users, items, numbers = ratings()
    fitted = model(epochs=200, regularization=0.0, early_stopping=3)
    fitted.fit(users[:1200], items[:1200], numbers[:1200], validation=(users[1200:], items[1200:], numbers[1200:]))
    scores = [epoch.score for epoch in fitted.history_]
    assert len(scores) < 200
    assert scores.index(max(scores)) == len(scores) - 4
    assert fitted.score(users[1200:], items[1200:], numbers[1200:]) == max(scores)


def test_a_callback_ends_the_fit() -> None:
    fitted = model(epochs=50, callbacks=[lambda epoch: epoch.number == 1]).fit(*ratings())
    assert [epoch.number for epoch in fitted.history_] == [0, 1]


@pytest.mark.parametrize("schedule", ["constant", "linear", "adaptive"])
def test_a_resumed_fit_ends_with_the_same_bits(tmp_path: Path, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "LEAST_FALL", 0.5)  # so that "adaptive" goes down
    users, items, numbers = ratings()
    settings = {"epochs": 5, "schedule": schedule}
    stop_at_1 = [lambda epoch: epoch.number == 1]
    model(**settings, checkpoint=tmp_path, callbacks=stop_at_1).fit(users, items, numbers)
    resumed = model(**settings, resume=tmp_path).fit(users, items, numbers)
    assert [epoch.number for epoch in resumed.history_] == [2, 3, 4]
    whole = model(**settings).fit(users, items, numbers)
    assert bits(resumed) == bits(whole)
    assert (whole.history_[-1].lr < 0.2) is (schedule != "constant")
    with pytest.raises(CheckpointError, match="factors=20 and this fit has 8"):
        model(factors=8, resume=tmp_path).fit(users, items, numbers)


def test_a_pickled_model_predicts_the_same() -> None:
    users, items, numbers = ratings()
    fitted = model().fit(users, items, numbers)
    copy = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(copy.predict(users, items), fitted.predict(users, items))


def test_divergence_is_told_with_what_to_try() -> None:
    with pytest.raises(DivergedError, match=r"after epoch .* at learning rate 50: .* Try a learning rate of"):
        model(optimizer="sgd", lr=50.0, epochs=20).fit(*ratings())


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
        ({"schedule": "cosine"}, "unknown learning-rate schedule 'cosine'"),
    ],
)
def test_settings_that_cannot_work(settings: dict[str, Any], told: str) -> None:
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
def test_data_that_cannot_be_learnt(settings: dict[str, Any], data: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        model(**settings).fit(*data)


def test_early_stopping_without_anything_to_look_at() -> None:
    with pytest.raises(ConfigurationError, match="early_stopping needs validation"):
        model(early_stopping=2).fit(*ratings())


def test_predicting_before_learning() -> None:
    with pytest.raises(ConfigurationError, match="call fit first"):
        model().predict([0], [0])


def test_a_user_who_likes_everything_is_passed_over() -> None:
    fitted = model(loss="bpr").fit(np.zeros(5, int), np.arange(5))
    assert np.isfinite(fitted.item_factors_).all()


# Layout and ids


@pytest.mark.parametrize("grid", [False, True])
def test_a_layout_holds_every_rating_once(grid: bool) -> None:
    users, items, numbers = (column.astype(kind) for column, kind in zip(ratings(), "IIf", strict=True))
    layout = blocks(users, items, numbers, (60, 40), 0) if grid else strips(users, items, numbers, 60, 192, 0)
    assert sorted(zip(layout.users, layout.items, layout.ratings, strict=True)) == sorted(
        zip(users, items, numbers, strict=True)
    )
    order = layout.order(0, 0)
    assert sorted(order) == list(range(layout.chunks))
    for first, stop in layout.rounds() if grid else ():
        here = [slice(layout.bounds[chunk], layout.bounds[chunk + 1]) for chunk in order[first:stop]]
        for ids in layout.users, layout.items:
            sets = [set(ids[part].tolist()) for part in here]
            assert sum(map(len, sets)) == len(set().union(*sets))


def test_in_a_grid_rivals_come_from_the_blocks_own_columns() -> None:
    users, items = liked(200, 150)
    work = model(loss="bpr", deterministic=True, epochs=0).fit(users, items)._training(np.zeros(len(users), FLOAT))
    layout, rivals = work.layout, work.rivals
    assert rivals is not None
    for chunk in range(layout.chunks):
        own = set(layout.items[layout.bounds[chunk] : layout.bounds[chunk + 1]].tolist())
        assert own <= set(rivals.items[rivals.first[chunk] : rivals.last[chunk]].tolist())
    assert sorted(rivals.items[: rivals.last.max()]) == sorted(set(items))


def test_ids_grow_and_stay() -> None:
    ids = Ids()
    assert ids.learn(np.array([3, 1, 3])).tolist() == [3, 1, 3]
    assert ids.learn(np.array([10**9, 1])).tolist() == [4, 1]
    assert ids.rows(np.array([10**9, 3, 17])).tolist() == [4, 3, -1]
    assert ids.rows(np.array(["3"])).tolist() == [-1]


# The same model in PyTorch


def test_to_torch_predicts_the_same() -> None:
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


def test_the_same_model_trains_densely_under_hogwild() -> None:
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
