// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/row_segments.h"

#include <algorithm>
#include <cstring>

#include "cohort/core/error.h"
#include "cohort/core/kept_memory.h"
#include "cohort/variable/row_loop.h"
#include "cohort/variable/variable_state.h"

namespace cohort::parameter_server {
namespace {

// From the first size on, as many segments as have the second one are added together, since a
// segment alone is no huge page. The system gives them memory when they are used.
constexpr std::uint64_t kLargeBytes = std::uint64_t{128} << 20;
constexpr std::size_t kAtOnceBytes = std::size_t{16} << 20;

}  // namespace

RowSegments::RowSegments(at::Tensor first, int shift)
    : first_(std::move(first)), row_bytes_(first_.nbytes()), shift_(shift) {
  COHORT_ASSERT(first_.is_contiguous() && first_.dim() > 0 && first_.size(0) == 1);
}

void RowSegments::grow_to(std::int64_t rows) {
  while (this->rows() < rows) {
    const std::size_t segment_bytes = row_bytes_ << shift_;
    const std::size_t count =
        bytes() < kLargeBytes ? 1 : std::max<std::size_t>(1, kAtOnceBytes / segment_bytes);
    const at::Tensor memory = in_huge_pages(memory_for(static_cast<std::int64_t>(count) << shift_));
    auto* const begin = static_cast<std::byte*>(memory.data_ptr());
    for (std::size_t i = 0; i < count; ++i)
      segments_.push_back({memory, begin + i * segment_bytes});
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
