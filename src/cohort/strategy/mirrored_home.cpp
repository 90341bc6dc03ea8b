// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/mirrored_home.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/strategy/detail/contexts.h"
#include "cohort/strategy/internal/reduction.h"
#include "cohort/strategy/strategy.h"

namespace cohort::internal {
namespace {

MirroredVariable& mirrored(const Variable& variable) {
  return static_cast<MirroredVariable&>(*variable.impl());
}

// A sum of zeros is zero for any number of replicas.
bool is_zero(const at::Tensor& value) { return !value.to(at::kBool).any().item<bool>(); }

// The value that the replicas assign together.
at::Tensor combined(const MirroredVariable& variable, const std::vector<at::Tensor>& values) {
  const VariableAggregation aggregation = variable.traits().aggregation;
  const bool is_one = is_one_object(values);
  if (aggregation == VariableAggregation::only_first_replica) return values[0];
  const bool is_mean = aggregation == VariableAggregation::mean;
  if (is_one && (is_mean || is_zero(values[0]))) return values[0];
  COHORT_CHECK(!is_one, ErrorCode::invalid_argument,
               "[variable.assign] expected a value of each "
               "replica to sum for variable '",
               variable.name(),
               "', got one tensor that is the same in all; assign a tensor that each replica has "
               "made, or use aggregation mean or only_first_replica");
  const Reduction reduction(is_mean ? ReduceOp::mean : ReduceOp::sum, {});
  std::vector<Reduction::Parts> parts;
  for (const at::Tensor& value : values) parts.push_back(reduction.parts(value.detach()));
  return reduction.result(reduction.sum(parts));
}

std::string names_text(std::span<const Update> updates) {
  std::vector<Variable> variables;
  for (const Update& update : updates) variables.push_back(update.variable);
  return names_of(variables);
}

// The sum over the replicas, in their order and in memory of its own, since a replica may go on and
// write into its gradient while others still read the sum; undefined if none has a gradient.
at::Tensor sum_of(const PerReplica<std::vector<Update>>& all, std::size_t i) {
  at::Tensor first, sum;
  for (std::size_t replica = 0; replica < all.size(); ++replica) {
    const at::Tensor& next = all[replica][i].gradient;
    if (!next.defined()) continue;
    if (!first.defined()) {
      first = next;
    } else if (!sum.defined()) {
      sum = first.add(next);
    } else {
      sum.add_(next);
    }
  }
  return first.defined() && !sum.defined() ? first.clone() : sum;
}

}  // namespace

struct MirroredHome::Reduced {
  std::vector<Update> updates;
  std::vector<double> hyper;
};

MirroredHome::Place MirroredHome::place_here() const {
  if (&get_strategy() != owner_) return {};
  if (ReplicaContext* replica = get_replica_context()) {
    return {.kind = Place::Kind::replica,
            .component = static_cast<std::size_t>(replica->local_replica_id()),
            .replica = replica};
  }
  const int component = updated_component();
  if (component < 0) return {};
  return {.kind = Place::Kind::update, .component = static_cast<std::size_t>(component)};
}

void MirroredHome::check_name(const std::string& name) {
  std::erase_if(by_name_, [](const auto& entry) { return entry.second.expired(); });
  COHORT_CHECK(!by_name_.contains(name), ErrorCode::already_exists,
               "[variable.create] expected a new name, got '", name,
               "', which is another variable's; give the model or the variable a name of its own");
}

Variable MirroredHome::create(const std::string& name, std::vector<at::Tensor> components,
                              MirroredVariable::Traits traits) {
  const Lock lock(mutex_);
  check_name(name);
  const auto made =
      std::make_shared<MirroredVariable>(name, std::move(components), traits, shared_from_this());
  by_name_.emplace(name, made);
  return Variable(made);
}

std::vector<Variable> MirroredHome::create_module(
    std::string_view module, const std::vector<std::vector<NamedTensor>>& copies) {
  const std::vector<NamedTensor>& first = copies.at(0);
  for (std::size_t replica = 1; replica < copies.size(); ++replica) {
    const std::vector<NamedTensor>& other = copies[replica];
    for (std::size_t i = 0; i < std::min(first.size(), other.size()); ++i) {
      COHORT_CHECK(!first[i].tensor.is_alias_of(other[i].tensor), ErrorCode::invalid_argument,
                   "[strategy.replicate] expected a new module from each call of the factory, got "
                   "one with the memory of an earlier one ('",
                   other[i].name, "'); make the module inside the factory");
    }
    bool is_same = other.size() == first.size();
    std::size_t i = 0;
    for (; is_same && i < first.size(); ++i) {
      is_same = first[i].name == other[i].name && first[i].is_trainable == other[i].is_trainable &&
                TensorSpec::of(first[i].tensor) == TensorSpec::of(other[i].tensor);
      if (!is_same) break;
    }
    const auto text = [&](const std::vector<NamedTensor>& tensors) {
      if (i >= tensors.size()) return std::to_string(tensors.size()) + " parameters and buffers";
      return "'" + tensors[i].name + "' " + TensorSpec::of(tensors[i].tensor).to_string();
    };
    COHORT_CHECK(is_same, ErrorCode::invalid_argument,
                 "[strategy.replicate] expected the same module for each replica, got ",
                 text(first), " for replica 0 and ", text(other), " for replica ", replica,
                 "; the factory must not depend on how often it is called");
  }
  std::vector<Variable> made;
  const Lock lock(mutex_);
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < first.size(); ++i) {
    const std::string name = std::string(module) + "/" + first[i].name;
    check_name(name);
    std::vector<at::Tensor> components;
    for (const std::vector<NamedTensor>& copy : copies) {
      components.push_back(copy[i].tensor);
      if (components.size() > 1) components.back().copy_(first[i].tensor);
    }
    MirroredVariable::Traits traits{.is_trainable = first[i].is_trainable};
    if (first[i].is_buffer) {
      traits.synchronization = VariableSynchronization::on_read;
      traits.aggregation = first[i].tensor.is_floating_point()
                               ? VariableAggregation::mean
                               : VariableAggregation::only_first_replica;
    }
    made.emplace_back(std::make_shared<MirroredVariable>(name, std::move(components), traits,
                                                         shared_from_this()));
  }
  for (const Variable& variable : made) by_name_.emplace(variable.name(), variable.impl());
  return made;
}

