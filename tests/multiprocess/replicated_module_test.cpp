// SPDX-License-Identifier: Apache-2.0
// Replicated modules with tied weights and with tensors that are not in row-major order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

namespace nn = torch::nn;
using testing::TestCluster;
using testing::throws_error;

// A convolution in channels_last order, and an embedding that shares its weight with the output
// layer.
struct TiedImpl : nn::Module {
  nn::Conv2d conv{register_module("conv", nn::Conv2d(nn::Conv2dOptions(2, 3, 3).bias(false)))};
  nn::Embedding embedding{register_module("embedding", nn::Embedding(7, 3))};
  at::Tensor out{register_parameter("out", embedding->weight)};

  TiedImpl() { conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast)); }
  at::Tensor loss(const at::Tensor& image, const at::Tensor& ids) {
    const at::Tensor features = conv->forward(image).flatten(2).mean(2);
    return nn::functional::cross_entropy((features + embedding->forward(ids)).mm(out.t()), ids);
  }
};
TORCH_MODULE(Tied);

TEST(ReplicatedModule, TiedAndChannelsLastWeightsTrainAsInOneProcess) {
  TestCluster cluster({.ps = 2, .command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto model = strategy.replicate([] { return Tied(); }, {.name = "model"});
  ASSERT_EQ(model.parameters().size(), 2U) << "one of the three names is another's";
  Tied local = model.snapshot();
  EXPECT_TRUE(local->out.is_same(local->embedding->weight));
  EXPECT_FALSE(local->conv->weight.is_contiguous());

  SGD optimizer(model.parameters(), {.learning_rate = 0.1});
  Function step([&](at::Tensor image, at::Tensor ids) {
    at::Tensor loss = model->loss(image, ids);
    optimizer.minimize(loss);
    return loss;
  });
  for (int i = 0; i < 5; ++i) {
    const at::Tensor image = torch::randn({4, 2, 5, 5});
    const at::Tensor ids = torch::randint(7, {4});
    const at::Tensor loss = coordinator.schedule(step, image, ids).fetch().tensor();
    const at::Tensor expected = local->loss(image, ids);
    EXPECT_TRUE(loss.allclose(expected, 1e-5, 1e-6)) << loss << expected;
    local->zero_grad();
    expected.backward();
    const torch::NoGradGuard off;
    for (const at::Tensor& one : {local->conv->weight, local->out}) one.sub_(one.grad(), 0.1);
  }
  const Tied trained = model.snapshot();
  EXPECT_TRUE(trained->out.allclose(local->out, 1e-5, 1e-6));
  EXPECT_TRUE(trained->conv->weight.allclose(local->conv->weight, 1e-5, 1e-6));
}

class ReplicatedModuleTest : public ::testing::Test {
 protected:
  TestCluster cluster{{.ps = 2, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy};
};

// An evaluation step left the module in eval mode, so the training step was traced in eval mode.
TEST_F(ReplicatedModuleTest, ATrainingStepAfterAnEvaluationStepTrains) {
  auto model = strategy.replicate([] { return nn::Sequential(nn::Dropout(0.5)); });
  const at::Tensor x = at::ones({1000});
  const Function evaluate([&](at::Tensor in) {
    model->eval();
    return model->forward(in);
  });
  const Function train([&](at::Tensor in) { return model->forward(in); });
  const auto zeros_of = [&](const Function& step) {
    return coordinator.schedule(step, x).fetch().tensor().eq(0).sum().item<std::int64_t>();
  };
  EXPECT_EQ(zeros_of(evaluate), 0);
  EXPECT_GT(zeros_of(train), 300);
  EXPECT_EQ(zeros_of(evaluate), 0);
}

TEST_F(ReplicatedModuleTest, LoadIsTheInverseOfSnapshot) {
  const auto make = [] { return nn::Sequential(nn::Linear(3, 2), nn::BatchNorm1d(2)); };
  auto model = strategy.replicate(make);
  nn::Sequential other = make();
  for (const at::Tensor& tensor : other->parameters()) tensor.data().fill_(0.25);
  for (const at::Tensor& tensor : other->buffers()) tensor.fill_(3);
  model.load(other);
  const nn::Sequential back = model.snapshot();
  EXPECT_EQ(back->parameters().size(), other->parameters().size());
  EXPECT_EQ(back->buffers().size(), other->buffers().size());
  for (const at::Tensor& tensor : back->parameters())
    EXPECT_TRUE(tensor.eq(0.25).all().item<bool>());
  for (const at::Tensor& tensor : back->buffers()) EXPECT_TRUE(tensor.eq(3).all().item<bool>());
}

// The loop did not compile, since the elements of parameters() are const.
TEST_F(ReplicatedModuleTest, ALoopOverParametersMayAssign) {
  auto model = strategy.replicate([] { return nn::Sequential(nn::Linear(3, 2)); });
  for (const Variable& parameter : model.parameters())
    parameter.assign(torch::ones(*parameter.spec().sizes));
  for (const Variable& parameter : model.parameters())
    EXPECT_TRUE(parameter.read().eq(1).all().item<bool>()) << parameter.name();
}

TEST_F(ReplicatedModuleTest, LoadRefusesAnotherModuleAndSendsNothing) {
  auto model = strategy.replicate([] { return nn::Sequential(nn::Linear(3, 2)); });
  const at::Tensor before = model.parameters()[0].read();
  EXPECT_THAT([&] { model.load(nn::Sequential(nn::Linear(2, 2))); },
              throws_error(ErrorCode::invalid_argument, "'model/0.weight' float32[2, 3], got"));
  EXPECT_THAT([&] { model.load(nn::Sequential(nn::Linear(3, 2), nn::Linear(2, 2))); },
              throws_error(ErrorCode::invalid_argument, "with 2 parameters and buffers, got one"));
  EXPECT_TRUE(model.parameters()[0].read().equal(before));
}

TEST_F(ReplicatedModuleTest, SnapshotAndLoadInsideAStepSaySo) {
  auto model = strategy.replicate([] { return nn::Sequential(nn::Linear(3, 2)); });
  const nn::Sequential other = model.snapshot();
  const Function snapshots([&] { return model.snapshot()->parameters()[0]; });
  const Function loads([&] { model.load(other); });
  EXPECT_THAT([&] { coordinator.schedule(snapshots); },
              throws_error(ErrorCode::failed_precondition,
                           "[strategy.snapshot] expected a call "
                           "outside of scheduled functions"));
  EXPECT_THAT([&] { coordinator.schedule(loads); },
              throws_error(ErrorCode::failed_precondition, "[strategy.load] expected a call"));
}

// The error did not name the variable.
TEST_F(ReplicatedModuleTest, ALocalVariableInAStepIsNamed) {
  const Variable count = local_variable("count", torch::zeros({}));
  const Function reads([&] { return count.tensor() + 1; });
  const Function updates([&] { count.assign_add(torch::ones({})); });
  for (const Function& step : {reads, updates}) {
    EXPECT_THAT([&] { coordinator.schedule(step); },
                throws_error(ErrorCode::invalid_argument,
                             "local variable 'count', which does "
                             "not belong to the strategy"));
  }
}

TEST_F(ReplicatedModuleTest, ClippingOnTheHostNamesItsReplacement) {
  auto model = strategy.replicate([] { return nn::Sequential(nn::Linear(3, 1)); });
  const Function step([&](at::Tensor x) {
    model->zero_grad();
    model->forward(x).sum().backward();
    nn::utils::clip_grad_norm_(model->parameters(), 1.0);
  });
  EXPECT_THAT(
      [&] {
        coordinator.schedule(step, torch::ones({2, 3}));
      },
      throws_error(ErrorCode::invalid_argument, "cohort::clip_by_global_norm()"));
}

}  // namespace
}  // namespace cohort
