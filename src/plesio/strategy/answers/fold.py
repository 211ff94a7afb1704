"""When do contributions become a version (`Gather`, `RowSteps`), how (`Correct`, `Outer`), and who folds them (`Via`)?

Numbers only: the arithmetic is in `plesio.tensors`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from plesio.errors import StrategyError
from plesio.strategy.answers.answer import (
    COUNT,
    COUNT_OR_NONE,
    DECAY,
    LR_SCALE,
    NUMBER,
    OUTER_SCALE,
    PART,
    PART_OR_NONE,
    POSITIVE,
    POSITIVE_OR_NONE,
    TORCH_OR_NONE,
    Answer,
)


@dataclass(frozen=True, slots=True)
class Each(Answer):
    """Every contribution makes a new version as it comes."""

    words: ClassVar[str] = "each"

    def size(self, reachable: int | None) -> int:
        """How many contributions a fold takes when `reachable` can come together (None: any number)."""
        return 1


@dataclass(frozen=True, slots=True)
class Buffer(Answer):
    """`k` contributions make a new version, whoever sent them; fewer, `deadline_s` seconds after the first of them."""

    k: Annotated[int, COUNT]
    deadline_s: Annotated[float | None, POSITIVE_OR_NONE] = field(default=None, repr=False)

    def size(self, reachable: int | None) -> int:
        return self.k if reachable is None else min(self.k, max(reachable, 1))

    def __str__(self) -> str:
        return f"buffer of {self.k}" + ("" if self.deadline_s is None else f", {self.deadline_s:g} s at most")


@dataclass(frozen=True, slots=True)
class Round(Answer):
    """One contribution of each worker makes a new version; the `first` of them, if given, and those that come within `grace_s`
    seconds after these.

    `least`: a version is made of so many or more; with fewer workers a round waits for others to come. `deadline_s`: a round
    waits for the `first`, or for all that are there, no longer than that after the first one came, if there are `least` by then.
    `slack`, in place of `grace_s`: this share of the time from the `first` until the earliest of them is due again, by how long
    workers usually take (arXiv 2604.21428).
    """

    first: Annotated[int | None, COUNT_OR_NONE] = None
    grace_s: Annotated[float | None, POSITIVE_OR_NONE] = None
    least: Annotated[int | None, COUNT_OR_NONE] = None
    deadline_s: Annotated[float | None, POSITIVE_OR_NONE] = None
    slack: Annotated[float | None, PART_OR_NONE] = None
    in_rounds: ClassVar[bool] = True

    def __post_init__(self) -> None:
        Answer.__post_init__(self)
        if self.grace_s is not None and self.first is None:
            raise StrategyError(
                f"Round(grace_s={self.grace_s!r}): a round of all waits for everybody, and has no grace; give first, too"
            )
        if self.slack is not None and (self.first is None or self.grace_s is not None):
            raise StrategyError(
                f"Round(slack={self.slack!r}): it is the grace of a round's first; give first, and no grace_s"
            )
        if self.first is not None and self.least is not None and self.least > self.first:
            raise StrategyError(
                f"Round(least={self.least}): the first {self.first} make a version, and these are fewer"
            )

    def size(self, reachable: int | None) -> int:
        everybody = max(reachable or 1, self.least or 1)
        if self.first is None or self.deadline_s is not None:  # until then also who is away may come
            return self.first or everybody
        return min(self.first, everybody)

    def __str__(self) -> str:
        grace = "" if self.grace_s is None else f" and {self.grace_s:g} s more"
        if self.slack is not None:
            grace = (
                " and until one is due again"
                if self.slack == 1.0
                else f" and {self.slack:g} of the time until one is due"
            )
        who = "round of all" if self.first is None else f"round, first {self.first}{grace}"
        least = "" if self.least is None else f", {self.least} at least"
        return who + least + ("" if self.deadline_s is None else f", {self.deadline_s:g} s at most")


Gather = Each | Buffer | Round


@dataclass(frozen=True, slots=True)
class WithFold(Answer):
    """Rows of tables step with the fold, by the weighted mean of its members' gradients: as one process with all their data."""

    words: ClassVar[str] = "with the fold"


