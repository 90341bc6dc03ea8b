// SPDX-License-Identifier: Apache-2.0
// The passes of one distributed dataset: their numbers, over several groups of workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/input/distribution/input_fixture.h"
#include "cohort/input/input_host.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort::input {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::throws_error;

Dataset shuffled() { return Dataset::range(8).shuffle(8, {.seed = 1}).batch(4); }

DistributedDataset distributed(const std::shared_ptr<InputHost>& host,
                               const Dataset& dataset = shuffled()) {
  return DistributedDataset::from_dataset(host, dataset, {});
}

// The elements that one process with one replica gets in a pass.
std::string pass_of_one(std::uint64_t pass) {
  const DistributedDataset dataset = distributed(mirrored(1));
  dataset.set_next_pass(pass);
  return drained(dataset);
}

TEST(Passes, HaveOrdersOfTheirOwn) {
  const DistributedDataset dataset = distributed(mirrored(1));
  EXPECT_EQ(dataset.next_pass(), 0);
  const std::string first = drained(dataset), second = drained(dataset);
  EXPECT_NE(first, second);
  EXPECT_EQ(dataset.next_pass(), 2);
  EXPECT_EQ(first, pass_of_one(0));
  EXPECT_EQ(second, pass_of_one(1));
}

// Regression: a dataset of before rebuild() was refused; one that was made again began with the
// order of the first pass.
TEST(Passes, GoOnInANewGroup) {
  const std::shared_ptr<InputHost> two = mirrored(2);
  std::shared_ptr<const InputHost> now = two;
  two->latest = [&] { return now; };
  const DistributedDataset dataset = distributed(two);
  EXPECT_EQ(dataset.element_spec().num_components, 2);
  DistributedIterator old = dataset.iterator();
  *two->is_over = true;
  now = mirrored(1);
  EXPECT_EQ(drained(dataset), pass_of_one(1));
  EXPECT_EQ(dataset.element_spec().num_components, 1);
  EXPECT_THAT([&] { old.try_next(); },
              throws_error(ErrorCode::failed_precondition, "take a new one from the same"));
  now = nullptr;  // the strategy is gone
  EXPECT_EQ(drained(dataset), pass_of_one(2));
}

TEST(Passes, OfAFunctionGoOnInANewGroup) {
  const std::shared_ptr<InputHost> two = mirrored(2);
  std::shared_ptr<const InputHost> now = two;
  two->latest = [&] { return now; };
  std::vector<std::int64_t> replicas;
  const DistributedDataset dataset =
      DistributedDataset::from_function(two,
                                        [&](const InputContext& context) {
                                          replicas.push_back(context.num_replicas_in_sync);
                                          return shuffled();
                                        },
                                        {});
  dataset.iterator();
  now = mirrored(1);
  EXPECT_EQ(drained(dataset), pass_of_one(1));
  dataset.iterator();
  EXPECT_THAT(replicas, ::testing::ElementsAre(2, 1)) << "once for each group";
}

// Regression: all took the number and the seed of worker 0, also if that had just come back.
TEST(Passes, HaveTheHighestNumberOfAllWorkers) {
  for (const int ahead : {0, 1}) {
    const InProcessWorkers workers(2);
    const auto numbers = testing::on_workers<std::uint64_t>(2, [&](int rank) {
      const DistributedDataset dataset = distributed(worker_of(workers, rank, 1));
      if (rank == ahead) dataset.set_next_pass(5);
      DistributedIterator iterator = dataset.iterator();
      const DistributedElement element = iterator.get_next();
      DistributedIterator alone = [&] {
        const DistributedDataset other = distributed(mirrored(2));
        other.set_next_pass(5);
        return other.iterator();
      }();
      const DistributedElement both = alone.get_next();
      EXPECT_EQ(text_of(element[0]), text_of(both[static_cast<std::size_t>(rank)]));
      return dataset.next_pass();
    });
    EXPECT_THAT(numbers, Each(6));
  }
}

TEST(Passes, GoOnAfterTheOneThatIsRestored) {
  const DistributedDataset dataset = distributed(mirrored(1));
  dataset.set_next_pass(3);
  DistributedIterator iterator = dataset.iterator();
  iterator.get_next();
  const Bytes position = iterator.save();
  const DistributedDataset again = distributed(mirrored(1));
  DistributedIterator restored = again.iterator();
  restored.restore(position);
  EXPECT_EQ(again.next_pass(), 4);
  EXPECT_EQ(drained(again), pass_of_one(4));
}

TEST(Passes, OfAnotherDatasetOnOneWorkerAreRefused) {
  const std::vector<Dataset> others = {
      Dataset::range(8).shuffle(8, {.seed = 2}).batch(4),
      Dataset::range(8).batch(4),
      Dataset::range(9).skip(1).shuffle(8, {.seed = 1}).batch(4),
  };
  for (const Dataset& other : others) {
    const InProcessWorkers workers(2);
    testing::on_workers<int>(2, [&](int rank) {
      const DistributedDataset dataset =
          distributed(worker_of(workers, rank, 1), rank == 0 ? shuffled() : other);
      EXPECT_THAT([&] { dataset.iterator(); },
                  throws_error(ErrorCode::invalid_argument,
                               "the same dataset on all workers, got others on worker:0 and "
                               "worker:1: an op of the pipeline, a seed"));
      return 0;
    });
  }
}

// Regression: the loop of the guide distributed its dataset in each epoch, and got one order.
TEST(Passes, OverADatasetThatIsDistributedAgainAreWarnedOfOnce) {
  const std::shared_ptr<InputHost> host = mirrored(1);
  const auto warnings_of = [&](const Dataset& dataset) {
    testing::Warnings warnings;
    for (int epoch = 0; epoch < 3; ++epoch) drained(distributed(host, dataset.batch(4)));
    return warnings.text();
  };
  EXPECT_EQ(warnings_of(Dataset::range(8)), "");
  EXPECT_EQ(warnings_of(Dataset::range(8).shuffle(8)), "") << "the order is another one";
  const std::string text = warnings_of(Dataset::range(8).shuffle(8, {.seed = 1}));
  EXPECT_THAT(text, HasSubstr("so its order begins again; call distribute_dataset() once"));
  EXPECT_EQ(text.find("begins again"), text.rfind("begins again"));
}

}  // namespace
}  // namespace cohort::input
