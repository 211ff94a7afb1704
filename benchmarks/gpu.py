"""What a model on a GPU costs under plesio: copies, waits, overlap, and steps beside torch alone, DDP and FSDP2.

    python benchmarks/gpu.py --json gpu.json             # one GPU, less than 4 minutes
    python benchmarks/gpu.py --device cpu --quick        # whether it runs, where there is no GPU

Four parts, each of which `--only` runs alone:

| part     | what it measures                                                                                           |
| -------- | ---------------------------------------------------------------------------------------------------------- |
| link     | copies between the host and the GPU, and what an exchange of 400 MB reaches of the link                    |
| waits    | what the host waits for in a local step and in an exchange, as CUDA's calls and torch's warnings tell      |
| training | a transformer: torch alone, DDP, FSDP2, and strategies with one worker, and with two on one GPU; overlap   |
| images   | a convolutional net in channels_last                                                                       |

What fails is told below the table, and the rest goes on.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import _gpu_torch as alone
import plesio as ps
from _gpu_jobs import Job
from _gpu_plesio import figures, run, timed, watched
from _report import Row, parser, progress, report, row

PARTS = ("link", "waits", "training", "images")
PATIENCE_S = 60
H = 16


@dataclass(frozen=True)
class Sizes:
    """Of the models, and how many steps are timed: of those that exchange, and of others (a multiple of `H`)."""

    flat: Job
    transformer: Job
    images: Job
    exchanges: int = 10
    steps: int = 3 * H


FULL = Sizes(
    Job("flat", 100_000_000), Job("transformer", 768, batch=16, length=512), Job("images", 64, batch=256, length=64)
)
QUICK = Sizes(
    Job("flat", 96_000),
    Job("transformer", 64, batch=2, length=16, layers=1),
    Job("images", 8, batch=2, length=32),
    exchanges=1,
    steps=H,
)


class Measured:
    """The rows so far, and what could not be measured. After `limit_s` nothing new is begun."""

    def __init__(self, limit_s: float) -> None:
        self.rows: list[Row] = []
        self.failed: list[str] = []
        self.known: dict[str, float] = {}
        """Figures that others are held against: GB/s of the link, and milliseconds."""
        self._end_s = time.monotonic() + limit_s

    def add(self, name: str, measure: Callable[[], list[Row]]) -> None:
        """Those rows, unless `measure` fails."""
        began_s = time.monotonic()
        try:
            if began_s > self._end_s:
                raise TimeoutError("no time was left")
            with impatient(name):
                self.rows += measure()
        except (Exception, ps.RunInterrupted) as error:
            reason = (str(error).strip().splitlines() or [""])[-1]
            self.failed.append(f"failed: {name}: {type(error).__name__}: {reason}")
            progress.print(f"{name}: {error!r}")
        progress.print(f"{name}: {time.monotonic() - began_s:.1f} s")


@contextmanager
def impatient(name: str) -> Iterator[None]:
    """`TimeoutError` after `PATIENCE_S`, whatever hangs."""

    def late(*_: object) -> None:
        raise TimeoutError(f"{name} took more than {PATIENCE_S} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE_S)
    try:
        yield
    finally:
        signal.alarm(0)


# --- the link ---------------------------------------------------------------------------------------------------------


def link(measured: Measured, sizes: Sizes) -> None:
    """The link alone, and what an exchange reaches of it."""
    measured.add("the link", lambda: bare_link(measured, sizes.flat))
    for strategy in (ps.sync_sgd(), ps.local_sgd(1)):
        measured.add(f"an exchange, {strategy.name}", partial(exchange, measured, sizes, strategy))


def bare_link(measured: Measured, job: Job) -> list[Row]:
    rates = alone.apart(alone.link, job.nbytes, job.device)
    measured.known |= rates
    rows = []
    for way, words in (("in", "to the GPU"), ("out", "to the host")):
        pageable, pinned = rates[f"{way}, pageable"], rates[f"{way}, pinned"]
        rows += [row(f"copy {words}, pinned", [pinned], "GB/s")]
        rows += [
            row(f"copy {words}, pageable", [pageable], "GB/s", against=f"{words}, pinned", against_values=[pinned])
        ]
    return rows


def copies_ms(measured: Measured, job: Job) -> float:
    """What the model's bytes take over the pinned link, out and in."""
    return sum(job.nbytes / measured.known[f"{way}, pinned"] / 1e6 for way in ("out", "in"))


