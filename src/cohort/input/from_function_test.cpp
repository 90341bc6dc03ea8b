// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "cohort/input/distribution/input_fixture.h"
#include "cohort/input/input_host.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/throws_error.h"

namespace cohort::input {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

// The spec is given, so the function is not traced to infer it.
const MapOptions kNumbers{.output_spec = ElementSpec::tuple({{at::ScalarType::Long, {{}}}})};

class FromFunction : public ::testing::Test {
 protected:
  DistributedDataset distribute(const std::shared_ptr<InputHost>& host, const Dataset& dataset,
                                const InputOptions& options = {}) {
    return DistributedDataset::from_function(
        host,
        [this, dataset](const InputContext& context) {
          contexts.push_back(context.to_string() + " of " +
                             std::to_string(context.num_replicas_in_sync));
          return dataset;
        },
        options);
  }
  static InputOptions per_replica() {
    return {.fetch_to_device = false, .replication_mode = ReplicationMode::per_replica};
  }
  std::vector<std::string> contexts;
};

TEST_F(FromFunction, ReplicasTakeConsecutiveElementsAndTheLastStepIsFilledUp) {
  const DistributedDataset dataset = distribute(mirrored(2), Dataset::range(9).batch(2));
  EXPECT_TRUE(dataset.handles_partial_batches());
  EXPECT_EQ(dataset.element_spec().to_string(), "PerReplica(int64[?], int64[?])");
  EXPECT_EQ(drained(dataset), "([0,1] | [2,3]); ([4,5] | [6,7]); ([8] | []); end");
  EXPECT_THAT(contexts,
              ElementsAre("tf.distribute.InputContext(input pipeline id 0, total: 1) of 2"));
}

TEST_F(FromFunction, AStaticSpecLosesAnUnevenLastStepInGetNextOnly) {
  const DistributedDataset dataset =
      distribute(mirrored(2), Dataset::range(6).batch(2, {.drop_remainder = true}));
  EXPECT_FALSE(dataset.handles_partial_batches());
  EXPECT_EQ(drained(dataset), "([0,1] | [2,3]); end");
  DistributedIterator iterator = dataset.iterator();
  iterator.get_next();
  const DistributedOptional last = iterator.get_next_as_optional();
  EXPECT_EQ(text_of(last.get_value()), "([4,5] | [])");
  EXPECT_FALSE(iterator.get_next_as_optional().has_value());
  EXPECT_THAT([&] { iterator.get_next_as_optional().get_value(); },
              throws_error(ErrorCode::invalid_argument, "empty one"));
  EXPECT_THAT([&] { iterator.get_next(); }, throws_error(ErrorCode::out_of_range, "has ended"));
}

// Regression: sizes that were learned from the first two elements, both of size 1 here, counted as
// static, so the last element was left out without an error.
TEST_F(FromFunction, AGuessedSizeLosesNoElement) {
  const auto sized_by_value = [](at::Tensor i) {
    return at::full({i.item().toLong() / 2 + 1}, i.item(), at::kLong);
  };
  const DistributedDataset dataset =
      distribute(mirrored(2), Dataset::range(5).map(Function(sized_by_value)));
  EXPECT_TRUE(dataset.handles_partial_batches());
  EXPECT_EQ(drained(dataset), "([0] | [1]); ([2,2] | [3,3]); ([4,4,4] | []); end");
}

TEST_F(FromFunction, AGivenSpecIsNoGuess) {
  const auto same = [](at::Tensor x) { return x; };
  const Dataset numbers = Dataset::range(5).map(Function(same), kNumbers);
  EXPECT_EQ(drained(distribute(mirrored(2), numbers)), "(0 | 1); (2 | 3); end");
  const Dataset mapped = Dataset::range(6).map(Function(same));
  EXPECT_EQ(drained(distribute(mirrored(2), mapped.batch(2, {.drop_remainder = true}))),
            "([0,1] | [2,3]); end");
}

TEST_F(FromFunction, DummiesAreTellableFromDataAndCountNothing) {
  DistributedIterator iterator = distribute(mirrored(3), Dataset::range(4)).iterator();
  iterator.get_next();
  const DistributedElement last = iterator.get_next_as_optional().get_value();
  EXPECT_EQ(text_of(last), "(3 | 0 | 0)");
  EXPECT_TRUE(last.has_data(0));
  EXPECT_FALSE(last.has_data(1));
  EXPECT_EQ(last.num_examples(0), 1);
  EXPECT_EQ(last.num_examples(2), 0);
  EXPECT_EQ(last.global_num_examples(), 1);
}

TEST_F(FromFunction, OneReplicaInAllGetsBareElements) {
  EXPECT_EQ(drained(distribute(mirrored(1), Dataset::range(5).batch(2))), "[0,1]; [2,3]; [4]; end");
}

TEST_F(FromFunction, APipelineAReplicaIsAskedForWithItsOwnContext) {
  const DistributedDataset dataset = DistributedDataset::from_function(
      mirrored(2),
      [](const InputContext& context) { return Dataset::range(5).batch(2).shard(context); },
      per_replica());
  EXPECT_EQ(drained(dataset), "([0,1] | [2,3]); ([4] | []); end");
}

TEST_F(FromFunction, OptionsThatDoNotGoTogetherAreRefused) {
  const auto distributing = [this](InputOptions options) {
    return [this, options] { distribute(mirrored(2), Dataset::range(4), options); };
  };
  EXPECT_THAT(distributing({.place_dataset_on_device = true}),
              throws_error(ErrorCode::invalid_argument, "got per_worker"));
  EXPECT_THAT(distributing({.fetch_to_device = true,
                            .replication_mode = ReplicationMode::per_replica,
                            .place_dataset_on_device = true}),
              throws_error(ErrorCode::invalid_argument, "fetch_to_device = false"));
  EXPECT_THAT(distributing({.per_replica_buffer_size = -2}),
              throws_error(ErrorCode::invalid_argument,
                           "per_replica_buffer_size >= 0 or kAutotune, got -2"));
  EXPECT_TRUE(contexts.empty());
}

TEST_F(FromFunction, WhatIsNoDatasetIsRefused) {
  EXPECT_THAT([this] { distribute(mirrored(2), Dataset(nullptr)); },
              throws_error(ErrorCode::invalid_argument, "to return a dataset"));
}

// Regression: the element after the error went to the replica whose element was lost, and from then
// on each replica got the elements of another.
TEST_F(FromFunction, AnErrorTakesItsRound) {
  const auto fail_at_one = [](const at::Tensor& x) {
    COHORT_CHECK(x.item().toLong() != 1, ErrorCode::invalid_argument, "one");
    return x;
  };
  const DistributedDataset dataset = distribute(
      mirrored(2), Dataset::range(5)
                       .map(Function([&](at::Tensor x) { return fail_at_one(x); }), kNumbers)
                       .batch(1));
  EXPECT_EQ(drained(dataset), "!invalid_argument; ([2] | [3]); ([4] | []); end");
}

TEST_F(FromFunction, EveryPassBeginsAnewAndTwoAreIndependent) {
  const DistributedDataset dataset = distribute(mirrored(2), Dataset::range(4).batch(1));
  DistributedIterator first = dataset.iterator();
  first.get_next();
  DistributedIterator second = dataset.iterator();
  EXPECT_EQ(text_of(second.get_next()), "([0] | [1])");
  EXPECT_EQ(text_of(first.get_next()), "([2] | [3])");
  EXPECT_EQ(contexts.size(), 1U);
}

TEST_F(FromFunction, ALoopAndAReductionSeeEveryStep) {
  const DistributedDataset dataset = distribute(mirrored(2), Dataset::range(5).batch(1));
  std::string seen;
  for (const auto& batch : dataset) seen += text_of(batch);
  EXPECT_EQ(seen, "([0] | [1])([2] | [3])([4] | [])");
  const std::int64_t sum =
      dataset.reduce(std::int64_t{0}, [](std::int64_t total, const auto& step) {
        for (const Nest& x : step.local_results()) total += x.tensor().sum().item().toLong();
        return total;
      });
  EXPECT_EQ(sum, 10);
}

TEST_F(FromFunction, APositionGoesOnWithTheVeryNextStep) {
  const DistributedDataset dataset = distribute(mirrored(2), Dataset::range(12).batch(2));
  DistributedIterator first = dataset.iterator();
  first.get_next();
  const Bytes position = first.save();
  first.get_next();
  DistributedIterator second = dataset.iterator();
  second.restore(position);
  EXPECT_EQ(drained(second), "([4,5] | [6,7]); ([8,9] | [10,11]); end");
  const Bytes end = second.save();
  first.restore(end);
  EXPECT_EQ(drained(first), "end");
}

class FromFunctionOnWorkers : public ::testing::Test {
 protected:
  // The steps that each worker sees of the dataset that its function makes.
  static std::vector<std::string> seen(int workers, int replicas,
                                       const std::function<Dataset(std::int64_t)>& make) {
    const InProcessWorkers group(workers);
    return testing::on_workers<std::string>(workers, [&](int worker) {
      return drained(DistributedDataset::from_function(
          worker_of(group, worker, replicas),
          [&](const InputContext& context) { return make(context.input_pipeline_id); }, {}));
    });
  }
};

TEST_F(FromFunctionOnWorkers, AWorkerThatRunsDryGoesOnWithDummies) {
  EXPECT_THAT(seen(2, 1, [](std::int64_t id) { return Dataset::range(8 + id).batch(2); }),
              ElementsAre("([0,1]); ([2,3]); ([4,5]); ([6,7]); ([]); end",
                          "([0,1]); ([2,3]); ([4,5]); ([6,7]); ([8]); end"));
}

// VAL-04 of spec/strategy.md: the function batches for a replica and takes its worker's share.
TEST_F(FromFunctionOnWorkers, AFunctionThatBatchesAndShardsGivesEachWorkerItsPart) {
  const InProcessWorkers group(2);
  const std::vector<std::int64_t> sums = testing::on_workers<std::int64_t>(2, [&](int worker) {
    auto steps = DistributedDataset::from_function(
                     worker_of(group, worker, 1),
                     [](const InputContext& context) {
                       return Dataset::range(100)
                           .batch(context.get_per_replica_batch_size(10))
                           .shard(context.num_input_pipelines, context.input_pipeline_id);
                     },
                     {})
                     .iterator();
    return steps.get_next().value().tensor().sum().item<std::int64_t>();
  });
  EXPECT_THAT(sums, ElementsAre(10, 35));
}

// VAL-06 of spec/strategy.md: the last batch of one worker is smaller than that of the other.
TEST_F(FromFunctionOnWorkers, WorkersMayHaveBatchesOfOtherSizes) {
  EXPECT_THAT(seen(2, 1, [](std::int64_t id) { return Dataset::range(14).batch(4).shard(2, id); }),
              ElementsAre("([0,1,2,3]); ([8,9,10,11]); end", "([4,5,6,7]); ([12,13]); end"));
}

TEST_F(FromFunctionOnWorkers, AnErrorOnOneIsRaisedOnAllAndNoneWaits) {
  const auto make = [](std::int64_t id) {
    return Dataset::range(4)
        .map(Function([id](at::Tensor x) {
               COHORT_CHECK(id == 0 || x.item().toLong() != 1, ErrorCode::data_loss, "bad");
               return x;
             }),
             kNumbers)
        .batch(1);
  };
  EXPECT_THAT(seen(2, 1, make), ElementsAre("([0]); !data_loss; ([1]); ([2]); ([3]); end",
                                            "([0]); !data_loss; ([2]); ([3]); ([]); end"));
}

TEST_F(FromFunctionOnWorkers, ElementsOfDifferentSpecsAreRefusedOnAll) {
  const auto expect_refused = [](const Dataset& first, const Dataset& second,
                                 const std::string& text) {
    const InProcessWorkers group(2);
    const auto errors = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
      try {
        drained(DistributedDataset::from_function(
            worker_of(group, worker, 1),
            [&](const InputContext&) { return worker == 0 ? first : second; }, {}));
      } catch (const Error& error) {
        return std::string(name_of(error.code())) + " " + error.message();
      }
      return "none";
    });
    for (const std::string& error : errors) {
      EXPECT_THAT(error, ::testing::StartsWith("invalid_argument "));
      EXPECT_THAT(error, ::testing::HasSubstr(text));
    }
  };
  const Dataset numbers = Dataset::range(8);
  expect_refused(numbers.batch(2), Dataset::range(8, {.dtype = at::kInt}).batch(2),
                 "int64[?] on worker:0 and int32[?] on worker:1");
  expect_refused(numbers.batch(2), Dataset::zip({numbers, numbers}).batch(2),
                 "int64[?] on worker:0 and (int64[?], int64[?]) on worker:1");
  const BatchOptions drop{.drop_remainder = true};
  expect_refused(numbers.batch(2, drop).batch(2), numbers.batch(4, drop).batch(2),
                 "int64[?, 2] on worker:0 and int64[?, 4] on worker:1");
}

