// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/TensorBody.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/log.h"
#include "cohort/input/distribution/input_fixture.h"
#include "cohort/input/input_host.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort::input {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

// The spec is given, so the function is not traced to infer it.
const MapOptions kNumbers{.output_spec = ElementSpec::tuple({{at::ScalarType::Long, {{}}}})};

Dataset with_policy(const Dataset& dataset, AutoShardPolicy policy) {
  DatasetOptions options;
  options.auto_shard_policy = policy;
  return dataset.with_options(options);
}

Dataset failing_at(std::int64_t count, std::int64_t at) {
  return Dataset::range(count).map(Function([at](at::Tensor x) {
                                     COHORT_CHECK(x.item().toLong() != at, ErrorCode::data_loss,
                                                  "bad");
                                     return x;
                                   }),
                                   kNumbers);
}

class DistributeDataset : public ::testing::Test {
 protected:
  static DistributedDataset mirror(const Dataset& dataset, int replicas) {
    return DistributedDataset::from_dataset(mirrored(replicas), dataset, {});
  }
  static std::vector<std::string> seen(int workers, int replicas, const Dataset& dataset) {
    const InProcessWorkers group(workers);
    return testing::on_workers<std::string>(workers, [&](int worker) {
      return drained(
          DistributedDataset::from_dataset(worker_of(group, worker, replicas), dataset, {}));
    });
  }
};

TEST_F(DistributeDataset, BatchesAreSplitForReplicas) {
  EXPECT_EQ(drained(mirror(Dataset::range(6).batch(4), 2)), "([0,1] | [2,3]); ([4] | [5]); end");
  EXPECT_EQ(drained(mirror(Dataset::range(8).batch(4), 3)),
            "([0,1] | [2,3] | []); ([4,5] | [6,7] | []); end");
}

TEST_F(DistributeDataset, OffCutsTheStreamAnew) {
  const Dataset dataset = with_policy(Dataset::range(13).batch(5), AutoShardPolicy::off);
  EXPECT_EQ(
      drained(mirror(dataset, 4)),
      "([0,1] | [2] | [3] | [4]); ([5,6] | [7] | [8] | [9]); ([10,11] | [12] | [] | []); end");
}

// Regression: the parts were views of one batch, which have one version counter, so the backward
// pass of a replica failed if another one had written into its own part in the meantime.
TEST_F(DistributeDataset, AWriteIntoAPartIsNoWriteIntoTheOthers) {
  for (const AutoShardPolicy policy : {AutoShardPolicy::automatic, AutoShardPolicy::off}) {
    for (const Dataset& dataset :
         {Dataset::range(4).batch(4), Dataset::range(4).batch(4).rebatch({2})}) {
      const auto element = mirror(with_policy(dataset, policy), 2).iterator().get_next();
      const at::Tensor first = element[0].tensor(), second = element[1].tensor();
      const auto version = second._version();
      first.add_(10);
      EXPECT_EQ(second._version(), version) << dataset.cardinality();
      EXPECT_TRUE(first.is_alias_of(second)) << "nothing is copied";
      EXPECT_FALSE(first.requires_grad());
      EXPECT_EQ(first.scalar_type(), at::kLong);
    }
  }
}

// Decision 0015.
TEST_F(DistributeDataset, ARebatchOfTheProgramsOwnStays) {
  for (const AutoShardPolicy policy :
       {AutoShardPolicy::automatic, AutoShardPolicy::data, AutoShardPolicy::off}) {
    const Dataset dataset = with_policy(Dataset::range(7).batch(4).rebatch({3}), policy);
    EXPECT_EQ(drained(mirror(dataset, 1)), "[0,1,2]; [3,4,5]; [6]; end");
    EXPECT_EQ(drained(mirror(dataset, 2)), "([0,1] | [2]); ([3,4] | [5]); ([6] | []); end");
  }
}

TEST_F(DistributeDataset, AnErrorTakesThePlaceOfItsBatch) {
  EXPECT_EQ(drained(mirror(failing_at(8, 2).batch(2), 2)),
            "([0] | [1]); !data_loss; ([4] | [5]); ([6] | [7]); end");
}