def exchange(measured: Measured, sizes: Sizes, strategy: ps.Strategy) -> list[Row]:
    done = run(strategy, timed, sizes.flat, sizes.exchanges, warm_up=4)
    took_ms = median(figures(done, "step_ms"))
    bare_ms, both = copies_ms(measured, sizes.flat), 2 * sizes.flat.nbytes / 1e6
    name = f"{strategy.name}, {sizes.flat.nbytes / 1e6:.3g} MB"
    return [
        row(f"{name}: an exchange", [both / took_ms], "GB/s", against="pinned link", against_values=[both / bare_ms]),
        row(f"{name}: an exchange", [took_ms], "ms", against="pinned copies", against_values=[bare_ms]),
        served(done, name, took_ms),
    ]


def served(done: ps.Run, name: str, step_ms: float) -> Row:
    """What the server computed for one contribution."""
    each_ms = 1e3 * done.summary.served_s / max(1, done.summary.folded)
    return row(f"{name}: of that the server", [each_ms], "ms", against="the step", against_values=[step_ms])


# --- waits ------------------------------------------------------------------------------------------------------------


def waits(measured: Measured, sizes: Sizes) -> None:
    """What steps wait for, and how fast their copies are."""
    for strategy in (ps.local_sgd(4), ps.diloco(4), ps.sync_sgd(), ps.async_sgd()):
        measured.add(f"waits, {strategy.name}", partial(waited, measured, sizes, strategy))


def waited(measured: Measured, sizes: Sizes, strategy: ps.Strategy) -> list[Row]:
    done = run(strategy, watched, sizes.flat, steps=8, warm_up=8)
    rows = []
    for kind, most in (("local", 0), ("exchange", 1)):
        words = "a local step" if kind == "local" else "an exchange"
        for name, what, target in (
            ("waits", "synchronisations", f"<= {most}"),
            ("pageable", "pageable copies", "<= 0"),
            ("warnings", "warnings of torch's", None),
        ):
            values = figures(done, f"{kind}, {name}")
            judged = target if sizes.flat.device == "cuda" else None  # elsewhere nothing is seen
            rows += [row(f"{strategy.name}: {what} in {words}", values, "", target=judged)] if values else []
    for way, words in (("out", "to the host"), ("in", "to the GPU")):
        micros = [one for one in figures(done, f"exchange, {way}_us") if one]
        if micros and f"{way}, pinned" in measured.known:
            times = (
                2 if way == "in" and strategy.send.differs else 1
            )  # the version that the worker began from comes, too
            rates, link = (
                [times * sizes.flat.nbytes / one / 1e3 for one in micros],
                [measured.known[f"{way}, pinned"]] * len(micros),
            )
            name = f"{strategy.name}: copies {words} in an exchange"
            rows.append(row(name, rates, "GB/s", against="pinned link", against_values=link, target=">= 0.9"))
    return rows


# --- training ---------------------------------------------------------------------------------------------------------


def training(measured: Measured, sizes: Sizes, gpus: int) -> None:
    """The transformer."""
    job = sizes.transformer
    measured.add("torch alone", lambda: plain(measured, job, "passes", sizes.steps))
    for how in ("alone", "ddp", "fsdp"):
        measured.add(f"torch, {how}", partial(plain, measured, job, how, sizes.steps))
    if gpus > 1:
        measured.add(f"torch, DDP of {gpus}", partial(plain, measured, job, "ddp", sizes.steps, gpus))
    for strategy, workers in (
        (ps.local_sgd(H), 1),
        (ps.sync_sgd(), 1),
        (ps.async_sgd(), 1),
        (ps.allreduce(), 1),
        (ps.local_sgd(H), 2),
        (ps.sync_sgd(), 2),
        (ps.async_sgd(), 2),
    ):
        measured.add(f"{strategy.name}, {workers}", partial(trained, measured, sizes, job, strategy, workers, gpus))


