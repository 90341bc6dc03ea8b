// SPDX-License-Identifier: Apache-2.0
// Steps of strategies that keep variables on parameter servers.
#include <ATen/ops/stack.h>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

// The constructor alone, which needs no server.
Value construct(const Step& step) {
  const auto jobs =
      member(step.json, "cluster").get<std::map<std::string, std::vector<std::string>>>();
  SimpleResolver::Options options;
  if (step.has("type")) options.task_type = step.text("type");
  if (step.has("index")) options.task_id = step.json["index"].get<std::int64_t>();
  const SimpleResolver resolver(ClusterSpec(jobs), options);
  const ParameterServerStrategy strategy(resolver);
  return {};
}

// --- variables with a copy for each worker -------------------------------------------------------

Value per_worker_variable(const Step& step) {
  auto& strategy = dynamic_cast<ParameterServerStrategy&>(step.strategy());
  const Value init = evaluate(step.test, step.frame, member(step.json, "init"));
  const PerWorkerVariable made =
      strategy.per_worker_variable(step.text_or("as", "Variable"), tensor_from(step.test, init));
  return Value::of(Nest(std::shared_ptr<Handle>(std::make_shared<PerWorkerVariableLeaf>(made))));
}

std::vector<at::Tensor> copies_of(const Step& step) {
  const Value found = step.frame.find(step.text("var"));
  if (found.per_worker_variable() == nullptr) throw CaseFault("no variable with copies");
  return found.per_worker_variable()->read_all();
}

// Which worker runs which closure is open, so the cases expect the sum.
Value sum_of_copies(const Step& step) { return Value::of(at::stack(copies_of(step)).sum(0)); }

Value count_of_copies(const Step& step) { return Value::of_json(copies_of(step).size()); }

}  // namespace

const StepTable& server_steps() {
  static const StepTable table = {
      {"ps_strategy", {construct, {"cluster", "type", "index"}}},
      {"per_worker_var", {per_worker_variable, {"init"}}},
      {"read_all", {sum_of_copies, {"var"}}},
      {"read_all_count", {count_of_copies, {"var"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