// Regression: workers with different datasets trained on parts of each.
TEST_F(DistributeDataset, AnotherOnOneWorkerIsRefused) {
  const auto seen_with = [](const Dataset& first, const Dataset& other) {
    const InProcessWorkers group(2);
    return testing::on_workers<std::string>(2, [&](int worker) {
      const Dataset& own = worker == 0 ? first : other;
      return drained(DistributedDataset::from_dataset(worker_of(group, worker, 1), own, {}));
    });
  };
  const Dataset batches = Dataset::range(12).batch(4);
  EXPECT_THAT([&] { seen_with(batches, Dataset::range(20).batch(4)); },
              throws_error(ErrorCode::invalid_argument,
                           "expected the same dataset on all workers, got 3 batches of 4 rows on "
                           "worker:0 and 5 batches of 4 rows on worker:1"));
  EXPECT_THAT([&] { seen_with(batches, Dataset::range(18).batch(6)); },
              throws_error(ErrorCode::invalid_argument, "3 batches of 6 rows on worker:1"));
  EXPECT_THAT([&] { seen_with(batches, batches.repeat()); },
              throws_error(ErrorCode::invalid_argument, "build the same dataset"));
  // Without a policy each worker reads what it was given.
  EXPECT_NO_THROW(seen_with(with_policy(batches, AutoShardPolicy::off),
                            with_policy(Dataset::range(8).batch(4), AutoShardPolicy::off)));
}

TEST_F(DistributeDataset, WhatIsNotBatchedIsRefused) {
  EXPECT_THAT([] { mirror(Dataset::range(10), 2); },
              throws_error(ErrorCode::invalid_argument, "batch()"));
  EXPECT_EQ(drained(mirror(Dataset::range(2), 1)), "0; 1; end");
}

TEST_F(DistributeDataset, APipelineAReplicaIsForFunctionsOnly) {
  EXPECT_THAT(
      [] {
        DistributedDataset::from_dataset(mirrored(2), Dataset::range(8).batch(2),
                                         {.replication_mode = ReplicationMode::per_replica});
      },
      throws_error(ErrorCode::unimplemented, "per_worker"));
}

TEST_F(DistributeDataset, AnImpossibleBufferIsRefusedBeforeAnyPass) {
  EXPECT_THAT(
      [] {
        DistributedDataset::from_dataset(mirrored(2), Dataset::range(8).batch(2),
                                         {.per_replica_buffer_size = -2});
      },
      throws_error(ErrorCode::invalid_argument,
                   "per_replica_buffer_size >= 0 or kAutotune, got -2; use 0"));
}

// Spec 3.7: contradictory options are an error only for datasets from a function.
TEST_F(DistributeDataset, OptionsThatDoNotGoTogetherAreTaken) {
  EXPECT_EQ(drained(DistributedDataset::from_dataset(mirrored(2), Dataset::range(4).batch(4),
                                                     {.place_dataset_on_device = true})),
            "([0,1] | [2,3]); end");
}

// Spec 3.1: the dataset is returned unchanged.
TEST_F(DistributeDataset, TheDefaultStrategyLooksAtNoOption) {
  const auto host = std::make_shared<InputHost>(
      InputHost{.passes_through = true, .handles_partial_batches = false, .wraps_values = false});
  const Dataset dataset = Dataset::range(5).batch(4);
  const InputOptions all[] = {{.per_replica_buffer_size = -2},
                              {.place_dataset_on_device = true},
                              {.replication_mode = ReplicationMode::per_replica},
                              {.fetch_to_device = true,
                               .replication_mode = ReplicationMode::per_replica,
                               .place_dataset_on_device = true}};
  for (const InputOptions& options : all) {
    EXPECT_EQ(drained(DistributedDataset::from_dataset(host, dataset, options)),
              "[0,1,2,3]; [4]; end");
    const auto made = DistributedDataset::from_function(
        host, [&](const InputContext&) { return dataset; }, options);
    EXPECT_EQ(drained(made), "[0,1,2,3]; [4]; end");
  }
}

TEST_F(DistributeDataset, StaticSizesStayWhereTheyDivide) {
  const auto spec_of = [](const Dataset& dataset, int replicas) {
    return mirror(dataset, replicas).element_spec().to_string();
  };
  const Dataset even = Dataset::range(8).batch(4, {.drop_remainder = true});
  EXPECT_EQ(spec_of(even, 2), "PerReplica(int64[2], int64[2])");
  EXPECT_EQ(spec_of(even, 3), "PerReplica(int64[?], int64[?], int64[?])");
  EXPECT_EQ(spec_of(even, 1), "int64[4]");
}

