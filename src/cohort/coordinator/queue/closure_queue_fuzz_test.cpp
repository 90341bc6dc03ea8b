// SPDX-License-Identifier: Apache-2.0
// Random events go to the closure queue and to a naive one: both must act alike, and an observer
// that sees only the actions must find that every closure ended exactly once. A failure prints its
// seed; COHORT_FUZZ_SEED=n runs that one alone.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "cohort/coordinator/queue/naive_queue.h"
#include "cohort/testing/fuzz_range.h"

namespace cohort::coordinator::internal {
namespace {

using Where = NaiveQueue::Where;

// Derives from the actions which closures run where.
class Observer {
 public:
  explicit Observer(std::size_t slots) : slots_(slots) {}

  void accepted(ClosureId closure) { accepted_.insert(closure); }
  void lost(WorkerId worker) {
    std::erase_if(running_, [&](const auto& run) { return run.second == worker; });
  }
  void reported(ClosureId closure, WorkerId worker) {
    const auto found = running_.find(closure);
    if (found != running_.end() && found->second == worker) running_.erase(found);
  }

  // `model` only tells which workers are ready.
  void see(const Actions& actions, const NaiveQueue& model) {
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::complete || action.kind == Action::Kind::fail) {
        EXPECT_TRUE(ended_.insert(action.closure).second) << action.closure << " ended twice";
        running_.erase(action.closure);
      }
      if (action.kind == Action::Kind::recover_worker) lost(action.worker);
      if (action.kind != Action::Kind::dispatch) continue;
      EXPECT_TRUE(model.is_ready(action.worker)) << "sent to a lost worker";
      EXPECT_TRUE(running_.emplace(action.closure, action.worker).second) << "runs twice";
      EXPECT_EQ(ended_.count(action.closure), 0) << "runs after its end";
      const auto load = std::count_if(running_.begin(), running_.end(),
                                      [&](const auto& run) { return run.second == action.worker; });
      EXPECT_LE(static_cast<std::size_t>(load), slots_);
    }
  }

  std::size_t running() const { return running_.size(); }
  bool have_all_ended() const { return ended_ == accepted_; }
  ClosureId low_watermark() const {
    for (const ClosureId closure : accepted_) {
      if (!ended_.count(closure)) return closure;
    }
    return accepted_.empty() ? 0 : *accepted_.rbegin() + 1;
  }

 private:
  std::size_t slots_;
  std::set<ClosureId> accepted_;
  std::set<ClosureId> ended_;
  std::map<ClosureId, WorkerId> running_;
};

class FuzzRun {
 public:
  explicit FuzzRun(std::uint64_t seed)
      : random_(seed),
        workers_(1 + pick(4)),
        options_(random_options()),
        queue_(options_, workers_),
        model_(options_, workers_),
        observer_(options_.in_flight_per_worker) {}

  void run() {
    const std::size_t events = 20 + pick(300);
    for (std::size_t i = 0; i < events && !::testing::Test::HasFailure(); ++i) random_event();
    if (!::testing::Test::HasFailure()) finish();
  }

 private:
  std::size_t pick(std::size_t below) { return random_() % below; }
  template <class T>
  T one_of(const std::vector<T>& values) {
    return values[pick(values.size())];
  }

  QueueOptions random_options() {
    QueueOptions options;
    options.capacity = one_of<std::size_t>({0, 1, 2, 5, 20, 32});
    options.in_flight_per_worker = 1 + pick(5);
    options.max_attempts = one_of<std::uint32_t>({1, 2, 5, 100});
    options.failures.ps_failures_max = one_of<int>({0, 1, 3});
    options.failures.timeouts_max = one_of<int>({-1, 0, 1, 3});
    options.failures.same_event = one_of<Duration>({Duration::zero(), std::chrono::seconds(1)});
    return options;
  }

  // Shortens messages that the naive queue does not compose.
  static std::string outcome_of(const Verdict& verdict) {
    const std::string word = word_of(verdict);
    if (word.find("one that was stopped") != std::string::npos) return "raise stopped";
    return word.find("was started") == std::string::npos ? word : "raise started too often";
  }

  void random_event() {
    if (pick(1000) == 0) return stop();
    const std::size_t dice = pick(100);
    if (dice < 5) return put_on(static_cast<WorkerId>(pick(workers_)));
    if (dice < 6) return withdraw(one_to_withdraw());
    if (dice < 7) return expire(one_to_withdraw());
    if (dice < 30) return put();
    if (dice < 34) return join();
    if (dice < 38) return done();
    if (dice < 43) return ready(static_cast<WorkerId>(pick(workers_)));
    if (dice < 46) return lost(static_cast<WorkerId>(pick(workers_)));
    if (dice < 52) return trace(pick(6) == 0);
    if (dice < 54) return advance();
    if (dice < 56) return limit(static_cast<WorkerId>(pick(workers_)));
    if (dice < 59) return end(pick(next_ + 2), static_cast<WorkerId>(pick(workers_)), random_end());
    const std::vector<ClosureId> running = model_.at(Where::running);
    if (running.empty()) return;
    const ClosureId closure = one_of(running);
    end(closure, model_.worker_of(closure), random_end());
  }

