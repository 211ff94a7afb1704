"""How near to `sync_sgd` strategies came, at the rate tuned for it: the table of docs/convergence.md, for the program.

A test holds it against `convergence.json` and `transformer.json` of `benchmarks/results`.
"""

from __future__ import annotations

from collections.abc import Mapping

HELD = 0.99
"""What reaches so much of what `sync_sgd` reached is as good."""
REFERENCE = "sync_sgd"
REACHED: Mapping[str, Mapping[int, float]] = {
    "async_sgd": {4: 0.9995, 8: 1.0005, 16: 0.9997, 32: 0.9718},
    "async_sgd(correct=plain)": {4: 0.0994, 8: 0.0971, 16: 0.1025},
    "async_sgd(correct=delay_compensated)": {4: 0.8587},
    "async_sgd(correct=gap_aware)": {4: 0.9776},
    "bounded_staleness(4)": {4: 0.9979},
    "buffered(k=2)": {4: 0.9960},
    "first_of(3)": {4: 0.9971},
    "hogwild": {4: 0.0994},
    "local_sgd(every 16 steps)": {4: 0.9886},
    "rennala(k=2)": {4: 0.9958},
    "ringmaster(8)": {4: 0.9995},
}
"""Test accuracy as a share of that of `sync_sgd`, by the number of workers: the lower of SGD with momentum and of AdamW.

32 workers trained the small transformer only, with AdamW: the loss of `sync_sgd` as a share of its own, without a warm-up.
"""


def reached(strategy: str, workers: int) -> tuple[float, int] | None:
    """What the strategy of this name reached with so many workers, or the next larger number that was measured, and that number.

    >>> reached("async_sgd", 5), reached("local_sgd(every 16 steps)", 8)
    ((1.0005, 8), None)
    """
    if strategy == REFERENCE:
        return 1.0, workers
    known = REACHED.get(strategy, {})
    number = min((one for one in known if one >= workers), default=0)
    return (known[number], number) if number else None


def is_held(strategy: str, workers: int) -> bool:
    """Whether it is as good as `sync_sgd` with so many workers, as far as anybody has measured."""
    found = reached(strategy, workers)
    return found is not None and found[0] >= HELD


def how_near(strategy: str, workers: int) -> str:
    """What it reached, in words.

    >>> how_near("async_sgd", 2)
    'it reached 100.0% of what sync_sgd reached with 4 workers'
    """
    if (found := reached(strategy, workers)) is None:
        return f"nobody has measured it with {workers} workers or more"
    return f"it reached {100 * found[0]:.1f}% of what sync_sgd reached with {found[1]} workers"
