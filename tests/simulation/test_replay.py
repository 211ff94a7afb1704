"""A real run replayed from its journal: the same bits."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from conformance.table import strategies
from plesio.cli.main import main
from plesio.cluster import Cluster, Constant, Crash, Group, Link, LogNormal, Partition, Ranked, Restart, Slow
from plesio.core.events import Abandoned, Discard, Evict, Joined, LeaseWanted, Pushed, Verdict
from plesio.launch.torch_settings import TorchSettings
from plesio.protocol.journal import FILE_NAME, Decision, Journal, JournalError, JournalWriter, read_journal, records
from plesio.strategy import Strategy
from plesio.tensors import one_pass
from support.long_forms import but_slow
from support.loops import descend, follow
from support.plain_folds import without_kernels
from support.replayed import Augmented, build, chancy, fills_the_disk
from support.runs import assert_replays, by_name, same

RECIPES = [*strategies(at_server=True), ps.local_sgd(every=ps.Seconds(0.03))]
EACH_WAY = {
    "sync_sgd",
    "async_sgd",
    "async_sgd(correct=gap_aware)",
    "first_of(2)",
    "buffered(k=2)",
    "quorum(2)",
    "elastic_averaging(every=3)",
    "diloco(every=3, codec=int8)",
}
"""Each way of gathering, correcting and adopting."""

FAR_AND_NEAR = Cluster((Group(2, LogNormal(0.1, 0.3), Link(0.3)), Group(2, LogNormal(0.1, 0.3))))
"""Versions are made many times while a message is on its way to those far away."""


def trained(strategy: Strategy, folder: Path, train: Any = chancy, workers: int = 4, **options: Any) -> ps.Run:
    options = {"timeout_s": 60, **options}
    return ps.run(train, strategy, workers=workers, runs=folder, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> ps.Run:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its sleep
        return trained(ps.async_sgd(), tmp_path_factory.mktemp("finished"))


@pytest.mark.few(1)
@pytest.mark.parametrize("strategy", but_slow(RECIPES, EACH_WAY), ids=by_name)
def test_every_recipe_replays_bit_for_bit(strategy: Strategy, tmp_path: Path) -> None:
    run = trained(strategy, tmp_path, faults=[ps.Slow(worker=0, factor=4)])
    assert run.version > 2, "with seconds for steps it is the machine that says how many"
    assert_replays(run, chancy)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("strategy", "kind"),
    [(ps.async_sgd(), "adam"), (ps.sync_sgd(), "adam"), pytest.param(ps.async_sgd(), "sgd", marks=pytest.mark.slow)],
    ids=str,
)
def test_a_large_model_folded_by_kernels_replays_without_them(strategy: Strategy, kind: str, tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=1, kind=kind, hidden=16_384)
    run = trained(strategy, tmp_path, train)
    assert sum(one.numel() for one in run.state_dict.values()) > one_pass.LARGE
    assert_replays(run, train)
    with without_kernels():
        assert_replays(run, train)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the training function called time.sleep")
@pytest.mark.filterwarnings("ignore:NAdam. no look-ahead is known for it")
@pytest.mark.parametrize("kind", ["plain", "sgd", "adam", "nadam"])
@pytest.mark.parametrize("strategy", strategies(at_server=True), ids=by_name)
def test_every_recipe_and_optimizer_of_a_large_model_replays_without_kernels(
    strategy: Strategy, kind: str, tmp_path: Path
) -> None:
    train = functools.partial(chancy, epochs=1, kind=kind, hidden=16_384)
    run = trained(strategy, tmp_path, train, engine=ps.Simulated("uniform"))
    with without_kernels():
        assert_replays(run, train)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", but_slow([ps.async_sgd(), ps.sync_sgd(), ps.first_of(2)], {"async_sgd", "first_of(2)"}), ids=by_name
)
def test_a_death_and_a_non_finite_contribution_replay(strategy: Strategy, tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=8, poison=(2, 5), dies=tmp_path / "died")  # enough for a late starter
    run = trained(strategy, tmp_path, train)
    assert run.workers[1].left == "died"
    assert_replays(run, train)


@pytest.mark.thorough
def test_a_stopped_run_replays(tmp_path: Path) -> None:
    run = trained(ps.async_sgd(), tmp_path, functools.partial(chancy, epochs=1000), until=ps.Until(steps=60))
    assert_replays(run, functools.partial(chancy, epochs=1000))


@pytest.mark.parametrize(
    "strategy", but_slow([ps.async_sgd(), ps.first_of(3), ps.local_sgd(every=3)], {"first_of(3)"}), ids=by_name
)
def test_a_run_stopped_by_a_worker_replays(strategy: Strategy, tmp_path: Path) -> None:
    train = functools.partial(chancy, epochs=1000, stops=(2, 7))
    run = trained(strategy, tmp_path, train)
    assert run.ended == "worker 2 stopped the run: enough"
    assert_replays(run, train)


def endless(worker: Any, stops: bool = False, dies: Path | None = None) -> None:
    """Data of its own, so that only the end of the run, or of its worker, ends the loop.

    `stops`: worker 1 asks for the end in its sixth step. `dies`: it kills itself then, unless that file is there.
    """
    model = nn.Linear(4, 2)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), None)
    for step in itertools.count(1):
        descend(optimizer, model(torch.randn(8, 4)).square().mean())
        if stops and (worker.rank, step) == (1, 6):
            worker.stop("enough")
        if dies is not None and (worker.rank, step) == (1, 6) and not dies.exists():
            dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def with_ctrl_c(model: nn.Module, looks: Iterator[int]) -> dict[str, float]:
    """Somebody presses it during the third evaluation."""
    if next(looks) == 2:
        signal.raise_signal(signal.SIGINT)
    return {}


ENOUGH = ps.Until(steps=40)
DIES_AMID = Cluster((Group(2, Constant(0.1)),), faults=(Crash(worker=1, at_s=0.65),))


@pytest.mark.few(2)
@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("options", "of_train"),
    [
        ({"until": ENOUGH, "engine": ps.Simulated("uniform")}, {}),
        ({"until": ENOUGH, "engine": ps.Simulated(DIES_AMID)}, {}),
        ({"engine": ps.Simulated("uniform")}, {"stops": True}),
        ({"until": ENOUGH, "pace": 0.005}, {}),
        ({"until": ENOUGH, "pace": 0.005}, {"dies": True}),
        ({"pace": 0.005}, {"stops": True}),
    ],
    ids=["until", "a worker dies", "a worker stops it", "processes", "a process dies", "a process stops it"],
)
def test_an_endless_loop_ended_between_exchanges_replays(
    options: dict[str, Any], of_train: dict[str, Any], tmp_path: Path
) -> None:
    """The journal holds nothing after a worker's last contribution; the replay stops there."""
    train = functools.partial(endless, **{name: name == "stops" or tmp_path / name for name in of_train})
    run = trained(ps.local_sgd(every=4), tmp_path, train, workers=2, **options)
    assert run.version > 0
    assert_replays(run, train)


