"""What the live page's server tells monitors: /metrics, /status, /healthz, /readyz, and `plesio status`."""

from __future__ import annotations

import os
import re
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import plesio as ps
from plesio.cli.main import main
from plesio.observe.numbers import Numbers
from plesio.observe.record import LIVE, Record
from plesio.observe.standing import ReaderNow, Standing, WorkerNow
from plesio.observe.totals import Totals
from plesio.watch.process import live_page
from support import loops


class Page:
    """The page of a folder of runs, which a test fills."""

    def __init__(self, runs: Path, address: str) -> None:
        self.runs = runs
        self.address = re.sub(r"^http://|/[^/]+/$", "", address)

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def start(self, name: str) -> Record:
        """A run whose workers have not come yet."""
        (self.runs / name).mkdir()
        return Record(self.runs / name, {"strategy": "async_sgd", "train": "train", "began": 0.0})

    def write(
        self,
        name: str,
        *,
        still_s: float = 0.0,
        silent_s: float = 0.0,
        ends: str = "",
        failed: bool = False,
        readers: Sequence[ReaderNow] = (),
    ) -> None:
        """A run of three workers, of which the second died at 12 s, as it stood at 30 s."""
        (self.runs / name).mkdir()
        head = {"strategy": "async_sgd", "train": "train", "name": name, "clock": "wall", "began": time.time()}
        record, numbers = Record(self.runs / name, head), Numbers()
        for time_s in (30.0 - still_s, 30.0):
            times = {0: ("compute", 29.0), 1: ("died", 12.0), 2: ("wait", 28.0)}
            now = Standing(
                tuple(WorkerNow(k, at, since, 100, 20.0, 5.0, 1.0, 1) for k, (at, since) in times.items()),
                0,
                (0,),
                0.9,
                {0: {1: 9}},
            )
            totals = Totals(
                version=300, steps=300, samples=9600, bytes=2_000_000, deaths=1, joins=3, discarded={"stale": 4}
            )
            told = numbers.of(time_s, totals, now, not ends, readers)
            record.numbers({one.path: one.value for one in told}, {"loss": 0.25}, now)
            record.at(time_s, totals, now, {"loss": 0.25})
        if ends:
            record.end(ends, failed=failed)
        record._file.close()  # else it is still under way
        os.utime(self.runs / name / LIVE, (time.time() - silent_s,) * 2)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    runs = tmp_path_factory.mktemp("runs")
    with live_page(runs) as address:
        yield Page(runs, address)


@pytest.fixture
def page(served: Page) -> Page:
    for one in served.runs.iterdir():
        shutil.rmtree(one)
    return served


def test_metrics_of_a_run_are_read_without_the_token_and_stopping_it_is_not(page: Page) -> None:
    page.write("monday")
    page.write("old", silent_s=1000, ends="finished")
    code, text = page.get("/metrics")
    families = {one.name: one for one in text_string_to_metric_families(text)}
    assert code == 200
    assert [(one.labels, one.value) for one in families["plesio_running"].samples] == [({"run": "monday"}, 1.0)]
    steps = {one.labels["worker"]: one.value for one in families["plesio_worker_steps"].samples}
    assert steps == {"0": 100, "1": 100, "2": 100}
    discarded = {one.labels["reason"]: one.value for one in families["plesio_discarded_contributions"].samples}
    assert discarded == {"stale": 4, "not finite": 0, "cancelled": 0}
    assert families["plesio_loss"].samples[0].value == 0.25
    assert page.get("/ask?run=monday&what=stop")[0] == 404
    assert page.get("/runs")[0] == 404


