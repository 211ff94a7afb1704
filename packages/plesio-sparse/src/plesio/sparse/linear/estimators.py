"""scikit-learn's SGDClassifier and SGDRegressor on all cores: the settings, and what targets and margins mean."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets

from plesio.errors import ConfigurationError
from plesio.sparse.linear.base import HogwildLinear, check_numbers, checked_weight
from plesio.sparse.linear.losses import CLASSIFICATION, REGRESSION


def _gives_probabilities(estimator: Any) -> bool:
    if estimator.loss not in ("log_loss", "modified_huber"):
        raise AttributeError(
            f"probabilities are there for log_loss and modified_huber, not for loss={estimator.loss!r}."
        )
    return True


class HogwildClassifier(ClassifierMixin, HogwildLinear):
    """A linear classifier on sparse rows, trained by several threads on one model without locks.

    The model and its settings are those of `sklearn.linear_model.SGDClassifier`; for each row x of target y, margin
    m = w·x + b and slope g = ∂loss/∂m, at learning rate η:

        w ← (1 − η·alpha)·w − η·g·x        b ← b − η·g   (on sparse rows 0.01 of it)

    and for L1 the cumulative penalty of Tsuruoka et al. (2009). Several classes are learnt one against all others.
    Threads take chunks of up to 256 neighbouring rows (fewer of small sets), whose order is shuffled in each epoch, and
    do not wait for each other (Niu, Recht, Ré and Wright, 2011). The learning rate is held over a chunk. Rows that
    are sorted by target are shuffled once. Weights are float32, and so are the values of the rows.

    Args:
        loss: "hinge", "log_loss", "modified_huber" or "squared_hinge".
        penalty: "l2", "l1", "elasticnet" or None; times `alpha`, for elasticnet with an `l1_ratio` of L1.
        fit_intercept: whether there is a b.
        max_iter: the most epochs. tol: stop when the mean loss has not fallen by so much for `n_iter_no_change` epochs;
            None: never.
        shuffle: whether chunks are shuffled.
        learning_rate: "optimal", "invscaling", "constant", "adaptive" as in scikit-learn, "linear", or "decay": `eta0`,
            times `decay` after each epoch (the 2011 paper).
        early_stopping: put `validation_fraction` of the rows aside and stop by the score on them.
        class_weight: a dict, "balanced" or None.
        average: True, or the number of rows after which to begin: `coef_` is the mean of the weights after each row.
        warm_start: begin where the last fit ended.
        threads: None for every core.
        model: "shared", one model for all threads; "replica", one for each, merged to the mean after each epoch (best for
            models within the cache); "hot", copies of the most frequent features only, exchanged after each chunk (not
            with L1 or averaging); "auto", "replica" where the model fits the cache and has fewer weights than a replica sees
            non-zeros, else "shared", and one thread where that turns out as fast in the first epochs or the data is small.
            With as many classes as threads or more, "auto" gives threads whole classes.
        deterministic: the same bits for any number of threads: groups of rows without a common feature or, where frequent
            features leave no such groups, four replicas whatever the number of threads. With model="shared" always the
            groups, which frequent features make serial (`verbose` says so).
        callbacks: each is called with an `Epoch` after every epoch; one that returns True ends the fit.
        checkpoint: a folder to keep the fit in after each epoch. resume: a folder to go on from.
        verbose: print a line an epoch. progress: show a bar.

    Attributes:
        coef_, intercept_, classes_, n_iter_, t_: as in SGDClassifier.
        history_: an `Epoch` for each epoch. report_: how threads met. model_, threads_: what "auto" came to.

    Raises:
        ValueError: for data that is not finite, labels of one class, and settings that are not allowed.
        DivergedError: the loss or a weight is not finite; with the epoch, the learning rate, and what to try. A loss that
            is finite and beyond hope ends the fit with a ConvergenceWarning that says the same.

    >>> X, y = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 2.0], [2.0, 0.0]] * 10), ["up", "right"] * 20
    >>> model = HogwildClassifier(loss="log_loss", max_iter=20, tol=None, random_state=0).fit(X, y)
    >>> model.predict([[0.0, 3.0], [3.0, 0.0]]).tolist()
    ['up', 'right']
    """

    _losses = CLASSIFICATION
    classes_: NDArray[Any]

    def __init__(
        self,
        loss: str = "hinge",
        *,
        penalty: str | None = "l2",
        alpha: float = 1e-4,
        l1_ratio: float = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        learning_rate: str = "optimal",
        eta0: float = 0.01,
        power_t: float = 0.5,
        decay: float = 0.9,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        class_weight: Any = None,
        average: bool | int = False,
        warm_start: bool = False,
        random_state: Any = None,
        threads: int | None = None,
        model: str = "auto",
        deterministic: bool = False,
        callbacks: Any = (),
        checkpoint: Any = None,
        resume: Any = None,
        verbose: int = 0,
        progress: bool = False,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HogwildClassifier:
        """Learn from all rows.

        Args:
            X: (rows, features), CSR best; dense and float64 are converted (logged; printed if `verbose`). Or the `Rows` of
                `plesio.sparse.open_rows`, which may be larger than memory.
            y: a label for each row.
            sample_weight: how much each row counts.
        """
        rows, y = self._check_rows(X, y, reset=True)
        check_classification_targets(y)
        classes = np.unique(y)
        warm = self.warm_start and hasattr(self, "coef_") and np.array_equal(classes, self.classes_)
        self.classes_ = classes
        self._begin(rows.features, warm)
        self._fit(rows, y, checked_weight(sample_weight, len(rows)), warm)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> HogwildClassifier:
        """One epoch over these rows, from `coef_`, `intercept_` and settings as they are now. The first call must name all
        `classes`. With `average`, a `coef_` that was set begins a new mean. A "linear" rate does not fall."""
        first = not hasattr(self, "classes_")
        if self.class_weight == "balanced":
            raise ConfigurationError(
                "class_weight='balanced' needs all rows at once; give partial_fit a dict of weights."
            )
        rows, y = self._check_more_rows(X, y)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise ConfigurationError("classes must be given in the first call of partial_fit: all that will come.")
            self.classes_ = np.unique(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise ConfigurationError(f"classes={classes!r} are not those of the first call: {self.classes_!r}.")
        if not np.isin(y, self.classes_).all():
            raise ConfigurationError(f"y has labels that are not among the classes {self.classes_!r}.")
        self._begin(rows.features, warm=hasattr(self, "coef_"), more=True)
        self._fit_on(rows, y, checked_weight(sample_weight, len(rows)))
        return self

    def decision_function(self, X: Any) -> NDArray[Any]:
        """The margins: (rows,) for two classes, else (rows, classes)."""
        margins = self._margins(X)
        return margins[:, 0] if margins.shape[1] == 1 else margins

    def predict(self, X: Any) -> NDArray[Any]:
        """The class of the largest margin."""
        chosen = self._chosen(self._margins(X))
        return self.classes_[chosen]

    @available_if(_gives_probabilities)
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """(rows, classes): the sigmoid of the margin, or for modified_huber a clipped line; several classes in proportion."""
        margins = self._margins(X).astype(np.float64)
        if self.loss == "log_loss":
            each = expit(margins)
        else:
            each = (np.clip(margins, -1, 1) + 1) / 2
        if each.shape[1] == 1:
            return np.hstack([1 - each, each])
        each[each.sum(axis=1) == 0] = 1.0
        return np.asarray(each / each.sum(axis=1, keepdims=True))

    @available_if(_gives_probabilities)
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """The logarithm of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def _begin(self, features: int, warm: bool, more: bool = False) -> None:
        count = len(self.classes_)
        if count < 2:
            raise ConfigurationError(
                f"y has one class, {self.classes_.tolist()}; the number of classes must be at least 2."
            )
        self._new_learners(1 if count == 2 else count, features, warm, more)

    def _targets(self, y: NDArray[Any], weight: NDArray[np.float64]) -> tuple[list[Any], list[Any]]:
        by_class = self._class_weights(y)
        if len(self.classes_) == 2:
            is_second = y == self.classes_[1]
            return [np.where(is_second, 1.0, -1.0)], [weight * np.where(is_second, by_class[1], by_class[0])]
        which = np.searchsorted(self.classes_, y)
        targets, importance = [], []
        for number, class_weight in enumerate(by_class):  # the others count 1, as in scikit-learn
            targets.append(np.where(which == number, 1.0, -1.0))
            importance.append(weight * np.where(which == number, class_weight, 1.0))
        return targets, importance

    def _class_weights(self, y: NDArray[Any]) -> NDArray[np.float64]:
        if self.class_weight is None:
            return np.ones(len(self.classes_))
        return np.asarray(compute_class_weight(self.class_weight, classes=self.classes_, y=y), np.float64)

    def _chosen(self, margins: NDArray[Any]) -> NDArray[np.intp]:
        return (margins[:, 0] > 0).astype(np.intp) if margins.shape[1] == 1 else margins.argmax(axis=1)

    def _score_of(self, margins: NDArray[Any], y: NDArray[Any], weight: NDArray[np.float64]) -> float:
        return float(accuracy_score(y, self.classes_[self._chosen(margins)], sample_weight=weight))