@pytest.mark.timeout(30)
def test_an_interrupted_endless_loop_replays(tmp_path: Path) -> None:
    evaluate = functools.partial(with_ctrl_c, looks=itertools.count())
    with pytest.raises(ps.RunInterrupted) as interrupted:
        trained(ps.local_sgd(every=4), tmp_path, endless, workers=2, engine=ps.Simulated("uniform"), evaluate=evaluate)
    assert interrupted.value.run.version > 0
    assert_replays(interrupted.value.run, endless)


def test_until_stops_at_the_given_version(finished: ps.Run, tmp_path: Path) -> None:
    part = ps.replay(forged(finished.folder / FILE_NAME, tmp_path / FILE_NAME), chancy, until=7)  # nothing is forged
    start = ps.replay(finished.folder, chancy, until=0)
    assert (part.versions, part.identical) == (7, True)
    assert not same(part, finished)
    assert (start.versions, start.identical) == (0, True)
    assert start.state_dict.keys() == finished.state_dict.keys()
    assert torch.equal(start.state_dict["0.weight"], build()[0].weight), "the initial model"


def test_a_version_outside_the_journal_is_refused(finished: ps.Run, tmp_path: Path) -> None:
    """Before anything is replayed, naming the versions it holds."""
    for until in (finished.version + 1, -1, 1.5):
        words = rf"until={until}: .*journal\.bin holds versions 0 to {finished.version}; give"
        with pytest.raises(ps.ReplayError, match=words):
            ps.replay(finished.folder, chancy, until=until)  # type: ignore[arg-type]
    ends = [end for end, _ in read_journal(finished.folder).placed()]
    with pytest.raises(ps.ReplayError, match=r"holds versions 0 to \d+ \(it lacks \d+ bytes from byte \d+ on"):
        ps.replay(cut(finished, ends[-5] - 1, tmp_path), chancy, until=finished.version + 1)


