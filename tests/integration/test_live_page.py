"""The live page in a real browser: runs under way and ended ones, its buttons, and what is wrong with folders and ports."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import plesio as ps
from plesio.observe.asked import ask, taken
from plesio.observe.record import LIVE, Record
from plesio.observe.standing import ReaderNow, Standing, WorkerNow
from plesio.observe.summary import Incident
from plesio.observe.totals import Totals
from plesio.watch.process import live_page
from support import loops, remote
from support.browser import FOUND, Browser, browser
from support.programs import PYTHON

SIMULATED = ps.Simulated(ps.Cluster.preset("one-straggler", 4))
WAIT_S = 30.0

needs_browser = pytest.mark.skipif(FOUND is None, reason="needs chromium")


class Address:
    """What `Browser.open` takes in place of a file."""

    def __init__(self, address: str) -> None:
        self._address = address

    def as_uri(self) -> str:
        return self._address


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@contextmanager
def shown(tab: Browser, runs: Path, words: str) -> Iterator[str]:
    """The page of a folder, once it shows some words."""
    with live_page(runs) as address:
        tab.open(Address(address))  # type: ignore[arg-type]
        until(tab, lambda: words in tab.run("document.body.innerText"))
        yield address
        assert tab.errors == []
        tab.open(Address("about:blank"))  # type: ignore[arg-type] # it would go on asking


def until(tab: Browser, holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, (tab.errors, tab.run("document.body.innerText"))
        time.sleep(0.1)


def write(folder: Path, workers: int, seconds: int, metric: str = "accuracy", name: str = "async_sgd") -> None:
    """The record of a run, one line a second."""
    folder.mkdir(parents=True)
    head = {"strategy": name, "train": "train", "clock": "wall", "target": None, "keeps": False, "notes": []}
    to = Record(folder, {**head, "context": [["command", "plesio run train.py"]], "began": time.time()})
    to.event(Incident(1.0, 1, "worker 1 died"))
    for t in range(1, seconds + 1):
        times = t - 0.5, 9 * t, 0.7 * t, 0.2 * t, 0.1 * t
        at = tuple(WorkerNow(k, "wait" if k % 5 else "compute", *times, k) for k in range(workers))
        stale = {-1: {0: 5 * t, 3: t}} if t == seconds else None
        totals = Totals(version=t, steps=9 * workers * t, samples=32 * t, bytes=1000 * t)
        to.at(float(t), totals, Standing(at, 0, (0,), 0.7, stale), {metric: 1 - 1 / t})
    to._file.close()  # it is still under way


def more(folder: Path, number: int, **said: object) -> None:
    """Another line of a record."""
    with open(folder / LIVE, "a") as file:
        file.write(json.dumps({"n": number, **said}) + "\n")


def train(worker: ps.Worker) -> None:
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    inputs, labels = loops.data(8)
    while True:
        optimizer.zero_grad()
        loss = loops.loss_of(model, inputs, labels)
        loss.backward()
        optimizer.step()
        worker.log(loss=loss)


SCRIPT = """
import time
import plesio as ps
from integration.test_live_page import train
if __name__ == "__main__":
    plan = ps.phases(ps.bounded_staleness(2), ps.local_sgd(4), ps.sync_sgd())
    run = ps.run(train, plan, workers=2, pace=0.02, watch=True, runs={runs!r}, seed=1,
                 checkpoint=ps.Checkpoint(every_s=600), until=ps.Until(seconds=60))
    print(run.ended)
