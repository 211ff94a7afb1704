"""Charts as text: inline SVG for the shapes, HTML for the words on them.

The shapes stretch with the page (`preserveAspectRatio="none"`, strokes of constant width) and the words keep their
size: one chart suits a wide screen and a phone. A strategy is drawn by its index. CSS gives class `s0` ... `s9` a colour,
and the dash changes with every index, so two lines differ even without colour.

All functions take plain numbers and names, and escape the names.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

COLOURS = 10
LANE_COLUMNS = 900
LANE_KINDS = ("compute", "wait", "exchange")

_SIDE = 1000  # the plot's own units, both ways
_LEAST, _MOST = 1e-150, 1e150  # values beyond are drawn at the edge; their quotients do not overflow
_POINTS_MAX = 400
_DASHES = ("", "9 4", "3 3", "12 4 3 4")


@dataclass(frozen=True, slots=True)
class Series:
    """One line: its points, and those to mark with a dot. `index` picks colour and dash."""

    index: int
    name: str
    points: tuple[tuple[float, float], ...]
    dots: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Axis:
    """A range of values, laid on 0 to 1; `ticks` are the values to label, with their labels."""

    low: float
    high: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """The place of `value`: 0 at the low end, 1 at the high end."""
        value = _drawn(value)
        if self.log:
            return math.log(max(value, _LEAST) / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def shows(self, value: float) -> bool:
        """Whether `value` can be drawn on this axis."""
        return math.isfinite(value) and (value > 0 or not self.log)


def number(value: float | None, digits: int = 3) -> str:
    """`value` with about `digits` significant digits, for people.

    >>> number(1234.5), number(0.01234), number(None), number(float("nan"))
    ('1,234', '0.0123', '–', 'not finite')
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value: 9.97 is 10 in two digits
    if not -4 < exponent < 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - exponent)}f}"


def _drawn(value: float) -> float:
    return min(max(value, -_MOST), _MOST)


def nice_step(span: float, wanted: int) -> float:
    """1, 2 or 5 times a power of ten that divides `span` into about `wanted` parts.

    >>> nice_step(12.0, 6)
    2.0
    """
    raw = span / max(wanted, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    return next((factor * unit for factor in (1.0, 2.0, 5.0) if raw <= factor * unit * 1.001), 10.0 * unit)


def linear_axis(low: float, high: float, wanted: int = 6, *, tight: bool = False) -> Axis:
    """An axis from `low` to `high` with round ticks; widened to whole ticks unless `tight`."""
    low, high = _drawn(low), _drawn(high)
    if not high - low > max(_LEAST, 1e-12 * abs(low)):
        margin = abs(low) * 0.1 if abs(low) > _LEAST else 1.0
        low, high = low - margin, high + margin
    step = nice_step(high - low, wanted)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if not tight:
        low, high = first * step, last * step
    slack = step * 1e-6
    values = [k * step for k in range(first, last + 1) if low - slack <= k * step <= high + slack]
    return Axis(low, high, False, tuple((value, f"{value:,.10g}") for value in values))


def log_axis(low: float, high: float) -> Axis:
    """A logarithmic axis from positive `low` to `high`, with ticks at powers of ten, or at 1, 2, 5 if there is room."""
    low, high = max(_drawn(low), _LEAST), max(_drawn(high), _LEAST)
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 3 else (1,)
    stride = max(1, math.ceil(decades / 7))
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1, stride)
    values = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    low, high = low / 1.1, high * 1.1
    return Axis(low, high, True, tuple((v, f"{v:,g}" if v < 1e6 else f"{v:.0e}") for v in values if low <= v <= high))


