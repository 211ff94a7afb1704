"""The report's data and its page: correct, complete, self-contained, well formed and small."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest

import plesio as ps
from plesio.cli.compare import closing
from plesio.cli.live import ended
from plesio.config.until import Until
from plesio.launch.simulated.whatif import advice, what_if
from plesio.observe.amounts import byte_size
from plesio.observe.comparison import cells
from plesio.observe.figures import LANE_COLUMNS, POINTS_MAX
from plesio.observe.finding import finding, setting
from plesio.observe.logbook import LastSteps
from plesio.observe.repeats import middle, notes, times_of
from plesio.observe.report import write_report
from plesio.observe.summary import LOWER, NEGATED, Evaluation, Incident, Logged, Span, Summary
from plesio.observe.tables import compare_table, render, run_table
from plesio.observe.times import measured
from plesio.observe.totals import COLUMNS, Staleness, WorkerSummary
from support.long_forms import but_slow

FAST_S, SLOW_S, EXCHANGE_S = 0.008, 0.08, 0.0006
WORKERS = 4
SLOW = 3
TARGET = ("accuracy", 0.95)


@dataclasses.dataclass(frozen=True)
class Kind:
    """How a strategy behaves: whether a round waits for everyone, how many local steps it takes, how fast it learns."""

    name: str
    recipe: str
    barrier: bool
    every: int = 1
    rate: float = 1.0
    tau: int = 0


KINDS = (
    Kind("sync_sgd", "sync_sgd", True, rate=1.0),
    Kind("allreduce", "allreduce", True, rate=1.02),
    Kind("async_sgd", "async_sgd", False, rate=1.1, tau=3),
    Kind("bounded_staleness(4)", "bounded_staleness", False, rate=0.7, tau=4),
    Kind("buffered(k=2)", "buffered", False, rate=0.8, tau=2),
    Kind("local_sgd(every=16)", "local_sgd", True, every=16, rate=1.3),
    Kind("hogwild", "hogwild", False, rate=0.95, tau=6),
    Kind("async_local_sgd(every=16)", "async_local_sgd", False, every=16, rate=1.2, tau=9),
)


def fabricate(kind: Kind, *, wall_s: float = 12.0, evaluations: int = 60, seed: int = 0) -> Summary:
    """A run of four workers, the last ten times slower, as `kind` would have gone."""
    rng = random.Random(f"{kind.name} {seed}")
    spans = _spans(kind, wall_s, rng)
    parts = tuple(_part(worker, kind, [span for span in spans if span.worker == worker]) for worker in range(WORKERS))
    steps = sum(part.steps for part in parts)
    quick = kind.rate * (0.16 if kind.barrier else 1.0)
    history = tuple(
        Evaluation(time_s=t, version=int(40 * t), samples=int(800 * t), metrics=_metrics(quick * t, rng))
        for t in (wall_s * k / evaluations for k in range(evaluations + 1))
    )
    logged = tuple(
        Logged(time_s=t, worker=w, steps=5, metrics={"loss": _loss(quick * t) * rng.uniform(0.8, 1.25)})
        for t in (wall_s * (k + 0.5) / 150 for k in range(150))
        for w in range(WORKERS)
    )
    return Summary(
        strategy=kind.name,
        recipe=kind.recipe,
        workers=parts,
        wall_s=wall_s,
        version=steps // kind.every,
        steps=steps,
        samples=steps * 32,
        folded=steps // kind.every,
        discarded={"too stale": 12} if kind.recipe == "bounded_staleness" else {},
        bytes=steps // kind.every * 2 * 4 * 52_650,
        staleness=_staleness(kind, steps // kind.every),
        history=history,
        logged=logged,
        timeline=tuple(spans),
    )


def _spans(kind: Kind, wall_s: float, rng: random.Random) -> list[Span]:
    spans, clocks = [], [0.0] * WORKERS
    while min(clocks) < wall_s:
        turns = range(WORKERS) if kind.barrier else [clocks.index(min(clocks))]
        for worker in turns:
            lasts = kind.every * (SLOW_S if worker == SLOW else FAST_S) * rng.uniform(0.9, 1.15)
            spans.append(Span(worker, "compute", clocks[worker], clocks[worker] + lasts))
            clocks[worker] += lasts
        last = max(clocks) if kind.barrier else 0.0
        for worker in turns:
            if last > clocks[worker]:
                spans.append(Span(worker, "wait", clocks[worker], last))
                clocks[worker] = last
            spans.append(Span(worker, "exchange", clocks[worker], clocks[worker] + EXCHANGE_S))
            clocks[worker] += EXCHANGE_S
    return spans


def _part(worker: int, kind: Kind, spans: Sequence[Span]) -> WorkerSummary:
    seconds = {k: sum(s.end_s - s.start_s for s in spans if s.kind == k) for k in ("compute", "wait", "exchange")}
    pushes = sum(span.kind == "compute" for span in spans)
    return WorkerSummary(
        worker=worker,
        steps=pushes * kind.every,
        samples=pushes * kind.every * 32,
        folded=pushes,
        discarded=0,
        compute_s=seconds["compute"],
        wait_s=seconds["wait"],
        exchange_s=seconds["exchange"],
        speed=pushes * kind.every / seconds["compute"],
    )


def _loss(progress: float) -> float:
    return 2.3 * math.exp(-1.6 * progress) + 0.012


def _metrics(progress: float, rng: random.Random) -> dict[str, float]:
    accuracy = 0.1 + 0.875 * (1 - math.exp(-1.8 * progress)) + rng.uniform(-0.004, 0.004)
    return {"accuracy": accuracy, "loss": _loss(progress) + 0.05}


def _staleness(kind: Kind, folds: int) -> Staleness:
    usual, late = kind.tau, kind.tau + 3
    by_worker = {worker: {usual: folds // WORKERS + 1, late: 1} for worker in range(WORKERS)}
    return Staleness(mean=usual, p50=usual, p99=late, max=late, by_worker=by_worker)


@pytest.fixture(scope="module")
def runs() -> list[Summary]:
    """One run of each kind: the synchronous ones wait for the slow worker, the others do not."""
    runs = [fabricate(kind) for kind in KINDS]
    died = Incident(time_s=4.2, worker=1, what="died (signal 9); its share of the data went to others")
    odd = Incident(time_s=0.31, worker=None, what="a contribution was not finite and was discarded")
    runs[2] = msgspec.structs.replace(runs[2], incidents=(died, odd), batches_unvisited=37)
    return runs


def bare(strategy: str = "async_sgd", recipe: str = "async_sgd") -> Summary:
    """A run that recorded nothing."""
    return Summary(
        strategy=strategy,
        recipe=recipe,
        workers=(),
        wall_s=0.0,
        version=0,
        steps=0,
        samples=0,
        folded=0,
        discarded={},
        bytes=0,
        staleness=Staleness(),
    )


def test_a_summary_is_printed_without_its_timeline() -> None:
    spans = tuple(Span(0, "compute", float(at), at + 1.0, 1) for at in range(1000))
    summary = msgspec.structs.replace(bare(), timeline=spans)
    assert repr(summary) == repr(bare())
    assert len(summary.timeline) == 1000
    assert "strategy='async_sgd'" in str(summary)


def reaching(strategy: str, time_s: float | None, wall_s: float = 12.6) -> Summary:
    """A run whose accuracy is 0.95 from `time_s` on, and 0.9 before."""
    times = sorted({1.0, wall_s} | ({time_s} if time_s else set()))
    history = tuple(
        Evaluation(t, 1, 1, {"accuracy": 0.95 if time_s is not None and t >= time_s else 0.9}) for t in times
    )
    only = WorkerSummary(0, 1000, 1000, 10, 0, compute_s=0.0, wait_s=0.0, exchange_s=0.0, speed=0.0)
    return msgspec.structs.replace(
        bare(strategy, strategy.split("(")[0]), history=history, wall_s=wall_s, workers=(only,), steps=1000, folded=10
    )


class _Balance(HTMLParser):
    """Checks that every tag opened is closed, in order."""

    VOID = frozenset({"meta", "wbr", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> is out of order"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and self.tags[-1][1].get("id") == "data":
            self.data += data


@dataclasses.dataclass(frozen=True)
class Page:
    """A page as written, its tags, and the data in it."""

    html: str
    tags: list[tuple[str, dict[str, str | None]]]
    data: dict[str, Any]

    @property
    def text(self) -> str:
        """Every text in the data, a line each."""
        return "\n".join(texts(self.data))

    @property
    def charts(self) -> dict[str, dict[str, Any]]:
        """The charts by name."""
        return {one["name"]: one for one in self.data["learning"]["charts"]}


def texts(value: Any) -> list[str]:
    """All strings in JSON data."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for part in parts for text in texts(part)]


