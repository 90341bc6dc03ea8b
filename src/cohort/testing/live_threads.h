// SPDX-License-Identifier: Apache-2.0
// Counts the threads that an object has started and not ended, to test that it ends them.
//
//   LiveThreads threads;
//   { Pipeline pipeline([&] { threads.note(); … }); … }
//   EXPECT_EQ(threads.count(), 0);
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>

namespace cohort::testing {

// Thread-safe.
class LiveThreads {
 public:
  // Call this on the threads to be counted. On the thread of the test it does nothing.
  void note() const {
    if (std::this_thread::get_id() == own_) return;
    // Destroyed when the thread ends, before a join() of it returns.
    thread_local std::unordered_map<const State*, Mark> marks;
    marks.try_emplace(state_.get(), state_);
  }
  // How many of them have not ended.
  int count() const { return state_->count; }
  // Whether there has ever been one.
  bool have_been() const { return state_->have_been; }

 private:
  struct State {
    std::atomic<int> count = 0;
    std::atomic<bool> have_been = false;
  };
  class Mark {
   public:
    explicit Mark(std::shared_ptr<State> state) : state_(std::move(state)) {
      state_->have_been = true;
      ++state_->count;
    }
    ~Mark() { --state_->count; }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    std::shared_ptr<State> state_;
  };

  const std::thread::id own_ = std::this_thread::get_id();
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace cohort::testing
