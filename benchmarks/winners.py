"""How often a comparison names a winner among equal strategies, and how often it finds one that is faster.

    python benchmarks/winners.py --json FILE [--quick]

The digits to 95%, simulated: 40 seeds of each of three strategies on 4 equal workers. Comparisons of 2 to 5 "strategies", each
with 1 to 5 runs drawn from one strategy's seeds, are judged as `plesio compare` judges them. So are times drawn from laws of
other shapes: even, with a long tail, in two clumps, with runs that miss the target. `--runs` is how many comparisons a rate is
from, in hundreds.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path

import plesio as ps
from _report import Row, parser, progress, report
from plesio.observe.repeats import FEWEST, SEEDS, first
from plesio.observe.summary import Evaluation, Summary
from plesio.observe.totals import Staleness

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import digits

TARGET, MOST_S = ("accuracy", 0.95), 30.0
STRATEGIES = ("sync_sgd", "async_sgd", "local_sgd")
EQUAL, REPEATS = (2, 3, 4, 5), (1, 2, 3, 4, 5)
FALSE_MAX = "< 5"
Draw = Callable[[random.Random], float]
LAWS: dict[str, Draw] = {
    "an even law": lambda rng: rng.uniform(1, 2),
    "a normal law": lambda rng: max(0.1, rng.gauss(1, 0.1)),
    "a long tail": lambda rng: rng.lognormvariate(0, 0.7),
    "two clumps": lambda rng: rng.choice((1, 3)) + rng.uniform(0, 0.05),
    "3 in 10 miss": lambda rng: rng.uniform(1, 1.2) if rng.random() > 0.3 else MOST_S,
    "7 in 10 miss": lambda rng: rng.uniform(1, 1.2) if rng.random() > 0.7 else MOST_S,
}


def seeds_of(strategy: str, seeds: int) -> list[float]:
    """Virtual seconds to the target, a seed each."""
    cluster = ps.Cluster.preset("uniform", 4, 0.02)
    until = ps.Until(accuracy=TARGET[1], seconds=MOST_S)
    runs = (
        ps.run(digits.train, strategy, workers=4, engine=ps.Simulated(cluster), seed=seed, evaluate=digits.evaluate,
               evaluate_every_s=0.05, until=until)
        for seed in range(seeds)
    )  # fmt: skip
    return [run.time_to(*TARGET) or MOST_S for run in runs]


def reached(time_s: float) -> Summary:
    """A run that reached the target then, or not at all."""
    history = (Evaluation(time_s, 1, 1, {TARGET[0]: TARGET[1]}),) if time_s < MOST_S else ()
    return Summary(
        strategy="", recipe="", workers=(), wall_s=time_s, version=1, steps=1, samples=1, folded=1, discarded={}, bytes=0,
        staleness=Staleness(), history=history,
    )  # fmt: skip


def won(groups: list[list[float]]) -> int | None:
    """Which of them is named as the winner, if one is."""
    best = first([[reached(time) for time in each] for each in groups], TARGET)
    return best[0] if len(best) == 1 else None


def false_rate(times: list[float] | Draw, strategies: int, repeats: int, number: int) -> float:
    """In how many per cent of comparisons one of equal strategies is named."""
    rng = random.Random(f"{strategies} {repeats}")

    def groups() -> list[list[float]]:
        many = strategies * repeats
        drawn = [times(rng) for _ in range(many)] if callable(times) else rng.sample(times, many)
        return [drawn[k::strategies] for k in range(strategies)]

    return 100 * sum(won(groups()) is not None for _ in range(number)) / number


def found_rate(times: list[float], faster: float, repeats: int, number: int) -> float:
    """In how many per cent of comparisons of two the one that is so many times faster is named."""
    rng = random.Random(f"{faster} {repeats}")
    drawn = (rng.sample(times, 2 * repeats) for _ in range(number))
    return 100 * sum(won([[one / faster for one in each[:repeats]], each[repeats:]]) == 0 for each in drawn) / number


def rows(arguments: argparse.Namespace) -> list[Row]:
    """The spread of seeds; the worst rate of false winners by repeats; what is found of one that is faster."""
    number, seeds = (100, 10) if arguments.quick else (100 * arguments.runs, 40)
    known = {name: seeds_of(name, seeds) for name in STRATEGIES}
    found = []
    for name, times in known.items():
        words = f"{name}: the slowest of {seeds} seeds, in times of the fastest"
        ratio = max(times) / min(times)
        found.append(Row(words, ratio, "times", None, None, None, f"< {SEEDS:g}", ratio < SEEDS, seeds))
    for repeats in REPEATS:
        rates = {
            f"{strategies} equal strategies, {law}": false_rate(times, strategies, repeats, number)
            for law, times in {**known, **LAWS}.items()
            for strategies in EQUAL
            if callable(times) or strategies * repeats <= len(times)
        }
        progress.print(f"{repeats} runs each: {rates}")
        worst = max(rates, key=lambda one: rates[one])
        judged = repeats >= FEWEST
        words = f"{repeats} runs each: a winner among equals; at worst {worst}"
        target, met = (FALSE_MAX, rates[worst] < 5) if judged else (None, None)
        found.append(Row(words, rates[worst], "%", None, None, None, target, met, number))
    for faster in (1.2, 1.5, 2.0, 3.0):
        for repeats in (1, 3, 5):
            rate = min(
                found_rate(times, faster, repeats, number) for times in known.values() if 2 * repeats <= len(times)
            )
            words = f"{repeats} runs each: the one that is {faster:g} times faster is named"
            found.append(Row(words, rate, "%", None, None, None, None, None, number))
    return found


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=40).parse_args()
    report("winners among equal strategies", rows(given), given.json)
