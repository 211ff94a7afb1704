"""Do methods come in the order that theory says? Time to a loss on a quadratic, in virtual time, 1,000 workers.

Each method under each time model is given the same grid of step sizes, and those with a second setting (how many a round
takes, how stale a gradient may be) the same five; what counts is the best. Results and their reading: docs/theory.md.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from _report import Row, figure, meets, parser, progress, report, whole
from plesio import async_sgd, first_of, rennala, ringmaster, sync_sgd
from plesio.cluster import Cluster, Constant, Exponential, Group, Pareto, Ranked, StepTime
from plesio.strategy import Strategy
from problems import Quadratic, tune

MODELS: dict[str, StepTime] = {
    "equal": Constant(1.0),
    "exponential": Exponential(1.0),
    "heavy tail": Pareto(1.0, 1.1),
    "sqrt(i)": Ranked(1.0, 0.5),
    "i": Ranked(1.0, 1.0),
}
SHARES = (0.01, 0.03, 0.1, 0.3)  # of the workers: values of the second setting, and a fifth that fits the method
METHODS: dict[str, Callable[[int], Sequence[Strategy]]] = {
    "Ringmaster": lambda n: [ringmaster(part(n, share), correct="plain", lr_scale="full") for share in (*SHARES, 3)],
    "Rennala": lambda n: [rennala(part(n, share), lr_scale="full") for share in (*SHARES, 1)],
    "first m of n": lambda n: [first_of(part(n, share)) for share in (*SHARES, 0.94)],
    "delay-adaptive": lambda n: [async_sgd("plain", "delay_adaptive", lr_scale="full")],
    "plain async": lambda n: [async_sgd("plain", lr_scale="full")],
    "sync": lambda n: [sync_sgd()],
}
CLAIMS = (  # the order of the papers, and how much slower the first may be
    ("Ringmaster", "Rennala", "<= 1.1"),
    ("Rennala", "delay-adaptive", "<= 1.1"),
    ("delay-adaptive", "plain async", "<= 1.1"),
    ("plain async", "sync", "<= 1.1"),
    ("first m of n", "Ringmaster", "<= 2"),
)
STEP_SIZES = tuple(2.0**power for power in range(-11, 2))


def part(workers: int, share: float) -> int:
    """A share of the workers, at least one."""
    return max(1, round(share * workers))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How soon a method got there at its best, with the settings it took; `time_s` is infinite if it never did."""

    time_s: float
    strategy: str
    lr: float


def fastest(problem: Quadratic, strategies: Sequence[Strategy], cluster: Cluster, args: argparse.Namespace) -> Outcome:
    """The best of one method. Nothing is run for longer than the best so far took."""
    best = Outcome(math.inf, strategies[0].name, math.nan)
    for strategy in strategies:
        result = tune(
            problem,
            strategy,
            cluster,
            lrs=STEP_SIZES,
            contributions=args.contributions,
            seconds=best.time_s,
            until_loss=args.loss * float(problem.loss(problem.start())),
            seed=args.seed,
        )
        time_s = result.time_to(args.loss * result.losses[0])
        if time_s is not None and time_s < best.time_s:
            best = Outcome(time_s, strategy.name, result.lr)
        progress.print(f"  {strategy.name}: {figure(time_s)} s at {result.lr:g} ({result.ended})")
    return best


def compare(problem: Quadratic, step: StepTime, args: argparse.Namespace) -> dict[str, Outcome]:
    """Every method under one time model."""
    cluster = Cluster((Group(args.workers, step),))
    return {name: fastest(problem, strategies(args.workers), cluster, args) for name, strategies in METHODS.items()}


def claims(model: str, outcomes: Mapping[str, Outcome]) -> list[Row]:
    """What the papers say of each pair."""
    rows = []
    for method, other, target in CLAIMS:
        time_s, other_s = outcomes[method].time_s, outcomes[other].time_s
        ratio = time_s / other_s if other_s < math.inf else 0.0 if time_s < math.inf else math.nan
        met = None if math.isnan(ratio) else meets(ratio, target)
        rows.append(Row(f"{model}: {method}", time_s, "virtual s", other, other_s, ratio, target, met, 1))
    return rows


