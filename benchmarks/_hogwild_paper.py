"""The table of Niu, Recht, Ré and Wright (2011), its figure 2: their rates on 10 cores beside ours on this machine.

Their data is not to be had, so every problem here is synthetic, of the same shape, and scaled down as its row says. A rate,
examples/s over all epochs, bears scaling where seconds do not; theirs is examples x 20 epochs / their seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from _hogwild_data import synthetic_ratings
from _hogwild_race import Given, sweep_rate
from _report import Row, progress, row

EPOCHS = 20  # theirs


@dataclass(frozen=True, slots=True)
class Problem:
    """One line of their table: examples of an epoch, their seconds for 20, and their rho and Delta."""

    name: str
    examples: float | None
    seconds: float
    rho: float
    delta: float
    build: Callable[[float], Callable[[int], Any]]
    """For a scale: what fits with so many threads, and returns the fitted model."""
    scale: float


def rows(given: Given) -> list[Row]:
    found: list[Row] = []
    for problem in PROBLEMS:
        scale = problem.scale / (20 if given.quick else 1)
        progress.print(f"2011 paper: {problem.name}, at 1/{1 / scale:.0f} of its size")
        found += compare(problem, problem.build(scale), scale, given.runs)
    return found


def compare(problem: Problem, fit: Callable[[int], Any], scale: float, runs: int) -> list[Row]:
    """Our rate with 2 threads beside theirs with 10; then what 2 threads gain over 1; then how sparse the problem is."""
    fit(2)  # compiles
    fits: dict[int, list[Any]] = {1: [], 2: []}
    for _ in range(runs):
        for threads, fitted in fits.items():
            fitted.append(fit(threads))
    rates = {threads: [sweep_rate(each) / 1e6 for each in fitted] for threads, fitted in fits.items()}
    label = f"2011 {problem.name} (synthetic, 1/{1 / scale:.0f} of it)"
    theirs = None if problem.examples is None else EPOCHS * problem.examples / problem.seconds / 1e6
    found = [
        row(
            f"{label}: 2 threads",
            rates[2],
            "M examples/s",
            against=f"theirs, 10 cores, {problem.seconds:,} s" + ("" if theirs else " (examples not published)"),
            against_values=[theirs] * runs if theirs else (),
        ),
        row(f"{label}: 2 threads", rates[2], "M examples/s", against="1 thread", against_values=rates[1]),
    ]
    report = getattr(fits[2][-1], "report_", None)
    if report is not None:
        found.append(row(f"{label}: rho", [report.rho], "share", against="theirs", against_values=[problem.rho]))
        found.append(row(f"{label}: Delta", [report.delta], "share", against="theirs", against_values=[problem.delta]))
    return found


# --- support vector machine --------------------------------------------------------------------------------------------


def rcv1(scale: float) -> Callable[[int], Any]:
    """Rows of about 76 of 47,236 log-uniform features, hinge loss."""
    from plesio.sparse.linear import HogwildClassifier

    rng = np.random.default_rng(0)
    features, count = 47_236, int(781_265 * scale)
    drawn = np.sort((features ** rng.random((count, 100), np.float32)).astype(np.int32), axis=1)
    kept = np.diff(drawn, axis=1, prepend=-1) > 0  # a feature drawn twice is there once
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    values = np.repeat(kept.sum(axis=1) ** -0.5, kept.sum(axis=1)).astype(np.float32)
    x = csr_matrix((values, drawn[kept], indptr), shape=(count, features))
    y = np.sign(x @ rng.standard_normal(features) + 1e-9)

    def fit(threads: int) -> Any:
        model = HogwildClassifier(
            loss="hinge", learning_rate="decay", eta0=0.1, max_iter=EPOCHS, tol=None, threads=threads, random_state=0
        )
        return model.fit(x, y)

    return fit


# --- matrix completion -------------------------------------------------------------------------------------------------


def completion(
    ratings: float, shape: tuple[int, int], factors: int, skew: tuple[float, float]
) -> Callable[[float], Callable[[int], Any]]:
    """Ratings by a hidden model; plain SGD whose rate falls by a tenth an epoch, as theirs.

    `skew` are the powers of Zipf's law by which users and items are popular: such that the most popular has their Delta.
    """

    def build(scale: float) -> Callable[[int], Any]:
        from plesio.sparse.factorisation import MatrixFactorization

        train, _ = synthetic_ratings(int(ratings * scale), shape, rank=10, skew=skew)

        def fit(threads: int) -> Any:
            model = MatrixFactorization(
                factors, optimizer="sgd", lr=0.02, schedule="decay", epochs=5, threads=threads, model="shared"
            )
            return model.fit(train.users, train.items, train.values)

        return fit

    return build


# --- cuts: an update of one's own ----------------------------------------------------------------------------------------


@njit
def pull(parameters, edge, lr):
    """An edge pulls the labels of its ends together, weight x |x_u - x_v|; labels stay in [0, 1], terminals stay put."""
    u, v, weight = edge
    loss = 0.0
    for label in range(parameters.x.shape[1]):
        gap = parameters.x[u, label] - parameters.x[v, label]
        loss += weight * abs(gap)
        step = np.float32(min(lr * weight, abs(gap) / 2) * np.sign(gap))
        if not parameters.fixed[u]:
            parameters.x[u, label] -= step
        if not parameters.fixed[v]:
            parameters.x[v, label] += step
    return loss


def cut(nodes: int, labels: int, edges: tuple[NDArray[np.uint32], NDArray[np.uint32]]) -> Callable[[int], Any]:
    """The relaxed cut of a graph, of whose nodes every 1,000th is a terminal."""
    from plesio.sparse.kernel import Kernel

    rng = np.random.default_rng(0)
    weights = rng.random(len(edges[0]), np.float32)
    start = rng.random((nodes, labels), np.float32)
    fixed = np.arange(nodes) % 1000 == 0
    touches = np.arange(len(weights) + 1, dtype=np.int64) * 2, np.stack(edges, axis=1).ravel()

    def fit(threads: int) -> Any:
        parameters = {"x": start.copy(), "fixed": fixed}
        kernel = Kernel(pull, parameters, epochs=5, lr=0.1, schedule="decay", threads=threads, model="shared")
        return kernel.fit((*edges, weights), touches)

    return fit


def entities(scale: float) -> Callable[[int], Any]:
    """18,167 entities and 200,000 edges, as many as their 3 MB can hold; 10 labels."""
    rng = np.random.default_rng(0)
    ends = rng.integers(0, 18_167, (2, int(200_000 * scale)), np.uint32)
    return cut(18_167, 10, (ends[0], ends[1]))


def volume(scale: float) -> Callable[[int], Any]:
    """A lattice of voxels, each joined to its next in all three directions; 2 labels, so one number says both."""
    sides = [max(2, int(side * scale ** (1 / 3))) for side in (512, 512, 551)]
    voxels = np.arange(np.prod(sides), dtype=np.uint32).reshape(sides)
    pairs = [(voxels[:-1], voxels[1:]), (voxels[:, :-1], voxels[:, 1:]), (voxels[:, :, :-1], voxels[:, :, 1:])]
    left, right = (np.concatenate([pair[side].ravel() for pair in pairs]) for side in (0, 1))
    return cut(voxels.size, 1, (left, right))


NETFLIX, KDD = 100.2e6, 252.8e6  # ratings
PROBLEMS = (
    Problem("RCV1, SVM", 781_265, 9.5, 0.44, 1.0, rcv1, 1 / 4),
    Problem(
        "Netflix", NETFLIX, 301.0, 2.5e-3, 2.3e-3, completion(NETFLIX, (480_189, 17_770), 30, (0.38, 0.44)), 1 / 20
    ),
    Problem("KDD Cup 2011", KDD, 877.5, 3.0e-3, 1.8e-3, completion(KDD, (624_961, 1_000_990), 30, (0.6, 0.3)), 1 / 50),
    Problem(
        "Jumbo (1 M x 1 M here)", 2e9, 9453.5, 2.6e-7, 1.4e-7, completion(2e9, (10**6, 10**6), 10, (0.0, 0.0)), 1 / 400
    ),
    Problem("DBLife, cut", None, 230.0, 8.6e-3, 4.2e-3, entities, 1.0),
    Problem("Abdomen, cut", 3 * 512 * 512 * 551, 1181.4, 9.2e-4, 9.2e-4, volume, 1 / 64),
)
