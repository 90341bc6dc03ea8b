// SPDX-License-Identifier: Apache-2.0
// Modules on parameter servers whose tensors are not one variable each in row-major order.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/sgd.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort {
namespace {

namespace nn = torch::nn;
using testing::TestCluster;

// An embedding whose weight is the output layer's too, after a convolution in channels_last order.
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

  Sgd optimizer(model.parameters(), {.learning_rate = 0.1});
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

}  // namespace
}  // namespace cohort
