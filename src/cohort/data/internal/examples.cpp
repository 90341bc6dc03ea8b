// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/internal/examples.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "cohort/core/error.h"
#include "cohort/data/internal/stage.h"

namespace cohort::data {
namespace {

constexpr int kTriesMax = 16;  // elements that may fail before one that does not

bool is_static(const ElementSpec& spec) {
  return std::all_of(spec.fields.begin(), spec.fields.end(),
                     [](const TensorSpec& field) { return field.is_static(); });
}

template <class Fill>
Fields filled(const ElementSpec& spec, Fill fill) {
  Fields fields;
  for (const TensorSpec& field : spec.fields) fields.push_back(fill(*field.sizes, field.dtype));
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
    return {filled(node.spec(), [](auto& sizes, auto dtype) { return at::zeros(sizes, dtype); }),
            filled(node.spec(), [](auto& sizes, auto dtype) { return at::ones(sizes, dtype); })};
  }
  internal::throw_error(ErrorCode::failed_precondition,
                        "[data.map] expected an example element from '", node.op(),
                        "' with elements ", node.spec().to_string(),
                        ", got none: ", error ? error->what() : "the dataset is empty");
}

Fields with_other_values(const Fields& element) {
  Fields other;
  for (const at::Tensor& field : element) {
    if (field.dim() > 0 && field.size(0) > 1) {
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
