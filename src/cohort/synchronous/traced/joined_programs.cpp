// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/traced/joined_programs.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/replicas/compute_share.h"
#include "cohort/replicas/replica_random.h"
#include "cohort/synchronous/mirrored/central_copies.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"

namespace cohort::internal {
namespace {

// How many times the sizes in all_gather() are compared; where they differ, programs are traced
// again.
constexpr int kGatherRounds = 8;

// The numbers of the calls that all replicas make together.
std::vector<std::size_t> calls_of_all(const ReplicaProgram& program) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < program.calls().size(); ++i) {
    if (program.calls()[i]->is_of_all()) numbers.push_back(i);
  }
  return numbers;
}

const StepCall& call_of(const ReplicaProgram& program, const std::vector<std::size_t>& numbers,
                        std::size_t meeting) {
  return *program.calls()[numbers[meeting]];
}

// Throws unless all replicas make the same calls in the same order.
void check_same_calls(const ReplicaPrograms& members,
                      const std::vector<std::vector<std::size_t>>& numbers) {
  for (std::size_t r = 1; r < members.size(); ++r) {
    const std::size_t common = std::min(numbers[0].size(), numbers[r].size());
    for (std::size_t i = 0; i < common; ++i) {
      const std::string first = call_of(*members[0], numbers[0], i).text();
      const std::string other = call_of(*members[r], numbers[r], i).text();
      COHORT_CHECK(first == other, ErrorCode::invalid_argument,
                   "[strategy.function] expected the same calls in all replicas, got ", first,
                   " as call ", i, " of replica 0 and ", other, " of replica ", r);
    }
    COHORT_CHECK(
        numbers[0].size() == numbers[r].size(), ErrorCode::failed_precondition,
        "[strategy.function] expected the same number of calls that replicas make together "
        "(updates, all_reduce(), assignments that are aggregated), got ",
        numbers[0].size(), " in replica 0 and ", numbers[r].size(), " in replica ", r,
        "; let all replicas make the same calls");
  }
}

// The sizes of all replicas' parts in each all_gather() of the step. Throws failed_precondition if
// the replicas do not make as many.
std::vector<GatherSizes> gather_sizes_of(const ReplicaPrograms& members) {
  std::vector<GatherSizes> sizes(members.front()->gathered().size());
  for (std::size_t r = 0; r < members.size(); ++r) {
    const std::vector<std::int64_t>& own = members[r]->gathered();
    COHORT_CHECK(own.size() == sizes.size(), ErrorCode::failed_precondition,
                 "[strategy.all_gather] expected as many calls in all replicas, got ", sizes.size(),
                 " in replica 0 and ", own.size(), " in replica ", r,
                 "; let all replicas make the same calls");
    for (std::size_t i = 0; i < own.size(); ++i) sizes[i].push_back(own[i]);
  }
  return sizes;
}

// For comparison with other workers: the calls that all replicas make together, a line each, and
// the sums of their numbers. Throws as JoinedPrograms() does if replicas make other calls.
struct StepCalls {
  std::string text;
  std::vector<std::int64_t> counts;
};
StepCalls step_calls_of(const ReplicaPrograms& members) {
  std::vector<std::vector<std::size_t>> numbers;
  for (const auto& member : members) numbers.push_back(calls_of_all(*member));
  check_same_calls(members, numbers);
  StepCalls calls;
  for (std::size_t i = 0; i < numbers[0].size(); ++i) {
    const StepCall& first = call_of(*members[0], numbers[0], i);
    calls.text += "\n" + first.text_over_workers();
    std::int64_t& sum = calls.counts.emplace_back(0);
    for (std::size_t r = 0; r < members.size(); ++r)
      sum += call_of(*members[r], numbers[r], i).count();
  }
  return calls;
}

// A call whose changes of central values are sent later.
class LaterCall final : public JoinedCall {
 public:
  explicit LaterCall(std::shared_ptr<const JoinedCall> call) : call_(std::move(call)) {}
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    const CentralCopies::Later later;
    return call_->run(replica, std::move(values));
  }

 private:
  const std::shared_ptr<const JoinedCall> call_;
};

}  // namespace

