"""How a run chooses among the phases of its strategy (`plesio.auto`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from plesio.errors import StrategyError
from plesio.strategy.answers.answer import COUNT, NUMBER, POSITIVE, allowed_by_field
from plesio.strategy.measured import HELD, how_near, reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """The rules.

    Args:
        every_s: how often to forecast, from what workers did since the last time.
        apart_s: how long to stay with a choice at least.
        better: how many times as fast a looser strategy has to be.
        close: how many times as fast as another the fastest may be, for that to be as good.
        in_a_row: how many forecasts have to agree.
        measured_only: leave out what docs/convergence.md does not hold to be within 1% of `sync_sgd` with so many workers.

    Raises:
        StrategyError: a number that cannot be.
    """

    every_s: Annotated[float, POSITIVE] = 30.0
    apart_s: Annotated[float, NUMBER] = 60.0
    better: Annotated[float, POSITIVE] = 1.25
    close: Annotated[float, POSITIVE] = 1.1
    in_a_row: Annotated[int, COUNT] = 2
    measured_only: bool = True

    def __post_init__(self) -> None:
        for field, allowed in allowed_by_field(type(self)):  # type: ignore[arg-type]
            allowed.check("auto", field, getattr(self, field))
        if not 1 <= self.close < self.better:
            raise StrategyError(
                f"auto(close={self.close!r}, better={self.better!r}): close must be at least 1, and better above it; else a "
                "run would go to and fro"
            )

    def left_out(self, phases: Sequence[str], workers: int) -> Mapping[int, str]:
        """The phases, by their names, that a run with so many workers does not choose from, and why."""
        if not self.measured_only:
            return {}
        found = {place: reached(name, workers) for place, name in enumerate(phases)}
        return {place: how_near(phases[place], workers) for place, one in found.items() if one is None or one[0] < HELD}

    def check_workers(self, name: str, phases: Sequence[str], workers: int) -> None:
        """Raise `StrategyError` where there is nothing to choose from with so many workers."""
        out = self.left_out(phases, workers)
        if 0 in out or len(phases) - len(out) < 2:
            raise StrategyError(f"{name}: {self.in_words(phases, workers)}; measured_only=False chooses from all")

    def in_words(self, phases: Sequence[str], workers: int) -> str:
        """What a run with so many workers chooses from."""
        out = self.left_out(phases, workers)
        taken = ", ".join(name for place, name in enumerate(phases) if place not in out) or "nothing"
        why = "".join(f"; not {phases[place]}: {reason}" for place, reason in out.items())
        return f"the run chooses from {taken}{why}{' (docs/convergence.md)' if out else ''}"
