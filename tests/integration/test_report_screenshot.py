"""The report in a real browser: drawn in full, with every strategy in its own colour."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
import zlib
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from plesio.observe.report import write_report
from plesio.observe.summary import Evaluation, Logged, Span, Staleness, Summary, WorkerSummary

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


def palette() -> list[tuple[int, ...]]:
    """The light page's colours of the strategies, as its style sheet has them."""
    style = resources.files("plesio.observe").joinpath("report.css").read_text(encoding="utf-8")
    light = dict(reversed(re.findall(r"--s(\d): (#[0-9a-f]{6})", style)))  # the first of each wins: light comes first
    return [tuple(bytes.fromhex(light[str(k)][1:])) for k in range(STRATEGIES)]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_a_browser_draws_the_report(tmp_path: Path) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    write_report(page, [fabricate(k) for k in range(STRATEGIES)], title="Eight of them", target=("accuracy", 0.9))
    command = [
        "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-color-profile=srgb",
        "--force-device-scale-factor=1", f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}",
        f"--window-size={WIDTH},{HEIGHT}", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, timeout=90, capture_output=True, text=True, check=False)
    assert picture.exists(), done.stderr[-2000:]
    width, height, image = rows_of(picture.read_bytes(), ROWS_READ)
    assert (width, height) == (WIDTH, HEIGHT)
    colours, counts = np.unique(image[..., :3].reshape(-1, 3), axis=0, return_counts=True)
    seen = {tuple(colour): count for colour, count in zip(colours.tolist(), counts.tolist(), strict=True)}
    assert len(seen) > 50
    assert seen[255, 255, 255] < 0.97 * ROWS_READ * WIDTH  # a page, not a blank sheet
    # Each colour is at least the square before the name in the table, and some of the line.
    assert [colour for colour in palette() if seen.get(colour, 0) < 11 * 11 + 50] == []
