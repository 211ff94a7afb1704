"""Fields that say what they allow, as in `step_s: Annotated[float, POSITIVE]`; an error names the value and what is allowed."""

from __future__ import annotations

from typing import Any

import msgspec

from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import NUMBER, POSITIVE, Allowed, allowed_by_field

INFINITE = float("inf")
FINITE = Allowed(
    "a finite number",
    lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < INFINITE,
)
OR_INFINITE = Allowed("a number above 0, or inf", lambda value: value == INFINITE or POSITIVE.holds(value))
SECONDS = Allowed("a number of seconds of at least 0", NUMBER.holds)


class Checked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its fields are checked when it is made."""

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(made: Any) -> None:
    """Raise `ConfigurationError` for a field whose value is none that it allows."""
    for field, allowed in allowed_by_field(type(made)):  # type: ignore[arg-type]
        value = getattr(made, field)
        if not allowed.holds(value):
            raise ConfigurationError(f"{type(made).__name__}({field}={value!r}): {field} must be {allowed.words}")
