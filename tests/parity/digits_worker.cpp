// SPDX-License-Identifier: Apache-2.0
// One of several processes that train on the digits of the examples; see worker_training_test.
//   digits_worker BACKEND mean|parts|mean_shards|parts_shards FILE
// Each computes its rows of every global batch. The chief saves the weights in FILE. "parts": the
// batch has four parts, which are computed alone, so that the weights are those of one process to
// the bit. "shards": each worker keeps a share of the slots.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <tuple>

#include "cohort/cohort.h"
#include "cohort/testing/worker_config.h"

namespace cohort {
namespace {

constexpr int kSteps = 200;
constexpr std::int64_t kRows = 52;
constexpr std::int64_t kPixels = 64;
constexpr int kParts = 4;

Dataset digits() {
  const std::string stem = std::string(COHORT_SOURCE_DIR) + "/examples/data/digits/train";
  return Dataset::idx(
             {.images = stem + "-images-idx3-ubyte", .labels = stem + "-labels-idx1-ubyte"})
      .shuffle(2000, {.seed = 3})
      .repeat()
      .batch(kRows)
      .map([](at::Tensor image, at::Tensor label) -> std::tuple<at::Tensor, at::Tensor> {
        return {image.to(at::kFloat).div(255).flatten(1), label.to(at::kLong)};
      });
}

// Values that look random.
at::Tensor wave(std::int64_t rows, std::int64_t columns) {
  return at::sin(at::arange(rows * columns, at::kFloat) * 12.9F).view({rows, columns}) * 0.2;
}

struct Net {
  explicit Net(Strategy& strategy)
      : first(strategy.variable("first", wave(32, kPixels))),
        first_bias(strategy.variable("first_bias", at::zeros({32}))),
        second(strategy.variable("second", wave(10, 32))),
        second_bias(strategy.variable("second_bias", at::zeros({10}))),
        sgd({first, first_bias, second, second_bias}, {.learning_rate = 0.05, .momentum = 0.9}) {}
  at::Tensor losses(const at::Tensor& images, const at::Tensor& labels) const {
    const at::Tensor hidden = at::relu(at::linear(images, first.tensor(), first_bias.tensor()));
    return at::cross_entropy_loss(at::linear(hidden, second.tensor(), second_bias.tensor()), labels,
                                  {}, at::Reduction::None);
  }

  Variable first;
  Variable first_bias;
  Variable second;
  Variable second_bias;
  SGD sgd;
};

int train(const Arguments& arguments) {
  const std::string& mode = arguments.values.at(1);
  const bool has_parts = mode.starts_with("parts");
  MultiWorkerMirroredStrategy strategy(TfConfigResolver(),
                                       {.timeout = std::chrono::seconds(60),
                                        .backend = testing::backend_of(arguments.values.at(0)),
                                        .shard_optimizer_state = mode.ends_with("_shards")});
  const Net net(strategy);
  const auto worker = static_cast<std::size_t>(strategy.worker());
  const int own_parts = kParts / strategy.num_workers();
  auto batches = digits().iterator();
  for (int step = 0; step < kSteps; ++step) {
    const auto [images, labels] = batches.next<at::Tensor, at::Tensor>();
    const at::Tensor x = at::tensor_split(images, strategy.num_workers())[worker];
    const at::Tensor y = at::tensor_split(labels, strategy.num_workers())[worker];
    strategy.run([&] {
      if (!has_parts) return net.sgd.minimize(average_loss(net.losses(x, y)));
      net.sgd.apply_gradients(gradients_in_parts(net.sgd, own_parts, [&](int i) {
        const auto part = static_cast<std::size_t>(i);
        return average_loss(
            net.losses(at::tensor_split(x, own_parts)[part], at::tensor_split(y, own_parts)[part]),
            {.global_batch_size = kRows});
      }));
    });
  }
  if (worker == 0) {
    save_values(arguments.values.at(2), {{"first", net.first},
                                         {"first_bias", net.first_bias},
                                         {"second", net.second},
                                         {"second_bias", net.second_bias}});
  }
  return 0;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) { return cohort::run_main(argc, argv, cohort::train); }
