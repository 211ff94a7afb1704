"""`plesio template`: a job for a cluster's own scheduler, ready to edit."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from typing import Annotated

import typer


class Scheduler(StrEnum):
    SLURM = "slurm"
    KUBERNETES = "kubernetes"
    KUBERNETES_STANDBY = "kubernetes-standby"
    JOBSET = "jobset"
    SKYPILOT = "skypilot"
    TORCHRUN = "torchrun"


FILES = {
    Scheduler.SLURM: "slurm.sh",
    Scheduler.KUBERNETES: "kubernetes.yaml",
    Scheduler.KUBERNETES_STANDBY: "kubernetes-standby.yaml",
    Scheduler.JOBSET: "jobset.yaml",
    Scheduler.SKYPILOT: "skypilot.yaml",
    Scheduler.TORCHRUN: "torchrun.sh",
}


def template(scheduler: Annotated[Scheduler, typer.Argument(show_default=False)]) -> int:
    """Print a job for a scheduler, ready to edit: SLURM, Kubernetes, JobSet, SkyPilot (a managed spot job) or torchrun.

    Its comments say what to change, and what the training script has to be. Where machines are taken away, the run goes on.
    """
    print((files("plesio.cli") / "templates" / FILES[scheduler]).read_text(), end="")
    return 0
