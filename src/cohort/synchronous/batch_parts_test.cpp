// SPDX-License-Identifier: Apache-2.0
// Replicas write in place into their parts of one tensor.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {
namespace {

struct PartsOfABatch : ::testing::Test {
  MirroredStrategy two{{"CPU:0", "CPU:1"}};
  const Variable w = two.variable("w", at::tensor({1.0, -2.0}, at::kDouble));
  const SGD sgd{{w}, {.learning_rate = 0.01}};
  const at::Tensor x = at::tensor({1.0, 2.0, 3.0, -1.0}, at::kDouble).view({2, 2});

  // Halves its part in place. Replica 1 does so while replica 0 is between its forward and its
  // backward pass.
  void step(at::Tensor part) const {
    ReplicaContext& here = *get_replica_context();
    at::Tensor loss;
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == here.replica_id_in_sync_group())
        loss = part.mul_(0.5).matmul(w.tensor()).square().sum();
      here.all_reduce(ReduceOp::sum, at::ones({}));  // they take turns
    }
    sgd.minimize(loss);
  }
  // The weight after a step with half of x.
  at::Tensor expected() const {
    const at::Tensor half = x * 0.5;
    const at::Tensor weight = w.read();
    return weight - 0.01 * 2 * half.t().matmul(half.matmul(weight));
  }
};

// Regression: the parts had one version counter, so a write in place into one's own part was an
// error for another replica that was between its forward and its backward pass.
TEST_F(PartsOfABatch, OfADatasetAreWrittenInPlace) {
  const at::Tensor after = expected();
  for (const auto& batch : two.distribute_dataset(Dataset::from_tensor_slices(Nest(x)).batch(2)))
    EXPECT_NO_THROW(two.run([this](const at::Tensor& part) { step(part); }, batch));
  EXPECT_TRUE(at::allclose(w.read(), after));
}

TEST_F(PartsOfABatch, ThatAFunctionCutsAreWrittenInPlace) {
  const at::Tensor after = expected();
  const at::Tensor half = x * 0.5;
  const auto rows = two.distribute_values_from_function([this](const ValueContext& context) {
    return Nest(x.narrow(0, context.replica_id_in_sync_group, 1));
  });
  EXPECT_NO_THROW(two.run([this](const at::Tensor& part) { step(part); }, rows));
  EXPECT_TRUE(at::allclose(w.read(), after));
  EXPECT_TRUE(x.equal(half)) << "they are no copies";
}

}  // namespace
}  // namespace cohort
