"""Predictions from measured times: against closed forms, and the times of a real run."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.cli.main import main
from plesio.cluster import Cluster, Group, Link, LogNormal
from plesio.errors import ConfigurationError, StrategyError
from plesio.launch.simulated.virtual import VirtualRun
from plesio.launch.simulated.whatif import Prediction, advice, as_it_was, choose, recommendation, what_if
from plesio.launch.simulated.workers import TimedWorker
from plesio.observe.meter import Meter
from plesio.observe.summary import Span, Summary
from plesio.observe.times import CalledOff, Measured, StepTimes, measured
from plesio.observe.totals import Staleness, WorkerSummary
from support import loops
from support.runs import by_name

SLOW, FAST = (0.5, 0.4, 0.45, 0.41), (0.1, 0.45, 0.05, 0.1)


def a_run(*seconds: tuple[float, ...], steps: float | None = None, **more: float) -> Measured:
    workers = tuple(StepTimes(worker, one) for worker, one in enumerate(seconds))
    return Measured(workers=workers, steps=sum(map(len, seconds)) if steps is None else steps, **more)  # type: ignore[arg-type]


def synchronous(slow_s: float = 0.2, fast_s: float = 0.02, rounds: int = 50, exchange_s: float = 0.001) -> Summary:
    """A run of `sync_sgd` as the meter sees it: worker 0 is the slow one."""
    spans, start_s = [], 0.0
    for _ in range(rounds):
        came_s, end_s = start_s + slow_s, start_s + slow_s + exchange_s
        spans += [Span(0, "compute", start_s, came_s, 1), Span(0, "exchange", came_s, end_s)]
        spans += [Span(1, "compute", start_s, start_s + fast_s, 1), Span(1, "wait", start_s + fast_s, came_s)]
        spans += [Span(1, "exchange", came_s, end_s)]
        start_s = end_s
    both = (slow_s, 0.0), (fast_s, slow_s - fast_s)
    workers = tuple(
        WorkerSummary(k, rounds, rounds, rounds, 0, rounds * one, rounds * wait, rounds * exchange_s, 1 / one)
        for k, (one, wait) in enumerate(both)
    )
    return Summary(
        strategy="sync_sgd",
        recipe="sync_sgd",
        workers=workers,
        wall_s=start_s,
        version=rounds,
        steps=2 * rounds,
        samples=2 * rounds,
        folded=2 * rounds,
        discarded={},
        bytes=2 * 2 * rounds * 1000,
        staleness=Staleness(),
        timeline=tuple(spans),
    )


def alone_at_last() -> Summary:
    """Two workers of one pace; the training function of worker 0 returned after 10 steps, that of worker 1 after 100."""
    steps = (10, 100)
    spans = [Span(k, "compute", 0.1 * step, 0.1 * step + 0.1, 1) for k in range(2) for step in range(steps[k])]
    workers = tuple(
        WorkerSummary(k, n, n, n, 0, 0.1 * n, 0.0, 0.0, speed=10.0, left="finished") for k, n in enumerate(steps)
    )
    return replace(
        synchronous(), workers=workers, timeline=tuple(spans), wall_s=10.0, steps=110, samples=110, folded=110
    )


def kept(summary: Summary, folder: Path) -> Path:
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
    return folder


# Exchanges: each worker's own part, and the server's


def measured_on(*own_s: float, service_s: float, strategy: ps.Strategy) -> Measured:
    """The times of a run on links of these latencies, and a server that takes so long for a message, both ways."""
    groups = tuple(Group(1, LogNormal(0.02, 0.1), Link(one)) for one in own_s)
    cluster = Cluster(groups, Link(bytes_per_s=1000 / service_s))
    workers = [TimedWorker(one, strategy) for one in cluster.timetables(seed=1)]
    run = VirtualRun(strategy, cluster, workers, push_nbytes=1000, answer_nbytes=1000, limits={"steps": 1_000}).run()
    return measured(Summary.of(run, recipe=""))


@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.async_sgd(), ps.bounded_staleness(4)], ids=by_name)
def test_each_workers_latency_is_told_from_the_servers_time(strategy: ps.Strategy) -> None:
    found = measured_on(0.0, 0.0, 0.0, 0.05, service_s=0.003, strategy=strategy)
    assert found.service_s == pytest.approx(0.003, rel=0.2)
    assert [one.latency_s for one in found.workers] == pytest.approx([0, 0, 0, 0.05], abs=0.002)
    assert found.unexplained < 0.05


def test_a_far_worker_is_named_with_the_time_of_its_exchanges() -> None:
    run = measured_on(0.0, 0.0, 0.0, 0.05, service_s=0.0001, strategy=ps.sync_sgd())
    sync, free = what_if(run, [ps.sync_sgd(), ps.async_sgd()])
    assert recommendation(run, sync, [sync, free]).startswith("An exchange of worker 3 takes 0.1")


def test_what_the_server_computes_is_its_time_at_least() -> None:
    """One process folds for all; to the workers it looks as if each were far away."""
    summary = replace(synchronous(exchange_s=0.02), served_s=100 * 0.01)
    assert measured(summary).service_s == pytest.approx(0.01, rel=0.1)


def test_time_to_fetch_data_is_part_of_the_next_step() -> None:
    """Alone, or within a contribution of several steps."""
    apart = [Span(0, "exchange", 0.0, 0.2), Span(0, "compute", 0.2, 0.3, 1), Span(0, "exchange", 0.3, 0.4)]
    apart += [Span(0, "exchange", 0.4, 0.6), Span(0, "compute", 0.6, 0.7, 1)]
    within = [Span(0, "compute", 0.0, 0.1), Span(0, "exchange", 0.1, 0.3), Span(0, "compute", 0.3, 0.4, 4)]
    for spans, expected in ((apart, [0.3, 0.3]), (within, [0.1] * 4)):
        found = measured(replace(synchronous(), timeline=tuple(spans)))
        assert found.workers[0].seconds == pytest.approx(expected)


def of_epochs(epochs: int, batches: int) -> Callable[[ps.Worker], None]:
    x_all, y_all = torch.randn(16 * batches, 64), torch.randint(0, 10, (16 * batches,))

    def train(worker: ps.Worker) -> None:
        model = torch.nn.Linear(64, 10)
        data = DataLoader(TensorDataset(x_all, y_all), batch_size=16)
        model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05), data)
        for _ in range(epochs):
            for x, y in loader:
                loops.descend(optimizer, torch.nn.functional.cross_entropy(model(x), y))

    return train


SHORT_EPOCHS, ONE_EPOCH = of_epochs(12, 90), of_epochs(1, 12 * 90)
STEP, NEAR = LogNormal(0.02, 0.1), Link(0.0001, 1.25e9)
SLOW_LINKS = Cluster((Group(6, STEP, NEAR), Group(2, STEP, Link(0.0001, 2e4))))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cluster", "overlap"),
    [
        (Cluster((Group(7, STEP, NEAR), Group(1, STEP, Link(0.1, 1.25e8)))), None),
        pytest.param(Cluster((Group(8, STEP),), Link(bytes_per_s=2e5)), None, marks=pytest.mark.slow),
        pytest.param(Cluster.preset("cross-region", 8, 0.02), None, marks=pytest.mark.slow),
        pytest.param(SLOW_LINKS, False, marks=pytest.mark.slow),
    ],
    ids=["one far worker", "slow server link", "cross-region", "slow links"],
)
def test_forecasts_are_within_a_fifth_of_a_simulation(cluster: Cluster, overlap: bool | None) -> None:
    strategies = [ps.sync_sgd(), ps.first_of(7), ps.buffered(2), ps.local_sgd(16, overlap=overlap)]
    runs = [ps.run(SHORT_EPOCHS, one, workers=8, engine=ps.Simulated(cluster)).summary for one in strategies]
    for found, run in zip(what_if(measured(runs[0]), strategies), runs, strict=True):
        assert found.time_s == pytest.approx(run.wall_s, rel=0.2), run.strategy


@pytest.mark.slow
def test_forecasts_leave_out_requests_for_data_that_wait_behind_a_contribution() -> None:
    """A message takes .13 s there and as long back, 16 steps .32 s. Who goes on asks for the data of each epoch over a busy link:
    a short epoch is over in .24 s. In one long epoch it asks in time."""
    strategy = ps.local_sgd(16, overlap=True)

    def forecast_share(train: Callable[[ps.Worker], None]) -> float:
        """How long the forecast is, as a share of the simulation."""
        waiting, going_on = (
            ps.run(train, one, workers=8, engine=ps.Simulated(SLOW_LINKS)).summary for one in (ps.sync_sgd(), strategy)
        )
        return what_if(measured(waiting), [strategy])[0].time_s / going_on.wall_s

    assert forecast_share(ONE_EPOCH) == pytest.approx(1.0, abs=0.05)
    assert forecast_share(SHORT_EPOCHS) < 0.8


GOING_ON = [
    ps.local_sgd(16, overlap=True),
    ps.async_local_sgd(8, overlap=True),
    ps.local_sgd(4),
    ps.diloco(4, overlap=False),
    ps.decoupled(4),
]


@pytest.mark.thorough
def test_forecasts_of_workers_that_go_on_are_within_a_fifth_of_a_simulation() -> None:
    """Three of eight are away. From a run in which everybody waits."""
    cluster = Cluster((Group(5, STEP), Group(3, STEP, Link(0.06))))
    steps, engine = ps.Until(steps=2_000), ps.Simulated(cluster)
    waiting = ps.run(loops.without_data, ps.sync_sgd(), workers=8, engine=engine, until=ps.Until(steps=1_000)).summary
    run = replace(measured(waiting), steps=2_000)
    for found in what_if(run, GOING_ON):
        strategy = next(one for one in GOING_ON if one.name == found.strategy)
        real = ps.run(loops.without_data, strategy, workers=8, engine=engine, until=steps).summary
        assert found.time_s == pytest.approx(real.wall_s, rel=0.05), strategy.name
        assert found.staleness == pytest.approx(real.staleness.mean, rel=0.1), strategy.name


def test_only_workers_on_another_host_go_on_by_default() -> None:
    """Each step takes .1 s, and the server .1 s for each message of two workers. Where links are assumed all are away."""

    def time_s(away: bool, **assumed: float) -> float:
        workers = tuple(StepTimes(worker, (0.1,), away=away) for worker in range(2))
        run = Measured(workers=workers, steps=800, service_s=0.1, nbytes=1000)
        return what_if(run, [ps.local_sgd(4)], **assumed)[0].time_s  # type: ignore[arg-type]

    assert time_s(away=False) == pytest.approx(100 * 0.7, rel=0.02)
    assert time_s(away=True) == pytest.approx(100 * 0.4, rel=0.02)
    assert time_s(away=False, bytes_per_s=1e9) == time_s(away=True)


@pytest.mark.thorough
def test_a_run_whose_workers_went_on_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows no exchange, and its links would be taken for free."""
    engine, until = ps.Simulated(Cluster((Group(2, STEP), Group(2, STEP, Link(0.04))))), ps.Until(seconds=5)
    run = ps.run(loops.without_data, ps.local_sgd(8), workers=4, engine=engine, until=until, runs=tmp_path)
    assert [one.went_on > 0 for one in run.summary.workers] == [False, False, True, True]
    assert main(["whatif", str(run.folder)]) == 2
    assert (
        "worker 2 trained on while its answers travelled: measure a run in which they wait (overlap=False, ahead=0)"
        in " ".join(capsys.readouterr().err.split())
    )
    assert advice(run.summary) is None


