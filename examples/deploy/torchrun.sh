#!/bin/sh
# torchrun.sh PROCESSES_PER_HOST PROGRAM [ARGUMENTS]…
# COHORT_TASKS="chief=1,ps=1,worker=2" makes tasks of the ranks; without it all are workers.
# Start it on each of NODES hosts, with the same MASTER, a host of the job and a free port there.
# torchrun must be of the version of LibTorch that Cohort was built with: their stores differ otherwise.
# Debian 12's (1.13 under Python 3.11) also needs --redirects 1 --tee 1.
set -eu
processes=$1
shift

# Parameter servers wait for another chief, and torchrun for all processes.
export COHORT_END_WHEN_UNUSED="${COHORT_END_WHEN_UNUSED:-30}"

exec torchrun --no_python --nnodes "${NODES:-1}" --nproc_per_node "$processes" \
  --rdzv_backend c10d --rdzv_endpoint "${MASTER:-127.0.0.1:29400}" --rdzv_id "${JOB:-cohort}" "$@"
