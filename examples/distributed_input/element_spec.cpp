// SPDX-License-Identifier: Apache-2.0
// A step whose signature is the spec of a distributed dataset.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/ones.h>

#include <cstdio>

#include "numpy_text.h"

namespace {

constexpr std::int64_t kGlobalBatchSize = 16;
constexpr int kEpochs = 5;
constexpr int kStepsPerEpoch = 5;

using Inputs = cohort::DistributedElement;

// Refuses inputs that do not have this spec, as tf.function with an input_signature does.
void check(const cohort::DistributedSpec& signature, const Inputs& inputs) {
  for (const cohort::Nest& component : inputs.local_results()) {
    const auto fields = cohort::ElementSpec::of(component).fields;
    for (std::size_t i = 0; i < fields.size(); ++i) {
      COHORT_CHECK(signature.component.fields.at(i).accepts(fields[i]),
                   cohort::ErrorCode::invalid_argument, "expected ", signature.to_string(),
                   ", got ", fields[i].to_string());
    }
  }
}

// Doubles the tuple of inputs, as the guide's Python does with `2 * inputs`.
cohort::Nest step_fn(const cohort::Nest& inputs) {
  cohort::Nest::Items twice = inputs.items();
  twice.insert(twice.end(), inputs.items().begin(), inputs.items().end());
  return cohort::Nest::tuple(std::move(twice));
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::run_main(argc, argv, [](const cohort::Arguments&) {
    cohort::MirroredStrategy mirrored_strategy;
    const auto dataset =
        cohort::Dataset::from_tensors(cohort::Nest::tuple({at::ones({1}), at::ones({1})}))
            .repeat(100)
            .batch(kGlobalBatchSize);
    const auto dist_dataset = mirrored_strategy.distribute_dataset(dataset);

    const auto train_step = [&](const Inputs& per_replica_inputs) {
      check(dist_dataset.element_spec(), per_replica_inputs);
      return mirrored_strategy.run(&step_fn, per_replica_inputs);
    };

    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      auto iterator = dist_dataset.iterator();
      for (int step = 0; step < kStepsPerEpoch; ++step) {
        const cohort::Nest output = train_step(iterator.get_next());
        std::printf("%s\n", guide::tf_print(output.flatten_tensors()).c_str());
      }
    }
    return 0;
  });
}
