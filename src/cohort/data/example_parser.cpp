// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/example.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "cohort/core/error.h"
#include "cohort/core/spelling.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/field_kernels/field_kernel.h"
#include "cohort/data/files/example_wire.h"

namespace cohort {
namespace {

using data::FeatureKind;
using data::FeatureView;

FeatureKind kind_of(at::ScalarType dtype, const std::string& name) {
  switch (dtype) {
    case at::ScalarType::Float:
      return FeatureKind::floats;
    case at::ScalarType::Long:
      return FeatureKind::int64s;
    case kString:
      return FeatureKind::bytes;
    default:
      internal::throw_error(ErrorCode::invalid_argument,
                            "[data.parse_example] expected float32, int64 or string, got ",
                            dtype_name(dtype), " for feature '", name,
                            "'; convert it in a map() after the parsing");
  }
}

std::int64_t count_of(const std::vector<std::int64_t>& sizes, const std::string& name) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    COHORT_CHECK(size >= 0 && !__builtin_mul_overflow(count, size, &count),
                 ErrorCode::invalid_argument,
                 "[data.parse_example] expected sizes of at least 0, got ", size, " for feature '",
                 name, "'; a feature of any number of values has is_variable_length = true");
  }
  return count;
}

// The values of one feature in all examples of a batch. Used only within one parse.
template <class T>
struct Column {
  std::vector<T> values;
  std::vector<std::size_t> ends;  // of each example's values
};

void check_default_count(std::int64_t got, std::int64_t count, const std::string& name) {
  COHORT_CHECK(got == count, ErrorCode::invalid_argument, "[data.parse_example] expected ", count,
               " default values for feature '", name, "', got ", got);
}

[[noreturn]] void fail_default(const std::string& name, std::string_view wanted, const Nest& got) {
  internal::throw_error(ErrorCode::invalid_argument, "[data.parse_example] expected ", wanted,
                        " as default of feature '", name, "', got ", name_of(got.kind()));
}

// The default value, converted to T.
template <class T>
std::vector<T> default_numbers(const FeatureSpec& spec, std::int64_t count,
                               const std::string& name) {
  const Nest& given = *spec.default_value;
  if (given.kind() == Nest::Kind::integer || given.kind() == Nest::Kind::real) {
    check_default_count(1, count, name);
    const bool is_whole = given.kind() == Nest::Kind::integer;
    if (!is_whole && spec.dtype == at::ScalarType::Long) fail_default(name, "an integer", given);
    return {is_whole ? static_cast<T>(given.integer()) : static_cast<T>(given.real())};
  }
  if (!given.is_tensor() || StringTensor::is(given.tensor())) fail_default(name, "numbers", given);
  const at::Tensor tensor = given.tensor().to(spec.dtype).contiguous();
  check_default_count(tensor.numel(), count, name);
  const T* data = tensor.data_ptr<T>();
  return {data, data + count};
}

std::vector<std::string> default_texts(const FeatureSpec& spec, std::int64_t count,
                                       const std::string& name) {
  const Nest& given = *spec.default_value;
  if (given.kind() == Nest::Kind::text) {
    check_default_count(1, count, name);
    return {given.text()};
  }
  if (!given.is_tensor() || !StringTensor::is(given.tensor())) fail_default(name, "texts", given);
  check_default_count(given.tensor().numel(), count, name);
  return given.strings().values();
}

// How to parse one feature. Immutable.
struct Wanted {
  std::string name;
  FeatureSpec spec;
  FeatureKind kind = FeatureKind::none;
  std::int64_t count = 1;  // values per example, unless is_variable_length
  std::vector<float> default_floats = {};
  std::vector<std::int64_t> default_int64s = {};
  std::vector<std::string> default_strings = {};

  const std::vector<float>& defaults(float) const { return default_floats; }
  const std::vector<std::int64_t>& defaults(std::int64_t) const { return default_int64s; }
  const std::vector<std::string>& defaults(std::string_view) const { return default_strings; }
};

Wanted wanted(const std::string& name, const FeatureSpec& spec) {
  Wanted feature{.name = name, .spec = spec, .kind = kind_of(spec.dtype, name)};
  if (spec.is_variable_length) {
    COHORT_CHECK(!spec.default_value && spec.sizes.empty(), ErrorCode::invalid_argument,
                 "[data.parse_example] expected neither sizes nor a default for feature '", name,
                 "', whose number of values is variable");
    return feature;
  }
  feature.count = count_of(spec.sizes, name);
  if (!spec.default_value) return feature;
  switch (feature.kind) {
    case FeatureKind::floats:
      feature.default_floats = default_numbers<float>(spec, feature.count, name);
      break;
    case FeatureKind::int64s:
      feature.default_int64s = default_numbers<std::int64_t>(spec, feature.count, name);
      break;
    default:
      feature.default_strings = default_texts(spec, feature.count, name);
  }
  return feature;
}

