// SPDX-License-Identifier: Apache-2.0
// The sums of gradients over the replicas of all workers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/replicas/reduction.h"
#include "cohort/variable/update_rule.h"
#include "cohort/variable/variable.h"
#include "cohort/workers/early_gradients.h"

namespace cohort::internal {

class StepHeader;
class StrategyWorkers;

// The hyperparameters of a step, which must be equal on all workers. It refers to values of the
// caller.
struct StepNumbers {
  // For messages: "adam", and the name of each value. It must not be a name that is numbered, of
  // which each worker may have another.
  std::string_view optimizer;
  std::span<const std::string_view> names;
  std::span<const double> values;
  // Whether each variable requires a gradient, where that must be equal, too; nullptr: a variable
  // that requires none is not in the step.
  const std::vector<bool>* are_trained = nullptr;
};
// The numbers of an update rule, in its order; those of groups of variables follow.
inline StepNumbers numbers_of(const variable::UpdateRule& rule, std::span<const double> values) {
  return {rule.name(), rule.hyperparameter_names(), values};
}

// A step of an optimizer is one all_reduce() of all its gradients, or of each pack of them, with a
// few numbers beside them, by which the workers find out that they make different steps, that one
// has a gradient that the others did not expect, and that their variables have become different. In
// the first step of a kind they agree on which variables have dense gradients, sparse ones or none.
//
// A worker's sum is a part of a tree over all replicas. If the workers have 1, 2, 4 or 8 replicas,
// that tree is the one of one process with all of them, and so are the bits.
//
// If gradients travel early (EarlyGradients), the numbers travel alone after the backward pass: a
// worker that makes another step, or has failed, is found by them, and not where gradients wait.
//
// Used by one thread at a time, in the calls of StrategyWorkers; but early() is thread-safe.
class WorkerGradients {
 public:
  explicit WorkerGradients(std::shared_ptr<StrategyWorkers> workers);
  ~WorkerGradients();

  // Its options say how gradients travel, also those that do not travel early. If it has a pass
  // that has finished for a step, sum() takes the gradients that autograd made.
  EarlyGradients& early() { return early_; }

  // shares: of a dense sum each worker gets only its share of the elements (shares.h), unless the
  // variable is synchronized on read.
  enum class Wanted : std::uint8_t { sums, shares };
  // One step, which all workers make with the same `call`, `what` and variables. `sums`: of each
  // variable the sum over the replicas of this worker, in memory of its own (but see
  // early()), without a value if none has a gradient; it becomes that over all workers.
  // The text that `state` returns is compared when the values of variables are: in the steps 1, 2,
  // 4, 8, … of a kind, and if something else than an update has written one of them on a worker.
  // Throws the same on all workers, and then the sums are of no use.
  using StateText = std::function<std::string()>;
  void sum(
      std::string_view call, std::string_view what, std::span<const Variable> variables,
      std::vector<Reduction::Parts>& sums, const StepNumbers& numbers,
      const StateText& state = [] { return std::string(); }, Wanted wanted = Wanted::sums);

 private:
  enum class Layout : std::uint8_t { none, dense, sparse };
  struct Plan;
  struct Step;

  Plan& plan_for(const Step& step);
  void agree(Plan& plan, const Step& step, const StepNumbers& numbers);
  bool reduce_planned(Plan& plan, const Step& step, const StepNumbers& numbers);
  void reduce_after_header(Plan& plan, const Step& step, const std::vector<std::size_t>& planned,
                           const StepHeader& header, std::vector<at::Tensor>& tensors);
  std::string text_of(const Plan& plan, const StepNumbers& numbers) const;
  void all_reduce(const Plan& plan, const std::vector<at::Tensor>& tensors);
  void reduce_as_wanted(const Plan& plan, const Step& step, const std::vector<std::size_t>& which,
                        std::vector<at::Tensor>& tensors);
  void reduce_dense(const Plan& plan, const Step& step, const std::vector<std::size_t>& which);
  void gather_sparse(const Plan& plan, const Step& step, std::size_t i);

  const std::shared_ptr<StrategyWorkers> workers_;
  EarlyGradients early_;
  std::list<std::unique_ptr<Plan>> plans_;  // those used last come first
  std::uint64_t epoch_ = 0;                 // of the workers, in which the plans were made
};

}  // namespace cohort::internal
