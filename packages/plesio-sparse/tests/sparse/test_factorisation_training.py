"""How a factorisation is trained: against a plain loop, on several threads, stopped and resumed."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from plesio.sparse import MatrixFactorization, choosing, factorisation
from plesio.sparse.epochs import DivergedError
from plesio.sparse.factorisation import training
from plesio.sparse.factorisation.dealing import Triples
from plesio.sparse.factorisation.kernels import ATTEMPTS, Rivals
from plesio.sparse.factorisation.layout import Layout, blocks, strips
from plesio.sparse.factorisation.side import SPREAD, Side
from sparse.ratings import bits, liked, model, ratings

FLOAT = np.float32


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

    def __init__(self, fresh: MatrixFactorization, users: Any, items: Any, numbers: Any, **weights: Any) -> None:
        fresh.epochs = 0
        fresh.fit(users, items, numbers, **weights)
        self.settings, self.steps = fresh, FLOAT(1)
        self.tables = fresh._users.table.copy(), fresh._items.table.copy()
        self.head = self.tables[0].shape[1] - 16
        self.share = FLOAT(1 / (fresh.factors + fresh.biases))

    def lr(self, row: NDArray[np.float32]) -> np.float32:
        lr = FLOAT(self.settings.lr) * self.steps
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
            row[self.head + 1] += squares * self.share * self.steps

    def weigh(self, weight: float, user: int, items: list[int]) -> None:
        """So many small steps leave exp(-weight * share) of the error."""
        self.steps, share = FLOAT(1), FLOAT(0)
        p, bias = self.tables[0][user], FLOAT(self.settings.biases)
        for q in self.tables[1][items]:
            width = self.head
            one = self.lr(p) * (total(q[:width] * q[:width]) + bias)
            share = share + (one + self.lr(q) * (total(p[:width] * p[:width]) + bias) + FLOAT(1e-12))
        share = float(share) / (1 if len(items) == 1 else 4)
        self.steps = FLOAT(math.expm1(-share * weight) / math.expm1(-share))

    def squared(self, user: int, item: int, rating: np.float32) -> float:
        penalty, width = FLOAT(self.settings.regularization), self.head
        user_row, item_row = self.tables[0][user], self.tables[1][item]
        p, q = user_row[:width].copy(), item_row[:width].copy()
        error = rating - (user_row[width] + item_row[width] + total(p * q))
        lrs = self.lr(user_row), self.lr(item_row)
        to_p, to_q = error * q - penalty * p, error * p - penalty * q
        user_row[:width], item_row[:width] = p + lrs[0] * to_p, q + lrs[1] * to_q
        self.finish(user_row, lrs[0], error, to_p)
        self.finish(item_row, lrs[1], error, to_q)
        return float(error)

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
        if self.settings.optimizer == "adagrad":
            user_row[width + 1] += total(to_p * to_p) * self.share * self.steps
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


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "settings",
    [{}, {"optimizer": "sgd", "lr": 0.02}, {"biases": False}, {"deterministic": True}, {"factors": 16}],
    ids=str,
)
def test_squared_loss_equals_a_plain_loop_bit_for_bit(settings: dict[str, Any]) -> None:
    users, items, numbers = ratings()
    loop = Loop(model(**settings), users, items, numbers)
    scaled = (numbers.astype(FLOAT) - FLOAT(loop.settings.mean_)) * FLOAT(1 / loop.settings._scale)
    given = Triples(users.astype(np.uint32), items.astype(np.uint32), scaled)
    if loop.settings.deterministic:
        layout = blocks(given, (60, 40), seed=7)
    else:
        layout = strips(given, (60, 40), loop.tables[0].strides[0], seed=7)
    for epoch in range(3):
        for chunk in layout.order(7, epoch):
            for at in range(layout.bounds[chunk], layout.bounds[chunk + 1]):
                loop.squared(layout.users[at], layout.items[at], layout.ratings[at])
    fitted = model(**settings).fit(users, items, numbers)
    assert np.array_equal(fitted._users.table, loop.tables[0])
    assert np.array_equal(fitted._items.table, loop.tables[1])


@pytest.mark.few(2)
@pytest.mark.parametrize("settings", [{}, {"optimizer": "sgd", "lr": 0.02}, {"deterministic": True}], ids=str)
@pytest.mark.parametrize("loss", ["squared", "bpr"])
def test_weighted_ratings_equal_a_plain_loop_bit_for_bit(loss: str, settings: dict[str, Any]) -> None:
    users, items, numbers = ratings() if loss == "squared" else (*liked(), None)
    weights = np.random.default_rng(1).choice([0.25, 1, 30], len(users))
    settings = settings | {"loss": loss, "epochs": 0}
    loop = Loop(model(**settings), users, items, numbers, sample_weight=weights)
    numbers = loop.settings._numbers(users, None if numbers is None else numbers.astype(FLOAT), None)
    work = loop.settings._training(numbers, weights=weights.astype(FLOAT))
    layout, sums = work.layout, []
    for epoch in range(3):
        sums.append(0.0)
        for chunk in layout.order(7, epoch):
            for at in range(layout.bounds[chunk], layout.bounds[chunk + 1]):
                user, item, weight = layout.users[at], layout.items[at], float(layout.weights[at])
                if work.rivals is None:
                    loop.weigh(weight, user, [item])
                    sums[-1] += weight * loop.squared(user, item, layout.ratings[at]) ** 2
                elif (rival := draw(work.rivals, chunk, user, at, training.key_of(7, epoch))) >= 0:
                    loop.weigh(weight, user, [item, rival])
                    loop.bpr(user, item, rival)
    fitted = model(**settings | {"epochs": 3}).fit(
        users, items, numbers if loss == "squared" else None, sample_weight=weights
    )
    assert np.array_equal(fitted._users.table, loop.tables[0])
    assert np.array_equal(fitted._items.table, loop.tables[1])
    if loss == "squared":
        losses = [epoch.loss for epoch in fitted.history_]
        assert losses == pytest.approx(np.array(sums) * fitted._scale**2 / weights.sum(), rel=1e-5)


@pytest.mark.parametrize("deterministic", [False, True])
def test_bpr_equals_a_plain_loop_bit_for_bit(deterministic: bool) -> None:
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
def test_deterministic_bits_are_independent_of_threads(loss: str) -> None:
    users, items, numbers = ratings(200, 150, 12_000)
    numbers = np.abs(numbers) + 1
    found = {
        bits(model(loss=loss, deterministic=True, threads=threads).fit(users, items, numbers))
        for threads in (1, 2, 3, 4)
    }
    assert len(found) == 1


def test_one_thread_is_reproducible_by_seed() -> None:
    users, items, numbers = ratings()
    first, again, other = (model(seed=seed).fit(users, items, numbers) for seed in (1, 1, 2))
    assert bits(first) == bits(again) != bits(other)


@pytest.mark.parametrize("loss", ["squared", "bpr"])
def test_two_threads_match_one_and_visit_every_rating(loss: str) -> None:
    users, items, numbers = ratings(300, 200, 20_000)
    numbers = np.abs(numbers) + 1
    one, two = (
        model(loss=loss, epochs=8, threads=threads, model="shared").fit(users, items, numbers) for threads in (1, 2)
    )
    assert two.threads_ == 2
    assert all(sum(epoch.examples_by_thread) == len(users) for epoch in two.history_)
    assert two.history_[-1].loss == pytest.approx(one.history_[-1].loss, rel=0.1)


@pytest.mark.slow  # Kernel's thousand fits go through the same pool
def test_a_thousand_fits_leave_no_thread_behind() -> None:
    users, items, numbers = ratings(12, 8, 40)
    model(threads=2, model="shared").fit(users, items, numbers)
    before = threading.active_count()
    for seed in range(1000):
        fitted = model(threads=2, model="shared", epochs=1, seed=seed).fit(users, items, numbers)
        assert sum(fitted.history_[0].examples_by_thread) == 40
    assert threading.active_count() == before


def test_a_small_fit_chooses_one_thread() -> None:
    assert model(threads=2).fit(*ratings()).threads_ == 1


@pytest.mark.parametrize("loss", ["squared", "bpr"])
@pytest.mark.parametrize("margin", [0.0, math.inf])
def test_the_thread_trial_visits_each_rating_once(loss: str, margin: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether all threads win or one does; one thread then does the later epochs alone."""
    users, items, numbers = ratings(300, 200, 20_000)
    numbers = np.abs(numbers) + 1
    by_epoch: list[list[int]] = []  # the threads of each slice

    class Watched(training.Training):
        def sweep(self, order: Any, lrs: Any, key: int) -> tuple[float, list[int]]:
            by_epoch.append([])
            return super().sweep(order, lrs, key)

        def _chunks(self, *arguments: Any) -> list[int]:
            by_epoch[-1].append(arguments[-1])
            return super()._chunks(*arguments)

    monkeypatch.setattr(factorisation.model, "Training", Watched)
    monkeypatch.setattr(training, "WORTH_THREADS", 0)
    monkeypatch.setattr(choosing, "MARGIN", margin)
    monkeypatch.setattr(choosing, "_CONTEST_WORK", 0)
    fitted = model(loss=loss, epochs=8, threads=2).fit(users, items, numbers)
    winner = 1 if margin else 2
    assert fitted.threads_ == winner
    assert [set(threads) for threads in by_epoch] == [{1, 2}] * 2 + [{winner}] * 6
    assert all(sum(epoch.examples_by_thread) == len(users) for epoch in fitted.history_)
    alone = model(loss=loss, epochs=8).fit(users, items, numbers)
    assert fitted.history_[-1].loss == pytest.approx(alone.history_[-1].loss, rel=0.1)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_report_gives_the_sparsity_of_the_ratings(deterministic: bool) -> None:
    users, items, numbers = ratings()
    report = model(threads=2, model="shared", deterministic=deterministic).fit(users, items, numbers).report_
    assert (report.examples, report.parameters, report.omega) == (1500, 100, 2)
    assert report.delta == max(np.bincount(users).max(), np.bincount(items).max()) / 1500
    assert bool(report.watched) is not deterministic
    assert len(report.examples_per_s) == 2
    assert "1,500 examples" in str(report)