class HogwildRegressor(RegressorMixin, HogwildLinear):
    """A linear regression on sparse rows, trained by several threads on one model without locks.

    The model and its settings are those of `sklearn.linear_model.SGDRegressor`; the rule of learning and all settings
    that are not named here are those of `HogwildClassifier`.

    Args:
        loss: "squared_error" or "huber", which is linear beyond an error of `epsilon`.
        learning_rate: "invscaling" is the default here: eta0 / t^power_t.

    >>> X = np.arange(8.0).reshape(-1, 1) / 8
    >>> model = HogwildRegressor(eta0=0.5, alpha=0, max_iter=500, tol=None, random_state=0).fit(X, 3 * X[:, 0] + 1)
    >>> model.coef_.round(2).tolist(), model.intercept_.round(2).tolist()
    ([3.0], [1.0])
    """

    _losses = REGRESSION

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        penalty: str | None = "l2",
        alpha: float = 1e-4,
        l1_ratio: float = 0.15,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float | None = 1e-3,
        shuffle: bool = True,
        epsilon: float = 0.1,
        learning_rate: str = "invscaling",
        eta0: float = 0.01,
        power_t: float = 0.25,
        decay: float = 0.9,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 5,
        average: bool | int = False,
        warm_start: bool = False,
        random_state: Any = None,
        threads: int | None = None,
        model: str = "auto",
        deterministic: bool = False,
        callbacks: Any = (),
        checkpoint: Any = None,
        resume: Any = None,
        verbose: int = 0,
        progress: bool = False,
    ) -> None:
        self._keep(locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> HogwildRegressor:
        """Learn from all rows; X as in `HogwildClassifier.fit`, y a number for each row."""
        rows, y = self._check_rows(X, y, reset=True)
        warm = self.warm_start and hasattr(self, "coef_")
        self._new_learners(1, rows.features, warm)
        self._fit(rows, y, checked_weight(sample_weight, len(rows)), warm)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> HogwildRegressor:
        """One epoch over these rows, from where the model is: see `HogwildClassifier.partial_fit`."""
        rows, y = self._check_more_rows(X, y)
        self._new_learners(1, rows.features, warm=hasattr(self, "coef_"), more=True)
        self._fit_on(rows, y, checked_weight(sample_weight, len(rows)))
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """The value of the linear function: (rows,)."""
        return self._margins(X)[:, 0]

    def _targets(self, y: NDArray[Any], weight: NDArray[np.float64]) -> tuple[list[Any], list[Any]]:
        targets = np.asarray(y, np.float64)
        check_numbers("y", targets, len(weight))
        return [targets], [weight]

    def _score_of(self, margins: NDArray[Any], y: NDArray[Any], weight: NDArray[np.float64]) -> float:
        return float(r2_score(y, margins[:, 0], sample_weight=weight))

    def _set_results(self) -> None:
        super()._set_results()
        self.coef_ = self.coef_[0]
