"""Checks of the numbers of a cluster; an error names the value and what is allowed."""

from __future__ import annotations

import math

from plesio.errors import ConfigurationError

INFINITE = float("inf")
ABOVE, LEAST, OR_INFINITE = "above 0", "of at least 0", "above 0, or inf"


def numbers(struct: object, **allowed: str) -> None:
    """Raise unless each named field is a number within its bound: `ABOVE` (finite, above 0), `LEAST` or `OR_INFINITE`."""
    for field, bound in allowed.items():
        value = getattr(struct, field)
        real = isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value)
        least = value >= 0 if bound == LEAST else real and value > 0
        if not (real and least and (value < INFINITE or bound == OR_INFINITE)):
            raise ConfigurationError(f"{type(struct).__name__}({field}={value!r}): {field} must be a number {bound}")
