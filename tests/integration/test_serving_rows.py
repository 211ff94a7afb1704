"""Rows of a run's tables for those who serve them: kept in memory, over HTTP, and printed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvicorn

import plesio as ps
from plesio.cli.main import main
from plesio.protocol.reading import Opened, RowsGiven
from plesio.reading.http import BINARY, BODY_MAX, IDS_MAX, rows_app
from plesio.reading.kept import KeptRows
from plesio.reading.mirror import Mirror
from plesio.tables.spec import RowSGD, TableSpec
from plesio.tensors.model import Described
from support.programs import PYTHON
from support.reading import TIMEOUT_S, free_port, until

DIM = 3
ADA, BOB = ps.ids_of(["ada", "bob"]).tolist()


class Head:
    """A run that can go away and come back as another; rows step when it is told."""

    def __init__(self) -> None:
        self.run, self.version, self.there = b"one", 0, True
        self.asked: list[tuple[bytes, dict[str, int]]] = []
        self.begin()

    def begin(self) -> None:
        self.specs = (TableSpec("users", DIM, RowSGD(lr=1.0), seed=5),)
        self.source = Mirror(self.specs)
        self.version = 0

    def step(self, rows: Mapping[int, float]) -> None:
        self.version += 1
        keys = np.array([*rows], np.int64)
        values = np.repeat(np.array([*rows.values()], np.float32)[:, None], DIM, 1)
        came = {"keys": keys, "values": values, "versions": np.full(len(keys), self.version)}
        self.source.came("users", came, self.version, seed=5)

    def ask(self, run: bytes, since: Mapping[str, int]) -> tuple[Opened, dict[str, list[RowsGiven]]]:
        self.asked.append((run, dict(since)))
        if not self.there:
            raise ps.ServerLostError("the head is away")
        clock = since["users"] if run == self.run else None
        opened = Opened("async_sgd", Described((), ()), self.specs, False, b"", self.run)
        return opened, {"users": self.source.told("users", self.version, clock)}


@pytest.fixture
def head() -> Head:
    head = Head()
    head.step({1: 1.0, -2: 2.0, ADA: 3.0})
    return head


@pytest.fixture
def kept(head: Head) -> Iterator[KeptRows]:
    with KeptRows(head.ask, every_s=0.01) as kept:
        yield kept


@contextmanager
def served(kept: KeptRows) -> Iterator[str]:
    config = uvicorn.Config(rows_app(kept), log_level="warning", lifespan="off")
    server, sock = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    server.should_exit = True
    thread.join(TIMEOUT_S)
    sock.close()


def ask(url: str, body: bytes | None = None, kind: str = "application/json") -> tuple[int, Any, Any]:
    """Status, answer and headers."""
    request = urllib.request.Request(url, body, {"Content-Type": kind} if body is not None else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if "json" in answer.headers["content-type"] else content, answer
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read()), error


def test_kept_rows_follow_those_that_changed(head: Head, kept: KeptRows) -> None:
    assert kept.size("users") == (3, DIM, 1)
    head.step({1: 5.0})
    until(lambda: kept.size("users").version == 2)
    version, vectors, known = kept.rows("users", [1, -2, 77])
    assert version == 2
    assert vectors[:2].tolist() == [[5.0] * DIM, [2.0] * DIM]
    assert known.tolist() == [True, True, False]
    first = torch.empty(1, DIM)
    head.source.table("users").pull(np.array([77]), first.numpy())
    assert vectors[2].tolist() == first[0].tolist()
    assert head.asked[0] == (b"", {})
    assert (b"one", {"users": 1}) in head.asked


def test_rows_are_answered_while_the_run_is_away_and_another_run_replaces_them(head: Head, kept: KeptRows) -> None:
    head.there = False
    until(lambda: kept.away)
    assert kept.away == "the head is away"
    assert kept.rows("users", [1])[1].tolist() == [[1.0] * DIM]
    head.begin()
    head.step({4: 4.0})
    head.run, head.there = b"two", True
    until(lambda: not kept.away)
    assert kept.size("users") == (1, DIM, 1)
    assert kept.rows("users", [1, 4])[2].tolist() == [False, True]


def test_rows_over_http(kept: KeptRows) -> None:
    with served(kept) as url:
        assert ask(f"{url}/tables")[:2] == (200, [{"table": "users", "rows": 3, "dim": DIM, "version": 1}])
        want = {"table": "users", "version": 1, "ids": [1, -2], "known": [True, True]}
        want["vectors"] = [[1.0] * DIM, [2.0] * DIM]
        assert ask(f"{url}/rows/users?ids=1,-2")[:2] == (200, want)
        assert ask(f"{url}/rows/users", b'{"ids": [1, -2]}')[:2] == (200, want)
        assert ask(f"{url}/rows/users?ids=")[1]["vectors"] == []
        for got in (ask(f"{url}/rows/users?strings=ada,bob"), ask(f"{url}/rows/users", b'{"strings": ["ada", "bob"]}')):
            assert (got[1]["ids"], got[1]["known"]) == ([ADA, BOB], [True, False])
        keys = np.array([-2, ADA], "<i8").tobytes()
        status, content, told = ask(f"{url}/rows/users", keys, BINARY)
        assert (status, told.headers["plesio-version"], told.headers["plesio-dim"]) == (200, "1", str(DIM))
        assert np.frombuffer(content, "<f4").reshape(-1, DIM).tolist() == [[2.0] * DIM, [3.0] * DIM]
        status, well, _ = ask(f"{url}/healthz")
        assert (status, well["away"]) == (200, "")
        assert 0 <= well["heard_s_ago"] < TIMEOUT_S


WRONG: list[tuple[str, bytes | None, str, int, str]] = [
    ("/rows/films?ids=1", None, "", 404, "the run has no table 'films'; it has users"),
    ("/rows/users", None, "", 400, "give ids, whole numbers, or strings, one of both"),
    ("/rows/users?ids=1&strings=a", None, "", 400, "one of both"),
    ("/rows/users?ids=1,x", None, "", 400, "Expected `int`, got `str` - at `$.ids[1]`"),
    ("/rows/users?ids=9223372036854775808", None, "", 400, "$.ids[0]"),
    ("/rows/users?id=1", None, "", 400, "unknown field `id`"),
    ("/rows/users", b"[", "application/json", 400, "that asks for no rows"),
    ("/rows/users", b'{"ids": [1.5]}', "application/json", 400, "Expected `int`, got `float`"),
    ("/rows/users", b'{"ids": "1"}', "application/json", 400, "Expected `array | null`, got `str`"),
    ("/rows/users", b'{"strings": ["\\ud800"]}', "application/json", 400, "that asks for no rows"),
    ("/rows/users", b"1234567", BINARY, 400, "multiple of element size"),
    ("/rows/users", bytes(8 * IDS_MAX + 8), BINARY, 413, "65,537 ids: allowed are 65,536 at once"),
    ("/rows/users", bytes(BODY_MAX + 1), BINARY, 413, "allowed are 4,194,304 bytes"),
    ("/nowhere", None, "", 404, "Not Found"),
    ("/tables", b"", "application/json", 405, "Method Not Allowed"),
]


def test_what_is_asked_wrongly_is_refused_with_a_reason(kept: KeptRows) -> None:
    with served(kept) as url:
        for path, body, kind, status, why in WRONG:
            got = ask(f"{url}{path}", body, kind)
            assert (got[0], why in got[1]["error"]) == (status, True), (path, got)
        assert ask(f"{url}/healthz")[0] == 200


def test_the_command_line_is_checked_before_the_run_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    for typed, why in (
        (["rows", "h:1", "users", "--ids", "1,a"], "--ids 1,a: Expected `int`, got `str`"),
        (["rows", "h:1", "users", "--ids", str(1 << 63)], "Expected `int` <="),
        (["rows", "h:1", "users", "--ids", "1", "--strings", "a"], "give one of both"),
        (["rows", "h:1", "--ids", "1"], "plesio rows HOST:PORT TABLE --ids 1,2"),
        (["serve-rows", "h:1", "--listen", "here"], "--listen 'here': HOST:PORT was wanted"),
    ):
        assert main(typed) == 2
        assert why in capsys.readouterr().err


class Liked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = ps.Table(DIM, ps.RowSGD(lr=0.1), seed=3)
        self.last = torch.nn.Linear(DIM, 1)

    def forward(self, users: torch.Tensor) -> torch.Tensor:
        scored: torch.Tensor = self.last(self.users(users))
        return scored


def rate(worker: ps.Worker, enough: Path) -> None:
    """Step the rows of ada and 0 to 9 until that file is there."""
    model = Liked()
    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01))
    ids = torch.tensor([ADA, *range(10)])
    for _ in worker.steps(1_000_000):
        optimizer.zero_grad()
        model(ids).square().mean().backward()
        optimizer.step()
        if enough.exists():
            worker.stop("seen")


def answers(port: int) -> bool:
    with socket.socket() as line:
        return line.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def beside(enough: Path) -> Iterator[str]:
    """Inside, a run can be read at the address that is given."""
    address = f"127.0.0.1:{free_port()}"
    options: dict[str, Any] = {"workers": 1, "readers": address}
    thread = threading.Thread(target=partial(ps.run, partial(rate, enough=enough), "async_sgd", **options))
    thread.start()
    try:
        yield address
    finally:
        enough.touch()
        thread.join(TIMEOUT_S)


@pytest.mark.thorough
def test_rows_of_a_run_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def printed(*typed: str) -> Any:
        assert main(["rows", address, *typed, "--timeout-s", str(TIMEOUT_S)]) == 0
        out = capsys.readouterr().out
        return out[out.index("[") :] if "--json" in typed else out  # the run, too, may have said something

    with beside(tmp_path / "enough") as address:
        with ps.read(address) as reader:
            reader.wait(newer_than=0)
        (first,) = json.loads(printed("--json"))
        assert first == {"table": "users", "rows": 11, "dim": DIM, "version": first["version"]}
        (later,) = json.loads(printed("users", "--json"))
        assert later["version"] > first["version"]
        found = json.loads(printed("users", "--ids", "3,-1", "--json"))
        assert [(one["id"], len(one["vector"])) for one in found] == [(3, DIM), (-1, DIM)]
        (ada,) = json.loads(printed("users", "--strings", "ada", "--json"))
        assert ada["id"] == ADA
        assert "users" in printed()
        assert str(ADA) in printed("users", "--strings", "ada")
        assert main(["rows", address, "films", "--ids", "1"]) == 2
        assert "the run has no table 'films'; it has users" in capsys.readouterr().err


@pytest.mark.thorough
def test_serve_rows_answers_during_the_run_and_after_its_end(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with beside(tmp_path / "enough") as address:
        where = [f"tcp://{address}", "--listen", f"127.0.0.1:{port}", "--every-s", "0.05"]
        process = subprocess.Popen([*PYTHON, "-m", "plesio", "serve-rows", *where])
        until(lambda: answers(port))
        version = ask(f"{url}/rows/users?ids=1")[1]["version"]
        until(lambda: ask(f"{url}/rows/users?ids=1")[1]["version"] > version)
    until(lambda: ask(f"{url}/healthz")[1]["away"] or ask(f"{url}/healthz")[1]["heard_s_ago"] > 1)
    status, after, _ = ask(f"{url}/rows/users?strings=ada")
    assert (status, after["known"]) == (200, [True])
    process.send_signal(signal.SIGINT)
    assert process.wait(TIMEOUT_S) == 0
