# SPDX-License-Identifier: Apache-2.0
# To be sourced: TensorFlow's and PyTorch's own figures, by the scripts of a folder of peers' benchmarks where
# there is one. COHORT_ANCHORS is that folder, ANCHORS_ROOT where its set-up put them.
anchors=${COHORT_ANCHORS:-../shared/anchors}
tensorflow_python=${ANCHORS_ROOT:-/tmp/cohort-anchors}/tf/bin/python
torch_python=${ANCHORS_ROOT:-/tmp/cohort-anchors}/torch/bin/python
tensorflow_missing="no $anchors (COHORT_ANCHORS) set up in ${ANCHORS_ROOT:-/tmp/cohort-anchors} (ANCHORS_ROOT)"

has_tensorflow() { [ -f "$anchors/tf_cluster.py" ] && [ -x "$tensorflow_python" ]; }

has_torch() { [ -f "$anchors/m1_mnist_torch.py" ] && [ -x "$torch_python" ]; }

# anchor PYTHON SCRIPT SECTION[,SECTION]: its results, a JSON object a line.
anchor() {
  PYTHONDONTWRITEBYTECODE=1 TF_CPP_MIN_LOG_LEVEL=3 "$1" "$anchors/$2" --only "$3" 2>/dev/null | grep '^{'
}
tensorflow() { anchor "$tensorflow_python" "$@"; }

# The same as lines to read.
tensorflow_report() {
  tensorflow "$@" | python3 -c '
import json, sys
for line in map(json.loads, sys.stdin):
    if line["value"] is None: print("TensorFlow:", line["metric"], line["notes"])
    else: print("TensorFlow: {metric}: median {value} {unit}, min {min}, max {max}, n {n}".format(**line))'
}
