"""The training of one or several linear functions over the same rows: epoch by epoch, until each has learnt enough."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.sparse.choosing import Contest
from plesio.sparse.csr import Rows
from plesio.sparse.epochs import Epoch
from plesio.sparse.linear.kernels import Data
from plesio.sparse.linear.layouts import HotCopies, Layout, Shared
from plesio.sparse.linear.plans import Learner, make_plan
from plesio.sparse.linear.renumbering import bring_home
from plesio.sparse.linear.ways import Settings, decide, is_far
from plesio.sparse.threads import pool

_HOPELESS = 1e10  # times the loss of a model at zero: float32 weights that miss by so much come back slowly, if at all


@dataclass(frozen=True, slots=True)
class Problem:
    """The rows; for each learner the targets and how much each row counts; and which of the rows are learnt from."""

    rows: Rows
    targets: list[NDArray[np.float64]]
    importance: list[NDArray[np.float64]]
    places: NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.places)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """The targets, how much they count, and rows that are in memory: a fit is gone on with on the same data."""
        rows = () if self.rows.mapped else (self.rows.indptr, self.rows.indices, self.rows.values)
        return (*self.targets, *self.importance, self.places, *rows)

    def shuffled(self, seed: int) -> Problem:
        """The same in another order: copies of the rows, for neighbours are to be neighbours in memory."""
        which = np.random.default_rng(seed).permutation(self.places)
        targets, importance = ([one[which] for one in each] for each in (self.targets, self.importance))
        return Problem(self.rows.take(which), targets, importance, np.arange(len(self), dtype=np.uint32))


class Training:
    """A fit under way, in a decided way: `epoch(number)` does one sweep for all learners that have not stopped.

    The weights move to where the layout wants them, and back at `close`.
    """

    def __init__(self, problem: Problem, learners: list[Learner], settings: Settings) -> None:
        self._problem, self._settings, self._learners = problem, settings, learners
        self.way = way = decide(settings, len(learners), problem.rows, problem.places)
        self.diverged = False
        self.hopeless = False  # a loss that falls may still come back from there: scikit-learn's squared hinge does
        self._before = [math.inf] * len(learners)
        self._hopeless = [_HOPELESS * max(1.0, float(np.mean(np.square(one)))) for one in problem.targets]
        self._homes = [learner.weights for learner in learners]
        self._total = len(problem) * settings.epochs
        self._rules = settings.rules._replace(prefetched=is_far(way.rows.features))
        nonzeros_per_row = way.rows.nonzeros / max(len(way.rows), 1)
        self._contest = Contest(np.diff(way.deal.bounds) * nonzeros_per_row, open=way.contested)
        for learner, layout in zip(learners, way.layouts, strict=True):
            if isinstance(layout, HotCopies):
                home, learner.weights = learner.weights, layout.weights
                if way.features is None:
                    learner.weights[:] = home
            elif way.features is not None:  # only cold weights are renumbered: they are zero
                learner.weights = np.zeros(len(way.features), np.float32)

    def close(self) -> None:
        for learner, home in zip(self._learners, self._homes, strict=True):
            learner.fold()
            learner.finite = bool(np.isfinite(learner.weights.sum()))
            if learner.weights is not home:
                if self.way.features is None:
                    home[:] = learner.weights
                else:
                    bring_home(home, self.way.features, learner.weights, self.way.threads)
                learner.weights = home

    @property
    def winner(self) -> tuple[str, int]:
        """The model and the number of threads that are used now, that "auto" came to."""
        return (self.way.model, self.way.threads) if self._contest.won else ("shared", 1)

    def _one(self, index: int, epoch: int) -> tuple[float, list[int]]:
        """One sweep of one learner: the mean loss of a row before it was learnt from, and the rows by thread."""
        way, loss, done = self.way, 0.0, np.zeros(self.way.threads, np.int64)
        order = way.deal.order(self._settings.seed, epoch, self._settings.shuffle)
        for part, all_threads in self._contest.parts(order):
            layout = way.layouts[index] if all_threads else Shared(1)
            more, rows = self._part(index, epoch, part, layout)
            loss += more
            done[: len(rows)] += rows
        return loss / max(len(self._problem), 1), done.tolist()

    def _part(self, index: int, epoch: int, order: NDArray[np.uint32], layout: Layout) -> tuple[float, list[int]]:
        """These turns of an epoch: the sum of the losses, and the rows by thread."""
        settings, way, learner = self._settings, self.way, self._learners[index]
        plan, stretches = make_plan(
            order, way.deal.bounds, learner, settings.penalty,
            epoch=epoch, total=self._total, share=layout.share, average_from=settings.average_from,
        )  # fmt: skip
        rows, targets, importance = way.rows, self._problem.targets[index], self._problem.importance[index]
        data = Data(rows.indptr, rows.indices, rows.values, targets, importance, way.deal.rows)
        done: Any = [0]
        for stretch in stretches:
            done = np.add(done, layout(learner, data, plan, self._rules, stretch.first, stretch.end))
            learner.pay(stretch.scale, stretch.owed, stretch.clock)
        learner.seen += int(sum(done))
        if settings.average_from is not None:
            learner.averaged += int(np.diff(way.deal.bounds)[order][plan.clocks >= 0].sum())
            learner.total_intercept += float(plan.intercepts.sum())
        return float(plan.losses.sum()), done

    def _each(self, indices: list[int], epoch: int) -> tuple[list[float], list[int]]:
        """One sweep of several learners: the loss of each, and the rows by thread."""
        if self.way.by_learner:
            return self._shared_out(indices, epoch)
        results = [self._one(index, epoch) for index in indices]
        return [loss for loss, _ in results], np.sum([done for _, done in results], axis=0).tolist()

    def _shared_out(self, indices: list[int], epoch: int) -> tuple[list[float], list[int]]:
        """Threads take one learner after the other, each for itself: no conflict, the same bits for any number."""
        ticket, losses = count(), [0.0] * len(indices)

        def work(_: int) -> int:
            rows = 0
            while (turn := next(ticket)) < len(indices):
                losses[turn], done = self._one(indices[turn], epoch)
                rows += sum(done)
            return rows

        return losses, pool(self.way.threads).run(work)

    def epoch(self, number: int) -> Epoch:
        active = [index for index, learner in enumerate(self._learners) if not learner.stopped]
        began = time.perf_counter()
        losses, done = self._each(active, number)
        seconds = time.perf_counter() - began
        last = self._learners[active[-1]]
        lr = last.rate.at(number, last.seen, len(self._problem) * self._settings.epochs)
        far = [(index, loss) for index, loss in zip(active, losses, strict=True) if loss > self._hopeless[index]]
        self.hopeless = bool(far)
        self.diverged |= any(loss >= self._before[index] for index, loss in far)
        for index, loss in zip(active, losses, strict=True):
            self._note(self._learners[index], loss)
            self._before[index] = loss
        return Epoch(number, lr, float(np.mean(losses)), sum(done), seconds, tuple(done))

    @property
    def finished(self) -> bool:
        return self.diverged or all(learner.stopped for learner in self._learners)

    def _note(self, learner: Learner, loss: float) -> None:
        """Stop a learner whose loss has not fallen by `tol` for `n_iter_no_change` epochs, unless its rate still falls."""
        tol = self._settings.tol
        if tol is None:
            return
        learner.idle_epochs = learner.idle_epochs + 1 if loss > learner.best_loss - tol else 0
        learner.best_loss = min(learner.best_loss, loss)
        if learner.idle_epochs >= self._settings.n_iter_no_change:
            learner.idle_epochs = 0
            learner.stopped = not learner.rate.plateau()
