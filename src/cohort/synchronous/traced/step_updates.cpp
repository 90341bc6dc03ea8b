// SPDX-License-Identifier: Apache-2.0
// Steps of update rules in a traced step. They do what MirroredHome::apply() does in a replica, bit
// for bit.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <string>

#include "cohort/collective/reduce_elements.h"
#include "cohort/core/error.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/step_run.h"
#include "cohort/synchronous/mirrored/value_updates.h"
#include "cohort/synchronous/traced/variable_trace.h"
#include "cohort/synchronous/workers/worker_gradients.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/validation.h"
#include "cohort/variable/variable_state.h"

namespace cohort::internal {
namespace {

// Below this number each replica adds all elements itself: sharing the work costs one more wait.
constexpr std::int64_t kSharedElements = std::int64_t{1} << 16;

// An update of one variable, and the gradient's place among the values of each replica.
struct JoinedUpdate {
  Variable handle;  // keeps the variable alive
  MirroredVariable* variable;
  std::vector<std::optional<std::size_t>> places;
};

// The gradient of each replica; nullptr: none.
using Gradients = c10::SmallVector<const at::Tensor*, 8>;

// Adds some elements of all gradients in the tree of Reduction::sum(). The tensors are row-major.
void add_elements(const at::Tensor& sum, const Gradients& all, std::int64_t begin,
                  std::int64_t end) {
  const auto bytes_of = [&](const at::Tensor& tensor) {
    return static_cast<std::byte*>(tensor.data_ptr()) +
           begin * static_cast<std::int64_t>(tensor.itemsize());
  };
  c10::SmallVector<const std::byte*, 8> inputs;
  for (const at::Tensor* const each : all) inputs.push_back(bytes_of(*each));
  std::byte* const output = bytes_of(sum);
  collective::reduce_elements({.dtype = sum.scalar_type(),
                               .op = ReduceOp::sum,
                               .inputs = {inputs.data(), inputs.size()},
                               .outputs = {&output, 1},
                               .count = end - begin});
}

bool are_complete(const Gradients& all) { return std::ranges::find(all, nullptr) == all.end(); }

bool are_sparse(const Gradients& all) {
  return std::ranges::any_of(all, [](const at::Tensor* gradient) {
    return gradient != nullptr && gradient->layout() == at::kSparse;
  });
}

// Undefined where there is none.
std::vector<at::Tensor> tensors_of(const Gradients& all) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor* const gradient : all)
    gradients.push_back(gradient == nullptr ? at::Tensor() : *gradient);
  return gradients;
}

// The gradient, if only one replica has one.
const at::Tensor* only(const Gradients& all) {
  const at::Tensor* found = nullptr;
  for (const at::Tensor* const each : all) {
    if (each != nullptr && std::exchange(found, each) != nullptr) return nullptr;
  }
  return found;
}

// The sum where some replicas have no gradient, or they have rows: the only one itself, else in
// memory of its own; undefined if all replicas have a dense one.
at::Tensor sum_of_some(const Gradients& all) {
  if (const at::Tensor* const one = only(all)) return *one;
  if (are_complete(all) && !are_sparse(all)) return {};
  return sum_of_gradients(tensors_of(all), kApplyCall);
}

// An optimizer, as its step was traced.
struct TracedOptimizer {
  const variable::UpdateRule& rule;
  std::string name;
  bool lazy_rows;
  std::vector<at::Tensor> hyper;
  std::shared_ptr<const HyperGroups> groups;

  SlotKey key() const { return {rule, name, nullptr, lazy_rows, groups}; }
};

