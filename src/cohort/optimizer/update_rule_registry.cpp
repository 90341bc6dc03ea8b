// SPDX-License-Identifier: Apache-2.0
// The table of all update rules, one row each.
#include <array>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/text/detail/spelling.h"
#include "cohort/optimizer/detail/update_rules.h"
#include "cohort/optimizer/optimizers.h"

namespace cohort::optimizer {
namespace {

constexpr std::array kRules{
    &optimizer::sgd_rule,
    &optimizer::momentum_rule,
    &optimizer::nesterov_rule,
    &optimizer::adagrad_rule,
    &optimizer::rmsprop_rule,
    &optimizer::adam_rule,
    &optimizer::sgd_weight_decay_rule,
    &optimizer::momentum_weight_decay_rule,
    &optimizer::nesterov_weight_decay_rule,
    &optimizer::adam_weight_decay_rule,
    &optimizer::adamw_rule,
};

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
