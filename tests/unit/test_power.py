"""The faults that `python -m power` plants fit the code as it is, and its verdicts say what pytest did."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from power import __main__ as power
from power.faults import FAULTS

SOURCE = Path(__file__).parents[2] / "src" / "plesio"


def test_each_fault_is_of_one_place_and_compiles() -> None:
    for number, fault in enumerate(FAULTS, 1):
        planted = fault.planted((SOURCE / fault.file).read_text(encoding="utf-8"))
        compile(planted, f"fault {number} of {fault.file}", "exec")


def test_the_faults_are_spread_over_the_rooms() -> None:
    rooms = Counter(fault.room for fault in FAULTS)
    numbers = rooms.pop("memory") + rooms.pop("tensors")
    assert (numbers, rooms) == (25, {"core": 25, "server": 15, "launch": 15, "tables": 10, "worker": 10})
    assert len({(one.file, one.old, one.new) for one in FAULTS}) == 100


def test_a_verdict_names_the_first_test_that_failed() -> None:
    output = "FAILED tests/unit/test_a.py::test_b[x - y] - assert 1 == 2\n1 failed"
    assert power.judged(1, output, 2.0).by == "tests/unit/test_a.py::test_b[x"
    assert str(power.judged(0, "", 2.0)) == "NOT FOUND, all passed, after 2 s"
    assert not power.judged(2, "", 2.0).by
    with pytest.raises(SystemExit, match="pytest ran no test"):
        power.judged(5, "no tests ran", 2.0)