class JoinedApply final : public JoinedCall {
 public:
  JoinedApply(const TracedOptimizer& optimizer, std::vector<JoinedUpdate> updates)
      : optimizer_(optimizer), updates_(std::move(updates)) {
    for (const JoinedUpdate& update : updates_) {
      elements_ += update.variable->component(0).numel();
      is_of_one_value_ = is_of_one_value_ || update.variable->is_plain();
    }
  }

  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    for (at::Tensor& value : values) value = plain_gradient(value);
    CountedUpdates counted;
    MirroredHome& home = home_of_variables();
    StepOffer& own = replica.own_offer();
    own.values = std::move(values);
    // Replica 0 reads the hyperparameters, since another one might read those of the next step.
    if (replica.index() == 0) own.numbers = numbers(counted);
    const bool is_shared =
        replica.count() > 1 && elements_ >= kSharedElements && !home.has_workers();
    if (is_shared && replica.index() == 0) reserve_sums(own);
    replica.meet();
    if (home.has_workers()) {
      const auto sums = replica.together(true, [&] { return sums_over_workers(replica, home); });
      apply(replica, sums, /*is_of_all=*/false);
    } else if (replica.count() > 1 && is_of_one_value_) {
      if (replica.index() == 0) apply(replica, sums(replica), /*is_of_all=*/true);
      replica.meet();
    } else if (is_shared) {
      add_share(replica);
      replica.meet();
      apply(replica, shared_sums(replica), /*is_of_all=*/false);
    } else {
      apply(replica, sums(replica), /*is_of_all=*/false);
    }
    replica.leave();
    counted.keep();
    home.undo().note_update(replica.index());
    if (replica.index() == 0) home.look_for_plain_rows();
    return {};
  }

 private:
  // Variables of other homes are not updated in a step.
  MirroredHome& home_of_variables() const { return updates_.front().variable->mirrored_home(); }

  std::vector<double> numbers(CountedUpdates& counted) const {
    std::vector<double> numbers;
    for (const at::Tensor& value : hyperparameters_of_step(optimizer_.hyper, counted))
      numbers.push_back(hyperparameter_value(value));
    for (const JoinedUpdate& update : updates_)
      variable::check_hyperparameters(optimizer_.rule, of(update, numbers),
                                      update.variable->name());
    return numbers;
  }

  std::span<const double> of(const JoinedUpdate& update, std::span<const double> all) const {
    return optimizer_.key().hyper_of(update.handle.impl().get(), all);
  }

  Gradients gradients(const StepReplica& replica, std::size_t i) const {
    Gradients all(replica.count(), nullptr);
    for (std::size_t r = 0; r < replica.count(); ++r) {
      if (const auto place = updates_[i].places[r]) all[r] = &replica.of(r).values[*place];
    }
    return all;
  }

  void reserve_sums(StepOffer& offer) const {
    for (std::size_t i = offer.sums.size(); i < updates_.size(); ++i) {
      // Gradients are row-major, as components are.
      offer.sums.push_back(at::empty_like(updates_[i].variable->component(0).detach()));
    }
  }

  // The gradients to apply: the sums, in the own memory of this replica.
  std::vector<at::Tensor> sums(StepReplica& replica) const {
    if (replica.count() > 1) reserve_sums(replica.own_offer());
    std::vector<at::Tensor> sums;
    sums.reserve(updates_.size());
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const auto all = gradients(replica, i);
      sums.push_back(sum_of_some(all));
      if (sums[i].defined()) continue;
      sums[i] = replica.own_offer().sums[i];
      add_elements(sums[i], all, 0, sums[i].numel());
    }
    return sums;
  }
  // Adds this replica's share of the elements, for all replicas.
  void add_share(StepReplica& replica) const {
    const auto index = static_cast<std::int64_t>(replica.index());
    const auto count = static_cast<std::int64_t>(replica.count());
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const auto all = gradients(replica, i);
      if (!are_complete(all) || are_sparse(all)) continue;
      const at::Tensor& sum = replica.shared_sums()[i];
      add_elements(sum, all, sum.numel() * index / count, sum.numel() * (index + 1) / count);
    }
  }
  std::vector<at::Tensor> shared_sums(StepReplica& replica) const {
    std::vector<at::Tensor> sums = replica.shared_sums();
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const at::Tensor sum = sum_of_some(gradients(replica, i));
      if (sum.defined()) sums[i] = sum;
    }
    return sums;
  }
  // On replica 0. Empty if the step is complete.
  std::vector<at::Tensor> sums_over_workers(StepReplica& replica, MirroredHome& home) const {
    std::vector<Variable> variables;
    std::vector<Reduction::Parts> sums;
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      variables.push_back(updates_[i].handle);
      const auto all = gradients(replica, i);
      Reduction::Parts& sum = sums.emplace_back();
      sum.type = updates_[i].variable->spec().dtype;
      if (are_sparse(all)) {
        sum = sum_of_gradient_parts(tensors_of(all), kApplyCall);
      } else if (const at::Tensor* const one = only(all)) {
        // A share of it is copied before anyone can write into it.
        const bool is_read_only =
            home.sharded_updates() != nullptr && !updates_[i].variable->is_on_read();
        sum.value = is_read_only || is_only_user(*one) ? *one : one->clone();
      } else if (are_complete(all)) {
        sum.value = at::empty_like(updates_[i].variable->component(0).detach());
        add_elements(sum.value, all, 0, sum.value.numel());
      } else {
        sum.value = sum_of_some(all);
      }
    }
    const std::vector<double>& hyper = replica.own_offer().numbers;
    const SlotKey key = optimizer_.key();
    if (sum_over_workers(home, key, home.attached().step_of(key), variables, sums, hyper))
      return {};
    return gradients_of_sums(sums, variables);
  }
  // `is_of_all`: to all values of the variables, not only that of this replica.
  void apply(StepReplica& replica, const std::vector<at::Tensor>& sums, bool is_of_all) const {
    std::vector<ValueUpdate> wanted;
    wanted.reserve(sums.size());
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!sums[i].defined()) continue;
      MirroredVariable& variable = *updates_[i].variable;
      const std::span<const double> hyper = of(updates_[i], replica.of(0).numbers);
      const at::Tensor gradient = variable::prepared_gradient(optimizer_.key(), sums[i], hyper);
      const std::size_t own = variable.value_of(replica.index());
      const std::size_t begin = is_of_all ? 0 : own, end = is_of_all ? variable.size() : own + 1;
      for (std::size_t value = begin; value < end; ++value)
        wanted.push_back({variable, value, gradient, hyper});
    }
    apply_values(optimizer_.key(), wanted);
  }

  const TracedOptimizer optimizer_;
  const std::vector<JoinedUpdate> updates_;
  std::int64_t elements_ = 0;
  bool is_of_one_value_ = false;  // some variable has one value for all replicas
};