TEST_F(DistributeDataset, AnIteratorHasTheSpecOfItsDataset) {
  const DistributedDataset dataset =
      mirror(Dataset::from_tensor_slices(at::ones({9, 12})).batch(4), 2);
  EXPECT_EQ(dataset.element_spec().to_string(), "PerReplica(float32[?, 12], float32[?, 12])");
  EXPECT_EQ(dataset.iterator().element_spec().to_string(), dataset.element_spec().to_string());
}

// One signature for both: every size that differs is unknown.
TEST_F(DistributeDataset, SpecsOfTwoDatasetsHaveACommonOne) {
  const auto component = [](const Dataset& dataset) {
    return mirror(dataset, 2).element_spec().component;
  };
  const ElementSpec batches = component(Dataset::range(10).batch(2).batch(5));
  const ElementSpec once = component(Dataset::from_tensors(at::zeros({5, 2}, at::kLong)));
  EXPECT_EQ(batches.common_with(once).to_string(), "int64[?, ?]");
  EXPECT_EQ(once.common_with(batches).to_string(), "int64[?, ?]");
}

TEST_F(DistributeDataset, WorkersDealPartsOfEachBatch) {
  EXPECT_THAT(seen(2, 2, with_policy(Dataset::range(14).batch(7), AutoShardPolicy::data)),
              ElementsAre("([0,1] | [4,5]); ([7,8] | [11,12]); end",
                          "([2,3] | [6]); ([9,10] | [13]); end"));
  EXPECT_THAT(seen(2, 1, Dataset::range(9).batch(2)),
              ElementsAre("([0]); ([2]); ([4]); ([6]); ([8]); end",
                          "([1]); ([3]); ([5]); ([7]); ([]); end"));
}

TEST_F(DistributeDataset, AnErrorInABatchIsRaisedOnAllWorkersOnce) {
  EXPECT_THAT(seen(2, 1, failing_at(6, 2).batch(2)),
              ElementsAre("([0]); !data_loss; ([4]); end", "([1]); !data_loss; ([5]); end"));
  // The same number of replicas in sync, with the failing element on the other worker.
  EXPECT_THAT(seen(2, 2, failing_at(12, 6).batch(4)),
              ElementsAre("([0] | [2]); !data_loss; ([8] | [10]); end",
                          "([1] | [3]); !data_loss; ([9] | [11]); end"));
}

TEST_F(DistributeDataset, WorkersShuffleAlikeWithoutASeed) {
  const auto steps = seen(3, 1, Dataset::range(30).shuffle(30).batch(3));
  std::multiset<std::string> numbers;
  for (const std::string& worker : steps) {
    for (std::size_t at = worker.find('['); at != std::string::npos; at = worker.find('[', at + 1))
      numbers.insert(worker.substr(at, worker.find(']', at) - at));
  }
  EXPECT_EQ(numbers.size(), 30U);
  for (int i = 0; i < 30; ++i) EXPECT_EQ(numbers.count("[" + std::to_string(i)), 1U) << i;
}

TEST_F(DistributeDataset, EveryPassShufflesAnewUnlessAskedNotTo) {
  const auto passes = [](bool reshuffles) {
    const DistributedDataset dataset = mirror(
        Dataset::range(50).shuffle(50, {.reshuffle_each_iteration = reshuffles}).batch(50), 2);
    return std::pair(drained(dataset), drained(dataset));
  };
  EXPECT_NE(passes(true).first, passes(true).second);
  const auto alike = passes(false);
  EXPECT_EQ(alike.first, alike.second);
}

TEST_F(DistributeDataset, TheOrderOfASeedDoesNotDependOnTheNumberOfReplicas) {
  const Dataset dataset = Dataset::range(12).shuffle(12, {.seed = 3}).batch(4);
  std::string one = drained(mirror(dataset, 1));
  std::string two = drained(mirror(dataset, 2));
  for (std::string* text : {&one, &two}) std::erase_if(*text, [](char c) { return !isdigit(c); });
  EXPECT_EQ(one, two);
}

