"""`srun`, `sbatch` and `scontrol` as far as tests of one host need them: started under these names, with a job's variables.

sbatch SCRIPT reads its #SBATCH lines and runs it. srun [OPTIONS] COMMAND starts the tasks and waits for all of them. scontrol
requeue JOB leaves a file, until the job is started again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

REQUEUED = Path("requeued")


def sbatch(script: str) -> int:
    """Run a script as a job's only step of its own."""
    options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)", Path(script).read_text(), re.MULTILINE))
    nodes = int(options["nodes"])
    job = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_RESTART_COUNT": "9",  # as after many pre-emptions
        "SLURM_NTASKS": str(nodes * int(options["ntasks-per-node"])),
        "SLURM_PROCID": "0",
    }
    REQUEUED.unlink(missing_ok=True)
    return subprocess.run(["bash", script], env={**os.environ, **job}).returncode


def srun(arguments: list[str]) -> int:
    """Start the tasks of a step; nodes are called as this host is."""
    command = [one for one in arguments if not one.startswith("-")]
    tasks, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_JOB_NUM_NODES"])
    step = {
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": ",".join(["localhost"] * nodes),
        "SLURM_STEP_NUM_TASKS": str(tasks),
    }
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **step, "SLURM_PROCID": str(task), "SLURM_NODEID": str(task * nodes // tasks)},
        )
        for task in range(tasks)
    ]
    codes = [one.wait() for one in started]
    return max(abs(code) for code in codes)


def scontrol(_: list[str]) -> int:
    REQUEUED.touch()
    return 0


if __name__ == "__main__":
    programs = {"srun": srun, "sbatch": lambda arguments: sbatch(arguments[0]), "scontrol": scontrol}
    sys.exit(programs[Path(sys.argv[0]).name](sys.argv[1:]))
