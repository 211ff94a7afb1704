"""What `plesio template` prints is what each scheduler takes, its parts fit each other, and what is taken away comes back."""

from __future__ import annotations

import re
import shlex
import stat
import subprocess
from typing import Any

import kubernetes_validate
import pytest
import torch.distributed.run
import typer
import yaml

from plesio.cli.main import commands, main

LEAVE_S = 30.0  # the default of leave_s=
JOBS = [
    ("kubernetes", "plesio-head"),
    ("kubernetes", "plesio-worker"),
    ("kubernetes-standby", "plesio-standby"),
    ("jobset", "head"),
    ("jobset", "worker"),
]


def printed(scheduler: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["template", scheduler]) == 0
    return capsys.readouterr().out


def objects(scheduler: str, capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], Any]:
    """The manifest's objects by kind and name, those in a JobSet too."""
    found = list(yaml.safe_load_all(printed(scheduler, capsys)))
    for one in [one for one in found if one["kind"] == "JobSet"]:
        for inner in one["spec"]["replicatedJobs"]:
            named = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": inner["name"]}}
            found.append({**named, **inner["template"]})
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.fixture
def parts(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], Any]:
    """The manifest's objects, by kind and name."""
    return objects("kubernetes", capsys)


def pod(job: Any) -> tuple[Any, Any, dict[str, Any]]:
    """A job's pod, its only container, and that one's environment."""
    inside = job["spec"]["template"]["spec"]
    (container,) = inside["containers"]
    return inside, container, {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


@pytest.mark.parametrize(("scheduler", "count"), [("kubernetes", 4), ("kubernetes-standby", 3), ("jobset", 4)])
def test_objects_are_of_their_schemas(scheduler: str, count: int, capsys: pytest.CaptureFixture[str]) -> None:
    found = objects(scheduler, capsys)
    assert len(found) == count
    for (kind, _), one in found.items():
        if kind != "JobSet":
            kubernetes_validate.validate(one, "1.31", strict=True)


def test_jobset_is_done_with_its_head(capsys: pytest.CaptureFixture[str]) -> None:
    found = objects("jobset", capsys)
    spec, (_, head, _), (_, _, worker) = (
        found["JobSet", "plesio"]["spec"],
        pod(found["Job", "head"]),
        pod(found["Job", "worker"]),
    )
    assert set(spec) == {"network", "successPolicy", "failurePolicy", "replicatedJobs"}
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": ["head"]}
    assert worker["PLESIO_JOIN"] == f"plesio-head-0-0.{spec['network']['subdomain']}:7070"
    assert "--listen=0.0.0.0:7070" in head["args"]


@pytest.mark.parametrize(("scheduler", "name"), JOBS)
def test_what_kubernetes_takes_away_comes_back(scheduler: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    job = objects(scheduler, capsys)["Job", name]
    inside, container, _ = pod(job)
    disruption, told = job["spec"]["podFailurePolicy"]["rules"]
    assert (disruption["action"], disruption["onPodConditions"][0]["type"]) == ("Ignore", "DisruptionTarget")
    assert (told["action"], told["onExitCodes"]) == ("Ignore", {"operator": "In", "values": [143]})
    assert (inside["restartPolicy"], job["spec"]["backoffLimit"] > 0) == ("Never", True)
    assert inside["terminationGracePeriodSeconds"] > LEAVE_S
    if "head" in name:
        assert {"--resume=newest", "--runs=/runs"} < set(container["args"])


def test_a_standby_is_a_command_of_plesio_and_found_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    found = objects("kubernetes-standby", capsys)
    _, container, _ = pod(found["Job", "plesio-standby"])
    (port,) = found["Service", "plesio-standby"]["spec"]["ports"]
    assert container["command"] == ["plesio", "standby"]
    assert {one.partition("=")[0] for one in container["args"] if one.startswith("--")} <= known_options("standby")
    assert f"--address=plesio-standby:{port['port']}" in container["args"]
    assert found["Service", "plesio-standby"]["spec"]["selector"] == {"app": "plesio-standby"}
    for program in ("serve", "standby"):  # what the head is to do, in its comment
        comment = " ".join(line.strip("# ") for line in printed("kubernetes-standby", capsys).splitlines()[8:12])
        options = re.search(rf"plesio {program} ([^|]*)", comment)
        assert options is not None
        assert set(re.findall(r"--[\w-]+", options[1])) <= known_options(program)


@pytest.mark.parametrize("scheduler", ["slurm", "torchrun"])
def test_scripts_are_of_bash_and_options_of_the_launcher(scheduler: str, capsys: pytest.CaptureFixture[str]) -> None:
    script = printed(scheduler, capsys)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    if scheduler == "torchrun":
        (line,) = re.findall(r"^exec torchrun (.*)", script, re.MULTILINE)
        options = torch.distributed.run.parse_args(line.split())
        assert (options.training_script, options.max_restarts) == ("train.py", 100)
    else:
        assert {"--requeue", "--signal=TERM@60", "--open-mode=append"} < set(
            re.findall(r"^#SBATCH (\S+)", script, re.MULTILINE)
        )


def test_skypilot_recovers_the_job_by_the_same_command(capsys: pytest.CaptureFixture[str]) -> None:
    task = yaml.safe_load(printed("skypilot", capsys))
    assert set(task) == {"name", "resources", "workdir", "file_mounts", "setup", "run"}
    assert task["resources"]["use_spot"] is True
    recovery = task["resources"]["job_recovery"]
    assert set(recovery) == {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}
    assert recovery["recover_on_exit_codes"] == [143]
    subprocess.run(["bash", "-n"], input=task["run"], text=True, check=True)
    program, name, _, *words = shlex.split(task["run"])
    assert (program, name) == ("plesio", "run")
    assert {one for one in words if one.startswith("--")} <= known_options(name)
    assert words[words.index("--runs") + 1] == "/runs/$SKYPILOT_TASK_ID", "the same after each recovery"


def test_workers_find_the_head_and_their_seats(parts: dict[tuple[str, str], Any]) -> None:
    service, head, worker = parts["Service", "plesio-head"], parts["Job", "plesio-head"], parts["Job", "plesio-worker"]
    _, serving, _ = pod(head)
    _, _, environment = pod(worker)
    (port,) = service["spec"]["ports"]
    assert service["spec"]["selector"] == head["spec"]["template"]["metadata"]["labels"]
    assert environment["PLESIO_JOIN"] == f"plesio-head:{port['port']}"
    assert f"--listen=0.0.0.0:{port['port']}" in serving["args"]
    assert f"--workers={worker['spec']['completions']}" in serving["args"]
    assert worker["spec"]["completionMode"] == "Indexed"
    assert worker["spec"]["parallelism"] == worker["spec"]["completions"], "all train at once"
    path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    assert environment["PLESIO_RANK"] == {"fieldRef": {"fieldPath": path}}


@pytest.mark.parametrize("name", ["plesio-head", "plesio-worker"])
def test_each_pod_is_given_the_token_and_its_certificates(parts: dict[tuple[str, str], Any], name: str) -> None:
    inside, container, environment = pod(parts["Job", name])
    volumes = {one["name"]: one for one in inside["volumes"]}
    assert environment["PLESIO_TOKEN"] == {"secretKeyRef": {"name": "plesio-token", "key": "token"}}
    assert volumes["certs"]["secret"]["secretName"] == f"{name}-certs"
    assert volumes["certs"]["secret"]["defaultMode"] == stat.S_IRUSR
    assert {one["name"]: one["mountPath"] for one in container["volumeMounts"]}["certs"] == "/certs"
    assert "/certs" in environment.values() or "--certs=/certs" in container["args"]
    assert {one["name"] for one in container["volumeMounts"]} == set(volumes)


@pytest.mark.parametrize(("scheduler", "name"), [one for one in JOBS if "head" in one[1]])
def test_the_head_is_given_options_that_there_are(
    scheduler: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, container, _ = pod(objects(scheduler, capsys)["Job", name])
    program, command = container["command"]
    assert program == "plesio"
    assert {one.partition("=")[0] for one in container["args"]} <= known_options(command)


def known_options(name: str) -> set[str]:
    command = typer.main.get_command(commands).commands[name]  # type: ignore[attr-defined]
    return {option for one in command.params for option in one.opts}
