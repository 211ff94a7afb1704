"""What a user should know of an outer optimizer's momentum: it needs many versions to be worth it, and each is to come once."""

from __future__ import annotations

from plesio.config.run_config import RunConfig
from plesio.tensors.outer_optimizer import delays, momentum_of
from plesio.worker.warn import warn

VERSIONS = 10
"""Times 1 / (1 - momentum): how many versions it takes until momentum is ahead of plain averaging (docs/local-steps.md)."""


def check_outer(config: RunConfig) -> None:
    """Before anything starts: `StrategyError` for an optimizer that there is not; warns of momentum that cannot pay."""
    strategy = config.strategy
    momentum = momentum_of(strategy)
    if not momentum or strategy.every.by_client:  # the table is of workers that draw from the same data
        return
    if not strategy.gather.in_rounds and not delays(strategy):
        warn(
            f"{strategy.name}: outer momentum {momentum:g} acts on each of {config.workers} workers' contributions, so "
            f"{config.workers} times as often as in a round, and diverges; take async_local_sgd(), or gather=Round()"
        )
    steps = config.until.limits.get("steps")
    alone = getattr(strategy.every, "steps", None)
    if steps and alone:
        _warn_of_few(config, int(steps / (alone * config.workers)), "until= allows")


def warn_of_few_versions(config: RunConfig, version: int) -> None:
    """At the end of a run that made so many."""
    told = config.until.limits.get("steps") or config.strategy.every.by_client
    if version and not told:
        _warn_of_few(config, version, "there were")


def _warn_of_few(config: RunConfig, rounds: int, there: str) -> None:
    momentum = momentum_of(config.strategy)
    needed = round(VERSIONS / (1.0 - momentum)) if 0 < momentum < 1 else 0
    if config.strategy.gather.in_rounds and rounds < needed:
        warn(
            f"{config.strategy.name}: outer momentum {momentum:g} needs about {needed} rounds to be ahead of plain "
            f"averaging, and {there} {rounds}; train longer, exchange more often, or take local_sgd"
        )
