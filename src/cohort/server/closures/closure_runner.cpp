// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/closure_runner.h"

#include <algorithm>
#include <utility>

#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"
#include "cohort/data/element.h"
#include "cohort/function/step_scope.h"
#include "cohort/replicas/compute_share.h"
#include "cohort/server/closures/program_host.h"

namespace cohort::server {

using cohort::internal::ComputeShare;

namespace {

// Short closures may run for this long on the thread of their channel, which reads nothing then.
constexpr auto kBriefRun = std::chrono::milliseconds(1);

std::atomic<int> threads_left{0};

// An exception of user code is always an error of the application, and never counts as the loss of
// this worker or of another task.
std::vector<at::Tensor> call_registered(const WorkerFunction& function,
                                        std::vector<at::Tensor> inputs, std::int64_t worker_index) {
  const function::WorkerIndexScope worker(worker_index);
  const std::string where = "running the registered function '" + function.name + "'";
  try {
    return function.registered(std::move(inputs));
  } catch (...) {
    throw current_error().because(ErrorCause::application).during(where);
  }
}

// This is called before anything is pushed, so a closure that fails here has changed nothing.
void check_can_travel(const std::vector<at::Tensor>& tensors, const WorkerFunction& function) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string obstacle = rpc::why_not_sendable(tensors[i]);
    if (obstacle.empty()) continue;
    throw Error(ErrorCode::invalid_argument,
                "[server.run] expected dense CPU tensors to send to the coordinator, got " +
                    obstacle + " (tensor " + std::to_string(i) + " of function '" + function.name +
                    "'); return it dense, or leave it out",
                ErrorCause::application);
  }
}

// The number of rows of the elements that an epoch's step has drawn from the epoch's dataset.
std::uint64_t rows_of(const WorkerFunction& function, const std::vector<Fields>& draws) {
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (function.draws.at(i) != 0) continue;
    rows += data::num_rows(draws[i]);
  }
  return rows;
}

}  // namespace

// Costs nothing while there is one thread.
void ClosureRunner::Start::next() {
  if (!is_held_ || runner_ == nullptr || runner_->has_one_thread_.load(std::memory_order_relaxed))
    return;
  is_held_ = false;
  const Lock lock(runner_->mutex_);
  runner_->is_starting_ = false;
  if (!runner_->inbox_.empty() && runner_->may_start()) runner_->changed_.notify_all();
}

ClosureRunner::Counts ClosureRunner::counts() const {
  Counts counts{.ended_well = open_->ended_well,
                .failed = open_->failed,
                .queued = 0,
                .running = static_cast<std::uint64_t>(open_->count.get()),
                .since_last_end = std::nullopt};
  const TimePoint last_end = open_->last_end.load(std::memory_order_relaxed);
  if (last_end != TimePoint::min()) counts.since_last_end = Clock::system().now() - last_end;
  const Lock lock(mutex_);
  counts.queued = inbox_.size();
  return counts;
}

ClosureRunner::ClosureRunner(Options options, std::shared_ptr<ClosureTables> tables)
    : options_(std::move(options)),
      tables_(std::move(tables)),
      functions_(tables_->functions),
      client_(tables_->servers),
      draws_(tables_->iterators, options_.worker_index) {
  open_->errors = options_.errors;
}

std::shared_ptr<ClosureRunner> ClosureRunner::start(Options options,
                                                    std::shared_ptr<ClosureTables> tables) {
  const std::shared_ptr<ClosureRunner> runner(
      new ClosureRunner(std::move(options), std::move(tables)));
  const Lock lock(runner->mutex_);
  runner->add_threads();
  return runner;
}

// Without end(), this is a thread of the runner.
ClosureRunner::~ClosureRunner() {
  for (std::thread& thread : threads_) thread.detach();
}

void ClosureRunner::add_threads() {
  newest_.resize(std::max(newest_.size(), at_once_));
  threads_.reserve(at_once_);
  while (threads_.size() < at_once_) {
    threads_.push_back(
        start_thread("to run closures", [runner = shared_from_this(), number = threads_.size()] {
          runner->loop(number);
          runner->note_end();
        }));
    ++num_alive_;
  }
  has_one_thread_.store(threads_.size() == 1, std::memory_order_relaxed);
}

void ClosureRunner::set_closures_at_once(std::size_t count) {
  const Lock lock(mutex_);
  if (is_stopping_ || count == at_once_) return;
  const std::size_t before = std::exchange(at_once_, count);
  try {
    add_threads();
  } catch (...) {
    at_once_ = before;
    has_one_thread_.store(threads_.size() == 1, std::memory_order_relaxed);
    throw;
  }
  changed_.notify_all();
}

