"""How a worker's steps are counted: useful, in vain, or cancelled."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from plesio.observe.meter import Meter, WorkerMeter
from plesio.observe.summary import Summary, telling
from plesio.observe.totals import Staleness, WorkerSummary


def a_meter() -> tuple[Meter, WorkerMeter]:
    meter = Meter(1)
    meter.begin(0.0)
    return meter, meter.workers[0]


def counted(one: WorkerMeter) -> tuple[int, int]:
    return one.steps, one.in_vain


def test_cancelled_steps_do_not_lower_the_speed() -> None:
    _, one = a_meter()
    one.pushed(2.0, steps=4, samples=4)
    one.granted(2.0, None)
    one.cancelled(5.0)
    one.cancelled(6.0)
    found = one.summary()
    assert found.compute_s == pytest.approx(6.0)
    assert found.speed == pytest.approx(2.0)
    assert found.called_off_s == pytest.approx(3.0)


def test_a_worker_without_finished_steps_has_an_ideal_from_cancelled_ones() -> None:
    _, one = a_meter()
    one.cancelled(0.1)
    one.cancelled(0.5)
    one.left = "stopped"
    found = one.summary()
    assert found.speed == 0.0
    assert found.ideal_steps(2.0) == pytest.approx(2.0 / 0.4)


@pytest.mark.parametrize(
    ("reason", "in_vain"), [("stale", 3), ("not finite", 3), ("cancelled", 0), ("the run ended", 0)]
)
def test_only_received_steps_count_as_in_vain(reason: str, in_vain: int) -> None:
    meter, one = a_meter()
    one.pushed(1.0, steps=5, samples=5)
    one.granted(1.0, None)
    one.pushed(2.0, steps=3, samples=3)
    meter.dropped(0, reason)
    assert counted(one) == (8, in_vain)


def test_a_push_crossing_its_cancellation_is_in_vain() -> None:
    """It was done a moment after the cancellation; that is no measure of a step."""
    _, one = a_meter()
    one.cancelled(1.0, number=7)
    one.pushed(1.001, steps=1, samples=1, number=7)
    one.pushed(2.0, steps=1, samples=1, number=8)
    done = one.summary()
    assert (done.steps, done.in_vain) == (2, 1)
    assert done.speed == pytest.approx(1.0)


def test_a_crossing_push_is_counted_once() -> None:
    meter, one = a_meter()
    one.cancelled(1.0)
    one.pushed(0.9, steps=1, samples=1)
    meter.dropped(0, "stale")
    assert counted(one) == (1, 1)
    found = one.summary()
    assert (found.compute_s, found.speed) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("granted_s", "ready_s", "computed_s", "exchanged_s"),
    [(2.0, 6.0, 3.0, 0.0), (2.0, 4.0, 2.0, 1.0), (7.0, 9.0, 0.0, 0.0)],
    ids=["at work", "on its way", "not begun: the answer is on its way"],
)
def test_a_step_cut_by_the_end_counts_as_time_only(
    granted_s: float, ready_s: float, computed_s: float, exchanged_s: float
) -> None:
    _, one = a_meter()
    one.granted_s = granted_s
    one.ended_amid(5.0, ready_s)
    found = one.summary()
    assert (found.compute_s, found.exchange_s, found.wait_s) == (computed_s, exchanged_s, 0.0)
    assert (found.steps, found.speed, found.called_off_s, one.spans) == (0, 0.0, 0.0, [])


@pytest.mark.parametrize(
    ("end_s", "computed_s", "exchanged_s", "kept"),
    [(7.5, 5.0, 2.5, 3), (6.5, 4.5, 2.0, 2), (5.0, 3.0, 2.0, 2), (4.0, 3.0, 1.0, 1), (3.0, 3.0, 0.0, 1)],
)
def test_time_counted_beyond_the_end_is_removed(end_s: float, computed_s: float, exchanged_s: float, kept: int) -> None:
    """Answers under way, steps not begun and their cancellations: known ahead in virtual time."""
    meter, one = a_meter()
    one.pushed(3.0, steps=1, samples=1)
    one.granted(5.0, None)
    one.pushed(7.0, steps=1, samples=1)
    one.granted(8.0, None)
    one.cut(end_s)
    found = one.summary()
    assert (found.compute_s, found.exchange_s, found.wait_s) == (computed_s, exchanged_s, 0.0)
    assert len(meter.timeline()) == kept
    one.cancelled(end_s)
    assert one.summary().there_s == end_s


def test_a_wait_until_the_end_counts_as_wait() -> None:
    meter, one = a_meter()
    one.pushed(2.0, steps=1, samples=1)
    one.held_since_s = 2.5
    one.ended_held(5.0)
    found = one.summary()
    assert (found.compute_s, found.exchange_s, found.wait_s) == (2.0, 0.5, 2.5)
    assert [(span.kind, span.start_s, span.end_s) for span in meter.timeline()] == [
        ("compute", 0.0, 2.0), ("wait", 2.5, 5.0),
    ]  # fmt: skip


def test_the_timeline_has_every_part_of_an_exchange() -> None:
    """And the time of a cancelled step, which finished nothing."""
    meter = Meter(1)
    meter.begin(100.0)
    one = meter.workers[0]
    one.pushed(102.0, steps=3, samples=1)
    one.held_since_s = 102.5
    one.granted(105.5, released_s=105.0)
    one.cancelled(107.0)
    one.pushed(108.0, steps=1, samples=1)
    one.held_since_s = 108.25
    one.granted(108.5, None)
    assert [(span.kind, span.start_s, span.end_s, span.steps) for span in meter.timeline()] == [
        ("compute", 0.0, 2.0, 3), ("exchange", 2.0, 2.5, 0), ("wait", 2.5, 5.0, 0), ("exchange", 5.0, 5.5, 0),
        ("compute", 5.5, 7.0, 0), ("compute", 7.0, 8.0, 1), ("exchange", 8.0, 8.5, 0),
    ]  # fmt: skip
    found = one.summary()
    assert (found.compute_s, found.wait_s, found.exchange_s) == (4.5, 2.5, 1.5)


def test_reported_steps_are_compute_then_wait_then_exchange() -> None:
    meter, one = a_meter()
    one.reported(10.0, steps=4, samples=64, wait_s=3.0, exchange_s=1.0)
    one.reported(20.0, steps=5, samples=80, wait_s=0.0)
    assert [(span.kind, span.start_s, span.end_s, span.steps) for span in meter.timeline()] == [
        ("compute", 0.0, 6.0, 4), ("wait", 6.0, 9.0, 0), ("exchange", 9.0, 10.0, 0), ("compute", 10.0, 20.0, 5),
    ]  # fmt: skip
    found = one.summary()
    assert (found.compute_s, found.wait_s, found.exchange_s) == (16.0, 3.0, 1.0)
    assert (found.steps, found.samples, meter.steps, meter.samples) == (9, 144, 9, 144)
    assert found.waiting_share == pytest.approx(3 / 20)


def test_discarded_contributions_are_counted_by_worker_and_reason() -> None:
    meter = Meter(2)
    for worker, reason in ((0, "stale"), (1, "stale"), (1, "cancelled")):
        meter.dropped(worker, reason)
    assert [one.summary().discarded for one in meter.workers] == [1, 2]
    assert meter.totals.discarded == {"stale": 2, "cancelled": 1}


def test_a_discard_of_reported_steps_loses_one_step() -> None:
    meter, one = a_meter()
    one.reported(1.0, steps=10, samples=10, wait_s=0.0)
    meter.dropped(0, "not finite")
    assert counted(one) == (10, 1)
    assert one.summary().speed == pytest.approx(10.0)


def test_the_waiting_share_is_of_all_workers_time() -> None:
    workers = (
        WorkerSummary(0, 1, 1, 1, 0, compute_s=2.0, wait_s=3.0, exchange_s=5.0, speed=1.0),
        WorkerSummary(1, 1, 1, 1, 0, compute_s=8.0, wait_s=1.0, exchange_s=1.0, speed=1.0),
    )
    run = Summary(
        strategy="own", recipe="own", workers=workers, wall_s=10.0, version=2, steps=2, samples=2, folded=2,
        discarded={}, bytes=0, staleness=Staleness(),
    )  # fmt: skip
    assert [one.waiting_share for one in workers] == [0.3, 0.1]
    assert run.waiting_share == pytest.approx(4 / 20)


@pytest.mark.parametrize(("workers", "shown"), [(16, 16), (17, 16), (24, 16)])
def test_the_slowest_and_fastest_of_many_workers_are_shown(workers: int, shown: int) -> None:
    every = [WorkerSummary(k, 1, 1, 1, 0, 1.0, 0.0, 0.0, speed=k) for k in range(workers)]
    found = [one.worker for one in telling(every)]
    assert found == [*range(8), *range(workers - 8, workers)]
    assert len(found) == shown


def test_what_steps_cost_beyond_their_pace_is_no_ideal() -> None:
    worker = WorkerSummary(0, 40, 40, 40, 0, 1.0, 0.0, 0.0, speed=40.0, nominal=50.0, left="finished")
    assert worker.ideal_steps(1.0) == 50.0
    assert replace(worker, nominal=0.0).ideal_steps(1.0) == 40.0


@pytest.mark.parametrize(("left", "seconds"), [("finished", 4), ("died", 4), ("raised", 4), ("stopped", 10), (None, 4)])
def test_ideal_steps_count_while_a_worker_took_part(left: str | None, seconds: int) -> None:
    worker = WorkerSummary(0, 30, 30, 30, 0, compute_s=3.0, wait_s=0.5, exchange_s=0.5, speed=10.0, left=left)
    assert worker.ideal_steps(10.0) == pytest.approx(10.0 * seconds)


def test_a_cancelled_step_counts_in_vain_until_its_worker_heard() -> None:
    """Its worker was within a step when the cancellation came."""
    meter = Meter(1)
    meter.begin(0.0)
    (one,) = meter.workers
    one.cancelled(2.0, number=1)
    one.heard(5.0)
    one.pushed(one.granted_s + 3.0, steps=1, samples=8, number=2)
    assert (one.compute_s, one.called_off_s, one.granted_s, one.ready_s) == (8.0, 5.0, 5.0, 8.0)
    one.heard(0.0)  # of a step that was dropped for another reason
    assert one.granted_s == 5.0


def test_waiting_for_data_is_exchange() -> None:
    _, one = a_meter()
    one.fetched(asked_s=0.0, has_it_s=1.0)  # at the beginning of a step
    one.pushed(3.0, steps=1, samples=1)
    one.granted(3.0, None)
    one.fetched(asked_s=4.0, has_it_s=6.0)  # in the middle of one
    one.pushed(7.0, steps=1, samples=1)
    found = one.summary()
    assert (found.compute_s, found.exchange_s) == (4.0, 3.0)
    assert found.speed == 0.5


def test_a_step_that_is_called_off_while_data_comes_counts_no_time_twice() -> None:
    _, one = a_meter()
    one.fetched(asked_s=0.0, has_it_s=2.0)
    one.cancelled(2.0)
    assert (one.compute_s, one.exchange_s) == (0.0, 2.0)
    one.fetched(asked_s=2.0, has_it_s=5.0)
    one.cut(3.0)  # it dies while the next data comes
    one.cancelled(3.0)
    assert (one.compute_s, one.exchange_s) == (0.0, 3.0)


def test_a_contribution_sent_as_soon_as_its_data_came_counts() -> None:
    """As at the end of an epoch, where the worker hears that there are none left."""
    _, one = a_meter()
    one.fetched(4.0, 5.0)
    one.pushed(5.0, steps=4, samples=4, number=1)
    assert (counted(one), one.speed, one.summary().there_s) == ((4, 0), 1.0, 5.0)


def test_a_worker_that_goes_on_was_held_while_it_waited_for_an_answer() -> None:
    """It sends at 2, computes until 4, and waits for 5 s. Its contribution came at 3, and another's at 8 released it."""
    _, one = a_meter()
    one.pushed(2.0, steps=2, samples=2, number=1)
    one.goes_on(True, 0.0)
    one.held_since_s = 3.0
    one.granted(8.5, 8.0)
    one.pushed(4.0, steps=2, samples=2, number=2)
    one.goes_on(True, 5.0)
    assert (one.compute_s, one.wait_s, one.exchange_s, one.granted_s) == (4.0, 4.0, 1.0, 9.0)
    assert one.went_on == 2
