// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/job.h"

#include "cohort/cluster/task_id.h"
#include "cohort/core/random.h"

namespace cohort::server {
namespace {

// For a closure that gives up when its connections close.
constexpr auto kLastMoment = std::chrono::milliseconds(500);

void respond(rpc::Channel& channel, std::uint64_t id, rpc::Frame reply) {
  reply.role = rpc::Frame::Role::response;
  reply.id = id;
  channel.send(std::move(reply));
}

}  // namespace

Job::Job(JobOptions options)
    : options_(std::move(options)),
      tables_(std::make_shared<ClosureTables>(
          ParameterLinkOptions{.addresses = options_.ps_addresses,
                               .self = options_.self,
                               .coordinator_incarnation = options_.coordinator_incarnation})),
      runner_(ClosureRunner::start({.task = options_.self.task,
                                    .worker_index = TaskId::parse(options_.self.task).index,
                                    .data_timeout = options_.data_timeout},
                                   tables_)) {}

Job::~Job() { end(); }

bool Job::end() noexcept {
  tables_->links.close();  // a closure that waits for a parameter server gives up
  const Deadline deadline = Deadline::after(kLastMoment);
  const bool has_ended = runner_->end(deadline);
  return tables_->iterators.end(deadline) && has_ended;
}

void Job::create_iterator(const rpc::IteratorSpec& iterator) {
  tables_->iterators.create(iterator, {.seed = mix_seed(iterator.seed, options_.self.task),
                                       .data_dirs = options_.data_dirs});
}

void Job::handle(rpc::Frame frame, const std::shared_ptr<rpc::Channel>& channel,
                 const std::shared_ptr<CompletionSender>& sender) {
  const std::uint64_t id = frame.id;
  switch (static_cast<rpc::MessageType>(frame.type)) {
    case rpc::MessageType::pull: {
      rpc::Frame values;
      values.tensors = store_.pull(rpc::pull_of(frame));
      return respond(*channel, id, std::move(values));
    }
    case rpc::MessageType::push:
      return respond(*channel, id, rpc::to_frame(store_.push(rpc::push_of(std::move(frame)))));
    case rpc::MessageType::peek:
      return respond(*channel, id, peek(rpc::peek_of(frame)));
    case rpc::MessageType::run:
      return runner_->enqueue(rpc::run_of(std::move(frame)), sender);
    case rpc::MessageType::cancel:
      return runner_->cancel(rpc::cancel_of(frame).closures);
    default:
      internal::throw_error(ErrorCode::unimplemented, "[server.handle] unknown message type ",
                            frame.type);
  }
}

rpc::Frame Job::peek(const rpc::PeekRequest& request) {
  rpc::PeekReply reply;
  for (Fields& fields : tables_->iterators.find(request.resource)->peek(request.count)) {
    reply.fields = static_cast<std::uint32_t>(fields.size());
    reply.tensors.insert(reply.tensors.end(), fields.begin(), fields.end());
  }
  return rpc::to_frame(std::move(reply));
}

rpc::Health Job::health() const {
  const ParameterStore::Counters& counters = store_.counters();
  return {.closures_run = runner_->closures_run(),
          .pushes_applied = counters.pushes_applied,
          .pushes_dropped = counters.pushes_dropped,
          .pulled_bytes = counters.pulled_bytes,
          .pushed_bytes = counters.pushed_bytes};
}

}  // namespace cohort::server
