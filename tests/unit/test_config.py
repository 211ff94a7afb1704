"""One `RunConfig`: `ps.run`, the command line and run.toml are three views of it."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tomli_w

import plesio as ps
from plesio.cli.compare import compare
from plesio.cli.options import key_of, options_of
from plesio.cli.run import run
from plesio.cli.simulate import simulate
from plesio.config import SETTINGS, RunConfig
from plesio.config.until import Until
from plesio.errors import ConfigurationError
from plesio.launch.start import start
from support.loops import endless

NO_SETTINGS = {"train", "evaluate", "model", "on_round", "watch", "sinks", "progress"}
FIELDS = {field.name: field for field in dataclasses.fields(RunConfig)}
KEYWORDS = {name: one for name, one in inspect.signature(ps.run).parameters.items() if name not in NO_SETTINGS}
DOCUMENTED = dict(
    re.findall(r"^    (\w+): (.*?)(?=^    \w|\Z)", (inspect.getdoc(ps.run) or "").split("Returns:")[0], re.DOTALL | re.MULTILINE)
)  # fmt: skip
PLAIN = [name for name, setting in SETTINGS.items() if not setting.options]


def plainly(text: str) -> str:
    """Without line breaks, and whatever it begins and ends with."""
    return " ".join(text.split()).lower().rstrip(".")


# Three views


def test_run_takes_every_setting_in_the_same_order_with_the_same_default() -> None:
    assert list(KEYWORDS) == list(FIELDS)
    for name, keyword in KEYWORDS.items():
        default = dataclasses.MISSING if keyword.default is inspect.Parameter.empty else keyword.default
        assert default == FIELDS[name].default, name


@pytest.mark.parametrize("name", SETTINGS)
def test_run_documents_every_setting(name: str) -> None:
    assert DOCUMENTED[name].strip()


@pytest.mark.parametrize("name", PLAIN)
def test_python_and_the_command_line_give_the_same_help(name: str) -> None:
    """Simulated machines and `compare` have their own words for the number of workers."""
    assert plainly(DOCUMENTED[name]) == plainly(SETTINGS[name].help)
    assert shown(run, name)[0].help == SETTINGS[name].help


def shown(command: Any, name: str) -> list[Any]:
    """What Typer is told of a setting's options."""
    parameters = inspect.signature(command).parameters
    return [parameters[key_of(one)].annotation.__metadata__[0] for one in options_of(name) if key_of(one) in parameters]


@pytest.mark.parametrize(
    ("command", "lacks"),
    [
        (run, {"engine", "workers_max"}),
        (simulate, {"workers_max", "ranks", "faults", "pace", "threads", "readers"}),
        (compare, {"strategy", "workers_max", "checkpoint", "resume"}),
    ],
)
def test_every_setting_is_an_option(command: Any, lacks: set[str]) -> None:
    assert {name for name in SETTINGS if not shown(command, name)} == lacks


@pytest.mark.parametrize("name", PLAIN)
def test_the_command_lines_default_is_pythons_unless_the_setting_says_otherwise(name: str) -> None:
    wanted = SETTINGS[name].typed_default
    assert inspect.signature(run).parameters[name].default == (FIELDS[name].default if wanted is None else wanted)


# run.toml

CHOSEN: dict[str, Any] = {
    "workers_max": 6,
    "ranks": 1,
    "engine": "local",
    "seed": 7,
    "data": "shards",
    "faults": [ps.Slow(worker=0, factor=10), ps.Kill(worker=1, after_s=2.5), ps.Kill(after_s=9)],
    "pace": ps.Pace(step_s=0.02, jitter=0.1),
    "evaluate_every": ps.Rounds(5),
    "until": ps.Until(accuracy=0.95, steps=1000, seconds=30),
    "on_worker_error": "continue",
    "on_nonfinite": "raise",
    "timeout_s": 60.0,
    "leave_s": 20.0,
    "threads": 2,
    "readers": "127.0.0.1:7171",
    "servers": 1,
    "durability": "none",
    "standby": 1,
    "acknowledge": "standby",
    "checkpoint": ps.Checkpoint(every_s=30, keep=3),
    "resume": "runs/a",
    "runs": "runs",
}


DEFAULTS = {
    "ranks": 1,
    "engine": "local",
    "data": "leases",
    "faults": [],
    "on_worker_error": "raise",
    "on_nonfinite": "discard",
    "timeout_s": 300.0,
    "leave_s": 30.0,
    "servers": 1,
    "durability": "auto",
    "standby": 0,
    "acknowledge": "head",
}


def written(config: RunConfig) -> dict[str, Any]:
    return tomllib.loads(tomli_w.dumps(config.as_document()))


def test_first_of_by_name_takes_its_default_from_the_workers() -> None:
    assert [RunConfig(strategy="first_of", workers=n).strategy.name for n in (2, 4)] == ["first_of(1)", "first_of(3)"]


