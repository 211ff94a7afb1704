"""The faults that `python -m power` plants fit the code as it is, and its verdicts say what pytest did."""

from __future__ import annotations

import subprocess
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


def test_verdicts_are_kept_for_the_same_arguments(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.json"
    power.Known(path, ["-q"]).add(3, verdict := power.Verdict("test_a", "", 1.0))
    assert power.Known(path, ["-q"]).verdicts == {3: verdict}
    with pytest.raises(SystemExit, match="other pytest arguments: -q"):
        power.Known(path, ["-v"])


def test_pytest_that_is_not_over_in_time_is_ended(tmp_path: Path) -> None:
    (tmp_path / "test_forever.py").write_text("import signal\ndef test_forever():\n    signal.pause()\n")
    assert power.run(tmp_path, ["-q", "-p", "no:cacheprovider"], 0.5).why_not == "not over"
    held = subprocess.run(["pgrep", "-f", str(tmp_path)], check=False, capture_output=True)
    assert not held.stdout
