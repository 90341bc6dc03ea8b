// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/thread_value.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/replicas/compute_share.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/step_call.h"
#include "cohort/replicas/step_run.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/variable/row_gradient.h"

namespace cohort {
namespace {

constexpr std::string_view kCall = "strategy.gradients_in_parts";

thread_local bool is_inside = false;

using Gradients = std::vector<std::pair<at::Tensor, Variable>>;

// The threads with which the parts are computed, and each operator of theirs.
struct OneThread {
  const internal::ComputeShare share{1};
  const internal::ComputeShare::OfThread here{1};
};

// Where the parts begin or end in the program of a replica, which computes them with one thread,
// too.
class ThreadCall final : public internal::StepCall {
 public:
  explicit ThreadCall(bool begins) : begins_(begins) {}
  std::string text() const override { return begins_ ? "begin_parts()" : "end_parts()"; }
  bool is_of_all() const override { return false; }
  std::unique_ptr<const internal::JoinedCall> join(
      const std::vector<const internal::StepCall*>&) const override {
    return std::make_unique<Joined>(begins_);
  }

 private:
  class Joined final : public internal::JoinedCall {
   public:
    explicit Joined(bool begins) : begins_(begins) {}
    std::vector<at::Tensor> run(internal::StepReplica& replica,
                                std::vector<at::Tensor>) const override {
      replica.hold(begins_ ? std::make_shared<const OneThread>() : nullptr);
      return {};
    }

   private:
    const bool begins_;
  };
  const bool begins_;
};

void record_threads(internal::ReplicaTrace& trace, bool begins) {
  trace.record(std::make_shared<ThreadCall>(begins), {}, {},
               [] { return std::vector<at::Tensor>(); });
}

// Adds what comes one after the other in the tree of left_of_tree(): it keeps the sums of 1, 2, 4,
// … of them, largest first, until those on their right are complete.
class TreeAdder {
 public:
  void add(Gradients next) {
    // Other sparse gradients would be added in the order of the parts.
    const c10::NoGradGuard no_grad;
    for (auto& [gradient, variable] : next) {
      const bool is_sparse = gradient.defined() && gradient.layout() == at::kSparse;
      const bool stays = variable::is_row_gradient(gradient) && !function::Trace::current();
      if (is_sparse && !stays) gradient = variable::dense_of(gradient);
    }
    std::size_t count = 1;
    while (!sums_.empty() && sums_.back().count == count) {
      next = sum(std::move(sums_.back().gradients), next);
      sums_.pop_back();
      count *= 2;
    }
    sums_.push_back({count, std::move(next)});
  }
  Gradients total() && {
    Gradients total = std::move(sums_.back().gradients);
    sums_.pop_back();
    for (; !sums_.empty(); sums_.pop_back()) total = sum(std::move(sums_.back().gradients), total);
    return total;
  }

 private:
  struct Sum {
    std::size_t count;
    Gradients gradients;
  };

  static Gradients sum(Gradients left, const Gradients& right) {
    const c10::NoGradGuard no_grad;
    for (std::size_t i = 0; i < left.size(); ++i) {
      COHORT_CHECK(right.size() == left.size() && right[i].second == left[i].second,
                   ErrorCode::failed_precondition, "[", kCall,
                   "] expected the same variables in all parts, got others; do not change "
                   "requires_grad in loss_of()");
      at::Tensor a = left[i].first, b = right[i].first;
      if (a.defined() && b.defined() && a.layout() != b.layout()) {
        for (at::Tensor* const gradient : {&a, &b})
          if (gradient->layout() == at::kSparse) *gradient = variable::dense_of(*gradient);
      }
      left[i].first = internal::sum_of_gradients({a, b}, kCall);
    }
    return left;
  }

  std::vector<Sum> sums_;
};

}  // namespace

namespace internal {
bool is_in_gradient_part() { return is_inside; }
}  // namespace internal

Gradients gradients_in_parts(const Optimizer& optimizer, int parts,
                             const std::function<at::Tensor(int)>& loss_of) {
  COHORT_CHECK(get_replica_context() != nullptr, ErrorCode::failed_precondition, "[", kCall,
               "] expected a replica context, got cross-replica context of '",
               get_strategy().name(), "'; call it inside run()");
  COHORT_CHECK(parts >= 1, ErrorCode::invalid_argument, "[", kCall,
               "] expected at least one part, got ", parts);
  internal::ReplicaTrace* const trace = internal::ReplicaTrace::current();
  COHORT_CHECK(function::Trace::current() == nullptr || trace != nullptr, ErrorCode::unimplemented,
               "[", kCall,
               "] expected run() or function() of a synchronous strategy, got a step of "
               "ClusterCoordinator, whose program does not compute each part with one thread; call "
               "compute_gradients() for each part");
  if (trace != nullptr) record_threads(*trace, /*begins=*/true);
  const OneThread one_thread;
  const internal::ScopedValue inside(is_inside, true);
  TreeAdder sums;
  for (int part = 0; part < parts; ++part) sums.add(optimizer.compute_gradients(loss_of(part)));
  Gradients total = std::move(sums).total();
  if (trace != nullptr) record_threads(*trace, /*begins=*/false);
  return total;
}

}  // namespace cohort
