// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/job.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "cohort/cluster/validation.h"
#include "cohort/core/effect_handler.h"
#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"

namespace cohort::detail::v1 {
namespace {

// Servers that are up answer within this time, also if the caller's deadline is over.
constexpr auto kAnswerOfServers = std::chrono::seconds(2);
constexpr auto kPollOfJob = std::chrono::milliseconds(50);
// Each start of a chief numbers its variables from the next multiple of this on, so that none has
// the number of one that an earlier start was about to make.
constexpr std::uint64_t kIdsOfOneStart = std::uint64_t{1} << 24;

// No variable has it: who looks it up asks only whether the job is ready.
constexpr const char* kNoName = "";

double seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string described(const TensorSpec& spec, bool is_trainable) {
  return spec.to_string() + (is_trainable ? ", trainable" : ", not trainable");
}

}  // namespace

Job::Job(TaskRole role, JobOptions options)
    : role_(std::move(role)),
      options_(std::move(options)),
      links_(role_.spec, role_.name(), options_.cluster,
             [watch = watch_] {
               const Lock lock(watch->mutex);
               watch->has_lost_connection = true;
               watch->changed.notify_all();
             }),
      home_(std::make_shared<ServerHome>(links_.servers(), role_.origin(), links_.incarnation())),
      known_(home_),
      round_robin_(role_.num_servers(), options_.partitioner) {}

Job::~Job() { end(); }

void Job::end() noexcept {
  {
    const Lock lock(watch_->mutex);
    watch_->is_ended = true;
    watch_->changed.notify_all();
  }
  links_.close();
  if (watcher_.joinable()) watcher_.join();
}

bool Job::pause(Duration duration) const {
  const Lock lock(watch_->mutex);
  return !watch_->changed.wait(watch_->mutex, Deadline::after(duration),
                               [&]() COHORT_REQUIRES(watch_->mutex) { return watch_->is_ended; });
}

// --- the beginning -------------------------------------------------------------------------------

void Job::open() {
  if (is_open_) return;
  const Lock lock(opening_);
  if (is_open_) return;
  validate_addresses(role_.spec);
  const Deadline deadline = Deadline::after(options_.cluster.timeout);
  if (role_.is_chief()) {
    open_as_chief(deadline);
    watcher_ = start_thread("to watch the parameter servers", [this] { watch_servers(); });
  } else {
    COHORT_CHECK(join_ready_job(/*other_than=*/0, deadline), ErrorCode::unavailable,
                 "[v1.connect] expected ", role_.chief(), " to have made its variables within ",
                 seconds(options_.cluster.timeout), " s, and ", role_.name(),
                 " to find them, got no such job on the parameter servers; start ", role_.chief(),
                 ", see its log, or raise ClusterOptions::timeout; it lets others train with its "
                 "first run(), or with let_others_train()");
  }
  is_open_ = true;
}

void Job::open_as_chief(Deadline deadline) {
  const std::vector<std::uint64_t> jobs = links_.jobs(deadline);
  const std::uint64_t job = JobLinks::common(jobs);
  if (!options_.begins_new_job && job != 0 && join_as_chief(job, deadline)) return;
  const bool had_job = std::ranges::any_of(jobs, [](std::uint64_t each) { return each != 0; });
  if (had_job && !options_.begins_new_job) {
    begins_after_loss_ = true;
    log_warn("[v1.connect] ",
             job == 0 ? "a parameter server has lost the variables of the job that "
                      : "an earlier start had not let others train yet in the job that ",
             role_.name(), " began: it begins again on all of them; restore what was saved");
  }
  links_.begin(deadline);
}

bool Job::join_as_chief(std::uint64_t job, Deadline deadline) {
  links_.join(job, deadline);
  const rpc::FindReply found = links_.find({});
  if (!found.is_ready) return false;
  for (const rpc::SharedVariable& each : found.variables) known_.put(each);
  has_joined_ = true;
  const Lock lock(creating_);
  last_id_ = (known_.last_id() / kIdsOfOneStart + 1) * kIdsOfOneStart;
  log_info(role_.name(), " goes on with ", found.variables.size(),
           " variables that the parameter servers have");
  return true;
}

bool Job::join_ready_job(std::uint64_t other_than, Deadline deadline) {
  while (true) {
    try {
      const Deadline answer = Deadline::after(kAnswerOfServers);
      const std::uint64_t job =
          JobLinks::common(links_.jobs(Deadline(std::max(deadline.time(), answer.time()))));
      if (job != 0 && job != other_than) {
        links_.join(job, deadline);
        while (!links_.find({kNoName}).is_ready) {
          if (deadline.has_expired() || !pause(kPollOfJob)) return false;
        }
        find_again();
        return true;
      }
    } catch (const Error& error) {
      if (!is_job_lost(error) && !is_connection_lost(error)) throw;
      if (deadline.has_expired()) throw;
    }
    if (deadline.has_expired() || !pause(std::min<Duration>(kPollOfJob, deadline.remaining())))
      return false;
  }
}

// The variables that this task uses may be elsewhere in another job.
void Job::find_again() {
  std::vector<std::string> names;
  const std::vector<KnownVariable> known = known_.all();
  if (known.empty()) return;
  for (const KnownVariable& each : known) names.push_back(each.entry.name);
  const rpc::FindReply found = links_.find(names);
  COHORT_CHECK(found.variables.size() == names.size(), ErrorCode::failed_precondition,
               "[v1.variables] expected the ", names.size(), " variables of ", role_.name(),
               " in the job of ", role_.chief(), ", got ", found.variables.size(),
               " of them; run the same program in every task");
  for (std::size_t i = 0; i < known.size(); ++i) {
    const rpc::SharedVariable& before = known[i].entry;
    check_found({before.name, before.spec, before.is_trainable}, found.variables[i]);
    known_.put(found.variables[i]);
  }
}

// --- variables -----------------------------------------------------------------------------------

rpc::SharedVariable Job::check_found(const WantedVariable& wanted,
                                     rpc::SharedVariable found) const {
  COHORT_CHECK(found.spec == wanted.spec && found.is_trainable == wanted.is_trainable,
               ErrorCode::invalid_argument, "[strategy.variable] expected variable '", wanted.name,
               "' as ", role_.chief(), " has made it, ", described(found.spec, found.is_trainable),
               ", got ", described(wanted.spec, wanted.is_trainable), " in ", role_.name(),
               "; run the same program in every task, or begin a new job: "
               "StrategyOptions::begins_new_job in the chief, or restart the parameter servers");
  return found;
}

void Job::find_variables(std::span<const WantedVariable> wanted) {
  std::vector<std::string> names;
  for (const WantedVariable& each : wanted) names.push_back(each.name);
  const Deadline deadline = Deadline::after(options_.cluster.timeout);
  while (true) {
    rpc::FindReply found;
    call([&] { found = links_.find(names); });
    if (found.variables.size() == names.size()) {
      for (std::size_t i = 0; i < names.size(); ++i) check_found(wanted[i], found.variables[i]);
      for (const rpc::SharedVariable& each : found.variables) known_.put(each);
      return;
    }
    if (deadline.has_expired() || !pause(kPollOfJob)) break;
  }
  internal::throw_error(ErrorCode::failed_precondition, "[strategy.variable] expected ",
                        role_.chief(), " to make variable '", names.front(), "'",
                        names.size() > 1 ? " and others" : "", " within ",
                        seconds(options_.cluster.timeout), " s, got none of this name for ",
                        role_.name(), "; run the same program in every task");
}

std::vector<rpc::SharedVariable> Job::place(std::span<const WantedVariable> wanted) {
  std::vector<rpc::SharedVariable> fresh;
  for (const WantedVariable& each : wanted) {
    rpc::SharedVariable entry{each.name, each.spec, each.is_trainable, {}};
    const std::optional<rpc::SharedVariable> before = known_.find(each.name);
    if (before) known_.put(check_found(each, *before), each.initial.detach().clone());
    std::optional<rpc::SharedVariable> other;
    if (each.beside) other = known_.find(*each.beside);
    entry.slices =
        other ? RoundRobin::beside(other->slices) : round_robin_.next(each.name, each.spec);
    if (before) continue;
    const std::uint64_t id = ++last_id_;
    for (rpc::Slice& slice : entry.slices) {
      slice.variable = id;
      if (!slice.is_whole()) slice.shard = ++last_id_;
    }
    fresh.push_back(std::move(entry));
  }
  return fresh;
}

void Job::make_variables(std::span<const WantedVariable> wanted) {
  const Lock lock(creating_);
  const std::vector<rpc::SharedVariable> fresh = place(wanted);
  if (fresh.empty()) return;
  std::vector<KnownVariable> made;
  for (const rpc::SharedVariable& entry : fresh) {
    const auto of_name = [&](const WantedVariable& each) { return each.name == entry.name; };
    known_.put(entry, std::ranges::find_if(wanted, of_name)->initial.detach().clone());
  }
  for (KnownVariable& each : known_.all()) {
    const auto is_same = [&](const rpc::SharedVariable& entry) {
      return entry.name == each.entry.name;
    };
    if (std::ranges::any_of(fresh, is_same)) made.push_back(std::move(each));
  }
  try {
    call([&] {
      create(fresh);
      upload(made);
      links_.announce({.variables = fresh, .is_ready = false});
    });
  } catch (...) {
    for (const rpc::SharedVariable& entry : fresh) known_.forget(entry.name);
    throw;
  }
}

// A server that has them already does nothing.
void Job::create(const std::vector<rpc::SharedVariable>& entries) const {
  std::map<rpc::MemberId, std::vector<rpc::VariableSpec>> by_server;
  for (const rpc::SharedVariable& entry : entries) {
    for (std::size_t i = 0; i < entry.slices.size(); ++i) {
      const rpc::Slice& slice = entry.slices[i];
      rpc::VariableSpec spec{.id = slice.stored(),
                             .name = entry.name,
                             .spec = entry.spec,
                             .is_trainable = entry.is_trainable};
      if (!slice.is_whole()) {
        spec.name += "/part_" + std::to_string(i);
        spec.spec.sizes->front() = slice.rows;
      }
      by_server[slice.server].push_back(std::move(spec));
    }
  }
  for (const auto& [server, specs] : by_server) links_.create(server, specs);
}

void Job::upload(const std::vector<KnownVariable>& variables) const {
  std::vector<ServerHome::RemoteUpdate> updates;
  for (const KnownVariable& each : variables) {
    updates.push_back(
        {each.remote, internal::write_effect(internal::Effect::Kind::assign, each.initial)});
  }
  if (updates.empty()) return;
  const ServerHome::OnePush push(*home_);
  home_->send(updates, "upload of");
}

std::vector<at::Tensor> Job::add(std::span<const WantedVariable> wanted) {
  open();
  role_.is_chief() ? make_variables(wanted) : find_variables(wanted);
  std::vector<at::Tensor> values;
  call([&] {
    std::vector<Variable> remotes;
    const std::vector<KnownVariable> known = known_.all();
    for (const WantedVariable& each : wanted) {
      const auto is_it = [&](const KnownVariable& one) { return one.entry.name == each.name; };
      remotes.push_back(std::ranges::find_if(known, is_it)->remote);
    }
    values = home_->read(remotes);
  });
  return values;
}

void Job::let_others_train() {
  if (!role_.is_chief() || lets_others_train_) return;
  open();
  if (begins_after_loss_.exchange(false)) say_where_training_goes_on();
  // Before the call: a restore from now on announces it, too.
  lets_others_train_ = true;
  try {
    call([&] { links_.announce({.variables = {}, .is_ready = true}); });
  } catch (...) {
    lets_others_train_ = false;
    throw;
  }
}

void Job::say_where_training_goes_on() {
  std::int64_t step = -1;
  for (const KnownVariable& each : known_.all()) {
    if (each.entry.name != kGlobalStep) continue;
    call([&] { step = home_->read({&each.remote, 1})[0].item<std::int64_t>(); });
  }
  say_fallback("values that " + role_.name() + " has made or restored", -1, step);
}

}  // namespace cohort::detail::v1
