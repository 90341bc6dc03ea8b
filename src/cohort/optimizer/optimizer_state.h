// SPDX-License-Identifier: Apache-2.0
// The object to which all handles of an optimizer refer.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/spelling.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/loss_warnings.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/optimizer/parameter_groups.h"
#include "cohort/optimizer/rules/claimed_name.h"
#include "cohort/variable/attached_states.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/validation.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_state.h"

namespace cohort {

// Thread-safe, as Optimizer is.
struct Optimizer::State final : AttachedState {
  using GradientList = std::vector<std::pair<at::Tensor, Variable>>;
  using Members = std::unordered_set<const VariableImpl*>;

  State(std::vector<Variable> given, Members given_members, const variable::UpdateRule& its_rule,
        std::string its_name, const LearningRateSchedule& schedule,
        std::vector<ParameterGroup> its_groups, bool has_lazy_rows)
      : variables(std::move(given)),
        members(std::move(given_members)),
        rule(its_rule),
        groups(std::move(its_groups), rule, variables),
        claimed(std::move(its_name), variables, rule),
        lazy_rows(has_lazy_rows),
        learning_rate(schedule, !schedule.is_constant()) {}

  const std::vector<Variable> variables;
  const Members members;                 // the same
  std::vector<Variable> first_of_homes;  // one of each home
  const variable::UpdateRule& rule;
  optimizer::HyperOfGroups groups;
  const optimizer::ClaimedName claimed;
  const bool lazy_rows;
  std::atomic<bool> has_warned_of_rows = false;
  mutable internal::LossWarnings warnings;
  mutable UpdateCounter learning_rate;  // SlotKey::counter
  // In the rule's order, then those of the groups; the tensors never change, their values do. The
  // first is the learning rate.
  std::vector<at::Tensor> hyper;

  SlotKey slot_key() const {
    return {rule, claimed.get(), &learning_rate, lazy_rows, groups.by_variable()};
  }
  std::size_t own_count() const { return rule.hyperparameter_names().size(); }

