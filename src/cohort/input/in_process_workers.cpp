// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/in_process_workers.h"

#include <map>
#include <string>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"

namespace cohort {

// The state that the workers share. Thread-safe.
class InProcessWorkers::Hub {
 public:
  explicit Hub(int num_workers)
      : num_workers_(num_workers), has_gone_(static_cast<std::size_t>(num_workers)) {}
  int num_workers() const { return num_workers_; }

  std::vector<Bytes> exchange(std::uint64_t conversation, std::uint64_t round, int worker,
                              Bytes mine, std::string_view what, Deadline deadline) {
    const Lock lock(mutex_);
    Talk& talk = talks_[conversation];
    if (!talk.missed.empty()) refuse_after_deadline(talk, what);
    Round& now = talk.rounds.try_emplace(round, Round(num_workers_)).first->second;
    now.said[static_cast<std::size_t>(worker)] = std::move(mine);
    now.num_said += 1;
    if (now.num_said == num_workers_) changed_.notify_all();
    const auto is_settled = [&]() COHORT_REQUIRES(mutex_) {
      return now.num_said == num_workers_ || !talk.missed.empty() || first_gone(talk, now) >= 0;
    };
    changed_.wait(mutex_, deadline, is_settled);
    if (now.num_said < num_workers_) {
      if (!talk.missed.empty()) refuse_after_deadline(talk, what);
      // The bytes given stay here, so that the call of a slower worker finds them.
      if (const int gone = first_gone(talk, now); gone >= 0) refuse_without(gone, what);
      give_up(talk, now, worker, what);
    }
    std::vector<Bytes> all;
    for (const std::optional<Bytes>& said : now.said) all.push_back(*said);
    now.num_heard += 1;
    if (now.num_heard == num_workers_) talk.rounds.erase(round);
    return all;
  }

  // Permanent: nobody waits for a worker that failed between two exchanges either.
  void go(int worker) {
    const Lock lock(mutex_);
    has_gone_[static_cast<std::size_t>(worker)] = true;
    changed_.notify_all();
  }

  void leave(std::uint64_t conversation, int worker) {
    const Lock lock(mutex_);
    Talk& talk = talks_[conversation];
    if (talk.has_left.empty()) talk.has_left.resize(static_cast<std::size_t>(num_workers_));
    talk.has_left[static_cast<std::size_t>(worker)] = true;
    talk.num_left += 1;
    if (talk.num_left == num_workers_) talks_.erase(conversation);
    changed_.notify_all();
  }

 private:
  struct Round {
    explicit Round(int num_workers) : said(static_cast<std::size_t>(num_workers)) {}
    std::vector<std::optional<Bytes>> said;
    int num_said = 0;
    int num_heard = 0;
  };
  struct Talk {
    std::map<std::uint64_t, Round> rounds;
    std::vector<bool> has_left;
    int num_left = 0;
    std::string missed;  // the missed deadline: who waited for whom
  };

  // A worker that left before it contributed to this round, or -1.
  int first_gone(const Talk& talk, const Round& round) const COHORT_REQUIRES(mutex_) {
    for (std::size_t i = 0; i < round.said.size(); ++i) {
      const bool has_left = has_gone_[i] || (!talk.has_left.empty() && talk.has_left[i]);
      if (has_left && !round.said[i]) return static_cast<int>(i);
    }
    return -1;
  }

  [[noreturn]] static void refuse_without(int gone, std::string_view what) {
    throw Error(ErrorCode::aborted, "[input.agree] expected worker:" + std::to_string(gone) +
                                        " to agree on " + std::string(what) +
                                        ", got the end of its iterator: all workers make the same "
                                        "steps")
        .at("worker:" + std::to_string(gone));
  }

  // `worker` would be a round ahead of the workers it waited for, so the exchange ends for all.
  [[noreturn]] void give_up(Talk& talk, const Round& round, int worker, std::string_view what)
      COHORT_REQUIRES(mutex_) {
    std::string missing;
    for (std::size_t i = 0; i < round.said.size(); ++i) {
      if (round.said[i]) continue;
      missing += (missing.empty() ? "worker:" : ", worker:") + std::to_string(i);
    }
    talk.missed = "worker:" + std::to_string(worker) + " has waited in vain for " + missing;
    changed_.notify_all();
    internal::throw_error(ErrorCode::deadline_exceeded, "[input.agree] expected all workers to ",
                          "agree on ", what, " in time, got nothing from ", missing);
  }

  [[noreturn]] static void refuse_after_deadline(const Talk& talk, std::string_view what) {
    internal::throw_error(ErrorCode::aborted, "[input.agree] expected to agree on ", what,
                          ", got the end of all workers' iterator: ", talk.missed,
                          "; begin a new one on all");
  }

  const int num_workers_;
  Mutex mutex_;
  Condition changed_;
  std::vector<bool> has_gone_ COHORT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Talk> talks_ COHORT_GUARDED_BY(mutex_);
};

// Used from one thread.
class InProcessWorkers::Conversation final : public StepAgreement {
 public:
  Conversation(std::shared_ptr<Hub> hub, std::uint64_t number, int worker)
      : hub_(std::move(hub)), number_(number), worker_(worker) {}
  ~Conversation() override { hub_->leave(number_, worker_); }
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  std::vector<Bytes> exchange(Bytes mine, std::string_view what, Deadline deadline) override {
    return hub_->exchange(number_, round_++, worker_, std::move(mine), what, deadline);
  }

 private:
  std::shared_ptr<Hub> hub_;
  std::uint64_t number_;
  int worker_;
  std::uint64_t round_ = 0;
};

// Thread-safe.
class InProcessWorkers::Group final : public WorkerGroup {
 public:
  Group(std::shared_ptr<Hub> hub, int worker) : hub_(std::move(hub)), worker_(worker) {}
  ~Group() override { hub_->go(worker_); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  int num_workers() const override { return hub_->num_workers(); }
  int worker() const override { return worker_; }
  std::unique_ptr<StepAgreement> start(std::string_view) override {
    const Lock lock(mutex_);
    return std::make_unique<Conversation>(hub_, conversations_++, worker_);
  }

 private:
  std::shared_ptr<Hub> hub_;
  int worker_;
  Mutex mutex_;
  std::uint64_t conversations_ COHORT_GUARDED_BY(mutex_) = 0;
};

InProcessWorkers::InProcessWorkers(int num_workers) {
  COHORT_CHECK(num_workers > 0, ErrorCode::invalid_argument,
               "[input.workers] expected num_workers > 0, got ", num_workers);
  hub_ = std::make_shared<Hub>(num_workers);
}

std::shared_ptr<WorkerGroup> InProcessWorkers::group(int worker) const {
  COHORT_CHECK(worker >= 0 && worker < hub_->num_workers(), ErrorCode::invalid_argument,
               "[input.workers] expected a worker in [0, ", hub_->num_workers(), "), got ", worker);
  return std::make_shared<Group>(hub_, worker);
}

}  // namespace cohort
