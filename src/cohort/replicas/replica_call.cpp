// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replica_call.h"

#include <ATen/core/TensorBody.h>

#include <optional>

#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/string_fields.h"
#include "cohort/replicas/component_impl.h"

namespace cohort::internal {
namespace {

// Whether the values are those of one variable, of each replica its own.
bool are_parts_of_one(const std::vector<Variable>& values) {
  const std::optional<Variable> whole = container_of(values.front());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto* const part = dynamic_cast<const ComponentImpl*>(values[i].impl().get());
    if (part == nullptr || part->index() != i || part->count() != values.size() ||
        container_of(values[i]) != whole)
      return false;
  }
  return true;
}

thread_local RunArguments* innermost_arguments = nullptr;

constexpr std::size_t kShownTensors = 8;

std::string specs_of(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (std::size_t i = 0; i < std::min(tensors.size(), kShownTensors); ++i)
    text += (i > 0 ? ", " : "") + TensorSpec::of(tensors[i]).to_string();
  if (tensors.size() > kShownTensors)
    text += " and " + std::to_string(tensors.size() - kShownTensors) + " more";
  return text;
}

std::int64_t rows_of(const std::vector<at::Tensor>& tensors) {
  return tensors.empty() || tensors[0].dim() == 0 ? -1 : tensors[0].size(0);
}

// "3 of 7", and whether another replica has more; nullopt if the replicas do not have rows of their
// own.
struct RowsOfReplica {
  std::string text;
  bool are_few;
};
std::optional<RowsOfReplica> rows_among(const std::vector<std::vector<at::Tensor>>& all,
                                        std::size_t replica) {
  std::int64_t sum = 0, most = 0;
  bool is_one = all.size() > 1;
  for (const std::vector<at::Tensor>& each : all) {
    const std::int64_t rows = rows_of(each);
    if (rows < 0) return std::nullopt;
    is_one = is_one && each[0].is_same(all[0][0]);
    sum += rows;
    most = std::max(most, rows);
  }
  if (is_one) return std::nullopt;
  const std::int64_t own = rows_of(all[replica]);
  return RowsOfReplica{
      std::to_string(own) + (all.size() > 1 ? " of " + std::to_string(sum) : std::string()),
      own <= 1 || own < most};
}

}  // namespace

bool is_one_object(const Nest& a, const Nest& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Nest::Kind::tensor:
      return a.tensor().is_same(b.tensor());
    case Nest::Kind::integer:
    case Nest::Kind::real:
      return false;
    case Nest::Kind::boolean:
      return a.boolean() == b.boolean();
    case Nest::Kind::text:
      return a.text() == b.text();
    case Nest::Kind::handle:
      return a.handle() == b.handle();
    default:
      break;
  }
  const std::vector<Nest> of_a = a.flatten();
  const std::vector<Nest> of_b = b.flatten();
  if (a.is_leaf() || of_a.size() != of_b.size()) return a.is_null() && b.is_null();
  return std::equal(of_a.begin(), of_a.end(), of_b.begin(),
                    [](const Nest& x, const Nest& y) { return is_one_object(x, y); });
}

bool is_one_object(const std::vector<Nest>& values) {
  return std::ranges::all_of(
      values, [&](const Nest& value) { return is_one_object(values.front(), value); });
}

void check_components(std::size_t components, std::size_t replicas, std::string_view call,
                      const std::string& what) {
  COHORT_CHECK(components == replicas, ErrorCode::invalid_argument, "[strategy.", call,
               "] expected ", what,
               " with a component for each replica of this process, of which "
               "there ",
               replicas == 1 ? "is " : "are ", replicas, ", got one with ", components,
               "; pass an element of a dataset that this strategy has distributed, or a result of "
               "its run()");
}

void check_is_numeric(const Nest& component, std::size_t index) {
  COHORT_CHECK(!component.is_tensor() || !StringTensor::is(component.tensor()),
               ErrorCode::invalid_argument,
               "[strategy.run] expected a tensor of numbers as argument ", index,
               " of the function, got ", TensorSpec::of(component.tensor()).to_string(), "; ",
               data::kStringRemedy, ", or take a cohort::StringTensor");
}

void check_one_structure(const std::vector<Nest>& values, std::string_view call) {
  for (std::size_t i = 1; i < values.size(); ++i) {
    Nest::check_same_structure(
        values[0], values[i],
        "[strategy." + std::string(call) + "] the value of replica " + std::to_string(i));
  }
}

std::vector<Variable> with_containers(std::vector<Variable> values) {
  if (is_one_object(values) || !are_parts_of_one(values)) return values;
  return std::vector<Variable>(values.size(), *container_of(values.front()));
}

std::optional<Variable> container_of(const Variable& variable) {
  const auto* const part = dynamic_cast<const ComponentImpl*>(variable.impl().get());
  return part == nullptr ? std::nullopt : std::optional(part->whole());
}

RunArguments::RunArguments(std::size_t replicas)
    : outer_(std::exchange(innermost_arguments, this)), replicas_(replicas) {}
RunArguments::~RunArguments() { innermost_arguments = outer_; }

void RunArguments::add(const at::Tensor& tensor, std::vector<at::Tensor>& tensors) {
  if (tensor.defined() && !StringTensor::is(tensor)) tensors.push_back(tensor);
}

void RunArguments::add(const Nest& value, std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : value.flatten_tensors()) add(tensor, tensors);
}

std::string RunArguments::part_of(std::size_t replica, int first) {
  const RunArguments* const own = innermost_arguments;
  if (own == nullptr || replica >= own->replicas_) return {};
  std::vector<std::vector<at::Tensor>> all(own->replicas_);
  for (std::size_t i = 0; i < all.size(); ++i) own->add_tensors(i, all[i]);
  if (all[replica].empty()) return {};
  std::string text = "replica " + std::to_string(first + static_cast<int>(replica)) + " has ";
  const std::optional<RowsOfReplica> rows = rows_among(all, replica);
  if (!rows) return text + specs_of(all[replica]);
  text += rows->text + " rows (" + specs_of(all[replica]) + ")";
  if (rows->are_few) {
    text +=
        "; a last batch may have too few rows: leave it out (batch() with drop_remainder), use "
        "SyncBatchNorm in place of BatchNorm, or choose a batch size that leaves a larger one";
  }
  return text;
}

std::size_t RunArguments::replicas_at_first_update_with_plain_rows() {
  RunArguments* const own = innermost_arguments;
  if (own == nullptr || own->replicas_ < 2 || std::exchange(own->has_update_, true)) return 0;
  if (own->is_distributed()) return 0;
  std::vector<at::Tensor> tensors;
  own->add_tensors(0, tensors);
  const bool has_rows = std::ranges::any_of(
      tensors, [](const at::Tensor& each) { return each.dim() > 0 && each.size(0) >= 2; });
  return has_rows ? own->replicas_ : 0;
}

std::string RunArguments::text_of(std::size_t replica, int first) {
  const std::string part = part_of(replica, first);
  return "running replica " + std::to_string(first + static_cast<int>(replica)) +
         (part.empty() ? "" : ": " + part);
}

}  // namespace cohort::internal
