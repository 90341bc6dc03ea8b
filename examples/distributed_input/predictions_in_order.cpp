// SPDX-License-Identifier: Apache-2.0
// Replicas finish in any order, so each element has an index by which the results are sorted.
#include <ATen/TensorOperators.h>

#include <cstdio>
#include <map>

#include "numpy_text.h"

namespace {

constexpr std::int64_t kDatasetSize = 24;
constexpr std::int64_t kBatchSize = 6;

std::tuple<at::Tensor, at::Tensor> predict(at::Tensor index, at::Tensor inputs) {
  return {index, 2 * inputs};
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy mirrored_strategy;
    const auto dist_dataset = mirrored_strategy.distribute_dataset(
        cohort::Dataset::range(kDatasetSize).enumerate().batch(kBatchSize));

    std::map<std::int64_t, std::int64_t> result;
    for (const auto& batch : dist_dataset) {
      const auto predictions = mirrored_strategy.run(&predict, batch);
      for (const auto& [index, outputs] : mirrored_strategy.local_results(predictions)) {
        for (const std::int64_t i : c10::irange(index.size(0))) {
          result[index[i].item().toLong()] = outputs[i].item().toLong();
        }
      }
    }

    std::string text;
    for (const auto& [index, value] : result) {
      text += (text.empty() ? "" : ", ") + std::to_string(index) + ": " + std::to_string(value);
    }
    std::printf("{%s}\n", text.c_str());
    return 0;
  });
}
