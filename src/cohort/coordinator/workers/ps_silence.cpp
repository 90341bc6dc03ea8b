// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/workers/ps_silence.h"

#include <cstdint>
#include <sstream>
#include <utility>
#include <variant>

#include "cohort/coordinator/workers/worker_silence.h"
#include "cohort/rpc/messages.h"

namespace cohort::coordinator::internal {
namespace {

// "5.5"
std::string seconds_of_silence(Duration silence) {
  using Tenths = std::chrono::duration<std::int64_t, std::deci>;
  std::ostringstream text;
  text << std::chrono::duration<double>(std::chrono::round<Tenths>(silence)).count();
  return text.str();
}

}  // namespace

PsSilence::Question PsSilence::ask(rpc::Requester& link, TimePoint now) {
  Question question{now, link.progress(), std::make_shared<std::atomic<bool>>(false)};
  link.request(rpc::ping_frame(), [is_answered = question.is_answered](const rpc::Answer& answer) {
    if (std::holds_alternative<rpc::Frame>(answer)) *is_answered = true;
  });
  return question;
}

std::vector<std::string> PsSilence::look(const std::vector<std::shared_ptr<rpc::Requester>>& links,
                                         TimePoint now, const std::string& consequence) {
  std::vector<std::string> news;
  for (std::size_t i = 0; i < servers_.size(); ++i) {
    auto& [link, question, silent_since] = servers_[i];
    // A question over an earlier connection says nothing about this one.
    if (std::exchange(link, links[i]) != links[i]) question.reset();
    if (!link || !link->is_open()) {
      link.reset();
      question.reset();
      continue;
    }
    const bool is_alive =
        question && (*question->is_answered || has_advanced(question->before, link->progress()));
    if (is_alive && silent_since) {
      news.push_back(link->peer() + " answers again, after " +
                     seconds_of_silence(now - *silent_since) + " s");
      silent_since.reset();
    }
    if (is_alive || !question) {
      question = ask(*link, now);
    } else if (!silent_since && now - question->asked >= patience_) {
      silent_since = question->asked;
      news.push_back(link->peer() + " has not answered for " +
                     seconds_of_silence(now - question->asked) + " s: " + consequence);
    }
  }
  return news;
}

}  // namespace cohort::coordinator::internal
