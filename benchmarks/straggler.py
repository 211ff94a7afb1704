"""What a straggler costs: 4 workers, 20 ms a step, one of them at 200 ms, on scikit-learn's digits.

    python benchmarks/straggler.py --json FILE [--quick]

Every strategy trains until 95% test accuracy and goes on to the end of its time, so that throughput is taken over the same
span for all. The ideal is the sum of the workers' own speeds, had nobody ever waited. The last row starts the command line
afresh and takes the time from there to the first step of the last of the 4 workers.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import plesio as ps
from _report import Row, interleave, parser, report, row

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import digits  # noqa: E402 - found by the line above

WORKERS, SLOW, STEP_S = 4, 10.0, 0.02
TARGET = 0.95
ASYNCHRONOUS = ("async_sgd", "async_sgd plain", "buffered", "hogwild")
STRATEGIES: dict[str, Callable[[], ps.Strategy]] = {
    "sync_sgd": ps.sync_sgd,
    "allreduce": ps.allreduce,
    "first_of(3)": functools.partial(ps.first_of, 3),
    "bounded_staleness(4)": ps.bounded_staleness,
    "async_sgd": ps.async_sgd,
    "async_sgd plain": functools.partial(ps.async_sgd, "plain"),
    "buffered": ps.buffered,
    "hogwild": ps.hogwild,
    "local_sgd 0.3 s": functools.partial(ps.local_sgd, ps.Seconds(0.3)),
    "local_sgd 16 steps": functools.partial(ps.local_sgd, 16),
}
FASTER = {"local_sgd 0.3 s": ">= 4", "async_sgd": ">= 5.5", "hogwild": ">= 5.5", "buffered": ">= 5.5"}
START_S = "< 5"


def one_run(name: str, seed: int, seconds: float) -> ps.Run:
    """One training run under the strategy called `name`, for `seconds` or until the target, if that takes longer."""
    return ps.run(
        digits.train,
        STRATEGIES[name](),
        workers=WORKERS,
        seed=seed,
        faults=[ps.Slow(worker=0, factor=SLOW)],
        pace=ps.Pace(step_s=STEP_S),
        evaluate=digits.evaluate,
        evaluate_every_s=0.05,
        until=ps.Until(accuracy=TARGET, seconds=60.0) if seconds == 0 else ps.Until(seconds=seconds),
    )


def to_target(name: str, seeds: list[int]) -> float:
    """Seconds until the target; 60, the budget, where it was not reached."""
    return one_run(name, seeds.pop(0), 0.0).time_to("accuracy", TARGET) or 60.0


def share(name: str, seconds: float) -> float:
    """Share of the ideal throughput over `seconds`."""
    return float(one_run(name, 0, seconds).ideal_share)


def first_step_s() -> float:
    """From the command to the first step of the last of 4 workers, everything imported anew."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "first_step.py")
        script.write_text(FIRST_STEP.format(stamp=folder))
        started = time.time()
        command = [str(Path(sys.executable).with_name("plesio")), "run", str(script), "--strategy", "async_sgd"]
        subprocess.run([*command, "--workers", "4", "--runs", folder], check=True, capture_output=True, timeout=120)
        return max(float(file.read_text()) for file in Path(folder).glob("*.stamp")) - started


FIRST_STEP = """
import time
from pathlib import Path
import torch

def train(worker):
    model = torch.nn.Linear(64, 10)
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    Path({stamp!r}, f"{{worker.rank}}.stamp").write_text(str(time.time()))
"""


def rows(arguments: argparse.Namespace) -> list[Row]:
    """All rows; strategies are run in turn, run by run."""
    names = ["sync_sgd", "async_sgd", "local_sgd 0.3 s"] if arguments.quick else list(STRATEGIES)
    seconds = 2.0 if arguments.quick else 6.0
    seeds = {name: list(range(arguments.runs)) for name in names}
    times = interleave({name: functools.partial(to_target, name, seeds[name]) for name in names}, arguments.runs)
    shares = interleave({name: functools.partial(share, name, seconds) for name in names}, arguments.runs)
    found = []
    for name in names:
        target = ">= 0.95" if name in ASYNCHRONOUS else None
        found.append(row(f"{name}: share of ideal throughput", shares[name], "share", target=target))
    for name in names:
        if name != "sync_sgd":
            found.append(sooner(name, times[name], times["sync_sgd"]))
    start = interleave({"start": first_step_s}, arguments.runs)["start"]
    found.append(row("command to first step of 4 workers", start, "s", target=START_S))
    return found


def sooner(name: str, ours: list[float], sync: list[float]) -> Row:
    """How many times sooner than `sync_sgd` the target was reached: medians, because each seed has its own path."""
    mine, other = statistics.median(ours), statistics.median(sync)
    ratio, target = other / mine, FASTER.get(name)
    met = None if target is None else ratio >= float(target.split()[1])
    return Row(
        f"{name}: time to {TARGET:.0%} test accuracy", mine, "s", "sync_sgd", other, ratio, target, met, len(ours)
    )


if __name__ == "__main__":
    given = parser(__doc__ or "", runs=3).parse_args()
    report("straggler: 4 workers, 20 ms a step, one at 200 ms", rows(given), given.json)
