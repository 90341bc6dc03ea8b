// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/value_text.h"

#include <iomanip>
#include <sstream>

#include "cohort/core/computed.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::function {
namespace {

template <class T>
void write_values(std::ostream& out, const at::Tensor& values) {
  const T* data = values.data_ptr<T>();
  for (std::int64_t i = 0; i < values.numel(); ++i) out << (i > 0 ? ", " : "") << data[i];
}

}  // namespace

std::string value_text(const at::Tensor& tensor, const ValueTextOptions& options) {
  std::ostringstream text;
  text << TensorSpec::of(tensor).to_string() << " {" << std::setprecision(options.digits)
       << std::boolalpha;
  const at::Tensor first = computed(tensor.detach()).flatten().slice(0, 0, options.values_max);
  if (first.scalar_type() == at::kBool) {
    write_values<bool>(text, first.contiguous());
  } else if (at::isIntegralType(first.scalar_type(), /*includeBool=*/false)) {
    write_values<std::int64_t>(text, first.to(at::kLong).contiguous());
  } else if (first.is_complex()) {
    write_values<c10::complex<double>>(text, first.to(at::kComplexDouble).contiguous());
  } else {
    write_values<double>(text, first.to(at::kDouble).contiguous());
  }
  text << (tensor.numel() > options.values_max ? ", …}" : "}");
  return text.str();
}

}  // namespace cohort::function
