// SPDX-License-Identifier: Apache-2.0
// Workers that share files train as one process that has all rows: every sample weighs the same,
// also if one worker has half of the files and others run out of data earlier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cohort/data/dataset.h"
#include "cohort/data/field_function.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

using testing::run_workers;
using testing::Tensors;
using testing::text_of;

constexpr std::int64_t kRowsOfGlobalBatch = 6;

// How many rows each file has, and the files of each worker by AutoShardPolicy::file.
struct Files {
  std::vector<int> rows;
  int workers = 2;
  int replicas = 1;  // of each worker
};

// Rows of one worker in each step.
using StepsOfWorker = std::vector<std::vector<std::int64_t>>;

at::Tensor features_of(const at::Tensor& ids) {
  return at::sin(ids.to(at::kDouble).unsqueeze(1) * at::arange(1, 6, at::kDouble));
}

// A network that a program trains, with the rows that it has seen.
class TrainedOnFiles {
 public:
  explicit TrainedOnFiles(SynchronousStrategy& strategy)
      : strategy_(strategy),
        first_(strategy.variable("first", at::sin(at::arange(20, at::kDouble)).view({5, 4}))),
        second_(strategy.variable("second", at::cos(at::arange(4, at::kDouble)).view({4, 1}))),
        sgd_({first_, second_}, {.learning_rate = 0.05, .momentum = 0.9}) {}

  // Each row by its number.
  void step(const PerReplica<at::Tensor>& ids) {
    std::vector<std::int64_t> rows;
    for (const at::Tensor& own : ids.local_results()) {
      for (std::int64_t i = 0; i < own.numel(); ++i) rows.push_back(own[i].item<std::int64_t>());
    }
    seen.push_back(std::move(rows));
    strategy_.run(
        [&](const at::Tensor& own) {
          const at::Tensor x = features_of(own);
          const at::Tensor out = at::tanh(x.matmul(first_.tensor())).matmul(second_.tensor());
          sgd_.minimize(average_loss((out - x.sum(1, true)).square().sum(1)));
        },
        ids);
  }
  Tensors weights() const { return testing::values_of({first_, second_}); }

  StepsOfWorker seen;

 private:
  SynchronousStrategy& strategy_;
  const Variable first_;
  const Variable second_;
  const SGD sgd_;
};

class MultiWorkerFiles : public ::testing::TestWithParam<Files> {
 protected:
  const Files& files() const { return GetParam(); }
  int num_rows() const {
    int sum = 0;
    for (const int rows : files().rows) sum += rows;
    return sum;
  }

  // The numbers of the rows, which are the lines of the files.
  Dataset dataset() {
    std::vector<std::string> names;
    int next = 0;
    for (const int rows : files().rows) {
      names.push_back(folder_.file("part_" + std::to_string(names.size())));
      std::ofstream file(names.back());
      for (int i = 0; i < rows; ++i) file << next++ << "\n";
    }
    DatasetOptions options;
    options.auto_shard_policy = AutoShardPolicy::file;
    return Dataset::text_line(StringTensor(names))
        .map(data::to_number({}, {.dtype = at::kLong}))
        .batch(kRowsOfGlobalBatch)
        .with_options(options);
  }

  // One process that makes the same steps, each with the rows of all workers.
  static Tensors weights_of_one_process(const std::vector<StepsOfWorker>& all) {
    MirroredStrategy strategy({"CPU:0"});
    TrainedOnFiles alone(strategy);
    for (std::size_t step = 0; step < all.front().size(); ++step) {
      std::vector<std::int64_t> rows;
      for (const StepsOfWorker& of_worker : all)
        rows.insert(rows.end(), of_worker[step].begin(), of_worker[step].end());
      alone.step(PerReplica<at::Tensor>({at::tensor(rows, at::kLong)}));
    }
    return alone.weights();
  }

 private:
  testing::TemporaryFolder folder_;
};

TEST_P(MultiWorkerFiles, HaveTheWeightsOfOneProcess) {
  const Dataset data = dataset();
  std::vector<StepsOfWorker> seen(static_cast<std::size_t>(files().workers));
  std::vector<Tensors> weights(seen.size());
  constexpr int kEpochs = 2;
  const auto errors =
      run_workers(files().workers, {.replicas = files().replicas}, [&](auto& strategy) {
        TrainedOnFiles trained(strategy);
        auto batches = strategy.distribute_dataset(data);
        for (int epoch = 0; epoch < kEpochs; ++epoch) {
          for (const auto& batch : batches) {
            std::vector<at::Tensor> parts;
            for (std::size_t i = 0; i < batch.size(); ++i) parts.push_back(batch[i].tensor());
            trained.step(PerReplica<at::Tensor>(std::move(parts)));
          }
        }
        const auto worker = static_cast<std::size_t>(strategy.worker());
        seen[worker] = trained.seen;
        weights[worker] = trained.weights();
      });
  for (const auto& error : errors) ASSERT_EQ(text_of(error), "");
  std::map<std::int64_t, int> times;
  std::vector<std::size_t> with_data;  // the steps in which each worker has a row
  for (const StepsOfWorker& of_worker : seen) {
    ASSERT_EQ(of_worker.size(), seen.front().size()) << "all make the same steps";
    for (const std::vector<std::int64_t>& rows : of_worker) {
      for (const std::int64_t row : rows) ++times[row];
    }
    with_data.push_back(static_cast<std::size_t>(std::count_if(
        of_worker.begin(), of_worker.end(), [](const auto& rows) { return !rows.empty(); })));
  }
  EXPECT_EQ(static_cast<int>(times.size()), num_rows());
  for (const auto& [row, count] : times) EXPECT_EQ(count, kEpochs) << "row " << row;
  EXPECT_LT(*std::min_element(with_data.begin(), with_data.end()), seen.front().size())
      << "some worker runs out of data earlier";
  const Tensors expected = weights_of_one_process(seen);
  for (const Tensors& own : weights) testing::expect_close(own, expected, 1e-6);
}

INSTANTIATE_TEST_SUITE_P(
    Divisions, MultiWorkerFiles,
    ::testing::Values(Files{.rows = {9, 4, 5, 12}, .workers = 3},  // worker 0 has two of four
                      Files{.rows = {30, 1, 2}, .workers = 3},
                      Files{.rows = {7, 0, 11}, .workers = 2},
                      Files{.rows = {13, 3, 2, 8}, .workers = 3, .replicas = 2},
                      Files{.rows = {1, 17}, .workers = 2, .replicas = 2}));

}  // namespace
}  // namespace cohort
