// SPDX-License-Identifier: Apache-2.0
// The steps `queue` and `q`: the table of the coordinator's queue, which is a pure state machine.
//
// The threads of a case are simulated: each is a list of acts, and an act that would block is tried
// again after every act of another thread. The simulated time advances when no thread can act.
#include <algorithm>
#include <optional>
#include <set>

#include "cohort/coordinator/closure_table.h"
#include "cohort/core/error.h"
#include "tests/conformance/strategy_outcome.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

using coordinator::Action;
using coordinator::Actions;
using coordinator::ClosureId;
using QueueVerdict = coordinator::Verdict;  // the runner has a Verdict of its own
using coordinator::WorkerId;
using coordinator::internal::ClosureTable;

constexpr std::size_t kCapacity = 256 * 1024;
constexpr std::size_t kWorkers = 64;

// The result of an act: a value, or the error with which it failed.
struct Given {
  Json value;
  std::optional<Error> error;
};
using Attempt = std::optional<Given>;  // nothing: it would block

struct ActingThread {
  std::string name;
  Json acts;
  double start = 0;
  std::size_t position = 0;
  std::optional<double> blocked_since;
  std::string failure;  // the first difference from what an act expects
  bool is_finished() const { return position >= acts.size() || !failure.empty(); }
};

Error error_in(const Json& act) {
  const auto kind = member_or<std::string>(act, "kind", "ValueError");
  const std::string name = kind == "OpError" ? member(act, "code").get<std::string>() : kind;
  return Error(code_of_kind(name), member_or<std::string>(act, "msg", ""));
}

// The queue of a case.
class QueueOfCase {
 public:
  void make(std::size_t capacity) { table_ = std::make_unique<ClosureTable>(capacity, kWorkers); }
  // Does an act of the case's own thread. Throws the error with which it fails, and a CaseFault if
  // it would block for ever.
  Json do_act(const Json& act) {
    if (table_ == nullptr) throw CaseFault("the case has no queue");
    main_.blocked_since.reset();
    while (true) {
      const Attempt given = attempt_or_time_out(main_, act);
      if (!given) {
        if (advance_others() || advance_time(act)) continue;
        throw CaseFault("this would block for ever: " + act.dump());
      }
      if (given->error) throw *given->error;
      return given->value;
    }
  }

 private:
  // --- threads and time

  // Attempts the act; if it would block, and its time is over, gives what it then returns.
  Attempt attempt_or_time_out(ActingThread& thread, const Json& act) {
    Attempt given = attempt(thread, act);
    if (!given) {
      if (!thread.blocked_since) thread.blocked_since = now_;
      const std::optional<double> end = end_of(thread, act);
      if (!end || now_ < *end) return std::nullopt;
      given = timed_out(act);
    }
    if (caller_ == &thread) caller_ = nullptr;
    thread.blocked_since.reset();
    return given;
  }

  // When the act that blocks the thread times out.
  static std::optional<double> end_of(const ActingThread& thread, const Json& act) {
    if (!thread.blocked_since || !act.contains("timeout") || !act["timeout"].is_number()) {
      return std::nullopt;
    }
    return *thread.blocked_since + act["timeout"].get<double>();
  }

  static Given timed_out(const Json& act) {
    if (act["act"] == "get") return {};
    if (act["act"] == "fetch") return {{}, Error(ErrorCode::deadline_exceeded, "timed out")};
    return {false, {}};
  }

  bool advance_others() {
    bool has_advanced = false;
    for (std::size_t i = 0; i < threads_.size(); ++i) {  // acts may add threads
      if (threads_[i]->start > now_) continue;
      while (advance(*threads_[i])) has_advanced = true;
    }
    return has_advanced;
  }

  // Whether the thread did its next act.
  bool advance(ActingThread& thread) {
    if (thread.is_finished()) return false;
    const Json act = thread.acts[thread.position];
    const Attempt given = attempt_or_time_out(thread, act);
    if (!given) return false;
    Outcome outcome{given->value, {}};
    if (given->error) {
      try {
        throw *given->error;
      } catch (...) {
        outcome.error = caught_error_json()["error"];
      }
    }
    thread.failure = difference(act, outcome, 0);
    ++thread.position;
    return true;
  }

  // Advances to the next moment at which something can happen; false if there is none.
  bool advance_time(const Json& main_act) {
    std::optional<double> next;
    const auto consider = [&](std::optional<double> time) {
      if (time && *time > now_ && (!next || *time < *next)) next = time;
    };
    consider(end_of(main_, main_act));
    for (const auto& thread : threads_) {
      consider(thread->start);
      if (!thread->is_finished()) consider(end_of(*thread, thread->acts[thread->position]));
    }
    if (next) now_ = *next;
    return next.has_value();
  }

  // --- acts

  Attempt attempt(ActingThread& thread, const Json& act) {
    const auto what = member(act, "act").get<std::string>();
    if (what == "later") return start_thread(act);
    if (what == "wait_thread") return wait_for_thread(act);
    if (what == "put") return put(thread, act);
    if (what == "get") return get(act);
    if (what == "finished" || what == "put_back" || what == "failed") return end(what, act);
    if (what == "join") return join(thread);
    if (what == "done") return done();
    if (what == "fetch") return fetch(act);
    if (what == "inflight") return Given{table_->in_flight(), {}};
    if (what == "cancelled") return Given{is_cancelled(member(act, "closure")), {}};
    if (what == "mark_error") {
      results_[member(act, "closure")] = {{}, error_in(act)};
      return Given{};
    }
    throw CaseFault("unknown act " + act.dump());
  }

