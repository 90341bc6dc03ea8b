# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share: hosts that are namespaces of this one, and the jobs that
# each launcher starts. The sourcing script defines `launch TASKS PROGRAM…`.

SOURCE=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
DIGITS=$SOURCE/examples/data/digits
NETWORK=10.213.0 # of the namespaces alone

# Starts the script again where it is alone: in namespaces of its own. The kernel ends all processes
# in them when the script has ended.
if [ "${1:-}" != --inside ]; then
  exec unshare --mount --net --uts --pid --fork --kill-child --mount-proc -- "$0" --inside "$@"
fi
shift

if [ $# -lt 1 ]; then
  echo "usage: $0 BUILD_FOLDER [COMMAND…]" >&2
  exit 64
fi
BUILD=$(cd "$1" && pwd)
shift
# `cohort`, and the examples, as tests/CMakeLists.txt builds them.
export PATH=$BUILD/bin:$BUILD/tests:$PATH
export COHORT_DATA_DIRS=$DIGITS OMP_NUM_THREADS=1
FOLDER=$(mktemp -d)
chmod 755 "$FOLDER" # munge wants it to be reached by all users
trap clean_up EXIT

clean_up() {
  set +e
  [ $$ = 1 ] && { kill -KILL -1; wait; } 2> /dev/null # all others of the namespace
  umount "$FOLDER"/*.net
  if [ -n "${KEEP:-}" ]; then echo "kept $FOLDER"; else rm -rf "$FOLDER"; fi
}

# make_hosts NAME…: hosts with an address and a name of their own, and the processors and files of
# this one. The script runs on "head", which all of them reach.
make_hosts() {
  ip link set lo up
  ip link add switch type bridge
  ip address add "$NETWORK.1/24" dev switch
  ip link set switch up
  hostname head
  printf '127.0.0.1 localhost\n%s.1 head\n' "$NETWORK" > "$FOLDER/hosts"
  local number=1 name
  for name in "$@"; do
    number=$((number + 1))
    echo "$NETWORK.$number $name" >> "$FOLDER/hosts"
    touch "$FOLDER/$name.net"
    unshare --net="$FOLDER/$name.net" true
    on_host "$name" ip link add eth0 type veth peer name "$name" netns 1
    ip link set "$name" master switch up
    on_host "$name" ip address add "$NETWORK.$number/24" dev eth0
    on_host "$name" ip link set eth0 up
    on_host "$name" ip link set lo up
    on_host "$name" ip route add default via "$NETWORK.1"
  done
  mount --bind "$FOLDER/hosts" /etc/hosts
}

# on_host NAME COMMAND…
on_host() {
  nsenter --net="$FOLDER/$1.net" unshare --uts sh -c 'hostname "$0"; exec "$@"' "$@"
}

# await WHAT COMMAND…: until it succeeds, at most a minute.
await() {
  local what=$1 end=$((SECONDS + 60))
  shift
  until "$@" > /dev/null 2>&1; do
    if [ $SECONDS -ge $end ]; then
      echo "expected $what within a minute" >&2
      return 1
    fi
    sleep 0.2
  done
}

FAILED=0
# job NAME PATTERN COMMAND…: it must end with 0 within five minutes, and print a line like PATTERN.
job() {
  local name=$1 pattern=$2 code=0 start=$SECONDS
  shift 2
  echo "== $name"
  "$@" > "$FOLDER/out" 2>&1 &
  local pid=$!
  (sleep 300; kill "$pid") > /dev/null 2>&1 &
  local watch=$!
  wait "$pid" || code=$?
  kill "$watch" 2> /dev/null || true
  cat "$FOLDER/out"
  if [ $code != 0 ] || ! grep -Eq -- "$pattern" "$FOLDER/out"; then
    FAILED=$((FAILED + 1))
    echo "-- FAILED: exit code $code, expected 0 and a line like '$pattern'"
  else
    echo "-- passed in $((SECONDS - start)) s"
  fi
}

# The jobs that every launcher must start.
run_jobs() {
  local tasks right='test accuracy (0\.9|1\.0)'
  for tasks in 2 3; do
    job "cohort check, $tasks tasks" "reached $((tasks - 1)) of $((tasks - 1)) other tasks.*found nothing wrong" \
      launch $tasks cohort check
    job "MultiWorkerMirroredStrategy, $tasks tasks" "$right" \
      launch $tasks mnist_multi_worker --data-dir "$DIGITS" --epochs 20
  done
  # A server waits for the next chief, and the launcher for the server.
  export COHORT_END_WHEN_UNUSED=3
  COHORT_TASKS=chief=1,ps=1,worker=1 \
    job "v1, 3 tasks" "trained to step" \
    launch 3 mnist_v1 --data-dir "$DIGITS" --run-dir "$FOLDER/v1" --steps 1000
  COHORT_TASKS=chief=1,evaluator=1,ps=1,worker=1 \
    job "v1 with an evaluator, 4 tasks" "$right" \
    launch 4 mnist_v1 --data-dir "$DIGITS" --run-dir "$FOLDER/evaluated" --steps 2000
  COHORT_TASKS=chief=1,evaluator=1,ps=1,worker=1 \
    job "train_and_evaluate, 4 tasks" "accuracy 0\.9" \
    launch 4 train_and_evaluate --strategy v1 --data-dir "$DIGITS" --model-dir "$FOLDER/model"
  COHORT_TASKS=chief=1,ps=1,worker=1 \
    job "a coordinator, 3 tasks" "$right" \
    launch 3 mnist_parameter_server --data digits --data-dir "$DIGITS"
}

finish() {
  echo "$FAILED jobs failed"
  [ $FAILED = 0 ]
}
