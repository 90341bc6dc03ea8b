#!/bin/sh
# mpirun.sh PROCESSES PROGRAM [ARGUMENTS]…
# HOSTS="h1:2,h2:2" names hosts and how many processes each gets; without it all run here.
# COHORT_TASKS="chief=1,ps=1,worker=2" makes tasks of the ranks; without it all are workers.
set -eu
processes=$1
shift

# Parameter servers wait for another chief, and mpirun for all processes.
export COHORT_END_WHEN_UNUSED="${COHORT_END_WHEN_UNUSED:-30}"

# -x passes a variable on to the processes of other hosts (Open MPI).
exec mpirun -n "$processes" ${HOSTS:+--host "$HOSTS"} -x COHORT_END_WHEN_UNUSED \
  ${COHORT_TASKS:+-x COHORT_TASKS} ${COHORT_DATA_DIRS:+-x COHORT_DATA_DIRS} "$@"
