"""The training of one or several linear functions over the same rows: epoch by epoch, until each has learnt enough."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plesio.hogwild.choosing import Trial, choose
from plesio.hogwild.csr import Rows
from plesio.hogwild.epochs import Epoch
from plesio.hogwild.linear.kernels import FLAT, Data, Rules
from plesio.hogwild.linear.layouts import HotCopies
from plesio.hogwild.linear.losses import LOG
from plesio.hogwild.linear.plans import Learner, Penalty, make_plan
from plesio.hogwild.linear.ways import Way, Wish, decide, laid_out
from plesio.hogwild.machine import needs_prefetch
from plesio.hogwild.threads import pool

_EPOCHS_EXPECTED = 20  # most fits stop before max_iter
_NONZERO_S, _FAR_NONZERO_S = 2e-9, 8e-9  # what one thread takes for a non-zero, roughly: in cache, beyond it
_WORTH_A_PROBE_S = 0.1
_WORTH_COPIES_S = 0.5  # copies of a part of the weights take about as long to set up as a tenth of this
_PROBE_NONZEROS = 1_000_000
_HOPELESS = 1e10  # times the loss of a model at zero: float32 weights that miss by so much do not come back


@dataclass(frozen=True, slots=True)
class Settings:
    """What stays the same over a fit, in the words of the estimators' arguments."""

    loss: int
    epsilon: float
    penalty: Penalty
    intercept_rate: float
    epochs: int
    tol: float | None
    n_iter_no_change: int
    average_from: int | None
    shuffle: bool
    seed: int


@dataclass(frozen=True, slots=True)
class Problem:
    """The rows; and for each learner the targets and how much each row counts."""

    rows: Rows
    targets: list[NDArray[np.float64]]
    importance: list[NDArray[np.float64]]

    def take(self, which: NDArray[Any]) -> Problem:
        """The same with some rows only, or in another order."""
        return Problem(self.rows.take(which), [y[which] for y in self.targets], [one[which] for one in self.importance])


class Sweeps:
    """Sweeps over a problem in a decided way. The weights move to where the layout wants them, and back at `close`."""

    def __init__(self, problem: Problem, settings: Settings, learners: list[Learner], way: Way) -> None:
        self._problem, self._settings, self._learners, self._way = problem, settings, learners, way
        self._homes = [learner.weights for learner in learners]
        self._total = len(problem.rows) * settings.epochs
        self._rules = Rules(
            loss=settings.loss,
            epsilon=settings.epsilon,
            intercept_rate=settings.intercept_rate,
            truncation=settings.penalty.l1,
            flat=FLAT * math.sqrt(settings.penalty.l2) if settings.loss == LOG else 0.0,
            prefetched=needs_prefetch(4 * way.rows.features),
            held=False,
        )
        for learner, layout in zip(learners, way.layouts, strict=True):
            if isinstance(layout, HotCopies):
                home, learner.weights = learner.weights, layout.weights
                if way.features is None:
                    learner.weights[:] = home
            elif way.features is not None:  # only cold weights are ranked: they are zero
                learner.weights = np.zeros(len(way.features), np.float32)

    def close(self) -> None:
        for learner, home in zip(self._learners, self._homes, strict=True):
            if learner.weights is not home:
                learner.fold()
                home[... if self._way.features is None else self._way.features] = learner.weights
                learner.weights = home

    def one(self, index: int, epoch: int) -> tuple[float, list[int]]:
        """One sweep of one learner: the mean loss of a row before it was learnt from, and the rows by thread."""
        settings, way, learner, layout = self._settings, self._way, self._learners[index], self._way.layouts[index]
        order = way.deal.order(settings.seed, epoch, settings.shuffle)
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
        learner.seen += len(rows)
        if settings.average_from is not None:
            learner.averaged += int(np.diff(way.deal.bounds)[order][plan.clocks >= 0].sum())
            learner.total_intercept += float(plan.intercepts.sum())
        return float(plan.losses.sum()) / max(len(rows), 1), [int(rows_) for rows_ in done]

    def each(self, indices: list[int], epoch: int) -> tuple[list[float], list[int]]:
        """One sweep of several learners: the loss of each, and the rows by thread."""
        if self._way.by_learner:
            return self._shared_out(indices, epoch)
        results = [self.one(index, epoch) for index in indices]
        return [loss for loss, _ in results], np.sum([done for _, done in results], axis=0).tolist()

    def _shared_out(self, indices: list[int], epoch: int) -> tuple[list[float], list[int]]:
        """Threads take one learner after the other, each for itself: no conflict, the same bits for any number."""
        ticket, losses = count(), [0.0] * len(indices)

        def work(_: int) -> int:
            rows = 0
            while (turn := next(ticket)) < len(indices):
                losses[turn], done = self.one(indices[turn], epoch)
                rows += sum(done)
            return rows

        return losses, pool(self._way.threads).run(work)


class Training:
    """A fit under way: `epoch(number)` does one sweep for all learners that have not stopped."""

    def __init__(self, problem: Problem, learners: list[Learner], settings: Settings, wish: Wish) -> None:
        self._problem, self._settings, self._learners, self._wish = problem, settings, learners, wish
        self.way = decide(wish, problem.rows, self._probe)
        self._sweeps = Sweeps(problem, settings, learners, self.way)
        self.close = self._sweeps.close
        self.diverged = False
        self._hopeless = [_HOPELESS * max(1.0, float(np.mean(np.square(one)))) for one in problem.targets]

    def epoch(self, number: int) -> Epoch:
        active = [index for index, learner in enumerate(self._learners) if not learner.stopped]
        began = time.perf_counter()
        losses, done = self._sweeps.each(active, number)
        seconds = time.perf_counter() - began
        last = self._learners[active[-1]]
        lr = last.rate.at(number, last.seen, len(self._problem.rows) * self._settings.epochs)
        for index, loss in zip(active, losses, strict=True):
            self._note(self._learners[index], loss)
            self.diverged |= loss > self._hopeless[index]
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

    def _probe(self, pairs: list[tuple[str, int]]) -> tuple[str, int, dict[tuple[str, int], float]]:
        """Try (model, threads) pairs on a copy of the first learner, for at most a tenth of what the fit may take."""
        rows = self._problem.rows
        nonzero_s = _FAR_NONZERO_S if needs_prefetch(4 * rows.features) else _NONZERO_S
        expected_s = rows.nonzeros * min(self._wish.epochs, _EPOCHS_EXPECTED) * nonzero_s
        if expected_s < _WORTH_A_PROBE_S:
            return "shared", 1, {}
        if expected_s < _WORTH_COPIES_S:
            pairs = [(model, threads) for model, threads in pairs if model == "shared"]
        some = rows.span(0, max(1, len(rows) * _PROBE_NONZEROS // max(rows.nonzeros, _PROBE_NONZEROS)))
        copy = self._learners[0].copy()
        chosen = choose([self._trial(some, replace(copy), *pair) for pair in pairs], min(0.2, expected_s / 10))
        return chosen.model, chosen.threads, chosen.examples_per_s

    def _trial(self, rows: Rows, learner: Learner, model: str, threads: int) -> Trial:
        way = laid_out(replace(self._wish, learners=1, cold=False), rows, model, threads, {})
        sweeps = Sweeps(replace(self._problem, rows=rows), self._settings, [learner], way)
        return Trial(model, threads, lambda: sum(sweeps.one(0, 0)[1]))
