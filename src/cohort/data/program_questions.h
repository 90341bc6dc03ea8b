// SPDX-License-Identifier: Apache-2.0
// The requests of a pipeline to its ProgramSupply, for programs that are made in the same process:
// one thread draws elements, and another one answers the requests meanwhile.
//
//   ProgramQuestions questions;
//   ProgramSupply supply([&](const std::string& function, const Fields& element) {
//     questions.ask(function, element);
//   });
//   questions.begin_draw();
//   std::thread drawing([&] { … questions.end_draw(); });
//   while (const auto question = questions.wait()) { … }
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "cohort/core/mutex.h"
#include "cohort/data/element.h"

namespace cohort::data {

// From the threads of a pipeline to the one that answers. Thread-safe.
class ProgramQuestions {
 public:
  struct Question {
    std::string function;
    Fields element;
  };
  void ask(const std::string& function, const Fields& element) {
    {
      const Lock lock(mutex_);
      questions_.push_back({function, element});
    }
    changed_.notify_all();
  }
  void begin_draw() {
    const Lock lock(mutex_);
    is_drawn_ = false;
  }
  void end_draw() {
    {
      const Lock lock(mutex_);
      is_drawn_ = true;
    }
    changed_.notify_all();
  }
  // The next question; nothing when the draw has ended and none is left.
  std::optional<Question> wait() {
    const Lock lock(mutex_);
    changed_.wait(mutex_, Deadline(),
                  [this]() COHORT_REQUIRES(mutex_) { return is_drawn_ || !questions_.empty(); });
    if (questions_.empty()) return std::nullopt;
    Question question = std::move(questions_.front());
    questions_.pop_front();
    return question;
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::deque<Question> questions_ COHORT_GUARDED_BY(mutex_);
  bool is_drawn_ COHORT_GUARDED_BY(mutex_) = true;
};

}  // namespace cohort::data