def markdown(results: Mapping[str, Mapping[str, Outcome]]) -> str:
    """The table of docs/theory.md: the time of each method, in brackets its setting and step size."""
    lines = [f"| steps take | {' | '.join(METHODS)} |", "|" + " --- |" * (len(METHODS) + 1)]
    for model, outcomes in results.items():
        best_s = min(one.time_s for one in outcomes.values())
        cells = []
        for one in outcomes.values():
            time = "never" if one.time_s == math.inf else figure(one.time_s)
            setting = re.search(r"\((?:k=)?(\d+)", one.strategy)
            note = [setting[1]] if setting else []
            time = f"**{time}**" if one.time_s == best_s else time
            cells.append(f"{time} ({', '.join([*note, f'{one.lr:.2g}'])})")
        lines.append(f"| {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


# The picture: a row for each time model, a dot for each method

COLOURS = ("#0072b2", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#555555")
LEFT, WIDTH, LINE, TOP = 110, 640, 56, 66


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic range of times; `ticks` are the values to label, with their labels."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """The place of `value`: 0 at the low end, 1 at the high end."""
        return math.log(value / self.low) / math.log(self.high / self.low)


def log_axis(low: float, high: float) -> Axis:
    """An axis with ticks at powers of ten, or at 1, 2, 5 if there is room."""
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 3 else (1,)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, max(1, math.ceil(decades / 7)))
    values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    low, high = low / 1.1, high * 1.1
    return Axis(low, high, tuple((v, f"{v:,g}" if v < 1e6 else f"{v:.0e}") for v in values if low <= v <= high))


def picture(results: Mapping[str, Mapping[str, Outcome]], title: str) -> str:
    """Standalone SVG: time to the loss, on a logarithmic axis."""
    times = [one.time_s for outcomes in results.values() for one in outcomes.values() if one.time_s < math.inf]
    axis = log_axis(min(times), max(times))
    height = TOP + LINE * len(results) + 44
    shapes = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">',
        f'<rect width="100%" height="100%" fill="#fff"/><text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        *_legend(),
        *_grid(axis, TOP + LINE * len(results)),
    ]
    for row, (model, outcomes) in enumerate(results.items()):
        shapes += _dots(axis, TOP + LINE * row + LINE / 2, model, outcomes)
    return "\n".join([*shapes, "</svg>", ""])


def _legend() -> list[str]:
    shapes, x = [], LEFT
    for name, colour in zip(METHODS, COLOURS, strict=True):
        shapes.append(
            f'<circle cx="{x + 5}" cy="42" r="5" fill="{colour}"/><text x="{x + 15}" y="46">{escape(name)}</text>'
        )
        x += 40 + 7 * len(name)  # about the width of the words
    return shapes


def _grid(axis: Axis, bottom: float) -> list[str]:
    shapes = []
    for value, label in axis.ticks:
        x = LEFT + WIDTH * axis.at(value)
        shapes.append(f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        shapes.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>')
    label_y = bottom + 36
    shapes.append(f'<text x="{LEFT + WIDTH / 2}" y="{label_y}" text-anchor="middle">virtual seconds (log scale)</text>')
    return shapes


def _dots(axis: Axis, y: float, model: str, outcomes: Mapping[str, Outcome]) -> list[str]:
    """Dots of one row, a little apart, so that equal times can be told from one another."""
    shapes = [
        f'<path d="M{LEFT} {y + LINE / 2}H{LEFT + WIDTH}" stroke="#ddd"/>',
        f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{escape(model)}</text>',
    ]
    for k, (name, one) in enumerate(outcomes.items()):
        if one.time_s < math.inf:
            x, own_y = LEFT + WIDTH * axis.at(one.time_s), y + 7 * (k - (len(METHODS) - 1) / 2)
            tip = escape(f"{name}: {figure(one.time_s)} s")
            shapes.append(
                f'<circle cx="{x:.1f}" cy="{own_y:.1f}" r="5" fill="{COLOURS[k]}"><title>{tip}</title></circle>'
            )
    return shapes


def main() -> None:
    arguments = parser(__doc__.splitlines()[0], runs=1)
    arguments.add_argument("--workers", type=whole, default=1000)
    arguments.add_argument("--dimension", type=whole, default=1729)
    arguments.add_argument("--noise", type=float, default=0.01, help="deviation of each coordinate of a gradient")
    arguments.add_argument("--loss", type=float, default=0.1, help="the loss to reach, as a share of the first")
    arguments.add_argument("--contributions", type=whole, default=300_000, help="at most, for each run")
    arguments.add_argument("--seed", type=int, default=0, help="of step times and noise")
    arguments.add_argument("--svg", type=Path, metavar="FILE", help="also draw the figure")
    args = arguments.parse_args()
    if args.quick:
        args.workers, args.dimension, args.contributions = 50, 100, 5_000
    problem = Quadratic(args.dimension, args.noise, single=True)
    results: dict[str, dict[str, Outcome]] = {}
    for model, step in MODELS.items():
        progress.print(f"steps take: {model}")
        results[model] = compare(problem, step, args)
    title = (
        f"Time to {args.loss:g} of the first loss, quadratic of {args.dimension:,} dimensions, {args.workers:,} workers"
    )
    rows = [row for model, outcomes in results.items() for row in claims(model, outcomes)]
    report(title, rows, args.json, threads="1")
    print(markdown(results))
    if args.svg is not None:
        args.svg.write_text(picture(results, title))


if __name__ == "__main__":
    main()
