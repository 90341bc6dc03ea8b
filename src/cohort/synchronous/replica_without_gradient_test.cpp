// SPDX-License-Identifier: Apache-2.0
// A replica whose loss depends on no variable, since none of its rows counts: its gradients are
// zero. If no replica has a gradient, the loss is a mistake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::run_workers;
using testing::text_of;
using testing::throws_error;

constexpr int kSteps = 3;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 1));
  NetImpl() {
    const torch::NoGradGuard no_grad;
    int i = 1;
    for (at::Tensor& each : parameters()) each.fill_(0.1 * i++);
  }
  at::Tensor forward(const at::Tensor& x) { return second(torch::tanh(first(x))); }
};
TORCH_MODULE(Net);

at::Tensor rows_of_step(int step) {
  return torch::arange(16).view({4, 4}).to(torch::kFloat) / (9 + step);
}

// One part of the steps has no row that counts, and no graph.
at::Tensor losses_of_some(NetImpl& net, const at::Tensor& rows, bool has_some) {
  if (!has_some) return torch::zeros({rows.size(0)});
  return net.forward(rows).square().sum(1);
}

std::vector<at::Tensor> detached_copies(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& each : parameters) values.push_back(each.detach().clone());
  return values;
}

// LibTorch's values, with the rows of part `with` alone in each step.
std::vector<at::Tensor> plain_values(int with) {
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    sgd.zero_grad();
    (losses_of_some(*net, rows_of_step(step).chunk(2)[static_cast<std::size_t>(with)], true).sum() /
     4)
        .backward();
    sgd.step();
  }
  return detached_copies(net->parameters());
}

enum class Kind : std::uint8_t { cohort, torch_optimizer };

// Trains with a loss that only part `with` has; -1: none has one.
std::vector<at::Tensor> trained(SynchronousStrategy& strategy, Kind kind, int with) {
  auto net = strategy.replicate([] { return Net(); }, {.name = "net"});
  const auto run = [&](const std::function<void(const at::Tensor&)>& minimize) {
    for (int step = 0; step < kSteps; ++step) {
      strategy.run([&] {
        const auto part =
            static_cast<std::size_t>(get_replica_context()->replica_id_in_sync_group());
        const at::Tensor rows = rows_of_step(step).chunk(2)[part];
        minimize(average_loss(losses_of_some(*net, rows, static_cast<int>(part) == with)));
      });
    }
  };
  if (kind == Kind::cohort) {
    const SGD sgd(net.parameters(), {.learning_rate = 0.1, .momentum = 0.9});
    run([&](const at::Tensor& loss) { sgd.minimize(loss); });
  } else {
    const TorchOptimizer sgd(net, [](std::vector<at::Tensor> parameters) {
      return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(0.1).momentum(0.9));
    });
    run([&](const at::Tensor& loss) { sgd.minimize(loss); });
  }
  std::vector<at::Tensor> values;
  for (const Variable& each : net.parameters()) values.push_back(each.read());
  return values;
}

void expect_trained_as(const std::vector<at::Tensor>& values,
                       const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    EXPECT_TRUE(torch::allclose(values[i], expected[i], 1e-6, 1e-7)) << i;
}

// Regression: minimize() threw in the replica whose rows did not count.
TEST(ReplicaWithoutGradient, CountsAsZero) {
  for (const Kind kind : {Kind::cohort, Kind::torch_optimizer}) {
    for (const int with : {0, 1}) {
      MirroredStrategy strategy({"CPU:0", "CPU:1"});
      expect_trained_as(trained(strategy, kind, with), plain_values(with));
    }
  }
}

TEST(ReplicaWithoutGradient, OfAWorkerCountsAsZero) {
  for (const bool shards : {false, true}) {
    for (const bool overlaps : {false, true}) {
      for (const Kind kind : {Kind::cohort, Kind::torch_optimizer}) {
        if (shards && (overlaps || kind == Kind::torch_optimizer)) continue;
        SCOPED_TRACE(::testing::Message() << shards << overlaps << static_cast<int>(kind));
        for (const int with : {0, 1}) {
          const auto errors = run_workers(
              2, {.shards = shards, .bytes_per_pack = overlaps ? 16 : 0, .overlaps = overlaps},
              [&](auto& strategy) {
                expect_trained_as(trained(strategy, kind, with), plain_values(with));
              });
          for (const auto& error : errors) EXPECT_EQ(text_of(error), "");
        }
      }
    }
  }
}

TEST(ReplicaWithoutGradient, IsRefusedIfNoneHasOne) {
  for (const Kind kind : {Kind::cohort, Kind::torch_optimizer}) {
    const auto* const text =
        "[optimizer.minimize] expected a loss that depends on 'net/first.weight'";
    MirroredStrategy strategy({"CPU:0", "CPU:1"});
    EXPECT_THAT([&] { trained(strategy, kind, -1); },
                throws_error(ErrorCode::invalid_argument, text));
    for (const bool shards : {false, true}) {
      if (shards && kind == Kind::torch_optimizer) continue;
      const auto errors =
          run_workers(2, {.shards = shards}, [&](auto& each) { trained(each, kind, -1); });
      for (const auto& error : errors) EXPECT_THAT(text_of(error), HasSubstr(text)) << shards;
    }
  }
}

// A replica's mistake is found although another replica has gradients.
TEST(ReplicaWithoutGradient, IsRefusedWhereGradientsAreSwitchedOff) {
  MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto net = strategy.replicate([] { return Net(); });
  const SGD sgd(net.parameters(), {.learning_rate = 0.1});
  const auto train = [&] {
    strategy.run([&] {
      const bool is_first = get_replica_context()->replica_id_in_sync_group() == 0;
      const torch::AutoGradMode mode(is_first);
      sgd.minimize(average_loss(losses_of_some(*net, rows_of_step(0), true)));
    });
  };
  EXPECT_THAT(train, throws_error(ErrorCode::invalid_argument, "a torch::NoGradGuard is open"));
}

}  // namespace
}  // namespace cohort
