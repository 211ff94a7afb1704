"""A finished run: what it was, and whether that is what its user wanted."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from math import ceil
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from safetensors.torch import load_file

from plesio.config import RunConfig
from plesio.config.evaluations import Rounds
from plesio.core.events import Verdict
from plesio.errors import NonFiniteError, PlesioError
from plesio.launch.job import Outcome
from plesio.launch.simulated.whatif import advice
from plesio.observe.files import RunFolder
from plesio.observe.history import read_summary
from plesio.observe.summary import Summary
from plesio.observe.tables import run_table
from plesio.protocol.launcher import Final
from plesio.strategy import Strategy
from plesio.tables.converted import weights_of
from plesio.tables.file import files_of, load_rows, spec_of
from plesio.tables.module import Table
from plesio.worker.warn import warn, warn_at_end

MOST = 0.9
"""Of the rounds that are to be evaluated, what share has to be for nothing to be said."""


class EvaluateError(PlesioError):
    """`evaluate` raised, which ended the run in good order; the message holds its traceback.

    Attributes:
        run: the `ps.Run` as far as it got: its weights and figures can be used like any other's.

    >>> def evaluate(model):
    ...     return {"accuracy": 1 / 0}
    >>> try:
    ...     ps.run(train, "sync_sgd", workers=2, evaluate=evaluate, engine=ps.Simulated("uniform"))
    ... except ps.EvaluateError as error:
    ...     print(sorted(error.run.state_dict))
    ['bias', 'weight']
    """

    def __init__(self, raised: str, run: Run) -> None:
        self.run = run
        what, *more = raised.splitlines()
        where = run.folder if run.folder is not None else "this exception's .run"
        kept = f"what was trained until then, version {run.summary.version}, is in {where}"
        super().__init__("\n".join([f"evaluate raised {what}; {kept}", *more]))


if TYPE_CHECKING:
    Figures = Summary  # a Run has all that a Summary has
else:
    Figures = object


class Run(Figures):  # type: ignore[misc]  # its own attributes are not frozen
    """A finished run: print it for the table; the figures are its attributes.

    Attributes:
        summary: everything measured, see `plesio.observe.summary.Summary`.
        state_dict: the final global parameters, buffers and shared tables under their PyTorch names.
        tables: the model's tables (`ps.Table`) by name, with their rows; they need no run.
        folder: where it was written, or None.
        lacking: the files of that folder that could not be written, as on a full disk.
        resume: what to pass as `resume=` to go on from its last checkpoint; None if there is none.
        behind: how many versions that one is behind; 0 where it was written at the end.
        returned: what `train` returned, by worker. None for a worker that died, was still training at the end, or joined from
            elsewhere. None, too, for what cannot be pickled or takes more than 16 MB.

    >>> run = ps.run(train, "async_sgd", workers=2, engine=ps.Simulated("uniform"))
    >>> run.version, run.steps, run.staleness.max, run.state_dict["weight"].shape
    (20, 20, 2, torch.Size([1, 2]))
    """

    def __init__(
        self,
        summary: Summary,
        state_dict: dict[str, torch.Tensor],
        folder: Path | None,
        returned: Sequence[Any] = (),
        tables: Mapping[str, Table] = {},
        lacking: Sequence[str] = (),
    ) -> None:
        self.tables = dict(tables)
        self.returned = list(returned)
        self.summary = summary
        self.state_dict = state_dict
        self.folder = folder
        self.lacking = list(lacking)
        self.resume: Path | None = None
        self.behind = 0

    def __str__(self) -> str:
        return run_table(self.summary, self.folder, lacking=self.lacking)

    def _repr_html_(self) -> str:
        """In a notebook: the table."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def __repr__(self) -> str:
        return f"<Run {self.summary.strategy}: version {self.summary.version}, {self.summary.wall_s:.1f} s>"


for _name in dir(Summary):
    if not _name.startswith("_"):  # `run.history` is `run.summary.history`
        setattr(Run, _name, property(attrgetter(f"summary.{_name}")))