// The last value of each wanted feature in one example.
struct Found {
  std::vector<FeatureView> features;
  std::string_view serialized;
};

constexpr std::size_t kNamesShownMax = 20;
constexpr std::size_t kNamesComparedMax = 1000;

// ", whose features are 'image', 'label'; did you mean 'label'?"
std::string features_there(std::string_view serialized, const std::string& missing) {
  std::vector<std::string> names;
  std::size_t count = 0;
  std::string shown;
  data::visit_example(serialized, [&](std::string_view key, const FeatureView&) {
    if (++count <= kNamesShownMax) shown += (count > 1 ? ", " : "") + data::quoted(key);
    if (count <= kNamesComparedMax) names.emplace_back(key);
  });
  if (count == 0) return ", which has no features";
  if (count > kNamesShownMax) shown += ", …, " + std::to_string(count) + " in all";
  return ", whose features are " + shown + did_you_mean(missing, names);
}

[[noreturn]] void fail_missing(const Wanted& feature, const Found& found, std::int64_t example) {
  internal::throw_error(ErrorCode::invalid_argument, "[data.parse_example] expected feature '",
                        feature.name, "' (", name_of(feature.kind),
                        "), which is required, got none in example ", example,
                        features_there(found.serialized, feature.name),
                        "; give it a default_value if examples may lack it");
}

template <class T>
void append_example(const Wanted& feature, std::size_t number, const Found& all,
                    std::int64_t example, Column<T>& column) {
  const FeatureView& found = all.features[number];
  const std::size_t before = column.values.size();
  if (found.kind == FeatureKind::none) {
    if (!feature.spec.is_variable_length && !feature.spec.default_value)
      fail_missing(feature, all, example);
    if (!feature.spec.is_variable_length) {
      const auto& values = feature.defaults(T());
      column.values.insert(column.values.end(), values.begin(), values.end());
    }
  } else {
    COHORT_CHECK(found.kind == feature.kind, ErrorCode::invalid_argument,
                 "[data.parse_example] expected ", name_of(feature.kind), " in feature '",
                 feature.name, "', got ", name_of(found.kind), " in example ", example);
    data::append_values(found.list, column.values);
    const auto got = static_cast<std::int64_t>(column.values.size() - before);
    COHORT_CHECK(feature.spec.is_variable_length || got == feature.count,
                 ErrorCode::invalid_argument, "[data.parse_example] expected ", feature.count,
                 " values in feature '", feature.name, "', got ", got, " in example ", example);
  }
  column.ends.push_back(column.values.size());
}

// The sizes of a column's tensor. A variable feature has the length of its longest row.
template <class T>
std::vector<std::int64_t> sizes_of(const Wanted& feature, const Column<T>& column, bool is_batch) {
  std::vector<std::int64_t> sizes = feature.spec.sizes;
  if (feature.spec.is_variable_length) {
    std::size_t longest = 0;
    std::size_t begin = 0;
    for (const std::size_t end : column.ends) {
      longest = std::max(longest, end - begin);
      begin = end;
    }
    sizes = {static_cast<std::int64_t>(longest)};
  }
  if (is_batch) sizes.insert(sizes.begin(), static_cast<std::int64_t>(column.ends.size()));
  return sizes;
}

// Calls fill(index of the value in the tensor, value) for each value.
template <class T, class Fill>
void place(const Column<T>& column, std::int64_t width, Fill fill) {
  std::size_t next = 0;
  for (std::size_t row = 0; row < column.ends.size(); ++row) {
    std::int64_t position = static_cast<std::int64_t>(row) * width;
    for (; next < column.ends[row]; ++next) fill(position++, column.values[next]);
  }
}

std::int64_t width_of(const std::vector<std::int64_t>& sizes, bool is_batch) {
  return c10::multiply_integers(sizes.begin() + (is_batch ? 1 : 0), sizes.end());
}

template <class T>
at::Tensor tensor_of(const Wanted& feature, const Column<T>& column, bool is_batch) {
  const std::vector<std::int64_t> sizes = sizes_of(feature, column, is_batch);
  if (!feature.spec.is_variable_length) {
    const at::Tensor all = at::empty(sizes, feature.spec.dtype);
    if (!column.values.empty()) {
      std::memcpy(all.data_ptr(), column.values.data(), column.values.size() * sizeof(T));
    }
    return all;
  }
  const at::Tensor padded = at::zeros(sizes, feature.spec.dtype);
  T* data = padded.data_ptr<T>();
  place(column, width_of(sizes, is_batch), [data](std::int64_t i, T value) { data[i] = value; });
  return padded;
}

