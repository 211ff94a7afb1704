"""Sparse linear models against scikit-learn and Vowpal Wabbit: same rows, same epochs, accuracy beside the speed."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from sklearn.linear_model import SGDClassifier

from _hogwild_data import Rows, clicks, debian_sections
from _hogwild_limits import ns_a_nonzero
from _hogwild_race import Fit, Given, faster, points_short, race, scaling, sweep_rate, unless_missing
from _report import Row, interleave, row

EPOCHS = 5
ALPHA = {"log_loss": 1e-6, "hinge": 1e-5}  # the best of 1e-4 ... 1e-7 for scikit-learn
VW = {"log_loss": "logistic", "hinge": "hinge"}
VW_LR = 0.5  # the best of 0.5, 2 and 8
SKLEARN, VOWPAL = "scikit-learn SGDClassifier", "Vowpal Wabbit --sgd"
ONE, TWO = "1 thread", "2 threads"
UNIT = "M samples/s"


def rows(given: Given) -> list[Row]:
    """The real set, then the synthetic one."""
    synthetic = clicks(20_000 if given.quick else 200_000)
    return unless_missing(lambda: sections(given)) + compare(given, "hashed clicks (synthetic, d = 2^24)", *synthetic)


def sections(given: Given) -> list[Row]:
    train, test = debian_sections()
    if given.quick:
        train = train[:5_000]
    return compare(given, f"Debian sections ({len(train):,} rows, d = {train.features:,})", train, test)


def compare(given: Given, name: str, train: Rows, test: Rows) -> list[Row]:
    """All contenders on one data set, for both losses; then the sweeps alone."""
    found: list[Row] = []
    deposit = given.rivals.deposit(deposited(train, test))
    samples = EPOCHS * len(train) / 1e6
    for loss in ALPHA:
        results = race(f"{name} {loss}", contenders(given, loss, train, test, deposit), given.runs)
        label = f"{name}, {loss}"
        found += faster(label, results, ONE, SKLEARN, samples, UNIT, ">= 5")
        found += faster(label, results, ONE, VOWPAL, samples, UNIT, ">= 10")
        found += faster(label, results, TWO, ONE, samples, UNIT, ">= 1.6")
        for mine in (ONE, TWO):
            found += points_short(label, results, mine, SKLEARN, 0.2)
        found += points_short(label, results, ONE, VOWPAL, 0.2)
        if loss == "log_loss":  # hinge writes nothing where the loss is flat: a bound on all rows is none for it
            found += in_sweeps(given, name, train)
    return found


def contenders(given: Given, loss: str, train: Rows, test: Rows, deposit: Any) -> dict[str, Fit]:
    from plesio.sparse.linear import HogwildClassifier

    def settings(seed: int) -> dict[str, Any]:
        return {"loss": loss, "alpha": ALPHA[loss], "max_iter": EPOCHS, "tol": None, "random_state": seed}

    def vowpal_wabbit() -> tuple[float, float]:
        answer = given.rivals.ask(
            "vowpal_wabbit", deposit, loss=VW[loss], epochs=EPOCHS, lr=VW_LR, power_t=0.0, classic=True
        )
        return float(answer["seconds"]), float(answer["accuracy"])

    return {
        ONE: fit(lambda seed: HogwildClassifier(**settings(seed), threads=1), train, test),
        TWO: fit(lambda seed: HogwildClassifier(**settings(seed), threads=2), train, test),
        SKLEARN: fit(lambda seed: SGDClassifier(**settings(seed)), train, test),
        VOWPAL: vowpal_wabbit,
    }


def fit(make: Callable[[int], Any], train: Rows, test: Rows) -> Fit:
    """Fit what `make` makes of a seed, another one each time, on CSR matrices that are ready."""
    x, x_test = matrix(train), matrix(test)
    seeds = itertools.count()

    def once() -> tuple[float, float]:
        model = make(next(seeds))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scikit-learn's: 5 epochs may not have converged
            start_s = time.perf_counter()
            model.fit(x, train.labels)
            seconds = time.perf_counter() - start_s
        return seconds, float(np.mean(model.predict(x_test) == test.labels))

    return once


def in_sweeps(given: Given, name: str, train: Rows) -> list[Row]:
    """The sweeps alone: what a second thread gains, and nanoseconds a non-zero against the bare memory traffic's."""
    from plesio.sparse.linear import HogwildClassifier

    x, label = matrix(train), f"{name}, log_loss"

    def fitted(threads: int) -> Any:
        settings: dict[str, Any] = {"alpha": 1e-6, "max_iter": EPOCHS, "tol": None, "random_state": 0}
        return HogwildClassifier("log_loss", **settings, threads=threads).fit(x, train.labels)

    def ours() -> float:
        return 1e9 * len(train) / sweep_rate(fitted(1)) / len(train.indices)

    results = interleave({"ours": ours, "bare": lambda: ns_a_nonzero(train)}, given.runs, f"{label} ns a non-zero")
    bare = {"against": "bare stream, gather, scatter", "against_values": results["bare"]}
    near = row(f"{label}: sweeps alone, {ONE}, a non-zero", results["ours"], "ns", **bare)
    return [scaling(label, fitted, given.runs), near]


def matrix(part: Rows) -> csr_matrix:
    """As SciPy wants it: int32 indices."""
    shape = (len(part), part.features)
    return csr_matrix((part.values, part.indices.astype(np.int32), part.indptr.astype(np.int32)), shape=shape)


def deposited(train: Rows, test: Rows) -> dict[str, NDArray[Any]]:
    parts = {"train": train, "test": test}
    names = ("indptr", "indices", "values", "labels")
    arrays = {f"{part}_{name}": getattr(held, name) for part, held in parts.items() for name in names}
    return {**arrays, "features": np.array(train.features)}
