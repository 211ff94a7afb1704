"""How the ranks of an island meet that somebody else started, by the variables that torchrun (or you) gave each of them.

| variable                 | says                                                                  |
| ------------------------ | --------------------------------------------------------------------- |
| RANK, WORLD_SIZE         | which rank this is, of how many                                       |
| LOCAL_RANK               | its number on this host (else RANK)                                   |
| MASTER_ADDR, MASTER_PORT | where torchrun's agent keeps a store; without an agent, rank 0 makes it |

On Ray the head's actor keeps it, and says so by the same variables.

Rank 0, the leader, takes a seat as any worker does, and writes into that store what the others need to be tied to it. The ranks
then find each other by a store of the leader's own. torchrun's outlives a restart of the ranks, and in it they would find where
their predecessors were (pytorch#135712).
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from plesio.errors import ConfigurationError, DeadlineError
from plesio.launch.remote.find import LOOPBACK, whole_number
from plesio.transport.collective import connected_store, rendezvous_store

LOOK_S = 0.05  # how often a rank looks whether the leader has come,
ASK_S = 2.0  # and how long a leader's store may take to answer
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Leader(msgspec.Struct, frozen=True):
    """What a leader tells the other ranks: its ticket and number, whether it is `beside` the head and maps the run's memory, and
    where its store is, which has the key `life`."""

    ticket: bytes
    worker: int
    beside: bool
    host: str
    port: int
    life: str


class Ranks(NamedTuple):
    """Which rank this process is, of how many; `host`, `port`: of the store; `agent`: whether torchrun's agent keeps it; `key`:
    the leader's place in it; `spread`: whether the ranks are on several hosts."""

    rank: int
    ranks: int
    local_rank: int
    host: str
    port: int
    agent: bool
    key: str
    spread: bool

    @classmethod
    def here(cls, environment: Mapping[str, str] = os.environ) -> Ranks:
        """As the environment says.

        Raises:
            ConfigurationError: it does not say so.
        """
        lacking = [name for name in NEEDED if name not in environment]
        if lacking:
            raise ConfigurationError(
                f"island=True: {', '.join(lacking)} not in the environment, by which a worker's processes know each other: "
                "start them with torchrun, PLESIO_JOIN=HOST:PORT torchrun --nproc-per-node 8 train.py, or set "
                f"{', '.join(NEEDED)} in each"
            )
        rank, ranks = whole_number(environment, "RANK"), whole_number(environment, "WORLD_SIZE")
        if not 0 <= rank < ranks:
            raise ConfigurationError(f"RANK={rank} of WORLD_SIZE={ranks} in the environment: ranks count from 0")
        return cls(
            rank,
            ranks,
            whole_number(environment, "LOCAL_RANK", rank),
            environment["MASTER_ADDR"],
            whole_number(environment, "MASTER_PORT"),
            environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            f"plesio/island/{environment.get('TORCHELASTIC_RUN_ID', '')}",
            whole_number(environment, "LOCAL_WORLD_SIZE", ranks) != ranks,
        )

    @property
    def own_host(self) -> str:
        """This host's address, as the other ranks reach it."""
        if not self.spread:
            return LOOPBACK
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:  # nothing is sent
            one.connect((self.host, self.port))
            own: str = one.getsockname()[0]
            return own

    def tell(self, ticket: bytes, worker: int, beside: bool, timeout_s: float) -> Store:
        """The leader has a seat: tell the others. The store by which the ranks find each other."""
        board = self._board(timeout_s)
        own = rendezvous_store(self.own_host) if self.agent else board
        leader = Leader(ticket, worker, beside, self.own_host, own.port, secrets.token_hex(8))
        own.set(leader.life, "")
        board.set(self.key, msgspec.msgpack.encode(leader))
        return own

    def heard(self, timeout_s: float) -> tuple[Leader, Store]:
        """What the leader told, and its store.

        Raises:
            DeadlineError: no leader that lives told anything in time.
        """
        end_s = time.monotonic() + timeout_s
        board = self._board(timeout_s)
        while time.monotonic() < end_s:
            if board.check([self.key]):  # else it is on its way; what is there may be its predecessor's
                leader = msgspec.msgpack.decode(board.get(self.key), type=Leader)
                with suppress(OSError, RuntimeError):  # torch's own are of this class
                    socket.create_connection((leader.host, leader.port), ASK_S).close()
                    store = connected_store(leader.host, leader.port, ASK_S)
                    if store.check([leader.life]):
                        store.set_timeout(timedelta(seconds=timeout_s))
                        return leader, store
            time.sleep(LOOK_S)
        raise DeadlineError(
            f"rank {self.rank} of {self.ranks} waited {timeout_s:g} s for rank 0 to take the worker's seat, and the store at "
            f"{self.host}:{self.port} does not say that it has; its own messages say why"
        )

    def _board(self, timeout_s: float) -> Any:
        master = self.rank == 0 and not self.agent
        patience = timedelta(seconds=timeout_s)
        return TCPStore(self.host, self.port, is_master=master, timeout=patience, wait_for_workers=False)
