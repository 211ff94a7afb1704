"""Settings of estimators: NumPy numbers are accepted, nonsense is refused; and their repr."""

from __future__ import annotations

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

from plesio.errors import ConfigurationError
from plesio.sparse import Kernel, MatrixFactorization, SkipGram
from plesio.sparse.epochs import run_epochs


class Weights(NamedTuple):
    w: Any


def add(parameters: Any, example: Any, lr: float) -> None:
    parameters.w[0] += lr * example


def kernel(**settings: Any) -> Kernel:
    return Kernel(add, {"w": np.zeros(1)}, **{"lr": 1.0, "threads": 1} | settings)


@pytest.mark.parametrize(
    ("estimator", "whole"),
    [
        (MatrixFactorization, ("factors", "epochs", "seed", "early_stopping")),
        (SkipGram, ("vector_size", "window", "min_count", "negative", "epochs", "seed")),
        (kernel, ("epochs", "chunk", "seed")),
    ],
)
def test_integer_settings_accept_numpy_integers_only(estimator: Any, whole: tuple[str, ...]) -> None:
    made = estimator(**{name: np.int64(3) for name in whole}, lr=np.float32(0.5))
    assert [(type(getattr(made, name)), getattr(made, name)) for name in whole] == [(int, 3)] * len(whole)
    assert (type(made.lr), made.lr) == (float, 0.5)
    for name in whole:
        for value in (True, 1.5, "3", None, -1):
            with pytest.raises(ConfigurationError, match=f"{name}={value!r}: allowed is a whole number of at least"):
                estimator(**{name: value})


@pytest.mark.parametrize(
    ("estimator", "numbers"),
    [
        (MatrixFactorization, ("lr", "regularization")),
        (SkipGram, ("lr", "min_lr", "sample", "ns_exponent")),
        (kernel, ("lr",)),
    ],
)
def test_float_settings_refuse_other_types(estimator: Any, numbers: tuple[str, ...]) -> None:
    for name in numbers:
        for value in ("a", True, [0.1]):
            with pytest.raises(ConfigurationError, match=f"{name}=.*: allowed is a number"):
                estimator(**{name: value})
    with pytest.raises(ConfigurationError, match=r"lr=<function .*: allowed is a number"):
        estimator(lr=lambda epoch: 0.1)


@pytest.mark.parametrize("estimator", [MatrixFactorization, SkipGram, kernel])
def test_callbacks_must_be_a_list_of_functions(estimator: Any) -> None:
    for callbacks in (print, None, 3):
        with pytest.raises(
            ConfigurationError, match=r"callbacks=.*: allowed is a list of functions, such as \[print\]"
        ):
            estimator(callbacks=callbacks)
    with pytest.raises(ConfigurationError, match="callbacks holds 'print': allowed are functions"):
        estimator(callbacks=["print"])
    with pytest.raises(ConfigurationError, match="callbacks="):
        run_epochs(range(0), lambda number: None, callbacks=print)  # type: ignore[arg-type, return-value]


def test_repr_shows_settings_that_differ_from_defaults() -> None:
    assert repr(SkipGram()) == "SkipGram()"
    assert repr(MatrixFactorization()) == "MatrixFactorization(regularization=0.08)"  # what None came to
    made = MatrixFactorization(8, loss="bpr", regularization=0.02, deterministic=True, callbacks=[print])
    assert repr(made) == (
        "MatrixFactorization(factors=8, loss='bpr', regularization=0.02, deterministic=True, callbacks=[print])"
    )
    assert repr(SkipGram(window=3, lr=0.05, threads=2)) == "SkipGram(window=3, lr=0.05, threads=2)"
    assert repr(kernel(epochs=3)) == "Kernel(update=add, parameters={'w': float64[1]}, epochs=3, lr=1.0, threads=1)"
    assert repr(Kernel(add, Weights(np.zeros((2, 3))))) == "Kernel(update=add, parameters=Weights(w=float64[2, 3]))"


def test_fitted_attributes_are_missing_before_fit() -> None:
    for name in ("wv", "history_", "model_", "threads_"):
        assert not hasattr(SkipGram(), name)
    assert pickle.loads(pickle.dumps(SkipGram(window=3))).window == 3


@pytest.mark.parametrize("parameters", [{"w": np.zeros(1)}, Weights(np.zeros(1))], ids=["dict", "named tuple"])
def test_a_fitted_kernel_can_be_pickled_and_continued(parameters: Any) -> None:
    fitted = Kernel(add, parameters, lr=1.0, epochs=1, threads=1).fit(np.ones(5))
    for again in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert again.history_ == fitted.history_
        assert type(again.parameters) is type(parameters)
        again.fit(np.ones(5))
        after, before = (one["w"] if isinstance(one, dict) else one.w for one in (again.parameters, parameters))
        assert (after.tolist(), before.tolist()) == ([10.0], [5.0])
