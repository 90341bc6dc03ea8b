// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/workers/worker_silence.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cohort/core/mutex.h"
#include "cohort/rpc/messages.h"

namespace cohort::coordinator::internal {

bool has_advanced(const rpc::Channel::Progress& before, const rpc::Channel::Progress& now) {
  if (now.received != before.received) return true;
  return now.underway > 0 && now.delivered != before.delivered;
}

struct ChannelPings::Answers {
  Mutex mutex;
  Condition changed;
  std::vector<char> is_missing COHORT_GUARDED_BY(mutex);
};

ChannelPings::ChannelPings(std::vector<std::shared_ptr<rpc::Requester>> channels)
    : channels_(std::move(channels)), answers_(std::make_shared<Answers>()) {
  {
    const Lock lock(answers_->mutex);
    for (const auto& channel : channels_) answers_->is_missing.push_back(channel ? 1 : 0);
  }
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    before_.push_back(channels_[i] ? channels_[i]->progress() : rpc::Channel::Progress());
    if (!channels_[i]) continue;
    // The error of a channel that has closed is an answer, too: its handlers report the loss.
    channels_[i]->request(rpc::ping_frame(), [answers = answers_, i](const rpc::Answer&) {
      const Lock lock(answers->mutex);
      answers->is_missing[i] = 0;
      answers->changed.notify_all();
    });
  }
}

std::vector<bool> ChannelPings::silent_at(Deadline deadline) {
  std::vector<char> is_missing;
  {
    const Lock lock(answers_->mutex);
    answers_->changed.wait(answers_->mutex, deadline, [this]() COHORT_REQUIRES(answers_->mutex) {
      return std::count(answers_->is_missing.begin(), answers_->is_missing.end(), 1) == 0;
    });
    is_missing = answers_->is_missing;
  }
  std::vector<bool> is_silent;
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    is_silent.push_back(is_missing[i] != 0 && !has_advanced(before_[i], channels_[i]->progress()));
  }
  return is_silent;
}

}  // namespace cohort::coordinator::internal
