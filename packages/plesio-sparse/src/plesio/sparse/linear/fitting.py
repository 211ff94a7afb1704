"""From an estimator's settings and checked rows to a fitted model: what happens inside `fit` and `partial_fit`."""

from __future__ import annotations

import math
import warnings
from collections import ChainMap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state

from plesio.errors import ConfigurationError, unknown_name
from plesio.sparse import saving
from plesio.sparse.csr import Rows
from plesio.sparse.epochs import DivergedError, Epoch, run_epochs
from plesio.sparse.linear.deals import LARGEST_CHUNK, are_clumped
from plesio.sparse.linear.kernels import FLAT, Rules
from plesio.sparse.linear.losses import LOG
from plesio.sparse.linear.plans import Learner, Penalty
from plesio.sparse.linear.training import Problem, Training
from plesio.sparse.linear.ways import Settings
from plesio.sparse.rates import rate
from plesio.sparse.threads import thread_count

PENALTIES = ("elasticnet", "l1", "l2", None)
_SPARSE_INTERCEPT_RATE = 0.01  # an intercept is in every row, a sparse feature in few: scikit-learn's factor
_COPIED_AT_ONCE = 1 << 17  # non-zeros
_LONGEST_DECAY = 8.0  # a chunk may shrink the weights by e^-8, or float32 would not hold them unshrunk
_MUST_AGREE = ("loss", "penalty", "alpha", "l1_ratio", "epsilon", "fit_intercept", "average", "shuffle", "learning_rate", "eta0",
               "power_t", "decay")  # fmt: skip
_LIMITS = {
    "alpha": (0, math.inf),
    "l1_ratio": (0, 1),
    "max_iter": (1, math.inf),
    "n_iter_no_change": (1, math.inf),
    "validation_fraction": (1e-9, 1 - 1e-9),
    "average": (0, math.inf),
    "epsilon": (0, math.inf),
}
_WHOLE = ("max_iter", "n_iter_no_change")


@dataclass(frozen=True)
class HeldOut:
    """Rows to score the model on, in pieces that fit into memory, and all of their targets and weights."""

    pieces: Callable[[], Iterable[Rows]]
    y: NDArray[Any]
    weight: NDArray[np.float64]