  Ended random_end() {
    const std::size_t dice = pick(100);
    Ended end;
    if (dice < 60) return end;
    if (dice < 70) end.kind = Ended::Kind::needs_program;
    if (dice >= 70 && dice < 78) end.kind = Ended::Kind::cancelled;
    if (dice < 78) return end;
    end.kind = Ended::Kind::failed;
    end.error = random_error();
    return end;
  }

  // An error of every row of the failure policy, and some that resemble one.
  Error random_error() {
    const std::string ps = "ps:" + std::to_string(pick(2));
    const std::string message = "E" + std::to_string(pick(1000));
    const std::size_t dice = pick(24);
    if (dice < 7) return connection_lost(ps);
    if (dice < 8) return Error(ErrorCode::aborted, message).at(ps);
    if (dice < 9) return Error(ErrorCode::unavailable, message, ErrorCause::application).at(ps);
    if (dice < 12) return connection_lost("worker:1");
    if (dice < 13) return Error(ErrorCode::cancelled, message).at("worker:1");
    if (dice < 15)
      return Error(ErrorCode::cancelled, message, ErrorCause::cancelled_by_job).at("worker:1");
    if (dice < 16) return Error(ErrorCode::cancelled, message);
    if (dice < 19) return Error(ErrorCode::deadline_exceeded, message).at(ps);
    if (dice < 20) return Error(ErrorCode::deadline_exceeded, message).at("worker:1");
    if (dice < 21) return Error(ErrorCode::deadline_exceeded, message, ErrorCause::application);
    return bad_value(message);
  }

  // Within one event, to its end, or far beyond.
  void advance() {
    const std::vector<Duration> steps = {std::chrono::milliseconds(400), std::chrono::seconds(1),
                                         std::chrono::minutes(pick(8))};
    now_ += one_of(steps);
  }

  void stop() {
    queue_.stop(actions_);
    model_.stop();
    check("stop");
    EXPECT_EQ(queue_.queued() + queue_.in_flight(), 0);
  }

  void put() {
    // Gaps between ids are allowed.
    if (!is_putting_) next_ += pick(10) == 0 ? pick(4) : 0;
    if (!is_putting_) priority_ = random_priority();
    const std::string verdict = outcome_of(queue_.put(next_, actions_, priority_));
    EXPECT_EQ(verdict, model_.put(next_, priority_));
    if (verdict == "wait") {
      is_putting_ = is_put_waiting_ = true;
      if (was_cancelled_with(next_)) observer_.accepted(next_);
    } else if (verdict != "trace") {
      if (verdict != "raise stopped") observer_.accepted(next_);
      ++next_;
      is_putting_ = is_put_waiting_ = false;
    }
    check("put");
  }

  void put_on(WorkerId worker) {
    if (is_putting_ || queue_.has_error()) return;
    const std::int32_t priority = random_priority();
    const std::string verdict = outcome_of(queue_.put_on(worker, next_, actions_, priority));
    EXPECT_EQ(verdict, model_.put_on(worker, next_, priority));
    if (verdict != "raise stopped") observer_.accepted(next_++);
    check("put_on");
  }

  // Prefers a closure that waits for a program or a slot, which is rare.
  ClosureId one_to_withdraw() {
    const std::vector<ClosureId> held = model_.at(pick(2) == 0 ? Where::parked : Where::traced);
    return held.empty() || pick(2) == 0 ? pick(next_ + 2) : one_of(held);
  }

  void withdraw(ClosureId closure) {
    queue_.withdraw(closure, actions_);
    model_.withdraw(closure);
    check("withdraw");
  }

  void expire(ClosureId closure) {
    const Error late(ErrorCode::deadline_exceeded, "late " + std::to_string(closure));
    queue_.expire(closure, late, actions_);
    model_.expire(closure, late);
    check("expire");
  }

  // Mostly the usual one.
  std::int32_t random_priority() {
    return one_of<std::int32_t>({0, 0, 0, 0, 1, -1, std::numeric_limits<std::int32_t>::min(),
                                 std::numeric_limits<std::int32_t>::max()});
  }

  // A put may wait although its closure was accepted: the watermark does not show it, the count
  // does.
  bool was_cancelled_with(ClosureId closure) {
    const std::vector<ClosureId> queued = model_.at(Where::queued);
    return std::find(queued.begin(), queued.end(), closure) != queued.end();
  }

  void join() {
    const std::string verdict = outcome_of(queue_.join(actions_));
    EXPECT_EQ(verdict, model_.join());
    is_join_waiting_ = verdict == "wait";
    check("join");
    EXPECT_TRUE(verdict != "proceed" || observer_.have_all_ended()) << "join left work";
    EXPECT_TRUE(verdict.rfind("raise", 0) != 0 || observer_.running() == 0) << "raised too early";
  }