TEST_F(DistributeDataset, WorkersWithOtherNumbersOfReplicasAreRefusedOnAll) {
  const InProcessWorkers group(2);
  const auto codes = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    const auto host = worker_of(group, worker, 3 - worker);
    try {
      drained(DistributedDataset::from_dataset(host, Dataset::range(10).batch(5), {}));
    } catch (const Error& error) {
      return std::string(name_of(error.code()));
    }
    return "none";
  });
  EXPECT_THAT(codes, ElementsAre("invalid_argument", "invalid_argument"));
}

TEST_F(DistributeDataset, ABrokenPositionIsDataLoss) {
  const DistributedDataset dataset = mirror(Dataset::range(40).batch(4), 2);
  DistributedIterator iterator = dataset.iterator();
  iterator.get_next();
  const Bytes position = iterator.save();
  for (std::size_t cut = 0; cut < position.size(); ++cut) {
    const Bytes part(position.begin(), position.begin() + static_cast<std::ptrdiff_t>(cut));
    EXPECT_THAT([&] { dataset.iterator().restore(part); },
                throws_error(ErrorCode::data_loss, "position"));
  }
  // A flipped bit gives an error or another position, never a crash.
  for (std::size_t at = 0; at < position.size(); ++at) {
    Bytes flipped = position;
    flipped[at] ^= std::byte{0x41};
    try {
      DistributedIterator other = dataset.iterator();
      other.restore(flipped);
      drained(other, 100);
    } catch (const Error&) {
      continue;
    }
  }
}

TEST_F(DistributeDataset, APositionOfAnotherDatasetIsRefused) {
  const Bytes position = mirror(Dataset::range(8).batch(4), 2).iterator().save();
  const auto onto = [&](const DistributedDataset& dataset) {
    return [&position, dataset] { dataset.iterator().restore(position); };
  };
  EXPECT_THAT(onto(mirror(Dataset::range(8, {.dtype = at::kInt}).batch(4), 2)),
              throws_error(ErrorCode::invalid_argument, "int32[?]"));
  EXPECT_THAT(onto(mirror(with_policy(Dataset::range(8).batch(4), AutoShardPolicy::off), 2)),
              throws_error(ErrorCode::invalid_argument, "sharded in the same way"));
}

TEST_F(DistributeDataset, WhatCannotBeSavedFailsOnAllWorkers) {
  const InProcessWorkers group(2);
  const auto codes = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    const auto host = worker_of(group, worker, 1);
    const Dataset numbers = Dataset::range(6).batch(2);
    const Dataset generated =
        Dataset::from_generator([] { return [](Nest&) { return false; }; }, numbers.element_spec());
    DistributedIterator iterator =
        DistributedDataset::from_function(
            host, [&](const InputContext&) { return worker == 1 ? generated : numbers; }, {})
            .iterator();
    iterator.get_next();
    try {
      iterator.save();
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + " " + error.origin();
    }
    return "saved";
  });
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_THAT(codes[0], ::testing::HasSubstr("worker:1"));
}

TEST_F(DistributeDataset, EveryPassSaysWhoReadsWhat) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::info) lines.emplace_back(line);
  });
  set_log_level(LogLevel::info);
  drained(mirror(Dataset::range(8).batch(4), 2));
  set_log_level(LogLevel::warn);
  set_log_sink(nullptr);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], ::testing::HasSubstr("worker 0 of 1 (2 replicas) reads the whole dataset"));
}

// Regression: a table beside the rows of a batch was cut among the replicas without a word.
TEST_F(DistributeDataset, AFieldWithAnotherNumberOfRowsIsWarnedOfOnce) {
  const Dataset with_table = Dataset::range(8).batch(4).map(
      [](const at::Tensor& rows) { return std::make_tuple(rows, at::ones({3})); });
  testing::Warnings warnings;
  drained(mirror(with_table, 2));
  EXPECT_EQ(warnings.count("expected 4 rows in every field of a batch, as in field 0, got 3"), 1);
}

// The message showed -1 as 18446744073709551615.
TEST(PerReplicaValue, SaysWhereReplicasAreCountedFrom) {
  const PerReplica<int> values(std::vector<int>{1, 2});
  EXPECT_THAT([&] { values[std::size_t{0} - 1]; },
              throws_error(ErrorCode::invalid_argument,
                           "a replica below 2, got -1; local replicas are counted from 0"));
}

}  // namespace
}  // namespace cohort::input
