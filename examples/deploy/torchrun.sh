#!/bin/sh
# torchrun.sh PROCESSES_PER_HOST PROGRAM [ARGUMENTS]…
# Start it on each of NODES hosts, with the same MASTER, a host of the job and a free port there.
# torchrun must be of the version of LibTorch that Cohort was built with: their stores differ otherwise.
# Debian 12's (python3 -m torch.distributed.run, 1.13 under Python 3.11) also needs --redirects 1 --tee 1.
set -eu
processes=$1
shift

exec torchrun --no-python --nnodes "${NODES:-1}" --nproc-per-node "$processes" \
  --rdzv-backend c10d --rdzv-endpoint "${MASTER:-127.0.0.1:29400}" --rdzv-id "${JOB:-cohort}" "$@"