def line_chart(
    series: Sequence[Series],
    *,
    x_name: str,
    y_name: str,
    x_high: float = 0.0,
    target: float | None = None,
    log: bool = False,
) -> str:
    """Lines over x from 0 to at least `x_high`, an optional target line, a legend in the order the lines end.

    Non-finite points (and with `log` non-positive ones) break the line. `series` must hold one drawable point.
    """
    xs = [x for one in series for x, _ in one.points]
    ys = [y for one in series for _, y in one.points if math.isfinite(y) and (y > 0 or not log)]
    if target is not None and (target > 0 or not log):
        ys.append(target)
    x_axis = linear_axis(0.0, max(x_high, *xs), 8, tight=True)
    y_axis = log_axis(min(ys), max(ys)) if log and max(ys) > min(ys) else linear_axis(min(ys), max(ys))
    shapes = [_grid(x_axis, y_axis)]
    if target is not None and y_axis.shows(target):
        shapes.append(f'<path class="target" d="M0 {_down(y_axis, target)}H{_SIDE}"/>')
    shapes += [_line(one, x_axis, y_axis) for one in series]
    words = _labels(x_axis, y_axis, x_name)
    legend = _legend(series) if len(series) > 1 else ""
    key = "" if target is None else f'<span class="key">{_sample("target")}target {target:g}</span>'
    scale = " (log scale)" if y_axis.log else ""
    return (
        f'<div class="chart"><div class="frame"><div class="y-name">{escape(y_name)}{scale}{key}</div>'
        f'<div class="plot"><svg viewBox="0 0 {_SIDE} {_SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(y_name)} over {escape(x_name)}">{"".join(shapes)}</svg>{words}</div></div>{legend}</div>'
    )


def _down(axis: Axis, value: float) -> str:
    return f"{_SIDE * (1 - axis.at(value)):.1f}".removesuffix(".0")


def _across(axis: Axis, value: float) -> str:
    return f"{_SIDE * axis.at(value):.1f}".removesuffix(".0")


def _grid(x_axis: Axis, y_axis: Axis) -> str:
    rows = "".join(f"M0 {_down(y_axis, value)}H{_SIDE}" for value, _ in y_axis.ticks)
    columns = "".join(f"M{_across(x_axis, value)} 0V{_SIDE}" for value, _ in x_axis.ticks)
    return f'<path class="grid" d="{rows}{columns}"/><path class="axis" d="M0 0V{_SIDE}H{_SIDE}"/>'


def _line(one: Series, x_axis: Axis, y_axis: Axis) -> str:
    stride = max(1, math.ceil(len(one.points) / _POINTS_MAX))
    points = [*one.points[:-1:stride], *one.points[-1:]]
    stretches = groupby(points, key=lambda point: y_axis.shows(point[1]))
    path = "".join(_stroke(list(stretch), x_axis, y_axis) for shown, stretch in stretches if shown)
    # A stroke of length 0 with round ends is a dot that stays round when the plot is stretched.
    dots = "".join(
        f"M{_across(x_axis, x)} {_down(y_axis, y)}h0" for x, y in one.dots if y_axis.shows(y) and x <= x_axis.high
    )
    name = f"<title>{escape(one.name)}</title>"
    return (
        f'<g class="{colour(one.index)}" data-s="{one.index}">{name}'
        f'<path class="line" d="{path}"{_dashes(one.index)}/>'
        + (f'<path class="dot" d="{dots}"/>' if dots else "")
        + "</g>"
    )


def _stroke(points: Sequence[tuple[float, float]], x_axis: Axis, y_axis: Axis) -> str:
    """A line through all points; a short dash if there is only one."""
    places = [f"{_across(x_axis, x)} {_down(y_axis, y)}" for x, y in points]
    return f"M{'L'.join(places)}{'h3' if len(places) == 1 else ''}"


def colour(index: int) -> str:
    """The CSS class with the colour of the strategy at `index`."""
    return f"s{index % COLOURS}"


def named(index: int, name: str) -> str:
    """A strategy's name after a small square of its colour; long names may break between their parts."""
    return f'<span class="name"><i class="{colour(index)}"></i><span>{_breakable(name)}</span></span>'


def _breakable(name: str) -> str:
    return escape(name).replace("(", "<wbr>(").replace("_", "_<wbr>")


