// SPDX-License-Identifier: Apache-2.0
// Random access to elements by number: rows of arrays in memory or of files, or computed values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/element.h"

namespace cohort::data {

// Immutable. Thread-safe.
class RowStore {
 public:
  virtual ~RowStore() = default;
  virtual std::int64_t size() const = 0;
  // Whether making an element may throw, for example because it is read from a file.
  virtual bool can_fail() const { return false; }
  // One element as a copy, which the caller may modify.
  virtual void element(std::int64_t row, Fields& fields) const = 0;
  // Some elements stacked, in new memory.
  virtual void gather(std::span<const std::int64_t> rows, Fields& batch) const = 0;
};

// Contiguous rows of one field.
struct Column {
  TensorSpec row;  // static
  const std::byte* data = nullptr;
  std::shared_ptr<const void> owner;  // of data
};

// Rows of contiguous arrays, one array per field.
class ColumnStore final : public RowStore {
 public:
  ColumnStore(std::int64_t size, std::vector<Column> columns)
      : size_(size), columns_(std::move(columns)) {}
  std::int64_t size() const override { return size_; }
  void element(std::int64_t row, Fields& fields) const override;
  void gather(std::span<const std::int64_t> rows, Fields& batch) const override;

 private:
  std::int64_t size_;
  std::vector<Column> columns_;
};

// The rows of a tensor of strings.
class StringStore final : public RowStore {
 public:
  explicit StringStore(StringTensor strings) : strings_(std::move(strings)) {}
  std::int64_t size() const override { return strings_.tensor().size(0); }
  void element(std::int64_t row, Fields& fields) const override;
  void gather(std::span<const std::int64_t> rows, Fields& batch) const override;

 private:
  StringTensor strings_;
};

// Joins stores of equal size: a row has the fields of all stores, in order.
class JoinedStore final : public RowStore {
 public:
  explicit JoinedStore(std::vector<std::shared_ptr<const RowStore>> parts)
      : parts_(std::move(parts)) {}
  std::int64_t size() const override { return parts_.front()->size(); }
  bool can_fail() const override;
  void element(std::int64_t row, Fields& fields) const override;
  void gather(std::span<const std::int64_t> rows, Fields& batch) const override;

 private:
  std::vector<std::shared_ptr<const RowStore>> parts_;
};

// A store of the rows of contiguous tensors in host memory, of numbers or strings. Their first
// dimensions are equal.
std::shared_ptr<const RowStore> rows_of(const Fields& tensors);

}  // namespace cohort::data
