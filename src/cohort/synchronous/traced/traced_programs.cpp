// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/traced/traced_programs.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>

#include "cohort/core/call_site.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/task_progress.h"
#include "cohort/function/trace.h"
#include "cohort/strategy/contexts.h"
#include "cohort/synchronous/mirrored/central_copies.h"
#include "cohort/synchronous/traced/joined_programs.h"

namespace cohort::internal {
namespace {

// After this many traces of one step its signature probably changes all the time.
constexpr std::size_t kTracesBeforeWarning = 5;
// Programs kept for each replica, and joined programs; a new one replaces the least recently used.
constexpr std::size_t kProgramsMax = 32;
using Arguments = std::vector<std::vector<Nest>>;

// The arguments of a step, for errors in it. Used only from the thread that calls it.
class ArgumentsOfStep final : public RunArguments {
 public:
  explicit ArgumentsOfStep(const std::vector<std::vector<Nest>>& arguments)
      : RunArguments(arguments.size()), arguments_(arguments) {}

 private:
  void add_tensors(std::size_t replica, std::vector<at::Tensor>& tensors) const override {
    for (const Nest& each : arguments_[replica]) add(each, tensors);
  }
  // The arguments are of each replica already: a plain tensor is the same one in all. Numbers do
  // not count, which become tensors in each.
  bool is_distributed() const override {
    const auto are_one = [](const at::Tensor& a, const at::Tensor& b) {
      const bool are_numbers = a.defined() && b.defined() && a.dim() == 0 && b.dim() == 0;
      return are_numbers || a.is_same(b);
    };
    const std::vector<Nest>& first = arguments_[0];
    for (std::size_t replica = 1; replica < arguments_.size(); ++replica) {
      for (std::size_t i = 0; i < first.size(); ++i) {
        const std::vector<at::Tensor> a = first[i].flatten_tensors();
        const std::vector<at::Tensor> b = arguments_[replica][i].flatten_tensors();
        if (!std::ranges::equal(a, b, are_one)) return true;
      }
    }
    return false;
  }

  const std::vector<std::vector<Nest>>& arguments_;
};

// For the default strategy, which has no variables.
TraceMutex& mutex_without_variables() {
  static TraceMutex one;
  return one;
}

// The programs of a step in the replicas of this process.
class TracedPrograms final : public StepPrograms {
 public:
  TracedPrograms(Strategy& strategy, Function function, const StepReplicas& host)
      : strategy_(strategy),
        function_(std::move(function)),
        host_(host),
        known_(host.home == nullptr ? 1 : host.home->replicas()) {}

  std::size_t traces() const override {
    const Lock lock(mutex_);
    return traces_;
  }

  std::vector<Nest> call(Arguments arguments) override {
    if (host_.home == nullptr || !host_.home->has_workers()) return call_here(std::move(arguments));
    const CallSite site("is in a step of function()");
    return workers()->in_run([&] {
      std::vector<Nest> results = call_here(std::move(arguments));
      ProgressMeter::of_process().note_step();
      return results;
    });
  }

 private:
  std::vector<Nest> call_here(Arguments arguments) {
    COHORT_CHECK(function::Trace::current() == nullptr, ErrorCode::unimplemented,
                 "[strategy.function] expected a call outside a traced step, got one of '",
                 function_.name(), "' inside it; call its code there");
    check_can_run(strategy_, "function");
    for (std::vector<Nest>& own : arguments) {
      function_.convert_numbers(own);
      check_tensors(own);
    }
    const ArgumentsOfStep described(arguments);
    std::optional<RunAgreement::Scope> run;
    if (host_.home != nullptr) run.emplace(host_.home->agreement());
    // A trace changes modes of modules and values of variables for a while.
    std::shared_lock no_trace(trace_mutex());
    const bool has_workers = host_.home != nullptr && host_.home->has_workers();
    forget_earlier_group();
    std::shared_ptr<const JoinedPrograms> programs =
        has_workers ? nullptr : known_programs(arguments, settings());
    if (!programs) {
      no_trace.unlock();
      programs = agreed_programs(arguments);
      no_trace.lock();
      if (run) run->forget_trace();
    }
    std::optional<Lock> writing;
    if (host_.home != nullptr && programs->write()) writing.emplace(host_.home->writes());
    if (!run) return programs->run(host_.threads, arguments);
    CentralCopies::Run central(host_.home->is_in_replica() ? nullptr : host_.home.get());
    StepUndo::Scope undo(
        host_.home->undo_around_step(),
        {.written = &programs->used(),
         .is_only_replica = programs->are_random() && !host_.home->has_several_replicas()});
    std::vector<Nest> results = programs->run(host_.threads, arguments);
    run->finish();
    central.finish();
    undo.keep();
    return results;
  }