def test_nothing_is_recommended_where_exchanges_are_not_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every other exchange takes much longer, and the replay of the run takes as long as the run."""
    spans, start_s = [], 0.0
    for number in range(100):
        done_s = start_s + 0.01
        spans.append(Span(0, "compute", start_s, done_s, 1))
        start_s = done_s + 0.05 * (number % 2)
        spans.append(Span(0, "exchange", done_s, start_s))
    summary = replace(synchronous(), timeline=tuple(spans), wall_s=start_s, steps=100, folded=100)
    assert main(["whatif", str(kept(summary, tmp_path))]) == 0
    assert "No recommendation: the time of an exchange varies by" in " ".join(capsys.readouterr().out.split())
    assert "No other strategy is recommended" in (advice(summary) or "")


# Closed forms


def test_lock_step_takes_the_sum_of_the_maxima() -> None:
    (found,) = what_if(a_run(SLOW, FAST), [ps.sync_sgd()])
    assert found.time_s == pytest.approx(sum(map(max, zip(SLOW, FAST, strict=True))))
    assert found.staleness == 0.0


def test_asynchronous_throughput_is_the_sum_of_the_rates() -> None:
    (found,) = what_if(a_run((0.4,), (0.1,), (0.05,), steps=10_000), [ps.async_sgd()])
    assert found.steps_per_s == pytest.approx(1 / 0.4 + 1 / 0.1 + 1 / 0.05, rel=1e-3)
    assert found.waiting_share == 0.0
    assert found.staleness == pytest.approx(2.0, abs=0.1)


def test_local_steps_wait_once_for_the_slowest_sum() -> None:
    (found,) = what_if(a_run(SLOW, FAST), [ps.local_sgd(4)])
    assert found.time_s == pytest.approx(max(sum(SLOW), sum(FAST)))


def test_further_steps_are_drawn_from_the_measured_without_the_first() -> None:
    (found,) = what_if(a_run((9.0, *[0.1, 0.3] * 10), steps=20_001), [ps.async_sgd()])
    assert found.time_s == pytest.approx(9.0 + 20_000 * 0.2, rel=0.02)


def test_a_slow_server_limits_throughput() -> None:
    run = a_run(*[(0.01,)] * 8, steps=5_000, service_s=0.005, nbytes=1000)
    slow, local = what_if(run, [ps.async_sgd(), ps.local_sgd(100)])
    assert slow.steps_per_s == pytest.approx(1 / 0.005, rel=0.01)
    assert local.steps_per_s > 3 * slow.steps_per_s


def test_a_narrow_link_limits_throughput() -> None:
    run = a_run((0.01,), (0.01,), steps=2_000, nbytes=1_000_000)
    (found,) = what_if(run, [ps.async_sgd()], bytes_per_s=1e7)
    assert found.steps_per_s == pytest.approx(1e7 / 1e6, rel=0.05)


def test_a_codec_takes_fewer_bytes_over_a_narrow_link() -> None:
    run = a_run((0.01,), steps=2_000, nbytes=1_000_000)
    asked = [ps.local_sgd(10, codec=codec, overlap=overlap) for overlap in (False, True) for codec in (None, "int8")]
    plain, packed, late, packed_late = what_if(run, asked, bytes_per_s=1e7)
    of_packed = replace(run, nbytes=130_000, plain_nbytes=1_000_000)
    assert what_if(of_packed, asked[:1], bytes_per_s=1e7)[0].steps_per_s == pytest.approx(plain.steps_per_s)
    assert plain.steps_per_s == pytest.approx(10 / (0.1 + 0.2), rel=0.05)
    assert packed.steps_per_s == pytest.approx(10 / (0.1 + 0.2 * 0.254), rel=0.05)
    assert late.steps_per_s == pytest.approx(10 / 0.2, rel=0.05)  # it waits for each answer before it sends again
    assert packed_late.steps_per_s == pytest.approx(10 / 0.1, rel=0.05)


def test_further_workers_are_drawn_from_the_measured() -> None:
    few, many = (what_if(a_run((0.1,), steps=1_000), [ps.async_sgd()], workers=n)[0] for n in (1, 10))
    assert many.steps_per_s == pytest.approx(10 * few.steps_per_s, rel=0.02)


def test_a_workers_death_is_replayed() -> None:
    workers = (StepTimes(0, (0.1,)), StepTimes(1, (0.1,), died_s=1.0))
    (found,) = what_if(Measured(workers=workers, steps=100), [ps.sync_sgd()])
    assert found.time_s == pytest.approx(9.0, abs=0.3)  # 20 steps in the first second, 10 a second from then on


def test_a_truncated_timeline_does_not_advance_a_death() -> None:
    """Long runs keep only their first spans."""
    summary = synchronous()
    slow, fast = summary.workers
    dead = replace(fast, left="died")
    begun = tuple(span for span in summary.timeline if span.end_s <= 5.0)
    run = measured(replace(summary, workers=(slow, dead), timeline=begun))
    assert [one.died_s for one in run.workers] == [None, pytest.approx(summary.wall_s)]


def test_a_workers_early_return_is_replayed() -> None:
    """Sharing out the steps it declined gains nothing, as with early stopping."""
    summary = alone_at_last()
    run = measured(summary)
    assert [one.last for one in run.workers] == [10, None]
    found = what_if(run, [ps.sync_sgd(), ps.async_sgd(), ps.local_sgd(4), ps.first_of(1)])
    assert [one.time_s for one in found[:3]] == pytest.approx([10.0] * 3)
    assert recommendation(run, as_it_was(summary), found).startswith("Keep sync_sgd")
    assert advice(summary) is None


def test_a_return_at_the_end_of_the_work_is_no_early_return() -> None:
    """A slow worker is still in its last steps; if nobody goes on, somebody must."""
    slow, fast = (replace(one, left="finished") for one in synchronous().workers)
    longer = replace(slow, compute_s=slow.compute_s + 1.9)  # 9.5 steps at its speed, of 100 in all
    run = measured(replace(synchronous(), workers=(longer, fast)))
    assert [one.last for one in run.workers] == [None, None]
    (alone,) = what_if(measured(alone_at_last()), [ps.async_sgd()], workers=1)
    assert alone.time_s == pytest.approx(11.0)


def test_departures_are_scaled_in_a_partial_simulation() -> None:
    workers = (StepTimes(0, (0.1,), last=1_000), StepTimes(1, (0.1,)), StepTimes(2, (0.1,), died_s=50.0))
    run = Measured(workers=workers, steps=10_000)
    whole, part = (what_if(run, [ps.async_sgd()], steps_max=n)[0] for n in (10_000, 500))
    assert whole.time_s == pytest.approx(850.0, rel=0.01)
    assert part.time_s == pytest.approx(whole.time_s, rel=0.02)


def test_a_cancelled_step_does_not_count_towards_an_early_return() -> None:
    """Worker 0 loses every step to the others and never reaches its second."""
    workers = (StepTimes(0, (9.0,), last=2), StepTimes(1, (0.1,)), StepTimes(2, (0.1,)))
    (found,) = what_if(Measured(workers=workers, steps=100), [ps.first_of(2)])
    assert found.time_s == pytest.approx(5.0)
    assert found.left_out == (0,)


def test_the_prediction_for_the_strategy_that_ran_matches_the_run() -> None:
    summary = synchronous()
    (found,) = what_if(measured(summary), [ps.sync_sgd()])
    assert found.time_s == pytest.approx(summary.wall_s, rel=0.01)
    assert found.waiting_share == pytest.approx(summary.waiting_share, abs=0.01)


# Steps that were called off


def test_a_cancelled_step_takes_the_time_of_a_longer_one() -> None:
    """Of the worker's own if there is one, otherwise of any; at least as long as it took."""
    run = a_run((0.1, 0.3), (0.2, 0.2, 0.7), steps=8)

    def took_s(worker: int, seconds: float) -> float:
        """What the two steps of a worker and the one called off between them take, alone; of the other as many."""
        lost = (CalledOff(after=1, seconds=seconds),)
        mine = StepTimes(0, run.workers[worker].seconds[:2], called_off=lost)
        crew = mine, StepTimes(1, run.workers[1 - worker].seconds)
        (found,) = what_if(Measured(workers=crew, steps=3), [ps.async_sgd()], workers=1)
        return found.time_s

    assert took_s(0, 0.2) == pytest.approx(0.1 + 0.3 + 0.3)  # its own
    assert took_s(0, 0.5) == pytest.approx(0.1 + 0.7 + 0.3)  # the other's
    assert took_s(0, 0.9) == pytest.approx(0.1 + 0.9 + 0.3)  # nobody took longer


