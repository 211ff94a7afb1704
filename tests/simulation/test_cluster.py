"""Cluster descriptions: draws by seed and worker alone, exact paces, files whose errors are located."""

from __future__ import annotations

import math
import statistics
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from plesio.cluster import (
    Cluster,
    Constant,
    Crash,
    Exponential,
    Group,
    Join,
    Leave,
    Link,
    LogNormal,
    Outage,
    Pareto,
    Partition,
    Ranked,
    Restart,
    Slow,
    StepTime,
    Trace,
    Walk,
)
from plesio.cluster.presets import PRESETS
from plesio.errors import ConfigurationError

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "cluster.toml"
RANDOM: tuple[StepTime, ...] = (
    LogNormal(0.1, 0.3),
    Exponential(0.1),
    Pareto(0.1, 1.5),
    Walk(0.1, 0.1),
    Trace(seconds=(0.1, 0.2, 0.3), resample=True),
)


def steps(cluster: Cluster, worker: int, seed: int, count: int = 50) -> list[float]:
    timetable = cluster.timetable(worker, seed)
    return [timetable.step_s(0.0) for _ in range(count)]


TWO = Cluster((Group(2, Constant(1.0)),))


def one(step: StepTime, *faults: Slow, outage: Outage | None = None) -> Cluster:
    return Cluster((Group(1, step, outage=outage),), faults=faults)


@pytest.mark.parametrize("step", RANDOM, ids=lambda step: type(step).__name__)
def test_draws_depend_on_seed_and_worker_only(step: StepTime) -> None:
    few, many = Cluster((Group(3, step),)), Cluster((Group(300, step),))
    assert (
        steps(few, 2, seed=5)
        == steps(many, 2, seed=5)
        == [many.timetables(5)[2].step_s(0.0) for _ in [0]] + steps(many, 2, seed=5)[1:]
    )
    assert steps(few, 2, seed=5) != steps(few, 1, seed=5)
    assert steps(few, 2, seed=5) != steps(few, 2, seed=6)


def test_random_step_laws_have_their_moments_and_bounds() -> None:
    def many(step: StepTime) -> list[float]:
        return steps(one(step), 0, seed=1, count=20_000)

    assert statistics.median(many(LogNormal(0.1, 0.5))) == pytest.approx(0.1, rel=0.03)
    exponential = many(Exponential(0.3, least_s=0.1))
    assert statistics.mean(exponential) == pytest.approx(0.3, rel=0.03)
    assert min(exponential) >= 0.1
    pareto = many(Pareto(0.1, 1.5))
    assert min(pareto) >= 0.1
    assert sum(step > 0.4 for step in pareto) / len(pareto) == pytest.approx(0.25**1.5, rel=0.1)
    walk = many(Walk(0.1, 0.2, spread=3.0))
    assert 0.1 / 3 < min(walk) < 0.04
    assert 0.27 < max(walk) < 0.3001


def test_deterministic_step_laws_are_exact() -> None:
    ranked = Cluster((Group(2, Ranked(0.5)), Group(2, Ranked(0.5, power=0.5))))
    assert [steps(ranked, worker, 0, 1)[0] for worker in range(4)] == [0.5, 1.0, 0.5 * math.sqrt(3), 1.0]
    assert steps(one(Trace(seconds=(1.0, 2.0))), 0, 0, 5) == [1.0, 2.0, 1.0, 2.0, 1.0]
    assert steps(one(Constant(0.25)), 0, 0, 2) == [0.25, 0.25]


def test_a_step_follows_slowdowns_within_it() -> None:
    """1 s of work, three times slower from 0.5 to 1.1: 0.5 s done before, 0.2 within, 0.3 after."""
    slowed = one(Constant(1.0), Slow(worker=0, factor=3.0, at_s=0.5, until_s=1.1)).timetable(0, 0)
    assert slowed.step_s(0.0) == pytest.approx(1.4)
    assert slowed.step_s(0.6) == pytest.approx(0.5 + 1.0 - 0.5 / 3)
    assert slowed.step_s(1.1) == 1.0
    twice = one(Constant(1.0), Slow(worker=0, factor=2.0), Slow(worker=0, factor=5.0, at_s=4.0)).timetable(0, 0)
    assert (twice.step_s(0.0), twice.step_s(10.0)) == (2.0, 10.0)


def test_no_work_is_done_during_an_outage() -> None:
    still = one(Constant(1.0), outage=Outage(every_s=10.0, lasts_s=2.0, start_s=3.0)).timetable(0, 0)
    assert still.step_s(0.0) == 1.0
    assert still.step_s(2.5) == pytest.approx(3.0)
    assert still.step_s(4.0) == pytest.approx(2.0)
    assert still.step_s(12.5) == pytest.approx(3.0)
    long = one(Constant(20.0), outage=Outage(every_s=10.0, lasts_s=2.0, start_s=0.0)).timetable(0, 0)
    assert long.step_s(0.0) == pytest.approx(26.0)
    own = Cluster((Group(20, Constant(1.0), outage=Outage(every_s=10.0, lasts_s=2.0)),))
    assert len({own.timetable(worker, 0).step_s(100.0) for worker in range(20)}) > 1


def test_outages_end_despite_rounding() -> None:
    """Steps that begin at the end of an outage far from zero go on."""
    still = one(Constant(0.001), outage=Outage(every_s=0.1, lasts_s=0.03, start_s=0.07)).timetable(0, 0)
    now_s = 1e6
    for _ in range(2000):
        now_s += still.step_s(now_s)
    assert now_s == pytest.approx(1e6 + 2.0 / 0.7, abs=0.1)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("workers", [1, 3, 8])
