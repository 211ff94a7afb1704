"""Loops of a worker that draw their own data, or none."""

from __future__ import annotations

from collections.abc import Iterator

from plesio.attachments.counters import Counting
from plesio.attachments.speeds import WORKERS_MAX, Sharing
from plesio.errors import ConfigurationError
from plesio.strategy.answers.answer import COUNT, WHOLE
from plesio.worker.clients.accountant import tell
from plesio.worker.counter import Counter
from plesio.worker.prepared import Prepared


class OwnLoops(Prepared):
    """What a training function without a prepared loader says."""

    def steps(self, number: int) -> Iterator[int]:
        """The run's steps, for a loop that draws its own data: `for step in worker.steps(10_000)`.

        They are shared out among the workers as batches are, so that all together make as many steps as the script on its own:
        each exactly once, also where workers die. A resumed run goes on where it was. Say `worker.count(samples)` in the loop.

        Args:
            number: how many steps the run has, the same on every worker.

        Raises:
            ConfigurationError: before prepare, beside a loader given to prepare, or another number than before.
        """
        self._exchange_for("steps")
        if not COUNT.holds(number):
            raise ConfigurationError(f"worker.steps({number!r}): {COUNT.words}")
        loader = self._loader if self._loader is not None else self._lease(range(number), counts=False)
        if not isinstance(loader.dataset, range):
            raise ConfigurationError(
                "worker.steps beside a prepared loader: the run's steps are its batches; loop over it"
            )
        if len(loader.dataset) != number:
            raise ConfigurationError(
                f"worker.steps({number}) after worker.steps({len(loader.dataset)}): a run has one number of steps; loop "
                "again over the same"
            )
        return iter(loader)

    def epochs(self, number: int) -> Iterator[int]:
        """The epochs that are left: `for epoch in worker.epochs(5)`. A resumed run, or a worker that comes late, begins with
        the one that the run is in.

        Raises:
            ConfigurationError: prepare was given no loader, or `number` is no whole number.
        """
        if self._loader is None:
            raise ConfigurationError(
                "worker.epochs counts the data that prepare shares out, and prepare was given no loader; loop over "
                "worker.steps(number)"
            )
        if not WHOLE.holds(number):
            raise ConfigurationError(f"worker.epochs({number!r}): {WHOLE.words}")
        first = self._loader.epochs = max(self._loader.epochs, int(self._loader.find_out()))
        for one in self._schedules:
            one.go_to(first)  # by epoch; one that goes by batch catches up at its first call
        yield from range(first, number)

    def count(self, samples: int) -> None:
        """Tell how many samples this step used, where the loop draws its own data: for throughput, `Until(samples=)`, weights by
        samples, and the report. Beside a prepared loader it is told in place of what that counts, such as a batch's tokens: then
        those are what a contribution weighs by, in `sync_sgd`, `allreduce` and wherever samples do.

        Say it before `backward()`. Once the step is sent it is refused where contributions of several workers weigh by samples.

        Raises:
            ConfigurationError: clients count their own, `samples` is no whole number, or the step that they are to weigh is
                exchanged already.
        """
        if not WHOLE.holds(samples):
            raise ConfigurationError(f"worker.count({samples!r}): {WHOLE.words}")
        if self._by_turns:
            raise ConfigurationError("worker.count beside clients: their samples are counted already")
        if self._used.late is None:
            self._used.late = self._state.steps > 0  # the first step came before its count
            if self._used.late and self._exchange is not None and self._exchange.weighs and self._state.draws is None:
                sends = self._exchange.sends_in
                raise ConfigurationError(
                    f"worker.count(samples={samples}) after {sends}: contributions weigh by their samples here, and the "
                    f"step's is sent by then; say worker.count before {sends}, from the first step on"
                )
        self._used.said += samples

    def share_of_batch(self, size: int, rounds: int | None = None) -> slice:
        """Which samples of a global batch, the same on all workers, are this worker's: by their measured speeds, so that all take
        equally long (docs/strategies/lock-step.md). Shares are counted, and gradients weigh by them.

            while worker.version < STEPS:
                batch = batches[worker.version]
                batch = batch[worker.share_of_batch(len(batch))]

        Args:
            size: of the batch; one sample or more for each worker.
            rounds: speeds are measured in the first so many rounds, and then stay; None: as long as the run goes on.

        Raises:
            ConfigurationError: before prepare; beside a prepared loader; no lock step at a server; too small a `size`.
        """
        exchange, why = self._exchange_for("share_of_batch"), ""
        if not exchange.in_lock_step or self.island.ranks > 1 or self.workers > WORKERS_MAX:
            why = f"for up to {WORKERS_MAX} workers, of one process each, that wait for each other at every step, at a server"
        elif self._loader is not None:
            why = "not beside a prepared loader, whose batches are shared out whole; draw the same batches on every worker"
        elif not COUNT.holds(size) or size < self.workers or not (rounds is None or WHOLE.holds(rounds)):
            why = f"whole numbers, and one sample or more for each of the {self.workers} workers"
        if why:
            raise ConfigurationError(f"worker.share_of_batch({size!r}, rounds={rounds!r}): {why}")
        version, sharing = self._state.version, self._state.attachments.of(Sharing)
        measured = rounds is None or version < rounds
        own, exchange.pacer.part = sharing.part(size, self._number, self.workers, version, measured)
        self._used.samples += own.stop - own.start
        return own

    def contribute(self, samples: int | None = None) -> None:
        """Exchange now what this worker's local steps moved since the last time, where the optimizer steps in the worker: for a
        loop over data of its own under `fedavg` and the others, one call a round. Returns when the next version is there.

        Args:
            samples: how many it trained on, which is its weight; None: those counted by `worker.count`, or else steps. 0 counts
                for nothing. Say it on every worker or on none.

        Raises:
            ConfigurationError: before prepare, beside `ps.Clients`, under a strategy that exchanges gradients, `samples` is no
                whole number, or it is 0 for all workers of a round.
            StopRun: the run is over; let it pass.
        """
        exchange = self._exchange_for("contribute")
        if self._by_turns:
            raise ConfigurationError("worker.contribute beside ps.Clients: a client contributes when its turn ends")
        if samples is not None and not WHOLE.holds(samples):
            raise ConfigurationError(f"worker.contribute(samples={samples!r}): {WHOLE.words}")
        if self._context.by_round:
            self._metrics.flush()  # what the head is told of this round
        exchange.contribute(samples)
        if (spent := exchange.spent()) is not None:
            tell(self._context, *spent)

    def counter(self, name: str) -> Counter:
        """A counter that all workers share: `games = worker.counter("episodes")`, then `while games.value < 10_000:` and
        `games.add(1)`. It stands in checkpoints, and a replay counts the same. Each worker may go on for one more step before
        it hears that the number is reached; `worker.steps` is exact.

        Raises:
            ConfigurationError: before prepare, more than 4 counters, a name that is not 1 to 16 ASCII characters, or a strategy
                without a server that folds.
        """
        if not self._exchange_for("counter").counts:
            raise ConfigurationError(
                "worker.counter needs a server that folds, and under this strategy workers fold among themselves; loop over "
                "worker.steps(number), which shares out the run's steps under every strategy"
            )
        return Counter(name, self._state.attachments.of(Counting))
