// SPDX-License-Identifier: Apache-2.0
// Finds the rows of a variable that are read and written most often, in little memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::parameter_server {

struct RowCount {
  std::int64_t row = 0;
  std::uint64_t times = 0;
};

// The "space saving" sketch: it counts few rows, and a new row takes the place and the count of the
// one with the lowest count. So a row that is really hot is among those counted, and its count is
// at most that of the replaced row too high. Large requests are sampled. Thread-safe.
class COHORT_API HotRows {
 public:
  // Reports so many rows; 0: counts nothing.
  explicit HotRows(std::size_t reported);

  // `ids`: int64 or int32 [n]; negative ones are no rows.
  void note(const at::Tensor& ids);
  // The hottest one first.
  std::vector<RowCount> top() const;

 private:
  void add(std::int64_t row, std::uint64_t times) COHORT_REQUIRES(mutex_);

  const std::size_t reported_;
  mutable Mutex mutex_;
  std::vector<RowCount> counted_ COHORT_GUARDED_BY(mutex_);
  std::unordered_map<std::int64_t, std::size_t> places_ COHORT_GUARDED_BY(mutex_);
  std::int64_t next_sample_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::parameter_server
