// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable_home.h"

#include <memory>
#include <unordered_set>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/spelling.h"
#include "cohort/function/trace.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/rows.h"
#include "cohort/variable/validation.h"

namespace cohort {
namespace {

using function::Trace;

const Variable& variable_of(const Variable& variable) { return variable; }
const Variable& variable_of(const VariableWrite& write) { return write.variable; }
const Variable& variable_of(const Update& update) { return update.variable; }

// The arguments for one home, in their order, with their positions in the whole.
template <class T>
struct OfOneHome {
  std::shared_ptr<VariableHome> home;
  std::vector<T> members = {};
  std::vector<std::size_t> positions = {};
};

template <class T>
std::vector<OfOneHome<T>> by_home(std::span<const T> all) {
  std::vector<OfOneHome<T>> groups;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::shared_ptr<VariableHome> home = variable_of(all[i]).impl()->home();
    OfOneHome<T>* group = nullptr;
    for (OfOneHome<T>& known : groups) {
      if (known.home == home) group = &known;
    }
    if (group == nullptr) group = &groups.emplace_back(OfOneHome<T>{home});
    group->members.push_back(all[i]);
    group->positions.push_back(i);
  }
  return groups;
}

// Also checks that this thread may use every home.
template <class T>
std::vector<OfOneHome<T>> by_home(std::span<const T> all, std::string_view method) {
  std::vector<OfOneHome<T>> groups = by_home(all);
  for (const OfOneHome<T>& group : groups)
    group.home->check_use(method, variable_of(group.members.front()).name());
  return groups;
}

template <class T>
void check_replicas(std::span<const T> all, std::string_view call) {
  if (variable::ReplicaCount::current() == 1) return;
  for (const T& each : all) {
    if (!variable_of(each).impl()->home()->reduces_over_replicas())
      variable::check_one_replica(call);
  }
}

using Storages = std::unordered_set<const c10::StorageImpl*>;

Storages storages_of(std::span<const Update> updates) {
  Storages storages;
  for (const Update& update : updates) {
    for (const at::Tensor& tensor : update.variable.impl()->home()->memory_of(update.variable))
      storages.insert(tensor.storage().unsafeGetStorageImpl());
  }
  return storages;
}

// The updates with copies of the gradients that are views of a variable's value, which an update
// would change; empty if none is.
std::vector<Update> with_own_gradients(std::span<const Update> updates) {
  std::vector<Update> own;
  Storages storages;
  for (std::size_t i = 0; i < updates.size(); ++i) {
    const at::Tensor& gradient = updates[i].gradient;
    if (!gradient.defined()) continue;
    const bool is_sparse = gradient.layout() == at::kSparse;
    const at::Tensor values = is_sparse ? variable::rows_of(gradient).values : gradient;
    // A tensor that autograd has made is the only user of its memory.
    if (values.storage().use_count() == 1) continue;
    if (storages.empty()) storages = storages_of(updates);
    if (!storages.contains(values.storage().unsafeGetStorageImpl())) continue;
    if (own.empty()) own.assign(updates.begin(), updates.end());
    own[i].gradient = gradient.detach().clone();
  }
  return own;
}

}  // namespace

std::vector<at::Tensor> VariableHome::sum_over_replicas(std::span<const Update> gradients) {
  std::vector<at::Tensor> own;
  for (const Update& update : gradients) own.push_back(update.gradient);
  return own;
}

void check_can_update(std::span<const Variable> variables, std::string_view call) {
  check_replicas(variables, call);
}

std::vector<at::Tensor> sum_over_replicas(std::span<const Update> gradients,
                                          std::string_view call) {
  check_replicas(gradients, call);
  std::vector<at::Tensor> sums(gradients.size());
  for (const OfOneHome<Update>& group : by_home(gradients, "apply")) {
    UpdateRecorder* const recorder = Trace::current() == nullptr ? nullptr : group.home->recorder();
    std::vector<at::Tensor> total = recorder != nullptr
                                        ? recorder->sum_over_replicas(group.members)
                                        : group.home->sum_over_replicas(group.members);
    for (std::size_t i = 0; i < total.size(); ++i) sums[group.positions[i]] = std::move(total[i]);
  }
  return sums;
}

