#!/bin/bash
# A run of plesio under torchrun on one host: bash run.sh, by whatever starts it again (systemd, a spot instance's start-up).
#
# train.py trains inside of
#   with ps.join("async_sgd", runs="runs", checkpoint=ps.Checkpoint(every_s=60), resume="newest") as worker:
# Each process becomes a worker, and rank 0 also starts the run's head. torchrun restarts workers that die, and the run goes on.
# If the head or this host dies, the same command goes on from the last checkpoint. Once the run has finished, it ends with 0.

set -euo pipefail

# On several hosts, the same on each (and certs: docs/machines.md):
#   --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 --rdzv-id=plesio
exec torchrun --nproc-per-node=4 --max-restarts=100 train.py