def test_cancelled_steps_are_unknown_for_local_steps() -> None:
    spans = (Span(0, "compute", 0.0, 0.4, 1), Span(0, "compute", 0.4, 0.9), Span(0, "compute", 0.9, 1.3, 1))
    summary = replace(synchronous(), timeline=spans)
    assert [one.called_off for one in measured(summary).workers] == [(CalledOff(after=1, seconds=0.5),)]
    several = replace(summary, timeline=(*spans, Span(1, "compute", 0.0, 0.4, 4)))
    assert [one.called_off for one in measured(several).workers] == [(), ()]


def simulated(strategy: ps.Strategy, runs: Path | None = None) -> ps.Run:
    """Where a step in twenty takes much longer than the others, and `first_of` calls just those off."""
    where = ps.Simulated("heavy-tail")
    return ps.run(loops.without_data, strategy, workers=8, engine=where, until=ps.Until(seconds=20), runs=runs)


def test_cancelled_steps_are_in_the_prediction() -> None:
    """Without them the prediction is a third too low."""
    summary = simulated(ps.first_of(7)).summary
    run = measured(summary)
    (found,) = what_if(run, [ps.first_of(7)])
    assert found.time_s == pytest.approx(summary.wall_s, rel=0.05)
    assert found.waiting_share == pytest.approx(summary.waiting_share, abs=0.03)
    without = tuple(replace(one, called_off=()) for one in run.workers)
    (biased,) = what_if(replace(run, workers=without), [ps.first_of(7)])
    assert biased.time_s < 0.8 * summary.wall_s


