// SPDX-License-Identifier: Apache-2.0
// Formats tensors as the guide's Python prints them, with numpy's digits and brackets.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/irange.h>
#include <cohort/cohort.h>

#include <charconv>
#include <string>
#include <vector>

namespace guide {

// The format of whole numbers: 1. (array), 1.0 (scalar) or 1 (tf.print). Others are like 0.7.
enum class Whole { array, scalar, print };

inline std::string number(const at::Tensor& scalar, Whole whole) {
  if (!scalar.is_floating_point()) return std::to_string(scalar.item().toLong());
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof(digits), scalar.item().toFloat()).ptr;
  std::string text(digits, end);
  if (text.find_first_not_of("-0123456789") != std::string::npos) return text;
  return text + (whole == Whole::array ? "." : whole == Whole::scalar ? ".0" : "");
}

// Rows one per line; lines after the first are indented by `indent` more blanks. With edge >= 0,
// rows other than the first and last `edge` are replaced by "...".
inline std::string rows(const at::Tensor& tensor, Whole whole, const std::string& between,
                        std::size_t indent = 0, std::int64_t edge = -1) {
  if (tensor.dim() == 0) return number(tensor, whole);
  const std::string gap = tensor.dim() == 1 ? (between.empty() ? " " : between + " ")
                                            : between + "\n" + std::string(indent + 1, ' ');
  std::string text;
  for (const std::int64_t i : c10::irange(tensor.size(0))) {
    const bool is_left_out = edge >= 0 && i >= edge && i < tensor.size(0) - edge;
    if (is_left_out && i > edge) continue;
    text += (i > 0 ? gap : "") +
            (is_left_out ? "..." : rows(tensor[i], whole, between, indent + 1, edge));
  }
  return "[" + text + "]";
}

inline std::string shape(const at::Tensor& tensor) {
  std::string text;
  for (const std::int64_t size : tensor.sizes()) {
    text += (text.empty() ? "" : ", ") + std::to_string(size);
  }
  return "(" + text + (tensor.dim() == 1 ? ",)" : ")");
}

inline std::string kind(const at::Tensor& tensor) {
  return ", dtype=" + cohort::dtype_name(tensor.scalar_type());
}

// print(tensor)
inline std::string str(const at::Tensor& tensor) {
  const std::string text = rows(tensor, tensor.dim() == 0 ? Whole::scalar : Whole::array, "");
  return "tf.Tensor(" + std::string(tensor.dim() > 1 ? "\n" : "") + text +
         ", shape=" + shape(tensor) + kind(tensor) + ")";
}

// print((tensor,)), without the parentheses
inline std::string repr(const at::Tensor& tensor) {
  const std::string start = "array(";
  return "<tf.Tensor: shape=" + shape(tensor) + kind(tensor) + ", numpy=\n" + start +
         rows(tensor, Whole::array, ",", start.size()) + kind(tensor) + ")>";
}

// tf.print((tensor, …))
inline std::string tf_print(const std::vector<at::Tensor>& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += (text.empty() ? "" : ", ") + rows(tensor, Whole::print, "", 0, 3);
  }
  return "(" + text + ")";
}

// print([…]): a mini-batch of numbers, or of numbers as text from a file
inline std::string list(const at::Tensor& batch) {
  const bool is_text = cohort::StringTensor::is(batch);
  std::string text;
  for (const std::int64_t i : c10::irange(batch.size(0))) {
    text += (i > 0 ? ", " : "") + (is_text ? std::string(cohort::StringTensor::of(batch)[i])
                                           : std::to_string(batch[i].item().toLong()));
  }
  return "[" + text + "]";
}

}  // namespace guide
