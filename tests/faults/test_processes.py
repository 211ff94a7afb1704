"""Real processes, killed for real. Whatever happens: a clear end, nobody left behind, nothing left open."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import plesio as ps
from conformance.table import makers
from plesio.launch.job import Live
from plesio.launch.local.forkserver import ForkServer
from plesio.server.checkpoints import latest
from support import loops
from support.long_forms import but_slow, but_thorough, in_turn
from support.processes import alive, descendants, gone_within, open_descriptors
from support.programs import PYTHON

RECIPES = {
    **makers(real=True),
    "local_sgd seconds": partial(ps.local_sgd, ps.Seconds(0.05)),
    "packed": partial(ps.diloco, 3, codec="int4"),
    "packed gradients": partial(ps.first_of, 2, codec="int8"),
}

EACH_WAY = {"sync_sgd", "hogwild", "packed"}
"""With and without a barrier, without a server, with local steps. Others die where dead workers' batches are visited."""


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """No process but the fork server, no descriptor more than before."""
    ForkServer.shared()
    before, open_before = descendants(), open_descriptors()
    yield
    assert gone_within(descendants() - before, 1.0)
    assert open_descriptors() <= open_before


@pytest.mark.parametrize(
    "name", but_thorough([one for one in RECIPES if one != "allreduce"], {"sync_sgd"}, EACH_WAY - {"sync_sgd"})
)  # is one island
def test_the_others_go_on_when_a_worker_is_killed(name: str) -> None:
    """Barriers recount, and training goes on within two seconds, under every recipe."""
    times: list[tuple[float, int]] = []
    run = ps.run(
        loops.endless,
        RECIPES[name](),
        workers=3,
        faults=[ps.Kill(worker=1, after_s=0.4)],
        until=ps.Until(seconds=3.0),
        watch=lambda live: times.append((live.time_s, live.steps)),
        timeout_s=30,
    )
    assert [one.left for one in run.workers].count("died") == 1
    assert any(one.worker == 1 and "died" in one.what for one in run.incidents)
    assert steps_at(times, 2.4) < steps_at(times, 2.9), "still going two seconds after the death"


def steps_at(times: list[tuple[float, int]], when_s: float) -> int:
    return max(steps for time_s, steps in times if time_s <= when_s)


def visited(folder: Path) -> Counter[int]:
    lines = [line for rank in range(3) for line in (folder / f"{rank}.txt").read_text().splitlines()]
    return Counter(int(number) for line in lines for number in line.split()[1:])


@pytest.mark.parametrize(
    "name", but_thorough(["sync_sgd", "async_sgd", "first_of", "bounded_staleness"], {"async_sgd"})
)
def test_a_dead_workers_batches_are_visited_by_others(name: str, tmp_path: Path) -> None:
    """Each sample of each epoch but the last is visited at least once."""
    rows, epochs = 120, 6
    train = partial(loops.visit, folder=str(tmp_path), rows=rows, epochs=epochs, pause_s=0.004)
    run = ps.run(train, RECIPES[name](), workers=3, faults=[ps.Kill(worker=2, after_s=0.2)], timeout_s=30)
    assert run.workers[2].left == "died"
    visits = visited(tmp_path)
    # The dead worker may have been killed between its fold and writing down what was in it: that line is lost, not the fold.
    assert sum(visits.values()) >= rows * epochs - 2 * 4
    assert min(visits[row] for row in range(rows)) >= epochs - 1
    assert run.batches_unvisited == 0
    assert run.samples >= rows * epochs


def test_each_epoch_visits_each_sample_once(tmp_path: Path) -> None:
    """Without a death, exactly once, however fast each worker is."""
    train = partial(loops.visit, folder=str(tmp_path), rows=80, epochs=3, pause_s=0.002)
    run = ps.run(train, ps.async_sgd(), workers=3, faults=[ps.Slow(worker=0, factor=5)])
    visits = visited(tmp_path)
    assert visits == Counter(dict.fromkeys(range(80), 3))
    assert run.workers[0].steps < min(run.workers[1].steps, run.workers[2].steps)


