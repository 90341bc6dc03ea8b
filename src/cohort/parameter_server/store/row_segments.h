// SPDX-License-Identifier: Apache-2.0
// Memory for rows whose number is not known before: segments of equally many rows, so that growing
// copies nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cohort::parameter_server {

// Thread-compatible.
class RowSegments {
 public:
  // `first`: [1, …] on the CPU and contiguous, what reset() writes. A segment has 2^`shift` rows.
  RowSegments(at::Tensor first, int shift);
  void set_first(const at::Tensor& first) { first_ = first; }

  std::int64_t rows() const { return static_cast<std::int64_t>(segments_.size()) << shift_; }
  std::uint64_t row_bytes() const { return row_bytes_; }
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(rows()) * row_bytes_; }
  // Adds segments until there are so many rows, whose content is arbitrary. Throws if there is no
  // memory; then some may have been added.
  void grow_to(std::int64_t rows);
  std::byte* row(std::uint32_t number) const {
    const std::size_t in_segment = number & ((std::uint32_t{1} << shift_) - 1);
    return segments_[number >> shift_].begin + in_segment * row_bytes_;
  }
  void reset(std::uint32_t number);
  // Memory for this number of rows, contiguous.
  at::Tensor memory_for(std::int64_t rows) const;
  // Row places[i] of `to` becomes the row of numbers[i]; with no places, row i does.
  void copy_to(const at::Tensor& to, std::span<const std::uint32_t> numbers,
               std::span<const std::uint32_t> places = {}) const;
  // The opposite: the row of numbers[i] becomes row i of `from`.
  void copy_from(const at::Tensor& from, std::span<const std::uint32_t> numbers);

 private:
  struct Segment {
    at::Tensor memory;  // that of several segments, in a large table
    std::byte* begin = nullptr;
  };
  at::Tensor first_;
  const std::size_t row_bytes_;
  const int shift_;
  std::vector<Segment> segments_;
};

}  // namespace cohort::parameter_server
