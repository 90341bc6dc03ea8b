// SPDX-License-Identifier: Apache-2.0
// Sums of gradients over the replicas in a traced step, which clip_by_global_norm() takes. They
// have the bits of MirroredHome::sum_over_replicas().
#include <ATen/core/TensorBody.h>

#include <string>

#include "cohort/core/error.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/step_run.h"
#include "cohort/synchronous/mirrored/value_updates.h"
#include "cohort/synchronous/traced/variable_trace.h"
#include "cohort/synchronous/workers/worker_gradients.h"
#include "cohort/variable/variable_state.h"

namespace cohort::internal {
namespace {

class JoinedSum final : public JoinedCall {
 public:
  JoinedSum(MirroredHome& home, std::vector<Variable> variables)
      : home_(home), variables_(std::move(variables)) {}

  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    for (at::Tensor& value : values) value = plain_gradient(value);
    replica.own_offer().values = std::move(values);
    replica.meet();
    const bool are_shared = home_.has_workers();
    std::vector<at::Tensor> sums = replica.together(are_shared, [&] { return sums_of(replica); });
    // A replica may write into its own.
    for (at::Tensor& sum : sums) {
      if (are_shared) sum = sum.clone();
    }
    replica.leave();
    return sums;
  }

 private:
  std::vector<at::Tensor> sums_of(const StepReplica& replica) const {
    std::vector<Reduction::Parts> parts;
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      std::vector<at::Tensor> gradients;
      for (std::size_t r = 0; r < replica.count(); ++r)
        gradients.push_back(replica.of(r).values[i]);
      parts.push_back(sum_of_gradient_parts(gradients, kClipCall, home_.cross_device_ops()));
    }
    if (home_.has_workers()) home_.gradients().sum(kClipCall, "sum", variables_, parts, {});
    std::vector<at::Tensor> sums;
    for (const Reduction::Parts& each : parts) sums.push_back(gradient_of_sum(each).contiguous());
    return sums;
  }

  MirroredHome& home_;  // which a variable keeps alive
  const std::vector<Variable> variables_;
};

class SumCall final : public StepCall {
 public:
  SumCall(MirroredHome& home, std::span<const Update> gradients) : home_(home) {
    for (const Update& each : gradients) {
      names_ += (names_.empty() ? "'" : ", '") + each.variable.name() + "'";
      if (each.gradient.defined()) {
        given_.push_back(each.variable);
      } else {
        names_ += " without a gradient";
      }
    }
  }

  std::string text() const override { return "clip_by_global_norm()"; }
  // A worker where another variable has a gradient makes another call.
  std::string text_over_workers() const override { return text() + " of " + names_; }

  // A replica without a gradient would not know in its trace that there is a sum.
  std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const override {
    for (std::size_t r = 1; r < all.size(); ++r) {
      const auto& other = static_cast<const SumCall&>(*all[r]);
      COHORT_CHECK(other.names_ == names_, ErrorCode::invalid_argument, "[", kClipCall,
                   "] expected gradients of the same variables in all replicas of a step of "
                   "function(), got ",
                   names_, " in replica 0 and ", other.names_, " in replica ", r,
                   "; call run() in place of function(), or add zeros to the loss, as 0 * w.sum()");
    }
    return std::make_unique<JoinedSum>(home_, given_);
  }

 private:
  MirroredHome& home_;
  std::string names_;
  std::vector<Variable> given_;  // those that have a gradient
};

}  // namespace

std::vector<at::Tensor> VariableTrace::sum_over_replicas(std::span<const Update> gradients) {
  std::vector<at::Tensor> sums, given;
  for (const Update& each : gradients) {
    check_is_whole(each.variable);
    sums.push_back(each.gradient);
    if (each.gradient.defined()) given.push_back(each.gradient);
  }
  if (!home_.has_several_replicas() || given.empty()) return sums;
  const auto example = [&] {
    std::vector<at::Tensor> results;
    for (const at::Tensor& each : given) results.push_back(plain_gradient(each).clone());
    return results;
  };
  const std::vector<at::Tensor> results =
      record(std::make_shared<SumCall>(home_, gradients), given, {}, example);
  std::size_t next = 0;
  for (at::Tensor& sum : sums) {
    if (sum.defined()) sum = results.at(next++);
  }
  return sums;
}

}  // namespace cohort::internal
