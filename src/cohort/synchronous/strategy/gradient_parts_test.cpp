// SPDX-License-Identifier: Apache-2.0
// Gradients in parts: training has the same bits on 1, 2, 4, … replicas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::Tensors;
using testing::throws_error;

constexpr int kParts = 4;  // of a global batch
constexpr std::int64_t kRows = 32;

struct ConvNetImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor maps = conv->forward(x.view({-1, 1, 8, 8})).relu();
    return last->forward(torch::max_pool2d(maps, 2).flatten(1));
  }
  torch::nn::Conv2d conv{
      register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(36, 10))};
};
TORCH_MODULE(ConvNet);

std::tuple<at::Tensor, at::Tensor> images_and_labels(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(step) + 1);
  return {torch::rand({kRows, 64}), torch::randint(10, {kRows})};
}

using MakeOptimizer = std::function<Optimizer(const std::vector<Variable>&)>;

// The values after some steps with the same global batches on this many replicas.
Tensors trained(int replicas, const MakeOptimizer& make_optimizer, int steps) {
  MirroredStrategy strategy(testing::cpu_devices(replicas));
  torch::manual_seed(7);
  const auto model = strategy.replicate([] { return ConvNet(); });
  const Optimizer optimizer = make_optimizer(model.parameters());
  const int parts = kParts / replicas;
  for (int step = 0; step < steps; ++step) {
    const auto [all_images, all_labels] = images_and_labels(step);
    strategy.run(
        [&](const at::Tensor& x, const at::Tensor& y) {
          const auto images = x.chunk(parts), labels = y.chunk(parts);
          optimizer.apply_gradients(gradients_in_parts(optimizer, parts, [&](int part) {
            const auto i = static_cast<std::size_t>(part);
            const at::Tensor losses = torch::cross_entropy_loss(model->forward(images[i]),
                                                                labels[i], {}, at::Reduction::None);
            return average_loss(losses, {.global_batch_size = kRows});
          }));
        },
        PerReplica<at::Tensor>(all_images.chunk(replicas)),
        PerReplica<at::Tensor>(all_labels.chunk(replicas)));
  }
  return testing::values_of(model.variables());
}

void expect_same_bits(const Tensors& got, const Tensors& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(got[i].equal(expected[i])) << i;
}

TEST(GradientParts, GiveTheSameBitsOnOneTwoAndFourReplicas) {
  const std::vector<MakeOptimizer> optimizers = {
      [](const auto& all) { return SGD(all, {.learning_rate = 0.05, .momentum = 0.9}); },
      [](const auto& all) { return Adam(all, {.learning_rate = 0.003}); }};
  for (const MakeOptimizer& make : optimizers) {
    const Tensors one = trained(1, make, 200);
    expect_same_bits(trained(2, make, 200), one);
    expect_same_bits(trained(4, make, 200), one);
  }
}

// Numbers whose sum depends on the order.
TEST(GradientParts, AreAddedInOneTree) {
  const std::vector<float> values = {1e8F, 1, -1e8F, 1, 3, 1e8F, 5, -1e8F};
  const auto total = [&](int replicas, int parts) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    const Variable v = strategy.variable("v", torch::zeros({}));
    const SGD sgd({v}, {.learning_rate = 1.0});
    strategy.run([&] {
      const int first = get_replica_context()->replica_id_in_sync_group() * parts;
      sgd.apply_gradients(gradients_in_parts(sgd, parts, [&](int part) {
        return v.tensor() * values.at(static_cast<std::size_t>(first + part));
      }));
    });
    return -v.read().item<float>();
  };
  const float expected = ((1e8F + 1) + (-1e8F + 1)) + ((3 + 1e8F) + (5 + -1e8F));
  for (const int replicas : {1, 2, 4, 8}) EXPECT_EQ(total(replicas, 8 / replicas), expected);
  EXPECT_EQ(total(3, 1), (1e8F + 1) + -1e8F);
  EXPECT_EQ(total(1, 3), (1e8F + 1) + -1e8F);
  EXPECT_EQ(total(1, 7), ((1e8F + 1) + (-1e8F + 1)) + ((3 + 1e8F) + 5));
  EXPECT_EQ(total(7, 1), ((1e8F + 1) + (-1e8F + 1)) + ((3 + 1e8F) + 5));
}

// Regression: rows were added in the order of the parts.
TEST(GradientParts, AddSparseGradientsInTheSameTree) {
  const std::vector<float> values = {1e8F, 1, -1e8F, 1, 3, 1e8F, 5, -1e8F};
  const auto total = [&](int replicas, int parts) {
    MirroredStrategy strategy(testing::cpu_devices(replicas));
    const Variable v = strategy.variable("v", torch::zeros({2, 1}));
    const SGD sgd({v}, {.learning_rate = 1.0});
    strategy.run([&] {
      const int first = get_replica_context()->replica_id_in_sync_group() * parts;
      sgd.apply_gradients(gradients_in_parts(sgd, parts, [&](int part) {
        return torch::embedding(v.tensor(), torch::tensor({1}), -1, false, /*sparse=*/true).sum() *
               values.at(static_cast<std::size_t>(first + part));
      }));
    });
    return -v.read()[1].item<float>();
  };
  const float expected = ((1e8F + 1) + (-1e8F + 1)) + ((3 + 1e8F) + (5 + -1e8F));
  for (const int replicas : {1, 2, 4, 8}) EXPECT_EQ(total(replicas, 8 / replicas), expected);
}

