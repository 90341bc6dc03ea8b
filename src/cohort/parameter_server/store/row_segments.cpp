// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/row_segments.h"

#include <cstring>

#include "cohort/core/error.h"
#include "cohort/variable/row_loop.h"
#include "cohort/variable/variable_state.h"

namespace cohort::parameter_server {

RowSegments::RowSegments(at::Tensor first, int shift)
    : first_(std::move(first)), row_bytes_(first_.nbytes()), shift_(shift) {
  COHORT_ASSERT(first_.is_contiguous() && first_.dim() > 0 && first_.size(0) == 1);
}

void RowSegments::grow_to(std::int64_t rows) {
  while (this->rows() < rows) {
    const at::Tensor segment = memory_for(std::int64_t{1} << shift_);
    segments_.push_back({segment, static_cast<std::byte*>(segment.data_ptr())});
  }
}

void RowSegments::reset(std::uint32_t number) {
  std::memcpy(row(number), first_.data_ptr(), row_bytes_);
}

at::Tensor RowSegments::memory_for(std::int64_t rows) const {
  return memory_for_rows(first_, rows);
}

void RowSegments::copy_to(const at::Tensor& to, std::span<const std::uint32_t> numbers,
                          std::span<const std::uint32_t> places) const {
  auto* const out = static_cast<std::byte*>(to.data_ptr());
  const auto row_of = [&](std::size_t i) { return row(numbers[i]); };
  variable::with_row_size(row_bytes_, [&](auto bytes) {
    variable::for_each_row(numbers.size(), bytes, row_of, [&](const std::byte* row, std::size_t i) {
      std::memcpy(out + (places.empty() ? i : places[i]) * bytes, row, bytes);
    });
  });
}

void RowSegments::copy_from(const at::Tensor& from, std::span<const std::uint32_t> numbers) {
  const auto* const in = static_cast<const std::byte*>(from.data_ptr());
  const auto row_of = [&](std::size_t i) { return row(numbers[i]); };
  variable::with_row_size(row_bytes_, [&](auto bytes) {
    variable::for_each_row(numbers.size(), bytes, row_of, [&](std::byte* row, std::size_t i) {
      std::memcpy(row, in + i * bytes, bytes);
    });
  });
}

}  // namespace cohort::parameter_server
