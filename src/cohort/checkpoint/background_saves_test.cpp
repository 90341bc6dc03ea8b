// SPDX-License-Identifier: Apache-2.0
// Saves that a thread writes while the program goes on.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "cohort/checkpoint/background_write.h"
#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint_files/folder_writer.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/testing/on_workers.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using checkpoint::BackgroundWrite;
using testing::throws_error;
using namespace std::chrono_literals;

// A program with a value that can be changed in place.
class BackgroundSaves : public ::testing::Test {
 protected:
  std::string path(const std::string& name = {}) const { return folder_.file("m") + name; }
  // From now on a complete checkpoint cannot become the latest one.
  void block_latest() const { std::filesystem::create_directories(path("/latest/in-the-way")); }
  void free_latest() const { std::filesystem::remove_all(path("/latest")); }

  testing::TemporaryFolder folder_;
  const at::Tensor value_ = at::arange(3 << 18, at::kFloat).view({-1, 3});
  const Variable variable_ = local_variable("value", value_);
  const SGD sgd_{{variable_}, {.learning_rate = 1, .momentum = 0.5}};
  Checkpoint checkpoint_ = std::move(Checkpoint().add(variable_));
};

TEST_F(BackgroundSaves, GiveAHandle) {
  CheckpointManager manager(checkpoint_, path());
  const PendingCheckpoint saved = manager.save(4);
  EXPECT_EQ(saved.path(), path("/step-4"));
  saved.wait();
  EXPECT_TRUE(saved.done());
  EXPECT_NO_THROW(saved.wait());
  EXPECT_EQ(manager.latest_checkpoint(), path("/step-4"));
}

// Whether little of the state fits into memory, or all of it.
class BackgroundSavesInMemory : public BackgroundSaves,
                                public ::testing::WithParamInterface<std::int64_t> {};

TEST_P(BackgroundSavesInMemory, HaveTheValuesOfTheirMoment) {
  CheckpointManager manager(checkpoint_, path(), {.memory_max_bytes = GetParam()});
  for (int i = 0; i < 3; ++i) sgd_.minimize((variable_.tensor() * value_).sum());
  const at::Tensor saved = variable_.read();
  manager.save(1);
  {
    const c10::NoGradGuard no_grad;
    variable_.tensor().fill_(-1);
  }
  sgd_.minimize(variable_.tensor().sum());
  EXPECT_EQ(manager.restore_latest()->step, 1);
  EXPECT_TRUE(at::equal(variable_.read(), saved));
  EXPECT_EQ(sgd_.iterations(), 3);
}

INSTANTIATE_TEST_SUITE_P(Bytes, BackgroundSavesInMemory, ::testing::Values(1, 1 << 18, 1 << 30));

TEST_F(BackgroundSaves, AnErrorIsThrownByWait) {
  CheckpointManager manager(checkpoint_, path());
  block_latest();
  const PendingCheckpoint saved = manager.save(1);
  EXPECT_THAT([&] { saved.wait(); },
              throws_error(ErrorCode::failed_precondition, "latest', got: Is a directory"));
  EXPECT_THAT([&] { saved.wait(); },
              throws_error(ErrorCode::failed_precondition, "latest', got: Is a directory"));
  free_latest();
  EXPECT_NO_THROW(manager.save(2).wait());
  EXPECT_EQ(manager.latest_checkpoint(), path("/step-2"));
}

TEST_F(BackgroundSaves, AnErrorThatNobodySawIsThrownByTheNextSave) {
  CheckpointManager manager(checkpoint_, path());
  block_latest();
  manager.save(1);
  EXPECT_THAT([&] { manager.save(2); },
              throws_error(ErrorCode::failed_precondition, "latest', got: Is a directory"));
  free_latest();
  EXPECT_FALSE(std::filesystem::exists(path("/step-2")));
  EXPECT_NO_THROW(manager.save(3).wait());
}

TEST_F(BackgroundSaves, AnErrorThatNobodySawIsThrownByTheNextRestore) {
  CheckpointManager manager(checkpoint_, path());
  block_latest();
  manager.save(1);
  EXPECT_THAT([&] { manager.restore_latest(); },
              throws_error(ErrorCode::failed_precondition, "latest', got: Is a directory"));
}

TEST_F(BackgroundSaves, AnErrorThatNobodySawIsLoggedAtTheEnd) {
  std::string text;
  Mutex mutex;
  set_log_sink([&](LogLevel level, std::string_view line) {
    const Lock lock(mutex);
    if (level == LogLevel::error) text += line;
  });
  std::optional<PendingCheckpoint> saved;
  {
    CheckpointManager manager(checkpoint_, path());
    block_latest();
    saved = manager.save(1);
  }
  set_log_sink(nullptr);
  EXPECT_THAT(text, ::testing::HasSubstr("step-1' was not written"));
  EXPECT_THAT([&] { saved->wait(); }, throws_error(ErrorCode::failed_precondition, "latest"));
}

