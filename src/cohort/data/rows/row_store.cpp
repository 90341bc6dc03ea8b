// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/rows/row_store.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace cohort::data {
namespace {

// How many rows ahead of the copy memory is prefetched; more is no faster.
constexpr std::size_t kPrefetchRows = 8;
constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kPrefetchBytesMax = 512;  // per row; the hardware prefetches the rest

bool are_consecutive(std::span<const std::int64_t> rows) {
  if (rows.back() - rows.front() != static_cast<std::int64_t>(rows.size()) - 1) return false;
  return std::adjacent_find(rows.begin(), rows.end(), [](std::int64_t a, std::int64_t b) {
           return b != a + 1;
         }) == rows.end();
}

template <class Word>
void copy_words(const std::byte* from, std::span<const std::int64_t> rows, std::byte* to) {
  const Word* source = reinterpret_cast<const Word*>(from);
  Word* target = reinterpret_cast<Word*>(to);
  for (std::size_t i = 0; i < rows.size(); ++i) target[i] = source[rows[i]];
}

void copy_rows(const std::byte* from, std::size_t row_bytes, std::span<const std::int64_t> rows,
               std::byte* to) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i + kPrefetchRows < rows.size()) {
      const std::byte* ahead = from + static_cast<std::size_t>(rows[i + kPrefetchRows]) * row_bytes;
      for (std::size_t at = 0; at < std::min(row_bytes, kPrefetchBytesMax); at += kCacheLine) {
        __builtin_prefetch(ahead + at);
      }
    }
    std::memcpy(to + i * row_bytes, from + static_cast<std::size_t>(rows[i]) * row_bytes,
                row_bytes);
  }
}

void copy(const std::byte* from, std::size_t row_bytes, std::span<const std::int64_t> rows,
          std::byte* to) {
  if (row_bytes == 0) return;
  if (are_consecutive(rows)) {
    std::memcpy(to, from + static_cast<std::size_t>(rows[0]) * row_bytes, rows.size() * row_bytes);
    return;
  }
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(from) % row_bytes == 0;
  if (row_bytes == 1) return copy_words<std::uint8_t>(from, rows, to);
  if (row_bytes == 4 && is_aligned) return copy_words<std::uint32_t>(from, rows, to);
  if (row_bytes == 8 && is_aligned) return copy_words<std::uint64_t>(from, rows, to);
  copy_rows(from, row_bytes, rows, to);
}

}  // namespace

void ColumnStore::element(std::int64_t row, Fields& fields) const {
  fields.resize(columns_.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    const auto bytes = static_cast<std::size_t>(column.row.byte_count());
    fields[i] = at::empty(*column.row.sizes, column.row.dtype);
    if (bytes > 0) {
      std::memcpy(fields[i].data_ptr(), column.data + static_cast<std::size_t>(row) * bytes, bytes);
    }
  }
}

void ColumnStore::gather(std::span<const std::int64_t> rows, Fields& batch) const {
  batch.resize(columns_.size());
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    std::vector<std::int64_t> sizes = *column.row.sizes;
    sizes.insert(sizes.begin(), static_cast<std::int64_t>(rows.size()));
    batch[i] = at::empty(sizes, column.row.dtype);
    copy(column.data, static_cast<std::size_t>(column.row.byte_count()), rows,
         static_cast<std::byte*>(batch[i].data_ptr()));
  }
}

void StringStore::element(std::int64_t row, Fields& fields) const {
  fields.assign(1, strings_.row(row));
}

void StringStore::gather(std::span<const std::int64_t> rows, Fields& batch) const {
  std::vector<std::int64_t> sizes = strings_.sizes();
  const std::int64_t width = sizes[0] == 0 ? 0 : strings_.numel() / sizes[0];
  std::string bytes;
  std::vector<std::uint64_t> ends;
  ends.reserve(rows.size() * static_cast<std::size_t>(width));
  for (const std::int64_t row : rows) {
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      bytes += strings_[i];
      ends.push_back(bytes.size());
    }
  }
  sizes[0] = static_cast<std::int64_t>(rows.size());
  batch.assign(1, StringTensor(std::move(sizes), std::move(bytes), std::move(ends)));
}

bool JoinedStore::can_fail() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const auto& store) { return store->can_fail(); });
}

void JoinedStore::element(std::int64_t row, Fields& fields) const {
  fields.clear();
  Fields part;
  for (const auto& store : parts_) {
    store->element(row, part);
    for (at::Tensor& field : part) fields.push_back(std::move(field));
  }
}

void JoinedStore::gather(std::span<const std::int64_t> rows, Fields& batch) const {
  batch.clear();
  Fields part;
  for (const auto& store : parts_) {
    store->gather(rows, part);
    for (at::Tensor& field : part) batch.push_back(std::move(field));
  }
}

std::shared_ptr<const RowStore> rows_of(const Fields& tensors) {
  const std::int64_t size = tensors[0].size(0);
  std::vector<std::shared_ptr<const RowStore>> parts;
  std::vector<Column> columns;  // neighbours share a store
  const auto close = [&] {
    if (!columns.empty()) {
      parts.push_back(std::make_shared<ColumnStore>(size, std::exchange(columns, {})));
    }
  };
  for (const at::Tensor& tensor : tensors) {
    if (StringTensor::is(tensor)) {
      close();
      parts.push_back(std::make_shared<StringStore>(StringTensor::of(tensor)));
      continue;
    }
    const auto owner = std::make_shared<const at::Tensor>(tensor);
    columns.push_back({.row = {owner->scalar_type(), owner->sizes().slice(1).vec()},
                       .data = static_cast<const std::byte*>(owner->data_ptr()),
                       .owner = owner});
  }
  close();
  return parts.size() == 1 ? parts[0] : std::make_shared<JoinedStore>(std::move(parts));
}

}  // namespace cohort::data
