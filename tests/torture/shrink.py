"""The smallest run that still fails: fewer workers, fewer faults, fewer contributions, a shorter time.

Every change of a plan changes what its seed draws, so each smaller plan is tried with a few seeds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from plesio.errors import StrategyError
from torture.plan import DEATHS, FAULTS, ROW_FAULTS, SWITCHES, Plan
from torture.sessions.envelopes import Level
from torture.world import Outcome, Parts, simulate

SEEDS = 4
TRIES = 600
HEAD_LINES, TAIL_LINES = 40, 20


def shrink(plan: Plan, parts: Parts | None = None, tries: int = TRIES) -> Outcome:
    """The smallest plan found that fails with these parts, with its story; `plan` itself if none smaller does."""
    best, left = plan, tries
    smaller = _smaller(best)
    while left and (candidate := next(smaller, None)) is not None:
        left -= 1
        if simulate(candidate, parts).failure is not None:
            best, smaller = candidate, _smaller(candidate)
    return simulate(best, parts, story=True)


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Plans a little smaller than this one, the boldest first."""
    for candidate in _changes(plan):
        for seed in range(SEEDS):
            yield replace(candidate, seed=plan.seed + seed)


def _changes(plan: Plan) -> Iterator[Plan]:
    for fault in (*FAULTS, *ROW_FAULTS, DEATHS, SWITCHES):
        if fault in plan.faults:
            yield replace(plan, faults=plan.faults - {fault})
    for workers in sorted({1, 2, plan.workers // 2, plan.workers - 1}):
        if 0 < workers < plan.workers and _can_run(plan, workers):
            yield replace(plan, workers=workers, epoch_batches=max(workers, plan.epoch_batches))
    for contributions in sorted({1, plan.contributions // 2, plan.contributions - 1}):
        if 0 < contributions < plan.contributions:
            yield replace(plan, contributions=contributions)
    if plan.chaos_s > 0.1:
        yield replace(plan, chaos_s=plan.chaos_s / 2)
    if plan.servers > 1:
        yield replace(plan, servers=1)
    if plan.strikes > 1:
        yield replace(plan, strikes=1)
    if plan.level is not Level.APPLIED:
        yield replace(plan, level=Level.APPLIED)


def _can_run(plan: Plan, workers: int) -> bool:
    try:
        plan.strategy.check_workers(workers)
    except StrategyError:
        return False
    return True


def excerpt(outcome: Outcome) -> tuple[str, ...]:
    """How a run began and how it ended: what a person reads; the middle of a long one is left out."""
    story = outcome.story
    left_out = len(story) - HEAD_LINES - TAIL_LINES
    if left_out > 1:
        story = (*story[:HEAD_LINES], f"{'':8}    ... {left_out} more ...", *story[-TAIL_LINES:])
    return (*story, f"{outcome.time_s:8.3f} s  BROKEN: {outcome.failure}")
