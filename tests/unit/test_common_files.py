"""The files that every run goes through hardly name what only some runs are able to do: that has files of its own.

A line counts if it names tables or rows, phases, islands or ranks, clients or durability, in code as in comments, docstrings and
messages. The rule is `grep -ciE` of `NAMES`. It is simple, and so a timetable and an arrow count, too.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import plesio

SOURCE = Path(plesio.__file__).parent
NAMES = re.compile("table|row|phase|island|client|durab|surviv|rank", re.IGNORECASE)
LIMITS = {
    "server/program.py": 1,
    "memory/machine.py": 1,
    "core/sequencer.py": 10,
    "worker/worker.py": 15,
    "worker/prepared.py": 4,
    "launch/participation.py": 1,
    "launch/local/worker_proxy.py": 1,
    "launch/simulated/virtual.py": 0,
    "launch/simulated/engine.py": 2,
    "launch/local/engine.py": 1,
}
"""They go down, never up."""
BELOW = 40
"""All of them together."""


def naming(source: str) -> list[str]:
    """The lines that name a capability, as an editor shows them."""
    return [f"{at}: {line}" for at, line in enumerate(source.splitlines(), 1) if NAMES.search(line)]


@pytest.mark.parametrize("name", LIMITS)
def test_a_common_file_names_few_capabilities(name: str) -> None:
    found = naming((SOURCE / name).read_text(encoding="utf-8"))
    assert len(found) == LIMITS[name], "\n".join(found)  # lower the limit where there are fewer


def test_all_common_files_together() -> None:
    assert sum(LIMITS.values()) < BELOW


def test_what_counts() -> None:
    source = '''"""Of tables."""
self.number = 3  # of a worker
self.process = OwnProcess(island)
say("a client")
row_bytes = 4
arrow = timetable = None  # simple
self.is_leader = self.rank == 0
self.part = part
durability = survivors = PHASES
'''
    assert [line.partition(":")[0] for line in naming(source)] == ["1", "3", "4", "5", "6", "7", "9"]
