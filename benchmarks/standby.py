"""What a standby costs a run, and how soon it answers when the head's host is gone.

    python benchmarks/standby.py --json FILE [--quick]

Two workers of 1e6 parameters join a head over the loopback, under `async_sgd` with momentum. The same run without a standby, with
one, and with one that answers wait for, take turns. All is on this host, and a standby folds all that the head folds. So there
are two kinds of run. In one the workers take all of two cores, and a standby takes its time from them. The limit beside it is
that alone: the processor time of the run over that with a standby. In the other a step pauses for 20 ms, as on an accelerator,
so that there are cores for a standby, as there are on a host of its own.

Then the head's session is killed outright, and workers say how long the longest of their steps was. A standby is elected 2 s
after the last beat of the head came; that is the lease.
"""

from __future__ import annotations

import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _report import Row, parser, report, row

PLESIO = [sys.executable, "-m", "plesio"]
TRAIN = """
import time
import torch

def train(worker):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, inputs = torch.nn.Linear(1000, {parameters} // 1000, bias=False), torch.randn(16, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    model, optimizer = worker.prepare(model, optimizer)
    last, longest = time.monotonic(), 0.0
    for step in range({steps}):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        time.sleep({pause_s})
        now = time.monotonic()
        if step > 10:
            longest = max(longest, now - last)
        last = now
    print("longest", longest, flush=True)
"""
DEADLINE_S = 300.0


class Run:
    """A head, two workers and, if it is to have one, a standby: each a session of its own."""

    def __init__(
        self, folder: Path, steps: int, parameters: int, acknowledge: str | None, pause_s: float = 0.0
    ) -> None:
        self.folder = folder
        self._environment = os.environ | {"PLESIO_TOKEN": secrets.token_hex(), "PYTHONUNBUFFERED": "1"}
        script = folder / "train.py"
        script.write_text(TRAIN.format(parameters=parameters, steps=steps, pause_s=pause_s))
        stands = ["--standby", "1", "--acknowledge", acknowledge] if acknowledge else []
        self.head = self._start(
            "head", "serve", "--strategy", "async_sgd", "--workers", "2", "--listen", "127.0.0.1:0", *stands
        )
        port = self.wait("head", r"PLESIO_JOIN=127.0.0.1:(\d+)")
        address = f"tcp://127.0.0.1:{port}"
        self.workers = [self._start(f"worker {rank}", "join", address, str(script)) for rank in range(2)]
        self.standby = None
        if acknowledge:
            self.standby = self._start("standby", "standby", f"127.0.0.1:{port}", "--listen", "127.0.0.1:0")
            self.wait("standby", "standing by")

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        file = (self.folder / f"{name}.log").open("wb")
        own = self.folder / name
        own.mkdir()
        runs = ["--runs", "runs"] if words[0] != "join" else []
        return subprocess.Popen(
            [*PLESIO, *words, *runs], cwd=own, env=self._environment, stdout=file, stderr=file, start_new_session=True
        )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait(self, name: str, pattern: str) -> str:
        """Until that is in a log: its first group."""
        end_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < end_s:
            if found := re.search(pattern, self.log(name)):
                return found[1] if found.groups() else ""
            time.sleep(0.02)
        raise TimeoutError(f"{pattern!r} is not in what {name} says: {self.log(name)}")

    def kill_head(self) -> None:
        """All processes of its session, as when its host dies."""
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = status.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.head.pid:
                    os.kill(int(status.parent.name), signal.SIGKILL)
            except (OSError, ValueError):
                continue

    def end(self) -> None:
        for one in [self.head, *self.workers, *([self.standby] if self.standby else [])]:
            try:
                one.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                os.killpg(one.pid, signal.SIGKILL)
                one.wait()

    @property
    def longest_s(self) -> float:
        return max(float(self.wait(f"worker {rank}", r"longest ([\d.]+)")) for rank in range(2))

    def followed(self) -> tuple[int, int]:
        """The contributions that came to the standby, and all bytes."""
        found = re.search(r"followed ([\d,]+) contributions in ([\d,]+) bytes", self.log("standby"))
        assert found is not None, self.log("standby")
        contributions, nbytes = (int(one.replace(",", "")) for one in found.groups())
        return contributions, nbytes

    def summary(self, name: str) -> dict[str, float]:
        (file,) = (self.folder / name).glob("runs/*/summary.json")
        told: dict[str, float] = json.loads(file.read_text())
        return told


def measured(steps: int, parameters: int, acknowledge: str | None, pause_s: float) -> tuple[float, float, float]:
    """Of a run that nothing happens to: steps a second; the processor time of all its processes, in seconds; and the bytes that a
    standby was sent, over those of the contributions."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run = Run(Path(folder), steps, parameters, acknowledge, pause_s)
        run.end()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        share = 0.0
        if acknowledge:
            contributions, nbytes = run.followed()
            share = nbytes / (contributions * 4 * parameters)
        return 2 * steps / run.summary("head")["wall_s"], sum(after[:2]) - sum(before[:2]), share


def longest_s(steps: int, parameters: int, acknowledge: str) -> float:
    """The longest step of a run whose head is killed."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), steps, parameters, acknowledge)
        time.sleep(2.0)
        run.kill_head()
        run.end()
        return run.longest_s


def compared(steps: int, parameters: int, times: int, pause_s: float) -> list[Row]:
    """Runs without a standby, and with one."""
    runs: dict[str | None, list[tuple[float, float, float]]] = {None: [], "head": [], "standby": []}
    for _ in range(times):
        for acknowledge, of in runs.items():
            of.append(measured(steps, parameters, acknowledge, pause_s))
    bare, rows = runs.pop(None), list[Row]()
    where = "cores to spare" if pause_s else "no core to spare"
    for (acknowledge, of), target in zip(runs.items(), (">= 0.9", ">= 0.75"), strict=True):
        name = f'acknowledge="{acknowledge}", {where}'
        steps_per_s = {"against": "without", "against_values": [one[0] for one in bare], "target": target}
        rows.append(row(name, [one[0] for one in of], "steps/s", **steps_per_s))  # type: ignore[arg-type]
        if not pause_s:
            limit = [alone[1] / one[1] for alone, one in zip(bare, of, strict=True)]
            rows.append(row(f"{name}: its limit by processor time", limit, "of without"))
        share = [one[2] for one in of]
        rows.append(row(f"{name}: bytes to the standby", share, "of contributions", target="<= 1.05"))
    return rows


def main() -> None:
    given = parser(__doc__ or "", runs=5).parse_args()
    parameters, steps, times = (10_000, 3000, 1) if given.quick else (1_000_000, 600, given.runs)
    rows = [*compared(steps, parameters, times, 0.0), *compared(steps // 2, parameters, times, 0.02)]
    waits = [longest_s(2 * steps, parameters, "head") for _ in range(times)]
    rows.append(row("longest step where the head is killed", waits, "s", target="<= 3"))
    report("A standby on the same host", rows, given.json)


if __name__ == "__main__":
    main()