def test_the_command_notes_cancelled_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = simulated(ps.first_of(7), tmp_path)
    assert main(["whatif", str(run.folder), "--strategies", "first_of(7)"]) == 0
    assert f"Note: {run.discarded['cancelled']:,} of " in capsys.readouterr().out


def test_predictions_with_an_unfinished_worker_are_lower_bounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    workers = (*(StepTimes(k, (0.1,)) for k in range(2)), StepTimes(2, (0.2,), at_least=True))
    sync, first = what_if(Measured(workers=workers, steps=100), [ps.sync_sgd(), ps.first_of(2)])
    assert (sync.at_least, first.at_least, first.left_out) == (True, False, (2,))
    ran = replace(first, time_s=99.0)
    assert "would have taken at least" in recommendation(Measured(workers=workers, steps=100), ran, [sync])
    of_one = replace(
        synchronous(), timeline=tuple(one if one.worker else replace(one, steps=0) for one in synchronous().timeline)
    )
    assert main(["whatif", str(kept(of_one, tmp_path)), "--strategies", "async_sgd"]) == 0
    assert "≥ " in capsys.readouterr().out


def test_the_command_states_its_error_for_the_run_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Something outside the timeline held up the run."""
    summary = replace(synchronous(), wall_s=2 * synchronous().wall_s)
    assert main(["whatif", str(kept(summary, tmp_path))]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"itself takes 10\.\d\d s; it took 20\.10 s: 50% less, and the other rows may be off by as much", printed
    )
    assert "No recommendation: the measured times do not fit the model" in printed
    assert main(["whatif", str(kept(synchronous(), tmp_path))]) == 0
    assert "may be off" not in capsys.readouterr().out


def test_a_run_stored_with_a_former_name_is_replayed_in_silence(tmp_path: Path) -> None:
    run = simulated(ps.diloco(every=4))
    former = replace(run.summary, strategy="diloco(h=4)")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        assert main(["whatif", str(kept(former, tmp_path)), "--workers", "4", "--strategies", "sync_sgd"]) == 0


# What is measured


def test_steps_of_a_span_share_its_time_and_a_cancelled_one_has_none() -> None:
    meter = Meter(1)
    meter.begin(0.0)
    one = meter.workers[0]
    one.pushed(0.4, steps=4, samples=4)
    one.granted(0.5, None)
    one.cancelled(0.9)
    one.reported(2.0, 2, 2, wait_s=0.5)
    assert [(span.kind, span.steps) for span in meter.timeline()] == [
        ("compute", 4),
        ("exchange", 0),
        ("compute", 0),
        ("compute", 2),
        ("wait", 0),
    ]
    summary = replace(synchronous(), workers=(one.summary(),), timeline=meter.timeline())
    assert measured(summary).workers[0].seconds == pytest.approx([0.1] * 4 + [0.3] * 2)


def test_a_worker_without_finished_steps_takes_its_longest_cancelled_one() -> None:
    summary = synchronous()
    spans = [span for span in summary.timeline if span.worker == 1]
    called_off = (Span(0, "compute", 0.0, 0.02), Span(0, "compute", 0.02, 0.05))
    run = measured(replace(summary, timeline=(*spans, *called_off)))
    assert run.workers[0] == StepTimes(0, (pytest.approx(0.03),), at_least=True)  # type: ignore[arg-type]


def train(worker: ps.Worker) -> None:
    model = torch.nn.Linear(4, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(12):
        loops.descend(optimizer, model(torch.ones(8, 4)).square().mean())


@pytest.mark.thorough
@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.local_sgd(4)], ids=by_name)
def test_measured_times_of_a_real_run_match_its_pace(strategy: ps.Strategy, tmp_path: Path) -> None:
    run = ps.run(train, strategy, workers=2, pace=ps.Pace(0.02), faults=[ps.Slow(0, 3)], runs=tmp_path)
    found = measured(msgspec.json.decode((run.folder / "summary.json").read_bytes(), type=Summary))
    for one, least_s in zip(found.workers, (0.06, 0.02), strict=True):
        assert len(one.seconds) == 12
        assert sorted(one.seconds)[6] >= 0.95 * least_s
    assert found.service_s > 0
    assert found.nbytes >= 5 * 4


# The recommendation


def test_the_advice_names_the_slow_worker_and_a_strategy() -> None:
    summary = synchronous()
    line = advice(summary)
    assert line is not None
    assert line.startswith("Worker 0 is 10.0 times slower than the others: sync_sgd waited 45% of the time; async_sgd ")
    assert "not equal accuracy" in line
    printed = str(ps.Run(replace(summary, advice=line), {}, None))
    assert line in " ".join(printed.split())


def test_no_advice_without_shared_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each worker's steps are its own, unless its loop is endless; the command states that."""
    fixed = replace(synchronous(), samples=0)
    assert advice(fixed) is None
    assert advice(replace(fixed, ended="10 seconds were up")) is not None
    for summary, noted in ((fixed, True), (synchronous(), False)):
        assert main(["whatif", str(kept(summary, tmp_path))]) == 0
        assert ("nobody takes over those of a slow one" in " ".join(capsys.readouterr().out.split())) is noted