bool ClosureRunner::end(Deadline deadline) noexcept {
  std::vector<std::thread> threads;
  bool is_left = false;
  {
    const Lock lock(mutex_);
    threads.swap(threads_);
    if (threads.empty()) return num_alive_ == 0;
    is_stopping_ = true;
    inbox_.clear();
    changed_.notify_all();
    is_left_ = is_left = !changed_.wait(
        mutex_, deadline, [this]() COHORT_REQUIRES(mutex_) { return num_alive_ == 0; });
    threads_left += static_cast<int>(num_alive_);
  }
  if (is_left) log_warn("a closure does not end: its thread is left behind");
  for (std::thread& thread : threads) is_left ? thread.detach() : thread.join();
  return !is_left;
}

int ClosureRunner::left_behind() noexcept { return threads_left; }

void ClosureRunner::note_end() {
  const Lock lock(mutex_);
  --num_alive_;
  if (is_left_) --threads_left;
  changed_.notify_all();
}

void ClosureRunner::enqueue(rpc::RunBatch batch, const std::shared_ptr<CompletionSender>& sender) {
  const std::size_t done = run_brief(batch, sender);
  if (done == batch.closures.size()) return;
  {
    const Lock lock(mutex_);
    for (std::size_t i = done; i < batch.closures.size(); ++i)
      inbox_.push_back({std::move(batch.closures[i]), batch.low_watermark, sender});
    last_sender_ = sender;
  }
  has_one_thread_ ? changed_.notify_one() : changed_.notify_all();
}

// Runs the first closures of the batch on this thread, while they are brief and the time limit is
// not reached. Returns how many it ran.
std::size_t ClosureRunner::run_brief(rpc::RunBatch& batch,
                                     const std::shared_ptr<CompletionSender>& sender) {
  std::vector<rpc::ClosureCall>& calls = batch.closures;
  if (calls.empty() || !functions_.is_brief(calls.front().function_id)) return 0;
  {
    const Lock lock(mutex_);
    if (at_once_ > 1 || num_running_ > 0 || is_stopping_ || !inbox_.empty()) return 0;
    num_running_ = 1;
    is_starting_ = true;
    last_sender_ = sender;
    open_->count.add(1);  // one for the whole batch, so that drain() waits for it
  }
  const Deadline end = Deadline::after(kBriefRun);
  std::size_t done = 0;
  do {
    open_->count.add(1);
    const bool more_follow = done + 1 < calls.size();
    Item item{std::move(calls[done++]), batch.low_watermark, sender};
    const std::shared_ptr<RunningClosure> running = running_closure(item);
    Start start(nullptr);
    run({.item = std::move(item), .running = running, .more_follow = more_follow}, start);
  } while (done < calls.size() && !end.has_expired() &&
           functions_.is_brief(calls[done].function_id));
  {
    const Lock lock(mutex_);
    num_running_ = 0;
    is_starting_ = false;
    if (!inbox_.empty()) changed_.notify_all();
  }
  open_->count.add(-1);
  return done;
}

bool ClosureRunner::drain(Deadline deadline) {
  std::shared_ptr<CompletionSender> sender;
  {
    const Lock lock(mutex_);
    is_stopping_ = true;
    inbox_.clear();
    sender = last_sender_;
  }
  changed_.notify_all();
  const bool is_done = open_->count.wait_for_none(deadline);
  if (sender) sender->flush();  // a report may wait for a closure that will not run
  return is_done;
}

void ClosureRunner::cancel(const std::vector<std::uint64_t>& closures) {
  std::vector<Item> cancelled;
  {
    const Lock lock(mutex_);
    const auto is_named = [&](const Item& item) {
      return std::find(closures.begin(), closures.end(), item.call.closure_id) != closures.end();
    };
    const auto kept = std::stable_partition(inbox_.begin(), inbox_.end(),
                                            [&](const Item& i) { return !is_named(i); });
    std::move(kept, inbox_.end(), std::back_inserter(cancelled));
    inbox_.erase(kept, inbox_.end());
    cancel_running([&](const RunningClosure& running) {
      return std::find(closures.begin(), closures.end(), running.id) != closures.end();
    });
  }
  for (Item& item : cancelled) {
    item.sender->end(
        {.closure_id = item.call.closure_id, .status = rpc::ClosureEnd::Status::cancelled}, false);
  }
}

template <class Is>
void ClosureRunner::cancel_running(const Is& is_meant) {
  for (const std::shared_ptr<RunningClosure>& running : newest_)
    if (running && is_meant(*running)) running->cancel();
}

void ClosureRunner::loop(std::size_t thread) {
  while (std::optional<Taken> taken = take(thread)) {
    std::optional<ComputeShare> products;
    std::optional<ComputeShare::OfThread> operators;
    if (taken->at_once > 1) {
      const int share = ComputeShare::of_replica(static_cast<int>(taken->at_once));
      products.emplace(share);
      operators.emplace(share);
    }
    Start start(this);
    run(std::move(*taken), start);
    const Lock lock(mutex_);
    --num_running_;
    if (start.is_held()) is_starting_ = false;
    if (!has_one_thread_ && !inbox_.empty()) changed_.notify_all();
  }
}

