"""What `plesio template kubernetes` prints is what Kubernetes takes, and its parts fit each other."""

from __future__ import annotations

import stat
from typing import Any

import pytest
import typer
import yaml

from plesio.cli.main import commands, main

SECRET = {"secretName!": str, "defaultMode": int}
CONTAINER = {
    "name!": str,
    "image!": str,
    "command": [str],
    "args": [str],
    "env": [
        {
            "name!": str,
            "value": str,
            "valueFrom": {"secretKeyRef": {"name!": str, "key!": str}, "fieldRef": {"fieldPath!": str}},
        }
    ],
    "ports": [{"containerPort!": int}],
    "resources": {"requests": {"cpu": str, "memory": str}},
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool}],
}
POD = {
    "metadata": {"labels": {"app": str}},
    "spec!": {
        "restartPolicy!": str,
        "containers!": [CONTAINER],
        "volumes": [{"name!": str, "secret": SECRET, "persistentVolumeClaim": {"claimName!": str}}],
    },
}
SPECS: dict[tuple[str, str], Any] = {
    ("v1", "Service"): {
        "clusterIP": str,
        "publishNotReadyAddresses": bool,
        "selector": {"app": str},
        "ports!": [{"name": str, "port!": int}],
    },
    ("v1", "PersistentVolumeClaim"): {"accessModes!": [str], "resources!": {"requests!": {"storage!": str}}},
    ("batch/v1", "Job"): {
        "completionMode": str,
        "completions": int,
        "parallelism": int,
        "backoffLimit": int,
        "template!": POD,
    },
}
"""The fields of Kubernetes' API that the manifest uses, as its reference has them; ! marks those that it demands."""


def check(value: Any, schema: Any, where: str) -> None:
    """Raise for a field that is unknown, lacking or of another type."""
    if isinstance(schema, type):
        assert type(value) is schema, f"{where} is {value!r}"
    elif isinstance(schema, list):
        assert isinstance(value, list), where
        for number, one in enumerate(value):
            check(one, schema[0], f"{where}[{number}]")
    else:
        known = {name.removesuffix("!"): kind for name, kind in schema.items()}
        assert set(value) <= set(known), f"{where} has {set(value) - set(known)}"
        lacking = {name.removesuffix("!") for name in schema if name.endswith("!")} - set(value)
        assert not lacking, f"{where} lacks {lacking}"
        for name, one in value.items():
            check(one, known[name], f"{where}.{name}")


@pytest.fixture
def parts(capsys: pytest.CaptureFixture[str]) -> dict[tuple[str, str], Any]:
    """The manifest's objects, by kind and name."""
    assert main(["template", "kubernetes"]) == 0
    return {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(capsys.readouterr().out)}


def pod(job: Any) -> tuple[Any, Any, dict[str, Any]]:
    """A job's pod, its only container, and that one's environment."""
    inside = job["spec"]["template"]["spec"]
    (container,) = inside["containers"]
    return inside, container, {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_every_object_has_the_fields_of_its_kind(parts: dict[tuple[str, str], Any]) -> None:
    assert len(parts) == 4
    for (kind, name), one in parts.items():
        schema = {
            "apiVersion!": str,
            "kind!": str,
            "metadata!": {"name!": str},
            "spec!": SPECS[one["apiVersion"], kind],
        }
        check(one, schema, name)


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


def test_the_head_is_given_options_that_there_are(parts: dict[tuple[str, str], Any]) -> None:
    _, container, _ = pod(parts["Job", "plesio-head"])
    program, name = container["command"]
    command = typer.main.get_command(commands).commands[name]  # type: ignore[attr-defined]
    known = {option for one in command.params for option in one.opts}
    assert program == "plesio"
    assert {one.partition("=")[0] for one in container["args"]} <= known