def result_of(config: RunConfig, outcome: Outcome, folder: RunFolder | None, advised: str = "") -> Run | None:
    """The finished run, once its folder is written; None if it was interrupted before there was anything to write.
    `advised`: what its page said at the end, for a run of which, taken as a whole, there is no more to say."""
    final = outcome.final
    if final is None or (outcome.interrupted and final.model is None and not outcome.state_dict):
        return None
    summary = _summary(config, outcome, final)
    # Shards cannot be taken over, phases are several strategies, and after Ctrl-C nobody waits.
    if config.data != "shards" and not (config.strategy.plan or outcome.interrupted):
        summary = msgspec.structs.replace(summary, advice=advice(summary, config.strategy) or advised)
    outcome.state_dict |= weights_of(outcome.tables) if outcome.state_dict else {}
    lacking: dict[str, str] = {}
    if folder is not None:
        rows = {file: outcome.tables[name].save for name, file in files_of(outcome.tables).items()}
        lacking = folder.write(summary, outcome.state_dict, rows)
        if lacking:  # a full disk is no reason to lose what was trained
            why = "; ".join(dict.fromkeys(lacking.values()))
            warn(
                f"the run folder {folder.path} cannot be written: it lacks {', '.join(lacking)} ({why}); make room, "
                "or give another folder (runs=, --runs); in a script run.state_dict has the weights: save it elsewhere"
            )
    returned = [outcome.returned.get(worker) for worker in range(max(len(summary.workers), config.numbered))]
    return Run(summary, outcome.state_dict, folder.path if folder else None, returned, outcome.tables, [*lacking])


def written(folder: Path) -> Run:
    """The finished run in that folder, but for what its training functions returned.

    Raises:
        NonFiniteError: as that run did.
    """
    summary, weights = read_summary(folder), folder / "weights.safetensors"
    tables = {
        (spec := spec_of(path)).name: Table.of(spec, load_rows(path, spec))
        for path in folder.glob("table-*.safetensors")
    }
    returned = [None] * len(summary.workers)
    done = Run(summary, load_file(weights) if weights.is_file() else {}, folder, returned, tables)
    check_finite(done)
    return done


def check_finite(done: Run) -> None:
    """Raise `NonFiniteError` where every contribution was discarded: nothing was trained."""
    discarded = done.summary.discarded.get(Verdict.NOT_FINITE.words, 0)
    if discarded and not done.summary.folded:
        where = f"; written to {done.folder}" if done.folder is not None else ""
        raise NonFiniteError(
            f"nothing was trained: no contribution was finite ({discarded:,} with a NaN or an infinity were discarded); "
            "look at the learning rate, the loss and the data, or stop at the first one with "
            f"on_nonfinite='raise' (--on-nonfinite raise){where}"
        )


def warn_of_nothing(done: Run, resumed: bool) -> None:
    """Warn where the training functions returned without training anything, or each made all of a loop."""
    if done.summary.multiplied:
        why = "it makes so many in all. If each worker is to make its whole loop, say worker.count(samples=...) in it"
        warn_at_end(f"{done.summary.multiplied}: {why}")
    if resumed and not done.steps:
        warn_at_end(
            f"no step was made: the run had already used up its loop, or its until=, at version {done.version}. If its data is "
            "new, say data='new' (--data new) beside resume=; to go on longer, raise the number of epochs or steps"
        )
        return
    if done.state_dict and (done.steps or done.version):
        return
    step = "step() of the optimizer that worker.prepare returned"
    missed = step if done.state_dict else "worker.prepare(model, optimizer, loader)"
    warn(f"nothing was trained: no worker called {missed}")


def warn_of_unevaluated(every: object, done: Run) -> None:
    """Warn where rounds were over sooner than their evaluations: the curve has fewer points than rounds."""
    versions = {one.version for one in done.history}
    if not isinstance(every, Rounds) or not versions:
        return
    asked, got = (done.version - min(versions)) // every.rounds, len(versions) - 1
    if got < MOST * asked:
        enough = every.rounds * ceil(asked / max(1, got))
        warn_at_end(
            f"{got:,} of {asked:,} rounds were evaluated, for evaluate takes longer than a round. "
            f"evaluate_every=ps.Rounds({enough}) asks for fewer; round.evaluate in on_round= does each, "
            "and the next round waits for it"
        )


def warn_of_few_rounds(strategy: Strategy, momentum: float, rounds: int) -> None:
    """Warn where an outer momentum had too few rounds to be ahead of plain averaging (docs/local-steps.md)."""
    needed = round(10 / (1 - momentum)) if 0 < momentum < 1 else 0
    rounds //= strategy.send.fragments  # of each part
    if strategy.gather.in_rounds and not strategy.every.by_client and 0 < rounds < needed:
        warn_at_end(
            f"{strategy.name}: outer momentum {momentum:g} needs about {needed} rounds to be ahead of plain averaging, and "
            f"there were {rounds}; train longer, exchange more often, or take local_sgd"
        )


def _summary(config: RunConfig, outcome: Outcome, final: Final) -> Summary:
    return Summary.of(
        final,
        start_up_s=outcome.start_up_s,
        history=tuple(outcome.history),
        logged=tuple(outcome.logged),
        clients=outcome.clients.summaries(),
        incidents=tuple(outcome.incidents),
        ended=outcome.ended,
        clock=config.place.clock,
    )
