"""Other hosts, as far as the network goes: namespaces of the kernel's, with links to this one or to each other."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

import pytest


def _ip(*arguments: str, within: int | None = None) -> None:
    inside = [] if within is None else ["nsenter", f"--net=/proc/{within}/ns/net"]
    subprocess.run([*inside, "ip", *arguments], check=True, capture_output=True, timeout=10.0)


@dataclass(frozen=True)
class OtherHost:
    """`address`: this host's, as the other one sees it; `link`: what connects them; `pid`: of the process that holds it."""

    address: str
    link: str
    pid: int

    def enter(self) -> None:
        """Move this thread there."""
        descriptor = os.open(f"/proc/{self.pid}/ns/net", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(descriptor)

    def connect(self, up: bool) -> None:
        """Set the link up or down."""
        _ip("link", "set", self.link, "up" if up else "down")


def _skip_without() -> None:
    """Skip the test where none can be made."""
    for name in ("ip", "unshare", "nsenter"):
        if shutil.which(name) is None:
            pytest.skip(f"there is no command {name}")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode:
        pytest.skip("this user may not make network namespaces")


def _held() -> subprocess.Popen[bytes]:
    """A process that holds a namespace of its own. It ends when its input does."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder


@contextmanager
def other_host() -> Iterator[OtherHost]:
    """Skips the test where none can be made. All of it ends when this process and its workers do, at the latest."""
    _skip_without()
    holder = _held()
    # Addresses that are nobody's (RFC 2544), others for each process of the tests.
    network = int(ip_address("198.18.0.0")) + 4 * (os.getpid() % 32768)
    here, there = (str(ip_address(network + place)) for place in (1, 2))
    link = f"plesio{os.getpid()}"
    try:
        try:
            _ip("link", "add", link, "type", "veth", "peer", "name", "uplink", "netns", str(holder.pid))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel makes no pair of links here: {error.stderr.decode().strip()}")
        _ip("address", "add", f"{here}/30", "dev", link)
        _ip("link", "set", link, "up")
        _ip("address", "add", f"{there}/30", "dev", "uplink", within=holder.pid)
        for one in ("lo", "uplink"):
            _ip("link", "set", one, "up", within=holder.pid)
        yield OtherHost(here, link, holder.pid)
    finally:
        holder.kill()
        holder.communicate()
        subprocess.run(["ip", "link", "delete", link], capture_output=True)  # it may have gone with the namespace


@contextmanager
def hosts_on_a_switch(count: int) -> Iterator[list[OtherHost]]:
    """Several, which reach each other over a switch, and not this host. `address` is their own. Skips as `other_host` does."""
    _skip_without()
    switch, holders = f"plesio{os.getpid()}s", [_held() for _ in range(count)]
    found = [
        OtherHost(f"198.18.0.{place + 1}", f"pl{os.getpid()}-{place}", one.pid) for place, one in enumerate(holders)
    ]
    try:
        try:
            _ip("link", "add", switch, "type", "bridge")
            _ip("link", "set", switch, "up")
            for one in found:
                _plug_in(one, switch)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this kernel makes no switch here: {error.stderr.decode().strip()}")
        yield found
    finally:
        for holder in holders:
            holder.kill()
            holder.communicate()
        for link in (*(one.link for one in found), switch):
            subprocess.run(["ip", "link", "delete", link], capture_output=True)


def _plug_in(one: OtherHost, switch: str) -> None:
    _ip("link", "add", one.link, "type", "veth", "peer", "name", "uplink", "netns", str(one.pid))
    _ip("link", "set", one.link, "master", switch, "up")
    _ip("address", "add", f"{one.address}/24", "dev", "uplink", within=one.pid)
    for name in ("lo", "uplink"):
        _ip("link", "set", name, "up", within=one.pid)
