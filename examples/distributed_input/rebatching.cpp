// SPDX-License-Identifier: Apache-2.0
// Shows how the batches of a dataset are split for replicas.
#include <cstdio>

#include "numpy_text.h"

namespace {

void print(const char* title, const cohort::Dataset& dataset, int replicas) {
  std::printf("%s\n  not distributed\n", title);
  int number = 0;
  for (const cohort::Nest& batch : dataset) {
    std::printf("    batch %d: %s\n", ++number, guide::list(batch.tensor()).c_str());
  }
  std::vector<std::string> devices;
  for (int i = 0; i < replicas; ++i) devices.push_back("CPU:" + std::to_string(i));
  cohort::MirroredStrategy strategy(devices);
  std::printf("  on %d replicas\n", replicas);
  number = 0;
  for (const auto& step : strategy.distribute_dataset(dataset)) {
    std::printf("    batch %d\n", ++number);
    int replica = 0;
    for (const cohort::Nest& part : step.local_results()) {
      std::printf("      replica %d: %s\n", ++replica, guide::list(part.tensor()).c_str());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  using cohort::Dataset;
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    print("range(6).batch(4)", Dataset::range(6).batch(4, {.drop_remainder = false}), 2);
    print("range(4).batch(4)", Dataset::range(4).batch(4), 5);
    print("range(8).batch(4)", Dataset::range(8).batch(4), 3);
    return 0;
  });
}