std::vector<at::Tensor> read_values(std::span<const Variable> variables) {
  COHORT_ASSERT(Trace::current() == nullptr);
  std::vector<at::Tensor> values(variables.size());
  for (const OfOneHome<Variable>& group : by_home(variables, "read")) {
    std::vector<at::Tensor> read = group.home->read(group.members);
    for (std::size_t i = 0; i < read.size(); ++i) values[group.positions[i]] = std::move(read[i]);
  }
  return values;
}

void export_state(std::span<const Variable> variables, const StateWalk& walk,
                  const TakeRecord& take) {
  for (const OfOneHome<Variable>& group : by_home(variables, "read")) {
    group.home->export_state(group.members, walk, [&](std::size_t i, VariableRecord record) {
      take(group.positions[i], std::move(record));
    });
  }
}

namespace {

// Row ids are read, which only a run of a program can do.
void check_write(const VariableWrite& write, bool is_traced) {
  const auto& [variable, kind, value, row_ids, is_number] = write;
  if (!variable::is_scatter(kind) && variable.impl()->home()->assigns_by_parts()) {
    variable.impl()->home()->check_use("assign", variable.name());
  } else if (!variable::is_scatter(kind)) {
    variable::check_assign(kind, variable.name(), variable.spec(), value);
  } else if (!is_traced) {
    variable::check_rows(kind, variable.name(), variable.spec(), row_ids, value);
  }
  check_replicas(std::span(&write, 1),
                 variable::is_scatter(kind) ? variable::call_name(kind) : "variable.assign");
}

}  // namespace

void write_values(std::span<const VariableWrite> writes) {
  Trace* const trace = Trace::current();
  for (const VariableWrite& write : writes) check_write(write, trace != nullptr);
  if (trace == nullptr) {
    if (writes.empty()) return;
    const bool is_scatter = variable::is_scatter(writes.front().kind);
    for (const OfOneHome<VariableWrite>& group : by_home(writes, is_scatter ? "scatter" : "assign"))
      group.home->write(group.members);
    return;
  }
  for (const OfOneHome<VariableWrite>& group : by_home(writes)) {
    if (UpdateRecorder* recorder = group.home->recorder()) {
      recorder->write(group.members);
      continue;
    }
    for (const VariableWrite& write : group.members)
      trace->update(write.variable.tensor(), write.effect());
  }
}

void apply_updates(const SlotKey& key, std::span<const Update> updates,
                   std::span<const at::Tensor> hyper) {
  check_replicas(updates, "variable.apply");
  for (const Update& each : updates) {
    const bool is_of_others = !each.gradient.defined() && variable::ReplicaCount::current() > 1;
    if (!is_of_others) {
      variable::check_gradient(key.rule, each.variable.tensor(), each.gradient,
                               each.variable.name());
    }
  }
  const std::vector<Update> own = with_own_gradients(updates);
  if (!own.empty()) updates = own;
  if (Trace* trace = Trace::current()) {
    for (const OfOneHome<Update>& group : by_home(updates)) {
      if (UpdateRecorder* recorder = group.home->recorder()) {
        recorder->apply(key, group.members, hyper);
        continue;
      }
      for (const Update& each : group.members) {
        trace->update(each.variable.tensor(),
                      internal::apply_effect(key.owner(), {}, each.gradient),
                      key.hyper_of(each.variable.impl().get(), hyper));
      }
    }
    return;
  }
  const std::vector<double> numbers = variable::values_of(hyper);
  for (const Update& update : updates) {
    variable::check_hyperparameters(key.rule,
                                    key.hyper_of<double>(update.variable.impl().get(), numbers),
                                    update.variable.name());
  }
  for (const OfOneHome<Update>& group : by_home(updates, "apply"))
    group.home->apply(key, group.members, numbers);
}

std::string names_of(std::span<const Variable> variables) {
  QuotedNames names;
  for (const Variable& variable : variables) names.add(variable.name());
  return names.text();
}

}  // namespace cohort
