// SPDX-License-Identifier: Apache-2.0
// Steps of update rules in a traced step. They do what MirroredHome::apply() does in a replica, bit
// for bit.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/replicas/reduction.h"
#include "cohort/replicas/step_run.h"
#include "cohort/synchronous/traced/variable_trace.h"
#include "cohort/synchronous/workers/sharded_updates.h"
#include "cohort/synchronous/workers/worker_gradients.h"
#include "cohort/variable/hyperparameter.h"
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

constexpr std::int64_t kBlock = 512;  // elements that are added at once
constexpr std::size_t kLevels = 16;   // of a tree: more replicas than a process can have

// Adds values as Reduction::sum() does: in the same tree. Returns where the sum is: at `out`, or
// where it was if there is one value; nullptr if there is none. `scratch`: a block for each level.
template <class T>
const T* add_tree(std::span<const T* const> values, std::int64_t size, T* out, T* scratch) {
  if (values.size() == 1) return values.front();
  const std::size_t left_size = left_of_tree(values.size());
  const T* const left = add_tree(values.first(left_size), size, out, scratch);
  const T* const right = add_tree(values.subspan(left_size), size, scratch, scratch + kBlock);
  if (right == nullptr) return left;
  if (left == nullptr) {
    if (right != scratch) return right;
    std::copy(right, right + size, out);  // where this level's sum belongs
    return out;
  }
  for (std::int64_t i = 0; i < size; ++i) out[i] = left[i] + right[i];
  return out;
}

template <class T>
void add(const at::Tensor& sum, const Gradients& all, std::int64_t begin, std::int64_t end) {
  T* const out = sum.data_ptr<T>();
  std::array<T, kLevels * kBlock> scratch;  // NOLINT(cppcoreguidelines-pro-type-member-init)
  c10::SmallVector<const T*, 8> values(all.size(), nullptr);
  for (std::int64_t i = begin; i < end; i += kBlock) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (all[r] != nullptr) values[r] = all[r]->data_ptr<T>() + i;
    }
    add_tree<T>({values.data(), values.size()}, std::min(kBlock, end - i), out + i, scratch.data());
  }
}

// Variables that optimizers train are of float32 or float64.
void add_all(const at::Tensor& sum, const Gradients& all, std::int64_t begin, std::int64_t end) {
  if (sum.scalar_type() == at::kFloat) return add<float>(sum, all, begin, end);
  add<double>(sum, all, begin, end);
}

// The gradient, if only one replica has one.
const at::Tensor* only(const Gradients& all) {
  const at::Tensor* found = nullptr;
  for (const at::Tensor* const each : all) {
    if (each != nullptr && std::exchange(found, each) != nullptr) return nullptr;
  }
  return found;
}

class JoinedApply final : public JoinedCall {
 public:
  JoinedApply(const variable::UpdateRule& rule, std::string optimizer,
              std::vector<at::Tensor> hyper, std::vector<JoinedUpdate> updates)
      : rule_(rule),
        optimizer_(std::move(optimizer)),
        hyper_(std::move(hyper)),
        updates_(std::move(updates)) {
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
      replica.over_workers([&] { sum_over_workers(replica, home); });
      if (home.sharded_updates() == nullptr)
        apply(replica, replica.shared_sums(), /*is_of_all=*/false);
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
  SlotKey key() const { return {rule_, optimizer_}; }
  // Variables of other homes are not updated in a step.
  MirroredHome& home_of_variables() const { return updates_.front().variable->mirrored_home(); }

  std::vector<double> numbers(CountedUpdates& counted) const {
    std::vector<double> numbers;
    for (const at::Tensor& value : hyperparameters_of_step(hyper_, counted))
      numbers.push_back(hyperparameter_value(value));
    variable::check_hyperparameters(rule_, numbers, updates_.front().variable->name());
    return numbers;
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
      if (const at::Tensor* const one = only(all)) {
        sums.push_back(*one);
        continue;
      }
      sums.push_back(replica.own_offer().sums[i]);
      add_all(sums[i], all, 0, sums[i].numel());
    }
    return sums;
  }