def cut(run: ps.Run, end: int, folder: Path) -> Path:
    """A copy of the first so many bytes of its journal."""
    file = folder / FILE_NAME
    file.write_bytes((run.folder / FILE_NAME).read_bytes()[:end])
    return file


@pytest.mark.thorough
def test_another_training_function_is_refused(finished: ps.Run) -> None:
    other = functools.partial(chancy, kind="adam")
    assert not ps.replay(finished.folder, other).identical  # the same file, other arguments: the first version says so
    with pytest.raises(ps.ReplayError, match=r"the training function .*replayed.py\) has changed.*--force"):
        ps.replay(finished.folder, follow)


@pytest.mark.thorough
def test_a_damaged_journal_is_replayed_up_to_the_damage(finished: ps.Run, tmp_path: Path) -> None:
    file = cut(finished, sys.maxsize, tmp_path)
    flipped = bytearray(file.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    file.write_bytes(flipped)
    missing = read_journal(file).missing
    assert missing is not None
    for words in ("contributions", "bytes from byte"):
        part = ps.replay(file, chancy)
        assert part.identical
        assert 0 < part.versions < finished.version
        assert words in part.missing
        cut(finished, missing.position + 1, tmp_path)  # in the middle of a record


@pytest.mark.thorough
def test_a_journal_without_an_end_is_reported(finished: ps.Run, tmp_path: Path) -> None:
    """As a killed server leaves it. Every version it holds is the same."""
    *_, end, _ = (position for position, _ in read_journal(finished.folder).placed())
    file = cut(finished, end, tmp_path)
    words = "the journal has no end: its run was killed, or is still going"
    assert str(ps.replay(file, chancy)) == f"bit-identical: {finished.version:,} versions, all computed again\n{words}"
    assert str(ps.replay(file, chancy, until=7)) == "bit-identical: 7 versions, all computed again"
    script = tmp_path / "script.py"
    script.write_text("from support.replayed import chancy as train\n")
    assert main(["replay", str(file), "--script", str(script)]) == 0


@pytest.mark.thorough
def test_a_changed_order_of_events_changes_the_weights(tmp_path: Path) -> None:
    """With two pushes exchanged the weights differ."""
    run = trained(ps.async_sgd(correct="plain"), tmp_path)
    journal = read_journal(run.folder)
    events = list(journal.decisions())
    writer = JournalWriter(tmp_path / "changed.bin", journal.head)
    places = [i for i, one in enumerate(events) if type(one.event).__name__ == "Pushed"]
    first, second = next(
        (a, b) for a, b in itertools.pairwise(places) if b == a + 1 and events[a].event.worker != events[b].event.worker
    )
    events[first], events[second] = events[second], events[first]
    for one in events:
        writer.keep(Decision(one.time_s, one.event))
    writer.close()
    changed = ps.replay(tmp_path / "changed.bin", chancy)
    assert changed.versions == 0
    assert changed.identical
    assert not same(changed, run)


def test_hogwild_keeps_no_journal(tmp_path: Path) -> None:
    run = ps.run(chancy, ps.hogwild(), workers=2, runs=tmp_path, timeout_s=60)
    assert not (run.folder / FILE_NAME).exists()


@pytest.mark.thorough
def test_the_command_replays_a_run(finished: ps.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script, run = tmp_path / "script.py", finished
    script.write_text("from support.replayed import chancy as train\n")
    assert main(["replay", str(run.folder), "--script", str(script), "--until", "5"]) == 0
    out = capsys.readouterr().out
    assert "bit-identical: 5 versions, all computed again" in out
    assert "weights-5.safetensors" in out
    assert main(["replay", str(run.folder), "--script", str(tmp_path / "gone.py")]) == 2
    assert "is not there; name it with --script" in capsys.readouterr().err
    assert main(["replay", str(run.folder), "--script", str(script), "--until", "100000"]) == 2
    assert f"holds versions 0 to {run.version}; give one of these" in capsys.readouterr().err
    assert main(["journal", str(run.folder), "--around", "100000"]) == 0
    assert "nothing in this journal is what was asked for" in capsys.readouterr().out
    nowhere = ["--script", str(script), "--weights", str(tmp_path / "gone" / "weights")]
    assert main(["replay", str(run.folder), *nowhere]) == 2
    assert "weights cannot be written to" in capsys.readouterr().err
    for wrong, words in {"--worker 9": "workers, 0 to", "--around -3": "greater than or equal to 0"}.items():
        assert main(["journal", str(run.folder), *wrong.split()]) == 2
        assert words in capsys.readouterr().err
    assert json.loads((run.folder / "summary.json").read_text())["version"] == run.version


@pytest.mark.thorough
def test_the_command_replays_a_named_script_and_refuses_another_function(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a run of a `functools.partial`, the script's own train may be another function."""
    monkeypatch.setattr("sys.path", [*sys.path])
    run = trained(ps.async_sgd(), tmp_path / "runs", functools.partial(chancy, epochs=2))
    script = tmp_path / "script.py"
    script.write_text(
        "import functools\nfrom support.replayed import chancy\ntrain = functools.partial(chancy, epochs=2)\n"
    )
    assert main(["replay", str(run.folder), "--script", str(script)]) == 0
    assert f"bit-identical: {run.version:,} versions, all computed again" in capsys.readouterr().out
    assert main(["replay", str(run.folder)]) == 2
    assert "replayed.py defines no function train(worker)" in capsys.readouterr().err
    for changed in ("from support.loops import endless as train\n", "def train(worker): ...\n"):
        script.write_text(changed)
        assert main(["replay", str(run.folder), "--script", str(script)]) != 0
        assert "has changed" in capsys.readouterr().err


def test_a_script_that_changed_is_refused_before_it_is_executed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(
        "from support.loops import follow, mlp, momentum\ndef train(worker): follow(worker, mlp, momentum, steps=3)\n"
    )
    simulated = ["--cluster", "uniform", "--workers", "2", "--runs", "runs"]
    assert main(["simulate", str(script), "--strategy", "sync_sgd", *simulated]) == 0
    (folder,) = Path("runs").iterdir()
    script.write_text(f"{script.read_text()}open('executed', 'w').close()\n")
    capsys.readouterr()
    assert main(["replay", str(folder)]) == 2
    assert "nothing of it was executed; restore it" in capsys.readouterr().err
    assert not Path("executed").exists()
    assert main(["replay", str(folder), "--force"]) == 0
    assert Path("executed").exists()


@pytest.mark.thorough
def test_a_full_disk_ends_the_journal_only(tmp_path: Path) -> None:
    often = ps.Checkpoint(every_s=0.1)
    run = ps.run(fills_the_disk, ps.async_sgd(), workers=2, runs=tmp_path, timeout_s=60, checkpoint=often)
    assert run.batches_unvisited == 0
    assert any("the journal ends here" in one.what and "cannot be written" in one.what for one in run.incidents)
    assert any(f"{run.folder.resolve()}/journal.bin cannot be written" in one.what for one in run.incidents)
    assert any("the checkpoint" in one.what and "cannot be written" in one.what for one in run.incidents)
    part = ps.replay(run.folder, fills_the_disk)
    assert part.identical
    assert 0 < part.versions < run.version


def half_done(worker: Any) -> None:
    """Each contribution's gradient is 2, in two parts; gradients are put to zero and the schedule goes on after the step."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    model, optimizer, _ = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0), None)
    for _ in range(30):
        with worker.step():
            for _ in range(2):
                model(torch.ones(1, 1)).sum().backward()
                time.sleep(0.02 if worker.rank == worker.version % 3 else 0.002)
            assert model.weight.grad.item() == 2.0
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.thorough
def test_a_step_cancelled_half_way_replays(tmp_path: Path) -> None:
    run = trained(ps.first_of(2), tmp_path, half_done, workers=3)
    assert run.summary.discarded["cancelled"] > 0
    assert run.state_dict["weight"].item() == -2.0 * run.version
    assert_replays(run, half_done)


def cooling(worker: Any) -> None:
    """What stands after a step that was called off is done all the same, or not: the schedule tells."""
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.randn(96, 8)
    model, optimizer, loader = worker.prepare(
        model, optimizer, DataLoader(TensorDataset(rows, rows[:, :2]), batch_size=2)
    )
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    for _ in range(2):
        for inputs, targets in loader:
            with worker.step():
                descend(optimizer, nn.functional.mse_loss(model(inputs), targets))
                assert model.weight.grad is not None, "a loop may log its norm, whatever became of the step"
                schedule.step()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("workers", "m", "options"),
    [
        (3, 2, {"pace": ps.Pace(0.005, jitter=0.5)}),
        (20, 15, {"engine": ps.Simulated("spot-market"), "seed": 3}),
        (4, 2, {"engine": ps.Simulated(FAR_AND_NEAR), "seed": 3}),
    ],
    ids=["processes", "simulated", "far away"],
)
def test_the_place_of_a_cancellation_within_a_step_replays(
    workers: int, m: int, options: dict[str, Any], tmp_path: Path
) -> None:
    run = trained(ps.first_of(m), tmp_path, cooling, workers=workers, **options)
    assert run.summary.discarded["cancelled"] > 0
    assert_replays(run, cooling)


CUT_OFF = Cluster((Group(3, Constant(0.1)),), faults=(Partition(worker=1, at_s=0.25, until_s=1.5),))


def after_its_eviction(run: ps.Run, worker: int) -> list[Any]:
    """What was heard of the one worker that was evicted."""
    decisions = list(read_journal(run.folder).decisions())
    (at,) = [place for place, one in enumerate(decisions) if any(isinstance(effect, Evict) for effect in one.effects)]
    return [one.event for one in decisions[at + 1 :] if getattr(one.event, "worker", None) == worker]


@pytest.mark.few(2)
@pytest.mark.parametrize("train", [cooling, endless], ids=["leased data", "data of its own"])
@pytest.mark.parametrize("strategy", [ps.sync_sgd(), ps.bounded_staleness(1), ps.local_sgd(1)], ids=by_name)
def test_an_eviction_replays(strategy: Strategy, train: Any, tmp_path: Path) -> None:
    """The evicted worker's messages come later, and it rejoins."""
    until = ps.Until(steps=60)
    run = trained(strategy, tmp_path, train, 3, engine=ps.Simulated(CUT_OFF), timeout_s=0.5, until=until)
    of_it = [(type(one), one.incarnation) for one in after_its_eviction(run, 1)]
    assert of_it[:2] == [(Pushed, 1), (Joined, 2)]
    assert_replays(run, train)


@pytest.mark.parametrize(("at_s", "sent"), [(0.35, [Abandoned, Pushed]), (0.45, [Pushed, LeaseWanted])])
def test_an_evicted_workers_late_messages_are_ignored_in_replay(at_s: float, sent: list[type], tmp_path: Path) -> None:
    """Two messages of a distant worker with cancelled steps are under way at its eviction."""
    groups = Group(2, Ranked(0.1)), Group(1, Constant(0.2), Link(0.1))
    cut_off = Cluster(groups, faults=(Partition(worker=2, at_s=at_s, until_s=at_s + 1.5),))
    run = trained(ps.first_of(2), tmp_path, cooling, 3, engine=ps.Simulated(cut_off), timeout_s=0.5)
    later = after_its_eviction(run, 2)
    assert [(type(one), one.incarnation) for one in later[:3]] == [(sent[0], 1), (sent[1], 1), (Joined, 2)]
    assert_replays(run, cooling)


def test_a_death_after_sending_a_contribution_replays(tmp_path: Path) -> None:
    """The contribution comes first, and counts."""
    dies = Cluster((Group(2, Constant(0.1), Link(0.001, 1800)),), faults=(Crash(worker=1, at_s=0.12),))
    run = trained(ps.local_sgd(1), tmp_path, cooling, 2, engine=ps.Simulated(dies))
    assert run.workers[1].folded == 1
    assert_replays(run, cooling)


def test_a_death_before_hearing_a_cancellation_replays(tmp_path: Path) -> None:
    """The worker waits for data then; its successor does not hear the cancellation either."""
    groups = Group(1, Constant(0.1)), Group(1, Constant(0.35), Link(0.2))
    gone = Crash(worker=1, at_s=0.15), Restart(worker=1, at_s=0.5), Slow(worker=0, at_s=0.25, factor=50, until_s=6)
    run = trained(ps.first_of(1), tmp_path, cooling, 2, engine=ps.Simulated(Cluster(groups, faults=gone)))
    assert run.discarded["cancelled"] > 0
    assert run.workers[1].folded > 0
    assert_replays(run, cooling)


def pausing(worker: Any, looks: bool) -> None:
    """Worker 2 pauses now and then, while the others make many versions; between pauses it is the fastest."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    rows = torch.randn(1200, 8)
    model, optimizer, loader = worker.prepare(
        model, optimizer, DataLoader(TensorDataset(rows, rows[:, :2]), batch_size=4, shuffle=True)
    )
    for step, (inputs, targets) in enumerate(loader):
        with worker.step() if looks else contextlib.nullcontext():
            optimizer.zero_grad()
            time.sleep(0.002 if worker.rank < 2 else 0.2 if step % 20 == 10 else 0.001)
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()


def called_off_between(journal: Journal) -> list[int]:
    """How many versions behind workers were when they were called off."""
    effects = [effect for one in journal.decisions() for effect in one.effects]
    return [one.staleness for one in effects if isinstance(one, Discard) and one.verdict is Verdict.CANCELLED]


@pytest.mark.thorough
@pytest.mark.parametrize("looks", [pytest.param(False, marks=pytest.mark.slow), True], ids=["never looks", "looks"])
def test_a_repeated_cancellation_replays(looks: bool, tmp_path: Path) -> None:
    train = functools.partial(pausing, looks=looks)
    run = trained(ps.first_of(2), tmp_path, train, workers=3)
    assert max(called_off_between(read_journal(run.folder))) > 1  # called off again before it looked
    assert run.workers[2].folded > 5
    assert_replays(run, train)


def stopping_between_epochs(worker: Any) -> None:
    """What it asks for next comes when the server knows of the stop."""
    model = nn.Linear(8, 2)
    rows = torch.randn(96, 8)
    model, optimizer, loader = worker.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(TensorDataset(rows, rows[:, :2]), batch_size=2)
    )
    for _ in range(2):
        for inputs, targets in loader:
            descend(optimizer, nn.functional.mse_loss(model(inputs), targets))
        worker.stop("enough")
        time.sleep(0.3)


def test_single_batch_leases_at_a_stop_replay(tmp_path: Path) -> None:
    run = trained(ps.sync_sgd(), tmp_path, stopping_between_epochs, workers=1)
    assert run.version == 49
    assert_replays(run, stopping_between_epochs)


def asked_ahead(run: ps.Run) -> set[int]:
    """The workers that asked for data while they had some."""
    events = [one.event for one in read_journal(run.folder).decisions()]
    return {event.worker for event in events if isinstance(event, LeaseWanted) and event.ahead}


def leaving_early(worker: Any, epochs: int = 3) -> None:
    """It breaks off its second epoch, and after each passes over the data for the statistics of its norm."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, loader = worker.prepare(model, optimizer, DataLoader(Augmented(), batch_size=2, shuffle=True))
    for epoch in range(epochs):
        for step, (inputs, labels) in enumerate(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.param_groups[0]["lr"] = 0.05 * (1 - worker.epoch / 4)
            optimizer.step()
            if epoch == 1 and step == 3:
                break
        with torch.no_grad():
            for inputs, _ in loader:
                model(inputs)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("strategy", "data"),
    [
        (ps.async_sgd(), "leases"),
        (ps.first_of(2), "shards"),
        (ps.local_sgd(7), "leases"),
        *(
            pytest.param(one, data, marks=pytest.mark.slow)
            for one in (ps.sync_sgd(), ps.local_sgd(100), ps.async_local_sgd(5))
            for data in ("leases", "shards")
        ),
    ],
    ids=by_name,
)
def test_workers_far_away_ask_ahead_and_their_run_replays(strategy: Strategy, data: str, tmp_path: Path) -> None:
    """All data is trained on once in each epoch."""
    options: dict[str, Any] = {"engine": ps.Simulated(FAR_AND_NEAR), "seed": 3, "data": data}
    run = trained(strategy, tmp_path, leaving_early, **options)
    assert asked_ahead(run) == {0, 1}, "those that are"
    assert_replays(run, leaving_early)
    if not strategy.release.cancel_late:  # else a step may be called off after its last look
        assert (run.samples, run.batches_unvisited) == (3 * 96, 0)


FAR_AND_MORTAL = Cluster(
    (Group(3, LogNormal(0.1, 0.3), Link(0.3)),),
    faults=(Crash(worker=0, at_s=1.25), Restart(worker=0, at_s=3.0), Partition(worker=1, at_s=2.0, until_s=6.0)),
)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "strategy", but_slow([ps.sync_sgd(), ps.async_sgd(), ps.async_local_sgd(5)], {"async_sgd"}), ids=by_name
)
@pytest.mark.filterwarnings("ignore:training goes on with lr")  # its successor goes on with the schedule's
def test_a_death_while_data_is_asked_for_ahead_replays(strategy: Strategy, tmp_path: Path) -> None:
    run = trained(strategy, tmp_path, leaving_early, 3, engine=ps.Simulated(FAR_AND_MORTAL), seed=3, timeout_s=2.0)
    assert asked_ahead(run) == {0, 1, 2}
    assert_replays(run, leaving_early)
    assert run.summary.batches_unvisited == 0


@pytest.mark.thorough
def test_a_replay_leaves_the_random_sources_as_they_were(finished: ps.Run) -> None:
    before = torch.get_rng_state()
    assert_replays(finished, chancy)
    assert torch.equal(torch.get_rng_state(), before)


def forged(journal: Path, into: Path, insert: bytes = b"", **head: Any) -> Path:
    """A journal like that one, checksums and all, but for these fields of its head, and for a record put in before the last."""
    data, start = journal.read_bytes(), len(records.MAGIC)
    bodies: list[bytes] = []
    while start < len(data):
        length, _ = records.FRAME.unpack_from(data, start)
        start += records.FRAME.size + length
        bodies.append(data[start - length : start])
    fields = msgspec.msgpack.decode(bodies[0][1:]) | head
    made = bytearray(records.MAGIC)
    for body in (
        bodies[0][:1] + msgspec.msgpack.encode(fields),
        *bodies[1:-1],
        *([insert] if insert else []),
        bodies[-1],
    ):
        made += records.frame_header(body, len(made)) + body
    into.write_bytes(made)
    return into


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"torch": {"default_dtype": "load"}}, "its settings of torch are none that plesio writes"),
        ({"torch": {"attributes": {"utils.os": True}}}, "its settings of torch are none that plesio writes"),
        ({"torch": {"attributes": {"backends.mkldnn.enabled": "ieee"}}}, "its settings of torch are none that plesio"),
        ({"torch": 7}, "the head of the journal .* is cut off or damaged"),
        ({"fields": {"every": {"is": "Whenever"}}}, "its strategy is none that plesio writes"),
        ({"fields": {"every": 3}}, "its strategy is none that plesio writes"),
        ({"workers": 1 << 40}, "the head of the journal .* is cut off or damaged"),
        ({"threads": -1}, "the head of the journal .* is cut off or damaged"),
        ({"seed": -1}, "the head of the journal .* is cut off or damaged"),
        ({"insert": records.encode(Decision(1.0, Pushed(700, 1, 1, 1, 4, 1)))}, "cannot be in this run"),
    ],
)
def test_a_forged_journal_ends_in_a_journal_error_and_changes_no_setting(
    lie: dict[str, Any], words: str, tmp_path: Path, finished: ps.Run
) -> None:
    settings = TorchSettings.of_this_process()
    if isinstance(lie.get("torch"), dict):
        lie = {"torch": msgspec.to_builtins(settings) | lie["torch"]}
    with pytest.raises(JournalError, match=words):
        ps.replay(forged(finished.folder / FILE_NAME, tmp_path / "journal.bin", **lie), chancy)
    assert TorchSettings.of_this_process() == settings
