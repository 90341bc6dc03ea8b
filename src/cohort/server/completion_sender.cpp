// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/completion_sender.h"

#include "cohort/core/log.h"

namespace cohort::server {

void CompletionSender::end(rpc::ClosureEnd end, bool more_follow) {
  {
    const Lock lock(mutex_);
    batch_.ends.push_back(std::move(end));
    if (more_follow && batch_.ends.size() < kBatchMax) return;
  }
  flush();
}

void CompletionSender::flush() {
  rpc::CompletedBatch batch;
  {
    const Lock lock(mutex_);
    std::swap(batch, batch_);
  }
  if (batch.ends.empty()) return;
  const std::shared_ptr<rpc::Channel> channel = channel_.lock();
  if (!channel) return;
  try {
    channel->send(rpc::to_frame(std::move(batch)));
  } catch (const Error& error) {
    log_debug("the ends of closures were not reported: ", error.what());
  }
}

}  // namespace cohort::server