  Attempt start_thread(const Json& act) {
    auto thread = std::make_unique<ActingThread>();
    thread->name = member_or<std::string>(act, "thread", "");
    thread->acts = member(act, "acts");
    thread->start = now_ + member_or(act, "delay", 0.0);
    threads_.push_back(std::move(thread));
    return Given{};
  }

  Attempt wait_for_thread(const Json& act) {
    for (const auto& thread : threads_) {
      if (thread->name != member(act, "of")) continue;
      if (!thread->failure.empty()) throw CaseFault("another thread: " + thread->failure);
      if (!thread->is_finished()) return std::nullopt;
      return Given{true, {}};
    }
    throw CaseFault("no thread " + act.dump());
  }

  Attempt put(ActingThread& thread, const Json& act) {
    const auto name = member(act, "closure").get<std::string>();
    if (has_tag(act)) {
      names_[next_id_] = name;
      resources_.insert(name);
      table_->put_resource(worker_of(act), next_id_++);
      return Given{};
    }
    // tf's put/wait lock.
    if (caller_ != nullptr && caller_ != &thread) return std::nullopt;
    if (caller_ != &thread) {  // not tried before
      caller_ = &thread;
      ids_[name] = next_id_;
      names_[next_id_++] = name;
      tokens_[name] = cancellations_;
    }
    count_cancellation();
    return asked(table_->put(ids_[name], actions_));
  }

  Attempt get(const Json& act) {
    const std::size_t before = table_->in_flight();
    const std::optional<ClosureId> closure = table_->get(worker_of(act), actions_);
    follow();
    if (!closure) return std::nullopt;
    if (table_->in_flight() > before) in_flight_.push_back(*closure);
    return Given{names_.at(*closure), {}};
  }

  Attempt join(ActingThread& thread) {
    if (caller_ != nullptr && caller_ != &thread) return std::nullopt;
    caller_ = &thread;
    count_cancellation();
    return asked(table_->join(actions_));
  }

  Attempt done() {
    count_cancellation();
    return asked(table_->done(actions_));
  }

  Attempt asked(const QueueVerdict& verdict) {
    follow();
    if (verdict.kind == QueueVerdict::Kind::wait) return std::nullopt;
    return Given{verdict.kind == QueueVerdict::Kind::proceed, verdict.error};
  }

  Attempt end(const std::string& what, const Json& act) {
    const ClosureId closure = leave_flight(act);
    try {
      if (what == "finished") table_->finished(closure, actions_);
      if (what == "put_back") table_->put_back(closure, ClosureTable::Place::tail, actions_);
      if (what == "failed") table_->failed(closure, error_in(act), actions_);
    } catch (const Error& error) {
      return Given{{}, error};
    }
    follow(what == "failed" ? std::optional(closure) : std::nullopt);
    return Given{};
  }

  Attempt fetch(const Json& act) {
    const auto result = results_.find(member(act, "closure"));
    if (result == results_.end()) return std::nullopt;
    return result->second;
  }

  // --- bookkeeping

  // Counts a cancel-all: the next call performs it if it sees an error first.
  void count_cancellation() {
    if (table_->has_error() && !table_->is_cancelling()) ++cancellations_;
  }
  bool is_cancelled(const std::string& closure) const {
    const auto token = tokens_.find(closure);
    return !resources_.contains(closure) && token != tokens_.end() &&
           token->second < cancellations_;
  }

  // The recorded acts only count closures, and often name none, so any closure in flight may be
  // taken for the named one. If that closure has another name already, the two swap names.
  ClosureId leave_flight(const Json& act) {
    const auto name = member_or<std::string>(act, "closure", "");
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

  // The error of `failed` is not the result of its closure: acts set that with mark_error.
  void follow(std::optional<ClosureId> failed = {}) {
    for (const Action& action : actions_) {
      if (action.kind == Action::Kind::complete) results_[names_.at(action.closure)] = {};
      if (action.kind != Action::Kind::fail || action.closure == failed) continue;
      results_[names_.at(action.closure)] = {{}, action.error};
    }
    actions_.clear();
  }

  static bool has_tag(const Json& act) { return act.contains("tag") && !act["tag"].is_null(); }
  // Acts without a tag belong to worker 0.
  WorkerId worker_of(const Json& act) {
    if (!has_tag(act)) return 0;
    return tags_.emplace(act["tag"].dump(), static_cast<WorkerId>(tags_.size() + 1)).first->second;
  }

  std::unique_ptr<ClosureTable> table_;
  Actions actions_;
  ActingThread main_;
  std::vector<std::unique_ptr<ActingThread>> threads_;
  const ActingThread* caller_ = nullptr;  // the thread in schedule or join
  double now_ = 0;
  ClosureId next_id_ = 1;
  std::map<std::string, ClosureId> ids_;
  std::map<ClosureId, std::string> names_;
  std::vector<ClosureId> in_flight_;
  std::map<std::string, Given> results_;
  std::set<std::string> resources_;
  std::map<std::string, WorkerId> tags_;
  // How often all was cancelled. Each closure keeps the value of its put as a token.
  int cancellations_ = 0;
  std::map<std::string, int> tokens_;
};

Value make_queue(const Step& step) {
  step.test.kept<QueueOfCase>().make(member_or(step.json, "capacity", kCapacity));
  return {};
}

Value act_on_queue(const Step& step) {
  return Value::of_json(step.test.kept<QueueOfCase>().do_act(step.json));
}

}  // namespace

const StepTable& queue_steps() {
  static const StepTable table = {
      {"queue", {make_queue, {"capacity"}, false}},
      {"q",
       {act_on_queue,
        {"act", "closure", "tag", "timeout", "kind", "msg", "code", "delay", "acts", "thread",
         "of"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
