// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/scheduled_arguments.h"

#include <algorithm>
#include <span>
#include <string>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/core/error.h"
#include "cohort/data/string_fields.h"
#include "cohort/function/trace.h"
#include "cohort/function/variable_read.h"
#include "cohort/variable/eager_step.h"

namespace cohort::coordinator {
namespace {

// Strings can be used only in the input pipeline.
void check_no_strings(const Function& fn, std::size_t argument, const Nest& value) {
  const std::optional<data::FieldPath> strings = data::find_strings(value);
  COHORT_CHECK(!strings, ErrorCode::invalid_argument,
               "[coordinator.schedule] expected tensors of numbers, got strings",
               value.is_leaf() ? std::string() : " in " + strings->to_string(), " (argument ",
               argument, " of '", fn.name(), "'); ", data::kStringRemedy,
               ", or pass a single text that the function itself reads as a std::string");
}

// A tensor that cannot be sent would make its worker lose all closures of the same message.
void check_can_travel(const Function& fn, std::size_t argument, const at::Tensor& tensor) {
  rpc::check_sendable(tensor, "coordinator.schedule", "",
                      "argument " + std::to_string(argument) + " of '" + fn.name() + "'",
                      "make it dense and move it to the CPU, or leave it out");
  COHORT_CHECK(!tensor.unsafeGetTensorImpl()->is_wrapped_number(), ErrorCode::invalid_argument,
               "[coordinator.schedule] expected tensors, got a number that LibTorch has wrapped "
               "into one (argument ",
               argument, " of '", fn.name(),
               "'), which has less influence on the dtype of results than a tensor has on the "
               "worker; pass the number itself, or a clone()");
}

// The graph of an argument is not sent, so gradients in the step would lack its part.
void check_gradients(const Function& fn, std::size_t argument, const at::Tensor& tensor,
                     std::vector<at::Tensor>& leaves) {
  if (!tensor.requires_grad()) return;
  COHORT_CHECK(tensor.is_leaf(), ErrorCode::invalid_argument,
               "[coordinator.schedule] expected arguments without a graph, got one that was "
               "computed from tensors that require a gradient (argument ",
               argument, " of '", fn.name(),
               "'), to which gradients of a worker cannot flow; pass its detach(), or compute it "
               "inside the function");
  const bool is_second = std::any_of(leaves.begin(), leaves.end(),
                                     [&](const at::Tensor& leaf) { return leaf.is_same(tensor); });
  COHORT_CHECK(!is_second, ErrorCode::invalid_argument,
               "[coordinator.schedule] expected a tensor that requires a gradient once, got it "
               "twice (the second is argument ",
               argument, " of '", fn.name(),
               "'), and a worker would treat them as two, each with a gradient of its own; pass it "
               "once, or its detach() the second time");
  leaves.push_back(tensor);
}

// Replaces arguments that were computed from read() of variables of this process by their values,
// since no step trains those variables. Returns whether there were any.
bool take_values_of_reads(std::vector<Nest>& arguments, const function::BoundArguments& bound) {
  using function::is_computed_from_reads;
  if (std::none_of(bound.tensors.begin(), bound.tensors.end(), is_computed_from_reads))
    return false;
  for (Nest& argument : arguments) {
    argument = argument.map_leaves([](const Nest& leaf) -> Nest {
      if (!leaf.is_tensor() || !is_computed_from_reads(leaf.tensor())) return leaf;
      return leaf.tensor().detach();
    });
  }
  return true;
}

void check_tensors(const detail::ParameterServerHome& home, const Function& fn,
                   std::span<const Nest> arguments, const function::BoundArguments& bound) {
  const auto is_plain = [&](const at::Tensor& tensor) {
    return rpc::why_not_sendable(tensor).empty() &&
           !tensor.unsafeGetTensorImpl()->is_wrapped_number() && !tensor.requires_grad() &&
           home.variables().find(tensor) == nullptr;
  };
  if (std::all_of(bound.tensors.begin(), bound.tensors.end(), is_plain)) return;
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    check_no_strings(fn, i, arguments[i]);
    const std::string which = " (argument " + std::to_string(i) + " of '" + fn.name() + "')";
    for (const at::Tensor& tensor : function::bind_arguments(arguments.subspan(i, 1)).tensors) {
      home.check_is_no_stand_in("coordinator.schedule", tensor, which);
      check_can_travel(fn, i, tensor);
      check_gradients(fn, i, tensor, leaves);
    }
  }
}

void check_iterators(const Runtime& runtime, const function::BoundArguments& bound) {
  for (const Nest& resource : bound.resources) {
    const auto* iterator = dynamic_cast<const IteratorHandle*>(resource.handle().get());
    COHORT_CHECK(iterator == nullptr || iterator->is_of(runtime), ErrorCode::invalid_argument,
                 "[coordinator.schedule] expected an iterator of this coordinator, got one of a "
                 "coordinator that has ended; call create_per_worker_dataset(…).iterator() again");
  }
}

}  // namespace

void check_outside_step(std::string_view call) {
  COHORT_CHECK(function::Trace::current() == nullptr && !EagerStep::is_scheduled_here(),
               ErrorCode::failed_precondition, "[coordinator.", call,
               "] expected a call outside of scheduled functions, got one inside, which would wait "
               "for itself; call it before, and pass its result as an argument");
}

function::BoundArguments prepare_arguments(const Runtime& runtime,
                                           const detail::ParameterServerHome& home,
                                           const Function& fn, std::vector<Nest>& arguments) {
  fn.convert_numbers(arguments);
  function::BoundArguments bound = function::bind_arguments(arguments);
  if (take_values_of_reads(arguments, bound)) bound = function::bind_arguments(arguments);
  check_iterators(runtime, bound);
  check_tensors(home, fn, arguments, bound);
  return bound;
}

}  // namespace cohort::coordinator