@dataclass(frozen=True, slots=True)
class AtOnce(Answer):
    """Rows of tables step by each contribution as it comes, whenever that is folded."""

    at_once: ClassVar[bool] = True
    words: ClassVar[str] = "at once"


RowSteps = WithFold | AtOnce


@dataclass(frozen=True, slots=True)
class Plain(Answer):
    """A stale contribution is not corrected: it is folded as it comes."""

    corrects: ClassVar[bool] = False
    state_copies: ClassVar[int] = 0
    spares_rows: ClassVar[bool] = True
    words: ClassVar[str] = "none"


@dataclass(frozen=True, slots=True)
class WorkerMomentum(Answer):
    """One momentum for each worker instead of a common one: half of DANA (Hakimi et al. 2019, arXiv 1907.11612), the other half
    is `adopt=LookAhead()`."""

    state_copies: ClassVar[int] = 0
    spares_rows: ClassVar[bool] = True
    words: ClassVar[str] = "momentum by worker"


@dataclass(frozen=True, slots=True)
class DelayCompensated(Answer):
    """g + lam g*g*(w_t - w_{t-tau}); adaptive: lam / sqrt(EMA(g*g) + eps) in place of lam (DC-ASGD, Zheng et al. 2017, arXiv
    1609.08326). The backup w_{t-tau} is kept for each worker."""

    lam: Annotated[float, NUMBER] = 2.0
    adaptive: bool = True
    decay: Annotated[float, DECAY] = 0.95
    eps: Annotated[float, POSITIVE] = 1e-7

    @property
    def state_copies(self) -> int:
        """How many tensors the size of the model it keeps: the adaptive form a running mean of squares."""
        return int(self.adaptive)

    def __str__(self) -> str:
        return "delay compensation" + (" (adaptive)" if self.adaptive else "")


@dataclass(frozen=True, slots=True)
class GapAware(Answer):
    """g / (1 + |w_t - w_{t-tau}| / C), elementwise, C the running mean step (Barkai et al. 2020, arXiv 1909.10802)."""

    decay: Annotated[float, DECAY] = 0.99
    state_copies: ClassVar[int] = 0
    words: ClassVar[str] = "gap-aware"


Correct = Plain | WorkerMomentum | DelayCompensated | GapAware


@dataclass(frozen=True, slots=True)
class UserOptimizer(Answer):
    """The user's own `torch.optim` optimizer, run at the server on the gathered gradient.

    `lr_scale="share"`: a fold of k of N workers' contributions moves by k/N of the learning rate (at most all of it),
    so that equal samples make equal movement and a rate tuned for `sync_sgd` carries over to every strategy; by
    (k/N)^(3/4) where the optimizer divides by the root of a second moment, as Adam does
    (`plesio.tensors.rate_scale.scale_for`). Decoupled weight decay is shared by k/N for all.
    `"full"`: the learning rate as the user gave it, whatever was folded.
    """

    lr_scale: Annotated[str, LR_SCALE] = "share"
    of_user: ClassVar[bool] = True

    def scale(self, folded: int, workers: int) -> float:
        """What a fold of `folded` contributions multiplies the learning rate by in a run of `workers`."""
        return folded / workers if folded < workers and self.lr_scale == "share" else 1.0

    def __str__(self) -> str:
        return "user's optimizer" + (", lr x k/N" if self.lr_scale == "share" else "")


@dataclass(frozen=True, slots=True)
class Average(Answer):
    """The weighted mean of what was sent becomes the new parameters; with a `rate` they move towards it,
    w += rate (mean - w)."""

    rate: Annotated[float, PART] = 1.0
    averages: ClassVar[bool] = True

    @property
    def by_rate(self) -> bool:  # type: ignore[override]
        """Whether they move a part of the way only."""
        return self.rate != 1.0

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        """Whether what comes of a fold's contributions is the next version, as it is."""
        return not self.by_rate

    def scale(self, folded: int, workers: int) -> float:
        """What a fold moves by, whoever is in it."""
        return self.rate

    def __str__(self) -> str:
        return "mean" if self.rate == 1.0 else f"{self.rate:g} of the way to the mean"


