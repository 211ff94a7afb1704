"""The common parts of classifier and regressor but for fitting: checks of the data, margins, forms of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from plesio.errors import ConfigurationError
from plesio.sparse.csr import Rows, as_rows, check_mapped
from plesio.sparse.linear.fitting import Fitting
from plesio.sparse.linear.layouts import hottest
from plesio.sparse.report import measure
from plesio.sparse.threads import thread_count


class HogwildLinear(Fitting):
    """Base of the two estimators."""

    def sparsify(self) -> Any:
        """Keep `coef_` as a sparse matrix: smaller, where L1 made most of it zero."""
        import scipy.sparse as sparse

        check_is_fitted(self)
        self.coef_ = sparse.csr_matrix(self.coef_)
        return self

    def densify(self) -> Any:
        """Keep `coef_` as an array again."""
        check_is_fitted(self)
        self.coef_ = self._dense_coef()
        return self

    def to_torch(self) -> Any:
        """An equal `torch.nn.Linear`, on dense rows: to train on under `ps.hogwild()`, or inside a larger model."""
        import torch

        check_is_fitted(self)
        weights = np.atleast_2d(self._dense_coef())
        module = torch.nn.Linear(weights.shape[1], weights.shape[0])
        with torch.no_grad():
            module.weight.copy_(torch.from_numpy(np.array(weights, np.float32)))
            module.bias.copy_(torch.from_numpy(np.array(self.intercept_, np.float32)))
        return module

    @property
    def report_(self) -> Any:
        """How sparse the data was, how often threads met, how fast they were: see `plesio.sparse.Report`.

        Measured when first asked for, on the rows of the last fit; a pickled model has it only if it was asked for.
        """
        check_is_fitted(self)
        if "_report" not in self.__dict__:
            if "_fitted_rows" not in self.__dict__:
                raise ConfigurationError("this model came without its rows; ask for report_ where it was fitted.")
            rows = self._fitted_rows
            keys, slots = hottest(rows)
            touched = rows.nonzeros / max(len(rows), 1)
            self._report = measure(
                rows.indptr,
                rows.indices,
                rows.features,
                threads=self.threads_,
                model="deterministic" if self.deterministic else self.model_,
                hot=keys[slots] if self.model_ == "hot" else None,
                epochs=self.history_,
                bytes_per_example=20 * touched
                + 40,  # index, value, weight read and written; a row's pointer and target
            )
        return self._report

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_fitted_rows", "_stop")
        return {name: value for name, value in super().__getstate__().items() if name not in left_out}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_rows(self, X: Any, y: Any, reset: bool) -> tuple[Rows, NDArray[Any]]:
        if not isinstance(X, Rows):
            dense = not hasattr(X, "tocsr")  # of sparse ones `as_rows` looks at every value anyway
            kinds: Any = {"accept_sparse": "csr", "dtype": [np.float32, np.float64], "ensure_all_finite": dense}
            X, y = validate_data(self, X, y, reset=reset, **kinds)
            return as_rows(X, thread_count(self.threads, warned=True)), y  # by the fit, a line further on
        if reset:
            self.n_features_in_ = X.features
        self._check_width(X)
        if y is None or len(y) != len(X):
            raise ConfigurationError(f"{len(X)} rows need as many targets; got {'none' if y is None else len(y)}.")
        if X.mapped:
            check_mapped(X, thread_count(self.threads, warned=True))
        return X, np.asarray(y)

    def _check_more_rows(self, X: Any, y: Any) -> tuple[Rows, NDArray[Any]]:
        if self.early_stopping:
            raise ConfigurationError("early_stopping needs several epochs; partial_fit does one: set it to False.")
        return self._check_rows(X, y, reset=not hasattr(self, "n_features_in_"))

    def _check_width(self, rows: Rows) -> None:
        if rows.features != self.n_features_in_:
            raise ConfigurationError(f"the rows have {rows.features} features, the model has {self.n_features_in_}.")

    def _margins(self, X: Any) -> NDArray[Any]:
        """The values of the linear functions: shape (rows, learners)."""
        check_is_fitted(self)
        if isinstance(X, Rows):
            self._check_width(X)
            X = X.scipy()
        else:
            X = validate_data(self, X, accept_sparse="csr", dtype=[np.float32, np.float64], reset=False)
            _check_indices(X)
        coef = self.coef_ if self.coef_.ndim == 2 else self.coef_.reshape(1, -1)
        return np.asarray(safe_sparse_dot(X, coef.T, dense_output=True) + self.intercept_)


def _check_indices(X: Any) -> None:
    """SciPy's product looks at no bounds either."""
    if hasattr(X, "indices") and X.nnz and not 0 <= X.indices.min() <= X.indices.max() < X.shape[1]:
        raise ConfigurationError(
            f"column indices from {X.indices.min()} to {X.indices.max()} in a matrix of {X.shape[1]} columns."
        )


def checked_weight(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """One weight for each row: ones if none are given."""
    if sample_weight is None:
        return np.ones(rows)
    weight = np.asarray(sample_weight, np.float64)
    if weight.ndim == 0:
        weight = np.full(rows, float(weight))
    check_numbers("sample_weight", weight, rows)
    if not weight.any():
        raise ConfigurationError("every sample_weight is zero; at least one row must count.")
    return weight


def check_numbers(name: str, numbers: NDArray[np.float64], rows: int) -> None:
    """Raise ConfigurationError unless these are one finite number for each row."""
    if numbers.shape != (rows,):
        raise ConfigurationError(f"{name} has the shape {numbers.shape}; wanted are {rows} numbers, one for each row.")
    if not np.isfinite(numbers).all():
        at = int(np.flatnonzero(~np.isfinite(numbers))[0])
        raise ConfigurationError(f"{name} holds {numbers[at]} at row {at}; wanted are finite numbers.")