void ClosureRunner::drop(const std::shared_ptr<CompletionSender>& sender) {
  const Lock lock(mutex_);
  std::erase_if(inbox_, [&](const Item& item) { return item.sender == sender; });
  cancel_running([&](const RunningClosure& running) { return running.sender == sender; });
}

// Returns nothing if the runner stops.
std::optional<ClosureRunner::Taken> ClosureRunner::take(std::size_t thread) {
  while (true) {
    const Deadline next_late = client_.give_up_late(Clock::system().now());
    const Lock lock(mutex_);
    const bool is_woken = changed_.wait(mutex_, next_late, [&]() COHORT_REQUIRES(mutex_) {
      return is_stopping_ || (thread < at_once_ && may_start() && !inbox_.empty());
    });
    if (!is_woken) continue;
    if (is_stopping_) return std::nullopt;
    ++num_running_;
    is_starting_ = true;
    Taken taken{.item = std::move(inbox_.front()), .at_once = at_once_};
    inbox_.pop_front();
    // With several threads, the next end may be that of a closure that has started before.
    taken.more_follow = !inbox_.empty() && has_one_thread_;
    open_->count.add(1);  // under the lock, so that drain() counts it
    newest_[thread] = taken.running = running_closure(taken.item);
    return taken;
  }
}

std::shared_ptr<RunningClosure> ClosureRunner::running_closure(const Item& item) const {
  auto running = std::make_shared<RunningClosure>();
  running->id = running->end.closure_id = item.call.closure_id;
  running->sender = item.sender;
  running->open = open_;
  running->task = options_.task;
  return running;
}

void ClosureRunner::run(Taken taken, Start& start) {
  auto& [item, running, more_follow, at_once] = taken;
  try {
    const std::shared_ptr<const WorkerFunction> function = functions_.find(item.call.function_id);
    const function::StepScope step(item.call.closure_id, function->name);
    running->more_follow = more_follow && function->is_self_contained;
    // Send the reports that wait, because this closure may run for a long time or forever: it may
    // depend on user code, on the data and on other tasks.
    if (!function->is_self_contained || !function->was_short) item.sender->flush();
    if (function->registered) {
      start.next();
      running->end.tensors =
          call_registered(*function, std::move(item.call.inputs), options_.worker_index);
      check_can_travel(running->end.tensors, *function);
    } else {
      run_program(item, *function, running, start);
    }
    function->was_short = Clock::system().now() - running->started < kShortClosure;
  } catch (...) {
    const Error error = current_error();
    // Nothing has come of it, so it ends as one that has not started.
    const bool has_pushed = running->traffic.pushed_bytes > 0;
    if (error.cause() == ErrorCause::cancelled_by_job && !has_pushed) {
      running->end.status = rpc::ClosureEnd::Status::cancelled;
    } else {
      running->fail(error);
    }
  }
  running->release();
}

void ClosureRunner::run_program(Item& item, const WorkerFunction& function,
                                const std::shared_ptr<RunningClosure>& running, Start& start) {
  std::optional<Draws> drawn = draws_.draw(item.call, function, *running);
  if (!drawn) {
    running->end.status = rpc::ClosureEnd::Status::end_of_data;
    return;
  }
  Draws draws = std::move(*drawn);
  if (item.call.epoch_step) running->end.rows = rows_of(function, draws);
  const auto fitting =
      std::find_if(function.programs.begin(), function.programs.end(),
                   [&](const auto& program) { return program->fits(item.call.inputs, draws); });
  if (fitting == function.programs.end()) {
    running->end.status = rpc::ClosureEnd::Status::needs_program;
    for (const Fields& fields : draws) {
      running->end.tensors.insert(running->end.tensors.end(), fields.begin(), fields.end());
    }
    check_can_travel(running->end.tensors, function);
    draws_.park(item.call.closure_id, std::move(draws), item.low_watermark);
    return;
  }
  start.next();
  const WorkerProgram& program = **fitting;
  ProgramHost host(
      client_, program, program.places(tables_->placement), std::move(draws), running,
      {.id = {.incarnation = options_.coordinator_incarnation, .number = item.call.closure_id},
       .low_watermark = item.low_watermark},
      item.call.snapshot);
  const std::vector<at::Tensor> variables = host.pull();
  item.call.inputs.resize(program.program().info().inputs.size());
  try {
    running->end.tensors = program.program().run(item.call.inputs, variables, host, item.call.seed);
  } catch (...) {
    throw current_error().during("running '" + function.name + "'");
  }
  check_can_travel(running->end.tensors, function);
  host.push();
}

}  // namespace cohort::server