NAMES = {"alone": "torch alone", "ddp": "DDP", "fsdp": "FSDP2", "passes": "forward and backward alone"}


def plain(measured: Measured, job: Job, how: str, steps: int, ranks: int = 1) -> list[Row]:
    took_ms = alone.torch_step_ms(job, how, steps, ranks)
    if ranks == 1:
        measured.known[f"{job.kind}, {how}"] = took_ms
    return [speed(measured, job, NAMES[how] + (f", {ranks} GPUs" if ranks > 1 else ""), ranks * 1e3 / took_ms)]


def speed(measured: Measured, job: Job, name: str, steps_per_s: float) -> Row:
    """Steps a second of all workers together, or images, against torch alone."""
    bare_ms = measured.known.get(f"{job.kind}, alone")
    scale, unit = (job.batch, "images/s") if job.kind == "images" else (1, "steps/s")
    bare = {"against": "torch alone", "against_values": [scale * 1e3 / bare_ms]} if bare_ms else {}
    return row(f"{job.kind}: {name}", [scale * steps_per_s], unit, **(bare if name != "torch alone" else {}))


def trained(
    measured: Measured, sizes: Sizes, job: Job, strategy: ps.Strategy, workers: int = 1, gpus: int = 1
) -> list[Row]:
    exchanges = strategy.name in ("sync_sgd", "async_sgd")
    steps = sizes.exchanges if exchanges else sizes.steps
    done = run(strategy, timed, job, steps, warm_up=4 if exchanges else H, workers=workers)
    each_ms = figures(done, "step_ms")
    name = strategy.name + (f", {workers} workers on {max(1, min(workers, gpus))} GPU" if workers > 1 else "")
    rows = [speed(measured, job, name, sum(1e3 / one for one in each_ms))]
    passes = f"{job.kind}, passes"
    if exchanges and workers == 1 and passes in measured.known and "in, pinned" in measured.known:
        rows.append(served(done, f"{job.kind}: {name}", each_ms[0]))
        apart = measured.known[passes] + copies_ms(measured, job)
        ours = f"{job.kind}: {name}, a step"
        rows.append(row(ours, each_ms, "ms", against="passes, then pinned copies", against_values=[apart]))
    return rows


# --- images -----------------------------------------------------------------------------------------------------------


def images(measured: Measured, sizes: Sizes) -> None:
    """The convolutional net."""
    measured.add("images, torch alone", partial(plain, measured, sizes.images, "alone", sizes.steps))
    for strategy in (ps.local_sgd(H), ps.sync_sgd()):
        measured.add(f"images, {strategy.name}", partial(trained, measured, sizes, sizes.images, strategy))


def main() -> None:
    """All, or some parts."""
    given = parser("A model on a GPU under plesio, beside torch alone.", runs=1)
    given.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="where models are")
    given.add_argument("--only", choices=PARTS, action="append", help="one part, or several")
    given.add_argument("--limit-s", type=float, default=210.0, help="after this, nothing new is begun")
    arguments = given.parse_args()
    sizes = QUICK if arguments.quick else FULL
    jobs = {name: replace(getattr(sizes, name), device=arguments.device) for name in ("flat", "transformer", "images")}
    sizes = replace(sizes, **jobs)
    name, gpus = alone.apart(alone.described) if arguments.device == "cuda" else ("no GPU", 0)
    measured = Measured(arguments.limit_s)
    for part in arguments.only or PARTS:
        if part == "training":
            training(measured, sizes, gpus)
        else:
            {"link": link, "waits": waits, "images": images}[part](measured, sizes)
    report(f"A model on a GPU: {gpus} x {name}", measured.rows, arguments.json, threads="torch's own")
    print(*measured.failed, sep="\n", end="\n" if measured.failed else "")
    sys.exit(bool(measured.failed))


if __name__ == "__main__":
    main()