TEST_F(FromFunctionOnWorkers, WhatOneKnowsBetterOfItsElementsIsNoDifference) {
  EXPECT_THAT(seen(2, 1,
                   [](std::int64_t id) {
                     return Dataset::range(4).batch(2, {.drop_remainder = id == 0}).batch(1);
                   }),
              ElementsAre("([0,1]); ([2,3]); end", "([0,1]); ([2,3]); end"));
}

TEST_F(FromFunctionOnWorkers, TheErrorNamesItsWorker) {
  const InProcessWorkers group(2);
  const auto origins = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    DistributedIterator iterator =
        DistributedDataset::from_function(
            worker_of(group, worker, 1),
            [&](const InputContext&) {
              return Dataset::range(2).map(Function([worker](at::Tensor x) {
                                             COHORT_CHECK(worker == 0, ErrorCode::data_loss, "bad");
                                             return x;
                                           }),
                                           kNumbers);
            },
            {})
            .iterator();
    try {
      iterator.get_next();
    } catch (const Error& error) {
      return error.origin();
    }
    return "no error";
  });
  EXPECT_THAT(origins, ElementsAre("worker:1", "worker:1"));
}

// Regression: the other workers waited for the worker, and then learned only that it was gone.
TEST_F(FromFunctionOnWorkers, AnErrorOfTheFunctionIsThrownOnAll) {
  const InProcessWorkers group(2);
  const auto errors = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    const auto host = worker_of(group, worker, 1);
    const auto make = [&](const InputContext&) {
      COHORT_CHECK(worker == 0, ErrorCode::not_found, "no file 'b.csv'");
      return Dataset::range(2);
    };
    try {
      drained(DistributedDataset::from_function(host, make, {}));
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + " " + error.origin() + " " + error.message();
    }
    return "no error";
  });
  EXPECT_THAT(errors, ::testing::Each("not_found worker:1 no file 'b.csv'"));
}

