"""Runs by the templates of `plesio template` whose machines are taken away, with and without notice, and come back."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from plesio.cli.main import main
from plesio.transport.certificates import make_certificates
from support.programs import PYTHON, with_tests
from support.remote import TOKEN
from support.schedulers import HEAD, STEPS, Machine, supervise

SUPPORT = Path(__file__).parents[1] / "support"
PROGRAMS = {"python": "", "plesio": "-m plesio", "torchrun": "-m torch.distributed.run"}
TOLD = 143
JOB = "job"


def with_programs(folder: Path) -> dict[str, str]:
    """An image's environment: its path has what the commands of templates call."""
    folder.mkdir()
    scripts = {name: f'#!/bin/sh\nexec {" ".join(PYTHON)} {how} "$@"\n' for name, how in PROGRAMS.items()}
    scripts |= {
        name: f"#!{sys.executable}\n{(SUPPORT / 'srun.py').read_text()}" for name in ("srun", "sbatch", "scontrol")
    }
    # who has patience needs it only while a head may still come
    scripts["sleep"] = f"#!/bin/sh\n[ -e {folder.parent}/head-is-done ] || exec /bin/sleep $1\n"
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**with_tests(), "PATH": f"{folder}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "SKYPILOT_TASK_ID": "1-0"}


def changed(text: str, folder: Path) -> str:
    """A template for two workers on this host, with a folder in place of volumes and buckets."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (certificates,) = make_certificates(folder / "certs", ["127.0.0.1"])
    text = re.sub(r"(workers[= ]|nproc-per-node=|ntasks-per-node=|completions: |parallelism: )4", r"\g<1>2", text)
    text = re.sub(r"(every[-_]s[= ])60", r"\g<1>1", text.replace("--nodes=2", "--nodes=1"))
    text = re.sub(r"plesio-head(-0-0.plesio)?:7070", "tcp://127.0.0.1:7070", text).replace(":7070", f":{port}")
    return text.replace("/certs", str(certificates)).replace("/runs", str(folder / "runs"))


def pods(text: str, machine: Callable[..., Machine]) -> list[Machine]:
    """A machine for each pod of the manifest's jobs."""
    objects = list(yaml.safe_load_all(text))
    sets = [one["spec"]["replicatedJobs"] for one in objects if one["kind"] == "JobSet"]
    jobs = [(one["metadata"]["name"], one) for one in objects if one["kind"] == "Job"]
    jobs += [(one["name"], one["template"]) for inner in sets for one in inner]
    found = []
    for name, job in jobs:
        (container,) = job["spec"]["template"]["spec"]["containers"]
        for index in range(job["spec"].get("completions", 1)):
            elsewhere = {"secretKeyRef": TOKEN, "fieldRef": str(index)}
            told = {
                one["name"]: one["value"] if "value" in one else elsewhere[next(iter(one["valueFrom"]))]
                for one in container["env"]
            }
            pod = HEAD if "head" in name else f"worker-{index}"
            found.append(machine(pod, container["command"] + container["args"], **told))
    return found


PODS = [("worker-0", "told"), ("worker-1", "lost"), (HEAD, "told"), (HEAD, "lost")]
TAKEN = {
    "kubernetes": PODS,
    "jobset": PODS,
    "slurm": [(JOB, "told"), (JOB, "lost"), (JOB, "worker")],
    "skypilot": [(JOB, "told"), (JOB, "lost")],
    "torchrun": [(JOB, "worker"), (JOB, "told"), (JOB, "lost")],
}


@pytest.mark.thorough
@pytest.mark.parametrize("scheduler", TAKEN)
def test_run_of_a_template_finishes_though_its_machines_are_taken_away(
    scheduler: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["template", scheduler]) == 0
    text = changed(capsys.readouterr().out, tmp_path)
    environment = with_programs(tmp_path / "bin")
    joins = re.search(r"with ps\.join\(.*\) as worker:", text)  # as the template's comment says
    script = "import plesio as ps\nfrom support.schedulers import train\n"
    script += f"{joins[0]}\n    train(worker)\n" if joins else ""

    def requeued(_: int) -> bool:
        return (tmp_path / JOB / "requeued").exists()

    def machine(name: str, command: list[str], **told: str) -> Machine:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(script)
        (folder / "train.sh").write_text(text)
        again = {"slurm": requeued, "torchrun": bool}.get(scheduler, TOLD.__eq__)
        return Machine(folder, command, environment | told, again, tells_all=name == JOB)

    match scheduler:
        case "kubernetes" | "jobset":
            machines = pods(text, machine)
        case "slurm":
            machines = [machine(JOB, ["sbatch", "train.sh"])]
        case "skypilot":
            machines = [machine(JOB, ["bash", "-c", yaml.safe_load(text)["run"]])]
        case _:
            machines = [machine(JOB, ["bash", "train.sh"])]
    supervise(machines, [*TAKEN[scheduler]], ended_by_head=scheduler == "jobset")

    configurations = [one.read_text() for one in tmp_path.rglob("run.toml")]
    went_on = sum("\nresume = " in one for one in configurations)
    heads = [how for name, how in TAKEN[scheduler] if name in (HEAD, JOB) and how != "worker"]
    # the task that was killed may be the one that waits for the head: the job ends while that still writes, and is gone on with
    once_more = went_on - len(heads) if scheduler == "slurm" else 0
    assert went_on == len(configurations) - 1 == len(heads) + once_more
    assert once_more in (0, 1)
    summaries = [json.loads(one.read_text()) for one in tmp_path.rglob("summary.json")]
    last = max(summaries, key=lambda one: one["version"])
    assert (last["version"], last["batches_unvisited"], last["discarded"]) == (STEPS, 0, {})
