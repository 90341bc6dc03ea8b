// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm on several replicas: the numbers of BatchNorm in one process with the whole batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::expect_close;
using testing::parts;
using testing::Sizes;
using testing::Tensors;
using testing::throws_error;
using torch::nn::Sequential;
using Sync1d = SyncBatchNorm<torch::nn::BatchNorm1d>;

// Values of an offset, with which a sum of squares would lose digits.
at::Tensor random_batch(int seed, const Sizes& sizes, at::ScalarType type = at::kDouble) {
  torch::manual_seed(static_cast<std::uint64_t>(seed) + 1);
  return (torch::randn(sizes, at::kDouble) * 2 + 3).to(type);
}

struct NormCase {
  std::string name;
  Sizes input;  // of the whole batch
  std::function<Sequential()> plain;
  std::function<Sequential()> synchronized;
};

// A layer, a normalization of its outputs, and a head.
template <class Norm, class Layer>
std::function<Sequential()> net_of(Layer layer_options, std::int64_t channels,
                                   std::int64_t outputs) {
  return [=] {
    return Sequential(layer_options(), Norm(channels), torch::nn::Tanh(), torch::nn::Flatten(),
                      torch::nn::Linear(outputs, 3));
  };
}

template <class Norm, class Layer>
NormCase case_of(std::string name, Sizes input, Layer layer, std::int64_t channels,
                 std::int64_t outputs) {
  return {std::move(name), std::move(input), net_of<Norm>(layer, channels, outputs),
          net_of<SyncBatchNorm<Norm>>(layer, channels, outputs)};
}

std::vector<NormCase> norm_cases() {
  using torch::nn::BatchNorm1d;
  return {
      case_of<BatchNorm1d>(
          "Rows", {12, 5}, [] { return torch::nn::Linear(5, 4); }, 4, 4),
      case_of<BatchNorm1d>(
          "Sequences", {12, 2, 6},
          [] { return torch::nn::Conv1d(torch::nn::Conv1dOptions(2, 4, 3)); }, 4, 16),
      case_of<torch::nn::BatchNorm2d>(
          "Images", {12, 2, 5, 5},
          [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)); }, 4, 36),
      case_of<torch::nn::BatchNorm3d>(
          "Volumes", {12, 1, 3, 3, 3},
          [] { return torch::nn::Conv3d(torch::nn::Conv3dOptions(1, 3, 2)); }, 3, 24),
  };
}

class SyncBatchNormTraining : public ::testing::TestWithParam<NormCase> {
 protected:
  // The values of all parameters and buffers after 50 steps.
  static Tensors trained(Strategy& strategy, const std::function<Sequential()>& make,
                         at::ScalarType type, const Sizes& sizes) {
    const auto model = strategy.replicate([&] {
      torch::manual_seed(1);
      Sequential net = make();
      net->to(type);
      return net;
    });
    const SGD sgd(model.parameters(), {.learning_rate = 0.05});
    for (int step = 0; step < 50; ++step) {
      strategy.run(
          [&](const at::Tensor& x) {
            sgd.minimize(average_loss(model->forward(x).square().mean(1)));
          },
          parts(random_batch(step, GetParam().input, type), sizes));
    }
    return testing::values_of(model.variables());
  }

  static void expect_equal(at::ScalarType type, double tolerance) {
    OneDeviceStrategy one("CPU:0");
    const Tensors expected = trained(one, GetParam().plain, type, {12});
    for (const Sizes& sizes : testing::partitions()) {
      SCOPED_TRACE("first part " + std::to_string(sizes[0]));
      MirroredStrategy strategy(testing::devices_for(sizes));
      expect_close(trained(strategy, GetParam().synchronized, type, sizes), expected, tolerance);
    }
  }
};

TEST_P(SyncBatchNormTraining, IsThatOfOneProcessInFloat64) { expect_equal(at::kDouble, 1e-12); }
TEST_P(SyncBatchNormTraining, IsThatOfOneProcessInFloat32) { expect_equal(at::kFloat, 1e-6); }

INSTANTIATE_TEST_SUITE_P(Layers, SyncBatchNormTraining, ::testing::ValuesIn(norm_cases()),
                         [](const auto& each) { return each.param.name; });

class SyncBatchNormCalls : public ::testing::Test {
 protected:
  // A layer in each of two replicas.
  auto layer(const torch::nn::BatchNorm1dOptions& options) {
    return two_.replicate([&] {
      Sync1d norm(options);
      norm->to(at::kDouble);
      return norm;
    });
  }
  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
};

