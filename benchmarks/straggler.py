"""What a straggler costs: 4 workers, 20 ms a step, one of them at 200 ms, on scikit-learn's digits.

    python benchmarks/straggler.py --json FILE [--quick]

Every strategy trains until 95% test accuracy and goes on to the end of its time, so that throughput is taken over the same
span for all. The ideal is the sum of the workers' nominal speeds (50 and 5 steps/s). Further rows have 1 to 32 equal workers,
beside the least that a machine can do: the same loop, whose processes meet by one byte each way, or do not meet at all. The last
rows start the command line afresh and take the time from there to the first step of the last of the 4 workers, beside that of
`import torch` alone and of a plain loop's first step.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import plesio as ps
from _report import Row, interleave, meets, parser, report, row

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
EQUAL = (1, 4, 8, 16, 32)
BESIDE = {"sync_sgd": "barrier", "allreduce": "barrier", "async_sgd": "loop alone"}
SCALED = ">= 0.85"  # of 32 workers in rounds
FASTER = {"local_sgd 0.3 s": ">= 4", "async_sgd": ">= 5.5", "hogwild": ">= 5.5", "buffered": ">= 5.5"}
START_S = "< 1.2"
"""Beyond `import torch`."""


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


def equal_share(name: str, workers: int, seconds: float) -> float:
    """Share of the nominal speed of so many equal workers."""
    run = ps.run(
        digits.train, STRATEGIES[name](), workers=workers, pace=ps.Pace(step_s=STEP_S), until=ps.Until(seconds=seconds)
    )
    return float(run.ideal_share)


def bare_share(meets: bool, workers: int, seconds: float) -> float:
    """The same of plain loops that exchange nothing; where one `meets` the others, a byte each way."""
    steps, fork = round(seconds / STEP_S / 2), multiprocessing.get_context("fork")
    rates, (there, here), answers = fork.Queue(), os.pipe(), [os.pipe() for _ in range(workers)]
    lines = [(here, answer) if meets else None for answer, _ in answers]
    processes = [fork.Process(target=_bare_loop, args=(line, steps, rates)) for line in lines]
    for process in processes:
        process.start()
    for _ in range(steps if meets else 0):
        came = 0
        while came < workers:
            came += len(os.read(there, workers - came))
        for _, answer in answers:
            os.write(answer, b"!")
    found = sum(rates.get(timeout=60.0) for _ in processes)
    for process in processes:
        process.join(10.0)
    for end in (there, here, *(end for pair in answers for end in pair)):
        os.close(end)
    return found * STEP_S / workers


def _bare_loop(line: tuple[int, int] | None, steps: int, rates: multiprocessing.Queue[float]) -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=digits.LEARNING_RATE, momentum=0.9)
    batches = (batch for _ in count() for batch in DataLoader(digits.TRAIN, batch_size=digits.BATCH, shuffle=True))
    warm, overslept_s = steps // 10, 0.0
    began_s = time.monotonic()
    for step in range(steps):
        if step == warm:
            began_s = time.monotonic()
        step_s = time.monotonic()
        images, labels = next(batches)
        optimizer.zero_grad()
        cross_entropy(model(images), labels).backward()
        time.sleep(max(0.0, STEP_S - (time.monotonic() - step_s) - overslept_s))
        overslept_s += time.monotonic() - step_s - STEP_S
        if line is None:
            optimizer.step()
        else:
            os.write(line[0], b"!")
            os.read(line[1], 1)
    rates.put((steps - warm) / (time.monotonic() - began_s))


def imports_s() -> float:
    """How long a fresh Python takes to import torch."""
    return _takes_s("import torch")


def plain_first_step_s() -> float:
    """From the start of a fresh Python to the end of a plain loop's first step."""
    return _takes_s(PLAIN_FIRST_STEP)


def _takes_s(program: str) -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    return time.monotonic() - started


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

PLAIN_FIRST_STEP = """
import torch
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(8, 64)).square().mean().backward()
optimizer.step()
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
        target = ">= 0.97" if name in ASYNCHRONOUS else None
        found.append(row(f"{name}: share of ideal throughput", shares[name], "share", target=target))
    for name in names:
        if name != "sync_sgd":
            found.append(sooner(name, times[name], times["sync_sgd"]))
    for workers in (4,) if arguments.quick else EQUAL:
        found += equal_rows(workers, seconds, arguments.runs)
    return [*found, *start_rows(arguments.runs)]


def equal_rows(workers: int, seconds: float, runs: int) -> list[Row]:
    """Equal workers, beside loops that exchange nothing."""
    tasks = {name: functools.partial(equal_share, name, workers, seconds) for name in BESIDE}
    bare = {"barrier": True, "loop alone": False}
    tasks |= {name: functools.partial(bare_share, meets, workers, seconds) for name, meets in bare.items()}
    shares = interleave(tasks, runs, f"{workers} workers")
    found = []
    for name, limit in BESIDE.items():
        one = row(
            f"{workers} equal workers: {name}", shares[name], "share", against=limit, against_values=shares[limit]
        )
        wanted = SCALED if workers == max(EQUAL) and limit == "barrier" else None
        found.append(replace(one, target=wanted, met=None if wanted is None else meets(one.value, wanted)))
    return found


def start_rows(runs: int) -> list[Row]:
    """Start-up; what is wanted is of the time beyond `import torch`."""
    tasks = {"start": first_step_s, "import torch": imports_s, "plain loop's first step": plain_first_step_s}
    took = interleave(tasks, runs)
    started, measure = took["start"], "command to first step of 4 workers"
    beyond = statistics.median(one - other for one, other in zip(started, took["import torch"], strict=True))
    limits = ("import torch", "plain loop's first step")
    found = [row(measure, started, "s", against=name, against_values=took[name]) for name in limits]
    return [
        *found,
        Row(f"{measure}, beyond import torch", beyond, "s", None, None, None, START_S, meets(beyond, START_S), runs),
    ]


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
