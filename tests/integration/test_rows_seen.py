"""What a run with tables tells of their rows: in figures, in words, in files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.core.events import Pushed, RowsWanted
from plesio.observe.history import read_summary
from plesio.observe.numbers import ROW_SERVER, TABLE
from plesio.observe.record import LIVE
from plesio.observe.report import write_report
from plesio.observe.rows import LINES_MAX, in_lines, slow_server
from plesio.observe.totals import RowServer, RowsSummary
from plesio.protocol.journal import read_journal

DIM, STEPS, SHARED = 3, 10, (0, 1)


class Net(nn.Module):
    def __init__(self, tables: bool) -> None:
        super().__init__()
        self.ids: nn.Module = ps.Table(DIM) if tables else nn.Embedding(20, DIM)
        self.top = nn.Linear(DIM, 1)


def ids_of(worker: int) -> list[int]:
    """Those that all workers step, and two of its own."""
    return [*SHARED, 10 + 2 * worker, 11 + 2 * worker]


def train(worker: Any) -> None:
    net = Net(True)
    net, optimizer = worker.prepare(net, torch.optim.SGD(net.top.parameters(), lr=0.1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        net.top(net.ids(torch.tensor(ids_of(worker.rank)))).square().sum().backward()
        optimizer.step()


def often(worker: Any) -> None:
    """Long enough for hot keys, which are the same for any number of servers; the last one is not exact as a float."""
    net = Net(True)
    net, optimizer = worker.prepare(net, torch.optim.SGD(net.top.parameters(), lr=0.1))
    for step in range(600):
        optimizer.zero_grad()
        cold = 100 + 1000 * worker.rank + step
        net.top(net.ids(torch.tensor([0, cold, *[2**53 + 1] * (step % 2)]))).square().sum().backward()
        optimizer.step()


def without(worker: Any) -> None:
    net = Net(False)
    net, optimizer = worker.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        net.top(net.ids(torch.tensor(ids_of(worker.rank)))).square().sum().backward()
        optimizer.step()


def counted(folder: Path) -> dict[str, int]:
    """What a journal says of runs in which rows step as contributions come."""
    clock = served = stale = staleness = stepped = 0
    last: dict[int, int] = {}
    given: dict[tuple[int, int], int] = {}
    for record in read_journal(folder).decisions():
        event = record.event
        if isinstance(event, RowsWanted):
            given[event.worker, event.number] = clock
            served += 4
        elif isinstance(event, Pushed) and (event.worker, event.number) in given:
            since = given.pop((event.worker, event.number))
            clock += 1
            for key in ids_of(event.worker):
                late = last.get(key, 0) - since
                stale += late > 0
                staleness += max(0, late)
                last[key] = clock
                stepped += 1
    return {"rows": len(last), "served": served, "stepped": stepped, "born": len(last), "stale": stale,
            "staleness_sum": staleness, "pulled_bytes": served * (8 + 4 * DIM), "pushed_bytes": stepped * 4 * DIM}  # fmt: skip


@pytest.mark.parametrize("engine", [ps.Simulated("uniform"), "local"], ids=["simulated", "real"])
def test_the_figures_are_those_of_the_journal(engine: Any, tmp_path: Path) -> None:
    run = ps.run(train, ps.async_sgd(), workers=3, engine=engine, runs=tmp_path)
    assert run.folder is not None
    one = run.rows["ids"]
    assert {name: getattr(one, name) for name in counted(run.folder)} == counted(run.folder)
    assert one.rows == 2 + 2 * 3
    assert 0 < one.stale_share <= 0.5, "half of each worker's ids are the others', too"
    assert one.mean_staleness == one.staleness_sum / one.stepped
    assert one.memory_bytes > 0
    assert run.bytes >= one.pulled_bytes + one.pushed_bytes


@pytest.mark.thorough
def test_the_bytes_of_a_run_with_phases_have_the_rows_in_them() -> None:
    run = ps.run(train, ps.phases(ps.async_sgd(), (STEPS, ps.sync_sgd())), workers=2)
    assert run.bytes > run.rows["ids"].pulled_bytes + run.rows["ids"].pushed_bytes


@pytest.mark.thorough
def test_hot_keys_are_those_of_all_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [
        ps.run(often, ps.async_sgd(), workers=2, engine=ps.Simulated("uniform"), servers=servers, runs=tmp_path)
        for servers in (1, 3)
    ]
    ((first, always), (second, half)) = runs[0].rows["ids"].hot
    assert (first, always, second) == (0, 1.0, 2**53 + 1)
    assert 0.25 < half < 0.75
    assert runs[1].rows["ids"].hot == runs[0].rows["ids"].hot
    assert (runs[0].row_servers, runs[1].row_servers) == ((), ()), "one process holds all rows"
    words = f"0 (100%), {2**53 + 1} ({half:.0%})"
    assert "the keys that" not in str(runs[0]), "the table is small"
    monkeypatch.setattr("plesio.observe.rows.HOT_ROWS", 100)
    assert f"\ntable ids: the keys that most contributions pulled, estimated: {words}\n" in str(runs[0])
    assert runs[0].folder is not None
    last = [one for one in map(json.loads, (runs[0].folder / LIVE).read_text().splitlines()) if one["kind"] == "at"][-1]
    assert last["rows"]["ids"]["hot"] == words, "the page has no integers of 64 bits"
    assert words in (runs[0].folder / "report.html").read_text()


def test_tables_and_each_of_several_servers_are_in_words_and_in_files(tmp_path: Path) -> None:
    run = ps.run(train, ps.async_sgd(), workers=2, servers=3, runs=tmp_path)
    assert run.folder is not None
    assert sum(one.rows for one in run.row_servers) == run.rows["ids"].rows == 6
    assert [one.pulls for one in run.row_servers] == 3 * [2 * STEPS], "a request goes to each"
    assert all(
        one.busy_s > 0 and one.waited_s > 0 and one.wait_s == one.waited_s / one.pulls for one in run.row_servers
    )
    assert f"table ids: 6 rows (6 born), {run.rows['ids'].memory_bytes / 1000:.1f} kB · 80 steps, " in str(run)
    kept = read_summary(run.folder)
    assert (kept.rows, kept.row_servers) == (run.rows, run.row_servers)
    last = [one for one in map(json.loads, (run.folder / LIVE).read_text().splitlines()) if one["kind"] == "at"][-1]
    assert [one["pulls"] for one in last["row_servers"]] == 3 * [2 * STEPS]
    assert last["rows"]["ids"]["stepped"] == 80
    page = (run.folder / "report.html").read_text()
    assert f'"row_servers":[[0,{run.wall_s},[{{"rows":' in page
    assert '"rows":[[0,"ids","6","6","80",' in page


class Sink:
    def __init__(self) -> None:
        self.told: list[ps.sinks.Told] = []

    def begin(self, name: str, settings: Mapping[str, Any]) -> None: ...

    def tell(self, told: ps.sinks.Told) -> None:
        self.told.append(told)

    def end(self, summary: Any) -> None: ...


@pytest.mark.parametrize("servers", [1, 2])
def test_sinks_are_told_of_tables_and_servers_as_the_run_goes(servers: int, tmp_path: Path) -> None:
    sink = Sink()
    run = ps.run(train, ps.async_sgd(), workers=2, servers=servers, sinks=[sink], pace=0.03)
    told = [{path: value for path, value in one.numbers.items() if path.startswith("row")} for one in sink.told]
    own = {f"rows/ids/{what.name}": getattr(run.rows["ids"], what.name) for what in TABLE}
    own |= {
        f"row_servers/{k}/{what.name}": getattr(one, what.name)
        for k, one in enumerate(run.row_servers)
        for what in ROW_SERVER
    }
    assert told[-1] == own
    assert {"rows/ids/stale_share", "rows/ids/pulled_bytes"} < own.keys()
    assert ("row_servers/1/wait_s" in own) == (servers > 1), "one process holds all rows"
    stepped = [one["rows/ids/stepped"] for one in told if one]
    assert sum(count < stepped[-1] for count in stepped) > 0, "while it is under way"
    assert stepped == sorted(stepped)


def test_a_server_that_keeps_workers_waiting_is_told_of() -> None:
    usual = RowServer(pulls=1000, waited_s=1.0)
    slow = RowServer(pulls=1000, waited_s=2.0)
    assert [*slow_server([usual, slow, usual], workers_s=10.0)] == [
        "table server 1 keeps workers waiting: 2.00 ms a pull, the next one 1.00 ms"
    ]
    assert [*slow_server([usual, slow, usual], workers_s=21.0)] == [], "that is less than 5% of their time"
    assert [*slow_server([usual, slow, slow], workers_s=1.0)] == [], "no one is to blame"
    assert [*slow_server((), workers_s=0.0)] == []


def test_rows_that_step_with_the_fold_are_not_stale_in_lock_step(tmp_path: Path) -> None:
    run = ps.run(train, ps.sync_sgd(), workers=3, engine=ps.Simulated("uniform"), runs=tmp_path)
    one = run.rows["ids"]
    assert (one.stepped, one.stale) == (STEPS * (2 + 2 * 3), 0), "a row steps once a round"


def test_a_run_without_tables_tells_nothing_of_rows(tmp_path: Path) -> None:
    sink = Sink()
    run = ps.run(without, ps.async_sgd(), workers=2, engine=ps.Simulated("uniform"), runs=tmp_path, sinks=[sink])
    assert run.folder is not None
    assert not [path for path in sink.told[-1].numbers if path.startswith("row")]
    assert run.rows == {}
    assert "\ntable" not in str(run)
    assert not {"rows", "row_servers"} & json.loads((run.folder / "summary.json").read_text()).keys()
    assert '"rows":{' not in (run.folder / LIVE).read_text()
    assert read_summary(run.folder).rows == {}


def test_of_many_tables_some_have_a_line() -> None:
    lines = [*in_lines({f"table{k}": RowsSummary(rows=k) for k in range(LINES_MAX + 3)})]
    assert len(lines) == LINES_MAX + 1
    assert lines[-1] == "and 3 more tables"
    assert lines[0] == "table table0: 0 rows (0 born), 0 B · 0 steps, 0% stale (mean 0.00) · pulled 0 B, pushed 0 B"


def test_a_comparison_has_the_tables_of_each_strategy(tmp_path: Path) -> None:
    runs = [
        ps.run(loop, strategy, workers=2, engine=ps.Simulated("uniform"), runs=tmp_path).summary
        for loop, strategy in ((without, ps.sync_sgd()), (train, ps.async_sgd()))
    ]
    write_report(tmp_path / "report.html", runs, title="both", target=None)
    assert '"rows":[[1,"ids","6","6","80",' in (tmp_path / "report.html").read_text()