def test_no_advice_after_a_short_run_for_one_worker_or_where_nobody_waits() -> None:
    alone = synchronous(slow_s=0.01, exchange_s=0.5)
    assert advice(synchronous(rounds=3)) is advice(synchronous(slow_s=0.021)) is None
    assert advice(alone) is not None
    assert advice(replace(alone, workers=alone.workers[:1])) is None


def test_a_strategy_that_leaves_a_worker_out_is_not_recommended() -> None:
    run = a_run((1.0,), (0.1,), (0.1,), steps=1_000)
    sync, first = what_if(run, [ps.sync_sgd(), ps.first_of(2)])
    assert first.left_out == (0,)
    assert first.time_s == pytest.approx(50.0, rel=0.01)
    assert sync.time_s == pytest.approx(333.3, rel=0.01)
    assert choose(sync, [sync, first]) is sync


def test_an_equally_good_strategy_is_kept() -> None:
    summary = synchronous(slow_s=0.021)
    run, ran = measured(summary), as_it_was(summary)
    assert recommendation(run, ran, what_if(run, [ps.async_sgd()])).startswith("Keep sync_sgd")


def test_a_small_gain_is_not_recommended() -> None:
    ran, near, best = (
        Prediction(strategy=name, time_s=time_s, steps_per_s=1, waiting_share=0, staleness=0)
        for name, time_s in (("sync_sgd", 3.07), ("allreduce", 3.03), ("hogwild", 2.77))
    )
    assert choose(ran, [near, best]) is best
    assert choose(ran, [near]) is ran