@pytest.mark.thorough
def test_shards_give_each_worker_an_equal_part(tmp_path: Path) -> None:
    """data="shards": a slow worker does its own part, and nobody does it for it."""
    train = partial(loops.visit, folder=str(tmp_path), rows=96, epochs=2, pause_s=0.002)
    run = ps.run(train, ps.async_sgd(), workers=3, data="shards", faults=[ps.Slow(worker=0, factor=4)])
    assert [one.samples for one in run.workers] == [64, 64, 64]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", but_thorough(["sync_sgd", "async_sgd", "hogwild", "local_sgd", "allreduce"], {"async_sgd", "hogwild"})
)
def test_the_servers_death_is_one_clear_error(name: str) -> None:
    """The run ends within four seconds and says what was lost."""
    seen: list[float] = []
    with pytest.raises(ps.ServerLostError, match=r"server process \(\d+\) died at version") as caught:
        ps.run(
            loops.endless,
            RECIPES[name](),
            workers=3,
            faults=[ps.Kill(after_s=0.4)],
            watch=lambda live: seen.append(time.monotonic()),
            timeout_s=30,
        )
    assert "lost" in str(caught.value)
    assert ("checkpoint=ps.Checkpoint" in str(caught.value)) == (name != "hogwild")
    assert time.monotonic() - seen[-1] < 4.0


def test_a_run_whose_only_worker_raised_is_an_error() -> None:
    train = partial(loops.raising, who=0, after=2)
    with pytest.raises(
        ps.WorkerLostError, match=r"every worker died; .*; worker 0 raised ValueError: the disk is on fire$"
    ):
        ps.run(train, ps.async_sgd(), workers=1, on_worker_error="continue", timeout_s=30)


def test_a_run_whose_workers_all_died_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ps.WorkerLostError, match=r"every worker died.*; go on from the last checkpoint with") as caught:
        ps.run(
            loops.endless,
            ps.async_sgd(),
            workers=2,
            faults=[ps.Kill(worker=0, after_s=0.2), ps.Kill(worker=1, after_s=0.3)],
            runs=tmp_path,
            checkpoint=ps.Checkpoint(),
            timeout_s=30,
        )
    assert latest(caught.value.resume).path.is_relative_to(tmp_path)


@pytest.mark.parametrize(("name", "after"), in_turn(["sync_sgd", "async_sgd"], [-1, 0, 5]))
def test_an_exception_in_a_worker_ends_the_run(name: str, after: int) -> None:
    """With the worker's number and its traceback, wherever it comes from."""
    with pytest.raises(ps.WorkerError, match="worker 1 raised ValueError") as caught:
        ps.run(partial(loops.raising, who=1, after=after), RECIPES[name](), workers=3, timeout_s=30)
    assert "Traceback" in str(caught.value)
    assert "loops.py" in str(caught.value)


@pytest.mark.parametrize("name", ["ServerLostError", "ConfigurationError"])
def test_a_users_exception_named_like_one_of_plesios_is_the_users(name: str) -> None:
    with pytest.raises(ps.WorkerError, match=rf"worker 1 raised {name}: the disk is on fire\nTraceback"):
        ps.run(partial(loops.raising, who=1, after=5, kind=name), ps.async_sgd(), workers=2, timeout_s=30)


@pytest.mark.parametrize("name", but_thorough(["sync_sgd", "async_sgd", "hogwild"], {"async_sgd"}))
def test_an_exception_in_a_worker_can_be_survived(name: str) -> None:
    """on_worker_error="continue": the others finish, and the run says what happened."""
    run = ps.run(
        partial(loops.raising, who=1, after=5), RECIPES[name](), workers=3, on_worker_error="continue", timeout_s=30
    )
    (told,) = (one.what for one in run.incidents if one.worker == 1)  # once: not also as a death
    assert told == "worker 1 raised ValueError: the disk is on fire; the others go on"
    assert [one.left for one in run.workers] == ["finished", "raised", "finished"]
    assert run.workers[0].steps == run.workers[2].steps == 60


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "value"),
    in_turn(
        ["sync_sgd", "first_of", "async_sgd", "buffered", "bounded_staleness", "hogwild"], [float("nan"), float("inf")]
    ),
)
def test_a_contribution_that_is_not_finite_is_discarded(name: str, value: float) -> None:
    """It is counted, reported to its worker, and never folded."""
    run = ps.run(partial(loops.poisoned, who=1, at=4, value=value), RECIPES[name](), workers=2, timeout_s=30)
    assert run.discarded.get("not finite") == 1
    assert all(bool(value.isfinite().all()) for value in run.state_dict.values())
    assert max(one.metrics["discarded"] for one in run.logged if one.worker == 1) >= 1
    assert any("NaN" in one.what for one in run.incidents)