class ApplyCall final : public StepCall {
 public:
  ApplyCall(const SlotKey& key, std::span<const Update> updates, std::span<const at::Tensor> hyper)
      : optimizer_{key.rule,
                   std::string(key.optimizer),
                   key.lazy_rows,
                   {hyper.begin(), hyper.end()},
                   key.groups} {
    std::size_t next = 0;
    for (const Update& update : updates) {
      variables_.push_back(update.variable);
      places_.push_back(update.gradient.defined() ? std::optional(next++) : std::nullopt);
    }
  }

  std::string text() const override {
    return "apply_gradients(" + std::string(optimizer_.rule.name()) + ", '" + optimizer_.name +
           "')";
  }

  // Other rules change all rows, lazy_rows concerns gradients that the function itself makes
  // sparse, and on a GPU rows are added in another order than in a dense gradient.
  bool takes_rows(std::size_t value) const override {
    const auto place = std::ranges::find(places_, std::optional(value)) - places_.begin();
    const Variable& variable = variables_.at(static_cast<std::size_t>(place));
    return !optimizer_.lazy_rows && target_of(variable).variable.component(0).is_cpu() &&
           optimizer_.rule.leaves_rows_of_zeros(variable::values_of(
               optimizer_.key().hyper_of<at::Tensor>(variable.impl().get(), optimizer_.hyper)));
  }

  // Without the optimizer's name, which may be numbered, in another order on each worker.
  std::string text_over_workers() const override {
    std::string text = "apply_gradients(" + std::string(optimizer_.rule.name()) + ") to";
    for (const Variable& each : variables_) text += " '" + each.name() + "'";
    return text;
  }

  std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const override {
    std::vector<JoinedUpdate> updates;
    for (std::size_t r = 0; r < all.size(); ++r) check_variables(of(all[r]), r);
    for (std::size_t i = 0; i < variables_.size(); ++i) {
      JoinedUpdate update{variables_[i], &target_of(variables_[i]).variable, {}};
      // Other workers may have a gradient.
      bool is_given = update.variable->mirrored_home().has_workers();
      for (const StepCall* each : all) {
        update.places.push_back(of(each).places_[i]);
        is_given = is_given || update.places.back().has_value();
      }
      if (is_given) updates.push_back(std::move(update));
    }
    COHORT_CHECK(!updates.empty(), ErrorCode::invalid_argument, "[optimizer.minimize] ",
                 no_gradient_text(variables_));
    return std::make_unique<JoinedApply>(optimizer_, std::move(updates));
  }

 private:
  static const ApplyCall& of(const StepCall* call) { return static_cast<const ApplyCall&>(*call); }

  void check_variables(const ApplyCall& other, std::size_t replica) const {
    COHORT_CHECK(other.variables_ == variables_, ErrorCode::invalid_argument,
                 "[optimizer.apply_gradients] expected the same variables in the same order in all "
                 "replicas, got ",
                 names_of(variables_), " in replica 0 and ", names_of(other.variables_),
                 " in replica ", replica, kRequiresGradRemedy);
  }

  const TracedOptimizer optimizer_;
  std::vector<Variable> variables_;
  std::vector<std::optional<std::size_t>> places_;
};

}  // namespace

std::shared_ptr<const StepCall> apply_call(const SlotKey& key, std::span<const Update> updates,
                                           std::span<const at::Tensor> hyper) {
  return std::make_shared<ApplyCall>(key, updates, hyper);
}

}  // namespace cohort::internal
