// SPDX-License-Identifier: Apache-2.0
// One of two processes that train together, and save after every third step; see
// resumed_workers_test.
//   resumed_worker adam|torch FOLDER FILE
// It goes on from the latest checkpoint of FOLDER. At the end the first one saves the weights in
// FILE.
#include <string>
#include <vector>

#include "cohort/cohort.h"
#include "tests/parity/resumed_training.h"

namespace cohort {
namespace {

constexpr int kStepsPerSave = 3;

int train(const Arguments& arguments) {
  torch::manual_seed(5);
  parity::ResumableTraining<MultiWorkerMirroredStrategy> training(arguments.values.at(0) == "torch",
                                                                  MultiWorkerMirroredOptions());
  CheckpointManager manager(training.checkpoint(), arguments.values.at(1));
  manager.restore_latest();
  training.train(parity::kSteps, [&](std::int64_t step) {
    if (step % kStepsPerSave == 0) manager.save(step);
  });
  std::map<std::string, Variable> values;
  for (const Variable& each : training.net().variables()) values.emplace(each.name(), each);
  save_values(arguments.values.at(2), values);
  return 0;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::run_main(argc, argv, cohort::train); }