"""


@pytest.mark.thorough
@needs_browser
def test_a_run_under_way_is_shown_keeps_a_checkpoint_switches_and_stops_when_asked(
    tab: Browser, tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(runs=str(tmp_path / "runs")))
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [*PYTHON, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    try:
        assert process.stderr is not None
        address = next(line for line in process.stderr if line.startswith("live page: ")).split()[-1]
        tab.open(Address(address))  # type: ignore[arg-type]
        until(tab, lambda: "under way" in tab.run("document.body.innerText"))
        until(tab, lambda: "loss" in tab.run("document.querySelector('figure')?.innerText ?? ''"))
        assert "Staleness counts versions" in tab.run("document.body.innerText")
        first = tab.run("page.charts[0].data[0].length")
        until(tab, lambda: tab.run("page.charts[0].data[0].length") > first)
        tab.run("document.querySelector('#checkpoint-0').click()")
        until(tab, lambda: "a checkpoint is being written" in tab.run("document.body.innerText"))
        assert tab.run("document.querySelector('#switch-0-0').disabled")
        tab.run("document.querySelector('#switch-0-1').click()")
        until(tab, lambda: "(every 4 steps) at version" in tab.run("document.body.innerText"))
        until(tab, lambda: tab.run("document.querySelector('#switch-0-1').disabled"))
        if "PLESIO_PICTURE" in os.environ:
            tab.resize(1280, 1240)  # the first figure is on it
            until(tab, lambda: tab.run("page.data.strategies[0].wall_s") > 8)
            Path(os.environ["PLESIO_PICTURE"]).write_bytes(tab.picture())
        tab.run("window.confirm = () => true; document.querySelector('#stop-0').click()")
        out, _ = process.communicate(timeout=60)
        assert out.strip() == "stopped from the live page"
        assert tab.errors == [] or all("ERR_" in one for one in tab.errors)  # the page went with the run
        tab.open(Address("about:blank"))  # type: ignore[arg-type]
    finally:
        process.kill()
        process.wait()
    (folder,) = (tmp_path / "runs").iterdir()
    assert list((folder / "checkpoints").glob("*"))
    assert json.loads((folder / LIVE).read_text().splitlines()[-1])["why"] == "stopped from the live page"


@pytest.mark.thorough
@needs_browser
def test_who_reads_a_run_is_shown_while_it_is_under_way(tab: Browser, tmp_path: Path) -> None:
    runs, many = tmp_path / "runs", [ReaderNow(f"reader {k}", 9, 0, 0.0, 0) for k in range(70)]
    write(runs / "read", workers=2, seconds=9)
    record = Record(tmp_path, {})
    record.readers([ReaderNow("<b>site</b>", 7, 2, 0.31, 4096), ReaderNow("early", -1, 0, 3.0, 0), *many])
    record.end("finished")
    _, told, _ = map(json.loads, (tmp_path / LIVE).read_text().splitlines())
    with shown(tab, runs, "computing"):
        assert "Who reads the run" not in tab.run("document.body.innerText")
        more(runs / "read", 100, kind="readers", each=told["each"], others=told["others"])
        until(tab, lambda: "Who reads the run" in tab.run("document.body.innerText"))
        text = tab.run("document.querySelector('#readers').innerText").replace("\xa0", " ")
        heads, first, second, *_ = [row.split("\t") for row in text.splitlines()]
        assert heads[-5:] == ["reader", "version", "behind", "silent, s", "was given"]
        assert first[-5:] == ["<b>site</b>", "7", "2", "0.3", "4.1 kB"]
        assert second[-4:] == ["–", "–", "3.0", "0 B"]
        assert "8 more readers are not listed" in tab.run("document.body.innerText")
        tab.resize(390, 900)
        tab.settle()
        assert tab.run("document.documentElement.scrollWidth") <= 390
        tab.resize(1280, 900)


@pytest.mark.thorough
@needs_browser
def test_an_hour_of_32_workers_is_drawn_and_fits_a_phone_in_the_dark(tab: Browser, tmp_path: Path) -> None:
    write(tmp_path / "hour", workers=32, seconds=3600)
    assert (tmp_path / "hour" / LIVE).stat().st_size < 5_000_000
    with shown(tab, tmp_path, "worker 31"):
        assert tab.run("document.querySelectorAll('.lane').length") == 32
        assert tab.run("document.querySelectorAll('#now tbody tr').length") == 32
        assert "waiting for worker 0" in tab.run("document.querySelector('#now').innerText")
        tab.resize(375, 800, dark=True)
        tab.settle()
        assert tab.run("document.documentElement.scrollWidth") <= 375
        assert tab.run("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
        tab.resize(1280, 900)


@pytest.mark.thorough
@needs_browser
def test_runs_side_by_side_are_chosen_by_the_keyboard_and_keep_their_zoom(tab: Browser, tmp_path: Path) -> None:
    write(tmp_path / "a", 2, 30, name="async_sgd")
    write(tmp_path / "b", 2, 40, name="sync_sgd")
    with shown(tab, tmp_path, "sync_sgd"):
        tab.run("document.querySelector('nav details').open = true; document.querySelector('#run-1').focus()")
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = " " if kind == "char" else ""
            tab.send("Input.dispatchKeyEvent", type=kind, key=" ", code="Space", text=text, windowsVirtualKeyCode=32)
        until(tab, lambda: "2 runs are under way" in tab.run("document.querySelector('#report').innerText"))
        assert tab.run("page.charts[0].lines.length") == 2
        tab.run("zoom([5, 20])")
        tab.run("window.drawnBefore = document.querySelector('#part-head').firstChild")
        until(tab, lambda: tab.run("document.querySelector('#part-head').firstChild !== window.drawnBefore"))
        assert tab.run("JSON.stringify(view.zoom)") == "[5,20]"


@pytest.mark.thorough
@needs_browser
def test_markup_in_names_is_inert(tab: Browser, tmp_path: Path) -> None:
    bad = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script>'
    write(tmp_path / "<b>run", 1, 5, metric=bad, name=bad)
    with shown(tab, tmp_path, "<img src=x"):
        assert tab.run("window.hacked ?? 0") == 0
        assert tab.run("document.querySelectorAll('#report img, nav b, nav img').length") == 0


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("metric", ["constructor", "__proto__"])
def test_metrics_named_like_parts_of_the_language_are_drawn(tab: Browser, tmp_path: Path, metric: str) -> None:
    write(tmp_path / "run", 1, 5, metric=metric)
    with shown(tab, tmp_path, "async_sgd on train"):
        until(tab, lambda: tab.run("page.charts.length"))
        assert tab.run("page.charts[0].data[1].length") == 5
        assert "worker 1 died" in tab.run("document.body.innerText")


@pytest.mark.thorough
@needs_browser
def test_a_run_that_was_killed_days_ago_is_not_under_way(tab: Browser, tmp_path: Path) -> None:
    write(tmp_path / "run", 1, 5)
    os.utime(tmp_path / "run" / LIVE, (time.time() - 3 * 86_400,) * 2)
    with shown(tab, tmp_path, "async_sgd on train: silent for 3 days"):
        pass


@pytest.mark.thorough
@needs_browser
def test_checkpoints_do_not_push_deaths_out_of_the_events(tab: Browser, tmp_path: Path) -> None:
    write(tmp_path / "run", 2, 5)
    for k in range(60):
        saved = {"t": 5.0 + k, "worker": None, "what": "a checkpoint is being written"}
        more(tmp_path / "run", 1_000 + k, kind="event", **saved)
    with shown(tab, tmp_path, "a checkpoint is being written"):
        rows = "[...document.querySelectorAll('#incidents tbody tr')].map((one) => one.innerText)"
        until(tab, lambda: tab.run(rows) == ["64\t–\ta checkpoint is being written", "1\t1\tworker 1 died"])


@pytest.mark.thorough
@needs_browser
def test_an_advice_is_shown_until_it_no_longer_holds_and_asked_for_while_a_run_goes_on(
    tab: Browser, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    write(folder, 2, 5)
    advice = "At the speeds of the last 30 s async_sgd would make 1.8 times as many samples a second as sync_sgd."
    with shown(tab, tmp_path, "async_sgd on train"):
        assert not (folder / "asked-advice").exists()  # nobody may be there to hear it
        more(folder, 1_000, kind="advice", what=advice)
        until(tab, lambda: advice in tab.run("document.querySelector('.advice')?.innerText ?? ''"))
        assert (folder / "asked-advice").exists()
        more(folder, 1_001, kind="advice", what="")
        until(tab, lambda: not tab.run("document.querySelectorAll('.advice').length"))
        more(folder, 1_002, kind="end", why="finished", failed=False)
        until(tab, lambda: "finished" in tab.run("document.body.innerText"))


@pytest.mark.thorough
@needs_browser
def test_a_page_that_is_open_for_a_day_keeps_a_bounded_part(tab: Browser, tmp_path: Path) -> None:
    write(tmp_path / "run", 2, 5)
    with shown(tab, tmp_path, "async_sgd on train"):
        day = """(() => {
            const [run] = runs.values(), last = run.at.at(-1);
            for (let k = 0; k < 864000; k++) take(run, {...last, t: 5 + k / 10, values: {accuracy: k}});
            for (let k = 0; k < 10000; k++) take(run, {kind: "event", t: k, worker: 0, what: "worker 0 died"});
            return [run.at.length, run.values.accuracy.y.length, run.events.length, run.values.accuracy.y.at(-1)];
        })()"""
        kept, points, events, last = tab.run(day)
        assert kept <= 3000
        assert points <= 3000
        assert events <= 500
        assert last == 863999


@pytest.mark.thorough
@needs_browser
def test_damaged_other_and_vanishing_folders_are_told(tab: Browser, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / LIVE).write_text('{"n":1,"kind":"head","format":99,"strategy":"x"}\n')
    with shown(tab, tmp_path, "This run cannot be shown: its record is of another version of plesio"):
        write(tmp_path / "new", 2, 5)
        until(tab, lambda: "async_sgd on train" in tab.run("document.body.innerText"))
        (tmp_path / "new" / LIVE).unlink()
        (tmp_path / "new").rmdir()
        until(tab, lambda: "its folder is gone" in tab.run("document.body.innerText"))


@pytest.mark.thorough
@needs_browser
def test_a_thousand_runs_are_listed(tab: Browser, tmp_path: Path) -> None:
    for number in range(1000):
        write(tmp_path / f"run-{number:04}", 1, 2)
    with shown(tab, tmp_path, "1,000 runs in the folder"):
        assert tab.run("document.querySelectorAll('nav li').length") == 1000


@pytest.mark.thorough
def test_the_page_wants_its_token_and_known_runs(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "one", 1, 2)
    with live_page(tmp_path / "runs") as address:
        assert urllib.request.urlopen(address, timeout=10).status == 200
        for wrong in (re.sub(r"/[^/]+/$", "/", address), re.sub(r"/[^/]+/$", "/wrong/runs", address)):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(wrong, timeout=10)
        for wrong in ("run=../one&what=stop", "run=one&what=delete"):
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(urllib.request.Request(f"{address}ask?{wrong}", method="POST"), timeout=10)
        urllib.request.urlopen(urllib.request.Request(f"{address}ask?run=one&what=stop", method="POST"), timeout=10)
    assert (tmp_path / "runs" / "one" / "asked-stop").exists()


def test_what_is_asked_makes_no_file_outside_the_run_folder_and_takes_none_of_others(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "asked-stop").symlink_to(elsewhere)
    (folder / "asked-and-answered.txt").touch()
    ask(folder, "stop")
    assert not elsewhere.exists()
    assert taken(folder) == ["stop"]
    assert [one.name for one in folder.iterdir()] == ["asked-and-answered.txt"]


def test_a_page_that_cannot_be_served_costs_the_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sink:
        begun = False

        def begin(self, *_: object) -> None:
            self.begun = True

        tell = end = begin

    def fails(*_: object) -> None:
        raise ps.ConfigurationError("no page")

    monkeypatch.setattr("plesio.runner.live_page", fails)
    sink = Sink()
    with pytest.raises(ps.ConfigurationError, match="no page"):
        ps.run(train, "async_sgd", workers=1, watch=True, runs=tmp_path, sinks=[sink])
    assert not sink.begun
    assert [one.name for folder in tmp_path.iterdir() for one in folder.iterdir()] == ["run.toml"]


def test_a_page_that_ends_at_once_is_told_as_such(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(ps.ConfigurationError, match="the live page cannot be served"), live_page(tmp_path / "none"):
        pass
    assert "is no folder" in capfd.readouterr().err


@pytest.mark.thorough
def test_a_port_in_use_and_a_missing_folder_are_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, words in (
            ([str(tmp_path), "--port", port], "Address already in use"),
            ([str(tmp_path / "none")], "is no folder"),
            ([str(tmp_path), "--host", "no.such.host.invalid"], "give another --port (0 takes any), or another --host"),
        ):
            done = subprocess.run(
                [*PYTHON, "-m", "plesio", "watch", *arguments], capture_output=True, text=True, timeout=60
            )
            assert (done.returncode, done.stdout) == (2, "")
            assert words in done.stderr
            assert len(done.stderr.splitlines()) == 1


def count(worker: ps.Worker) -> None:
    model = loops.mlp()
    model, optimizer, _ = worker.prepare(model, loops.sgd(model), None)
    inputs, labels = loops.data(8)
    for _ in range(400):
        loops.descend(optimizer, loops.loss_of(model, inputs, labels))


@pytest.mark.thorough
def test_a_simulated_run_is_recorded_and_the_same_as_without(tmp_path: Path) -> None:
    recorded = ps.run(count, "async_sgd", workers=4, engine=SIMULATED, runs=tmp_path)
    plain = ps.run(count, "async_sgd", workers=4, engine=SIMULATED)
    assert all(bool((plain.state_dict[name] == one).all()) for name, one in recorded.state_dict.items())
    lines = [json.loads(line) for line in (recorded.folder / LIVE).read_text().splitlines()]
    last = [one for one in lines if one["kind"] == "at"][-1]
    assert last["version"] == recorded.version == 1600
    assert last["bytes"] == recorded.bytes
    assert last["ideal"] == pytest.approx(recorded.ideal_share, abs=1e-3)
    stale = [one for one in lines if one["kind"] == "stale"][-1]["by"]
    assert {int(k): {int(t): n for t, n in by.items()} for k, by in stale.items()} == recorded.staleness.by_worker


@pytest.mark.thorough
def test_a_real_run_tells_at_the_end_what_its_summary_says(tmp_path: Path) -> None:
    run = ps.run(count, ps.bounded_staleness(2), workers=2, runs=tmp_path, pace=0.002)
    lines = [json.loads(line) for line in (run.folder / LIVE).read_text().splitlines()]
    last = [one for one in lines if one["kind"] == "at"][-1]
    assert (last["version"], last["steps"], last["bytes"]) == (run.version, run.steps, run.bytes)
    assert [one[6] for one in last["workers"]] == [one.steps for one in run.workers]
    assert [one[3] for one in last["workers"]] == pytest.approx([one.compute_s for one in run.workers], abs=0.05)
    assert lines[-1]["why"] == "finished"


@pytest.mark.thorough
def test_a_run_whose_workers_join_it_is_recorded(tmp_path: Path) -> None:
    done = remote.run(count, "async_sgd", workers=2, runs=tmp_path)
    assert done.folder is not None
    lines = [json.loads(line) for line in (done.folder / LIVE).read_text().splitlines()]
    last = [one for one in lines if one["kind"] == "at"][-1]
    assert [(one[0], one[6]) for one in last["workers"]] == [(0, 400), (1, 400)]


def test_what_is_no_function_and_not_true_is_refused() -> None:
    with pytest.raises(ps.ConfigurationError, match=r"watch='yes': a function .* \(or True, for the live page\)"):
        ps.run(count, "async_sgd", workers=1, watch="yes")  # type: ignore[arg-type]
