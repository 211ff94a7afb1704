#!/bin/bash
# A run of plesio as one SLURM job: sbatch train.sh
#
# train.py trains inside of
#   with ps.join("async_sgd", runs="runs", checkpoint=ps.Checkpoint(every_s=60), resume="newest") as worker:
# Each task becomes a worker. Task 0 also starts the run's head, which listens on the first node at a port between 20000 and
# 32000 that follows from the job's number. The job may be pre-empted, or run out of time: it is queued again, and goes on.

#SBATCH --job-name=plesio
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --requeue
#SBATCH --signal=TERM@60
#SBATCH --open-mode=append
#SBATCH --output=%x-%j.out
##SBATCH --gpus-per-task=1

set -euo pipefail

# Activate the environment that plesio is installed in, the same on all nodes:
# source "$HOME/venv/bin/activate"

# What workers prove that they belong to this run: a new secret for each start. srun passes it on.
PLESIO_TOKEN=$(python -c 'import secrets; print(secrets.token_hex())')
export PLESIO_TOKEN

# Between nodes everything goes over TLS. Make the certificates once, where all nodes see them:
#   plesio certs ~/.plesio/certs $(sinfo --noheader --Node --format "--host %N")
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    export PLESIO_CERTS="$HOME/.plesio/certs"
fi

# A task that dies ends no other: under asynchronous strategies the others take over its data.
status=0
srun --kill-on-bad-exit=0 --wait=0 python train.py || status=$?

# 143: the job was told to end, so the run goes on later. Anything else is tried three times more. A file counts these:
# SLURM_RESTART_COUNT counts pre-emptions, too.
failures="plesio-$SLURM_JOB_ID.failures"
case "$status" in
    0) ;;
    143) scontrol requeue "$SLURM_JOB_ID" ;;
    *)
        echo "$status" >> "$failures"
        if [ "$(wc -l < "$failures")" -le 3 ]; then scontrol requeue "$SLURM_JOB_ID"; fi
        ;;
esac
exit "$status"
