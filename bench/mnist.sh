#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job itself: seconds an epoch of MNIST with two workers, batch 64, as ./dev train runs it; in
# turn with it, TensorFlow's parameter servers do the same where its benchmarks are set up (bench/README.md).
#   bench/mnist.sh [ROUNDS] [EPOCHS A ROUND]      (default: 5 1)
# COHORT, EXAMPLE and DATA_DIR name other binaries and data than those of ./dev train; PS sets the servers,
# MODELS the networks: mlp, cnn or both. With STRATEGY=multi_worker both workers sum their gradients instead (MLP,
# global batch 64), in turn with TensorFlow's MultiWorkerMirroredStrategy and PyTorch's DistributedDataParallel. With
# STRATEGY=v1, a chief and a worker train the MLP by themselves, in turn with our own coordinator and TensorFlow's.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. bench/tensorflow.sh
strategy=${STRATEGY:-parameter_server}
[ "$strategy" = multi_worker ] && PS=0 MODELS=mlp
[ "$strategy" = v1 ] && MODELS=mlp
rounds=${1:-5} epochs=${2:-1} ps=${PS:-1} models=${MODELS:-mlp cnn}
cohort=${COHORT:-build/install/bin/cohort}
example=${EXAMPLE:-build/examples/mnist_$strategy}
data=${DATA_DIR:-$(python3 tools/fetch_mnist.py)}
coordinator=${example%/*}/mnist_parameter_server
[ -x "$cohort" ] && [ -x "$example" ] || { echo "no $cohort or $example: run ./dev train first" >&2; exit 1; }

# Prints "SECONDS ACCURACY" of one run of model $1; the seconds of all its epochs.
run() {
  if [ "$strategy" = v1 ]; then run_v1; else run_launched "$1"; fi
}
run_v1() {
  local folder steps=$((epochs * 60000 / 64))
  folder=$(mktemp -d)
  "$cohort" launch --v1 --chief --workers 1 --ps "$ps" --evaluator -- "$example" --data-dir "$data" --run-dir "$folder/run" \
    --steps "$steps" --save-every 1000000 2>"$log" |
    sed -n 's/.*\(trained\) to step .* in \([0-9.]*\) s.*/\1 \2/p; s/.*test \(accuracy\) \([0-9.]*\) at step.*/\1 \2/p' |
    awk '$1 == "trained" && $2 > s {s = $2} $1 == "accuracy" {a = $2} END {if (s && a) print s, a}'
  rm -rf "$folder"
}
run_coordinator() { strategy=parameter_server example=$coordinator run_launched mlp; }
run_launched() {
  local command=("$cohort" launch --workers 2 --ps "$ps")
  if [ "$strategy" = multi_worker ]; then
    command+=(-- "$example" --data-dir "$data" --epochs "$epochs")
  else
    command+=(--data "$data" -- "$example" --model "$1" --data mnist --data-dir "$data" --batch 64 --epochs "$epochs")
  fi
  "${command[@]}" 2>"$log" |
    sed -n 's/.*test accuracy \([0-9.]*\) after \([0-9.]*\) s.*/\2 \1/p'
}

# The same of one epoch of TensorFlow's or PyTorch's.
run_tensorflow() {
  local section=ps
  [ "$strategy" = multi_worker ] && section=mwms
  ANCHORS_MNIST=$data ANCHOR_M1_REPS=1 tensorflow m1_mnist_tf.py "${section}_$1" | seconds_and_accuracy
}
run_torch() { ANCHORS_MNIST=$data ANCHOR_M1_REPS=1 anchor "$torch_python" m1_mnist_torch.py "ddp_$1" | seconds_and_accuracy; }
seconds_and_accuracy() {
  python3 -c '
import json, sys
lines = [json.loads(line) for line in sys.stdin]
value = {line["unit"]: line["value"] for line in lines if line["id"] == "M1"}
if value: print(value["s"], value["%"] / 100)'
}

# user nice system irq softirq | steal, in ticks
cpu() { awk '/^cpu / {print $2 + $3 + $4 + $7 + $8, $9}' /proc/stat; }

# One line of model $1 as $2 ("cohort", "tensorflow" or "torch") ran it, with the ratio to the median $3 of the other.
report() {
  awk -v wanted="$1 $2" '$1 " " $2 == wanted && NF == 4 {print $3, $4}' "$figures" | sort -n |
    awk -v title="$1, $2" -v ours="${3:-}" '{s[NR] = $1; a = $2} END {
      if (NR == 0) {print title ": no run ended well"; exit 1}
      median = NR % 2 ? s[(NR + 1) / 2] : (s[NR / 2] + s[NR / 2 + 1]) / 2
      printf "%s: median %.2f s an epoch, min %.2f, max %.2f, n %d, accuracy %s", title, median, s[1], s[NR], NR, a
      if (ours != "") printf ", ours is %.1f times as fast", median / ours
      printf "\n"}'
}

is_with_torch() { [ "$strategy" = multi_worker ] && has_torch; }

echo "MNIST, batch 64, 2 workers, $ps parameter servers, $epochs epochs a round, load $(cut -d' ' -f1 /proc/loadavg)"
has_tensorflow || echo "TensorFlow is not measured: $tensorflow_missing"
[ "$strategy" != multi_worker ] || has_torch || echo "PyTorch is not measured: $tensorflow_missing"
before=$(cpu)
figures=$(mktemp) log=$(mktemp)
trap 'rm -f "$figures" "$log"' EXIT
for ((round = 0; round < rounds; ++round)); do
  for model in $models; do
    { run "$model" || tail -n 5 "$log" >&2; } | awk -v model="$model" -v epochs="$epochs" 'NF == 2 {print model, "cohort", $1 / epochs, $2}' >>"$figures"
    ! has_tensorflow || run_tensorflow "$model" | sed "s/^/$model tensorflow /" >>"$figures"
    [ "$strategy" != v1 ] || run_coordinator | awk -v epochs="$epochs" 'NF == 2 {print "mlp coordinator", $1 / epochs, $2}' >>"$figures"
    ! is_with_torch || run_torch "$model" | sed "s/^/$model torch /" >>"$figures"
  done
done
failed=0
for model in $models; do
  report "$model" cohort | tee "$figures.line" || failed=1
  ours=$(sed -n 's/.*median \([0-9.]*\) s.*/\1/p' "$figures.line") && rm -f "$figures.line"
  ! has_tensorflow || report "$model" tensorflow "$ours" || failed=1
  [ "$strategy" != v1 ] || report "$model" coordinator "$ours" || failed=1
  ! is_with_torch || report "$model" torch "$ours" || failed=1
done
echo "processor time and steal, in ticks, before: $before; after: $(cpu)"
exit $failed