TEST(GradientParts, MayLackVariables) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const Variable v = two.variable("v", torch::zeros({}));
  const Variable w = two.variable("w", torch::zeros({}));
  const SGD sgd({v, w}, {.learning_rate = 1.0});
  two.run([&] {
    sgd.apply_gradients(gradients_in_parts(
        sgd, 3, [&](int part) { return (part == 1 ? w : v).tensor() * (part + 1); }));
  });
  EXPECT_EQ(v.read().item<float>(), -8);
  EXPECT_EQ(w.read().item<float>(), -4);
}

// Regression: the example of the guide read behind the last part, and its rows weighed less.
TEST(GradientParts, OfAShortBatchMayBeEmptyAndGiveEachRowItsWeight) {
  const at::Tensor rows = torch::tensor({{1.0, 2.0}, {3.0, -1.0}, {0.5, 4.0}}, torch::kDouble);
  const auto trained = [&](const PerReplica<at::Tensor>& batch) {
    MirroredStrategy strategy(testing::devices_for(testing::Sizes(batch.size())));
    const Variable w = strategy.variable("w", torch::ones({2}, torch::kDouble));
    const SGD sgd({w}, {.learning_rate = 0.1});
    strategy.run(
        [&](const at::Tensor& x) {
          const auto parts = x.tensor_split(kParts);
          const auto size =
              get_replica_context()
                  ->all_reduce(ReduceOp::sum, at::scalar_tensor(x.size(0), torch::kLong))
                  .item<std::int64_t>();
          sgd.apply_gradients(gradients_in_parts(sgd, kParts, [&](int i) {
            const at::Tensor& part = parts[static_cast<std::size_t>(i)];
            return average_loss(part.matmul(w.tensor()).square(), {.global_batch_size = size});
          }));
        },
        batch);
    return w.read().detach();
  };
  const at::Tensor w = torch::ones({2}, torch::kDouble).requires_grad_();
  rows.matmul(w).square().mean().backward();
  const at::Tensor expected = w.detach() - 0.1 * w.grad();
  for (const testing::Sizes& sizes : std::vector<testing::Sizes>{{3}, {2, 1}, {3, 0}})
    EXPECT_TRUE(torch::allclose(trained(testing::parts(rows, sizes)), expected, 1e-12, 1e-12));
}

TEST(GradientParts, UseOneThread) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  OneDeviceStrategy one("CPU:0");
  const Variable v = one.variable("v", torch::zeros({}));
  const SGD sgd({v}, {.learning_rate = 1.0});
  one.run([&] {
    gradients_in_parts(sgd, 1, [&](int) {
      EXPECT_EQ(at::get_num_threads(), 1);
      return v.tensor() * 2;
    });
    EXPECT_EQ(at::get_num_threads(), 3);
  });
  at::set_num_threads(before);
}

TEST(GradientParts, NeedTheSizeOfTheWholeBatch) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const Variable v = two.variable("v", torch::zeros({4}));
  const SGD sgd({v}, {.learning_rate = 1.0});
  const auto run = [&](const AverageLossOptions& options) {
    two.run([&] {
      gradients_in_parts(sgd, 1, [&](int) { return average_loss(v.tensor() * 2, options); });
    });
  };
  EXPECT_THAT([&] { run({}); },
              throws_error(ErrorCode::failed_precondition, "expected a global_batch_size"));
  EXPECT_THAT([&] { run({.reduction = GradientReduction::mean_of_means}); },
              throws_error(ErrorCode::failed_precondition, "expected a global_batch_size"));
  run({.global_batch_size = 8});
  run({.reduction = GradientReduction::sum});
  two.run([&] { average_loss(v.tensor()); });
}

TEST(GradientParts, RefuseBadCalls) {
  OneDeviceStrategy one("CPU:0");
  const Variable v = one.variable("v", torch::zeros({}));
  const SGD sgd({v}, {.learning_rate = 1.0});
  const auto loss = [&](int) { return v.tensor() * 2; };
  EXPECT_THAT([&] { one.run([&] { gradients_in_parts(sgd, 0, loss); }); },
              throws_error(ErrorCode::invalid_argument, "at least one part, got 0"));
  const auto scope = one.scope();
  EXPECT_THAT([&] { gradients_in_parts(sgd, 2, loss); },
              throws_error(ErrorCode::failed_precondition, "call it inside run()"));
}

}  // namespace
}  // namespace cohort
