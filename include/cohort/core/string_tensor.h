// SPDX-License-Identifier: Apache-2.0
// Byte strings in the shape of a tensor (tf.string): file names, records, lines of text.
//
//   StringTensor names({2}, {"a.tfrecord", "b.tfrecord"});
//   names[1];  // "b.tfrecord"
//
// It converts to an at::Tensor that has no dtype and no numbers. So nests, elements and iterators
// can hold strings like other tensors; ATen's operators refuse it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// Immutable; copies share the bytes. Thread-safe.
class COHORT_API StringTensor {
 public:
  // A scalar.
  explicit StringTensor(std::string value);
  // `values` in row-major order. Throws invalid_argument if their number does not fit the sizes.
  StringTensor(std::vector<std::int64_t> sizes, std::span<const std::string> values);
  StringTensor(std::vector<std::int64_t> sizes, std::initializer_list<std::string> values);
  // A tensor of one dimension.
  explicit StringTensor(std::span<const std::string> values);
  // `bytes` holds all values, one after the other; value i ends before bytes[ends[i]].
  StringTensor(std::vector<std::int64_t> sizes, std::string bytes, std::vector<std::uint64_t> ends);
  // There is no move: it would leave an object without bytes. A copy costs as much.
  StringTensor(const StringTensor&) = default;
  StringTensor& operator=(const StringTensor&) = default;
  ~StringTensor() = default;

  static bool is(const at::Tensor& tensor);
  // Throws invalid_argument for a tensor of numbers.
  static StringTensor of(const at::Tensor& tensor);

  std::int64_t dim() const { return tensor_.dim(); }
  std::vector<std::int64_t> sizes() const { return tensor_.sizes().vec(); }
  std::int64_t numel() const { return tensor_.numel(); }
  // Value i in row-major order. The view is valid as long as this object or a copy exists.
  std::string_view operator[](std::int64_t i) const;
  // The only value. Throws invalid_argument if there is not exactly one.
  std::string_view value() const;
  std::vector<std::string> values() const;
  // The memory that the values take, in bytes.
  std::size_t byte_count() const;

  // Rows [begin, end) of the first dimension.
  StringTensor slice(std::int64_t begin, std::int64_t end) const;
  // One of these rows, without the first dimension.
  StringTensor row(std::int64_t index) const;
  StringTensor reshaped(std::vector<std::int64_t> sizes) const;
  // Stacks tensors of one shape along a new first dimension.
  static StringTensor stack(std::span<const at::Tensor> rows);
  // Concatenates along the first dimension.
  static StringTensor concatenate(std::span<const at::Tensor> parts);

  const at::Tensor& tensor() const { return tensor_; }
  operator at::Tensor() const { return tensor_; }  // NOLINT: it is one

  // Compares shapes and values.
  bool operator==(const StringTensor& other) const;

 private:
  struct Storage;
  StringTensor(at::Tensor tensor, const Storage& storage)
      : tensor_(std::move(tensor)), storage_(&storage) {}
  static at::Tensor make(std::vector<std::int64_t> sizes, std::shared_ptr<const Storage> storage);
  static const Storage* find(const at::Tensor& tensor);
  void attach(std::vector<std::int64_t> sizes, std::shared_ptr<const Storage> storage);

  at::Tensor tensor_;  // owns the storage
  const Storage* storage_ = nullptr;
};

// Memory of a tensor's values in bytes, strings included.
COHORT_API std::size_t byte_count(const at::Tensor& tensor);

}  // namespace cohort
