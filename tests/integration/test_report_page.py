"""The report in a real browser: drawn in full and quickly, and all its controls work."""

from __future__ import annotations

import math
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from plesio.observe.repeats import SEEDS
from plesio.observe.report import write_report
from plesio.observe.summary import Evaluation, Incident, Logged, Span, Summary
from plesio.observe.totals import Staleness, WorkerSummary
from support.browser import FOUND, Browser, browser
from support.long_forms import but_thorough

pytestmark = pytest.mark.skipif(FOUND is None, reason="needs chromium")

WIDTH, HEIGHT = 1280, 3200
ROWS_READ = 1100  # the title, the table and the first chart: decoding the rest would only take time
STRATEGIES = 8

Pixels = npt.NDArray[np.uint8]


def fabricate(index: int) -> Summary:
    """A short run of two workers, learning at a rate of its own."""
    spans = tuple(
        Span(worker, kind, 0.1 * k + start, 0.1 * k + end)
        for worker in (0, 1)
        for k in range(30)
        for kind, start, end in (("compute", 0.0, 0.05), ("wait", 0.05, 0.09), ("exchange", 0.09, 0.1))
    )
    workers = tuple(
        WorkerSummary(
            worker=worker, steps=30, samples=960, folded=30, discarded=0, compute_s=1.5, wait_s=1.2, exchange_s=0.3,
            speed=20.0,
        )
        for worker in (0, 1)
    )  # fmt: skip
    reached = [1 - 0.9 * 2.0 ** (-k * (index + 2) / 10) for k in range(31)]
    return Summary(
        strategy=f"strategy_{index}",
        recipe="async_sgd",
        workers=workers,
        wall_s=3.0,
        version=60,
        steps=60,
        samples=1920,
        folded=60,
        discarded={},
        bytes=1_000_000,
        staleness=Staleness(mean=1.0, p50=1, p99=2, max=2, by_worker={0: {0: 10, 1: 10, 2: 10}, 1: {1: 30}}),
        history=tuple(Evaluation(k / 10, k, k, {"accuracy": value}) for k, value in enumerate(reached)),
        logged=tuple(Logged(k / 10, k % 2, 1, {"loss": 1.01 - value}) for k, value in enumerate(reached)),
        timeline=spans,
    )


def rows_of(png: bytes, count: int) -> tuple[int, int, Pixels]:
    """Width, height and the first `count` rows of an 8-bit RGB or RGBA image, as (row, column, channel)."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", png[16:29])
    assert (depth, interlace) == (8, 0)
    channels = {2: 3, 6: 4}[colour]
    packed, at = b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        packed += png[at + 8 : at + 8 + length] if png[at + 4 : at + 8] == b"IDAT" else b""
        at += length + 12
    raw = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    image = np.zeros((count, width, channels), np.uint8)
    above = np.zeros((width, channels), np.uint8)
    for k in range(count):
        above = image[k] = unfilter(int(raw[k, 0]), raw[k, 1:].reshape(width, channels), above)
    return width, height, image


def unfilter(kind: int, row: Pixels, above: Pixels) -> Pixels:
    """One row without its PNG filter: 0 none, 1 left, 2 above, 3 their mean, 4 Paeth's choice of three."""
    if kind in (0, 2):
        return row if kind == 0 else row + above
    if kind == 1:
        return np.cumsum(row, axis=0, dtype=np.uint8)
    done, up = row.tolist(), above.tolist()
    for c in range(row.shape[1]):
        left = corner = 0
        for x, pixel in enumerate(done):
            b = up[x][c]
            guess = (left + b) // 2 if kind == 3 else paeth(left, b, corner)
            left, corner = (pixel[c] + guess) & 255, b
            pixel[c] = left
    return np.array(done, np.uint8)


def paeth(left: int, above: int, corner: int) -> int:
    """Whichever of the three is nearest to left + above - corner."""
    to_left, to_above, to_corner = abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)
    if to_left <= to_above and to_left <= to_corner:
        return left
    return above if to_above <= to_corner else corner


def palette(dark: bool) -> list[tuple[int, ...]]:
    """The page's colours of the strategies, as its style sheet has them."""
    style = resources.files("plesio.observe").joinpath("page/report.css").read_text(encoding="utf-8")
    colours = re.findall(r"--s\d: #([0-9a-f]{6})", style)  # ten of the light page, then ten of the dark one
    return [tuple(bytes.fromhex(colours[k + 10 * dark])) for k in range(STRATEGIES)]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture
