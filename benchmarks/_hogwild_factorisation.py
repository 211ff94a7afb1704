"""Matrix factorisation: time until a test score, against LIBMF (squared error), and implicit and LightFM (ranking).

Ratings/s would say little: who goes further in a sweep needs fewer. So each contender's least number of sweeps that reaches
the score is found first, uncounted; what is timed is a fit of just so many sweeps, from the ratings to the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from _hogwild_data import Ratings, movielens, synthetic_ratings
from _hogwild_race import Fit, Given, Runs, race, scaling, unless_missing
from _hogwild_rivals import RivalMissingError
from _report import Row, progress, row

MOST_SWEEPS = 40
LIBMF, IMPLICIT, LIGHTFM = "LIBMF", "implicit BPR", "LightFM BPR"
Settings = dict[str, Any]
# What reaches the score first: ours of 36 settings, LIBMF of 36 (the large set: 9 and 16); a falling rate is ours alone.
LARGE: tuple[Settings, Settings] = ({"lr": 0.2, "regularization": 0.02}, {"lr": 0.15, "l2": 0.03})
SMALL: tuple[Settings, Settings] = (
    {"lr": 0.2, "regularization": 0.06, "schedule": "linear"},
    {"lr": 0.15, "l2": 0.05},
)
Sized = Callable[[int], tuple[float, float]]
"""Fit for so many sweeps: seconds, and a score of which more is better."""


def rows(given: Given) -> list[Row]:
    """The real set, on which ranking is tried too, then the synthetic one."""
    name, shape = "ML-10M's shape (synthetic, 4 M ratings)", (71_567, 10_681)
    if given.quick:
        name, shape = "smaller than ML-10M (synthetic, 0.3 M ratings)", (7_157, 1_068)
    large = synthetic_ratings(300_000 if given.quick else 4_000_000, shape)
    found = squared_error(given, name, *large, 0.9 if given.quick else 0.7, *LARGE)
    found += newcomers(given, name, *large, LARGE[0])
    return unless_missing(lambda: films(given)) + found


def films(given: Given) -> list[Row]:
    train, test = movielens()
    found = squared_error(given, "MovieLens-100k", train, test, 0.915, *SMALL)
    return found + ranking(given, train[train.values >= 4], test[test.values >= 4], target_auc=0.86)


# --- ratings -------------------------------------------------------------------------------------------------------------


def squared_error(
    given: Given, name: str, train: Ratings, test: Ratings, target_rmse: float, mine: Settings, theirs: Settings
) -> list[Row]:
    """Time to `target_rmse` with 64 factors, each side with its own best settings."""
    deposit = given.rivals.deposit({**pairs(train), "values": train.values, **tested(test)})

    def factorization(sweeps: int, threads: int) -> Any:
        from plesio.sparse.factorisation import MatrixFactorization

        return MatrixFactorization(64, epochs=sweeps, threads=threads, **mine)

    def ours(threads: int) -> Sized:
        def fit(sweeps: int) -> tuple[float, float]:
            model = factorization(sweeps, threads)
            seconds = timed(lambda: model.fit(train.users, train.items, train.values))
            return seconds, -model.rmse(test.users, test.items, test.values)

        return fit

    def libmf(threads: int) -> Sized:
        def fit(sweeps: int) -> tuple[float, float]:
            answer = given.rivals.ask("libmf", deposit, factors=64, epochs=sweeps, threads=threads, **theirs)
            return float(answer["seconds"]), -float(answer["rmse"])

        return fit

    sized = {
        f"{who}, {n} thread{'s' * (n > 1)}": make(n) for who, make in (("ours", ours), (LIBMF, libmf)) for n in (1, 2)
    }
    results, sweeps = to_score(f"{name} to RMSE {target_rmse:g}", sized, -target_rmse, given.runs)
    found = []
    for n in ("1 thread", "2 threads"):
        found += sooner(f"{name} to RMSE {target_rmse:g}", results, sweeps, f"ours, {n}", f"{LIBMF}, {n}", "<= 1")
    mine_1, mine_2 = (results.get(f"ours, {n}") for n in ("1 thread", "2 threads"))
    if mine_1 and mine_2 and len(train) > 1_000_000:  # a small set's fit is over before a second thread is worth it
        one, two = mine_1.rates(sweeps["ours, 1 thread"]), mine_2.rates(sweeps["ours, 2 threads"])
        found.append(
            row(f"{name}: 2 threads", two, "sweeps/s", against="1 thread", against_values=one, target=">= 1.6")
        )

    def fitted(threads: int) -> Any:
        return factorization(5, threads).fit(train.users, train.items, train.values)

    return [*found, scaling(name, fitted, given.runs)]


def newcomers(given: Given, name: str, train: Ratings, test: Ratings, mine: Settings) -> list[Row]:
    """One user of thirty is new: `fold_in` of these against a fit of everything, and what both predict of their other ratings."""
    from plesio.sparse.factorisation import MatrixFactorization

    def fitted(on: Ratings) -> MatrixFactorization:
        return MatrixFactorization(64, threads=1, **mine).fit(on.users, on.items, on.values)

    new = train.users % 30 == 0
    mine_too, asked = train[new], test[test.users % 30 == 0]
    model = fitted(train[~new])

    def scored(learn: Callable[[], MatrixFactorization]) -> tuple[float, float]:
        start_s = time.perf_counter()
        learnt = learn()
        return time.perf_counter() - start_s, learnt.rmse(asked.users, asked.items, asked.values)

    contenders: dict[str, Fit] = {
        "fold_in": lambda: scored(lambda: model.fold_in(mine_too.users, mine_too.items, mine_too.values)),
        "fit": lambda: scored(lambda: fitted(train)),
    }
    folded, whole = race(f"{name}: new users", contenders, given.runs).values()
    label, against = f"{name}: fold_in of 1 user of 30", "a fit of all"
    return [
        row(label, folded.seconds, "s", against=against, against_values=whole.seconds),
        row(f"{label}, RMSE", folded.scores, "", against=against, against_values=whole.scores, target="<= 1.02"),
    ]


# --- ranking -------------------------------------------------------------------------------------------------------------


def ranking(given: Given, train: Ratings, test: Ratings, *, target_auc: float) -> list[Row]:
    """Time to `target_auc` with 32 factors on the films that were liked; the rivals' settings are their best of six."""
    name = f"MovieLens-100k, 4 and 5 stars, to AUC {target_auc:g}"
    deposit = given.rivals.deposit(pairs(train))

    def ours(sweeps: int) -> tuple[float, float]:
        from plesio.sparse.factorisation import MatrixFactorization

        model = MatrixFactorization(32, loss="bpr", epochs=sweeps, threads=1)
        seconds = timed(lambda: model.fit(train.users, train.items))
        left = np.hstack([model.user_factors_, np.ones((len(model.user_factors_), 1), np.float32)])
        right = np.hstack([model.item_factors_, model.item_bias_[:, None]])
        return seconds, auc(left, right, train, test)

    def rival(who: str, lr: float, l2: float) -> Sized:
        def fit(sweeps: int) -> tuple[float, float]:
            answer = given.rivals.ask(who, deposit, factors=32, epochs=sweeps, lr=lr, l2=l2, threads=1)
            return float(answer["seconds"]), auc(answer["left"], answer["right"], train, test)

        return fit

    sized = {"ours": ours, IMPLICIT: rival("implicit_bpr", 0.05, 0.01), LIGHTFM: rival("lightfm_bpr", 0.05, 0.0)}
    results, sweeps = to_score(name, sized, target_auc, given.runs)
    return [each for other in (IMPLICIT, LIGHTFM) for each in sooner(name, results, sweeps, "ours", other, None)]


