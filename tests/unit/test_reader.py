"""A reader against the service of the readers' process, over real lines, with versions that the test puts there."""

from __future__ import annotations

import secrets
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch

import plesio as ps
from plesio.launch.local import readers_process
from plesio.launch.local.readers_process import Readers
from plesio.protocol import reading
from plesio.protocol.launcher import Arrived
from plesio.reading import place as places
from plesio.reading import run_line
from plesio.reading.line import FarLine, Line, LineLostError, NearLine
from plesio.reading.place import ReadingPlace
from plesio.reading.reader import Reader
from plesio.reading.service import Known, Service
from plesio.reading.shelf import Sealed, Shelf
from plesio.system.memory import SharedBlock
from plesio.tables.file import in_memory
from plesio.tables.spec import RowSGD, TableSpec
from plesio.tensors.arena import PAGE, Arena, Layout, Lies
from plesio.tensors.model import describe
from plesio.transport.board import Board
from plesio.transport.socket_wire import SocketWire

FLOATS = 4096
USERS, ITEMS = (TableSpec(name, 2, RowSGD(lr=1.0)) for name in ("users", "items"))
RUNS_S = 20.0


class Net(torch.nn.Module):
    def __init__(self, *tables: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(FLOATS))
        for name in tables:
            self.add_module(name, ps.Table(2, ps.RowSGD(lr=1.0)))

    def of_users(self, *ids: int) -> torch.Tensor:
        found: torch.Tensor = self.get_submodule("users")(torch.tensor(ids))
        return found


def weights_of(version: int) -> torch.Tensor:
    return torch.randn(FLOATS, generator=torch.Generator().manual_seed(version))


class Head:
    """What readers ask of their process, of a run with these tables."""

    worker_token = "w"

    def __init__(self, tables: tuple[TableSpec, ...] = ()) -> None:
        self.model, _ = describe(Net(), None)
        self.layout = Layout(self.model.specs)
        self.opened = reading.Opened("async_sgd", self.model, tables, False, b"", secrets.token_bytes(16))
        self.board = Board(SharedBlock.create(PAGE, "the board"), workers=1)
        self.asked = 0
        self.shelf = Shelf(self._ask)
        self.refuses = False
        self._tables = tables

    def _ask(self) -> None:
        self.asked += 1

    @property
    def newest(self) -> int:
        return self.board.version

    def begun(self, line: object) -> reading.Opened:
        if self.refuses:
            raise ps.ConfigurationError("not this one")
        return self.opened

    def name(self, known: Known, wanted: str) -> None:
        known.name = wanted

    def put(self, version: int, stepped: tuple[int, ...] = (), final: bool = False, clock: int | None = None) -> None:
        """The newest version; of the tables these rows stepped, to the number of the clock: left out, that of the version."""
        clock = version if clock is None else clock
        arena = Arena.private(self.layout)
        arena.views[0].copy_(weights_of(version))
        rows: dict[str, Any] = {
            "keys": np.array(stepped, np.int64),
            "values": np.full((len(stepped), 2), clock, np.float32),
            "versions": np.full(len(stepped), clock, np.int64),
            "state": np.zeros((len(stepped), 0), np.float32),
            "seed": np.array([0]),
        }
        first = self.shelf.newest is None
        told = reading.VersionGiven(
            Lies(), 0.0, version, 0, final, clock, self.model if first else None, self._tables if first else ()
        )
        self.shelf.put(
            told, Sealed(arena.bytes), [in_memory({one.name: rows for one in self._tables})] if self._tables else []
        )
        self.board.version = version


class Place(ReadingPlace):
    """That of a head: another one may take its place."""

    def __init__(self, head: Head, far: bool = False) -> None:
        super().__init__("here", 1, "r", "w", far=far)
        self.__dict__.update(head=head, dials=0)

    __slots__ = ("__dict__",)

    def dial(self) -> Line[reading.ToReader]:
        self.__dict__["dials"] += 1
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._serve, args=(self.__dict__["head"], theirs), daemon=True).start()
        return self._line(ours, reading.ToReader)

    def _line(self, end: socket.socket, kinds: Any) -> Line[Any]:
        return FarLine(SocketWire(end, "it"), kinds) if self.far else NearLine(end.detach(), kinds, "it")

    def _serve(self, head: Head, end: socket.socket) -> None:
        with suppress(LineLostError), self._line(end, reading.FromReader) as line:
            Service(head, line, Known("")).run()


