// SPDX-License-Identifier: Apache-2.0
// Options are set with designated initialisers. This source is compiled with -Wall -Wextra -Werror,
// as a user's may be, so a member without a default initialiser is an error here. tools/tidy.py
// finds such members in all headers.
#include <gtest/gtest.h>

#include "cohort/cohort.h"
#include "cohort/data/auto_shard.h"
#include "cohort/input/multi_device_iterator.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort {
namespace {

using std::chrono::seconds;

TEST(Options, OfStrategiesAndTheCoordinatorTakeOneField) {
  EXPECT_EQ(ClusterOptions{.timeout = seconds(1)}.seed, 0U);
  EXPECT_EQ(ParameterServerOptions{.cluster = {.timeout = seconds(1)}}.cluster.job_id, "");
  EXPECT_EQ(ReplicateOptions{.name = "net"}.name, "net");
  EXPECT_FALSE(VariableOptions{.is_trainable = false}.colocate_with.has_value());
  EXPECT_TRUE(MultiWorkerMirroredOptions{.timeout = seconds(1)}.devices.empty());
  EXPECT_FALSE(CoordinatorOptions{.queue_capacity = 1}.run_eagerly);
  EXPECT_EQ(ServerOptions{.job_id = "job"}.data_port, 0);
  EXPECT_EQ(testing::TestClusterOptions{.workers = 2}.ps, 1);
  EXPECT_TRUE(SimpleResolver::Options{.task_id = 1}.master.empty());
  EXPECT_FALSE(TfConfigResolver::Options{.task_id = 1}.task_type.has_value());
  EXPECT_EQ(FunctionOptions{.name = "step"}.name, "step");
  EXPECT_EQ(ProgressBarOptions{.steps = 9}.examples_per_step, 1);
}

TEST(Options, OfDatasetsTakeOneField) {
  EXPECT_EQ(IdxFiles{.images = "i"}.labels, "");
  EXPECT_EQ(RangeOptions{.start = 1}.step, 1);
  EXPECT_TRUE(ShuffleOptions{.seed = 1}.reshuffle_each_iteration);
  EXPECT_FALSE(MapOptions{.num_parallel_calls = 2}.output_spec.has_value());
  EXPECT_EQ(InterleaveOptions{.cycle_length = 2}.block_length, 1);
  EXPECT_EQ(BatchOptions{.drop_remainder = true}.num_parallel_calls, 0);
  EXPECT_TRUE(PaddedBatchOptions{.drop_remainder = true}.padding_values.is_null());
  EXPECT_TRUE(RebatchOptions{.drop_remainder = true}.drop_remainder);
  EXPECT_FALSE(ListFilesOptions{.shuffle = false}.seed.has_value());
  EXPECT_EQ(FileOptions{.num_parallel_reads = 2}.buffer_bytes, 1 << 20);
  EXPECT_EQ(FixedLengthOptions{.record_bytes = 8}.footer_bytes, 0);
  EXPECT_FALSE(CsvColumn{.dtype = at::kLong}.default_value.has_value());
  EXPECT_EQ(CsvOptions{.header = true}.delimiter, ',');
  EXPECT_FALSE(IterationOptions{.seed = 1}.collect_stats);
  EXPECT_FALSE(DatasetOptions{.rebatch = RebatchMode::split}.slack.has_value());
  EXPECT_EQ(RecordReaderOptions{.buffer_bytes = 1}.compression, Compression::none);
  EXPECT_EQ(AutoShardOptions{.num_workers = 2}.index, 0);
  EXPECT_EQ(InputOptions{.per_replica_buffer_size = 2}.place_dataset_on_device, false);
  EXPECT_EQ(InputContext{.num_input_pipelines = 2}.input_pipeline_id, 0);
  EXPECT_TRUE(MultiDeviceOptions{.buffer_size = 2}.fetch_to_device);
}

TEST(Options, OfOptimizersTakeOneField) {
  EXPECT_EQ(SGDOptions{.learning_rate = 1}.momentum, 0);
  EXPECT_FALSE(AdagradOptions{.learning_rate = 1}.initial_accumulator.has_value());
  EXPECT_EQ(RMSpropOptions{.learning_rate = 1}.momentum, 0);
  EXPECT_EQ(AdamOptions{.learning_rate = 1}.beta_1, 0.9);
  EXPECT_EQ(AdamOptions{.name = "mine"}.beta_2, 0.999);
  EXPECT_FALSE(AdamWOptions{.learning_rate = 1}.amsgrad);
  EXPECT_FALSE(ExponentialDecayOptions{.initial_learning_rate = 1}.staircase);
  EXPECT_EQ(CosineDecayOptions{.initial_learning_rate = 1}.alpha, 0);
  EXPECT_TRUE(PiecewiseConstantDecayOptions{.values = {1}}.boundaries.empty());
  EXPECT_EQ(LinearWarmupOptions{.warmup_steps = 1}.initial_learning_rate, 0);
}

}  // namespace
}  // namespace cohort
