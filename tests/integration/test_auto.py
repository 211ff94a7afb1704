"""Real runs whose workers are unequal: the advice that a page is given, and a run that chooses by itself."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import plesio as ps
from plesio.launch import advising
from plesio.observe.asked import ask
from plesio.observe.record import LIVE
from support import loops

TRAIN = partial(loops.endless, pause_s=0.01)
LONGEST = ps.Until(seconds=90.0)
UNEQUAL = [ps.Slow(worker=0, factor=10)]


@pytest.mark.thorough
def test_a_run_is_told_of_a_faster_strategy_while_somebody_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advising, "FIRST_S", 1.0)
    monkeypatch.setattr(advising, "EVERY_S", 1.0)
    monkeypatch.setattr(advising, "SHARE_MAX", 1.0)

    def watch(live: ps.Live) -> None:
        (folder,) = tmp_path.iterdir()
        ask(folder, "advice")  # as the page does
        if "samples a second at the speeds" in (folder / LIVE).read_text():
            (folder / "asked-stop").touch()

    run = ps.run(TRAIN, "sync_sgd", workers=3, pace=0.02, faults=UNEQUAL, runs=tmp_path, watch=watch, until=LONGEST)
    assert run.ended == "stopped from the live page"
    assert run.folder is not None
    assert '"kind":"advice","what":"async_sgd would make ' in (run.folder / LIVE).read_text()
    assert "async_sgd would" in run.advice


@pytest.mark.thorough
def test_a_run_that_nobody_watches_asks_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advising, "FIRST_S", 0.0)
    until = ps.Until(seconds=1.0)
    run = ps.run(TRAIN, "sync_sgd", workers=2, pace=0.02, faults=UNEQUAL, runs=tmp_path, until=until)
    assert run.folder is not None
    assert "advice" not in (run.folder / LIVE).read_text()


@pytest.mark.thorough
def test_a_run_chooses_by_itself_says_why_and_replays(tmp_path: Path) -> None:
    seen: list[str] = []

    def watch(live: ps.Live) -> None:
        seen[:] = [one.what for one in live.events if one.what.startswith("switched ")]
        if seen and live.now is not None and max((w.staleness for w in live.now.workers), default=0) > 0:
            (folder,) = tmp_path.iterdir()
            (folder / "asked-stop").touch()

    strategy = ps.auto([ps.sync_sgd(), ps.async_sgd()], every_s=1.0, apart_s=2.0)
    run = ps.run(TRAIN, strategy, workers=3, pace=0.02, faults=UNEQUAL, runs=tmp_path, watch=watch, until=LONGEST)
    assert run.ended == "stopped from the live page"
    (what,) = seen
    assert what.startswith("switched from sync_sgd to async_sgd at version ")
    assert "times as many samples a second at the speeds of the last" in what
    assert what in str(run).replace("\n", " ")
    assert run.folder is not None
    assert str(ps.replay(run.folder, TRAIN)) == f"bit-identical: {run.version:,} versions, all computed again"
