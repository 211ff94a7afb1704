"""How messages of a simulated run travel, and when they arrive.

A message leaves over its worker's link and goes through the server's own, which all share; each direction has its own
capacity. The server's link is a queue, first come first served. A message passes it while it still comes in from its
worker's link: one alone takes latency + bytes over the *slower* of the two, and many together get the server's bytes a
second. (Equal shares would give the same throughput at many more events.) No message overtakes another of its worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from plesio.cluster import Cluster, Partition
from plesio.launch.simulated.clock import VirtualClock
from plesio.launch.simulated.workers import Message
from plesio.strategy.answers import Via


class Network:
    """Carries the messages of one run; this one is shared memory, where everything is there at once."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock

    def send(self, worker: int, sent_s: float, nbytes: int, arrive: Callable[[Any], object], what: Any) -> float:
        """From a worker to the server: plan `arrive(what)`; the time it comes if it meets no queue."""
        self._clock.at(sent_s, arrive, what)
        return sent_s

    def answer(self, worker: int, nbytes: int) -> float:
        """From the server to a worker, now: when it arrives."""
        return self._clock.now_s


class Star(Network):
    """Every worker linked to a server, as the cluster says. During a partition messages wait for its end."""

    def __init__(self, cluster: Cluster, clock: VirtualClock) -> None:
        super().__init__(clock)
        links = [group.link for group in cluster.group_of]
        self._latency_s = [link.latency_s + cluster.server.latency_s for link in links]
        self._byte_s = [1.0 / link.bytes_per_s for link in links]  # seconds a byte: 0 where there is no limit
        self._server_byte_s = 1.0 / cluster.server.bytes_per_s
        self._came_s = [0.0] * len(links)  # when the latest message of each worker is through its link
        self._gone_s = [0.0] * len(links)  # and the latest answer to it
        self._in_free_s = 0.0  # when the server's link has passed on all that came to it so far
        self._out_free_s = 0.0
        self._partitions: dict[int, list[Partition]] = {}
        for fault in sorted(cluster.faults, key=lambda one: one.at_s):
            if isinstance(fault, Partition):
                self._partitions.setdefault(fault.worker, []).append(fault)

    def send(self, worker: int, sent_s: float, nbytes: int, arrive: Callable[[Any], object], what: Any) -> float:
        """The first byte comes to the server's link, the last one through it."""
        first_s = self._across(worker, sent_s)
        if self._byte_s[worker] or self._server_byte_s:
            self._clock.at(first_s, self._at_server, (worker, nbytes, arrive, what))
        else:
            self._clock.at(first_s, arrive, what)
        return first_s + nbytes * self._byte_s[worker]

    def _at_server(self, message: tuple[int, int, Callable[[Any], object], Any]) -> None:
        """What one worker sends comes in the order it was sent, however large."""
        worker, nbytes, arrive, what = message
        if isinstance(what, Message) and what.void:
            return
        now_s = self._clock.now_s
        last_s = max(now_s, self._came_s[worker]) + nbytes * self._byte_s[worker]
        if nbytes:
            self._in_free_s = max(self._in_free_s, now_s) + nbytes * self._server_byte_s
            last_s = max(last_s, self._in_free_s)
        self._came_s[worker] = last_s
        self._clock.at(last_s, arrive, what)

    def answer(self, worker: int, nbytes: int) -> float:
        """Answers queue in the order they are given, also those without bytes: they go over one connection."""
        now_s = self._clock.now_s
        last_s = max(now_s, self._gone_s[worker]) + nbytes * self._byte_s[worker]
        if nbytes and self._server_byte_s:
            self._out_free_s = max(self._out_free_s, now_s) + nbytes * self._server_byte_s
            last_s = max(last_s, self._out_free_s)
        self._gone_s[worker] = last_s
        return self._across(worker, last_s)

    def _across(self, worker: int, sent_s: float) -> float:
        """When what is sent then is across: the latency later, or at the end of a partition that it leaves or arrives in."""
        if not self._partitions or worker not in self._partitions:
            return sent_s + self._latency_s[worker]
        cuts = self._partitions[worker]
        return _healed(cuts, _healed(cuts, sent_s) + self._latency_s[worker])


def _healed(cuts: Sequence[Partition], time_s: float) -> float:
    """`time_s`, or the end of the partition it falls into."""
    for cut in cuts:
        if cut.at_s <= time_s < cut.until_s:
            time_s = cut.until_s
    return time_s


class RingNetwork(Network):
    """A ring all-reduce among all: nothing goes to a server, and the answer is there when the ring has gone round.

    To join it costs nothing. It takes 2 (n-1) messages of 1/n of the bytes, each as slow as the slowest link.
    """

    def __init__(self, cluster: Cluster, clock: VirtualClock) -> None:
        super().__init__(clock)
        self._hops = 2 * (cluster.workers - 1)
        self._share = 1.0 / cluster.workers
        self._latency_s = max(group.link.latency_s for group in cluster.groups)
        self._bytes_per_s = min(group.link.bytes_per_s for group in cluster.groups)

    def answer(self, worker: int, nbytes: int) -> float:
        """The whole exchange; a message without bytes only steps to its neighbour."""
        hops = self._hops if nbytes else 1
        return self._clock.now_s + hops * (self._latency_s + nbytes * self._share / self._bytes_per_s)


def network_of(via: Via, cluster: Cluster, clock: VirtualClock) -> Network:
    """The network that contributions take `via` what the strategy says."""
    if via.by_collective:
        return RingNetwork(cluster, clock)
    if via.in_shared_memory:
        return Network(clock)
    return Star(cluster, clock)
