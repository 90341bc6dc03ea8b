// SPDX-License-Identifier: Apache-2.0
// Asks the strategy which task of the cluster this process is. TF_CONFIG must be set, here and in
// the other worker; servers may be in the cluster, and have no part in the training.
#include "page_text.h"

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    // This implicitly uses TF_CONFIG for the cluster and current task info.
    cohort::MultiWorkerMirroredStrategy strategy({.devices = {"CPU:0"}});

    const cohort::ClusterResolver& resolver = *strategy.cluster_resolver();
    if (resolver.task_type() == "worker") {
      page::print("worker " + std::to_string(*resolver.task_id()) + " of " +
                  std::to_string(resolver.cluster_spec().num_tasks("worker")) +
                  ": something that only workers do");
    } else if (resolver.task_type() == "ps") {
      page::print("something that only parameter servers do");
    }
    return 0;
  });
}
