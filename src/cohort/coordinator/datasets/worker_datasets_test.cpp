// SPDX-License-Identifier: Apache-2.0
// Which workers share the programs of their datasets' functions.
#include "cohort/coordinator/datasets/worker_datasets.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include "cohort/data/auto_shard.h"
#include "cohort/function/registry.h"

namespace cohort::coordinator {
namespace {

// Its result's shape depends on values, so it cannot be traced.
const bool kIsRegistered = [] {
  function::register_function("worker_datasets_test.counted", [](std::vector<at::Tensor> in) {
    return std::vector<at::Tensor>{at::arange(in.at(0).item<std::int64_t>() + 1)};
  });
  return true;
}();

class WorkerDatasetsTest : public ::testing::Test {
 protected:
  // Vectors with lengths from 1 on, each multiplied by the factor's current value.
  Dataset vectors() {
    return Dataset::range(8)
        .map(Function::registered("worker_datasets_test.counted"))
        .map(Function([this, factor = factor++](const at::Tensor& x) {
          ++calls;
          return x * factor;
        }));
  }
  static std::vector<Dataset> shards(const Dataset& dataset) {
    std::vector<Dataset> all;
    AutoShardOptions options{.num_workers = 2, .policy = AutoShardPolicy::data};
    for (options.index = 0; options.index < 2; ++options.index)
      all.push_back(auto_shard(dataset, options));
    return all;
  }
  static WorkerDatasets::Answer ask(WorkerDatasets& datasets, std::uint32_t worker,
                                    std::int64_t length) {
    return datasets.program_for(worker, function_of(datasets), {at::arange(length)});
  }
  // The name of the C++ function, which belongs to the only op that can be traced.
  static std::string function_of(WorkerDatasets& datasets) {
    for (int op = 0; op < 8; ++op) {
      std::string name = std::to_string(op);
      if (!datasets.program_for(0, name, {at::arange(20)}).error) return name;
    }
    ADD_FAILURE() << "no function";
    return "";
  }

  std::int64_t factor = 2;
  int calls = 0;
};

// Regression: each worker's shard was traced separately, with as many traces per shape as workers.
TEST_F(WorkerDatasetsTest, ShardsOfOneDatasetShareTheirTraces) {
  WorkerDatasets datasets(shards(vectors()), 1024);
  const WorkerDatasets::Answer first = ask(datasets, 0, 9);
  ASSERT_FALSE(first.error) << first.error->what();
  EXPECT_TRUE(first.is_new);
  EXPECT_TRUE(datasets.share_function(0, 1, function_of(datasets)));
  const int calls_before = calls;
  const WorkerDatasets::Answer second = ask(datasets, 1, 9);
  EXPECT_FALSE(second.is_new);
  EXPECT_EQ(second.program, first.program);
  EXPECT_EQ(calls, calls_before);
  const std::size_t size = datasets.bytes_of(1).size();
  ASSERT_TRUE(ask(datasets, 0, 10).is_new);
  EXPECT_GT(datasets.bytes_of(1).size(), size) << "one that is lost comes back with it";
}

// The functions of two calls may capture different values.
TEST_F(WorkerDatasetsTest, DatasetsThatAreBuiltApartShareNone) {
  WorkerDatasets datasets({vectors(), vectors()}, 1024);
  const WorkerDatasets::Answer first = ask(datasets, 0, 9), second = ask(datasets, 1, 9);
  ASSERT_FALSE(first.error) << first.error->what();
  EXPECT_TRUE(first.is_new && second.is_new);
  EXPECT_NE(first.program, second.program);
  EXPECT_FALSE(datasets.share_function(0, 1, function_of(datasets)));
}

TEST_F(WorkerDatasetsTest, AFunctionInsideADatasetFunctionIsTracedForEach) {
  const Dataset nested = Dataset::range(4).flat_map([](const at::Tensor& x) {
    return Dataset::from_tensors(x).map([](const at::Tensor& y) { return y + 1; });
  });
  WorkerDatasets datasets(shards(nested), 1024);
  EXPECT_FALSE(datasets.share_function(0, 1, "1.1"));
  datasets.program_for(0, "1.1", {at::arange(3)});
  EXPECT_FALSE(datasets.share_function(0, 1, "1.1"));
}

}  // namespace
}  // namespace cohort::coordinator
