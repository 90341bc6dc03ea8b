// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/examples.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logical_not.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "cohort/core/error.h"
#include "cohort/data/internal/field_rows.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {
namespace {

constexpr int kTriesMax = 16;  // elements that may fail before one that does not

bool is_static(const ElementSpec& spec) {
  return std::all_of(spec.fields.begin(), spec.fields.end(),
                     [](const TensorSpec& field) { return field.is_static(); });
}

// Strings of `text`, numbers of `number`.
at::Tensor filled(const std::vector<std::int64_t>& sizes, at::ScalarType dtype, double number,
                  const std::string& text) {
  if (dtype != kString) return at::full(sizes, number, dtype);
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return StringTensor(sizes, std::vector<std::string>(static_cast<std::size_t>(count), text));
}

Fields filled(const ElementSpec& spec, double number, const std::string& text) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) {
    fields.push_back(filled(*field.sizes, field.dtype, number, text));
  }
  return fields;
}

// What could be drawn, and the error that came in the way.
std::vector<Fields> drawn(const Node& node, Purpose purpose, const RunOptions& options,
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

std::vector<Fields> draw_examples(const Node& node, Purpose purpose, const RunOptions& options) {
  std::optional<Error> error;
  std::vector<Fields> examples = drawn(node, purpose, options, error);
  if (!examples.empty()) return examples;
  if (is_static(node.spec())) {
    return {filled(node.spec(), 0, ""), filled(node.spec(), 1, "1")};
  }
  internal::throw_error(ErrorCode::failed_precondition,
                        "[data.map] expected an example element from '", node.op(),
                        "' with elements ", node.spec().to_string(),
                        ", got none: ", error ? error->what() : "the dataset is empty");
}

std::optional<Fields> zeros_of(const ElementSpec& spec) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) {
    if (!field.sizes) return std::nullopt;
    std::vector<std::int64_t> sizes = *field.sizes;
    std::replace(sizes.begin(), sizes.end(), std::int64_t{-1}, std::int64_t{1});
    fields.push_back(filled(sizes, field.dtype, 0, ""));
  }
  return fields;
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
    const auto& sizes = spec.fields[i].sizes;
    for (std::int64_t dim = 0; dim < other[i].dim(); ++dim) {
      if (sizes && (*sizes)[static_cast<std::size_t>(dim)] >= 0) continue;
      const std::int64_t size = other[i].size(dim);
      if (StringTensor::is(other[i])) {
        // Strings are cut and joined along the first dimension alone.
        if (dim > 0) continue;
        other[i] = size > 1 ? narrow_rows(other[i], 0, (size + 1) / 2)
                            : join_rows(std::array{other[i], other[i]});
        continue;
      }
      other[i] = size > 1 ? other[i].narrow(dim, 0, (size + 1) / 2).contiguous()
                          : at::cat({other[i], other[i]}, dim);
    }
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
