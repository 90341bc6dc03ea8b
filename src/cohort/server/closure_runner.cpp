// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/closure_runner.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "cohort/core/log.h"
#include "cohort/function/worker_index.h"
#include "cohort/rpc/travel.h"

namespace cohort::server {
namespace {

// Closures shorter than this are reported several at a time.
constexpr auto kShortClosure = std::chrono::microseconds(50);
// How long short closures may hold up the channel that brings them.
constexpr auto kBriefRun = std::chrono::milliseconds(1);

std::atomic<int> threads_left{0};

std::uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

// Whatever user code throws is its own error, not the loss of this worker or of another task.
std::vector<at::Tensor> call_registered(const WorkerFunction& function,
                                        std::vector<at::Tensor> inputs, std::int64_t worker_index) {
  const function::WorkerIndexScope worker(worker_index);
  const std::string where = "running the registered function '" + function.name + "'";
  try {
    return function.registered(std::move(inputs));
  } catch (const c10::Error& error) {
    throw Error(ErrorCode::unknown, error.what_without_backtrace(), ErrorCause::application)
        .during(where);
  } catch (...) {
    throw current_error().because(ErrorCause::application).during(where);
  }
}

// Before anything is pushed: what fails here has left no mark.
void check_can_travel(const std::vector<at::Tensor>& tensors, const WorkerFunction& function) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::string obstacle = rpc::obstacle_to_travel(tensors[i]);
    if (obstacle.empty()) continue;
    throw Error(ErrorCode::invalid_argument,
                "[server.run] expected dense CPU tensors to send to the coordinator, got " +
                    obstacle + " (tensor " + std::to_string(i) + " of function '" + function.name +
                    "'); return it dense, or leave it out",
                ErrorCause::application);
  }
}

// Waits for the answers of several requests sent at once.
class AnswerGroup {
 public:
  explicit AnswerGroup(std::size_t count) : answers_(count), missing_(count) {}

  void put(std::size_t index, rpc::Answer answer) {
    {
      const Lock lock(mutex_);
      if (index >= answers_.size()) return;  // too late: the waiter has gone
      answers_[index] = std::move(answer);
      --missing_;
    }
    changed_.notify_one();
  }

