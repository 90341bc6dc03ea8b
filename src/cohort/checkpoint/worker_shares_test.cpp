// SPDX-License-Identifier: Apache-2.0
// Synchronous workers that each write the slots of which they have shares write what the first one
// alone writes.
#include "cohort/checkpoint/worker_shares.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint_files/inspection.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

class WorkerShares : public ::testing::TestWithParam<int> {
 protected:
  // Their slots are cut between rows, inside of rows, and into shares of less than a row.
  static std::vector<Variable> make_variables(Strategy& strategy) {
    return {strategy.variable("long", at::linspace(-1, 1, 50)),
            strategy.variable("square", at::linspace(-1, 1, 21).view({7, 3})),
            strategy.variable("wide", at::linspace(-1, 1, 200).view({2, 100})),
            strategy.variable("number", at::full({}, 0.5))};
  }
  static void step(const std::vector<Variable>& variables, const Optimizer& optimizer) {
    at::Tensor loss = at::zeros({});
    for (const Variable& each : variables) loss = loss + each.tensor().square().sum();
    optimizer.minimize(loss);
  }

  const testing::TemporaryFolder folder_;
};

TEST_P(WorkerShares, HaveTheTensorsThatTheFirstWorkerGathers) {
  const InProcessWorkers workers(GetParam());
  const auto paths = testing::on_workers<std::vector<std::string>>(GetParam(), [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank), {.shard_optimizer_state = true});
    const std::vector<Variable> variables = make_variables(strategy);
    const Adam adam(variables, {.learning_rate = 0.1, .name = "adam"});
    for (int i = 0; i < 3; ++i) strategy.run([&] { step(variables, adam); });
    const Checkpoint checkpoint(strategy);
    CheckpointManager first(checkpoint, folder_.file("first"));
    CheckpointManager each(checkpoint, folder_.file("each"), {.writers = CheckpointWriters::each});
    const PendingCheckpoint one = first.save(1), other = each.save(1);
    one.wait();
    other.wait();
    strategy.run([&] { step(variables, adam); });
    each.restore_latest()->assert_consumed();
    first.save(2).wait();
    return std::vector{one.path(), other.path(), first.latest_checkpoint().value()};
  });
  checkpoint::verify(paths[0][1]);
  EXPECT_THAT(checkpoint::difference(paths[0][0], paths[0][1]), ::testing::IsEmpty());
  EXPECT_THAT(checkpoint::difference(paths[0][0], paths[0][2]), ::testing::IsEmpty());
  for (int rank = 0; rank < GetParam(); ++rank) {
    const std::string file = "/worker-" + std::to_string(rank) + "-float32.safetensors";
    EXPECT_EQ(std::filesystem::exists(paths[0][1] + file), GetParam() > 1) << file;
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, WorkerShares, ::testing::Values(1, 2, 3));

}  // namespace
}  // namespace cohort
