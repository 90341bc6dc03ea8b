// SPDX-License-Identifier: Apache-2.0
// A task of a cluster of version 1 that counts: v1_worker FOLDER STEPS. It appends a byte to
// FOLDER/TASK after each step that the servers have confirmed.
#include <cohort/cohort.h>
#include <torch/torch.h>

#include <cstdint>
#include <fstream>
#include <string>

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments& arguments) {
    const std::string folder = arguments.values.at(0);
    const std::int64_t steps = std::stoll(arguments.values.at(1));
    cohort::v1::ParameterServerStrategy strategy;
    const cohort::Variable weight = strategy.variable("weight", torch::zeros({4}));
    const cohort::SGD optimizer({weight}, {.learning_rate = 1});
    const cohort::Variable step = strategy.global_step();
    const auto task = strategy.cluster_resolver()->task();
    std::ofstream confirmed(folder + "/" + task->to_string(), std::ios::binary | std::ios::app);
    std::int64_t now = 0;
    while (now < steps) {
      // Each step adds 1 to each number: the gradient of the sum is 1, and the rate 1.
      strategy.run([&] { optimizer.minimize(-weight.tensor().sum()); });
      confirmed << '1' << std::flush;
      strategy.run([&] {
        step.assign_add(1);
        now = step.read().item<std::int64_t>();
      });
    }
    std::ofstream(folder + "/" + task->to_string() + ".weight") << weight.read()[0].item<double>();
    return 0;
  });
}
