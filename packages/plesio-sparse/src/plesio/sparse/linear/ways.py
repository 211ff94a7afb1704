"""Which way to train: how many threads, on what layout of the weights, over which deal of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError, unknown_name
from plesio.sparse.csr import MOST_FEATURES, Rows
from plesio.sparse.linear.deals import LARGEST_CHUNK, Deal, deal, deal_without_conflicts
from plesio.sparse.linear.kernels import Rules
from plesio.sparse.linear.layouts import Coloured, HotCopies, Layout, Replicas, Shared
from plesio.sparse.linear.plans import Penalty
from plesio.sparse.linear.renumbering import renumber
from plesio.sparse.machine import last_level_cache_bytes

MODELS = ("auto", "hot", "replica", "shared")
_EPOCHS_WORTH_RENUMBERING = 4  # it costs as much as it saves in two or three
_WORTH_THREADS = 200_000  # non-zeros: fewer are done before another thread has begun
_MOSTLY = 0.5  # a colouring with fewer of its rows in groups for several threads is serial, more or less


@dataclass(frozen=True, slots=True)
class Settings:
    """What stays the same over a fit, mostly in the words of the estimators' arguments."""

    rules: Rules
    penalty: Penalty
    epochs: int
    tol: float | None
    n_iter_no_change: int
    average_from: int | None
    shuffle: bool
    seed: int
    model: str
    threads: int
    deterministic: bool
    cold: bool  # the weights are all zero, and nobody looks at them before the end: they may be renumbered
    largest_chunk: int = LARGEST_CHUNK  # a longer one would decay the weights too far

    @property
    def memory(self) -> bool:
        """Whether each weight has to remember something (L1, averaging)."""
        return self.average_from is not None or self.penalty.l1 > 0

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigurationError(unknown_name("model", self.model, MODELS))
        if self.model == "hot" and (self.memory or self.deterministic):
            raise ConfigurationError(
                "model='hot' works without L1, averaging and deterministic=True; allowed with these: "
                "'shared', 'replica', 'auto'."
            )


@dataclass(frozen=True, slots=True)
class Way:
    """A decision: rows (renumbered or not), their deal, and a layout for each learner."""

    model: str  # what it came to, in the words of the estimators' settings
    threads: int
    rows: Rows
    deal: Deal
    layouts: Sequence[Layout]
    features: NDArray[np.uint32] | None = None  # which each weight is of, if the features were renumbered
    by_learner: bool = False  # threads take whole learners, instead of all working at one
    contested: bool = False  # whether one thread is as fast has to be found out on the way
    remark: str = ""  # what the user should know of the decision


def decide(settings: Settings, learners: int, rows: Rows, places: NDArray[np.uint32]) -> Way:
    """Choose, by the size of the data and of the model; `places` are the rows to learn from."""
    if settings.deterministic:
        return _deterministic(settings, learners, rows, places)
    dealt = deal(places, rows.mapped, settings.largest_chunk)
    if settings.model == "auto" and 1 < settings.threads <= learners:
        return Way("shared", settings.threads, rows, dealt, [Shared(1)] * learners, by_learner=True)
    features = None
    if _is_worth_renumbering(settings, rows):
        rows, features = renumber(rows, settings.threads)
    model, threads = settings.model, settings.threads
    if model == "auto":
        threads = threads if rows.nonzeros >= _WORTH_THREADS else 1
        model = "replica" if threads > 1 and _is_worth_replicas(threads, rows) else "shared"
    layouts = [_layout(model, threads, rows) for _ in range(learners)]
    contested = settings.model == "auto" and threads > 1 and settings.epochs > 1
    return Way(model, threads, rows, dealt, layouts, features, contested=contested)


def _layout(model: str, threads: int, rows: Rows) -> Layout:
    if model == "hot":
        return HotCopies(threads, rows)
    return Replicas(threads) if model == "replica" and threads > 1 else Shared(threads)


def _is_worth_replicas(threads: int, rows: Rows) -> bool:
    """Whether a sweep of one replica is work enough to merge them all after it."""
    return 4 * rows.features <= last_level_cache_bytes() and threads * rows.features <= rows.nonzeros


def is_far(features: int) -> bool:
    """Whether weights are waited for: from about an eighth of the last-level cache on, which holds the rows as well."""
    return 4 * features > last_level_cache_bytes() // 8


def _is_worth_renumbering(settings: Settings, rows: Rows) -> bool:
    can_be = settings.cold and not settings.memory and not rows.mapped and rows.features < MOST_FEATURES
    return can_be and is_far(rows.features) and settings.epochs >= _EPOCHS_WORTH_RENUMBERING


def _deterministic(settings: Settings, learners: int, rows: Rows, places: NDArray[np.uint32]) -> Way:
    """The same way for any number of threads: only the data and the settings may decide."""
    remark, dealt = "", deal(places, rows.mapped, settings.largest_chunk)
    if settings.model == "auto" and rows.nonzeros < _WORTH_THREADS:
        return Way("shared", 1, rows, dealt, [Shared(1)] * learners)
    if settings.model != "replica":
        groups = deal_without_conflicts(rows, places, settings.seed)
        share = groups.parallel_share
        if settings.model == "shared" or share >= _MOSTLY:
            if share < _MOSTLY:
                remark = (
                    f"frequent features put {1 - share:.0%} of the rows into groups too narrow for several threads: "
                    "they are done one by one; model='replica' is deterministic and parallel."
                )
            nonzeros_per_row = rows.nonzeros / max(len(rows), 1)
            coloured = [Coloured(settings.threads, groups, nonzeros_per_row) for _ in range(learners)]
            return Way("shared", settings.threads, rows, groups, coloured, remark=remark)
        remark = f"frequent features leave {share:.0%} of the rows free of conflicts: replicas instead of one model."
    replicas = [Replicas(settings.threads, fixed=True) for _ in range(learners)]
    return Way("replica", settings.threads, rows, dealt, replicas, remark=remark)