@dataclass(frozen=True, slots=True, init=False)
class Outer(Answer):
    """An optimizer of its own for deltas: a class of `torch.optim` by name, or `DelayedNesterov`, with its settings.

    `lr_scale="share"`: a fold of k of N workers' contributions moves by k/N of its learning rate; `"sum"`: by k times that, so by
    their sum; `"work"`: by their part of what all weigh that are there. The user's optimizer steps in the workers, with the rate
    and the state it has there.

    >>> print(Outer("SGD", lr=0.7, momentum=0.6, nesterov=True))
    SGD(lr=0.7, momentum=0.6, nesterov=True)
    """

    name: str
    lr_scale: Annotated[str, OUTER_SCALE]
    settings: tuple[tuple[str, Any], ...]
    own_optimizer: ClassVar[bool] = True

    def __init__(
        self, name: str, lr_scale: str = "full", settings: Iterable[tuple[str, Any]] = (), **more: Any
    ) -> None:
        OUTER_SCALE.check("Outer", "lr_scale", lr_scale)
        told = [(key, tuple(value) if isinstance(value, list) else value) for key, value in (*settings, *more.items())]
        values = {"name": name, "lr_scale": lr_scale, "settings": tuple(told)}  # as before it was in a file
        for key, value in values.items():
            object.__setattr__(self, key, value)

    @property
    def replaces(self) -> bool:  # type: ignore[override]
        """Whether what comes of a fold's contributions is the next version, as it is."""
        moves = {key: value for key, value in self.settings if value}
        return (self.name, self.lr_scale, moves) == ("SGD", "full", {"lr": 1.0})

    def scale(self, folded: int, workers: int) -> float:
        """What a fold of `folded` contributions multiplies the learning rate by in a run of `workers`."""
        if self.lr_scale == "sum":
            return float(folded)
        return folded / workers if folded < workers and self.lr_scale == "share" else 1.0

    @property
    def by_work(self) -> bool:  # type: ignore[override]
        return self.lr_scale == "work"

    def __str__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in self.settings)
        return f"{self.name}({settings})" + {
            "share": ", lr x k/N",
            "sum": " of the sum",
            "work": ", lr x part of the work",
        }.get(self.lr_scale, "")


@dataclass(frozen=True, slots=True)
class InWorker(Answer):
    """The mean gradient goes back to the workers, and each one's own optimizer steps by it, with the state it has there."""

    in_worker: ClassVar[bool] = True
    words: ClassVar[str] = "in the worker"

    def scale(self, folded: int, workers: int) -> float:
        """What a fold multiplies the learning rate by: it does not know that rate."""
        return 1.0


Moves = UserOptimizer | InWorker | Average | Outer


@dataclass(frozen=True, slots=True)
class Server(Answer):
    """A server process that owns the global parameters folds."""

    at_server: ClassVar[bool] = True
    words: ClassVar[str] = "server"


@dataclass(frozen=True, slots=True)
class AllReduce(Answer):
    """The workers average their gradients among themselves, by torch's DistributedDataParallel: they are the ranks of one island
    (`plesio.worker.island`). On one host without a GPU the server does it, in the memory that they share, unless it is to go
    `over="torch"` there, too."""

    over: Annotated[str | None, TORCH_OR_NONE] = None
    by_collective: ClassVar[bool] = True
    words: ClassVar[str] = "all-reduce"


@dataclass(frozen=True, slots=True)
class SharedMemory(Answer):
    """Every worker folds its own, in place and without a lock."""

    in_shared_memory: ClassVar[bool] = True
    words: ClassVar[str] = "shared memory"


Via = Server | AllReduce | SharedMemory