TEST_F(BackgroundSaves, TheEndOfTheManagerCompletesThem) {
  { CheckpointManager(checkpoint_, path()).save(7); }
  EXPECT_EQ(CheckpointManager(checkpoint_, path()).latest_checkpoint(), path("/step-7"));
}

TEST_F(BackgroundSaves, NeedMemoryAndTime) {
  EXPECT_THAT([&] { CheckpointManager(checkpoint_, path(), {.memory_max_bytes = 0}); },
              throws_error(ErrorCode::invalid_argument, "memory_max_bytes > 0, got 0"));
  EXPECT_THAT([&] { CheckpointManager(checkpoint_, path(), {.timeout = 0s}); },
              throws_error(ErrorCode::invalid_argument, "timeout > 0, got 0 s"));
}

// All workers learn how the first one's files have ended.
TEST_F(BackgroundSaves, OfWorkersEndAlike) {
  const InProcessWorkers workers(2);
  const auto codes = testing::on_workers<std::vector<std::string>>(2, [&](int rank) {
    MultiWorkerMirroredStrategy strategy(workers.group(rank));
    const Variable weight = strategy.variable("weight", at::ones({4}));
    const Checkpoint of_strategy(strategy);
    CheckpointManager manager(of_strategy, folder_.file("workers"));
    std::vector<std::string> seen;
    const auto note = [&](const std::function<void()>& call) {
      try {
        call();
        seen.emplace_back("ok");
      } catch (const Error& error) {
        seen.emplace_back(name_of(error.code()));
      }
    };
    note([&] { manager.save(1).wait(); });
    if (rank == 0) std::filesystem::remove(folder_.file("workers/latest"));
    if (rank == 0) std::filesystem::create_directories(folder_.file("workers/latest/x"));
    std::optional<PendingCheckpoint> saved;
    note([&] { saved = manager.save(2); });
    seen.push_back(saved->path());
    note([&] { saved->wait(); });
    note([&] { manager.save(3); });
    note([&] { manager.save(4); });
    if (rank == 0) std::filesystem::remove_all(folder_.file("workers/latest"));
    note([&] { manager.save(5).wait(); });
    note([&] { manager.restore_latest(); });
    return seen;
  });
  EXPECT_EQ(codes[0], codes[1]);
  EXPECT_EQ(codes[0], (std::vector<std::string>{"ok", "ok", folder_.file("workers/step-2"),
                                                "failed_precondition", "ok", "failed_precondition",
                                                "ok", "ok"}));
}

TEST(BackgroundWriteTest, RunsTasksWithinItsMemory) {
  std::atomic<int> held = 0, most = 0, count = 0;
  BackgroundWrite write(100);
  for (int i = 0; i < 200; ++i) {
    const int bytes = i % 50 == 0 ? 150 : 1 + i % 60;
    write.reserve(static_cast<std::uint64_t>(bytes));
    const int now = held += bytes;
    if (bytes < 100 && now > most) most = now;
    write.add(static_cast<std::uint64_t>(bytes), [&, bytes] {
      held -= bytes;
      ++count;
    });
  }
  write.close();
  EXPECT_TRUE(write.wait(Deadline::after(30s)));
  EXPECT_EQ(count, 200);
  EXPECT_LE(most, 100);
}

TEST(BackgroundWriteTest, DropsWhatFollowsAnError) {
  BackgroundWrite write(100);
  std::promise<void> may_fail;
  bool has_run = false;
  write.add(0, [&] {
    may_fail.get_future().wait();
    internal::throw_error(ErrorCode::resource_exhausted, "[test] full");
  });
  write.add(0, [&] { has_run = true; });
  EXPECT_FALSE(write.wait(Deadline::after(0s)));
  may_fail.set_value();
  EXPECT_TRUE(write.wait(Deadline::after(30s)));
  EXPECT_FALSE(has_run);
  EXPECT_EQ(write.error()->code(), ErrorCode::resource_exhausted);
  EXPECT_THAT([&] { write.reserve(1); }, throws_error(ErrorCode::resource_exhausted, "full"));
}

// A child has the object, but neither its thread nor the right to its files.
TEST(BackgroundWriteTest, AForkedChildLeavesTheFilesToItsParent) {
  const testing::TemporaryFolder folder;
  auto files = std::make_shared<checkpoint::FolderWriter>(folder.file("c"), 0);
  const std::string partial = files->partial_path();
  std::promise<void> has_begun, may_end;
  auto writing = std::make_unique<BackgroundWrite>(1000);
  writing->reserve(0);
  writing->add(0, [&] {
    has_begun.set_value();
    may_end.get_future().wait_for(1min);
  });
  writing->reserve(0);
  writing->add(0, [files] { files->commit({}); });
  files.reset();
  ASSERT_EQ(has_begun.get_future().wait_for(1min), std::future_status::ready);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    writing.reset();  // as the child's manager does; it must neither wait nor remove anything
    ::_exit(std::filesystem::exists(partial) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  may_end.set_value();
  writing.reset();
  EXPECT_TRUE(std::filesystem::exists(folder.file("c") + "/manifest.json"));
}

}  // namespace
}  // namespace cohort