@pytest.mark.parametrize(
    "name", but_slow(["sync_sgd", "async_sgd", "hogwild", "allreduce"], {"async_sgd", "allreduce"})
)
def test_a_run_with_only_nan_is_an_error(name: str, tmp_path: Path) -> None:
    """The run folder is still written."""
    with pytest.raises(
        ps.NonFiniteError, match=r"nothing was trained: no contribution was finite \(\d+ with"
    ) as caught:
        ps.run(loops.hopeless, RECIPES[name](), workers=2, runs=tmp_path, timeout_s=30)
    (folder,) = tmp_path.iterdir()
    assert str(folder) in str(caught.value)
    assert (folder / "summary.json").is_file()


def test_repeated_non_finite_contributions_are_reported_rarely() -> None:
    """Of 40 per worker, the 1st, 2nd, 4th, 8th, 16th and 32nd are reported."""
    run = ps.run(partial(loops.hopeless, steps=41, good=1), "async_sgd", workers=2, timeout_s=30)
    assert run.discarded == {"not finite": 80}
    for worker in range(2):
        told = [one.what for one in run.incidents if one.worker == worker]
        assert told[0].endswith(f" 2 of worker {worker} held a NaN or an infinity: discarded")
        assert [one.partition("discarded")[2] for one in told] == [
            "", *(f", like {number} before it" for number in (1, 3, 7, 15, 31))
        ]  # fmt: skip


def test_on_nonfinite_raise_ends_the_run() -> None:
    with pytest.raises(ps.NonFiniteError, match=r"contribution 5 of worker 1 .* on_nonfinite='raise'"):
        ps.run(
            partial(loops.poisoned, who=1, at=4, value=float("nan"), steps=200),
            ps.async_sgd(),
            workers=2,
            on_nonfinite="raise",
            timeout_s=30,
        )


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("shape", r"0\.weight: wanted shape \(8, 6\), got \(9, 6\)"),
        ("dtype", r"0\.weight: wanted dtype float32, got float64"),
        ("more", r"wanted 4 tensors, got 6; the first one without a match is '2\.weight'"),
    ],
)
def test_models_that_differ_are_refused(what: str, words: str) -> None:
    with pytest.raises(ps.ModelMismatchError, match=words) as caught:
        ps.run(partial(loops.mismatched, what=what), ps.async_sgd(), workers=2, timeout_s=30)
    assert "worker 1 does not hold the same model as worker 0" in str(caught.value)


