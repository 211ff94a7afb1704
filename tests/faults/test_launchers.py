"""Workers that torchrun and SLURM start: they find their run, and come back into it."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn
from torch.distributed import TCPStore
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import plesio as ps
from plesio.core.events import Joined
from plesio.launch.remote.head import HeadAddress
from plesio.protocol.journal import read_journal
from plesio.transport.certificates import make_certificates
from support import remote
from support.joins import BATCH, EPOCHS, FROM_VERSION, SAMPLES
from support.processes import gone_within
from support.remote import TOKEN

SUPPORT = Path(__file__).parents[1] / "support"
JOINS = str(SUPPORT / "joins.py")
CONTRIBUTIONS = EPOCHS * SAMPLES // BATCH
OF_A_LAUNCHER = re.compile("PLESIO_(JOIN|RANK|TOKEN|CERTS)|SLURM_|TORCHELASTIC_")
START_S = 60.0


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of a launcher that these tests themselves run under."""
    for name in filter(OF_A_LAUNCHER.match, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def torchrun(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *arguments], env={**os.environ, **variables}
    )


def done_in(folder: Path) -> Path:
    """The one run there, which visited all data and counted each contribution once."""
    (run,) = (folder / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["batches_unvisited"], summary["discarded"]) == (0, {})
    assert sum(one["folded"] for one in summary["workers"]) == CONTRIBUTIONS
    return run


def joined(run: Path) -> list[tuple[int, int]]:
    """Who joined, as worker and incarnation."""
    events = [one.event for one in read_journal(run).decisions()]
    return sorted((one.worker, one.incarnation) for one in events if isinstance(one, Joined))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torchrun_restarts_workers_into_their_seats(tmp_path: Path) -> None:
    agent = torchrun("--nproc-per-node=2", "--max-restarts=2", JOINS, str(tmp_path), "sync_sgd", "1", "before,after")
    assert agent.wait() == 0
    assert (tmp_path / "died-before").exists()
    assert (tmp_path / "died-after").exists()
    assert joined(done_in(tmp_path)) == [(0, 2), (0, 3), (1, 2), (1, 3)]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_agent_that_keeps_the_store_ends_the_run_in_good_order(tmp_path: Path) -> None:
    agent = torchrun("--nproc-per-node=2", JOINS, str(tmp_path), "async_sgd", "1", "agent", "3")
    assert agent.wait() == -signal.SIGKILL
    assert gone_within({int(one.name.split("-")[2]) for one in tmp_path.glob("joined-*")}, 60.0)
    (run,) = (tmp_path / "runs").iterdir()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["version"] == sum(one["folded"] for one in summary["workers"]) >= FROM_VERSION


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Where a head is; in the end it has ended well."""
    command = ["serve", "--strategy=async_sgd", "--workers=2", "--listen=127.0.0.1:0", f"--runs={folder / 'runs'}"]
    head = subprocess.Popen(
        [sys.executable, "-m", "plesio", *command], env={**os.environ, "PLESIO_TOKEN": TOKEN}, stdout=subprocess.PIPE
    )
    with head:
        assert head.stdout is not None
        try:
            found = re.search(rb"PLESIO_JOIN=(\S+)", head.stdout.readline())
            assert found is not None
            yield found[1].decode()
        except BaseException:
            head.terminate()
            raise
        said = head.stdout.read()
        assert all(one in said for one in (b"2 of 2 are here", b"training began"))
    assert head.returncode == 0


def group(number: int, head: str, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """An agent with a rendezvous of its own, and one worker."""
    own = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id=group{number}", "--max-restarts=2")
    return torchrun(*own, JOINS, str(folder), "async_sgd", *arguments, PLESIO_JOIN=head, PLESIO_TOKEN=TOKEN)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_agents_with_rendezvous_of_their_own_restart_only_their_worker(tmp_path: Path) -> None:
    with serving(tmp_path) as head:
        agents = [group(one, head, tmp_path, "0" if one else "none", "before,after", "4") for one in range(2)]
        assert [agent.wait() for agent in agents] == [0, 0]
    assert len(list(tmp_path.glob("joined-*"))) == 4, "the other worker was never restarted"
    seats = joined(done_in(tmp_path))
    assert len(seats) == 3
    assert max(incarnation for _, incarnation in seats) >= 2


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["agent", "group"])
def test_a_lost_agent_of_one_group_leaves_the_run_to_the_others(how: str, tmp_path: Path) -> None:
    """A killed agent leaves its worker, which goes on. One that is told to end takes it along; another one's gets the seat."""
    ended = how == "group"
    with serving(tmp_path) as head:
        agents = [group(one, head, tmp_path, "0" if one else "none", how, "3" if ended else "0") for one in range(2)]
        assert agents[1].wait() != 0
        if ended:
            assert group(2, head, tmp_path, "none", "none").wait() == 0
        assert agents[0].wait() == 0
    assert sorted(incarnation for _, incarnation in joined(done_in(tmp_path))) == ([1, 1, 2] if ended else [1, 1])


