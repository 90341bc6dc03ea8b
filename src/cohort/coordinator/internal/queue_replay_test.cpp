// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/queue_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <vector>

#include "cohort/coordinator/detail/failure_policy.h"
#include "cohort/coordinator/internal/closure_table.h"

namespace cohort::coordinator::internal {
namespace {

using nlohmann::json;

// The result of a step: a value, or the error with which it failed.
struct StepOutcome {
  json value;
  std::optional<Error> error;
};

// ---- outcomes

const std::map<std::string, ErrorCode>& codes() {
  static const std::map<std::string, ErrorCode> table = {
      {"Cancelled", ErrorCode::cancelled},
      {"Unknown", ErrorCode::unknown},
      {"InvalidArgument", ErrorCode::invalid_argument},
      {"DeadlineExceeded", ErrorCode::deadline_exceeded},
      {"NotFound", ErrorCode::not_found},
      {"AlreadyExists", ErrorCode::already_exists},
      {"PermissionDenied", ErrorCode::permission_denied},
      {"ResourceExhausted", ErrorCode::resource_exhausted},
      {"FailedPrecondition", ErrorCode::failed_precondition},
      {"Aborted", ErrorCode::aborted},
      {"OutOfRange", ErrorCode::out_of_range},
      {"Unimplemented", ErrorCode::unimplemented},
      {"Internal", ErrorCode::internal},
      {"Unavailable", ErrorCode::unavailable},
      {"DataLoss", ErrorCode::data_loss},
      {"Unauthenticated", ErrorCode::unauthenticated},
      // Kinds of exceptions.
      {"ValueError", ErrorCode::invalid_argument},
      {"TypeError", ErrorCode::invalid_argument},
      {"AssertionError", ErrorCode::invalid_argument},
      {"RuntimeError", ErrorCode::failed_precondition},
      {"NotImplementedError", ErrorCode::unimplemented},
      {"IndexError", ErrorCode::out_of_range},
      {"KeyError", ErrorCode::not_found},
  };
  return table;
}

// "Aborted", "OpError:Aborted", "AbortedError", "ValueError".
ErrorCode code_of(std::string name) {
  if (name.rfind("OpError:", 0) == 0) name = name.substr(8);
  auto found = codes().find(name);
  if (found == codes().end() && name.size() > 5)
    found = codes().find(name.substr(0, name.size() - 5));
  COHORT_CHECK(found != codes().end(), ErrorCode::unimplemented, "unknown kind of error '", name,
               "'");
  return found->second;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

bool is_accepted(const json& expected, ErrorCode code) {
  if (expected.contains("code") && code_of(expected["code"]) == code) return true;
  if (!expected.contains("code") && code_of(expected.at("kind")) == code) return true;
  for (const json& kind : expected.value("accept", json::array())) {
    if (code_of(kind) == code) return true;
  }
  return false;
}

std::string mismatch_with(const json& expected, const StepOutcome& outcome) {
  if (!expected.contains("error")) {
    if (outcome.error) return std::string("failed: ") + outcome.error->what();
    if (expected.contains("expect") && outcome.value != expected["expect"]) {
      return "expected " + expected["expect"].dump() + ", got " + outcome.value.dump();
    }
    return "";
  }
  const json& error = expected["error"];
  if (!outcome.error) return "expected " + error.dump() + ", got " + outcome.value.dump();
  if (!is_accepted(error, outcome.error->code())) {
    return "expected " + error.dump() + ", got " + outcome.error->what();
  }
  for (const std::string word : error.value("words", json::array())) {
    if (lower(outcome.error->what()).find(lower(word)) == std::string::npos) {
      return "expected '" + word + "' in " + outcome.error->what();
    }
  }
  return "";
}

std::string mismatch(const json& step, const StepOutcome& outcome) {
  const std::string recorded = mismatch_with(step, outcome);
  if (recorded.empty() || !step.contains("recommended")) return recorded;
  return mismatch_with(step["recommended"], outcome).empty() ? "" : recorded;
}

Error recorded_error(const json& step) {
  const std::string kind = step.value("kind", step.value("code", "ValueError"));
  const std::string name = kind == "OpError" ? step.at("code").get<std::string>() : kind;
  const bool is_type = kind == "TypeError";
  return Error(code_of(name), step.value("msg", ""),
               is_type ? ErrorCause::wrong_type : ErrorCause::none);
}

// "worker:1" for a message with "/job:worker/replica:0/task:1" where `start`, which ends in a job
// or before it, occurs.
std::string task_after(const std::string& message, const std::string& start) {
  const std::size_t found = message.find(start);
  if (found == std::string::npos) return "";
  const std::size_t job = message.find("/job:", found) + 5;
  const std::string name = message.substr(job, message.find_first_of("/ ,;", job) - job);
  const std::size_t task = message.find("/task:", job);
  if (task == std::string::npos || message.find(' ', job) < task) return name;
  const std::size_t digits = task + 6;
  const std::size_t end = message.find_first_not_of("0123456789", digits);
  return name + ":" + message.substr(digits, end == std::string::npos ? end : end - digits);
}

Error structured_error(const std::string& code_name, const std::string& message,
                       const std::string& inside) {
  const ErrorCode code = code_of(code_name);
  const std::string text = lower(message);
  const auto says = [&](const char* phrase) { return text.find(phrase) != std::string::npos; };
  ErrorCause cause = ErrorCause::none;
  if (code_name == "TypeError") {
    cause = says("binding inputs to tf.function failed") ? ErrorCause::input_binding
                                                         : ErrorCause::wrong_type;
  } else if (code == ErrorCode::invalid_argument &&
             (says("unknown device") || says("lost remote") || says("is not remote") ||
              says("unable to find the relevant tensor remote_handle"))) {
    cause = ErrorCause::handle_lost;
  } else if (code == ErrorCode::not_found && says("is neither a type of a primitive operation nor "
                                                  "a name of a function registered")) {
    cause = ErrorCause::function_missing;
  } else if (code == ErrorCode::cancelled && says("/job:") && inside == "job") {
    cause = ErrorCause::cancelled_by_job;
  } else if (!inside.empty()) {
    cause = inside == "input" ? ErrorCause::closure_input : ErrorCause::closure_aborted;
  }
  // The remote target of the RPC is the origin; without one the worker that the message names.
  std::string origin = task_after(message, "remote target /job:");
  if (origin.empty()) origin = task_after(message, "/job:worker");
  return Error(code, message, cause).at(origin);
}

// ---- the queue

// One case. Used only from one thread.
class QueueReplay {
 public:
  // The first thing that went wrong, with its step; empty: nothing did. Throws for an unknown step.
  std::string run(const json& steps);

 private:
  struct Thread {
    std::string name;
    json acts;
    double start = 0;
    std::size_t position = 0;
    std::optional<double> blocked_since;
    std::string failure;
    bool is_finished() const { return position >= acts.size() || !failure.empty(); }
  };
  using Outcome = std::optional<StepOutcome>;  // nothing: it would block

  // Whether the thread got further.
  bool advance(Thread& thread);
  bool advance_all();
  // False: nothing can happen any more.
  bool advance_time();
  Outcome attempt(Thread& thread, const json& act);
  Outcome timed_out(const json& act) const;

  Outcome start_thread(const json& act);
  Outcome put(Thread& thread, const json& act);
  Outcome get(const json& act);
  Outcome join(Thread& thread);
  Outcome done();
  Outcome end(const std::string& what, const json& act);
  Outcome fetch(const json& act);
  Outcome wait_thread(const json& act);
  Outcome asked(const Verdict& verdict);

  void count_cancellation();
  void follow(std::optional<ClosureId> failed = {});
  ClosureId leave_flight(const json& act);
  WorkerId worker_of(const json& act);
  Thread* thread_named(const std::string& name);

  std::unique_ptr<ClosureTable> table_;
  Actions actions_;
  std::vector<std::unique_ptr<Thread>> threads_;
  const Thread* caller_ = nullptr;  // the thread in schedule or join: tf's put/wait lock
  double now_ = 0;
  ClosureId next_id_ = 1;
  std::map<std::string, ClosureId> ids_;
  std::map<ClosureId, std::string> names_;
  std::vector<ClosureId> in_flight_;
  std::map<std::string, StepOutcome> results_;
  std::set<std::string> resources_;
  std::map<std::string, WorkerId> tags_;
  // How often all was cancelled. Each closure keeps the value of its put as a token.
  int cancellations_ = 0;
  std::map<std::string, int> tokens_;
};

std::string QueueReplay::run(const json& steps) {
  threads_.push_back(std::make_unique<Thread>());
  threads_.front()->acts = steps;
  const Thread& main = *threads_.front();
  while (!main.is_finished()) {
    if (advance_all() || advance_time()) continue;
    return "step " + std::to_string(main.position) +
           " would block for ever: " + main.acts[main.position].dump();
  }
  return main.failure;
}

bool QueueReplay::advance_all() {
  bool has_advanced = false;
  for (std::size_t i = 0; i < threads_.size(); ++i) {  // acts may add threads
    if (threads_[i]->start > now_) continue;
    while (advance(*threads_[i])) has_advanced = true;
  }
  return has_advanced;
}

bool QueueReplay::advance(Thread& thread) {
  if (thread.is_finished()) return false;
  const json act = thread.acts[thread.position];
  Outcome outcome = attempt(thread, act);
  if (!outcome) {
    if (!thread.blocked_since) thread.blocked_since = now_;
    const bool has_timeout = act.contains("timeout") && act["timeout"].is_number();
    if (!has_timeout || now_ < *thread.blocked_since + act["timeout"].get<double>()) return false;
    outcome = timed_out(act);
  }
  if (caller_ == &thread) caller_ = nullptr;
  thread.blocked_since.reset();
  const std::string wrong = mismatch(act, *outcome);
  if (!wrong.empty()) {
    thread.failure = "step " + std::to_string(thread.position) + " of '" + thread.name + "' " +
                     act.dump() + ": " + wrong;
  }
  ++thread.position;
  return true;
}

bool QueueReplay::advance_time() {
  std::optional<double> next;
  const auto consider = [&](double time) {
    if (time > now_ && (!next || time < *next)) next = time;
  };
  for (const auto& thread : threads_) {
    consider(thread->start);
    if (thread->is_finished() || !thread->blocked_since) continue;
    const json& act = thread->acts[thread->position];
    if (act.contains("timeout") && act["timeout"].is_number()) {
      consider(*thread->blocked_since + act["timeout"].get<double>());
    }
  }
  if (next) now_ = *next;
  return next.has_value();
}

QueueReplay::Outcome QueueReplay::timed_out(const json& act) const {
  if (act.at("act") == "get") return StepOutcome{nullptr, {}};
  if (act.at("act") == "fetch") {
    return StepOutcome{{}, Error(ErrorCode::deadline_exceeded, "fetch timed out")};
  }
  return StepOutcome{false, {}};
}

QueueReplay::Outcome QueueReplay::attempt(Thread& thread, const json& act) {
  if (act.value("do", "q") == "queue") {
    table_ = std::make_unique<ClosureTable>(act.value("capacity", 256 * 1024), 64);
    return StepOutcome{};
  }
  COHORT_CHECK(act.value("do", "q") == "q" && table_, ErrorCode::unimplemented, "unknown step ",
               act.dump());
  const std::string what = act.at("act");
  if (what == "later") return start_thread(act);
  if (what == "wait_thread") return wait_thread(act);
  if (what == "put") return put(thread, act);
  if (what == "get") return get(act);
  if (what == "finished" || what == "put_back" || what == "failed") return end(what, act);
  if (what == "join") return join(thread);
  if (what == "done") return done();
  if (what == "fetch") return fetch(act);
  if (what == "inflight") return StepOutcome{table_->in_flight(), {}};
  if (what == "cancelled") {
    const std::string closure = act.at("closure");
    return StepOutcome{!resources_.count(closure) && tokens_.at(closure) < cancellations_, {}};
  }
  if (what == "mark_error") {
    results_[act.at("closure")] = {{}, recorded_error(act)};
    return StepOutcome{};
  }
  throw Error(ErrorCode::unimplemented, "unknown act " + act.dump());
}

QueueReplay::Outcome QueueReplay::start_thread(const json& act) {
  auto thread = std::make_unique<Thread>();
  thread->name = act.value("thread", "");
  thread->acts = act.at("acts");
  thread->start = now_ + act.value("delay", 0.0);
  threads_.push_back(std::move(thread));
  return StepOutcome{};
}

QueueReplay::Outcome QueueReplay::wait_thread(const json& act) {
  const Thread* thread = thread_named(act.at("of"));
  COHORT_CHECK(thread, ErrorCode::unimplemented, "no thread ", act.dump());
  if (!thread->is_finished()) return std::nullopt;
  COHORT_CHECK(thread->failure.empty(), ErrorCode::internal, thread->failure);
  return StepOutcome{true, {}};
}

QueueReplay::Outcome QueueReplay::put(Thread& thread, const json& act) {
  const std::string name = act.at("closure");
  if (act.contains("tag") && !act["tag"].is_null()) {
    names_[next_id_] = name;
    resources_.insert(name);
    table_->put_resource(worker_of(act), next_id_++);
    return StepOutcome{};
  }
  if (caller_ && caller_ != &thread) return std::nullopt;
  if (caller_ != &thread) {  // not tried before
    caller_ = &thread;
    ids_[name] = next_id_;
    names_[next_id_++] = name;
    tokens_[name] = cancellations_;
  }
  count_cancellation();
  return asked(table_->put(ids_[name], actions_));
}

QueueReplay::Outcome QueueReplay::get(const json& act) {
  const std::size_t before = table_->in_flight();
  const std::optional<ClosureId> closure = table_->get(worker_of(act), actions_);
  follow();
  if (!closure) return std::nullopt;
  if (table_->in_flight() > before) in_flight_.push_back(*closure);
  return StepOutcome{names_.at(*closure), {}};
}

QueueReplay::Outcome QueueReplay::join(Thread& thread) {
  if (caller_ && caller_ != &thread) return std::nullopt;
  caller_ = &thread;
  count_cancellation();
  return asked(table_->join(actions_));
}

QueueReplay::Outcome QueueReplay::done() {
  count_cancellation();
  return asked(table_->done(actions_));
}

QueueReplay::Outcome QueueReplay::asked(const Verdict& verdict) {
  follow();
  if (verdict.kind == Verdict::Kind::wait) return std::nullopt;
  return StepOutcome{verdict.kind == Verdict::Kind::proceed, verdict.error};
}

// Counts a cancel-all: the next call performs it if it sees an error first.
void QueueReplay::count_cancellation() {
  if (table_->has_error() && !table_->is_cancelling()) ++cancellations_;
}

QueueReplay::Outcome QueueReplay::end(const std::string& what, const json& act) {
  const ClosureId closure = leave_flight(act);
  try {
    if (what == "finished") table_->finished(closure, actions_);
    if (what == "put_back") table_->put_back(closure, ClosureTable::Place::tail, actions_);
    if (what == "failed") table_->failed(closure, recorded_error(act), actions_);
  } catch (const Error& error) {
    return StepOutcome{{}, error};
  }
  follow(what == "failed" ? std::optional(closure) : std::nullopt);
  return StepOutcome{};
}

// The recorded acts only count closures, and often name none, so any closure in flight may be
// taken for the named one. If that closure has another name already, the two swap names.
ClosureId QueueReplay::leave_flight(const json& act) {
  const std::string name = act.value("closure", "");
  const auto id = ids_.find(name);
  auto left = id == ids_.end() ? in_flight_.end()
                               : std::find(in_flight_.begin(), in_flight_.end(), id->second);
  if (left == in_flight_.end()) left = in_flight_.begin();
  if (left == in_flight_.end()) return id == ids_.end() ? 0 : id->second;
  const ClosureId closure = *left;
  in_flight_.erase(left);
  if (!name.empty() && names_[closure] != name) {
    const std::string other = names_[closure];
    std::swap(ids_[name], ids_[other]);
    names_[ids_[name]] = name;
    names_[ids_[other]] = other;
  }
  return closure;
}

QueueReplay::Outcome QueueReplay::fetch(const json& act) {
  const auto result = results_.find(act.at("closure"));
  if (result == results_.end()) return std::nullopt;
  return result->second;
}

// The error of `failed` is not the result of its closure: acts set that with mark_error.
void QueueReplay::follow(std::optional<ClosureId> failed) {
  for (const Action& action : actions_) {
    if (action.kind == Action::Kind::complete) results_[names_.at(action.closure)] = {};
    if (action.kind != Action::Kind::fail || action.closure == failed) continue;
    results_[names_.at(action.closure)] = {{}, action.error};
  }
  actions_.clear();
}

// Acts without a tag belong to worker 0.
WorkerId QueueReplay::worker_of(const json& act) {
  if (!act.contains("tag") || act["tag"].is_null()) return 0;
  return tags_.emplace(act["tag"].dump(), static_cast<WorkerId>(tags_.size() + 1)).first->second;
}

QueueReplay::Thread* QueueReplay::thread_named(const std::string& name) {
  for (const auto& thread : threads_) {
    if (thread->name == name && thread != threads_.front()) return thread.get();
  }
  return nullptr;
}

// ---- classes of failure

bool is_failure_step(const json& step) {
  return step.value("do", "") == "classify" || step.value("do", "") == "transient";
}

StepOutcome classify(const json& step) {
  const Error error = structured_error(step.at("code"), step.at("msg"), step.value("inside", ""));
  return {{{"ps", failed_ps(error).has_value()}, {"worker", is_worker_failure(error)}}, {}};
}
StepOutcome transient(FailurePolicy& policy, const json& step) {
  const std::string which = step.at("which");
  const bool is_ps = which.find("ps") != std::string::npos;
  COHORT_CHECK(is_ps || which.find("timeout") != std::string::npos, ErrorCode::unimplemented,
               "unknown step ", step.dump());
  const std::string code = step.value("code", is_ps ? "Unavailable" : "DeadlineExceeded");
  const FailureClass found =
      policy.classify(structured_error(code, step.value("msg", ""), ""), false, {});
  return {found == (is_ps ? FailureClass::transient_ps : FailureClass::transient_timeout), {}};
}

FailureOptions options_of(const json& steps) {
  FailureOptions options;
  for (const json& step : steps) {
    if (step.value("do", "") != "setenv") continue;
    const json env = step.at("env");
    const auto read = [&](const char* name, int& value) {
      if (env.contains(name) && env[name].is_string())
        value = std::stoi(env[name].get<std::string>());
    };
    read("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", options.ps_failures_max);
    read("TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS", options.timeouts_max);
  }
  return options;
}

}  // namespace

std::string replay_queue(const std::string& steps) { return QueueReplay().run(json::parse(steps)); }

bool is_about_failures(const std::string& steps) {
  const json parsed = json::parse(steps);
  return std::any_of(parsed.begin(), parsed.end(), is_failure_step);
}

std::string replay_failures(const std::string& text, std::size_t workers) {
  const json steps = json::parse(text);
  FailurePolicy policy(options_of(steps), workers);
  for (const json& step : steps) {
    if (!is_failure_step(step)) continue;
    const StepOutcome outcome = step["do"] == "classify" ? classify(step) : transient(policy, step);
    const std::string wrong = mismatch(step, outcome);
    if (!wrong.empty()) return step.dump() + ": " + wrong;
  }
  return "";
}

namespace {

// Cases beyond the recorded ones, which test the replay itself.
std::string replay(const std::string& acts) {
  json steps = json::parse(acts);
  steps.insert(steps.begin(), json{{"do", "queue"}});
  return replay_queue(steps.dump());
}

TEST(QueueReplay, AWrongExpectationIsFound) {
  EXPECT_NE(replay(R"([{"act":"put","closure":"a"},{"act":"get","expect":"b"}])"), "");
  EXPECT_NE(replay(R"([{"act":"put","closure":"a"},{"act":"done","expect":true}])"), "");
  EXPECT_NE(replay(R"([{"act":"put","closure":"a","error":{"kind":"ValueError"}}])"), "");
}

TEST(QueueReplay, AnActThatBlocksForEverIsFound) {
  EXPECT_NE(replay(R"([{"act":"put","closure":"a"},{"act":"join"}])").find("for ever"),
            std::string::npos);
}

TEST(QueueReplay, AnUnknownActIsRefused) { EXPECT_THROW(replay(R"([{"act":"dance"}])"), Error); }

TEST(QueueReplay, GetTimesOutWithNothing) {
  EXPECT_EQ(replay(R"([{"act":"get","timeout":0.1,"expect":null}])"), "");
}

TEST(QueueReplay, GetWaitsForALaterPut) {
  EXPECT_EQ(replay(R"([{"act":"later","delay":1,"acts":[{"act":"put","closure":"a"}],"thread":"t"},
                       {"act":"get","expect":"a"},{"act":"wait_thread","of":"t","expect":true}])"),
            "");
}

TEST(QueueReplay, AFailureOnAnotherThreadIsFound) {
  EXPECT_THROW(replay(R"([{"act":"later","delay":1,"acts":[{"act":"finished"}],"thread":"t"},
                          {"act":"wait_thread","of":"t","expect":true}])"),
               Error);
}

// tf's put/wait lock: a closure that is put during a join is not part of it.
TEST(QueueReplay, APutBlocksWhileAnotherThreadJoins) {
  EXPECT_EQ(replay(R"([{"act":"put","closure":"a"},{"act":"get","expect":"a"},
      {"act":"later","delay":1,"acts":[{"act":"put","closure":"b"}],"thread":"putter"},
      {"act":"later","delay":2,"acts":[{"act":"get","timeout":0.1,"expect":null},{"act":"finished"}],"thread":"worker"},
      {"act":"join"},{"act":"wait_thread","of":"putter","expect":true},{"act":"get","expect":"b"}])"),
            "");
}

TEST(QueueReplay, AnEndMayNameAnyClosureInFlight) {
  EXPECT_EQ(replay(R"([{"act":"put","closure":"a"},{"act":"put","closure":"b"},
      {"act":"get","expect":"a"},{"act":"get","expect":"b"},{"act":"finished"},
      {"act":"put_back","closure":"a"},{"act":"get","expect":"a"},{"act":"finished"},{"act":"join"}])"),
            "");
}

}  // namespace
}  // namespace cohort::coordinator::internal
