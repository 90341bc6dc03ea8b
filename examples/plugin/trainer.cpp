// SPDX-License-Identifier: Apache-2.0
// The plugin: a shared library that trains with Cohort on what its host measured.
#include "trainer.h"

#include <cohort/cohort.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace {

constexpr std::int64_t kBatch = 64, kEpochs = 60;

// Code that is no list of LibTorch's operators: workers call it by its name, since they have loaded
// the plugin too.
std::vector<at::Tensor> features_of(std::vector<at::Tensor> fields) {
  const at::Tensor throws = fields.at(0).contiguous();
  const at::Tensor features = at::empty({throws.size(0), 3});
  const float* in = throws.data_ptr<float>();
  float* out = features.data_ptr<float>();
  for (std::int64_t i = 0; i < throws.size(0); ++i, in += 2, out += 3) {
    out[0] = in[0] - 0.8F;
    out[1] = (in[1] - 15) / 10;
    out[2] = std::sin(2 * in[0]);
  }
  return {features, fields.at(1)};
}

int train(const TrainerThrows& measured, TrainerResult& result) {
  const auto resolver = cohort::ClusterResolver::from_environment();
  if (resolver->is_server()) return cohort::Server(*resolver).join();

  // Copies: the host's arrays are its own. Four fifths are for training, the rest is for the test.
  const auto copy = [&](const float* values, std::int64_t width) {
    return torch::from_blob(const_cast<float*>(values), {measured.count, width}).clone();
  };
  const std::int64_t train_count = measured.count * 4 / 5;
  const std::vector<std::int64_t> counts = {train_count, measured.count - train_count};
  const auto throws = copy(measured.angle_and_speed, 2).split_with_sizes(counts);
  const auto is_hit = copy(measured.is_hit, 1).split_with_sizes(counts);

  cohort::ParameterServerStrategy strategy(*resolver, {.cluster = {.seed = 1}});
  cohort::ClusterCoordinator coordinator(strategy);
  auto model = strategy.replicate([] {
    using namespace torch::nn;
    return Sequential(Linear(3, 32), Tanh(), Linear(32, 32), Tanh(), Linear(32, 1));
  });
  cohort::Adam optimizer(model.parameters(), {.learning_rate = 0.01});
  const auto all = cohort::Dataset::from_tensor_slices(cohort::Nest::tuple({throws[0], is_hit[0]}));
  auto data = coordinator.create_per_worker_dataset([&](const cohort::InputContext& input) {
    return all.shard(input)
        .shuffle(train_count, {.seed = 1})
        .batch(kBatch)
        .map(cohort::Function::registered("throws.features"));
  });
  cohort::Function step([&](cohort::Iterator& it) {
    auto [features, label] = it.next<at::Tensor, at::Tensor>();
    auto loss = torch::binary_cross_entropy_with_logits(model->forward(features), label);
    optimizer.minimize(loss);
    return loss;
  });
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) coordinator.run_epoch(step, data);
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = model.snapshot()->forward(features_of({throws[1], is_hit[1]})[0]);
  result = {logits.gt(0).eq(is_hit[1].gt(0.5)).to(torch::kDouble).mean().item<double>(), 1};
  return 0;
}

}  // namespace

int trainer_run(const TrainerThrows* throws, TrainerResult* result) {
  char name[] = "trainer";  // for messages
  char* arguments[] = {name, nullptr};
  return cohort::run_main(1, arguments, [&](const cohort::Arguments&) {
    // Until the end of this call, so that the library can be unloaded after it.
    const cohort::function::FunctionRegistration registration("throws.features", features_of);
    return train(*throws, *result);
  });
}
