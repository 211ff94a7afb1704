"""How many planted faults some tests find: the power of a selection of tests.

python -m power [--only 3,17] [--json FILE] [--limit-s S] -- PYTEST ARGS     with PYTHONPATH=tests

Each fault is planted in a copy of the project of its own, where pytest runs with these arguments and -x. First it runs without
a fault (number 0), for tests that fail anyway find nothing. With --json what is known is kept and not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from power.faults import FAULTS

ROOT = Path(__file__).parents[2]
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
ALL_PASSED, SOME_FAILED, INTERRUPTED, WRONG_USE, NONE_CHOSEN = 0, 1, 2, 4, 5


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a run: the test that failed first, or "" and why there is none."""

    by: str
    why_not: str
    seconds: float

    def __str__(self) -> str:
        return f"{f'found by {self.by}' if self.by else f'NOT FOUND, {self.why_not},'} after {self.seconds:.0f} s"


class Known:
    """The verdicts by the fault's number, in memory and in a file."""

    def __init__(self, path: Path | None, arguments: list[str]) -> None:
        self._path, self._arguments = path, arguments
        self.verdicts: dict[int, Verdict] = {}
        self._texts = {number: [one.file, one.old, one.new] for number, one in enumerate(FAULTS, 1)}
        if path is not None and path.exists():
            self._read(json.loads(path.read_text(encoding="utf-8")))

    def _read(self, kept: dict) -> None:
        if kept["arguments"] != self._arguments:
            raise SystemExit(
                f"{self._path} is of other pytest arguments: {' '.join(kept['arguments'])}; give another file"
            )
        for number, one in kept["verdicts"].items():
            if self._texts.get(int(number)) == one.pop("fault"):  # else the list has changed since
                self.verdicts[int(number)] = Verdict(**one)

    def add(self, number: int, verdict: Verdict) -> None:
        self.verdicts[number] = verdict
        if self._path is None:
            return
        told = {at: {"fault": self._texts.get(at), **asdict(one)} for at, one in sorted(self.verdicts.items())}
        beside = self._path.with_name(f"{self._path.name}.new")
        beside.write_text(json.dumps({"arguments": self._arguments, "verdicts": told}, indent=1), encoding="utf-8")
        beside.replace(self._path)


def copy_tree(to: Path, with_kernels: bool) -> None:
    """What git tracks or would, as it is now; with what kernels were compiled to, which takes Numba a minute otherwise."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split("\0")
    if with_kernels:
        names += [str(one.relative_to(ROOT)) for one in (ROOT / "src").rglob("__pycache__/*.nb[ic]")]
    for name in names:
        if name and (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)  # with its time: Numba goes by that


def run(tree: Path, arguments: list[str], limit_s: float) -> Verdict:
    """Pytest in that tree, whose `plesio` all processes import."""
    path = os.pathsep.join(str(tree / one) for one in ("src", "tests"))
    command = [sys.executable, "-m", "pytest", *arguments, "-x", "-rfE"]
    begun_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env={**os.environ, "PYTHONPATH": path},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return Verdict("", "not over", time.monotonic() - begun_s)
        finally:
            end(process)
        output.seek(0)
        return judged(code, output.read(), time.monotonic() - begun_s)


def end(process: subprocess.Popen[bytes]) -> None:
    """End pytest and what it left running: its group, which it leads."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def judged(code: int, output: str, seconds: float) -> Verdict:
    """What pytest's exit and its words say."""
    if code == ALL_PASSED:
        return Verdict("", "all passed", seconds)
    if code in (WRONG_USE, NONE_CHOSEN):
        raise SystemExit(f"pytest ran no test:\n{output[-2000:]}")
    found = FAILED.search(output)
    if found is None and code in (SOME_FAILED, INTERRUPTED):
        return Verdict("", f"pytest ended with {code} and named no test", seconds)
    return Verdict(found[1] if found else f"pytest itself, which ended with {code}", "", seconds)


def tried(number: int, arguments: list[str], limit_s: float) -> Verdict:
    """One fault, or none for 0, in a copy that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="plesio-power-", ignore_cleanup_errors=True) as folder:
        tree, fault = Path(folder), FAULTS[number - 1] if number else None
        copy_tree(tree, fault is None or fault.room != "tables")  # Numba does not see that what it inlined has changed
        if fault is not None:
            fault.plant(tree)
        return run(tree, arguments, limit_s)


def summary(verdicts: dict[int, Verdict]) -> str:
    """How many were found, by room, and which were not."""
    tried_ones = [(FAULTS[number - 1], number, one) for number, one in sorted(verdicts.items()) if number]
    lines = [f"found {sum(bool(one.by) for *_, one in tried_ones)} of {len(tried_ones)}"]
    for room in dict.fromkeys(fault.room for fault, *_ in tried_ones):
        own = [bool(one.by) for fault, _, one in tried_ones if fault.room == room]
        lines.append(f"  {room}: {sum(own)} of {len(own)}")
    lines += [f"not found: {number} {fault.file}: {fault.lost}" for fault, number, one in tried_ones if not one.by]
    return "\n".join(lines)


def numbers(told: str) -> list[int]:
    """Those of the faults that `--only` names; all for ""."""
    wanted = [int(one) for one in told.split(",")] if told else [*range(1, len(FAULTS) + 1)]
    if wrong := [one for one in wanted if not 1 <= one <= len(FAULTS)]:
        raise SystemExit(f"--only {wrong}: faults are 1 to {len(FAULTS)}")
    return wanted


def main(told: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m power", description="How many planted faults some tests find.")
    parser.add_argument("--only", default="", metavar="N,M", help="only these faults, by number")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep verdicts there, and go on from those in it")
    parser.add_argument(
        "--limit-s", type=float, default=600.0, metavar="S", help="how long pytest may take for a fault"
    )
    parser.add_argument("arguments", nargs="*", metavar="PYTEST ARGS", help="after --: which tests, and how")
    given = parser.parse_args(told)
    known = Known(given.json, given.arguments)
    wanted = numbers(given.only)
    for number in [0, *wanted]:
        if number not in known.verdicts:
            known.add(number, tried(number, given.arguments, given.limit_s))
        verdict = known.verdicts[number]
        if not number and verdict.why_not != "all passed":
            raise SystemExit(f"without a fault the tests do not pass ({verdict}): they tell nothing")
        if number:
            print(f"{number:3} {FAULTS[number - 1].file}: {FAULTS[number - 1].lost}\n    {verdict}", flush=True)
    print(summary({number: known.verdicts[number] for number in wanted}))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit(130) from None