def test_run_toml_holds_every_setting() -> None:
    assert CHOSEN.keys() | {"strategy", "workers", "evaluate_every_s"} == FIELDS.keys()
    strategy = ps.local_sgd(every=ps.Seconds(0.3))
    document = written(RunConfig(strategy=strategy, workers=4, **CHOSEN))
    slow, kill = {"kind": "Slow", "worker": 0, "factor": 10}, {"kind": "Kill", "worker": 1, "after_s": 2.5}
    assert document["run"] == {
        **CHOSEN,
        "workers": 4,
        "faults": [slow, kill, {"kind": "Kill", "after_s": 9}],
        "pace": {"step_s": 0.02, "jitter": 0.1},
        "evaluate_every": {"rounds": 5},
        "until": {"accuracy": 0.95, "steps": 1000, "seconds": 30},
        "checkpoint": {"every_s": 30, "keep": 3},
    }
    assert ps.Strategy.from_data(document["strategy"]["name"], document["strategy"]["fields"]) == strategy


@pytest.mark.parametrize("cluster", ["one-straggler", ps.Cluster.preset("cross-region", 3)])
def test_run_toml_holds_simulated_machines(cluster: Any) -> None:
    engine = ps.Simulated(cluster)
    document = written(RunConfig(strategy="async_sgd", workers=3, engine=engine))
    assert msgspec.convert(document["run"]["engine"], ps.Simulated) == engine


def test_run_toml_of_a_run_is_as_documented(tmp_path: Path) -> None:
    done = ps.run(endless, "sync_sgd", workers=2, until=ps.Until(steps=4), pace=0.001, runs=tmp_path)
    document = tomllib.loads((done.folder / "run.toml").read_text())
    assert document["strategy"]["name"] == "sync_sgd"
    asked = {"workers": 2, "until": {"steps": 4}, "pace": {"step_s": 0.001, "jitter": 0.0}, "runs": str(tmp_path)}
    origin = {"train": "endless of loops.py", "plesio": ps.__version__}
    assert document["run"] == {**DEFAULTS, **asked, **origin}


# What it refuses


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"pace": 0.1}, r"is for real processes; under Simulated"),
        ({"faults": [ps.Slow(worker=0, factor=2)]}, r"is for real processes; under Simulated"),
        ({"threads": 2}, r"threads=2 is for processes of this host; a simulated run has one"),
        ({"workers": 60_001}, r"workers=60001: a whole number from 1 to 60000"),
    ],
)
def test_options_for_real_processes_are_refused_in_simulations(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        RunConfig(**{"strategy": "async_sgd", "workers": 2, "engine": ps.Simulated("uniform"), **setting})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"engine": ps.Simulated("uniform")}, "standbys follow the head of a run whose workers join it"),
        ({"strategy": "allreduce"}, "under allreduce workers fold, and no server has all; take sync_sgd or async_sgd"),
        ({"strategy": "hogwild"}, "under hogwild workers fold, and no server has all"),
        ({"strategy": "fedavg"}, "what clients keep does not travel to a standby"),
        (
            {"strategy": ps.phases(ps.sync_sgd(), (5, ps.async_sgd()))},
            "another phase goes on from that; take one strategy",
        ),
        ({"ranks": 2}, "a worker of several processes does not come back to a standby"),
        ({"servers": 2}, "what table servers hold does not travel to a standby"),
        ({"durability": "process"}, "goes on here when the server dies, and standby= elsewhere: choose one"),
        ({"standby": 8}, "a whole number from 0 to 7"),
        ({"standby": 0, "acknowledge": "standby"}, "acknowledge='standby': nobody stands by; give standby=1"),
        ({"acknowledge": "nobody"}, "unknown acknowledge 'nobody'; known: head, standby"),
    ],
)
def test_a_standby_is_refused_where_it_could_not_go_on(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        RunConfig(**{"strategy": "async_sgd", "workers": 2, "standby": 1, **settings})


def test_functions_and_workers_that_would_die_with_the_head_are_refused_with_a_standby() -> None:
    config = RunConfig(strategy="async_sgd", workers=1, standby=1)
    with pytest.raises(ConfigurationError, match="a standby has no script, so nobody would call evaluate or on_round"):
        start(config, endless, evaluate=lambda model: {"loss": 0.0})
    with pytest.raises(ConfigurationError, match=r"the workers of ps\.run are processes of this host, and die with it"):
        start(config, endless)


@pytest.mark.parametrize(
    "goals", [{"steps": 1.5}, {"samples": 0}, {"steps": True}, {"seconds": 0}, {"accuracy": "high"}]
)
def test_an_unreachable_goal_is_refused(goals: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Until\({next(iter(goals))}="):
        Until(**goals)


def test_settings_need_no_torch() -> None:
    made = "from plesio.config import RunConfig; RunConfig(strategy='async_sgd', workers=2)"
    code = f"import sys; {made}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# The folder for runs


def test_a_file_or_a_dangling_link_for_runs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for runs in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(ConfigurationError, match=rf"File exists: '{runs}'; give another folder"):
            ps.run(print, "async_sgd", workers=1, runs=runs)


def test_a_full_disk_leaves_no_empty_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, *_: Any, **__: Any) -> int:
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ConfigurationError, match="No space left on device; give another folder"):
        ps.run(print, "async_sgd", workers=1, runs=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_settings_as_a_document() -> None:
    document = RunConfig(strategy="sync_sgd", workers=4, until=Until(accuracy=0.9)).as_document()
    assert document["run"]["until"] == {"accuracy": 0.9}