def test_status_says_who_is_away_since_when_and_for_whom_others_wait(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    page.write("monday")
    assert main(["status", page.address]) == 0
    told = capsys.readouterr().out
    assert told.startswith("monday: under way for 30 s\nasync_sgd, 3 workers, 1 away\n\n")
    for words in (
        "version 300  steps 300  samples 9,600",
        "staleness 1.00 (max 1)",
        "discarded 4 (stale)",
        "loss 0.2500",
    ):
        assert words in told
    rows = [line.split()[:2] for line in told.splitlines() if re.match(r" +\d", line)]
    assert rows == [["1", "died"], ["0", "computing"], ["2", "waiting"]], (
        "who is away comes first, then who is waited for"
    )
    assert re.search(r"1  died +\d+\.\d s", told)
    assert told.count("waited for") == 1
    assert len(told.splitlines()) <= 24, "one screen"


def test_status_and_metrics_say_who_reads_and_how_far_behind(page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    page.write("monday", readers=[ReaderNow("site", 299, 1, 0.1, 4096), ReaderNow("a/b", 200, 100, 9.0, 2_000_000)])
    assert main(["status", page.address]) == 0
    *_, heads, first, second = capsys.readouterr().out.splitlines()
    assert heads.split() == ["version", "behind", "silent", "for", "was", "given", "reader"]
    assert re.fullmatch(r" +200 +100 +\d+\.\d s +2\.00 MB  a/b", first), "who is most behind comes first"
    assert re.fullmatch(r" +299 +1 +\d+\.\d s +4\.10 kB  site", second)
    families = {one.name: one for one in text_string_to_metric_families(page.get("/metrics")[1])}
    behind = {one.labels["reader"]: one.value for one in families["plesio_reader_behind"].samples}
    assert behind == {"site": 1, "a/b": 100}
    assert families["plesio_reader_bytes"].type == "counter"


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ({"still_s": 61.0}, 1, r"stands still: no step was heard of for \d+ s"),
        ({"silent_s": 200.0}, 1, r"stands still: nothing was heard of it for \d+ s; it was killed, or hangs"),
        ({"ends": "worker 0 raised ValueError", "failed": True}, 1, "failed: worker 0 raised ValueError"),
        ({"ends": "finished", "silent_s": 200.0}, 0, "ended: finished"),
    ],
    ids=["still", "silent", "failed", "finished"],
)
def test_status_ends_with_1_where_a_run_stands_still_or_failed(
    page: Page, capsys: pytest.CaptureFixture[str], options: dict[str, object], code: int, words: str
) -> None:
    page.write("monday", **options)  # type: ignore[arg-type]
    assert main(["status", page.address]) == code
    assert re.match(f"monday: {words}\n", capsys.readouterr().out)


def test_a_run_may_take_longer_for_a_step_where_that_is_said(page: Page) -> None:
    page.write("monday", still_s=100.0)
    assert main(["status", page.address]) == 1
    assert main(["status", page.address, "--still-s", "200"]) == 0
    assert page.get("/status?still_s=long") == (400, "still_s= takes seconds\n")


def test_a_head_is_ready_from_its_start_until_the_end_of_its_run(page: Page) -> None:
    assert page.get("/readyz") == (503, "no run is under way\n")
    assert page.get("/status") == (503, "no run is under way\n")
    record = page.start("monday")
    assert page.get("/readyz") == (200, "ok\n"), "its workers are to find it"
    assert page.get("/status")[1].startswith("monday: starting\n")
    record.end("finished")
    assert page.get("/readyz")[0] == 503


def test_a_head_that_hangs_is_not_healthy_and_one_that_starts_is(page: Page) -> None:
    page.write("monday")
    assert page.get("/healthz") == (200, "ok\n")
    os.utime(page.runs / "monday" / LIVE, (time.time() - 700,) * 2)
    assert page.get("/healthz") == (503, "the run hangs\n")
    shutil.rmtree(page.runs / "monday")
    page.start("monday")._file.close()
    os.utime(page.runs / "monday" / LIVE, (time.time() - 700,) * 2)
    assert page.get("/healthz")[0] == 200, "it may wait for its workers for long"


def test_nobody_at_the_address_and_somebody_else_are_told_apart(capsys: pytest.CaptureFixture[str], page: Page) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    assert main(["status", f"127.0.0.1:{port}"]) == 1
    assert f"no live page answers at 127.0.0.1:{port}: " in capsys.readouterr().err
    assert main(["status", "here"]) == 2
    assert "HOST:PORT was wanted" in capsys.readouterr().err


@pytest.mark.thorough
def test_a_run_is_watched_at_the_address_that_was_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        at = f"127.0.0.1:{free.getsockname()[1]}"

    def look(worker: ps.Worker) -> int:
        loops.follow(worker, build=loops.mlp, optimizers=loops.sgd, steps=3)
        with urllib.request.urlopen(f"http://{at}/readyz", timeout=10) as answer:  # its page is there as long as it is
            return int(answer.status)

    assert ps.run(look, "async_sgd", workers=2, watch=at).returned == [200, 200]