def test_every_preset_builds_a_valid_cluster(name: str, workers: int) -> None:
    cluster = Cluster.preset(name, workers=workers)
    assert cluster.workers == workers
    assert cluster == Cluster.preset(name, workers=workers)
    assert all(0 < step < math.inf for worker in range(workers) for step in steps(cluster, worker, 0, 5))


def test_first_keeps_groups_and_faults_of_the_first_workers() -> None:
    cluster = Cluster(
        (Group(2, Constant(1.0)), Group(3, Constant(2.0))), faults=(Crash(worker=4, at_s=1), Crash(worker=0, at_s=1))
    )
    few = cluster.first(3)
    assert few.groups == (Group(2, Constant(1.0)), Group(1, Constant(2.0)))
    assert few.faults == (Crash(worker=0, at_s=1),)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Constant(0.0), r"Constant\(step_s=0.0\): step_s must be a number above 0"),
        (lambda: Constant("1"), "step_s='1'"),
        (lambda: LogNormal(0.1, math.nan), "sigma=nan"),
        (lambda: Exponential(1.0, least_s=1.0), "least_s must be below mean_s"),
        (lambda: Walk(1.0, 0.1, spread=0.5), "spread"),
        (lambda: Link(bytes_per_s=0), "bytes_per_s=0"),
        (lambda: Link(latency_s=math.inf), "latency_s=inf"),
        (lambda: Outage(every_s=1.0, lasts_s=1.0), "lasts_s must be below every_s"),
        (lambda: Slow(worker=0, factor=0), "factor=0"),
        (lambda: Partition(worker=0, at_s=2, until_s=1), "until_s must be after at_s"),
        (lambda: Group(0, Constant(1.0)), "workers=0"),
        (lambda: Cluster(()), "at least one plesio.cluster.Group"),
        (lambda: one(Constant(1.0), Slow(worker=1, factor=2)), "workers 0 to 0"),
        (lambda: Trace(), "either seconds"),
        (lambda: Trace(seconds=(1.0, -1.0)), "measurement 2 is -1.0"),
        (lambda: Trace(file="/nowhere/steps.txt"), "No such file"),
        (lambda: TWO.first(3), "from 1 to 2"),
        (lambda: replace(TWO, faults=(Restart(worker=1, at_s=3.0),)), "worker 1 is still there then"),
        (lambda: replace(TWO, faults=(Crash(worker=1, at_s=5), Leave(worker=1, at_s=6))), "worker 1 is not there then"),
        (lambda: Cluster.preset("unifrom", 4), r"preset 'unifrom'; known: cross-region.*did you mean 'uniform'"),
        (lambda: Cluster.load("/nothing.toml"), r"nothing\.toml: No such file"),
    ],
)
def test_invalid_numbers_are_refused(make: object, says: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigurationError, match=says):
        make()


def test_who_joins_later_is_absent() -> None:
    faults = Leave(worker=0, at_s=9.0), Join(worker=0, at_s=4.0), Join(worker=0, at_s=10.0)
    assert replace(TWO, faults=faults).absent() == {0}


# Files


def load(folder: Path, text: str) -> Cluster:
    path = folder / "cluster.toml"
    path.write_text(text)
    return Cluster.load(path)


def test_the_example_file_loads() -> None:
    cluster = Cluster.load(EXAMPLE)
    assert cluster.workers == 8
    assert cluster.group_of[5].outage == Outage(every_s=60.0, lasts_s=2.0)
    assert cluster.absent() == {7}
    assert msgspec.convert(msgspec.to_builtins(cluster), Cluster) == cluster


def test_trace_files_are_found_beside_their_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "steps.txt").write_text("# measured\n0.1\n\n0.3\n")
    cluster = load(tmp_path, '[[groups]]\nworkers = 1\nstep = { law = "trace", file = "steps.txt" }\n')
    assert steps(cluster, 0, 0, 3) == [0.1, 0.3, 0.1]
    (tmp_path / "steps.txt").write_text("0.1\nquick\n")
    with pytest.raises(ConfigurationError, match=r"line 3.*steps.txt: could not convert .*'quick'"):
        load(tmp_path, '[[groups]]\nworkers = 1\nstep = { law = "trace", file = "steps.txt" }\n')


GOOD = '[[groups]]\nworkers = 2\nstep = { law = "constant", step_s = 1.0 }\n\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[groups]]\nworkers = \n", "at line 2"),
        (GOOD + "[server]\nlatency = 1.0\n", r"line 6: server.latency: .*unknown field `latency`"),
        (GOOD + "[[groups]]\nworkers = 1\nsteps = 3\n", r"line \d: groups\[1\]"),
        (
            GOOD + "[[groups]]\nworkers = 1\n\n[groups.step]\nlaw = 'pareto'\nshape = 2.0\n",
            "line .*missing required field `least_s`",
        ),
        (GOOD.replace("1.0", "'1'"), r"line 3: groups\[0\].step.step_s: Expected `float`, got `str`"),
        (GOOD.replace("1.0", "-1.0"), r"line 3: groups\[0\].step.step_s: .*above 0"),
        (
            GOOD.replace("constant", "normal"),
            r"line 3: groups\[0\].step.law: unknown law 'normal'; known: .*, lognormal, ",
        ),
        (
            GOOD + '[[faults]]\nkind = "crash"\nworker = 7\nat_s = 1.0\n',
            r"line 5: faults\[0\]: .*there are workers 0 to 1",
        ),
        (GOOD + '[[faults]]\nkind = "crash"\nworker = 0\nat_s = 1.0\nuntil = 2\n', r"line 9: faults\[0\].until"),
        ("", "missing required field `groups`"),
    ],
)
def test_errors_in_a_cluster_file_name_their_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        load(tmp_path, text)