JoinedPrograms::JoinedPrograms(ReplicaPrograms members, MirroredHome* home,
                               const std::vector<std::int64_t>& of_others)
    : members_(std::move(members)), home_(home), calls_(members_.size()) {
  std::vector<std::vector<std::size_t>> numbers;
  for (const auto& member : members_) {
    numbers.push_back(calls_of_all(*member));
    is_random_ = is_random_ || member->is_random();
    if (!member->writes()) continue;
    for (const Variable& each : member->variables()) used_.insert(&target_of(each).variable);
  }
  check_same_calls(members_, numbers);
  meetings_ = numbers[0].size();
  for (std::size_t r = 0; r < members_.size(); ++r) {
    calls_[r].resize(members_[r]->calls().size());
    for (std::size_t i = 0; i < calls_[r].size(); ++i) {
      const StepCall* const call = members_[r]->calls()[i].get();
      if (!call->is_of_all()) calls_[r][i] = call->join({call});
    }
  }
  for (std::size_t i = 0; i < meetings_; ++i) {
    std::vector<const StepCall*> all;
    for (std::size_t r = 0; r < members_.size(); ++r)
      all.push_back(&call_of(*members_[r], numbers[r], i));
    const std::shared_ptr<const JoinedCall> joined =
        all.front()->join_over_workers(all, of_others[i]);
    for (std::size_t r = 0; r < members_.size(); ++r) calls_[r][numbers[r][i]] = joined;
  }
  if (members_.size() == 1) {
    send_later();
    return;
  }
  for (const auto& member : members_) {
    for (const Variable& variable : member->written_variables()) {
      const MirroredVariable& mirrored = target_of(variable).variable;
      for (std::size_t i = 0; i < members_.size(); ++i)
        written_.emplace(mirrored.component(i).storage().unsafeGetStorageImpl(), variable.name());
    }
  }
}

// With several replicas, one of them changes the values on a thread of its own.
void JoinedPrograms::send_later() {
  if (home_ == nullptr || home_->central() == nullptr) return;
  for (std::size_t i = 0; i < calls_[0].size(); ++i)
    if (members_[0]->may_change_later(i)) calls_[0][i] = std::make_shared<LaterCall>(calls_[0][i]);
}

void JoinedPrograms::check_arguments(const std::vector<std::vector<Nest>>& arguments) const {
  if (written_.empty()) return;
  const auto check = [&](const at::Tensor& tensor, std::size_t number) {
    if (StringTensor::is(tensor) || !tensor.has_storage()) return;
    const auto found = written_.find(tensor.storage().unsafeGetStorageImpl());
    COHORT_CHECK(found == written_.end(), ErrorCode::invalid_argument,
                 "[strategy.function] expected arguments with memory of their own, got the tensor "
                 "of variable '",
                 found->second, "', which the step changes, as argument ", number,
                 ": a replica would change it while another one reads; call tensor() in the step, "
                 "or pass clone() of it");
  };
  for (const std::vector<Nest>& own : arguments) {
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (own[i].is_tensor()) {
        check(own[i].tensor(), i);
      } else {
        for (const at::Tensor& tensor : own[i].flatten_tensors()) check(tensor, i);
      }
    }
  }
}

bool JoinedPrograms::are_current() const {
  return std::ranges::all_of(members_, [](const auto& member) {
    return member->freshness() == function::Freshness::current;
  });
}

bool JoinedPrograms::write() const {
  return std::ranges::any_of(members_, [](const auto& member) { return member->writes(); });
}

std::unique_ptr<StepRun> JoinedPrograms::take() const {
  {
    const Lock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<StepRun> run = std::move(idle_.back());
      idle_.pop_back();
      return run;
    }
  }
  return std::make_unique<StepRun>(members_.size(), meetings_);
}

void JoinedPrograms::give_back(std::unique_ptr<StepRun> run) const {
  run->end();
  const Lock lock(mutex_);
  idle_.push_back(std::move(run));
}