TEST_F(SyncBatchNormCalls, ComputeWhatBatchNormDoesWithEachOption) {
  using Options = torch::nn::BatchNorm1dOptions;
  using Momentum = std::decay_t<decltype(std::declval<Options&>().momentum())>;
  for (const Options& options :
       {Options(4), Options(4).momentum(Momentum()).eps(0.1), Options(4).momentum(0.4),
        Options(4).affine(false), Options(4).track_running_stats(false)}) {
    torch::nn::BatchNorm1d plain(options);
    plain->to(at::kDouble);
    const auto model = layer(options);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor whole = random_batch(step, {8, 4});
      const auto outputs =
          two_.run([&](const at::Tensor& x) { return model->forward(x); }, parts(whole, {5, 3}));
      EXPECT_TRUE(at::allclose(two_.gather(outputs, 0), plain->forward(whole), 1e-12, 1e-12));
    }
    const std::vector<at::Tensor> expected = plain->buffers();
    two_.run([&] {
      const std::vector<at::Tensor> own = model->buffers();
      for (std::size_t i = 0; i < own.size(); ++i)
        EXPECT_TRUE(!own[i].defined() || at::allclose(own[i], expected[i], 1e-12, 1e-12)) << i;
    });
  }
}

TEST_F(SyncBatchNormCalls, HaveGradientsOfGradients) {
  torch::nn::BatchNorm1d plain(torch::nn::BatchNorm1dOptions(4));
  plain->to(at::kDouble);
  const auto model = layer(torch::nn::BatchNorm1dOptions(4));
  // The gradient of a penalty on the gradient.
  const auto second = [](auto& norm, const at::Tensor& part) {
    const at::Tensor x = part.detach().requires_grad_();
    const at::Tensor loss = norm.forward(x).tanh().square().sum();
    const at::Tensor first = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.square().sum()}, {x})[0];
  };
  const at::Tensor whole = random_batch(0, {9, 4});
  const at::Tensor expected = second(*plain, whole);
  EXPECT_GT(expected.abs().max().item<double>(), 1e-3);
  for (const Sizes& sizes : std::vector<Sizes>{{4, 5}, {8, 1}, {9, 0}}) {
    const auto got =
        two_.run([&](const at::Tensor& x) { return second(*model, x); }, parts(whole, sizes));
    EXPECT_TRUE(at::allclose(two_.gather(got, 0), expected, 1e-10, 1e-10)) << sizes[0];
  }
}

TEST_F(SyncBatchNormCalls, LeaveTheReplicasEqual) {
  const auto model = layer(torch::nn::BatchNorm1dOptions(4));
  const at::Tensor whole = random_batch(0, {8, 4});
  const auto states = two_.run(
      [&](const at::Tensor& x) {
        model->forward(x);
        return at::cat({model->running_mean, model->running_var});
      },
      parts(whole, {7, 1}));
  EXPECT_TRUE(states[0].equal(states[1]));
}

TEST_F(SyncBatchNormCalls, MeetNobodyInEvalMode) {
  const auto model = layer(torch::nn::BatchNorm1dOptions(4));
  const at::Tensor x = random_batch(0, {3, 4});
  const auto outputs = two_.run([&] {
    model->eval();
    return get_replica_context()->local_replica_id() == 0 ? model->forward(x) : x;
  });
  torch::nn::BatchNorm1d plain(4);
  plain->to(at::kDouble);
  plain->eval();
  EXPECT_TRUE(outputs[0].equal(plain->forward(x)));
}

TEST_F(SyncBatchNormCalls, OutsideOfReplicasAreThoseOfBatchNorm) {
  Sync1d norm(4);
  torch::nn::BatchNorm1d plain(4);
  const at::Tensor x = random_batch(0, {6, 4}, at::kFloat);
  EXPECT_TRUE(norm->forward(x).equal(plain->forward(x)));
  EXPECT_TRUE(norm->running_var.equal(plain->running_var));
  OneDeviceStrategy one("CPU:0");
  const auto model = one.replicate([] { return Sync1d(4); });
  const auto output = one.run([&] { return model->forward(x); });
  EXPECT_TRUE(output[0].equal(torch::nn::BatchNorm1d(4)->forward(x)));
}

