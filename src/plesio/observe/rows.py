"""What became of the rows of tables (`plesio.Table`) and what their servers did: in words, and as numbers by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from plesio.observe.amounts import byte_size, number, percent
from plesio.observe.totals import RowServer, RowsSummary

LINES_MAX = 4
HOT_SHARE, HOT_ROWS, HOT_MAX = 0.5, 10_000, 3
"""Hot keys are told of from such a share on, in tables of so many rows; so many are named."""
SLOW, SLOW_PULLS = 0.05, 1000
"""A server is, if workers would wait that share of their time less, were it like the next one; after so many pulls."""


def cells(one: RowsSummary) -> list[str]:
    """Rows, born, stepped, stale, mean staleness, pulled, pushed, memory and hot keys, for people."""
    counts = [f"{count:,}" for count in (one.rows, one.born, one.stepped)]
    sizes = [byte_size(size) for size in (one.pulled_bytes, one.pushed_bytes, one.memory_bytes)]
    return [*counts, percent(one.stale_share), f"{one.mean_staleness:.2f}", *sizes, hot_keys(one)]


def hot_keys(one: RowsSummary) -> str:
    """The first of them.

    >>> hot_keys(RowsSummary(rows=9, hot=((-7, 1.0), (12, 0.63))))
    '-7 (100%), 12 (63%)'
    """
    return ", ".join(f"{key} ({percent(share)})" for key, share in one.hot[:HOT_MAX]) or "–"


def slow_server(servers: Sequence[RowServer], workers_s: float) -> Iterable[str]:
    """A line, if one keeps workers waiting, whose time was `workers_s` in all.

    >>> print(*slow_server([RowServer(pulls=1000, waited_s=1.0), RowServer(pulls=1000, waited_s=8.0)], workers_s=40.0))
    table server 1 keeps workers waiting: 8.00 ms a pull, the next one 1.00 ms
    """
    next_one, slow = sorted([RowServer(), RowServer(), *servers], key=lambda one: one.waited_s)[-2:]
    if slow.pulls >= SLOW_PULLS and slow.waited_s - next_one.waited_s > SLOW * workers_s:
        wait, less = (f"{number(1000 * one.wait_s)} ms" for one in (slow, next_one))
        yield f"table server {servers.index(slow)} keeps workers waiting: {wait} a pull, the next one {less}"


def in_lines(tables: Mapping[str, RowsSummary]) -> Iterable[str]:
    """A line for each table, up to `LINES_MAX`.

    >>> one = RowsSummary(rows=800, stepped=2000, born=800, stale=500, staleness_sum=900, pulled_bytes=10**6, memory_bytes=78400)
    >>> print(*in_lines({"ids": one}))
    table ids: 800 rows (800 born), 78.4 kB · 2,000 steps, 25% stale (mean 0.45) · pulled 1.00 MB, pushed 0 B
    """
    for name, one in [*tables.items()][:LINES_MAX]:
        refused = f", refused {one.refused:,}" if one.refused else ""
        evicted = f", evicted {one.evicted:,}" if one.evicted else ""
        rows, born, stepped, share, mean, pulled, pushed, memory, hot = cells(one)
        yield (
            f"table {name}: {rows} rows ({born} born), {memory} · {stepped} steps, {share} stale (mean {mean}) · "
            f"pulled {pulled}, pushed {pushed}{refused}{evicted}"
        )
        if one.rows >= HOT_ROWS and one.hot and one.hot[0][1] >= HOT_SHARE:
            yield f"table {name}: the keys that most contributions pulled, estimated: {hot}"
    if len(tables) > LINES_MAX:
        yield f"and {len(tables) - LINES_MAX} more tables"
