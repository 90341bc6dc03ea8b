// SPDX-License-Identifier: Apache-2.0
// Detects writes into the tensors of variables that no method of Variable made: LibTorch lets any
// code write into a tensor.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/variable/variable.h"
#include "cohort/workers/run_gate.h"

namespace cohort::internal {

class MirroredHome;

// Whether replicas, and workers, have the same values after runs. Thread-safe.
class RunAgreement {
 public:
  explicit RunAgreement(MirroredHome& home) : home_(home) {}
  // This worker before a run that may change it alone.
  struct ValuesBefore {
    std::map<std::string, std::uint64_t> hashes = {};  // of the values of variables, by name
    std::uint64_t num_combined = 0;                    // StrategyWorkers'
  };
  // Around a run; a run inside a run does nothing here, and of runs at the same time the first
  // begins and the last ends. Values that were written in place outside, into the tensors of
  // variables, are copied to all replicas at the beginning. finish() throws failed_precondition if
  // replicas have become different without a call that may do so: something wrote into their
  // tensors; and if set_data() has given them one memory. It compares after the first, second,
  // fourth, … run, which costs nothing in a long training. The constructor compares after a run
  // that has failed, and throws until the values were made equal. If the replicas share the values,
  // finish() throws invalid_argument after each run that has written in place into one.
  //
  // Where there are several workers, finish() compares theirs, too, if variables have changed in
  // the first, second, fourth, … run and no call in it has combined values of the workers.
  class Scope {
   public:
    explicit Scope(RunAgreement& agreement);
    ~Scope();
    // After a trace, which has written into the variables and put their values back.
    void forget_trace();
    void finish();

   private:
    void begin_replicas();
    void finish_replicas();

    RunAgreement& all_;
    MirroredHome& home_;
    const bool is_inner_;
    const RunGate::Entry entry_;
    bool is_open_;
    const bool is_over_workers_;
    std::optional<ValuesBefore> before_;
  };
  // In cross-replica context, while no run is open: throws if the replicas have different values of
  // a variable that must not differ.
  void check(std::span<const Variable> variables);
  // If the replicas share the value: throws if a run has written in place into it.
  void check_shared_value(const Variable& variable) const;
  // To be called when the strategy ends: warns if its runs never combined anything over the
  // workers.
  void warn_if_alone();
  // Code outside of a run has the tensor of a variable of several replicas.
  void note_handed_out() { has_handed_out_ = true; }

 private:
  bool may_differ() const;     // each of several replicas has values of its own
  bool shares_values() const;  // several replicas have one value of each variable
  void know_shared_values() const;
  // The variables whose replicas must have equal values.
  std::vector<Variable> agreeing() const;
  // Why the replicas may have other values of a variable, and what to do, for messages.
  std::string why_different() const;
  // nullopt: this run is not compared.
  std::optional<ValuesBefore> values_before_run();
  void compare_with_workers(const std::optional<ValuesBefore>& before);
  std::map<std::string, std::uint64_t> hashes_of_values() const;
  // Throws if a run that failed has left different values in the replicas.
  void check_after_failure();

  MirroredHome& home_;
  std::atomic<bool> has_handed_out_ = false;
  // A run has failed since the values of the replicas were compared.
  std::atomic<bool> may_have_diverged_ = false;
  Mutex mutex_;
  int open_runs_ COHORT_GUARDED_BY(mutex_) = 0;
  std::uint64_t runs_ COHORT_GUARDED_BY(mutex_) = 0;  // that have ended while no other was open
  // Runs while there were several workers.
  int open_runs_of_workers_ COHORT_GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> runs_of_workers_ = 0;
  std::atomic<bool> has_warned_ = false;  // that this worker trains alone
};

}  // namespace cohort::internal