@pytest.fixture(params=[False, True], ids=["near", "far"])
def far(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def opened() -> Iterator[Callable[..., tuple[Reader, Place]]]:
    readers: list[Reader] = []

    def open(head: Head, far: bool = False, codec: str | None = None) -> tuple[Reader, Place]:
        place = Place(head, far)
        readers.append(Reader(place, "one", codec, timeout_s=RUNS_S))
        return readers[-1], place

    yield open
    for one in readers:
        one.close()


def another_head(place: Place, reader: Reader, head: Head) -> None:
    place.__dict__["head"] = head
    reader._run._hang_up()


Open = Callable[..., tuple[Reader, Place]]


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4"])
def test_a_reader_of_packed_differences_begins_exact_and_goes_on_after_exact_ones_and_lost_lines(
    codec: str, opened: Open
) -> None:
    head = Head()
    head.put(1)
    reader, place = opened(head, True, codec)
    assert (reader.take(), reader.exact) == (1, True)
    head.put(2)
    assert (reader.take(), reader.exact) == (2, False)
    assert (reader.take(exact=True), reader.exact) == (2, True)
    assert torch.equal(reader.state_dict()["weight"], weights_of(2))
    head.put(3)
    assert (reader.take(), reader.exact, place.__dict__["dials"]) == (3, False, 1)
    reader._run._hang_up()
    head.put(4)
    assert (reader.take(), reader.exact, place.__dict__["dials"]) == (4, True, 2)
    assert torch.equal(reader.state_dict()["weight"], weights_of(4))


def test_a_head_that_goes_on_from_an_earlier_version_is_followed_from_there(far: bool, opened: Open) -> None:
    first, second = Head(), Head()
    first.put(100)
    second.put(90)
    reader, place = opened(first, far)
    assert reader.take() == 100
    another_head(place, reader, second)
    assert reader.take() == 90
    assert torch.equal(reader.state_dict()["weight"], weights_of(90))
    another_head(place, reader, first)
    assert reader.take() == 100
    another_head(place, reader, second)
    assert reader.wait()
    assert reader.version == 90


def test_the_last_version_of_a_head_that_went_back_ends_the_versions(far: bool, opened: Open) -> None:
    first, second = Head(), Head()
    first.put(100)
    second.put(95, final=True)
    reader, place = opened(first, far)
    versions = reader.versions(every_versions=3)
    assert next(versions) == 100
    another_head(place, reader, second)
    assert list(versions) == [95]
    assert reader.ended


def test_a_reader_that_asks_first_when_the_run_is_over_takes_its_last_version(far: bool, opened: Open) -> None:
    head = Head()
    head.put(7, final=True)
    reader, _ = opened(head, far)
    assert reader.over()
    assert reader.version == 7


def test_a_model_follows_a_head_that_went_back(far: bool, opened: Open) -> None:
    first, second, model = Head(), Head(), Net()
    model.forward = lambda: model.weight.detach().clone()
    first.put(100)
    second.put(90)
    reader, place = opened(first, far)
    with reader.follow(model, max_age=4) as following:
        another_head(place, reader, second)
        assert not reader.over()
        assert torch.equal(model(), weights_of(90))
        assert following.version == 90


def test_rows_of_another_head_go_with_its_weights(far: bool, opened: Open) -> None:
    first, second, model = Head((USERS,)), Head((USERS,)), Net("users")
    first.put(100, stepped=(1, 2))
    second.put(90, stepped=(1,))
    reader, place = opened(first, far)
    reader.load(model)
    assert model.of_users(1, 2).tolist() == [[100, 100], [100, 100]]
    another_head(place, reader, second)
    assert reader.load(model) == 90
    assert model.of_users(1).tolist() == [[90, 90]]
    assert model.of_users(2).abs().max() < 1


def test_what_changed_since_a_version_of_a_head_before_is_all_rows(far: bool, opened: Open) -> None:
    first, second = Head((USERS,)), Head((USERS,))
    first.put(100, stepped=(1, 2))
    second.put(90, stepped=(1, 2, 3))
    second.put(110, stepped=(3,))
    reader, place = opened(first, far)
    since = reader.changed("users").version
    assert reader.changed("users", since).ids.tolist() == []
    another_head(place, reader, second)
    changed = reader.changed("users", since)
    assert sorted(changed.ids.tolist()) == [1, 2, 3]
    assert reader.changed("users", changed.version).ids.tolist() == []


def test_rows_that_stepped_after_the_last_version_was_made_come_at_the_end(far: bool, opened: Open) -> None:
    """Where rows step as contributions come, they do between versions, too."""
    head, model, other = Head((USERS,)), Net("users"), Net("users")
    head.put(1, stepped=(1, 2))
    reader, _ = opened(head, far)
    late, _ = opened(head, far)
    assert reader.load(model) == late.load(other) == late.changed("users").version == 1
    head.put(1, stepped=(1,), final=True, clock=5)
    assert reader.load(model) == 1
    assert model.of_users(1, 2).tolist() == [[5, 5], [1, 1]]
    assert late.changed("users", since=1).ids.tolist() == [1]
    assert late.over()
    assert late.load(other) == 1
    assert other.of_users(1, 2).tolist() == [[5, 5], [1, 1]]


def test_rows_that_were_looked_up_with_gradients_are_looked_up_again_after_a_load(opened: Open) -> None:
    head, model = Head((USERS,)), Net("users")
    head.put(1, stepped=(1,))
    reader, _ = opened(head)
    reader.load(model)
    assert model.of_users(1).requires_grad
    head.put(2, stepped=(1,))
    reader.load(model)
    assert model.of_users(1).tolist() == [[2, 2]]


def test_a_model_that_follows_has_the_rows_of_the_end(far: bool, opened: Open) -> None:
    head, model = Head((USERS,)), Net("users")
    model.forward = lambda: model.of_users(1).tolist()
    head.put(1, stepped=(1,))
    reader, _ = opened(head, far)
    with reader.follow(model, max_age=0):
        assert model() == [[1, 1]]
        head.put(1, stepped=(1,), final=True, clock=5)
        assert reader.over()
        assert model() == [[5, 5]]


def test_rows_that_come_in_part_are_not_those_of_a_model(monkeypatch: pytest.MonkeyPatch, opened: Open) -> None:
    """The line is lost after the next rows of one table came, before those of the other; nobody answers any more."""
    head, model = Head((USERS, ITEMS)), Net("users", "items")
    head.put(1, stepped=(1, 2))
    reader, _ = opened(head)
    reader.load(model)
    head.put(2, stepped=(1, 2))
    heard, came = run_line.heard, list[Any]()

    def loses(line: Line[Any], kind: Any, within_s: float = 0.0) -> Any:
        if kind is reading.RowsGiven and came:
            reader._run._closing = True
            raise LineLostError("it is lost")
        told = heard(line, kind, within_s)
        came.extend([told] if kind is reading.RowsGiven else [])
        return told

    monkeypatch.setattr(run_line, "heard", loses)
    with pytest.raises(ps.ServerLostError):
        reader.load(model)
    assert len(came) == 1
    assert model.of_users(1, 2).tolist() == [[1, 1], [1, 1]]
    assert torch.equal(model.weight, weights_of(1))


def test_a_line_whose_opening_is_refused_is_not_asked_again(far: bool, opened: Open) -> None:
    head = Head()
    head.put(1)
    reader, place = opened(head, far)
    reader._run._hang_up()
    head.refuses = True
    for _ in range(2):
        with pytest.raises(ps.ConfigurationError, match="not this one"):
            reader.take()
    head.refuses = False
    assert (reader.take(), place.__dict__["dials"]) == (1, 4)


def test_a_run_that_begins_to_listen_while_a_reader_looks_for_it_is_read_near(monkeypatch: pytest.MonkeyPatch) -> None:
    (near, _), (far, run) = ends = socket.socketpair(), socket.socketpair()
    looks = iter([None, near])
    monkeypatch.setattr(places, "connect_here", lambda *_: next(looks))
    monkeypatch.setattr(places, "connect", lambda *_: SocketWire(far, "it"))
    with ReadingPlace("127.0.0.1", 1, "r", "w").dial() as line:
        assert isinstance(line, NearLine)
        assert run.recv(1) == b""  # nobody stays on the line that is not used
    for one in (*ends[0], *ends[1]):
        one.close()


def test_who_asks_before_it_opens_is_hung_up_on() -> None:
    head = Head()
    head.put(1)
    ours, theirs = socket.socketpair()
    line: NearLine[Any] = NearLine(theirs.detach(), reading.FromReader, "it")
    asks: NearLine[Any] = NearLine(ours.detach(), reading.ToReader, "it")
    asks.say(reading.Want())
    with pytest.raises(ps.PlesioError, match="Want came before Open"):
        Service(head, line, Known("")).run()
    asks.close()
    line.close()


def test_who_asks_for_the_newest_number_or_the_end_has_no_version_copied(opened: Open) -> None:
    head = Head()
    head.put(1)
    reader, _ = opened(head, True)
    reader.take()
    asked = head.asked
    assert reader.newest == 1
    assert not reader.over()
    assert head.asked == asked


def test_a_reader_of_this_host_that_takes_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_process, "SEND_TIMEOUT", struct.pack("@ll", 0, 10_000))
    ours, theirs = socket.socketpair()
    readers: Any = object.__new__(Readers)
    with (
        ours,
        readers._line(Arrived("one", b"", True), theirs.detach()) as line,
        pytest.raises(OSError, match="unavailable"),
    ):
        line.say(reading.Refused("", 1_000_000 * "why"))


def test_a_wait_of_no_number_is_none(opened: Open) -> None:
    head = Head()
    head.put(1)
    reader, _ = opened(head)
    reader._run.ask(lambda line: line.say(reading.Want(1, float("nan"))))
    assert isinstance(reader._run.ask(lambda line: run_line.heard(line, reading.Nothing)), reading.Nothing)