  // Adds this replica's share of the elements, for all replicas.
  void add_share(StepReplica& replica) const {
    const auto index = static_cast<std::int64_t>(replica.index());
    const auto count = static_cast<std::int64_t>(replica.count());
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      const auto all = gradients(replica, i);
      if (only(all) != nullptr) continue;
      const at::Tensor& sum = replica.shared_sums()[i];
      add_all(sum, all, sum.numel() * index / count, sum.numel() * (index + 1) / count);
    }
  }

  // On replica 0, as WorkerGradients do it for run(), or ShardedUpdates.
  void sum_over_workers(StepReplica& replica, MirroredHome& home) const {
    std::vector<Variable> variables;
    std::vector<Reduction::Parts> sums;
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      variables.push_back(updates_[i].handle);
      const auto all = gradients(replica, i);
      Reduction::Parts& sum = sums.emplace_back();
      const at::Tensor* const one = only(all);
      if (one != nullptr) {
        // A share of it is copied before anyone can write into it.
        const bool is_read_only =
            home.sharded_updates() != nullptr && !updates_[i].variable->is_on_read();
        sum.value = is_read_only || is_only_user(*one) ? *one : one->clone();
      } else if (std::any_of(all.begin(), all.end(), [](const auto* each) { return each; })) {
        sum.value = at::empty_like(updates_[i].variable->component(0).detach());
        add_all(sum.value, all, 0, sum.value.numel());
      }
      sum.type = updates_[i].variable->spec().dtype;
    }
    const auto state = [&] { return home.alike_in_steps(optimizer_); };
    const std::string what = home.step_of(key());
    const std::vector<double>& hyper = replica.own_offer().numbers;
    if (ShardedUpdates* const sharded = home.sharded_updates())
      return sharded->step(key(), what, variables, sums, hyper, state);
    home.gradients().sum(kApplyCall, what, variables, sums, numbers_of(rule_, hyper), state);
    std::vector<at::Tensor>& of_all = replica.shared_sums();
    of_all.clear();
    for (const Reduction::Parts& sum : sums) of_all.push_back(gradient_of_sum(sum));
    COHORT_CHECK(
        std::any_of(of_all.begin(), of_all.end(), [](const auto& each) { return each.defined(); }),
        ErrorCode::invalid_argument, "[optimizer.minimize] ", no_gradient_text(variables));
  }

  std::vector<at::Tensor> shared_sums(StepReplica& replica) const {
    std::vector<at::Tensor> sums = replica.shared_sums();
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      if (const at::Tensor* const one = only(gradients(replica, i))) sums[i] = *one;
    }
    return sums;
  }

  // An error in one value must leave all of them unchanged.
  void apply(StepReplica& replica, const std::vector<at::Tensor>& sums, bool is_of_all) const {
    const std::vector<double>& hyper = replica.of(0).numbers;
    struct Wanted {
      std::size_t update;
      std::size_t value;
      VariableState::Fresh fresh;
    };
    std::vector<Wanted> wanted;
    wanted.reserve(updates_.size());
    for (std::size_t i = 0; i < updates_.size(); ++i) {
      if (!sums[i].defined()) continue;
      const MirroredVariable& variable = *updates_[i].variable;
      const std::size_t own = variable.value_of(replica.index());
      const std::size_t begin = is_of_all ? 0 : own, end = is_of_all ? variable.size() : own + 1;
      for (std::size_t value = begin; value < end; ++value)
        wanted.push_back({i, value, variable.reserve(value, key(), hyper)});
    }
    for (Wanted& one : wanted) {
      updates_[one.update].variable->apply(one.value, key(), std::move(one.fresh), sums[one.update],
                                           hyper);
    }
  }

  const variable::UpdateRule& rule_;
  const std::string optimizer_;
  const std::vector<at::Tensor> hyper_;
  const std::vector<JoinedUpdate> updates_;
  std::int64_t elements_ = 0;
  bool is_of_one_value_ = false;  // some variable has one value for all replicas
};

class ApplyCall final : public StepCall {
 public:
  ApplyCall(const SlotKey& key, std::span<const Update> updates, std::span<const at::Tensor> hyper)
      : rule_(key.rule), optimizer_(key.optimizer), hyper_(hyper.begin(), hyper.end()) {
    std::size_t next = 0;
    for (const Update& update : updates) {
      variables_.push_back(update.variable);
      places_.push_back(update.gradient.defined() ? std::optional(next++) : std::nullopt);
    }
  }

  std::string text() const override {
    return "apply_gradients(" + std::string(rule_.name()) + ", '" + optimizer_ + "')";
  }

  // Without the optimizer's name, which may be numbered, in another order on each worker.
  std::string text_over_workers() const override {
    std::string text = "apply_gradients(" + std::string(rule_.name()) + ") to";
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
    return std::make_unique<JoinedApply>(rule_, optimizer_, hyper_, std::move(updates));
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

  const variable::UpdateRule& rule_;
  const std::string optimizer_;
  const std::vector<at::Tensor> hyper_;
  std::vector<Variable> variables_;
  std::vector<std::optional<std::size_t>> places_;
};

}  // namespace

std::shared_ptr<const StepCall> apply_call(const SlotKey& key, std::span<const Update> updates,
                                           std::span<const at::Tensor> hyper) {
  return std::make_shared<ApplyCall>(key, updates, hyper);
}

}  // namespace cohort::internal