  void done() {
    EXPECT_EQ(outcome_of(queue_.done(actions_)), model_.done());
    check("done");
  }

  void ready(WorkerId worker) {
    queue_.worker_ready(worker, actions_);
    model_.ready(worker);
    check("ready");
  }

  void lost(WorkerId worker) {
    queue_.worker_lost(worker, connection_lost("worker"), actions_);
    model_.lost(worker);
    observer_.lost(worker);
    check("lost");
  }

  void limit(WorkerId worker) {
    const std::size_t limit = 1 + pick(options_.in_flight_per_worker);
    queue_.set_in_flight(worker, limit, actions_);
    model_.set_in_flight(worker, limit);
    check("limit");
  }

  void end(ClosureId closure, WorkerId worker, Ended end) {
    end.closure = closure;
    end.worker = worker;
    observer_.reported(closure, worker);
    queue_.ended(end, now_, actions_);
    model_.ended(closure, worker, end.kind, end.error, now_);
    check("ended");
  }

  void trace(bool fails) {
    const std::vector<ClosureId> parked = model_.at(Where::parked);
    const ClosureId closure = parked.empty() || pick(8) == 0 ? pick(next_ + 1) : one_of(parked);
    if (fails) {
      queue_.program_failed(closure, bad_value("trace"), actions_);
      model_.not_traced(closure, bad_value("trace"));
    } else {
      queue_.program_ready(closure, actions_);
      model_.traced(closure);
    }
    check("traced");
  }

  void check(const std::string& event) {
    Lines lines = lines_of(actions_);
    const bool has_woken = std::erase(lines, "wake") > 0;
    std::sort(lines.begin(), lines.end());
    EXPECT_EQ(lines, model_.taken()) << event;
    observer_.see(actions_, model_);
    actions_.clear();
    EXPECT_EQ(queue_.queued(), model_.count(Where::queued)) << event;
    EXPECT_EQ(queue_.in_flight(), model_.in_flight()) << event;
    EXPECT_EQ(queue_.has_error(), model_.has_error()) << event;
    EXPECT_EQ(queue_.low_watermark(), model_.low_watermark()) << event;
    EXPECT_EQ(queue_.low_watermark(), observer_.low_watermark()) << event;
    std::vector<ClosureId> waiting = queue_.waiting_for_program();
    std::sort(waiting.begin(), waiting.end());
    EXPECT_EQ(waiting, model_.at(Where::parked)) << event;
    check_wakes(has_woken, event);
  }

  // A waiting call must have been woken if its verdict has changed.
  void check_wakes(bool has_woken, const std::string& event) {
    if (has_woken) is_put_waiting_ = is_join_waiting_ = false;
    EXPECT_TRUE(!is_join_waiting_ || model_.would_wait_to_join()) << event << ": join sleeps";
    const bool has_room = model_.count(Where::queued) + options_.capacity / 16 < options_.capacity;
    EXPECT_TRUE(!is_put_waiting_ || !has_room || model_.would_wait_to_put(next_))
        << event << ": put sleeps";
  }

  // Ends all closures with success.
  void finish() {
    for (WorkerId worker = 0; worker < workers_; ++worker) ready(worker);
    for (int round = 0; round < 5000 && !::testing::Test::HasFailure(); ++round) {
      if (is_putting_) put();
      for (const ClosureId closure : model_.at(Where::parked)) {
        queue_.program_ready(closure, actions_);
        model_.traced(closure);
        check("traced");
      }
      const std::vector<ClosureId> running = model_.at(Where::running);
      if (!running.empty()) end(running.front(), model_.worker_of(running.front()), {});
      join();
      if (!is_putting_ && queue_.queued() + queue_.in_flight() == 0) break;
    }
    EXPECT_TRUE(observer_.have_all_ended());
    EXPECT_EQ(observer_.running(), 0);
    queue_.join(actions_);  // an error may be left to raise
    EXPECT_EQ(queue_.done(actions_).kind, Verdict::Kind::proceed);
  }

  std::mt19937_64 random_;
  std::size_t workers_;
  QueueOptions options_;
  ClosureQueue queue_;
  NaiveQueue model_;
  Observer observer_;
  TimePoint now_;
  Actions actions_;
  ClosureId next_ = 0;
  std::int32_t priority_ = 0;  // of the put that was told to wait
  bool is_putting_ = false;    // put(next_) was told to wait
  bool is_put_waiting_ = false;
  bool is_join_waiting_ = false;
};

TEST(ClosureQueueFuzz, DoesWhatANaiveQueueDoes) {
  const testing::FuzzRange range = testing::fuzz_range(3000);
  for (std::uint64_t seed = range.first; seed < range.first + range.count && !HasFailure();
       ++seed) {
    SCOPED_TRACE("COHORT_FUZZ_SEED=" + std::to_string(seed));
    FuzzRun(seed).run();
  }
}

}  // namespace
}  // namespace cohort::coordinator::internal
