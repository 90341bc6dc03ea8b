// SPDX-License-Identifier: Apache-2.0
#include "cohort/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/cpu_devices.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/saved_values.h"
#include "cohort/variable/state_walk.h"

namespace cohort {
namespace {

using testing::throws_error;

std::unique_ptr<MirroredStrategy> mirrored(int replicas) {
  return std::make_unique<MirroredStrategy>(testing::cpu_devices(replicas));
}

// A strategy with a variable that an optimizer trains.
struct Trained {
  explicit Trained(int replicas, const std::string& rule = "adam")
      : strategy(mirrored(replicas)),
        weight(strategy->variable("model/weight", at::arange(12, at::kFloat).view({6, 2}))),
        seen(strategy->variable("seen", at::zeros({}, at::kLong),
                                {.is_trainable = false,
                                 .synchronization = VariableSynchronization::on_read,
                                 .aggregation = VariableAggregation::sum})),
        optimizer(optimizer_of(rule, {weight})) {}

  static Optimizer optimizer_of(const std::string& rule, std::vector<Variable> variables) {
    if (rule == "adam") return Adam(std::move(variables), {.learning_rate = 0.1});
    if (rule == "adamw") return AdamW(std::move(variables), {.learning_rate = 0.1});
    if (rule == "adagrad") return Adagrad(std::move(variables), {.learning_rate = 0.1});
    if (rule == "rmsprop") return RMSprop(std::move(variables), {.learning_rate = 0.1});
    return SGD(std::move(variables), {.learning_rate = 0.1, .momentum = 0.9});
  }
  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      strategy->run([this] {
        const at::Tensor noise = at::rand({6, 2});
        optimizer.minimize((weight.tensor() * noise).sum());
        seen.assign_add(1);
      });
    }
  }
  std::vector<at::Tensor> slots() const {
    std::vector<at::Tensor> all;
    const std::vector<VariableRecord> records = whole_state(std::span(&weight, 1), {});
    for (const auto& slot : records[0].values[0].slots)
      for (const at::Tensor& tensor : slot.tensors) all.push_back(tensor);
    return all;
  }

  std::unique_ptr<MirroredStrategy> strategy;
  Variable weight;
  Variable seen;
  Optimizer optimizer;
};

class CheckpointTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.file(name); }
  testing::TemporaryFolder folder_;
};

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
}

TEST_F(CheckpointTest, ATrainingGoesOnWhereItWas) {
  at::manual_seed(7);
  Trained first(2);
  first.train(3);
  Checkpoint(*first.strategy).write(path("c"), 3);
  first.train(4);

  at::manual_seed(1);
  Trained second(2);
  const Restored restored = Checkpoint(*second.strategy).read(path("c"));
  EXPECT_EQ(restored.step, 3);
  EXPECT_NO_THROW(restored.assert_consumed());
  EXPECT_EQ(second.seen.read().item<std::int64_t>(), 6);
  second.train(4);
  EXPECT_TRUE(at::equal(first.weight.read(), second.weight.read()));
  EXPECT_EQ(second.seen.read().item<std::int64_t>(), 14);
  expect_equal(first.slots(), second.slots());
}

// A checkpoint of some number of replicas is restored on another one, for each optimizer.
class CheckpointOfReplicasTest : public CheckpointTest,
                                 public ::testing::WithParamInterface<const char*> {};

