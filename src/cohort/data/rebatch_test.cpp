// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/rebatch.h"

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <numeric>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

using Sizes = std::vector<std::int64_t>;

struct SizesCase {
  std::int64_t global_batch, workers, replicas;
  std::vector<Sizes> sizes;  // of each worker
};

TEST(RebatchSizes, AreThoseOfTheOriginal) {
  const std::vector<SizesCase> cases{
      {7, 2, 2, {{2, 2, 2, 1}, {2, 1, 2, 2}}},
      {10, 3, 1, {{4, 3, 3}, {3, 3, 4}, {3, 4, 3}}},
      {11, 3, 2, {{2, 2, 2, 2, 2, 1}, {2, 2, 2, 1, 2, 2}, {2, 1, 2, 2, 2, 2}}},
      {4, 1, 5, {{1, 1, 1, 1, 0}}},
      {3, 2, 2, {{1, 1, 1, 0}, {1, 0, 1, 1}}},
      {9, 2, 2, {{3, 2, 2, 2}, {2, 2, 3, 2}}},
      {0, 2, 2, {{0, 0, 0, 0}, {0, 0, 0, 0}}},
  };
  for (const SizesCase& c : cases) {
    for (std::int64_t w = 0; w < c.workers; ++w) {
      EXPECT_EQ(rebatch_sizes(c.global_batch, c.workers, c.replicas, w),
                c.sizes[static_cast<std::size_t>(w)])
          << c.global_batch << " on " << c.workers << " x " << c.replicas << ", worker " << w;
    }
  }
}

// In every step the sizes of all workers add up to the global batch, and differ by one at most.
void expect_even_steps(std::int64_t global_batch, std::int64_t workers, std::int64_t replicas) {
  for (std::int64_t step = 0; step < workers; ++step) {
    Sizes all;
    for (std::int64_t w = 0; w < workers; ++w) {
      const Sizes sizes = rebatch_sizes(global_batch, workers, replicas, w);
      all.insert(all.end(), sizes.begin() + step * replicas, sizes.begin() + (step + 1) * replicas);
    }
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), std::int64_t{0}), global_batch);
    EXPECT_LE(*std::max_element(all.begin(), all.end()),
              *std::min_element(all.begin(), all.end()) + 1);
  }
}

TEST(RebatchSizes, AddUpInEveryStep) {
  for (std::int64_t workers = 1; workers <= 5; ++workers) {
    for (std::int64_t replicas = 1; replicas <= 4; ++replicas) {
      for (std::int64_t global_batch = 0; global_batch < 24; ++global_batch) {
        expect_even_steps(global_batch, workers, replicas);
      }
    }
  }
}

TEST(RebatchSizes, RefuseBadArguments) {
  EXPECT_EQ(error_of([] { rebatch_sizes(-1, 1, 1, 0); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { rebatch_sizes(4, 0, 1, 0); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { rebatch_sizes(4, 2, 1, 2); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { rebatch_sizes(4, 2, 0, 0); }).code(), ErrorCode::invalid_argument);
}

Dataset identity(const Dataset& dataset) {
  return dataset.map([](at::Tensor x) { return x; });
}

TEST(InferBatchSize, IsThatOfTheOutermostBatch) {
  EXPECT_EQ(infer_batch_size(rows(8).batch(4)), 4);
  EXPECT_EQ(infer_batch_size(rows(8).batch(2).batch(3)), 3);
  EXPECT_EQ(infer_batch_size(rows(8).batch(4).prefetch(1).repeat(2).shuffle(3).shard(2, 0)), 4);
  EXPECT_EQ(infer_batch_size(rows(8).batch(4).with_options({})), 4);
}

TEST(InferBatchSize, IsThatOfAStaticSpec) {
  EXPECT_EQ(infer_batch_size(identity(rows(8).batch(4, {.drop_remainder = true}))), 4);
  const at::Tensor table = at::zeros({3, 5});
  EXPECT_EQ(infer_batch_size(Dataset::from_tensor_slices(table)), 5);
}

TEST(InferBatchSize, IsNotKnownBehindAMap) {
  EXPECT_EQ(infer_batch_size(identity(rows(8).batch(4))), -1);
}

TEST(InferBatchSize, IsNotKnownWhereFieldsDiffer) {
  const Nest fields = Nest::tuple({at::zeros({2, 3}), at::zeros({2, 4})});
  EXPECT_EQ(infer_batch_size(Dataset::from_tensor_slices(fields)), -1);
}

TEST(InferBatchSize, RefusesScalars) {
  const Error error = error_of([] { infer_batch_size(rows(8)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), ::testing::HasSubstr("batch()"));
}

}  // namespace
}  // namespace cohort::data
