"""Phases: one strategy at first, others from declared versions on, or when they are asked for."""

from __future__ import annotations

from dataclasses import replace

from plesio.entry import entry
from plesio.errors import StrategyError
from plesio.strategy import Strategy
from plesio.strategy.answers import Blend, Rebase, Replace

__all__ = ["phases"]


@entry("setting of phases", StrategyError)
def phases(first: Strategy, *later: Strategy | tuple[int, Strategy]) -> Strategy:
    """A strategy that becomes another one while the run goes on.

    At each change the run is drained: nobody goes on before all have sent what they were at, and that is folded. Then all go on
    from this version under the next strategy. The state of the user's optimizer goes along, to the workers or back.

    Args:
        first: what the run begins with.
        later: (version, strategy), in the order of their versions: what it goes on with from that version on. A strategy without
            a version is taken when it is asked for (`live.switch`).

    Raises:
        StrategyError: a version that is not above the one before; or a strategy that cannot be a phase: one without a server,
            with clients or privacy, whose workers go on while answers travel, or which has phases itself.

    >>> plan = ps.phases(ps.sync_sgd(), (1000, ps.local_sgd(16)), ps.async_sgd())
    >>> plan.name, plan.phase_at(999), plan.phase_at(1000)
    ('phases(sync_sgd, 1000: local_sgd(every 16 steps), async_sgd)', 0, 1)
    """
    plan = [(0, _waiting(first)), *map(_phase, later)]
    if len(plan) == 1:
        raise StrategyError("phases: say what comes later, too, as in phases(ps.sync_sgd(), (1000, ps.local_sgd(16)))")
    texts = [one.name if begins is None else f"{begins}: {one.name}" for begins, one in plan[1:]]
    return replace(plan[0][1], name=f"phases({', '.join([plan[0][1].name, *texts])})", plan=tuple(plan))


def _phase(given: object) -> tuple[int | None, Strategy]:
    """When a phase begins, and its strategy."""
    begins, one = given if isinstance(given, tuple) and len(given) == 2 else (None, given)
    return begins, _waiting(one)


def _waiting(one: object) -> Strategy:
    """`one`; workers wait for every answer there, also those on another host."""
    if not isinstance(one, Strategy):
        such = "give one, such as ps.local_sgd(16), or (1000, ps.local_sgd(16)) for one that begins with version 1000"
        raise StrategyError(f"phases: {in_words(one)} is no strategy; {such}")
    match one.adopt:
        case Rebase(codec, alpha, away=True):
            return replace(one, adopt=Blend(alpha) if one.adopt.blends else Replace(codec))
    return one


def in_words(given: object) -> str:
    """What somebody gave for a strategy, by the names of those that are in it."""
    if isinstance(given, list | tuple):
        return f"[{', '.join(map(in_words, given))}]"
    return given.name if isinstance(given, Strategy) else repr(given)