@pytest.mark.few(6)
@pytest.mark.parametrize(
    ("train", "error", "words"),
    [
        (partial(loops.changed_later, how="dtype"), ps.ModelMismatchError, "it was float32"),
        (partial(loops.changed_later, how="memory"), ps.ModelMismatchError, "given other memory"),
        (partial(loops.one_step, action="empty loader"), ps.ConfigurationError, "the loader is empty"),
        (
            partial(loops.one_step, action="no optimizer"),
            ps.ConfigurationError,
            r"given no optimizer; it takes .*worker\.prepare\(model, optimizer, loader\)",
        ),
        (
            partial(loops.one_step, action="twice"),
            ps.ConfigurationError,
            "prepare was called before, and a second ExchangedOptimizer would train this worker alone",
        ),
        (
            partial(loops.one_step, action="group"),
            ps.ConfigurationError,
            "add_param_group after prepare: .* one that is to join later with lr=0",
        ),
        (
            partial(loops.one_step, action="foreign optimizer"),
            ps.ConfigurationError,
            "parameters of the optimizer are not in the model",
        ),
        (
            partial(loops.one_step, action="text"),
            ps.ConfigurationError,
            r"worker\.log\(loss=\.\.\.\): str is not one number",
        ),
    ],
)
def test_misuse_in_a_worker_is_explained(train: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        ps.run(train, ps.async_sgd(), workers=1, timeout_s=30)


def test_too_little_shared_memory_is_an_error_before_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the size needed, the size there is, and what to do."""
    from plesio.system import memory

    monkeypatch.setattr(memory, "room", lambda: {"/dev/shm": 64_000_000})
    with pytest.raises(ps.SharedMemoryError, match=r"needs 2\.0 GB of shared memory and /dev/shm has 64\.0 MB left"):
        memory.SharedBlock.create(2_000_000_000, "this model")


@pytest.mark.thorough
def test_twenty_runs_leave_nothing_open() -> None:
    """The fixture looks for leaked processes and descriptors after the test as well."""
    train = partial(loops.follow, build=loops.mlp, optimizers=loops.sgd, steps=2)
    ps.run(train, ps.async_sgd(), workers=1)
    before = open_descriptors(), len(descendants())
    for _ in range(20):
        ps.run(train, ps.async_sgd(), workers=1)
        assert (open_descriptors(), len(descendants())) == before
    server = ForkServer.shared()
    assert len(os.listdir(f"/proc/{server.pid}/fd")) < 20


SCRIPT = """
import sys
from functools import partial
from support import loops
import plesio as ps
if __name__ == "__main__":
    ps.run(partial(loops.report_pids, folder=sys.argv[1], pause_s=float(sys.argv[2])), ps.async_sgd(), workers=2)
"""


def start_script(folder: Path, pause_s: float) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(SCRIPT)
    return subprocess.Popen(
        [*PYTHON, str(folder / "script.py"), str(folder), str(pause_s)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pids_of(folder: Path) -> set[int]:
    """The workers' and the server's process ids, once they are there."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        files = list(folder.glob("*.pid"))
        if len(files) == 3 and all(file.read_text() for file in files):
            time.sleep(0.5)
            return {int(file.read_text()) for file in files}
        time.sleep(0.05)
    raise AssertionError("the run did not start")


@pytest.mark.thorough
def test_ctrl_c_ends_gracefully(tmp_path: Path) -> None:
    """Within five seconds, without a worker's traceback."""
    script = start_script(tmp_path, 0.005)
    pids = pids_of(tmp_path)
    script.send_signal(signal.SIGINT)
    _, errors = script.communicate(timeout=5)
    assert gone_within(pids, 1.0)
    assert errors.count("Traceback") <= 1, errors
    assert "RunInterrupted: interrupted at version " in errors
    assert "nothing is written without runs=; there is no checkpoint to go on from" in errors


def once_interrupted() -> Callable[[Live], None]:
    """Presses Ctrl-C when some steps were taken, and never again."""
    pressed: list[bool] = []

    def watch(live: Live) -> None:
        if live.steps > 20 and not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    return watch


@pytest.mark.few(1)
@pytest.mark.parametrize("name", but_slow(["sync_sgd", "async_sgd", "hogwild", "allreduce"], {"hogwild", "allreduce"}))
def test_ctrl_c_leaves_summary_report_and_weights(name: str, tmp_path: Path) -> None:
    """Summary, report and weights, in the folder and in the exception."""
    with pytest.raises(ps.RunInterrupted, match=f"interrupted at version .*; written to {tmp_path}") as caught:
        ps.run(loops.endless, RECIPES[name](), workers=2, runs=tmp_path, watch=once_interrupted(), timeout_s=30)
    stop = caught.value
    assert isinstance(stop, KeyboardInterrupt)
    assert stop.resume is None
    assert stop.run.summary.ended == "interrupted"
    (folder,) = tmp_path.iterdir()
    assert folder == stop.folder
    assert {"summary.json", "report.html", "weights.safetensors"} <= {one.name for one in folder.iterdir()}
    assert load_file(folder / "weights.safetensors").keys() == stop.run.state_dict.keys()


def slow_to_stop(worker: ps.Worker) -> None:
    """Worker 1's steps are longer than anybody who stops a run waits for it."""
    loops.endless(worker, pause_s=60.0 if worker.rank == 1 else 0.005)


@pytest.mark.thorough
@pytest.mark.parametrize("name", but_slow(["async_sgd", "hogwild"], {"async_sgd"}))
def test_a_worker_slow_to_stop_is_reported_as_stopped(name: str, tmp_path: Path) -> None:
    """The launcher ends it after Ctrl-C; table and report say so."""
    with pytest.raises(ps.RunInterrupted) as caught:
        ps.run(slow_to_stop, RECIPES[name](), workers=2, runs=tmp_path, watch=once_interrupted(), timeout_s=30)
    run = caught.value.run
    assert [one.left for one in run.workers] == ["finished", "stopped"]
    words = "worker 1 did not end within 2 s of Ctrl-C and was stopped"
    assert [words in one.what for one in run.incidents if one.worker == 1] == [True]
    assert words in " ".join(str(run).split())
    assert words in (run.folder / "report.html").read_text()


@pytest.mark.thorough
def test_a_budget_ends_a_worker_that_is_slow_to_stop() -> None:
    run = ps.run(slow_to_stop, ps.async_sgd(), workers=2, until=ps.Until(seconds=0.3), timeout_s=30)
    assert run.workers[1].left == "stopped"
    assert any("worker 1 did not end within 3 s of being asked to" in one.what for one in run.incidents)


@pytest.mark.thorough
def test_ctrl_c_names_the_checkpoint_to_resume_from(tmp_path: Path) -> None:
    """This run's own, or the one it was resumed from."""
    first = interrupted(tmp_path, checkpoint=ps.Checkpoint(every_s=60))
    assert first.resume == first.folder
    second = interrupted(tmp_path, resume=first.resume)
    assert second.folder != first.folder
    assert second.resume == latest(first.folder).path
    assert f"go on with resume='{second.resume}'" in str(second)


def interrupted(folder: Path, **options: Any) -> Any:
    with pytest.raises(ps.RunInterrupted) as caught:
        ps.run(loops.endless, ps.async_sgd(), workers=2, runs=folder, watch=once_interrupted(), timeout_s=30, **options)
    return caught.value


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once(tmp_path: Path) -> None:
    """Though a worker is in the middle of a long step."""
    script = start_script(tmp_path, 60.0)
    pids = pids_of(tmp_path)
    script.send_signal(signal.SIGINT)
    time.sleep(0.3)
    script.send_signal(signal.SIGINT)
    assert gone_within(pids, 2.0)
    script.communicate(timeout=5)  # what is left is the interpreter's own end


@pytest.mark.thorough
def test_a_killed_launcher_leaves_no_process(tmp_path: Path) -> None:
    script = start_script(tmp_path, 0.005)
    pids = pids_of(tmp_path)
    assert all(alive(pid) for pid in pids)
    script.kill()
    script.communicate(timeout=5)
    assert gone_within(pids, 3.0)


@pytest.mark.thorough
def test_a_worker_that_never_prepares_is_named() -> None:
    with pytest.raises(ps.DeadlineError, match="worker 1 did not get as far as prepare within 2 s; the others waited"):
        ps.run(loops.never_prepares, ps.async_sgd(), workers=2, timeout_s=2)


@pytest.mark.parametrize("name", but_slow([one for one in RECIPES if one != "allreduce"], {"sync_sgd", "hogwild"}))
def test_initial_weights_come_whole_after_a_death_handing_them_over(name: str) -> None:
    """The first worker is killed after one tensor; another hands over all of them."""
    train = partial(loops.dies_handing_over, rate=0.0)
    run = ps.run(train, RECIPES[name](), workers=3, timeout_s=30)
    assert [one.left for one in run.workers] == ["died", "finished", "finished"]
    assert run.version > 0
    rounding = 1e-6 if name == "local_sgd seconds" else 0.0  # a mean of equals rounds where weights are uneven
    for key, value in loops.mlp().state_dict().items():
        torch.testing.assert_close(run.state_dict[key], value, rtol=0.0, atol=rounding)


def test_initial_optimizer_state_comes_whole_after_a_death_handing_it_over() -> None:
    whole, again = (
        ps.run(partial(loops.dies_handing_over, rate=0.1, who=who), ps.sync_sgd(), workers=workers, timeout_s=30)
        for who, workers in ((None, 1), (0, 2))
    )
    assert all(again.state_dict[name].equal(value) for name, value in whole.state_dict.items())


@pytest.mark.thorough
def test_a_frozen_worker_is_evicted_from_the_barrier(tmp_path: Path) -> None:
    """No transport notices a stopped process; its silence gives it away."""
    frozen: list[int] = []

    def freeze(live: Live) -> None:
        if live.steps > 30 and not frozen:
            frozen.append(int((tmp_path / "1.pid").read_text()))
            os.kill(frozen[0], signal.SIGSTOP)

    train = partial(loops.report_pids, folder=str(tmp_path))
    run = ps.run(train, ps.sync_sgd(), workers=3, timeout_s=3.0, until=ps.Until(seconds=7.0), watch=freeze)
    assert any("worker 1 was silent for" in one.what and "evicted" in one.what for one in run.incidents)
    assert [one.left for one in run.workers] == ["finished", "evicted", "finished"]
    assert run.workers[0].steps > run.workers[1].steps


def end_itself(model: object) -> dict[str, float]:
    """An evaluation that takes its process with it."""
    os.kill(os.getpid(), signal.SIGKILL)
    return {}


def test_the_evaluators_death_is_reported_and_training_goes_on() -> None:
    train = partial(loops.endless, pause_s=0.005)
    run = ps.run(train, ps.async_sgd(), workers=2, evaluate=end_itself, until=ps.Until(steps=60))
    assert run.history == ()
    assert any("the evaluator died: nothing is evaluated from here on" in one.what for one in run.incidents)


@pytest.mark.skipif(sys.platform != "linux", reason="names of processes are Linux's")
def test_processes_have_names(tmp_path: Path) -> None:
    names = tmp_path / "names"

    def train(worker: ps.Worker) -> None:
        if worker.rank == 0:
            names.write_text(Path("/proc/self/comm").read_text())

    with pytest.warns(RuntimeWarning, match="nothing was trained"):
        ps.run(train, "async_sgd", workers=2)
    assert names.read_text() == "plesio worker 0\n"
