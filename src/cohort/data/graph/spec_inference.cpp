// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/graph/spec_inference.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/data/graph/graph_codec.h"
#include "cohort/data/stages/stage.h"

namespace cohort::data {
namespace {

constexpr int kTriesMax = 16;  // at most this many elements are drawn

// A tensor filled with `text`, if dtype is kString, or with `number`.
at::Tensor filled(const std::vector<std::int64_t>& sizes, at::ScalarType dtype, double number,
                  const std::string& text) {
  if (dtype != kString) return at::full(sizes, number, dtype);
  const auto count = static_cast<std::size_t>(c10::multiply_integers(sizes));
  return StringTensor(sizes, std::vector<std::string>(count, text));
}

// Replaces each unknown size by `size`, and each unknown rank by `rank` dimensions of `size`.
ElementSpec completed(ElementSpec spec, std::int64_t size, std::size_t rank) {
  for (TensorSpec& field : spec.fields) {
    if (!field.sizes) field.sizes.emplace(rank, size);
    std::ranges::replace(*field.sizes, std::int64_t{-1}, size);
  }
  return spec;
}

// `spec` is static.
Fields element_of(const ElementSpec& spec, double number, const std::string& text) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) {
    fields.push_back(filled(*field.sizes, field.dtype, number, text));
  }
  return fields;
}

bool is_large(const ElementSpec& spec) {
  constexpr double kNumbersMax = 1 << 22;
  double numbers = 0;
  for (const TensorSpec& field : spec.fields) {
    double count = 1;
    for (const std::int64_t size : *field.sizes) count *= static_cast<double>(size);
    numbers += count;
  }
  return numbers > kNumbersMax;
}

// An element filled with these values, where an unknown size is 1; nullopt if a rank is unknown.
std::optional<Fields> stand_ins(const ElementSpec& spec, double number, const std::string& text) {
  if (!has_ranks(spec)) return std::nullopt;
  return element_of(completed(spec, 1, 0), number, text);
}

// Half of `size`, rounded up; one more if it is 0 or 1.
std::int64_t other_size(std::int64_t size) { return size > 1 ? (size + 1) / 2 : size + 1; }

// The values of `strings`, repeated as needed.
at::Tensor strings_of_sizes(const StringTensor& strings, const std::vector<std::int64_t>& sizes) {
  const std::vector<std::string> from = strings.values();
  std::vector<std::string> values(static_cast<std::size_t>(c10::multiply_integers(sizes)));
  for (std::size_t i = 0; i < values.size() && !from.empty(); ++i)
    values[i] = from[i % from.size()];
  return StringTensor(sizes, std::move(values));
}

at::Tensor numbers_of_sizes(at::Tensor numbers, const std::vector<std::int64_t>& sizes) {
  if (numbers.numel() == 0) return at::zeros(sizes, numbers.options());
  for (std::int64_t dim = 0; dim < numbers.dim(); ++dim) {
    const std::int64_t size = sizes[static_cast<std::size_t>(dim)];
    if (size > numbers.size(dim)) numbers = at::cat({numbers, numbers}, dim);
    numbers = numbers.narrow(dim, 0, size);
  }
  return numbers.contiguous();
}

// Whether the predicate is true for `node` and all its direct and indirect inputs.
template <class Predicate>
bool is_every_op(const Node& node, Predicate predicate) {
  const std::vector<NodePtr> ops = ops_of(node.shared_from_this());
  return std::ranges::all_of(ops, [&](const NodePtr& op) { return predicate(*op); });
}

// Draws up to two elements of equal specs. Sets `error` if one fails.
std::vector<Fields> drawn(const Node& node, Purpose purpose, const IterationOptions& options,
                          std::optional<Error>& error) {
  std::vector<Fields> examples;
  try {
    const std::unique_ptr<Stage> stage = node.start(StageContext(options, purpose));
    for (int tries = 0; tries < kTriesMax && examples.size() < 2; ++tries) {
      try {
        Fields fields;
        if (!stage->next(fields)) break;
        examples.push_back(std::move(fields));
      } catch (...) {
        if (!error) error = current_error();
      }
    }
  } catch (...) {
    error = current_error();
  }
  if (examples.size() == 2 && specs_of(examples[0]) != specs_of(examples[1])) examples.pop_back();
  return examples;
}

}  // namespace

std::vector<Fields> draw_examples(const Node& node, Purpose purpose,
                                  const IterationOptions& options) {
  std::optional<Error> error;
  std::vector<Fields> examples = drawn(node, purpose, options, error);
  if (!examples.empty()) return examples;
  if (const auto zeros = stand_ins(node.spec(), 0, "")) {
    return {*zeros, *stand_ins(node.spec(), 1, "1")};
  }
  internal::throw_error(ErrorCode::failed_precondition,
                        "[data.map] expected an example element from '", node.op(),
                        "' with elements ", node.spec().to_string(),
                        ", got none: ", error ? error->what() : "the dataset is empty");
}