TEST_F(SyncBatchNormCalls, OfHalfPrecisionComputeInFloat32) {
  const auto model = two_.replicate([] { return Sync1d(4); });
  const at::Tensor whole = random_batch(0, {8, 4}, at::kBFloat16);
  const auto outputs =
      two_.run([&](const at::Tensor& x) { return model->forward(x); }, parts(whole, {5, 3}));
  const at::Tensor expected = torch::nn::BatchNorm1d(4)->forward(whole.to(at::kFloat));
  EXPECT_EQ(outputs[0].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(two_.gather(outputs, 0).equal(expected.to(at::kBFloat16)) ||
              at::allclose(two_.gather(outputs, 0).to(at::kFloat), expected, 1e-2, 1e-2));
}

TEST_F(SyncBatchNormCalls, ThatCannotBeRightAreRefused) {
  const auto model = layer(torch::nn::BatchNorm1dOptions(4));
  const auto forward = [&](const Sizes& input, const Sizes& sizes) {
    two_.run([&](const at::Tensor& x) { model->forward(x); }, parts(random_batch(0, input), sizes));
  };
  EXPECT_THAT(
      [&] {
        forward({1, 4}, {0, 1});
      },
      throws_error(ErrorCode::invalid_argument, "more than one value for each channel"));
  EXPECT_THAT(
      [&] {
        forward({0, 4}, {0, 0});
      },
      throws_error(ErrorCode::invalid_argument, "got 0; give the step a larger batch"));
  EXPECT_THAT(
      [&] {
        forward({4, 5}, {2, 2});
      },
      throws_error(ErrorCode::invalid_argument, "4 channels in dimension 1"));
  EXPECT_THAT(
      [&] {
        forward({4, 4, 1, 1}, {2, 2});
      },
      throws_error(ErrorCode::invalid_argument, "with 2 or 3 dimensions and 4 channels"));
  EXPECT_THAT(
      [] {
        SyncBatchNorm<torch::nn::BatchNorm2d>(4)->forward(torch::ones({4, 4}));
      },
      throws_error(ErrorCode::invalid_argument, "with 4 dimensions and 4 channels"));
  EXPECT_THAT(
      [] {
        Sync1d(4)->forward(torch::ones({1, 4}));
      },
      throws_error(ErrorCode::invalid_argument, "got 1; give the step a larger batch"));
  EXPECT_THAT(
      [&] {
        two_.run([&] {
          if (get_replica_context()->local_replica_id() == 0) model->forward(torch::randn({2, 4}));
        });
      },
      throws_error(ErrorCode::failed_precondition, ""));
  two_.run([&] { EXPECT_EQ(model->num_batches_tracked.item<std::int64_t>(), 0); });
}

TEST(SyncBatchNormModule, HasTheStateDictOfBatchNorm) {
  torch::nn::BatchNorm2d plain(3);
  plain->forward(torch::randn({4, 3, 2, 2}));
  std::stringstream file;
  torch::save(plain, file);
  SyncBatchNorm<torch::nn::BatchNorm2d> norm(3);
  torch::load(norm, file);
  EXPECT_TRUE(norm->running_mean.equal(plain->running_mean));
  EXPECT_EQ(norm->named_buffers().keys(), plain->named_buffers().keys());
}

TEST(SyncBatchNormModule, IsClonedAndPrintedAsItself) {
  Sync1d norm(torch::nn::BatchNorm1dOptions(3).momentum(0.5));
  norm->forward(torch::randn({4, 3}));
  norm->eval();
  const auto copy =
      std::dynamic_pointer_cast<SyncBatchNormImpl<torch::nn::BatchNorm1d>>(norm->clone());
  ASSERT_NE(copy, nullptr);
  EXPECT_TRUE(copy->running_mean.equal(norm->running_mean));
  EXPECT_FALSE(copy->running_mean.is_same(norm->running_mean));
  EXPECT_TRUE(copy->named_buffers()["running_mean"].is_same(copy->running_mean));
  EXPECT_FALSE(copy->is_training());
  EXPECT_EQ(*copy->options.momentum(), 0.5);
  std::ostringstream text;
  text << Sequential(norm);
  EXPECT_THAT(text.str(), ::testing::HasSubstr("cohort::SyncBatchNorm<torch::nn::BatchNorm1d>(3,"));
}

// Regression: the message told of all_reduce() and all_gather(), which the program does not call.
TEST(SyncBatchNormErrors, NameItWhereReplicasMakeOtherCalls) {
  MirroredStrategy two({"CPU:0", "CPU:1"});
  const auto net = two.replicate([] { return SyncBatchNorm<torch::nn::BatchNorm1d>(2); });
  const auto step = [&] {
    if (get_replica_context()->replica_id_in_sync_group() == 0) net->eval();
    average_loss(net->forward(torch::ones({3, 2})).sum(1));
  };
  EXPECT_THAT([&] { two.run(step); },
              throws_error(ErrorCode::invalid_argument,
                           "expected the same call in all replicas, got average_loss() in local "
                           "replica 0 and SyncBatchNorm::forward() in 1"));
}

}  // namespace
}  // namespace cohort
