// SPDX-License-Identifier: Apache-2.0
// The rows that a variable or a table had at a cut, while updates go on: those that were replaced
// since are kept until they are exported.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/parameter_server/store/cut_memory.h"

namespace cohort::parameter_server {

// Rows are kept in blocks of about 512 bytes, copied before one of them changes. Thread-compatible.
class CutRows {
 public:
  // The values, one slot, or the keys. The rows of a block are one after the other.
  struct Column {
    std::size_t row_bytes = 0;
    std::function<const std::byte*(std::int64_t row)> at;  // where a row is now
  };
  // `shift`: a block has 2^shift rows or fewer.
  CutRows(std::int64_t rows, std::vector<Column> columns, int shift,
          std::shared_ptr<CutMemory> memory);
  ~CutRows();
  CutRows(const CutRows&) = delete;
  CutRows& operator=(const CutRows&) = delete;

  std::int64_t rows() const { return rows_; }
  // How many to copy while updates wait.
  std::int64_t rows_of_piece() const;
  // Before these rows change. Numbers that are no row of the cut are left out. Returns false if
  // there is no memory for all; `must`: takes more than there is, and returns true.
  bool keep(std::span<const std::int64_t> rows, bool must);
  bool keep(std::span<const std::uint32_t> rows, bool must);
  bool keep_all(bool must);
  // Copies `count` rows of a column, from row `first` on.
  void copy(std::size_t column, std::int64_t first, std::int64_t count, std::byte* to) const;
  // Rows are exported in order: where the next range begins. Throws failed_precondition, naming
  // `name`, if it does not, and resource_exhausted if the system had no memory for old rows.
  void check_export(std::int64_t first, const std::string& name) const;
  void note_export(std::int64_t end);

 private:
  static constexpr std::uint32_t kOpen = 0;  // the rows are as they were
  bool keep_block(std::int64_t block, bool must);
  bool keep_row(std::int64_t row, bool must) {
    const bool is_of_cut = row >= exported_ && row < rows_;
    return !is_of_cut || keep_block(row >> shift_, must);
  }
  std::byte* place(std::uint32_t number) const;
  std::int64_t rows_of(std::int64_t block) const;

  const std::int64_t rows_;
  const std::vector<Column> columns_;
  const std::shared_ptr<CutMemory> memory_;
  std::size_t row_bytes_ = 0;  // of all columns
  int shift_ = 0;
  std::vector<std::uint32_t> kept_;  // by block: kOpen, or the number of its place
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::vector<std::uint32_t> free_;  // places
  std::uint64_t bytes_ = 0;          // that memory_ counts for these rows
  std::int64_t exported_ = 0;
  bool is_broken_ = false;  // there was no memory
};

}  // namespace cohort::parameter_server
