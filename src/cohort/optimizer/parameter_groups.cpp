// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/variable/variable_home.h"

namespace cohort::optimizer {
namespace {

std::size_t place_of_decay(const variable::UpdateRule& rule) {
  const auto names = rule.hyperparameter_names();
  return static_cast<std::size_t>(std::ranges::find(names, "weight_decay") - names.begin());
}

void check_group(const ParameterGroup& group, const variable::UpdateRule& rule, std::size_t decay) {
  const std::string where = "optimizer." + std::string(rule.name());
  const std::string detail = " (group '" + group.pattern + "')";
  COHORT_CHECK(!group.pattern.empty(), ErrorCode::invalid_argument, "[", where,
               "] expected a pattern of names for each group, got an empty one; set .pattern, as "
               "\"*.bias\"");
  if (group.learning_rate)
    variable::check_hyperparameter_range(rule, 0, where, (*group.learning_rate)(0), detail);
  variable::check_hyperparameter_range(variable::HyperparameterRange::not_negative, where,
                                       "learning_rate_factor", group.learning_rate_factor, detail);
  COHORT_CHECK(!group.learning_rate || group.learning_rate_factor == 1.0,
               ErrorCode::invalid_argument, "[", where,
               "] expected a learning_rate or a learning_rate_factor", detail, ", got both (",
               group.learning_rate_factor, "); leave out one of them");
  if (!group.weight_decay) return;
  COHORT_CHECK(decay < rule.hyperparameter_names().size(), ErrorCode::invalid_argument, "[", where,
               "] expected a rule that has a weight_decay", detail, ", got '", rule.name(),
               "' with ", *group.weight_decay, "; leave out .weight_decay");
  variable::check_hyperparameter_range(rule, decay, where, *group.weight_decay, detail);
}

bool fits(const ParameterGroup& group, const Variable& variable) {
  return ::fnmatch(group.pattern.c_str(), variable.name().c_str(), FNM_NOESCAPE) == 0;
}

HyperGroups::Numbers numbers_of_groups(const std::vector<ParameterGroup>& groups,
                                       const variable::UpdateRule& rule,
                                       const std::vector<Variable>& variables) {
  HyperGroups::Numbers numbers;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    bool fits_any = false;
    for (const Variable& variable : variables) {
      if (!fits(groups[i], variable)) continue;
      fits_any = true;
      numbers.emplace(variable.impl().get(), i + 1);  // unless an earlier group has it
    }
    COHORT_CHECK(fits_any, ErrorCode::invalid_argument, "[optimizer.", rule.name(),
                 "] expected a pattern that fits the name of a variable, got the group '",
                 groups[i].pattern, "', which fits none of ", names_of(variables),
                 "; '*' stands for any number of characters");
  }
  return numbers;
}

}  // namespace

HyperOfGroups::HyperOfGroups(std::vector<ParameterGroup> groups, const variable::UpdateRule& rule,
                             const std::vector<Variable>& variables)
    : size_(rule.hyperparameter_names().size()),
      decay_(place_of_decay(rule)),
      groups_(std::move(groups)) {
  if (groups_.empty()) return;
  for (const ParameterGroup& group : groups_) check_group(group, rule, decay_);
  by_variable_ =
      std::make_shared<const HyperGroups>(size_, numbers_of_groups(groups_, rule, variables));
}

void HyperOfGroups::add_to(std::vector<at::Tensor>& hyper, UpdateCounter& learning_rate) {
  COHORT_ASSERT(hyper.size() == size_);
  for (const ParameterGroup& group : groups_) {
    std::size_t derived = 0;
    if (group.learning_rate) {
      const auto value = [rate = *group.learning_rate](std::int64_t count, double) {
        return rate(count);
      };
      derived = learning_rate.derive(value, !group.learning_rate->is_constant());
    } else if (group.learning_rate_factor != 1.0) {
      const auto value = [factor = group.learning_rate_factor](std::int64_t, double rate) {
        return factor * rate;
      };
      derived = learning_rate.derive(value, /*varies=*/false);
    }
    derived_.push_back(derived);
    const std::size_t begin = hyper.size();
    for (std::size_t i = 0; i < size_; ++i) hyper.push_back(at::Tensor(hyper[i]));
    hyper[begin] = learning_rate.hyperparameter(0, derived);
    if (group.weight_decay) hyper[begin + decay_] = make_hyperparameter(*group.weight_decay);
  }
}

void HyperOfGroups::use_update(std::size_t index, std::vector<at::Tensor>& hyper,
                               UpdateCounter& learning_rate) const {
  hyper[0] = learning_rate.hyperparameter(index);
  for (std::size_t i = 0; i < groups_.size(); ++i)
    hyper[(i + 1) * size_] = learning_rate.hyperparameter(index, derived_[i]);
}

std::string HyperOfGroups::text() const {
  std::ostringstream out;
  out.precision(17);
  for (const ParameterGroup& group : groups_) {
    out << (out.tellp() > 0 ? "; '" : "'") << group.pattern << "':";
    if (!group.learning_rate) {
      out << " learning_rate * " << group.learning_rate_factor;
    } else if (group.learning_rate->is_constant()) {
      out << " learning_rate " << (*group.learning_rate)(0);
    } else {
      out << " learning_rate by a schedule";
    }
    if (group.weight_decay) out << ", weight_decay " << *group.weight_decay;
  }
  return out.str();
}

}  // namespace cohort::optimizer
