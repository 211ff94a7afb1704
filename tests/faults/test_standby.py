"""The host of a run's head dies, stands still, or is cut off, and a standby on another one goes on: real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import plesio as ps
from plesio.server.checkpoints import read
from plesio.strategy import Strategy
from support import standby as standby_support
from support.namespaces import OtherHost, hosts_on_a_switch
from support.paced import BATCH, carrying, made_twice, visiting, visiting_rows
from support.standby import Hosts, Leader, hosts, until

SAMPLES, EPOCHS, WORKERS = 480, 2, 2
BATCHES = SAMPLES // BATCH * EPOCHS
ELECTED, WENT_BACK = "elected: this is the head now", "the run went back from version "
FENCED = "most of the run follows another head by now: this one was cut off from it for too long"
STRATEGIES = [
    ps.async_sgd(),
    ps.sync_sgd(),
    ps.local_sgd(4),
    ps.diloco(4),
    ps.buffered(2),
    ps.first_of(2),
    ps.bounded_staleness(2),
    ps.async_sgd(codec="int8"),
]


def training(ours: Hosts, counts: bool = False, epochs: int = EPOCHS) -> Any:
    how: dict[str, Any] = {"seen": ours.seen, "samples": SAMPLES, "epochs": epochs, "pause_s": 0.05}
    return partial(visiting, lr=float(WORKERS), **how) if counts else partial(carrying, **how)


def begin(ours: Hosts, train: Any) -> tuple[Leader, Leader]:
    """A head and a standby, once a death of the head would be survived."""
    head = ours.head()
    for rank in range(WORKERS):
        ours.worker(train, rank)
    standby = ours.standby()
    ours.until_electable(standby)
    ours.until_further(5)
    return head, standby


def hurry(ours: Hosts) -> None:
    (ours.seen / "hurry").touch()


def ends_in(ours: Hosts, leader: Leader, train: Any) -> ps.Run:
    """The run ends well in this head: all data were visited, and it replays."""
    hurry(ours)
    assert leader.end() == 0, leader.log
    for worker in ours.workers.values():
        assert worker.end() == 0, worker.log
    done = leader.done
    assert done.batches_unvisited == 0
    assert done.folder is not None
    assert str(ps.replay(done.folder, train)) == f"bit-identical: {done.version:,} versions, all computed again"
    return done


def went_back(ours: Hosts) -> int:
    return sum(worker.log.count(WENT_BACK) for worker in ours.workers.values())


def killed(strategy: Strategy, acknowledge: str, folder: Path) -> tuple[ps.Run, Hosts, int]:
    """The head's host dies; the run, and the version that the standby went on from."""
    with hosts(folder, strategy, WORKERS, acknowledge=acknowledge) as ours:
        train = training(ours)
        head, standby = begin(ours, train)
        head.kill()
        ours.until(lambda: standby.leads)
        done = ends_in(ours, standby, train)
        from_version = int(standby.log.partition("goes on from version ")[2].split()[0])
    return done, ours, from_version


def test_a_standby_goes_on_when_the_heads_host_dies_and_nothing_is_undone(tmp_path: Path) -> None:
    done, ours, version = killed(ps.async_sgd(), "standby", tmp_path / "run")
    assert done.version == BATCHES
    assert done.steps == BATCHES - version
    assert done.incidents[0].what == f"the head before is lost: this one stood by, and goes on from version {version}"
    assert went_back(ours) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("acknowledge", ["head", "standby"])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: one.name)
def test_a_standby_goes_on_under_each_strategy(strategy: Strategy, acknowledge: str, tmp_path: Path) -> None:
    done, ours, _ = killed(strategy, acknowledge, tmp_path / "run")
    assert not strategy.name.startswith("async_sgd") or done.version == BATCHES
    assert acknowledge == "head" or went_back(ours) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("acknowledge", ["head", "standby"])
def test_head_and_standbys_are_killed_in_turn_and_each_sample_counts_once(acknowledge: str, tmp_path: Path) -> None:
    """A standby dies, and another comes; the head dies, and the one that is head then, and the next."""
    with hosts(tmp_path / "run", ps.async_sgd("plain"), WORKERS, acknowledge=acknowledge) as ours:
        train = training(ours, counts=True, epochs=5 * EPOCHS)
        leader, standby = begin(ours, train)
        standby.kill()
        for _ in range(3):
            standby = ours.standby()
            ours.until_electable(standby)
            ours.until_further(2)
            leader.kill()
            leader = standby
            ours.until(partial(getattr, leader, "leads"))
        done = ends_in(ours, leader, train)
    assert torch.equal(done.state_dict["weight"], torch.full((SAMPLES, 1), -5.0 * EPOCHS))
    assert acknowledge == "head" or not went_back(ours) + len(made_twice(ours.seen))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", [ps.async_sgd("plain"), ps.async_sgd(codec="int8"), ps.sync_sgd()], ids=lambda one: one.name
)
def test_a_standby_of_versions_goes_on_from_one_that_it_has(strategy: Strategy, tmp_path: Path) -> None:
    """What packings left out of contributions that are undone is lost with them."""
    every, counts = 4, strategy.send.codec is None
    with hosts(tmp_path / "run", strategy, WORKERS) as ours:
        train = training(ours, counts=counts, epochs=4 * EPOCHS)
        head = ours.head()
        for rank in range(WORKERS):
            ours.worker(train, rank)
        standby = ours.standby(every=every)
        ours.until_electable(standby)
        ours.until_further(3 * every)
        before = ours.version
        head.kill()
        ours.until(lambda: standby.leads)
        done = ends_in(ours, standby, train)
        version = int(standby.log.partition("goes on from version ")[2].split()[0])
    assert every <= version <= before + WORKERS
    if counts and strategy.name.startswith("async_sgd"):
        assert torch.equal(done.state_dict["weight"], torch.full((SAMPLES, 1), -4.0 * EPOCHS))


