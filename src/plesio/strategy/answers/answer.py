"""What all answers share: they check their numbers when they are built, and they read as words."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, NamedTuple, get_type_hints

from plesio.errors import StrategyError


class Allowed(NamedTuple):
    """The values that a field of an answer, or an argument of a recipe, may have: in words, and as a test of one."""

    words: str
    holds: Callable[[Any], bool]

    def check(self, rule: str, field: str, value: Any) -> None:
        """Raise `StrategyError` unless `value` is allowed for `field` of `rule`."""
        if not self.holds(value):
            raise StrategyError(f"{rule}({field}={value!r}): {field} must be {self.words}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and abs(value) < float("inf"))


WHOLE = Allowed("a whole number of at least 0", lambda value: _is_whole(value) and value >= 0)
COUNT = Allowed("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
COUNT_OR_NONE = Allowed(COUNT.words, lambda value: value is None or COUNT.holds(value))
ONE_AT_MOST = Allowed("0 or 1", lambda value: _is_whole(value) and 0 <= value <= 1)
NUMBER = Allowed("a number of at least 0", lambda value: _is_number(value) and value >= 0)
POSITIVE = Allowed("a number above 0", lambda value: _is_number(value) and value > 0)
POSITIVE_OR_NONE = Allowed(POSITIVE.words, lambda value: value is None or POSITIVE.holds(value))
DECAY = Allowed("a number of at least 0 and below 1", lambda value: _is_number(value) and 0 <= value < 1)
PART = Allowed("a number above 0, at most 1", lambda value: _is_number(value) and 0 < value <= 1)
PART_OR_NONE = Allowed(PART.words, lambda value: value is None or PART.holds(value))
BELOW_1 = Allowed("a number above 0 and below 1", lambda value: _is_number(value) and 0 < value < 1)
BELOW_HALF = Allowed("a number of at least 0 and below .5", lambda value: _is_number(value) and 0 <= value < 0.5)
HALF_AT_MOST = Allowed("a number above 0, at most .5", lambda value: _is_number(value) and 0 < value <= 0.5)
NAME = Allowed(
    "a name without dots and with one * at most",
    lambda value: isinstance(value, str) and value.count("*") <= 1 and bool(value) and "." not in value,
)
CAST = Allowed("'bf16' or 'fp16'", lambda value: value in ("bf16", "fp16"))
HALF_OR_NONE = Allowed(f"{CAST.words}, or None", lambda value: value is None or CAST.holds(value))
TORCH_OR_NONE = Allowed("'torch' or None", lambda value: value in ("torch", None))
OUTER_SCALE = Allowed("'share', 'full', 'sum' or 'work'", lambda value: value in ("share", "full", "sum", "work"))
LR_SCALE = Allowed("'share' or 'full'", lambda value: value in ("share", "full"))


@cache
def allowed_by_field(kind: type[Any]) -> list[tuple[str, Allowed]]:
    """What the annotations of a class say that its fields may have. Only these annotations are evaluated: to evaluate all would
    take longer than the rest of the import."""
    hints: dict[str, Any] = {}
    for owner in reversed(kind.__mro__):
        own = {
            field: one for field, one in vars(owner).get("__annotations__", {}).items() if one.startswith("Annotated[")
        }
        asked = type("Asked", (), {"__annotations__": own, "__module__": owner.__module__})
        hints |= get_type_hints(asked, include_extras=True)
    return [(field, one) for field, hint in hints.items() for one in hint.__metadata__]


class Answer:
    """A frozen dataclass whose fields say what they allow, as in `k: Annotated[int, COUNT]`."""

    __slots__ = ()
    words: ClassVar[str]
    """The answer in words, where they do not depend on its fields."""
    unconditional: ClassVar[bool] = False
    """Whether it says the same of every contribution (it counts, it weighs 1, its worker goes on): then it is not asked."""

    # What others ask an answer instead of its class. Those of which it is true say so.
    stepped: ClassVar[bool] = False
    feeds_back: ClassVar[bool] = False
    normalised: ClassVar[bool] = False
    in_rounds: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    after: int = 0  # before that version workers exchange after every step, and wait for it
    paced: ClassVar[bool] = False
    answered: ClassVar[bool] = False
    by_client: ClassVar[bool] = False
    among_ranks: ClassVar[bool] = False
    proximal: float = 0.0
    grace_s: float | None = None
    slack: float | None = None
    deadline_s: float | None = None
    least: int | None = None
    cancel_late: bool = False
    averages: ClassVar[bool] = False
    differs: ClassVar[bool] = False
    control: bool = False
    half: str | None = None
    fragments: int = 1
    of_user: ClassVar[bool] = False
    own_optimizer: ClassVar[bool] = False
    in_worker: ClassVar[bool] = False
    by_work: bool = False
    by_rate: ClassVar[bool] = False
    blends: ClassVar[bool] = False
    corrects: ClassVar[bool] = True
    spares_rows: ClassVar[bool] = False
    at_once: ClassVar[bool] = False
    robust: ClassVar[bool] = False
    adds_up: ClassVar[bool] = False
    products: ClassVar[bool] = False
    replaces: bool = False
    after_fold: ClassVar[bool] = False
    ahead: int = 0
    away: bool = False
    looks_ahead: ClassVar[bool] = False
    at_server: ClassVar[bool] = False
    in_shared_memory: ClassVar[bool] = False
    by_collective: ClassVar[bool] = False

    @property
    def each_step(self) -> bool:
        """Whether workers exchange after every step, so that nobody need ask."""
        return False

    def __post_init__(self) -> None:
        for field, allowed in allowed_by_field(type(self)):  # type: ignore[arg-type]
            allowed.check(type(self).__name__, field, getattr(self, field))

    def grants(self, pace: float, fastest: float) -> int:
        """How many steps a worker may take that makes `pace` of them a second, where the fastest makes so many; 0: as always."""
        return 0

    @property
    def needs(self) -> int:
        """How many contributions a fold needs."""
        return 1

    @property
    def has_grace(self) -> bool:
        """Whether a round stays open for a while when enough have come."""
        return self.grace_s is not None or self.slack is not None

    def grace(self, since_s: float, period_s: float) -> float:
        """For how long, where the earliest of the round came `since_s` before, and had taken `period_s`."""
        return self.grace_s or (self.slack or 0.0) * max(0.0, period_s - since_s)

    @property
    def late(self) -> bool:
        """Whether the worker goes on while it comes."""
        return self.ahead > 0

    def __str__(self) -> str:
        return self.words
