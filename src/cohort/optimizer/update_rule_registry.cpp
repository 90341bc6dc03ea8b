// SPDX-License-Identifier: Apache-2.0
// The table of all update rules: a prototype and a row for each.
#include <array>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/text/detail/spelling.h"
#include "cohort/optimizer/optimizers.h"

namespace cohort::optimizer {

const variable::UpdateRule& sgd_rule();
const variable::UpdateRule& momentum_rule();
const variable::UpdateRule& nesterov_rule();
const variable::UpdateRule& adagrad_rule();
const variable::UpdateRule& rmsprop_rule();
const variable::UpdateRule& adam_rule();
const variable::UpdateRule& sgd_weight_decay_rule();
const variable::UpdateRule& momentum_weight_decay_rule();
const variable::UpdateRule& nesterov_weight_decay_rule();
const variable::UpdateRule& adam_weight_decay_rule();
const variable::UpdateRule& adamw_rule();

namespace {

constexpr std::array kRules{
    &sgd_rule,
    &momentum_rule,
    &nesterov_rule,
    &adagrad_rule,
    &rmsprop_rule,
    &adam_rule,
    &sgd_weight_decay_rule,
    &momentum_weight_decay_rule,
    &nesterov_weight_decay_rule,
    &adam_weight_decay_rule,
    &adamw_rule,
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
