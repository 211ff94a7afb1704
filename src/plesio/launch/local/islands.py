"""The ranks of a worker that is several processes of this host: how they meet, and what they share.

    launcher --engine's line--> every rank
    server   <--channel, push, answer--> rank 0, the leader
    leader   --a channel--> each of the others: where they meet, and what the server handed it (descriptors)

Only the leader is known to the server. The launcher sees all ranks: when one dies it ends the others, the server sees the end of
the leader's lines, and the worker has died. Ranks on another host than the server are here by their proxies, one each.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from os import environ
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from plesio.errors import DeadlineError
from plesio.protocol.worker import Hello, Ready, ToWorker
from plesio.transport.channel import Channel, ChannelClosedError, channel_pair
from plesio.transport.collective import LOOPBACK, connected_store, rendezvous_store
from plesio.transport.host_group import HostGroup
from plesio.transport.island_group import IslandGroup, late

BACKENDS = "cpu:gloo,cuda:nccl"
INTERFACE = "GLOO_SOCKET_IFNAME"
LOOPBACK_INTERFACE = "lo"


class Meet(msgspec.Struct, tag=True, frozen=True):
    """The leader to another rank: the store by which ranks find each other is at this port. With its end of a line between
    them."""

    port: int


Reply = tuple[Any, list[int]]


class Ties:
    """The channels of rank `rank` of an island: the leader's to all the others, or another rank's to the leader."""

    def __init__(self, rank: int, descriptors: Sequence[int]) -> None:
        self.rank = rank
        self.lines: list[socket.socket] = []
        """Once they have met: this rank's ends of those that they agree by."""
        whose = "a rank of this worker" if rank == 0 else "rank 0 of this worker"
        self.channels: list[Channel[Any]] = [
            Channel.attach(one, ToWorker | Meet | Hello | Ready, whose) for one in descriptors
        ]

    @property
    def ranks(self) -> int:
        """How many there are, as the leader counts them."""
        return 1 + len(self.channels)

    def hand(self, message: object, descriptors: Sequence[int] = ()) -> None:
        """The leader hands this to the others. That one is gone the launcher tells."""
        for one in self.channels:
            with suppress(ChannelClosedError):
                one.send(message, descriptors)

    def heard(self, hear: Callable[[], Reply], timeout_s: float, waiting_for: str) -> Reply:
        """What the leader hears from the server, in every rank."""
        if self.rank:
            return self.channels[0].receive(timeout_s, waiting_for)
        message, descriptors = hear()
        self.hand(message, descriptors)
        return message, descriptors

    def store(self, timeout_s: float) -> Store:
        """The store by which these ranks find each other: a new one for each incarnation of the island."""
        if self.rank == 0:
            store = rendezvous_store()
            for one in self.channels:
                ours, theirs = channel_pair()
                self.lines.append(ours)
                with theirs, suppress(ChannelClosedError):  # the launcher tells that it is gone
                    one.send(Meet(store.port), [theirs.fileno()])
            return store
        meet, (end,) = self.channels[0].receive(timeout_s, "the first rank")
        self.lines.append(socket.socket(fileno=end))
        return connected_store(LOOPBACK, meet.port, timeout_s)


@contextmanager
def together(
    store: Store,
    rank: int,
    ranks: int,
    timeout_s: float,
    name: str,
    host: str = LOOPBACK,
    collective_s: float | None = None,
    lines: Sequence[socket.socket] = (),
) -> Iterator[IslandGroup]:
    """Inside, the ranks of an island are the default group of `torch.distributed`, unless there is one; gives the group that they
    agree by. `host`: this rank's address. A collective of the default group may take `collective_s`, if that is not `timeout_s`,
    too. `lines`: what they agree by, if not by gloo.

    The group is destroyed at the end, but not after an error: whoever raises hangs up at once, by ending.

    Raises:
        DeadlineError: the others did not come to a collective in time.
    """
    here = int(environ.get("LOCAL_WORLD_SIZE") or ranks)
    backends = BACKENDS if torch.cuda.device_count() >= here else "gloo"  # nccl takes one process for each GPU
    if host == LOOPBACK:
        environ.setdefault(INTERFACE, LOOPBACK_INTERFACE)
    group = (
        HostGroup(lines, rank, ranks, timeout_s, name)
        if lines
        else IslandGroup(store, rank, ranks, timeout_s, name, host)
    )
    collective_s = collective_s or timeout_s
    ours = not dist.is_initialized()
    if ours:
        patience = timedelta(seconds=collective_s)
        dist.init_process_group(
            backends, store=PrefixStore("ranks", store), rank=rank, world_size=ranks, timeout=patience
        )
    try:
        yield group
    except RuntimeError as error:
        if not late(error):
            raise
        raise DeadlineError(
            f"{name}, rank {rank} of {ranks}: the others did not come to a collective within {collective_s:g} s: every worker "
            "must call backward(), and what else is done together, equally often. If one step() is for several batches, count "
            "them on from epoch to epoch; if only some call backward() on one more loss, let all do it, times 0 where it is "
            "not wanted; if one works alone for so long, raise timeout_s"
        ) from error
    if ours and dist.is_initialized():
        dist.destroy_process_group()
