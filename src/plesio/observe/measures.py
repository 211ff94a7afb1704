"""The numbers of a run under way, each declared once. Sinks, `/metrics` and the dashboard are made of these.

    Totals, Standing -> Numbers (`plesio.observe.numbers`) -> Number -> a series of a sink

A number's unit goes last in its name, as everywhere: `_s`, `_per_s`, `bytes`, `_share`. Each sink makes its own name of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from plesio.core.events import Verdict
from plesio.observe.summary import SENT
from plesio.observe.totals import COLUMNS

LABELS = {
    "run": "",
    "worker": "worker",
    "discarded": "reason",
    "rows": "table",
    "row_servers": "server",
    "reader": "reader",
}
"""The groups, and what tells the numbers of one group apart."""
REASONS = (*SENT, Verdict.CANCELLED.words)
"""Why contributions are discarded: told from the beginning, so that the first one is seen as a change."""


class Measure(NamedTuple):
    """What is measured. `grows`: it is a count, or a sum, that never falls."""

    group: str
    name: str
    help: str
    grows: bool = False


class Number(NamedTuple):
    """A measure's value; `label` says of whom, such as the worker's number."""

    measure: Measure
    value: float
    label: str = ""

    @property
    def path(self) -> str:
        """Its name for sinks that have no labels.

        >>> Number(MEASURES["worker", "steps"], 12, "3").path, Number(MEASURES["run", "steps"], 12).path
        ('worker/3/steps', 'run/steps')
        """
        return "/".join(filter(None, (self.measure.group, self.label, self.measure.name)))


_GAUGES = {
    ("run", "version"): COLUMNS["version"].help,  # a resumed run's goes on, and it may go back to a checkpoint's
    ("run", "time_s"): "since training began",
    ("run", "running"): "1 while the run is under way, 0 when it is over",
    ("run", "workers"): "workers that are there",
    ("run", "steps_per_s"): "local steps of all workers, over the last five seconds",
    ("run", "still_s"): "since steps or versions were last heard of",
    ("run", "ideal_share"): "steps that counted, of those that could have been made without waiting",
    ("run", "waiting_share"): "time that workers were held by others, of all their time",
    ("run", "staleness_mean"): "versions folded between a contribution's beginning and its own fold, the mean so far",
    ("run", "staleness_max"): "and the largest so far",
    ("worker", "there"): "1 while it takes part, 0 when it has left or died",
    ("worker", "waiting"): "1 while others hold it",
    ("worker", "waited_for"): "1 while others wait for it",
    ("worker", "state_s"): "since it began what it is at, or left",
    ("worker", "steps_per_s"): "its local steps, over the last five seconds",
    ("worker", "waiting_share"): "time that others held it, of all its time",
    ("worker", "staleness"): "of its last contribution that was folded",
    ("rows", "rows"): "rows that the table has",
    ("rows", "memory_bytes"): "what rows and index take",
    ("rows", "stale_share"): "steps of rows that were stale",
    ("rows", "mean_staleness"): "of all steps of rows",
    ("row_servers", "rows"): "rows that the server holds",
    ("row_servers", "wait_s"): "how long a pull waited, the mean so far",
    ("reader", "version"): "what it was given last; -1 before",
    ("reader", "behind"): "versions that the run is ahead of what it was given last",
    ("reader", "silent_s"): "since it last asked for anything",
}
_COUNTS = {
    ("worker", "steps"): "local steps",
    ("worker", "compute_s"): "time in which it computed",
    ("worker", "wait_s"): "time in which others held it",
    ("worker", "exchange_s"): "time in which it sent, was folded and was answered",
    ("discarded", "contributions"): "contributions that do not count",
    ("rows", "served"): "rows laid out for workers",
    ("rows", "stepped"): "steps of rows",
    ("rows", "born"): "rows born by their first step",
    ("rows", "stale"): "steps of rows that were stale",
    ("rows", "staleness_sum"): "staleness of all steps of rows",
    ("rows", "pulled_bytes"): "keys and values that workers pulled",
    ("rows", "pushed_bytes"): "gradients of rows that workers pushed",
    ("rows", "refused"): "gradients for keys that have no row yet",
    ("rows", "evicted"): "rows that had died",
    ("row_servers", "pulls"): "pulls of rows",
    ("row_servers", "busy_s"): "CPU time of the server",
    ("row_servers", "waited_s"): "how long all pulls waited",
    ("reader", "bytes"): "weights that it was given",
}
_TOTALS = {("run", name): one.help for name, one in COLUMNS.items() if one.live and name != "version"}
MEASURES: Mapping[tuple[str, str], Measure] = {
    (group, name): Measure(group, name, words, grows)
    for known, grows in ((_TOTALS, True), (_GAUGES, False), (_COUNTS, True))
    for (group, name), words in known.items()
}


def number_at(path: str, value: float) -> Number:
    """The number that has this path.

    >>> number_at("rows/films/likes/stepped", 3.0).label
    'films/likes'
    """
    group, _, rest = path.partition("/")
    label, _, name = rest.rpartition("/")
    return Number(MEASURES[group, name], value, label)
