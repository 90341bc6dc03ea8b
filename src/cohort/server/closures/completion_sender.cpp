// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/completion_sender.h"

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
  std::vector<std::uint64_t> closures;
  closures.reserve(batch.ends.size());
  for (const rpc::ClosureEnd& end : batch.ends) closures.push_back(end.closure_id);
  try {
    channel->send(rpc::to_frame(std::move(batch)));
  } catch (...) {
    report_failure(*channel, closures, current_error());
  }
}

// Otherwise the coordinator would wait for these closures for ever.
void CompletionSender::report_failure(rpc::Channel& channel,
                                      const std::vector<std::uint64_t>& closures,
                                      const Error& error) {
  if (error.code() == ErrorCode::unavailable) {  // the channel has closed
    log_debug("the ends of closures were not reported: ", error.what());
    return;
  }
  rpc::CompletedBatch failed;
  for (const std::uint64_t closure : closures) {
    failed.ends.push_back({.closure_id = closure,
                           .status = rpc::ClosureEnd::Status::failed,
                           .error = Error(error)
                                        .during("reporting the end of a closure")
                                        .because(ErrorCause::application)});
  }
  try {
    channel.send(rpc::to_frame(std::move(failed)));
  } catch (const Error& second) {
    log_warn("the ends of closures cannot be reported, closing the channel: ", second.what());
    channel.close();
  }
}

}  // namespace cohort::server
