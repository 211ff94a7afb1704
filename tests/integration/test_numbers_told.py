"""Every number of the live page is told to every sink, under that sink's own kind of name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

import plesio as ps
from plesio.observe.measures import LABELS, MEASURES, REASONS, number_at
from plesio.observe.numbers import Numbers
from plesio.observe.sinks.exposition import Exposition, Shown, family_of, series_of
from plesio.observe.sinks.opentelemetry import instrument_of
from plesio.observe.standing import ReaderNow, Standing, WorkerNow
from plesio.observe.totals import RowServer, RowsSummary, Totals
from support import loops

STATIC = Path(__file__).parents[2] / "docs" / "_static"
WORKERS, TABLE = 3, "ids"

NO_NUMBER = {"run", "hot keys"}
"""Columns of the page without a number: a name, and keys."""
COLUMNS = {
    "state": ["run/running", "run/still_s"],
    "time, s": ["run/time_s"],
    "version": ["run/version", "reader/site/version"],
    "steps": ["run/steps", "worker/0/steps"],
    "steps/s": ["run/steps_per_s", "worker/0/steps_per_s"],
    "of ideal": ["run/ideal_share"],
    "waiting": ["run/waiting_share", "worker/0/waiting_share"],
    "staleness, mean (max)": ["run/staleness_mean", "run/staleness_max"],
    "bytes": ["run/bytes"],
    "worker": ["run/workers", "worker/0/there"],
    "is": ["worker/0/waiting", "worker/0/waited_for", "worker/0/compute_s", "worker/0/wait_s", "worker/0/exchange_s"],
    "for, s": ["worker/0/state_s"],
    "staleness of its last contribution": ["worker/0/staleness"],
    "table": ["rows/ids/rows"],
    "rows": ["rows/ids/rows", "row_servers/0/rows"],
    "born": ["rows/ids/born"],
    "stepped": ["rows/ids/stepped"],
    "stale": ["rows/ids/stale_share"],
    "staleness, mean": ["rows/ids/mean_staleness"],
    "pulled": ["rows/ids/pulled_bytes"],
    "pushed": ["rows/ids/pushed_bytes"],
    "memory": ["rows/ids/memory_bytes"],
    "server": ["row_servers/0/rows"],
    "pulls": ["row_servers/0/pulls"],
    "computes": ["row_servers/0/busy_s"],
    "wait, a pull": ["row_servers/0/wait_s"],
    "reader": ["reader/site/version"],
    "behind": ["reader/site/behind"],
    "silent, s": ["reader/site/silent_s"],
    "was given": ["reader/site/bytes"],
}
EVENTS = ["run/deaths", "run/joins", "run/samples", *(f"discarded/{why}/contributions" for why in REASONS)]
"""What the page tells in its list of events, and an axis of its charts."""


def heads_of_the_page() -> Iterator[str]:
    """The heads of its tables, as its scripts have them."""
    page = resources.files("plesio.observe") / "page"
    lists = {
        "live.js": [
            r"const heads = \[(.*?), \.\.\.metrics\]",
            r"table\(\[(.*?)\], rows, .now",
            r"table\(\[(.*?)\], rows, .readers",
        ],
        "report.js": [r"all\(\[(.*?)\], rows", r"all\(\[(.*?)\], loads"],
    }
    for file, patterns in lists.items():
        text = (page / file).read_text()
        for pattern in patterns:
            found = re.search(pattern, text)
            assert found is not None, (file, pattern)
            yield from json.loads(f"[{found[1]}]")


def told(time_s: float, steps: int = 12) -> tuple[Any, ...]:
    """The numbers of a run with a table, that somebody reads."""
    workers = tuple(WorkerNow(k, "wait" if k else "compute", 1.0, steps, 2.0, 1.0, 0.5, k) for k in range(WORKERS))
    totals = Totals(
        version=4, steps=WORKERS * steps, samples=96, bytes=1000, deaths=1, joins=3, discarded={"stale": 2},
        rows={TABLE: RowsSummary(rows=9, stepped=4)}, row_servers=(RowServer(rows=9, pulls=2, waited_s=1.0),),
    )  # fmt: skip
    now, readers = Standing(workers, 0, (0,), 0.7, {0: {0: 3, 4: 1}}), [ReaderNow("site", 3, 1, 0.5, 640)]
    return Numbers().of(time_s, totals, now, readers=readers)


def test_each_column_of_the_live_page_is_told() -> None:
    heads = {*heads_of_the_page()}
    assert heads - NO_NUMBER == COLUMNS.keys(), "a new column: say here which numbers sinks are told of it"
    paths = {one.path for one in told(3.0)}
    assert [path for each in [*COLUMNS.values(), EVENTS] for path in each if path not in paths] == []
    assert {one.measure for one in told(3.0)} == {*MEASURES.values()}, "and no measure is declared in vain"


def train(worker: ps.Worker) -> None:
    loops.follow(worker, build=loops.mlp, optimizers=loops.sgd, steps=40)


def evaluate(model: Any) -> dict[str, float]:
    return {"accuracy": 0.5}


def run(sink: Any, **options: Any) -> ps.Run:
    engine = ps.Simulated(ps.Cluster.preset("one-straggler", WORKERS))
    return ps.run(train, ps.async_sgd(), workers=WORKERS, engine=engine, evaluate=evaluate, sinks=[sink], **options)


@pytest.fixture(scope="module")
def of_columns() -> list[Any]:
    """The numbers behind the page's columns, but for those of tables and readers, which this run has none of."""
    paths = [path for each in [*COLUMNS.values(), EVENTS] for path in each if not path.startswith(("row", "reader"))]
    return [number_at(path, 0.0) for path in dict.fromkeys(paths)]