def _dashes(index: int) -> str:
    dash = _DASHES[(index + index // COLOURS) % len(_DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _labels(x_axis: Axis, y_axis: Axis, x_name: str) -> str:
    rows = (f'<span class="y" style="top:{100 * (1 - y_axis.at(v)):.1f}%">{t}</span>' for v, t in y_axis.ticks)
    return "".join(rows) + ticks_below(x_axis) + f'<span class="x-name">{escape(x_name)}</span>'


def ticks_below(axis: Axis) -> str:
    """The x labels of a plot; every second one may be hidden by CSS."""
    return "".join(
        f'<span class="x{" minor" if k % 2 else ""}" style="left:{100 * axis.at(value):.1f}%">{text}</span>'
        for k, (value, text) in enumerate(axis.ticks)
    )


def _sample(kind: str, dashes: str = "") -> str:
    return f'<svg class="sample" viewBox="0 0 30 8"><path class="{kind}" d="M0 4H30"{dashes}/></svg>'


def _legend(series: Sequence[Series]) -> str:
    """Buttons in the order in which the lines end on the right, highest first."""

    def end(one: Series) -> float:
        return next((y for _, y in reversed(one.points) if math.isfinite(y)), -math.inf)

    entries = "".join(
        f'<button type="button" class="{colour(one.index)}" data-s="{one.index}" aria-pressed="true" '
        f'title="show or hide">{_sample("line", _dashes(one.index))}<span>{_breakable(one.name)}</span>'
        f"<b>{number(one.points[-1][1])}</b></button>"
        for one in sorted(series, key=end, reverse=True)
    )
    return f'<div class="legend"><div class="legend-head">at the end</div>{entries}</div>'


def columns(spans: Iterable[tuple[str, float, float]], start: float, length: float) -> list[str]:
    """The kind of each column of a lane: one worker's time in the window of `length` at `start`.

    `spans` are (kind, from, to). Spans narrower than a column take turns: the time a kind is owed is carried over to
    the next column, so the visible shares are right however fine the spans. A column without a record has no kind.
    """
    owed: list[dict[str, float]] = [{} for _ in range(LANE_COLUMNS)]
    for kind, begin, end in spans:
        left, right = (min(max((at - start) / length, 0.0), 1.0) * LANE_COLUMNS for at in (begin, end))
        for column in range(int(left), math.ceil(right)):
            owed[column][kind] = owed[column].get(kind, 0.0) + min(right, column + 1) - max(left, column)
    credit = dict.fromkeys(LANE_KINDS, 0.0)
    kinds = []
    for shares in owed:
        best = ""
        if sum(shares.values()) >= 0.5:
            for kind, share in shares.items():
                credit[kind] += share
            best = max(shares, key=lambda kind: credit[kind])
            credit[best] -= 1.0
        kinds.append(best)
    return kinds


def lane(kinds: Iterable[str]) -> str:
    """The columns of one worker's time as a strip: for each kind one path of horizontal strokes."""
    paths = dict.fromkeys(LANE_KINDS, "")
    column = 0
    for kind, run in groupby(kinds):
        width = len(list(run))
        if kind in paths:
            paths[kind] += f"M{column} 1h{width}"
        column += width
    shapes = "".join(f'<path class="{kind}" d="{d}"/>' for kind, d in paths.items() if d)
    return f'<svg class="lane" viewBox="0 0 {LANE_COLUMNS} 2" preserveAspectRatio="none">{shapes}</svg>'


def bars(shares: Sequence[float], top: float, title: str) -> str:
    """A row of bars, one per bin; a share of `top` fills the height."""
    path = "".join(
        f"M{k + 0.1:.1f} 100V{100 - max(2.0, 100 * share / top):.0f}h.8V100z" for k, share in enumerate(shares) if share
    )
    return (
        f'<svg class="bars" viewBox="0 0 {len(shares)} 100" preserveAspectRatio="none">'
        f'<title>{escape(title)}</title><path d="{path}"/></svg>'
    )
