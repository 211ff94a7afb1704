"""Readers of runs: what they saw, and what the run's journal says of it. A run goes on until they have seen enough."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plesio as ps
from plesio.core.events import Fold
from plesio.protocol.journal import read_journal
from plesio.reading.reader import Reader
from plesio.tensors.checksum import window_checksum

TIMEOUT_S = 60.0
ENOUGH = 8


def kept_checksums(folder: Path) -> dict[int, int]:
    """By version, as the journal has it: of a model below 32 KiB that of all bytes."""
    version, found = 0, {}
    for one in read_journal(folder).decisions():
        for effect, checksum in zip((one for one in one.effects if isinstance(one, Fold)), one.checksums, strict=True):
            del effect
            version += 1
            found[version] = checksum
    return found


class Follower(threading.Thread):
    """Takes version after version until the run ends; `seen`: the checksum of each; `each` is called with the reader. Once it has
    seen `ENOUGH`, it says so by a file, `enough`."""

    def __init__(
        self, address: str, enough: Path, each: Callable[[Reader], object] = lambda reader: None, **options: Any
    ) -> None:
        super().__init__(daemon=True)
        self.address, self.enough, self.each, self.options = address, enough, each, options
        self.seen: dict[int, int] = {}
        self.state: dict[str, Any] = {}
        self.raised: BaseException | None = None

    def run(self) -> None:
        try:
            with ps.read(self.address, timeout_s=TIMEOUT_S, **self.options) as reader:
                while reader.wait():
                    self.seen[reader.version] = window_checksum(reader._arena.bytes, reader.version)
                    self.each(reader)
                    if len(self.seen) == ENOUGH:
                        self.enough.touch()
                self.state, self.last = reader.state_dict(), reader.version
        except BaseException as error:
            self.raised = error
        finally:
            self.enough.touch()  # nobody waits for one that has failed

    def done(self) -> Follower:
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "it still follows"
        if self.raised is not None:
            raise self.raised
        return self


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def followed(folder: Path, *schemes: str, **options: Any) -> Iterator[tuple[str, list[Follower]]]:
    """Inside, a run with `readers=` the address is followed, by one over each of these schemes. Their files are in the folder."""
    address = f"127.0.0.1:{free_port()}"
    folder.mkdir(exist_ok=True)
    followers = [
        Follower(f"{scheme}{address}", folder / f"enough-{one}", **options) for one, scheme in enumerate(schemes)
    ]
    for one in followers:
        one.start()
    yield address, followers
    for one in followers:
        one.done()


def seen_enough(folder: Path, followers: int) -> bool:
    return len(list(folder.glob("enough-*"))) == followers


def until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, "it did not come to that"
        time.sleep(0.01)
