// SPDX-License-Identifier: Apache-2.0
// Workers' iterators, and programs of datasets' functions for elements of other
// shapes: workers ask for them, and callers' threads trace.
#include <algorithm>
#include <utility>

#include "cohort/coordinator/internal/coordinator_options.h"
#include "cohort/coordinator/internal/runtime.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {

std::shared_ptr<IteratorHandle> Runtime::create_iterator(std::shared_ptr<WorkerDatasets> datasets,
                                                         std::optional<std::uint64_t> epoch) {
  check_outside_step("create_iterator");
  check_running("create_iterator");
  std::shared_ptr<IteratorHandle> handle;
  std::vector<std::uint64_t> released;
  std::vector<std::shared_ptr<WorkerDatasets>> released_datasets;  // these end on this thread
  {
    const Lock lock(released_mutex_);
    released.swap(released_);
    released_datasets.swap(released_datasets_);
  }
  if (options_.run_eagerly) {
    const Lock tracing(tracing_);
    eager_steps_.release(released);
  }
  std::vector<std::pair<std::uint32_t, rpc::Connection>> present;
  {
    const Lock lock(mutex_);
    check_running("create_iterator");  // under the lock: stop() has not looked at the numbers yet
    for (const std::uint64_t id : released) iterators_.erase(id);
    handle = std::make_shared<IteratorHandle>(numbers_.next_iterator++, std::move(datasets), epoch,
                                              weak_from_this());
    iterators_[handle->id()] = handle;
    ++version_;
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      if (workers_[i].is_ready) present.emplace_back(i, workers_[i].link.connection);
    }
  }
  for (auto& [worker, connection] : present) {
    try {
      if (!released.empty()) connection.control->release(released, connection_.control_deadline());
      connection.control->create_iterator(handle->spec_for(worker, connection_.options().seed),
                                          connection_.control_deadline());
    } catch (const Error& error) {
      if (gives_way(error) || !is_worker_away(error)) {
        const Lock lock(released_mutex_);  // the next call tells the other workers
        released_.insert(released_.end(), released.begin(), released.end());
        throw;
      }
      connection.data->close();
    }
  }
  return handle;
}

void Runtime::release_iterator(std::uint64_t id,
                               std::shared_ptr<WorkerDatasets> datasets) noexcept {
  const Lock lock(released_mutex_);
  released_.push_back(id);
  released_datasets_.push_back(std::move(datasets));
}

void Runtime::on_program_request(std::uint32_t worker, rpc::Frame frame) {
  rpc::ProgramRequest request = rpc::program_request_of(std::move(frame));
  {
    const Lock lock(mutex_);
    program_requests_.push_back({worker, std::move(request)});
    has_program_requests_ = true;
  }
  changed_.notify_all();
}

// Only on callers' threads: the dataset's functions are the user's.
void Runtime::answer_program_requests() {
  std::vector<ProgramQuestion> questions;
  {
    const Lock lock(mutex_);
    questions.swap(program_requests_);
    has_program_requests_ = false;
  }
  for (const ProgramQuestion& question : questions) answer(question);
}

void Runtime::answer(const ProgramQuestion& question) {
  const rpc::ProgramRequest& request = question.request;
  std::shared_ptr<IteratorHandle> iterator;
  {
    const Lock lock(mutex_);
    const auto found = iterators_.find(request.resource);
    if (found != iterators_.end()) iterator = found->second.lock();
  }
  if (iterator == nullptr) return;  // nobody draws from it any more
  WorkerDatasets::Answer found =
      iterator->datasets().program_for(question.worker, request.function, request.element);
  rpc::ProgramReply reply{.resource = request.resource,
                          .function = request.function,
                          .program = std::move(found.program),
                          .error = std::move(found.error)};
  for (const at::Tensor& field : request.element) reply.element.push_back(TensorSpec::of(field));
  for (auto& [link, resource] : receivers(question, *iterator, found.is_new)) {
    reply.resource = resource;
    try {
      link->send_one_way(rpc::to_frame(reply));
    } catch (const Error& error) {  // it is lost, and gets the program when it returns
      log_debug("a program was not sent: ", error.what());
    }
  }
}

// Who has asked; of a new program, each worker that runs this dataset, under each of its iterators.
std::vector<std::pair<std::shared_ptr<rpc::Requester>, std::uint64_t>> Runtime::receivers(
    const ProgramQuestion& question, const IteratorHandle& iterator, bool is_new) {
  std::vector<std::pair<std::shared_ptr<rpc::Requester>, std::uint64_t>> all;
  std::vector<std::shared_ptr<IteratorHandle>> alive;  // the last copy must not go under the lock
  const Lock lock(mutex_);
  last_progress_ = Clock::system().now();  // the closure waited for this process until now
  if (is_new) {
    ++totals_.dataset_traces;
    ++version_;  // a worker that is being furnished gets it, too
  }
  for (const auto& [id, weak] : iterators_) {
    const auto& other = alive.emplace_back(weak.lock());
    if (other == nullptr || &other->datasets() != &iterator.datasets()) continue;
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      const bool has_asked = i == question.worker && id == iterator.id();
      const bool is_concerned =
          is_new && iterator.datasets().have_one(i, question.worker, question.request.function);
      if (!workers_[i].is_ready || (!has_asked && !is_concerned)) continue;
      all.emplace_back(workers_[i].link.connection.data, id);
    }
  }
  return all;
}

// As Requester::call(), but that this thread traces meanwhile what the worker's pipeline asks for;
// after each time the worker has as long again.
rpc::Frame Runtime::call_and_trace(rpc::Requester& worker, rpc::Frame request, Deadline& deadline,
                                   const std::string& operation) {
  const auto come = std::make_shared<std::optional<rpc::Answer>>();  // guarded by mutex_
  worker.request(std::move(request), [come, weak = weak_from_this()](rpc::Answer answer) {
    const std::shared_ptr<Runtime> runtime = weak.lock();
    if (runtime == nullptr) return;
    {
      const Lock lock(runtime->mutex_);
      *come = std::move(answer);
    }
    runtime->changed_.notify_all();
  });
  while (true) {
    {
      const Lock lock(mutex_);
      const bool is_woken = changed_.wait(mutex_, deadline, [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
        return come->has_value() || !program_requests_.empty();
      });
      if (come->has_value()) break;
      COHORT_CHECK(is_woken, ErrorCode::deadline_exceeded,
                   "[coordinator.call] expected an answer from ", worker.peer(), " within ",
                   internal::seconds_of(connection_.options().timeout), " s, got none while ",
                   operation, "; see whether it hangs, or raise ClusterOptions::timeout");
    }
    answer_program_requests();
    deadline = connection_.control_deadline();
  }
  if (Error* error = std::get_if<Error>(&**come)) throw std::move(*error).during(operation);
  return std::get<rpc::Frame>(std::move(**come));
}

}  // namespace cohort::coordinator
