"""Matrix factorisation with the interface its users know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.sparse.epochs import Epoch, run_epochs
from plesio.sparse.factorisation.dealing import Triples
from plesio.sparse.factorisation.folding import fold
from plesio.sparse.factorisation.kernels import Step
from plesio.sparse.factorisation.layout import Layout, blocks, of_few, strips
from plesio.sparse.factorisation.ratings import moments, standardise, triples, weighed, weight_of
from plesio.sparse.factorisation.recommender import Recommender
from plesio.sparse.factorisation.training import Best, Falling, Training, key_of, lrs_of
from plesio.sparse.rates import rate
from plesio.sparse.report import Report, measure
from plesio.sparse.saving import Checkpoint
from plesio.sparse.settings import Shown, functions, number, one_of, whole
from plesio.sparse.threads import thread_count

REGULARIZATION = {"bpr": 0.01, "squared": 0.08}
LOSSES = tuple(REGULARIZATION)
OPTIMIZERS = ("adagrad", "sgd")
MODELS = ("auto", "shared")
SCHEDULES = ("adaptive", "constant", "decay", "invscaling", "linear")
SIDES = ("users", "items")
_change = threading.Lock()  # held for a moment, so one will do for all models; in a model it could not be pickled
_learning: WeakSet[MatrixFactorization] = WeakSet()
_TABLES = ("users", "items", "best_users", "best_items")


class MatrixFactorization(Shown, Recommender):
    """Predicts what a user thinks of an item as mean + user bias + item bias + user factors · item factors.

    Learnt by stochastic gradient descent over the known ratings, without locks: threads hold different users and
    hardly ever meet at an item (Niu, Recht, Ré and Wright, 2011). Ratings are brought to mean 0 and deviation 1 inside,
    so `lr` and `regularization` mean the same on every scale. For each rating, with e its error:

        p += lr/√G_p (e q - regularization p),  G_p += mean of the squared gradient      (q and the biases alike)

    where G, one number a row, is AdaGrad's (Chin et al., 2015); "sgd" is the same with G = 1. "bpr" ranks instead
    (Rendle et al., 2009): it knows only what a user liked, draws an item the user has not, and takes for e the doubt
    that the liked one is ranked above it.

    Args:
        factors: how many numbers describe a user or an item.
        loss: "squared" for ratings, "bpr" for what was bought, heard, seen.
        optimizer: "adagrad", or "sgd" (then try lr=0.05).
        lr: the learning rate at the start.
        schedule: how it falls: "linear" to 0 over all epochs, "constant", "decay", "invscaling", "adaptive"
            (plesio.sparse.rates).
        regularization: pulls what is used towards 0; None for what suited MovieLens: 0.08, under "bpr" 0.01.
        biases: whether users and items have one.
        epochs: how often to go through the ratings.
        threads: None for every core.
        model: "shared", one for all threads; "auto", the same with one thread if the fit is small (less than about a
            quarter of a second), or if the first epochs go no faster with all.
        deterministic: the same bits for any number of threads, by blocks of a grid that share no user and no item;
            on large sets it needs more epochs to the same error.
        seed: of the first factors and of everything drawn.
        early_stopping: after how many epochs in a row without a better validation score to stop and go back to
            the best; 0 for never.
        callbacks: each is called with an `Epoch` after every epoch; one that returns True ends the fit.
        checkpoint: a folder to keep the model in after every epoch.
        resume: a folder that an earlier fit of the same ratings, with the same settings but for `epochs` (also these under
            schedule="linear"), kept its model in: the fit goes on from there as if never stopped.
        progress: show a progress bar.

    Attributes:
        user_factors_, item_factors_: arrays (users, factors) and (items, factors), in the ratings' own scale.
        user_bias_, item_bias_, mean_: what else a prediction is the sum of. Under "bpr" users have none.
        user_ids_, item_ids_: whose each row is.
        history_: an `Epoch` for each one done, also before a resume; its `loss` is the mean squared error before each step, or
            -ln P under "bpr".
        threads_: how many the last fit used.
        report_: how sparse the ratings are, how often threads meet there, how fast they were; `print` it.

    Raises:
        ConfigurationError: an argument that cannot work.

    >>> users, items = np.divmod(np.arange(400), 20)
    >>> model = MatrixFactorization(factors=4, epochs=60, threads=1).fit(users, items, 1.0 + users * items % 5)
    >>> model.rmse(users, items, 1.0 + users * items % 5) < 0.5
    True
    >>> model.recommend(3, n=2, exclude_seen=False)[0].shape
    (2,)
    """

    def __init__(
        self,
        factors: int = 32,
        *,
        loss: str = "squared",
        optimizer: str = "adagrad",
        lr: float = 0.2,
        schedule: str = "linear",
        regularization: float | None = None,
        biases: bool = True,
        epochs: int = 20,
        threads: int | None = None,
        model: str = "auto",
        deterministic: bool = False,
        seed: int = 0,
        early_stopping: int = 0,
        callbacks: Iterable[Callable[[Epoch], object]] = (),
        checkpoint: str | Path | None = None,
        resume: str | Path | None = None,
        progress: bool = False,
    ) -> None:
        regularization = REGULARIZATION[one_of("loss", loss, LOSSES)] if regularization is None else regularization
        self.lr, self.schedule, self.biases = number("lr", lr), one_of("schedule", schedule, SCHEDULES), biases
        self.regularization = number("regularization", regularization, 0)
        self.factors, self.loss = whole("factors", factors, 1), one_of("loss", loss, LOSSES)
        self.epochs, self.threads = whole("epochs", epochs, 0), threads
        self.optimizer, self.model = one_of("optimizer", optimizer, OPTIMIZERS), one_of("model", model, MODELS)
        self.deterministic, self.seed = deterministic, whole("seed", seed, 0)
        self.early_stopping = whole("early_stopping", early_stopping, 0)
        self.callbacks, self.progress = functions(callbacks), progress
        self.checkpoint, self.resume = checkpoint, resume
        rate(self.schedule, lr=self.lr)  # complains now
        self._fresh()

    # Learning

    def fit(
        self, users: Any, items: Any = None, ratings: Any = None, *, sample_weight: Any = None, validation: Any = None
    ) -> MatrixFactorization:
        """Learn from the beginning, and return this model.

        Args:
            users, items: who and what, as 1-d arrays of whole numbers or of words; or, alone, an array of shape
                (n, 3), or a SciPy sparse matrix with a row a user (what is not stored is unknown, not 0).
            ratings: float32 numbers, other types are converted. "bpr" needs none; if there are, all must be above 0.
            sample_weight: how much each rating counts, in their order: of weight 2 as much as two, of weight 0 it is left out.
                A step is larger by the weight, up to about where it would go beyond its aim. The validation has none.
            validation: (users, items, ratings) that the model is scored on after each epoch: `Epoch.score`.

        Raises:
            ConfigurationError: arrays of different length, none at all, NaN or infinite ratings, counts not above 0,
                weights below 0, a callback that changes the model.
            DivergedError: the loss is not finite.
        """
        if self.early_stopping and validation is None:
            raise ConfigurationError("early_stopping needs validation=(users, items, ratings) to see when to stop.")
        with self._alone():
            self._fresh()
            goes_on = self.resume is not None
            return self._learn((users, items, ratings), sample_weight, self.epochs, self.schedule, validation, goes_on)

    def partial_fit(
        self, users: Any, items: Any = None, ratings: Any = None, *, sample_weight: Any = None
    ) -> MatrixFactorization:
        """One more sweep, over these ratings only; users and items never met before get rows of their own.

        The mean and the scale stay those of the first ratings ever given; a "linear" rate, whose end nobody knows here,
        does not fall. Arguments and errors as in `fit`.
        """
        schedule = "constant" if self.schedule == "linear" else self.schedule
        with self._alone():
            return self._learn((users, items, ratings), sample_weight, len(self.history_) + 1, schedule)

    def fold_in(
        self, users: Any, items: Any = None, ratings: Any = None, *, side: str = "users", sample_weight: Any = None
    ) -> MatrixFactorization:
        """Give new users (or items) their rows without a sweep: those that fit their ratings best beside the items' rows.

        The items' rows and the mean stay. For a user with ratings r of weight w it is one small ridge regression:

            minimise Σ w ((r − mean − item bias − user bias − p · q)² + regularization (p² + user bias²))

        in the scale of the fit. `predict` and `recommend` know the user from then on. The row of a user who is known is
        replaced: give all ratings of that user. Threads may call this at once, beside `predict` and `recommend`.

        Args:
            users, items, ratings, sample_weight: as in `fit`.
            side: who is folded in, "users" or "items".

        Raises:
            ConfigurationError: nothing is learnt yet or a fit is under way, an unknown id on the other side, no ratings,
                loss="bpr" (use `partial_fit`), or what `fit` refuses.

        >>> users, items = np.divmod(np.arange(400), 20)
        >>> model = MatrixFactorization(factors=4, threads=1).fit(users, items, 1.0 + items % 5)
        >>> bool(model.fold_in([20, 20, 20], [0, 1, 4], [1.0, 2.0, 5.0]).predict(20, 9) > 4)
        True
        """
        self._check_fitted()
        if self.loss == "bpr":
            raise ConfigurationError("fold_in needs loss='squared'; under 'bpr' give the new pairs to partial_fit.")
        users, items, ratings, weights = weighed(triples(users, items, ratings), sample_weight)
        if ratings is None:
            raise ConfigurationError("fold_in needs the ratings.")
        by_user = one_of("side", side, SIDES) == "users"
        new, old = (self._users, self._items) if by_user else (self._items, self._users)
        ids, others = (users, items) if by_user else (items, users)
        known = old.rows(others)
        if (known < 0).any():
            raise ConfigurationError(
                f"the model knows no {SIDES[by_user]} {np.unique(others[known < 0]).tolist()[:5]}, and fold_in makes rows for "
                f"{side} only: fold these in first, or leave their ratings out."
            )
        names, who = np.unique(new.ids.as_known(ids), return_inverse=True)

        def beside(part: NDArray[Any]) -> NDArray[np.float64]:
            ones = np.full((len(part), 1), float(self.biases))
            return np.hstack([old.factors[known[part]], ones])

        targets = (ratings - self.mean_) / self._scale - old.biases[known]
        each = np.ones(len(who)) if weights is None else weights
        solved = fold(who, len(names), beside, targets, each, self.regularization)
        with _change:
            self._check_idle()
            rows = new.put(names, solved)[who]
            self._note(*((rows, known) if by_user else (known, rows)))
        return self

    def _fresh(self) -> None:
        Recommender.__init__(self, self.factors)
        self.threads_ = 0
        self._report: Report | None = None
        self.history_: list[Epoch] = []

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with _change:
            self._check_idle()
            _learning.add(self)
        try:
            yield
        finally:
            _learning.discard(self)

    def _check_idle(self) -> None:
        if self in _learning:
            raise ConfigurationError(
                "this factorisation is learning now, in another thread or around this callback; change it when that is over."
            )

    def _learn(
        self,
        given: tuple[Any, Any, Any],
        sample_weight: Any,
        epochs: int,
        schedule: str,
        validation: Any = None,
        goes_on: bool = False,
    ) -> MatrixFactorization:
        threads = thread_count(self.threads)
        users, items, ratings, weights = weighed(triples(*given), sample_weight)
        users, items = self._users.ids.as_known(users), self._items.ids.as_known(items)  # before anything is learnt
        numbers = self._numbers(users, ratings, weights)
        rng = np.random.default_rng((self.seed, len(self._pairs)))
        self._pairs.append((self._users.learn(users, rng, threads), self._items.learn(items, rng, threads)))
        falling = Falling(rate(schedule, lr=self.lr))
        best = Best(self.early_stopping, lambda: [side.copy_of_table() for side in (self._users, self._items)])
        checkpoint = self._checkpoint(numbers, weights)
        if goes_on:
            self._go_on(checkpoint, falling, best)
        first = len(self.history_)
        training = self._training(numbers, threads, weights)
        layout = training.layout
        if self.model == "auto" and not self.deterministic:
            training.doubt(epochs - first)
        self.threads_, self._report = training.winner, None

        def one(number: int) -> Epoch:
            began = time.perf_counter()
            order = layout.order(self.seed, number)
            before = sum(epoch.examples for epoch in self.history_)
            lrs = lrs_of(falling.rate, layout, order, number, before, epochs * len(numbers))
            loss, done = training.sweep(order, lrs, key_of(self.seed, number))
            seconds = time.perf_counter() - began
            self.threads_ = training.winner
            score = None if validation is None else self.score(*validation)
            loss *= self._scale**2 / weight_of(numbers, weights)
            falling.see(loss)
            best.see(score)
            return Epoch(number, float(lrs[order[-1]]), loss, len(numbers), seconds, tuple(done), score)

        over = falling.over or best.over  # the fit that goes on had come to its end
        run_epochs(
            range(first, first if over else epochs),
            one,
            callbacks=[*self.callbacks, lambda epoch: falling.over or best.over],
            progress=self.progress,
            label="factorisation",
            save=lambda: self._save(checkpoint, falling, best),
            history=self.history_,
        )
        if best.tables is not None:
            self._users.table[:], self._items.table[:] = best.tables
        return self

    @property
    def report_(self) -> Report:
        """How sparse the ratings last learnt from are, what the threads do to each other there, and how fast they were.

        Measured when first asked for, in about half a second.
        """
        if self._report is None:
            self._check_fitted()
            users, items = self._pairs[-1]
            pairs = np.stack([users, items + np.uint32(len(self._users))], axis=1).reshape(-1)
            rows = 2 if self.loss == "squared" else 3
            self._report = measure(
                np.arange(len(users) + 1) * 2,
                pairs,
                len(self._users) + len(self._items),
                threads=self.threads_,
                model="deterministic" if self.deterministic else "shared",
                hot=np.arange(len(self._users)),  # a strip's users are one thread's alone
                epochs=self.history_,
                bytes_per_example=2 * rows * self._users.table.strides[0] + 12,
                seed=self.seed,
            )
        return self._report

    def _numbers(
        self, users: NDArray[Any], ratings: NDArray[np.float32] | None, weights: NDArray[np.float32] | None
    ) -> NDArray[np.float32]:
        """The ratings, whose mean and scale are noted if they are the first; under "bpr" nothing but as many zeros."""
        if self.loss == "bpr":
            if ratings is not None and not (ratings > 0).all():
                at = int(np.flatnonzero(~(ratings > 0))[0])
                raise ConfigurationError(
                    f"rating {at} is {ratings[at]:g}; 'bpr' takes every pair for one that was liked, so a count or weight must "
                    "be above 0: leave the others out."
                )
            return np.zeros(len(users), np.float32)
        if ratings is None:
            raise ConfigurationError(
                "ratings are missing; loss='squared' learns from them, loss='bpr' from pairs alone."
            )
        if not self._pairs:
            self.mean_, deviation = moments(ratings, weights)
            self._scale = deviation or 1.0
        return ratings

    def _training(
        self, numbers: NDArray[np.float32], threads: int = 1, weights: NDArray[np.float32] | None = None
    ) -> Training:
        """Of the pairs that came last."""
        dealt: Any = numbers if weights is None else np.arange(len(numbers))  # of which both columns are then taken
        given, shape = Triples(*self._pairs[-1], dealt), (len(self._users), len(self._items))
        row_bytes = self._users.table.strides[0]

        def lay(given: Triples, shape: tuple[int, int]) -> Layout:
            if self.deterministic:
                return blocks(given, shape, self.seed, threads)
            return strips(given, shape, row_bytes, self.seed, threads)

        few = self.loss == "squared" and len(numbers) < max(shape)
        layout = of_few(given, lay) if few else lay(given, shape)
        if weights is not None:
            dealt = layout.ratings
            layout = replace(layout, ratings=numbers[dealt], weights=weights[dealt])
        if self.loss == "squared":
            standardise(layout.ratings, self.mean_, self._scale, threads)
        step = Step(
            np.float32(self.regularization),
            np.float32(1 / (self.factors + self.biases)),
            self.optimizer == "adagrad",
            bool(self.biases),
        )
        rivals = layout.rivals(self._items.met, self._seen_items()) if self.loss == "bpr" else None
        return Training((self._users.table, self._items.table), layout, step, rivals, threads)

    # Keeping

    def _checkpoint(self, numbers: NDArray[np.float32], weights: NDArray[np.float32] | None) -> Checkpoint:
        names = ("factors", "loss", "optimizer", "lr", "schedule", "regularization", "biases", "deterministic", "seed",
                 *(["epochs"] if self.schedule == "linear" else []))  # fmt: skip
        counts = {"users": len(self._users), "items": len(self._items), "ratings": len(numbers)}
        data = (*self._pairs[-1], numbers, *(() if weights is None else (weights,)))
        return Checkpoint(self, names, data, family="factorisation", **counts)

    def _save(self, checkpoint: Checkpoint, falling: Falling, best: Best) -> None:
        tables = [self._users.table, self._items.table, *(best.tables or ())]
        checkpoint.save(
            dict(zip(_TABLES, tables, strict=False)),
            self.history_,
            falling={"lr": falling.rate.lr, "least": falling.least, "over": falling.over},
            best={"score": best.score, "waited": best.waited},
        )

    def _go_on(self, checkpoint: Checkpoint, falling: Falling, best: Best) -> None:
        """From where the kept fit was."""
        arrays, about, self.history_ = checkpoint.load()
        users, items, *best_tables = (arrays[name] for name in _TABLES if name in arrays)
        self._users.table[:], self._items.table[:] = users, items
        falling.rate.lr, falling.least, falling.over = (about["falling"][name] for name in ("lr", "least", "over"))
        if self.early_stopping and best_tables:
            best.score, best.waited, best.tables = about["best"]["score"], about["best"]["waited"], best_tables

    def score(self, users: Any, items: Any = None, ratings: Any = None) -> float:
        """The larger the better: minus `rmse`, under "bpr" `auc`."""
        return self.auc(users, items, ratings) if self.loss == "bpr" else -self.rmse(users, items, ratings)