def auc(left: NDArray[np.float32], right: NDArray[np.float32], train: Ratings, test: Ratings) -> float:
    """How often a film liked in the test set is ranked above one the user never rated: the mean over users."""
    seen, liked = np.zeros(train.shape, bool), np.zeros(train.shape, bool)
    seen[train.users, train.items] = True
    liked[test.users, test.items] = True
    shares = []
    for user in np.unique(test.users[test.users < len(left)]):
        scores = np.full(train.shape[1], -np.inf, np.float32)
        scores[: len(right)] = right @ left[user]
        others = np.sort(scores[~seen[user] & ~liked[user]])
        shares.append(np.searchsorted(others, scores[liked[user]]).mean() / len(others))
    return float(np.mean(shares))


# --- both ----------------------------------------------------------------------------------------------------------------


def to_score(title: str, sized: dict[str, Sized], score: float, runs: int) -> tuple[dict[str, Runs], dict[str, int]]:
    """Race to `score`, each with its least number of sweeps; who never gets there, or is not here, is left out."""
    sweeps, able = {}, {}
    for who, fit in sized.items():
        try:
            needed = least_sweeps(fit, score)
        except RivalMissingError as missing:
            progress.print(f"{title}: left out: {missing}")
            continue
        if needed is None:
            progress.print(f"{title}: left out: {who} is not there after {MOST_SWEEPS} sweeps")
            continue
        sweeps[who], able[who] = needed, of_size(fit, needed)
    return race(title, able, runs), sweeps


def of_size(fit: Sized, sweeps: int) -> Fit:
    return lambda: fit(sweeps)


def least_sweeps(fit: Sized, score: float) -> int | None:
    """The fewest sweeps whose model has that score, to within an eighth; None above `MOST_SWEEPS`.

    One after the other, not by halving: who overfits has the score after some sweeps, and no longer after more.
    """
    sweeps = 1
    while sweeps <= MOST_SWEEPS:
        if fit(sweeps)[1] >= score:
            return sweeps
        sweeps += max(1, sweeps // 8)
    return None


def sooner(
    label: str, results: dict[str, Runs], sweeps: dict[str, int], mine: str, other: str, target: str | None
) -> list[Row]:
    """The row that says what share of `other`'s time `mine` needs."""
    if mine not in results or other not in results:
        return []
    sides = [f"{who} ({sweeps[who]} sweeps)" for who in (mine, other)]
    seconds = [results[who].seconds for who in (mine, other)]
    return [row(f"{label}: {sides[0]}", seconds[0], "s", against=sides[1], against_values=seconds[1], target=target)]


def timed(call: Callable[[], Any]) -> float:
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def pairs(ratings: Ratings) -> dict[str, NDArray[Any]]:
    return {"users": ratings.users, "items": ratings.items, "shape": np.array(ratings.shape)}


def tested(ratings: Ratings) -> dict[str, NDArray[Any]]:
    return {"test_users": ratings.users, "test_items": ratings.items, "test_values": ratings.values}
