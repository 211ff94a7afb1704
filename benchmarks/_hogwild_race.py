"""What the sections of hogwild.py share: contenders run in turn on the same data, and rows of their rates and scores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from _hogwild_data import DataMissingError
from _hogwild_rivals import RivalMissingError, Rivals
from _report import Row, interleave, progress, row

Fit = Callable[[], tuple[float, float]]
"""Fit once: the seconds that took, and the score on the test data."""


@dataclass(frozen=True, slots=True)
class Given:
    """How much is asked for, and who runs the rivals."""

    quick: bool
    runs: int
    rivals: Rivals


@dataclass(frozen=True, slots=True)
class Runs:
    """One contender's fits: how long each took, and what the model was then worth."""

    seconds: list[float]
    scores: list[float]

    def rates(self, examples: float) -> list[float]:
        """Examples/s of fits over so many examples each."""
        return [examples / seconds for seconds in self.seconds]

    @property
    def score(self) -> float:
        return statistics.median(self.scores)


def unless_missing(make: Callable[[], list[Row]]) -> list[Row]:
    """The rows that `make` makes; none, and a message, where their data is not here."""
    try:
        return make()
    except DataMissingError as missing:
        progress.print(f"left out: {missing}")
        return []


def race(title: str, contenders: Mapping[str, Fit], runs: int) -> dict[str, Runs]:
    """Fit each once uncounted, then all of them in turn, `runs` times over; who cannot take part is said and left out.

    The uncounted fit compiles what has to be compiled, and makes a rival's cache files.
    """
    able: dict[str, Fit] = {}
    for name, fit in contenders.items():
        try:
            fit()
            able[name] = fit
        except RivalMissingError as missing:
            progress.print(f"{title}: left out: {missing}")
    scores: dict[str, list[float]] = {name: [] for name in able}

    def timed(name: str) -> float:
        seconds, score = able[name]()
        scores[name].append(score)
        return seconds

    seconds = interleave({name: lambda name=name: timed(name) for name in able}, runs, title)
    return {name: Runs(seconds[name], scores[name]) for name in able}


def faster(
    label: str,
    results: Mapping[str, Runs],
    mine: str,
    other: str,
    examples: float,
    unit: str,
    target: str | None = None,
) -> list[Row]:
    """The row that says how many times `other`'s rate `mine` has; none where one of them did not run."""
    if mine not in results or other not in results:
        return []
    return [
        row(
            f"{label}: {mine}",
            results[mine].rates(examples),
            unit,
            against=other,
            against_values=results[other].rates(examples),
            target=target,
        )
    ]


def scaling(label: str, fit: Callable[[int], Any], runs: int) -> Row:
    """What a second thread gains in the sweeps themselves, set-up left aside; `fit` takes threads and returns the model."""
    fit(2)
    results = interleave({n: lambda n=n: sweep_rate(fit(int(n))) / 1e6 for n in ("1", "2")}, runs, f"{label} sweeps")
    return row(
        f"{label}: sweeps alone, 2 threads",
        results["2"],
        "M examples/s",
        against="1 thread",
        against_values=results["1"],
    )


def sweep_rate(model: Any) -> float:
    """Examples/s of a fitted model's median epoch."""
    return statistics.median(epoch.examples / epoch.seconds for epoch in model.history_)


def points_short(label: str, results: Mapping[str, Runs], mine: str, other: str, limit: float) -> list[Row]:
    """By how many points the score of `mine` is below that of `other`; negative where it is above."""
    if mine not in results or other not in results:
        return []
    short = [100 * (b - a) for a, b in zip(results[mine].scores, results[other].scores, strict=True)]
    name = f"{label}: {mine} ({results[mine].score:.4f}) below {other} ({results[other].score:.4f})"
    return [row(name, short, "points", target=f"<= {limit}")]