std::optional<Fields> zeros_of(const ElementSpec& spec) { return stand_ins(spec, 0, ""); }

bool any_example(const Node& node, const IterationOptions& options,
                 const std::function<bool(const Fields&)>& visit) {
  const std::unique_ptr<Stage> stage = node.start(StageContext(options, Purpose::preview));
  Fields fields;
  for (int tries = 0; tries < kTriesMax && stage->next(fields); ++tries) {
    if (visit(fields)) return true;
  }
  return false;
}

ElementSpec spec_of_results(
    const Node& node, const IterationOptions& options,
    const std::function<ElementSpec(const Fields&)>& made_of,
    const std::function<ElementSpec(const ElementSpec&, const ElementSpec&)>& common) {
  const std::vector<Fields> examples = draw_examples(node, Purpose::preview, options);
  ElementSpec spec = made_of(examples[0]);
  if (examples.size() > 1) spec = common(spec, made_of(examples[1]));
  if (specs_of(examples[0]) == node.spec().fields) return spec;
  try {
    return common(spec, made_of(with_other_sizes(examples[0], node.spec())));
  } catch (...) {
    // The function accepts only this size, so the sizes of its result are unknown.
    for (TensorSpec& field : spec.fields) field.sizes.reset();
  }
  return spec;
}

bool is_static(const ElementSpec& spec) {
  return std::ranges::all_of(spec.fields, &TensorSpec::is_static);
}

bool has_ranks(const ElementSpec& spec) {
  return std::ranges::all_of(spec.fields,
                             [](const TensorSpec& field) { return field.sizes.has_value(); });
}

std::vector<Fields> made_up_elements(const ElementSpec& spec) {
  constexpr std::size_t kCount = 3;
  std::vector<Fields> elements;
  for (std::size_t i = 0; i < kCount; ++i) {
    const ElementSpec complete = completed(spec, static_cast<std::int64_t>(i) + 1, i);
    if (is_large(complete)) return {};
    elements.push_back(i == 1 ? element_of(complete, 1, "1") : element_of(complete, 0, ""));
  }
  return elements;
}

bool is_free_to_draw(const Node& node) {
  static constexpr std::array<std::string_view, 15> kFree{"assert_cardinality",
                                                          "batch",
                                                          "cache",
                                                          "concatenate",
                                                          "from_tensor_slices",
                                                          "from_tensors",
                                                          "options",
                                                          "padded_batch",
                                                          "parallel_batch",
                                                          "prefetch",
                                                          "range",
                                                          "repeat",
                                                          "shuffle",
                                                          "take",
                                                          "zip"};
  return is_every_op(
      node, [](const Node& op) { return std::ranges::find(kFree, op.op()) != kFree.end(); });
}

bool has_endless_input(const Node& node) {
  return !is_every_op(node,
                      [](const Node& op) { return op.cardinality() != kInfiniteCardinality; });
}

Fields with_other_values(const Fields& element) {
  Fields other;
  for (const at::Tensor& field : element) {
    if (StringTensor::is(field)) {
      std::vector<std::string> values = StringTensor::of(field).values();
      for (std::string& value : values) value += "1";
      other.push_back(StringTensor(field.sizes().vec(), values));
    } else if (field.dim() > 0 && field.size(0) > 1) {
      other.push_back(at::flip(field, {0}).contiguous());
    } else if (field.scalar_type() == at::ScalarType::Bool) {
      other.push_back(at::logical_not(field));
    } else {
      other.push_back(at::add(field, 1));
    }
  }
  return other;
}

Fields with_other_sizes(const Fields& element, const ElementSpec& spec) {
  Fields other = element;
  for (std::size_t i = 0; i < other.size(); ++i) {
    const auto& known = spec.fields[i].sizes;
    std::vector<std::int64_t> sizes = other[i].sizes().vec();
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      if (!known || (*known)[dim] < 0) sizes[dim] = other_size(sizes[dim]);
    }
    if (other[i].sizes() == sizes) continue;
    other[i] = StringTensor::is(other[i]) ? strings_of_sizes(StringTensor::of(other[i]), sizes)
                                          : numbers_of_sizes(other[i], sizes);
  }
  return other;
}

std::vector<TensorSpec> specs_of(const Fields& fields) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& field : fields) specs.push_back(TensorSpec::of(field));
  return specs;
}

std::string describe(const std::vector<TensorSpec>& specs) {
  return ElementSpec::tuple(specs).to_string();
}

}  // namespace cohort::data