  std::string key() const override {
    return "optimizer '" + claimed.get() + "' of '" + variables.front().name() + "'";
  }
  // Only the number of updates is saved of a schedule, since its value follows from that. Groups,
  // which are of the program as a schedule is, are compared.
  Bytes save() const override {
    ByteWriter out;
    out.text(rule.name());
    out.zigzag(learning_rate.count());
    const bool is_schedule = varies_with_updates(hyper.front());
    out.u8(is_schedule ? 1 : 0);
    for (std::size_t i = 0; i < own_count(); ++i) out.f64(hyperparameter_value(hyper[i]));
    if (const std::string of_groups = groups.text(); !of_groups.empty()) out.text(of_groups);
    return out.take();
  }
  void load(std::span<const std::byte> state) override {
    ByteReader in(state, "the state of " + key());
    const std::string saved_rule = in.text();
    const std::int64_t count = in.zigzag();
    const bool is_schedule = in.u8() != 0;
    COHORT_CHECK(saved_rule == rule.name(), ErrorCode::invalid_argument,
                 "[optimizer.load] expected the rule '", rule.name(), "' for ", key(), ", got '",
                 saved_rule, "'; make the same optimizers on all workers");
    const double rate = in.f64();
    for (std::size_t i = 1; i < own_count(); ++i) {
      const double value = in.f64();
      warn_of_replaced(i, hyperparameter_value(hyper[i]), value);
      cohort::set_hyperparameter(hyper[i], value);
    }
    const std::string saved_groups = in.remaining() > 0 ? in.text() : std::string();
    in.expect_end();
    if (saved_groups != groups.text())
      log_warn("[optimizer.load] ", key(), " has the groups [", groups.text(),
               "] here, which it keeps, and [", saved_groups,
               "] in other workers, or in a checkpoint; give all the same groups");
    learning_rate.set_count(count);
    if (is_schedule) {
      if (!varies_with_updates(hyper.front()))
        log_warn("[optimizer.load] ", key(), " has the learning rate ", learning_rate.value(),
                 " here, and a schedule on other workers; set the same schedule here");
    } else if (varies_with_updates(hyper.front()) || learning_rate.value() != rate) {
      warn_of_replaced(0, learning_rate.value(), rate);
      learning_rate.set_value([rate](std::int64_t) { return rate; }, /*varies=*/false);
    }
  }
  OptimizerId id() const override { return {claimed.get(), rule.name(), variables[0].name()}; }
  std::string alike_in_steps(std::string_view optimizer) const override {
    if (optimizer != claimed.get()) return {};
    return std::string(rule.name()) + " of '" + variables.front().name() + "' after " +
           std::to_string(learning_rate.count()) + " updates";
  }
  // Once: the gradient of an embedding has few rows, but the update of all of them is as slow as
  // that of a dense one.
  void warn_of_all_rows(const Update& update) {
    const bool is_of_rows = variable::is_row_gradient(update.gradient);
    if (lazy_rows || !is_of_rows || update.variable.impl()->is_table() || has_warned_of_rows)
      return;
    const auto own = slot_key().hyper_of<at::Tensor>(update.variable.impl().get(), hyper);
    if (rule.leaves_rows_of_zeros(variable::values_of(own)) || has_warned_of_rows.exchange(true))
      return;
    log_warn("[optimizer.", rule.name(), "] the gradient of '", update.variable.name(),
             "' has some rows only, but this rule with these options changes all ",
             update.gradient.size(0),
             " rows in each update, as with a dense gradient; set .lazy_rows = true to change only "
             "the rows that occur");
  }
  void warn_of_replaced(std::size_t i, double own, double of_others) const {
    if (own == of_others) return;
    log_warn("[optimizer.load] ", key(), " has ", rule.hyperparameter_names()[i], " ", own,
             " here, and takes over ", of_others,
             " of the other workers, or of a checkpoint; give all the same number, or call "
             "set_learning_rate() afterwards");
  }
  // Adds it to each home of its variables. `self`: this.
  void attach_to_homes(const std::shared_ptr<State>& self) {
    std::vector<std::shared_ptr<VariableHome>> homes;
    for (const Variable& variable : variables) {
      std::shared_ptr<VariableHome> home = variable.impl()->home();
      if (std::find(homes.begin(), homes.end(), home) != homes.end()) continue;
      home->attach(self);
      homes.push_back(std::move(home));
      first_of_homes.push_back(variable);
    }
  }
  void check_can_minimize() const {
    for (const Variable& variable : first_of_homes)
      variable.impl()->home()->check_can_minimize(variable.name());
  }
  bool keeps_newer_values() const {
    return std::any_of(first_of_homes.begin(), first_of_homes.end(), [](const Variable& each) {
      return each.impl()->home()->keeps_newer_values();
    });
  }

  GradientList gradients(const at::Tensor& loss, std::unique_ptr<GradientSink>* sink) const;
  // `are_temporary`: only this call needs them, and those that nobody else has may be overwritten.
  void apply(const GradientList& gradients, bool are_temporary);
  std::unique_ptr<GradientSink> sink_for(const GradientList& gradients) const {
    if (gradients.empty() || function::Trace::current() != nullptr) return nullptr;
    const std::shared_ptr<VariableHome> home = gradients.front().second.impl()->home();
    if (gradients.size() == variables.size()) return home->gradient_sink(slot_key(), variables);
    std::vector<Variable> of_step;
    for (const auto& [gradient, variable] : gradients) of_step.push_back(variable);
    return home->gradient_sink(slot_key(), of_step);
  }

  // Its position in the rule's order.
  std::size_t find(std::string_view name) const {
    const auto names = rule.hyperparameter_names();
    std::string known;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) return i;
      known += (i == 0 ? "'" : ", '") + std::string(names[i]) + "'";
    }
    const std::vector<std::string> all(names.begin(), names.end());
    COHORT_CHECK(false, ErrorCode::not_found, "[optimizer.", rule.name(), "] expected one of ",
                 known, ", got '", name, "' (name of a hyperparameter)", did_you_mean(name, all));
    COHORT_ASSERT(false);
  }

  // The second update of a step uses the learning rate that follows the first one's.
  std::vector<at::Tensor> captured_by(function::Trace& trace) {
    std::vector<at::Tensor> captured = hyper;
    groups.use_update(trace.next_number(this), captured, learning_rate);
    for (const at::Tensor& value : captured) trace.capture_input(value);
    return captured;
  }

  bool has(const Variable& variable) const { return members.contains(variable.impl().get()); }
};

}  // namespace cohort