def test_a_gain_within_the_models_error_is_not_recommended() -> None:
    """The model does not know what held up the run; a recommendation must gain more than that."""
    ran, again, near, far = (
        Prediction(strategy=name, time_s=time_s, steps_per_s=1, waiting_share=0, staleness=0)
        for name, time_s in (("sync_sgd", 5.0), ("sync_sgd", 2.8), ("allreduce", 2.4), ("async_sgd", 1.0))
    )
    assert choose(ran, [near]) is near
    assert choose(ran, [again, near]) is ran
    assert choose(ran, [again, near, far]) is far
    run = a_run(SLOW, SLOW)
    for others in ([again, near], [again, near, far]):
        assert recommendation(run, ran, others) == (
            "No recommendation: the measured times do not fit the model, for the replay of what ran takes 2.8 s instead of "
            "5.0 s. The forecasts may be off by more; simulate the strategies, or try them."
        )
    nearer = replace(again, time_s=4.3)
    assert recommendation(run, ran, [nearer, replace(near, time_s=4.0)]) == (
        "Keep sync_sgd: no other of these would have been 1.2 times faster. Less cannot be told: the replay of what ran takes "
        "4.3 s instead of 5.0 s."
    )
    assert "1.0 s instead of 5.0 s (4.3 s in its replay)" in recommendation(run, ran, [nearer, far])