TEST_P(CheckpointOfReplicasTest, IsRestoredOnAnyNumber) {
  for (const int from : {1, 2, 3}) {
    Trained saved(from, GetParam());
    saved.train(3);
    const std::string folder = path("from-" + std::to_string(from));
    Checkpoint(*saved.strategy).write(folder);
    for (const int to : {1, 2, 3}) {
      SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
      Trained restored(to, GetParam());
      restored.train(1);
      Checkpoint(*restored.strategy).read(folder).assert_consumed();
      EXPECT_TRUE(at::equal(saved.weight.read(), restored.weight.read()));
      EXPECT_TRUE(at::equal(saved.seen.read(), restored.seen.read()));
      EXPECT_EQ(saved.optimizer.iterations(), restored.optimizer.iterations());
      expect_equal(saved.slots(), restored.slots());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, CheckpointOfReplicasTest,
                         ::testing::Values("sgd", "adam", "adamw", "adagrad", "rmsprop"));

TEST_F(CheckpointTest, LocalVariablesAndValuesNeedNoStrategy) {
  const Variable weight = local_variable("weight", at::ones({3}));
  Adam optimizer({weight}, {.learning_rate = 0.5});
  std::int64_t epoch = 4;
  double best = 0.25;
  std::string note = "a";
  Iterator data = Dataset::range(10).iterator();
  Checkpoint checkpoint;
  checkpoint.add(weight).add("epoch", epoch).add("best", best).add("note", note).add("data", data);
  optimizer.minimize(weight.tensor().sum());
  data.get_next();
  checkpoint.write(path("c"), 1);
  const at::Tensor saved = weight.read();

  optimizer.minimize(weight.tensor().sum());
  epoch = 5;
  best = 0;
  note = "b";
  data.get_next();
  EXPECT_EQ(checkpoint.read(path("c")).step, 1);
  EXPECT_TRUE(at::equal(weight.read(), saved));
  EXPECT_EQ(optimizer.iterations(), 1);
  EXPECT_EQ(epoch, 4);
  EXPECT_EQ(best, 0.25);
  EXPECT_EQ(note, "a");
  EXPECT_EQ(data.get_next().tensor().item<std::int64_t>(), 1);
}

TEST_F(CheckpointTest, PositionsOfDistributedDataAreSaved) {
  const auto strategy = mirrored(2);
  const DistributedDataset data = strategy->distribute_dataset(Dataset::range(12).batch(4));
  DistributedIterator iterator = data.iterator();
  Checkpoint checkpoint(*strategy);
  checkpoint.add("data", iterator).add("passes", data);
  iterator.get_next();
  checkpoint.write(path("c"));
  const DistributedElement next = iterator.get_next();
  checkpoint.read(path("c"));
  const DistributedElement again = iterator.get_next();
  EXPECT_TRUE(at::equal(next[1].tensor(), again[1].tensor()));
  EXPECT_EQ(data.next_pass(), 1U);
}

TEST_F(CheckpointTest, VariablesMayHaveOtherNames) {
  const Variable saved = local_variable("conv.weight", at::full({2}, 3.0));
  Checkpoint from;
  from.add(saved);
  from.write(path("c"));

  const Variable prefixed = local_variable("model/conv.weight", at::zeros({2}));
  Checkpoint to;
  to.add(prefixed);
  EXPECT_THAT([&] { to.read(path("c")); },
              throws_error(ErrorCode::not_found, "'model/conv.weight'"));
  EXPECT_EQ(to.read(path("c"), {.allow_missing = true}).missing,
            std::vector<std::string>{"model/conv.weight"});
  EXPECT_TRUE(at::equal(prefixed.read(), at::zeros({2})));
  to.read(path("c"), {.prefix = "model/"});
  EXPECT_TRUE(at::equal(prefixed.read(), saved.read()));
  prefixed.assign(at::zeros({2}));
  to.read(path("c"), {.names = {{"model/conv.weight", "conv.weight"}}});
  EXPECT_TRUE(at::equal(prefixed.read(), saved.read()));
}

// As Python's safetensors writes a state_dict.
TEST_F(CheckpointTest, ASafetensorsFileIsRestoredByItsNames) {
  const Variable kernel = local_variable("kernel", at::full({2, 3}, 2.0));
  const Variable count = local_variable("count", at::full({}, 5, at::kLong), false);
  save_values(path("state.safetensors"), {{"conv.weight", kernel}, {"conv.count", count}});
  const auto strategy = mirrored(2);
  const Variable weight = strategy->variable("model/conv.weight", at::zeros({2, 3}));
  const Variable own_count = strategy->variable("model/conv.count", at::zeros({}, at::kLong));
  const Checkpoint checkpoint(*strategy);
  checkpoint.read(path("state.safetensors"), {.prefix = "model/"}).assert_consumed();
  EXPECT_TRUE(at::equal(weight.read(), kernel.read()));
  EXPECT_EQ(own_count.read().item<std::int64_t>(), 5);
  const Adam adam({weight}, {.name = "adam"});
  EXPECT_THAT([&] { checkpoint.read(path("state.safetensors"), {.prefix = "model/"}); },
              throws_error(ErrorCode::not_found, "adam"));
  EXPECT_THAT([&] { checkpoint.read(path("state.safetensors")); },
              throws_error(ErrorCode::not_found, "'model/conv.weight'"));
  std::ofstream(path("state.safetensors")) << "x";
  EXPECT_THAT([&] { checkpoint.read(path("state.safetensors")); },
              throws_error(ErrorCode::data_loss, "state.safetensors"));
}

class DeferredRestoreTest : public CheckpointTest {
 protected:
  DeferredRestoreTest() {
    at::manual_seed(7);
    saved_.train(3);
    Checkpoint checkpoint(*saved_.strategy);
    checkpoint.add("step", step_).add("data", data_);
    data_.get_next();
    checkpoint.write(path("c"), 3);
  }

  Trained saved_{2};
  std::int64_t step_ = 3;
  Iterator data_ = Dataset::range(10).iterator();
};

// The optimizer has no name, and another one than the saved one, which this process has made.
TEST_F(DeferredRestoreTest, WhatIsMadeLaterGetsItsValues) {
  const auto strategy = mirrored(3);
  Checkpoint checkpoint(*strategy);
  const Restored first = checkpoint.read(path("c"), {.deferred = true});
  EXPECT_EQ(first.step, 3);
  EXPECT_THAT(first.unused, ::testing::IsSupersetOf({"model/weight", "seen", "step", "data"}));
  const Variable weight = strategy->variable("model/weight", at::zeros({6, 2}));
  EXPECT_TRUE(at::equal(weight.read(), saved_.weight.read()));
  const Optimizer optimizer = Trained::optimizer_of("adam", {weight});
  EXPECT_EQ(optimizer.iterations(), 3);
  const std::vector<VariableRecord> records = whole_state(std::span(&weight, 1), {});
  ASSERT_EQ(records[0].values[0].slots.size(), 1U);
  expect_equal(records[0].values[0].slots[0].tensors, saved_.slots());
  EXPECT_THAT([&] { checkpoint.restored().assert_consumed(); },
              throws_error(ErrorCode::failed_precondition, "'seen'"));
  const Variable seen = strategy->variable("seen", at::zeros({}, at::kLong),
                                           {.is_trainable = false,
                                            .synchronization = VariableSynchronization::on_read,
                                            .aggregation = VariableAggregation::sum});
  EXPECT_EQ(seen.read().item<std::int64_t>(), 6);
  std::int64_t step = 0;
  Iterator data = Dataset::range(10).iterator();
  checkpoint.add("step", step).add("data", data);
  EXPECT_EQ(step, 3);
  EXPECT_EQ(data.get_next().tensor().item<std::int64_t>(), 1);
  EXPECT_NO_THROW(checkpoint.restored().assert_consumed());
  EXPECT_NO_THROW(strategy->variable("other", at::ones({2}))) << "nothing waits any more";
}

TEST_F(DeferredRestoreTest, ModulesGetTheirValues) {
  const Variable weight = local_variable("net/weight", at::full({1, 2}, 3.0));
  const Variable bias = local_variable("net/bias", at::full({1}, 4.0));
  Checkpoint from;
  from.add(weight).add(bias);
  from.write(path("m"));
  const auto strategy = mirrored(2);
  Checkpoint checkpoint(*strategy);
  checkpoint.read(path("m"), {.deferred = true});
  const auto net = strategy->replicate([] { return torch::nn::Linear(2, 1); }, {.name = "net"});
  EXPECT_TRUE(at::equal(net.variables()[0].read(), weight.read()));
  EXPECT_TRUE(at::equal(net.variables()[1].read(), bias.read()));
}

TEST_F(DeferredRestoreTest, LocalVariablesGetThemWhenTheyAreAdded) {
  const Variable weight = local_variable("model/weight", at::zeros({6, 2}));
  const Optimizer optimizer = Trained::optimizer_of("adam", {weight});
  Checkpoint checkpoint;
  checkpoint.read(path("c"), {.deferred = true});
  checkpoint.add(weight);
  EXPECT_TRUE(at::equal(weight.read(), saved_.weight.read()));
  EXPECT_EQ(optimizer.iterations(), 3);
  const std::vector<VariableRecord> records = whole_state(std::span(&weight, 1), {});
  expect_equal(records[0].values[0].slots.at(0).tensors, saved_.slots());
}

TEST_F(DeferredRestoreTest, WhatDoesNotFitIsRefusedWhenItIsMade) {
  const auto strategy = mirrored(2);
  Checkpoint checkpoint(*strategy);
  checkpoint.read(path("c"), {.deferred = true});
  EXPECT_THAT(
      [&] {
        strategy->variable("model/weight", at::zeros({6, 3}));
      },
      throws_error(ErrorCode::invalid_argument, "to be float32[6, 3]"));
  EXPECT_THAT([&] { strategy->variable("other", at::zeros({1})); },
              throws_error(ErrorCode::not_found, "'other'"));
  EXPECT_NO_THROW(strategy->variable("model/weight", at::zeros({6, 2})));
  checkpoint.read(path("c"), {.allow_missing = true, .deferred = true});
  EXPECT_NO_THROW(strategy->variable("other", at::zeros({1})));
  EXPECT_EQ(checkpoint.restored().missing, std::vector<std::string>{"other"});
}

// As tf programs do, which make their variables in the first step.
TEST_F(DeferredRestoreTest, AVariableThatReplicasMakeGetsItsValue) {
  const auto strategy = mirrored(2);
  Checkpoint checkpoint(*strategy);
  checkpoint.read(path("c"), {.deferred = true});
  std::optional<Variable> weight;
  const at::Tensor saved = saved_.weight.read();
  strategy->run([&] {
    const Variable own = strategy->variable("model/weight", at::zeros({6, 2}));
    EXPECT_TRUE(at::equal(own.tensor().detach(), saved));
    if (get_replica_context()->replica_id_in_sync_group() == 0) weight = own;
  });
  EXPECT_TRUE(at::equal(weight->read(), saved));
}

TEST_F(DeferredRestoreTest, EndsWithItsCheckpoint) {
  const auto strategy = mirrored(2);
  Checkpoint(*strategy).read(path("c"), {.deferred = true});
  const Variable weight = strategy->variable("model/weight", at::zeros({6, 2}));
  EXPECT_TRUE(at::equal(weight.read(), at::zeros({6, 2})));
}

TEST_F(CheckpointTest, AnotherModelIsRefusedBeforeAnythingChanges) {
  const Variable a = local_variable("a", at::ones({2}));
  const Variable b = local_variable("b", at::ones({3}));
  Checkpoint from;
  from.add(a).add(b);
  from.write(path("c"));

  const Variable other_a = local_variable("a", at::zeros({2}));
  const Variable other_b = local_variable("b", at::zeros({4}));
  Checkpoint to;
  to.add(other_a).add(other_b);
  EXPECT_THAT(
      [&] { to.read(path("c")); },
      throws_error(ErrorCode::invalid_argument, "to be float32[4], as 'b' is, got float32[3]"));
  EXPECT_TRUE(at::equal(other_a.read(), at::zeros({2})));
  Checkpoint fewer;
  fewer.add(other_a);
  const Restored restored = fewer.read(path("c"));
  EXPECT_EQ(restored.unused, std::vector<std::string>{"b"});
  EXPECT_THAT([&] { restored.assert_consumed(); },
              throws_error(ErrorCode::failed_precondition, "'b'"));
}

// Every byte counts: one that is flipped anywhere is found, or changes nothing that is restored.
TEST_F(CheckpointTest, DamagedFilesAreRefused) {
  const Variable weight = local_variable("weight", at::rand({5}));
  Checkpoint checkpoint;
  checkpoint.add(weight);
  checkpoint.write(path("c"));
  const at::Tensor saved = weight.read();
  int refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(path("c"))) {
    const std::string file = entry.path().string();
    const auto size = static_cast<std::int64_t>(entry.file_size());
    for (std::int64_t offset = 0; offset<size; offset += size> 1000 ? 97 : 1) {
      std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
      char byte = 0;
      bytes.seekg(offset).get(byte);
      bytes.seekp(offset).put(static_cast<char>(byte ^ 4)).flush();
      weight.assign(at::zeros({5}));
      try {
        checkpoint.read(path("c"));
        EXPECT_TRUE(at::equal(weight.read(), saved)) << file << " " << offset;
      } catch (const Error& error) {
        const bool is_named = error.code() == ErrorCode::data_loss ||
                              error.code() == ErrorCode::not_found ||
                              error.code() == ErrorCode::unimplemented;
        EXPECT_TRUE(is_named) << error.what();
        ++refused;
      }
      bytes.seekp(offset).put(byte);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_NO_THROW(checkpoint.read(path("c")));
}

TEST_F(CheckpointTest, WhatIsNoCheckpointIsRefused) {
  const Checkpoint checkpoint;
  EXPECT_THAT([&] { checkpoint.read(path("none")); },
              throws_error(ErrorCode::not_found, "which does not exist"));
  std::filesystem::create_directory(path("empty"));
  EXPECT_THAT([&] { checkpoint.read(path("empty")); },
              throws_error(ErrorCode::data_loss, "without a manifest.json"));
  std::ofstream(path("file")) << "x";
  EXPECT_THAT([&] { checkpoint.write(path("file")); },
              throws_error(ErrorCode::invalid_argument, "which is a file"));
  EXPECT_THAT([&] { checkpoint.write(path("file") + "/c"); },
              throws_error(ErrorCode::not_found, "Not a directory"));
  EXPECT_THAT([&] { checkpoint.write(""); },
              throws_error(ErrorCode::invalid_argument, "an empty one"));
}

// Regression: what a library threw was not one of ours, and named no value.
TEST_F(CheckpointTest, ATextIsUtf8) {
  std::string text = "caf\xe9";
  Checkpoint checkpoint;
  checkpoint.add("title", text);
  EXPECT_THAT([&] { checkpoint.write(folder_.file("c")); },
              throws_error(ErrorCode::invalid_argument, "expected text in UTF-8 as 'title'"));
  text = "caf\xc3\xa9";
  checkpoint.write(folder_.file("c"));
}

TEST_F(CheckpointTest, NamesAreUnique) {
  std::int64_t number = 0;
  Checkpoint checkpoint;
  checkpoint.add("n", number);
  EXPECT_THAT([&] { checkpoint.add("n", number); }, throws_error(ErrorCode::already_exists, "'n'"));
  const Variable a = local_variable("a", at::ones({1}));
  checkpoint.add(a);
  EXPECT_THAT([&] { checkpoint.add(local_variable("a", at::ones({1}))); },
              throws_error(ErrorCode::already_exists, "'a'"));
}

TEST_F(CheckpointTest, CallsInStepsAreRefused) {
  const auto strategy = mirrored(2);
  const Checkpoint checkpoint(*strategy);
  EXPECT_THAT([&] { strategy->run([&] { checkpoint.write(path("c")); }); },
              throws_error(ErrorCode::failed_precondition, "between two runs"));
  EXPECT_FALSE(std::filesystem::exists(path("c")));
}

class CheckpointManagerTest : public CheckpointTest {
 protected:
  std::vector<std::string> names(const CheckpointManager& manager) const {
    std::vector<std::string> all;
    for (const std::string& each : manager.checkpoints())
      all.push_back(std::filesystem::path(each).filename().string());
    return all;
  }
  std::int64_t step_ = 0;
  Checkpoint checkpoint_ = std::move(Checkpoint().add("step", step_));
};

TEST_F(CheckpointManagerTest, KeepsTheNewestOnes) {
  CheckpointManager manager(checkpoint_, path("m"), {.max_to_keep = 2});
  EXPECT_FALSE(manager.restore_latest());
  for (const std::int64_t step : {1, 20, 3, 100}) {
    step_ = step;
    const PendingCheckpoint saved = manager.save(step);
    EXPECT_EQ(saved.path(), path("m") + "/step-" + std::to_string(step));
    saved.wait();
    EXPECT_EQ(manager.latest_checkpoint(), path("m") + "/step-" + std::to_string(step));
  }
  EXPECT_EQ(names(manager), (std::vector<std::string>{"step-20", "step-100"}));
  step_ = 0;
  EXPECT_EQ(manager.restore_latest()->step, 100);
  EXPECT_EQ(step_, 100);
}

TEST_F(CheckpointManagerTest, KeepsOneForEachTime) {
  CheckpointManager manager(checkpoint_, path("m"),
                            {.max_to_keep = 1, .keep_every = std::chrono::hours(1)});
  for (const std::int64_t step : {1, 2, 3}) manager.save(step).wait();
  EXPECT_EQ(names(manager), (std::vector<std::string>{"step-1", "step-3"}));
}

TEST_F(CheckpointManagerTest, ADamagedOneNamesTheOneBefore) {
  CheckpointManager manager(checkpoint_, path("m"));
  manager.save(1);
  manager.save(2).wait();
  std::ofstream(path("m") + "/step-2/manifest.json") << "{}";
  try {
    manager.restore_latest();
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::data_loss);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("m/step-1': read() restores it"));
  }
  EXPECT_EQ(checkpoint_.read(path("m") + "/step-1").step, 1);
}

TEST_F(CheckpointManagerTest, TwoOnOneFolderAreRefused) {
  std::optional<CheckpointManager> manager(std::in_place, checkpoint_, path("m"));
  EXPECT_THAT([&] { CheckpointManager(checkpoint_, path("m")); },
              throws_error(ErrorCode::failed_precondition, "that no other manager uses"));
  manager.reset();
  std::filesystem::create_directories(path("m") + "/step-7.partial-0123456789abcdef");
  EXPECT_NO_THROW(CheckpointManager(checkpoint_, path("m")));
  EXPECT_FALSE(std::filesystem::exists(path("m") + "/step-7.partial-0123456789abcdef"));
}

TEST_F(CheckpointManagerTest, ASaveOfTheSameStepReplacesTheFirst) {
  CheckpointManager manager(checkpoint_, path("m"));
  manager.save(1);
  step_ = 9;
  manager.save(1);
  step_ = 0;
  manager.restore_latest();
  EXPECT_EQ(step_, 9);
  EXPECT_EQ(names(manager), std::vector<std::string>{"step-1"});
}

}  // namespace
}  // namespace cohort