  std::vector<std::optional<rpc::Answer>> wait(Deadline deadline) {
    const Lock lock(mutex_);
    changed_.wait(mutex_, deadline,
                  [this]() COHORT_NO_THREAD_SAFETY_ANALYSIS { return missing_ == 0; });
    return std::move(answers_);
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::vector<std::optional<rpc::Answer>> answers_ COHORT_GUARDED_BY(mutex_);
  std::size_t missing_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace

// Ends its closure when the last reference to an unfinished push is gone.
struct ClosureRunner::Running {
  rpc::ClosureEnd end;
  std::shared_ptr<CompletionSender> sender;
  std::shared_ptr<OpenClosures> open;
  std::string task;
  TimePoint started = Clock::system().now();
  // Only where this closure ends before the next one starts: an end that an acknowledgement brings
  // may be the last one, whatever followed the closure.
  bool more_follow = false;
  std::atomic<std::size_t> unacknowledged{1};  // one for the runner itself
  Mutex mutex;

  void fail(const Error& error) {
    const Lock lock(mutex);
    if (end.status == rpc::ClosureEnd::Status::failed) return;
    end.status = rpc::ClosureEnd::Status::failed;
    end.tensors.clear();
    end.error = error.origin().empty() ? Error(error).at(task) : error;
  }

  void release() {
    if (--unacknowledged != 0) return;
    const bool is_short = Clock::system().now() - started < kShortClosure;
    if (end.status == rpc::ClosureEnd::Status::ok) ++open->ended_well;
    sender->end(std::move(end), more_follow && is_short);
    open->count.add(-1);
  }
};

ClosureRunner::ClosureRunner(Options options, std::shared_ptr<ClosureTables> tables)
    : options_(std::move(options)),
      tables_(std::move(tables)),
      functions_(tables_->functions),
      iterators_(tables_->iterators),
      links_(tables_->links) {}

std::shared_ptr<ClosureRunner> ClosureRunner::start(Options options,
                                                    std::shared_ptr<ClosureTables> tables) {
  const std::shared_ptr<ClosureRunner> runner(
      new ClosureRunner(std::move(options), std::move(tables)));
  runner->thread_ = std::thread([runner] {
    runner->loop();
    runner->note_end();
  });
  return runner;
}

ClosureRunner::~ClosureRunner() {
  if (thread_.joinable()) thread_.detach();  // nobody has called end(), so this is the thread
}

bool ClosureRunner::end(Deadline deadline) noexcept {
  if (!thread_.joinable()) {
    const Lock lock(mutex_);
    return has_ended_;
  }
  bool is_left = false;
  {
    const Lock lock(mutex_);
    is_stopping_ = true;
    inbox_.clear();
    changed_.notify_all();
    is_left_ = is_left = !changed_.wait(
        mutex_, deadline, [this]() COHORT_NO_THREAD_SAFETY_ANALYSIS { return has_ended_; });
    if (is_left) ++threads_left;
  }
  if (!is_left) {
    thread_.join();
    return true;
  }
  log_warn("a closure does not end: its thread is left behind");
  thread_.detach();
  return false;
}

int ClosureRunner::left_behind() noexcept { return threads_left; }

void ClosureRunner::note_end() {
  {
    const Lock lock(mutex_);
    has_ended_ = true;
    if (is_left_) --threads_left;
  }
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
  changed_.notify_one();
}

// Runs the first closures of the batch here, as far as that is allowed; says how many.
std::size_t ClosureRunner::run_brief(rpc::RunBatch& batch,
                                     const std::shared_ptr<CompletionSender>& sender) {
  std::vector<rpc::ClosureCall>& calls = batch.closures;
  if (calls.empty() || !functions_.is_brief(calls.front().function_id)) return 0;
  {
    const Lock lock(mutex_);
    if (is_running_ || is_stopping_ || !inbox_.empty()) return 0;
    is_running_ = true;
    last_sender_ = sender;
    open_->count.add(1);  // for all of them: drain() waits
  }
  const Deadline end = Deadline::after(kBriefRun);
  std::size_t done = 0;
  do {
    open_->count.add(1);
    const bool more_follow = done + 1 < calls.size();
    run({std::move(calls[done++]), batch.low_watermark, sender}, more_follow);
  } while (done < calls.size() && !end.has_expired() &&
           functions_.is_brief(calls[done].function_id));
  {
    const Lock lock(mutex_);
    is_running_ = false;
    if (!inbox_.empty()) changed_.notify_one();
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
  if (sender) sender->flush();  // an end may wait for one that no longer comes
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
  }
  for (Item& item : cancelled) {
    item.sender->end(
        {.closure_id = item.call.closure_id, .status = rpc::ClosureEnd::Status::cancelled}, false);
  }
}

void ClosureRunner::loop() {
  Item item;
  bool more_follow = false;
  while (take(item, more_follow)) {
    run(std::move(item), more_follow);
    const Lock lock(mutex_);
    is_running_ = false;
  }
}

void ClosureRunner::drop(const std::shared_ptr<CompletionSender>& sender) {
  const Lock lock(mutex_);
  std::erase_if(inbox_, [&](const Item& item) { return item.sender == sender; });
}

bool ClosureRunner::take(Item& item, bool& more_follow) {
  while (true) {
    const Deadline next_late =
        open_pushes_->give_up_late(options_.data_timeout, Clock::system().now());
    const Lock lock(mutex_);
    const bool is_woken =
        changed_.wait(mutex_, next_late, [this]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
          return is_stopping_ || (!is_running_ && !inbox_.empty());
        });
    if (!is_woken) continue;
    if (is_stopping_) return false;
    is_running_ = true;
    item = std::move(inbox_.front());
    inbox_.pop_front();
    more_follow = !inbox_.empty();
    open_->count.add(1);  // under the lock: drain() misses none
    return true;
  }
}

void ClosureRunner::run(Item item, bool more_follow) {
  const auto running = std::make_shared<Running>();
  running->end.closure_id = item.call.closure_id;
  running->sender = item.sender;
  running->open = open_;
  running->task = options_.task;
  try {
    const std::shared_ptr<const WorkerFunction> function = functions_.find(item.call.function_id);
    running->more_follow = more_follow && function->is_self_contained;
    // Ends that wait for this one's would wait for long, or for ever: user code, the data and other
    // tasks may take any time.
    if (!function->is_self_contained || !function->was_short) item.sender->flush();
    if (function->registered) {
      running->end.tensors =
          call_registered(*function, std::move(item.call.inputs), options_.worker_index);
      check_can_travel(running->end.tensors, *function);
    } else {
      run_program(item, *function, running);
    }
    function->was_short = Clock::system().now() - running->started < kShortClosure;
  } catch (...) {
    running->fail(current_error());
  }
  running->release();
}

void ClosureRunner::run_program(Item& item, const WorkerFunction& function,
                                const std::shared_ptr<Running>& running) {
  Draws draws = draw(item, function);
  const auto placed =
      std::find_if(function.programs.begin(), function.programs.end(),
                   [&](const PlacedProgram& p) { return p.fits(item.call.inputs, draws); });
  if (placed == function.programs.end()) {
    running->end.status = rpc::ClosureEnd::Status::needs_program;
    for (const Fields& fields : draws) {
      running->end.tensors.insert(running->end.tensors.end(), fields.begin(), fields.end());
    }
    check_can_travel(running->end.tensors, function);
    park(item, std::move(draws));
    return;
  }
  const std::vector<at::Tensor> variables = pull(*placed, *running);
  item.call.inputs.resize(placed->program->info().inputs.size());
  PushCollector collector(*placed, std::move(draws));
  running->end.tensors =
      placed->program->run(item.call.inputs, variables, collector, item.call.seed);
  check_can_travel(running->end.tensors, function);
  push(collector, item.low_watermark, running);
}

ClosureRunner::Draws ClosureRunner::draw(const Item& item, const WorkerFunction& function) {
  const auto parked = parked_.find(item.call.closure_id);
  if (parked != parked_.end()) {
    Draws draws = std::move(parked->second);
    parked_.erase(parked);
    return draws;
  }
  Draws draws;
  for (const std::int64_t resource : function.draws) {
    if (resource == function::kWorkerIndexResource) {
      draws.push_back({function::worker_index_tensor(options_.worker_index)});
      continue;
    }
    COHORT_CHECK(resource >= 0 && static_cast<std::size_t>(resource) < item.call.resources.size(),
                 ErrorCode::invalid_argument, "[server.run] function '", function.name,
                 "' draws from resource ", resource, ", got ", item.call.resources.size(),
                 " resources");
    draws.push_back(
        iterators_.find(item.call.resources[static_cast<std::size_t>(resource)])->next());
  }
  return draws;
}

void ClosureRunner::park(const Item& item, Draws draws) {
  std::erase_if(parked_, [&](const auto& entry) { return entry.first < item.low_watermark; });
  parked_[item.call.closure_id] = std::move(draws);
}

// All at once; those that do not answer in time lose their link, on which pushes may wait too.
std::vector<rpc::Answer> ClosureRunner::ask(const std::vector<PlacedProgram::Pull>& pulls) {
  const auto group = std::make_shared<AnswerGroup>(pulls.size());
  std::vector<std::shared_ptr<rpc::Requester>> links;
  for (std::size_t i = 0; i < pulls.size(); ++i) {
    links.push_back(links_.get(pulls[i].ps));
    links[i]->request(rpc::to_frame(rpc::PullRequest{pulls[i].ids}),
                      [group, i](rpc::Answer answer) { group->put(i, std::move(answer)); });
  }
  std::vector<std::optional<rpc::Answer>> come =
      group->wait(Deadline::after(options_.data_timeout));
  std::vector<rpc::Answer> answers;
  for (std::size_t i = 0; i < pulls.size(); ++i) {
    if (come[i]) {
      answers.push_back(std::move(*come[i]));
      continue;
    }
    const Error late = to_error(LateAnswer{"pull", "an answer", "ps:" + std::to_string(pulls[i].ps),
                                           options_.data_timeout});
    links[i]->give_up(late);
    answers.emplace_back(late);
  }
  return answers;
}

std::vector<at::Tensor> ClosureRunner::pull(const PlacedProgram& placed, Running& running) {
  std::vector<at::Tensor> variables(placed.places.size());
  if (placed.pulls.empty()) return variables;
  std::vector<rpc::Answer> answers = ask(placed.pulls);
  for (std::size_t i = 0; i < placed.pulls.size(); ++i) {
    const PlacedProgram::Pull& plan = placed.pulls[i];
    const std::string ps = "ps:" + std::to_string(plan.ps);
    if (Error* error = std::get_if<Error>(&answers[i]))
      throw Error(*error).at(ps).during("pulling variables from " + ps);
    rpc::Frame& frame = std::get<rpc::Frame>(answers[i]);
    COHORT_CHECK(frame.tensors.size() == plan.ids.size(), ErrorCode::data_loss,
                 "[server.pull] expected ", plan.ids.size(), " values from ", ps, ", got ",
                 frame.tensors.size());
    running.end.pulled_bytes += bytes_of(frame.tensors);
    for (std::size_t k = 0; k < plan.ids.size(); ++k)
      variables[plan.positions[k]] = std::move(frame.tensors[k]);
  }
  return variables;
}

void ClosureRunner::push(PushCollector& collected, std::uint64_t low_watermark,
                         const std::shared_ptr<Running>& running) {
  std::vector<PushCollector::Push> pushes = collected.take();
  for (PushCollector::Push& push : pushes) {
    push.request.closure_id = running->end.closure_id;
    push.request.low_watermark = low_watermark;
    for (const rpc::Effect& effect : push.request.effects)
      running->end.pushed_bytes += bytes_of(effect.tensors);
  }
  for (PushCollector::Push& push : pushes) {
    const std::string ps = "ps:" + std::to_string(push.ps);
    const std::shared_ptr<rpc::Requester> link = links_.get(push.ps);
    ++running->unacknowledged;
    const std::uint64_t number = open_pushes_->add(ps, link, Clock::system().now());
    const auto on_answer = [running, ps, number, open = open_pushes_](const rpc::Answer& answer) {
      open->answered(number);
      if (const Error* error = std::get_if<Error>(&answer)) {
        running->fail(Error(*error).at(ps).during("pushing updates to " + ps));
      }
      running->release();
    };
    link->request(rpc::to_frame(std::move(push.request)), on_answer);
  }
}

}  // namespace cohort::server
