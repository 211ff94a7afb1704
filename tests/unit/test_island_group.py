"""What the ranks of an island agree by."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from plesio.errors import ConfigurationError, DeadlineError, PlesioError
from plesio.transport.channel import channel_pair
from plesio.transport.collective import LOOPBACK, connected_store, rendezvous_store
from plesio.transport.host_group import HostGroup
from plesio.transport.island_group import IslandGroup, broke, late


def test_a_total_of_nothing_waits_for_all_ranks() -> None:
    """Ranks bring what training begins with, and then the leader says that it is there."""
    store, came = rendezvous_store(), threading.Event()

    def late() -> None:
        group = IslandGroup(connected_store(LOOPBACK, store.port, 20.0), 1, 2, 20.0, "an island")
        group.total([1.0])
        threading.Event().wait(0.2)
        came.set()
        group.total([])

    other = threading.Thread(target=late)
    other.start()
    group = IslandGroup(store, 0, 2, 20.0, "an island")
    assert group.total([2.0]) == [3.0]
    assert group.total([]) == []
    assert came.is_set()
    other.join()


def test_a_host_without_loopback_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(
        ConfigurationError, match=r"loopback \(127\.0\.0\.1\).* Network is unreachable; bring that interface up"
    ):
        rendezvous_store()


def test_what_a_user_raises_is_no_collective_that_nobody_came_to() -> None:
    assert late(RuntimeError("[../third_party/gloo/gloo/transport/tcp] Timed out waiting 20000ms for recv operation"))
    assert not late(RuntimeError("DataLoader timed out after 5 seconds"))


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = channel_pair()
    with ours, theirs:
        yield ours, theirs


def test_ranks_of_one_host_agree_by_lines_between_them(ends: tuple[socket.socket, socket.socket]) -> None:
    leader, second = (HostGroup([end], rank, 2, 20.0, "an island") for rank, end in enumerate(ends))
    heard: list[object] = []

    def other() -> None:
        heard.extend([second.total([2.0, 3.0]), second.rows([5]), second.total([]), second.told(lambda: b"")])
        with pytest.raises(PlesioError, match="the run is over"):
            second.told(lambda: b"")

    def refuses() -> bytes:
        raise PlesioError("the run is over")

    thread = threading.Thread(target=other)
    thread.start()
    said = [leader.total([1.0, 0.5]), leader.rows([4]), leader.total([]), leader.told(lambda: b"x" * 100_000)]
    with pytest.raises(PlesioError, match="the run is over"):
        leader.told(refuses)
    thread.join()
    assert said == heard == [[3.0, 3.5], [[4], [5]], [], b"x" * 100_000]


def test_a_rank_of_the_host_that_does_not_come_is_told_of_and_one_that_ended_is_known(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    leader = HostGroup(ends[:1], 0, 2, 0.1, "an island")
    words = r"an island, rank 0 of 2: the other ranks did not come to an exchange within 0\.1 s"
    with pytest.raises(DeadlineError, match=words):
        leader.total([1.0])
    ends[1].close()
    with pytest.raises(RuntimeError) as ended:
        leader.total([1.0])
    assert broke(ended.value)
    assert not late(ended.value)
