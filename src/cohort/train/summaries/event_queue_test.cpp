// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/summaries/event_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/testing/fake_clock.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort::train {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::throws_error;

// A disk: the entries that it has got, and whether it answers. Thread-safe.
class FakeDisk {
 public:
  void set_stalled(bool is_stalled) {
    const Lock lock(mutex_);
    is_stalled_ = is_stalled;
    changed_.notify_all();
  }
  void set_error(std::optional<Error> error) {
    const Lock lock(mutex_);
    error_ = std::move(error);
  }
  void write(std::int64_t step) {
    const Lock lock(mutex_);
    is_written_to_ = true;
    changed_.notify_all();
    changed_.wait(mutex_, late(), [this]() COHORT_REQUIRES(mutex_) { return !is_stalled_; });
    if (error_) throw Error(*error_);
    written_.push_back(step);
  }
  void flush() {
    const Lock lock(mutex_);
    flushed_ = written_;
    changed_.notify_all();
  }
  void await_write() {
    const Lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait(mutex_, late(), [this]() COHORT_REQUIRES(mutex_) { return is_written_to_; }));
  }
  // Waits until so many are flushed; returns their steps.
  std::vector<std::int64_t> await_flushed(std::size_t count) {
    const Lock lock(mutex_);
    changed_.wait(mutex_, late(),
                  [&]() COHORT_REQUIRES(mutex_) { return flushed_.size() >= count; });
    return flushed_;
  }

 private:
  static Deadline late() { return Deadline::after(seconds(60)); }
  Mutex mutex_;
  Condition changed_;
  bool is_stalled_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_written_to_ COHORT_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::int64_t> written_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::int64_t> flushed_ COHORT_GUARDED_BY(mutex_);
};

class FakeSink final : public EventSink {
 public:
  explicit FakeSink(std::shared_ptr<FakeDisk> disk) : disk_(std::move(disk)) {}
  const std::string& path() const override { return path_; }
  void write(const EventEntry& entry) override { disk_->write(entry.event.step()); }
  void flush() override { disk_->flush(); }
  void close() override { disk_->flush(); }

 private:
  const std::shared_ptr<FakeDisk> disk_;
  const std::string path_ = "the disk";
};

class EventQueueTest : public ::testing::Test {
 protected:
  EventQueueTest() { open(); }
  // A disk that still stalls would keep the thread of the queue.
  ~EventQueueTest() override { disk->set_stalled(false); }

  void open(const EventQueueOptions& wanted = {}) {
    EventQueueOptions options = wanted;
    options.clock = &clock;
    queue = std::make_unique<EventQueue>(std::make_unique<FakeSink>(disk), options);
  }
  void push(std::int64_t step, std::size_t bytes = 1) {
    EventEntry entry;
    entry.event.set_step(step);
    entry.bytes = bytes;
    queue->push(std::move(entry));
  }

  const std::shared_ptr<FakeDisk> disk = std::make_shared<FakeDisk>();
  testing::FakeClock clock;
  std::unique_ptr<EventQueue> queue;
};

TEST_F(EventQueueTest, WritesWhatWaitsAfterTheInterval) {
  open({.flush_interval = seconds(10)});
  push(1);
  ASSERT_TRUE(clock.await_waiters(1));
  clock.advance(seconds(10));
  EXPECT_THAT(disk->await_flushed(1), ElementsAre(1));
}

TEST_F(EventQueueTest, WritesWhenHalfOfTheQueueIsFull) {
  open({.elements_max = 4});
  push(1);
  push(2);
  disk->await_write();
}

TEST_F(EventQueueTest, FlushesWhatWasPushedBefore) {
  push(1);
  push(2);
  queue->flush(seconds(1));
  EXPECT_THAT(disk->await_flushed(2), ElementsAre(1, 2));
}

TEST_F(EventQueueTest, WaitsForRoomAndDropsNothing) {
  open({.elements_max = 2});
  disk->set_stalled(true);
  push(1);
  disk->await_write();
  push(2);
  std::thread other([&] { push(3); });
  ASSERT_TRUE(clock.await_waiters(1));
  disk->set_stalled(false);
  other.join();
  queue->close();
  EXPECT_THAT(disk->await_flushed(3), ElementsAre(1, 2, 3));
}

// A queue that was not half full had no room for a large one, and its thread slept on.
TEST_F(EventQueueTest, MakesRoomForALargeOne) {
  open({.bytes_max = 100});
  push(1, 10);
  push(2, 1000);
  push(3, 10);
  queue->close();
  EXPECT_THAT(disk->await_flushed(3), ElementsAre(1, 2, 3));
}

TEST_F(EventQueueTest, GivesUpWhenTheDiskDoesNotAnswer) {
  open({.elements_max = 1, .timeout = seconds(5)});
  disk->set_stalled(true);
  push(1);
  disk->await_write();
  std::thread advance([&] {
    ASSERT_TRUE(clock.await_waiters(1));
    clock.advance(seconds(5));
  });
  EXPECT_THAT([&] { push(2); }, throws_error(ErrorCode::deadline_exceeded,
                                             "to take 1 summaries of 'the disk' within 5 s"));
  advance.join();
  disk->set_stalled(false);
  queue->close();
  EXPECT_THAT(disk->await_flushed(1), ElementsAre(1));
}

TEST_F(EventQueueTest, EndsAlthoughTheDiskDoesNotAnswer) {
  testing::Warnings warnings;
  open({.timeout = seconds(5)});
  disk->set_stalled(true);
  push(1);
  std::thread end([&] { queue.reset(); });
  disk->await_write();
  ASSERT_TRUE(clock.await_waiters(1));
  clock.advance(seconds(5));
  end.join();
  EXPECT_THAT(warnings.text(), HasSubstr("summaries are missing"));
  disk->set_stalled(false);
  EXPECT_THAT(disk->await_flushed(1), ElementsAre(1));  // the thread needs the clock no more
}

TEST_F(EventQueueTest, ThrowsTheErrorOfTheDiskFromThenOn) {
  testing::Warnings warnings;
  disk->set_error(Error(ErrorCode::resource_exhausted, "the disk is full"));
  push(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { queue->flush(seconds(1)); },
                throws_error(ErrorCode::resource_exhausted, "the disk is full"));
    EXPECT_THAT([&] { push(2); }, throws_error(ErrorCode::resource_exhausted, "the disk is full"));
  }
  queue.reset();
  EXPECT_EQ(warnings.text(), "");
}

TEST_F(EventQueueTest, WarnsOfAnErrorThatNobodyHasSeen) {
  testing::Warnings warnings;
  disk->set_error(Error(ErrorCode::resource_exhausted, "the disk is full"));
  push(1);
  queue.reset();
  EXPECT_THAT(warnings.text(), HasSubstr("the disk is full"));
  EXPECT_THAT(warnings.text(), HasSubstr("make another SummaryWriter"));
}

TEST_F(EventQueueTest, TakesNothingAfterItsEnd) {
  queue->close();
  queue->close();
  EXPECT_THAT([&] { push(1); }, throws_error(ErrorCode::failed_precondition, "which was closed"));
}

}  // namespace
}  // namespace cohort::train
