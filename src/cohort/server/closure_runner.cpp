// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/closure_runner.h"

#include <algorithm>

#include "cohort/core/detail/start_thread.h"
#include "cohort/core/log.h"
#include "cohort/data/element.h"
#include "cohort/function/detail/step_scope.h"
#include "cohort/rpc/detail/sendable.h"

namespace cohort::server {
namespace {

// Closures that are shorter than this are reported several at a time.
constexpr auto kShortClosure = std::chrono::microseconds(50);
// How long short closures may run on the thread of their channel, which meanwhile reads nothing.
constexpr auto kBriefRun = std::chrono::milliseconds(1);

std::atomic<int> threads_left{0};

std::uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

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

// Called before anything is pushed, so that a closure that fails here has changed nothing.
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

std::uint64_t resource_of(const rpc::ClosureCall& call, const WorkerFunction& function,
                          std::int64_t resource) {
  COHORT_CHECK(resource >= 0 && static_cast<std::size_t>(resource) < call.resources.size(),
               ErrorCode::invalid_argument, "[server.run] function '", function.name,
               "' draws from resource ", resource, ", got ", call.resources.size(), " resources");
  return call.resources[static_cast<std::size_t>(resource)];
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

// A closure that runs. It ends when the runner and all its pushes have called release().
struct ClosureRunner::Running {
  rpc::ClosureEnd end;
  std::shared_ptr<CompletionSender> sender;
  std::shared_ptr<OpenClosures> open;
  std::shared_ptr<data::OpenedFiles> files;  // of an epoch's iterator; it may outlive that
  std::string task;
  TimePoint started = Clock::system().now();
  // Whether the end may wait for that of the next closure. False if this closure may end after the
  // next one starts: its end may then be the last one.
  bool more_follow = false;
  std::atomic<std::size_t> unacknowledged{1};  // the runner itself counts as one
  Mutex mutex;

  void fail(const Error& error) {
    const Lock lock(mutex);
    if (end.status == rpc::ClosureEnd::Status::failed) return;
    end.status = rpc::ClosureEnd::Status::failed;
    end.tensors.clear();
    end.error = error.origin().empty() ? Error(error).at(task) : error;
  }

  // Called for every answer to a push, even if the closure has failed already, because a dropped
  // push that is not counted would be a missing update that nobody notices. Returns the error if
  // the answer is one.
  std::optional<Error> acknowledge(const rpc::Answer& answer, const std::string& ps) {
    try {
      if (const Error* error = std::get_if<Error>(&answer))
        return Error(*error).at(ps).during("pushing updates to " + ps);
      if (rpc::push_reply_of(std::get<rpc::Frame>(answer)).was_applied) return std::nullopt;
    } catch (...) {  // the answer is broken
      return current_error().at(ps);
    }
    const Lock lock(mutex);
    ++end.pushes_dropped;
    return std::nullopt;
  }

  void release() {
    if (--unacknowledged != 0) return;
    const TimePoint now = Clock::system().now();
    const bool is_short = now - started < kShortClosure;
    if (files) end.files = files->take_new();
    open->note_end(end, now);
    sender->end(std::move(end), more_follow && is_short);
    open->count.add(-1);
  }
};

// Called before the end is reported, so that whoever receives the report finds it counted.
void ClosureRunner::OpenClosures::note_end(const rpc::ClosureEnd& end, TimePoint now) {
  const bool is_failed = end.status == rpc::ClosureEnd::Status::failed;
  if (!is_failed && end.status != rpc::ClosureEnd::Status::ok) return;
  ++(is_failed ? failed : ended_well);
  last_end.store(now, std::memory_order_relaxed);
  if (end.error) errors->note(*end.error);
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

// Used only from the thread that runs the program.
class ClosureRunner::Host final : public PushCollector {
 public:
  Host(ClosureRunner& runner, const PlacedProgram& placed, Draws draws,
       std::shared_ptr<Running> running, std::uint64_t low_watermark)
      : PushCollector(placed, std::move(draws)),
        runner_(runner),
        running_(std::move(running)),
        low_watermark_(low_watermark) {}

  // Puts the values at their positions among the program's variables.
  void pull(const std::vector<PlacedProgram::Pull>& pulls, std::span<at::Tensor> variables);
  std::vector<at::Tensor> next_segment(std::span<const std::int64_t> variables) override;
  // Pushes the effects of the last segment. The closure ends when all pushes are acknowledged.
  void push();

 private:
  static Question question(const PlacedProgram::Pull& pull);
  void take(const PlacedProgram::Pull& pull, rpc::Frame answer, std::span<at::Tensor> variables);
  std::vector<Push> take_pushes();

  ClosureRunner& runner_;
  const std::shared_ptr<Running> running_;
  const std::uint64_t low_watermark_;
};

ClosureRunner::ClosureRunner(Options options, std::shared_ptr<ClosureTables> tables)
    : options_(std::move(options)),
      tables_(std::move(tables)),
      functions_(tables_->functions),
      iterators_(tables_->iterators),
      links_(tables_->links) {
  open_->errors = options_.errors;
}

std::shared_ptr<ClosureRunner> ClosureRunner::start(Options options,
                                                    std::shared_ptr<ClosureTables> tables) {
  const std::shared_ptr<ClosureRunner> runner(
      new ClosureRunner(std::move(options), std::move(tables)));
  runner->thread_ = start_thread("to run closures", [runner] {
    runner->loop();
    runner->note_end();
  });
  return runner;
}

ClosureRunner::~ClosureRunner() {
  if (thread_.joinable()) thread_.detach();  // without end(), this is the runner's own thread
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
    is_left_ = is_left =
        !changed_.wait(mutex_, deadline, [this]() COHORT_REQUIRES(mutex_) { return has_ended_; });
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

// Runs the first closures of the batch on this thread, as long as that is allowed. Returns their
// number.
std::size_t ClosureRunner::run_brief(rpc::RunBatch& batch,
                                     const std::shared_ptr<CompletionSender>& sender) {
  std::vector<rpc::ClosureCall>& calls = batch.closures;
  if (calls.empty() || !functions_.is_brief(calls.front().function_id)) return 0;
  {
    const Lock lock(mutex_);
    if (is_running_ || is_stopping_ || !inbox_.empty()) return 0;
    is_running_ = true;
    last_sender_ = sender;
    open_->count.add(1);  // one for the whole batch, so that drain() waits for it
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
  if (sender) sender->flush();  // an end may wait for another closure that will not run
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
    const bool is_woken = changed_.wait(mutex_, next_late, [this]() COHORT_REQUIRES(mutex_) {
      return is_stopping_ || (!is_running_ && !inbox_.empty());
    });
    if (!is_woken) continue;
    if (is_stopping_) return false;
    is_running_ = true;
    item = std::move(inbox_.front());
    inbox_.pop_front();
    more_follow = !inbox_.empty();
    open_->count.add(1);  // under the lock, so that drain() counts it
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
    const function::StepScope step(item.call.closure_id, function->name);
    running->more_follow = more_follow && function->is_self_contained;
    // Report the ends that wait, because this closure may take long, or for ever: user code, the
    // data and other tasks may take any time.
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
  std::optional<Draws> drawn = draw(item, function, *running);
  if (!drawn) {
    running->end.status = rpc::ClosureEnd::Status::end_of_data;
    return;
  }
  Draws draws = std::move(*drawn);
  if (item.call.epoch_step) running->end.rows = rows_of(function, draws);
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
  Host host(*this, *placed, std::move(draws), running, item.low_watermark);
  std::vector<at::Tensor> variables(placed->places.size());
  host.pull(placed->pulls, variables);
  item.call.inputs.resize(placed->program->info().inputs.size());
  try {
    running->end.tensors = placed->program->run(item.call.inputs, variables, host, item.call.seed);
  } catch (...) {
    throw current_error().during("running '" + function.name + "'");
  }
  check_can_travel(running->end.tensors, function);
  host.push();
}

std::optional<ClosureRunner::Draws> ClosureRunner::draw(const Item& item,
                                                        const WorkerFunction& function,
                                                        Running& running) {
  const auto parked = parked_.find(item.call.closure_id);
  if (parked != parked_.end()) return std::move(parked_.extract(parked).mapped());
  Draws draws(function.draws.size());
  // The epoch's elements are drawn first, so that a step that finds their end draws nothing from
  // other iterators.
  std::uint64_t epoch_draws = 0;
  for (std::size_t i = 0; item.call.epoch_step && i < draws.size(); ++i) {
    if (function.draws[i] != 0) continue;
    std::optional<Fields> fields = draw_for_epoch(item, function, epoch_draws++, running);
    if (!fields) return std::nullopt;
    draws[i] = std::move(*fields);
  }
  for (std::size_t i = 0; i < draws.size(); ++i) {
    if (function.draws[i] != 0 || !item.call.epoch_step)
      draws[i] = draw_one(item, function, function.draws[i]);
  }
  return draws;
}

Fields ClosureRunner::draw_one(const Item& item, const WorkerFunction& function,
                               std::int64_t resource) {
  if (resource == function::kWorkerIndexResource)
    return {function::worker_index_tensor(options_.worker_index)};
  return iterators_.find(resource_of(item.call, function, resource))->next();
}

// The element for draw `number` of the step. If a step draws several elements, there must be all of
// them or none.
std::optional<Fields> ClosureRunner::draw_for_epoch(const Item& item,
                                                    const WorkerFunction& function,
                                                    std::uint64_t number, Running& running) {
  const auto draws = static_cast<std::uint64_t>(
      std::count(function.draws.begin(), function.draws.end(), std::int64_t{0}));
  const std::uint64_t first = *item.call.epoch_step * draws;
  const auto iterator = iterators_.find(resource_of(item.call, function, 0));
  running.files = iterator->files();
  std::optional<Fields> fields = iterator->at(first + number);
  COHORT_CHECK(fields || number == 0, ErrorCode::out_of_range, "[server.iterator_next] expected ",
               draws, " elements for each step of '", function.name,
               "', got the end of this worker's data after ", first + number,
               " elements; draw one element a step, or give each worker a multiple of ", draws);
  return fields;
}

void ClosureRunner::park(const Item& item, Draws draws) {
  std::erase_if(parked_, [&](const auto& entry) { return entry.first < item.low_watermark; });
  parked_[item.call.closure_id] = std::move(draws);
}

// Sends all requests together. The link to a server that does not answer in time is closed, which
// also ends pushes that wait on it. Throws the first error, after all answers to pushes were
// counted.
std::vector<rpc::Frame> ClosureRunner::ask(std::vector<Question> questions, Running& running) {
  // All links are made before anything is sent, because an exception for a server that cannot be
  // reached would lose the answers of the others.
  std::vector<std::shared_ptr<rpc::Requester>> links;
  std::vector<rpc::Requester::Request> requests;
  for (Question& question : questions) {
    links.push_back(links_.get(question.ps));
    requests.push_back({links.back().get(), std::move(question.frame)});
  }
  std::vector<std::optional<rpc::Answer>> come =
      rpc::Requester::ask_all(std::move(requests), Deadline::after(options_.data_timeout));
  for (std::size_t i = 0; i < questions.size(); ++i) {
    if (come[i]) continue;
    const Error late = to_error(LateAnswer{.operation = questions[i].is_push ? "push" : "pull",
                                           .expected = "an answer",
                                           .ps = "ps:" + std::to_string(questions[i].ps),
                                           .waited = options_.data_timeout});
    links[i]->give_up(late);
    come[i] = late;
  }
  std::optional<Error> first_error;
  std::vector<rpc::Frame> frames;
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const std::string ps = "ps:" + std::to_string(questions[i].ps);
    std::optional<Error> error;
    if (questions[i].is_push) {
      error = running.acknowledge(*come[i], ps);
    } else if (const Error* refused = std::get_if<Error>(&*come[i])) {
      error = Error(*refused).at(ps).during("pulling variables from " + ps);
    }
    if (error && !first_error) first_error = error;
    if (!error) frames.push_back(std::get<rpc::Frame>(std::move(*come[i])));
  }
  if (first_error) throw Error(*first_error);
  return frames;
}

void ClosureRunner::Host::pull(const std::vector<PlacedProgram::Pull>& pulls,
                               std::span<at::Tensor> variables) {
  if (pulls.empty()) return;
  std::vector<Question> questions;
  for (const PlacedProgram::Pull& pull : pulls) questions.push_back(question(pull));
  std::vector<rpc::Frame> answers = runner_.ask(std::move(questions), *running_);
  for (std::size_t i = 0; i < pulls.size(); ++i) take(pulls[i], std::move(answers[i]), variables);
}

ClosureRunner::Question ClosureRunner::Host::question(const PlacedProgram::Pull& pull) {
  return {pull.ps, false, rpc::to_frame(rpc::PullRequest{pull.ids, pull.wants_versions})};
}

void ClosureRunner::Host::take(const PlacedProgram::Pull& pull, rpc::Frame answer,
                               std::span<at::Tensor> variables) {
  rpc::PullReply reply = rpc::pull_reply_of(std::move(answer));
  const std::size_t versions = pull.wants_versions ? pull.ids.size() : 0;
  COHORT_CHECK(reply.values.size() == pull.ids.size() && reply.versions.size() == versions,
               ErrorCode::data_loss, "[server.pull] expected ", pull.ids.size(), " values and ",
               versions, " versions from ps:", pull.ps, ", got ", reply.values.size(), " and ",
               reply.versions.size());
  running_->end.pulled_bytes += bytes_of(reply.values);
  for (std::size_t k = 0; k < pull.ids.size(); ++k) {
    variables[pull.positions[k]] = std::move(reply.values[k]);
    if (pull.wants_versions) set_version(pull.positions[k], reply.versions[k]);
  }
}

std::vector<PushCollector::Push> ClosureRunner::Host::take_pushes() {
  std::vector<Push> pushes = take_segment();
  for (Push& push : pushes) {
    push.request.closure_id = running_->end.closure_id;
    push.request.low_watermark = low_watermark_;
    for (const rpc::Effect& effect : push.request.effects)
      running_->end.pushed_bytes += bytes_of(effect.tensors);
  }
  return pushes;
}

// A connection keeps its order, so the values that are pulled after a push include its updates. If
// a push has failed, this throws before anything is computed from these values.
std::vector<at::Tensor> ClosureRunner::Host::next_segment(std::span<const std::int64_t> variables) {
  std::vector<Question> questions;
  for (Push& push : take_pushes())
    questions.push_back({push.ps, true, rpc::to_frame(std::move(push.request))});
  const std::size_t pushes = questions.size();
  const std::vector<PlacedProgram::Pull> pulls = placed().pulls_of(variables);
  for (const PlacedProgram::Pull& pull : pulls) questions.push_back(question(pull));
  std::vector<rpc::Frame> answers = runner_.ask(std::move(questions), *running_);
  std::vector<at::Tensor> all(placed().places.size());
  for (std::size_t i = 0; i < pulls.size(); ++i)
    take(pulls[i], std::move(answers[pushes + i]), all);
  std::vector<at::Tensor> values;
  for (const std::int64_t variable : variables)
    values.push_back(std::move(all[static_cast<std::size_t>(variable)]));
  return values;
}

void ClosureRunner::Host::push() {
  for (Push& push : take_pushes()) {
    const std::string ps = "ps:" + std::to_string(push.ps);
    const std::shared_ptr<rpc::Requester> link = runner_.links_.get(push.ps);
    rpc::Frame frame = rpc::to_frame(std::move(push.request));
    const std::uint64_t number = runner_.open_pushes_->add(ps, link, Clock::system().now());
    rpc::Requester::OnAnswer on_answer = [running = running_, ps, number,
                                          open = runner_.open_pushes_](const rpc::Answer& answer) {
      open->answered(number);
      if (const std::optional<Error> error = running->acknowledge(answer, ps))
        running->fail(*error);
      running->release();
    };
    // Nothing may throw between this and request(), whose answer calls release().
    ++running_->unacknowledged;
    link->request(std::move(frame), std::move(on_answer));
  }
}

}  // namespace cohort::server