void MirroredHome::keep_modes(ModuleModes modes) {
  const Lock lock(mutex_);
  std::erase_if(modes_, [](const ModuleModes& each) { return each.read().empty(); });  // destroyed
  modes_.push_back(std::move(modes));
}

MirroredHome::ModesScope::ModesScope(MirroredHome& home) : home_(home) {
  if (home_.is_in_replica()) return;
  const Lock lock(home_.mutex_);
  for (const ModuleModes& modes : home_.modes_) before_.push_back(modes.read());
}

MirroredHome::ModesScope::~ModesScope() {
  const Lock lock(home_.mutex_);
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (!before_[i].empty()) home_.modes_[i].write(before_[i]);
  }
}

void MirroredHome::check_use(std::string_view method) const {
  check_not_mixing(owner_, name_, "variable." + std::string(method));
}

std::vector<at::Tensor> MirroredHome::read(std::span<const Variable> variables) const {
  std::vector<at::Tensor> values;
  for (const Variable& variable : variables) values.push_back(mirrored(variable).copy());
  return values;
}

void MirroredHome::assign(std::span<const Assignment> assignments) {
  const Place place = place_here();
  if (place.kind == Place::Kind::all) {
    for (const Assignment& each : assignments) mirrored(each.variable).check_assign_all(each.kind);
    for (const auto& [variable, kind, value] : assignments)
      mirrored(variable).assign_all(kind, value);
    return;
  }
  std::vector<Assignment> merged;
  for (const Assignment& each : assignments) {
    MirroredVariable& variable = mirrored(each.variable);
    const bool is_own = place.kind == Place::Kind::update || replicas_ == 1 ||
                        variable.is_on_read() ||
                        variable.traits().aggregation == VariableAggregation::none;
    if (is_own) {
      variable.assign_component(place.component, each.kind, each.value);
    } else {
      merged.push_back(each);
    }
  }
  if (!merged.empty()) assign_merged(*place.replica, std::move(merged));
}