@pytest.mark.thorough
@pytest.mark.parametrize("acknowledge", ["head", "standby"])
@pytest.mark.parametrize("strategy", [ps.async_sgd(), ps.sync_sgd()], ids=lambda one: one.name)
def test_rows_of_tables_go_on_and_each_sample_steps_its_own_once_an_epoch(
    strategy: Strategy, acknowledge: str, tmp_path: Path
) -> None:
    with hosts(tmp_path / "run", strategy, WORKERS, acknowledge=acknowledge) as ours:
        train = partial(visiting_rows, seen=ours.seen, samples=SAMPLES, epochs=2 * EPOCHS, pause_s=0.05)
        leader, standby = begin(ours, train)
        for _ in range(2):
            leader.kill()
            leader = standby
            ours.until(partial(getattr, leader, "leads"))
            standby = ours.standby()
            ours.until_electable(standby)
            ours.until_further(2)
        done = ends_in(ours, leader, train)
    rows = done.tables["ids"].get_extra_state()
    assert sorted(rows["keys"].tolist()) == list(range(SAMPLES))
    share = 1.0 if strategy.name == "async_sgd" else 1 / WORKERS  # of the mean
    assert torch.equal(rows["values"], torch.full((SAMPLES, 2), -2.0 * EPOCHS * share))


@pytest.mark.thorough
def test_a_frozen_head_that_thaws_ends_and_nobody_follows_it(tmp_path: Path) -> None:
    with hosts(tmp_path / "run", ps.async_sgd("plain"), WORKERS, acknowledge="standby") as ours:
        train = training(ours, counts=True)
        head, standby = begin(ours, train)
        head.may_fail = True
        head.freeze()
        ours.until(lambda: standby.leads)
        head.thaw()
        assert head.end() == 1
        assert FENCED in head.log
        done = ends_in(ours, standby, train)
    assert done.version == BATCHES
    assert made_twice(ours.seen) == []


def ends_when_told(worker: Any, seen: Path, go: Path) -> None:
    visiting(worker, seen=seen, samples=40, epochs=1, lr=1.0, pause_s=0.05)
    (seen / "done").touch()
    until(go.exists)


