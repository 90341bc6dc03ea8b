// SPDX-License-Identifier: Apache-2.0
// The plugin: a shared library that trains with Cohort on what its host measured.
#include "trainer.h"

#include <cohort/cohort.h>
#include <torch/torch.h>

#include <cmath>

namespace {

constexpr std::int64_t kBatch = 64;
constexpr std::int64_t kEpochs = 60;

torch::nn::Sequential make_model() {
  using namespace torch::nn;
  return Sequential(Linear(3, 32), Tanh(), Linear(32, 32), Tanh(), Linear(32, 1));
}

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

double accuracy(torch::nn::Sequential model, const at::Tensor& throws, const at::Tensor& is_hit) {
  const torch::NoGradGuard no_grad;
  const at::Tensor logits = model->forward(features_of({throws, is_hit})[0]).squeeze(1);
  return logits.gt(0).eq(is_hit.gt(0.5)).to(torch::kDouble).mean().item<double>();
}

int train(const TrainerThrows& measured, TrainerResult& result) {
  const cohort::TfConfigResolver resolver;
  if (resolver.is_server()) return cohort::Server(resolver).join();

  // Copies: the host's arrays are its own.
  const auto options = torch::dtype(torch::kFloat);
  const at::Tensor throws =
      torch::from_blob(const_cast<float*>(measured.angle_and_speed), {measured.count, 2}, options)
          .clone();
  const at::Tensor is_hit =
      torch::from_blob(const_cast<float*>(measured.is_hit), {measured.count}, options).clone();
  const std::int64_t train_count = measured.count * 4 / 5;

  cohort::ParameterServerStrategy strategy(resolver, {.cluster = {.seed = 1}});
  cohort::ClusterCoordinator coordinator(strategy);
  auto model = strategy.replicate(make_model);
  cohort::Adam optimizer(model.parameters(), {.learning_rate = 0.01});
  const cohort::Dataset all = cohort::Dataset::from_tensor_slices(
      cohort::Nest::tuple({throws.narrow(0, 0, train_count), is_hit.narrow(0, 0, train_count)}));
  auto data = coordinator.create_per_worker_dataset([&](const cohort::InputContext& input) {
    return all.shard(input)
        .shuffle(train_count, {.seed = 1})
        .batch(kBatch)
        .map(cohort::Function::registered("throws.features"));
  });
  cohort::Function step([&](cohort::Iterator& it) {
    auto [features, label] = it.next<at::Tensor, at::Tensor>();
    auto loss = torch::binary_cross_entropy_with_logits(model->forward(features).squeeze(1), label);
    optimizer.minimize(loss);
    return loss;
  });
  for (std::int64_t epoch = 0; epoch < kEpochs; ++epoch) coordinator.run_epoch(step, data);
  const std::int64_t test_count = measured.count - train_count;
  result = {accuracy(model.snapshot(), throws.narrow(0, train_count, test_count),
                     is_hit.narrow(0, train_count, test_count)),
            1};
  return 0;
}

}  // namespace

int trainer_run(int argc, char** argv, const TrainerThrows* throws, TrainerResult* result) {
  return cohort::run_main(argc, argv, [&](const cohort::Arguments&) {
    // Until the end of this call, so that the library can be unloaded after it.
    const cohort::function::FunctionRegistration registration("throws.features", features_of);
    return train(*throws, *result);
  });
}
