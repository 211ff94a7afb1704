"""Reads the process table: remaining processes and open descriptors."""

from __future__ import annotations

import os
import time
from pathlib import Path


def descendants(root: int | None = None) -> set[int]:
    """Live descendants of a process (None: of this one)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None and fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    todo = [root or os.getpid()]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


def called(name: str) -> list[int]:
    """Live descendants of this process by their name in the process table."""
    return sorted(pid for pid in descendants() if Path(f"/proc/{pid}/comm").read_text().strip().endswith(name))


def alive(pid: int) -> bool:
    fields = _stat(pid)
    return fields is not None and fields[0] != "Z"


def _stat(pid: int) -> list[str] | None:
    """State, parent, ... of a process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def shared_mappings() -> int:
    """How many of our memory files this process maps, with a name of their own or (where there is no memfd) without."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum("plesio" in Path(line.removesuffix(" (deleted)")).name for line in maps if line.endswith("(deleted)"))


def gone_within(pids: set[int], seconds: float) -> bool:
    """Whether all of `pids` are gone in time."""
    end = time.monotonic() + seconds
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True
