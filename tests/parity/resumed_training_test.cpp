// SPDX-License-Identifier: Apache-2.0
// A training that stops at a random step and goes on from its checkpoint has the bits of one that
// never stopped: with dropout, batch statistics, a schedule, shuffled data and partial batches.
#include "tests/parity/resumed_training.h"

#include <gtest/gtest.h>

#include <random>

#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

using parity::kSteps;
using Training = parity::ResumableTraining<MirroredStrategy>;

struct Kind {
  int replicas;
  bool is_torch;  // TorchOptimizer, else cohort::Adam with a schedule
  std::vector<std::string> devices() const { return testing::cpu_devices(replicas); }
};

class ResumedTraining : public ::testing::TestWithParam<Kind> {};

TEST_P(ResumedTraining, HasTheBitsOfOneThatNeverStopped) {
  torch::manual_seed(5);
  Training whole(GetParam().is_torch, GetParam().devices());
  whole.train(kSteps);
  std::mt19937 random(11);
  for (int trial = 0; trial < 4; ++trial) {
    const auto stop = static_cast<std::int64_t>(random() % kSteps);
    SCOPED_TRACE(stop);
    const testing::TemporaryFolder folder;
    {
      torch::manual_seed(5);
      Training first(GetParam().is_torch, GetParam().devices());
      first.train(stop);
      first.save(folder.file("c"));
      first.train(stop + 2);  // lost
    }
    torch::manual_seed(99);
    Training second(GetParam().is_torch, GetParam().devices());
    second.restore(folder.file("c"));
    second.train(kSteps);
    const std::vector<at::Tensor> expected = whole.values(), got = second.values();
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(torch::equal(expected[i], got[i])) << "tensor " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ResumedTraining,
                         ::testing::Values(Kind{1, false}, Kind{2, false}, Kind{3, false},
                                           Kind{1, true}, Kind{2, true}));

}  // namespace
}  // namespace cohort
