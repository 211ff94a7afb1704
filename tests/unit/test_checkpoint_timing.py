"""When a checkpoint may be written, over random courses of what happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plesio.server.checkpoint_timing import LAST_STATE_S, CheckpointTiming

SILENCE_S = 5.0
STEP = st.fixed_dictionaries(
    {
        "what": st.sampled_from(["ask", "look", "look", "stop"]),
        "after_s": st.sampled_from([0.0, 0.5, 3.0, 30.0]),
        "unsettled": st.booleans(),
        "lacking": st.sets(st.integers(0, 3)),
    }
)


@given(st.lists(STEP, max_size=40))
def test_an_ask_is_answered_once_and_in_time(course: list[dict[str, object]]) -> None:
    timing, now_s, stopped = CheckpointTiming(60.0, SILENCE_S), 0.0, False
    asked, lacked_s = False, None  # since when workers lacked states, of those whose order was settled
    for step in course:
        now_s += step["after_s"]
        if step["what"] == "stop":
            if stopped:
                continue
            stopped, lacked_s = True, None
            timing.stopped()
        if step["what"] == "look" and not asked:
            assert not timing.waits
            continue
        without = timing.asked(now_s, step["unsettled"], lambda step=step: sorted(step["lacking"]))
        patience_s = LAST_STATE_S if stopped else SILENCE_S
        if not step["unsettled"]:
            lacked_s = (now_s if lacked_s is None else lacked_s) if step["lacking"] else None
        out_of_time = lacked_s is not None and now_s - lacked_s >= patience_s
        if step["unsettled"] or (step["lacking"] and not out_of_time):
            assert without is None, "it is not to be gone on from yet"
        else:
            assert without == sorted(step["lacking"]), "it is written, and says whom it lacks"
            lacked_s = None
        asked = without is None
        assert timing.waits == asked
        assert timing.awaits_states == (lacked_s is not None)
        assert timing.holds_up_end == (stopped and lacked_s is not None)
        assert timing.owed == (asked or not stopped)


@given(st.lists(STEP, max_size=20), st.sets(st.integers(0, 3)))
def test_the_last_one_is_written_whoever_is_frozen(course: list[dict[str, object]], frozen: set[int]) -> None:
    """Once the order is settled; until then it says that it waits."""
    timing, now_s = CheckpointTiming(60.0, SILENCE_S), 0.0
    for step in course:
        now_s += step["after_s"]
        timing.asked(now_s, step["unsettled"], lambda step=step: sorted(step["lacking"]))
    timing.stopped()
    assert timing.asked(now_s, True, lambda: sorted(frozen)) is None
    assert timing.waits
    assert timing.owed
    found = [timing.asked(now_s + passed_s, False, lambda: sorted(frozen)) for passed_s in (0.0, LAST_STATE_S)]
    assert (found[1] if frozen else found[0]) == sorted(frozen)


def test_nobody_is_asked_for_states_while_the_order_is_unsettled() -> None:
    def never() -> list[int]:
        raise AssertionError

    assert CheckpointTiming(60.0, SILENCE_S).asked(0.0, True, never) is None


@pytest.mark.parametrize("begins_s", [0, 1000])
def test_a_due_checkpoint_that_is_not_written_waits_for_the_next_time(begins_s: int) -> None:
    timing = CheckpointTiming(every_s=60.0, silence_s=SILENCE_S)
    found = [now_s for now_s in range(begins_s, begins_s + 200) if timing.due(now_s)]
    assert found == [begins_s + 60, begins_s + 120, begins_s + 180]