def test_prometheus_is_told_all_with_labels_and_units(tmp_path: Path, of_columns: list[Any]) -> None:
    done = run(ps.sinks.Prometheus(tmp_path / "plesio.prom"))
    families = {one.name: one for one in text_string_to_metric_families((tmp_path / "plesio.prom").read_text())}
    seen = {(sample.name, *sample.labels.items()) for one in families.values() for sample in one.samples}
    (name,) = {label for _, *labels in seen for key, label in labels if key == "run"}
    for one in of_columns:
        label = LABELS[one.measure.group]
        assert (series_of(one.measure), ("run", name), *([(label, one.label)] if label else [])) in seen
    assert families["plesio_worker_steps"].type == "counter"
    assert families["plesio_waiting_ratio"].type == "gauge"
    steps = {one.labels["worker"]: one.value for one in families["plesio_worker_steps"].samples}
    assert steps == {str(one.worker): one.steps for one in done.workers}
    assert families["plesio_staleness_max"].samples[0].value == done.staleness.max


def test_opentelemetry_is_told_all_with_attributes_and_units(
    of_columns: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = InMemoryMetricReader()
    monkeypatch.setattr(metrics, "get_meter", MeterProvider([reader]).get_meter)
    done = run(ps.sinks.OpenTelemetry({"team": "vision"}))
    seen = {one.name: one for one in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics}
    for one in of_columns:
        label, instrument = LABELS[one.measure.group], seen[instrument_of(one.measure)]
        points = {point.attributes.get(label) if label else "": point for point in instrument.data.data_points}
        assert points[one.label].attributes["team"] == "vision"
    points = seen["plesio.worker.steps"].data.data_points
    assert {point.attributes["worker"]: point.value for point in points} == {
        str(one.worker): one.steps for one in done.workers
    }
    assert seen["plesio.worker.steps"].data.is_monotonic
    assert (seen["plesio.worker.wait_time"].unit, seen["plesio.run.bytes"].unit) == ("s", "By")
    assert seen["plesio.accuracy"].data.data_points[0].value == 0.5


def test_tensorboard_is_told_all_with_a_prefix(tmp_path: Path, of_columns: list[Any]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(ps.sinks.TensorBoard(tmp_path))
    (folder,) = tmp_path.iterdir()
    tags = EventAccumulator(str(folder)).Reload().Tags()["scalars"]
    assert [one.path for one in of_columns if one.path not in tags] == []


def test_wandb_is_told_all_with_a_prefix(of_columns: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    logged: dict[str, float] = {}

    class Run:
        summary: ClassVar[dict[str, float]] = {}

        def log(self, numbers: dict[str, float], step: int) -> None:
            logged.update(numbers)

        def finish(self) -> None: ...

    monkeypatch.setattr(wandb, "init", lambda **_: Run())
    run(ps.sinks.WandB("plesio"))
    assert [one.path for one in of_columns if one.path not in logged] == []


def test_mlflow_is_told_all_with_a_prefix(
    tmp_path: Path, of_columns: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    run(ps.sinks.MLflow("digits", (tmp_path / "store").as_uri()))
    client = MlflowClient((tmp_path / "store").as_uri())
    (kept,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
    assert [one.path for one in of_columns if one.path not in kept.data.metrics] == []


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Of a provider that stands in for the one of the program, which can be set once a process."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


@pytest.mark.parametrize("engine", ["local", "simulated"])
@pytest.mark.parametrize("share", [1.0, 0.25])
def test_exchanges_are_spans_linked_to_their_folds(
    engine: str, share: float, tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    where: dict[str, Any] = {} if engine == "local" else {"engine": ps.Simulated("uniform")}
    done = ps.run(
        train, ps.sync_sgd(), workers=WORKERS, runs=tmp_path, sinks=[ps.sinks.OpenTelemetry(traces=share)], **where
    )
    spans: dict[str, list[ReadableSpan]] = defaultdict(list)
    for span in exporter.get_finished_spans():
        spans[span.name].append(span)
    folds = {span.context.span_id: span for span in spans["fold"]}
    assert len(folds) == share * done.version
    assert len(spans["exchange"]) == share * done.steps
    for span in spans["exchange"]:
        (link,) = span.links
        fold = folds[link.context.span_id]
        assert fold.attributes["version"] == span.attributes["number"]
        assert span.start_time <= span.events[0].timestamp <= span.end_time == fold.end_time
        assert (span.attributes["outcome"], span.attributes["staleness"]) == ("folded", 0)


def test_a_discarded_contribution_is_a_span_without_a_fold(tmp_path: Path, exporter: InMemorySpanExporter) -> None:
    cluster = ps.Simulated(ps.Cluster.preset("one-straggler", WORKERS))
    sink = ps.sinks.OpenTelemetry(traces=1.0)
    done = ps.run(train, ps.ringmaster(2), workers=WORKERS, engine=cluster, runs=tmp_path, sinks=[sink])
    lost = [one for one in exporter.get_finished_spans() if (one.attributes or {}).get("outcome") == "discarded: stale"]
    assert len(lost) == done.discarded["stale"] > 0
    assert not any(one.links for one in lost)


def test_traces_without_a_journal_are_refused_before_anything_begins() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"sink OpenTelemetry: traces=0.1 needs runs="):
        run(ps.sinks.OpenTelemetry(traces=0.1))
    with pytest.raises(ps.ConfigurationError, match=r"traces=2: the share of exchanges"):
        ps.sinks.OpenTelemetry(traces=2)


def test_open_metrics_of_several_runs_is_what_prometheus_reads() -> None:
    odd = 'a "night"\nof\\work'
    runs = [Shown("monday", told(3.0), {"top-5": 0.5, "steps": 7.0, "nan": float("nan")}), Shown(odd, told(4.0), {})]
    families = {one.name: one for one in openmetrics.text_string_to_metric_families(Exposition(True).text(runs))}
    assert {family_of(one) for one in MEASURES.values()} < families.keys()
    assert {sample.labels["run"] for sample in families["plesio_time_seconds"].samples} == {"monday", odd}
    assert families["plesio_table_pulled_bytes"].samples[0].labels == {"run": "monday", "table": TABLE}
    assert families["plesio_steps_2"].samples[0].value == 7.0, "a metric that the user calls steps is not ours"
    assert all(one.documentation for one in families.values())


def test_a_count_never_falls_and_rates_are_of_the_last_seconds() -> None:
    numbers = Numbers()

    def at(time_s: float, steps: int, compute_s: float) -> dict[str, float]:
        one = WorkerNow(0, "compute", 0.0, steps, compute_s, 0.0, 0.0, 0)
        return {one.path: one.value for one in numbers.of(time_s, Totals(steps=steps), Standing((one,)))}

    for second in range(1, 11):
        seen = at(float(second), 10 * second, float(second))
    assert seen["worker/0/steps_per_s"] == seen["run/steps_per_s"] == 10.0
    assert at(11.0, 100, 9.5)["worker/0/compute_s"] == 10.0, "it turned out to be an exchange"
    assert at(20.0, 100, 19.0)["run/still_s"] == 10.0
    assert at(21.0, 100, 20.0)["worker/0/steps_per_s"] == 0.0


def test_the_dashboard_and_the_alert_rules_name_series_that_there_are() -> None:
    series = {series_of(one) for one in MEASURES.values()}
    dashboard = json.loads((STATIC / "plesio-grafana.json").read_text())
    rules = yaml.safe_load((STATIC / "plesio-alerts.yml").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [one["query"] for one in dashboard["templating"]["list"] if one["type"] == "query"]
    assert len(asked) == 16
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in asked:
        named = {*re.findall(r"plesio_\w+", expression)}
        assert named or "plesio_($metric)" in expression, expression
        assert named <= series


STRAGGLER = "worker 2 of monday computes 500ms a step, more than twice as long as most"
HANGS = "worker 0 of monday hangs: it waits for nobody and has made no step for ten minutes"
STANDS_STILL = "monday stands still: no worker has made a step for ten minutes"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool, which comes with Prometheus")
def test_the_alert_rules_tell_of_stragglers_and_of_what_stands_still(tmp_path: Path) -> None:
    """Of three workers the last takes five times as long. After ten minutes one dies, after twenty another hangs."""

    def series(name: str, values: str, worker: int | None = None) -> dict[str, str]:
        labels = 'run="monday"' + (f',worker="{worker}"' if worker is not None else "")
        return {"series": f"{name}{{{labels}}}", "values": values}

    def alert(name: str, minutes: int, words: str = "", **labels: str) -> dict[str, object]:
        found = {"exp_labels": {"run": "monday", **labels}, "exp_annotations": {"summary": words}}
        return {"alertname": name, "eval_time": f"{minutes}m", "exp_alerts": [found] if words else []}

    computes, steps = "plesio_worker_compute_seconds_total", "plesio_worker_steps_total"
    told = [
        series(computes, "0+60x40", 0),
        series(computes, "0+60x10 600x30", 1),
        series(computes, "0+60x40", 2),
        *(series("plesio_worker_waiting", "0x40", worker) for worker in range(WORKERS)),
        *(series("plesio_worker_there", "1x10 0x30" if worker == 1 else "1x40", worker) for worker in range(WORKERS)),
        series(steps, "0+600x20 12000x20", 0),
        series(steps, "0+600x10 6000x30", 1),
        series(steps, "0+120x40", 2),
        series("plesio_steps_total", "0+1320x20 26400x20"),
        series("plesio_running", "1x40"),
    ]
    asked = [
        alert("PlesioStraggler", 4),
        alert("PlesioStraggler", 8, STRAGGLER, worker="2", severity="warning"),
        alert("PlesioStraggler", 18, STRAGGLER, worker="2", severity="warning"),
        alert("PlesioWorkerHangs", 29),
        alert("PlesioWorkerHangs", 31, HANGS, worker="0", severity="warning"),
        alert("PlesioStandsStill", 29),
        alert("PlesioStandsStill", 31, STANDS_STILL, severity="critical"),
    ]
    test = {"interval": "1m", "input_series": told, "alert_rule_test": asked}
    rules = tmp_path / "test.yml"
    rules.write_text(yaml.safe_dump({"rule_files": [str(STATIC / "plesio-alerts.yml")], "tests": [test]}))
    done = subprocess.run(["promtool", "test", "rules", str(rules)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
