// SPDX-License-Identifier: Apache-2.0
// Steps of replica contexts: collective calls, gradients through them, losses; and the options of
// collective calls.
#include <torch/csrc/autograd/autograd.h>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

// --- options ------------------------------------------------------------------------------------

CommunicationOptions options_from(const Json& args) {
  CommunicationOptions options;
  for (const auto& [name, value] : args.items()) {
    if (name == "bytes_per_pack") {
      options.bytes_per_pack = value.get<std::int64_t>();
    } else if (name == "timeout_seconds") {
      if (!value.is_null()) {
        options.timeout = std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(value.get<double>()));
      }
    } else if (name == "implementation") {
      options.implementation = communication_implementation(value.get<std::string>());
    } else {
      throw CaseFault("unknown communication option '" + name + "'");
    }
  }
  options.check();
  return options;
}

const char* name_of_implementation(CommunicationImplementation implementation) {
  switch (implementation) {
    case CommunicationImplementation::ring:
      return "RING";
    case CommunicationImplementation::nccl:
      return "NCCL";
    default:
      return "AUTO";
  }
}

Value communication_options(const Step& step) {
  CommunicationOptions options = options_from(member(step.json, "args"));
  if (step.has("merge")) options = options.merged_with(options_from(step.json["merge"]));
  Json timeout;
  if (options.timeout) timeout = std::chrono::duration<double>(*options.timeout).count();
  return Value::of_json({{"bytes_per_pack", options.bytes_per_pack},
                         {"timeout_seconds", timeout},
                         {"implementation", name_of_implementation(options.implementation)}});
}

Value pack(const Step& step) {
  return Value::of_json(
      internal::packs_of(member(step.json, "sizes").get<std::vector<std::int64_t>>(),
                         member(step.json, "bytes_per_pack").get<std::int64_t>()));
}

// The recorded cases pass a text as an argument, which C++ does not compile.
Value new_multi_worker_strategy(const Step& step) {
  for (const char* argument : {"communication_options", "cluster_resolver"}) {
    if (step.has(argument) && !step.json[argument].is_object()) {
      refuse_type(std::string(argument) + " " + step.json[argument].dump());
    }
  }
  throw CaseFault("a strategy of several workers is not reached yet");
}

// --- collective calls ---------------------------------------------------------------------------

CommunicationOptions options_in(const Step& step) {
  return options_from(member_or(step.json, "options", Json::object()));
}

Value all_reduce(const Step& step) {
  const ReplicaContext& context = current_replica();
  const CommunicationOptions options = options_in(step);
  const ReduceOpOrName op = step.op();
  const Value value = with_number_tensors(step.test, step.value("value"));
  if (value.variable() != nullptr) {
    return Value::of(context.all_reduce(op, *value.variable(), options));
  }
  if (value.is_tensor()) return Value::of(context.all_reduce(op, value.leaf.tensor(), options));
  return value_of(context.all_reduce(op, nest_of(with_values(step.test, value)), options));
}

Value all_gather(const Step& step) {
  const ReplicaContext& context = current_replica();
  const CommunicationOptions options = options_in(step);
  const auto axis = member(step.json, "axis").get<std::int64_t>();
  const Value value = with_number_tensors(step.test, step.value("value"));
  if (value.variable() != nullptr) {
    return Value::of(context.all_gather(*value.variable(), axis, options));
  }
  if (value.is_tensor()) return Value::of(context.all_gather(value.leaf.tensor(), axis, options));
  return value_of(context.all_gather(nest_of(with_values(step.test, value)), axis, options));
}

Value gradient(const Step& step) {
  const Value given = step.value("x");
  const Variable* const variable = given.variable();
  const at::Tensor x = variable != nullptr
                           ? variable->tensor()
                           : tensor_from(step.test, given).detach().clone().requires_grad_(true);
  Frame frame(&step.frame);
  frame.bind("x", variable != nullptr ? given : Value::of(x));
  do_steps(step.test, frame, member_or(step.json, "body", Json::array()));
  const at::Tensor y = tensor_from(step.test, evaluate(step.test, frame, member(step.json, "y")));
  const auto gradients = torch::autograd::grad({y.sum()}, {x}, {}, false, false, true);
  return gradients[0].defined() ? Value::of(gradients[0]) : Value();
}

// --- losses -------------------------------------------------------------------------------------

Value average(const Step& step) {
  AverageLossOptions options;
  if (step.has("weights")) options.weights = tensor_from(step.test, step.value("weights"));
  if (step.has("global_batch")) {
    options.global_batch_size =
        tensor_from(step.test, step.value("global_batch")).item<std::int64_t>();
  }
  return Value::of(average_loss(tensor_from(step.test, step.value("loss")), options));
}

Value scale_regularization(const Step& step) {
  return Value::of(scale_regularization_loss(tensor_from(step.test, step.value("loss"))));
}

}  // namespace

const StepTable& replica_steps() {
  static const StepTable table = {
      {"comm_options", {communication_options, {"args", "merge"}}},
      {"pack", {pack, {"sizes", "bytes_per_pack"}}},
      {"new_mwms", {new_multi_worker_strategy, {"communication_options", "cluster_resolver"}}},
      {"all_reduce", {all_reduce, {"op", "value", "options"}}},
      {"all_gather", {all_gather, {"value", "axis", "options"}}},
      {"gradient", {gradient, {"x", "body", "y"}}},
      {"average_loss", {average, {"loss", "weights", "global_batch"}}},
      {"scale_reg", {scale_regularization, {"loss"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
