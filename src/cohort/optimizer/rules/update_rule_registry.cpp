// SPDX-License-Identifier: Apache-2.0
// The table of all update rules: a prototype and a row for each.
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/spelling.h"
#include "cohort/optimizer/optimizers.h"

namespace cohort::optimizer {

using RuleFunction = const variable::UpdateRule&();
RuleFunction sgd_rule, momentum_rule, nesterov_rule, dampened_momentum_rule, adagrad_rule,
    rmsprop_rule, rmsprop_momentum_rule, rmsprop_centered_rule, rmsprop_centered_momentum_rule,
    adam_rule, adam_amsgrad_rule, adamw_rule, adamw_amsgrad_rule, tensorflow_adagrad_rule,
    tensorflow_rmsprop_rule, tensorflow_adam_rule, tensorflow_adamw_rule;

namespace {

constexpr RuleFunction* kRules[] = {sgd_rule,
                                    momentum_rule,
                                    nesterov_rule,
                                    dampened_momentum_rule,
                                    adagrad_rule,
                                    rmsprop_rule,
                                    rmsprop_momentum_rule,
                                    rmsprop_centered_rule,
                                    rmsprop_centered_momentum_rule,
                                    adam_rule,
                                    adam_amsgrad_rule,
                                    adamw_rule,
                                    adamw_amsgrad_rule,
                                    tensorflow_adagrad_rule,
                                    tensorflow_rmsprop_rule,
                                    tensorflow_adam_rule,
                                    tensorflow_adamw_rule};

}  // namespace

std::vector<std::string_view> update_rule_names() {
  std::vector<std::string_view> names;
  for (const auto rule : kRules) names.push_back(rule().name());
  return names;
}

const variable::UpdateRule& update_rule_of(std::string_view name) {
  std::string known;
  std::vector<std::string> all;
  for (const auto rule : kRules) {
    if (rule().name() == name) return rule();
    all.emplace_back(rule().name());
    known += (known.empty() ? "'" : ", '") + all.back() + "'";
  }
  COHORT_CHECK(false, ErrorCode::not_found, "[optimizer.rule] expected one of ", known, ", got '",
               name, "'", did_you_mean(name, all));
  COHORT_ASSERT(false);
}

}  // namespace cohort::optimizer
