// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/hot_rows.h"

#include <algorithm>

namespace cohort::parameter_server {
namespace {

// How many rows are counted for each that is reported. The more, the less a row that is not hot is
// overestimated.
constexpr std::size_t kCountedForEach = 16;
// So many rows of one request are counted.
constexpr std::int64_t kSampledMax = 256;

}  // namespace

HotRows::HotRows(std::size_t reported) : reported_(reported) {}

void HotRows::note(const at::Tensor& ids) {
  if (reported_ == 0 || ids.numel() == 0) return;
  const at::Tensor rows = ids.to(at::kLong).contiguous();
  const auto* const all = rows.data_ptr<std::int64_t>();
  const std::int64_t count = rows.numel();
  const std::int64_t stride = (count + kSampledMax - 1) / kSampledMax;
  const Lock lock(mutex_);
  // Begins each time at another place, so that no place of a request is never looked at.
  for (std::int64_t i = next_sample_++ % stride; i < count; i += stride)
    if (all[i] >= 0) add(all[i], static_cast<std::uint64_t>(stride));
}

void HotRows::add(std::int64_t row, std::uint64_t times) {
  const auto known = places_.find(row);
  if (known != places_.end()) {
    counted_[known->second].times += times;
    return;
  }
  if (counted_.size() < reported_ * kCountedForEach) {
    places_.emplace(row, counted_.size());
    counted_.push_back({row, times});
    return;
  }
  const auto coldest = std::min_element(
      counted_.begin(), counted_.end(),
      [](const RowCount& one, const RowCount& two) { return one.times < two.times; });
  auto place = places_.extract(coldest->row);
  place.key() = row;
  places_.insert(std::move(place));
  coldest->row = row;
  coldest->times += times;
}

std::vector<RowCount> HotRows::top() const {
  std::vector<RowCount> rows;
  {
    const Lock lock(mutex_);
    rows = counted_;
  }
  std::sort(rows.begin(), rows.end(), [](const RowCount& one, const RowCount& two) {
    return one.times != two.times ? one.times > two.times : one.row < two.row;
  });
  rows.resize(std::min(rows.size(), reported_));
  return rows;
}

}  // namespace cohort::parameter_server
