"""The program as it is typed: what it prints, what it writes, how it fails."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from plesio.cli.live import StrategyLines
from plesio.cli.main import main
from plesio.cli.settings import strategies_of, strategy_of, usual
from plesio.cli.strategies import QUESTIONS, strategies
from plesio.config.until import Until
from plesio.launch.result import Run
from plesio.observe.summary import Summary
from plesio.observe.tables import FailedRun, compare_table, render
from plesio.strategy.recipes import RECIPES
from support import processes
from support.long_forms import but_slow
from support.programs import PYTHON, behind
from support.typed import said

SCRIPT = """
import torch
from pathlib import Path

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(256, 4, generator=GENERATOR)
Y = (X.sum(1) > 0).long()


def build():
    return torch.nn.Linear(4, 2)


def train(worker):
    {first}
    model = build()
    data = torch.utils.data.TensorDataset(X, Y)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    print("begun", flush=True)
    for _ in range(1000):
        for x, y in loader:
            with worker.step():
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                worker.log(loss=loss)


def evaluate(model):
    return {{"{metric}": (model(X).argmax(1) == Y).float().mean()}}
"""
KEYS = {
    "strategy", "time_to_target_s", "steps_per_s", "ideal_share", "waiting_share", "staleness_mean", "staleness_max",
    "bytes", "accuracy", "folded", "discarded", "samples",
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test in a folder of its own, with a path and arguments that it may change, and no terminal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def script(name: str = "script.py", *, first: str = "pass", metric: str = "accuracy") -> str:
    Path(name).write_text(SCRIPT.format(first=first, metric=metric))
    return name


# What there is


def test_strategies_shows_each_recipe_with_its_paper(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "strategies")
    assert all(name in out for name in RECIPES)
    assert "momentum" in out
    assert "arXiv 1907.11612" in out
    assert max(map(len, out.splitlines())) <= 118


def test_strategies_as_json_lists_every_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["strategies", "--json"]) == 0
    entries = {one["strategy"]: one for one in json.loads(capsys.readouterr().out)}
    assert list(entries) == list(RECIPES)
    settings = {"k": 2, "correct": "dana", "weigh": "equal", "lr_scale": "share", "rows": "each", "codec": None}
    assert entries["buffered"]["settings"] == settings
    assert entries["bounded_staleness"]["answers"]["release"] == "within 4 clocks"
    assert all(one["idea"] and one["paper"] and len(one["answers"]) == 12 for one in entries.values())


@pytest.mark.thorough
@pytest.mark.parametrize("typed", ["strategies", "run missing.py --data shard"])
def test_neither_a_list_nor_a_refusal_imports_torch(typed: str) -> None:
    code = "import sys; from plesio.cli.main import main; main(sys.argv[1:]); sys.exit('torch' in sys.modules)"
    command = [sys.executable, "-c", code, *typed.split()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


@pytest.mark.few(2)
@pytest.mark.parametrize("command", ["compare", "strategies", "replay", "journal"])
def test_each_command_has_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, command, "--help")
    assert "bool" not in out
    assert "--help" in out


def test_docs_and_strategies_show_the_same_questions() -> None:
    """Seven columns: the six questions, and who folds."""
    assert len(QUESTIONS) == 7
    assert list(QUESTIONS)[-1] == "via"
    page = re.sub(r"\s+", " ", (Path(__file__).parents[2] / "docs" / "choose.md").read_text())
    asked = re.search(r"Each is an answer to six questions \((.*?)\) and says who folds", page)
    assert asked is not None
    assert len(asked[1].split(", ")) == 6
    assert "the six questions, who folds" in (strategies.__doc__ or "")


# Where it prints


def program(*typed: str, python: Sequence[str] = (sys.executable,), **options: Any) -> subprocess.CompletedProcess[str]:
    """The program in a process of its own; its errors as text."""
    command = [*python, "-c", "from plesio.cli import app; app()", *typed]
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=280, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("unbuffered", but_slow(["", "1"], {""}))
@pytest.mark.parametrize(
    "typed", but_slow(["strategies", "strategies --json", "--version", "run --help"], {"strategies", "run --help"})
)
def test_a_full_disk_behind_stdout_is_one_line(typed: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        done = program(*typed.split(), stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 1
    assert done.stderr == (
        "plesio: standard output cannot be written: No space left on device; what it was to show is lost\n"
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("typed", "code", "error"),
    [
        ("strategies", 0, ""),
        pytest.param("--version", 0, "", marks=pytest.mark.slow),
        ("run", 2, "plesio: Missing argument 'SCRIPT'; see plesio run --help\n"),
        pytest.param("run script.py --workers 1 --until steps=5 --runs here", 0, "", marks=pytest.mark.thorough),
    ],
)
def test_a_closed_standard_output_is_as_none(typed: str, code: int, error: str) -> None:
    script()
    shell = ["sh", "-c", '"$@" >&- <&-', "sh", sys.executable, "-c", "from plesio.cli import app; app()"]
    done = subprocess.run([*shell, *typed.split()], stderr=subprocess.PIPE, text=True, timeout=280)
    assert (done.returncode, done.stderr) == (code, error)
    assert ("here" in typed) == bool(list(Path().glob("here/*/summary.json")))


@pytest.mark.thorough
def test_an_ascii_terminal_gets_ascii_tables() -> None:
    """From the command and from a script that prints a run."""
    few = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = program(
        "run", script(), "--workers", "1", "--until", "steps=20", python=PYTHON, stdout=subprocess.PIPE, env=few
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "| worker | steps |" in done.stdout
    assert "20 steps were up ? " in done.stdout
    assert not [line for line in done.stdout.splitlines() if line != line.rstrip()]
    (path,) = Path("runs").glob("*/summary.json")
    terminal = io.TextIOWrapper(printed := io.BytesIO(), "ascii", write_through=True)
    with redirect_stdout(terminal):
        print(Run(msgspec.json.decode(path.read_bytes(), type=Summary), {}, path.parent))
    assert b"| worker | steps |" in printed.getvalue()


# Strategies as words


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("first_of(m=2)", "first_of(2)"),
        (" buffered ( k = 3 ) ", "buffered(k=3)"),
        ("async_sgd(correct=plain, weigh='inverse')", "async_sgd(correct=plain, weigh=inverse)"),
    ],
)
def test_strategies_are_parsed(text: str, name: str) -> None:
    assert strategy_of(text, workers=4).name == name


def test_strategy_names_parse_back_to_the_strategy() -> None:
    odd = ("async_sgd(lr_scale=full)", "first_of(2, cancel_late=False)", "ringmaster(3, correct=plain, lr_scale=full)")
    for one in strategies_of(",".join((*usual(4), *odd)), workers=4):
        assert strategy_of(one.name, workers=4) == one


# run


def test_run_prints_the_table_and_leaves_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ["--strategy", "local_sgd", "--set", "every=4", "--workers", "2", "--runs", "here"]
    out = said(capsys, "run", script(), *settings, "--slow", "0:3", "--pace", "0.002", "--until", "steps=60")
    assert "local_sgd(every 4 steps): 60 steps were up" in out
    assert "exchange" in out
    assert "written to here/" in out
    (folder,) = Path("here").iterdir()
    assert {"run.toml", "metrics.jsonl", "weights.safetensors", "report.html"} <= {one.name for one in folder.iterdir()}
    written = tomllib.loads((folder / "run.toml").read_text())
    assert written["run"]["faults"] == [{"kind": "Slow", "worker": 0, "factor": 3.0}]
    assert written["run"]["pace"] == {"step_s": 0.002, "jitter": 0.0}


def test_a_run_whose_folder_lacks_files_has_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("plesio.observe.files.write_report", lambda *_, **__: 1 / 0)
    with pytest.warns(
        RuntimeWarning, match=r"it lacks report.html .*; make room, or give another folder \(runs=, --runs\)"
    ):
        assert ", without report.html" in said(capsys, "run", script(), "--workers", "1", "--until", "steps=20", code=1)


@pytest.mark.thorough
def test_another_function_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    """By all commands that take a script; a replay has to be told, too."""
    name = script()
    path = Path(name)
    path.write_text(f"{path.read_text()}\nmain = train\n\ndef train(args, model): pass\n")
    own = ["--function", "main", "--workers", "2", "--until", "steps=20"]
    ran = said(capsys, "run", name, "--strategy", "local_sgd(every=4)", "--runs", "here", *own)
    assert "local_sgd(every 4 steps): 20 steps were up" in ran
    assert main(["simulate", name, "--cluster", "uniform", *own]) == 0
    assert main(["compare", name, "--strategies", "sync_sgd", *own]) == 0
    (folder,) = Path("here").iterdir()
    assert main(["replay", str(folder), "--function", "main"]) == 0
    assert "cannot be the training function: plesio calls it with one argument" in said(
        capsys, "replay", str(folder), code=2
    )


@pytest.mark.thorough
def test_sys_argv_reaches_workers(capsys: pytest.CaptureFixture[str]) -> None:
    """In workers, simulations and replays. Arguments before `--` are plesio's."""
    parser = "p = argparse.ArgumentParser(exit_on_error=False); p.add_argument('--start', type=int, default=0)"
    name = script(first=f"import argparse; {parser}; torch.manual_seed(p.parse_args().start)")
    own = ["--", "--start", "7"]
    assert main(["run", name, "--workers", "1", "--until", "steps=20", "--runs", "here", *own]) == 0
    assert main(["compare", name, "--workers", "1", "--until", "steps=20", "--strategies", "sync_sgd", *own]) == 0
    assert main(["simulate", name, "--cluster", "uniform", "--workers", "2", "--until", "steps=20"]) == 0
    (folder,) = Path("here").iterdir()
    assert main(["replay", str(folder), *own]) == 0
    capsys.readouterr()
    assert "give replay the same: plesio replay RUN --function NAME -- ARGUMENTS" in said(
        capsys, "replay", str(folder), code=1
    )


