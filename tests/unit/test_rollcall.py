"""Who takes part in a collective: all living workers, or nobody."""

from __future__ import annotations

import pytest

from plesio.core.rounds import Call, Outcome, RollCall


def gathered(workers: int) -> RollCall:
    """A roll call whose workers have their first group."""
    roll = RollCall()
    for worker in range(workers):
        roll.join(worker, now_s=0.0)
    outcome = arrive(roll, range(workers), intact=False)
    assert outcome == Outcome(Call.REGROUP, tuple(range(workers)), 1, intact=False)
    return roll


def arrive(roll: RollCall, workers: object, intact: bool = True, reached: tuple[int, int] = (0, 0)) -> Outcome | None:
    outcome = None
    for worker in workers:  # type: ignore[attr-defined]
        assert outcome is None, "nobody is called before all are there"
        roll.arrive(worker, reached, intact, b"", now_s=1.0)
        outcome = roll.outcome(now_s=1.0)
    return outcome


def test_a_round_starts_when_all_arrived() -> None:
    roll = gathered(3)
    assert arrive(roll, [2, 0]) is None
    assert arrive(roll, [1]) == Outcome(Call.GO, (0, 1, 2), 1)


def test_a_departed_worker_is_not_waited_for() -> None:
    """The others form a new group, and nothing is lost."""
    roll = gathered(3)
    assert arrive(roll, [2, 0]) is None
    roll.leave(1, died=False)
    assert roll.outcome(now_s=2.0) == Outcome(Call.REGROUP, (0, 2), 2)
    assert arrive(roll, [0, 2]) == Outcome(Call.GO, (0, 2), 2)
    roll.leave(0, died=False)
    assert roll.outcome(now_s=2.0) is None
    assert arrive(roll, [2]) == Outcome(Call.REGROUP, (2,), 3)


@pytest.mark.parametrize("reached", [(3, 3), (2, 3)])
def test_workers_behind_take_over_the_latest_state(reached: tuple[int, int]) -> None:
    """After a collective that ended for some only, or a step that moved only some."""
    roll = gathered(3)
    roll.arrive(0, (2, 2), intact=reached == (2, 3), settings=b"", now_s=1.0)
    assert arrive(roll, [1, 2], reached=reached) == Outcome(
        Call.REGROUP, (0, 1, 2), 2, intact=reached == (2, 3), source=1
    )


def test_different_rounds_in_an_intact_group_are_uneven() -> None:
    roll = gathered(2)
    roll.arrive(0, (2, 2), intact=True, settings=b"", now_s=1.0)
    outcome = arrive(roll, [1], reached=(3, 3))
    assert outcome is not None
    assert outcome.call is Call.UNEVEN


def test_settings_are_compared_as_last_sent() -> None:
    roll = gathered(2)
    for told, differ in (((b"a", b"a"), False), ((b"", b""), False), ((b"", b"b"), True), ((b"b", b""), False)):
        for worker, settings in enumerate(told):
            roll.arrive(worker, (0, 0), True, settings, now_s=1.0)
        outcome = roll.outcome(now_s=1.0)
        assert outcome is not None
        assert (outcome.call, outcome.settings_differ) == (Call.GO, differ)


def test_silent_workers_count_only_while_others_wait() -> None:
    """Counted from when that worker was last released."""
    roll = gathered(3)
    assert arrive(roll, [0, 1, 2]) is not None
    assert roll.silent(now_s=9.0, silence_s=5.0) == []
    assert arrive(roll, [1]) is None
    assert roll.silent(now_s=5.0, silence_s=5.0) == []
    assert roll.silent(now_s=7.0, silence_s=5.0) == [(0, 6.0), (2, 6.0)]
    assert roll.waited_s(now_s=7.0) == 6.0


def test_workers_are_dismissed_one_by_one() -> None:
    roll = gathered(3)
    assert arrive(roll, [1]) is None
    roll.dismiss()
    assert roll.outcome(now_s=2.0) == Outcome(Call.DISMISS, (1,), 1)
    assert arrive(roll, [0]) == Outcome(Call.DISMISS, (0,), 1)


@pytest.mark.parametrize("died", [True, False])
def test_a_death_breaks_a_step_of_several_collectives(died: bool) -> None:
    roll = gathered(3)
    roll.leave(1, died)
    assert arrive(roll, [0, 2]) == Outcome(Call.REGROUP, (0, 2), 2, intact=not died)
    assert arrive(roll, [0, 2]) == Outcome(Call.GO, (0, 2), 2)
