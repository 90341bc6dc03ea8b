// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/datasets/dataset_programs.h"

#include <optional>
#include <variant>

#include "cohort/coordinator/runtime/coordinator_options.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {

void DatasetPrograms::ask(std::uint32_t worker, rpc::Frame frame) {
  rpc::ProgramRequest request = rpc::message_of<rpc::ProgramRequest>(std::move(frame));
  {
    const RuntimeLock lock(context_);
    questions_.push_back({worker, std::move(request)});
    has_questions_ = true;
  }
  context_.changed.notify_all();
}

void DatasetPrograms::answer_all() {
  if (!has_questions_) return;
  std::vector<Question> questions;
  {
    const RuntimeLock lock(context_);
    questions.swap(questions_);
    has_questions_ = false;
  }
  for (const Question& question : questions) answer(question);
}

void DatasetPrograms::answer(const Question& question) {
  const rpc::ProgramRequest& request = question.request;
  std::shared_ptr<IteratorHandle> iterator;
  {
    const RuntimeLock lock(context_);
    iterator = iterators_.find(request.resource);
  }
  if (iterator == nullptr) return;  // the iterator is not used any more
  WorkerDatasets::Answer found =
      iterator->datasets().program_for(question.worker, request.function, request.element);
  rpc::ProgramReply reply{.resource = request.resource,
                          .function = request.function,
                          .program = std::move(found.program),
                          .error = std::move(found.error)};
  reply.element = function::specs_of(request.element);
  for (auto& [link, resource] : receivers(question, *iterator, found.is_new)) {
    reply.resource = resource;
    try {
      link->send_one_way(rpc::to_frame(reply));
    } catch (const Error& error) {  // a lost worker gets the program when it returns
      log_debug("a program was not sent: ", error.what());
    }
  }
}

// The worker that asked and, for a new program, each ready worker that runs this dataset, once for
// each of its iterators.
DatasetPrograms::Receivers DatasetPrograms::receivers(const Question& question,
                                                      const IteratorHandle& iterator, bool is_new) {
  Receivers all;
  std::vector<std::shared_ptr<IteratorHandle>> used;  // do not destroy the last copy under the lock
  const RuntimeLock lock(context_);
  context_.last_progress = Clock::system().now();  // until now the closure waited for this process
  if (is_new) {
    ++context_.totals.dataset_traces;
    ++context_.version;  // a worker that is being set up must get it too
  }
  used = iterators_.used();
  for (const auto& other : used) {
    if (&other->datasets() != &iterator.datasets()) continue;
    for (std::uint32_t i = 0; i < pool_.size(); ++i) {
      const bool has_asked = i == question.worker && other->id() == iterator.id();
      const bool is_concerned = is_new && iterator.datasets().share_function(
                                              i, question.worker, question.request.function);
      if (!pool_.is_ready(i) || (!has_asked && !is_concerned)) continue;
      all.emplace_back(pool_.link(i).connection.data, other->id());
    }
  }
  return all;
}

rpc::Frame DatasetPrograms::call(rpc::Requester& worker, rpc::Frame request, Deadline& deadline,
                                 const std::string& operation) {
  const auto answered = std::make_shared<std::optional<rpc::Answer>>();  // guarded by the lock
  worker.request(std::move(request),
                 [answered, weak = context_.weak_from_this()](rpc::Answer answer) {
                   const std::shared_ptr<RuntimeContext> context = weak.lock();
                   if (context == nullptr) return;
                   {
                     const RuntimeLock lock(*context);
                     *answered = std::move(answer);
                   }
                   context->changed.notify_all();
                 });
  while (true) {
    {
      const RuntimeLock lock(context_);
      const bool is_woken =
          context_.wait(context_.changed, deadline, [&]() COHORT_REQUIRES(runtime_lock) {
            return answered->has_value() || !questions_.empty();
          });
      if (answered->has_value()) break;
      COHORT_CHECK(is_woken, ErrorCode::deadline_exceeded,
                   "[coordinator.call] expected an answer from ", worker.peer(), " within ",
                   seconds_of(context_.connection.options().timeout), " s, got none while ",
                   operation, "; see whether it hangs, or raise ClusterOptions::timeout");
    }
    answer_all();
    deadline = context_.connection.control_deadline();
  }
  if (Error* error = std::get_if<Error>(&**answered)) throw std::move(*error).during(operation);
  return std::get<rpc::Frame>(std::move(**answered));
}

}  // namespace cohort::coordinator
