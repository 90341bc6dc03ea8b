// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/field_function.h"

#include "cohort/core/error.h"
#include "cohort/core/spelling.h"
#include "cohort/data/field_kernels/field_kernel.h"

namespace cohort::data {
namespace {

constexpr std::size_t kTextShownMax = 80;

std::string shown_step(const FieldPath::Step& step) {
  if (const auto* position = std::get_if<std::int64_t>(&step)) return std::to_string(*position);
  return "'" + std::get<std::string>(step) + "'";
}

// The item of a nest that a step leads to; nullptr where there is none.
const Nest* item_at(const Nest& nest, const FieldPath::Step& step) {
  if (const auto* key = std::get_if<std::string>(&step)) {
    if (nest.kind() != Nest::Kind::map) return nullptr;
    const auto found = nest.entries().find(*key);
    return found == nest.entries().end() ? nullptr : &found->second;
  }
  if (nest.kind() != Nest::Kind::tuple && nest.kind() != Nest::Kind::list) return nullptr;
  const std::int64_t position = std::get<std::int64_t>(step);
  const auto count = static_cast<std::int64_t>(nest.items().size());
  if (position < 0 || position >= count) return nullptr;
  return &nest.items()[static_cast<std::size_t>(position)];
}

std::string keys_of(const Nest& map) {
  std::string keys;
  for (const auto& [key, entry] : map.entries()) keys += (keys.empty() ? "'" : ", '") + key + "'";
  return keys;
}

std::string similar_key(const Nest& map, const FieldPath::Step& step) {
  const auto* key = std::get_if<std::string>(&step);
  if (key == nullptr) return "";
  std::vector<std::string> keys;
  for (const auto& [known, entry] : map.entries()) keys.push_back(known);
  return did_you_mean(*key, keys);
}

// Describes the steps that a path may have in place of `step`, which leads nowhere. `depth` is the
// position of the step in the path.
std::string choice_at(const Nest& nest, const FieldPath::Step& step, std::size_t depth,
                      std::string_view op) {
  switch (nest.kind()) {
    case Nest::Kind::map:
      return "its keys are " + keys_of(nest) + similar_key(nest, step);
    case Nest::Kind::tuple:
    case Nest::Kind::list:
      if (nest.items().empty()) return "it is empty";
      return "its positions are 0 to " + std::to_string(nest.items().size() - 1);
    default:
      break;
  }
  if (depth > 0) return "it is one tensor there: leave this step out";
  return "it is one tensor without parts: write {} for the field, as in " + std::string(op) +
         "({})";
}

}  // namespace

std::string FieldPath::to_string() const {
  if (steps_.empty()) return "the element";
  if (steps_.size() == 1) return "field " + shown_step(steps_[0]);
  std::string text = "field ";
  for (const Step& step : steps_) text += "[" + shown_step(step) + "]";
  return text;
}

std::size_t field_index(const FieldPath& path, const ElementSpec& element, std::string_view op) {
  if (path.steps().empty()) {
    COHORT_CHECK(element.fields.size() == 1, ErrorCode::invalid_argument, "[data.", op,
                 "] expected elements of one field, got ", element.to_string(),
                 "; name the field by its key or its position");
    return 0;
  }
  const Nest* nest = &element.structure;
  for (std::size_t depth = 0; depth < path.steps().size(); ++depth) {
    const FieldPath::Step& step = path.steps()[depth];
    const Nest* item = item_at(*nest, step);
    COHORT_CHECK(item != nullptr, ErrorCode::invalid_argument, "[data.", op, "] expected a ",
                 path.to_string(), " in the element, got ", element.to_string(), ", which has no ",
                 shown_step(step), " there; ", choice_at(*nest, step, depth, op));
    nest = item;
  }
  COHORT_CHECK(nest->kind() == Nest::Kind::integer, ErrorCode::invalid_argument, "[data.", op,
               "] expected one field as ", path.to_string(), ", got several in ",
               element.to_string(), "; name one of them, as in {\"user\", \"city\"}");
  return static_cast<std::size_t>(nest->integer());
}

void check_is_string(const TensorSpec& input, std::string_view op, const std::string& field) {
  COHORT_CHECK(input.dtype == kString, ErrorCode::invalid_argument, "[data.", op,
               "] expected strings in ", field, ", got ", input.to_string(),
               "; name a field of strings, such as a column of dtype kString");
}

StringTensor strings_in(const at::Tensor& values, std::string_view op, const std::string& field) {
  if (!StringTensor::is(values)) check_is_string(TensorSpec::of(values), op, field);
  return StringTensor::of(values);
}

std::string quoted(std::string_view text) {
  const bool is_long = text.size() > kTextShownMax;
  return "'" + std::string(text.substr(0, kTextShownMax)) + (is_long ? "…'" : "'");
}

}  // namespace cohort::data
