// SPDX-License-Identifier: Apache-2.0
// Per-replica values from a function, and elements from a generator.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scalar_tensor.h>

#include <cstdio>

#include "numpy_text.h"

namespace {

at::Tensor identity(at::Tensor x) { return x; }

void values_from_a_function(cohort::Strategy& mirrored_strategy) {
  const auto value_fn = [](const cohort::ValueContext&) {
    return cohort::Nest(at::scalar_tensor(1.0, at::kFloat));
  };
  const auto distributed_values = mirrored_strategy.distribute_values_from_function(value_fn);
  for (int i = 0; i < 4; ++i) {
    const at::Tensor result = mirrored_strategy.run(&identity, distributed_values);
    std::printf("%s\n", guide::str(result).c_str());
  }
}

// Prints nothing, as in the guide.
void elements_of_a_generator(cohort::Strategy& mirrored_strategy) {
  const auto input_gen = [] {
    return [](cohort::Nest& element) {
      element = at::rand({4});
      return true;
    };
  };
  const auto dataset =
      cohort::Dataset::from_generator(input_gen, cohort::ElementSpec::tuple({{at::kFloat, {{4}}}}));
  const auto dist_dataset = mirrored_strategy.distribute_dataset(dataset);
  auto iterator = dist_dataset.iterator();
  for (int i = 0; i < 4; ++i) mirrored_strategy.run(&identity, iterator.get_next());
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy mirrored_strategy;
    values_from_a_function(mirrored_strategy);
    elements_of_a_generator(mirrored_strategy);
    return 0;
  });
}
