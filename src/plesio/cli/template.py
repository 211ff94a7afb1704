"""`plesio template`: a job for a cluster's own scheduler, ready to edit."""

from __future__ import annotations

from enum import StrEnum
from importlib.resources import files
from typing import Annotated

import typer


class Scheduler(StrEnum):
    SLURM = "slurm"
    KUBERNETES = "kubernetes"


FILES = {Scheduler.SLURM: "slurm.sh", Scheduler.KUBERNETES: "kubernetes.yaml"}


def template(scheduler: Annotated[Scheduler, typer.Argument(show_default=False)]) -> int:
    """Print a job for SLURM (a script for sbatch) or Kubernetes (a manifest for kubectl apply), ready to edit.

    Its comments say what to change. The training script has to call ps.join.
    """
    print((files("plesio.cli") / "templates" / FILES[scheduler]).read_text(), end="")
    return 0
