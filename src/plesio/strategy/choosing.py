"""How a run chooses among the phases of its strategy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from plesio.errors import StrategyError
from plesio.strategy.answers.answer import COUNT, NUMBER, POSITIVE, allowed_by_field
from plesio.strategy.measured import how_near, is_held


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """The rules, as `plesio.auto` explains them."""

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
        held = [is_held(name, workers) or not self.measured_only for name in phases]
        return {place: how_near(name, workers) for place, name in enumerate(phases) if not held[place]}

    def in_words(self, phases: Sequence[str], workers: int) -> str:
        """What a run with so many workers chooses from."""
        out = self.left_out(phases, workers)
        taken = ", ".join(name for place, name in enumerate(phases) if place not in out) or "nothing"
        why = "".join(f"; not {phases[place]}: {reason}" for place, reason in out.items())
        return f"the run chooses from {taken}{why}{' (docs/convergence.md)' if out else ''}"

    def check_workers(self, name: str, phases: Sequence[str], workers: int) -> None:
        """Raise `StrategyError` where there is nothing to choose from, or not what the run begins with."""
        out = self.left_out(phases, workers)
        if 0 in out or len(phases) - len(out) < 2:
            raise StrategyError(f"{name}: {self.in_words(phases, workers)}; measured_only=False chooses from all")