def page(path: Path, summaries: Sequence[Summary], **options: object) -> Page:
    """The page of a report; it must be well formed, and its data JSON without NaN."""
    given = {"title": "Digits, one slow worker", "target": TARGET, **options}
    write_report(path / "report.html", summaries, **given)  # type: ignore[arg-type]
    html = (path / "report.html").read_text(encoding="utf-8")
    parsed = _Balance()
    parsed.feed(html)
    parsed.close()
    assert parsed.open == []

    def no_constant(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return Page(html, parsed.tags, json.loads(parsed.data, parse_constant=no_constant))


@pytest.mark.thorough
def test_the_page_needs_no_external_resource(tmp_path: Path, runs: list[Summary]) -> None:
    """A browser's own account is in `tests/integration/test_report_page.py`."""
    shown = page(tmp_path, runs)
    library = resources.files("plesio.observe").joinpath("page/uplot.min.js").read_text(encoding="utf-8")
    assert library in shown.html
    ours = shown.html.replace(library, "").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|@import|url\(|\{\{", ours)
    assert not {"img", "iframe", "object"} & {tag for tag, _ in shown.tags}
    assert {attrs.get("src", attrs.get("href", "data:,")) for _, attrs in shown.tags} == {"data:,"}


def test_the_page_shows_every_strategy_in_every_section(tmp_path: Path, runs: list[Summary]) -> None:
    data = page(tmp_path, runs).data
    every = list(range(len(runs)))
    assert [one["name"] for one in data["strategies"]] == [run.strategy for run in runs]
    assert len(data["table"]["rows"]) == len(runs)
    assert [[line["strategy"] for line in chart["lines"]] for chart in data["learning"]["charts"]] == [every] * 3
    assert [group["strategy"] for group in data["lanes"]["groups"]] == every
    assert [len(group["rows"]) for group in data["lanes"]["groups"]] == [WORKERS] * len(runs)


def test_the_table_marks_what_may_be_the_fastest(tmp_path: Path, runs: list[Summary]) -> None:
    """Single runs: within what seeds alone make."""
    shown = page(tmp_path, runs)
    times = [time for run in runs if (time := run.time_to(*TARGET)) is not None]
    table = shown.data["table"]
    marked = [row[0] for row, best in zip(table["rows"], table["best"], strict=True) if best]
    assert marked == [f"{time:.2f} s" for time in times if time <= 2.5 * min(times)]
    assert 0 < len(marked) < len(runs)
    # three of four wait nine tenths of their time
    assert re.search(r"waiting 6[5-9]%", shown.data["lanes"]["groups"][0]["about"])
    assert "the slowest, worker 3, takes 10 times as long" in shown.data["setting"]


@pytest.mark.parametrize("part", ["whole", "middle"])
def test_lanes_show_the_shares_of_time(tmp_path: Path, runs: list[Summary], part: str) -> None:
    """However fine the spans, the columns of each colour are its share of the time."""
    (group,) = page(tmp_path, runs[:1]).data["lanes"]["groups"]
    lanes = [row[part] for row in group["rows"]]
    assert [len(lane) for lane in lanes] == [LANE_COLUMNS] * WORKERS
    assert all(lane.count(" ") <= 10 for lane in lanes)  # the last round was cut at its slowest
    assert lanes[0].count("w") / LANE_COLUMNS == pytest.approx(runs[0].workers[0].waiting_share, abs=0.03)
    assert lanes[SLOW].count("c") / LANE_COLUMNS == pytest.approx(0.99, abs=0.02)


def raced(until_s: float = 12.6, **times: float | None) -> list[Summary]:
    """A run of each strategy, with the second in which it reached the target."""
    return [reaching(name, time, until_s) for name, time in times.items()]


def evaluated(metric: str, **values: float) -> list[Summary]:
    """A run of each strategy with one evaluation."""
    return [
        msgspec.structs.replace(bare(name), history=(Evaluation(1.0, 1, 1, {metric: value}),), wall_s=3.0)
        for name, value in values.items()
    ]


RATES = [reaching("sync_sgd", 1.0, 20.0), reaching("async_sgd", 1.0, 4.0)]
FELL = msgspec.structs.replace(reaching("hogwild", None), history=(Evaluation(2.0, 1, 1, {"accuracy": 0.93}),))
LOSSES = evaluated("loss", hogwild=0.5, async_sgd=0.3)


@pytest.mark.parametrize(
    ("summaries", "target", "expected"),
    [
        (raced(sync_sgd=12.6, hogwild=5.4, async_sgd=2), TARGET, "async_sgd @ 2.00 s, 6.3 times sooner than sync_sgd."),
        (raced(sync_sgd=None, async_sgd=2), TARGET, "async_sgd @ 2.00 s; sync_sgd did not reach it in 12.6 s."),
        (raced(hogwild=2.04, async_sgd=2), TARGET, "hogwild and async_sgd tie: they @ 2.04 and 2.00 s."),
        (raced(hogwild=4.8, async_sgd=2), TARGET, "hogwild and async_sgd tie: they @ 4.80 and 2.00 s."),  # seeds alone
        (
            raced(sync_sgd=2, hogwild=None, async_sgd=3),
            TARGET,
            "sync_sgd and async_sgd tie: they @ 2.00 and 3.00 s; hogwild did not reach it in 12.6 s.",
        ),
        (
            raced(sync_sgd=None, async_sgd=None),
            TARGET,
            "No run ! 12.6 s; the best was sync_sgd with 0.9000 after 1.00 s.",
        ),
        ([*raced(sync_sgd=None), FELL], TARGET, "No run ! 12.6 s; the best was hogwild with 0.9300 after 2.00 s."),
        ([bare("sync_sgd"), bare()], TARGET, "No run ! 0 s: no finite accuracy was evaluated."),
        (raced(async_sgd=2), TARGET, "async_sgd @ 2.00 s, at 0% of the ideal throughput."),
        (raced(async_sgd=None), TARGET, "No run ! 12.6 s; the best was async_sgd with 0.9000 after 1.00 s."),
        (
            LOSSES,
            ("loss", 0.1),
            "No run reached loss 0.1 within 3.00 s; the best was async_sgd with 0.3000 after 1.00 s.",
        ),
        (LOSSES, ("loss", 0.4), "async_sgd reached loss 0.4 in 1.00 s; hogwild did not reach it in 3.00 s."),
        (
            RATES,
            None,
            "async_sgd made 250 steps a second, 5.0 times the 50.0 of sync_sgd. This is speed, and ranks nothing by quality: "
            "that takes --until METRIC=VALUE.",
        ),
        ([], TARGET, "There is no run to report."),
    ],
)
def test_the_finding_names_the_fastest_strategy(
    tmp_path: Path, summaries: list[Summary], target: tuple[str, float] | None, expected: str
) -> None:
    expected = expected.replace("@", "reached accuracy 0.95 in").replace("!", "reached accuracy 0.95 within")
    assert finding(summaries, target) == expected
    assert page(tmp_path, summaries, target=target).data["finding"] == expected


def test_without_a_target_equal_speeds_tie_and_the_finding_says_what_quality_takes() -> None:
    words = finding([reaching("sync_sgd", 1.0, 10.0), reaching("async_sgd", 1.0, 9.9)], None)
    assert words.startswith("sync_sgd and async_sgd tie: they made 100 and 101 steps a second. This is speed")
    takes = "ranks nothing by quality: that takes a function evaluate(model) in the script, and --until METRIC=VALUE"
    assert takes in finding([bare("sync_sgd"), bare("async_sgd")], None)


def repeated(**times: tuple[float | None, ...]) -> list[list[Summary]]:
    """Several runs of each strategy."""
    return [[reaching(name, time) for time in several] for name, several in times.items()]


BEST = (2.0, 1.9, 2.2)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        (repeated(sync_sgd=(9, 10, 12), async_sgd=BEST), "async_sgd @ 2.00 s (3), 5.0 times sooner than sync_sgd."),
        (
            repeated(sync_sgd=(8, 8, 8), hogwild=(2.1, 2.4, 2.6), async_sgd=BEST),
            "hogwild and async_sgd tie: they @ 2.40 and 2.00 s (3), 4.0 times sooner than sync_sgd.",
        ),
        (repeated(hogwild=(2.4, 2.5, 2.5), async_sgd=BEST), "async_sgd @ 2.00 s (3), 1.2 times sooner than hogwild."),
        (  # apart, but by less than half the spread: two equal strategies are so in one comparison of ten
            repeated(hogwild=(2.3, 2.4, 2.5), async_sgd=BEST),
            "hogwild and async_sgd tie: they @ 2.40 and 2.00 s (3).",
        ),
        (
            repeated(hogwild=(2.3, 2.4, 2.5, 2.5), async_sgd=(*BEST, 2.0)),
            "async_sgd @ 2.00 s (the upper median of 4 runs), 1.2 times sooner than hogwild.",
        ),
        (
            repeated(hogwild=(None, None, None), async_sgd=BEST),
            "async_sgd @ 2.00 s (3); hogwild did not reach it in 12.6 s.",
        ),
        (  # one of its runs was as fast
            repeated(hogwild=(2.0, None, None), async_sgd=BEST),
            "hogwild and async_sgd tie: they @ more than 12.6 and 2.00 s (3).",
        ),
    ],
)
def test_a_winner_is_outside_the_spread_of_the_others(tmp_path: Path, runs: list[list[Summary]], expected: str) -> None:
    medians = [middle(several, TARGET) for several in runs]
    expected = expected.replace("@", "reached accuracy 0.95 in").replace("(3)", "(the median of 3 runs)")
    assert finding(medians, TARGET, runs) == expected
    shown = page(tmp_path, medians, repeats=runs)
    assert "(1.90-2.20)" in shown.html
    assert "2.00 s (1.90-2.20)" in render(compare_table(medians, TARGET, "accuracy", repeats=runs))
    marked = [one.strategy for one, best in zip(medians, shown.data["table"]["best"], strict=True) if best]
    assert marked == (["hogwild", "async_sgd"] if " tie: " in expected else ["async_sgd"])


@pytest.mark.parametrize(
    ("runs", "begins"),
    [
        (
            repeated(async_sgd=(1.0, 1.1, None), hogwild=(1.15, 1.2, 1.2)),
            "async_sgd and hogwild tie: they reached accuracy 0.95 in 1.10 and 1.20 s",
        ),
        (
            repeated(async_sgd=(2.0, 2.2), sync_sgd=(8.0, 8.2)),
            "async_sgd reached accuracy 0.95 in 2.20 s (the upper median of 2 runs)",
        ),
    ],
)
def test_the_best_ties_where_it_missed_the_target_once_and_is_an_upper_median(
    runs: list[list[Summary]], begins: str
) -> None:
    assert finding([middle(several, TARGET) for several in runs], TARGET, runs).startswith(begins)


def test_a_run_that_missed_the_target_has_no_end_to_its_spread() -> None:
    (runs,) = repeated(hogwild=(2.3, None, None))
    assert middle(runs, TARGET) in runs[1:]
    assert "> 12.6 s (from 2.30)" in cells(middle(runs, TARGET), TARGET, "accuracy", times_of(runs, TARGET))[0]


def test_an_ideal_share_from_cancelled_steps_is_marked(tmp_path: Path) -> None:
    """A worker with only cancelled steps counts as fast as the longest of them."""
    known = WorkerSummary(0, 100, 100, 100, 0, compute_s=10.0, wait_s=0.0, exchange_s=0.0, speed=10.0)
    never = WorkerSummary(1, 0, 0, 0, 9, compute_s=10.0, wait_s=0.0, exchange_s=0.0, speed=0.0, called_off_s=1.0)
    run = msgspec.structs.replace(bare("first_of(1)"), workers=(known, never), steps=100, wall_s=10.0)
    assert "(≥ 91% of ideal)" in run_table(run, None)
    assert "≥ 91%" in render(compare_table([run], None, None))
    assert "≥ 91%" in page(tmp_path, [run]).data["table"]["rows"][0]
    alone = msgspec.structs.replace(run, workers=(known,))
    assert "≥" not in run_table(alone, None) + render(compare_table([alone], None, None)) + page(tmp_path, [alone]).text


def test_starting_and_training_are_told_apart(tmp_path: Path) -> None:
    """A summary without the field, or of a simulated run, says nothing of a start."""
    known = msgspec.structs.replace(bare("sync_sgd"), wall_s=0.2, start_up_s=10.06)
    other = msgspec.structs.replace(known, strategy="async_sgd", start_up_s=9.0)
    assert run_table(known, None).startswith("sync_sgd: finished · training 0.20 s, start 10.1 s · version 0")
    assert notes([known], None, None) == ["Times are of training alone. Before it, the run took 10.1 s to start."]
    both = "Times are of training alone. Before it, each run took 9.0 to 10.1 s to start."
    assert notes([known, other], None, None) == [both]
    assert both in page(tmp_path, [known, other]).data["table"]["notes"]
    document = msgspec.to_builtins(known)
    del document["start_up_s"]
    old = msgspec.convert(document, Summary)
    assert run_table(old, None).startswith("sync_sgd: finished · 0.20 s · version 0")
    assert notes([old], None, None) == []


def test_shares_near_0_and_100_percent_are_not_rounded_to_them(tmp_path: Path) -> None:
    """One worker waits for 8 s of 4,000."""
    fast = WorkerSummary(0, 1332, 1332, 1332, 0, compute_s=3992.0, wait_s=8.0, exchange_s=0.0, speed=1332 / 3992)
    slow = WorkerSummary(1, 1332, 1332, 1332, 0, compute_s=4000.0, wait_s=0.0, exchange_s=0.0, speed=1332 / 4000)
    spans = tuple(Span(worker, "compute", 3.0 * k, 3.0 * k + 3, 1) for worker in (0, 1) for k in range(1330))
    given = {"workers": (fast, slow), "steps": 2664, "wall_s": 4000.0, "timeline": spans}
    run = msgspec.structs.replace(bare("sync_sgd"), **given)
    of_a_run = run_table(run, None)
    assert "0.67 steps/s (>99% of ideal) · waiting <1%" in " ".join(of_a_run.split())
    assert re.search(r"0\.33\d │ +<1% │", of_a_run)
    assert re.search(r"0\.67 +>99% +<1% ", render(compare_table([run], None, None)))
    assert ended(run, None) == "4000.00 s, 2,664 steps (0.67/s)"
    assert "made 0.666 steps a second, at >99% of the ideal throughput." in finding([run], None)
    data = page(tmp_path, [run]).data
    assert data["table"]["rows"][0][2:4] == [">99%", "<1%"]
    assert data["lanes"]["groups"][0]["about"] == "waiting <1%"
    assert [row["waiting"] for row in data["lanes"]["groups"][0]["rows"]] == ["<1%", "0%"]


def test_a_page_of_one_run_has_no_comparison(tmp_path: Path, runs: list[Summary]) -> None:
    shown = page(tmp_path, runs[2:3])
    assert shown.data["table"]["best"] == [False]
    assert "async_sgd: batches of the epochs begun that stayed unused: 37 (" in shown.data["incidents"]["lost"][0]
    assert "died (signal 9)" in shown.text


@pytest.mark.parametrize("name", [name for name, column in COLUMNS.items() if column.lost])
def test_what_was_lost_is_told_in_the_words_of_its_column(name: str, tmp_path: Path) -> None:
    run, words = msgspec.structs.replace(bare(), **{name: 1_234}), f"{COLUMNS[name].help}: 1,234"
    assert words in " ".join(run_table(run, None).split())
    assert f"{run.strategy}: {words}" in page(tmp_path, [run]).data["incidents"]["lost"][0]
    stopped = run_table(msgspec.structs.replace(run, ended="5 steps were up"), None)
    assert (words in " ".join(stopped.split())) != COLUMNS[name].at_end


def test_missing_records_become_sentences(tmp_path: Path) -> None:
    for summaries in ([bare()], [bare(), bare("sync_sgd")]):
        shown = page(tmp_path, summaries, target=None)
        assert "No evaluations were recorded" in shown.text
        assert "No worker logged a loss" in shown.text
        assert [chart["lines"] for chart in shown.data["learning"]["charts"]] == [[]]
        assert shown.data["lanes"]["groups"] == []


@pytest.mark.parametrize("discarded", [0, 4])
@pytest.mark.parametrize("wall_s", [0.0, 2.0])
@pytest.mark.parametrize("steps", [0, 4])
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_every_figure_at_the_end_bears_zeros(
    tmp_path: Path, workers: int, steps: int, wall_s: float, discarded: int
) -> None:
    vain = min(steps, discarded)
    crew = [WorkerSummary(k, steps, 0, 0, vain, wall_s, 0.0, 0.0, 0.0, "finished", vain) for k in range(workers)]
    spans = [Span(k, "compute", j * wall_s / 4, (j + 1) * wall_s / 4, 1) for k in range(workers) for j in range(steps)]
    summary = msgspec.structs.replace(
        bare(), workers=crew, timeline=spans, wall_s=wall_s, steps=workers * steps, discarded={"not finite": discarded}
    )
    page(tmp_path, [summary, summary])
    assert run_table(summary, None)
    assert compare_table([summary, summary], None, None)
    assert advice(summary, ps.async_sgd()) is None
    with contextlib.suppress(ps.ConfigurationError):
        what_if(measured(summary), [ps.sync_sgd()])


def test_strategies_with_nothing_to_draw_are_named(tmp_path: Path, runs: list[Summary]) -> None:
    silent = msgspec.structs.replace(runs[0], strategy="silent", history=(), logged=(), timeline=())
    shown = page(tmp_path, [*runs[1:3], silent])
    assert shown.text.count("Nothing to draw for silent.") == 3
    assert "No timeline was recorded for silent." in shown.text


def test_other_logged_metrics_are_drawn(tmp_path: Path, runs: list[Summary]) -> None:
    """Six of them, smaller than the loss; the page says if there are more."""
    names = [f"own_{k}" for k in range(6)]
    also = [Logged(float(t), 0, 5, dict.fromkeys(names, t / 10)) for t in range(10)]
    shown = page(tmp_path, [runs[0], msgspec.structs.replace(runs[2], logged=(*runs[2].logged, *also))])
    assert [name for name, chart in shown.charts.items() if chart.get("small")] == [f"{name}, logged" for name in names]
    assert shown.text.count("Nothing to draw for sync_sgd.") == 6
    assert shown.data["learning"]["notes"] == []
    odd = [*also, Logged(3.0, 1, 5, {"<b>zebra</b>": 1.0})]
    shown = page(tmp_path, [msgspec.structs.replace(runs[0], logged=tuple(odd))])
    assert "<b>zebra</b>, logged" in shown.charts
    assert "own_5, logged" not in shown.charts
    assert shown.data["learning"]["notes"] == ["Logged, too, and not drawn: own_5."]
    assert "<b>zebra" not in shown.html


def test_logged_numbers_are_the_mean_of_the_workers(tmp_path: Path, runs: list[Summary]) -> None:
    """Weighted by steps, in bins of time."""
    logged = tuple(Logged(t, w, steps, {"own": own}) for t in (0.5, 2.0) for w, steps, own in ((0, 3, 1.0), (1, 1, t)))
    (line,) = page(tmp_path, [msgspec.structs.replace(runs[0], logged=logged)]).charts["own, logged"]["lines"]
    assert (line["time"], line["y"]) == ([0.5, 2.0], [0.875, 1.25])


def test_the_loss_at_the_end_is_one_figure_of_all_workers(tmp_path: Path) -> None:
    """The last entry is one step of one worker; a worker that died early does not count."""
    entries = [Logged(t / 10, w, 1, {"loss": float(w)}) for t in range(1, 41) for w in range(2)]
    dead = Logged(0.1, 2, 1, {"loss": 90.0})
    summary = msgspec.structs.replace(bare(), logged=(dead, *entries), wall_s=4.0)
    (line,) = page(tmp_path, [summary], target=None).charts["training loss"]["lines"]
    assert line["end"] == "0.500"
    assert "train loss 0.5 (mean of the last 10 steps)" in run_table(summary, None)
    spent = [Logged(float(t), 0, 0, {"epsilon": float(t)}) for t in range(40)]
    assert LastSteps(spent).means() == {"epsilon": 39.0}


@pytest.mark.parametrize(("value", "words"), [(None, "No worker logged a loss"), (math.nan, "No finite training loss")])
def test_a_loss_that_nobody_logged_is_not_called_infinite(tmp_path: Path, value: float | None, words: str) -> None:
    logged = () if value is None else (Logged(1.0, 0, 1, {"loss": value}),)
    shown = page(tmp_path, [msgspec.structs.replace(bare(), logged=logged)], target=None)
    assert shown.charts["training loss"]["caption"].startswith(words)


def test_the_axes_of_both_pages_know_what_falls() -> None:
    script = (resources.files("plesio.observe") / "page" / "report.js").read_text()
    assert f"/^(?!{NEGATED}).*({'|'.join(LOWER)})/i" in script


@pytest.mark.thorough
def test_the_page_says_that_hogwild_snapshots_may_be_torn(tmp_path: Path, runs: list[Summary]) -> None:
    hogwild = next(one for one in runs if one.recipe == "hogwild")
    others = [one for one in runs if one is not hogwild][:2]
    torn = "may be torn, part one version and part the next"
    shown = page(tmp_path, others)
    assert shown.data["clock"] == "wall time"
    assert "evaluated on consistent snapshots." in shown.text
    assert torn not in shown.text
    for given in ([*others, hogwild], [hogwild]):
        text = page(tmp_path, given).text
        assert f"evaluated on snapshots; those of hogwild {torn}" in text
        assert "consistent" not in text
    simulated = page(tmp_path, [msgspec.structs.replace(hogwild, clock="virtual")])
    assert torn not in simulated.text, "what is simulated is never torn"
    assert simulated.data["clock"] == "virtual time"


def test_curves_over_samples_steps_and_bytes(tmp_path: Path, runs: list[Summary]) -> None:
    """Samples are exact at each evaluation; steps and bytes end at the run's totals, whatever the timeline kept."""
    spans = tuple(Span(w, "compute", 0.1 * k, 0.1 * k + 0.1, 2) for w in range(WORKERS) for k in range(20))
    workers = tuple(msgspec.structs.replace(runs[2].workers[w], worker=w, steps=100) for w in range(WORKERS))
    run = msgspec.structs.replace(runs[2], timeline=spans, workers=workers, steps=400)
    spent = page(tmp_path, [run]).data["strategies"][0]["spent"]
    assert all(len(values) == len(spent["time"]) and values == sorted(values) for values in spent.values())
    samples = dict(zip(spent["time"], spent["samples"], strict=True))
    assert {float(f"{one.time_s:.7g}"): one.samples for one in run.history}.items() <= samples.items()
    steps = dict(zip(spent["time"], spent["steps"], strict=True))
    assert steps[1.0] == 80
    assert steps[2.0] == pytest.approx(160)
    assert (spent["steps"][-1], spent["bytes"][-1]) == (400, pytest.approx(run.bytes, rel=1e-6))
    resumed = tuple(
        msgspec.structs.replace(one, version=one.version + 9, samples=one.samples + 500) for one in run.history
    )
    spent = page(tmp_path, [msgspec.structs.replace(run, history=resumed)]).data["strategies"][0]["spent"]
    assert spent["samples"][0] == 500


def test_long_series_are_thinned_and_keep_their_extremes(tmp_path: Path, runs: list[Summary]) -> None:
    values = [math.sin(k / 1000) for k in range(50_000)]
    values[12_345], values[23_456], values[34_567] = 7.0, -9.0, math.nan
    history = tuple(Evaluation(k / 100, k, k, {"accuracy": value}) for k, value in enumerate(values))
    shown = page(tmp_path, [msgspec.structs.replace(runs[0], history=history, wall_s=500.0)])
    (line,) = shown.charts["accuracy"]["lines"]
    assert 500 < len(line["y"]) <= POINTS_MAX
    points = dict(zip(line["time"], line["y"], strict=True))
    assert {123.45: 7.0, 234.56: -9.0, 345.67: None, 0.0: 0.0, 499.99: values[-1]}.items() <= points.items()
    assert line["time"] == sorted(points)


def test_the_staleness_of_very_many_workers_is_summed(tmp_path: Path, runs: list[Summary]) -> None:
    stale = Staleness(mean=1.0, max=2, p99=2, by_worker={w: {0: 5, 2: 5} for w in range(40)})
    (one,) = page(tmp_path, [msgspec.structs.replace(runs[2], staleness=stale)]).data["strategies"]
    assert one["staleness"]["by_worker"] == {"all": {"0": 200, "2": 200}}
    own = page(tmp_path, runs[2:3]).data["strategies"][0]["staleness"]["by_worker"]
    assert own == {
        f"worker {w}": {str(tau): n for tau, n in by.items()} for w, by in runs[2].staleness.by_worker.items()
    }


def test_non_finite_values_break_the_line_only(tmp_path: Path, runs: list[Summary]) -> None:
    history = tuple(
        Evaluation(float(t), t, t, {"accuracy": value}) for t, value in enumerate((0.1, 0.5, math.nan, 0.6, math.inf))
    )
    logged = tuple(Logged(float(t), 0, 1, {"loss": v}) for t, v in enumerate((2.0, 3e5, math.inf, math.nan)))
    diverged = msgspec.structs.replace(runs[0], strategy="diverged", history=history, logged=logged)
    shown = page(tmp_path, [diverged, runs[1]])
    line, loss = (shown.charts[name]["lines"][0] for name in ("accuracy", "training loss"))
    assert line["y"] == [0.1, 0.5, None, 0.6, None]
    assert [value is None for value in loss["y"]] == [False, False, True, True]
    assert (line["end"], loss["end"]) == ("not finite", "not finite")
    assert "not finite" in shown.data["table"]["rows"][0]


def test_everything_from_outside_is_escaped_what_is_not_utf8_too(tmp_path: Path, runs: list[Summary]) -> None:
    evil = '<script>alert("x")</script>&\'"'
    run = msgspec.structs.replace(
        runs[2],
        strategy=evil,
        history=(Evaluation(1.0, 1, 1, {evil: 0.5}),),
        discarded={evil: 1},
        incidents=(Incident(1.0, 0, evil),),
        ended=evil,
        workers=tuple(msgspec.structs.replace(worker, left=evil) for worker in runs[2].workers),
    )
    shown = page(tmp_path, [run, run], title=evil, target=(evil, 0.9), note=evil)
    assert shown.html.count("<script") == shown.html.count("</script>") == 3
    assert "<script>alert" not in shown.html
    assert shown.text.count(evil) > 5
    assert {one["name"] for one in shown.data["strategies"]} == {evil}
    data = page(tmp_path, runs[:1], title="\udcff.py", note="\udcff.py: one").data
    assert (data["title"], data["note"]) == ("\\udcff.py", "\\udcff.py: one")


@pytest.mark.thorough
def test_the_page_is_small(tmp_path: Path) -> None:
    """Eight strategies, four workers with 5,000 spans each, 200 evaluations."""
    many = []
    for kind in KINDS:
        run = fabricate(kind, wall_s=30.0, evaluations=200)
        spans = [span for w in range(WORKERS) for span in [s for s in run.timeline if s.worker == w][:5000]]
        many.append(msgspec.structs.replace(run, timeline=tuple(spans)))
    assert len(page(tmp_path, many).html.encode()) <= 426_000


@pytest.mark.thorough
def test_very_short_spans_keep_the_page_small(tmp_path: Path, runs: list[Summary]) -> None:
    """5,100 spans a lane, far more than columns: one run's long steps widen the window."""
    fine = tuple(
        Span(worker, kind, (3 * k + part) * 1e-4, (3 * k + part + 1) * 1e-4)
        for worker in range(WORKERS)
        for k in range(1700)
        for part, kind in enumerate(("compute", "wait", "exchange"))
    )
    long = tuple(Span(worker, "compute", 0.5 * k, 0.5 * k + 0.5) for worker in range(WORKERS) for k in range(8))
    given = [msgspec.structs.replace(run, timeline=fine if k else long) for k, run in enumerate(runs)]
    shown = page(tmp_path, given)
    lanes = shown.data["lanes"]
    assert lanes["window_s"] == 0.51
    assert len(shown.html.encode()) <= 400_000
    drawn = [row["middle"].count("w") for group in lanes["groups"][1:] for row in group["rows"]]
    assert drawn == [pytest.approx(300, abs=3)] * (WORKERS * (len(runs) - 1))  # a third of the time, still


def test_many_workers_are_cut_to_the_slowest_and_fastest(tmp_path: Path, runs: list[Summary]) -> None:
    spans = tuple(Span(w, "compute", 0.1 * k, 0.1 * k + 0.1) for w in range(40) for k in range(50))
    workers = tuple(
        msgspec.structs.replace(runs[2].workers[0], worker=w, speed=1.0 if w == 31 else 10.0) for w in range(40)
    )
    shown = page(tmp_path, [msgspec.structs.replace(runs[2], timeline=spans, workers=workers)])
    (group,) = shown.data["lanes"]["groups"]
    assert len(group["rows"]) == 16
    assert 31 in [row["worker"] for row in group["rows"]]
    assert "of 40 workers the 8 slowest and the 8 fastest" in group["about"]


def test_finished_workers_are_not_listed_and_many_dead_are_counted(tmp_path: Path, runs: list[Summary]) -> None:
    def leaving(why: str) -> Summary:
        part = runs[2].workers[0]
        workers = tuple(msgspec.structs.replace(part, worker=w, left=why) for w in range(20))
        return msgspec.structs.replace(runs[2], workers=workers, incidents=())

    assert " finished." not in page(tmp_path, [leaving("finished")]).text
    died = page(tmp_path, [leaving("died")]).text
    assert died.count(" died.") == 8
    assert "12 more workers left" in died


PART = WorkerSummary(0, 100, 100, 100, 0, compute_s=10.0, wait_s=0.0, exchange_s=0.0, speed=10.0)
LATE = {"left": "stopped", "steps": 110, "compute_s": 11.0}  # stopped at 10 s, it made 10 more steps in a second


@pytest.mark.parametrize(
    ("one", "other", "steps", "share"),
    [
        ({"left": "finished"}, {"compute_s": 4.0, "left": "died"}, 140, 1.0),
        ({"left": "finished"}, {"compute_s": 4.0, "left": "finished"}, 140, 1.0),
        ({"left": "finished"}, {"compute_s": 4.0, "left": "stopped"}, 140, 0.7),
        ({"in_vain": 30}, None, 100, 0.7),
        ({"left": "stopped"}, LATE, 210, 1.0),
    ],
)
def test_the_ideal_share_is_of_the_time_in_which_workers_took_part(
    one: dict[str, Any], other: dict[str, Any] | None, steps: int, share: float
) -> None:
    """Two workers of 10 steps a second over 10 s."""
    parts = [msgspec.structs.replace(PART, worker=w, **given) for w, given in enumerate((one, other)) if given]
    run = msgspec.structs.replace(bare(), workers=tuple(parts), steps=steps, wall_s=10.0)
    assert run.ideal_share == pytest.approx(share)
    if other is LATE:
        assert run.steps_per_s == pytest.approx(20.0)


def test_byte_sizes_are_rounded() -> None:
    assert [byte_size(n) for n in (0, 999, 1_000, 52_400_000, 3e15)] == [
        "0 B", "999 B", "1.00 kB", "52.4 MB", "3,000 TB",
    ]  # fmt: skip


@pytest.mark.parametrize("width", but_slow(range(60, 160), range(60, 160, 9)))
def test_no_figure_of_a_comparison_is_cut_at_any_width(width: int) -> None:
    fast = msgspec.structs.replace(fabricate(KINDS[2]), strategy="async_sgd", samples=28_755, bytes=34_600_000)
    slow = msgspec.structs.replace(fabricate(KINDS[5]), strategy="local_sgd(every 16 steps)", samples=195_831)
    out = render(compare_table([fast, slow], TARGET, "accuracy", width=width), width=width)
    whole = {word for run in (fast, slow) for cell in cells(run, TARGET, "accuracy") for word in cell.split()}
    last = [line.split()[-1] for line in out.splitlines() if "%" in line]
    assert len(last) == 2
    assert {*last} <= whole


@pytest.mark.parametrize(
    ("goals", "ended", "expected"),
    [
        ({"accuracy": 0.95}, "30 seconds were up", "No run reached accuracy 0.95 within 12.6 s; the best was sync_sgd with "
         "0.9000 after 1.00 s. Try more than --budget-s 30, or a lower target."),
        ({"accuracy": 0.95}, "finished", "All were through with train(worker) by then: try more epochs, or a lower target."),
        ({"accuracy": 0.95}, "worker 0 stopped the run: enough", "All were through with train(worker) by then: try more epochs"),
        ({"steps": 2000, "samples": 5000}, "30 seconds were up", "No strategy got to 2,000 steps or 5,000 samples within 30 s. "),
        ({"steps": 2000}, "30 seconds were up", "Try more than --budget-s 30, or a lower target."),
    ],
)  # fmt: skip
def test_the_closing_line_without_a_reached_target(goals: dict[str, Any], ended: str, expected: str) -> None:
    until = Until(**goals, seconds=30)
    runs = [msgspec.structs.replace(reaching(name, None), ended=ended) for name in ("sync_sgd", "async_sgd")]
    assert expected in closing(until, runs)
    spoiled = [msgspec.structs.replace(run, discarded={"not finite": 11}) for run in runs]
    advice = "Most contributions held a NaN or an infinity: try a lower learning rate."
    assert closing(until, spoiled).endswith(advice)


@pytest.mark.parametrize("goals", [{"accuracy": 0.95}, {"steps": 1000}, {}])
def test_the_closing_line_with_a_reached_target_is_the_finding(goals: dict[str, Any]) -> None:
    until = Until(**goals, seconds=30)
    runs = [reaching("sync_sgd", 12.6), reaching("async_sgd", 2.0)]
    assert closing(until, runs) == finding(runs, until.target)


def test_the_setting_names_the_slow_worker(runs: list[Summary]) -> None:
    assert setting(runs) == "4 workers; the slowest, worker 3, takes 10 times as long for a step as the fastest."
    assert setting([bare()]) == "0 workers."
    even = msgspec.structs.replace(runs[0], workers=runs[0].workers[:2])
    assert setting([even]) == "2 workers, about equally fast."
    assert setting([even, runs[1]]).startswith("2 to 4 workers;")
