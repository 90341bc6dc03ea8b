#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/deploy/slurm.sh BUILD_FOLDER [COMMAND…]
# Starts a Slurm cluster of three nodes on this host, runs all jobs on it with srun and sbatch, or
# COMMAND (such as: srun -n 3 PROGRAM), and ends all of it. README.md says what it needs.
set -euo pipefail
source "$(dirname "$0")/jobs.sh"

NODES=(n1 n2 n3)

configure() {
  dd if=/dev/urandom of="$FOLDER/munge.key" bs=128 count=1 status=none
  chmod 600 "$FOLDER/munge.key"
  export SLURM_CONF=$FOLDER/slurm.conf
  # With more processors than the host has, so that several tasks fit on a node.
  cat > "$SLURM_CONF" <<CONF
ClusterName=cohort
SlurmctldHost=head
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$FOLDER/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
StateSaveLocation=$FOLDER/state
SlurmctldPidFile=$FOLDER/slurmctld.pid
SlurmctldLogFile=$FOLDER/slurmctld.log
SlurmdSpoolDir=$FOLDER/spool.%n
SlurmdPidFile=$FOLDER/slurmd.%n.pid
SlurmdLogFile=$FOLDER/slurmd.%n.log
NodeName=n[1-3] CPUs=16 State=UNKNOWN
PartitionName=all Nodes=n[1-3] Default=YES MaxTime=INFINITE State=UP
CONF
}

start() {
  munged --foreground --key-file="$FOLDER/munge.key" --socket="$FOLDER/munge.socket" \
    --pid-file="$FOLDER/munge.pid" --log-file="$FOLDER/munge.log" --seed-file="$FOLDER/munge.seed" \
    > "$FOLDER/munge.out" 2>&1 &
  await "munged" munge --socket="$FOLDER/munge.socket" --no-input
  slurmctld -D > "$FOLDER/slurmctld.out" 2>&1 &
  local node
  for node in "${NODES[@]}"; do
    on_host "$node" slurmd -D > "$FOLDER/slurmd.$node.out" 2>&1 &
  done
  await "three idle nodes" has_idle_nodes
}

has_idle_nodes() {
  [ "$(sinfo --noheader --Node --states=idle --format=%N | wc -l)" = "${#NODES[@]}" ]
}

# On two nodes, the first of which has one task more if the number is odd.
launch() { srun --label --nodes=2 --ntasks="$1" --kill-on-bad-exit=0 "${@:2}"; }

# The job file as it is, with the processors and the time that it asks for.
batch() {
  local out code=0
  out=$(mktemp -p "$FOLDER")
  sbatch --wait --output="$out" "$SOURCE/examples/deploy/slurm.sbatch" "$@" || code=$?
  cat "$out"
  return $code
}

# Both fit on the same two nodes.
two_batches() {
  batch "$@" &
  local other=$! code=0
  batch "$@" || code=$?
  wait $other || code=$?
  return $code
}

# Open MPI starts its processes on the nodes of the allocation.
by_mpirun() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    salloc --nodes=2 --ntasks="$1" sh "$SOURCE/examples/deploy/mpirun.sh" "$@"
}

# A worker is killed when all train.
lose_worker() {
  srun --label --kill-on-bad-exit=0 --nodes=2 --ntasks=3 \
    sh -c 'echo $$ > "$0.$SLURM_PROCID"; exec "$@"' "$FOLDER/process" "$@" &
  local all=$! code=0
  await "a step" trains n1:8888
  kill -KILL "$(cat "$FOLDER/process.2")"
  wait $all || code=$?
  [ $code = 137 ] # srun ends with the code of the killed one
}

trains() { cohort status --cluster "$1" | grep -q 'step [1-9]'; }

run_slurm_jobs() {
  local right='test accuracy (0\.9|1\.0)'
  run_jobs
  job "a worker is lost, 3 tasks" "$right" lose_worker mnist_multi_worker --data-dir "$DIGITS" --epochs 60
  job "sbatch --test-only" "to start at" sbatch --test-only "$SOURCE/examples/deploy/slurm.sbatch" true
  job "slurm.sbatch, 4 workers" "$right" batch mnist_multi_worker --data-dir "$DIGITS" --epochs 20
  job "slurm.sbatch, two jobs at once" "$right" \
    two_batches mnist_multi_worker --data-dir "$DIGITS" --epochs 20
  COHORT_TASKS=chief=1,ps=1,worker=2 \
    job "slurm.sbatch, v1" "trained to step" \
    batch mnist_v1 --data-dir "$DIGITS" --run-dir "$FOLDER/batch_v1" --steps 1000
  job "mpirun in an allocation, cohort check" "reached 2 of 2 other tasks.*found nothing wrong" \
    by_mpirun 3 cohort check
  COHORT_TASKS=chief=1,ps=1,worker=1 \
    job "mpirun in an allocation, v1" "trained to step" \
    by_mpirun 3 mnist_v1 --data-dir "$DIGITS" --run-dir "$FOLDER/mpirun_v1" --steps 1000
  finish
}

make_hosts "${NODES[@]}"
configure
start
if [ $# -gt 0 ]; then
  "$@"
else
  run_slurm_jobs
fi
