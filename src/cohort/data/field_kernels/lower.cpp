// SPDX-License-Identifier: Apache-2.0
// lower: converts the letters A to Z to lower case.
#include "cohort/data/field_kernels/field_kernel.h"

namespace cohort::data {
namespace {

class LowerKernel final : public FieldKernel {
 public:
  std::string_view name() const override { return "lower"; }
  Attributes attributes() const override { return {}; }

  TensorSpec spec(const TensorSpec& input, const std::string& field) const override {
    check_is_string(input, name(), field);
    return input;
  }

  at::Tensor apply(const at::Tensor& values, const std::string& field) const override {
    const StringTensor strings = strings_in(values, name(), field);
    std::string bytes;
    std::vector<std::uint64_t> ends;
    ends.reserve(static_cast<std::size_t>(strings.numel()));
    for (std::int64_t i = 0; i < strings.numel(); ++i) {
      bytes += strings[i];
      ends.push_back(bytes.size());
    }
    for (char& c : bytes) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return StringTensor(values.sizes().vec(), std::move(bytes), std::move(ends));
  }
};

}  // namespace

FieldFunction lower(FieldPath field) {
  return {std::move(field), std::make_shared<const LowerKernel>()};
}

std::shared_ptr<const FieldKernel> make_lower_kernel(AttributeReader&) {
  return std::make_shared<const LowerKernel>();
}

}  // namespace cohort::data
