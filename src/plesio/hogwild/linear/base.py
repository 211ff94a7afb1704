"""What the classifier and the regressor share besides fitting: checks of the data, margins, forms of the result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import check_is_fitted, validate_data

from plesio.errors import ConfigurationError
from plesio.hogwild.csr import Rows, as_rows
from plesio.hogwild.linear.fitting import Fitting
from plesio.hogwild.linear.layouts import hottest
from plesio.hogwild.threads import thread_count


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

    def _dense_coef(self) -> NDArray[np.float32]:
        return self.coef_.toarray() if hasattr(self.coef_, "toarray") else self.coef_  # type: ignore[no-any-return]

    @property
    def report_(self) -> Any:
        """How sparse the data was, how often threads met, how fast they were: see `plesio.hogwild.Report`.

        Measured when first asked for, on the rows of the last fit; a pickled model has it only if it was asked for.
        """
        check_is_fitted(self)
        if "_report" not in self.__dict__:
            if "_fitted_rows" not in self.__dict__:
                raise ConfigurationError("this model came without its rows; ask for report_ where it was fitted.")
            self._report = self._measured(self._fitted_rows)
        return self._report

    def _measured(self, rows: Rows) -> Any:
        from plesio.hogwild.report import measure

        keys, slots = hottest(rows)
        touched = rows.nonzeros / max(len(rows), 1)
        return measure(
            rows.indptr,
            rows.indices,
            rows.features,
            threads=self.threads_,
            model="deterministic" if self.deterministic else self.model_,
            hot=keys[slots] if self.model_ == "hot" else None,
            epochs=self.history_,
            bytes_per_example=20 * touched + 40,  # index, value, weight, the weight written; a row's pointer and target
        )

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
        return X, np.asarray(y)

    def _check_width(self, rows: Rows) -> None:
        if rows.features != self.n_features_in_:
            raise ConfigurationError(f"the rows have {rows.features} features, the model has {self.n_features_in_}.")

    def _margins(self, X: Any) -> NDArray[Any]:
        """What the linear functions give: shape (rows, learners)."""
        check_is_fitted(self)
        if isinstance(X, Rows):
            self._check_width(X)
            X = X.scipy()
        else:
            X = validate_data(self, X, accept_sparse="csr", dtype=[np.float32, np.float64], reset=False)
        coef = self.coef_ if self.coef_.ndim == 2 else self.coef_.reshape(1, -1)
        return np.asarray(safe_sparse_dot(X, coef.T, dense_output=True) + self.intercept_)


def checked_weight(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """One weight for each row: ones if none are given."""
    if sample_weight is None:
        return np.ones(rows)
    weight = np.asarray(sample_weight, np.float64)
    if weight.ndim == 0:
        weight = np.full(rows, float(weight))
    if weight.shape != (rows,) or not np.isfinite(weight).all():
        raise ConfigurationError(
            f"sample_weight has the shape {weight.shape}; wanted are {rows} finite numbers, one for each row."
        )
    if not weight.any():
        raise ConfigurationError("every sample_weight is zero; at least one row must count.")
    return weight