at::Tensor tensor_of(const Wanted& feature, const Column<std::string_view>& column, bool is_batch) {
  std::vector<std::int64_t> sizes = sizes_of(feature, column, is_batch);
  const std::int64_t count = width_of(sizes, is_batch) * (is_batch ? sizes[0] : 1);
  std::string bytes;
  std::vector<std::uint64_t> ends;
  ends.reserve(static_cast<std::size_t>(count));
  place(column, width_of(sizes, is_batch), [&](std::int64_t i, std::string_view value) {
    while (static_cast<std::int64_t>(ends.size()) < i) ends.push_back(bytes.size());
    bytes += value;
    ends.push_back(bytes.size());
  });
  ends.resize(static_cast<std::size_t>(count), bytes.size());
  return StringTensor(std::move(sizes), std::move(bytes), std::move(ends));
}

template <class T>
at::Tensor parse_feature(const Wanted& feature, std::size_t number,
                         const std::vector<Found>& examples, bool is_batch) {
  Column<T> column;
  if (!feature.spec.is_variable_length) {
    column.values.reserve(examples.size() * static_cast<std::size_t>(feature.count));
  }
  for (std::size_t i = 0; i < examples.size(); ++i) {
    append_example(feature, number, examples[i], static_cast<std::int64_t>(i), column);
  }
  return tensor_of(feature, column, is_batch);
}

}  // namespace

class ExampleParser::Plan {
 public:
  explicit Plan(FeatureSpecs features) : specs_(std::move(features)) {
    COHORT_CHECK(!specs_.empty(), ErrorCode::invalid_argument,
                 "[data.parse_example] expected at least one feature to parse, got none");
    for (const auto& [name, spec] : specs_) wanted_.push_back(wanted(name, spec));
    for (std::size_t i = 0; i < wanted_.size(); ++i) numbers_.emplace(wanted_[i].name, i);
  }

  const FeatureSpecs& specs() const { return specs_; }

  Found find(std::string_view serialized) const {
    Found found{std::vector<FeatureView>(wanted_.size()), serialized};
    data::visit_example(serialized, [&](std::string_view key, const FeatureView& feature) {
      const auto entry = numbers_.find(key);
      if (entry != numbers_.end()) found.features[entry->second] = feature;
    });
    return found;
  }

  at::Tensor parse(std::size_t number, const std::vector<Found>& examples, bool is_batch) const {
    const Wanted& feature = wanted_[number];
    switch (feature.kind) {
      case FeatureKind::floats:
        return parse_feature<float>(feature, number, examples, is_batch);
      case FeatureKind::int64s:
        return parse_feature<std::int64_t>(feature, number, examples, is_batch);
      default:
        return parse_feature<std::string_view>(feature, number, examples, is_batch);
    }
  }

 private:
  FeatureSpecs specs_;
  std::vector<Wanted> wanted_;  // by name
  std::unordered_map<std::string_view, std::size_t> numbers_;
};

ExampleParser::ExampleParser(FeatureSpecs features)
    : plan_(std::make_unique<const Plan>(std::move(features))) {}

ExampleParser::~ExampleParser() = default;

const FeatureSpecs& ExampleParser::features() const { return plan_->specs(); }

Fields ExampleParser::parse_fields(const StringTensor& serialized) const {
  COHORT_CHECK(serialized.dim() <= 1, ErrorCode::invalid_argument,
               "[data.parse_example] expected one example or a vector of them, got ",
               TensorSpec::of(serialized.tensor()).to_string());
  std::vector<Found> examples;
  examples.reserve(static_cast<std::size_t>(serialized.numel()));
  for (std::int64_t i = 0; i < serialized.numel(); ++i) {
    try {
      examples.push_back(plan_->find(serialized[i]));
    } catch (Error& error) {
      throw std::move(error).during("parsing example " + std::to_string(i));
    }
  }
  Fields fields;
  for (std::size_t i = 0; i < features().size(); ++i) {
    fields.push_back(plan_->parse(i, examples, serialized.dim() == 1));
  }
  return fields;
}

Nest ExampleParser::parse(const StringTensor& serialized) const {
  Fields fields = parse_fields(serialized);
  Nest::Map parsed;
  std::size_t next = 0;
  for (const auto& [name, unused] : features()) parsed.emplace(name, std::move(fields[next++]));
  return Nest::map(std::move(parsed));
}

ElementSpec ExampleParser::element_spec() const {
  Nest::Map structure;
  ElementSpec spec;
  for (const auto& [name, feature] : features()) {
    structure.emplace(name, static_cast<std::int64_t>(spec.fields.size()));
    spec.fields.push_back({feature.dtype, feature.is_variable_length ? std::vector<std::int64_t>{-1}
                                                                     : feature.sizes});
  }
  spec.structure = Nest::map(std::move(structure));
  return spec;
}

}  // namespace cohort
