// SPDX-License-Identifier: Apache-2.0
// Workers' datasets and iterators, and programs of datasets' functions for elements of other
// shapes: workers ask for them, and callers' threads trace.
#include <algorithm>
#include <utility>

#include "cohort/coordinator/internal/coordinator_options.h"
#include "cohort/coordinator/internal/runtime.h"
#include "cohort/core/log.h"
#include "cohort/data/detail/auto_shard.h"
#include "cohort/data/detail/element_order.h"

namespace cohort::coordinator {
namespace {

// Of those that were distributed for run_epoch().
constexpr std::size_t kDatasetsKept = 4;

}  // namespace

PerWorkerDataset Runtime::ship(const std::vector<Dataset>& datasets) {
  auto shipped =
      std::make_shared<WorkerDatasets>(datasets, options_.max_traces_per_dataset_function);
  warn_of_whole(*shipped);
  return {std::move(shipped), shared_from_this()};
}

std::shared_ptr<WorkerDatasets> Runtime::known_distributed(const Dataset& dataset) {
  const auto found = std::find_if(distributed_.begin(), distributed_.end(), [&](const auto& known) {
    return known.first.node() == dataset.node();
  });
  if (found == distributed_.end()) return nullptr;
  std::rotate(found, found + 1, distributed_.end());
  return distributed_.back().second;
}

// Outlives what is kept of the dataset: else its order would begin anew with the first one.
std::shared_ptr<EpochCounter> Runtime::epoch_counter(const Dataset& dataset) {
  const Lock lock(mutex_);
  std::erase_if(epoch_counters_, [](const auto& known) { return known.first.expired(); });
  for (const auto& [node, counter] : epoch_counters_) {
    // Not lock(): the last copy of what is the user's must not go here.
    if (!node.owner_before(dataset.node()) && !dataset.node().owner_before(node)) return counter;
  }
  return epoch_counters_.emplace_back(dataset.node(), std::make_shared<EpochCounter>(0)).second;
}

std::shared_ptr<WorkerDatasets> Runtime::distributed(const Dataset& dataset) {
  {
    const Lock lock(mutex_);
    if (auto known = known_distributed(dataset)) return known;
  }
  const std::string why = data::why_order_may_change(dataset);
  COHORT_CHECK(
      why.empty(), ErrorCode::invalid_argument,
      "[coordinator.distribute_dataset] expected a dataset that yields its elements in one "
      "order on all workers, got ",
      why,
      ": some elements would come twice and others never; set deterministic to true, "
      "or shard() before it in create_per_worker_dataset(fn)");
  const std::int64_t workers = connection_.num_workers();
  AutoShardOptions options{.num_workers = workers, .too_few_files = TooFewFiles::data};
  options.policy = shard_decision(dataset, options).taken;  // without its warnings
  std::vector<Dataset> shares;
  for (options.index = 0; options.index < workers; ++options.index)
    shares.push_back(auto_shard(dataset, options));
  auto datasets = std::make_shared<WorkerDatasets>(shares, options_.max_traces_per_dataset_function,
                                                   epoch_counter(dataset));
  std::optional<std::pair<Dataset, std::shared_ptr<WorkerDatasets>>> oldest;  // goes unlocked
  const Lock lock(mutex_);
  if (auto known = known_distributed(dataset)) return known;  // another thread's, made meanwhile
  if (distributed_.size() == kDatasetsKept) {
    oldest = std::move(distributed_.front());
    distributed_.erase(distributed_.begin());
  }
  distributed_.emplace_back(dataset, datasets);
  return datasets;
}

void Runtime::warn_of_whole(const WorkerDatasets& datasets) {
  const std::int64_t count = datasets.cardinalities().front();
  if (connection_.num_workers() < 2 || !datasets.are_all_alike() || count == kInfiniteCardinality ||
      count == 0)
    return;
  {
    const Lock lock(mutex_);
    if (std::exchange(has_warned_of_whole_, true)) return;
  }
  log_warn("every one of the ", connection_.num_workers(), " workers has the same dataset",
           count >= 0 ? " of " + std::to_string(count) + " elements" : std::string(),
           ", without shard(): each element comes that often in one pass; "
           "coordinator.distribute_dataset(dataset) gives each worker its own part, and so does "
           "dataset.shard(context) in create_per_worker_dataset(fn)");
}

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
