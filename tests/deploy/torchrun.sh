#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/deploy/torchrun.sh BUILD_FOLDER [COMMAND…]
# Runs all jobs with the torchrun of the Python in PYTHON (/usr/bin/python3), whose PyTorch must be of
# the version of the build's LibTorch, or COMMAND. README.md says what it needs.
set -euo pipefail
source "$(dirname "$0")/jobs.sh"

PYTHON=${PYTHON:-/usr/bin/python3}
version=$("$PYTHON" -c 'import torch; print(torch.__version__)')
echo "torchrun of PyTorch $version"
# Under Python 3.11 that of PyTorch 1.13 cannot write without these.
workaround=
case $version in 1.13.*) workaround="--redirects 1 --tee 1" ;; esac
mkdir "$FOLDER/bin"
printf '#!/bin/sh\nexec "%s" -m torch.distributed.run %s "$@"\n' "$PYTHON" "$workaround" > "$FOLDER/bin/torchrun"
chmod +x "$FOLDER/bin/torchrun"
export PATH=$FOLDER/bin:$PATH

launch() { on_host n1 sh "$SOURCE/examples/deploy/torchrun.sh" "$@"; }

# Half of the processes on each of two hosts.
launch_on_two() {
  export NODES=2 MASTER=n1:29400
  on_host n2 sh "$SOURCE/examples/deploy/torchrun.sh" $(($1 / 2)) "${@:2}" &
  local other=$! code=0
  on_host n1 sh "$SOURCE/examples/deploy/torchrun.sh" $(($1 / 2)) "${@:2}" || code=$?
  wait $other || code=$?
  return $code
}

run_torchrun_jobs() {
  run_jobs
  job "cohort check, 2 hosts" "reached 3 of 3 other tasks.*found nothing wrong" \
    launch_on_two 4 cohort check
  job "MultiWorkerMirroredStrategy, 2 hosts" "test accuracy (0\.9|1\.0)" \
    launch_on_two 4 mnist_multi_worker --data-dir "$DIGITS" --epochs 20
  finish
}

make_hosts n1 n2
if [ $# -gt 0 ]; then
  "$@"
else
  run_torchrun_jobs
fi
