"""What lock-free training did on the user's own data: the `report_` of a fitted model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.errors import ConfigurationError
from plesio.sparse.chunks import chunk_bounds, chunk_order
from plesio.sparse.collisions import Meetings, gather, sparsity, watch
from plesio.sparse.epochs import Epoch
from plesio.sparse.machine import memory_bandwidth

SPARSITY_NONZEROS = 5_000_000
WATCHED_NONZEROS = 2_000_000  # data with more is looked at in a sample: chunks of rows, drawn by the seed

BUSY = 0.75  # with less than this share of the cores asked for, threads did not really run at once

APART = ("replica", "deterministic")
"""Models without conflicting writes: there is nothing to watch."""


@dataclass(frozen=True, slots=True)
class Report:
    """How sparse the data is, what the threads did to each other, and how fast they were. `print` it.

    Attributes:
        examples, parameters: of the data, of the model.
        threads, model: how it was trained: "shared", "replica", "hot" or "deterministic".
        rho: the share of the examples that the most connected example shares a parameter with.
        rho_exact: whether that is the largest; else it is at least as much (the search was cut short).
        delta: the share of the examples that touch the most shared parameter.
        omega: how many parameters the largest example touches.
        looked_at: the examples that these three are of: all, or a sample of large data.
        watched: the examples of the instrumented run; 0 if there was none as threads were kept apart.
        collision_rate: the share of them of which another thread wrote a parameter between their reading and writing it.
        staleness_mean, staleness_max: updates of other threads between an example's reading and its writing.
        cores: how many cores the threads had in that run, on average.
        updates, lost_updates: additions to single parameters, and those of them that another thread overwrote.
        examples_per_s: of the fit, by thread.
        bytes_per_s: what the fit read and wrote, in caches or memory, from shapes and counts; None if not known.
        bandwidth: bytes/s that this machine's memory was measured to read and write.
    """

    examples: int
    parameters: int
    threads: int
    model: str
    rho: float
    rho_exact: bool
    delta: float
    omega: int
    looked_at: int
    watched: int
    cores: float
    collision_rate: float
    staleness_mean: float
    staleness_max: int
    updates: int
    lost_updates: int
    examples_per_s: tuple[float, ...]
    bytes_per_s: float | None
    bandwidth: float

    def __str__(self) -> str:
        threads = f"{self.threads} thread{'s' if self.threads > 1 else ''}"
        title = f"{self.examples:,} examples, {self.parameters:,} parameters, {threads}, model {self.model!r}"
        return "\n".join([title, *_table(self._sparsity()), *_table(self._meetings()), *_table(self._speed())])

    def _sparsity(self) -> list[tuple[str, str, str]]:
        sample = "" if self.looked_at == self.examples else f" (in a sample of {self.looked_at:,} examples)"
        least = "" if self.rho_exact else "at least "
        return [
            ("How sparse the data is" + sample, "", ""),
            ("largest example (Ω)", f"{self.omega:,}", "parameters are touched by it"),
            ("most shared parameter (Δ)", f"{self.delta:.3%}", "of all examples touch it"),
            ("most connected example (ρ)", f"{least}{self.rho:.3%}", "of all examples share a parameter with it"),
        ]

    def _meetings(self) -> list[tuple[str, str, str]]:
        if not self.watched:
            why = "each thread has a model of its own" if self.model == "replica" else "the schedule has no conflicts"
            return [(f"What the threads did to each other: nothing, {why}", "", "")]
        lost = self.lost_updates / max(self.updates, 1)
        rows = [
            (f"What the threads do to each other (counted in a run over {self.watched:,} examples)", "", ""),
            ("collisions", f"{self.collision_rate:.3%}", "of examples: another thread wrote what they had just read"),
            ("staleness, mean", f"{self.staleness_mean:.2f}", "updates by other threads between reading and writing"),
            ("staleness, most", f"{self.staleness_max:,}", "of them: as a rule the thread lost its core meanwhile"),
            ("lost updates", f"{lost:.4%}", f"of {self.updates:,} additions were overwritten by another thread"),
        ]
        if self.threads > 1 and self.cores < BUSY * self.threads:
            meaning = f"for {self.threads} threads: they took turns, and met less than with a core each"
            rows.append(("cores to be had meanwhile", f"{self.cores:.1f}", meaning))
        return rows

    def _speed(self) -> list[tuple[str, str, str]]:
        if not self.examples_per_s:
            return []
        total = sum(self.examples_per_s)
        each = " + ".join(f"{speed:,.0f}" for speed in self.examples_per_s)
        rows = [
            ("How fast the fit was", "", ""),
            ("examples/s", f"{total:,.0f}", f"= {each} by thread" if self.threads > 1 else ""),
        ]
        if self.bytes_per_s is not None:
            share = f"{self.bytes_per_s / self.bandwidth:.0%} of the {self.bandwidth / 1e9:.1f} GB/s"
            rows.append(
                ("traffic", f"{self.bytes_per_s / 1e9:.1f} GB/s", f"read and written; {share} that main memory does")
            )
        return rows


def measure(
    indptr: NDArray[np.int64],
    indices: NDArray[np.uint32],
    parameters: int,
    *,
    threads: int,
    model: str = "shared",
    hot: NDArray[Any] | None = None,
    epochs: Sequence[Epoch] = (),
    bytes_per_example: float | None = None,
    seed: int = 0,
) -> Report:
    """The report on a fit, in about half a second: its threads are run again, on counters, over some of the examples.

    Args:
        indptr, indices: which of `parameters` parameters each example touches, as in a CSR matrix.
        threads, model: how it was trained: "shared", "replica", "hot" or "deterministic".
        hot: the parameters of which each thread has a copy of its own: nobody meets there.
        epochs: what the fit did; the speeds are those of its fastest epoch.
        bytes_per_example: what the kernel reads and writes for one.
        seed: of the sample, where the data is large.

    Raises ConfigurationError if an index is not below `parameters`.
    """
    examples = len(indptr) - 1
    if len(indices) and int(indices.max()) >= parameters:
        raise ConfigurationError(f"an example touches parameter {indices.max()}, but there are {parameters}, from 0.")
    rows = _sample(indptr, SPARSITY_NONZEROS, seed)
    found = sparsity(gather(indptr, indices, parameters, rows))
    met = Meetings()
    if model not in APART:
        met = watch(gather(indptr, indices, parameters, _sample(indptr, WATCHED_NONZEROS, seed), hot), threads)
    fastest = min(epochs, key=lambda epoch: epoch.seconds / max(epoch.examples, 1), default=None)
    speeds = tuple(count / fastest.seconds for count in fastest.examples_by_thread) if fastest else ()
    return Report(
        examples=examples,
        parameters=parameters,
        threads=threads,
        model=model,
        looked_at=len(rows),
        examples_per_s=speeds,
        bytes_per_s=sum(speeds) * bytes_per_example if bytes_per_example is not None and speeds else None,
        bandwidth=memory_bandwidth(),
        **found._asdict(),
        **met._asdict(),
    )


def _sample(indptr: NDArray[np.int64], nonzeros: int, seed: int) -> NDArray[np.int64]:
    """All rows, or of large data as many chunks of them, drawn by the seed, as hold about `nonzeros`."""
    rows = len(indptr) - 1
    if int(indptr[-1]) <= nonzeros:
        return np.arange(rows)
    bounds = chunk_bounds(rows)
    count = max(1, len(bounds) * nonzeros // int(indptr[-1]))
    drawn = np.sort(chunk_order(len(bounds) - 1, seed, 0)[:count])
    return np.concatenate([np.arange(bounds[chunk], bounds[chunk + 1]) for chunk in drawn])


def _table(rows: Sequence[tuple[str, str, str]]) -> list[str]:
    """A heading, and lines of name, figure and meaning in columns."""
    return [
        f"\n{name}" if not figure else f"  {name:<28}{figure:>16}  {meaning}".rstrip() for name, figure, meaning in rows
    ]