def test_a_workers_exception_is_shown_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", script(first="raise ValueError('no disk')"), "--workers", "2"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("plesio: worker ")
    assert "raised ValueError: no disk" in error
    assert 'File "script.py", line ' in error


def test_where_results_could_not_be_written_the_command_that_is_printed_writes_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["simulate", script(), "--cluster", "uniform", "--workers", "2", "--until", "steps=20"]
    typed += ["--checkpoint-every-s", "0.1"]
    with monkeypatch.context() as full:
        full.setattr("plesio.observe.files.write_report", lambda *_, **__: 1 / 0)
        with pytest.warns(RuntimeWarning, match=r"it lacks report\.html .*; make room"):
            assert main(typed) == 1
    out = capsys.readouterr().out
    assert "make room, or give another folder (--runs), and go on from the last checkpoint to have it written\n" in out
    command = out.partition("go on with: plesio ")[2].partition("\n")[0]
    assert main(shlex.split(command)) == 0
    assert len(list(Path("runs").glob("*/report.html"))) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("who", [["server"], ["0", "1"]], ids=["server", "workers"])
def test_whoever_is_lost_there_is_a_command_to_resume_with(who: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workers", "2", "--checkpoint-every-s", "0.1", "--pace", "0.02", "--durability", "none"]
    options += [word for one in who for word in ("--kill", f"{one}:0.8")]
    assert main(["run", script(), *options]) == 1
    (folder,) = Path("runs").iterdir()
    told = capsys.readouterr()
    assert told.out.endswith(f"go on with: plesio run script.py {' '.join(options)} --resume {folder}\n")
    assert f"; go on from the last checkpoint with resume={str(folder)!r}" in told.err


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "words"),
    [pytest.param(signal.SIGINT, "interrupted", marks=pytest.mark.slow), (signal.SIGTERM, "ended by SIGTERM")],
)
def test_a_signal_to_run_leaves_a_folder_and_says_how_to_resume(number: int, words: str) -> None:
    """Schedulers send SIGTERM to all processes of a run; Ctrl-C reaches the launcher alone."""
    command = [*PYTHON, "-c", "from plesio.cli import app; app()", "run", script(), "--workers", "2"]
    command += ["--checkpoint-every-s", "60", "--runs", "here"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        while "begun" not in program.stdout.readline():
            assert program.poll() is None
        for pid in processes.descendants(behind(program.pid)) if number == signal.SIGTERM else ():
            os.kill(pid, number)
        program.send_signal(number)
        out, error = program.communicate(timeout=10)
    assert program.returncode == 128 + number
    assert error == f"plesio: {words}\n"
    (folder,) = Path("here").iterdir()
    assert "async_sgd: interrupted · " in out
    *_, written, hint = out.splitlines()
    assert written == f"written to {folder}"
    same = "--workers 2 --checkpoint-every-s 60 --runs here"
    assert hint == f"go on with: plesio run script.py {same} --resume {folder}"
    written = {one.name for one in folder.iterdir()}
    assert {"summary.json", "report.html", "weights.safetensors", "checkpoints"} <= written
    assert {one["left"] for one in json.loads((folder / "summary.json").read_text())["workers"]} <= {
        "finished",
        "left as told",
    }


@pytest.mark.thorough
def test_a_closed_terminal_leaves_the_run_folder_complete() -> None:
    """The kernel sends SIGHUP, and printing fails from then on."""
    command = [sys.executable, "-c", "from plesio.cli import app; app()", "run", script(), "--workers", "1"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [*command, "--runs", "here"])
    seen, training = b"", 0
    while b"begun" not in seen or training < 10_000:
        seen += os.read(terminal, 4096)
        training = sum(one.stat().st_size for one in Path("here").glob("*/journal.bin"))
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 128 + signal.SIGHUP
    (folder,) = Path("here").iterdir()
    assert {"summary.json", "report.html", "weights.safetensors"} <= {one.name for one in folder.iterdir()}


# compare


@pytest.mark.thorough
def test_json_names_the_target_metric() -> None:
    options = ["--workers", "1", "--until", "error=0.0001", "--budget-s", "2", "--json", "table.json"]
    assert main(["compare", script(metric="error"), "--strategies", "sync_sgd", *options]) == 0
    (row,) = json.loads(Path("table.json").read_text())["rows"]
    assert row.keys() == KEYS | {"error"}
    assert row["error"] > 0
    assert row["accuracy"] is None


@pytest.mark.thorough
def test_compare_shows_each_strategy_and_writes_json_and_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workers", "2", "--slow", "0:4", "--pace", "0.01", "--until", "accuracy=0.9", "--budget-s", "15"]
    files = ["--json", "out/table.json", "--report", "out/report.html"]
    lines = said(capsys, "compare", script(), "--strategies", "sync_sgd,async_sgd", *options, *files).splitlines()
    assert lines[0].startswith("script.py: 2 workers, worker 0 slowed down 4 times, at least 10 ms a step")
    assert lines[1].startswith("sync_sgd   accuracy 0.9 in ")
    assert lines[2].startswith("async_sgd  accuracy 0.9 in ")
    assert any("reached accuracy 0.9 in" in line for line in lines[3:])
    assert any(
        re.fullmatch(r"Times are of training alone\. .* each run took [0-9. to]+ s to start\.", line) for line in lines
    )
    assert not any("\x1b" in line for line in lines)

    document = json.loads(Path("out/table.json").read_text())
    assert document.keys() == {"target", "workers", "rows", "repeats"}
    assert [len(runs) for runs in document["repeats"]] == [1, 1]
    assert document["target"] == {"accuracy": 0.9}
    assert document["workers"] == 2
    assert [row["strategy"] for row in document["rows"]] == ["sync_sgd", "async_sgd"]
    for row in document["rows"]:
        assert row.keys() == KEYS
        assert row["accuracy"] >= 0.85
        assert 0 < row["time_to_target_s"] < 15
        assert row["folded"] > 0
        assert row["samples"] > 0
        assert row["bytes"] > 0
    assert "async_sgd" in Path("out/report.html").read_text()


@pytest.mark.thorough
def test_compare_repeats_each_strategy_with_other_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--workers", "1", "--until", "steps=20", "--strategies", "sync_sgd,async_sgd", "--repeats", "3"]
    out = said(capsys, "compare", script(), *options, "--json", "table.json")
    assert "(the median of 3 runs)" in out
    repeats = json.loads(Path("table.json").read_text())["repeats"]
    assert [[run["strategy"] for run in runs] for runs in repeats] == [["sync_sgd"] * 3, ["async_sgd"] * 3]


@pytest.mark.few(1)
@pytest.mark.parametrize("full", ["--report", "--json"])
def test_compare_with_an_unwritable_file_still_writes_the_other(full: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = {"--json": "table.json", "--report": "report.html", full: "/dev/full"}
    options = ["--workers", "1", "--until", "steps=20", *(part for file in files.items() for part in file)]
    assert main(["compare", script(), "--strategies", "sync_sgd", *options]) == 1
    said = capsys.readouterr()
    assert said.err == "plesio: /dev/full cannot be written: No space left on device\n"
    assert re.search(r"^sync_sgd made [\d,.]+ steps a second", said.out, re.MULTILINE)
    assert ("Report: " in said.out) == (full != "--report")
    if full == "--report":
        assert json.loads(Path("table.json").read_text())["rows"][0]["folded"] >= 20
    else:
        assert "sync_sgd" in Path("report.html").read_text()


@pytest.mark.thorough
def test_compare_goes_on_after_a_strategy_that_fails(capsys: pytest.CaptureFixture[str]) -> None:
    fails_first = "if not (mark := Path('mark')).exists(): mark.touch(); raise ValueError('only once')"
    options = ["--workers", "1", "--until", "steps=20", "--json", "table.json"]
    out = said(capsys, "compare", script(first=fails_first), "--strategies", "sync_sgd,hogwild", *options, code=1)
    assert "sync_sgd failed: worker 0 raised ValueError: only once" in out
    failed, good = json.loads(Path("table.json").read_text())["rows"]
    assert failed.keys() == KEYS
    assert {key for key in KEYS if failed[key] is not None} == {"strategy"}
    assert good["time_to_target_s"] is None
    assert good["folded"] >= 20


@pytest.mark.thorough
def test_compare_where_all_fail_shows_why(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--strategies", "sync_sgd,hogwild", "--workers", "1"]
    out = said(capsys, "compare", script(first="raise ValueError('no disk')"), *options, code=1)
    assert "Traceback" in out
    assert out.count("failed: worker 0 raised ValueError: no disk") == 4


@pytest.mark.thorough
def test_a_target_metric_that_disappears_fails_that_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    count = "Path('begun').open('a').write('x')"
    path = script(first=count, metric='accuracy" if Path("begun").read_text() == "x" else "error')
    options = ["--strategies", "async_sgd,buffered", "--workers", "1", "--until", "accuracy=2", "--until", "steps=20"]
    out = said(capsys, "compare", path, *options, code=1)
    assert "No run reached accuracy 2 " in out
    assert "buffered(k=2) failed: until accuracy=2: unknown metric 'accuracy'; known: error" in out


# What cannot be


REFUSED = [
    ("run nowhere.py", "there is no file nowhere.py"),
    ("run script.py --strategy asynch_sgd", "did you mean 'async_sgd'?"),
    ("run script.py --strategy asinc", "did you mean 'async_sgd'?"),
    ("run script.py --strategy ddp", "unknown strategy 'ddp'; plesio calls it allreduce"),
    ("run script.py --strategy hogwild!", "unknown strategy 'hogwild!'; plesio calls it hogwild"),
    ("simulate script.py --cluster uniform --strategy ssp(s=2)", "plesio calls it bounded_staleness"),
    ("compare script.py --strategies sync_sgd,asgd", "unknown strategy 'asgd'; plesio calls it async_sgd"),
    ("serve --strategy fsdp", "plesio does not shard a model, each worker holds all of it; for a model that fits on one"),
    ("run script.py --strategy local_sgd(evry=3)", "unknown setting of local_sgd 'evry'; known: codec, combine, every"),
    ("run script.py --strategy buffered(j=3)", "known: codec, correct, k, lr_scale, rows, weigh"),
    ("run script.py --strategy buffered(k=__import__('os'))", "whole number"),
    ("run script.py --strategy buffered(k=", "NAME(key=value"),
    ("run script.py --strategy buffered(1,2,3,4,5,6,7,8)", "write key=value"),
    ("run script.py --strategy local_sgd(every=often)", "every=0.3s"),
    ("run script.py --strategy local_sgd(every=0.3)", "every=0.3s"),
    ("run script.py --strategy sink_sgd", "; known: "),
    ("run script.py --function fit", "defines no function fit(worker); the functions it has: build, train, evaluate"),
    ("run script.py --set every=3", "unknown setting of async_sgd 'every'; known: ahead, codec, correct, lr_scale, weigh"),
    ("run script.py --strategy first_of --set m=9", "the first 9 of 4 workers will never come"),
    ("run script.py --workers many", "--workers"),
    ("run script.py --workers 500", "plesio: workers=500: a whole number from 1 to 80"),
    ("run script.py --seed -1", "plesio: seed=-1: a whole number from 0 to "),
    ("run script.py --timeout-s 0", "plesio: timeout_s=0.0: a number of seconds above 0"),
    ("run script.py --evaluate-every-s nan", "plesio: evaluate_every_s=nan: a number of seconds above 0"),
    ("run script.py --slow fast", "write it like 0:10"),
    ("run script.py --slow 9:2", "plesio: --slow 9:2: there is no worker '9'; there are workers 0 to 3"),
    ("run script.py --slow 0:0.5", "plesio: Slow(factor=0.5): factor must be at least 1 (10: ten times slower)"),
    ("run script.py --kill 1", "write it like 1:2.5"),
    ("run script.py --kill 0:-1", "plesio: Kill(after_s=-1.0): after_s must be a number of seconds of at least 0"),
    ("run script.py --pace -1", "plesio: Pace(step_s=-1.0): step_s must be a number of seconds of at least 0"),
    ("run script.py --pace 0.1 --jitter 3", "plesio: Pace(jitter=3.0): jitter must be a number of at least 0 and below 1"),
    ("run script.py --jitter 0.1", "give --pace too"),
    ("run script.py --checkpoint-every-s 0", "plesio: Checkpoint(every_s=0.0): every_s must be a number of seconds above 0"),
    ("run script.py --resume nowhere", "plesio: resume='nowhere': there is no such folder; give the folder of a run"),
    ("run script.py --runs /dev/null/runs", "plesio: runs='/dev/null/runs' cannot be written: "),
    ("run script.py --until accuracy", "write it like accuracy=0.95"),
    ("run script.py --until seconds=5", "--budget-s 5"),
    ("run script.py --until steps=1.5", "plesio: Until(steps=1.5): steps must be a whole number of at least 1"),
    ("run script.py --until samples=0", "plesio: Until(samples=0): samples must be a whole number of at least 1"),
    ("run script.py --until accuracy=nan", "plesio: Until(accuracy=nan): accuracy must be a finite number"),
    ("run script.py --budget-s 0", "a number of seconds above 0"),
    ("run missing.py --data shard", "plesio: unknown data 'shard'; known: leases, new, shards; did you mean 'shards'?"),
    ("compare missing.py --on-worker-error shard", "plesio: unknown on_worker_error 'shard'; known: continue, raise"),
    ("run missing.py --on-nonfinite card", "plesio: unknown on_nonfinite 'card'; known: discard, raise; did you mean 'discard'?"),
    ("run script.py --fast", "No such option: --fast"),
    ("run", "Missing argument 'SCRIPT'"),
    ("run .", ". is a folder; give a Python script that defines train(worker)"),
    ("train script.py", "No such command 'train'; see plesio --help"),
    ("join", "plesio join HOST:PORT SCRIPT, or --server"),
    ("join 127.0.0.1:7070", "plesio join HOST:PORT SCRIPT, or --server"),
    ("join 127.0.0.1:7070 script.py --server", "takes no script, and there is script.py"),
    ("join 127.0.0.1:7070 nowhere.py", "there is no file nowhere.py"),
    ("join nowhere.py", "there is no file nowhere.py"),
    ("compare script.py --strategies=", "no strategy is named; known: "),
    ("compare script.py --strategies ,", "no strategy is named"),
    ("compare script.py --strategies sync_sgd,slow_sgd", "unknown strategy 'slow_sgd'; known: "),
    ("compare script.py --report /proc/report.html", "/proc/report.html cannot be written"),
    ("compare script.py --repeats 0", "--repeats"),
    ("compare script.py --workers 1 --until error=0.9", "until error=0.9: unknown metric 'error'; known: accuracy"),
    ("compare script.py --cluster uniform --slow 0:10", "--slow is for real processes"),
    ("compare script.py --cluster uniform --kill 0:1", "--kill is for real processes"),
    ("compare script.py --cluster uniform --pace 0.1", "--pace is for real processes"),
    ("compare script.py --cluster nowhere", "a file nowhere was looked for"),
    ("simulate script.py", "Missing option '--cluster'"),
    ("simulate script.py --cluster one-stragler", "known: cross-region, heavy-tail, one-straggler, spot-market"),
    ("simulate script.py --cluster one-stragler", "a file one-stragler was looked for, too: there is none"),
    ("simulate script.py --cluster script.py", "cluster file script.py: "),
    ("simulate script.py --cluster cluster.toml --workers 9", "a whole number from 1 to 8, the cluster's"),
    ("simulate script.py --cluster uniform --workers 0", "workers=0: a whole number of at least 1"),
    ("simulate script.py --cluster uniform --slow 0:10", "No such option: --slow"),
]  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize(("typed", "part"), REFUSED)
def test_what_is_typed_wrong_is_refused_in_one_line(typed: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    script()
    shutil.copy(Path(__file__).parents[2] / "examples" / "cluster.toml", "cluster.toml")
    error = said(capsys, *typed.split(), code=2)
    assert error.startswith("plesio: ")
    assert part in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "options", "part"),
    [
        ("def main(): pass\ndef helper(): pass", "", "no function train(worker); the functions it has: main, helper"),
        (
            "def main(worker): pass",
            "",
            "no function train(worker); the functions it has: main; --function main takes main(worker) instead\n",
        ),
        (
            "def train(args, model: int, epoch=3): pass",
            "",
            "plesio: train(args, model, epoch=3) in script.py cannot be the training function: plesio calls it with one "
            "argument, the worker; write train(worker), and make inside what else it needs, or give that by "
            "functools.partial; --function NAME takes another instead",
        ),
        ("x = 1", "", "the functions it has: none"),
        ("import no_such_module", "", "ModuleNotFoundError: No module named 'no_such_module' (line 1)"),
        ("def train(:", "", "SyntaxError"),
        ("raise SystemExit('needs the data set D')", "", "script.py: needs the data set D"),
        ("raise SystemExit", "", "script.py: it exited with 0 while it was loaded"),
        ("def train(worker): pass", "--until accuracy=1", "needs a function evaluate(model) in script.py"),
        ("def train(worker): pass\nevaluate = 3", "", "evaluate in script.py is 3"),
        (
            "import plesio as ps\ndef train(worker): pass\nps.run(train, 'async_sgd', workers=1)",
            "",
            "script.py: it calls ps.run while it is loaded; put ps.run under if __name__ == '__main__'\n",
        ),
    ],
)
def test_an_incomplete_script_is_refused(
    content: str, options: str, part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("script.py").write_text(content)
    error = said(capsys, "run", "script.py", *options.split(), code=2)
    assert error.startswith("plesio: ")
    assert part in error
    assert error.count("\n") == 1


@pytest.mark.thorough
def test_ctrl_c_ends_compare_and_all_its_processes() -> None:
    command = [*PYTHON, "-c", "from plesio.cli import app; app()", "compare", script(), "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        while "begun" not in program.stdout.readline():
            assert program.poll() is None
        started = processes.descendants(behind(program.pid))
        program.send_signal(signal.SIGINT)
        _, error = program.communicate(timeout=10)
    assert program.returncode == 130
    assert error.endswith("plesio: interrupted\n")
    assert "Traceback" not in error
    assert len(started) >= 4
    assert processes.gone_within(started, 2.0)


# What it looks like


def board(width: int) -> str:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=width)
    names = ["sync_sgd", "local_sgd(every 0.3 s)"]
    with StrategyLines(console, names, Until(accuracy=0.9, seconds=30)) as shown:
        shown.watch(0)(_live())
        shown.watch(0)
        shown.failed(1, "worker 0 raised ValueError: " + "far too long " * 20)
    return file.getvalue()


def _live() -> Any:
    from plesio.launch.job import Live
    from plesio.protocol.launcher import Progress

    live = Live(metrics={"accuracy": 0.875})
    live.stands(Progress(wall_s=3.0, version=5, steps=1234, samples=9))
    return live


def test_the_progress_board_is_cut_to_the_terminals_width() -> None:
    drawn = board(70)
    assert "local_sgd(every 0.3 s)" in drawn
    assert "failed: worker 0 raised" in drawn
    assert "…" in drawn
    assert "far too long far too long far" not in drawn


@pytest.mark.parametrize("width", [100, 140])
def test_the_compare_table_fits_the_width(width: int) -> None:
    rows = [FailedRun("local_sgd(every 0.3 s)", "why"), FailedRun("bounded_staleness(4)", "why")]
    table = render(compare_table(rows, ("accuracy", 0.95), "accuracy", width=width), width=width)
    assert all(f"{row.strategy} " in table for row in rows)
    assert max(map(len, table.splitlines())) <= width