# Layout


def laid_out(grid: bool, given: Triples, shape: tuple[int, int], threads: int = 1) -> Layout:
    return blocks(given, shape, 0, threads) if grid else strips(given, shape, 192, 0, threads)


@pytest.mark.parametrize("grid", [False, True])
def test_a_layout_holds_every_rating_once(grid: bool) -> None:
    given = Triples(*(column.astype(kind) for column, kind in zip(ratings(), "IIf", strict=True)))
    layout = laid_out(grid, given, (60, 40))
    assert sorted(zip(layout.users, layout.items, layout.ratings, strict=True)) == sorted(zip(*given, strict=True))
    order = layout.order(0, 0)
    assert sorted(order) == list(range(layout.chunks))
    for first, stop in layout.rounds(layout.chunks) if grid else ():
        here = [slice(layout.bounds[chunk], layout.bounds[chunk + 1]) for chunk in order[first:stop]]
        for ids in layout.users, layout.items:
            sets = [set(ids[part].tolist()) for part in here]
            assert sum(map(len, sets)) == len(set().union(*sets))


@pytest.mark.parametrize("grid", [False, True])
def test_setup_bits_are_independent_of_threads(grid: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plesio.sparse.threads.SHARE", 100)
    users, items, numbers = ratings()
    given = Triples(users.astype(np.uint32), items.astype(np.uint32), numbers.astype(FLOAT))
    one, *more = (laid_out(grid, given, (60, 40), threads) for threads in (1, 2, 3, 4))
    for other in more:
        assert np.array_equal(other.bounds, one.bounds)
        assert all(np.array_equal(getattr(other, name), getattr(one, name)) for name in Triples._fields)
    tables = []
    for threads in (1, 2, 3, 4):
        side = Side(20)
        assert np.array_equal(side.learn(users, np.random.default_rng(0), threads), users)
        tables.append(side.table)
    assert all(np.array_equal(table, tables[0]) for table in tables)


def test_initial_factors_are_small_and_uncorrelated() -> None:
    side = Side(30)
    side.learn(np.arange(2000) * 2, np.random.default_rng(0))
    assert side.met.sum() == 2000
    assert not side.table[1::2].any()
    factors = side.factors[::2]
    assert factors.mean() == pytest.approx(0, abs=0.002)
    assert factors.std() == pytest.approx(SPREAD, rel=0.01)
    assert np.abs(np.corrcoef(factors.T) - np.eye(30)).max() < 0.12
    assert (side.table[::2, 32:34] == [0, 1]).all()
    assert not side.table[:, 30:32].any()


def test_grid_rivals_are_drawn_from_the_blocks_own_items() -> None:
    users, items = liked(200, 150)
    work = model(loss="bpr", deterministic=True, epochs=0).fit(users, items)._training(np.zeros(len(users), FLOAT))
    layout, rivals = work.layout, work.rivals
    assert rivals is not None
    for chunk in range(layout.chunks):
        own = set(layout.items[layout.bounds[chunk] : layout.bounds[chunk + 1]].tolist())
        assert own <= set(rivals.items[rivals.first[chunk] : rivals.last[chunk]].tolist())
    assert sorted(rivals.items[: rivals.last.max()]) == sorted(set(items))


# Stopping, keeping, going on


def test_early_stopping_restores_the_best_epoch() -> None:
    users, items, numbers = ratings()
    fitted = model(epochs=200, regularization=0.0, early_stopping=3)
    fitted.fit(users[:1200], items[:1200], numbers[:1200], validation=(users[1200:], items[1200:], numbers[1200:]))
    scores = [epoch.score for epoch in fitted.history_]
    assert len(scores) < 200
    assert scores.index(max(scores)) == len(scores) - 4
    assert fitted.score(users[1200:], items[1200:], numbers[1200:]) == max(scores)


def test_a_callback_returning_true_ends_the_fit() -> None:
    fitted = model(epochs=50, callbacks=[lambda epoch: epoch.number == 1]).fit(*ratings())
    assert [epoch.number for epoch in fitted.history_] == [0, 1]


def test_divergence_error_suggests_a_learning_rate() -> None:
    with pytest.raises(DivergedError, match=r"after epoch .* at learning rate 50: .* Try a learning rate of"):
        model(optimizer="sgd", lr=50.0, epochs=20).fit(*ratings())
