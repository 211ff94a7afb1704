"""How processes of a run find each other for collectives: torch's gloo, and the store by which its members meet."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from plesio.errors import ConfigurationError

LOOPBACK = "127.0.0.1"
LOOK_S = 0.4
"""How often a waiting member looks whether the others are still there."""


def rendezvous_store(host: str = LOOPBACK) -> TCPStore:
    """The key-value store by which members find each other. It listens on `host` only, on any free port.

    Raises:
        ConfigurationError: this host has no loopback. torch would try until its time is up, and name no reason.
    """
    if host == LOOPBACK:
        try:
            with socket.create_server((host, 0)) as here, socket.create_connection(here.getsockname(), timeout=5.0):
                pass
        except OSError as error:
            raise ConfigurationError(
                f"processes of this host find each other by its loopback ({host}), which cannot be reached: {error}; bring that "
                "interface up (ip link set lo up), or ask for nothing that needs a process group (ranks=, allreduce)"
            ) from error
    listener = socket.create_server((host, 0), backlog=128)
    port = listener.getsockname()[1]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def connected_store(host: str, port: int, timeout_s: float) -> TCPStore:
    """A worker's connection to it; waits at most `timeout_s` for it to answer."""
    timeout = timedelta(seconds=timeout_s)
    return TCPStore(host, port, is_master=False, timeout=timeout, wait_for_workers=False)


def gloo_among(store: Store, rank: int, size: int, patience: timedelta, host: str) -> Any:
    """torch's gloo with the others that come to `store`; this one is at the address `host`. RuntimeError: not everybody came."""
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = patience
    options._devices = [gloo.create_device(hostname=host)]
    return gloo(store, rank, size, options)
