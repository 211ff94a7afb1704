"""What the ranks of an island agree by."""

from __future__ import annotations

import threading

from plesio.transport.collective import LOOPBACK, connected_store, rendezvous_store
from plesio.transport.island_group import IslandGroup, late


def test_a_total_of_nothing_waits_for_all_ranks() -> None:
    """Ranks bring what training begins with, and then the captain says that it is there."""
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


def test_what_a_user_raises_is_no_collective_that_nobody_came_to() -> None:
    assert late(RuntimeError("[../third_party/gloo/gloo/transport/tcp] Timed out waiting 20000ms for recv operation"))
    assert not late(RuntimeError("DataLoader timed out after 5 seconds"))
