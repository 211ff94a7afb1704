"""Evaluation elsewhere: `Reader.versions` and `Reader.tell`, and `plesio evaluate`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import plesio as ps
from integration.test_reading import train
from plesio.cli.main import main
from plesio.launch.remote.find import token_of
from plesio.launch.remote.read import token_of_readers
from plesio.observe.record import LIVE
from plesio.reading.reader import Reader
from support import loops
from support.programs import PYTHON, with_tests
from support.reading import TIMEOUT_S, free_port, until

long = partial(train, steps=1_000_000)
JUDGE = """
import torch
from support.loops import batch_norm as model

def evaluate(model):
    return {"mean": model(torch.ones(1, 6)).mean()}
"""


def until_there(worker: ps.Worker, file: Path) -> None:
    model = loops.batch_norm()
    model, optimizer = worker.prepare(model, loops.sgd(model))
    while not file.exists():
        loops.loss_of(model, *loops.data(16)).backward()
        optimizer.step()


class OverError(Exception):
    """Ends a run."""


def address_of(reader: Reader) -> str:
    return f"{reader._place.host}:{reader._place.port}"


@contextmanager
def beside(does: Callable[[Reader], object]) -> Iterator[str]:
    """Inside, a run with `readers=` the address is read in a thread by one that does that."""
    address, raised = f"127.0.0.1:{free_port()}", []

    def read() -> None:
        try:
            with ps.read(address, timeout_s=TIMEOUT_S) as reader:
                does(reader)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield address
    thread.join(TIMEOUT_S)
    assert not thread.is_alive(), "it still reads"
    assert raised == []


class Told:
    """A sink that keeps what it was told."""

    def __init__(self) -> None:
        self.values: list[dict[str, float]] = []

    def begin(self, name: str, settings: object) -> None: ...

    def tell(self, told: Any) -> None:
        self.values.append(told.values)

    def end(self, summary: object) -> None: ...


def test_what_is_told_is_in_history_record_and_sinks_and_the_run_waits_for_the_last(tmp_path: Path) -> None:
    def judge(reader: Reader) -> None:
        for version in reader.versions():
            if reader.ended:
                time.sleep(0.5)  # nobody trains any more
            reader.tell({"seen": version})

    sink = Told()
    with beside(judge) as address:
        done = ps.run(train, "async_sgd", workers=2, readers=address, runs=tmp_path, sinks=[sink])
    assert len(done.history) > 3
    assert all(one.metrics == {"seen": one.version} for one in done.history)
    assert done.history[-1].version == done.version
    kept = json.loads((done.folder / "summary.json").read_text())["history"]
    assert [one["version"] for one in kept] == [one.version for one in done.history]
    assert sink.values[-1] == {"seen": done.version}
    assert f'"values":{{"seen":{done.version}' in (done.folder / LIVE).read_text()


def test_a_target_is_met_by_what_is_told_beside_other_metrics() -> None:
    def judge(reader: Reader) -> None:
        for number, _ in enumerate(reader.versions(every_versions=2)):
            reader.tell({"other": 0.0})
            reader.tell({"seen": number})

    with beside(judge) as address:
        done = ps.run(long, "async_sgd", workers=2, readers=address, until=ps.Until(seen=3))
    assert done.ended == "seen 3 reached"


def test_versions_are_so_far_apart_and_the_last_one_always_comes() -> None:
    seen: list[int] = []
    with beside(lambda reader: seen.extend(reader.versions(every_versions=7))) as address:
        done = ps.run(train, "async_sgd", workers=2, readers=address)
    assert seen[-1] == done.version
    assert all(later - one >= 7 for one, later in pairwise(seen[:-1]))


def test_the_last_version_comes_at_once_though_the_next_is_not_due() -> None:
    seen: list[int] = []
    with beside(lambda reader: seen.extend(reader.versions(every_s=10_000.0))) as address:
        done = ps.run(train, "async_sgd", workers=2, readers=address)
    assert len(seen) == 2
    assert seen[-1] == done.version


def test_nobody_waits_for_one_who_is_gone_and_readers_alone_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    own = token_of_readers(token_of(None))

    def judge(reader: Reader) -> None:
        with pytest.raises(ps.ConfigurationError, match="no version was taken yet"):
            reader.tell({"loss": 1.0})
        reader.take()
        with pytest.raises(ps.ConfigurationError, match=r"tell\({'loss': 'low'}\): names and numbers"):
            reader.tell({"loss": "low"})  # type: ignore[dict-item]
        reader.tell({})
        monkeypatch.delenv("PLESIO_TOKEN", raising=False)
        with (
            ps.read(address_of(reader), token=own, timeout_s=TIMEOUT_S) as other,
            pytest.raises(ps.ConfigurationError, match="know the token of its workers: set PLESIO_TOKEN"),
        ):
            other.tell({})

    with beside(judge) as address:
        done = ps.run(train, "async_sgd", workers=2, readers=address, timeout_s=120.0)
    assert not [one.what for one in done.incidents if "given up" in one.what]
    assert done.history == ()


def test_readers_of_the_same_name_are_told_apart() -> None:
    live: list[set[str]] = []
    both, over = {"site", "site (2)"}, threading.Event()

    def watch(now: Any) -> None:
        live.append({one.name for one in now.readers})
        if over.is_set():
            raise OverError

    def read(reader: Reader) -> None:
        at = address_of(reader)
        with ps.read(at, name="site\n", timeout_s=TIMEOUT_S), ps.read(at, name="site", timeout_s=TIMEOUT_S):
            until(lambda: live and both <= live[-1])
        over.set()

    with beside(read) as address, pytest.raises(OverError):
        ps.run(long, "async_sgd", workers=2, readers=address, watch=watch)


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (None, "there is no file judge.py; give a Python file that defines evaluate(model) and model()"),
        ("def model(): pass", "judge.py defines no function evaluate(model); the functions it has: model"),
        ("def evaluate(model): pass", "judge.py defines no function model(); the functions it has: evaluate"),
        (
            "def evaluate(model): pass\ndef model(): return 3",
            "model() in judge.py returned 3; it is to build the run's model",
        ),
    ],
    ids=["missing", "no evaluate", "no model", "no module"],
)
def test_a_file_without_what_it_takes_is_refused_before_anybody_connects(
    file: str | None, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if file is not None:
        Path("judge.py").write_text(file)
    assert main(["evaluate", "127.0.0.1:1", "judge.py"]) == 2
    assert words in capsys.readouterr().err


def test_a_run_without_readers_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    assert main(["evaluate", "127.0.0.1:1", str(tmp_path / "judge.py"), "--timeout-s", "0.1"]) == 1
    assert "the run that is read at 127.0.0.1:1 cannot be reached" in capsys.readouterr().err


def judging(folder: Path, address: str, code: str, *options: str) -> subprocess.Popen[str]:
    (folder / "judge.py").write_text(code)
    command = [*PYTHON, "-m", "plesio", "evaluate", address, str(folder / "judge.py"), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=with_tests())


def test_the_command_judges_the_last_version_as_evaluate_does_and_ends_with_the_run(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    judge = judging(tmp_path, address, JUDGE)

    def watch(live: Any) -> None:
        assert judge.poll() in (None, 0), judge.communicate()[1]  # else the run would go on

    done = ps.run(long, "async_sgd", workers=2, readers=address, until=ps.Until(mean=-1000.0), watch=watch)
    out, error = judge.communicate(timeout=TIMEOUT_S)
    assert (judge.returncode, error) == (0, "")
    assert done.ended == "mean -1000 reached"
    model = loops.batch_norm().eval()
    model.load_state_dict(done.state_dict)
    with torch.no_grad():
        assert done.history[-1].metrics == {"mean": float(model(torch.ones(1, 6)).mean())}
    assert out.splitlines()[-1].startswith(f"version {done.version:,}, ")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (JUDGE.replace("batch_norm", "mlp"), "1.weight: the run has shape (8,), the model no such tensor"),
        (JUDGE.replace('{"mean"', '{"mean": 1 / 0} or {"mean"'), "evaluate raised ZeroDivisionError"),
        (JUDGE.replace('{"mean"', '{"mean": "high"} or {"mean"'), "returned {'mean': 'high'}; it is to return names"),
    ],
    ids=["other shapes", "raises", "no numbers"],
)
def test_what_is_wrong_with_a_file_costs_the_run_nothing(code: str, words: str, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    judge = judging(tmp_path, address, code)

    def watch(live: Any) -> None:
        assert live.metrics == {}
        if judge.poll() is not None:
            raise OverError

    with pytest.raises(OverError):
        ps.run(long, "async_sgd", workers=2, readers=address, watch=watch)
    assert judge.returncode in (1, 2)
    assert words in judge.communicate()[1]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_command_that_is_ended_costs_the_run_nothing(number: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    judge = judging(tmp_path, address, JUDGE)

    killed, over = threading.Event(), tmp_path / "over"

    def watch(live: Any) -> None:
        if live.metrics and not killed.is_set():
            os.kill(judge.pid, number)
            killed.set()
        if judge.poll() is not None and not live.readers:
            over.touch()

    done = ps.run(partial(until_there, file=over), "async_sgd", workers=2, readers=address, watch=watch)
    _, error = judge.communicate(timeout=TIMEOUT_S)
    assert judge.returncode == (130 if number == signal.SIGINT else -number)
    assert error == ("plesio: interrupted\n" if number == signal.SIGINT else "")
    assert (done.ended, done.incidents) == ("finished", ())


def test_a_model_that_follows_by_versions_alone_hears_of_the_end() -> None:
    model, seen = loops.batch_norm().eval(), []

    def act(reader: Reader) -> None:
        with reader.follow(model, max_age=1_000_000) as following:
            until(lambda: model(torch.ones(1, 6)) is not None and reader.ended)
            seen.append(following.version)

    with beside(act) as address:
        done = ps.run(partial(train, steps=1000), "async_sgd", workers=2, readers=address)
    assert seen == [done.version]
    assert all(torch.equal(done.state_dict[name], tensor) for name, tensor in model.state_dict().items())