def test_shared_memory_strategies_are_not_recommended_over_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 kB up and down at 4 kB/s: only shared memory avoids it, and the run did not use it."""
    run = a_run(*[(1.0,)] * 4, steps=100, nbytes=1000)
    sync, shared = what_if(run, [ps.sync_sgd(), ps.hogwild()], bytes_per_s=4e3)
    assert shared.time_s < sync.time_s / 2
    assert choose(sync, [sync, shared]) is sync
    sync, shared = what_if(a_run(SLOW, FAST), [ps.sync_sgd(), ps.hogwild()])
    assert choose(sync, [sync, shared]) is shared
    asked = ["--strategies", "hogwild,async_sgd", "--bandwidth", "1MB"]
    assert main(["whatif", str(kept(synchronous(), tmp_path)), *asked]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    note = "only on one host, where no link slows it down, and so not recommended: hogwild."
    for words in ("sync_sgd would have waited", "; async_sgd would have taken", note):
        assert words in printed


def test_no_advice_for_a_gain_within_the_models_error() -> None:
    """The run took twice as long as its timeline says."""
    brief = synchronous(slow_s=0.04)
    held_up = replace(brief, wall_s=2 * brief.wall_s, strategy="first_of(2)")
    assert "async_sgd would have taken" in (advice(held_up) or "")
    assert "No other strategy is recommended" in (advice(held_up, ps.first_of(2)) or "")


# The command, and what it refuses


def test_the_command_prints_a_table_and_a_recommendation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(kept(synchronous(), tmp_path))]) == 0
    printed = capsys.readouterr().out
    for words in ("sync_sgd, as it ran", "async_sgd", "hogwild", "Worker 0 is 10.0 times slower", "equal samples"):
        assert words in printed


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(kept(synchronous(), tmp_path))
    asked = ["--strategies", "async_sgd,local_sgd(every=4)", "--workers", "6", "--bandwidth", "1MB"]
    assert main(["whatif", folder, "--json", *asked]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["strategy"] for one in found["predictions"]] == ["sync_sgd", ps.async_sgd().name, ps.local_sgd(4).name]
    assert "4 of 6 workers are drawn from the 2 there were" in found["notes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--strategies", "asynch_sgd"], "did you mean 'async_sgd'"),
        (["--bandwidth", "fast"], "--bandwidth fast"),
        (["--bandwidth", "0"], "above 0"),
        (["--workers", "0"], "workers=0: a whole number of at least 1"),
    ],
)
def test_invalid_arguments_are_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", str(kept(synchronous(), tmp_path)), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_without_a_summary_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(tmp_path)]) == 2
    assert "not the folder of a finished run" in capsys.readouterr().err
    (tmp_path / "summary.json").write_text("{}")
    assert main(["whatif", str(tmp_path)]) == 2
    assert "not the summary of a run" in capsys.readouterr().err
    old = tuple(Span(span.worker, span.kind, span.start_s, span.end_s) for span in synchronous().timeline)
    kept(replace(synchronous(), timeline=old), tmp_path)
    assert main(["whatif", str(tmp_path)]) == 2
    assert "no measured step times" in capsys.readouterr().err


def test_what_if_refuses_invalid_arguments() -> None:
    with pytest.raises(ConfigurationError, match="bytes_per_s=-1"):
        what_if(a_run(SLOW), [ps.async_sgd()], bytes_per_s=-1)
    with pytest.raises(StrategyError, match="will never come"):
        what_if(a_run(SLOW), [ps.first_of(3)])


def test_the_same_seed_gives_the_same_prediction() -> None:
    run = a_run(SLOW, FAST, steps=500)
    first, again, other = (what_if(run, [ps.buffered(2)], workers=5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_slow_worker_holds_back_lock_step_only() -> None:
    run = Measured(workers=(StepTimes(0, (0.4,)), StepTimes(1, (0.1,))), steps=10)
    found = what_if(run, [ps.sync_sgd(), ps.async_sgd()])
    assert [f"{one.strategy} {one.time_s:.1f} s" for one in found] == ["sync_sgd 2.0 s", "async_sgd 0.8 s"]
