// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/cut_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::parameter_server {
namespace {

// A larger block copies more that an update does not replace; a smaller one costs more to find.
constexpr std::size_t kBlockBytes = 512;
constexpr std::uint32_t kPlacesInSlab = 512;
constexpr std::size_t kPieceBytes = std::size_t{64} << 10;

int shift_for(std::size_t row_bytes, int shift_max) {
  const std::size_t rows = kBlockBytes / std::max<std::size_t>(1, row_bytes);
  return std::min(shift_max, static_cast<int>(std::bit_width(std::max<std::size_t>(1, rows))) - 1);
}

}  // namespace

CutRows::CutRows(std::int64_t rows, std::vector<Column> columns, int shift,
                 std::shared_ptr<CutMemory> memory)
    : rows_(rows), columns_(std::move(columns)), memory_(std::move(memory)) {
  for (const Column& column : columns_) row_bytes_ += column.row_bytes;
  shift_ = shift_for(row_bytes_, shift);
  kept_.resize(static_cast<std::size_t>((rows_ >> shift_) + 1), kOpen);
}

CutRows::~CutRows() { memory_->give_back(bytes_); }

std::int64_t CutRows::rows_of_piece() const {
  return static_cast<std::int64_t>(kPieceBytes / std::max<std::size_t>(1, row_bytes_) + 1);
}

std::int64_t CutRows::rows_of(std::int64_t block) const {
  return std::min(std::int64_t{1} << shift_, rows_ - (block << shift_));
}

// Numbers of places begin at 1.
std::byte* CutRows::place(std::uint32_t number) const {
  const std::uint32_t index = number - 1;
  return slabs_[index / kPlacesInSlab].get() +
         static_cast<std::size_t>(index % kPlacesInSlab) * (row_bytes_ << shift_);
}

bool CutRows::keep_block(std::int64_t block, bool must) {
  std::uint32_t& kept = kept_[static_cast<std::size_t>(block)];
  if (kept != kOpen || is_broken_) return true;
  const std::uint64_t bytes = row_bytes_ << shift_;
  if (must) {
    memory_->take(bytes);
  } else if (!memory_->try_take(bytes)) {
    return false;
  }
  bytes_ += bytes;
  try {
    if (free_.empty()) {
      slabs_.push_back(
          std::make_unique_for_overwrite<std::byte[]>(kPlacesInSlab * (row_bytes_ << shift_)));
      const auto end = static_cast<std::uint32_t>(slabs_.size()) * kPlacesInSlab;
      for (std::uint32_t i = 0; i < kPlacesInSlab; ++i) free_.push_back(end - i);
    }
  } catch (const std::bad_alloc&) {
    is_broken_ = true;  // the export ends with an error, and the update goes on
    return true;
  }
  const std::uint32_t number = free_.back();
  free_.pop_back();
  std::byte* to = place(number);
  const std::int64_t first = block << shift_;
  for (const Column& column : columns_) {
    std::memcpy(to, column.at(first), static_cast<std::size_t>(rows_of(block)) * column.row_bytes);
    to += column.row_bytes << shift_;
  }
  kept = number;
  return true;
}

bool CutRows::keep(std::span<const std::int64_t> rows, bool must) {
  return std::all_of(rows.begin(), rows.end(),
                     [&](std::int64_t row) { return keep_row(row, must); });
}

bool CutRows::keep(std::span<const std::uint32_t> rows, bool must) {
  return std::all_of(rows.begin(), rows.end(),
                     [&](std::uint32_t row) { return keep_row(row, must); });
}

bool CutRows::keep_all(bool must) {
  for (std::int64_t row = exported_; row < rows_; row = ((row >> shift_) + 1) << shift_)
    if (!keep_row(row, must)) return false;
  return true;
}

void CutRows::copy(std::size_t column, std::int64_t first, std::int64_t count,
                   std::byte* to) const {
  std::size_t offset = 0;  // of the column in a place
  for (std::size_t i = 0; i < column; ++i) offset += columns_[i].row_bytes << shift_;
  const Column& from = columns_[column];
  const std::int64_t end = first + count;
  for (std::int64_t row = first; row < end;) {
    const std::int64_t block = row >> shift_, in_block = row - (block << shift_);
    const std::int64_t taken = std::min(end, (block + 1) << shift_) - row;
    const std::uint32_t kept = kept_[static_cast<std::size_t>(block)];
    const std::byte* const begin =
        kept == kOpen ? from.at(row)
                      : place(kept) + offset + static_cast<std::size_t>(in_block) * from.row_bytes;
    const std::size_t bytes = static_cast<std::size_t>(taken) * from.row_bytes;
    if (bytes > 0) std::memcpy(to, begin, bytes);
    to += bytes;
    row += taken;
  }
}

void CutRows::check_export(std::int64_t first, const std::string& name) const {
  COHORT_CHECK(first == exported_, ErrorCode::failed_precondition,
               "[server.export_state] expected the rows of the cut from row ", exported_,
               " on, got a request from row ", first, " (variable '", name,
               "'): each row is given once; save again");
  COHORT_CHECK(!is_broken_, ErrorCode::resource_exhausted,
               "[server.export_state] expected memory for the rows that updates have replaced "
               "since the cut, got none (variable '",
               name, "'); give this server more memory, or save with a smaller memory_max_bytes");
}

void CutRows::note_export(std::int64_t end) {
  std::uint64_t bytes = 0;
  const std::int64_t blocks =
      end >= rows_ ? static_cast<std::int64_t>(kept_.size()) : end >> shift_;
  for (std::int64_t block = exported_ >> shift_; block < blocks; ++block) {
    std::uint32_t& kept = kept_[static_cast<std::size_t>(block)];
    if (kept == kOpen) continue;
    free_.push_back(kept);
    kept = kOpen;
    bytes += row_bytes_ << shift_;
  }
  exported_ = end;
  if (exported_ >= rows_) slabs_.clear();
  bytes_ -= bytes;
  memory_->give_back(bytes);
}

}  // namespace cohort::parameter_server