// Workers that make one call after another stay in step after an error.
TEST_F(FromFunctionOnWorkers, CallsAfterAnErrorOfTheFunctionSucceed) {
  int calls_on_one = 0;
  const InProcessWorkers group(2);
  const auto steps = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    const auto host = worker_of(group, worker, 1);
    const auto make = [&](const InputContext&) {
      if (worker == 1 && calls_on_one++ == 0) throw std::runtime_error("not yet");
      return Dataset::range(2).batch(2);
    };
    EXPECT_THAT([&] { DistributedDataset::from_function(host, make, {}); },
                throws_error(ErrorCode::unknown, "not yet"));
    return drained(DistributedDataset::from_function(host, make, {}));
  });
  EXPECT_THAT(steps, ElementsAre("([0,1]); end", "([0,1]); end"));
}

TEST_F(FromFunctionOnWorkers, AWorkerThatLeavesIsNamedByTheOthers) {
  const InProcessWorkers group(2);
  const auto what = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    DistributedIterator iterator =
        DistributedDataset::from_function(
            worker_of(group, worker, 1),
            [](const InputContext&) {
              return Dataset::range(9).map(Function([](at::Tensor x) { return x; }));
            },
            {})
            .iterator();
    iterator.get_next();
    if (worker == 1) return "left";
    try {
      iterator.get_next();
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + " " + error.origin();
    }
    return "no error";
  });
  EXPECT_THAT(what, ElementsAre("aborted worker:1", "left"));
}

TEST_F(FromFunctionOnWorkers, AWorkerThatFailsBeforeItStartsIsNotWaitedFor) {
  const InProcessWorkers group(2);
  const auto what = testing::on_workers<std::string>(2, [&](int worker) -> std::string {
    const auto host = worker_of(group, worker, 1);
    if (worker == 1) return "gone";
    try {
      drained(DistributedDataset::from_function(
          host, [](const InputContext&) { return Dataset::range(9); }, {}));
    } catch (const Error& error) {
      return std::string(name_of(error.code())) + " " + error.origin();
    }
    return "no error";
  });
  EXPECT_THAT(what, ElementsAre("aborted worker:1", "gone"));
}

}  // namespace
}  // namespace cohort::input