std::vector<Nest> JoinedPrograms::run(ReplicaThreads* threads,
                                      const std::vector<std::vector<Nest>>& arguments) const {
  check_arguments(arguments);
  std::unique_ptr<StepRun> run = take();
  run->begin();
  std::vector<Nest> results(members_.size());
  std::optional<RunSeed> seed;
  const bool has_workers = home_ != nullptr && home_->has_workers();
  const int first = has_workers ? home_->first_replica() : 0;
  // Replicas of other workers may draw where none does so here.
  if (has_workers || (is_random_ && members_.size() > 1)) seed.emplace();
  const auto run_one = [&](std::size_t r) {
    std::optional<std::uint64_t> own;
    if (seed && members_[r]->is_random()) own = seed->of(first + static_cast<int>(r));
    results[r] = members_[r]->run(*run, r, calls_[r], arguments[r], own);
  };
  if (members_.size() == 1) {
    run_one(0);
  } else {
    const auto count = static_cast<int>(members_.size());
    const int threads_of_each = ComputeShare::of_replica(count);
    const ComputeShare share(threads_of_each);
    threads->run(count, [&](int replica) {
      const ComputeShare::OfThread threads_here(threads_of_each);
      const auto r = static_cast<std::size_t>(replica);
      try {
        run_one(r);
      } catch (...) {
        run->fail(r, std::current_exception());
      }
    });
    run->rethrow_error();
  }
  give_back(std::move(run));
  return results;
}

std::vector<Bytes> exchanged(StrategyWorkers* workers, std::string_view text,
                             const std::function<StrategyWorkers::Message()>& make) {
  if (workers == nullptr || !workers->are_several()) return {make().bytes};
  return workers->exchange({.call = "function", .text = text, .combines = false}, make);
}

std::shared_ptr<const JoinedPrograms> joined(ReplicaPrograms members, MirroredHome* home,
                                             const std::string& name, const TraceAgain& trace) {
  StrategyWorkers* const workers = home == nullptr ? nullptr : home->workers();
  bool are_all_settled = false;
  for (int round = 0; round < kGatherRounds && !are_all_settled; ++round) {
    std::vector<GatherSizes> sizes;
    const auto make = [&]() -> StrategyWorkers::Message {
      const std::vector<GatherSizes> own = gather_sizes_of(members);
      ByteWriter writer;
      for (const GatherSizes& each : own) writer.sizes(each);
      sizes.resize(own.size());
      return {std::to_string(own.size()) + " calls of all_gather()", writer.take()};
    };
    for (const Bytes& bytes : exchanged(workers, "", make)) {
      ByteReader reader(bytes, "function");
      for (GatherSizes& each : sizes) {
        const std::vector<std::int64_t> of_worker = reader.sizes();
        each.insert(each.end(), of_worker.begin(), of_worker.end());
      }
    }
    const auto settle = [&]() -> StrategyWorkers::Message {
      std::uint8_t is_settled = 1;
      for (std::size_t r = 0; r < members.size(); ++r) {
        if (members[r]->assumed_gathers() == sizes) continue;
        is_settled = 0;
        members[r] = trace(r, sizes);
      }
      ByteWriter writer;
      writer.u8(is_settled);
      return {"sizes in all_gather()", writer.take()};
    };
    are_all_settled = true;
    for (const Bytes& bytes : exchanged(workers, "", settle))
      are_all_settled = are_all_settled && ByteReader(bytes, "function").u8() != 0;
  }
  COHORT_CHECK(are_all_settled, ErrorCode::unimplemented, "[strategy.all_gather] expected at most ",
               kGatherRounds, " calls one after the other whose sizes depend on each other in '",
               name, "'; call run() in place of function()");
  std::vector<std::int64_t> of_others;
  const auto make = [&]() -> StrategyWorkers::Message {
    const StepCalls calls = step_calls_of(members);
    ByteWriter writer;
    writer.sizes(calls.counts);
    of_others.assign(calls.counts.size(), 0);
    return {"a step of function() with these calls" + calls.text, writer.take()};
  };
  const std::vector<Bytes> all = exchanged(workers, "", make);
  for (std::size_t worker = 0; worker < all.size(); ++worker) {
    const std::vector<std::int64_t> counts = ByteReader(all[worker], "function").sizes();
    if (static_cast<int>(worker) == (workers == nullptr ? 0 : workers->own())) continue;
    for (std::size_t i = 0; i < of_others.size(); ++i) of_others[i] += counts.at(i);
  }
  return std::make_shared<const JoinedPrograms>(std::move(members), home, of_others);
}

}  // namespace cohort::internal