def eight() -> list[Summary]:
    return [fabricate(k) for k in range(STRATEGIES)]


def show(chromium: Browser, path: Path, runs: Sequence[Summary], **options: object) -> None:
    """The report in the browser, which finds no error in it and asks for no other file."""
    chromium.resize(WIDTH, 900)
    given = {"title": "Eight of them", "target": ("accuracy", 0.9), **options}
    write_report(path / "report.html", runs, **given)  # type: ignore[arg-type]
    chromium.open(path / "report.html")
    assert chromium.errors == []
    assert chromium.asked == [(path / "report.html").as_uri()]


def first_chart(chromium: Browser) -> list[float]:
    """Where it is: left, top, width and height."""
    chromium.run("document.querySelector('.plot').scrollIntoView()")
    place: list[float] = chromium.run(
        "(({left, top, width, height}) => [left, top, width, height])(page.charts[0].over.getBoundingClientRect())"
    )
    return place


def replaced(run: Summary, **values: object) -> Summary:
    return msgspec.structs.replace(run, **values)


@pytest.mark.thorough
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_draws_every_strategy_in_its_colour(
    chromium: Browser, tmp_path: Path, eight: list[Summary], dark: bool
) -> None:
    show(chromium, tmp_path, eight)
    chromium.resize(WIDTH, HEIGHT, dark=dark)
    chromium.settle()
    width, height, image = rows_of(chromium.picture(), ROWS_READ)
    assert (width, height) == (WIDTH, HEIGHT)
    colours, counts = np.unique(image[..., :3].reshape(-1, 3), axis=0, return_counts=True)
    seen = {tuple(colour): count for colour, count in zip(colours.tolist(), counts.tolist(), strict=True)}
    assert len(seen) > 50
    paper = max(seen, key=lambda colour: seen[colour])
    assert paper == ((21, 24, 28) if dark else (255, 255, 255))
    assert seen[paper] < 0.97 * ROWS_READ * WIDTH  # a page, not a blank sheet
    # Each colour is at least the square before the name in the table, and some of the line.
    assert [colour for colour in palette(dark) if seen.get(colour, 0) < 11 * 11 + 50] == []