void MirroredHome::assign_merged(ReplicaContext& replica, std::vector<Assignment> assignments) {
  replica.merge_call(
      [](Strategy&, const PerReplica<std::vector<Assignment>>& all) {
        const std::vector<Assignment>& first = all[0];
        std::vector<at::Tensor> values;
        for (std::size_t i = 0; i < first.size(); ++i) {
          std::vector<at::Tensor> of_replicas;
          for (std::size_t r = 0; r < all.size(); ++r) {
            const bool is_same = all[r].size() == first.size() &&
                                 all[r][i].variable == first[i].variable &&
                                 all[r][i].kind == first[i].kind;
            COHORT_CHECK(is_same, ErrorCode::invalid_argument,
                         "[variable.assign] expected the same assignment in all replicas, got "
                         "variable '",
                         first[i].variable.name(),
                         "' in replica 0 and another variable or kind of "
                         "assignment in replica ",
                         r);
            of_replicas.push_back(all[r][i].value);
          }
          values.push_back(combined(mirrored(first[i].variable), of_replicas));
          COHORT_CHECK(values.back().scalar_type() == first[i].variable.spec().dtype,
                       ErrorCode::invalid_argument,
                       "[variable.assign] expected a mean of the variable's own dtype, got ",
                       TensorSpec::of(values.back()).to_string(), " (variable '",
                       first[i].variable.name(), "')");
        }
        for (std::size_t i = 0; i < first.size(); ++i)
          mirrored(first[i].variable).assign_all(first[i].kind, values[i]);
      },
      std::move(assignments));
}

MirroredHome::Reduced MirroredHome::reduce(ReplicaContext& replica, std::span<const Update> updates,
                                           std::span<const double> hyper) {
  return replica.merge_call(
      [](Strategy&, const PerReplica<std::vector<Update>>& all,
         const PerReplica<std::vector<double>>& numbers) {
        const std::vector<Update>& first = all[0];
        for (std::size_t r = 1; r < all.size(); ++r) {
          const bool is_same =
              std::equal(first.begin(), first.end(), all[r].begin(), all[r].end(),
                         [](const Update& a, const Update& b) { return a.variable == b.variable; });
          COHORT_CHECK(is_same, ErrorCode::invalid_argument,
                       "[optimizer.apply_gradients] expected the same variables in the same order "
                       "in all replicas, got ",
                       names_text(first), " in replica 0 and ", names_text(all[r]), " in replica ",
                       r);
        }
        Reduced reduced{.updates = {}, .hyper = numbers[0]};
        const c10::NoGradGuard no_grad;
        for (std::size_t i = 0; i < first.size(); ++i) {
          const at::Tensor sum = sum_of(all, i);
          if (sum.defined()) reduced.updates.push_back({first[i].variable, sum});
        }
        COHORT_CHECK(!reduced.updates.empty(), ErrorCode::invalid_argument,
                     "[optimizer.apply_gradients] expected gradients, got none that is defined in "
                     "any replica");
        return reduced;
      },
      std::vector<Update>(updates.begin(), updates.end()),
      std::vector<double>(hyper.begin(), hyper.end()));
}

void MirroredHome::apply_to(std::size_t component, const SlotKey& key,
                            std::span<const Update> updates, std::span<const double> hyper) const {
  // An error in one variable must leave all of them unchanged.
  std::vector<VariableState::Fresh> fresh;
  std::vector<at::Tensor> gradients;
  for (const auto& [variable, gradient] : updates) {
    fresh.push_back(mirrored(variable).reserve(component, key, hyper));
    gradients.push_back(gradient.detach().resolve_conj().resolve_neg().contiguous());
  }
  for (std::size_t i = 0; i < updates.size(); ++i)
    mirrored(updates[i].variable).apply(component, key, std::move(fresh[i]), gradients[i], hyper);
}

void MirroredHome::apply(const SlotKey& key, std::span<const Update> updates,
                         std::span<const double> hyper) {
  const Place place = place_here();
  if (place.kind == Place::Kind::all) {
    for (std::size_t i = 0; i < replicas_; ++i) apply_to(i, key, updates, hyper);
  } else if (place.kind == Place::Kind::update || replicas_ == 1) {
    apply_to(place.component, key, updates, hyper);
  } else {
    const Reduced reduced = reduce(*place.replica, updates, hyper);
    apply_to(place.component, key, reduced.updates, reduced.hyper);
  }
}

void MirroredHome::check_module_use() const {
  COHORT_CHECK(is_in_replica(), ErrorCode::failed_precondition,
               "[strategy.replicate] expected a replica of '", name_,
               "', got a use of the module outside of run(); for evaluation and saving, take an "
               "ordinary module with snapshot()");
}

void MirroredHome::check_outside_step(std::string_view call) const {
  COHORT_CHECK(!is_in_replica(), ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a call outside of run(), got one in a replica of '", name_,
               "'; call it between two runs");
}

}  // namespace cohort::internal