def _pieces(rows: Rows, which: NDArray[np.intp]) -> Callable[[], Iterable[Rows]]:
    """Copies mapped rows, a few at a time."""
    few = max(1, _COPIED_AT_ONCE * len(rows) // max(rows.nonzeros, 1))
    return lambda: (rows.take(which[first : first + few]) for first in range(0, len(which), few))


class Fitting(BaseEstimator):
    """The part of an estimator that fits; the estimator itself interprets the targets."""

    _losses: dict[str, int]
    _learners: list[Learner]
    coef_: Any
    intercept_: NDArray[np.float64]

    def _keep(self, given: dict[str, Any]) -> None:
        """The arguments of `__init__`, each under its name."""
        self.__dict__.update({name: value for name, value in given.items() if name != "self"})

    def _targets(self, y: NDArray[Any], weight: NDArray[np.float64]) -> tuple[list[Any], list[Any]]:
        """For each learner the targets and the importance of every row."""
        raise NotImplementedError

    def _score_of(self, margins: NDArray[Any], y: NDArray[Any], weight: NDArray[np.float64]) -> float:
        raise NotImplementedError

    def _new_learners(self, count: int, features: int, warm: bool, more: bool = False) -> None:
        """Learners at zero, or if `warm` at the coefficients that are there now; for `more` rows, with what they had seen."""
        self._check_settings()
        goes_on = more and warm and self.average and self._is_as_left()
        coef, intercept = np.zeros((count, features), np.float32), np.zeros(count)
        if warm:
            coef, intercept = self._coef_now(coef.shape)
        if not goes_on:
            self._weights = coef
        settings = {"alpha": float(self.alpha), "power_t": self.power_t, "decay": self.decay}
        schedule = "constant" if more and self.learning_rate == "linear" else self.learning_rate  # nobody knows its end
        with_l1 = features if self.penalty in ("l1", "elasticnet") else 0
        averaged = features if self.average else 0
        learners = [
            Learner(
                weights,
                intercept[k : k + 1],
                rate(schedule, lr=self.eta0, **settings),
                seen=int(getattr(self, "t_", 1)) - 1 if more else 0,
                paid=np.zeros(with_l1, np.float32),
                lag=np.zeros(averaged, np.float32),
                total=np.zeros(averaged),
            )
            for k, weights in enumerate(self._weights)
        ]
        for now, was in zip(learners, self._learners if goes_on else (), strict=False):
            now.intercept, now.total, now.total_intercept = was.intercept, was.total, was.total_intercept
            now.averaged = was.averaged
        self._learners = learners
        self._passes = getattr(self, "_passes", 0) if more else 0

    def _is_as_left(self) -> bool:
        """Whether `coef_` and `intercept_` are the averages that the last call made: then averaging goes on."""
        made = [learner.result() for learner in getattr(self, "_learners", ())]
        coef, intercept = np.array([one for one, _ in made], np.float32), [one for _, one in made]
        same = np.array_equal(np.atleast_2d(self._dense_coef()), coef)
        return same and np.array_equal(np.ravel(self.intercept_), intercept)

    def _coef_now(self, shape: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
        """Copies of `coef_` and `intercept_`, whoever set them."""
        coef = np.atleast_2d(np.array(self._dense_coef(), np.float32))
        intercept = np.array(self.intercept_, float).ravel()
        if coef.shape != shape or intercept.shape != shape[:1] or not np.isfinite(coef).all():
            raise ConfigurationError(
                f"coef_ has shape {coef.shape}, intercept_ {intercept.shape}; allowed: finite numbers, {shape} and {shape[:1]}."
            )
        return coef, intercept

    def _dense_coef(self) -> NDArray[np.float32]:
        return self.coef_.toarray() if hasattr(self.coef_, "toarray") else self.coef_  # type: ignore[no-any-return]

    def _fit(self, rows: Rows, y: NDArray[Any], weight: NDArray[np.float64], warm: bool) -> None:
        """All epochs, with the learners as `_new_learners` made them."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self.resume is not None:
            seed = saving.load(self.resume)[1].get("seed", seed)
        problem, held_out = self._hold_out(rows, y, weight, seed)
        if self.shuffle and not rows.mapped and are_clumped(problem.targets[0]):
            problem = problem.shuffled(seed)
        read_on_the_way = any(one is not None for one in (held_out, self.checkpoint, self.resume))
        training = self._training(problem, range(self.max_iter), seed, cold=not (warm or read_on_the_way))
        self._run(training, problem, range(self.max_iter), seed, held_out)
        if len(self.history_) == self.max_iter > 1 and self.tol is not None and not self._stop.said:
            warnings.warn(
                f"max_iter={self.max_iter} epochs were not enough for the loss to settle: raise max_iter, "
                "or set tol=None for exactly so many.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _fit_on(self, rows: Rows, y: NDArray[Any], weight: NDArray[np.float64]) -> None:
        """One epoch more, over other rows."""
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        epochs = range(self._passes, self._passes + 1)
        problem = self._problem(rows, y, weight)
        self._run(self._training(problem, epochs, seed, cold=False), problem, epochs, seed)

    def _training(self, problem: Problem, epochs: range, seed: int, cold: bool) -> Training:
        training = Training(problem, self._learners, self._settings(problem, len(epochs), seed, cold))
        way = training.way
        perhaps = ", or one if that is as fast" if way.contested else ""
        self._tell(f"{type(self).__name__}: {way.model} model, {way.threads} threads{perhaps}", way.remark)
        self._tell(*(f"converted {note}" for note in problem.rows.notes))
        return training

    def _run(
        self, training: Training, problem: Problem, epochs: range, seed: int, held_out: HeldOut | None = None
    ) -> None:
        """Do the epochs after the checkpoint's, and set the attributes of a fitted model."""
        names = (*_MUST_AGREE, *(["max_iter"] if self.learning_rate == "linear" else []))
        names = tuple(name for name in names if hasattr(self, name))
        checkpoint = saving.Checkpoint(self, names, problem.arrays, shape=[len(problem), problem.rows.features])
        history: list[Epoch] = []
        if self.resume is not None:
            arrays, about, history = checkpoint.load()
            for k, (learner, numbers) in enumerate(zip(self._learners, about["learners"], strict=True)):
                learner.restore(k, arrays, numbers)

        def one(number: int) -> Epoch:
            epoch = training.epoch(number)
            return epoch if held_out is None else replace(epoch, score=self._held_out_score(held_out))

        def save() -> None:
            kept, numbers = zip(*(learner.kept(k) for k, learner in enumerate(self._learners)), strict=True)
            checkpoint.save(dict(ChainMap(*kept)), history, seed=seed, learners=numbers)

        self._stop = stop = Stop(training, self.tol if held_out else None, self.n_iter_no_change)
        try:
            if True not in [stop(epoch) for epoch in history]:
                callbacks = [self._tell_epoch, *self.callbacks, stop]
                label, shown = type(self).__name__, bool(self.progress)
                rest = epochs[len(history) :]
                run_epochs(rest, one, callbacks=callbacks, progress=shown, label=label, save=save, history=history)
        finally:
            training.close()
        if training.hopeless:
            warnings.warn(
                f"the loss is {history[-1].loss:.3g} after epoch {history[-1].number} at learning rate {history[-1].lr:.3g}: "
                f"the model diverged{' and the fit stopped' if training.diverged else ''}. {self._advice}",
                ConvergenceWarning,
                stacklevel=4,
            )
        self.model_, self.threads_ = training.winner
        self._passes = epochs.start + len(history)
        self.history_, self.n_iter_ = history, len(history)
        self._set_results()
        self._fitted_rows: Any = problem.rows
        self.__dict__.pop("_report", None)

    def _set_results(self) -> None:
        results = [learner.result() for learner in self._learners]
        averaged = any(learner.averaged for learner in self._learners)
        self.coef_ = np.array([weights for weights, _ in results], np.float32) if averaged else self._weights
        self.intercept_ = np.array([intercept for _, intercept in results])
        self.t_ = 1.0 + max(learner.seen for learner in self._learners)
        for learner in self._learners:
            learner.weights = np.zeros(0, np.float32)  # they are rows of self._weights, and must not be pickled twice
        if not (all(learner.finite for learner in self._learners) and np.isfinite(self.intercept_).all()):
            raise DivergedError(
                f"the weights are not finite after {self.n_iter_} epochs at learning rate {self.history_[-1].lr:g}: "
                f"the model diverged. {self._advice}"
            )

    @property
    def _advice(self) -> str:
        if self.learning_rate == "optimal":  # knows no eta0
            return (
                "Try a larger alpha, or learning_rate='invscaling' with a small eta0, or scale the features to about 1."
            )
        return "Try a smaller eta0, or scale the features to about 1."

    def _hold_out(
        self, rows: Rows, y: NDArray[Any], weight: NDArray[np.float64], seed: int
    ) -> tuple[Problem, HeldOut | None]:
        """Put `validation_fraction` of the rows aside for early stopping, of each class in proportion."""
        if not self.early_stopping:
            return self._problem(rows, y, weight), None
        classes = y if hasattr(self, "classes_") else None
        train, test = train_test_split(
            np.arange(len(rows)), test_size=self.validation_fraction, random_state=seed, stratify=classes
        )
        train.sort()  # neighbours stay neighbours
        if rows.mapped:  # may be larger than memory: they stay where they are
            test.sort()
            problem = replace(self._problem(rows, y, weight), places=train.astype(np.uint32))
            return problem, HeldOut(_pieces(rows, test), y[test], weight[test])
        copied = rows.take(test)
        held_out = HeldOut(lambda: [copied], y[test], weight[test])
        return self._problem(rows.take(train), y[train], weight[train]), held_out

    def _problem(self, rows: Rows, y: NDArray[Any], weight: NDArray[np.float64]) -> Problem:
        return Problem(rows, *self._targets(y, weight), np.arange(len(rows), dtype=np.uint32))

    def _held_out_score(self, held_out: HeldOut) -> float:
        weights, biases = zip(*(learner.result() for learner in self._learners), strict=True)
        columns = np.array(weights).T
        margins = np.concatenate([rows.scipy() @ columns for rows in held_out.pieces()])
        return self._score_of(margins + biases, held_out.y, held_out.weight)

    def _settings(self, problem: Problem, epochs: int, seed: int, cold: bool) -> Settings:
        by_loss = not self.early_stopping and self.tol is not None and self.tol != -math.inf
        penalty = Penalty.named(self.penalty, float(self.alpha), float(self.l1_ratio))
        loss, first = self._losses[self.loss], self._learners[0]
        decay = penalty.l2 * first.rate.at(0, first.seen, len(problem) * epochs)
        rules = Rules(
            loss=loss,
            epsilon=float(getattr(self, "epsilon", 0.0)),
            intercept_rate=(1.0 if problem.rows.dense else _SPARSE_INTERCEPT_RATE) if self.fit_intercept else 0.0,
            truncation=penalty.l1,
            flat=FLAT * math.sqrt(penalty.l2) if loss == LOG else 0.0,
            prefetched=False,
            held=False,
        )
        return Settings(
            rules=rules,
            penalty=penalty,
            epochs=epochs,
            tol=float(self.tol) if by_loss else None,
            n_iter_no_change=self.n_iter_no_change,
            average_from=int(self.average) - 1 if self.average else None,
            shuffle=bool(self.shuffle),
            seed=seed,
            model=self.model,
            threads=thread_count(self.threads),
            deterministic=bool(self.deterministic),
            cold=cold,
            largest_chunk=max(1, int(_LONGEST_DECAY / max(decay, _LONGEST_DECAY / LARGEST_CHUNK))),
        )

    def _check_settings(self) -> None:
        if self.loss not in self._losses:
            raise ConfigurationError(unknown_name("loss", str(self.loss), self._losses))
        if self.penalty not in PENALTIES:
            raise ConfigurationError(unknown_name("penalty", str(self.penalty), map(str, PENALTIES)))
        for name, (least, most) in _LIMITS.items():
            kind, value = Integral if name in _WHOLE else Real, getattr(self, name, least)
            if not isinstance(value, kind) or not least <= float(value) <= most:
                what = "a whole number from " if kind is Integral else ""
                raise ConfigurationError(f"{name}={value!r} is not allowed; allowed is {what}{least} to {most}.")

    def _tell(self, *lines: str) -> None:
        for line in lines:
            if self.verbose and line:
                print(line)

    def _tell_epoch(self, epoch: Epoch) -> None:
        score = "" if epoch.score is None else f", score {epoch.score:.4f}"
        speed = epoch.examples / max(epoch.seconds, 1e-9)
        self._tell(f"epoch {epoch.number}: loss {epoch.loss:.6g}{score}, lr {epoch.lr:.3g}, {speed:,.0f} rows/s")


class Stop:
    """Whether it is time to stop: every learner's loss has settled, or the validation score has."""

    def __init__(self, training: Training, score_tol: float | None, patience: int) -> None:
        self._training = training
        self._tol, self._patience = score_tol, patience
        self._best, self._idle = -math.inf, 0
        self.said = False

    def __call__(self, epoch: Epoch) -> bool:
        if epoch.score is not None and self._tol is not None:
            self._idle = self._idle + 1 if epoch.score < self._best + self._tol else 0
            self._best = max(self._best, epoch.score)
        self.said = self._idle >= self._patience or self._training.finished
        return self.said