def test_a_script_joins_as_a_worker_by_one_command(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch\n"
        "def train(worker):\n"
        "    model = torch.nn.Linear(2, 1)\n"
        "    model, optimizer = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "    for _ in range(int(sys.argv[1])):\n"
        "        model(torch.ones(2)).sum().backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
    )
    with remote.head(far=False) as door:
        for _ in range(2):
            door.fork_command(str(script), "--", "3")
        run = door.run("sync_sgd", 2)
        assert door.end() == [0, 0], door.warnings()
    assert run.version == 3


@contextmanager
def agent() -> Iterator[tuple[int, int]]:
    """A process that keeps a store, as torchrun's does: its number, and the store's port."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(theirs, str(store.port).encode())
        while True:
            time.sleep(1.0)
    try:
        yield pid, int(os.read(ours, 10))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


def rank_0(port: int, rejoin_s: float) -> None:
    """As torchrun starts it: it starts the head, and dies."""
    os.environ |= {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "one",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    with ps.join("async_sgd", rejoin_s=rejoin_s):
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rejoin_s", "killed"),
    [pytest.param(1.0, False, marks=pytest.mark.slow), (60.0, True)],
    ids=["nobody comes", "the agent ends"],
)
def test_head_does_not_outlive_its_run(rejoin_s: float, killed: bool) -> None:
    with agent() as (pid, port):
        first = os.fork()
        if not first:
            try:
                rank_0(port, rejoin_s)
            finally:
                os._exit(1)
        os.waitpid(first, 0)
        store = TCPStore("127.0.0.1", port, is_master=False)
        head = msgspec.json.decode(store.get("plesio/head/one"), type=HeadAddress)
        assert head.is_ours
        if killed:
            assert not head.has_ended(timeout_s=rejoin_s / 20)
            os.kill(pid, signal.SIGKILL)
        assert head.has_ended(timeout_s=START_S)
        assert gone_within({head.pid}, 5.0)


def slurm(folder: Path, monkeypatch: pytest.MonkeyPatch, **changed: str) -> int:
    """Run the template's job, changed as a user would change it."""
    for name in ("srun", "sbatch"):
        shutil.copy(SUPPORT / "srun.py", folder / name)
        text = f"#!{sys.executable}\n{(folder / name).read_text()}"
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    printed = subprocess.run(
        [sys.executable, "-m", "plesio", "template", "slurm"], capture_output=True, text=True, check=True
    )
    script = printed.stdout.replace("python train.py", f"{sys.executable} {JOINS} {folder} async_sgd none none")
    for name, value in changed.items():
        script = re.sub(f"--{name.replace('_', '-')}=.*", f"--{name.replace('_', '-')}={value}", script)
    (folder / "train.sh").write_text(script)
    return subprocess.run(["sbatch", folder / "train.sh"]).returncode


@pytest.mark.slow
@pytest.mark.parametrize("nodes", ["1", "2"])
def test_slurm_template_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_certificates(
        tmp_path / ".plesio" / "certs", [socket.gethostname()]
    )  # between nodes the template asks for them
    assert slurm(tmp_path, monkeypatch, nodes=nodes, ntasks_per_node="2" if nodes == "1" else "1") == 0
    assert joined(done_in(tmp_path)) == [(0, 1), (1, 1)]


def of_size(worker: ps.Worker, features: int = 8, samples: int = 64) -> None:
    model = nn.Linear(features, 4)
    loader = DataLoader(
        TensorDataset(torch.zeros(samples, features), torch.zeros(samples, dtype=torch.long)), batch_size=4
    )
    model, optimizer, loader = worker.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for inputs, labels in loader:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"features": 9}, r"weight: wanted shape \(4, 8\), got \(4, 9\)"),
        ({"samples": 68}, "its loader has 1[67] batches an epoch, another worker's 1[67]"),
        ({"samples": 63}, "drew different batches for epoch 0"),
    ],
)
def test_another_model_or_data_is_refused_with_the_difference(other: dict[str, int], why: str) -> None:
    with remote.head() as head:
        head.fork(of_size, rank=0)
        head.fork(functools.partial(of_size, **other), rank=1)
        with pytest.raises((ps.ModelMismatchError, ps.ConfigurationError), match=why):
            head.run("sync_sgd", workers=2)