@pytest.mark.thorough
def test_a_head_that_nobody_comes_back_to_ends_and_says_where_the_result_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before died when its last worker was about to end."""
    as_usual = standby_support._listening
    monkeypatch.setattr(standby_support, "_listening", lambda *where: replace(as_usual(*where), rejoin_s=3.0))
    with hosts(tmp_path / "run", ps.async_sgd("plain"), 1, acknowledge="standby") as ours:
        head = ours.head()
        worker = ours.worker(partial(ends_when_told, seen=ours.seen, go=tmp_path / "go"), 0)
        standby = ours.standby()
        ours.until_electable(standby)
        until((ours.seen / "done").exists)
        head.kill()
        standby.may_fail = True
        (tmp_path / "go").touch()
        assert (worker.end(), standby.end()) == (0, 1)
    assert "no worker came back to this head within 3 s (worker 0 did not come): if all had ended" in standby.log
    place = Path(standby.log.rpartition("resume='")[2].partition("'")[0])
    assert torch.equal(read(place).weights()["weight"], torch.full((40, 1), -1.0))


@pytest.fixture
def sites() -> Iterator[list[OtherHost]]:
    with hosts_on_a_switch(3) as three:
        yield three


def begin_apart(ours: Hosts, train: Any, sites: list[OtherHost]) -> tuple[Leader, Leader]:
    """The head at the first site, workers at the second, and a standby at the third."""
    heads, workers, standbys = sites
    head = ours.head(heads.address, heads.enter)
    for rank in range(WORKERS):
        ours.worker(train, rank, workers.enter)
    standby = ours.standby(standbys.address, standbys.enter)
    ours.until_electable(standby)
    ours.until_further(5)
    return head, standby


@pytest.mark.thorough
def test_a_head_that_is_cut_off_folds_nothing_that_anybody_sees_and_ends_when_links_are_back(
    sites: list[OtherHost], tmp_path: Path
) -> None:
    with hosts(tmp_path / "run", ps.async_sgd("plain"), WORKERS, acknowledge="standby") as ours:
        train = training(ours, counts=True)
        head, standby = begin_apart(ours, train, sites)
        head.may_fail = True
        sites[0].connect(False)
        ours.until(lambda: standby.leads)
        ours.until_further(2)
        ours.until_says(head, "this head folds nothing for now")
        sites[0].connect(True)
        assert head.end() == 1
        assert FENCED in head.log
        done = ends_in(ours, standby, train)
    assert done.version == BATCHES
    assert made_twice(ours.seen) == []
    assert went_back(ours) == 0


@pytest.mark.thorough
def test_where_no_majority_is_everybody_waits_and_the_same_head_goes_on(sites: list[OtherHost], tmp_path: Path) -> None:
    """The standby comes back last: it would ask for votes else, and may get them."""
    with hosts(tmp_path / "run", ps.async_sgd("plain"), 1, acknowledge="standby") as ours:
        train = partial(training(ours, counts=True), lr=1.0)
        head = ours.head(sites[0].address, sites[0].enter)
        ours.worker(train, 0, sites[1].enter)
        standby = ours.standby(sites[2].address, sites[2].enter)
        ours.until_electable(standby)
        for site in sites:
            site.connect(False)
        ours.until_says(head, "this head folds nothing for now")
        ours.until_says(standby, "there is no head")
        for site in sites[:2]:
            site.connect(True)
        ours.until_says(head, "this head goes on, after")
        ours.until_further(2)
        sites[2].connect(True)
        done = ends_in(ours, head, train)
        assert ELECTED not in standby.log
    assert done.version == BATCHES


@pytest.mark.thorough
def test_a_standby_and_a_worker_that_were_cut_off_together_come_back(sites: list[OtherHost], tmp_path: Path) -> None:
    """The worker has voted for the standby by then, whom nobody else elected."""
    with hosts(tmp_path / "run", ps.async_sgd("plain"), 3, acknowledge="standby") as ours:
        train = partial(training(ours, counts=True), lr=3.0)
        head = ours.head(sites[0].address, sites[0].enter)
        for rank, site in enumerate((sites[0], sites[0], sites[2])):
            ours.worker(train, rank, site.enter)
        standby = ours.standby(sites[2].address, sites[2].enter)
        ours.until_electable(standby)
        sites[2].connect(False)
        ours.until_says(head, "is lost: until one is back")
        sites[2].connect(True)
        ours.until_electable(standby)
        ours.until_further(2)
        done = ends_in(ours, head, train)
        assert ELECTED not in standby.log
    assert done.version == BATCHES


@pytest.mark.thorough
def test_a_standby_ends_well_with_its_run_and_leaves_no_copy(tmp_path: Path) -> None:
    with hosts(tmp_path / "run", ps.async_sgd(), WORKERS) as ours:
        train = training(ours)
        head, standby = begin(ours, train)
        assert standby.copies
        ends_in(ours, head, train)
        assert standby.end() == 0
        assert standby.copies == []


def raises(worker: Any, go: Path) -> None:
    model = nn.Linear(1, 1)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    while True:
        model(torch.ones(1)).sum().backward()
        optimizer.step()
        if go.exists():
            raise ValueError("enough")


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["a worker raises", "Ctrl-C"])
def test_a_standby_ends_with_a_run_that_ends_otherwise(how: str, tmp_path: Path) -> None:
    with hosts(tmp_path / "run", ps.async_sgd(), 1) as ours:
        head = ours.head()
        head.may_fail = True
        worker = ours.worker(partial(raises, go=tmp_path / "go"), 0)
        worker.may_fail = True
        standby = ours.standby()
        ours.until_electable(standby)
        if how == "Ctrl-C":
            head.press_ctrl_c()
        else:
            (tmp_path / "go").touch()
        assert head.end() == 1
        assert ("RunInterrupted" if how == "Ctrl-C" else "ValueError: enough") in head.log
        assert standby.end() == 0
        assert (ELECTED in standby.log, standby.copies) == (False, [])


@pytest.mark.thorough
def test_a_head_whose_machine_is_taken_away_hands_over(tmp_path: Path) -> None:
    with hosts(tmp_path / "run", ps.async_sgd(), WORKERS, acknowledge="standby") as ours:
        train = training(ours)
        head, standby = begin(ours, train)
        head.terminate()
        ours.until(lambda: standby.leads)
        ends_in(ours, standby, train)
    assert "this head is told to end (SIGTERM): a standby goes on with the run" in head.log
    assert went_back(ours) == 0


@pytest.mark.thorough
def test_who_may_not_stand_by_is_told_why(tmp_path: Path) -> None:
    """One with another token, and one more than the run takes."""
    with hosts(tmp_path / "run", ps.async_sgd(), WORKERS) as ours:
        train = training(ours, epochs=4 * EPOCHS)
        head, _ = begin(ours, train)
        another = ours.standby(enter=lambda: os.environ.update(PLESIO_STANDBY_TOKEN="that of somebody else"))
        one_more = ours.standby()
        for one, why in (
            (another, "the token of standbys (PLESIO_STANDBY_TOKEN, else that of workers) is another here"),
            (one_more, "as many standbys as the run takes (1) are there: start its head with --standby 2"),
        ):
            one.may_fail = True
            assert one.end() == 1
            assert why in one.log
        ends_in(ours, head, train)