@pytest.mark.thorough
def test_a_day_of_32_workers_is_shown_and_small(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    day_s, spans = 86_400.0, 3_000
    step_s = day_s / spans
    workers = tuple(replaced(eight[0].workers[0], worker=w, speed=1.0 + w) for w in range(32))
    timeline = tuple(
        Span(w, kind, (k + start) * step_s, (k + end) * step_s, steps)
        for w in range(32)
        for k in range(spans)
        for kind, start, end, steps in (("compute", 0.0, 0.7, 1), ("wait", 0.7, 1.0, 0))
    )
    day = replaced(
        eight[0],
        workers=workers,
        wall_s=day_s,
        timeline=timeline,
        history=tuple(Evaluation(10.0 * k, k, k, {"accuracy": 1 - 1 / (k + 2)}) for k in range(8_640)),
        logged=tuple(Logged(k * day_s / 50_000, k % 32, 1, {"loss": 1 / (k + 1)}) for k in range(50_000)),
        incidents=tuple(Incident(float(k), k % 32, f"worker {k % 32} died") for k in range(2_000)),
    )
    show(chromium, tmp_path, [day])
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 5_000_000


def test_every_section_is_on_the_page(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    died = Incident(time_s=4.2, worker=1, what="died (signal 9)")
    show(chromium, tmp_path, [replaced(eight[0], incidents=(died,)), *eight[1:]], note="Settings: none.")
    text = chromium.text
    for words in ("Eight of them", "Settings: none.", "reached accuracy 0.9 in", "died (signal 9)", "Words"):
        assert words in text
    assert len(chromium.texts(".plot canvas")) == 2
    assert len(chromium.texts("svg.lane")) == 2 * STRATEGIES
    times = [run.time_to("accuracy", 0.9) or math.inf for run in eight]
    assert chromium.texts("td.best") == [f"{time:.2f} s" for time in times if time < SEEDS * min(times)]
    for index, run in enumerate(eight):
        assert len(chromium.texts(f'.legend [data-s="{index}"]')) == 2
        assert sum(words == run.strategy for words in chromium.texts(".name")) >= 5
    assert chromium.texts(".key") == ["target 0.9"]


def test_a_page_of_one_run_has_no_line_buttons(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    show(chromium, tmp_path, eight[:1])
    assert chromium.texts(".legend") == []
    assert chromium.texts("td.best") == []
    assert "from the middle of the run" in chromium.text


def test_a_page_of_one_run_does_not_repeat_its_name(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    died = Incident(time_s=4.2, worker=1, what="worker 1 died")
    one = replaced(eight[0], incidents=(died,))
    for runs, seen in (([one], False), ([one, eight[1]], True)):
        show(chromium, tmp_path, runs)
        names = "[...document.querySelectorAll('#costs .name, #incidents .name, h3 .name')]"
        assert chromium.run(f"{names}.some((one) => one.checkVisibility())") == seen
    assert "strategy_0: worker 1" not in chromium.text, "the table of incidents says it"


def test_missing_records_become_sentences(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    bare = replaced(
        eight[0], history=(), logged=(), timeline=(), workers=(), staleness=Staleness(), wall_s=0.0, folded=0
    )
    for runs in ([bare], [bare, bare], [bare, *eight[1:3]]):
        show(chromium, tmp_path, runs, target=None)
        assert "No staleness was recorded: strategy_0" in chromium.text
        assert "None: no worker died and nothing was lost." in chromium.text
        lacking = ("No evaluations were recorded", "No worker logged a loss", "No timeline was recorded.")
        assert all((words in chromium.text) == (len(runs) < 3) for words in lacking)
    show(chromium, tmp_path, [])
    assert "There is no run to report." in chromium.text


def test_lines_are_switched_in_all_charts(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    shown = "page.charts.map((chart) => chart.series.slice(1).map((one) => one.show))"
    show(chromium, tmp_path, eight)
    assert chromium.run(shown) == [[True] * STRATEGIES] * 2
    chromium.click('.legend [data-s="3"]')
    assert chromium.run(shown) == [[k != 3 for k in range(STRATEGIES)]] * 2
    pressed = "[...document.querySelectorAll('.legend [data-s=\"3\"]')].map((one) => one.getAttribute('aria-pressed'))"
    assert chromium.run(pressed) == ["false", "false"]
    chromium.click("#axis-samples")
    assert chromium.run(shown) == [[k != 3 for k in range(STRATEGIES)]] * 2
    chromium.click('.legend [data-s="3"]')
    assert chromium.run(shown) == [[True] * STRATEGIES] * 2
    assert chromium.errors == []


def test_more_strategies_than_colours_have_distinct_lines(chromium: Browser, tmp_path: Path) -> None:
    show(chromium, tmp_path, [fabricate(k) for k in range(17)])
    script = "[...document.querySelectorAll('.legend')].map((one) => new Set([...one.querySelectorAll('path')].map("
    assert chromium.run(f"{script}(line) => line.outerHTML)).size)") == [17, 17]


def test_the_axis_of_curves_can_be_samples_steps_or_bytes(
    chromium: Browser, tmp_path: Path, eight: list[Summary]
) -> None:
    show(chromium, tmp_path, eight)
    ends = {}
    for axis in ("bytes", "steps", "samples", "time"):
        chromium.click(f"#axis-{axis}")
        assert chromium.run("document.activeElement.id === '' || document.activeElement.id.startsWith('axis-')")
        ends[axis] = chromium.run("page.charts[0].data[0].at(-1)"), chromium.run("page.charts[0].axes[0].label")
    assert ends == {
        "time": (3.0, "wall time, s"),
        "samples": (30, "samples"),
        "steps": (60, "local steps of all workers"),
        "bytes": (1.0, "bytes exchanged, MB"),
    }
    assert chromium.errors == []


def test_hovering_shows_each_lines_value(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    show(chromium, tmp_path, eight)
    assert chromium.texts(".legend-head") == ["at the end"] * 2
    left, top, width, height = first_chart(chromium)
    chromium.mouse((left + width / 3, top + height / 2))
    assert chromium.texts(".legend-head")[0] == "at 1 s"
    values = [float(text) for text in chromium.texts(".legend")[0:1] for text in re.findall(r"0\.\d+", text)]
    expected = [run.history[10].metrics["accuracy"] for run in reversed(eight)]
    assert values == [pytest.approx(value, rel=1e-3) for value in expected]


def test_hovering_a_single_run_shows_its_value(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    show(chromium, tmp_path, eight[:1])
    last = eight[0].history[-1].metrics["accuracy"]
    assert chromium.texts(".legend-head")[0].startswith(f"at the end: {last:.3g}")
    left, top, width, _ = first_chart(chromium)
    chromium.mouse((left + width / 3, top + 50))
    at = eight[0].history[10].metrics["accuracy"]
    assert chromium.texts(".legend-head")[0].startswith(f"at 1 s: {at:.3g}")


def test_values_of_a_run_that_had_ended_are_marked(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    short = replaced(eight[1], history=eight[1].history[:6], wall_s=0.5)
    show(chromium, tmp_path, [eight[0], short])
    left, top, width, _ = first_chart(chromium)
    chromium.mouse((left + width / 2, top + 50))
    assert chromium.texts(".legend")[0].count("(ended)") == 1


def test_a_drag_may_begin_beside_the_curves(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    show(chromium, tmp_path, eight)
    left, top, width, _ = first_chart(chromium)
    chromium.mouse((left - 20, top + 50), (left + width / 4, top + 50), (left + width / 3, top + 50), drag=True)
    low, high = chromium.run("[page.charts[0].scales.x.min, page.charts[0].scales.x.max]")
    assert (low, high) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))


def test_zoom_by_mouse_and_keys(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    """Curves and lanes have one time axis."""
    scales = "page.charts.map((chart) => [chart.scales.x.min, chart.scales.x.max])"
    lanes = "[...new Set([...document.querySelectorAll('svg.lane')].map((one) => one.getAttribute('viewBox')))]"
    show(chromium, tmp_path, eight)
    assert chromium.run(scales) == [[0, 3]] * 2
    assert [round(float(part)) for part in chromium.run(lanes)[0].split()] == [0, 0, 900, 2]
    left, top, width, _ = first_chart(chromium)
    y = top + 50
    chromium.mouse((left + width / 3, y), (left + width / 2, y), (left + 2 * width / 3, y), drag=True)
    assert chromium.run(scales) == [[pytest.approx(1, abs=0.02), pytest.approx(2, abs=0.02)]] * 2
    (box,) = chromium.run(lanes)
    assert [float(part) for part in box.split()] == pytest.approx([300, 0, 300, 2], abs=6)
    chromium.click("#reset")
    assert chromium.run(scales) == [[0, 3]] * 2
    chromium.mouse((5, 5))
    chromium.run("document.querySelector('.plot').focus({preventScroll: true})")
    chromium.key("ArrowRight")
    assert chromium.texts(".legend-head")[0].startswith("at 1.5")
    chromium.key("+")
    low, high = chromium.run(scales)[0]
    assert (high - low, (high + low) / 2) == (pytest.approx(1.5), pytest.approx(1.5, abs=0.1))
    chromium.key("0")
    assert chromium.run(scales) == [[0, 3]] * 2
    chromium.key("Escape")
    assert chromium.texts(".legend-head") == ["at the end"] * 2
    assert chromium.errors == []


def test_lanes_of_a_window_in_the_middle(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    gone = replaced(eight[1], timeline=tuple(one for one in eight[1].timeline if one.worker or one.end_s < 1.3))
    show(chromium, tmp_path, [eight[0], gone])
    widths = "[...document.querySelectorAll('svg.lane')].map((one) => one.querySelector('.wait').getAttribute('d'))"
    assert "gone, or nothing recorded" in chromium.text
    chromium.click("#lanes-true")
    assert "0.6 s from the middle of each run" in chromium.text
    assert "from 1.2 s" in chromium.text
    drawn = [sum(map(int, re.findall(r"h(\d+)", d))) for d in chromium.run(widths)]
    assert drawn == [pytest.approx(360, abs=20)] * 2 + [pytest.approx(60, abs=20), pytest.approx(360, abs=20)]
    show(chromium, tmp_path, eight[:1])
    assert "gone, or nothing recorded" not in chromium.text


def test_staleness_panels(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    tail = Staleness(mean=3.0, p50=2, p99=9, max=900, by_worker={0: {2: 500, 9: 20, 900: 1}})
    fresh = replaced(eight[2], staleness=Staleness(by_worker={0: {0: 30}}))
    show(chromium, tmp_path, [eight[0], replaced(eight[1], staleness=tail), fresh])
    assert "Every contribution was fresh (staleness 0): strategy_2." in chromium.text
    assert "The last bar holds all that is staler than 13 too." in chromium.text
    assert chromium.texts(".panels h3 small") == ["mean 1.00, max 2", "mean 3.00, max 900"]
    assert (
        chromium.run("[...document.querySelectorAll('.bars')].map((one) => one.getAttribute('viewBox'))")
        == ["0 0 14 100"] * 3
    )
    bars = chromium.run("document.querySelector('.bars path').getAttribute('d')")
    assert bars.count("M") == 3
    script = "[...document.querySelectorAll('.row > span')].every((one) => one.scrollWidth <= one.clientWidth)"
    assert chromium.run(script), "no label is cut"


def test_isolated_points_and_gaps_are_drawn(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    values = (math.nan, 0.5, math.nan, 0.6, math.inf, 0.7, 0.8)
    history = tuple(Evaluation(float(t), 1, 1, {"accuracy": value}) for t, value in enumerate(values))
    run = replaced(eight[0], history=history, logged=(), wall_s=6.0)
    show(chromium, tmp_path, [run, replaced(eight[1], wall_s=6.0)])
    assert chromium.run("alone(page.charts[0], 1, false).map((i) => page.charts[0].data[0][i])") == [1, 3]
    ink = (
        "(([u, x, y]) => u.ctx.getImageData(u.valToPos(x, 'x', true) - 3, u.valToPos(y, 'y', true) - 3, 6, 6)"
        ".data.some((part) => part))([page.charts[0], {}, {}])"
    )
    # Away from the grid and from the other line, which is at 1 by then.
    assert chromium.run(ink.format(3, 0.6))
    chromium.click('.legend [data-s="0"]')
    blank = [(0.5 + 6 * k / 100, 0.31) for k in range(3)]
    assert not all(chromium.run(ink.format(*place)) for place in blank)
    one = replaced(eight[0], history=history[1:2], logged=(), wall_s=0.0)
    show(chromium, tmp_path, [one])


@pytest.mark.few(3)
@pytest.mark.parametrize("metric", but_thorough(["score", "loss"], {"score"}))
@pytest.mark.parametrize(
    "values",
    [
        (-1e308, 1e308), (1e308, 1.7e308), (5e-324, 1e308), (5e-324, 1e-323), (1e-200, 1.0), (-1.7e308, 0.0),
        (900719925474100.0, 900719925474100.1), (0.0, 0.0), (1.0,),
    ],
)  # fmt: skip
def test_any_finite_value_is_drawn(
    chromium: Browser, tmp_path: Path, eight: list[Summary], metric: str, values: tuple[float, ...]
) -> None:
    history = tuple(Evaluation(float(t), t, t, {metric: value}) for t, value in enumerate(values))
    show(chromium, tmp_path, [replaced(eight[0], history=history, logged=(), wall_s=3.0)])
    within = "page.charts[0].data[1].every((y) => y == null || (y >= s.min && y <= s.max))"
    for _ in range(2):
        assert chromium.run(f"((s) => s.min < s.max && {within})(page.charts[0].scales.y)")
        chromium.click("input[type=checkbox]")
        assert chromium.errors == []


def test_markup_in_names_is_inert(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    evil = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>&\"'"
    run = replaced(
        eight[0], strategy=evil, history=(Evaluation(1.0, 1, 1, {evil: 0.5}),), discarded={evil: 1}, ended=evil,
        incidents=(Incident(1.0, 0, evil),), logged=(Logged(1.0, 0, 1, {evil: 1.0}),),
        workers=tuple(replaced(worker, left=evil) for worker in eight[0].workers),
    )  # fmt: skip
    show(chromium, tmp_path, [run, run], title=evil, target=(evil, 0.9), note=evil)
    assert chromium.run("window.hurt") is None
    assert chromium.run("document.images.length + document.scripts.length") == 3
    assert chromium.text.count(evil) > 10
    assert chromium.run("document.title") == evil


@pytest.mark.thorough
def test_thirty_two_workers_on_a_phone(chromium: Browser, tmp_path: Path, eight: list[Summary]) -> None:
    """Nothing is wider than the window; of the workers the slowest and the fastest are shown."""
    workers = tuple(replaced(eight[0].workers[0], worker=w, speed=20.0 + w) for w in range(32))
    timeline = tuple(replaced(one, worker=w) for w in range(32) for one in eight[0].timeline if one.worker == 0)
    stale = Staleness(mean=1.0, max=2, p99=2, by_worker={w: {0: 5, 2: 5} for w in range(32)})
    show(chromium, tmp_path, [replaced(run, workers=workers, timeline=timeline, staleness=stale) for run in eight])
    assert len(chromium.texts("svg.lane")) == 16 * STRATEGIES
    assert len(chromium.texts(".bars")) == STRATEGIES
    for width in (360, 700):
        chromium.resize(width, 800)
        chromium.settle()
        assert chromium.run("document.documentElement.scrollWidth") <= width
        assert chromium.run("page.charts.every((one) => one.width <= innerWidth - 32 && one.width > innerWidth / 2)")
    assert chromium.errors == []