  // Programs contain how many replicas there are, and who has which number.
  void forget_earlier_group() {
    if (workers() == nullptr) return;
    const std::uint64_t number = workers()->group_number();
    if (group_.load(std::memory_order_relaxed) == number) return;
    const Lock lock(mutex_);
    group_ = number;
    traces_for_earlier_groups_ = traces_;
    for (std::vector<Program>& all : known_) all.clear();
    numbered_.clear();
    agreed_.clear();
  }

  using Program = std::shared_ptr<const ReplicaProgram>;
  StrategyWorkers* workers() const {
    return host_.home == nullptr ? nullptr : host_.home->workers();
  }
  std::size_t own() const {  // the index of this worker
    return workers() == nullptr ? 0 : static_cast<std::size_t>(workers()->own());
  }
  TraceMutex& trace_mutex() {
    return host_.home == nullptr ? mutex_without_variables() : host_.home->trace_mutex();
  }
  StepSettings settings() const { return StepSettings::current(host_.home.get()); }

  void check_tensors(const std::vector<Nest>& arguments) const {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].is_tensor()) continue;
      const at::Tensor& tensor = arguments[i].tensor();
      const bool is_dense =
          tensor.defined() && (StringTensor::is(tensor) || tensor.layout() == at::kStrided);
      COHORT_CHECK(is_dense, ErrorCode::invalid_argument,
                   "[strategy.function] expected dense tensors, got ",
                   tensor.defined() ? "a sparse one" : "an undefined one", " as argument ", i,
                   " of '", function_.name(), "'; ",
                   tensor.defined() ? "pass to_dense() of it, or call run() in place of function()"
                                    : "pass a tensor with zeros, or one without rows");
    }
  }

  // Forgets a program whose captured constants have changed.
  Program known(std::size_t replica, const Arguments& arguments, const StepSettings& mode)
      COHORT_REQUIRES(mutex_) {
    std::vector<Program>& all = known_[replica];
    for (auto one = all.begin(); one != all.end(); ++one) {
      if (!(*one)->matches(arguments[replica], mode)) continue;
      const function::Freshness freshness = (*one)->freshness();
      if (freshness == function::Freshness::other_flags) continue;
      if (freshness == function::Freshness::stale) {
        reason_ =
            "a tensor that it captures was written to or replaced: pass it as an argument, or make "
            "it a variable";
        forget(*one);
        return nullptr;
      }
      std::rotate(all.begin(), one, one + 1);
      return all.front();
    }
    return nullptr;
  }

  void forget(const Program& program) COHORT_REQUIRES(mutex_) {
    const Program gone = program;  // it may be an element of a list
    for (std::vector<Program>& all : known_) std::erase(all, gone);
    std::erase_if(numbered_, [&](const Numbered& one) COHORT_REQUIRES(mutex_) {
      if (std::ranges::find(one.members, gone) == one.members.end()) return false;
      forget_joined(one.number);
      return true;
    });
  }

  // Several workers forget joined programs at the same time, or one would look for what others
  // have.
  void forget_joined(std::uint64_t number) COHORT_REQUIRES(mutex_) {
    std::erase_if(agreed_, [&](const auto& one) {
      return one.first.size() == 1 && one.first.front() == number;
    });
  }

  std::shared_ptr<const JoinedPrograms> known_programs(const Arguments& arguments,
                                                       const StepSettings& mode) {
    const Lock lock(mutex_);
    ReplicaPrograms members;
    for (std::size_t r = 0; r < arguments.size(); ++r) {
      members.push_back(known(r, arguments, mode));
      if (!members.back()) return nullptr;
    }
    const auto found = agreed_.find({number_of(members)});
    return found == agreed_.end() ? nullptr : found->second;
  }

  Program trace(std::size_t replica, const Arguments& arguments, const StepSettings& mode,
                const std::vector<GatherSizes>& gathers = {}) {
    const std::unique_lock alone(trace_mutex());
    return std::make_shared<const ReplicaProgram>(strategy_, host_.home.get(), function_, replica,
                                                  arguments[replica], mode, gathers);
  }

  // Replicas have a program of each signature for themselves, which counts once for all of them.
  void count_trace(std::size_t replica, const Program& program) COHORT_REQUIRES(mutex_) {
    for (std::size_t r = 0; r < known_.size(); ++r) {
      for (const Program& other : known_[r]) {
        if (r != replica && other->matches(program->signature().pattern(), program->mode()) &&
            other->freshness() == function::Freshness::current) {
          return;
        }
      }
    }
    std::string reason = std::exchange(reason_, {});
    const std::vector<Program>& own = known_[replica];
    if (reason.empty() && !own.empty())
      reason = program->signature().difference_from(own.front()->signature());
    count_trace(reason);
  }

  void count_trace(const std::string& reason) COHORT_REQUIRES(mutex_) {
    const std::size_t traces = ++traces_ - traces_for_earlier_groups_;
    if (traces != kTracesBeforeWarning) return;
    log_warn("function '", function_.name(), "' was traced ", traces, " times, which takes time; ",
             reason.empty()
                 ? "its variables' requires_grad flags or its modules' modes have changed"
                 : reason);
  }

  // The programs for these arguments.
  ReplicaPrograms own_programs(const Arguments& arguments, const StepSettings& mode) {
    ReplicaPrograms members(arguments.size());
    for (std::size_t r = 0; r < arguments.size(); ++r) {
      {
        const Lock lock(mutex_);
        members[r] = known(r, arguments, mode);
      }
      if (members[r]) continue;
      members[r] = trace(r, arguments, mode);
      const Lock lock(mutex_);
      count_trace(r, members[r]);
      if (known_[r].size() >= kProgramsMax) forget(known_[r].back());
      known_[r].insert(known_[r].begin(), members[r]);
    }
    return members;
  }

  // Programs that are traced again with other constants get another number.
  std::uint64_t number_of(const ReplicaPrograms& members) COHORT_REQUIRES(mutex_) {
    const auto found = std::ranges::find(numbered_, members, &Numbered::members);
    if (found != numbered_.end()) {
      const std::uint64_t number = found->number;
      const bool is_stale = std::ranges::any_of(agreed_, [&](const auto& one) {
        return one.first.at(own()) == number && !one.second->are_current();
      });
      if (!is_stale) {
        std::rotate(found, found + 1, numbered_.end());
        return number;
      }
      numbered_.erase(found);
      forget_joined(number);
    }
    if (numbered_.size() >= kProgramsMax) {
      forget_joined(numbered_.front().number);
      numbered_.erase(numbered_.begin());
    }
    numbered_.push_back({members, next_number_++});
    return numbered_.back().number;
  }

  // A batch of another size on one worker changes what the programs of all must do, so the workers
  // tell each other in each call which of their programs they run.
  std::shared_ptr<const JoinedPrograms> agreed_programs(const Arguments& arguments) {
    const Lock tracing(tracing_);
    ReplicaPrograms members;
    StepSettings mode;
    const auto make = [&]() -> StrategyWorkers::Message {
      {
        const std::shared_lock no_trace(trace_mutex());
        mode = settings();
      }
      members = own_programs(arguments, mode);
      ByteWriter writer;
      const Lock lock(mutex_);
      writer.u64(number_of(members));
      return {"", writer.take()};
    };
    std::vector<std::uint64_t> key;
    for (const Bytes& bytes : exchanged(workers(), "a step of function()", make))
      key.push_back(ByteReader(bytes, "function").u64());
    {
      const Lock lock(mutex_);
      const auto found = agreed_.find(key);
      if (found != agreed_.end()) return found->second;
    }
    bool is_counted = key.size() > 1;
    const auto trace_again = [&](std::size_t r, const std::vector<GatherSizes>& sizes) {
      if (!std::exchange(is_counted, true)) {
        const Lock lock(mutex_);
        count_trace("the replicas' parts in all_gather() have other sizes: give them one size");
      }
      return trace(r, arguments, mode, sizes);
    };
    auto programs = joined(std::move(members), host_.home.get(), function_.name(), trace_again);
    const Lock lock(mutex_);
    // All workers forget them at the same time.
    if (agreed_.size() >= kProgramsMax) agreed_.clear();
    agreed_.emplace(std::move(key), programs);
    return programs;
  }

  Strategy& strategy_;
  const Function function_;
  const StepReplicas host_;
  Mutex tracing_;  // one trace at a time; locked before the others
  mutable Mutex mutex_;
  // The programs of each replica. The programs used last come first.
  std::vector<std::vector<Program>> known_ COHORT_GUARDED_BY(mutex_);
  std::size_t traces_ COHORT_GUARDED_BY(mutex_) = 0;
  std::size_t traces_for_earlier_groups_ COHORT_GUARDED_BY(mutex_) = 0;
  std::string reason_ COHORT_GUARDED_BY(mutex_);  // of the next trace, if it is known
  // The programs of this worker for one call have a number, which is never used again, and joined
  // ones are those of the numbers of all workers. The ones used last come last.
  struct Numbered {
    ReplicaPrograms members;
    std::uint64_t number;
  };
  std::vector<Numbered> numbered_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t next_number_ COHORT_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> group_ = 0;  // StrategyWorkers::group_number()
  std::map<std::vector<std::uint64_t>, std::shared_ptr<const JoinedPrograms>> agreed_
      COHORT_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<StepPrograms> FunctionHost::programs(const Function& function) {
  for (const Device& device : devices_) {
    COHORT_CHECK(device.type == "CPU", ErrorCode::unimplemented,
                 "[strategy.function] expected replicas on CPUs, got ", device.to_string(),
                 "; call run() in place of function()");
  }
  return std::make_shared<TracedPrograms>(strategy_, function, replicas_);
}

}  // namespace cohort::internal
