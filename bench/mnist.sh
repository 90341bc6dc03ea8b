#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job itself: seconds an epoch of MNIST with two workers, batch 64, as ./dev train runs it.
#   bench/mnist.sh [ROUNDS] [EPOCHS A ROUND]      (default: 5 1)
# COHORT, EXAMPLE and DATA_DIR name other binaries and data than those of ./dev train; PS sets the servers,
# MODELS the networks: mlp, cnn or both.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-5} epochs=${2:-1} ps=${PS:-1} models=${MODELS:-mlp cnn}
cohort=${COHORT:-build/install/bin/cohort}
example=${EXAMPLE:-build/examples/mnist_parameter_server}
data=${DATA_DIR:-$(python3 tools/fetch_mnist.py)}
[ -x "$cohort" ] && [ -x "$example" ] || { echo "no $cohort or $example: run ./dev train first" >&2; exit 1; }

# Prints "SECONDS ACCURACY" of one run of model $1; the seconds of all its epochs.
run() {
  "$cohort" launch --workers 2 --ps "$ps" --data "$data" -- "$example" \
    --model "$1" --data mnist --data-dir "$data" --batch 64 --epochs "$epochs" 2>/dev/null |
    sed -n 's/.*test accuracy \([0-9.]*\) after \([0-9.]*\) s.*/\2 \1/p'
}

# user nice system irq softirq | steal, in ticks
cpu() { awk '/^cpu / {print $2 + $3 + $4 + $7 + $8, $9}' /proc/stat; }

echo "MNIST, batch 64, 2 workers, $ps parameter servers, $epochs epochs a round, load $(cut -d' ' -f1 /proc/loadavg)"
before=$(cpu)
figures=$(mktemp)
trap 'rm -f "$figures"' EXIT
for ((round = 0; round < rounds; ++round)); do
  for model in $models; do echo "$model $(run "$model")" >>"$figures"; done
done
for model in $models; do
  awk -v model=$model -v epochs="$epochs" '$1 == model && NF == 3 {print $2 / epochs, $3}' "$figures" | sort -n |
    awk -v model=$model '{s[NR] = $1; a = $2} END {
      if (NR == 0) {print model ": no run ended well"; exit 1}
      printf "%s: median %.2f s an epoch, min %.2f, max %.2f, n %d, accuracy %s\n", model, s[int((NR + 1) / 2)], s[1], s[NR], NR, a}'
done
echo "processor time and steal, in ticks, before: $before; after: $(cpu)"
