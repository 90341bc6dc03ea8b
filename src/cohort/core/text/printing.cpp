// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/text/printing.h"

#include <ATen/Dispatch.h>
#include <ATen/TensorUtils.h>
#include <fmt/format.h>

#include <sstream>
#include <string_view>

#include "cohort/core/tensor_spec.h"

namespace cohort {
namespace {

constexpr std::int64_t kValuesMax = 16;
constexpr std::size_t kTextBytesMax = 64;

void print_text(std::ostream& out, std::string_view text) {
  out << '"';
  for (const char c : text.substr(0, kTextBytesMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out << '\\' << c;
    } else if (byte < ' ' || byte == 0x7f) {
      out << fmt::format("\\x{:02x}", byte);
    } else {
      out << c;
    }
  }
  out << (text.size() > kTextBytesMax ? "\"…" : "\"");
}

void print_number(std::ostream& out, bool value) { out << (value ? "true" : "false"); }
template <class T>
void print_number(std::ostream& out, T value) {
  if constexpr (std::is_integral_v<T>) {
    out << std::int64_t{value};
  } else {
    out << static_cast<double>(value);
  }
}

// Nested brackets of the sizes from `dim` on; print_one(offset) prints the value at an offset, of
// which one step along dimension i adds strides[i].
template <class PrintOne>
void print_values(std::ostream& out, at::IntArrayRef sizes, at::IntArrayRef strides,
                  std::int64_t offset, const PrintOne& print_one) {
  if (sizes.empty()) return print_one(offset);
  out << '[';
  for (std::int64_t i = 0; i < sizes[0]; ++i) {
    if (i > 0) out << ", ";
    print_values(out, sizes.slice(1), strides.slice(1), offset + i * strides[0], print_one);
  }
  out << ']';
}

bool has_plain_values(const at::Tensor& tensor) {
  const at::ScalarType dtype = tensor.scalar_type();
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.is_neg() &&
         (c10::isIntegralType(dtype, /*includeBool=*/true) || c10::isFloatingType(dtype));
}

// Reads memory without an operator, which a step that is traced would record.
void print_tensor(std::ostream& out, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    out << "undefined tensor";
    return;
  }
  out << TensorSpec::of(tensor);
  const bool shows_values = tensor.numel() > 0 && tensor.numel() <= kValuesMax;
  if (StringTensor::is(tensor)) {
    if (!shows_values) return;
    const StringTensor strings = StringTensor::of(tensor);
    out << ' ';
    print_values(out, tensor.sizes(), at::detail::defaultStrides(tensor.sizes()), 0,
                 [&](std::int64_t i) { print_text(out, strings[i]); });
    return;
  }
  if (!tensor.is_cpu()) out << " on " << tensor.device();
  if (!shows_values || !has_plain_values(tensor)) return;
  out << ' ';
  AT_DISPATCH_ALL_TYPES_AND3(at::kBool, at::kHalf, at::kBFloat16, tensor.scalar_type(), "print",
                             [&] {
                               const auto* values = static_cast<const scalar_t*>(tensor.data_ptr());
                               print_values(out, tensor.sizes(), tensor.strides(), 0,
                                            [&](std::int64_t i) { print_number(out, values[i]); });
                             });
}

void print_items(std::ostream& out, const Nest::Items& items) {
  for (std::size_t i = 0; i < items.size(); ++i) out << (i > 0 ? ", " : "") << items[i];
}

void print_entries(std::ostream& out, const Nest::Map& entries) {
  std::string_view separator;
  for (const auto& [key, value] : entries) {
    out << separator << key << ": " << value;
    separator = ", ";
  }
}

}  // namespace

std::ostream& internal::print_nest(std::ostream& out, const Nest& nest) {
  switch (nest.kind()) {
    case Nest::Kind::null:
      return out << "null";
    case Nest::Kind::tensor:
      print_tensor(out, nest.tensor());
      return out;
    case Nest::Kind::integer:
      return out << nest.integer();
    case Nest::Kind::real:
      return out << nest.real();
    case Nest::Kind::boolean:
      return out << (nest.boolean() ? "true" : "false");
    case Nest::Kind::text:
      print_text(out, nest.text());
      return out;
    case Nest::Kind::handle:
      return out << '<' << nest.handle()->handle_kind() << '>';
    case Nest::Kind::list:
      out << '[';
      print_items(out, nest.items());
      return out << ']';
    case Nest::Kind::tuple:
      out << '(';
      print_items(out, nest.items());
      return out << (nest.items().size() == 1 ? ",)" : ")");
    case Nest::Kind::map:
      out << '{';
      print_entries(out, nest.entries());
      return out << '}';
  }
  return out;
}

std::string to_string(const Nest& nest) {
  std::ostringstream out;
  internal::print_nest(out, nest);
  return out.str();
}

}  // namespace cohort
